//! One service: its rollout, and the hands that do what the rollout says.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::Signal;
use syngate_gate::{Endpoints, Generation, ServiceId};
use syngate_metrics::{GenerationState as Gauge, ReloadOutcome, ReloadPhase};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use super::context::{Context, wall_clock};
use super::generation::Live;
use super::history::History;
use super::listeners::{Bound, Open};
use super::loading::Activated;
use crate::config::ServiceConfig;
use crate::protocol::{Failure, GenerationState, Step};
use crate::rollout::{Action, Event, Rollout, Time};

pub(super) struct Service {
    pub(super) id: ServiceId,
    pub(super) name: String,
    pub(super) rollout: Rollout,
    pub(super) metrics: Arc<syngate_metrics::Service>,
    pub(super) listeners: Vec<Open>,
    pub(super) history: History,
    pub(super) last_failure: Option<Failure>,
    /// Its first run has ended, however.
    pub(super) begun: bool,
    /// It has had an active generation.
    pub(super) served: bool,
    /// Since when it has none.
    pub(super) idle_since: Instant,
    /// It came with a reload: until it serves, the gate is as ready as without it.
    pub(super) late: bool,
    /// It came with a reload and hasn't served yet, or is to have listeners of the services that this reload ends: they serve until
    /// it does.
    pub(super) awaited: bool,
    /// It isn't in the configuration any more, and serves on.
    pub(super) leaving: bool,
    /// It isn't in the configuration any more, and ends.
    pub(super) removed: bool,
    pub(super) lives: BTreeMap<u64, Live>,
    /// The listeners that runs have removed and that aren't closed yet.
    pub(super) closing: TaskTracker,
    /// Bound by the run, not accepting yet.
    pub(super) bound: Vec<Bound>,
    pub(super) activated: Option<Activated>,
    /// What the run that goes on would put there.
    pub(super) activating: Option<Activated>,
    pub(super) active: watch::Sender<Option<Arc<Generation>>>,
    /// What happens belongs to a run.
    in_run: bool,
    /// When the run began that goes on or was the last, or somebody asked for something since.
    run_began: Instant,
    pub(super) check_began: Instant,
    pub(super) check: Option<AbortOnDropHandle<()>>,
    pub(super) hold: Option<AbortOnDropHandle<()>>,
    pub(super) probe: Option<AbortOnDropHandle<()>>,
    /// Waits until clients have what the generations have left, once the last one has ended.
    pub(super) sending: Option<AbortOnDropHandle<()>>,
    /// And has done so.
    pub(super) sent: bool,
    retired: u64,
    failed: u64,
}

impl Service {
    pub(super) async fn new(
        cx: &Context,
        metrics: Arc<syngate_metrics::Service>,
        config: ServiceConfig,
    ) -> Service {
        let id = cx.gate.add_service(&config.name, config.gate.clone()).await;
        let now = Instant::now();
        let closing = TaskTracker::new();
        // One that is closed can be waited for, and takes more all the same.
        closing.close();
        Service {
            id,
            name: config.name.clone(),
            rollout: Rollout::new(Arc::new(config)),
            metrics,
            listeners: Vec::new(),
            history: History::default(),
            last_failure: None,
            begun: false,
            served: false,
            idle_since: now,
            late: false,
            awaited: false,
            leaving: false,
            removed: false,
            lives: BTreeMap::new(),
            closing,
            bound: Vec::new(),
            activated: None,
            activating: None,
            active: watch::Sender::new(None),
            in_run: false,
            run_began: now,
            check_began: now,
            check: None,
            hold: None,
            probe: None,
            sending: None,
            sent: false,
            retired: 0,
            failed: 0,
        }
    }

    /// Somebody asks for something: what follows, unless it belongs to a run that goes on, is told as so long after this.
    pub(super) fn asked(&mut self) {
        if !self.rollout.reloading() {
            self.run_began = Instant::now();
        }
    }

    /// Feeds the rollout, and does what it says.
    pub(super) async fn feed(&mut self, cx: &mut Context, event: Event) {
        if let Event::Ended(number, _) = &event
            && let Some(live) = self.lives.get(number).filter(|live| !live.told)
            && let Some(generation) = &live.gate
        {
            cx.gate.backend_gone(self.id, generation).await;
        }
        if matches!(event, Event::Checked(..)) {
            self.took(ReloadPhase::Check, self.check_began.elapsed());
        }
        let was = self.rollout.reloading();
        let actions = self.rollout.handle(cx.now(), event);
        // A run may end within this, or even come and go: what comes after its end isn't its own.
        let ends = |action: &Action| matches!(action, Action::Finished { .. });
        self.in_run = was || self.rollout.reloading() || actions.iter().any(ends);
        for action in actions {
            self.act(cx, action).await;
        }
        self.in_run = self.rollout.reloading();
        if self.rollout.ended_all() && self.sending.is_none() {
            self.await_sent(cx);
        }
        self.show(cx);
    }

    /// A generation has proven that it is ready.
    pub(super) async fn ready(&mut self, cx: &mut Context, number: u64, endpoints: Endpoints) {
        let Some(live) = self.lives.get_mut(&number) else {
            return;
        };
        let raw = live.config.raw_listeners();
        let make = match live.pid() {
            Some(_) => Generation::of_process,
            None => Generation::new,
        };
        live.gate = Some(make(number, cx.workers, endpoints, raw));
        let since = live.started.unwrap_or(live.began);
        let time = since.elapsed();
        self.took(ReloadPhase::Ready, time);
        self.feed(cx, Event::Ready(number)).await;
    }

    async fn act(&mut self, cx: &mut Context, action: Action) {
        match action {
            Action::Load(run, source) => {
                self.run_began = Instant::now();
                let config = self.load(cx, source);
                self.read(cx, run, config);
            }
            Action::Check(run, config) => self.begin_check(cx, run, config),
            Action::CancelCheck => self.check = None,
            Action::Open(run, config) => self.try_open(cx, run, config),
            Action::Start {
                generation,
                config,
                heir_of,
            } => {
                let older = heir_of.and_then(|older| self.lives.get_mut(&older));
                let kept = older.and_then(Live::bequeath);
                let active = self
                    .rollout
                    .active()
                    .and_then(|active| self.lives.get(&active));
                let older = active.and_then(Live::stats);
                if self.in_run {
                    self.history.starts(generation);
                }
                let live = Live::start(cx, self.id, generation, config, kept, older);
                self.lives.insert(generation, live);
            }
            Action::Activate(number) => self.activate(cx, number).await,
            Action::WatchQueue(number) => self.watch_queue(cx, number),
            Action::WatchLeases(number) => {
                if let Some(live) = self.lives.get_mut(&number) {
                    live.watch_leases = true;
                }
                self.released(cx, number);
            }
            Action::LeaveQueue(number) => self.leave_queue(cx, number),
            Action::Reset(number) => self.reset(cx, number).await,
            Action::Signal(number, signal) => self.signal(number, signal),
            Action::Kill(number) => self.signal(number, Signal::SIGKILL),
            Action::Forget(number) => self.forget(cx, number),
            Action::Hold => self.begin_hold(cx).await,
            Action::Release => {
                self.hold = None;
                self.probe = None;
                cx.gate.hold(self.id, false).await;
            }
            Action::Probe => self.begin_probe(cx),
            Action::Step {
                generation,
                step,
                message,
            } => self.step(cx, generation, step, message),
            Action::Finished {
                outcome,
                message,
                began,
            } => self.finished(cx, outcome, message, began).await,
            Action::Retrying => self.metrics.reload_finished(ReloadOutcome::Retried),
            Action::Restarting => self.metrics.backend_restarted(),
            Action::Answer(caller, exit, message) => {
                cx.calls.answer(caller, &self.name, exit, message);
            }
        }
    }

    async fn activate(&mut self, cx: &mut Context, number: Option<u64>) {
        let began = Instant::now();
        for (old, live) in &mut self.lives {
            if live.state != GenerationState::Active {
                continue;
            }
            let ended = live
                .gate
                .as_ref()
                .is_some_and(|generation| generation.ended());
            live.replaced = (!ended).then_some(began);
            if !ended && self.in_run {
                self.history.replaces(*old);
            }
        }
        let mut live = number.and_then(|number| self.lives.get_mut(&number));
        if let Some(live) = &mut live {
            live.replaced = None;
        }
        if let Some(number) = number {
            self.history.keeps(number);
        }
        let config = live.as_ref().map(|live| Arc::clone(&live.config));
        let generation = live.and_then(|live| live.gate.clone());
        self.idle_since = began;
        if generation.is_some() {
            self.served = true;
            self.awaited = false;
        }
        self.metrics.set_active(number.unwrap_or(0));
        self.active.send_replace(generation.clone());
        // What is to be active next says how long its clients may wait.
        let in_force = config.as_ref().or(self.rollout.wanted());
        let settings = &in_force.unwrap_or(self.rollout.config()).gate;
        let names = self.listeners.iter().filter_map(|open| {
            let wanted = config.as_ref()?.listener_of(&open.config)?;
            (wanted.name != open.config.name).then_some((open.id, wanted.name.as_str()))
        });
        let names: Vec<_> = names.collect();
        cx.gate
            .activate(self.id, generation, settings.clone(), &names)
            .await;
        if let Some(live) = number.and_then(|number| self.lives.get(&number)) {
            live.publish();
        }
        if number.is_some() {
            self.took(ReloadPhase::Flip, began.elapsed());
        }
        if let Some(config) = &config {
            self.change(cx, config);
        }
        let has = |bound: &Bound| {
            config
                .as_ref()
                .is_some_and(|config| config.has_socket(&bound.config))
        };
        if self.bound.iter().all(has) {
            self.open(cx).await;
        }
    }

    fn signal(&mut self, number: u64, signal: Signal) {
        tracing::debug!(service = self.name, generation = number, %signal, "signal");
        if let Some(live) = self.lives.get_mut(&number) {
            live.signal(signal);
        }
    }

    fn forget(&mut self, cx: &Context, number: u64) {
        let Some(live) = self.lives.remove(&number) else {
            return;
        };
        match live.replaced {
            Some(since) => {
                let time = since.elapsed();
                self.metrics.observe_phase(ReloadPhase::Drain, time);
                self.history.drained(number, time);
                self.retired += 1;
            }
            None => self.failed += 1,
        }
        live.forget(cx, self.id);
    }

    pub(super) fn step(
        &mut self,
        cx: &Context,
        generation: Option<u64>,
        step: &str,
        message: String,
    ) {
        if let ("failed" | "ended", Some(generation)) = (step, generation) {
            self.last_failure = Some(Failure {
                generation,
                message: message.clone(),
                at: wall_clock(),
            });
        }
        match step {
            "failed" if self.rollout.active().is_none() => {
                tracing::error!(service = self.name, generation, step, "{message}");
            }
            "failed" | "reset" => {
                tracing::warn!(service = self.name, generation, step, "{message}");
            }
            _ => tracing::info!(service = self.name, generation, step, "{message}"),
        }
        cx.calls.tell(&Step {
            at: wall_clock(),
            elapsed_seconds: self.run_began.elapsed().as_secs_f64(),
            service: self.name.clone(),
            generation,
            step: step.to_owned(),
            message,
        });
    }

    async fn finished(
        &mut self,
        cx: &mut Context,
        outcome: ReloadOutcome,
        message: String,
        began: Time,
    ) {
        self.metrics.reload_finished(outcome);
        self.begun = true;
        let activating = self.activating.take();
        if outcome == ReloadOutcome::Success && activating.is_some() {
            self.activated = activating;
        }
        self.keep_wanted(cx).await;
        let took = cx.now().saturating_sub(began);
        self.history.ended(outcome, message, took);
        self.in_run = self.rollout.reloading();
    }

    /// A phase has ended; drains are told by [`Service::forget`].
    pub(super) fn took(&mut self, phase: ReloadPhase, time: Duration) {
        self.metrics.observe_phase(phase, time);
        if self.in_run {
            self.history.took(phase, time);
        }
    }

    /// Brings gauges and what others may look at up to date.
    fn show(&mut self, cx: &Context) {
        let mut counts = [0; 4];
        for generation in self.rollout.generations() {
            let state = generation.state();
            if let Some(live) = self.lives.get_mut(&generation.number()) {
                live.state = state;
            }
            match state {
                GenerationState::Starting => counts[0] += 1,
                GenerationState::Ready => counts[1] += 1,
                GenerationState::Active => counts[2] += 1,
                _ => counts[3] += 1,
            }
        }
        let states = [
            Gauge::Starting,
            Gauge::Ready,
            Gauge::Active,
            Gauge::Draining,
        ];
        for (state, count) in states.into_iter().zip(counts) {
            self.metrics.set_generations(state, count);
        }
        self.metrics.set_generations(Gauge::Retired, self.retired);
        self.metrics.set_generations(Gauge::Failed, self.failed);
        self.metrics.set_held(self.rollout.held());
        let all = self.lives.values().filter_map(|live| live.gate.clone());
        cx.board.watch(self.id, &self.metrics, all.collect());
    }
}
