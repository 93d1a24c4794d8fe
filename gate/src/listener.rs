//! Listening sockets: the public ones that the gate owns, and the kept ones that it makes for a backend.
//!
//! - A public listener is one socket, never one of an SO_REUSEPORT group, and lives as long as it is configured. It is
//!   non-blocking and CLOEXEC, and so is what it accepts.
//! - What accepted connections inherit is set before listen(2): TCP_NODELAY, SO_OOBINLINE (a short read means "drained" only
//!   if urgent data stays in the stream), keepalive.
//! - A peer's address is what accept says; a mapped IPv4 address of a dual-stack socket is handed out as IPv4.
//! - A unix listener replaces a socket file on which nobody listens, and nothing else; it removes its own file alone.

mod address;
mod bind;
mod kept;
mod own;

#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use socket2::{SockAddr, Socket};

pub use address::{Address, BadAddress, Named, is_listener_name};
pub use bind::{BindError, bind, from_inherited, set_mode};
pub use kept::KeptListener;
pub use own::{OptionRefused, Own};

use crate::accept_queue::{self, Probe, Queue, Reader, UnixInode};
use crate::sys;

/// How a public listener is set up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Connections that the kernel keeps until they are accepted; it takes no more than net.core.somaxconn.
    pub backlog: u32,
    /// A silent TCP client is asked for a sign of life after this time, then six times in as long again; `None` is never.
    /// The kernel counts in seconds, from 1 to 32,767.
    pub keepalive: Option<Duration>,
    /// `[::]` leaves IPv4 alone: set where an IPv4 listener stands beside it on the same port.
    pub v6only: bool,
    /// What this one asks for beside that, or instead of it.
    pub own: Own,
}

impl Options {
    fn backlog(&self) -> i32 {
        let backlog = self.own.backlog.unwrap_or(self.backlog);
        i32::try_from(backlog).unwrap_or(i32::MAX)
    }
}

/// A public listening socket. Dropping it closes it, and removes the file of a unix listener if it is still this one's.
#[derive(Debug)]
pub struct Listener {
    name: String,
    socket: Socket,
    address: LocalAddress,
    family: Family,
    origin: Origin,
}

/// Who has made a listening socket, and so may change what its other holders see.
#[derive(Debug)]
enum Origin {
    Ours,
    OursWithFile(bind::SocketFile),
    Inherited,
}

/// Where a listener listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LocalAddress {
    /// With the port that the system chose where port 0 was asked for.
    Tcp(SocketAddr),
    /// Its path; empty for an inherited one without a name, `@...` for one without a file.
    Unix(PathBuf),
}

impl fmt::Display for LocalAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LocalAddress::Tcp(address) => address.fmt(f),
            LocalAddress::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Which clients a listener can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// IPv6 and IPv4.
    DualStack,
    /// IPv4 alone.
    V4,
    /// IPv6 alone.
    V6,
    /// This machine's.
    Unix,
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Family::DualStack => "IPv4 and IPv6",
            Family::V4 => "IPv4",
            Family::V6 => "IPv6",
            Family::Unix => "unix",
        })
    }
}

impl Listener {
    /// Reads back what the system has made of a listening socket.
    fn of(name: &str, socket: Socket, origin: Origin) -> io::Result<Listener> {
        let address = socket.local_addr()?;
        let (address, family) = match address.as_socket() {
            Some(tcp) => (LocalAddress::Tcp(tcp), tcp_family(&socket, &tcp)?),
            None => (LocalAddress::Unix(unix_path(&address)), Family::Unix),
        };
        Ok(Listener {
            name: name.to_owned(),
            socket,
            address,
            family,
            origin,
        })
    }

    /// The name that its metrics and its log lines carry.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where it listens.
    pub fn address(&self) -> &LocalAddress {
        &self.address
    }

    /// Which clients it can have: says whether a bare port became dual stack.
    pub fn family(&self) -> Family {
        self.family
    }

    /// Whether it is a unix socket.
    pub fn is_unix(&self) -> bool {
        self.family == Family::Unix
    }

    /// Changes on the open socket what can be changed there, for connections that come from now on: all but `v6only` and the
    /// interface. An inherited socket keeps its backlog.
    ///
    /// # Errors
    /// What the kernel refuses is named. What stands before it is changed: keepalive, backlog, then what is this listener's own.
    pub fn change(&self, from: &Options, to: &Options) -> Result<(), OptionRefused> {
        let is_ours = !matches!(self.origin, Origin::Inherited);
        if !self.is_unix() {
            bind::set_inheritable(&self.socket, to).map_err(OptionRefused::new("keepalive"))?;
        }
        if is_ours {
            let refused = OptionRefused::new("backlog");
            self.socket.listen(to.backlog()).map_err(refused)?;
        }
        if is_ours && !self.is_unix() {
            own::change(&self.socket, Some(from), to)?;
        }
        Ok(())
    }

    /// How many connections wait to be accepted, and the backlog in effect: the least of what was asked for and
    /// net.core.somaxconn.
    pub fn queue(&self, reader: &mut Reader) -> io::Result<Queue> {
        if self.is_unix() {
            let probe = Probe::Unix(UnixInode::of(&self.socket)?);
            reader.read(&probe)?.ok_or(io::ErrorKind::NotFound.into())
        } else {
            accept_queue::of_tcp_listener(self.socket.as_fd())
        }
    }

    /// How many connections the kernel has taken on and nobody has accepted, handshakes in progress included.
    pub fn undelivered(&self, reader: &mut Reader) -> io::Result<u32> {
        match self.is_unix() {
            true => Ok(self.queue(reader)?.len),
            false => reader.undelivered_at(self.socket.as_fd()),
        }
    }

    /// How many packets the kernel has dropped at this socket, SYNs at a full queue among them (SO_MEMINFO).
    pub fn drops(&self) -> io::Result<u64> {
        /// SK_MEMINFO_DROPS (`linux/sock_diag.h`) is the last of these.
        const NUMBERS: usize = 9;
        let [.., drops] = sys::numbers_option::<NUMBERS>(
            self.socket.as_fd(),
            libc::SOL_SOCKET,
            libc::SO_MEMINFO,
        )?;
        Ok(drops.into())
    }

    /// Accepts one connection, and says who its client is: `None` for one of a unix listener.
    ///
    /// Errors are accept4(2)'s own; `WouldBlock` when nobody waits.
    pub fn accept(&self) -> io::Result<(OwnedFd, Option<SocketAddr>)> {
        let (connection, peer) = sys::accept(self.socket.as_fd())?;
        Ok((connection, peer.as_socket().map(canonical)))
    }

    /// Takes no new connection from now on, so that the listener can be emptied and closed without resetting anybody.
    ///
    /// TCP: the socket is bound to a network interface that doesn't exist, which needs no privilege (Linux 5.7; a filter that
    /// drops SYNs takes CAP_NET_ADMIN by now). New clients are refused, as after the close; what is queued stays, and
    /// handshakes in progress complete (but for those of a SYN cookie). Unix: the file is removed. An inherited socket is left
    /// as it is: whoever has passed it holds it too, so closing it here resets nobody. To be called once.
    ///
    /// # Errors
    /// EPERM for one that is bound to an interface already ([`Own::interface`]), without CAP_NET_RAW.
    pub fn refuse_new(&self) -> io::Result<()> {
        /// Interfaces are numbered from 1 up, as they come.
        const NOWHERE: NonZeroU32 = NonZeroU32::new(i32::MAX as u32).unwrap();
        match &self.origin {
            // SO_BINDTOIFINDEX, which is of no IP version in particular.
            Origin::Ours => self.socket.bind_device_by_index_v4(Some(NOWHERE)),
            Origin::OursWithFile(file) => file.remove_if_same(),
            Origin::Inherited => Ok(()),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn tcp_family(socket: &Socket, address: &SocketAddr) -> io::Result<Family> {
    Ok(match address {
        SocketAddr::V4(_) => Family::V4,
        SocketAddr::V6(v6) if v6.ip().is_unspecified() && !socket.only_v6()? => Family::DualStack,
        SocketAddr::V6(_) => Family::V6,
    })
}

fn unix_path(address: &SockAddr) -> PathBuf {
    match (address.as_pathname(), address.as_abstract_namespace()) {
        (Some(path), _) => path.into(),
        (None, Some(name)) => format!("@{}", name.escape_ascii()).into(),
        (None, None) => PathBuf::new(),
    }
}

/// A mapped address as IPv4.
fn canonical(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V6(v6) if v6.ip().to_ipv4_mapped().is_some() => {
            SocketAddr::new(v6.ip().to_canonical(), v6.port())
        }
        other => other,
    }
}
