//! Requests that wait for their run: at most one run of each kind waits, and all that wait for it share it.

use std::fmt;

use syngate_metrics::ReloadOutcome;

use super::run::Phase;
use super::{Action, Caller, Request, Rollout, Source, exit};
use crate::config::{BackendAddress, Strategy};

/// What a run does.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Kind {
    Start,
    Reload { all: bool },
    Activate(Vec<BackendAddress>),
    Rollback,
}

/// Somebody to answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asker {
    pub(super) caller: Caller,
    pub(super) drained: bool,
}

/// A run that hasn't begun.
#[derive(Debug)]
pub(super) struct Waiting {
    kind: Kind,
    askers: Vec<Asker>,
}

impl Waiting {
    pub(super) fn callers(&self) -> impl Iterator<Item = Caller> {
        self.askers.iter().map(|asker| asker.caller)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Start => "start",
            Kind::Reload { .. } => "reload",
            Kind::Activate(_) => "activate",
            Kind::Rollback => "rollback",
        })
    }
}

impl Rollout {
    pub(super) fn request(&mut self, caller: Caller, request: Request) {
        if self.ending.is_some() {
            return self.answer(caller, exit::FAILED, "the service shuts down");
        }
        match request {
            Request::Reload { all, drained } => {
                self.enqueue(Kind::Reload { all }, Asker { caller, drained });
            }
            Request::Activate { backends, drained } => {
                self.enqueue(Kind::Activate(backends), Asker { caller, drained });
            }
            Request::Rollback => self.enqueue(
                Kind::Rollback,
                Asker {
                    caller,
                    drained: false,
                },
            ),
            Request::Hold { timeout, owned } => self.hold(caller, timeout, owned),
            Request::Release { when_ready } => self.ask_release(caller, when_ready),
        }
    }

    /// Joins the waiting run of this kind, or makes it.
    fn enqueue(&mut self, kind: Kind, asker: Asker) {
        self.retry.at = None;
        self.supersede(&kind);
        let same = |waiting: &&mut Waiting| {
            std::mem::discriminant(&waiting.kind) == std::mem::discriminant(&kind)
        };
        let Some(waiting) = self.waiting.iter_mut().find(same) else {
            return self.waiting.push(Waiting {
                kind,
                askers: vec![asker],
            });
        };
        let overruled = match (&mut waiting.kind, kind) {
            (Kind::Reload { all }, Kind::Reload { all: more }) => {
                *all |= more;
                Vec::new()
            }
            (Kind::Activate(backends), Kind::Activate(newer)) if *backends != newer => {
                *backends = newer;
                std::mem::take(&mut waiting.askers)
            }
            _ => Vec::new(),
        };
        waiting.askers.push(asker);
        let message = format!("a newer activate took its place; {}", self.serves());
        for asker in overruled {
            self.answer(asker.caller, exit::FAILED, &message);
        }
    }

    /// Ends a run that hasn't flipped yet and isn't wanted any more: an automatic retry, or any in whose place a rollback comes that
    /// is possible.
    fn supersede(&mut self, by: &Kind) {
        let rolls_back = *by == Kind::Rollback && self.rollback_to().is_ok();
        let Some(run) = &self.run else { return };
        let flipped = matches!(
            self.phase(),
            Some(Phase::MinReady { .. } | Phase::Replacing)
        );
        if flipped || !(run.automatic || rolls_back) {
            return;
        }
        let Some(run) = self.cancel_run() else { return };
        let what = if run.automatic { "retry" } else { "run" };
        let message = format!(
            "a new request took the place of the {what}; {}",
            self.serves()
        );
        for asker in &run.askers {
            self.answer(asker.caller, exit::FAILED, &message);
        }
        self.step(None, "superseded", message.clone());
        let outcome = ReloadOutcome::Superseded;
        self.act(Action::Finished {
            outcome,
            message,
            began: run.began,
        });
    }

    /// Whether a waiting run, or a retry, may begin.
    pub(super) fn may_begin(&self) -> bool {
        self.run.is_none() && self.ending.is_none() && self.has_room()
    }

    fn has_room(&self) -> bool {
        let most = self.config.max_generations.max(2);
        self.config.strategy == Strategy::Replace || self.generations.len() < most
    }

    /// Begins the next run, if one waits and may. A rollback that isn't possible is over at once.
    pub(super) fn begin_next(&mut self) -> bool {
        let may = |waiting: &Waiting| waiting.kind == Kind::Rollback || self.has_room();
        if let Some(next) = self.waiting.iter().position(may) {
            let Waiting { kind, askers } = self.waiting.remove(next);
            match kind {
                Kind::Rollback => self.begin_rollback(askers),
                kind => self.begin_load(kind, askers, false),
            }
            return true;
        }
        if !self.waiting.is_empty() {
            self.cut_keep();
        } else if self.retry.at.is_some_and(|at| at <= self.now) && self.may_begin() {
            self.act(Action::Retrying);
            self.begin_load(Kind::Reload { all: false }, Vec::new(), true);
        }
        false
    }

    fn begin_load(&mut self, kind: Kind, askers: Vec<Asker>, automatic: bool) {
        let source = match &kind {
            Kind::Activate(backends) => Source::Addresses(backends.clone()),
            Kind::Reload { all } => Source::File { all: *all },
            Kind::Start | Kind::Rollback => Source::File { all: false },
        };
        self.begin(kind, askers, automatic, Phase::Loading);
        self.act(Action::Load(self.last_run, source));
    }

    fn begin_rollback(&mut self, askers: Vec<Asker>) {
        match self.rollback_to() {
            Ok(number) => {
                self.end_starting();
                self.begin(Kind::Rollback, askers, false, Phase::Starting(number));
                self.flip(number);
            }
            Err(why) => {
                let message = format!("rollback isn't possible: {why}; {}", self.serves());
                for asker in askers {
                    self.answer(asker.caller, self.failed(), &message);
                }
            }
        }
    }
}
