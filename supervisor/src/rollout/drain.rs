//! A generation's end: the drain in its order, the stop, the kill; and the same in a hurry.

use super::life::{Drain, Generation, Life};
use super::{Action, Ending, Rollout, Time, has_process};

impl Rollout {
    /// Ends what is on its way up.
    pub(super) fn end_starting(&mut self) {
        let up = |generation: &&Generation| {
            matches!(generation.life, Life::Starting | Life::Settling(_))
        };
        let starting: Vec<u64> = self
            .generations
            .values()
            .filter(up)
            .map(Generation::number)
            .collect();
        for number in starting {
            self.stop(number, true);
        }
    }

    /// The successor of this generation has passed its `min_ready`.
    pub(super) fn begin_drain(&mut self, number: u64, flipped: Time) {
        if self.life(number) == Some(Life::Draining(Drain::MinReady)) {
            self.drain(number, Drain::Kept(flipped + self.config.keep_previous));
            self.step(
                Some(number),
                "draining",
                format!("generation {number} drains"),
            );
        }
    }

    /// The active generation drains, with nothing in its place.
    pub(super) fn drain_active(&mut self) {
        if let Some(number) = self.active.take() {
            self.act(Action::Activate(None));
            self.step(
                Some(number),
                "draining",
                format!("generation {number} drains"),
            );
            self.watch_queue(number);
        }
    }

    /// Drains go on without waiting for what may be left out, and end when the service must.
    pub(super) fn hurry_drains(&mut self) {
        let drain_end = |at: Option<Time>| {
            let until = self.ending.and_then(|ending| ending.until);
            at.into_iter().chain(until).min()
        };
        let kill_end = |at: Time| match self.ending {
            Some(Ending { grace, .. }) => at.min(self.now + grace),
            None => at,
        };
        let mut idle = Vec::new();
        for generation in self.generations.values_mut() {
            match &mut generation.life {
                Life::Draining(Drain::MinReady | Drain::Kept(_) | Drain::Delay(_)) => {
                    idle.push(generation.number());
                }
                Life::Draining(Drain::Queue(at) | Drain::Leases(at)) => *at = drain_end(*at),
                Life::Stopping { kill: Some(at), .. } => *at = kill_end(*at),
                _ => {}
            }
        }
        for number in idle {
            self.watch_queue(number);
        }
    }

    /// Lets the oldest generation go that is kept and isn't the previous one: a run waits for room.
    pub(super) fn cut_keep(&mut self) {
        let now = self.now;
        let previous = self.previous;
        let kept = self.generations.values_mut().find(|generation| {
            let kept = matches!(generation.life, Life::Draining(Drain::Kept(at)) if at > now);
            kept && Some(generation.number()) != previous
        });
        if let Some(generation) = kept {
            generation.life = Life::Draining(Drain::Kept(now));
        }
    }

    pub(super) fn queue_empty(&mut self, number: u64) {
        if let Some(Life::Draining(Drain::Queue(until))) = self.life(number) {
            self.signal_drain(number, until);
        }
    }

    pub(super) fn leases_ended(&mut self, number: u64) {
        if let Some(Life::Draining(Drain::Leases(_))) = self.life(number) {
            self.stop(number, false);
        }
    }

    /// Takes one life one step further, if the time for that has come.
    pub(super) fn expire_life(&mut self) -> bool {
        let due = |generation: &&Generation| generation.deadline().is_some_and(|at| at <= self.now);
        let Some(generation) = self.generations.values().find(due) else {
            return false;
        };
        let number = generation.number();
        match generation.life {
            Life::Settling(_) => self.flip(number),
            Life::Draining(Drain::Kept(_)) => {
                self.drain(number, Drain::Delay(self.now + self.config.drain_delay));
            }
            Life::Draining(Drain::Delay(_)) => self.watch_queue(number),
            Life::Draining(Drain::Queue(until)) => {
                self.act(Action::LeaveQueue(number));
                self.signal_drain(number, until);
            }
            Life::Draining(Drain::Leases(_)) => {
                self.act(Action::Reset(number));
                self.stop(number, false);
            }
            Life::Stopping { failed, .. } => {
                self.act(Action::Kill(number));
                self.set(number, Life::Stopping { kill: None, failed });
            }
            Life::Starting | Life::Active | Life::Draining(Drain::MinReady) => {}
        }
        true
    }

    fn watch_queue(&mut self, number: u64) {
        let until = self.drain_end();
        self.drain(number, Drain::Queue(until));
        self.act(Action::WatchQueue(number));
    }

    /// Its accept queue is empty, or won't be.
    fn signal_drain(&mut self, number: u64, until: Option<Time>) {
        let Some(generation) = self.generations.get(&number) else {
            return;
        };
        let signal = generation
            .config()
            .drain_signal
            .filter(|_| has_process(generation.config()));
        match signal {
            Some(signal) => {
                self.act(Action::Signal(number, signal));
                self.drain(number, Drain::Leases(self.drain_end()));
            }
            None => self.drain(number, Drain::Leases(until)),
        }
        self.act(Action::WatchLeases(number));
    }

    /// When a drain that begins now ends at the latest.
    fn drain_end(&self) -> Option<Time> {
        match self.ending {
            Some(ending) => ending.until,
            None => self.config.drain_timeout.map(|timeout| self.now + timeout),
        }
    }

    /// Tells it to stop. One without a process has ended by that.
    pub(super) fn stop(&mut self, number: u64, failed: bool) {
        let Some(generation) = self.generations.get(&number) else {
            return;
        };
        if has_process(generation.config()) {
            let signal = generation.config().stop_signal;
            let timeout = self.config.stop_timeout;
            let grace = self
                .ending
                .map_or(timeout, |ending| ending.grace.min(timeout));
            self.act(Action::Signal(number, signal));
            return self.set(
                number,
                Life::Stopping {
                    kill: Some(self.now + grace),
                    failed,
                },
            );
        }
        if let Some(generation) = self.generations.remove(&number) {
            self.leave(&generation);
        }
        if !failed {
            let message = format!("generation {number} is drained; {}", self.serves());
            self.step(Some(number), "drained", message);
        }
    }

    /// Whether a process of the service lives.
    pub(super) fn process_lives(&self) -> bool {
        self.generations
            .values()
            .any(|generation| has_process(generation.config()))
    }
}
