//! One service's ladder as a pure state machine: events in, actions out. No I/O, no clock, no tasks.
//!
//! [`Rollout::handle`] takes what happened and says what to do, in this order. The caller executes each action; one that takes
//! time is answered by an event. Time is a [`Time`] that the caller passes; it calls again with [`Event::Tick`] at
//! [`Rollout::deadline`].
//!
//! Invariants, each a property test:
//!
//! - At most one generation is active, at most one is starting (not ready, or ready and not yet active), at most one run goes on.
//! - An `overlap` generation that was active is told to stop only after its successor's `min_ready` has passed.
//! - Each request is answered once, and with success only by a run that began after it.
//! - A failed run leaves active what was active (`replace` excepted: it stops the old one first).
//! - What has been active and dies, or couldn't be started at all, is started again until something is active.
//! - Every generation ends once it isn't wanted, if its process obeys SIGKILL.
//!
//! A run is one climb of the ladder (`run.rs`), and waits until it may begin (`queue.rs`); a generation's life (`life.rs`) and its
//! end (`drain.rs`) go on beside later runs; a hold concerns neither (`hold.rs`).

mod drain;
mod event;
mod hold;
mod life;
mod queue;
mod run;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::config::{Backend, ServiceConfig, Strategy};
use crate::exit;
use crate::protocol::GenerationState;

pub use event::{Action, Caller, End, Event, Request, Source, Time};
use hold::Hold;
pub use life::Generation;
use queue::Waiting;
use run::Run;

/// One service's runs and generations.
#[derive(Debug)]
pub struct Rollout {
    /// The rules in force.
    config: Arc<ServiceConfig>,
    /// By number: those that haven't ended.
    generations: BTreeMap<u64, Generation>,
    last_number: u64,
    active: Option<u64>,
    /// The generation that was active before.
    previous: Option<u64>,
    run: Option<Run>,
    last_run: u64,
    /// At most one of each kind, in the order of their first request.
    waiting: Vec<Waiting>,
    drainers: Vec<Drainer>,
    retry: Retry,
    recovery: Recovery,
    hold: Option<Hold>,
    ending: Option<Ending>,
    now: Time,
    actions: Vec<Action>,
}

/// Asked for success and drain: the run has succeeded, these generations haven't ended.
#[derive(Debug)]
struct Drainer {
    caller: Caller,
    generations: Vec<u64>,
    message: String,
}

/// Automatic tries of a reload that failed.
#[derive(Debug, Default)]
struct Retry {
    at: Option<Time>,
    delay: Duration,
}

/// How a service gets a generation again when none is active.
#[derive(Debug, Default)]
struct Recovery {
    /// What to start.
    wanted: Option<Arc<ServiceConfig>>,
    /// `wanted` has been active.
    proven: bool,
    /// The ended generation whose kept listeners the next start takes over.
    heir_of: Option<u64>,
    /// When to start.
    at: Option<Time>,
    /// Between the last two starts.
    delay: Duration,
}

/// The service ends.
#[derive(Clone, Copy, Debug)]
struct Ending {
    until: Option<Time>,
    grace: Duration,
}

impl Rollout {
    /// A service with no generation.
    pub fn new(config: Arc<ServiceConfig>) -> Rollout {
        Rollout {
            config,
            generations: BTreeMap::new(),
            last_number: 0,
            active: None,
            previous: None,
            run: None,
            last_run: 0,
            waiting: Vec::new(),
            drainers: Vec::new(),
            retry: Retry::default(),
            recovery: Recovery::default(),
            hold: None,
            ending: None,
            now: Time::ZERO,
            actions: Vec::new(),
        }
    }

    /// Numbers its generations after this one: no number is used twice for a service's name.
    pub fn count_from(&mut self, last: u64) {
        self.last_number = self.last_number.max(last);
    }

    /// The number of the latest generation, 0 if there was none.
    pub fn last_number(&self) -> u64 {
        self.last_number
    }

    /// Takes up an event, and what became due until `now`.
    pub fn handle(&mut self, now: Time, event: Event) -> Vec<Action> {
        self.now = now;
        match event {
            Event::Start => self.first_start(),
            Event::Request(caller, request) => self.request(caller, request),
            Event::Gone(caller) => self.gone(caller),
            Event::Loaded(run, config) => self.loaded(run, config),
            Event::Checked(run, result) => self.checked(run, result),
            Event::Opened(run, result) => self.opened(run, result),
            Event::Ready(generation) => self.ready(generation),
            Event::NotReady(generation, why) => self.not_ready(generation, &why),
            Event::Ended(generation, end) => self.ended(generation, &end),
            Event::Empty(generation) => self.queue_empty(generation),
            Event::Drained(generation) => self.leases_ended(generation),
            Event::Held(warning) => self.held_now(warning),
            Event::Answers => self.release("the backend answers"),
            Event::Shutdown { until, grace } => self.shut_down(Ending { until, grace }),
            Event::Emptied => self.drain_active(),
            Event::ShutdownNow => self.shut_down_now(),
            Event::Tick => {}
        }
        loop {
            self.expire_hold();
            while self.expire_life() || self.expire_run() {}
            self.proceed();
            if self.deadline().is_none_or(|at| at > now) {
                break;
            }
        }
        self.answer_drainers();
        std::mem::take(&mut self.actions)
    }

    /// When to call [`Rollout::handle`] again, if nothing happens before.
    pub fn deadline(&self) -> Option<Time> {
        let lives = self.generations.values().filter_map(Generation::deadline);
        let run = self.run.as_ref().and_then(Run::deadline);
        let hold = self.hold.as_ref().map(|hold| hold.until);
        let restart = self.recovery.at.filter(|_| self.may_restart());
        let retry = self.retry.at.filter(|_| self.may_begin());
        lives
            .chain(run)
            .chain(hold)
            .chain(restart)
            .chain(retry)
            .min()
    }

    /// The active generation.
    pub fn active(&self) -> Option<u64> {
        self.active
    }

    /// What is active, or is to be as soon as its start succeeds.
    pub fn wanted(&self) -> Option<&Arc<ServiceConfig>> {
        self.recovery.wanted.as_ref()
    }

    /// Whether an operator holds the service.
    pub fn held(&self) -> bool {
        self.hold.is_some()
    }

    /// The rules in force.
    pub fn config(&self) -> &Arc<ServiceConfig> {
        &self.config
    }

    /// The generations that haven't ended, oldest first.
    pub fn generations(&self) -> impl Iterator<Item = &Generation> {
        self.generations.values()
    }

    /// Whether a shutdown has come to its end: no generation is left.
    pub fn ended_all(&self) -> bool {
        self.ending.is_some() && self.generations.is_empty()
    }

    /// When a shutdown must have come to its end; `None`: it may take any time.
    pub fn ends_by(&self) -> Option<Time> {
        self.ending.and_then(|ending| ending.until)
    }

    /// Whether a run goes on or waits.
    pub fn reloading(&self) -> bool {
        self.run.is_some() || !self.waiting.is_empty()
    }

    /// What goes on now, in a few words.
    pub fn running(&self) -> Option<String> {
        if let Some(run) = &self.run {
            return Some(run.to_string());
        }
        if !self.waiting.is_empty() {
            let live = self.generations.len();
            return Some(format!("waits for one of {live} generations to end"));
        }
        let next = |at: Time| at.saturating_sub(self.now).as_secs_f64();
        if self.active.is_none()
            && let Some(at) = self.recovery.at
        {
            return Some(format!("restart in {:.1}s", next(at)));
        }
        self.retry.at.map(|at| format!("retry in {:.1}s", next(at)))
    }

    /// Who serves, for the end of a sentence.
    fn serves(&self) -> String {
        match self.active {
            Some(number) if self.hold.is_some() => {
                format!("generation {number} is active, and the service is held")
            }
            Some(number) => format!("generation {number} serves"),
            None if self.ending.is_some() => "the service ends".to_owned(),
            None if let Some(wanted) = &self.recovery.wanted => format!(
                "nothing serves: each connection waits up to {:?} for a start that succeeds",
                wanted.gate.pending_timeout
            ),
            // It never came to open a port.
            None => "nothing serves, and its ports are closed".to_owned(),
        }
    }

    /// The exit code of what failed.
    fn failed(&self) -> u8 {
        match self.active {
            Some(_) => exit::FAILED,
            None => exit::NOTHING_SERVES,
        }
    }

    fn act(&mut self, action: Action) {
        self.actions.push(action);
    }

    fn step(&mut self, generation: Option<u64>, step: &'static str, message: String) {
        self.act(Action::Step {
            generation,
            step,
            message,
        });
    }

    fn answer(&mut self, caller: Caller, exit: u8, message: &str) {
        self.act(Action::Answer(caller, exit, message.to_owned()));
    }

    /// Whether a generation is on its way up.
    fn starting(&self) -> bool {
        let up = [GenerationState::Starting, GenerationState::Ready];
        self.generations
            .values()
            .any(|generation| up.contains(&generation.state()))
    }

    fn answer_drainers(&mut self) {
        let generations = &self.generations;
        let drains = |number: &u64| generations.get(number).is_some_and(Generation::drains);
        let done = |drainer: &mut Drainer| !drainer.generations.iter().any(drains);
        let drained: Vec<Drainer> = self.drainers.extract_if(.., done).collect();
        for drainer in drained {
            self.answer(drainer.caller, exit::DONE, &drainer.message);
        }
    }

    fn shut_down(&mut self, ending: Ending) {
        // One that was ending already has no longer than it had.
        let until = [self.ends_by(), ending.until].into_iter().flatten().min();
        self.ending = Some(Ending { until, ..ending });
        self.retry.at = None;
        self.recovery.at = None;
        let why = "the service shuts down";
        self.stop_run(why);
        let waiting = std::mem::take(&mut self.waiting);
        let drainers = std::mem::take(&mut self.drainers);
        let drainers = drainers.iter().map(|drainer| drainer.caller);
        for caller in waiting.iter().flat_map(Waiting::callers).chain(drainers) {
            self.answer(caller, exit::FAILED, why);
        }
        self.end_hold(why, exit::FAILED, exit::FAILED);
        self.end_starting();
        self.hurry_drains();
        if let Some(heir_of) = self.recovery.heir_of.take() {
            self.act(Action::Forget(heir_of));
        }
    }

    fn shut_down_now(&mut self) {
        self.shut_down(Ending {
            until: Some(self.now),
            grace: Duration::ZERO,
        });
        self.drain_active();
    }
}

/// Whether a generation of this configuration may run beside others.
fn overlaps(config: &ServiceConfig) -> bool {
    config.strategy == Strategy::Overlap || !has_process(config)
}

fn has_process(config: &ServiceConfig) -> bool {
    !matches!(config.backend, Backend::Addresses(_))
}
