//! Prometheus reads the scrape, and finds each series from the start.

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

use crate::common::backend::{self, Hop};
use crate::common::gate::{Gate, Setup};
use crate::common::http;
use crate::common::net::Net;
use crate::common::wait_for;

/// Each series whose labels are known at the start: its name, a label of its own, and the values that this takes.
type Family = (&'static str, &'static str, &'static [&'static str]);

/// Of each service and listener.
const OF_LISTENERS: [Family; 7] = [
    ("connections_accepted_total", "", &[]),
    (
        "connections_open",
        "state",
        &["greeting", "pending", "connecting", "relaying"],
    ),
    (
        "connections_closed_total",
        "reason",
        &[
            "eof",
            "client_reset",
            "backend_reset",
            "idle_timeout",
            "half_close_timeout",
            "pending_timeout",
            "overflow",
            "drain_timeout",
            "shutdown",
            "proxy_header",
            "unaccepted",
            "backend_gone",
        ],
    ),
    ("relayed_bytes_total", "direction", &["in", "out"]),
    (
        "accept_errors_total",
        "errno",
        &[
            "ECONNABORTED",
            "EMFILE",
            "ENFILE",
            "ENOBUFS",
            "ENOMEM",
            "EPROTO",
            "other",
        ],
    ),
    ("listener_backlog", "", &[]),
    ("listener_drops_total", "", &[]),
];

/// Of each service.
const OF_SERVICES: [Family; 21] = [
    (
        "pending_wait_seconds_bucket",
        "le",
        &["0.001", "60", "+Inf"],
    ),
    ("pending_wait_seconds_sum", "", &[]),
    ("pending_wait_seconds_count", "", &[]),
    (
        "pending_outcomes_total",
        "outcome",
        &[
            "dispatched",
            "timeout",
            "overflow",
            "client_reset",
            "shutdown",
        ],
    ),
    (
        "dispatch_attempts_total",
        "result",
        &[
            "ok", "refused", "timeout", "again", "no_port", "reset", "error",
        ],
    ),
    ("redispatches_total", "", &[]),
    ("connect_duration_seconds_bucket", "le", &["+Inf"]),
    ("connect_duration_seconds_sum", "", &[]),
    ("connect_duration_seconds_count", "", &[]),
    ("generation_active", "", &[]),
    (
        "generations",
        "state",
        &[
            "starting", "ready", "active", "draining", "retired", "failed",
        ],
    ),
    ("generation_connections", "generation", &["1"]),
    (
        "reloads_total",
        "outcome",
        &[
            "success",
            "check_failed",
            "listen_failed",
            "start_failed",
            "not_ready",
            "flipped_back",
            "retried",
            "superseded",
        ],
    ),
    (
        "reload_duration_seconds_bucket",
        "phase",
        &["check", "start", "ready", "flip", "drain"],
    ),
    (
        "reload_duration_seconds_sum",
        "phase",
        &["check", "start", "ready", "flip", "drain"],
    ),
    (
        "reload_duration_seconds_count",
        "phase",
        &["check", "start", "ready", "flip", "drain"],
    ),
    ("last_reload_success_timestamp_seconds", "", &[]),
    ("last_reload_successful", "", &[]),
    ("forced_closes_total", "", &[]),
    ("backend_restarts_total", "", &[]),
    ("held", "", &[]),
];

/// Of the process and its network namespace.
const OF_PROCESS: [Family; 3] = [
    ("build_info", "", &[]),
    ("kernel_listen_drops_total", "", &[]),
    ("kernel_listen_overflows_total", "", &[]),
];

/// Two services with a listener of each kind.
const SERVICES: [(&str, [&str; 2]); 2] = [("web", ["front", "local"]), ("mail", ["smtp", "lmtp"])];

#[test]
fn every_series_is_there_from_the_start() {
    let net = Net::new();
    let gate = two_services(&net);
    let metrics = gate.metrics();
    let mut missing = Vec::new();
    let mut look = |(name, label, values): &Family, of: &[(&str, &str)]| {
        let all = match *label {
            "" => vec![of.to_vec()],
            _ => values
                .iter()
                .map(|value| [of, &[(*label, *value)]].concat())
                .collect(),
        };
        let gone = all
            .into_iter()
            .filter(|labels| metrics.find(name, labels).is_none());
        missing.extend(gone.map(|labels| format!("{name} {labels:?}")));
    };
    OF_PROCESS.iter().for_each(|family| look(family, &[]));
    for (service, listeners) in SERVICES {
        let of = [("service", service)];
        OF_SERVICES.iter().for_each(|family| look(family, &of));
        for listener in listeners {
            let of = [("service", service), ("listener", listener)];
            OF_LISTENERS.iter().for_each(|family| look(family, &of));
        }
    }
    assert!(missing.is_empty(), "missing: {missing:#?}");
    let text = gate.ask("/metrics").expect("a scrape").text();
    assert!(text.contains("\nprocess_open_fds "), "no process_* series");
}

#[test]
fn promtool_finds_nothing_to_complain_about() {
    let net = Net::new();
    let gate = two_services(&net);
    check_with_promtool(&gate);
    for _ in 0..20 {
        http::get(gate.public(), "/").expect("an answer");
        http::unix(&gate.dir().join("local.sock"), "GET", "/").expect("an answer");
    }
    gate.reload();
    check_with_promtool(&gate);
}

/// Of one service the TCP listener is the setup's public address.
fn two_services(net: &Net) -> Gate {
    let setup = Setup::bare(net).options(["--config", "syngate.toml"]);
    let program = &backend::own(Hop::Socket, &[])[0];
    let addresses = [setup.public(), net.free_address()];
    let services = SERVICES.iter().zip(addresses);
    // A server for each listener, since each has a socket of its own.
    let text = services.map(|((service, [tcp, unix]), address)| {
        let path = setup.dir().join(format!("{unix}.sock"));
        let of = |listener: &str| format!("unix:$SYNGATE_SOCKET_{}", listener.to_uppercase());
        let script = format!("{program} {} & exec {program} {}", of(tcp), of(unix));
        format!(
            "[services.{service}]
listen = ['{tcp}={address}', '{unix}=unix:{}']
command = ['sh', '-c', '{script}', 'sh', '{{socket}}']
min_ready = '100ms'
",
            path.display()
        )
    });
    fs::write(
        setup.dir().join("syngate.toml"),
        text.collect::<Vec<_>>().concat(),
    )
    .expect("the file");
    setup.start()
}

#[track_caller]
fn check_with_promtool(gate: &Gate) {
    let text = gate.ask("/metrics").expect("a scrape").text();
    let mut promtool = Command::new("promtool");
    promtool
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = match promtool.spawn() {
        Ok(child) => child,
        Err(error) => panic!("promtool (Debian's prometheus) is needed: {error}"),
    };
    child
        .stdin
        .take()
        .expect("a pipe")
        .write_all(text.as_bytes())
        .expect("write");
    let output = child.wait_with_output().expect("wait");
    let said = [output.stdout, output.stderr].concat();
    assert!(
        output.status.success() && said.is_empty(),
        "{}",
        String::from_utf8_lossy(&said)
    );
}

/// What was counted stays counted: no counter falls over a reload.
#[test]
fn counters_never_fall() {
    let net = Net::new();
    let gate = Setup::new(&net)
        .options(["--min-ready", "100ms"])
        .backend(backend::own(Hop::Socket, &[]))
        .start();
    let mut last = 0.0;
    for round in 1..=3 {
        http::get(gate.public(), "/").expect("an answer");
        gate.reload();
        let metrics = gate.metrics();
        let accepted = metrics.sum("connections_accepted_total", &[]);
        assert!(accepted > last, "round {round}: {accepted} after {last}");
        last = accepted;
    }
}

/// With any port the gate says which one it has.
#[test]
fn the_status_names_the_port_that_was_bound() {
    let net = Net::new();
    let gate = Setup::new(&net)
        .replace_metrics(([127, 0, 0, 1], 0).into())
        .backend(backend::own(Hop::Socket, &[]))
        .spawn();
    let status = wait_for("the control socket answers", || {
        http::unix(gate.control(), "GET", "/v1/status").ok()
    });
    let status: serde_json::Value = serde_json::from_slice(&status.body).expect("JSON");
    let url = status["metrics"].as_str().expect("a URL").to_owned();
    let address = url
        .strip_prefix("http://")
        .and_then(|rest| rest.strip_suffix("/metrics"))
        .and_then(|address| address.parse().ok());
    let address = address.unwrap_or_else(|| panic!("{url}"));
    let scrape = http::get(address, "/metrics").expect("a scrape");
    assert!(scrape.text().contains("syngate_build_info"));
}
