//! Streams of bytes without an end.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use socket2::Socket;

use super::{Direction, Tally, wait};
use crate::wire::{Moved, Sources, connect, discard, write};

pub(crate) struct Bulk {
    epoll: Epoll,
    /// By token.
    streams: Vec<Socket>,
    direction: Direction,
    buffer: Vec<u8>,
}

impl Bulk {
    pub(crate) fn open(
        target: SocketAddr,
        streams: usize,
        direction: Direction,
    ) -> io::Result<Bulk> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let interest = match direction {
            Direction::Down => EpollFlags::EPOLLIN,
            Direction::Up => EpollFlags::EPOLLOUT,
        };
        let mut sources = Sources::default();
        let streams = (0..streams)
            .map(|number| {
                let socket = connect(target, sources.next())?;
                epoll.add(&socket, EpollEvent::new(interest, number as u64))?;
                Ok(socket)
            })
            .collect::<io::Result<_>>()?;
        Ok(Bulk {
            epoll,
            streams,
            direction,
            buffer: vec![0; 256 * 1024],
        })
    }

    /// Goes on for `time`. What is written counts when the socket has taken it; the buffers on the way are full before and after.
    ///
    /// # Errors
    ///
    /// A stream that ended: none has a reason to.
    pub(crate) fn run(&mut self, time: Duration) -> io::Result<Tally> {
        let end = Instant::now() + time;
        let mut tally = Tally::default();
        let mut events = [EpollEvent::empty(); 64];
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(tally);
            }
            for event in wait(&self.epoll, &mut events, left)? {
                let socket = &self.streams[event.data() as usize];
                let moved = match self.direction {
                    Direction::Down => discard(socket, &mut self.buffer),
                    Direction::Up => write(socket, &self.buffer),
                };
                match moved {
                    Moved::Bytes(count) => tally.operations += count as u64,
                    Moved::Later => {}
                    Moved::Ended => return Err(io::Error::other("a bulk stream has ended")),
                }
            }
        }
    }
}
