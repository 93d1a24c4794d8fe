//! What the data path asks of the kernel, call by call: a count that no busy machine changes, against what it was when somebody last
//! looked. More than a twentieth above it fails, and so does more than a goal allows; a better count is a reason to lower it here.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::process::{Child, Command};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use socket2::Socket;

use crate::common::net::Net;
use crate::common::wire::{Endpoint, Wire};
use crate::common::{skip, wait_until};

/// Connections one after another, and requests on one connection.
const TIMES: u32 = 2000;

/// What it may be more than at the last look.
const SLACK: f64 = 1.05;

/// System calls a connection: accept, dial, 100 bytes, 200 bytes back, the client closes first. At the last look, and never more.
const SHORT: [(Endpoint, f64, f64); 2] =
    [(Endpoint::Tcp, 15.0, 16.0), (Endpoint::Unix, 14.0, 14.5)];

/// The same, and the backend closes first.
const BACKEND_CLOSES: [(Endpoint, f64); 2] = [(Endpoint::Tcp, 15.0), (Endpoint::Unix, 14.0)];

/// The same as the first, with a PROXY header of version 2 to the backend: getsockname(2) tells what the client dialled.
const WITH_HEADER: [(Endpoint, f64); 2] = [(Endpoint::Tcp, 16.0), (Endpoint::Unix, 16.0)];

/// Of a header of version 2 with two IPv4 addresses and no TLVs.
const HEADER: usize = 28;

/// System calls a request on an open connection: 100 bytes, 200 bytes back.
const REQUEST: [(Endpoint, f64); 2] = [(Endpoint::Tcp, 4.0), (Endpoint::Unix, 4.0)];

#[test]
fn a_short_connection_costs_no_more_system_calls_than_it_did() {
    for (endpoint, before, goal) in SHORT {
        let Some((wire, trace)) = traced(endpoint, &[]) else {
            return;
        };
        for _ in 0..TIMES {
            let (client, backend) = answered(&wire, 0);
            close(client, backend);
        }
        let most = goal.min(before * SLACK);
        expect_at_most(trace, &wire, most, &format!("a connection, {endpoint:?}"));
    }
}

#[test]
fn one_that_the_backend_closes_costs_no_more_either() {
    for (endpoint, before) in BACKEND_CLOSES {
        let Some((wire, trace)) = traced(endpoint, &[]) else {
            return;
        };
        for _ in 0..TIMES {
            let (client, backend) = answered(&wire, 0);
            close(backend, client);
        }
        let what = format!("a connection that the backend closes, {endpoint:?}");
        expect_at_most(trace, &wire, before * SLACK, &what);
    }
}

#[test]
fn a_proxy_header_costs_no_more_either() {
    for (endpoint, before) in WITH_HEADER {
        let Some((wire, trace)) = traced(endpoint, &["--send-proxy", "v2"]) else {
            return;
        };
        for _ in 0..TIMES {
            let (client, backend) = answered(&wire, HEADER);
            close(client, backend);
        }
        let what = format!("a connection with a PROXY header, {endpoint:?}");
        expect_at_most(trace, &wire, before * SLACK, &what);
    }
}

#[test]
fn a_request_costs_no_more_system_calls_than_it_did() {
    for (endpoint, before) in REQUEST {
        let Some((wire, trace)) = traced(endpoint, &[]) else {
            return;
        };
        let (mut client, mut backend) = wire.pair();
        for _ in 0..TIMES {
            client.write_all(&[1; 100]).expect("a request");
            answer(&mut client, &mut backend);
        }
        let what = format!("a request, {endpoint:?}");
        expect_at_most(trace, &wire, before * SLACK, &what);
    }
}

/// A client and the backend's side of it, after a request and its answer. The backend gets so many bytes before.
fn answered(wire: &Wire, header: usize) -> (Socket, Socket) {
    let mut client = wire.connect();
    client.write_all(&[1; 100]).expect("a request");
    let mut backend = wire.accept();
    backend.read_exact(&mut vec![0; header]).expect("a header");
    answer(&mut client, &mut backend);
    (client, backend)
}

fn close(first: Socket, mut second: Socket) {
    drop(first);
    assert_eq!(second.read(&mut [0]).expect("its end"), 0);
}

fn answer(client: &mut impl Read, backend: &mut (impl Read + Write)) {
    backend.read_exact(&mut [0; 100]).expect("the request");
    backend.write_all(&[2; 200]).expect("an answer");
    client.read_exact(&mut [0; 200]).expect("the answer");
}

/// A gate with one worker, and strace on that; `None` where a process may not be traced.
fn traced(endpoint: Endpoint, options: &[&str]) -> Option<(Wire, Child)> {
    let net = Net::isolated()?;
    let options = [&["--workers", "1"], options].concat();
    let wire = Wire::new(&net, endpoint, &options);
    let worker = worker_of(wire.gate.pid());
    let mut strace = Command::new("strace")
        .args(["-c", "-U", "calls,errors,name", "-o"])
        .arg(counts_of(&wire))
        .args(["-p", &worker.to_string()])
        .spawn()
        .expect("strace runs");
    let mut refused = false;
    wait_until("the worker is traced", || {
        refused = strace.try_wait().expect("strace").is_some();
        refused || is_traced(worker)
    });
    if refused {
        skip("strace may not trace a process here, so no system call is counted");
        return None;
    }
    Some((wire, strace))
}

fn counts_of(wire: &Wire) -> std::path::PathBuf {
    wire.gate.dir().join("system-calls")
}

fn worker_of(gate: Pid) -> Pid {
    let tasks = fs::read_dir(format!("/proc/{gate}/task")).expect("its threads");
    let mut tasks = tasks.map(|task| task.expect("a thread").path());
    let worker = tasks.find(|task| {
        fs::read_to_string(task.join("comm")).is_ok_and(|name| name.trim() == "gate-0")
    });
    let worker = worker.expect("a worker");
    let id = worker.file_name().and_then(|name| name.to_str());
    Pid::from_raw(id.and_then(|id| id.parse().ok()).expect("its id"))
}

fn is_traced(task: Pid) -> bool {
    let status = fs::read_to_string(format!("/proc/{task}/status")).unwrap_or_default();
    let tracer = status
        .lines()
        .find_map(|line| line.strip_prefix("TracerPid:"));
    tracer.is_some_and(|pid| pid.trim() != "0")
}

#[track_caller]
fn expect_at_most(mut strace: Child, wire: &Wire, most: f64, what: &str) {
    kill(Pid::from_raw(strace.id() as i32), Signal::SIGINT).expect("strace");
    strace.wait().expect("strace");
    let text = fs::read_to_string(counts_of(wire)).expect("its counts");
    let counts = counts(&text);
    let total = counts.values().sum::<u64>() as f64 / f64::from(TIMES);
    println!("{what}: {total:.2} system calls");
    assert!(
        total <= most,
        "{what} took {total:.2} system calls, and may take {most:.2}: {counts:?}"
    );
    assert!(total > most / 2.0, "not all was counted: {text}");
}

/// Calls by name, without waits and without looks that found nothing; and without the look at a descriptor by which a debug build
/// precedes its close.
fn counts(text: &str) -> BTreeMap<&str, u64> {
    let lines = text.lines().filter_map(|line| {
        let mut columns = line.split_whitespace();
        let calls: u64 = columns.next()?.parse().ok()?;
        let (errors, name) = match (columns.next()?, columns.next()) {
            (errors, Some(name)) => (errors.parse().ok()?, name),
            (name, None) => (0, name),
        };
        let looked = ["recvfrom", "accept4", "read", "sendto"].contains(&name);
        Some((name, if looked { calls - errors } else { calls }))
    });
    let mut counts: BTreeMap<&str, u64> = lines
        .filter(|(name, _)| !["epoll_wait", "epoll_pwait", "total"].contains(name))
        .collect();
    let closes = counts.get("close").copied().unwrap_or_default();
    if let Some(looks) = counts.get_mut("fcntl").filter(|_| cfg!(debug_assertions)) {
        *looks = looks.saturating_sub(closes);
    }
    counts
}
