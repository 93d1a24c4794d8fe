//! The handle that the supervisor holds: the boundary between processes and connections.
//!
//! Each call goes to every worker's inbox and returns when all have taken it up between two of their turns. So when
//! [`Gate::activate`] has returned, no worker can lease another connection to the generation that was active before (but for those
//! of a listener that the new one doesn't know). A call's acknowledgement is the drop of its `Ack`, so a worker can also keep one
//! until what was asked for has come true.

mod registry;
mod report;
mod settings;

use std::future::Future;
use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use syngate_metrics::{CloseReason, Metrics};
use tokio::sync::mpsc;

pub use report::{ConnectionInfo, Event};
pub use settings::{Overflow, ServiceSettings, Settings};

use self::registry::Registry;
use crate::accept_queue::Reader;
use crate::generation::Generation;
use crate::listener::{Listener, OptionRefused, Options};
use crate::shared::{Ack, Command, Inbox, Load, Message, Shared, SharedListener, Which};
use crate::worker::Worker;

/// A service of a [`Gate`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServiceId(pub(crate) u32);

/// A listener of a [`Gate`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ListenerId(pub(crate) u32);

/// A service that isn't there, or any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the gate has no such service: it was removed")]
pub struct NoSuchService;

/// The running gate. Dropping it without [`Gate::stop`] leaves the workers running: it lives as long as the process.
pub struct Gate {
    shared: Arc<Shared>,
    metrics: Arc<Metrics>,
    registry: Mutex<Registry>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Gate {
    /// Starts the workers. Nothing listens yet.
    ///
    /// # Errors
    ///
    /// No descriptors for the workers' epoll sets and inboxes, or no thread.
    pub fn start(
        settings: &Settings,
        metrics: &Arc<Metrics>,
    ) -> io::Result<(Gate, mpsc::UnboundedReceiver<Event>)> {
        let (events, receiver) = mpsc::unbounded_channel();
        let inboxes = (0..settings.workers)
            .map(|_| Inbox::new())
            .collect::<io::Result<_>>()?;
        let shared = Arc::new(Shared {
            inboxes,
            loads: (0..settings.workers).map(|_| Load::default()).collect(),
            open: AtomicU64::new(0),
            pending: AtomicU64::new(0),
            max_connections: AtomicU64::new(settings.max_connections),
            pending_max: AtomicU64::new(settings.pending_max),
            paused_listeners: AtomicU32::new(0),
            events,
            warned: Mutex::default(),
        });
        let mut threads = Vec::new();
        for index in 0..settings.workers {
            let epoll = Worker::epoll(index, &shared)?;
            let shared = Arc::clone(&shared);
            let name = format!("gate-{index}");
            threads.push(
                std::thread::Builder::new()
                    .name(name)
                    .spawn(move || Worker::new(index, shared, epoll).run())?,
            );
        }
        let gate = Gate {
            shared,
            metrics: Arc::clone(metrics),
            registry: Mutex::default(),
            threads: Mutex::new(threads),
        };
        Ok((gate, receiver))
    }

    /// Makes a service; nothing is active in it and it isn't held.
    pub async fn add_service(&self, name: &str, settings: ServiceSettings) -> ServiceId {
        let metrics = self.metrics.service(name);
        let id = {
            let mut registry = self.registry();
            let id = ServiceId(registry.id());
            registry.services.insert(id, Arc::clone(&metrics));
            id
        };
        self.all(Command::AddService(id, metrics, Arc::new(settings)))
            .await;
        id
    }

    /// Forgets a service whose listeners are closed and whose generations are drained; what is left of it is reset.
    pub async fn remove_service(&self, service: ServiceId) {
        self.all(Command::RemoveService(service)).await;
        let mut registry = self.registry();
        registry.services.remove(&service);
        registry
            .listeners
            .retain(|_, listener| listener.service != service);
    }

    /// Begins to accept. `raw` is for the time before a generation is active: then [`Generation::new`] has said which listeners
    /// are.
    ///
    /// # Errors
    ///
    /// The service was removed; the socket is closed.
    pub async fn open(
        &self,
        service: ServiceId,
        socket: Listener,
        raw: bool,
    ) -> Result<ListenerId, NoSuchService> {
        let listener = {
            let mut registry = self.registry();
            let metrics = registry.services.get(&service).ok_or(NoSuchService)?;
            let metrics = metrics.listener(socket.name());
            let id = ListenerId(registry.id());
            let listener = Arc::new(SharedListener::new(
                id,
                service,
                Arc::new(socket),
                metrics,
                raw,
            ));
            registry.listeners.insert(id, Arc::clone(&listener));
            listener
        };
        let id = listener.id;
        self.all(Command::Open(listener)).await;
        Ok(id)
    }

    /// Gives the socket of a listener to another service, where it is a listener of this name. What the kernel has queued goes with
    /// it, what has been accepted stays with the old one. `None`: the listener has been closed, or the service removed.
    pub async fn hand_over(
        &self,
        listener: ListenerId,
        service: ServiceId,
        name: &str,
        raw: bool,
    ) -> Option<ListenerId> {
        let (old, heir) = {
            let mut registry = self.registry();
            let heirs = Arc::clone(registry.services.get(&service)?);
            let old = registry.listeners.remove(&listener)?;
            let (id, metrics) = (ListenerId(registry.id()), heirs.listener(name));
            let heir = Arc::new(old.heir(id, service, metrics, raw));
            registry.listeners.insert(id, Arc::clone(&heir));
            (old, heir)
        };
        let id = heir.id;
        self.all(Command::HandOver(listener, heir)).await;
        self.registry()
            .forget_metrics(old.service, old.metrics.name());
        Some(id)
    }

    /// Changes an open listener: see [`Listener::change`].
    ///
    /// # Errors
    /// The option that the kernel refuses.
    pub fn change(
        &self,
        listener: ListenerId,
        from: &Options,
        to: &Options,
    ) -> Result<(), OptionRefused> {
        match self.registry().listeners.get(&listener) {
            Some(listener) => listener.socket.change(from, to),
            None => Ok(()),
        }
    }

    /// Closes a listener and loses nothing: SYNs are refused, what the kernel has accepted is accepted (at most 1.2 s), then the
    /// socket is closed. Its connections go on.
    pub async fn close(&self, listener: ListenerId) {
        let Some(closing) = self.registry().listeners.remove(&listener) else {
            return;
        };
        // From now on SYNs are dropped on purpose.
        closing.tell_drops();
        self.all(Command::Close(listener)).await;
        self.registry()
            .forget_metrics(closing.service, closing.metrics.name());
    }

    /// Makes a generation the one that new and pending connections go to; `None`: they wait. The settings are the service's from
    /// then on, time-outs and limits for the running connections too. `names` are those of listeners that get another one with it;
    /// their connections go on as those of the listener by its new name.
    ///
    /// When this has returned no worker leases another connection to any other generation of the service, and connects to
    /// others that hadn't completed are pending again. A listener for which the new one has no endpoint is about to be closed: its
    /// connections, pending and new, go where they went before.
    pub async fn activate(
        &self,
        service: ServiceId,
        generation: Option<Arc<Generation>>,
        settings: ServiceSettings,
        names: &[(ListenerId, &str)],
    ) {
        let (old, renamed): (Vec<_>, Vec<_>) = {
            let mut registry = self.registry();
            let names = names.iter();
            names
                .filter_map(|(id, name)| registry.rename(*id, name))
                .unzip()
        };
        let (settings, renamed) = (Arc::new(settings), renamed.into());
        self.all(Command::Activate(service, generation, settings, renamed))
            .await;
        let registry = self.registry();
        for old in old {
            registry.forget_metrics(service, old.metrics.name());
        }
    }

    /// Holds a service, or lets it go. With `true` it returns when every connect under way has ended.
    pub async fn hold(&self, service: ServiceId, held: bool) {
        self.all(Command::Hold(service, held)).await;
    }

    /// The generation's process has died, other than when it was told to end. What it had reset before a byte passed is dispatched
    /// anew, and what it had accepted counts as `backend_gone`: connections that are open, but for those whose clients have ended
    /// after their answer, and those that have ended in the second before, when their clients waited for it.
    pub async fn backend_gone(&self, service: ServiceId, generation: &Generation) {
        generation.set_ended();
        self.all(Command::BackendGone(service, generation.number()))
            .await;
    }

    /// How many connections of a generation its backend may know nothing of: nothing has come from it on them, and nothing that was
    /// sent there is acknowledged. Their handshakes may be half done on its side (SYN_RECV): the kernel drops the end of one while
    /// the accept queue is full, and waits for the first bytes where the backend asks for that (tcp(7), TCP_DEFER_ACCEPT). All others
    /// are in its accept queue, or accepted.
    pub async fn unproven(&self, service: ServiceId, generation: u64) -> u64 {
        self.count(service, Which::Unproven(generation)).await
    }

    /// How many clients of a service are still owed something by a backend: bytes that are here or on the wire, or an end that hasn't
    /// been passed on. Once the service has no generation it is 0 when all clients have what the backends have said. Connections that
    /// are closed already don't count: the kernel sends their rest.
    pub async fn owed(&self, service: ServiceId) -> u64 {
        self.count(service, Which::Owed).await
    }

    async fn count(&self, service: ServiceId, which: Which) -> u64 {
        let count = Arc::new(AtomicU64::new(0));
        self.all(Command::Count(service, which, Arc::clone(&count)))
            .await;
        count.load(Ordering::Relaxed)
    }

    /// Resets the connections of a generation, counted as forced closes. `reason` is `DrainTimeout` or `Shutdown`. A connection whose
    /// client has everything already, the end too, is closed for this reason and neither reset nor counted. Returns the count.
    pub async fn reset(&self, service: ServiceId, generation: u64, reason: CloseReason) -> u64 {
        self.cut(service, Which::Of(generation), reason).await
    }

    /// The same for the connections that [`Gate::owed`] counts.
    pub async fn reset_owed(&self, service: ServiceId, reason: CloseReason) -> u64 {
        self.cut(service, Which::Owed, reason).await
    }

    async fn cut(&self, service: ServiceId, which: Which, reason: CloseReason) -> u64 {
        let count = Arc::new(AtomicU64::new(0));
        let cut = Command::Reset(service, which, reason, Arc::clone(&count));
        self.all(cut).await;
        count.load(Ordering::Relaxed)
    }

    /// Accepts what is left in a kept listener and relays it raw: a PROXY header is in the stream already. The connections
    /// count as those of the service's listener of this name; where that is closed, they are closed and counted as `unaccepted`.
    /// Returns when its queue is empty.
    pub async fn adopt(&self, service: ServiceId, name: &str, kept: Listener) {
        let (listener, metrics) = {
            let registry = self.registry();
            let Some(metrics) = registry.services.get(&service) else {
                return;
            };
            let listener = registry.listener(service, name);
            if listener.is_none()
                && kept
                    .queue(&mut Reader::new())
                    .is_ok_and(|left| left.len == 0)
            {
                return;
            }
            (listener, metrics.listener(name))
        };
        let (ack, done) = Ack::new();
        let adopt = Command::Adopt(listener, metrics, Arc::new(kept));
        self.shared.inboxes[0].send(Message::Command(adopt, ack));
        Ack::all_dropped(done).await;
        self.registry().forget_metrics(service, name);
    }

    /// The connections of a service, unsorted. Workers answer in pieces between their turns.
    pub async fn connections(&self, service: ServiceId) -> Vec<ConnectionInfo> {
        let (sender, mut receiver) = mpsc::unbounded_channel();
        let listed = self.all(Command::List(service, sender));
        let collect = async {
            let mut all = Vec::new();
            while let Some(mut some) = receiver.recv().await {
                all.append(&mut some);
            }
            all
        };
        listed.await;
        collect.await
    }

    /// Sets the process's limits.
    pub fn set_limits(&self, max_connections: u64, pending_max: u64) {
        self.shared
            .max_connections
            .store(max_connections, Ordering::Relaxed);
        self.shared
            .pending_max
            .store(pending_max, Ordering::Relaxed);
        self.shared.look_at_pauses();
    }

    /// Connections open, in any phase.
    pub fn open_connections(&self) -> u64 {
        self.shared.open.load(Ordering::Relaxed)
    }

    /// Connections that wait.
    pub fn pending_connections(&self) -> u64 {
        self.shared.pending.load(Ordering::Relaxed)
    }

    /// How many turns each worker's loop has made: one that doesn't grow within 10 s is stuck. A worker turns at least once
    /// a second.
    pub fn turns(&self) -> Vec<u64> {
        self.shared
            .loads
            .iter()
            .map(|load| load.turns.load(Ordering::Relaxed))
            .collect()
    }

    /// Reads backlog and drops of every public listener from the kernel into the metrics: call it before a scrape.
    pub fn sample(&self) {
        let mut reader = Reader::new();
        let mut queues: Vec<(Arc<syngate_metrics::Listener>, u64)> = Vec::new();
        for listener in self.registry().listeners.values() {
            listener.tell_drops();
            let Ok(queue) = listener.socket.queue(&mut reader) else {
                continue;
            };
            let backlog = u64::from(queue.len);
            // Several sockets may bear one name.
            match queues
                .iter_mut()
                .find(|(metrics, _)| Arc::ptr_eq(metrics, &listener.metrics))
            {
                Some((_, sum)) => *sum += backlog,
                None => queues.push((Arc::clone(&listener.metrics), backlog)),
            }
        }
        for (metrics, backlog) in queues {
            metrics.set_backlog(backlog);
        }
    }

    /// How many connections wait in a listener's accept queue, and how many packets the kernel has dropped there; `None`
    /// where that can't be read.
    pub fn kernel(&self, listener: ListenerId) -> Option<(u64, u64)> {
        let registry = self.registry();
        let socket = &registry.listeners.get(&listener)?.socket;
        let queue = socket.queue(&mut Reader::new()).ok()?;
        Some((queue.len.into(), socket.drops().ok()?))
    }

    /// Resets every connection that is left, counted as `shutdown`, and ends the workers. What others are waiting for ends with
    /// that; nothing that is asked later is done.
    pub async fn stop(&self) {
        self.all(Command::Stop).await;
        let threads =
            std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            // A worker that panicked has aborted the process: there is no error to see here.
            let _ = thread.join();
        }
        // What one worker has handed to another that had stopped already; the blocks have no other writer any more.
        for (worker, inbox) in self.shared.inboxes.iter().enumerate() {
            for message in inbox.take() {
                if let Message::Handoff(handoff) = message {
                    handoff.metrics.block(worker).closed[CloseReason::Shutdown].inc();
                    self.shared.open.fetch_sub(1, Ordering::SeqCst);
                }
            }
        }
    }

    /// Sends a command to every worker, and returns when all have done it.
    fn all(&self, command: Command) -> impl Future<Output = ()> + use<> {
        let (ack, done) = Ack::new();
        for inbox in &self.shared.inboxes {
            inbox.send(Message::Command(command.clone(), ack.clone()));
        }
        drop(ack);
        Ack::all_dropped(done)
    }

    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
