//! What the gate counts and the supervisor reports, as Prometheus series.
//!
//! Invariants:
//!
//! - A counter of the data path is one cell of a block that belongs to one worker. Only that worker's thread writes it, with a
//!   plain load and store, so counting costs no locked instruction and no shared cache line. A scrape sums the blocks.
//! - Every series whose labels are known when a service or a listener is made is there from that moment, at zero.
//! - No counter falls: what a removed listener had counted stays, under `listener="removed"`. Only a removed service's series end.
//!   A total moves there at once, which looks like a burst to `rate`: leave `removed` out of a sum of rates.
//! - There are no statics: a process may hold several [`Metrics`], as tests do.
//!
//! A worker keeps the `Arc` of a [`Service`] or [`Listener`] for as long as it counts there, and takes its own block from it:
//!
//! ```
//! use syngate_metrics::{CloseReason, Metrics};
//!
//! let metrics = Metrics::new("0.1.0", 2);
//! let service = metrics.service("default");
//! let listener = service.listener("l0");
//! let block = listener.block(1); // as worker 1
//! block.accepted.inc();
//! block.closed[CloseReason::Eof].inc();
//! assert_eq!(service.closed(CloseReason::Eof), 1);
//!
//! let series = r#"syngate_connections_accepted_total{service="default",listener="l0"} 1"#;
//! assert!(metrics.encode().lines().any(|line| line == series));
//! ```

mod block;
mod collector;
pub mod description;
mod families;
mod kernel;
mod labels;
mod listener;
mod service;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus::process_collector::ProcessCollector;
use prometheus::{IntGauge, Opts, Registry, TextEncoder};

pub use block::{Cells, Counter, Gauge, Histogram, ListenerBlock, ServiceBlock};
pub use labels::{
    AcceptErrno, CloseReason, ConnectionState, DispatchResult, GenerationState, Label,
    PendingOutcome, ReloadOutcome, ReloadPhase,
};
pub use listener::Listener;
pub use service::Service;

use collector::ServiceCollector;
use kernel::KernelCollector;

/// The services that have series now, by name.
type Services = Mutex<BTreeMap<String, Arc<Service>>>;

/// All series of a process.
pub struct Metrics {
    registry: Registry,
    /// Shared with the collector in `registry`.
    services: Arc<Services>,
    /// How many blocks a service and a listener have.
    workers: usize,
}

impl Metrics {
    /// Makes the series that need no service: the build's version, the process's, and the network namespace's listen drops.
    /// `workers` is the number of threads of the data path.
    pub fn new(version: &str, workers: usize) -> Arc<Metrics> {
        let services = Arc::<Services>::default();
        let registry = Registry::new();
        register(&registry, build_info(version));
        register(&registry, ProcessCollector::for_self());
        register(&registry, KernelCollector::new());
        register(&registry, ServiceCollector::new(Arc::clone(&services)));
        Arc::new(Metrics {
            registry,
            services,
            workers,
        })
    }

    /// The service of this name; made, with all its series, if there is none.
    pub fn service(&self, name: &str) -> Arc<Service> {
        let mut services = lock(&self.services);
        let service = services
            .entry(name.to_owned())
            .or_insert_with(|| Arc::new(Service::new(self.workers)));
        Arc::clone(service)
    }

    /// Ends the series of a service that no longer exists. One that comes back with its name starts anew, at zero.
    pub fn remove_service(&self, name: &str) {
        lock(&self.services).remove(name);
    }

    /// All series in the Prometheus text format 0.0.4.
    pub fn encode(&self) -> String {
        TextEncoder::new()
            .encode_to_string(&self.registry.gather())
            .expect("a gathered family has a name and a metric, and a String takes every write")
    }
}

fn register(registry: &Registry, collector: impl prometheus::core::Collector + 'static) {
    registry
        .register(Box::new(collector))
        .expect("each collector is registered once and their names differ");
}

fn build_info(version: &str) -> IntGauge {
    let opts = Opts::new(
        "syngate_build_info",
        "Always 1; the label says which version runs.",
    );
    let info = IntGauge::with_opts(opts.const_label("version", version))
        .expect("the name and the label are valid");
    info.set(1);
    info
}

/// Locks what stays whole even if a holder panicked: nothing here is changed in two steps that could.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
