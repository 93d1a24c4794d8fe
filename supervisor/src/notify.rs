//! The notification protocol of sd_notify(3), both ways: [`Manager`] is whoever started the gate, [`NotifySocket`] is
//! where a generation's backend says that it is ready.
//!
//! Messages are datagrams of `NAME=VALUE` lines. Nothing here reads or changes the environment after the start.

use std::ffi::OsString;
use std::io::{self, IoSliceMut};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg, setsockopt, sockopt::PassCred};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::{Pid, getpgid};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::sys;

/// Bytes of a message that are read; systemd itself takes 4 KiB.
const MESSAGE: usize = 4 * 1024;

/// The service manager that started the gate, if there is one that wants to hear.
pub struct Manager {
    channel: Option<(UnixDatagram, SocketAddr)>,
    watchdog: Option<Duration>,
}

impl Manager {
    /// Captures `NOTIFY_SOCKET`, `WATCHDOG_USEC` and `WATCHDOG_PID`. To be called once at the start.
    ///
    /// A socket of a kind that isn't known (`vsock:`) is logged and left alone: the gate runs without a manager.
    pub fn from_environment() -> Self {
        Manager::new(|name| std::env::var_os(name))
    }

    fn new(variable: impl Fn(&str) -> Option<OsString>) -> Self {
        let channel = variable("NOTIFY_SOCKET").and_then(|name| {
            open(name.as_bytes())
                .inspect_err(|error| tracing::warn!(?name, %error, "can't use NOTIFY_SOCKET"))
                .ok()
        });
        let number = |name| variable(name)?.to_str()?.parse::<u64>().ok();
        let for_us = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
        let watchdog = number("WATCHDOG_USEC").filter(|&usec| usec > 0 && for_us);
        Manager {
            channel,
            watchdog: watchdog.map(Duration::from_micros),
        }
    }

    /// How long the manager waits for [`Manager::alive`] before it ends the gate; half of it is a good interval.
    pub fn watchdog(&self) -> Option<Duration> {
        self.watchdog
    }

    /// The start, or a reload, is over; `status` is shown to operators.
    pub fn ready(&self, status: &str) {
        self.send(&format!("READY=1\nSTATUS={}", one_line(status)));
    }

    /// A reload begins; [`Manager::ready`] ends it.
    pub fn reloading(&self) {
        // The manager compares this with the moment at which it asked for the reload (Type=notify-reload).
        let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(Duration::ZERO, Duration::from);
        self.send(&format!(
            "RELOADING=1\nSTATUS=reloading\nMONOTONIC_USEC={}",
            now.as_micros()
        ));
    }

    /// The stop begins.
    pub fn stopping(&self) {
        self.send("STOPPING=1\nSTATUS=stopping");
    }

    /// The gate turns.
    pub fn alive(&self) {
        self.send("WATCHDOG=1");
    }

    /// Never blocks; a manager that doesn't read misses it.
    fn send(&self, message: &str) {
        if let Some((socket, address)) = &self.channel
            && let Err(error) = socket.send_to_addr(message.as_bytes(), address)
        {
            tracing::debug!(message, %error, "the service manager wasn't told");
        }
    }
}

fn open(name: &[u8]) -> io::Result<(UnixDatagram, SocketAddr)> {
    let address = match name {
        [b'@', rest @ ..] => SocketAddr::from_abstract_name(rest)?,
        [b'/', ..] => SocketAddr::from_pathname(Path::new(std::ffi::OsStr::from_bytes(name)))?,
        _ => {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "not a unix socket",
            ));
        }
    };
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    Ok((socket, address))
}

fn one_line(text: &str) -> String {
    text.replace('\n', " ")
}

/// Where one generation's backend sends its notifications: `notify` in the generation's directory, mode 0600.
///
/// The file goes with the directory.
pub struct NotifySocket {
    socket: AsyncFd<OwnedFd>,
    path: PathBuf,
}

/// A notification and its sender.
#[derive(Debug, PartialEq, Eq)]
struct Notification {
    /// As the kernel says (SCM_CREDENTIALS); 0 from another pid namespace.
    sender: i32,
    text: String,
}

impl NotifySocket {
    /// Binds the socket in `directory`. Needs a tokio runtime.
    ///
    /// # Errors
    /// The path is over 107 bytes, or the directory can't be written.
    pub fn bind(directory: &Path) -> io::Result<Self> {
        let path = directory.join("notify");
        let socket = UnixDatagram::bind(&path)?;
        // No window: the directory is the gate's alone.
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
        setsockopt(&socket, PassCred, &true)?;
        socket.set_nonblocking(true)?;
        Ok(NotifySocket {
            socket: sys::readable(socket.into())?,
            path,
        })
    }

    /// What the backend gets as `NOTIFY_SOCKET`.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Waits for `READY=1` from a process of the group of `leader`; others are logged and ignored.
    ///
    /// A sender that has ended by the time its message is read (a script that calls a tool) can't be placed any more. It
    /// is believed: only the gate's uid and root can reach the socket.
    ///
    /// # Errors
    /// The socket can't be read.
    pub async fn ready(&self, leader: i32) -> io::Result<()> {
        loop {
            let Notification { sender, text } = self.next().await?;
            if !text.lines().any(|line| line == "READY=1") {
                continue;
            }
            match getpgid(Some(Pid::from_raw(sender))) {
                _ if sender == 0 => {}
                Ok(group) if group.as_raw() == leader => return Ok(()),
                Err(nix::errno::Errno::ESRCH) => return Ok(()),
                Ok(_) | Err(_) => {}
            }
            tracing::warn!(
                sender,
                leader,
                "READY=1 from outside the generation's process group is ignored"
            );
        }
    }

    async fn next(&self) -> io::Result<Notification> {
        self.socket.async_io(Interest::READABLE, receive).await
    }
}

/// Receives one message. Descriptors that come with it (FDSTORE, BARRIER) find no room and are closed by the kernel,
/// which is the answer that a barrier waits for.
fn receive(socket: &OwnedFd) -> io::Result<Notification> {
    let mut text = [0; MESSAGE];
    let mut credentials = nix::cmsg_space!(libc::ucred);
    let mut parts = [IoSliceMut::new(&mut text)];
    let flags = MsgFlags::MSG_CMSG_CLOEXEC;
    let message = recvmsg::<()>(
        socket.as_raw_fd(),
        &mut parts,
        Some(&mut credentials),
        flags,
    )?;
    let length = message.bytes;
    let sender = message.cmsgs()?.find_map(|part| match part {
        ControlMessageOwned::ScmCredentials(credentials) => Some(credentials.pid()),
        _ => None,
    });
    let text = String::from_utf8_lossy(&text[..length]).into_owned();
    Ok(Notification {
        sender: sender.unwrap_or_default(),
        text,
    })
}

#[cfg(test)]
#[path = "notify_tests.rs"]
mod tests;
