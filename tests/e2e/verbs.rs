//! The verbs beside `reload`: what they do, and what they exit with.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::common::backend::{self, Hop, Outside};
use crate::common::gate::{Gate, Setup, syngate};
use crate::common::http;
use crate::common::load::{Load, Plan};
use crate::common::net::{Drops, Net};
use crate::common::wait_until;
use crate::common::wire::{End, Endpoint, Wire, read_all, send};

#[test]
fn load_rollback_while_the_previous_generation_is_kept() {
    let Some(net) = Net::isolated() else { return };
    let gate = server(&net, &["--keep-previous", "60s", "--min-ready", "100ms"]);
    let before = net.drops();
    let load = Load::start(Plan::standing(gate.public()));
    load.wait_flowing();
    gate.reload();
    assert_eq!(generation(&gate), "2");
    gate.run(["rollback"]).expect_code(0);
    assert_eq!(generation(&gate), "1");
    assert_eq!(gate.metrics().sum("generation_active", &[]), 1.0);
    gate.reload();
    assert_eq!(generation(&gate), "3");
    let report = load.stop();
    report.print("rollback");
    report.expect_standing();
    assert_eq!(net.drops() - before, Drops::default());
}

#[test]
fn rollback_that_comes_too_late_says_so() {
    let net = Net::new();
    let gate = server(&net, &["--min-ready", "100ms"]);
    let none = gate.run(["rollback"]);
    none.expect_code(1);
    assert!(!none.err.trim().is_empty(), "no reason is given");
    gate.reload();
    wait_until("the previous one has ended", || {
        gate.metrics().sum("generations", &[("state", "draining")]) == 0.0
    });
    let late = gate.run(["rollback"]);
    late.expect_code(1);
    assert!(!late.err.trim().is_empty(), "no reason is given");
    assert_eq!(generation(&gate), "2");
}

#[test]
fn load_hold_around_a_restart_by_an_outside_script() {
    let Some(net) = Net::isolated() else { return };
    let setup = Setup::new(&net);
    let socket = setup.dir().join("app.sock");
    let mut app = Outside::start_unix(&socket, &[]);
    let gate = setup
        .options(["--backend", &format!("unix:{}", socket.display())])
        .start();
    let before = net.drops();
    let load = Load::start(Plan {
        kept_life: Duration::from_secs(1),
        download_time: Duration::from_secs(1),
        ..Plan::standing(gate.public())
    });
    load.wait_flowing();
    // The script: stop the old server (it ends when its connections have), then start the new one.
    let script = "kill -TERM $1; while kill -0 $1 2>/dev/null; do sleep 0.02; done; rm -f app.sock; touch restarted";
    fs::write(gate.dir().join("restart.sh"), script).expect("a script");
    for _ in 0..3 {
        let pid = app.pid().to_string();
        let mut hold = gate
            .verb(["hold", "--", "sh", "restart.sh", &pid])
            .spawn()
            .expect("syngate runs");
        app.wait();
        wait_until("the script is done", || {
            gate.dir().join("restarted").exists()
        });
        fs::remove_file(gate.dir().join("restarted")).expect("a file");
        app = Outside::start_unix(&socket, &[]);
        assert_eq!(hold.wait().expect("wait").code(), Some(0));
        assert_eq!(gate.metrics().sum("held", &[]), 0.0);
        let served = load.fresh_ok();
        wait_until("it serves", || load.fresh_ok() > served + 500);
    }
    let report = load.stop();
    report.print("hold -- CMD");
    report.expect_clean();
    assert_eq!(net.drops() - before, Drops::default());
}

#[test]
fn hold_hands_on_the_status_of_its_command() {
    let net = Net::new();
    let gate = server(&net, &[]);
    gate.run(["hold", "--", "sh", "-c", "exit 42"])
        .expect_code(42);
    assert_eq!(
        gate.metrics().sum("held", &[]),
        0.0,
        "a failing command releases too"
    );
    gate.run(["hold", "--", "/no/such/program"])
        .expect_code(127)
        .expect_words(&["/no/such/program"]);
    assert_eq!(gate.metrics().sum("held", &[]), 0.0);
    assert_eq!(
        http::get(gate.public(), "/").expect("an answer").text(),
        "/"
    );
}

#[test]
fn hold_lasts_until_release_or_its_timeout() {
    let net = Net::new();
    let wire = Wire::new(&net, Endpoint::Unix, &[]);
    wire.gate.run(["hold"]).expect_code(0);
    assert_eq!(wire.gate.metrics().sum("held", &[]), 1.0);
    let client = wire.connect();
    wait_until("it is pending", || {
        wire.gate
            .metrics()
            .sum("connections_open", &[("state", "pending")])
            == 1.0
    });
    wire.gate.run(["release"]).expect_code(0);
    drop(wire.accept());
    drop(client);

    wire.gate.run(["hold", "--timeout", "300ms"]).expect_code(0);
    let client = wire.connect();
    let server = wire.accept(); // released by itself
    send(&server, b"hello");
    drop(server);
    assert_eq!(read_all(&client), (b"hello".to_vec(), End::Eof));
    // The workers dispatch before the supervisor has said it.
    wait_until("it is said to be released", || {
        wire.gate.metrics().sum("held", &[]) == 0.0
    });
    wire.gate.expect_log("the hold's time is up");
}

#[test]
fn hold_whose_client_dies_is_released() {
    let net = Net::new();
    let gate = server(&net, &[]);
    let mut hold = gate
        .verb(["hold", "--", "sleep", "600"])
        .spawn()
        .expect("syngate runs");
    wait_until("it is held", || gate.metrics().sum("held", &[]) == 1.0);
    hold.kill().expect("the client");
    hold.wait().expect("wait");
    wait_until("it is released", || gate.metrics().sum("held", &[]) == 0.0);
    assert_eq!(
        http::get(gate.public(), "/").expect("an answer").text(),
        "/"
    );
}

#[test]
fn reload_while_held_changes_the_active_generation() {
    let net = Net::new();
    let gate = server(&net, &["--min-ready", "100ms"]);
    gate.run(["hold"]).expect_code(0);
    gate.run(["reload"]).expect_code(0).expect_words(&["held"]);
    assert_eq!(gate.metrics().sum("generation_active", &[]), 2.0);
    gate.run(["release"]).expect_code(0);
    assert_eq!(generation(&gate), "2");
}

#[test]
fn load_activate_another_server() {
    let Some(net) = Net::isolated() else { return };
    let setup = Setup::new(&net);
    let (blue, green) = (
        setup.dir().join("blue.sock"),
        setup.dir().join("green.sock"),
    );
    let _blue = Outside::start_unix(&blue, &[]);
    let green_server = Outside::start_unix(&green, &[]);
    let gate = setup
        .options([
            "--min-ready",
            "100ms",
            "--ready-timeout",
            "2s",
            "--backend",
            &format!("unix:{}", blue.display()),
        ])
        .start();
    let before = net.drops();
    let load = Load::start(Plan::standing(gate.public()));
    load.wait_flowing();
    gate.run([
        "activate",
        "--backend",
        &format!("unix:{}", green.display()),
    ])
    .expect_code(0);
    assert_eq!(
        http::get(gate.public(), "/pid").expect("an answer").text(),
        green_server.pid().to_string()
    );
    // A reload keeps it, and the status says so.
    gate.reload();
    assert_eq!(
        http::get(gate.public(), "/pid").expect("an answer").text(),
        green_server.pid().to_string()
    );
    assert!(gate.status_json().to_string().contains("green.sock"));
    // Nor does one for a listener that isn't there, or one that leaves a listener without.
    gate.run(["activate", "--backend", "nobody=127.0.0.1:9"])
        .expect_code(1);
    // A server that isn't there never becomes active.
    gate.run(["activate", "--backend", "unix:nobody.sock"])
        .expect_code(1);
    assert_eq!(
        http::get(gate.public(), "/pid").expect("an answer").text(),
        green_server.pid().to_string()
    );
    let report = load.stop();
    report.print("activate");
    report.expect_standing();
    assert_eq!(net.drops() - before, Drops::default());
}

#[test]
fn status_connections_and_events_tell_what_is() {
    let net = Net::new();
    let gate = server(&net, &["--min-ready", "100ms"]);
    let client = crate::common::wire::connect(gate.public());
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

    // The events of a reload reach one who listens.
    let mut events =
        std::os::unix::net::UnixStream::connect(gate.control()).expect("the control socket");
    events
        .set_read_timeout(Some(Duration::from_secs(20)))
        .expect("a time-out");
    std::io::Write::write_all(
        &mut events,
        b"GET /v1/events HTTP/1.1\r\nHost: gate\r\n\r\n",
    )
    .expect("write");
    let mut lines = BufReader::new(events).lines();
    let head = lines.next().expect("a line").expect("a line");
    assert!(head.contains("200"), "{head}");
    gate.reload();
    let mut seen = lines
        .map_while(Result::ok)
        .skip_while(|line| !line.contains("\"success\""));
    assert!(
        seen.next().is_some(),
        "no event says that the reload has succeeded"
    );

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
fn watching_ends_with_an_interrupt() {
    let net = Net::new();
    let gate = server(&net, &[]);
    let mut watch = gate
        .verb(["status", "--watch", "--json"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("syngate runs");
    let mut lines = BufReader::new(watch.stdout.take().expect("a pipe")).lines();
    for _ in 0..2 {
        let line = lines.next().expect("a line").expect("a line");
        let status: Value = serde_json::from_str(&line).expect("JSON");
        assert_eq!(status["services"][0]["active"], 1);
    }
    let pid = i32::try_from(watch.id()).expect("a pid");
    kill(Pid::from_raw(pid), Signal::SIGINT).expect("the client");
    assert_eq!(watch.wait().expect("wait").code(), Some(0));
    gate.run(["status"]).expect_code(0);
}

#[test]
fn wait_that_takes_too_long_ends_and_the_reload_goes_on() {
    let net = Net::new();
    let gate = server(&net, &["--min-ready", "1s"]);
    gate.run(["reload", "--timeout", "200ms"]).expect_code(5);
    wait_until("it has succeeded all the same", || {
        gate.reloads("success") == 1.0
    });
    assert_eq!(generation(&gate), "2");
}

#[test]
fn verbs_without_a_gate_exit_with_3() {
    let directory = tempfile::tempdir().expect("a directory");
    for verb in [
        "reload",
        "status",
        "release",
        "rollback",
        "connections",
        "hold",
    ] {
        let output = syngate(directory.path(), [verb, "--control", "nobody.sock"])
            .output()
            .expect("syngate runs");
        let done = crate::common::done::Done::from(output);
        done.expect_code(3).expect_words(&["nobody.sock"]);
    }
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

#[test]
fn signals_other_than_those_to_stop_leave_it_running() {
    let net = Net::new();
    let gate = server(&net, &[]);
    gate.signal(Signal::SIGUSR2);
    gate.signal(Signal::SIGPIPE);
    gate.signal(Signal::SIGHUP);
    wait_until("it has reloaded", || gate.reloads("success") == 1.0);
    assert_eq!(generation(&gate), "2");
}

#[test]
fn completions_and_man_pages_come_from_the_binary() {
    let directory = tempfile::tempdir().expect("a directory");
    for shell in ["bash", "zsh", "fish"] {
        let output = syngate(directory.path(), ["generate", "completions", shell])
            .stdout(Stdio::piped())
            .output()
            .expect("syngate runs");
        assert!(
            output.status.success() && output.stdout.len() > 500,
            "{shell}"
        );
    }
    assert!(
        syngate(directory.path(), ["generate", "man", "."])
            .status()
            .expect("syngate runs")
            .success()
    );
    let pages = fs::read_dir(directory.path()).expect("the pages").count();
    assert!(pages >= 9, "{pages} man pages");
}

fn server(net: &Net, options: &[&str]) -> Gate {
    Setup::new(net)
        .options(options)
        .backend(backend::own(Hop::Socket, &[]))
        .start()
}

/// Which generation answers.
fn generation(gate: &Gate) -> String {
    http::get(gate.public(), "/generation")
        .expect("an answer")
        .text()
}
