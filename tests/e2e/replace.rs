//! A server that can't run twice: connections wait while it restarts.

use std::fs;
use std::time::Duration;

use crate::common::backend::{self, Hop};
use crate::common::gate::{Gate, Setup};
use crate::common::load::{Load, Plan, Report};
use crate::common::net::{Drops, Net};
use crate::common::wait_until;
use crate::common::wire::{connect, read_all, send, timed};

const RELOADS: usize = 20;
const MIN_READY: Duration = Duration::from_millis(100);

#[test]
fn load_short_connections_wait_for_the_restart() {
    let Some(net) = Net::isolated() else { return };
    let gate = exclusive_server(&net);
    let (report, mut restarts) = restart_under(&net, &gate, Plan::fresh(gate.public(), 1000));
    report.print("replace, short");
    restarts.sort_unstable();
    let median = restarts[RELOADS / 2] - MIN_READY;
    let wait = report.fresh.quantile(0.999);
    println!("replace, short: median restart {median:?}, p99.9 of the wait {wait:?}");
    assert!(
        wait <= 3 * median,
        "p99.9 {wait:?}, median restart {median:?}"
    );
}

#[test]
fn load_connections_of_two_seconds_end_by_themselves() {
    let Some(net) = Net::isolated() else { return };
    let gate = exclusive_server(&net);
    let life = Duration::from_millis(1800);
    let plan = Plan {
        kept_life: life,
        download_time: life,
        ..Plan::standing(gate.public())
    };
    let (report, _) = restart_under(&net, &gate, plan);
    report.print("replace, 2 s");
}

/// There is nothing to go back to: connections wait while the start is tried again.
#[test]
fn a_start_that_fails_is_tried_again_while_connections_wait() {
    let net = Net::new();
    let setup = Setup::new(&net).options([
        "--strategy",
        "replace",
        "--min-ready",
        "100ms",
        "--ready-timeout",
        "2s",
        "--pending-timeout",
        "5s",
    ]);
    let command = backend::own(Hop::Socket, &[]);
    let script = format!("exec {} \"$1\" $(cat mode)", command[0]);
    fs::write(setup.dir().join("start.sh"), script).expect("a script");
    fs::write(setup.dir().join("mode"), "").expect("a file");
    let gate = setup
        .backend(["sh", "start.sh", &command[1]].map(str::to_owned).to_vec())
        .start();
    fs::write(gate.dir().join("mode"), "fail=yes").expect("a file");
    gate.run(["reload"])
        .expect_code(4)
        .expect_words(&["cannot serve: the moon is in the wrong phase"]);
    let client = connect(gate.public());
    send(
        &client,
        b"GET /patience HTTP/1.1\r\nConnection: close\r\n\r\n",
    );
    wait_until("it is pending", || {
        gate.metrics()
            .sum("connections_open", &[("state", "pending")])
            == 1.0
    });
    fs::write(gate.dir().join("mode"), "").expect("a file");
    let (answer, _) = read_all(&client);
    assert!(answer.ends_with(b"/patience"), "{}", answer.escape_ascii());
}

/// One that holds a lock as long as it lives and needs 300 ms to start.
fn exclusive_server(net: &Net) -> Gate {
    let setup = Setup::new(net).options(["--strategy", "replace", "--min-ready", "100ms"]);
    let lock = format!("lock={}", setup.dir().join("lock").display());
    setup
        .backend(backend::own(Hop::Socket, &[&lock, "start=300"]))
        .start()
}

/// Twenty reloads under `plan`: nothing failed, something waited. Also how long each one took.
fn restart_under(net: &Net, gate: &Gate, plan: Plan) -> (Report, Vec<Duration>) {
    let before = net.drops();
    let load = Load::start(plan);
    load.wait_flowing();
    let restarts: Vec<Duration> = (0..RELOADS).map(|_| timed(|| gate.reload()).1).collect();
    let report = load.stop();
    report.expect_clean();
    let metrics = gate.metrics();
    assert_eq!(metrics.sum("forced_closes_total", &[]), 0.0);
    assert_eq!(metrics.sum("listener_drops_total", &[]), 0.0);
    assert_eq!(net.drops() - before, Drops::default());
    assert_eq!(gate.reloads("success"), RELOADS as f64);
    let waited = metrics.sum("pending_wait_seconds_count", &[])
        - metrics.sum("pending_wait_seconds_bucket", &[("le", "0.1")]);
    println!("replace: {waited} connections waited longer than 0.1 s");
    assert!(
        waited >= (20 * RELOADS) as f64,
        "only {waited} connections waited longer than 0.1 s"
    );
    (report, restarts)
}
