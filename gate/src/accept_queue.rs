//! How many connections wait to be accepted at an endpoint: what the kernel has completed and no process has taken yet.
//!
//! - Unprivileged, and without the help of the process that listens: by TCP_INFO on a descriptor that we hold, else by
//!   sock_diag(7), within this network namespace.
//! - [`Reader::read`] is for the hot path: one system call on a descriptor (under 1 us), or a send and a receive on a netlink
//!   socket that is kept (about 10 us for TCP). The kernel answers within the send, so neither blocks. A unix socket is looked
//!   for among all of the namespace: 25 us where there are few, 0.6 ms with 16,000 of them.
//! - [`Reader::undelivered`] also finds the connections whose handshake the client has ended and the server hasn't (SYN_RECV), which
//!   closing the listening socket would reset. For that it walks all TCP sockets of the namespace, twice where the listener's family
//!   isn't known: 5 ms each, and 40 ms with 100,000 of them, those in TIME_WAIT included.

mod sock_diag;

#[cfg(test)]
pub(crate) mod tests;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use sock_diag::{InetSocket, SockDiag, TCP_LISTEN, TCP_SYN_RECV};
use socket2::SockRef;

use crate::sys;

/// The accept queue of one listening socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Queue {
    /// Connections that wait to be accepted.
    pub len: u32,
    /// The effective backlog; the kernel completes one more than this.
    pub max: u32,
}

/// How to read the accept queue of an endpoint.
#[derive(Debug, Clone)]
pub enum Probe {
    /// A listening TCP socket of which we hold a descriptor.
    TcpHeld(Arc<OwnedFd>),
    /// A local TCP address on which another process listens.
    Tcp(SocketAddr),
    /// A listening unix socket.
    Unix(UnixInode),
    /// On another machine: nothing can be known.
    Unknown,
}

impl Probe {
    /// The probe of a TCP address, which is on another machine unless it is a loopback address or one of an interface here.
    pub fn tcp(address: SocketAddr) -> io::Result<Probe> {
        let ip = address.ip().to_canonical();
        let local = ip.is_loopback() || interface_addresses()?.any(|own| own == ip);
        Ok(match ip {
            _ if !local => Probe::Unknown,
            IpAddr::V4(v4) => Probe::Tcp((v4, address.port()).into()),
            IpAddr::V6(_) => Probe::Tcp(address),
        })
    }
}

fn interface_addresses() -> io::Result<impl Iterator<Item = IpAddr>> {
    let interfaces = nix::ifaddrs::getifaddrs()?;
    Ok(interfaces.filter_map(|interface| {
        let address = interface.address?;
        let v4 = address.as_sockaddr_in().map(|v4| v4.ip().into());
        v4.or_else(|| address.as_sockaddr_in6().map(|v6| v6.ip().into()))
    }))
}

/// The number by which the kernel knows a unix socket; it is not that of the socket's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnixInode(u32);

impl UnixInode {
    /// That of a socket of which we hold a descriptor.
    pub fn of(socket: impl AsFd) -> io::Result<UnixInode> {
        // The kernel's own diagnosis has the low half of it.
        Ok(UnixInode(nix::sys::stat::fstat(socket)?.st_ino as u32))
    }
}

/// Reads accept queues. A thread that reads has one of its own.
#[derive(Debug, Default)]
pub struct Reader {
    /// Opened when first needed, and again after an error: a dump that was broken off would stay in the way of the next one.
    diag: Option<SockDiag>,
}

impl Reader {
    /// A reader; opens nothing yet.
    pub fn new() -> Reader {
        Reader::default()
    }

    /// The accept queue behind `probe`; `None` where nothing can be known, or nobody listens. Of a group of sockets that share
    /// an address by SO_REUSEPORT it is one member's, which stands for all: the kernel deals evenly.
    pub fn read(&mut self, probe: &Probe) -> io::Result<Option<Queue>> {
        match probe {
            Probe::TcpHeld(socket) => of_tcp_listener(socket.as_fd()).map(Some),
            Probe::Tcp(address) => self.of_address(*address),
            Probe::Unix(inode) => self.of_unix(*inode),
            Probe::Unknown => Ok(None),
        }
    }

    /// How many connections the kernel has taken on for the endpoint and no process has accepted: every accept queue of the
    /// address, and the handshakes that only the client has ended. `None` where nothing can be known. The endpoint is empty
    /// when this is 0 twice.
    pub fn undelivered(&mut self, probe: &Probe) -> io::Result<Option<u32>> {
        match probe {
            Probe::TcpHeld(socket) => self.undelivered_at(socket.as_fd()).map(Some),
            Probe::Tcp(address) => {
                // In the order in which a connection moves, so that none is missed.
                let half_done = self.syn_recv(*address)?;
                Ok(Some(half_done + self.queued_at(*address)?))
            }
            Probe::Unix(_) | Probe::Unknown => self.queued(probe),
        }
    }

    /// How many connections wait in every accept queue of the endpoint; `None` where nothing can be known.
    pub fn queued(&mut self, probe: &Probe) -> io::Result<Option<u32>> {
        match probe {
            Probe::TcpHeld(socket) => Ok(Some(of_tcp_listener(socket.as_fd())?.len)),
            Probe::Tcp(address) => self.queued_at(*address).map(Some),
            Probe::Unix(inode) => Ok(Some(self.of_unix(*inode)?.map_or(0, |queue| queue.len))),
            Probe::Unknown => Ok(None),
        }
    }

    /// [`Reader::undelivered`] of a TCP socket that listens, by a descriptor of it.
    pub(crate) fn undelivered_at(&mut self, socket: BorrowedFd<'_>) -> io::Result<u32> {
        let name = SockRef::from(&socket).local_addr()?;
        let address = name.as_socket().ok_or(io::ErrorKind::InvalidInput)?;
        // What a socket accepts is of its own family, whatever the client's.
        let family = match address {
            SocketAddr::V4(_) => libc::AF_INET,
            SocketAddr::V6(_) => libc::AF_INET6,
        };
        // In the order in which a connection moves, so that none is missed.
        let half_done = self.half_done(&[family], address)?;
        Ok(half_done + of_tcp_listener(socket)?.len)
    }

    /// Handshakes in progress towards a local address, or on all of a port where the address is the unspecified one.
    pub(crate) fn syn_recv(&mut self, address: SocketAddr) -> io::Result<u32> {
        self.half_done(families(address), address)
    }

    fn half_done(&mut self, families: &[libc::c_int], address: SocketAddr) -> io::Result<u32> {
        let mut count = 0;
        self.each_local(families, address, TCP_SYN_RECV, |socket| {
            if address.ip().is_unspecified() || socket.address.ip() == address.ip().to_canonical() {
                count += 1;
            }
        })?;
        Ok(count)
    }

    /// The unix socket that listens at `path`, if there is one: by the file's device and inode, else by the name it was bound
    /// to (on an overlay file system the numbers may differ).
    pub fn find_unix(&mut self, path: &Path) -> io::Result<Option<UnixInode>> {
        let file = nix::sys::stat::stat(path)?;
        let (mut by_file, mut by_name) = (None, None);
        self.ask(|diag| {
            diag.each_unix_listener(|socket| {
                if socket.file == Some((file.st_dev, file.st_ino as u32)) {
                    by_file = Some(UnixInode(socket.inode));
                } else if socket.name == Some(path.as_os_str().as_encoded_bytes()) {
                    by_name = Some(UnixInode(socket.inode));
                }
            })
        })?;
        Ok(by_file.or(by_name))
    }

    /// Whoever would get a connection to `address`: its own listener, or one of the unspecified address, dual stack included.
    fn of_address(&mut self, address: SocketAddr) -> io::Result<Option<Queue>> {
        let found = self.ask(|diag| diag.inet_listener(address))?;
        Ok(found.map(|socket| socket.queue))
    }

    pub(crate) fn of_unix(&mut self, inode: UnixInode) -> io::Result<Option<Queue>> {
        self.ask(|diag| diag.unix_queue(inode.0))
    }

    /// The queues of all sockets that listen at `address`; of those at the unspecified one where there is none.
    fn queued_at(&mut self, address: SocketAddr) -> io::Result<u32> {
        let (mut own, mut unspecified) = (None, 0);
        self.each_local(families(address), address, TCP_LISTEN, |socket| {
            if socket.address.ip() == address.ip().to_canonical() {
                own = Some(own.unwrap_or(0) + socket.queue.len);
            } else if socket.address.ip().is_unspecified() {
                unspecified += socket.queue.len;
            }
        })?;
        Ok(own.unwrap_or(unspecified))
    }

    /// Every socket of the port of `address` in a state.
    fn each_local(
        &mut self,
        families: &[libc::c_int],
        address: SocketAddr,
        state: u8,
        mut each: impl FnMut(InetSocket),
    ) -> io::Result<()> {
        self.ask(|diag| {
            families
                .iter()
                .try_for_each(|family| diag.each_inet(*family, address.port(), state, &mut each))
        })
    }

    fn ask<T>(&mut self, ask: impl FnOnce(&mut SockDiag) -> io::Result<T>) -> io::Result<T> {
        let mut diag = match self.diag.take() {
            Some(diag) => diag,
            None => SockDiag::open()?,
        };
        let answer = ask(&mut diag)?;
        self.diag = Some(diag);
        Ok(answer)
    }
}

/// The families of the sockets that may receive what comes to an address: a dual-stack socket is one of IPv6, whatever comes to it.
fn families(address: SocketAddr) -> &'static [libc::c_int] {
    match address.ip().to_canonical().is_ipv4() || address.ip().is_unspecified() {
        true => &[libc::AF_INET, libc::AF_INET6],
        false => &[libc::AF_INET6],
    }
}

/// The accept queue of a listening TCP socket (tcp(7), TCP_INFO): the kernel puts it where a connection has its unacknowledged
/// and its selectively acknowledged segments.
pub fn of_tcp_listener(socket: BorrowedFd<'_>) -> io::Result<Queue> {
    // Eight bytes of small fields, rto, ato, snd_mss, rcv_mss, unacked, sacked.
    let [.., len, max] = sys::numbers_option::<8>(socket, libc::IPPROTO_TCP, libc::TCP_INFO)?;
    Ok(Queue { len, max })
}
