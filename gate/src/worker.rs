//! A worker: one thread, one epoll set, and the connections that it has accepted or was handed.
//!
//! Invariants:
//!
//! - Every descriptor is registered once, with a token of slot and epoch, and never modified; closing it deletes it. An event
//!   whose epoch is stale is dropped (between fork and exec a child's copy keeps a closed socket's events coming). A backend that
//!   is given up while its connection stays is deleted first: the next one has the same token.
//! - Listeners are registered level-triggered and exclusive: each connection wakes one worker.
//! - A turn is bounded: events, accepts, dispatches and bytes have a budget each, and what is left over is looked at in the next.
//! - What the supervisor asks for is done between the events of two turns, so a command sees no connection half way.

mod expiry;
mod local;

use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use syngate_metrics::CloseReason;

pub(crate) use expiry::Due;
pub(crate) use local::{LocalListener, Service};

use crate::accept_queue::Reader;
use crate::closing::Adoption;
use crate::connection::{Connection, Context, Next, Phase};
use crate::deadlines::{Clock, Deadlines};
use crate::doubts::Doubts;
use crate::relay::{Scratch, Side};
use crate::shared::{Listing, Shared};
use crate::slots::{Slots, Token};
use crate::splice;

/// Events that one turn takes.
const EVENTS: usize = 256;

/// A turn comes at least this often: the watchdog counts them.
const LONGEST_TURN: Duration = Duration::from_secs(1);

/// A turn that comes this late was held up from outside: the process was stopped, or the machine slept.
const STOPPED: Duration = Duration::from_secs(5);

/// Edges of a connection's two sockets.
pub(crate) fn edges() -> EpollFlags {
    EpollFlags::EPOLLIN
        | EpollFlags::EPOLLOUT
        | EpollFlags::EPOLLRDHUP
        | EpollFlags::EPOLLPRI
        | EpollFlags::EPOLLET
}

pub(crate) struct Worker {
    pub(crate) index: usize,
    pub(crate) shared: Arc<Shared>,
    pub(crate) epoll: Epoll,
    pub(crate) clock: Clock,
    pub(crate) deadlines: Deadlines<Due>,
    pub(crate) scratch: Scratch,
    pub(crate) reader: Reader,
    pub(crate) services: Vec<Option<Service>>,
    pub(crate) listeners: Vec<Option<LocalListener>>,
    pub(crate) listings: Vec<Listing>,
    pub(crate) adoptions: Vec<Adoption>,
    pub(crate) doubts: Doubts,
    /// A [`Due::Room`] is on its way.
    pub(crate) looks_for_room: bool,
    pub(crate) slots: Slots,
    /// Connections whose budget was used up.
    run: VecDeque<Token>,
    /// Listeners whose pending connections may have somewhere to go.
    pub(crate) due: VecDeque<u32>,
    /// Listeners whose queue has changed since [`Worker::tell`].
    pub(crate) changed: Vec<u32>,
    pub(crate) stopped: bool,
}

impl Worker {
    /// Its epoll set, with its inbox in it: made where an error can still be told.
    pub(crate) fn epoll(index: usize, shared: &Shared) -> io::Result<Epoll> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let wake = EpollEvent::new(EpollFlags::EPOLLIN, Token::INBOX.data(Side::Client));
        epoll.add(&shared.inboxes[index].wake, wake)?;
        Ok(epoll)
    }

    pub(crate) fn new(index: usize, shared: Arc<Shared>, epoll: Epoll) -> Worker {
        Worker {
            index,
            shared,
            epoll,
            clock: Clock::new(),
            deadlines: Deadlines::new(),
            scratch: Scratch::new(),
            reader: Reader::new(),
            services: Vec::new(),
            listeners: Vec::new(),
            listings: Vec::new(),
            adoptions: Vec::new(),
            doubts: Doubts::default(),
            looks_for_room: false,
            slots: Slots::default(),
            run: VecDeque::new(),
            due: VecDeque::new(),
            changed: Vec::new(),
            stopped: false,
        }
    }

    /// The loop. A panic ends the process: half a gate is worse than a restart.
    pub(crate) fn run(mut self) {
        struct Abort;
        impl Drop for Abort {
            fn drop(&mut self) {
                if std::thread::panicking() {
                    std::process::abort();
                }
            }
        }
        let _abort = Abort;
        let mut events = [EpollEvent::empty(); EVENTS];
        while !self.stopped {
            let most = match self.run.is_empty() && self.listings.is_empty() && self.due.is_empty()
            {
                true => self.deadlines.wait(self.clock.now(), LONGEST_TURN),
                false => Duration::ZERO,
            };
            // In whole milliseconds, rounded up: a deadline is late rather than looked at in vain.
            let timeout = EpollTimeout::from(most.as_micros().div_ceil(1000) as u16);
            let n = match self.epoll.wait(&mut events, timeout) {
                Ok(n) => n,
                Err(Errno::EINTR) => 0,
                Err(error) => panic!("epoll_wait failed, which only a bug can cause: {error}"),
            };
            self.turn(&events[..n]);
        }
    }

    fn turn(&mut self, events: &[EpollEvent]) {
        let late = self.clock.turn();
        if late > STOPPED {
            let seconds = late.as_secs();
            tracing::warn!(
                "the gate was stopped for {seconds} s; time-outs that have passed take effect now"
            );
        }
        // A pipe is two descriptors, as a connection is: it may have what connections don't use.
        let most = self.shared.max_connections.load(Ordering::Relaxed);
        let free = most.saturating_sub(self.shared.open.load(Ordering::Relaxed));
        let share = free as usize / self.shared.inboxes.len();
        self.scratch.pipes.allow(share.min(splice::MOST));
        let mut inbox = false;
        for event in events {
            let (token, side) = Token::of(event.data());
            match token.as_listener() {
                _ if token == Token::INBOX => inbox = true,
                Some(index) => self.accept(index),
                None => self.look(token, |connection, context| {
                    connection.event(side, event.events(), context)
                }),
            }
        }
        if inbox {
            self.take_messages();
        }
        self.expire();
        for _ in 0..self.run.len() {
            let Some(token) = self.run.pop_front() else {
                break;
            };
            self.look(token, |connection, context| {
                connection.running = false;
                connection.advance(context)
            });
        }
        self.dispatch_due();
        self.list_some();
        self.tell();
    }

    /// What the others see of this worker.
    fn tell(&mut self) {
        while let Some(index) = self.changed.pop() {
            if let Some(listener) = &mut self.listeners[index as usize] {
                listener.changed = false;
            }
            self.publish_queue(index);
            self.forget_if_closed(index);
        }
        for service in self
            .services
            .iter_mut()
            .flatten()
            .filter(|service| !service.holding.is_empty())
        {
            let dialers = self
                .listeners
                .iter()
                .flatten()
                .flat_map(|listener| &listener.dialers);
            if dialers
                .filter(|dialer| dialer.local().service == service.id)
                .all(|dialer| dialer.is_idle())
            {
                service.holding.clear();
            }
        }
        let load = &self.shared.loads[self.index];
        load.connections
            .store(self.slots.len() as u32, Ordering::Relaxed);
        load.turns
            .store(load.turns.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// Looks at a connection, if it is still there, and does what it asks for.
    pub(crate) fn look(
        &mut self,
        token: Token,
        look: impl FnOnce(&mut Connection, &mut Context<'_>) -> Next,
    ) {
        let Some(connection) = self.slots.get_mut(token) else {
            return;
        };
        let index = connection.listener;
        let Some(listener) = &self.listeners[index as usize] else {
            return;
        };
        let Some(service) = &self.services[listener.service] else {
            return;
        };
        let mut context = Context {
            now: self.clock.now(),
            epoll: &self.epoll,
            scratch: &mut self.scratch,
            settings: &service.settings,
            service: service.metrics.block(self.index),
            listener: listener.metrics.block(self.index),
            local: listener.local().map(Rc::as_ref),
            raw: listener.raw,
        };
        let was_connecting = matches!(connection.phase, Phase::Connecting { .. });
        let was_pending = matches!(connection.phase, Phase::Pending { .. });
        let next = look(connection, &mut context);
        // One that was dispatched in this look has left the queue already.
        let still_pending = was_pending && matches!(connection.phase, Phase::Pending { .. });
        match next {
            Next::Again => {
                connection.running = true;
                self.run.push_back(token);
            }
            Next::Close(reason) => self.close(token, reason, still_pending),
            Next::Wait | Next::Queue => {
                let deadline = connection.deadline(&service.settings);
                if deadline < connection.armed {
                    connection.armed = deadline;
                    self.deadlines.push(deadline, Due::Connection(token));
                }
                if next == Next::Queue {
                    let accepted = connection.accepted;
                    if let Some(listener) = &mut self.listeners[index as usize] {
                        listener.queue.insert(accepted, token);
                    }
                    self.queue_changed(index);
                    self.dispatch_soon(index);
                }
            }
        }
        if was_connecting {
            self.dispatch_soon(index); // Its endpoint may take another one now.
        }
    }

    /// Keeps a connection and registers its client.
    pub(crate) fn insert(&mut self, connection: Connection) {
        let index = connection.listener as usize;
        let Some(listener) = &mut self.listeners[index] else {
            return;
        };
        listener.connections += 1;
        listener.metrics.block(self.index).open[connection.state()].inc();
        let pending = matches!(connection.phase, Phase::Pending { .. });
        let token = self.slots.insert(connection);
        let event = EpollEvent::new(edges(), token.data(Side::Client));
        let Some(connection) = self.slots.get_mut(token) else {
            return;
        };
        match self.epoll.add(&connection.client, event) {
            Err(error) => {
                tracing::warn!("a connection can't be watched and is closed: epoll_ctl: {error}");
                self.close(token, CloseReason::Overflow, false);
            }
            Ok(()) if pending => self.look(token, |_, _| Next::Queue),
            Ok(()) => self.look(token, |_, _| Next::Wait),
        }
    }

    /// Closes a connection. `queued`: it was in its listener's queue.
    fn close(&mut self, token: Token, reason: CloseReason, queued: bool) {
        let Some(connection) = self.slots.remove(token) else {
            return;
        };
        let index = connection.listener;
        if let Some(listener) = &mut self.listeners[index as usize] {
            let block = listener.metrics.block(self.index);
            block.open[connection.state()].dec();
            match connection.suspect(reason) {
                None => block.closed[reason].inc(),
                // The news was here first.
                Some(local) if local.generation.ended() => {
                    block.closed[CloseReason::BackendGone].inc();
                }
                Some(local) => {
                    let (now, metrics) = (self.clock.now(), &listener.metrics);
                    if let Some(at) = self.doubts.add(now, local, metrics, reason) {
                        self.deadlines.push(at, Due::Doubts);
                    }
                }
            }
            if let Some(service) = &self.services[listener.service]
                && let Some(outcome) = connection.wait_outcome(reason)
            {
                service.metrics.block(self.index).pending_outcomes[outcome].inc();
            }
            listener.connections -= 1;
            if queued {
                let slots = &self.slots;
                listener.queue.left(|token| slots.contains(token));
            }
            tracing::debug!(
                listener = listener.metrics.name(),
                peer = ?connection.peer,
                bytes_in = connection.bytes().0,
                bytes_out = connection.bytes().1,
                "closed: {reason}"
            );
        }
        connection.close(&mut self.scratch);
        if queued {
            self.queue_changed(index);
        }
        self.shared.open.fetch_sub(1, Ordering::SeqCst);
        self.made_room();
        self.dispatch_soon(index); // It may have been a connect that others wait for.
        self.forget_if_closed(index);
    }

    /// Closes at once each connection for which there is a reason, with a reset of its client unless that has everything already.
    /// Returns how many clients were reset.
    pub(crate) fn reset(&mut self, reason: impl Fn(&Connection) -> Option<CloseReason>) -> u64 {
        let mut count = 0;
        for slot in 0..self.slots.capacity() {
            let Some(connection) = self.slots.at(slot) else {
                continue;
            };
            let Some(reason) = reason(connection) else {
                continue;
            };
            count += u64::from(connection.reset_on_close());
            let pending = matches!(connection.phase, Phase::Pending { .. });
            self.close(self.slots.token(slot), reason, pending);
        }
        count
    }

    /// Looks at every connection.
    pub(crate) fn look_at_all(&mut self, look: impl Fn(&mut Connection, &mut Context<'_>) -> Next) {
        for slot in 0..self.slots.capacity() {
            self.look(self.slots.token(slot), &look);
        }
    }
}

#[cfg(test)]
mod tests;
