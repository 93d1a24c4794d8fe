//! A simple model of the outside: it remembers what it was asked to do, answers when told to, and checks the invariants at each
//! action.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::Signal;
use syngate_gate::{Overflow, ServiceSettings};
use syngate_metrics::ReloadOutcome;

use crate::config::{Backend, BackendAddress, BackendTarget, Pass, ServiceConfig, Strategy};
use crate::protocol::GenerationState;
use crate::readiness::Ready;
use crate::rollout::{Action, Caller, End, Event, Request, Rollout, Source, Time, exit};

pub(super) const MS: Duration = Duration::from_millis(1);
pub(super) const SECOND: Duration = Duration::from_secs(1);

/// A service with a command, no delays, and the default time-outs.
pub(crate) fn config() -> ServiceConfig {
    ServiceConfig {
        name: "default".to_owned(),
        listeners: Vec::new(),
        backend: Backend::Command {
            argv: vec!["server".to_owned()],
            fixed: Vec::new(),
        },
        pass: Pass::None,
        strategy: Strategy::Overlap,
        check: None,
        check_timeout: 30 * SECOND,
        ready: Ready::Tcp,
        ready_timeout: 30 * SECOND,
        ready_settle: 100 * MS,
        min_ready: SECOND,
        drain_delay: Duration::ZERO,
        drain_signal: Some(Signal::SIGUSR1),
        drain_timeout: Some(30 * SECOND),
        stop_signal: Signal::SIGTERM,
        stop_timeout: 5 * SECOND,
        keep_previous: Duration::ZERO,
        max_generations: 8,
        retry: false,
        gate: ServiceSettings {
            pending_timeout: 30 * SECOND,
            pending_overflow: Overflow::Backpressure,
            dispatch_concurrency: 64,
            connect_timeout: 3 * SECOND,
            idle_timeout: None,
            half_close_timeout: None,
            keepalive: None,
            send_proxy: None,
            accept_proxy: None,
            accept_proxy_timeout: 3 * SECOND,
            sources: Vec::new(),
        },
        backlog: 4096,
        keepalive: None,
    }
}

pub(super) fn reload() -> Request {
    Request::Reload {
        all: false,
        drained: false,
    }
}

pub(super) fn activate(port: u16) -> Request {
    let address = BackendTarget::Tcp("192.0.2.1".to_owned(), port);
    let backends = vec![BackendAddress {
        listener: None,
        address,
    }];
    Request::Activate {
        backends,
        drained: false,
    }
}

pub(super) fn exited(status: i32) -> End {
    End::Exited {
        how: format!("exited with status {status}"),
        as_asked: status == 0,
        last_line: Some("no luck".into()),
    }
}

/// Something that the outside was asked to do and hasn't done.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Owed {
    Load(u64, Source),
    Check(u64, Config),
    Open(u64),
    Start(u64),
    Queue(u64),
    Leases(u64),
    /// A process that was told to end.
    End(u64),
    Hold,
    Probe,
}

/// A configuration, without looking into it.
#[derive(Clone, Debug)]
pub(super) struct Config(pub(super) Arc<ServiceConfig>);

impl PartialEq for Config {
    fn eq(&self, other: &Config) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

#[derive(Debug)]
struct Asked {
    at: Time,
    /// Success needs a run that began later.
    runs: bool,
}

pub(super) struct World {
    pub(super) rollout: Rollout,
    pub(super) now: Time,
    /// What is on disk.
    pub(super) file: ServiceConfig,
    pub(super) owed: Vec<Owed>,
    pub(super) answers: BTreeMap<Caller, (u8, String)>,
    pub(super) finished: Vec<(ReloadOutcome, String)>,
    /// All actions since the last look.
    pub(super) actions: Vec<Action>,
    pub(super) configs: BTreeMap<u64, Arc<ServiceConfig>>,
    last_caller: Caller,
    asked: BTreeMap<Caller, Asked>,
    processes: BTreeSet<u64>,
    unforgotten: BTreeSet<u64>,
    /// The active generation and since when.
    active: Option<(u64, Time)>,
    ever_active: BTreeSet<u64>,
    /// Had a successor that passed its `min_ready`.
    succeeded: BTreeSet<u64>,
    /// Told to go by a `replace` run, whatever is configured by the time they do.
    replaced: BTreeSet<u64>,
    active_at_begin: Option<u64>,
    successes: Vec<Time>,
    pub(super) ending: bool,
}

impl World {
    pub(super) fn new(config: ServiceConfig) -> World {
        World {
            rollout: Rollout::new(Arc::new(config.clone())),
            now: SECOND,
            file: config,
            owed: Vec::new(),
            answers: BTreeMap::new(),
            finished: Vec::new(),
            actions: Vec::new(),
            configs: BTreeMap::new(),
            last_caller: 0,
            asked: BTreeMap::new(),
            processes: BTreeSet::new(),
            unforgotten: BTreeSet::new(),
            active: None,
            ever_active: BTreeSet::new(),
            succeeded: BTreeSet::new(),
            replaced: BTreeSet::new(),
            active_at_begin: None,
            successes: Vec::new(),
            ending: false,
        }
    }

    /// A service whose first generation is active.
    pub(super) fn serving(config: ServiceConfig) -> World {
        let mut world = World::new(config);
        world.feed(Event::Start);
        world.settle();
        assert_eq!(world.rollout.active(), Some(1));
        world.actions.clear();
        world.finished.clear();
        world
    }

    pub(super) fn feed(&mut self, event: Event) {
        // Each event has a moment of its own, so that "after" can be told from "before".
        self.now += Duration::from_nanos(1);
        if let Some((active, since)) = self.active
            && self.now >= since + self.rollout.config().min_ready
        {
            self.succeeded
                .extend(self.configs.keys().filter(|number| **number != active));
        }
        self.ending |= matches!(event, Event::Shutdown { .. } | Event::ShutdownNow);
        if let Event::Ended(number, _) = &event {
            self.processes.remove(number);
        }
        for action in self.rollout.handle(self.now, event) {
            self.check(&action);
            self.actions.push(action);
        }
        self.check_rest();
    }

    pub(super) fn ask(&mut self, request: Request) -> Caller {
        self.last_caller += 1;
        let runs = !matches!(request, Request::Hold { .. } | Request::Release { .. });
        let at = self.now + Duration::from_nanos(1);
        self.asked.insert(self.last_caller, Asked { at, runs });
        self.feed(Event::Request(self.last_caller, request));
        self.last_caller
    }

    fn check(&mut self, action: &Action) {
        match action.clone() {
            Action::Load(run, source) => {
                self.active_at_begin = self.rollout_active();
                self.owed.push(Owed::Load(run, source));
            }
            Action::Check(run, config) => self.owed.push(Owed::Check(run, Config(config))),
            Action::CancelCheck => self.owed.retain(|owed| !matches!(owed, Owed::Check(..))),
            Action::Open(run, _) => self.owed.push(Owed::Open(run)),
            Action::Start {
                generation,
                config,
                heir_of,
            } => {
                assert!(heir_of.is_none_or(|older| self.unforgotten.contains(&older)));
                let process = matches!(config.backend, Backend::Command { .. });
                if config.strategy == Strategy::Replace && process {
                    assert!(
                        self.processes.is_empty(),
                        "two processes of a `replace` service"
                    );
                }
                assert!(
                    self.configs.insert(generation, config).is_none(),
                    "a number is used again"
                );
                self.unforgotten.insert(generation);
                if process {
                    self.processes.insert(generation);
                }
                self.owed.push(Owed::Start(generation));
            }
            Action::Activate(number) => {
                assert!(number.is_none_or(|number| self.unforgotten.contains(&number)));
                if number.is_none() && self.rollout.config().strategy == Strategy::Replace {
                    self.replaced.extend(self.rollout_active());
                }
                self.active = number.map(|number| (number, self.now));
                self.ever_active.extend(number);
            }
            Action::WatchQueue(number) => self.owed.push(Owed::Queue(number)),
            Action::WatchLeases(number) => self.owed.push(Owed::Leases(number)),
            Action::Reset(number) => self.check_told_to_end(number),
            Action::Signal(number, signal) => {
                self.check_told_to_end(number);
                assert!(self.processes.contains(&number), "no process to signal");
                if signal == self.configs[&number].stop_signal {
                    self.owed.retain(|owed| *owed != Owed::Start(number));
                    self.owed.push(Owed::End(number));
                }
            }
            Action::Kill(number) => {
                self.check_told_to_end(number);
                assert!(
                    self.owed.contains(&Owed::End(number)),
                    "killed without a word before"
                );
            }
            Action::Forget(number) => {
                assert!(self.unforgotten.remove(&number), "forgotten twice");
                assert!(
                    !self.processes.contains(&number),
                    "forgotten while its process lives"
                );
                assert_ne!(self.active.map(|(active, _)| active), Some(number));
                self.owed.retain(|owed| {
                    ![
                        Owed::Start(number),
                        Owed::Queue(number),
                        Owed::Leases(number),
                    ]
                    .contains(owed)
                });
            }
            Action::Hold => self.owed.push(Owed::Hold),
            Action::Probe => self.owed.push(Owed::Probe),
            Action::Release => self
                .owed
                .retain(|owed| ![Owed::Hold, Owed::Probe].contains(owed)),
            Action::Finished {
                outcome,
                message,
                began,
            } => self.finish(outcome, message, began),
            Action::Answer(caller, exit, message) => self.answered(caller, exit, message),
            Action::Step { .. } | Action::LeaveQueue(_) | Action::Retrying | Action::Restarting => {
            }
        }
    }

    fn rollout_active(&self) -> Option<u64> {
        self.active.map(|(number, _)| number)
    }

    /// An `overlap` generation that was active is left alone until its successor has passed its `min_ready`.
    fn check_told_to_end(&self, number: u64) {
        let overlap = self
            .configs
            .values()
            .all(|config| config.strategy == Strategy::Overlap)
            && self.rollout.config().strategy == Strategy::Overlap;
        if overlap && !self.ending && self.ever_active.contains(&number) {
            assert!(
                self.succeeded.contains(&number) || self.replaced.contains(&number),
                "{number} is told to end too early"
            );
        }
    }

    fn finish(&mut self, outcome: ReloadOutcome, message: String, began: Time) {
        if outcome == ReloadOutcome::Success {
            self.successes.push(began);
        } else if let Some(active) = self.active_at_begin.take()
            && self.rollout.config().strategy == Strategy::Overlap
            && self.processes.contains(&active)
        {
            assert_eq!(
                self.rollout_active(),
                Some(active),
                "a failed run changed what serves"
            );
        }
        self.finished.push((outcome, message));
    }

    fn answered(&mut self, caller: Caller, exit: u8, message: String) {
        let asked = &self.asked[&caller];
        if asked.runs && exit == exit::DONE {
            let later = self.successes.iter().any(|began| *began >= asked.at);
            assert!(later, "success from a run that began before the request");
        }
        if exit == exit::NOTHING_SERVES {
            assert_eq!(self.active, None);
        }
        assert!(
            self.answers.insert(caller, (exit, message)).is_none(),
            "answered twice"
        );
    }

    fn check_rest(&self) {
        let states: Vec<_> = self
            .rollout
            .generations()
            .map(|g| (g.number(), g.state()))
            .collect();
        let count = |wanted: &[GenerationState]| {
            states
                .iter()
                .filter(|(_, state)| wanted.contains(state))
                .count()
        };
        assert!(count(&[GenerationState::Active]) <= 1, "{states:?}");
        assert!(
            count(&[GenerationState::Starting, GenerationState::Ready]) <= 1,
            "{states:?}"
        );
        assert_eq!(self.rollout.active(), self.rollout_active());
        if let Some(active) = self.rollout.active() {
            assert!(
                states.contains(&(active, GenerationState::Active)),
                "{states:?}"
            );
        }
        assert!(self.rollout.deadline().is_none_or(|at| at > Duration::ZERO));
    }

    /// Does one thing that is owed, well or badly.
    pub(super) fn pay(&mut self, owed: &Owed, good: bool) {
        self.owed.retain(|other| other != owed);
        let result = if good {
            Ok(())
        } else {
            Err("it says no".to_owned())
        };
        let event = match owed.clone() {
            Owed::Load(run, source) => {
                let mut config = self.file.clone();
                if let Source::Addresses(addresses) = source {
                    config.backend = Backend::Addresses(addresses);
                }
                Event::Loaded(run, result.map(|()| Arc::new(config)))
            }
            Owed::Check(run, _) => Event::Checked(run, result),
            Owed::Open(run) => Event::Opened(run, result),
            Owed::Start(number) if good => Event::Ready(number),
            Owed::Start(number) => Event::NotReady(number, "connection refused".to_owned()),
            Owed::Queue(number) => Event::Empty(number),
            Owed::Leases(number) => Event::Drained(number),
            Owed::End(number) => Event::Ended(number, exited(0)),
            Owed::Hold => Event::Held(None),
            Owed::Probe => Event::Answers,
        };
        self.feed(event);
    }

    /// Pays all that is owed.
    pub(super) fn pay_all(&mut self) {
        while let Some(owed) = self.owed.first().cloned() {
            self.pay(&owed, true);
        }
    }

    /// Ends a process by itself.
    pub(super) fn crash(&mut self, number: u64) {
        self.owed
            .retain(|owed| ![Owed::Start(number), Owed::End(number)].contains(owed));
        self.feed(Event::Ended(number, exited(1)));
    }

    pub(super) fn processes(&self) -> Vec<u64> {
        self.processes.iter().copied().collect()
    }

    pub(super) fn unanswered(&self) -> Vec<Caller> {
        let open = |caller: &&Caller| !self.answers.contains_key(caller);
        self.asked.keys().filter(open).copied().collect()
    }

    /// Lets time pass, with every deadline on its way.
    pub(super) fn wait(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(at) = self.rollout.deadline().filter(|at| *at <= end) {
            self.tick(at);
        }
        self.now = end;
        self.feed(Event::Tick);
    }

    /// A tick at a deadline moves it: the loop that waits for deadlines doesn't spin.
    fn tick(&mut self, at: Time) {
        self.now = self.now.max(at);
        self.feed(Event::Tick);
        assert!(
            self.rollout.deadline().is_none_or(|next| next > self.now),
            "a deadline stands still"
        );
    }

    /// The outside does all that it owes until nothing moves.
    pub(super) fn settle(&mut self) {
        for _ in 0..1_000 {
            self.pay_all();
            let Some(at) = self.rollout.deadline() else {
                return;
            };
            self.tick(at);
        }
        panic!("it never comes to rest: {:#?}", self.rollout);
    }

    /// The steps' words since the last look.
    pub(super) fn take(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }

    pub(super) fn answer(&self, caller: Caller) -> (u8, &str) {
        let (exit, message) = self.answers.get(&caller).expect("it is answered");
        (*exit, message)
    }
}
