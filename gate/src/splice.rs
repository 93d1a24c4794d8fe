//! Pipes for splice(2): bulk bytes that never come to userspace.
//!
//! Invariants:
//!
//! - A pipe in the pool is empty.
//! - Per direction the pipe is emptied before it is filled again: so EAGAIN while filling can only mean that the socket is empty,
//!   and EAGAIN while emptying that the peer isn't writable. (A pipe has a slot a segment and may be full at 23 KiB of 64: taking a
//!   full pipe for an empty socket would hang the tail of a response.)
//! - Where no pipe can be had the relay copies: splice is never required.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use nix::fcntl::{FcntlArg, OFlag, SpliceFFlags, fcntl, splice};
use nix::unistd::pipe2;

/// What one pipe holds at most, where the system allows it. Measured against 64 KiB and 1 MiB; 256 of them are the default
/// allowance of an unprivileged user (pipe(7), pipe-user-pages-soft).
const CAPACITY: i32 = 256 * 1024;

/// Below this a pipe is as small as a read, and copying is as good: what pipe(7) gives to a user who has too many.
const WORTHWHILE: i32 = 32 * 1024;

/// Pipes that a worker keeps for later, and that it has at most: what an unprivileged user may have, for two workers.
const SPARE: usize = 16;
pub(crate) const MOST: usize = 128;

/// See [`Pipes::refused`].
const PATIENCE: u32 = 1000;

#[derive(Debug)]
pub(crate) struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
    len: usize,
}

impl Pipe {
    fn new() -> io::Result<Option<Pipe>> {
        let (read, write) = pipe2(OFlag::O_NONBLOCK | OFlag::O_CLOEXEC)?;
        let capacity = fcntl(&write, FcntlArg::F_SETPIPE_SZ(CAPACITY))
            .or_else(|_| fcntl(&write, FcntlArg::F_GETPIPE_SZ))?;
        Ok((capacity >= WORTHWHILE).then_some(Pipe {
            read,
            write,
            len: 0,
        }))
    }

    /// Bytes in it.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Moves bytes from a socket into the empty pipe; 0 is the end of the stream.
    pub(crate) fn fill(&mut self, from: impl AsFd) -> nix::Result<usize> {
        let flags = SpliceFFlags::SPLICE_F_NONBLOCK | SpliceFFlags::SPLICE_F_MOVE;
        let n = splice(from, None, &self.write, None, CAPACITY as usize, flags)?;
        self.len += n;
        Ok(n)
    }

    /// Moves bytes from the pipe to a socket.
    pub(crate) fn empty(&mut self, to: impl AsFd) -> nix::Result<usize> {
        let flags = SpliceFFlags::SPLICE_F_NONBLOCK | SpliceFFlags::SPLICE_F_MOVE;
        let n = splice(&self.read, None, to, None, self.len, flags)?;
        self.len -= n;
        Ok(n)
    }
}

/// A worker's pipes.
#[derive(Debug, Default)]
pub(crate) struct Pipes {
    spare: Vec<Pipe>,
    /// Pipes that exist, spare or in use.
    made: usize,
    /// How many may exist: as many as there are descriptors that no connection needs.
    most: usize,
    /// Askers that are sent away before the system is asked again, after it has refused.
    refused: u32,
}

impl Pipes {
    /// An empty pipe, or `None`: copy instead.
    pub(crate) fn take(&mut self) -> Option<Pipe> {
        if let Some(pipe) = self.spare.pop() {
            return Some(pipe);
        }
        if self.made >= self.most || self.refused > 0 {
            self.refused = self.refused.saturating_sub(1);
            return None;
        }
        match Pipe::new() {
            Ok(Some(pipe)) => {
                self.made += 1;
                Some(pipe)
            }
            // The user's allowance is used up, or the descriptors are.
            Ok(None) | Err(_) => {
                self.refused = PATIENCE;
                None
            }
        }
    }

    /// Takes a pipe back. One with bytes in it belongs to a connection that ended, and is closed.
    pub(crate) fn give(&mut self, pipe: Pipe) {
        if pipe.len == 0 && self.spare.len() < SPARE && self.made <= self.most {
            self.spare.push(pipe);
        } else {
            self.made -= 1;
        }
    }

    /// Says how many pipes may exist: spare ones beyond that are closed.
    pub(crate) fn allow(&mut self, most: usize) {
        self.most = most;
        while self.made > most && self.spare.pop().is_some() {
            self.made -= 1;
        }
    }
}
