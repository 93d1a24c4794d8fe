//! The pump: bytes, their order and their ends, exactly, in both directions.
//!
//! Invariants:
//!
//! - Sockets are registered once, edge-triggered. What an edge said is kept in the socket's flags until a system call takes it
//!   back (EAGAIN, or a read that drained the socket): so an edge that comes while its bytes can't be moved is never lost.
//! - ENDED, FAILED and URGENT are sticky. A FIN that came with earlier data raises no other edge, and without the flag it would
//!   never be read.
//! - No buffer belongs to a connection: bytes are kept ([`Kept`]) only after a write that didn't take them all.
//! - A half close passes when all bytes before it have passed. A reset passes as a reset, after all that was received before it.
//! - A turn moves at most [`BUDGET`] bytes in each direction.

use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::epoll::EpollFlags;
use nix::sys::socket::{MsgFlags, Shutdown, recv, recvmsg, send, shutdown};
use socket2::SockRef;

use crate::splice::{Pipe, Pipes};
use crate::sys;

/// What one turn may move in one direction, in bytes.
const BUDGET: usize = 256 * 1024;

/// A worker's one buffer.
const BUFFER: usize = 64 * 1024;

/// Full reads in a row before bytes move by splice(2).
const BULK: u8 = 2;

/// What a worker lends to the connection that it looks at.
#[derive(Debug)]
pub(crate) struct Scratch {
    pub(crate) buffer: Box<[u8]>,
    pub(crate) pipes: Pipes,
}

impl Scratch {
    pub(crate) fn new() -> Scratch {
        Scratch {
            buffer: vec![0; BUFFER].into_boxed_slice(),
            pipes: Pipes::default(),
        }
    }
}

/// A non-blocking stream socket and what is known of it.
#[derive(Debug)]
pub(crate) struct Socket {
    fd: OwnedFd,
    flags: u8,
}

impl Socket {
    const READABLE: u8 = 1;
    const WRITABLE: u8 = 2;
    /// The peer has sent its FIN (or has gone).
    const ENDED: u8 = 4;
    /// An error was seen: what ends from now on ends as a reset.
    const FAILED: u8 = 8;
    /// Urgent data was seen: a short read may have stopped at its mark, so it proves nothing.
    const URGENT: u8 = 16;
    const UNIX: u8 = 32;
    /// The next write waits for nothing: TCP_NODELAY is set, or there was none yet that it could wait for.
    const PROMPT: u8 = 64;
    const WROTE: u8 = 128;

    /// An accepted socket: TCP_NODELAY came with the listener.
    pub(crate) fn accepted(fd: OwnedFd, unix: bool) -> Socket {
        Socket {
            fd,
            flags: Self::PROMPT | Self::WRITABLE | if unix { Self::UNIX } else { 0 },
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
            // Before the read that follows, so that the urgent byte stays where it is in the stream. An accepted TCP socket
            // has it from its listener. An error means that there is no such option here, so no urgent byte either.
            let _ = SockRef::from(&self.fd).set_out_of_band_inline(true);
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

    fn is(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    pub(crate) fn is_unix(&self) -> bool {
        self.is(Self::UNIX)
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

    pub(crate) fn has_failed(&self) -> bool {
        self.is(Self::FAILED)
    }

    /// Nothing more to read for now.
    pub(crate) fn drained(&mut self) {
        self.flags &= !Self::READABLE;
    }

    /// Reads what is there: how many bytes, and whether the end of the stream is known to follow them.
    fn read(&mut self, buffer: &mut [u8]) -> Read {
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
                if drained {
                    self.flags &= !Self::READABLE;
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

    /// The stream has ended: a socket that has failed ended by a reset, even if another call took the error away.
    fn end(&mut self) -> Read {
        self.flags |= Self::ENDED;
        if self.is(Self::FAILED) {
            Read::Reset
        } else {
            Read::End
        }
    }

    /// Writes what the socket takes now. An error is kept in its flags: reading goes on to what it had sent before.
    fn write(&mut self, bytes: &[u8]) -> Result<usize, Failed> {
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
    fn write_from(&mut self, pipe: &mut Pipe) -> Result<usize, Failed> {
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

    fn fail(&mut self) -> Failed {
        self.flags |= Self::FAILED | Self::READABLE;
        Failed
    }

    /// Ends our side of it.
    fn finish(&self) {
        // ENOTCONN: the peer was faster, and reading will say so.
        let _ = shutdown(self.fd.as_raw_fd(), Shutdown::Write);
    }

    /// Makes the close that follows a reset. A unix socket has none: its peer sees the end of the stream.
    pub(crate) fn reset_on_close(&self) {
        if !self.is_unix() {
            let _ = SockRef::from(&self.fd).set_linger(Some(std::time::Duration::ZERO));
        }
    }

    /// Whether all that was written to it has reached the other machine. A unix socket delivers at once.
    pub(crate) fn has_delivered(&self) -> bool {
        self.is_unix() || sys::unacknowledged(self.fd.as_fd()).map_or(true, |bytes| bytes == 0)
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

enum Read {
    /// So many, and whether the end is known to follow.
    Bytes(usize, bool),
    Nothing,
    End,
    Reset,
}

/// A write failed; the socket knows.
struct Failed;

/// Bytes that were read and not yet written.
#[derive(Debug)]
enum Kept {
    Bytes(Box<[u8]>, usize),
    Pipe(Pipe),
}

/// How far one direction is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stream {
    Open,
    /// The source has ended; the end passes once nothing is kept.
    Ending,
    /// The end has passed.
    Ended,
    /// The source was reset; all before it has passed once nothing is kept.
    Reset,
    /// The destination takes nothing more.
    Broken,
}

/// One direction.
#[derive(Debug)]
struct Half {
    /// Boxed: a connection seldom keeps anything, and then this is one word.
    kept: Option<Box<Kept>>,
    /// Written to the destination, the PROXY header included.
    written: u64,
    /// Length of the PROXY header, which isn't the source's.
    header: u8,
    stream: Stream,
    full_reads: u8,
}

/// Whether a direction has something to do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flow {
    Waits,
    More,
}

impl Half {
    fn new(header: &[u8], first: &[u8]) -> Half {
        let kept = [header, first].concat().into_boxed_slice();
        let kept = (!kept.is_empty()).then(|| Box::new(Kept::Bytes(kept, 0)));
        Half {
            kept,
            written: 0,
            header: header.len() as u8,
            stream: Stream::Open,
            full_reads: 0,
        }
    }

    /// Bytes of the source that were written.
    fn passed(&self) -> u64 {
        self.written.saturating_sub(self.header.into())
    }

    /// Moves what can be moved.
    fn flow(&mut self, from: &mut Socket, to: &mut Socket, scratch: &mut Scratch) -> Flow {
        let budget = self.written + BUDGET as u64;
        loop {
            match self.stream {
                Stream::Ended | Stream::Broken => return Flow::Waits,
                _ if self.kept.is_some() => {
                    if !to.is(Socket::WRITABLE) {
                        return Flow::Waits;
                    }
                    self.write_kept(from, to, scratch);
                }
                Stream::Open if self.written >= budget => return Flow::More,
                Stream::Open if !from.is_readable() => return Flow::Waits,
                Stream::Open => {
                    let bulk = self.full_reads >= BULK && !from.is(Socket::URGENT);
                    match bulk.then(|| scratch.pipes.take()).flatten() {
                        Some(pipe) => self.fill(pipe, from, &mut scratch.pipes),
                        None => self.copy(0, from, to, &mut scratch.buffer),
                    }
                }
                Stream::Ending => self.stream = Stream::Ended,
                Stream::Reset => return Flow::Waits,
            }
        }
    }

    /// Writes what is kept, as far as the destination takes it.
    fn write_kept(&mut self, from: &mut Socket, to: &mut Socket, scratch: &mut Scratch) {
        let Some(mut kept) = self.kept.take() else {
            return;
        };
        let (written, left) = match &mut *kept {
            // A PROXY header leaves in one piece with the first bytes, if there are some.
            Kept::Bytes(bytes, at)
                if self.written == 0 && from.is_readable() && bytes.len() - *at < BUFFER / 2 =>
            {
                let held = bytes.len() - *at;
                scratch.buffer[..held].copy_from_slice(&bytes[*at..]);
                return self.copy(held, from, to, &mut scratch.buffer);
            }
            Kept::Bytes(bytes, at) => (
                to.write(&bytes[*at..]).inspect(|n| *at += n),
                bytes.len() - *at,
            ),
            Kept::Pipe(pipe) => (to.write_from(pipe), pipe.len()),
        };
        match written {
            Ok(n) => self.written += n as u64,
            Err(Failed) => self.stream = Stream::Broken,
        }
        if left > 0 && (self.stream != Stream::Broken || self.passed() == 0) {
            self.kept = Some(kept);
        } else if let Kept::Pipe(pipe) = *kept {
            scratch.pipes.give(pipe);
        }
    }

    /// Reads behind what the buffer already holds, and writes it all.
    fn copy(&mut self, held: usize, from: &mut Socket, to: &mut Socket, buffer: &mut [u8]) {
        let room = buffer.len() - held;
        let mut len = held;
        match from.read(&mut buffer[held..]) {
            Read::Bytes(n, last) => {
                len += n;
                self.full_reads = if n == room {
                    self.full_reads.saturating_add(1)
                } else {
                    0
                };
                if last {
                    self.stream = Stream::Ending;
                }
            }
            Read::Nothing => {}
            Read::End => self.stream = Stream::Ending,
            Read::Reset => self.stream = Stream::Reset,
        }
        if len == 0 {
            return;
        }
        match to.write(&buffer[..len]) {
            Ok(n) => {
                self.written += n as u64;
                if n < len {
                    self.kept = Some(Box::new(Kept::Bytes(buffer[n..len].into(), 0)));
                }
            }
            Err(Failed) => {
                self.stream = Stream::Broken;
                if self.passed() == 0 {
                    // Nothing of the source's has left: another generation may still get it.
                    self.kept = Some(Box::new(Kept::Bytes(buffer[..len].into(), 0)));
                }
            }
        }
    }

    /// Whether the source was reset and has nothing more to give. `back` is the other direction: a write to a source that was
    /// reset fails, or is never tried.
    fn was_reset(&self, source: &Socket, back: &Half) -> bool {
        match self.stream {
            Stream::Reset => self.kept.is_none(),
            Stream::Ended | Stream::Broken => back.stream == Stream::Broken || source.has_failed(),
            Stream::Open | Stream::Ending => false,
        }
    }

    /// Fills a pipe, which is kept until it is empty.
    fn fill(&mut self, mut pipe: Pipe, from: &mut Socket, pipes: &mut Pipes) {
        match pipe.fill(&*from) {
            Ok(0) => {
                self.stream = match from.end() {
                    Read::Reset => Stream::Reset,
                    _ => Stream::Ending,
                };
            }
            Ok(n) => {
                if n < BUFFER / 2 {
                    self.full_reads = 0;
                }
                self.kept = Some(Box::new(Kept::Pipe(pipe)));
                return;
            }
            Err(Errno::EAGAIN) => {
                self.full_reads = 0;
                from.drained();
            }
            Err(Errno::EINTR) => {}
            // What splice(2) can't do here, recv(2) can.
            Err(Errno::EINVAL | Errno::ENOMEM) => self.full_reads = 0,
            Err(_) => {
                // The call took the socket's error with it: recv(2) would see a clean end.
                from.fail();
                self.stream = Stream::Reset;
            }
        }
        pipes.give(pipe);
    }
}

/// Who ended a connection by a reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Client,
    Backend,
}

/// What is to be done with a relayed connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Nothing, until an edge comes.
    Waits,
    /// Another turn: the budget is used up.
    More,
    /// Both streams have ended: close both.
    Ended,
    /// One side was reset, and what it had sent before has been written to the other: pass the reset on.
    Reset(Side),
}

/// Two directions: up from the client to the backend, down from the backend to the client.
#[derive(Debug)]
pub(crate) struct Relay {
    up: Half,
    down: Half,
}

impl Relay {
    /// `unsent` are client bytes that another generation didn't take.
    pub(crate) fn new(header: &[u8], unsent: Option<Box<[u8]>>) -> Relay {
        let up = Half::new(header, unsent.as_deref().unwrap_or_default());
        Relay {
            up,
            down: Half::new(&[], &[]),
        }
    }

    /// Moves what can be moved, in both directions.
    pub(crate) fn turn(
        &mut self,
        client: &mut Socket,
        backend: &mut Socket,
        scratch: &mut Scratch,
    ) -> Turn {
        let was = (self.up.stream, self.down.stream);
        let up = self.up.flow(client, backend, scratch);
        let mut down = self.down.flow(backend, client, scratch);
        if self.down.stream == Stream::Broken && was.1 != Stream::Broken {
            down = Flow::More; // The client has failed: read it to its end.
        }
        match (self.up.stream, self.down.stream) {
            (Stream::Ended, Stream::Ended) => return Turn::Ended,
            _ if self.down.was_reset(backend, &self.up) => return Turn::Reset(Side::Backend),
            _ if self.up.was_reset(client, &self.down) => return Turn::Reset(Side::Client),
            (Stream::Ended, _) if was.0 != Stream::Ended => backend.finish(),
            (_, Stream::Ended) if was.1 != Stream::Ended => client.finish(),
            _ => {}
        }
        if up == Flow::More || down == Flow::More {
            Turn::More
        } else {
            Turn::Waits
        }
    }

    /// Whether one direction has ended and the other hasn't.
    pub(crate) fn is_half_closed(&self) -> bool {
        self.up.stream == Stream::Ended || self.down.stream == Stream::Ended
    }

    /// Client bytes written to the backend, and backend bytes written to the client.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        (self.up.passed(), self.down.passed())
    }

    /// Whether no byte has passed either way: the connection can still go to another generation.
    pub(crate) fn is_untouched(&self) -> bool {
        self.bytes() == (0, 0)
            && self.down.kept.is_none()
            && !matches!(self.up.kept.as_deref(), Some(Kept::Pipe(_)))
    }

    /// The client bytes of an untouched connection that were read and not written.
    pub(crate) fn take_unsent(&mut self) -> Option<Box<[u8]>> {
        match self.up.kept.take().map(|kept| *kept) {
            Some(Kept::Bytes(bytes, at)) => {
                let header = usize::from(self.up.header).saturating_sub(self.up.written as usize);
                let client = &bytes[(at + header).min(bytes.len())..];
                (!client.is_empty()).then(|| client.into())
            }
            _ => None,
        }
    }

    /// Gives back what it holds.
    pub(crate) fn release(self, pipes: &mut Pipes) {
        for half in [self.up, self.down] {
            if let Some(Kept::Pipe(pipe)) = half.kept.map(|kept| *kept) {
                pipes.give(pipe);
            }
        }
    }
}
