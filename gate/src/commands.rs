//! What the supervisor asks a worker for, done between two turns.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use syngate_metrics::CloseReason;

use crate::closing::Adoption;
use crate::connection::{Next, Phase};
use crate::deadlines::Tick;
use crate::dialer::Dialer;
use crate::gate::{ConnectionInfo, ListenerId, ServiceId, ServiceSettings};
use crate::generation::{Generation, Local};
use crate::shared::{Ack, Command, Handoff, Listing, Message, SharedListener};
use crate::worker::{LocalListener, Service, Worker};

/// Slots that a listing looks at in one turn.
const LISTED: usize = 256;

impl Worker {
    pub(crate) fn take_messages(&mut self) {
        for message in self.shared.clone().inboxes[self.index].take() {
            match message {
                Message::Command(command, ack) => self.command(command, ack),
                Message::Handoff(handoff) => self.take_over(handoff),
                Message::Look => self.look_at_pauses(),
            }
        }
        if self.stopped {
            // After the last message: what was handed over with it ends here, too.
            let count = self.reset(|connection| {
                let unaccepted = connection.is_raw() && connection.lease().is_none();
                Some(if unaccepted {
                    CloseReason::Unaccepted
                } else {
                    CloseReason::Shutdown
                })
            });
            self.doubts.expire(Tick::NEVER, self.index);
            tracing::debug!(count, "worker {} stops", self.index);
        }
    }

    /// Takes a connection that another worker has accepted. Its listener may have been closed here since, and forgotten.
    fn take_over(&mut self, handoff: Handoff) {
        let Handoff {
            client,
            peer,
            listener: id,
            service,
            metrics,
            reserved,
        } = handoff;
        let index = match (self.listener(id), self.service(service)) {
            (Some(index), _) => index,
            (None, Some(service)) => {
                let closed = LocalListener::new(id, service, metrics, None);
                let index = place(&mut self.listeners, closed) as u32;
                self.connect_listener(index);
                index
            }
            (None, None) => {
                metrics.block(self.index).closed[CloseReason::Shutdown].inc();
                self.shared.open.fetch_sub(1, Ordering::SeqCst);
                self.shared
                    .pending
                    .fetch_sub(reserved.into(), Ordering::SeqCst);
                return self.made_room();
            }
        };
        self.admit(index, client, peer, false);
        if reserved {
            self.end_reservation(index);
        }
        self.forget_if_closed(index);
    }

    fn command(&mut self, command: Command, ack: Ack) {
        match command {
            Command::AddService(id, metrics, settings) => {
                let (active, held, holding) = (None, false, Vec::new());
                let service = Service {
                    id,
                    metrics,
                    settings,
                    active,
                    held,
                    holding,
                };
                place(&mut self.services, service);
            }
            Command::RemoveService(id) => self.remove_service(id),
            Command::Open(listener) => self.open(listener),
            Command::HandOver(id, listener) => {
                // An epoll set has a descriptor once.
                if let Some(index) = self.listener(id) {
                    self.close_listener(index);
                }
                self.open(listener);
            }
            Command::Close(id) => {
                let Some(index) = self.listener(id) else {
                    return;
                };
                match self.index {
                    0 => self.begin_emptying(index, ack),
                    _ => self.close_listener(index),
                }
            }
            Command::Activate(id, generation, settings, renamed) => {
                for listener in renamed.iter() {
                    self.rename(Arc::clone(listener));
                }
                self.activate(id, generation, settings);
            }
            Command::Hold(id, held) => {
                let Some(service) = self.service_mut(id) else {
                    return;
                };
                service.held = held;
                match held {
                    true => service.holding.push(ack),
                    false => service.holding.clear(),
                }
                self.dispatch_service(id);
            }
            Command::Reset(id, which, reason, total) => {
                let count = self.reset(|connection| connection.is(id, which).then_some(reason));
                total.fetch_add(count, Ordering::Relaxed);
                if let Some(service) = self
                    .service(id)
                    .and_then(|index| self.services[index].as_ref())
                {
                    service.metrics.block(self.index).forced_closes.add(count);
                }
            }
            Command::BackendGone(id, generation) => {
                self.look_at_all(|connection, context| match connection.lease() {
                    Some(lease) if lease.is_of(id, generation) => connection.backend_gone(context),
                    _ => Next::Wait,
                });
                self.doubts.backend_gone(id, generation, self.index);
            }
            Command::Count(id, which, count) => {
                let counted = self.slots.all().filter(|one| one.is(id, which)).count();
                count.fetch_add(counted as u64, Ordering::Relaxed);
            }
            Command::Adopt(listener, metrics, kept) => {
                self.adoptions.push(Adoption {
                    listener,
                    metrics,
                    kept,
                    _ack: ack,
                });
                self.adopt();
            }
            Command::List(service, to) => {
                self.listings.push(Listing {
                    service,
                    next: 0,
                    to,
                    _ack: ack,
                });
            }
            Command::Stop => self.stopped = true,
        }
    }

    fn service(&self, id: ServiceId) -> Option<usize> {
        self.services
            .iter()
            .position(|service| service.as_ref().is_some_and(|service| service.id == id))
    }

    fn service_mut(&mut self, id: ServiceId) -> Option<&mut Service> {
        self.services
            .iter_mut()
            .flatten()
            .find(|service| service.id == id)
    }

    pub(crate) fn listener(&self, id: ListenerId) -> Option<u32> {
        let listener = |listener: &Option<LocalListener>| {
            listener.as_ref().is_some_and(|listener| listener.id == id)
        };
        self.listeners
            .iter()
            .position(listener)
            .map(|index| index as u32)
    }

    fn open(&mut self, listener: Arc<SharedListener>) {
        let Some(service) = self.service(listener.service) else {
            return;
        };
        let (id, metrics) = (listener.id, Arc::clone(&listener.metrics));
        let listener = LocalListener::new(id, service, metrics, Some(listener));
        let index = place(&mut self.listeners, listener) as u32;
        self.connect_listener(index);
        self.register(index);
    }

    /// An open listener goes on by another name, with all its connections; the flip that follows says where they go.
    fn rename(&mut self, new: Arc<SharedListener>) {
        let Some(index) = self.listener(new.id) else {
            return;
        };
        let Some(listener) = &mut self.listeners[index as usize] else {
            return;
        };
        let Some(old) = listener.socket.replace(Arc::clone(&new)) else {
            return;
        };
        listener.metrics = Arc::clone(&new.metrics);
        let told = listener.told as u64;
        old.pending.fetch_sub(told, Ordering::SeqCst);
        new.pending.fetch_add(told, Ordering::SeqCst);
        let slots = self.slots.all();
        for connection in slots.filter(|connection| connection.listener == index) {
            let state = connection.state();
            old.metrics.block(self.index).open[state].dec();
            new.metrics.block(self.index).open[state].inc();
        }
        // A pause that goes on for a reason comes again.
        self.unpause(&old);
        self.register(index);
    }

    fn activate(
        &mut self,
        id: ServiceId,
        generation: Option<Arc<Generation>>,
        settings: Arc<ServiceSettings>,
    ) {
        let (worker, events) = (self.index, self.shared.events.clone());
        let Some(service) = self.service_mut(id) else {
            return;
        };
        let local = generation.map(|generation| Local::new(generation, id, worker, events));
        let old = std::mem::replace(&mut service.active, local);
        service.settings = settings;
        if let Some(old) = old {
            old.deactivate();
        }
        for index in 0..self.listeners.len() as u32 {
            self.connect_listener(index);
        }
        // Connects to the old generation that haven't completed begin anew, and so does what it has reset untouched. For the others a
        // deadline may have become an earlier one.
        self.look_at_all(|connection, context| match &connection.phase {
            Phase::Connecting { lease, .. } if !context.is_current(lease) => {
                connection.withdraw(context)
            }
            Phase::Resetting { .. } => connection.resetting(context),
            _ => Next::Wait,
        });
        self.dispatch_service(id);
    }

    /// Gives a listener what its service's active generation has for it.
    fn connect_listener(&mut self, index: u32) {
        let Some(Some(listener)) = self.listeners.get_mut(index as usize) else {
            return;
        };
        let Some(service) = &self.services[listener.service] else {
            return;
        };
        let Some(active) = &service.active else {
            return listener.dialers.clear();
        };
        if listener
            .local()
            .is_some_and(|local| Rc::ptr_eq(local, active))
        {
            return;
        }
        let endpoints = active.generation.endpoints(listener.metrics.name());
        if endpoints.is_empty() {
            // The listener closes soon. Until then its connections go where they went before.
            return;
        }
        listener.raw = active.generation.is_raw(listener.metrics.name());
        let dialers = endpoints
            .iter()
            .map(|endpoint| Dialer::new(active, endpoint, &service.settings));
        listener.dialers = dialers
            .filter_map(|dialer| {
                dialer
                    .inspect_err(|error| tracing::error!("an endpoint can't be dialled: {error}"))
                    .ok()
            })
            .map(Rc::new)
            .collect();
    }

    fn dispatch_service(&mut self, id: ServiceId) {
        let Some(service) = self.service(id) else {
            return;
        };
        for index in 0..self.listeners.len() {
            if self.listeners[index]
                .as_ref()
                .is_some_and(|listener| listener.service == service)
            {
                self.dispatch_soon(index as u32);
            }
        }
        // A pause at `pending_max` may be over, now that nobody waits.
        self.made_room();
    }

    fn remove_service(&mut self, id: ServiceId) {
        let Some(service) = self.service(id) else {
            return;
        };
        let theirs: Vec<bool> = self
            .listeners
            .iter()
            .map(|listener| {
                listener
                    .as_ref()
                    .is_some_and(|listener| listener.service == service)
            })
            .collect();
        self.reset(|connection| {
            theirs[connection.listener as usize].then_some(CloseReason::Shutdown)
        });
        for (index, theirs) in theirs.into_iter().enumerate() {
            if theirs {
                self.close_listener(index as u32);
            }
        }
        if let Some(active) = self.services[service]
            .take()
            .and_then(|service| service.active)
        {
            active.deactivate();
        }
    }

    /// Closes this worker's part of a listener: the socket closes with the last part. The acknowledgement is dropped after it: who
    /// waits for that may bind the address anew at once, so no other part may be in the caller's hands.
    pub(crate) fn close_listener(&mut self, index: u32) {
        let Some(Some(listener)) = self.listeners.get_mut(index as usize) else {
            return;
        };
        let _ack = listener.emptying.take();
        let socket = listener.socket.take();
        let registered = std::mem::take(&mut listener.registered);
        if let Some(socket) = socket {
            if registered {
                // The others' parts keep it open, so closing this one doesn't take it out of the epoll set.
                let _ = self.epoll.delete(&socket.socket);
            }
            // Who closes last finds what another has paused since.
            self.unpause(&socket);
        }
        self.forget_if_closed(index);
    }

    /// Forgets a closed listener with its last connection, once the others know that nothing of it waits.
    pub(crate) fn forget_if_closed(&mut self, index: u32) {
        let listener = &mut self.listeners[index as usize];
        if listener.as_ref().is_some_and(|listener| {
            listener.socket.is_none() && listener.connections == 0 && !listener.changed
        }) {
            *listener = None;
        }
    }

    /// Goes on with the listings that are under way.
    pub(crate) fn list_some(&mut self) {
        for mut listing in std::mem::take(&mut self.listings) {
            let now = self.clock.now();
            let some = self
                .slots
                .range(listing.next, LISTED)
                .filter_map(|connection| {
                    let listener = self.listeners[connection.listener as usize].as_ref()?;
                    let service = self.services[listener.service].as_ref()?;
                    let (bytes_in, bytes_out) = connection.bytes();
                    (service.id == listing.service).then(|| ConnectionInfo {
                        listener: listener.metrics.name().to_owned(),
                        peer: connection.peer,
                        generation: connection.lease().map(|lease| lease.generation.number()),
                        state: connection.state(),
                        age: now.since(connection.accepted),
                        bytes_in,
                        bytes_out,
                    })
                });
            // Who asked may have gone.
            let sent = listing.to.send(some.collect());
            listing.next += LISTED;
            if sent.is_ok() && listing.next < self.slots.capacity() {
                self.listings.push(listing);
            }
        }
    }
}

/// Puts it in the first free place. A place is free only when nothing refers to it any more.
fn place<T>(places: &mut Vec<Option<T>>, what: T) -> usize {
    let free = places.iter().position(Option::is_none);
    let index = free.unwrap_or_else(|| {
        places.push(None);
        places.len() - 1
    });
    places[index] = Some(what);
    index
}
