//! When accepting pauses, and when it goes on.
//!
//! Invariants:
//!
//! - A pause is the listener's, in every worker. Who pauses looks again afterwards, and who makes room looks for pauses
//!   afterwards, so one of them sees the other.
//! - A pause at a limit ends at once when there is ample room, else a moment after there is any: at the limit a pause lets in
//!   several, not each connection a pause. Whoever sees a pause and too little room looks again when that moment has passed.

use std::sync::atomic::Ordering;
use std::time::Duration;

use nix::sys::epoll::{EpollEvent, EpollFlags};

use crate::relay::Side;
use crate::shared::{Pause, SharedListener};
use crate::slots::Token;
use crate::worker::{Due, Worker};

/// Some room is taken up so long after it was seen.
const ROOM: Duration = Duration::from_millis(50);

/// First and longest pause after an error, in milliseconds.
pub(crate) const ERROR_PAUSE: u32 = 50;
const ERROR_PAUSE_MOST: u32 = 1000;

impl Worker {
    pub(crate) fn pause(&mut self, index: u32, listener: &SharedListener, pause: u8, why: &str) {
        let order = Ordering::SeqCst;
        if listener
            .paused
            .compare_exchange(Pause::NONE, pause, order, order)
            .is_ok()
        {
            self.shared.paused_listeners.fetch_add(1, order);
            if self.shared.may_warn() {
                let name = listener.metrics.name();
                match pause {
                    Pause::ERROR => tracing::warn!(listener = name, "accepting pauses: {why}"),
                    _ => tracing::warn!(
                        listener = name,
                        "{why} is reached: accepting pauses, the kernel's backlog holds new connections"
                    ),
                }
            }
            self.shared.look_at_pauses();
            if pause == Pause::ERROR {
                let last = listener.error_pause.load(Ordering::Relaxed);
                let next = (last * 2).clamp(ERROR_PAUSE, ERROR_PAUSE_MOST);
                listener.error_pause.store(next, Ordering::Relaxed);
                let until = self.clock.now() + Duration::from_millis(next.into());
                self.deadlines.push(until, Due::Resume(index));
            }
        }
        self.register(index);
        if pause == Pause::FULL {
            self.made_room();
        }
    }

    /// To be called when there is more room than before.
    pub(crate) fn made_room(&mut self) {
        if self.shared.paused_listeners.load(Ordering::SeqCst) == 0 {
            return;
        }
        if self.shared.has_room(true) {
            self.shared.look_at_pauses();
        } else {
            self.look_for_room_later();
        }
    }

    fn look_for_room_later(&mut self) {
        if !std::mem::replace(&mut self.looks_for_room, true) {
            self.deadlines.push(self.clock.now() + ROOM, Due::Room);
        }
    }

    /// Ends the pauses for which there is any room.
    pub(crate) fn look_for_room(&mut self) {
        self.looks_for_room = false;
        self.end_pauses(false);
    }

    /// Ends a pause, in every worker.
    pub(crate) fn resume(&mut self, index: u32) {
        let Some(listener) = self.socket(index) else {
            return;
        };
        self.unpause(&listener);
        self.register(index);
    }

    pub(crate) fn unpause(&self, listener: &SharedListener) {
        if listener.paused.swap(Pause::NONE, Ordering::SeqCst) != Pause::NONE {
            self.shared.paused_listeners.fetch_sub(1, Ordering::SeqCst);
            self.shared.look_at_pauses();
        }
    }

    /// Ends the pauses for which there is ample room again, and follows those of other workers.
    pub(crate) fn look_at_pauses(&mut self) {
        if self.end_pauses(true) {
            self.look_for_room_later();
        }
    }

    /// Ends the pauses for which there is room. Whether some are left.
    fn end_pauses(&mut self, ample: bool) -> bool {
        let mut left = false;
        for index in 0..self.listeners.len() as u32 {
            let Some(listener) = self.socket(index) else {
                continue;
            };
            let full = listener.paused.load(Ordering::SeqCst) == Pause::FULL;
            if full && self.limit(&listener, ample).is_none() {
                self.resume(index);
            } else {
                left |= full;
                self.register(index);
            }
        }
        left
    }

    /// Watches a listener, or doesn't, as its pause says. An exclusive registration can't be modified, only made and deleted.
    /// What waits in the kernel raises an event at once.
    pub(crate) fn register(&mut self, index: u32) {
        let Some(Some(listener)) = self.listeners.get_mut(index as usize) else {
            return;
        };
        let Some(socket) = &listener.socket else {
            return;
        };
        let wanted = !socket.is_paused() && listener.emptying.is_none();
        if wanted == listener.registered {
            return;
        }
        let flags = EpollFlags::EPOLLIN | EpollFlags::EPOLLEXCLUSIVE;
        let result = match wanted {
            true => self.epoll.add(
                &socket.socket,
                EpollEvent::new(flags, Token::listener(index).data(Side::Client)),
            ),
            false => self.epoll.delete(&socket.socket),
        };
        match result {
            Ok(()) => listener.registered = wanted,
            Err(error) => tracing::error!(
                listener = socket.metrics.name(),
                "worker {} can't watch it: epoll_ctl: {error}",
                self.index
            ),
        }
    }
}
