//! A hundred reloads of real servers under the standing load lose nothing.

use crate::common::backend::{self, Hop, Outside};
use crate::common::gate::{Gate, Setup};
use crate::common::load::{Load, PACE, Plan, pace};
use crate::common::net::{Drops, Net};
use crate::common::wait_until;

const RELOADS: u32 = 100;

#[test]
fn load_haproxy_on_a_unix_socket() {
    haproxy(Hop::Socket, "haproxy {socket}");
}

#[test]
fn load_haproxy_on_an_address() {
    haproxy(Hop::Address, "haproxy {addr}");
}

#[test]
fn load_haproxy_on_a_kept_listener() {
    haproxy(Hop::Fd, "haproxy {fd}");
}

fn haproxy(hop: Hop, name: &str) {
    let Some(net) = Net::isolated() else { return };
    let setup = Setup::new(&net).options(["--drain-signal", "USR1"]);
    let setup = if hop == Hop::Fd {
        setup.options(["--pass", "fd", "--ready", "http:/ready"])
    } else {
        setup
    };
    let socket = setup.dir().join("app.sock");
    let app = Outside::start_unix(&socket, &[]);
    let command = backend::haproxy(setup.dir(), hop, &socket);
    reload_under_load(&net, setup.backend(command), hop, PACE, name);
    drop(app);
}

#[test]
fn load_nginx_on_a_unix_socket() {
    let Some(net) = Net::isolated() else { return };
    let setup = Setup::new(&net);
    let command = backend::nginx(setup.dir(), Hop::Socket, 10_000_000);
    let setup = setup.backend(command);
    reload_under_load(&net, setup, Hop::Socket, PACE, "nginx {socket}");
}

#[test]
fn load_python_on_an_address() {
    let Some(net) = Net::isolated() else { return };
    let setup = Setup::new(&net);
    let command = backend::python(setup.dir());
    let address = net.free_address();
    let alone = Outside::command(address, &command, setup.dir());
    let pace = pace(address); // A thread for each: a slow machine bears less than a thousand a second.
    drop(alone);
    let setup = setup.backend(command);
    reload_under_load(&net, setup, Hop::Address, pace, "python {addr}");
}

fn reload_under_load(net: &Net, setup: Setup, hop: Hop, pace: u32, name: &str) {
    let gate = setup
        .options([
            "--log-level",
            "debug",
            "--min-ready",
            "100ms",
            "--max-generations",
            "16",
        ])
        .start();
    let before = net.drops();
    let load = Load::start(Plan {
        fresh_per_second: pace,
        ..Plan::standing(gate.public())
    });
    load.wait_flowing();
    for _ in 0..RELOADS {
        gate.reload();
    }
    let report = load.stop();
    report.print(name);
    report.expect_standing();
    expect_nothing_lost(&gate, RELOADS);
    if hop != Hop::Address {
        // Every private hop is a unix socket, kept listeners too: what the namespace counts is the public listener's.
        assert_eq!(net.drops() - before, Drops::default());
    }
}

/// All `reloads` succeeded, the gate saw no connection end in another way than by itself, and one generation lives.
#[track_caller]
fn expect_nothing_lost(gate: &Gate, reloads: u32) {
    wait_until("the old generations have ended", || {
        let metrics = gate.metrics();
        let live = ["starting", "ready", "draining"]
            .map(|state| metrics.sum("generations", &[("state", state)]));
        live == [0.0; 3] && metrics.sum("connections_open", &[]) == 0.0
    });
    let metrics = gate.metrics();
    assert_eq!(metrics.sum("generations", &[("state", "active")]), 1.0);
    let status = gate.status_json();
    let generations = status["services"][0]["generations"]
        .as_array()
        .expect("generations");
    assert_eq!(generations.len(), 1, "{status}");
    let leader = generations[0]["pid"].as_i64().expect("a pid");
    for pid in gate.children() {
        let group = nix::unistd::getpgid(Some(pid)).map(|group| i64::from(group.as_raw()));
        assert_eq!(
            group,
            Ok(leader),
            "process {pid} is left of an old generation"
        );
    }
    assert_eq!(gate.reloads("success"), f64::from(reloads));
    assert_eq!(metrics.sum("forced_closes_total", &[]), 0.0);
    assert_eq!(metrics.sum("listener_drops_total", &[]), 0.0);
    let closed = metrics.sum("connections_closed_total", &[]);
    let by_end = metrics.sum("connections_closed_total", &[("reason", "eof")]);
    // A kept client that stops closes its idle connection, which is an end like any other.
    assert_eq!(by_end, closed, "{metrics:?}");
    assert_eq!(metrics.sum("connections_accepted_total", &[]), closed);
    assert_eq!(metrics.sum("backend_restarts_total", &[]), 0.0);
}
