//! What the gate is to reach in each workload. A change that misses one of these needs a reason.

use super::rows::{
    GATE_COMMAND, GATE_HAPROXY, HUP, SCRAPED, SUCCESSOR, SUCCESSOR_NEW, SYN_DROP, SYNGATE_REMOTE,
    SYNGATE_SOURCES, USR2, USR2_NEW,
};
use crate::relays::{
    HAPROXY, HAPROXY_NEW, HAPROXY_NEW_SPLICE, HAPROXY_NEW_UNIX, HAPROXY_SPLICE, HAPROXY_UNIX,
    NGINX, Relay, SYNGATE, SYNGATE_UNIX,
};
use crate::report::Goal;

const fn goal(gate: &'static Relay, peer: &'static Relay, bound: f64) -> Goal {
    Goal {
        gate: gate.name,
        peer: Some(peer.name),
        measure: 0,
        bound,
    }
}

/// Of the gate's own number.
const fn alone(gate: &'static Relay, bound: f64) -> Goal {
    always(gate, 0, bound)
}

/// Of one of its other numbers.
const fn always(gate: &'static Relay, measure: usize, bound: f64) -> Goal {
    Goal {
        gate: gate.name,
        peer: None,
        measure,
        bound,
    }
}

pub(super) const ONE_STREAM: &[Goal] = &[
    goal(&SYNGATE, &HAPROXY_NEW, 3.0),
    goal(&SYNGATE, &HAPROXY, 3.0),
    goal(&SYNGATE, &HAPROXY_NEW_SPLICE, 1.2),
    goal(&SYNGATE, &HAPROXY_SPLICE, 1.2),
];
pub(super) const SIXTEEN_STREAMS: &[Goal] = &[
    goal(&SYNGATE, &HAPROXY_NEW, 2.5),
    goal(&SYNGATE, &HAPROXY, 2.5),
    goal(&SYNGATE, &HAPROXY_NEW_SPLICE, 1.1),
    goal(&SYNGATE, &HAPROXY_SPLICE, 1.1),
];
pub(super) const PING_PONG_64: &[Goal] = &[
    goal(&SYNGATE, &HAPROXY_NEW, 1.1),
    goal(&SYNGATE, &HAPROXY, 1.1),
];
pub(super) const PING_PONG_512: &[Goal] = &[
    goal(&SYNGATE, &HAPROXY_NEW, 1.15),
    goal(&SYNGATE, &HAPROXY, 1.15),
];
pub(super) const LATENCY_GOALS: &[Goal] = &[
    goal(&SYNGATE, &HAPROXY_NEW, 1.05),
    goal(&SYNGATE, &HAPROXY, 1.05),
];
pub(super) const IDLE_GOALS: &[Goal] = &[alone(&SYNGATE, 400.0)];
pub(super) const PORTS_GOALS: &[Goal] = &[
    alone(&SYNGATE, 1.3),
    alone(&SYNGATE_UNIX, 1.3),
    alone(&SYNGATE_SOURCES, 1.3),
    alone(&SYNGATE_REMOTE, 1.3),
    always(&SYNGATE, 1, 100_000.0),
    always(&SYNGATE_UNIX, 1, 100_000.0),
    always(&SYNGATE_SOURCES, 1, 100_000.0),
    always(&SYNGATE_REMOTE, 1, 28_000.0),
    always(&SYNGATE, 2, 0.0),
    always(&SYNGATE_UNIX, 2, 0.0),
    always(&SYNGATE_SOURCES, 2, 0.0),
    always(&SYNGATE_REMOTE, 2, 0.0),
    // It waits for a port, and doesn't try again and again.
    always(&SYNGATE_REMOTE, 5, 0.05),
];
pub(super) const PENDING_GOALS: &[Goal] = &[
    alone(&SYNGATE, 400.0),
    alone(&SYNGATE_UNIX, 400.0),
    always(&SYNGATE, 3, 0.0),
    always(&SYNGATE_UNIX, 3, 0.0),
];
pub(super) const RELOAD_GOALS: &[Goal] = &[
    goal(&GATE_HAPROXY, &USR2_NEW, 1.0),
    goal(&GATE_HAPROXY, &SUCCESSOR_NEW, 1.0),
    goal(&GATE_HAPROXY, &USR2, 1.0),
    goal(&GATE_HAPROXY, &SUCCESSOR, 1.0),
    goal(&GATE_HAPROXY, &SYN_DROP, 1.0),
    goal(&GATE_HAPROXY, &HUP, 1.0),
    always(&GATE_HAPROXY, 1, 0.0),
    always(&GATE_HAPROXY, 10, 0.0),
    always(&GATE_COMMAND, 1, 0.0),
    always(&GATE_COMMAND, 10, 0.0),
];
pub(super) const SCRAPE_GOAL: &[Goal] = &[goal(&SCRAPED, &SYNGATE, 0.97)];
pub(super) const SHORT_GOALS: &[Goal] = &[
    goal(&SYNGATE, &HAPROXY_NEW, 1.1),
    goal(&SYNGATE, &HAPROXY, 1.1),
    goal(&SYNGATE, &NGINX, 0.97),
    goal(&SYNGATE_UNIX, &HAPROXY_NEW, 1.6),
    goal(&SYNGATE_UNIX, &HAPROXY, 1.6),
    goal(&SYNGATE_UNIX, &HAPROXY_NEW_UNIX, 1.1),
    goal(&SYNGATE_UNIX, &HAPROXY_UNIX, 1.1),
];
