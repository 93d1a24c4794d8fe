//! The last connections of listeners: of a public one that closes, and of a kept one whose process has gone.
//!
//! Invariants:
//!
//! - What the kernel has accepted is accepted here, past every limit: its client believes itself connected. Whom nobody can serve
//!   is closed and counted.
//! - Taking over a kept listener ends, and never spins: each accept takes a connection from a queue to which nothing is added any
//!   more, or waits for what is wanted, or is the last.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use nix::errno::Errno;
use syngate_metrics::CloseReason;

use crate::admission::{Failure, classify};
use crate::deadlines::Tick;
use crate::gate::ListenerId;
use crate::listener::Listener;
use crate::pauses::ERROR_PAUSE;
use crate::shared::Ack;
use crate::socket::Socket;
use crate::worker::{Due, LocalListener, Worker};

/// Between two looks at a listener that is being emptied.
const EMPTYING_POLL: Duration = Duration::from_millis(5);

/// How long that may take: who sends a SYN later than this is refused all the same. After a second the kernel repeats its answer to
/// a SYN, and with that a handshake ends that waited for a client's first bytes.
const EMPTYING_MOST: Duration = Duration::from_millis(1200);

/// A listener that takes no new SYN and is accepted from until nothing is left.
pub(crate) struct Emptying {
    since: Tick,
    seen_empty: bool,
    _ack: Ack,
}

/// A kept listener whose queue is being taken over.
pub(crate) struct Adoption {
    /// The public one that its connections count as; `None` where that is gone.
    pub(crate) listener: Option<ListenerId>,
    pub(crate) metrics: Arc<syngate_metrics::Listener>,
    pub(crate) kept: Arc<Listener>,
    pub(crate) _ack: Ack,
}

impl Worker {
    /// Begins to empty a listener; `ack` is dropped when it is closed.
    pub(crate) fn begin_emptying(&mut self, index: u32, ack: Ack) {
        let now = self.clock.now();
        let Some(Some(listener)) = self.listeners.get_mut(index as usize) else {
            return;
        };
        if let Some(socket) = &listener.socket
            && let Err(error) = socket.socket.refuse_new()
        {
            tracing::warn!(
                listener = socket.metrics.name(),
                "SYNs can't be refused: {error}"
            );
        }
        listener.emptying = Some(Emptying {
            since: now,
            seen_empty: false,
            _ack: ack,
        });
        self.register(index);
        self.empty(index);
    }

    /// Accepts what is left, and closes the listener when nothing is.
    pub(crate) fn empty(&mut self, index: u32) {
        let Some(shared) = self.socket(index) else {
            return;
        };
        let emptying = |listener: &LocalListener| listener.emptying.is_some();
        if !self.listeners[index as usize]
            .as_ref()
            .is_some_and(emptying)
        {
            return; // The deadline was another's, who had this place before.
        }
        loop {
            match shared.socket.accept() {
                Ok((client, peer)) => {
                    shared.metrics.block(self.index).accepted.inc();
                    self.shared.open.fetch_add(1, Ordering::SeqCst);
                    self.admit(index, client, peer, false);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => {
                    let (label, _) = classify(Errno::from_raw(error.raw_os_error().unwrap_or(0)));
                    shared.metrics.block(self.index).accept_errors[label].inc();
                    break;
                }
            }
        }
        let now = self.clock.now();
        let left = shared.socket.undelivered(&mut self.reader);
        let empty = left.as_ref().is_ok_and(|left| *left == 0);
        let Some(Some(listener)) = self.listeners.get_mut(index as usize) else {
            return;
        };
        let Some(emptying) = &mut listener.emptying else {
            return;
        };
        let was_empty = std::mem::replace(&mut emptying.seen_empty, empty);
        let late = now.since(emptying.since) >= EMPTYING_MOST;
        let done = late || (empty && was_empty);
        if !done {
            return self
                .deadlines
                .push(now + EMPTYING_POLL, Due::Emptying(index));
        }
        if !empty {
            let left = left.map_or_else(|error| error.to_string(), |left| left.to_string());
            tracing::warn!(
                listener = shared.metrics.name(),
                left,
                "a listener closes that wasn't seen to be empty: connections that are left in it are reset"
            );
        }
        drop(shared);
        self.close_listener(index);
    }

    /// Accepts everything from the kept listeners whose processes have gone. One that is in want of descriptors waits for some.
    pub(crate) fn adopt(&mut self) {
        for adoption in std::mem::take(&mut self.adoptions) {
            if !self.adopt_from(&adoption) {
                self.adoptions.push(adoption);
            }
        }
        if !self.adoptions.is_empty() {
            let again = self.clock.now() + Duration::from_millis(ERROR_PAUSE.into());
            self.deadlines.push(again, Due::Adoption);
        }
    }

    /// Whether nothing is left in it that can be accepted.
    fn adopt_from(&mut self, adoption: &Adoption) -> bool {
        let block = adoption.metrics.block(self.index);
        loop {
            match adoption.kept.accept() {
                Ok((client, peer)) => {
                    block.accepted.inc();
                    let open = adoption.listener.and_then(|id| self.listener(id));
                    match open.filter(|index| self.socket(*index).is_some()) {
                        Some(index) => {
                            self.shared.open.fetch_add(1, Ordering::SeqCst);
                            self.admit(index, client, peer, true);
                        }
                        None => {
                            Socket::accepted(client, peer.is_none()).reset_on_close();
                            block.closed[CloseReason::Unaccepted].inc();
                        }
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                Err(error) => {
                    let errno = Errno::from_raw(error.raw_os_error().unwrap_or(0));
                    let (label, failure) = classify(errno);
                    block.accept_errors[label].inc();
                    match failure {
                        Failure::Theirs => {}
                        Failure::Want => return false,
                        Failure::Ours => {
                            let listener = adoption.metrics.name();
                            tracing::warn!(
                                listener,
                                "what is left in a kept listener can't be accepted: {errno}"
                            );
                            return true;
                        }
                    }
                }
            }
        }
    }
}
