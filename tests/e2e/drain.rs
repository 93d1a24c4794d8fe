//! An old generation isn't told to stop while the kernel still holds connections for it.

use std::io::ErrorKind;
use std::path::Path;
use std::process::Stdio;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use socket2::Socket;

use crate::common::backend::{self, Hop};
use crate::common::gate::{Gate, Setup};
use crate::common::net::Net;
use crate::common::wire::{End, connect, read_all, send, timed};
use crate::common::{http, wait_until};

const BURST: usize = 60;

#[test]
fn queued_connections_are_served_before_the_drain_signal() {
    let net = Net::new();
    for hop in [Hop::Address, Hop::Socket] {
        let gate = slow_server(
            &net,
            hop,
            &["--min-ready", "100ms", "--drain-signal", "TERM"],
        );
        let burst = reload_behind_a_burst(&gate, |_| {});
        let queued = burst.len();
        let (answered, reset) = outcome(burst);
        println!("{hop:?}: {queued} queued at the flip, {answered} answered, {reset} reset");
        assert_eq!((answered, reset), (queued, 0), "{hop:?}");
        let metrics = gate.metrics();
        assert_eq!(metrics.sum("forced_closes_total", &[]), 0.0);
        for never in ["backend_reset", "backend_gone", "unaccepted"] {
            assert_eq!(
                metrics.sum("connections_closed_total", &[("reason", never)]),
                0.0,
                "{hop:?} {never}"
            );
        }
    }
}

/// The test above can fail: a SIGTERM at the flip does lose what is queued.
#[test]
fn a_signal_at_the_flip_loses_what_is_queued() {
    let net = Net::new();
    for hop in [Hop::Address, Hop::Socket] {
        let gate = slow_server(&net, hop, &["--min-ready", "1s"]);
        let burst = reload_behind_a_burst(&gate, |old| {
            kill(old, Signal::SIGTERM).expect("the old process");
        });
        let queued = burst.len();
        let (answered, reset) = outcome(burst);
        let lost = queued - answered;
        println!("{hop:?}: {queued} queued at the flip, {answered} answered, {reset} reset");
        // How many depends on how soon the signal follows the flip; those that it had accepted are answered.
        assert!(lost > 0, "{hop:?}: none of {queued} lost");
        assert_eq!(reset, lost, "{hop:?}");
    }
}

/// What outlasts `drain_timeout` is reset, not closed as if it had ended, and is counted. A client that has its end already, and
/// hasn't closed its side, sees no reset and isn't counted.
#[test]
fn connections_that_outlast_the_drain_are_reset() {
    let net = Net::new();
    let setup = Setup::new(&net).options(["--min-ready", "100ms", "--drain-timeout", "500ms"]);
    let gate = setup.backend(backend::own(Hop::Socket, &[])).start();
    let idle = connect(gate.public());
    send(&idle, b"GET /idle HTTP/1.1\r\n\r\n");
    wait_until("it is answered", || answered(&idle));
    let told = connect(gate.public());
    send(&told, b"GET /told HTTP/1.1\r\nConnection: close\r\n\r\n");
    assert_eq!(read_all(&told).1, End::Eof);
    gate.run(["reload", "--wait", "drained"]).expect_code(0);
    assert!(told.take_error().expect("SO_ERROR").is_none());
    let (answer, end) = read_all(&idle);
    assert!(answer.ends_with(b"/idle"), "{}", answer.escape_ascii());
    assert_eq!(end, End::Reset);
    let metrics = gate.metrics();
    assert_eq!(metrics.sum("forced_closes_total", &[]), 1.0);
    assert_eq!(
        metrics.sum("connections_closed_total", &[("reason", "drain_timeout")]),
        2.0
    );
}

/// A generation that dies while it drains takes its connections with it: a warning, where the end of a drain is news.
#[test]
fn a_death_while_draining_is_told_as_a_failure() {
    let net = Net::new();
    let setup = Setup::new(&net).options(["--min-ready", "100ms", "--drain-timeout", "off"]);
    let gate = setup.backend(backend::own(Hop::Socket, &[])).start();
    let idle = connect(gate.public());
    send(&idle, b"GET /idle HTTP/1.1\r\n\r\n");
    wait_until("it is answered", || answered(&idle));
    gate.run(["reload"]).expect_code(0);
    let service = || gate.status_json()["services"][0].clone();
    wait_until("the drain waits for the connection", || {
        service()["generations"][0]["waits_for"] == "1 connection"
    });
    let old = service()["generations"][0]["pid"].as_i64().expect("a pid");
    kill(Pid::from_raw(old as i32), Signal::SIGKILL).expect("killed");
    wait_until("it is told", || service()["last_failure"].is_object());
    assert_eq!(
        service()["last_failure"]["message"],
        "generation 1 was killed by SIGKILL while it drained; generation 2 serves"
    );
    assert_eq!(service()["active"], 2);
}

/// Nothing is sent to the old generation while it can be needed.
#[test]
fn keep_previous_keeps_the_old_generation_untouched() {
    let net = Net::new();
    let setup = Setup::new(&net).options([
        "--min-ready",
        "100ms",
        "--keep-previous",
        "1s",
        "--drain-signal",
        "TERM",
    ]);
    let gate = setup.backend(backend::own(Hop::Socket, &[])).start();
    let old = http::get(gate.public(), "/pid").expect("an answer").text();
    let (_, took) = timed(|| {
        gate.reload();
        wait_until("the old one has ended", || {
            !Path::new(&format!("/proc/{old}")).exists()
        });
    });
    assert!(
        took >= std::time::Duration::from_secs(1),
        "it ended after {took:?}"
    );
}

/// Accepts one connection in 5 ms, and at SIGTERM closes its listener at once.
fn slow_server(net: &Net, hop: Hop, options: &[&str]) -> Gate {
    let setup = Setup::new(net)
        .options(["--ready-settle", "0s"])
        .options(options);
    setup
        .backend(backend::own(hop, &["accept-every=5", "abrupt=yes"]))
        .start()
}

/// Reloads while at least half of [`BURST`] connections wait for the old generation, and calls `at_flip` with its pid
/// as soon as the new one is active. Returns every connection whose answer is still to come.
fn reload_behind_a_burst(gate: &Gate, at_flip: impl FnOnce(Pid)) -> Vec<Socket> {
    let old = http::get(gate.public(), "/pid")
        .expect("the old generation's answer")
        .text();
    let old = Pid::from_raw(old.parse().expect("a pid"));
    let mut reload = gate
        .verb(["reload"])
        .stdout(Stdio::null())
        .spawn()
        .expect("syngate runs");
    let mut burst: Vec<Socket> = Vec::new();
    while gate.metrics().sum("generation_active", &[]) == 1.0 {
        burst.retain(|socket| !answered(socket));
        while burst.len() < BURST {
            let socket = connect(gate.public());
            send(&socket, b"GET /burst HTTP/1.1\r\nConnection: close\r\n\r\n");
            burst.push(socket);
        }
    }
    // Before anything is done to them: a reset would look like an answer.
    burst.retain(|socket| !answered(socket));
    at_flip(old);
    assert!(
        burst.len() >= BURST / 2,
        "only {} were still queued at the flip",
        burst.len()
    );
    wait_until("the old generation has ended", || {
        !Path::new(&format!("/proc/{old}")).exists()
    });
    assert!(reload.wait().expect("wait").code().is_some());
    burst
}

/// True when its answer has begun to come.
fn answered(socket: &Socket) -> bool {
    socket.set_nonblocking(true).expect("nonblocking");
    let seen = socket.peek(&mut [std::mem::MaybeUninit::uninit()]);
    socket.set_nonblocking(false).expect("blocking");
    !matches!(seen, Err(error) if error.kind() == ErrorKind::WouldBlock)
}

/// How many were answered, and how many were reset.
fn outcome(burst: Vec<Socket>) -> (usize, usize) {
    let ends: Vec<_> = burst.iter().map(read_all).collect();
    let whole = |(bytes, end): &&(Vec<u8>, End)| *end == End::Eof && bytes.ends_with(b"/burst");
    let reset = |(_, end): &&(Vec<u8>, End)| *end == End::Reset;
    (
        ends.iter().filter(whole).count(),
        ends.iter().filter(reset).count(),
    )
}
