//! What goes over the control socket, version 1 (docs/control.md). JSON; unknown fields are ignored by readers, so that a newer
//! gate may add some.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Answer to `GET /v1/status`.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Status {
    /// When this was, in seconds since 1970.
    #[serde(default)]
    pub at: f64,
    /// The version of syngate that runs.
    pub version: String,
    /// The gate's process id.
    pub pid: u32,
    /// Since the gate's start.
    pub uptime_seconds: f64,
    /// URL of the metrics, if they are on.
    pub metrics: Option<String>,
    /// What `/readyz` says.
    pub ready: bool,
    /// Why not.
    pub not_ready: Option<String>,
    /// Connections open, in any phase.
    pub connections: u64,
    /// Limit of `connections`.
    pub max_connections: u64,
    /// Connections that wait for a backend.
    pub pending: u64,
    /// Limit of `pending`.
    pub pending_max: u64,
    /// In the order of the configuration.
    pub services: Vec<ServiceStatus>,
}

/// One service.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct ServiceStatus {
    /// Its name.
    pub name: String,
    /// Its public listeners.
    pub listeners: Vec<ListenerStatus>,
    /// The active generation.
    pub active: Option<u64>,
    /// Held by an operator.
    pub held: bool,
    /// Connections that wait.
    pub pending: u64,
    /// What happens now: `check`, `starting 4`, `min-ready 4`, `retry in 3.2s`; `None`: nothing.
    pub running: Option<String>,
    /// Live generations, oldest first.
    pub generations: Vec<GenerationStatus>,
    /// How the last run ended.
    pub last_reload: Option<Reload>,
    /// The last ten runs, oldest first.
    #[serde(default)]
    pub reloads: Vec<Reload>,
    /// The last end or failed start of a generation.
    pub last_failure: Option<Failure>,
    /// The addresses that `activate` put in place of the configuration's backend.
    pub activated: Option<Vec<String>>,
}

/// One public listener.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct ListenerStatus {
    /// Its name.
    pub name: String,
    /// The address that it is bound to.
    pub address: String,
    /// Connections in the kernel's accept queue.
    pub backlog: u64,
    /// SYNs and connections that the kernel dropped at this listener.
    pub drops: u64,
}

/// A generation's state.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum GenerationState {
    /// Its process runs, and hasn't proven that it is ready.
    Starting,
    /// Ready, not yet active.
    Ready,
    /// New connections go to it.
    Active,
    /// It keeps the connections that it has.
    Draining,
    /// It ended otherwise.
    Failed,
}

/// One generation.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct GenerationStatus {
    /// Its number.
    pub number: u64,
    /// Its state.
    pub state: GenerationState,
    /// Its process, if the supervisor started one.
    pub pid: Option<u32>,
    /// Since its start.
    pub age_seconds: f64,
    /// Connections that it holds.
    pub connections: u64,
    /// Where it listens.
    pub endpoints: Vec<String>,
    /// What it waits for, while it drains: `min-ready`, `accept queue`, `12 connections`, `its end`.
    pub waits_for: Option<String>,
    /// Its endpoint that takes no connection, and why; `None`: all that were tried do.
    pub refused: Option<String>,
}

/// How a run ended.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Reload {
    /// The generation that it started; `None`: it didn't come to that.
    #[serde(default)]
    pub generation: Option<u64>,
    /// The one that got no new connections from then on, and drains or has ended.
    #[serde(default)]
    pub replaced: Option<u64>,
    /// The label of `reloads_total`.
    pub outcome: String,
    /// One line for an operator: what happened and what serves.
    pub message: String,
    /// Seconds since 1970.
    pub at: f64,
    /// The run's length.
    pub seconds: f64,
    /// What took how long, in the order of the ends. The drain of what it replaced may come long after the run's own end.
    #[serde(default)]
    pub phases: Vec<Phase>,
}

/// A part of a run.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Phase {
    /// The label of `reload_duration_seconds`.
    pub phase: String,
    /// Its length.
    pub seconds: f64,
}

/// A generation that couldn't be started, or ended when nobody wanted it to.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Failure {
    /// Its number.
    pub generation: u64,
    /// One line for an operator: what happened and what served then.
    pub message: String,
    /// Seconds since 1970.
    pub at: f64,
}

/// Answer to `GET /v1/services/NAME/connections`: one line each.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Connection {
    /// The listener that accepted it.
    pub listener: String,
    /// The client's address; `unix` for a unix socket.
    pub peer: String,
    /// Its generation; `None` while it waits.
    pub generation: Option<u64>,
    /// The label of `connections_open`.
    pub state: String,
    /// Since its accept.
    pub age_seconds: f64,
    /// Bytes from the client to the backend.
    pub bytes_in: u64,
    /// Bytes from the backend to the client.
    pub bytes_out: u64,
}

/// One line of a verb's answer, and of `GET /v1/events`.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum Line {
    /// A step.
    Step(Step),
    /// The last line.
    Done(Done),
    /// Lines that are missing here, since the reader was too slow for them.
    Lost {
        /// How many.
        lines: u64,
    },
}

/// A step of a run, or of a drain.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Step {
    /// Seconds since 1970.
    pub at: f64,
    /// Since the run's beginning.
    pub elapsed_seconds: f64,
    /// Whose.
    pub service: String,
    /// Which generation, where one is meant.
    pub generation: Option<u64>,
    /// One word: `check`, `starting`, `ready`, `active`, `success`, `draining`, `drained`, `failed`, `held`, `released` ...
    pub step: String,
    /// One line for an operator.
    pub message: String,
}

/// How a verb ended.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Done {
    /// The command's exit code: one of [`crate::exit`].
    pub exit: u8,
    /// One line for an operator: what happened and what serves.
    pub message: String,
}

/// What a verb asks for.
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    /// `reload`: one service, or all.
    Reload {
        /// `None`: all, and the file's services and listeners come and go.
        service: Option<String>,
        /// Answer only when the old generations are drained.
        drained: bool,
    },
    /// `hold`.
    Hold {
        /// `None`: the only one, else an error.
        service: Option<String>,
        /// Released by itself after this; `None`: `pending_timeout`.
        timeout: Option<Duration>,
        /// Released when the asker goes away (`hold -- CMD`).
        owned: bool,
    },
    /// `release`.
    Release {
        /// As in `Hold`.
        service: Option<String>,
        /// Wait until the active generation's endpoints answer first (`hold -- CMD`).
        when_ready: bool,
    },
    /// `activate`.
    Activate {
        /// As in `Hold`.
        service: Option<String>,
        /// As `--backend`, already checked.
        backends: Vec<crate::config::BackendAddress>,
        /// Answer only when the old generations are drained.
        drained: bool,
    },
    /// `rollback`.
    Rollback {
        /// As in `Hold`.
        service: Option<String>,
    },
}

impl Request {
    /// The service that it names, to be resolved.
    pub fn service_mut(&mut self) -> Option<&mut String> {
        let (Self::Reload { service, .. }
        | Self::Hold { service, .. }
        | Self::Release { service, .. }
        | Self::Activate { service, .. }
        | Self::Rollback { service }) = self;
        service.as_mut()
    }
}
