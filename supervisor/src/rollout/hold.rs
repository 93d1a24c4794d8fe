//! An operator's switch: nothing is dispatched while it is on, whatever runs do.

use super::{Action, Caller, Rollout, Time, exit};
use std::time::Duration;

/// The switch is on.
#[derive(Debug)]
pub(super) struct Hold {
    pub(super) until: Time,
    /// Whose life it depends on (`hold -- CMD`); answered at the release.
    owner: Option<Caller>,
    /// To be answered when dispatch has stopped.
    asked: Vec<Caller>,
    /// To be answered at the release.
    releasing: Vec<Caller>,
}

impl Rollout {
    pub(super) fn hold(&mut self, caller: Caller, timeout: Duration, owned: bool) {
        let until = self.now + timeout;
        match &mut self.hold {
            Some(hold) if owned || hold.owner.is_some() => {
                let left = hold.until.saturating_sub(self.now).as_secs_f64();
                // Of what was asked for, though a moment of it has passed.
                let left = (left * 10.0).ceil() / 10.0;
                let message = format!("already held, for {left:.1}s more: release it first");
                self.answer(caller, exit::FAILED, &message);
            }
            Some(hold) => {
                hold.until = until;
                self.answer(caller, exit::DONE, &format!("held for {timeout:?} more"));
            }
            None => {
                let (owner, asked) = if owned {
                    (Some(caller), vec![])
                } else {
                    (None, vec![caller])
                };
                self.hold = Some(Hold {
                    until,
                    owner,
                    asked,
                    releasing: Vec::new(),
                });
                self.act(Action::Hold);
            }
        }
    }

    pub(super) fn held_now(&mut self, warning: Option<String>) {
        let Some(hold) = &mut self.hold else { return };
        let asked = std::mem::take(&mut hold.asked);
        let left = hold.until.saturating_sub(self.now).as_secs_f64();
        // Of what was asked for, though a moment of it has passed.
        let left = (left * 10.0).ceil() / 10.0;
        let mut message = format!("held for {left:.1}s at most: connections wait");
        if let Some(warning) = warning {
            message = format!("{message}; {warning}");
        }
        self.step(self.active, "held", message.clone());
        for caller in asked {
            self.answer(caller, exit::DONE, &message);
        }
    }

    pub(super) fn ask_release(&mut self, caller: Caller, when_ready: bool) {
        match &mut self.hold {
            None => self.answer(caller, exit::DONE, "it isn't held"),
            Some(hold) => {
                hold.releasing.push(caller);
                if when_ready {
                    self.act(Action::Probe);
                } else {
                    self.release("released");
                }
            }
        }
    }

    /// Ends the hold; everybody who waits for that hears it.
    pub(super) fn release(&mut self, why: &str) {
        self.end_hold(why, exit::DONE, exit::DONE);
    }

    /// The hold's owner has gone, or somebody who waits for a release has.
    pub(super) fn gone(&mut self, caller: Caller) {
        if self
            .hold
            .as_ref()
            .is_some_and(|hold| hold.owner == Some(caller))
        {
            self.release("released: its owner has gone");
        }
    }

    pub(super) fn expire_hold(&mut self) {
        if self
            .hold
            .as_ref()
            .is_some_and(|hold| hold.until <= self.now)
        {
            self.end_hold(
                "released: the hold's time is up",
                exit::TIMED_OUT,
                exit::DONE,
            );
        }
    }

    pub(super) fn end_hold(&mut self, why: &str, owner: u8, others: u8) {
        let Some(hold) = self.hold.take() else { return };
        self.act(Action::Release);
        let message = format!("{why}; {}", self.serves());
        self.step(self.active, "released", message.clone());
        if let Some(caller) = hold.owner {
            self.answer(caller, owner, &message);
        }
        for caller in hold.asked.into_iter().chain(hold.releasing) {
            self.answer(caller, others, &message);
        }
    }
}
