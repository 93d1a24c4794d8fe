//! Who is let in: accepting, and its limits.
//!
//! Invariants:
//!
//! - Accepting never dies and never spins: an error that has taken a connection from the queue is followed by the next accept, and
//!   every other error pauses the listener (`pauses`).
//! - Nobody is turned away in silence: there is a counter and a line in the log.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use nix::errno::Errno;
use socket2::SockRef;
use syngate_metrics::{AcceptErrno, CloseReason, PendingOutcome};

use crate::connection::{Connection, Phase};
use crate::gate::Overflow;
use crate::shared::{Handoff, Message, Pause, SharedListener};
use crate::socket::Socket;
use crate::worker::Worker;

/// Accepts a wake-up: the rest stays for the other workers, and for the next turn. While connections come one by one it is a single
/// one, since the accept after the last is a system call for nothing.
const ACCEPTS: usize = 8;
/// Where one more connection would go.
enum Place {
    /// To a backend, or so it seems.
    Free,
    /// Into the pending queue, where one is counted for it.
    Reserved,
    /// Nowhere: this limit is reached.
    None(&'static str),
}

impl Worker {
    /// Accepts a few connections.
    pub(crate) fn accept(&mut self, index: u32) {
        let Some(listener) = self.socket(index) else {
            return;
        };
        for _ in 0..self.accepts(index) {
            if listener.is_paused() {
                return;
            }
            let place = self.take_place(index, &listener);
            if let Place::None(limit) = place
                && self.overflow(index) == Overflow::Backpressure
            {
                return self.pause(index, &listener, Pause::FULL, limit);
            }
            let mut reserved = matches!(place, Place::Reserved);
            let more = match (listener.socket.accept(), &place) {
                (Ok((client, _)), Place::None(limit)) => {
                    self.turn_away(&listener, client, limit);
                    true
                }
                (Ok((client, peer)), _) => {
                    reserved &= !self.accepted(index, &listener, client, peer, reserved);
                    // At once: the next one's place depends on whether this one waits.
                    self.dispatch_due();
                    true
                }
                (Err(error), _) if error.kind() == io::ErrorKind::WouldBlock => false,
                (Err(error), _) => self.accept_failed(index, &listener, &error),
            };
            if reserved {
                self.end_reservation(index);
            }
            if !more {
                return;
            }
        }
    }

    /// How many accepts this wake-up may take: several where the last turn accepted too.
    fn accepts(&mut self, index: u32) -> usize {
        let turn = self.shared.loads[self.index].turns.load(Ordering::Relaxed);
        let Some(listener) = &mut self.listeners[index as usize] else {
            return 0;
        };
        let last = std::mem::replace(&mut listener.woken_in, turn);
        if turn - last > 1 { 1 } else { ACCEPTS }
    }

    /// Looks for a place for one more connection. A place in the process's pending queue is counted before it is taken, so that
    /// two workers don't take the last one.
    fn take_place(&self, index: u32, listener: &SharedListener) -> Place {
        if let Some(limit) = self.limit(listener, false) {
            return Place::None(limit);
        }
        let waiting = self.listeners[index as usize].as_ref();
        let waiting = waiting.is_some_and(|listener| listener.queue.len() > 0);
        if !waiting && !self.would_wait(listener) {
            return Place::Free;
        }
        let pending_max = self.shared.pending_max.load(Ordering::Relaxed);
        if self.shared.pending.fetch_add(1, Ordering::SeqCst) >= pending_max {
            self.shared.pending.fetch_sub(1, Ordering::SeqCst);
            return Place::None("pending_max");
        }
        Place::Reserved
    }

    /// Whoever a place was reserved for is counted now, if it waits.
    pub(crate) fn end_reservation(&mut self, index: u32) {
        self.publish_queue(index);
        self.shared.pending.fetch_sub(1, Ordering::SeqCst);
        self.made_room();
    }

    pub(crate) fn socket(&self, index: u32) -> Option<Arc<SharedListener>> {
        self.listeners[index as usize].as_ref()?.socket.clone()
    }

    fn overflow(&self, index: u32) -> Overflow {
        let service = self.listeners[index as usize]
            .as_ref()
            .map(|listener| listener.service);
        let service = service.and_then(|service| self.services[service].as_ref());
        service.map_or(Overflow::Backpressure, |service| {
            service.settings.pending_overflow
        })
    }

    /// Which limit keeps another connection out, or, with `ample`, many others. Every worker comes to the same answer.
    pub(crate) fn limit(&self, listener: &SharedListener, ample: bool) -> Option<&'static str> {
        if !self.shared.has_room(ample) {
            return Some("max_connections");
        }
        let pending = self.shared.pending.load(Ordering::SeqCst);
        let full = pending >= self.shared.pending_max.load(Ordering::Relaxed);
        (full && self.would_wait(listener)).then_some("pending_max")
    }

    /// Whether another connection would have to wait.
    fn would_wait(&self, listener: &SharedListener) -> bool {
        let mut services = self.services.iter().flatten();
        let service = services.find(|service| service.id == listener.service);
        service.is_none_or(|service| service.held || service.active.is_none())
            || listener.pending.load(Ordering::SeqCst) > 0
    }

    /// Counts a new connection and keeps it, or gives it to a worker with less to do. Whether it, and with it the place that was
    /// `reserved` for it, has gone there.
    fn accepted(
        &mut self,
        index: u32,
        listener: &SharedListener,
        client: OwnedFd,
        peer: Option<SocketAddr>,
        reserved: bool,
    ) -> bool {
        listener.metrics.block(self.index).accepted.inc();
        listener.error_pause.store(0, Ordering::Relaxed);
        self.shared.open.fetch_add(1, Ordering::SeqCst);
        let loads = self.shared.loads.iter().enumerate();
        let loads = loads.map(|(other, load)| (load.connections.load(Ordering::Relaxed), other));
        let mine = self.slots.len() as u32;
        let (least, other) = loads.min().unwrap_or((0, self.index));
        if other != self.index && mine > least + mine / 8 + 4 {
            // Counted for it at once: the next look must see it there.
            self.shared.loads[other]
                .connections
                .fetch_add(1, Ordering::Relaxed);
            let handoff = Handoff {
                client,
                peer,
                listener: listener.id,
                service: listener.service,
                metrics: Arc::clone(&listener.metrics),
                reserved,
            };
            self.shared.inboxes[other].send(Message::Handoff(handoff));
            return true;
        }
        self.admit(index, client, peer, false);
        false
    }

    /// Takes a connection into this worker. `raw`: it comes from a kept listener, and speaks as the backend was to hear it.
    pub(crate) fn admit(
        &mut self,
        index: u32,
        client: OwnedFd,
        peer: Option<SocketAddr>,
        raw: bool,
    ) {
        let Some(listener) = &self.listeners[index as usize] else {
            return;
        };
        let Some(service) = &self.services[listener.service] else {
            return;
        };
        let accept_proxy = service.settings.accept_proxy.as_ref();
        let phase = match accept_proxy.filter(|_| !raw && !listener.raw) {
            Some(trusted) if trusted.contains(peer.map(|peer| peer.ip())) => Phase::Greeting,
            Some(_) => {
                tracing::debug!(
                    ?peer,
                    "closed: no PROXY header is accepted from it (accept_proxy)"
                );
                let block = listener.metrics.block(self.index);
                block.closed[CloseReason::ProxyHeader].inc();
                self.shared.open.fetch_sub(1, Ordering::SeqCst);
                return self.made_room();
            }
            None => Phase::Pending { unsent: None },
        };
        let client = match raw {
            // A kept listener was made for a backend: what it accepts inherits nothing from it.
            true => Socket::connecting(client, peer.is_none(), true),
            false => Socket::accepted(client, peer.is_none()),
        };
        let accepted = self.clock.stamp();
        self.insert(Connection::new(client, peer, index, raw, phase, accepted));
    }

    /// Accepts one and resets it: that is what `pending_overflow = reset` asks for.
    fn turn_away(&mut self, listener: &SharedListener, client: OwnedFd, limit: &str) {
        let block = listener.metrics.block(self.index);
        block.accepted.inc();
        block.closed[CloseReason::Overflow].inc();
        if let Some(service) = self
            .services
            .iter()
            .flatten()
            .find(|service| service.id == listener.service)
        {
            let block = service.metrics.block(self.index);
            block.pending_outcomes[PendingOutcome::Overflow].inc();
        }
        if !listener.socket.is_unix() {
            let _ = SockRef::from(&client).set_linger(Some(Duration::ZERO));
        }
        if self.shared.may_warn() {
            tracing::warn!(
                listener = listener.metrics.name(),
                "{limit} is reached: new connections are reset"
            );
        }
    }

    /// Whether the error leaves something to accept now.
    fn accept_failed(&mut self, index: u32, listener: &SharedListener, error: &io::Error) -> bool {
        let errno = Errno::from_raw(error.raw_os_error().unwrap_or(0));
        let (label, failure) = classify(errno);
        listener.metrics.block(self.index).accept_errors[label].inc();
        let pauses = failure != Failure::Theirs;
        if pauses {
            self.pause(index, listener, Pause::ERROR, &errno.to_string());
        }
        !pauses
    }
}

/// What an error of accept(2) is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The new connection, which has left the queue with it.
    Theirs,
    /// The want of something that may come back.
    Want,
    /// The listener, for as long as anybody can tell.
    Ours,
}

/// Under which label an error of accept(2) is counted, and what it is about.
pub(crate) fn classify(errno: Errno) -> (AcceptErrno, Failure) {
    match errno {
        Errno::ECONNABORTED => (AcceptErrno::Connaborted, Failure::Theirs),
        Errno::EPROTO => (AcceptErrno::Proto, Failure::Theirs),
        Errno::EMFILE => (AcceptErrno::Mfile, Failure::Want),
        Errno::ENFILE => (AcceptErrno::Nfile, Failure::Want),
        Errno::ENOBUFS => (AcceptErrno::Nobufs, Failure::Want),
        Errno::ENOMEM => (AcceptErrno::Nomem, Failure::Want),
        // A signal, and the errors of the network that accept(2) says are the new connection's.
        Errno::EINTR
        | Errno::ENETDOWN
        | Errno::ENOPROTOOPT
        | Errno::EHOSTDOWN
        | Errno::ENONET
        | Errno::EHOSTUNREACH
        | Errno::ENETUNREACH => (AcceptErrno::Other, Failure::Theirs),
        // EINVAL of a listener that another holder has shut down, EPERM of a security module that refuses each accept, and
        // whatever else may stay as it is.
        _ => (AcceptErrno::Other, Failure::Ours),
    }
}
