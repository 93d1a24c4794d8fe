//! What the workers and the handle share: inboxes, loads, the two process-wide counts.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::eventfd::{EfdFlags, EventFd};
use syngate_metrics::CloseReason;
use tokio::sync::mpsc;

use crate::gate::{ConnectionInfo, Event, ListenerId, ServiceId, ServiceSettings};
use crate::generation::Generation;
use crate::listener::Listener;

/// This part of `max_connections` is free: enough to end a pause for.
const AMPLE: u64 = 16;

/// Says by its drop that a worker has done what a command asked for.
#[derive(Clone, Debug)]
pub(crate) struct Ack {
    _done: mpsc::Sender<()>,
}

/// What a worker is asked to do.
#[derive(Clone)]
pub(crate) enum Command {
    AddService(
        ServiceId,
        Arc<syngate_metrics::Service>,
        Arc<ServiceSettings>,
    ),
    RemoveService(ServiceId),
    /// Register it and accept.
    Open(Arc<SharedListener>),
    /// Let go of a listener, and open another that has its socket.
    HandOver(ListenerId, Arc<SharedListener>),
    /// The first worker accepts until nothing is left, at most 1.2 s; the others let go at once.
    Close(ListenerId),
    /// All change at once: a connection that goes to a generation goes by its settings, and by its names of the listeners.
    Activate(
        ServiceId,
        Option<Arc<Generation>>,
        Arc<ServiceSettings>,
        Arc<[Arc<SharedListener>]>,
    ),
    /// With `true`, acknowledged when no connect is under way.
    Hold(ServiceId, bool),
    /// Close connections of a service, and count the clients that were reset by it.
    Reset(ServiceId, Which, CloseReason, Arc<AtomicU64>),
    BackendGone(ServiceId, u64),
    /// Count connections of a service.
    Count(ServiceId, Which, Arc<AtomicU64>),
    /// The first worker alone: accept what is left in it, and relay it raw; without an open listener, close it.
    Adopt(
        Option<ListenerId>,
        Arc<syngate_metrics::Listener>,
        Arc<Listener>,
    ),
    List(ServiceId, mpsc::UnboundedSender<Vec<ConnectionInfo>>),
    Stop,
}

/// Which connections of a service are meant.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Which {
    /// Those of a generation.
    Of(u64),
    /// Those of a generation that its backend may know nothing of.
    Unproven(u64),
    /// Those whose client is still owed something by a backend.
    Owed,
}

/// A listing that is under way in a worker: a part a turn.
pub(crate) struct Listing {
    pub(crate) service: ServiceId,
    /// The slot at which it goes on.
    pub(crate) next: usize,
    pub(crate) to: mpsc::UnboundedSender<Vec<ConnectionInfo>>,
    pub(crate) _ack: Ack,
}

/// A connection on its way from the worker that accepted it to a less loaded one.
pub(crate) struct Handoff {
    pub(crate) client: OwnedFd,
    pub(crate) peer: Option<SocketAddr>,
    pub(crate) listener: ListenerId,
    pub(crate) service: ServiceId,
    pub(crate) metrics: Arc<syngate_metrics::Listener>,
    /// A place in the pending queue is counted for it.
    pub(crate) reserved: bool,
}

pub(crate) enum Message {
    Command(Command, Ack),
    Handoff(Handoff),
    /// A listener was paused or resumed, or there may be room again: see [`SharedListener::paused`].
    Look,
}

/// A worker's inbox. The eventfd is written only when the queue was empty, so a burst of messages is one wake-up.
pub(crate) struct Inbox {
    queue: Mutex<VecDeque<Message>>,
    pub(crate) wake: EventFd,
}

impl Inbox {
    pub(crate) fn new() -> io::Result<Inbox> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        Ok(Inbox {
            queue: Mutex::default(),
            wake: EventFd::from_flags(flags)?,
        })
    }

    pub(crate) fn send(&self, message: Message) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let was_empty = queue.is_empty();
        if !matches!(
            (&message, queue.back()),
            (Message::Look, Some(Message::Look))
        ) {
            queue.push_back(message);
        }
        drop(queue);
        if was_empty {
            // An eventfd's counter can't overflow here: the reader empties the queue after each wake-up.
            let _ = self.wake.write(1);
        }
    }

    pub(crate) fn take(&self) -> VecDeque<Message> {
        let _ = self.wake.read();
        std::mem::take(&mut *self.queue.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// What each worker writes for the others to read: a cache line of its own.
#[repr(align(128))]
#[derive(Debug, Default)]
pub(crate) struct Load {
    /// Connections that this worker holds.
    pub(crate) connections: AtomicU32,
    /// Turns of its loop: the watchdog's food.
    pub(crate) turns: AtomicU64,
}

/// A listener as every worker sees it.
pub(crate) struct SharedListener {
    pub(crate) id: ListenerId,
    pub(crate) service: ServiceId,
    pub(crate) socket: Arc<Listener>,
    pub(crate) metrics: Arc<syngate_metrics::Listener>,
    /// What it is until a generation says otherwise: see [`LocalListener::raw`](crate::worker::LocalListener::raw).
    pub(crate) raw: bool,
    /// Connections that wait, over all workers.
    pub(crate) pending: AtomicU64,
    /// Why nobody accepts from it: a [`Pause`]. It is the same for all workers, since a connection wakes only one, and nobody
    /// else would be woken for one that doesn't accept.
    pub(crate) paused: AtomicU8,
    /// How long the last pause for an error was, in milliseconds.
    pub(crate) error_pause: AtomicU32,
    /// The kernel's count of what it has dropped here, as far as the metrics know it.
    drops: AtomicU64,
}

/// Values of [`SharedListener::paused`].
pub(crate) struct Pause;

impl Pause {
    pub(crate) const NONE: u8 = 0;
    /// A limit is reached; over when there is room.
    pub(crate) const FULL: u8 = 1;
    /// accept(2) failed for want of something; over after a while.
    pub(crate) const ERROR: u8 = 2;
}

impl SharedListener {
    pub(crate) fn new(
        id: ListenerId,
        service: ServiceId,
        socket: Arc<Listener>,
        metrics: Arc<syngate_metrics::Listener>,
        raw: bool,
    ) -> SharedListener {
        SharedListener {
            id,
            service,
            socket,
            metrics,
            raw,
            pending: AtomicU64::new(0),
            paused: AtomicU8::new(Pause::NONE),
            error_pause: AtomicU32::new(0),
            drops: AtomicU64::new(0),
        }
    }

    /// The same socket as another listener, or by another name: what the kernel has dropped there so far is this one's.
    pub(crate) fn heir(
        &self,
        id: ListenerId,
        service: ServiceId,
        metrics: Arc<syngate_metrics::Listener>,
        raw: bool,
    ) -> SharedListener {
        self.tell_drops();
        SharedListener {
            drops: AtomicU64::new(self.drops.load(Ordering::Relaxed)),
            ..SharedListener::new(id, service, Arc::clone(&self.socket), metrics, raw)
        }
    }

    /// Tells the metrics what the kernel has dropped since the last time.
    pub(crate) fn tell_drops(&self) {
        if let Ok(drops) = self.socket.drops() {
            let told = self.drops.fetch_max(drops, Ordering::Relaxed);
            self.metrics.add_drops(drops.saturating_sub(told));
        }
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.paused.load(Ordering::SeqCst) != Pause::NONE
    }
}

impl Ack {
    pub(crate) fn new() -> (Ack, mpsc::Receiver<()>) {
        let (done, receiver) = mpsc::channel(1);
        (Ack { _done: done }, receiver)
    }

    /// Returns when the last copy has been dropped.
    pub(crate) async fn all_dropped(mut done: mpsc::Receiver<()>) {
        while done.recv().await.is_some() {}
    }
}

/// What all threads share. Two counts are changed at accept, dispatch and close; the rest hardly ever.
pub(crate) struct Shared {
    pub(crate) inboxes: Box<[Inbox]>,
    pub(crate) loads: Box<[Load]>,
    pub(crate) open: AtomicU64,
    pub(crate) pending: AtomicU64,
    pub(crate) max_connections: AtomicU64,
    pub(crate) pending_max: AtomicU64,
    /// Listeners that are paused: a close looks for who waits for its room only where there are some.
    pub(crate) paused_listeners: AtomicU32,
    pub(crate) events: mpsc::UnboundedSender<Event>,
    /// When a limit was last worth a line in the log.
    pub(crate) warned: Mutex<Option<Instant>>,
}

impl Shared {
    /// Whether a line about limits may go to the log: one a second, over all workers.
    pub(crate) fn may_warn(&self) -> bool {
        let mut warned = self.warned.lock().unwrap_or_else(PoisonError::into_inner);
        let may = warned.is_none_or(|at| at.elapsed() >= Duration::from_secs(1));
        if may {
            *warned = Some(Instant::now());
        }
        may
    }

    /// Makes every worker look at the pauses.
    pub(crate) fn look_at_pauses(&self) {
        for inbox in &self.inboxes {
            inbox.send(Message::Look);
        }
    }

    /// Whether one more connection is within `max_connections`; with `ample`, whether many more are.
    pub(crate) fn has_room(&self, ample: bool) -> bool {
        let most = self.max_connections.load(Ordering::Relaxed);
        let spare = if ample { (most / AMPLE).max(1) } else { 1 };
        self.open.load(Ordering::SeqCst) + spare <= most
    }
}
