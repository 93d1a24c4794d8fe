//! `kill -9` of HAProxy while connections queue in the kernel: the next one serves them, and what the dead one had accepted is
//! lost and counted.

use std::fs;
use std::path::Path;

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

use crate::common::backend::Outside;
use crate::common::gate::{Gate, Setup};
use crate::common::kills::{self, lost};
use crate::common::load::{Failure, Plan, Report};
use crate::common::net::Net;
use crate::common::wait_until;
use crate::fixture::{in_front_of, program};

const KILLS: u32 = 50;

/// The frontend's `maxconn`: so many are accepted at most.
const ACCEPTED: u32 = 4;

/// Connections that a killed HAProxy has left in the kernel, at least.
const QUEUED: u32 = 10;

/// What is killed.
#[derive(Clone, Copy, Debug)]
enum Victim {
    Worker,
    Group,
}

fn configuration(bind: &str, app: &Path) -> String {
    format!(
        "global
    maxconn 100
defaults
    mode http
    timeout connect 5s
    timeout client 30s
    timeout server 30s
frontend front
    bind {bind}
    maxconn {ACCEPTED}
    default_backend app
backend app
    server app unix@{}
",
        app.display()
    )
}

/// A server that takes 10 ms for each answer: with four at a time HAProxy can do 400 a second.
fn slow_server(directory: &Path) -> Outside {
    Outside::start_unix(&directory.join("app.sock"), &["answer-after=10"])
}

#[test]
fn load_a_killed_group_leaves_its_queue_to_the_next() {
    kept(Victim::Group);
}

#[test]
fn load_a_killed_worker_leaves_its_queue_to_the_next() {
    kept(Victim::Worker);
}

fn kept(victim: Victim) {
    let Some(net) = Net::isolated() else { return };
    let setup = Setup::bare(&net);
    let _app = slow_server(setup.dir());
    let file = setup.dir().join("haproxy.cfg");
    let text = configuration(&setup.public().to_string(), &setup.dir().join("app.sock"));
    fs::write(&file, text).expect("haproxy.cfg");
    let gate = in_front_of(setup, &file).start();
    let report = kill_under_load(&gate, victim);
    report.print(&format!("kill -9, {victim:?}, kept listener"));

    let (failed, counted) = (report.failures(), lost(&gate));
    println!("kill -9, {victim:?}: {failed} failed, {counted} counted");
    // At each kill at least ten queued beside the four that it had: were a queue lost, it would be many more.
    assert!(failed <= u64::from(ACCEPTED * KILLS), "{failed} were lost");
    assert!(failed > 0, "no kill has hit anything");
    // A request that was accepted and not yet read ends with a reset, too; it is rare that a kill finds one.
    let reset = report.failed(Failure::Reset);
    assert!(reset <= u64::from(KILLS / 5), "{reset} were reset");
    assert_eq!(
        report.failed(Failure::Unanswered) + reset,
        failed,
        "{:?}",
        report.fresh.failed
    );
    // What a process had accepted is counted when it dies, whichever of the two the gate hears of first.
    assert_eq!(counted, failed as f64);
    let metrics = gate.metrics();
    assert_eq!(metrics.sum("backend_restarts_total", &[]), f64::from(KILLS));
    for never in ["overflow", "pending_timeout", "unaccepted"] {
        let closed = metrics.sum("connections_closed_total", &[("reason", never)]);
        assert_eq!(closed, 0.0, "{never}");
    }
}

/// The tests above can fail: an HAProxy that makes its socket itself takes the queue with it.
#[test]
fn load_without_a_kept_listener_the_queue_is_reset() {
    let Some(net) = Net::isolated() else { return };
    let setup = Setup::new(&net).options(["--min-ready", "100ms"]);
    let _app = slow_server(setup.dir());
    let file = setup.dir().join("haproxy.cfg");
    let bind = "\"unix@${SYNGATE_SOCKET}\" backlog 1024";
    fs::write(&file, configuration(bind, &setup.dir().join("app.sock"))).expect("haproxy.cfg");
    let command = [&program(), "-W", "-f", file.to_str().expect("a plain path")];
    let gate = setup.backend(command.map(str::to_owned).to_vec()).start();
    let report = kill_under_load(&gate, Victim::Group);
    report.print("kill -9, no kept listener");
    let reset = report.failed(Failure::Reset);
    assert!(reset >= u64::from(KILLS * QUEUED / 2), "{reset} were reset");
}

/// Kills it again and again, each time with connections in the kernel's queue.
fn kill_under_load(gate: &Gate, victim: Victim) -> Report {
    kills::kill_under_load(gate, Plan::fresh(gate.public(), 250), KILLS, 100, || {
        let leader = leader(gate);
        let worker = worker(leader);
        // From here on it accepts nothing, and what comes queues.
        kill(worker, Signal::SIGSTOP).expect("the worker");
        wait_until("connections queue", || {
            let open = gate
                .metrics()
                .sum("connections_open", &[("state", "relaying")]);
            open >= f64::from(ACCEPTED + QUEUED)
        });
        match victim {
            Victim::Worker => kill(worker, Signal::SIGKILL),
            Victim::Group => killpg(leader, Signal::SIGKILL),
        }
        .expect("the active generation");
    })
}

/// The active generation's master, and its group.
fn leader(gate: &Gate) -> Pid {
    let status = gate.status_json();
    let generations = status["services"][0]["generations"].as_array();
    let active = generations
        .expect("generations")
        .iter()
        .find(|generation| generation["state"] == "active");
    let pid = active.expect("an active generation")["pid"].as_i64();
    Pid::from_raw(i32::try_from(pid.expect("a pid")).expect("a pid"))
}

/// The process of a master that serves.
fn worker(master: Pid) -> Pid {
    let path = format!("/proc/{master}/task/{master}/children");
    let children = fs::read_to_string(&path).expect(&path);
    let first = children.split_whitespace().next().expect("a worker");
    Pid::from_raw(first.parse().expect("a pid"))
}
