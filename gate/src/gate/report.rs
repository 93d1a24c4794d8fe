//! What the gate says to the supervisor.

use std::net::SocketAddr;
use std::time::Duration;

use syngate_metrics::ConnectionState;

use super::ServiceId;

/// What a worker tells the supervisor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// In one worker the last lease of a generation that isn't active ended: see [`Generation::leases`].
    Released {
        /// Whose.
        service: ServiceId,
        /// Which.
        generation: u64,
    },
    /// An endpoint of the active generation doesn't take connections; said once until it answers again.
    Refused {
        /// Whose.
        service: ServiceId,
        /// Which.
        generation: u64,
        /// Its address and the error.
        why: String,
    },
    /// The gate has no descriptor or memory for a connect, whatever the endpoint may be; said again as long as that lasts.
    Lacks {
        /// Whose.
        service: ServiceId,
        /// Which.
        generation: u64,
        /// The endpoint's address and the error.
        why: String,
    },
    /// It answers again.
    Answers {
        /// Whose.
        service: ServiceId,
        /// Which.
        generation: u64,
    },
}

/// One open connection, for `syngate connections`.
#[derive(Clone, Debug)]
pub struct ConnectionInfo {
    /// The listener that accepted it.
    pub listener: String,
    /// The client's address; `None` for a unix socket.
    pub peer: Option<SocketAddr>,
    /// Its generation, once it has one.
    pub generation: Option<u64>,
    /// What it does.
    pub state: ConnectionState,
    /// Since the accept.
    pub age: Duration,
    /// Bytes from the client to the backend.
    pub bytes_in: u64,
    /// Bytes from the backend to the client.
    pub bytes_out: u64,
}
