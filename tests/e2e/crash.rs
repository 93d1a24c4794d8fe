//! `kill -9` of the active generation: what comes meanwhile waits, and what is lost is counted.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::common::backend::{self, Hop};
use crate::common::gate::{Gate, Setup};
use crate::common::kills::{self, lost};
use crate::common::load::{Failure, Plan, Report};
use crate::common::net::Net;
use crate::common::wire::{connect, read_all, send};
use crate::common::{http, wait_until};

const KILLS: u32 = 20;
const QUEUED: usize = 50;

#[test]
fn load_kill_with_a_kept_listener() {
    kill_under_load(Hop::Fd);
}

#[test]
fn load_kill_on_a_unix_socket() {
    kill_under_load(Hop::Socket);
}

#[test]
fn load_kill_on_an_address() {
    kill_under_load(Hop::Address);
}

fn kill_under_load(hop: Hop) {
    let Some(net) = Net::isolated() else { return };
    let gate = server(&net, hop, &[]);
    let report = kills::kill_under_load(&gate, Plan::standing(gate.public()), KILLS, 200, || {
        kill(active(&gate), Signal::SIGKILL).expect("the active generation");
    });
    report.print(&format!("kill -9, {hop:?}"));
    for never in [Failure::Refused, Failure::Timeout, Failure::WrongBytes] {
        assert_eq!(report.failed(never), 0, "{never:?}");
    }
    let metrics = gate.metrics();
    assert_eq!(metrics.sum("backend_restarts_total", &[]), f64::from(KILLS));
    assert_eq!(metrics.sum("listener_drops_total", &[]), 0.0);
    for never in ["overflow", "pending_timeout", "drain_timeout", "unaccepted"] {
        assert_eq!(
            metrics.sum("connections_closed_total", &[("reason", never)]),
            0.0,
            "{never}"
        );
    }
    let closed = |reason| metrics.sum("connections_closed_total", &[("reason", reason)]);
    let (gone, reset) = (closed("backend_gone"), closed("backend_reset"));
    println!(
        "kill -9, {hop:?}: {} failed, {} ended idle; counted: {gone} gone, {reset} reset",
        report.failures(),
        report.kept.ended_idle
    );
    expect_counted(&gate, &report, KILLS);
    assert!(
        report.downloads.failures() > 0,
        "no kill has hit a download"
    );
}

#[test]
fn what_a_kept_listener_has_queued_is_served_by_the_successor() {
    let net = Net::new();
    let gate = server(&net, Hop::Fd, &[]);
    let queued = queue_and_kill(&gate);
    for socket in queued {
        let (answer, _) = read_all(&socket);
        assert!(answer.ends_with(b"/queued"), "{}", answer.escape_ascii());
    }
    assert_eq!(gate.metrics().sum("backend_restarts_total", &[]), 1.0);
    assert_eq!(lost(&gate), 0.0);
}

#[test]
fn what_another_listener_has_queued_is_lost_and_counted() {
    let net = Net::new();
    for hop in [Hop::Socket, Hop::Address] {
        let gate = server(&net, hop, &[]);
        let queued = queue_and_kill(&gate);
        for socket in queued {
            assert_eq!(read_all(&socket).0, b"", "{hop:?}");
        }
        wait_until("all are counted", || lost(&gate) == QUEUED as f64);
        // The next one is served, by the successor.
        assert!(http::get(gate.public(), "/next").is_ok_and(|answer| answer.text() == "/next"));
    }
}

#[test]
fn what_comes_while_the_backend_is_down_waits() {
    let net = Net::new();
    for hop in [Hop::Fd, Hop::Socket, Hop::Address] {
        let gate = server(&net, hop, &["start=700"]);
        kill(active(&gate), Signal::SIGKILL).expect("the active generation");
        wait_until("none is active", || {
            gate.metrics().sum("generations", &[("state", "active")]) == 0.0
        });
        let waiting: Vec<_> = (0..QUEUED).map(|_| request(&gate)).collect();
        if hop != Hop::Fd {
            wait_until("they are pending", || {
                gate.metrics()
                    .sum("connections_open", &[("state", "pending")])
                    == QUEUED as f64
            });
        }
        for socket in waiting {
            let (answer, _) = read_all(&socket);
            assert!(
                answer.ends_with(b"/queued"),
                "{hop:?}: {}",
                answer.escape_ascii()
            );
        }
        assert_eq!(lost(&gate), 0.0, "{hop:?}");
    }
}

fn server(net: &Net, hop: Hop, options: &[&str]) -> Gate {
    let setup = Setup::new(net).options(["--min-ready", "100ms"]);
    let setup = if hop == Hop::Fd {
        setup.options(["--pass", "fd", "--ready", "http:/ready"])
    } else {
        setup
    };
    setup.backend(backend::own(hop, options)).start()
}

/// The process that answers.
fn active(gate: &Gate) -> Pid {
    let pid = http::get(gate.public(), "/pid").expect("an answer").text();
    Pid::from_raw(pid.parse().expect("a pid"))
}

fn request(gate: &Gate) -> socket2::Socket {
    let socket = connect(gate.public());
    send(
        &socket,
        b"GET /queued HTTP/1.1\r\nConnection: close\r\n\r\n",
    );
    socket
}

/// Stops the server's process, so that requests queue in its listener, then kills it.
fn queue_and_kill(gate: &Gate) -> Vec<socket2::Socket> {
    let pid = active(gate);
    kill(pid, Signal::SIGSTOP).expect("the active generation");
    let before = gate
        .metrics()
        .sum("relayed_bytes_total", &[("direction", "in")]);
    let queued: Vec<_> = (0..QUEUED).map(|_| request(gate)).collect();
    let bytes = (QUEUED * b"GET /queued HTTP/1.1\r\nConnection: close\r\n\r\n".len()) as f64;
    wait_until("the requests are written", || {
        gate.metrics()
            .sum("relayed_bytes_total", &[("direction", "in")])
            - before
            == bytes
    });
    kill(pid, Signal::SIGKILL).expect("the active generation");
    queued
}

/// The gate has counted what the deaths of `processes` have cut, and nothing else. It hears of a death a moment after the
/// connections have ended: one whose client has closed by then, too, has come to its end for all that the gate knows. For an idle
/// one that is the rule, for one that waits for its answer it seldom happens. The other way round an answer was whole before the
/// process died, which its client doesn't call a failure.
#[track_caller]
pub(crate) fn expect_counted(gate: &Gate, report: &Report, processes: u32) {
    let (lost, seldom) = (lost(gate), f64::from(2 * processes));
    let failed = report.failures() as f64;
    assert!(failed <= lost + seldom, "{failed} failed, {lost} counted");
    let cut = failed + report.kept.ended_idle as f64;
    assert!(lost <= cut + seldom, "{cut} were cut, {lost} counted");
}
