//! One service's counters: the workers' blocks, and what the supervisor reports.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use prometheus::core::Metric as _;
use prometheus::{HistogramOpts, proto};

use crate::block::{Cells, ListenerBlock, ServiceBlock};
use crate::labels::{
    CloseReason, ConnectionState, GenerationState, Label, PendingOutcome, ReloadOutcome,
    ReloadPhase,
};
use crate::listener::{Listener, ListenerTotals, Listeners};
use crate::lock;

/// Upper bounds in seconds: a check takes tens of milliseconds, a drain may take an hour.
const PHASE_BOUNDS: [f64; 16] = [
    0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0, 3600.0,
];

/// What is counted and reported for one service. The supervisor's methods may be called from any thread.
pub struct Service {
    blocks: Box<[ServiceBlock]>,
    listeners: Mutex<Listeners>,
    pub(crate) reloads: Cells<ReloadOutcome, AtomicU64>,
    /// One a phase, in the label's order.
    phases: Vec<prometheus::Histogram>,
    last_success_milliseconds: AtomicU64,
    last_reload_successful: AtomicBool,
    active: AtomicU64,
    pub(crate) generations: Cells<GenerationState, AtomicU64>,
    held: AtomicBool,
    restarts: AtomicU64,
    /// Generation and its connections.
    connections: Mutex<Vec<(u64, u64)>>,
}

impl Service {
    pub(crate) fn new(workers: usize) -> Service {
        Service {
            blocks: (0..workers).map(|_| ServiceBlock::default()).collect(),
            listeners: Mutex::default(),
            reloads: Cells::default(),
            phases: ReloadPhase::ALL.iter().map(|_| phase_histogram()).collect(),
            last_success_milliseconds: AtomicU64::new(0),
            last_reload_successful: AtomicBool::new(false),
            active: AtomicU64::new(0),
            generations: Cells::default(),
            held: AtomicBool::new(false),
            restarts: AtomicU64::new(0),
            connections: Mutex::default(),
        }
    }

    /// The block that this worker's thread alone may write.
    ///
    /// # Panics
    ///
    /// If `worker` isn't below the number of workers that [`Metrics::new`](crate::Metrics::new) was told.
    pub fn block(&self, worker: usize) -> &ServiceBlock {
        &self.blocks[worker]
    }

    /// The listener of this name; made, with all its series, if there is none.
    pub fn listener(&self, name: &str) -> Arc<Listener> {
        lock(&self.listeners).add(name, self.blocks.len())
    }

    /// Moves what this listener counted, and what its open connections are still to count, to `listener="removed"`. A listener
    /// that comes back with the same name starts anew.
    pub fn remove_listener(&self, name: &str) {
        lock(&self.listeners).remove(name);
    }

    /// Counts the end of a run. A success or a failure also sets what `last_reload_successful` says; a run that is tried again, or
    /// that a newer one replaced, leaves it alone.
    pub fn reload_finished(&self, outcome: ReloadOutcome) {
        self.reloads[outcome].fetch_add(1, Relaxed);
        match outcome {
            ReloadOutcome::Success => {
                self.last_success_milliseconds
                    .store(unix_milliseconds(), Relaxed);
                self.last_reload_successful.store(true, Relaxed);
            }
            ReloadOutcome::Retried | ReloadOutcome::Superseded => {}
            ReloadOutcome::CheckFailed
            | ReloadOutcome::ListenFailed
            | ReloadOutcome::StartFailed
            | ReloadOutcome::NotReady
            | ReloadOutcome::FlippedBack => self.last_reload_successful.store(false, Relaxed),
        }
    }

    /// Counts how long a step of the ladder took.
    pub fn observe_phase(&self, phase: ReloadPhase, duration: Duration) {
        self.phases[phase.index()].observe(duration.as_secs_f64());
    }

    /// Says which generation is active; 0 is none.
    pub fn set_active(&self, generation: u64) {
        self.active.store(generation, Relaxed);
    }

    /// Says how many generations are in this state.
    pub fn set_generations(&self, state: GenerationState, count: u64) {
        self.generations[state].store(count, Relaxed);
    }

    /// Says whether an operator holds the service.
    pub fn set_held(&self, held: bool) {
        self.held.store(held, Relaxed);
    }

    /// Counts a restart of a backend that had died while active.
    pub fn backend_restarted(&self) {
        self.restarts.fetch_add(1, Relaxed);
    }

    /// Says how many connections each living generation has, as pairs of its number and the count. Generations that aren't
    /// named here lose their series.
    pub fn set_generation_connections(&self, generations: &[(u64, u64)]) {
        *lock(&self.connections) = generations.to_vec();
    }

    /// Connections accepted, ever.
    pub fn accepted(&self) -> u64 {
        self.sum_listeners(|block| block.accepted.get())
    }

    /// Connections closed for this reason, ever.
    pub fn closed(&self, reason: CloseReason) -> u64 {
        self.sum_listeners(|block| block.closed[reason].get())
    }

    /// Connections in this state now.
    pub fn open(&self, state: ConnectionState) -> u64 {
        self.sum_listeners(|block| block.open[state].level())
    }

    /// Connections reset because a deadline had passed, ever.
    pub fn forced_closes(&self) -> u64 {
        self.totals().forced_closes.get()
    }

    /// Waits in the pending queue that ended so, ever.
    pub fn pending_outcomes(&self, outcome: PendingOutcome) -> u64 {
        self.totals().pending_outcomes[outcome].get()
    }

    fn sum_listeners(&self, read: impl Fn(&ListenerBlock) -> u64) -> u64 {
        self.listener_totals()
            .values()
            .map(|totals| read(&totals.block))
            .sum()
    }

    pub(crate) fn listener_totals(&self) -> BTreeMap<String, ListenerTotals> {
        lock(&self.listeners).totals()
    }

    /// The sum of the workers' blocks.
    pub(crate) fn totals(&self) -> ServiceBlock {
        let sum = ServiceBlock::default();
        for block in &self.blocks {
            sum.absorb(block);
        }
        sum
    }

    pub(crate) fn phase(&self, phase: ReloadPhase) -> proto::Histogram {
        self.phases[phase.index()].metric().get_histogram().clone()
    }

    /// Seconds since 1970, 0 if no reload has succeeded.
    pub(crate) fn last_success_seconds(&self) -> f64 {
        self.last_success_milliseconds.load(Relaxed) as f64 / 1e3
    }

    pub(crate) fn last_reload_successful(&self) -> bool {
        self.last_reload_successful.load(Relaxed)
    }

    pub(crate) fn active(&self) -> u64 {
        self.active.load(Relaxed)
    }

    pub(crate) fn held(&self) -> bool {
        self.held.load(Relaxed)
    }

    pub(crate) fn restarts(&self) -> u64 {
        self.restarts.load(Relaxed)
    }

    pub(crate) fn generation_connections(&self) -> Vec<(u64, u64)> {
        lock(&self.connections).clone()
    }
}

/// Its own name is never shown: the family gives it.
fn phase_histogram() -> prometheus::Histogram {
    let opts = HistogramOpts::new("phase", "phase").buckets(PHASE_BOUNDS.to_vec());
    prometheus::Histogram::with_opts(opts).expect("the name is valid and the bounds rise")
}

fn unix_milliseconds() -> u64 {
    SystemTime::UNIX_EPOCH
        .elapsed()
        .map_or(0, |since| since.as_millis() as u64)
}
