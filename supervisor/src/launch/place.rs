//! Private places: a loopback address and a port for one generation's listener.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener};
use std::ops::RangeInclusive;

/// The lowest port that needs no right everywhere.
const FIRST_PORT: u16 = 1024;

/// The kernel's default, where its own can't be read.
const EPHEMERAL: RangeInclusive<u16> = 32_768..=60_999;

/// Hands out places. Two gates on one machine begin at different ones, and a port that somebody listens on, at whatever
/// address, is left out: a server that takes only a port binds all addresses.
#[derive(Debug)]
pub(crate) struct Places {
    /// Not those of outgoing connections, of which one may be taken at any moment.
    ports: Vec<u16>,
    next: u32,
}

impl Places {
    pub(crate) fn new() -> Places {
        let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range");
        let ephemeral = range.ok().and_then(|text| {
            let (first, last) = text.trim().split_once(char::is_whitespace)?;
            Some(first.parse().ok()?..=last.trim().parse().ok()?)
        });
        let ephemeral = ephemeral.unwrap_or(EPHEMERAL);
        let all = FIRST_PORT..=u16::MAX;
        let mut ports: Vec<u16> = all
            .clone()
            .filter(|port| !ephemeral.contains(port))
            .collect();
        if ports.is_empty() {
            // A system may have given all its ports to outgoing connections.
            ports = all.collect();
        }
        // Any number will do, so long as another process has another one.
        let next = RandomState::new().hash_one(std::process::id()) as u32;
        Places { ports, next }
    }

    /// A place where nobody listens now.
    ///
    /// # Errors
    /// Every port is taken.
    pub(crate) fn take(&mut self) -> io::Result<SocketAddr> {
        for _ in 0..self.ports.len() {
            self.next = self.next.wrapping_add(1);
            let port = self.ports[self.next as usize % self.ports.len()];
            if TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok() {
                return Ok(SocketAddrV4::new(address(self.next), port).into());
            }
        }
        Err(io::ErrorKind::AddrInUse.into())
    }
}

/// One of 127/8, but for 127.0.0.0/16, where other programs listen, and the ends of the rest.
fn address(number: u32) -> Ipv4Addr {
    let [_, a, b, c] = number.wrapping_mul(2_654_435_761).to_be_bytes();
    Ipv4Addr::new(127, a.clamp(1, 254), b, c.clamp(1, 254))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_loopback_free_and_not_for_outgoing_connections() {
        let mut places = Places::new();
        let mut seen = std::collections::HashSet::new();
        for _ in 0..100 {
            let place = places.take().unwrap();
            assert!(place.ip().is_loopback());
            assert!(places.ports.contains(&place.port()), "{place}");
            assert!(seen.insert(place.port()), "{place} twice");
        }
    }

    #[test]
    fn a_taken_port_is_left_out() {
        let mut places = Places::new();
        let taken = places.take().unwrap();
        let _listener = TcpListener::bind((Ipv4Addr::LOCALHOST, taken.port())).unwrap();
        places.next = places.next.wrapping_sub(1);
        assert_ne!(places.take().unwrap().port(), taken.port());
    }
}
