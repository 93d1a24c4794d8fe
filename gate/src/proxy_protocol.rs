//! The PROXY protocol, versions 1 and 2 (HAProxy's `doc/proxy-protocol.txt`): pure, bytes in, bytes out, no I/O.
//!
//! - [`header`] writes what the gate sends to a backend: at most [`MAX_WRITTEN`] bytes, without the heap.
//! - [`parse`] reads what a trusted peer sends. It may be called again and again with a growing prefix of the stream: for a
//!   prefix of a good header it says [`Parsed::Incomplete`], and it never looks at a byte behind the header's end.
//! - [`Trusted`] says which peers must send one.
//!
//! An IPv4 client of a dual-stack socket is an IPv4 client: IPv4-mapped IPv6 addresses are written and handed out as IPv4.

mod parse;
mod trusted;

#[cfg(test)]
mod tests;

use std::fmt::{self, Write as _};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::ops::Deref;
use std::str::FromStr;

pub use parse::{BadHeader, MAX_READ, Parsed, parse};
pub use trusted::{BadTrusted, Trusted};

/// The longest header that is written: the specification's bound for version 1, which is above that of version 2 (52).
pub const MAX_WRITTEN: usize = 107;

/// What a version 2 header starts with.
const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";

/// Version 2 in the high nibble, the command in the low one.
const LOCAL: u8 = 0x20;
const PROXY: u8 = 0x21;

/// The address family in the high nibble, the transport protocol in the low one.
const UNSPEC: u8 = 0x00;
const TCP4: u8 = 0x11;
const TCP6: u8 = 0x21;

/// A version of the protocol, written `v1` or `v2`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// One line of text.
    V1,
    /// Binary.
    V2,
}

/// Neither `v1` nor `v2`.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("`{0}` is no version of the PROXY protocol: write v1 or v2")]
pub struct BadVersion(String);

impl FromStr for Version {
    type Err = BadVersion;

    fn from_str(text: &str) -> Result<Self, BadVersion> {
        match text {
            "v1" => Ok(Version::V1),
            "v2" => Ok(Version::V2),
            _ => Err(BadVersion(text.to_owned())),
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Version::V1 => "v1",
            Version::V2 => "v2",
        })
    }
}

/// The two ends of the connection that a header speaks of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Addresses {
    /// The client.
    pub source: SocketAddr,
    /// What the client dialled.
    pub destination: SocketAddr,
}

/// A header ready to be sent, in place.
#[derive(Clone)]
pub struct Header {
    bytes: [u8; MAX_WRITTEN],
    len: usize,
}

impl Header {
    fn new() -> Self {
        Header {
            bytes: [0; MAX_WRITTEN],
            len: 0,
        }
    }

    /// Panics beyond [`MAX_WRITTEN`], which the longest pair of addresses doesn't reach.
    fn push(&mut self, bytes: &[u8]) {
        let end = self.len + bytes.len();
        self.bytes[self.len..end].copy_from_slice(bytes);
        self.len = end;
    }
}

impl fmt::Write for Header {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.push(text.as_bytes());
        Ok(())
    }
}

impl Deref for Header {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl fmt::Debug for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.escape_ascii())
    }
}

/// The header that tells a backend who its client is.
///
/// `None` (the client of a unix listener, a readiness probe) is written as `LOCAL` in version 2 and as `UNKNOWN` in version 1.
/// Two IPv4 addresses, plain or mapped, are written as TCP4; if only one of them is, both as TCP6. No TLV is written.
pub fn header(version: Version, addresses: Option<&Addresses>) -> Header {
    let mut header = Header::new();
    match version {
        Version::V1 => write_v1(&mut header, addresses),
        Version::V2 => write_v2(&mut header, addresses),
    }
    header
}

fn write_v1(header: &mut Header, addresses: Option<&Addresses>) {
    let Some(addresses) = addresses else {
        return header.push(b"PROXY UNKNOWN\r\n");
    };
    let (source_port, destination_port) = (addresses.source.port(), addresses.destination.port());
    let (family, source, destination) = match same_family(addresses) {
        (source @ IpAddr::V4(_), destination) => ("TCP4", source, destination),
        (source, destination) => ("TCP6", source, destination),
    };
    write!(
        header,
        "PROXY {family} {source} {destination} {source_port} {destination_port}\r\n"
    )
    .expect("Header::write_str never fails");
}

fn write_v2(header: &mut Header, addresses: Option<&Addresses>) {
    header.push(&SIGNATURE);
    let Some(addresses) = addresses else {
        return header.push(&[LOCAL, UNSPEC, 0, 0]);
    };
    match same_family(addresses) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            header.push(&[PROXY, TCP4, 0, 12]);
            header.push(&source.octets());
            header.push(&destination.octets());
        }
        (source, destination) => {
            header.push(&[PROXY, TCP6, 0, 36]);
            header.push(&as_v6(source).octets());
            header.push(&as_v6(destination).octets());
        }
    }
    header.push(&addresses.source.port().to_be_bytes());
    header.push(&addresses.destination.port().to_be_bytes());
}

/// Both as IPv4 where both are, plain or mapped; else both as IPv6.
fn same_family(addresses: &Addresses) -> (IpAddr, IpAddr) {
    let source = addresses.source.ip().to_canonical();
    let destination = addresses.destination.ip().to_canonical();
    if source.is_ipv4() && destination.is_ipv4() {
        (source, destination)
    } else {
        (as_v6(source).into(), as_v6(destination).into())
    }
}

fn as_v6(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}
