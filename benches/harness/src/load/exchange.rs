//! Requests and answers on a fixed number of connections: a closed loop, as fast as it goes or at a pace.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use socket2::Socket;

use super::{Habit, Tally, wait};
use crate::wire::{ANSWER, Moved, REQUEST, Sources, connect, read, write};

/// One of the connections that are open at a time.
struct Client {
    socket: Socket,
    /// False while the connection isn't made.
    asked: bool,
    /// Bytes of the answer.
    received: usize,
}

pub(crate) struct Exchange {
    epoll: Epoll,
    /// By token. `None`: its connect has failed, the next turn tries again.
    clients: Vec<Option<Client>>,
    targets: Vec<SocketAddr>,
    next: usize,
    sources: Sources,
    habit: Habit,
    failed: Vec<usize>,
    pace: Option<Pace>,
    tally: Tally,
}

/// New connections one by one.
struct Pace {
    between: Duration,
    /// When the next one is due.
    due: Instant,
    /// Who has done its last one.
    idle: Vec<usize>,
}

impl Exchange {
    /// Opens `connections` connections to `targets` in turn; each has asked when the connection is made.
    pub(crate) fn open(
        targets: &[SocketAddr],
        connections: usize,
        habit: Habit,
    ) -> io::Result<Exchange> {
        let mut exchange = Exchange {
            epoll: Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?,
            clients: Vec::new(),
            targets: targets.to_vec(),
            next: 0,
            sources: Sources::default(),
            habit,
            failed: Vec::new(),
            pace: None,
            tally: Tally::default(),
        };
        exchange.add(connections)?;
        Ok(exchange)
    }

    /// From now on new connections come at this pace.
    pub(crate) fn at(mut self, pace: Option<Duration>) -> Exchange {
        self.pace = pace.map(|between| Pace {
            between,
            due: Instant::now(),
            idle: Vec::new(),
        });
        self
    }

    /// Opens more connections.
    pub(crate) fn add(&mut self, connections: usize) -> io::Result<()> {
        for _ in 0..connections {
            self.clients.push(None);
            self.renew(self.clients.len() - 1)?;
        }
        Ok(())
    }

    /// Goes on for `time`, or until there are `operations` more, and says what that has come to.
    pub(crate) fn run(&mut self, time: Duration, operations: u64) -> io::Result<Tally> {
        let end = Instant::now() + time;
        self.tally = Tally::default();
        let mut events = [EpollEvent::empty(); 256];
        while self.tally.operations < operations {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            for client in std::mem::take(&mut self.failed) {
                self.renew(client)?;
            }
            let mut patience = if self.failed.is_empty() {
                left
            } else {
                RETRY.min(left)
            };
            while let Some(client) = self.pace.as_mut().and_then(Pace::next) {
                self.renew(client)?;
            }
            if let Some(pace) = self.pace.as_ref().filter(|pace| !pace.idle.is_empty()) {
                patience = patience.min(pace.due.saturating_duration_since(Instant::now()));
            }
            for event in wait(&self.epoll, &mut events, patience)? {
                self.turn(event.data() as usize)?;
            }
        }
        Ok(self.tally)
    }

    /// A new connection in place of the client's last one.
    fn renew(&mut self, client: usize) -> io::Result<()> {
        let target = self.targets[self.next];
        self.next = (self.next + 1) % self.targets.len();
        self.clients[client] = None; // closes it
        let Ok(socket) = connect(target, self.sources.next()) else {
            self.tally.errors += 1;
            self.failed.push(client);
            return Ok(());
        };
        // On loopback the handshake is usually complete by now.
        let asked = write(&socket, &REQUEST) == Moved::Bytes(REQUEST.len());
        let interest = if asked {
            EpollFlags::EPOLLIN
        } else {
            EpollFlags::EPOLLOUT
        };
        self.epoll
            .add(&socket, EpollEvent::new(interest, client as u64))?;
        self.clients[client] = Some(Client {
            socket,
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
                return self.fail(number);
            }
            client.asked = true;
            let mut event = EpollEvent::new(EpollFlags::EPOLLIN, number as u64);
            return Ok(self.epoll.modify(&client.socket, &mut event)?);
        }
        let mut buffer = [0; 4096];
        match read(&client.socket, &mut buffer) {
            Moved::Later => Ok(()),
            Moved::Bytes(count) => {
                client.received += count;
                let answered = client.received == ANSWER.len();
                match self.habit {
                    Habit::Closes if answered => self.complete(number),
                    Habit::Repeats if answered => {
                        client.received = 0;
                        self.tally.operations += 1;
                        match write(&client.socket, &REQUEST) {
                            Moved::Bytes(count) if count == REQUEST.len() => Ok(()),
                            _ => self.fail(number),
                        }
                    }
                    Habit::Stays if answered => {
                        self.tally.operations += 1;
                        Ok(())
                    }
                    _ if client.received > ANSWER.len() => self.fail(number),
                    _ => Ok(()),
                }
            }
            Moved::Ended => {
                if self.habit == Habit::IsClosed && client.received == ANSWER.len() {
                    self.complete(number)
                } else {
                    self.fail(number)
                }
            }
        }
    }

    fn complete(&mut self, client: usize) -> io::Result<()> {
        self.tally.operations += 1;
        match &mut self.pace {
            None => self.renew(client),
            Some(pace) => {
                self.clients[client] = None; // closes it
                pace.idle.push(client);
                Ok(())
            }
        }
    }

    /// Tried again in the next turn, so that a relay that refuses isn't asked without a pause.
    fn fail(&mut self, client: usize) -> io::Result<()> {
        self.tally.errors += 1;
        self.clients[client] = None;
        self.failed.push(client);
        Ok(())
    }
}

impl Pace {
    /// Whose turn has come. What the relay was too slow for is made up for only within [`BEHIND`].
    fn next(&mut self) -> Option<usize> {
        let now = Instant::now();
        if self.due > now {
            return None;
        }
        let client = self.idle.pop()?;
        self.due += self.between;
        if now.saturating_duration_since(self.due) > BEHIND {
            self.due = now;
        }
        Some(client)
    }
}

/// See [`Pace::next`].
const BEHIND: Duration = Duration::from_millis(10);

/// Between a failed connection and the next one.
const RETRY: Duration = Duration::from_millis(5);
