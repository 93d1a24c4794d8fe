//! What the gate is told of limits and time-outs.

use std::net::IpAddr;
use std::time::Duration;

use crate::proxy_protocol;

/// What is the process's.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Threads, at least 1.
    pub workers: usize,
    /// Clients in any phase.
    pub max_connections: u64,
    /// Pending connections.
    pub pending_max: u64,
}

/// What is a service's.
#[derive(Clone, Debug, PartialEq)]
pub struct ServiceSettings {
    /// Bound of a wait.
    pub pending_timeout: Duration,
    /// What happens at the limits.
    pub pending_overflow: Overflow,
    /// Connections dispatched and not yet accepted by a backend, at most.
    pub dispatch_concurrency: u32,
    /// Bound of one connect.
    pub connect_timeout: Duration,
    /// No byte either way for this long; `None` is off.
    pub idle_timeout: Option<Duration>,
    /// The same, once one side has ended.
    pub half_close_timeout: Option<Duration>,
    /// TCP keepalive towards remote endpoints on connections older than 30 s; `None` is off.
    pub keepalive: Option<Duration>,
    /// A PROXY header towards the backend.
    pub send_proxy: Option<proxy_protocol::Version>,
    /// Peers that must send one.
    pub accept_proxy: Option<proxy_protocol::Trusted>,
    /// Bound of its arrival.
    pub accept_proxy_timeout: Duration,
    /// Source addresses towards remote endpoints; empty: the system's choice.
    pub sources: Vec<IpAddr>,
}

/// What happens to a client that there is no room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overflow {
    /// Accepting stops; the kernel's backlog holds it.
    Backpressure,
    /// It is accepted and reset.
    Reset,
}
