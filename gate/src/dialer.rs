//! Connects to one endpoint: how many at a time, from which address, and when to try again.
//!
//! Invariants:
//!
//! - On one machine a connect succeeds without an accept, so connects in flight bound nothing. What is bounded is the endpoint's
//!   accept queue: it is read before each batch, and a batch fills it to at most `min(dispatch_concurrency, backlog / 2)`.
//! - A worker takes an equal part of what is free. Where more wait than are free the parts add up to what is free, however many the
//!   workers are, and who gets none now has a turn soon; where fewer wait each may have one.
//! - The back-off belongs to the endpoint and counts failures of connect(2) alone: what happens to a connection afterwards is that
//!   client's affair, and what the gate lacks for a socket is the gate's.

use std::cell::Cell;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::IpBindAddressNoPort;
use socket2::{Domain, SockAddr, SockRef, Type};
use syngate_metrics::DispatchResult;

use crate::accept_queue::{Probe, Reader};
use crate::deadlines::Tick;
use crate::gate::{Event, ServiceId, ServiceSettings};
use crate::generation::{Endpoint, Local, Target};
use crate::socket::Socket;
use crate::sys;

/// Between two looks at an endpoint whose accept queue is full. Nothing tells when there is room: a full unix backlog refuses at
/// once and can't be waited for, and a full TCP backlog drops SYNs.
const FULL: Duration = Duration::from_millis(5);

/// After the first failed connect; doubled up to [`BACKOFF_MOST`].
const BACKOFF: Duration = Duration::from_millis(10);
const BACKOFF_MOST: Duration = Duration::from_millis(500);

/// After every source address has run out of ports: each try costs a millisecond of CPU.
const NO_PORT: Duration = Duration::from_secs(1);

/// After a connect for which the gate had no descriptor or memory.
const LACK: Duration = Duration::from_millis(100);

/// Source addresses that are tried on loopback when the system's choice has no port left.
const LOOPBACK_SOURCES: usize = 16;

/// One endpoint as one worker dials it.
#[derive(Debug)]
pub(crate) struct Dialer {
    local: Rc<Local>,
    target: Target,
    address: SockAddr,
    queue: Probe,
    /// Dispatches until the queue is read again.
    credit: Cell<u32>,
    /// Connects under way.
    connecting: Cell<u32>,
    /// Failed connects in a row.
    failures: Cell<u32>,
    not_before: Cell<Tick>,
    /// Source addresses in the order in which they are used; the unspecified one is the system's choice.
    sources: Vec<IpAddr>,
    source: Cell<usize>,
    /// The ports that the system chooses from.
    ports: (u16, u16),
}

/// Whether an endpoint takes a connection now.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Room {
    Now,
    /// Not before then.
    At(Tick),
    /// When a connect that is under way has ended.
    WhenConnected,
}

/// A connect that has begun. Its end is counted whatever becomes of the connection.
#[derive(Debug)]
pub(crate) struct Attempt {
    dialer: Rc<Dialer>,
    pub(crate) started: Tick,
}

impl Drop for Attempt {
    fn drop(&mut self) {
        self.dialer.connecting.set(self.dialer.connecting.get() - 1);
    }
}

/// How a connect failed.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) result: DispatchResult,
    pub(crate) error: io::Error,
}

impl Dialer {
    /// # Errors
    ///
    /// A unix path that is too long for a socket address.
    pub(crate) fn new(
        local: &Rc<Local>,
        endpoint: &Endpoint,
        settings: &ServiceSettings,
    ) -> io::Result<Dialer> {
        let sources = match endpoint.target {
            Target::Tcp(address) => sources(address, settings),
            Target::Unix(_) | Target::Nameless(_) => Vec::new(),
        };
        Ok(Dialer {
            local: Rc::clone(local),
            target: endpoint.target.clone(),
            address: endpoint.target.address()?,
            queue: endpoint.queue.clone(),
            credit: Cell::new(0),
            connecting: Cell::new(0),
            failures: Cell::new(0),
            not_before: Cell::default(),
            sources,
            source: Cell::new(0),
            ports: ephemeral_ports(),
        })
    }

    pub(crate) fn local(&self) -> &Rc<Local> {
        &self.local
    }

    /// Whether no connect is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.connecting.get() == 0
    }

    /// Whether there is room for one more, and when it is worth asking again. `waiting` says how many wait, over all workers.
    pub(crate) fn room(
        &self,
        now: Tick,
        reader: &mut Reader,
        waiting: impl FnOnce() -> u64,
        concurrency: u32,
        workers: u32,
    ) -> Room {
        if now < self.not_before.get() {
            return Room::At(self.not_before.get());
        }
        if self.failures.get() > 0 && self.connecting.get() > 0 {
            return Room::WhenConnected; // One at a time finds out whether it answers again.
        }
        if self.credit.get() > 0 {
            return Room::Now;
        }
        // A full unix backlog says so at once, and its length costs a walk through all unix sockets: not for a few.
        let waiting = waiting();
        let few = self.target.is_unix() && waiting <= concurrency.into();
        let queue = match few {
            true => Ok(None),
            false => reader.read(&self.queue),
        };
        match queue {
            Ok(Some(queue)) => {
                let most = concurrency.min(queue.max / 2).max(1);
                let free = most.saturating_sub(queue.len);
                let turn = (now.since(Tick::default()).as_micros() / FULL.as_micros()) as u32;
                let part = match part(free, workers, turn.wrapping_add(self.local.worker())) {
                    0 if waiting <= free.into() => free.min(1),
                    part => part,
                };
                if part == 0 {
                    self.not_before.set(now + FULL);
                    return Room::At(self.not_before.get());
                }
                self.credit.set(part);
            }
            // Nothing can be known: one batch a round trip.
            Ok(None) | Err(_) => {
                let free = (concurrency / workers)
                    .max(1)
                    .saturating_sub(self.connecting.get());
                if free == 0 {
                    return Room::WhenConnected;
                }
                self.credit.set(free);
            }
        }
        Room::Now
    }

    /// Begins a connect: the socket, and whether it is connected already.
    ///
    /// # Errors
    ///
    /// How it failed; the back-off has been set.
    pub(crate) fn dial(self: &Rc<Self>, now: Tick) -> Result<(Attempt, Socket, bool), Failure> {
        self.credit.set(self.credit.get().saturating_sub(1));
        match self.connect() {
            Ok((fd, connected)) => {
                self.connecting.set(self.connecting.get() + 1);
                let attempt = Attempt {
                    dialer: Rc::clone(self),
                    started: now,
                };
                Ok((
                    attempt,
                    Socket::connecting(fd, self.target.is_unix(), connected),
                    connected,
                ))
            }
            Err(error) => Err(self.failed(now, error)),
        }
    }

    fn connect(&self) -> io::Result<(OwnedFd, bool)> {
        let mut others = self.sources.len().saturating_sub(1);
        loop {
            match self.connect_from_source() {
                Err(error) if others > 0 && is(&error, Errno::EADDRNOTAVAIL) => {
                    others -= 1;
                    self.source
                        .set((self.source.get() + 1) % self.sources.len());
                }
                result => return result,
            }
        }
    }

    /// From the address whose turn it is. EADDRNOTAVAIL: it has no port left, or isn't this machine's.
    fn connect_from_source(&self) -> io::Result<(OwnedFd, bool)> {
        let socket = self.socket()?;
        match socket.connect(&self.address) {
            Ok(()) => Ok((socket.into(), true)),
            Err(error) if is(&error, Errno::EINPROGRESS) => Ok((socket.into(), false)),
            Err(error) => Err(error),
        }
    }

    fn socket(&self) -> io::Result<socket2::Socket> {
        let kind = Type::STREAM.nonblocking().cloexec();
        let Target::Tcp(target) = self.target else {
            return socket2::Socket::new_raw(Domain::UNIX, kind, None);
        };
        let socket = socket2::Socket::new_raw(Domain::for_address(target), kind, None)?;
        // Before Linux 6.3 there is no such option, and the split in even and odd ports stays.
        let _ = sys::set_local_port_range(socket.as_fd(), self.ports.0, self.ports.1);
        let source = self.sources[self.source.get()];
        if !source.is_unspecified() {
            setsockopt(&socket, IpBindAddressNoPort, &true)?;
            socket.bind(&SocketAddr::new(source, 0).into())?;
        }
        Ok(socket)
    }

    /// Takes note of a failed connect.
    fn failed(&self, now: Tick, error: io::Error) -> Failure {
        let result = match error.raw_os_error().map(Errno::from_raw) {
            Some(Errno::EAGAIN) if self.target.is_unix() => DispatchResult::Again,
            Some(Errno::ECONNREFUSED | Errno::ENOENT) => DispatchResult::Refused,
            Some(Errno::ETIMEDOUT) => DispatchResult::Timeout,
            Some(Errno::EADDRNOTAVAIL) => DispatchResult::NoPort,
            _ => DispatchResult::Error,
        };
        self.credit.set(0);
        let wait = match result {
            DispatchResult::Again => FULL,
            DispatchResult::Error if is_lack(&error) => {
                if now >= self.not_before.get() {
                    let why = format!("{}: {error}", self.target);
                    self.tell(|service, generation| Event::Lacks {
                        service,
                        generation,
                        why,
                    });
                }
                LACK
            }
            // Several that were under way together count as one failure.
            _ if now < self.not_before.get() => return Failure { result, error },
            _ => {
                let failures = self.failures.get();
                self.failures.set(failures + 1);
                if failures == 0 {
                    let why = match result {
                        DispatchResult::NoPort => format!(
                            "{}: no local port is free towards it: add an address of this machine to `source`",
                            self.target
                        ),
                        _ => format!("{}: {error}", self.target),
                    };
                    self.tell(|service, generation| Event::Refused {
                        service,
                        generation,
                        why,
                    });
                }
                match result {
                    DispatchResult::NoPort => NO_PORT,
                    _ => BACKOFF_MOST.min(BACKOFF * 2u32.pow(failures.min(6))),
                }
            }
        };
        self.not_before.set(now + wait);
        Failure { result, error }
    }

    fn tell(&self, event: impl FnOnce(ServiceId, u64) -> Event) {
        self.local
            .tell(event(self.local.service, self.local.generation.number()));
    }
}

impl Attempt {
    /// Whether the endpoint is on another machine.
    pub(crate) fn is_remote(&self) -> bool {
        match &self.dialer.target {
            Target::Tcp(address) => !address.ip().to_canonical().is_loopback(),
            Target::Unix(_) | Target::Nameless(_) => false,
        }
    }

    /// The endpoint took the connection. One that had begun when another failed says nothing about what would follow.
    pub(crate) fn succeeded(&self) {
        if self.started < self.dialer.not_before.get() {
            return;
        }
        if self.dialer.failures.replace(0) > 0 {
            self.dialer.not_before.set(Tick::default());
            self.dialer.tell(|service, generation| Event::Answers {
                service,
                generation,
            });
        }
    }

    /// It didn't.
    pub(crate) fn failed(&self, now: Tick, error: io::Error) -> Failure {
        self.dialer.failed(now, error)
    }

    /// Whether the socket is connected to itself: a port of the ephemeral range on which nobody listens may be chosen as the
    /// local port of the very connect that looks for it.
    pub(crate) fn met_itself(&self, socket: &Socket) -> bool {
        let Target::Tcp(target) = self.dialer.target else {
            return false;
        };
        let (low, high) = self.dialer.ports;
        (low..=high).contains(&target.port())
            && target.ip().is_loopback()
            && SockRef::from(socket)
                .local_addr()
                .is_ok_and(|own| own == self.dialer.address)
    }
}

/// A worker's part of what is free, rounded up in its turn: the parts of as many `turn`s in a row as there are workers add up to
/// `free` (Hermite's identity).
fn part(free: u32, workers: u32, turn: u32) -> u32 {
    (free + turn % workers) / workers
}

/// Whether the gate itself, or the system, has run out of descriptors or memory: that says nothing about the endpoint.
fn is_lack(error: &io::Error) -> bool {
    let lacks = [
        Errno::EMFILE,
        Errno::ENFILE,
        Errno::ENOBUFS,
        Errno::ENOMEM,
        Errno::ENOSPC, // epoll_ctl(2): too many watches of this user.
    ];
    lacks.into_iter().any(|errno| is(error, errno))
}

fn is(error: &io::Error, errno: Errno) -> bool {
    error.raw_os_error() == Some(errno as i32)
}

/// The source addresses towards an endpoint.
fn sources(endpoint: SocketAddr, settings: &ServiceSettings) -> Vec<IpAddr> {
    let system = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    let given = settings
        .sources
        .iter()
        .filter(|source| source.is_ipv4() == endpoint.is_ipv4());
    let given: Vec<IpAddr> = given.copied().collect();
    match endpoint.ip() {
        // First the system's choice, 127.0.0.1, which backends may trust alone.
        IpAddr::V4(ip) if ip.is_loopback() => {
            let others = (1..=u8::MAX).map(|n| IpAddr::V4(Ipv4Addr::new(127, 83, 71, n)));
            let others = others
                .filter(|other| *other != IpAddr::V4(ip))
                .take(LOOPBACK_SOURCES);
            std::iter::once(system).chain(others).collect()
        }
        ip if ip.is_loopback() || given.is_empty() => vec![system],
        _ => given,
    }
}

/// The ports that connect(2) chooses from (ip(7), ip_local_port_range).
fn ephemeral_ports() -> (u16, u16) {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range");
    let text = text.unwrap_or_default();
    let mut ports = text.split_whitespace().flat_map(str::parse);
    // The kernel's default, where /proc isn't mounted.
    (ports.next().unwrap_or(32768), ports.next().unwrap_or(60999))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::generation::Generation;
    use crate::listener::KeptListener;

    proptest! {
        #[test]
        fn the_parts_are_the_whole_and_everybody_has_a_turn(
            free in 0u32..5000, workers in 1u32..200, first in any::<u16>(),
        ) {
            let turns = u32::from(first)..u32::from(first) + workers;
            let parts: Vec<u32> = turns.map(|turn| part(free, workers, turn)).collect();
            prop_assert_eq!(parts.iter().sum::<u32>(), free);
            prop_assert!(parts.iter().all(|part| part.abs_diff(free / workers) <= 1));
            prop_assert!(free == 0 || parts.iter().any(|part| *part > 0));
        }
    }

    /// As many workers as a large machine has, and a backend that accepts nothing.
    #[test]
    fn many_workers_together_take_no_more_than_is_free() {
        const WORKERS: u32 = 96;
        let kept = KeptListener::tcp((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let settings = ServiceSettings {
            pending_timeout: Duration::from_secs(30),
            pending_overflow: crate::gate::Overflow::Backpressure,
            dispatch_concurrency: 64,
            connect_timeout: Duration::from_secs(3),
            idle_timeout: None,
            half_close_timeout: None,
            keepalive: None,
            send_proxy: None,
            accept_proxy: None,
            accept_proxy_timeout: Duration::from_secs(3),
            sources: Vec::new(),
        };
        let endpoint = Endpoint {
            target: kept.address().clone(),
            queue: kept.probe().clone(),
        };
        let generation = Generation::new(1, WORKERS as usize, Vec::new(), Vec::new());
        let (events, _events) = tokio::sync::mpsc::unbounded_channel();
        let dialers: Vec<Rc<Dialer>> = (0..WORKERS as usize)
            .map(|worker| {
                let (generation, events) = (generation.clone(), events.clone());
                let local = Local::new(generation, ServiceId(1), worker, events);
                Rc::new(Dialer::new(&local, &endpoint, &settings).unwrap())
            })
            .collect();
        let mut reader = Reader::new();
        let mut dialled = Vec::new();
        let mut now = Tick::default();
        let mut served = std::collections::BTreeSet::new();
        for _ in 0..2 * WORKERS {
            let rooms: Vec<Room> = dialers
                .iter()
                .map(|dialer| dialer.room(now, &mut reader, || 5000, 64, WORKERS))
                .collect();
            for (worker, (dialer, room)) in dialers.iter().zip(rooms).enumerate() {
                if room == Room::Now {
                    served.insert(worker);
                    dialled.extend(dialer.dial(now).ok());
                }
            }
            let waiting = kept.queue(&mut reader).unwrap().len;
            assert!(waiting <= 64, "{waiting} in the queue");
            // The backend takes a few.
            for _ in 0..3 {
                let _ = sys::accept(kept.as_fd());
            }
            now = now + FULL;
        }
        assert_eq!(served.len(), WORKERS as usize, "everybody has had a turn");
    }
}
