//! What all services share.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use syngate_gate::{Endpoints, Gate, ListenerId, ServiceId};
use syngate_metrics::CloseReason;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use super::calls::Calls;
use super::generation::Started;
use super::listeners::Left;
use crate::board::Board;
use crate::child::Spawner;
use crate::config::{Config, ServiceConfig};
use crate::haproxy::binary::Binaries;
use crate::launch::Places;
use crate::protocol::Line;
use crate::rollout::{Caller, Event, Time};
use crate::runtime_dir::RuntimeDir;

/// Reads the configuration again.
pub type Load = Box<dyn Fn() -> Result<Config, String> + Send + Sync>;

/// What tasks tell the loop.
pub(super) enum Message {
    /// For a service's rollout.
    Event(ServiceId, Event),
    /// What a service's check has printed before it said no.
    CheckSays(ServiceId, String),
    /// A generation's process runs.
    Started(ServiceId, u64, Box<Started>),
    /// A generation is ready, and this is where it listens.
    Ready(ServiceId, u64, Endpoints),
    /// Nobody listens to the answer any more.
    Gone(Caller),
    /// The public listeners of a service that ends are closed, and nothing of it is pending.
    Emptied(ServiceId),
    /// No client of a service that has no generation any more is still being sent something; or (`false`) the time for that is over.
    Sent(ServiceId, bool),
    /// A listener of this service, which leaves, is another one's by now.
    HandedOver(ServiceId, ListenerId),
    /// Bind the listeners of a run again: an address may be free by now.
    Open(ServiceId, u64, Arc<ServiceConfig>),
    /// `lame_duck` has passed.
    Close,
}

pub(super) struct Context {
    pub(super) gate: Arc<Gate>,
    pub(super) workers: usize,
    pub(super) spawner: Spawner,
    pub(super) binaries: Binaries,
    pub(super) runtime_dir: RuntimeDir,
    pub(super) places: Arc<Mutex<Places>>,
    pub(super) inherited: HashMap<String, Vec<OwnedFd>>,
    /// In force, but for the services.
    pub(super) config: Config,
    pub(super) load: Load,
    /// What `load` has said in this turn of the loop: reloads that begin together read the file once.
    pub(super) loaded: Option<Result<Config, String>>,
    pub(super) messages: mpsc::UnboundedSender<Message>,
    pub(super) calls: Calls,
    pub(super) board: Arc<Board>,
    pub(super) origin: Instant,
    /// Clean-up of generations that have ended: waited for at the end.
    pub(super) clean_up: TaskTracker,
    /// Public listeners that are being closed: their addresses are free in a moment.
    pub(super) closing: TaskTracker,
    /// The open listeners of services that leave.
    pub(super) leaving: Vec<Left>,
    /// The gate stops.
    pub(super) stopping: bool,
}

impl Context {
    pub(super) fn now(&self) -> Time {
        self.origin.elapsed()
    }

    /// Why connections are closed whose time is over.
    pub(super) fn cut_for(&self) -> CloseReason {
        if self.stopping {
            CloseReason::Shutdown
        } else {
            CloseReason::DrainTimeout
        }
    }

    /// For this turn or a later one: the loop takes it up.
    pub(super) fn send(&self, message: Message) {
        // The loop has the other end for as long as it runs.
        let _ = self.messages.send(message);
    }

    pub(super) fn event(&self, service: ServiceId, event: Event) {
        self.send(Message::Event(service, event));
    }

    /// A call of these services; that its caller goes away is told by a message.
    pub(super) fn call(&mut self, lines: mpsc::Sender<Line>, services: Vec<String>) -> Caller {
        let caller = self.calls.add(lines.clone(), services);
        let messages = self.messages.clone();
        tokio::spawn(async move {
            lines.closed().await;
            let _ = messages.send(Message::Gone(caller));
        });
        caller
    }

    /// The file's configuration, with what may change in the process's part in force.
    ///
    /// # Errors
    /// A sentence: the file is bad, or a key has changed that is fixed for the process's life.
    pub(super) fn load(&mut self) -> Result<Config, String> {
        if let Some(loaded) = &self.loaded {
            return loaded.clone();
        }
        let loaded = (self.load)().and_then(|config| self.accept(config));
        self.loaded.insert(loaded).clone()
    }

    fn accept(&mut self, config: Config) -> Result<Config, String> {
        let (old, new) = (&self.config.process, &config.process);
        let fixed = [
            ("control", old.control != new.control),
            ("runtime_dir", old.runtime_dir != new.runtime_dir),
            ("metrics", old.metrics != new.metrics),
            ("workers", old.workers != new.workers),
        ];
        if let Some((key, _)) = fixed.iter().find(|(_, changed)| *changed) {
            return Err(format!(
                "`{key}` has changed, and is fixed for the gate's life: change it back, or restart the gate"
            ));
        }
        self.gate.set_limits(new.max_connections, new.pending_max);
        self.config.process = new.clone();
        Ok(config)
    }
}

/// Seconds since 1970.
pub(super) fn wall_clock() -> f64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs_f64()
}
