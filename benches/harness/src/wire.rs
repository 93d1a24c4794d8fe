//! What load and backend say to each other, and their sockets.

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, SockFlag, accept4, recv, send, setsockopt, sockopt};
use socket2::{Domain, SockAddr, Socket, Type};

/// A client's request, and what the backend answers.
pub(crate) const REQUEST: [u8; 100] = [b'q'; 100];
pub(crate) const ANSWER: [u8; 200] = [b'a'; 200];

/// Of each listening socket here, the relays' and the backend's.
pub(crate) const BACKLOG: i32 = 4096;

/// Where something listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl Place {
    fn address(&self) -> io::Result<(Domain, SockAddr)> {
        Ok(match self {
            Place::Tcp(address) => (Domain::for_address(*address), (*address).into()),
            Place::Unix(path) => (Domain::UNIX, SockAddr::unix(path)?),
        })
    }
}

impl fmt::Display for Place {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Tcp(address) => address.fmt(out),
            Place::Unix(path) => write!(out, "unix:{}", path.display()),
        }
    }
}

impl std::str::FromStr for Place {
    type Err = std::net::AddrParseError;

    fn from_str(text: &str) -> Result<Place, Self::Err> {
        match text.strip_prefix("unix:") {
            Some(path) => Ok(Place::Unix(path.into())),
            None => text.parse().map(Place::Tcp),
        }
    }
}

/// A listening socket that doesn't block.
pub(crate) fn listen(place: &Place) -> io::Result<Socket> {
    let (domain, address) = place.address()?;
    let socket = Socket::new(domain, Type::STREAM.nonblocking().cloexec(), None)?;
    match place {
        Place::Tcp(_) => {
            socket.set_reuse_address(true)?;
            socket.set_tcp_nodelay(true)?; // what it accepts inherits this
        }
        // That of the round before, whose backend was killed.
        Place::Unix(path) => drop(std::fs::remove_file(path)),
    }
    socket.bind(&address).map_err(|error| {
        io::Error::new(error.kind(), format!("{place} can't be bound: {error}"))
    })?;
    socket.listen(BACKLOG)?;
    Ok(socket)
}

/// The next connection, one that doesn't block; `None` where nobody waits.
pub(crate) fn accept(listener: &Socket) -> io::Result<Option<OwnedFd>> {
    match accept4(listener, SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC) {
        Ok(socket) => Ok(Some(socket)),
        Err(Errno::EAGAIN | Errno::ECONNABORTED | Errno::EINTR) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Begins a connection from `source` that doesn't block.
///
/// Clients come from many addresses, so that it is the relay that runs out of ports, never the load.
pub(crate) fn connect(target: SocketAddr, source: Ipv4Addr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM.nonblocking().cloexec(), None)?;
    socket.set_tcp_nodelay(true)?;
    setsockopt(&socket, sockopt::IpBindAddressNoPort, &true)?;
    socket.bind(&SocketAddr::from(SocketAddrV4::new(source, 0)).into())?;
    match socket.connect(&target.into()) {
        Err(error) if error.raw_os_error() != Some(Errno::EINPROGRESS as i32) => Err(error),
        _ => Ok(socket),
    }
}

/// Client addresses in turn, 64 of 127/8.
#[derive(Debug, Default)]
pub(crate) struct Sources(u8);

impl Sources {
    pub(crate) fn next(&mut self) -> Ipv4Addr {
        self.0 = self.0 % 64 + 1;
        Ipv4Addr::new(127, 3, 0, self.0)
    }
}

/// What a read or write that doesn't block has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moved {
    Bytes(usize),
    /// Nothing now.
    Later,
    /// No more, ever: an end of stream or an error.
    Ended,
}

pub(crate) fn write(socket: &impl AsRawFd, bytes: &[u8]) -> Moved {
    moved(send(socket.as_raw_fd(), bytes, MsgFlags::MSG_NOSIGNAL))
}

pub(crate) fn read(socket: &impl AsRawFd, buffer: &mut [u8]) -> Moved {
    moved(recv(socket.as_raw_fd(), buffer, MsgFlags::empty()))
}

/// Takes bytes out of a TCP socket without copying them (tcp(7), MSG_TRUNC): a sink that isn't the bottleneck.
pub(crate) fn discard(socket: &impl AsRawFd, buffer: &mut [u8]) -> Moved {
    moved(recv(socket.as_raw_fd(), buffer, MsgFlags::MSG_TRUNC))
}

fn moved(result: nix::Result<usize>) -> Moved {
    match result {
        Ok(0) => Moved::Ended,
        Ok(count) => Moved::Bytes(count),
        Err(Errno::EAGAIN | Errno::EINTR) => Moved::Later,
        Err(_) => Moved::Ended,
    }
}

/// The length of the PROXY protocol header at the start of `bytes`, 0 where there is none; `None` while it isn't complete.
///
/// Source: HAProxy's doc/proxy-protocol.txt, sections 2.1 and 2.2.
pub(crate) fn proxy_header(bytes: &[u8]) -> Option<usize> {
    const V1: &[u8] = b"PROXY ";
    const V2: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
    let begins = |signature: &[u8]| bytes.iter().zip(signature).all(|(a, b)| a == b);
    if begins(V2) {
        let length = bytes.get(14..16)?;
        let whole = 16 + usize::from(u16::from_be_bytes([length[0], length[1]]));
        return (bytes.len() >= whole).then_some(whole);
    }
    if begins(V1) {
        return bytes
            .windows(2)
            .position(|pair| pair == b"\r\n")
            .map(|end| end + 2);
    }
    Some(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_read_as_it_is_written() {
        for text in ["127.0.0.1:80", "[::1]:8080", "unix:/run/a.sock"] {
            let place: Place = text.parse().expect("a place");
            assert_eq!(place.to_string(), text);
        }
        assert!("localhost".parse::<Place>().is_err());
    }

    #[test]
    fn a_proxy_header_has_a_length_once_it_is_complete() {
        let mut v2 = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x00\x0c".to_vec();
        v2.extend([127, 0, 0, 1, 127, 0, 0, 1, 1, 2, 3, 4]);
        let v1 = b"PROXY TCP4 127.0.0.1 127.0.0.1 1 2\r\n".to_vec();
        for header in [v2, v1] {
            let length = header.len();
            for cut in 1..length {
                assert_eq!(
                    proxy_header(&header[..cut]),
                    None,
                    "{cut} bytes of {length}"
                );
            }
            let followed = [&header[..], &REQUEST].concat();
            assert_eq!(proxy_header(&followed), Some(length));
        }
        assert_eq!(proxy_header(&REQUEST), Some(0));
    }

    #[test]
    fn sources_come_round() {
        let mut sources = Sources::default();
        let first = sources.next();
        for _ in 1..64 {
            assert_ne!(sources.next(), first);
        }
        assert_eq!(sources.next(), first);
    }
}
