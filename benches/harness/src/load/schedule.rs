//! Connections at fixed times, whatever has become of those before: an open loop, so that a stall isn't hidden.
//!
//! A connection's time runs from when it was due, not from when the load came round to it.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::time::TimeSpec;
use socket2::Socket;

use super::wait;
use crate::wire::{ANSWER, Moved, REQUEST, Sources, connect, read, write};

/// After this a connection has failed.
const PATIENCE: Duration = Duration::from_secs(10);

/// What has become of the connections.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// Of all connections, in milliseconds, sorted; one that failed counts as 10 s, else who fails would look fast.
    pub(crate) latencies: Vec<f64>,
    /// Refused, reset, cut short, or not answered in 10 s.
    pub(crate) failed: u64,
}

impl Outcome {
    /// Both together.
    pub(crate) fn add(&mut self, other: Outcome) {
        self.failed += other.failed;
        self.latencies.extend(other.latencies);
        self.latencies.sort_by(f64::total_cmp);
    }

    fn fail(&mut self) {
        self.failed += 1;
        self.latencies.push(PATIENCE.as_secs_f64() * 1e3);
    }
}

struct Client {
    socket: Socket,
    due: Instant,
    asked: bool,
    received: usize,
}

/// Opens `count` connections at `rate` a second, each for one request; the client closes.
pub(crate) fn run(target: SocketAddr, count: usize, rate: u32) -> io::Result<Outcome> {
    let pace = Duration::from_secs(1) / rate;
    let mut schedule = Schedule {
        epoll: Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?,
        clients: Vec::with_capacity(count),
        waiting: VecDeque::new(),
        sources: Sources::default(),
        outcome: Outcome::default(),
    };
    let start = Instant::now();
    let mut events = [EpollEvent::empty(); 256];
    loop {
        let now = Instant::now();
        let mut due = start + pace * schedule.clients.len() as u32;
        while schedule.clients.len() < count && due <= now {
            schedule.begin(target, due)?;
            due += pace;
        }
        schedule.give_up(now);
        let next = match schedule.waiting.front() {
            _ if schedule.clients.len() < count => due,
            Some((since, _)) => *since + PATIENCE,
            None => break,
        };
        // An epoll set is itself a descriptor to poll for, and ppoll counts in nanoseconds.
        let left = TimeSpec::from_duration(next.saturating_duration_since(Instant::now()));
        let mut readable = [PollFd::new(schedule.epoll.0.as_fd(), PollFlags::POLLIN)];
        if ppoll(&mut readable, Some(left), None)? == 0 {
            continue;
        }
        for event in wait(&schedule.epoll, &mut events, Duration::ZERO)? {
            schedule.turn(event.data() as usize)?;
        }
    }
    schedule.outcome.latencies.sort_by(f64::total_cmp);
    Ok(schedule.outcome)
}

struct Schedule {
    epoll: Epoll,
    /// By token; `None` when it is over.
    clients: Vec<Option<Client>>,
    /// In the order of their beginning; those that are over are taken out when they come to the front.
    waiting: VecDeque<(Instant, usize)>,
    sources: Sources,
    outcome: Outcome,
}

impl Schedule {
    fn begin(&mut self, target: SocketAddr, due: Instant) -> io::Result<()> {
        let number = self.clients.len();
        self.clients.push(None);
        let Ok(socket) = connect(target, self.sources.next()) else {
            self.outcome.fail();
            return Ok(());
        };
        let asked = write(&socket, &REQUEST) == Moved::Bytes(REQUEST.len());
        let interest = if asked {
            EpollFlags::EPOLLIN
        } else {
            EpollFlags::EPOLLOUT
        };
        self.epoll
            .add(&socket, EpollEvent::new(interest, number as u64))?;
        self.waiting.push_back((due, number));
        self.clients[number] = Some(Client {
            socket,
            due,
            asked,
            received: 0,
        });
        Ok(())
    }

    fn turn(&mut self, number: usize) -> io::Result<()> {
        let Some(client) = &mut self.clients[number] else {
            return Ok(());
        };
        if !client.asked {
            if write(&client.socket, &REQUEST) != Moved::Bytes(REQUEST.len()) {
                self.fail(number);
                return Ok(());
            }
            client.asked = true;
            let mut event = EpollEvent::new(EpollFlags::EPOLLIN, number as u64);
            return Ok(self.epoll.modify(&client.socket, &mut event)?);
        }
        let mut buffer = [0; 4096];
        match read(&client.socket, &mut buffer) {
            Moved::Later => {}
            Moved::Bytes(count) => client.received += count,
            Moved::Ended => self.fail(number),
        }
        if let Some(client) = &self.clients[number]
            && client.received == ANSWER.len()
        {
            let latency = client.due.elapsed().as_secs_f64() * 1e3;
            self.outcome.latencies.push(latency);
            self.clients[number] = None;
        }
        Ok(())
    }

    fn fail(&mut self, number: usize) {
        self.outcome.fail();
        self.clients[number] = None;
    }

    fn give_up(&mut self, now: Instant) {
        while let Some((due, number)) = self.waiting.front().copied() {
            if self.clients[number].is_some() {
                if now < due + PATIENCE {
                    break;
                }
                self.fail(number);
            }
            self.waiting.pop_front();
        }
    }
}
