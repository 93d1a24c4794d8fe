//! The pump: bytes, their order and their ends, exactly, in both directions.
//!
//! Invariants:
//!
//! - No buffer belongs to a connection: bytes are kept ([`Kept`]) only after a write that didn't take them all.
//! - A half close passes when all bytes before it have passed. A reset passes as a reset, after all that was received before it.
//! - A turn moves at most [`BUDGET`] bytes in each direction.

use nix::errno::Errno;
use nix::sys::epoll::EpollFlags;

use crate::socket::{Failed, Read, Socket};
use crate::splice::{Pipe, Pipes};

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
    /// The destination takes nothing more: the rest is dropped.
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
    /// Of the backend's direction: whether no byte has come since the client's last one, or hadn't when it ended.
    asked: bool,
    /// And whether the client waits for it, or did when it ended: it was asked, and the client hasn't ended its own side. Who does
    /// waits for nothing (TLS says goodbye before its end).
    awaited: bool,
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
            asked: true,
            awaited: true,
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
                // What is kept here may still go to another generation, and what comes behind it with it.
                Stream::Broken if self.kept.is_none() && from.discard(&mut scratch.buffer) => {
                    return Flow::More;
                }
                Stream::Ended | Stream::Broken => return Flow::Waits,
                _ if self.kept.is_some() => {
                    if !to.is_writable() {
                        return Flow::Waits;
                    }
                    self.write_kept(from, to, scratch);
                }
                Stream::Open if self.written >= budget => return Flow::More,
                Stream::Open if !from.is_readable() => return Flow::Waits,
                Stream::Open => {
                    let bulk = self.full_reads >= BULK && !from.is_urgent();
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
                // The end, or the mark of an urgent byte whose edge is still to come: recv(2) tells one from the other.
                from.note(EpollFlags::EPOLLPRI);
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
        let before = self.bytes();
        let mut up = self.up.flow(client, backend, scratch);
        let mut down = self.down.flow(backend, client, scratch);
        if was.1 == Stream::Open {
            self.down.asked = self.is_asked(before);
            self.down.awaited = self.down.asked && !self.client_has_ended();
        }
        if self.up.stream == Stream::Broken
            && !self.is_untouched()
            && let Some(kept) = self.up.kept.take()
        {
            // No other generation can get it: it goes, and what the client sends from now on.
            if let Kept::Pipe(pipe) = *kept {
                scratch.pipes.give(pipe);
            }
            up = Flow::More;
        }
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

    /// Whether no byte has come since the client's last one, after a turn before which so many had passed.
    fn is_asked(&self, before: (u64, u64)) -> bool {
        let after = self.bytes();
        let answered = after.1 > before.1 || self.down.kept.is_some();
        !answered && (self.down.asked || after.0 > before.0)
    }

    fn client_has_ended(&self) -> bool {
        !matches!(self.up.stream, Stream::Open | Stream::Broken)
    }

    /// Whether the client has ended its side, and the last word was the backend's: nothing is lost with that.
    pub(crate) fn is_answered(&self) -> bool {
        self.client_has_ended() && !self.down.asked
    }

    /// Whether the backend has ended while the client waited for it.
    pub(crate) fn is_cut_off(&self) -> bool {
        let ended = matches!(
            self.down.stream,
            Stream::Ending | Stream::Ended | Stream::Reset
        );
        ended && self.down.awaited
    }

    /// Whether one side is known to have ended, by its FIN or by a reset.
    pub(crate) fn is_half_closed(&self) -> bool {
        self.up.stream != Stream::Open || self.down.stream != Stream::Open
    }

    /// Client bytes written to the backend, and backend bytes written to the client.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        (self.up.passed(), self.down.passed())
    }

    /// Whether the backend has sent something, or acknowledged something.
    pub(crate) fn is_known_to(&self, backend: &Socket) -> bool {
        let answered = self.down.written > 0 || self.down.kept.is_some();
        // An end that isn't acknowledged counts as a byte: then the last one that is may be missed here, and nothing else.
        answered || u64::from(backend.undelivered()) < self.up.written
    }

    /// Whether the client may still be given something that its backend has said.
    pub(crate) fn owes(&self, client: &Socket) -> bool {
        match self.down.stream {
            Stream::Open | Stream::Ending | Stream::Reset => true,
            // The end itself counts as a byte. It is sent again by the kernel, whatever becomes of the gate's socket.
            Stream::Ended => client.undelivered() > 1,
            Stream::Broken => false,
        }
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

#[cfg(test)]
mod tests;
