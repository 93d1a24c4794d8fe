//! A generation as the data path sees it: where its endpoints are, and who still has a lease on it.
//!
//! Invariants:
//!
//! - A [`Lease`] is held by exactly one connection and ends with it, whatever way it ends: it is a guard.
//! - Each worker counts its own leases and is the only writer of its count; a sum over all workers is the whole.
//! - Once every worker has another generation as its active one, a count only falls, unless a listener that the other one doesn't
//!   know is still open: its connections go where they went before.

use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use socket2::SockAddr;
use tokio::sync::mpsc;

use crate::accept_queue;
use crate::gate::{Event, ServiceId};

/// Where a generation receives a listener's connections.
#[derive(Debug)]
pub struct Endpoint {
    /// What is dialled.
    pub target: Target,
    /// How its accept queue is read.
    pub queue: accept_queue::Probe,
}

/// An address to dial.
#[derive(Clone, Debug)]
pub enum Target {
    /// An IP address and port.
    Tcp(SocketAddr),
    /// A unix socket by its path, of 107 bytes at most.
    Unix(PathBuf),
    /// A unix socket whose file has no name any more, by an O_PATH descriptor of it: it is dialled through /proc/self/fd.
    Nameless(Arc<OwnedFd>),
}

impl Target {
    /// What connect(2) takes. Valid for as long as `self` lives.
    ///
    /// # Errors
    ///
    /// A path over 107 bytes (unix(7)).
    pub fn address(&self) -> io::Result<SockAddr> {
        match self {
            Target::Tcp(address) => Ok((*address).into()),
            Target::Unix(path) => SockAddr::unix(path),
            Target::Nameless(file) => SockAddr::unix(format!("/proc/self/fd/{}", file.as_raw_fd())),
        }
    }

    /// Whether it is a unix socket.
    pub fn is_unix(&self) -> bool {
        !matches!(self, Target::Tcp(_))
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Target::Tcp(address) => write!(f, "{address}"),
            Target::Unix(path) => write!(f, "unix:{}", path.display()),
            Target::Nameless(_) => f.write_str("unix (kept)"),
        }
    }
}

/// A generation: made by the supervisor, shared with every worker.
#[derive(Debug)]
pub struct Generation {
    number: u64,
    endpoints: Endpoints,
    raw: Vec<String>,
    process: bool,
    ended: AtomicBool,
    leases: Box<[LeaseCount]>,
}

/// The endpoints of each listener, by the listener's name; `None` is for all that aren't named.
pub type Endpoints = Vec<(Option<String>, Vec<Endpoint>)>;

/// One worker's count, on a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct LeaseCount(AtomicU32);

impl Generation {
    /// A generation with no lease. `workers` is the gate's number of workers. `raw` are the listeners whose clients send the PROXY
    /// header that it reads: the gate sends it none for them, and reads none itself.
    pub fn new(
        number: u64,
        workers: usize,
        endpoints: Endpoints,
        raw: Vec<String>,
    ) -> Arc<Generation> {
        Generation::make(number, workers, endpoints, raw, false)
    }

    /// The same, of a process whose death will be told: see [`Gate::backend_gone`](crate::Gate::backend_gone).
    pub fn of_process(
        number: u64,
        workers: usize,
        endpoints: Endpoints,
        raw: Vec<String>,
    ) -> Arc<Generation> {
        Generation::make(number, workers, endpoints, raw, true)
    }

    fn make(
        number: u64,
        workers: usize,
        endpoints: Endpoints,
        raw: Vec<String>,
        process: bool,
    ) -> Arc<Generation> {
        let leases = (0..workers).map(|_| LeaseCount::default()).collect();
        Arc::new(Generation {
            number,
            endpoints,
            raw,
            process,
            ended: AtomicBool::new(false),
            leases,
        })
    }

    /// Its number, from 1, never used again in a process's life.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The endpoints of a listener.
    pub fn endpoints(&self, listener: &str) -> &[Endpoint] {
        let named = self
            .endpoints
            .iter()
            .find(|(name, _)| name.as_deref() == Some(listener));
        let found = named.or_else(|| self.endpoints.iter().find(|(name, _)| name.is_none()));
        found.map_or(&[], |(_, endpoints)| endpoints)
    }

    /// Whether the connections of a listener reach it as their clients sent them.
    pub(crate) fn is_raw(&self, listener: &str) -> bool {
        self.raw.iter().any(|raw| raw == listener)
    }

    /// The endpoints of each listener that has its own, and those of all others together.
    pub fn groups(&self) -> impl Iterator<Item = &[Endpoint]> {
        self.endpoints.iter().map(|(_, group)| group.as_slice())
    }

    /// Every endpoint.
    pub fn all_endpoints(&self) -> impl Iterator<Item = &Endpoint> {
        self.groups().flatten()
    }

    /// Connections that hold a lease, over all workers.
    pub fn leases(&self) -> u64 {
        self.leases
            .iter()
            .map(|count| u64::from(count.0.load(Ordering::Relaxed)))
            .sum()
    }

    /// Whether the death of its process will be told.
    pub(crate) fn is_process(&self) -> bool {
        self.process
    }

    pub(crate) fn set_ended(&self) {
        self.ended.store(true, Ordering::Release);
    }

    /// Whether its process has died, see [`Gate::backend_gone`](crate::Gate::backend_gone).
    pub fn ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }
}

/// A generation as one worker has it.
#[derive(Debug)]
pub(crate) struct Local {
    pub(crate) generation: Arc<Generation>,
    pub(crate) service: ServiceId,
    worker: usize,
    /// Whether this worker dispatches to it.
    active: Cell<bool>,
    events: mpsc::UnboundedSender<Event>,
}

impl Local {
    pub(crate) fn new(
        generation: Arc<Generation>,
        service: ServiceId,
        worker: usize,
        events: mpsc::UnboundedSender<Event>,
    ) -> Rc<Local> {
        Rc::new(Local {
            generation,
            service,
            worker,
            active: Cell::new(true),
            events,
        })
    }

    /// New connections go elsewhere from now on.
    pub(crate) fn deactivate(&self) {
        self.active.set(false);
        if self.count().load(Ordering::Relaxed) == 0 {
            self.tell_released();
        }
    }

    /// The number of the worker whose it is.
    pub(crate) fn worker(&self) -> u32 {
        self.worker as u32
    }

    pub(crate) fn is_in(&self, service: ServiceId) -> bool {
        self.service == service
    }

    pub(crate) fn is_of(&self, service: ServiceId, generation: u64) -> bool {
        self.service == service && self.generation.number == generation
    }

    pub(crate) fn is_active(&self) -> bool {
        self.active.get()
    }

    pub(crate) fn tell(&self, event: Event) {
        // The supervisor has gone only when the process is about to.
        let _ = self.events.send(event);
    }

    fn tell_released(&self) {
        self.tell(Event::Released {
            service: self.service,
            generation: self.generation.number,
        });
    }

    fn count(&self) -> &AtomicU32 {
        &self.generation.leases[self.worker].0
    }
}

/// What ties a connection to its generation.
#[derive(Debug)]
pub(crate) struct Lease(Rc<Local>);

impl Lease {
    pub(crate) fn new(local: &Rc<Local>) -> Lease {
        let count = local.count();
        count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        Lease(Rc::clone(local))
    }
}

impl std::ops::Deref for Lease {
    type Target = Local;
    fn deref(&self) -> &Local {
        &self.0
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let count = self.0.count();
        let left = count.load(Ordering::Relaxed) - 1;
        count.store(left, Ordering::Relaxed);
        if left == 0 && !self.0.is_active() {
            self.0.tell_released();
        }
    }
}
