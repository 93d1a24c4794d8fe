//! The families of a service: one table says each one's name, meaning, labels and source. To add a series, add it here.

use std::sync::atomic::Ordering::Relaxed;

use prometheus::proto::MetricType;

use crate::collector::{Family, cumulated};
use crate::labels::{Label, ReloadPhase};

/// Every family, in the order of a connection's life and then of a reload's.
pub(crate) const FAMILIES: &[Family] = &[
    Family {
        name: "syngate_connections_accepted_total",
        help: "Connections accepted from clients. Removed listeners are summed up under listener=\"removed\".",
        kind: MetricType::COUNTER,
        labels: &["listener"],
        read: |service, out| out.each_listener(service, |sum| sum.block.accepted.get()),
    },
    Family {
        name: "syngate_connections_open",
        help: "Client connections open now, by what they do: greeting (a PROXY header is awaited), pending (no backend yet), connecting, relaying.",
        kind: MetricType::GAUGE,
        labels: &["listener", "state"],
        read: |service, out| {
            for (listener, sum) in &service.listeners {
                for (state, gauge) in sum.block.open.iter() {
                    out.value(&[listener, state.as_str()], gauge.level() as f64);
                }
            }
        },
    },
    Family {
        name: "syngate_connections_closed_total",
        help: "Client connections ended, by reason. Only eof, client_reset and backend_reset are the peers' own doing.",
        kind: MetricType::COUNTER,
        labels: &["listener", "reason"],
        read: |service, out| {
            for (listener, sum) in &service.listeners {
                for (reason, counter) in sum.block.closed.iter() {
                    out.value(&[listener, reason.as_str()], counter.get() as f64);
                }
            }
        },
    },
    Family {
        name: "syngate_relayed_bytes_total",
        help: "Payload bytes relayed: in is from client to backend, out is from backend to client.",
        kind: MetricType::COUNTER,
        labels: &["listener", "direction"],
        read: |service, out| {
            for (listener, sum) in &service.listeners {
                out.value(&[listener, "in"], sum.block.bytes_in.get() as f64);
                out.value(&[listener, "out"], sum.block.bytes_out.get() as f64);
            }
        },
    },
    Family {
        name: "syngate_accept_errors_total",
        help: "Failed calls of accept(2), by error. EMFILE and ENFILE mean that descriptors ran out, and accepting pauses.",
        kind: MetricType::COUNTER,
        labels: &["listener", "errno"],
        read: |service, out| {
            for (listener, sum) in &service.listeners {
                for (errno, counter) in sum.block.accept_errors.iter() {
                    out.value(&[listener, errno.as_str()], counter.get() as f64);
                }
            }
        },
    },
    Family {
        name: "syngate_listener_backlog",
        help: "Connections that wait in the kernel's accept queue of the public listener; near zero unless the gate applies backpressure.",
        kind: MetricType::GAUGE,
        labels: &["listener"],
        read: |service, out| {
            for (listener, sum) in &service.listeners {
                if let Some(backlog) = sum.backlog {
                    out.value(&[listener], backlog as f64);
                }
            }
        },
    },
    Family {
        name: "syngate_listener_drops_total",
        help: "What the kernel dropped at this very public listener. Zero proves that no SYN was dropped; a number above may also be stray segments, which it counts here too.",
        kind: MetricType::COUNTER,
        labels: &["listener"],
        read: |service, out| out.each_listener(service, |sum| sum.drops),
    },
    Family {
        name: "syngate_pending_wait_seconds",
        help: "How long dispatched connections waited from the accept to the successful connect: what a reload costs the clients.",
        kind: MetricType::HISTOGRAM,
        labels: &[],
        read: |service, out| out.histogram(&[], cumulated(&service.block.pending_wait)),
    },
    Family {
        name: "syngate_pending_outcomes_total",
        help: "How the waits of pending connections ended. All but dispatched and client_reset are clients that were turned away.",
        kind: MetricType::COUNTER,
        labels: &["outcome"],
        read: |service, out| {
            for (outcome, counter) in service.block.pending_outcomes.iter() {
                out.value(&[outcome.as_str()], counter.get() as f64);
            }
        },
    },
    Family {
        name: "syngate_dispatch_attempts_total",
        help: "Connects to backend endpoints, by result. again is a unix endpoint whose backlog was full, no_port is no free local port.",
        kind: MetricType::COUNTER,
        labels: &["result"],
        read: |service, out| {
            for (result, counter) in service.block.dispatch_attempts.iter() {
                out.value(&[result.as_str()], counter.get() as f64);
            }
        },
    },
    Family {
        name: "syngate_redispatches_total",
        help: "Connections dispatched again after a failed connect; the clients saw nothing of it.",
        kind: MetricType::COUNTER,
        labels: &[],
        read: |service, out| out.value(&[], service.block.redispatches.get() as f64),
    },
    Family {
        name: "syngate_connect_duration_seconds",
        help: "How long successful connects to backend endpoints took.",
        kind: MetricType::HISTOGRAM,
        labels: &[],
        read: |service, out| out.histogram(&[], cumulated(&service.block.connect_duration)),
    },
    Family {
        name: "syngate_forced_closes_total",
        help: "Connections that the gate reset because drain_timeout or shutdown_timeout had passed; raise drain_timeout if this grows.",
        kind: MetricType::COUNTER,
        labels: &[],
        read: |service, out| out.value(&[], service.block.forced_closes.get() as f64),
    },
    Family {
        name: "syngate_generation_active",
        help: "Number of the generation to which new connections go; 0 is none: connections are held.",
        kind: MetricType::GAUGE,
        labels: &[],
        read: |service, out| out.value(&[], service.reported.active() as f64),
    },
    Family {
        name: "syngate_generations",
        help: "Generations of the backend, by state.",
        kind: MetricType::GAUGE,
        labels: &["state"],
        read: |service, out| {
            for (state, count) in service.reported.generations.iter() {
                out.value(&[state.as_str()], count.load(Relaxed) as f64);
            }
        },
    },
    Family {
        name: "syngate_generation_connections",
        help: "Connections that each living generation has. A draining one ends when its own reach 0.",
        kind: MetricType::GAUGE,
        labels: &["generation"],
        read: |service, out| {
            for (generation, connections) in service.reported.generation_connections() {
                out.value(&[&generation.to_string()], connections as f64);
            }
        },
    },
    Family {
        name: "syngate_reloads_total",
        help: "Reloads that ended, by outcome. After all but success an older generation serves on, or connections are held.",
        kind: MetricType::COUNTER,
        labels: &["outcome"],
        read: |service, out| {
            for (outcome, count) in service.reported.reloads.iter() {
                out.value(&[outcome.as_str()], count.load(Relaxed) as f64);
            }
        },
    },
    Family {
        name: "syngate_reload_duration_seconds",
        help: "How long each part of a reload took: check, start, ready, flip, and the old generation's drain. What is waited between them (settle, min_ready) is none.",
        kind: MetricType::HISTOGRAM,
        labels: &["phase"],
        read: |service, out| {
            for phase in ReloadPhase::ALL {
                out.histogram(&[phase.as_str()], service.reported.phase(*phase));
            }
        },
    },
    Family {
        name: "syngate_last_reload_success_timestamp_seconds",
        help: "When the last successful reload ended, in seconds since 1970; 0 if none has.",
        kind: MetricType::GAUGE,
        labels: &[],
        read: |service, out| out.value(&[], service.reported.last_success_seconds()),
    },
    Family {
        name: "syngate_last_reload_successful",
        help: "1 if the last reload succeeded; 0 if it failed, or none has ended yet.",
        kind: MetricType::GAUGE,
        labels: &[],
        read: |service, out| out.flag(service.reported.last_reload_successful()),
    },
    Family {
        name: "syngate_backend_restarts_total",
        help: "Restarts of a backend that had died while it was active.",
        kind: MetricType::COUNTER,
        labels: &[],
        read: |service, out| out.value(&[], service.reported.restarts() as f64),
    },
    Family {
        name: "syngate_held",
        help: "1 while an operator holds the service: connections are accepted and wait.",
        kind: MetricType::GAUGE,
        labels: &[],
        read: |service, out| out.flag(service.reported.held()),
    },
];
