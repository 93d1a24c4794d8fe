//! What one listener asks of its own socket.

use std::io;
use std::os::fd::AsFd;

use socket2::Socket;

use super::Options;
use crate::sys;

/// Seconds for which the kernel puts up with a silent client (tcp(7), TCP_DEFER_ACCEPT): until it first repeats its answer to the
/// SYN.
const SILENCE: u32 = 1;

/// What one listener asks of its own public socket, beside what its service does. An inherited socket stays as it was made, and a
/// unix listener takes the backlog alone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Own {
    /// Instead of [`Options::backlog`].
    pub backlog: Option<u32>,
    /// Instead of [`Options::v6only`].
    pub v6only: Option<bool>,
    /// The one network interface through which clients may come (SO_BINDTODEVICE, socket(7); Linux 5.7 asks for no privilege).
    /// Without CAP_NET_RAW the socket can't be moved to another one any more, so a client that comes in the moment in which
    /// the listener is closed is reset: see [`Listener::refuse_new`](super::Listener::refuse_new).
    pub interface: Option<String>,
    /// The largest segment, in bytes, that clients are told to send (TCP_MAXSEG, tcp(7)): 88 to 32,767.
    pub mss: Option<u16>,
    /// Data may come with the SYN (TCP_FASTOPEN, RFC 7413), from as many clients at once as the backlog has places. The sysctl
    /// net.ipv4.tcp_fastopen must have the bit 2, else nothing changes. The network may repeat such data.
    pub fast_open: bool,
    /// A client is accepted with its first bytes (TCP_DEFER_ACCEPT, tcp(7)); a silent one after the second in which the kernel
    /// repeats its answer to the SYN. Until then it believes itself connected, but the kernel counts a handshake in progress:
    /// it is in no accept queue, takes no place in the backlog, and no limit of the gate sees it. The close of the listener
    /// waits for it.
    pub defer_accept: bool,
}

/// An option that a socket can't have.
#[derive(Debug, thiserror::Error)]
#[error("the kernel refuses {option}: {error}")]
pub struct OptionRefused {
    option: String,
    error: io::Error,
}

impl OptionRefused {
    pub(super) fn new(option: impl Into<String>) -> impl FnOnce(io::Error) -> OptionRefused {
        |error| OptionRefused {
            option: option.into(),
            error,
        }
    }
}

impl Own {
    /// Whether one open socket can serve both: the rest is changed on it.
    pub fn is_same_socket(&self, other: &Own) -> bool {
        self.v6only == other.v6only && self.interface == other.interface
    }

    /// To be called before bind(2): two sockets of two interfaces may have the same address.
    pub(super) fn bind_to_interface(&self, socket: &Socket) -> Result<(), OptionRefused> {
        let Some(interface) = &self.interface else {
            return Ok(());
        };
        let refused = OptionRefused::new(format!("interface {interface}"));
        socket
            .bind_device(Some(interface.as_bytes()))
            .map_err(refused)
    }
}

/// Sets what `to` asks of a TCP socket and `from` doesn't, and takes back what only `from` did. A new socket has nothing yet: its
/// `from` is `None`.
pub(super) fn change(
    socket: &Socket,
    from: Option<&Options>,
    to: &Options,
) -> Result<(), OptionRefused> {
    let mss = |options: &Options| options.own.mss.unwrap_or(0).into();
    let queue = |options: &Options| match options.own.fast_open {
        true => options.backlog() as u32,
        false => 0,
    };
    let silence = |options: &Options| match options.own.defer_accept {
        true => SILENCE,
        false => 0,
    };
    let set = |value: &dyn Fn(&Options) -> u32, name, option: String| {
        let (old, new) = (from.map_or(0, value), value(to));
        if old == new {
            return Ok(());
        }
        sys::set_number_option(socket.as_fd(), libc::IPPROTO_TCP, name, new)
            .map_err(OptionRefused::new(option))
    };
    set(&mss, libc::TCP_MAXSEG, format!("mss {}", mss(to)))?;
    set(&queue, libc::TCP_FASTOPEN, "TCP fast open".to_owned())?;
    set(
        &silence,
        libc::TCP_DEFER_ACCEPT,
        "deferred accept".to_owned(),
    )
}

#[cfg(test)]
mod tests;
