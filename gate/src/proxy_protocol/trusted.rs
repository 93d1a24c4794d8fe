//! The peers from which a PROXY header is required, and believed.

use std::net::IpAddr;
use std::str::FromStr;

/// The peers that must send a PROXY header: networks, and `unix` for the clients of unix listeners.
///
/// Written as a comma-separated list, such as `10.0.0.0/8,::1,192.0.2.7,unix`. An IPv4 network holds the mapped addresses of a
/// dual-stack socket too; `::/0` holds no IPv4 peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trusted {
    networks: Vec<Network>,
    unix: bool,
}

/// A part of the list that names no peer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadTrusted {
    /// Neither an address nor `unix`.
    #[error("`{0}` is no address: write an IP address, a network such as 10.0.0.0/8, or unix")]
    Address(String),
    /// The prefix isn't a number, or is longer than the address.
    #[error("`{0}` has a bad prefix length: write 0 to {1} behind the slash")]
    Prefix(String, u32),
    /// A network whose address has bits set behind its prefix: one of the two is a slip.
    #[error("`{0}` has bits set behind its prefix: write {1} for that network")]
    HostBits(String, String),
}

/// The leading `prefix` bits that an address must share with `address`, which has none set behind them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Network {
    address: IpAddr,
    prefix: u32,
}

impl Trusted {
    /// Whether `peer` must send a header; `None` is the client of a unix listener.
    pub fn contains(&self, peer: Option<IpAddr>) -> bool {
        match peer.map(|peer| peer.to_canonical()) {
            None => self.unix,
            Some(peer) => self
                .networks
                .iter()
                .any(|network| masked(peer, network.prefix) == network.address),
        }
    }
}

impl FromStr for Trusted {
    type Err = BadTrusted;

    fn from_str(list: &str) -> Result<Self, BadTrusted> {
        let mut trusted = Trusted {
            networks: Vec::new(),
            unix: false,
        };
        for part in list.split(',').map(str::trim) {
            if part == "unix" {
                trusted.unix = true;
            } else {
                trusted.networks.push(part.parse()?);
            }
        }
        Ok(trusted)
    }
}

impl FromStr for Network {
    type Err = BadTrusted;

    fn from_str(text: &str) -> Result<Self, BadTrusted> {
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let address: IpAddr = address
            .parse()
            .map_err(|_| BadTrusted::Address(text.to_owned()))?;
        let bits = bits(address);
        let prefix = match prefix {
            None => bits,
            Some(prefix) => prefix
                .parse()
                .ok()
                .filter(|&prefix| prefix <= bits)
                .ok_or_else(|| BadTrusted::Prefix(text.to_owned(), bits))?,
        };
        let network = masked(address, prefix);
        if network != address {
            let network = format!("{network}/{prefix}");
            return Err(BadTrusted::HostBits(text.to_owned(), network));
        }
        Ok(Network { address, prefix }.canonical())
    }
}

impl Network {
    /// A network of mapped addresses is one of IPv4.
    fn canonical(self) -> Self {
        match self.address.to_canonical() {
            address @ IpAddr::V4(_) if self.address.is_ipv6() && self.prefix >= 96 => Network {
                address,
                prefix: self.prefix - 96,
            },
            _ => self,
        }
    }
}

fn bits(address: IpAddr) -> u32 {
    match address {
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => 128,
    }
}

/// The address without the bits behind the first `prefix`; a prefix longer than the address keeps all.
fn masked(address: IpAddr, prefix: u32) -> IpAddr {
    match address {
        IpAddr::V4(v4) => {
            let mask = u32::MAX.checked_shl(32u32.saturating_sub(prefix));
            IpAddr::V4((v4.to_bits() & mask.unwrap_or(0)).into())
        }
        IpAddr::V6(v6) => {
            let mask = u128::MAX.checked_shl(128u32.saturating_sub(prefix));
            IpAddr::V6((v6.to_bits() & mask.unwrap_or(0)).into())
        }
    }
}
