//! Dispatching: a listener's pending connections, first come, first served, go where there is room.
//!
//! Invariants:
//!
//! - Nothing is dispatched while a service is held or has no active generation.
//! - Who can't be dispatched now is looked at again: at the endpoint's next moment, when a connect that is under way has ended, or
//!   when the service changes.
//! - The process's count of pending connections is changed once a turn and listener, and only if something waits.

use std::mem;
use std::rc::Rc;
use std::sync::atomic::Ordering;

use nix::sys::epoll::EpollEvent;

use crate::accept_queue::Reader;
use crate::connection::Connection;
use crate::deadlines::Tick;
use crate::dialer::{Dialer, Room};
use crate::generation::Lease;
use crate::relay::Side;
use crate::worker::{Due, LocalListener, Worker, edges};

/// Connections that one turn dispatches for a listener.
const DISPATCHES: usize = 256;

impl Worker {
    /// Looks, at the end of the turn, whether a listener's pending connections have somewhere to go.
    pub(crate) fn dispatch_soon(&mut self, index: u32) {
        if let Some(listener) = &mut self.listeners[index as usize]
            && listener.queue.len() > 0
            && !mem::replace(&mut listener.due, true)
        {
            self.due.push_back(index);
        }
    }

    /// Dispatches what may have somewhere to go.
    pub(crate) fn dispatch_due(&mut self) {
        // One that has used up its budget comes again in the next turn.
        for _ in 0..self.due.len() {
            if let Some(index) = self.due.pop_front() {
                self.dispatch(index);
            }
        }
    }

    /// Dispatches a listener's pending connections, in order, as far as its endpoints have room.
    fn dispatch(&mut self, index: u32) {
        let now = self.clock.now();
        let workers = self.shared.inboxes.len() as u32;
        if let Some(listener) = &mut self.listeners[index as usize] {
            listener.due = false;
        }
        for _ in 0..DISPATCHES {
            let Some(listener) = &mut self.listeners[index as usize] else {
                return;
            };
            let Some(service) = &self.services[listener.service] else {
                return;
            };
            if service.held || service.active.is_none() {
                return;
            }
            let slots = &self.slots;
            let Some(token) = listener.queue.front(|token| slots.contains(token)) else {
                return;
            };
            let concurrency = service.settings.dispatch_concurrency;
            let block = service.metrics.block(self.index);
            let dialer = match listener.dialer(now, &mut self.reader, concurrency, workers) {
                Ok(dialer) => dialer,
                Err(Room::At(at)) => {
                    if listener.retry <= now || at < listener.retry {
                        listener.retry = at;
                        self.deadlines.push(at, Due::Dispatch(index));
                    }
                    return;
                }
                Err(_) => return,
            };
            let Some(connection) = self.slots.get_mut(token) else {
                return;
            };
            if connection.accepted < now {
                connection.look_for_reset();
                if connection.client.has_failed() {
                    self.look(token, Connection::advance);
                    continue;
                }
            }
            let (attempt, backend, _) = match dialer.dial(now) {
                Ok(dialled) => dialled,
                Err(failure) => {
                    block.dispatch_attempts[failure.result].inc();
                    continue; // To the next endpoint, or to wait for this one.
                }
            };
            let event = EpollEvent::new(edges(), token.data(Side::Backend));
            if let Err(error) = self.epoll.add(&backend, event) {
                let failure = attempt.failed(now, error.into());
                block.dispatch_attempts[failure.result].inc();
                continue;
            }
            let lease = Lease::new(dialer.local());
            listener.queue.pop();
            self.queue_changed(index);
            self.look(token, |connection, context| {
                connection.dispatched(lease, attempt, backend, context)
            });
        }
        self.dispatch_soon(index);
    }

    /// Its queue's length is told at the end of the turn.
    pub(crate) fn queue_changed(&mut self, index: u32) {
        if let Some(listener) = &mut self.listeners[index as usize]
            && !mem::replace(&mut listener.changed, true)
        {
            self.changed.push(index);
        }
    }

    /// Tells the process how long a listener's queue is here. One that was dispatched in the turn that accepted it has changed
    /// nothing, and touches no shared cache line.
    pub(crate) fn publish_queue(&mut self, index: u32) {
        let Some(listener) = &mut self.listeners[index as usize] else {
            return;
        };
        let waiting = listener.queue.len();
        let told = mem::replace(&mut listener.told, waiting);
        let change = (waiting as u64).wrapping_sub(told as u64);
        if change != 0 {
            self.shared.pending.fetch_add(change, Ordering::SeqCst);
            if let Some(socket) = &listener.socket {
                socket.pending.fetch_add(change, Ordering::SeqCst);
            }
        }
        if waiting < told {
            self.made_room();
        }
    }
}

impl LocalListener {
    /// The next endpoint that takes a connection, or when one may.
    fn dialer(
        &mut self,
        now: Tick,
        reader: &mut Reader,
        concurrency: u32,
        workers: u32,
    ) -> Result<Rc<Dialer>, Room> {
        let mine = self.queue.len() as u64;
        let waiting = || {
            let socket = self.socket.as_ref();
            let all = socket.map_or(0, |socket| socket.pending.load(Ordering::Relaxed));
            all.max(mine)
        };
        let mut soonest = Room::WhenConnected;
        for _ in 0..self.dialers.len() {
            let dialer = &self.dialers[self.next_dialer % self.dialers.len()];
            self.next_dialer = (self.next_dialer + 1) % self.dialers.len();
            match (
                dialer.room(now, reader, waiting, concurrency, workers),
                &soonest,
            ) {
                (Room::Now, _) => return Ok(Rc::clone(dialer)),
                (Room::At(at), Room::At(other)) if at < *other => soonest = Room::At(at),
                (Room::At(at), Room::WhenConnected) => soonest = Room::At(at),
                _ => {}
            }
        }
        Err(soonest)
    }
}
