//! A socket of the data path, and what its edges have said.
//!
//! Invariants:
//!
//! - It is registered once, edge-triggered. What an edge said is kept in the flags until a system call takes it back (EAGAIN, or a
//!   read that drained the socket): so an edge that comes while its bytes can't be moved is never lost.
//! - ENDED, FAILED and URGENT are sticky. A FIN that came with earlier data raises no other edge, and without the flag it would
//!   never be read.

use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::EpollFlags;
use nix::sys::socket::{MsgFlags, Shutdown, recv, recvmsg, send, shutdown};
use socket2::SockRef;

use crate::splice::Pipe;
use crate::sys;

/// A non-blocking stream socket and what is known of it.
#[derive(Debug)]
pub(crate) struct Socket {
    fd: OwnedFd,
    flags: u16,
}

impl Socket {
    const READABLE: u16 = 1;
    const WRITABLE: u16 = 2;
    /// The peer has sent its FIN (or has gone).
    const ENDED: u16 = 4;
    /// An error was seen: what ends from now on ends as a reset.
    const FAILED: u16 = 8;
    /// Urgent data was seen: a short read may have stopped at its mark, so it proves nothing.
    const URGENT: u16 = 16;
    const UNIX: u16 = 32;
    /// The next write waits for nothing: TCP_NODELAY is set, or there was none yet that it could wait for.
    const PROMPT: u16 = 64;
    const WROTE: u16 = 128;
    /// Urgent data stays in the stream.
    const INLINE: u16 = 256;

    /// An accepted socket: TCP_NODELAY and SO_OOBINLINE came with the listener.
    pub(crate) fn accepted(fd: OwnedFd, unix: bool) -> Socket {
        Socket {
            fd,
            flags: Self::PROMPT | Self::WRITABLE | if unix { Self::UNIX } else { Self::INLINE },
        }
    }

    /// A socket that connects, or has.
    pub(crate) fn connecting(fd: OwnedFd, unix: bool, connected: bool) -> Socket {
        let kind = if unix { Self::UNIX | Self::PROMPT } else { 0 };
        Socket {
            fd,
            flags: kind | if connected { Self::WRITABLE } else { 0 },
        }
    }

    /// Takes up what an edge says.
    pub(crate) fn note(&mut self, events: EpollFlags) {
        if events.contains(EpollFlags::EPOLLPRI) && self.flags & Self::URGENT == 0 {
            self.flags |= Self::URGENT;
            self.keep_urgent_inline();
        }
        if events.intersects(EpollFlags::EPOLLRDHUP | EpollFlags::EPOLLHUP) {
            self.flags |= Self::ENDED | Self::READABLE;
        }
        if events.contains(EpollFlags::EPOLLERR) {
            self.flags |= Self::FAILED | Self::READABLE | Self::WRITABLE;
        }
        if events.intersects(EpollFlags::EPOLLIN | EpollFlags::EPOLLPRI) {
            self.flags |= Self::READABLE;
        }
        if events.contains(EpollFlags::EPOLLOUT) {
            self.flags |= Self::WRITABLE;
        }
    }

    /// To be called before a read that may begin at an urgent byte, which would take it out of the stream: where the mark's edge
    /// has come, or where another read comes without an event between.
    fn keep_urgent_inline(&mut self) {
        if !self.is(Self::INLINE) {
            // An error means that there is no such option here, so no urgent byte either.
            let _ = SockRef::from(&self.fd).set_out_of_band_inline(true);
            self.flags |= Self::INLINE;
        }
    }

    fn is(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    pub(crate) fn is_unix(&self) -> bool {
        self.is(Self::UNIX)
    }

    pub(crate) fn is_urgent(&self) -> bool {
        self.is(Self::URGENT)
    }

    pub(crate) fn is_readable(&self) -> bool {
        self.is(Self::READABLE)
    }

    pub(crate) fn is_writable(&self) -> bool {
        self.is(Self::WRITABLE)
    }

    /// Whether the peer has ended its side.
    pub(crate) fn has_ended(&self) -> bool {
        self.is(Self::ENDED)
    }

    /// The same, asked of the system: the edge may be on its way.
    pub(crate) fn peer_has_ended(&self) -> bool {
        let end = PollFlags::from_bits_retain(libc::POLLRDHUP);
        let mut fds = [PollFd::new(self.fd.as_fd(), end)];
        poll(&mut fds, PollTimeout::ZERO).is_ok_and(|n| n > 0)
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.is(Self::FAILED)
    }

    /// Nothing more to read for now.
    pub(crate) fn drained(&mut self) {
        self.flags &= !Self::READABLE;
    }

    /// Reads what is there: how many bytes, and whether the end of the stream is known to follow them.
    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> Read {
        let (result, cut) = if self.is_unix() {
            // Ancillary data cuts a read short; the flag says so.
            let mut slices = [IoSliceMut::new(buffer)];
            match recvmsg::<()>(
                self.fd.as_raw_fd(),
                &mut slices,
                None,
                MsgFlags::MSG_DONTWAIT,
            ) {
                Ok(message) => (
                    Ok(message.bytes),
                    message.flags.contains(MsgFlags::MSG_CTRUNC),
                ),
                Err(error) => (Err(error), false),
            }
        } else {
            (
                recv(self.fd.as_raw_fd(), buffer, MsgFlags::MSG_DONTWAIT),
                false,
            )
        };
        match result {
            Ok(0) => self.end(),
            Ok(n) => {
                let drained = n < buffer.len() && !cut && !self.is(Self::URGENT | Self::FAILED);
                if drained && !self.is(Self::ENDED) {
                    self.flags &= !Self::READABLE; // An end stays to be read: no edge tells it twice.
                }
                if n == buffer.len() {
                    self.keep_urgent_inline();
                }
                // The FIN was there before this read, and the read took all that was before it.
                Read::Bytes(n, drained && self.is(Self::ENDED))
            }
            Err(Errno::EAGAIN) => {
                self.flags &= !Self::READABLE;
                Read::Nothing
            }
            Err(Errno::EINTR) => Read::Bytes(0, false),
            Err(_) => {
                self.flags |= Self::FAILED;
                Read::Reset
            }
        }
    }

    /// Drops what has come, at most four buffers of it, and says whether there may be more.
    ///
    /// A receive queue that is full and that nobody reads stops the other direction, too: segments beyond the window are dropped
    /// with the acknowledgements that they bear (RFC 9293, 3.10.7.4).
    pub(crate) fn discard(&mut self, buffer: &mut [u8]) -> bool {
        (0..4).all(|_| self.is_readable() && matches!(self.read(buffer), Read::Bytes(_, false)))
    }

    /// The stream has ended: a socket that has failed ended by a reset, even if another call took the error away.
    pub(crate) fn end(&mut self) -> Read {
        self.flags |= Self::ENDED;
        if self.is(Self::FAILED) {
            Read::Reset
        } else {
            Read::End
        }
    }

    /// Writes what the socket takes now. An error is kept in its flags: reading goes on to what it had sent before.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<usize, Failed> {
        if self.flags & (Self::PROMPT | Self::WROTE) == Self::WROTE {
            // The first write can't be held back by Nagle's algorithm (RFC 896), the second can.
            let _ = SockRef::from(&self.fd).set_tcp_nodelay(true);
            self.flags |= Self::PROMPT;
        }
        loop {
            let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
            match send(self.fd.as_raw_fd(), bytes, flags) {
                Ok(n) => {
                    self.flags |= Self::WROTE;
                    if n < bytes.len() {
                        self.flags &= !Self::WRITABLE;
                    }
                    return Ok(n);
                }
                Err(Errno::EAGAIN) => {
                    self.flags &= !Self::WRITABLE;
                    return Ok(0);
                }
                Err(Errno::EINTR) => {}
                Err(_) => return Err(self.fail()),
            }
        }
    }

    /// Writes from a pipe.
    pub(crate) fn write_from(&mut self, pipe: &mut Pipe) -> Result<usize, Failed> {
        match pipe.empty(&self.fd) {
            Ok(n) => Ok(n),
            Err(Errno::EAGAIN) => {
                self.flags &= !Self::WRITABLE;
                Ok(0)
            }
            Err(Errno::EINTR) => Ok(0),
            Err(_) => Err(self.fail()),
        }
    }

    pub(crate) fn fail(&mut self) -> Failed {
        self.flags |= Self::FAILED | Self::READABLE;
        Failed
    }

    /// Ends our side of it.
    pub(crate) fn finish(&self) {
        // ENOTCONN: the peer was faster, and reading will say so.
        let _ = shutdown(self.fd.as_raw_fd(), Shutdown::Write);
    }

    /// Makes the close that follows a reset. A unix socket has none: its peer sees the end of the stream.
    pub(crate) fn reset_on_close(&self) {
        if !self.is_unix() {
            let _ = SockRef::from(&self.fd).set_linger(Some(Duration::ZERO));
        }
    }

    /// Bytes that were written to it, haven't reached the other machine, and may still do so. A unix socket delivers at once.
    pub(crate) fn undelivered(&self) -> u32 {
        if self.is(Self::UNIX | Self::FAILED) {
            return 0;
        }
        sys::unacknowledged(self.fd.as_fd()).unwrap_or(0)
    }

    /// The pending error (SO_ERROR), if there is one.
    pub(crate) fn take_error(&self) -> Option<io::Error> {
        SockRef::from(&self.fd).take_error().unwrap_or_else(Some)
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// What a read has brought.
pub(crate) enum Read {
    /// So many, and whether the end is known to follow.
    Bytes(usize, bool),
    Nothing,
    End,
    Reset,
}

/// A write failed; the socket knows.
pub(crate) struct Failed;
