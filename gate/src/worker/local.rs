//! A worker's own copies of the services and listeners.

use std::rc::Rc;
use std::sync::Arc;

use crate::closing::Emptying;
use crate::deadlines::Tick;
use crate::dialer::Dialer;
use crate::gate::{ListenerId, ServiceId, ServiceSettings};
use crate::generation::Local;
use crate::pending::PendingQueue;
use crate::shared::{Ack, SharedListener};
use crate::slots::Token;

/// A service as one worker has it.
pub(crate) struct Service {
    pub(crate) id: ServiceId,
    pub(crate) metrics: Arc<syngate_metrics::Service>,
    pub(crate) settings: Arc<ServiceSettings>,
    pub(crate) active: Option<Rc<Local>>,
    pub(crate) held: bool,
    /// Who waits for the connects under way to end.
    pub(crate) holding: Vec<Ack>,
}

/// A listener as one worker has it; it stays, closed, until its last connection has ended.
pub(crate) struct LocalListener {
    pub(crate) id: ListenerId,
    pub(crate) service: usize,
    pub(crate) metrics: Arc<syngate_metrics::Listener>,
    /// `None` once it is closed.
    pub(crate) socket: Option<Arc<SharedListener>>,
    /// Its clients send what the backend is to read: no PROXY header is read here, and none is sent. The active generation says
    /// so, and it changes with the flip.
    pub(crate) raw: bool,
    pub(crate) registered: bool,
    /// The turn in which this worker was last woken for it.
    pub(crate) woken_in: u64,
    pub(crate) emptying: Option<Emptying>,
    pub(crate) queue: PendingQueue<Token>,
    pub(crate) connections: u32,
    /// The active generation's endpoints, used in turn; those of an older one where the active one has none for this listener.
    pub(crate) dialers: Vec<Rc<Dialer>>,
    pub(crate) next_dialer: usize,
    /// When a dispatch is to be tried again.
    pub(crate) retry: Tick,
    /// In the list of those to be dispatched this turn.
    pub(crate) due: bool,
    /// In the list of those whose queue has changed; and what the process knows of its length.
    pub(crate) changed: bool,
    pub(crate) told: usize,
}

impl LocalListener {
    /// The generation to which its connections go.
    pub(crate) fn local(&self) -> Option<&Rc<Local>> {
        self.dialers.first().map(|dialer| dialer.local())
    }

    pub(crate) fn new(
        id: ListenerId,
        service: usize,
        metrics: Arc<syngate_metrics::Listener>,
        socket: Option<Arc<SharedListener>>,
    ) -> LocalListener {
        LocalListener {
            id,
            service,
            metrics,
            raw: socket.as_ref().is_some_and(|socket| socket.raw),
            socket,
            registered: false,
            woken_in: 0,
            emptying: None,
            queue: PendingQueue::new(),
            connections: 0,
            dialers: Vec::new(),
            next_dialer: 0,
            retry: Tick::default(),
            due: false,
            changed: false,
            told: 0,
        }
    }
}
