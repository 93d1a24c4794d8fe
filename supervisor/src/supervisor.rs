//! The one loop that feeds the rollouts of all services, and executes what they say.
//!
//! It runs on the main thread, which alone starts processes. It never waits for a client, a backend or a clock: what takes time
//! is a task that sends a message. It does wait for the gate's workers where an order must be kept (a flip), which is a turn of
//! theirs.

mod calls;
mod checks;
mod context;
mod generation;
mod health;
mod hear;
mod history;
mod listeners;
mod loading;
mod requests;
mod servers;
mod service;
mod status;
mod stop;
mod watch;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use syngate_gate::{Event as GateEvent, Gate};
use syngate_metrics::Metrics;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use tokio_util::task::TaskTracker;

use crate::child::Spawner;
use crate::config::{Config, ServiceConfig};
use crate::exit;
use crate::handle::{self, Ask, Asked, Handle};
use crate::haproxy::binary::Binaries;
use crate::launch::Places;
use crate::notify::Manager;
use crate::rollout::Event;
use crate::runtime_dir::RuntimeDir;

use calls::Calls;
use context::{Context, Message};
use service::Service;
use stop::Stop;

pub use checks::{CheckFailed, check};
pub use context::Load;

/// How often the loop looks after itself: watchdogs, readiness.
const BEAT: Duration = Duration::from_secs(1);

/// A watchdog that is shorter is a mistake.
const LEAST_BEAT: Duration = Duration::from_millis(1);

/// What a supervisor is made of.
pub struct Parts {
    /// The running gate, without services.
    pub gate: Gate,
    /// What its workers say.
    pub gate_events: mpsc::UnboundedReceiver<GateEvent>,
    /// Where everything is counted.
    pub metrics: Arc<Metrics>,
    /// Where that is served, as bound.
    pub metrics_address: Option<SocketAddr>,
    /// As read at the start.
    pub config: Config,
    /// Reads it again.
    pub load: Load,
    /// Locked.
    pub runtime_dir: RuntimeDir,
    /// Starts children.
    pub spawner: Spawner,
    /// Who started the gate.
    pub manager: Manager,
    /// Sockets from LISTEN_FDS, by name.
    pub inherited: HashMap<String, Vec<OwnedFd>>,
    /// Of this syngate.
    pub version: &'static str,
}

/// Why nothing was started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A service's check says no.
    #[error("service {service}: {why}")]
    Check {
        /// Its name.
        service: String,
        /// A sentence.
        why: String,
    },
    /// The system refuses a port, a directory or a process.
    #[error("{0}")]
    System(String),
}

impl StartError {
    /// The exit code of `run`.
    pub fn exit_code(&self) -> u8 {
        match self {
            StartError::Check { .. } => exit::BAD_CONFIGURATION,
            StartError::System(_) => exit::REFUSED,
        }
    }
}

/// The loop. See the module.
pub struct Supervisor {
    cx: Context,
    services: Vec<Service>,
    asked: Asked,
    messages: mpsc::UnboundedReceiver<Message>,
    gate_events: mpsc::UnboundedReceiver<GateEvent>,
    metrics: Arc<Metrics>,
    metrics_address: Option<SocketAddr>,
    manager: Manager,
    /// The manager has been told of a reload that isn't over.
    reloading: bool,
    told_ready: bool,
    version: &'static str,
    stop: Option<Stop>,
    turns: Vec<(u64, Instant)>,
    /// Of removed services: the number of the last generation, for one that comes back with the name.
    numbers: HashMap<String, u64>,
    /// When the log last said that the gate lacks descriptors.
    lack_told: Option<Instant>,
}

impl Supervisor {
    /// A supervisor that has started nothing yet, and the handle of it.
    pub fn new(parts: Parts) -> (Supervisor, Handle) {
        let (handle, asked) = handle::pair();
        let (sender, messages) = mpsc::unbounded_channel();
        let gate = Arc::new(parts.gate);
        asked.board.watch_gate(&gate);
        let workers = gate.turns().len();
        let now = Instant::now();
        let cx = Context {
            gate,
            workers,
            spawner: parts.spawner,
            binaries: Binaries::default(),
            runtime_dir: parts.runtime_dir,
            places: Arc::new(Mutex::new(Places::new())),
            inherited: parts.inherited,
            config: parts.config,
            load: parts.load,
            loaded: None,
            messages: sender,
            calls: Calls::new(asked.steps.clone()),
            board: Arc::clone(&asked.board),
            origin: now,
            clean_up: TaskTracker::new(),
            closing: TaskTracker::new(),
            leaving: Vec::new(),
            stopping: false,
        };
        let supervisor = Supervisor {
            cx,
            services: Vec::new(),
            asked,
            messages,
            gate_events: parts.gate_events,
            metrics: parts.metrics,
            metrics_address: parts.metrics_address,
            manager: parts.manager,
            reloading: false,
            told_ready: false,
            version: parts.version,
            stop: None,
            turns: vec![(0, now); workers],
            numbers: HashMap::new(),
            lack_told: None,
        };
        (supervisor, handle)
    }

    /// Starts everything and runs until a shutdown is over.
    ///
    /// # Errors
    /// A check says no, or a port can't be had: then nothing has been started.
    pub async fn run(mut self) -> Result<(), StartError> {
        if !self.start().await? {
            self.cx.clean_up.close();
            self.sweep().await;
            return Ok(());
        }
        // A service manager wants to hear it twice within its time (sd_watchdog_enabled(3)).
        let watchdog = self.manager.watchdog().unwrap_or(Duration::MAX) / 2;
        let mut beat = tokio::time::interval(BEAT.min(watchdog).max(LEAST_BEAT));
        loop {
            self.cx.loaded = None;
            self.end_leaving().await;
            self.publish();
            if self.is_over() {
                break;
            }
            let deadline = self.deadline();
            tokio::select! {
                Some(ask) = self.asked.asks.recv() => self.take(ask).await,
                Some(message) = self.messages.recv() => self.receive(message).await,
                Some(event) = self.gate_events.recv() => self.hear(event),
                () = sleep_until(deadline) => self.tick().await,
                _ = beat.tick() => self.beat(),
            }
        }
        self.end().await;
        Ok(())
    }

    /// Checks everything, then binds everything, then starts everything. A shutdown that comes while it checks is all there is
    /// to do: `false`.
    async fn start(&mut self) -> Result<bool, StartError> {
        let ended = self.cx.runtime_dir.recover().await;
        let ended = ended.map_err(|error| StartError::System(error.to_string()))?;
        if ended > 0 {
            tracing::warn!(ended, "ended what a dead gate had left");
        }
        let mut early = Vec::new();
        let services = {
            let mut checks = std::pin::pin!(checks::all(&self.cx));
            loop {
                tokio::select! {
                    checked = &mut checks => break checked?,
                    Some(ask) = self.asked.asks.recv() => match ask {
                        Ask::Shutdown => return Ok(false),
                        ask => early.push(ask),
                    }
                }
            }
        };
        for config in services {
            self.add(config, false).await;
        }
        for service in &mut self.services {
            let config = Arc::clone(service.rollout.config());
            service
                .bind(&self.cx, &config)
                .map_err(StartError::System)?;
        }
        for service in &mut self.services {
            service.open(&mut self.cx).await;
            if service.rollout.config().is_complete() {
                service.feed(&mut self.cx, Event::Start).await;
            } else {
                // Nobody can wait for it: the first reload begins to serve.
                (service.begun, service.late) = (true, true);
            }
        }
        for ask in early {
            self.take(ask).await;
        }
        Ok(true)
    }

    /// `late`: it came with a reload.
    async fn add(&mut self, config: ServiceConfig, late: bool) {
        let metrics = self.metrics.service(&config.name);
        let last = self.numbers.get(&config.name).copied().unwrap_or_default();
        let mut service = Service::new(&self.cx, metrics, config).await;
        service.rollout.count_from(last);
        service.late = late;
        service.awaited = late;
        self.services.push(service);
    }

    /// The next moment at which a rollout wants to be called.
    fn deadline(&self) -> Instant {
        let next = self
            .services
            .iter()
            .filter_map(|service| service.rollout.deadline())
            .min();
        let rollouts = next.map(|at| self.cx.origin + at);
        let stop = match self.stop {
            Some(Stop::Closing(end)) => Some(end),
            _ => None,
        };
        // Nothing is due: the beat comes first.
        let far = Instant::now() + Duration::from_secs(3600);
        rollouts.into_iter().chain(stop).min().unwrap_or(far)
    }

    async fn tick(&mut self) {
        let now = self.cx.now();
        for service in &mut self.services {
            if service.rollout.deadline().is_some_and(|at| at <= now) {
                service.feed(&mut self.cx, Event::Tick).await;
            }
        }
    }

    async fn receive(&mut self, message: Message) {
        match message {
            Message::Event(id, event) => {
                if let Some(service) = self.services.iter_mut().find(|service| service.id == id) {
                    service.feed(&mut self.cx, event).await;
                }
            }
            Message::CheckSays(id, output) => {
                if let Some(service) = self.services.iter_mut().find(|service| service.id == id) {
                    for line in output.lines() {
                        service.step(&self.cx, None, "check", line.to_owned());
                    }
                }
            }
            Message::Started(id, number, started) => {
                let service = self.services.iter_mut().find(|service| service.id == id);
                let Some(service) = service else { return };
                if let Some(live) = service.lives.get_mut(&number) {
                    let took = live.began.elapsed();
                    live.started(*started);
                    service.took(syngate_metrics::ReloadPhase::Start, took);
                }
            }
            Message::Ready(id, number, endpoints) => {
                if let Some(service) = self.services.iter_mut().find(|service| service.id == id) {
                    service.ready(&mut self.cx, number, endpoints).await;
                }
            }
            Message::Gone(caller) => {
                for service in &mut self.services {
                    service.feed(&mut self.cx, Event::Gone(caller)).await;
                }
            }
            Message::Emptied(id) => {
                if let Some(service) = self.services.iter_mut().find(|service| service.id == id) {
                    service.feed(&mut self.cx, Event::Emptied).await;
                }
            }
            Message::Sent(id, in_time) => {
                if let Some(service) = self.services.iter_mut().find(|service| service.id == id) {
                    service.sent(&self.cx, in_time).await;
                }
            }
            Message::HandedOver(id, listener) => {
                self.cx.leaving.retain(|left| left.open.id != listener);
                if let Some(service) = self.services.iter_mut().find(|service| service.id == id) {
                    service.listeners.retain(|open| open.id != listener);
                }
            }
            Message::Open(id, run, config) => {
                let service = self.services.iter_mut().find(|service| service.id == id);
                if let Some(service) = service.filter(|service| service.rollout.opens(run)) {
                    service.try_open(&self.cx, run, config);
                }
            }
            Message::Close => self.close().await,
        }
        self.drop_removed().await;
    }

    async fn take(&mut self, ask: Ask) {
        match ask {
            Ask::Request { request, lines } => self.request(request, lines).await,
            Ask::Status(answer) => {
                // Whoever asked may have gone.
                let _ = answer.send(self.status());
            }
            Ask::Connections {
                service,
                generation,
                answer,
            } => {
                self.connections(&service, generation, answer);
            }
            Ask::Shutdown => self.shut_down().await,
        }
    }

    /// Services that were removed and have ended.
    async fn drop_removed(&mut self) {
        let over = |service: &mut Service| service.removed && service.has_ended();
        let gone: Vec<Service> = self.services.extract_if(.., over).collect();
        for service in gone {
            self.cx.board.forget(service.id);
            self.cx.gate.remove_service(service.id).await;
            if !self.services.iter().any(|other| other.name == service.name) {
                self.metrics.remove_service(&service.name);
            }
            tracing::info!(service = service.name, "the service has ended");
        }
    }
}

#[cfg(test)]
mod tests;
