//! `status`, `connections` and `events`.

use std::fs;
use std::io::{BufRead, BufReader, Lines};
use std::process::{Child, ChildStdout, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::server;
use crate::common::backend::Outside;
use crate::common::gate::{Gate, Setup};
use crate::common::net::Net;
use crate::common::wait_until;
use crate::common::wire::{connect, send};

#[test]
fn status_and_connections_tell_what_is() {
    let net = Net::new();
    let gate = server(&net, &["--min-ready", "100ms"]);
    let client = connect(gate.public());
    send(&client, b"GET /kept HTTP/1.1\r\n\r\n");
    wait_until("it is relayed", || {
        gate.metrics()
            .sum("relayed_bytes_total", &[("direction", "out")])
            > 0.0
    });

    let connections = gate.run(["connections", "--generation", "1"]);
    let port = client
        .local_addr()
        .expect("an address")
        .as_socket()
        .expect("an IP address")
        .port()
        .to_string();
    connections.expect_code(0).expect_words(&[&port]);
    // One that isn't there, and which are.
    gate.run(["connections", "--generation", "9"])
        .expect_code(1)
        .expect_words(&["there is no generation 9: there is 1"]);

    gate.reload();
    let status = gate.status_json();
    let service = &status["services"][0];
    assert_eq!(service["name"], "default");
    assert_eq!(service["active"], 2);
    assert_eq!(service["last_reload"]["outcome"], "success");
    let generations = service["generations"].as_array().expect("generations");
    let state = |number: u64| {
        generations
            .iter()
            .find(|generation| generation["number"] == number)
            .map(|found| found["state"].clone())
    };
    assert_eq!(state(1), Some(Value::from("draining")), "{status}");
    assert_eq!(state(2), Some(Value::from("active")), "{status}");
    gate.run(["status"])
        .expect_code(0)
        .expect_words(&["default", "active", "draining"]);
    gate.run(["status", "--ready"]).expect_code(0);
    gate.run(["status", "nothing"]).expect_words(&["nothing"]);
    drop(client);
    gate.run(["reload", "--wait", "drained"]).expect_code(0);
    assert_eq!(
        gate.metrics().sum("generations", &[("state", "draining")]),
        0.0,
        "drained means every generation"
    );
}

#[test]
fn a_server_that_somebody_else_runs_and_that_died_is_told() {
    let net = Net::new();
    let setup = Setup::new(&net);
    let socket = setup.dir().join("app.sock");
    let backend = format!("unix:{}", socket.display());
    let app = Outside::start_unix(&socket, &[]);
    let gate = setup.options(["--backend", &backend]).start();
    drop(app);
    let client = connect(gate.public());
    let says = "generation 1 takes no connection";
    wait_until("it is told", || gate.run(["status"]).out.contains(says));
    assert_eq!(gate.status_json()["services"][0]["active"], 1);

    fs::remove_file(&socket).expect("what the dead one left");
    let _app = Outside::start_unix(&socket, &[]);
    send(&client, b"GET / HTTP/1.1\r\n\r\n");
    wait_until("it is over", || !gate.run(["status"]).out.contains(says));
}

#[test]
fn watching_ends_with_an_interrupt() {
    let net = Net::new();
    let gate = server(&net, &[]);
    let (mut watch, mut lines) = follow(&gate, &["status", "--watch", "--json"]);
    for _ in 0..2 {
        let line = lines.next().expect("a line").expect("a line");
        let status: Value = serde_json::from_str(&line).expect("JSON");
        assert_eq!(status["services"][0]["active"], 1);
    }
    interrupt(&watch);
    assert_eq!(watch.wait().expect("wait").code(), Some(0));

    // And where nobody reads on, as behind `head -1`.
    let (mut watch, mut lines) = follow(&gate, &["status", "--watch"]);
    lines.next().expect("a line").expect("a line");
    drop(lines);
    assert_eq!(watch.wait().expect("wait").code(), Some(0));
}

#[test]
fn status_ready_says_4_where_nothing_serves() {
    let net = Net::new();
    let gate = Setup::new(&net)
        .options(["--backend", &net.free_address().to_string()])
        .spawn();
    wait_until("it answers", || gate.ask("/readyz").is_ok());
    assert_eq!(gate.ask("/readyz").expect("an answer").status, 503);
    assert_eq!(gate.ask("/livez").expect("an answer").status, 200);
    gate.run(["status", "--ready"]).expect_code(4);
}

/// A verb that goes on, and its lines.
fn follow(gate: &Gate, verb: &[&str]) -> (Child, Lines<BufReader<ChildStdout>>) {
    let mut child = gate
        .verb(verb)
        .stdout(Stdio::piped())
        .spawn()
        .expect("syngate runs");
    let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    (child, lines)
}

fn interrupt(child: &Child) {
    let pid = i32::try_from(child.id()).expect("a pid");
    kill(Pid::from_raw(pid), Signal::SIGINT).expect("the client");
}

/// Reloads until the reader's first line comes: it may not be subscribed yet.
fn first_line(gate: &Gate, lines: &mut Lines<BufReader<ChildStdout>>) -> String {
    std::thread::scope(|scope| {
        let first = scope.spawn(|| lines.next().expect("a line").expect("a line"));
        while !first.is_finished() {
            gate.reload();
        }
        first.join().expect("the reader")
    })
}

#[test]
fn events_are_told_as_they_happen_until_an_interrupt() {
    let net = Net::new();
    let gate = server(&net, &["--min-ready", "100ms"]);
    let (mut events, mut lines) = follow(&gate, &["events"]);
    let first = first_line(&gate, &mut lines);
    assert!(first.contains("Z  default  "), "{first}");
    let mut lines = lines.map_while(Result::ok);
    assert!(lines.any(|line| line.contains("  success  ")));
    interrupt(&events);
    assert_eq!(events.wait().expect("wait").code(), Some(0));

    let (mut events, mut lines) = follow(&gate, &["events", "default", "--json"]);
    let first: Value = serde_json::from_str(&first_line(&gate, &mut lines)).expect("JSON");
    assert_eq!(
        (&first["type"], &first["service"]),
        (&"step".into(), &"default".into())
    );
    // Nobody reads on: it ends with the next step.
    drop(lines);
    gate.reload();
    assert_eq!(events.wait().expect("wait").code(), Some(0));
    gate.run(["events", "nothing"])
        .expect_code(2)
        .expect_words(&["there is no service", "default"]);
}

#[test]
fn events_end_with_the_gate_and_say_whether_it_was_told_to() {
    for (signal, code, says) in [
        (Signal::SIGTERM, 0, "the gate has stopped"),
        (Signal::SIGKILL, 3, "was cut off"),
    ] {
        let net = Net::new();
        let gate = server(&net, &["--min-ready", "100ms"]);
        let mut events = gate
            .verb(["events"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("syngate runs");
        let mut lines = BufReader::new(events.stdout.take().expect("a pipe")).lines();
        first_line(&gate, &mut lines);
        gate.signal(signal);
        let told = lines.map_while(Result::ok).last();
        let ended = events.wait_with_output().expect("wait");
        let error = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(code), "{error}");
        assert!(error.contains(says), "{error}");
        if signal == Signal::SIGTERM {
            let last = told.expect("the last step");
            assert!(last.contains("the service ends"), "{last}");
        }
    }
}
