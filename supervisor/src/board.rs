//! What other threads may look at without a turn of the supervisor's loop.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use syngate_gate::{Gate, Generation, ServiceId};
use syngate_metrics::Service;

/// Whoever doesn't turn for this long is stuck.
pub(crate) const STUCK: Duration = Duration::from_secs(10);

/// See the module.
pub struct Board {
    origin: Instant,
    /// Milliseconds from `origin`.
    live_until: AtomicU64,
    watched: Mutex<Watched>,
}

#[derive(Default)]
struct Watched {
    gate: Weak<Gate>,
    services: HashMap<ServiceId, (Arc<Service>, Vec<Arc<Generation>>)>,
}

impl std::fmt::Debug for Board {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Board")
            .field("live", &self.live())
            .finish_non_exhaustive()
    }
}

impl Board {
    pub(crate) fn new() -> Board {
        let watched = Mutex::default();
        Board {
            origin: Instant::now(),
            live_until: AtomicU64::new(u64::MAX),
            watched,
        }
    }

    /// The loop and all workers turn.
    pub(crate) fn beat(&self) {
        let until = self.origin.elapsed() + STUCK;
        self.live_until.store(until.as_millis() as u64, Relaxed);
    }

    pub(crate) fn live(&self) -> bool {
        self.live_until.load(Relaxed) >= self.origin.elapsed().as_millis() as u64
    }

    pub(crate) fn watch_gate(&self, gate: &Arc<Gate>) {
        self.watched().gate = Arc::downgrade(gate);
    }

    /// These are the service's generations from now on.
    pub(crate) fn watch(&self, id: ServiceId, metrics: &Arc<Service>, all: Vec<Arc<Generation>>) {
        self.watched()
            .services
            .insert(id, (Arc::clone(metrics), all));
    }

    pub(crate) fn forget(&self, id: ServiceId) {
        self.watched().services.remove(&id);
    }

    pub(crate) fn sample(&self) {
        let watched = self.watched();
        if let Some(gate) = watched.gate.upgrade() {
            gate.sample();
        }
        for (metrics, generations) in watched.services.values() {
            let leases = generations.iter().map(|one| (one.number(), one.leases()));
            metrics.set_generation_connections(&leases.collect::<Vec<_>>());
        }
    }

    fn watched(&self) -> MutexGuard<'_, Watched> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
