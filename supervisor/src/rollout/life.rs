//! A generation's life from the start on, and what happens when it ends before its time.

use std::sync::Arc;
use std::time::Duration;

use syngate_metrics::ReloadOutcome;

use super::run::Phase;
use super::{Action, End, Rollout, Time};
use crate::config::ServiceConfig;
use crate::protocol::GenerationState;

const FIRST_DELAY: Duration = Duration::from_millis(100);
const LONGEST_DELAY: Duration = Duration::from_secs(10);

/// One generation that hasn't ended.
#[derive(Debug)]
pub struct Generation {
    number: u64,
    config: Arc<ServiceConfig>,
    pub(super) life: Life,
    /// When it proved that it is ready.
    ready: Option<Time>,
}

/// Where it is in its life.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Life {
    /// Started, and not yet ready.
    Starting,
    /// Ready; becomes active if it lives until then.
    Settling(Time),
    /// New connections go to it.
    Active,
    /// Another one has taken its place.
    Draining(Drain),
    /// It was told to stop, and is killed then (`None`: has been).
    Stopping { kill: Option<Time>, failed: bool },
}

/// What a draining generation waits for, in this order. An end of `None` is never.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Drain {
    /// Its successor's `min_ready`: it may have to take over again.
    MinReady,
    /// `keep_previous`: it can be rolled back to.
    Kept(Time),
    /// `drain_delay`.
    Delay(Time),
    /// Its accept queues become empty, or `drain_timeout`; then it gets `drain_signal`.
    Queue(Option<Time>),
    /// Its connections end, or `drain_timeout`, and they are reset; then it gets `stop_signal`.
    Leases(Option<Time>),
}

impl Generation {
    /// Its number.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Its state in an operator's words.
    pub fn state(&self) -> GenerationState {
        match self.life {
            Life::Starting => GenerationState::Starting,
            Life::Settling(_) => GenerationState::Ready,
            Life::Active => GenerationState::Active,
            Life::Draining(_) | Life::Stopping { failed: false, .. } => GenerationState::Draining,
            Life::Stopping { failed: true, .. } => GenerationState::Failed,
        }
    }

    pub(super) fn config(&self) -> &ServiceConfig {
        &self.config
    }

    /// What it waits for, once it isn't active any more.
    pub fn waits_for(&self) -> Option<&'static str> {
        Some(match self.life {
            Life::Starting | Life::Settling(_) | Life::Active => return None,
            Life::Draining(Drain::MinReady) => "min-ready",
            Life::Draining(Drain::Kept(_)) => "keep-previous",
            Life::Draining(Drain::Delay(_)) => "drain-delay",
            Life::Draining(Drain::Queue(_)) => "accept queue",
            Life::Draining(Drain::Leases(_)) => "connections",
            Life::Stopping { kill: Some(_), .. } => "its end",
            Life::Stopping { kill: None, .. } => "its end, killed",
        })
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        match self.life {
            Life::Starting | Life::Active | Life::Draining(Drain::MinReady) => None,
            Life::Settling(at) | Life::Draining(Drain::Kept(at) | Drain::Delay(at)) => Some(at),
            Life::Draining(Drain::Queue(at) | Drain::Leases(at)) => at,
            Life::Stopping { kill, .. } => kill,
        }
    }

    /// It is on its way to its end.
    pub(super) fn drains(&self) -> bool {
        matches!(self.life, Life::Draining(_) | Life::Stopping { .. })
    }

    /// It could be made active again: alive, and not told to stop.
    fn unharmed(&self) -> bool {
        matches!(self.life, Life::Draining(drain) if !matches!(drain, Drain::Leases(_)))
    }
}

impl Rollout {
    /// Starts a generation of `config`.
    pub(super) fn start(&mut self, config: Arc<ServiceConfig>, heir_of: Option<u64>) -> u64 {
        self.last_number += 1;
        let number = self.last_number;
        let life = Life::Starting;
        let generation = Generation {
            number,
            config: Arc::clone(&config),
            life,
            ready: None,
        };
        self.generations.insert(number, generation);
        self.step(
            Some(number),
            "starting",
            format!("generation {number} starts"),
        );
        self.act(Action::Start {
            generation: number,
            config,
            heir_of,
        });
        number
    }

    pub(super) fn ready(&mut self, number: u64) {
        let until = self.now + self.config.ready_settle;
        let Some(generation) = self.generations.get_mut(&number) else {
            return;
        };
        if generation.life == Life::Starting {
            generation.ready = Some(self.now);
            generation.life = Life::Settling(until);
            self.step(
                Some(number),
                "ready",
                format!("generation {number} is ready"),
            );
        }
    }

    pub(super) fn not_ready(&mut self, number: u64, why: &str) {
        let Some(generation) = self.generations.get(&number) else {
            return;
        };
        if generation.life == Life::Starting {
            self.stop(number, true);
            let why = format!("generation {number} isn't ready: {why}");
            self.start_failed(number, ReloadOutcome::NotReady, why);
        }
    }

    /// The process of a generation has ended, or will never come to be.
    pub(super) fn ended(&mut self, number: u64, end: &End) {
        let Some(generation) = self.generations.remove(&number) else {
            return;
        };
        let when = match generation.life {
            Life::Starting => " before it was ready",
            Life::Settling(_) => " after it was ready, before it was active",
            Life::Active => return self.crashed(&generation, end),
            Life::Draining(_) | Life::Stopping { .. } => {
                self.leave(&generation);
                let as_asked = matches!(end, End::Exited { as_asked: true, .. });
                let step = match generation.life {
                    // Its connections have gone with it.
                    Life::Draining(_) if !as_asked => "failed",
                    Life::Stopping { failed: true, .. } => "ended",
                    _ => "drained",
                };
                let told = match step {
                    "drained" if as_asked => format!("generation {number} has ended"),
                    "failed" => end.tell(number, " while it drained"),
                    _ => end.tell(number, ""),
                };
                let message = format!("{told}; {}", self.serves());
                return self.step(Some(number), step, message);
            }
        };
        self.leave(&generation);
        self.start_failed(number, ReloadOutcome::StartFailed, end.tell(number, when));
    }

    /// Lets go of an ended generation, or keeps what it had for the one that is started in its place.
    pub(super) fn leave(&mut self, generation: &Generation) {
        let wanted = self.recovery.wanted.as_ref();
        let again = wanted.is_some_and(|wanted| Arc::ptr_eq(wanted, &generation.config));
        if self.active.is_some() || self.ending.is_some() || !again {
            return self.act(Action::Forget(generation.number));
        }
        if let Some(older) = self.recovery.heir_of.replace(generation.number) {
            self.act(Action::Forget(older));
        }
        let proven = |ready: Time| self.now > ready + self.config.min_ready;
        self.recovery.delay = match generation.ready {
            Some(ready) if proven(ready) => Duration::ZERO,
            _ => (self.recovery.delay * 2).clamp(FIRST_DELAY, LONGEST_DELAY),
        };
        self.recovery.at = Some(self.now + self.recovery.delay);
    }

    /// The active generation has ended by itself.
    fn crashed(&mut self, generation: &Generation, end: &End) {
        let number = generation.number;
        self.active = None;
        let min_ready_of = match self.phase() {
            Some(Phase::MinReady { new, old, .. }) if *new == number => Some(*old),
            _ => None,
        };
        let unharmed = |old: &u64| self.generations.get(old).is_some_and(Generation::unharmed);
        if let Some(old) = min_ready_of.flatten().filter(unharmed) {
            self.previous = None;
            self.make_active(old);
            self.leave(generation);
            let why = end.tell(number, " within min-ready, and was flipped back");
            return self.finish_failed(ReloadOutcome::FlippedBack, &why);
        }
        self.act(Action::Activate(None));
        self.leave(generation);
        if min_ready_of.is_some() {
            let why = end.tell(number, " within min-ready");
            return self.start_failed(number, ReloadOutcome::StartFailed, why);
        }
        let message = format!(
            "{}; {}",
            end.tell(number, " while it was active"),
            self.serves()
        );
        self.step(Some(number), "failed", message);
    }

    /// New connections go to this one from now on.
    fn make_active(&mut self, number: u64) {
        let Some(generation) = self.generations.get_mut(&number) else {
            return;
        };
        generation.life = Life::Active;
        self.recovery.wanted = Some(Arc::clone(&generation.config));
        self.recovery.proven = true;
        self.recovery.at = None;
        self.active = Some(number);
        self.act(Action::Activate(Some(number)));
        if let Some(heir_of) = self.recovery.heir_of.take() {
            self.act(Action::Forget(heir_of));
        }
    }

    /// Makes another generation the active one; the one that was drains.
    pub(super) fn flip(&mut self, number: u64) {
        let old = self.active;
        self.make_active(number);
        if let Some(old) = old {
            self.drain(old, Drain::MinReady);
            self.previous = Some(old);
        } else if self.previous == Some(number) {
            self.previous = None;
        }
        let held = if self.held() {
            ", and the service is held"
        } else {
            ""
        };
        self.step(
            Some(number),
            "active",
            format!("generation {number} is active{held}"),
        );
        self.flipped(number, old);
    }

    /// The generation that a rollback goes to.
    pub(super) fn rollback_to(&self) -> Result<u64, String> {
        let Some(number) = self.previous else {
            return Err("there is no previous generation".to_owned());
        };
        match self.generations.get(&number) {
            Some(generation) if generation.unharmed() => Ok(number),
            Some(_) => Err(format!("generation {number} has been told to end")),
            None => Err(format!("generation {number} has ended")),
        }
    }

    pub(super) fn life(&self, number: u64) -> Option<Life> {
        self.generations
            .get(&number)
            .map(|generation| generation.life)
    }

    pub(super) fn drain(&mut self, number: u64, drain: Drain) {
        self.set(number, Life::Draining(drain));
    }

    pub(super) fn set(&mut self, number: u64, life: Life) {
        if let Some(generation) = self.generations.get_mut(&number) {
            generation.life = life;
        }
    }
}
