//! Kept listeners: private sockets that are made here, passed to a backend, and of which a copy is kept.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::stat::Mode;
use socket2::{Domain, SockAddr, Socket, Type};

use super::{Address, BindError, Listener, Options, Own, from_inherited};
use crate::accept_queue::{Probe, Queue, Reader, UnixInode};
use crate::generation::Target;

/// A backend that is slow to accept keeps this many connections waiting in the kernel.
const BACKLOG: u32 = 4096;

/// The name that /proc has for an open file of this process.
fn through_proc(file: &impl AsRawFd) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

/// A listening socket for a backend. It is blocking, as servers expect one, and CLOEXEC: whoever starts the backend passes a
/// copy. The copy held here keeps what the kernel has queued when a backend dies.
#[derive(Debug)]
pub struct KeptListener {
    socket: Arc<OwnedFd>,
    address: Target,
    probe: Probe,
}

impl KeptListener {
    /// Listens on a TCP address; port 0 takes a free one.
    pub fn tcp(address: SocketAddr) -> io::Result<KeptListener> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG as i32)?;
        let bound = socket.local_addr()?.as_socket();
        let socket = Arc::new(OwnedFd::from(socket));
        Ok(KeptListener {
            address: Target::Tcp(bound.unwrap_or(address)),
            probe: Probe::TcpHeld(Arc::clone(&socket)),
            socket,
        })
    }

    /// Listens on a unix socket that has no name: its file is made in `directory`, which should be nobody else's, opened, and
    /// unlinked at once. So nothing is left to attack, to mix up, or to clean up. Connecting goes through /proc/self/fd, which
    /// only this user may enter; a long `directory` is no matter.
    pub fn unix(directory: &Path) -> io::Result<KeptListener> {
        let directory = nix::fcntl::open(
            directory,
            OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC,
            Mode::empty(),
        )?;
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        // No other socket of this process has the number; one that died a moment before the unlink may have left its file.
        let path = format!("{}/kept-{}", through_proc(&directory), socket.as_raw_fd());
        if let Err(error) = fs::remove_file(&path)
            && error.kind() != io::ErrorKind::NotFound
        {
            return Err(error);
        }
        nix::sys::stat::fchmod(&socket, Mode::S_IRUSR | Mode::S_IWUSR)?;
        socket.bind(&SockAddr::unix(&path)?)?;
        let file = nix::fcntl::open(
            path.as_str(),
            OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC,
            Mode::empty(),
        );
        fs::remove_file(&path)?;
        socket.listen(BACKLOG as i32)?;
        Ok(KeptListener {
            address: Target::Nameless(Arc::new(file?)),
            probe: Probe::Unix(UnixInode::of(&socket)?),
            socket: Arc::new(socket.into()),
        })
    }

    /// What the gate dials.
    pub fn address(&self) -> &Target {
        &self.address
    }

    /// How its accept queue is read.
    pub fn probe(&self) -> &Probe {
        &self.probe
    }

    /// How many connections wait to be accepted.
    pub fn queue(&self, reader: &mut Reader) -> io::Result<Queue> {
        reader
            .read(&self.probe)?
            .ok_or(io::ErrorKind::NotFound.into())
    }

    /// Whether connections can still come: a holder that calls shutdown(2) on it, as some servers do at their end, ends it for all,
    /// and for good.
    pub fn is_open(&self) -> bool {
        let end = PollFlags::from_bits_retain(libc::POLLRDHUP);
        let ends = PollFlags::POLLHUP | PollFlags::POLLERR;
        let mut fds = [PollFd::new(self.socket.as_fd(), end)];
        let looked = poll(&mut fds, PollTimeout::ZERO);
        // POLLRDHUP isn't among the flags that are known here, so it makes `None` of them all.
        looked.is_ok() && fds[0].revents().is_some_and(|seen| !seen.intersects(ends))
    }

    /// A listener that accepts what is left in the queue. It makes the shared socket non-blocking, so nobody else may be
    /// accepting from it any more.
    pub fn adopt(&self, name: &str) -> Result<Listener, BindError> {
        let options = Options {
            backlog: BACKLOG,
            keepalive: None,
            v6only: false,
            own: Own::default(),
        };
        let copy = self.socket.try_clone();
        let copy = copy.map_err(|error| BindError::Other {
            address: Address::Inherited(name.to_owned()),
            error,
        })?;
        from_inherited(name, copy, &options)
    }
}

impl AsFd for KeptListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
