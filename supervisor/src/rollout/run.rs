//! A run: one climb of the ladder, from the request to the answer.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use syngate_metrics::ReloadOutcome;

use super::queue::{Asker, Kind};
use super::{Action, Drainer, Rollout, Time, exit, has_process, overlaps};
use crate::config::ServiceConfig;

const FIRST_RETRY: Duration = Duration::from_secs(1);
const LONGEST_RETRY: Duration = Duration::from_secs(60);

/// The run that goes on.
#[derive(Debug)]
pub(super) struct Run {
    number: u64,
    kind: Kind,
    pub(super) askers: Vec<Asker>,
    /// Nobody asked: it is tried again.
    pub(super) automatic: bool,
    pub(super) began: Time,
    phase: Phase,
    /// `replace`: its starts are tried again until then.
    give_up: Option<Time>,
    /// `replace`: how the last start failed.
    failure: Option<(ReloadOutcome, String)>,
}

/// How far it has come.
#[derive(Debug)]
pub(super) enum Phase {
    Loading,
    Checking(Arc<ServiceConfig>),
    Opening(Arc<ServiceConfig>),
    /// Another generation is starting: there is one at a time.
    Slot(Arc<ServiceConfig>),
    Starting(u64),
    /// `replace`: the old one ends, the new one starts.
    Replacing,
    MinReady {
        new: u64,
        old: Option<u64>,
        until: Time,
    },
}

impl Run {
    pub(super) fn deadline(&self) -> Option<Time> {
        match self.phase {
            Phase::MinReady { until, .. } => Some(until),
            Phase::Replacing => self.give_up,
            _ => None,
        }
    }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.phase {
            Phase::Loading | Phase::Checking(_) | Phase::Opening(_) => f.write_str("check"),
            Phase::Slot(_) => f.write_str("waits for another start"),
            Phase::Starting(number) => write!(f, "starting {number}"),
            Phase::Replacing => f.write_str("replacing"),
            Phase::MinReady { new, .. } => write!(f, "min-ready {new}"),
        }
    }
}

impl Rollout {
    /// Ends the run for a shutdown.
    pub(super) fn stop_run(&mut self, why: &str) {
        if let Some(run) = self.cancel_run() {
            for asker in run.askers {
                self.answer(asker.caller, exit::FAILED, why);
            }
        }
    }

    pub(super) fn cancel_run(&mut self) -> Option<Run> {
        let run = self.run.take()?;
        match run.phase {
            Phase::Checking(_) => self.act(Action::CancelCheck),
            Phase::Starting(number) => self.stop(number, true),
            _ => {}
        }
        Some(run)
    }

    pub(super) fn phase(&self) -> Option<&Phase> {
        self.run.as_ref().map(|run| &run.phase)
    }

    fn set_phase(&mut self, phase: Phase) {
        if let Some(run) = &mut self.run {
            run.phase = phase;
        }
    }

    /// Begins a run that nobody asked for, with what is configured.
    pub(super) fn first_start(&mut self) {
        let config = Arc::clone(&self.config);
        self.recovery.wanted = Some(Arc::clone(&config));
        self.begin(Kind::Start, Vec::new(), false, Phase::Slot(config));
    }

    pub(super) fn begin(&mut self, kind: Kind, askers: Vec<Asker>, automatic: bool, phase: Phase) {
        self.last_run += 1;
        self.retry.at = None;
        self.run = Some(Run {
            number: self.last_run,
            kind,
            askers,
            automatic,
            began: self.now,
            phase,
            give_up: None,
            failure: None,
        });
    }

    /// The phase of this run, which ends by that, if this run goes on.
    fn leave_phase(&mut self, number: u64) -> Option<Phase> {
        let run = self.run.as_mut().filter(|run| run.number == number)?;
        Some(std::mem::replace(&mut run.phase, Phase::Loading))
    }

    pub(super) fn loaded(&mut self, number: u64, config: Result<Arc<ServiceConfig>, String>) {
        let Some(Phase::Loading) = self.leave_phase(number) else {
            return;
        };
        let activates = self
            .run
            .as_ref()
            .is_some_and(|run| matches!(run.kind, Kind::Activate(_)));
        match config {
            Err(why) => self.finish_failed(ReloadOutcome::CheckFailed, &why),
            Ok(config) if activates => self.open(number, config),
            Ok(config) => {
                self.step(None, "check", "the configuration is checked".to_owned());
                self.set_phase(Phase::Checking(Arc::clone(&config)));
                self.act(Action::Check(number, config));
            }
        }
    }

    pub(super) fn checked(&mut self, number: u64, result: Result<(), String>) {
        let Some(Phase::Checking(config)) = self.leave_phase(number) else {
            return;
        };
        match result {
            Ok(()) => self.open(number, config),
            Err(why) => self.finish_failed(ReloadOutcome::CheckFailed, &why),
        }
    }

    /// Whether this run still waits for its listeners.
    pub fn opens(&self, number: u64) -> bool {
        let run = self.run.as_ref().filter(|run| run.number == number);
        run.is_some_and(|run| matches!(run.phase, Phase::Opening(_)))
    }

    fn open(&mut self, number: u64, config: Arc<ServiceConfig>) {
        self.set_phase(Phase::Opening(Arc::clone(&config)));
        self.act(Action::Open(number, config));
    }

    pub(super) fn opened(&mut self, number: u64, result: Result<(), String>) {
        let Some(Phase::Opening(config)) = self.leave_phase(number) else {
            return;
        };
        if let Err(why) = result {
            return self.finish_failed(ReloadOutcome::ListenFailed, &why);
        }
        self.config = Arc::clone(&config);
        let active = self.active.and_then(|number| self.generations.get(&number));
        let beside =
            overlaps(&config) || active.is_some_and(|active| !has_process(active.config()));
        if beside {
            if !self.recovery.proven {
                self.recovery.wanted = Some(Arc::clone(&config));
            }
            self.set_phase(Phase::Slot(config));
        } else {
            self.replace(config);
        }
    }

    /// Stops all that lives; the new configuration is started once nothing does.
    fn replace(&mut self, config: Arc<ServiceConfig>) {
        let give_up = self.now + config.gate.pending_timeout;
        if let Some(run) = &mut self.run {
            run.give_up = Some(give_up);
        }
        self.set_phase(Phase::Replacing);
        self.recovery.wanted = Some(config);
        self.recovery.at = Some(self.now);
        self.recovery.delay = Duration::ZERO;
        if let Some(heir_of) = self.recovery.heir_of.take() {
            self.act(Action::Forget(heir_of));
        }
        self.end_starting();
        self.hurry_drains();
        self.drain_active();
    }

    /// A generation couldn't be started, or was lost within its `min_ready` with nothing to flip back to.
    pub(super) fn start_failed(&mut self, number: u64, outcome: ReloadOutcome, why: String) {
        let Some(run) = &mut self.run else {
            return self.restart_failed(number, &why);
        };
        let its_own = match run.phase {
            Phase::Starting(new) | Phase::MinReady { new, .. } => new == number,
            Phase::Replacing => true,
            _ => false,
        };
        match run.give_up {
            _ if !its_own => self.restart_failed(number, &why),
            None => self.finish_failed(outcome, &why),
            Some(_) => {
                run.phase = Phase::Replacing;
                run.failure = Some((outcome, why.clone()));
                self.restart_failed(number, &why);
            }
        }
    }

    fn restart_failed(&mut self, number: u64, why: &str) {
        self.step(Some(number), "failed", format!("{why}; {}", self.serves()));
    }

    /// A generation has become active.
    pub(super) fn flipped(&mut self, number: u64, old: Option<u64>) {
        let until = self.now + self.config.min_ready;
        match self.phase() {
            Some(Phase::Starting(new)) if *new == number => {}
            Some(Phase::Replacing) => {}
            _ => return,
        }
        self.set_phase(Phase::MinReady {
            new: number,
            old,
            until,
        });
    }

    pub(super) fn expire_run(&mut self) -> bool {
        let Some(run) = self.run.as_mut() else {
            return false;
        };
        if run.deadline().is_none_or(|at| at > self.now) {
            return false;
        }
        match run.phase {
            Phase::MinReady { new, old, .. } => self.succeed(new, old),
            _ => {
                let unfinished = || {
                    (
                        ReloadOutcome::NotReady,
                        "nothing is ready within pending_timeout".to_owned(),
                    )
                };
                let (outcome, why) = run.failure.take().unwrap_or_else(unfinished);
                self.finish_failed(outcome, &why);
            }
        }
        true
    }

    fn succeed(&mut self, new: u64, old: Option<u64>) {
        let Some(run) = self.run.take() else { return };
        self.retry.delay = Duration::ZERO;
        let mut message = self.serves();
        let old = old.filter(|old| self.generations.contains_key(old));
        if let Some(old) = old {
            message = format!("{message}; generation {old} drains");
        }
        self.step(Some(new), "success", message.clone());
        let outcome = ReloadOutcome::Success;
        self.act(Action::Finished {
            outcome,
            message: message.clone(),
            began: run.began,
        });
        if let Some(old) = old {
            self.begin_drain(old, self.now.saturating_sub(self.config.min_ready));
        }
        let draining = self.generations().filter(|generation| generation.drains());
        let draining: Vec<u64> = draining.map(super::Generation::number).collect();
        for Asker { caller, drained } in run.askers {
            if drained {
                let (generations, message) = (draining.clone(), message.clone());
                self.drainers.push(Drainer {
                    caller,
                    generations,
                    message,
                });
            } else {
                self.answer(caller, exit::DONE, &message);
            }
        }
    }

    /// Ends the run without a new active generation.
    pub(super) fn finish_failed(&mut self, outcome: ReloadOutcome, why: &str) {
        let Some(run) = self.run.take() else { return };
        let mut message = format!("{} failed: {why}; {}", run.kind, self.serves());
        let reload = matches!(run.kind, Kind::Reload { .. });
        let retries = self.config.retry && overlaps(&self.config) && reload;
        if retries
            && self.waiting.is_empty()
            && (self.active.is_some() || self.recovery.wanted.is_none())
        {
            self.retry.delay = (self.retry.delay * 2).clamp(FIRST_RETRY, LONGEST_RETRY);
            self.retry.at = Some(self.now + self.retry.delay);
            message = format!("{message}; tried again in {}s", self.retry.delay.as_secs());
        }
        self.step(None, "failed", message.clone());
        self.act(Action::Finished {
            outcome,
            message: message.clone(),
            began: run.began,
        });
        let exit = self.failed();
        for asker in run.askers {
            self.answer(asker.caller, exit, &message);
        }
    }

    /// Whether the wanted generation may be started, when its time comes.
    pub(super) fn may_restart(&self) -> bool {
        let Some(wanted) = &self.recovery.wanted else {
            return false;
        };
        self.active.is_none() && self.ending.is_none() && !self.starting() && self.may_run(wanted)
    }

    fn may_run(&self, config: &ServiceConfig) -> bool {
        overlaps(config) || !self.process_lives()
    }

    /// Starts what may be started now: a run's generation, the one that is to be active again, the next run.
    pub(super) fn proceed(&mut self) {
        if self.ending.is_some() {
            return;
        }
        if let Some(Phase::Slot(config)) = self.phase()
            && !self.starting()
            && self.may_run(config)
        {
            let config = Arc::clone(config);
            let number = self.start(config, None);
            self.set_phase(Phase::Starting(number));
        }
        if self.recovery.at.is_some_and(|at| at <= self.now) && self.may_restart() {
            self.restart();
        }
        while self.run.is_none() && self.begin_next() {}
    }

    fn restart(&mut self) {
        let Some(wanted) = self.recovery.wanted.clone() else {
            return;
        };
        self.recovery.at = None;
        let heir_of = self.recovery.heir_of.take();
        let again = self.recovery.delay > Duration::ZERO || heir_of.is_some();
        if again {
            self.act(Action::Restarting);
        }
        self.start(wanted, heir_of);
        if let Some(heir_of) = heir_of {
            self.act(Action::Forget(heir_of));
        }
    }
}
