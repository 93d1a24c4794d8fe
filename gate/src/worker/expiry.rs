//! What a worker does when a deadline has come.

use super::Worker;
use crate::deadlines::Tick;
use crate::slots::{Slots, Token};

/// Whom a deadline is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Due {
    Connection(Token),
    /// An endpoint is worth another try.
    Dispatch(u32),
    /// Accepting was paused by an error.
    Resume(u32),
    /// A listener that is being emptied.
    Emptying(u32),
    /// Kept listeners that had to wait for descriptors.
    Adoption,
    /// Ends whose cause wasn't known.
    Doubts,
    /// Listeners that are paused at a limit, and some room.
    Room,
}

impl Worker {
    pub(super) fn expire(&mut self) {
        while let Some((at, due)) = self.deadlines.pop(self.clock.now()) {
            match due {
                Due::Connection(token) if !is_armed(&self.slots, at, token) => {}
                Due::Connection(token) => self.look(token, |connection, context| {
                    connection.armed = Tick::NEVER;
                    connection.expired(context)
                }),
                Due::Dispatch(index) => self.dispatch_soon(index),
                Due::Resume(index) => self.resume(index),
                Due::Emptying(index) => self.empty(index),
                Due::Adoption => self.adopt(),
                Due::Room => self.look_for_room(),
                Due::Doubts => {
                    if let Some(at) = self.doubts.expire(self.clock.now(), self.index) {
                        self.deadlines.push(at, Due::Doubts);
                    }
                }
            }
        }
        // Short connections leave their time-outs behind.
        let live = self.slots.len();
        self.deadlines.sweep(live, |at, due| match due {
            Due::Connection(token) => is_armed(&self.slots, at, *token),
            _ => true,
        });
    }
}

/// Whether a connection waits for this very deadline, and not for an earlier one.
pub(super) fn is_armed(slots: &Slots, at: Tick, token: Token) -> bool {
    let connection = slots.get(token);
    connection.is_some_and(|connection| connection.armed == at)
}
