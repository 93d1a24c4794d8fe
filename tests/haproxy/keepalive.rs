//! Clients that keep their connection: a reload cuts none between two requests, in HTTP/1.1 and in HTTP/2, and there is a way back.

use std::fs;
use std::io::{ErrorKind, Read};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use socket2::Socket;

use crate::common::gate::{Gate, Setup};
use crate::common::http::{self, Head};
use crate::common::load::{Load, Plan};
use crate::common::net::Net;
use crate::common::wait_until;
use crate::common::wire::{connect, read_all, send};
use crate::fixture::{Alone, in_front_of};
use crate::h2::Connection;
use crate::states::process;

const CLIENTS: usize = 30;

/// What HAProxy says when it has stopped to accept: the drain signal has come, and its idle connections have heard of it.
const STOPPED: &str = "Proxy front stopped";

/// Answers the version and the path.
fn configuration(directory: &Path, public: SocketAddr, version: &str) -> String {
    format!(
        "global
    maxconn 1000
    stats socket {}/stats.sock level admin
defaults
    mode http
    timeout connect 5s
    timeout client 60s
    timeout server 60s
    timeout http-keep-alive 60s
frontend front
    bind {public}
    http-request return status 200 content-type text/plain lf-string {version}%[path]
",
        directory.display()
    )
}

/// A gate in front of a first version that is empty: it answers the path alone.
fn gate(net: &Net, options: &[&str]) -> (Gate, PathBuf) {
    let setup = Setup::bare(net).options(options);
    let file = setup.dir().join("haproxy.cfg");
    fs::write(&file, configuration(setup.dir(), setup.public(), "")).expect("haproxy.cfg");
    (in_front_of(setup, &file).start(), file)
}

fn change(gate: &Gate, file: &Path, version: &str) {
    fs::write(file, configuration(gate.dir(), gate.public(), version)).expect("haproxy.cfg");
    gate.reload();
}

/// One more request on this connection: the answer, and whether it is the last one.
fn request(mut socket: &Socket, path: &str) -> (String, bool) {
    send(
        socket,
        format!("GET {path} HTTP/1.1\r\nHost: gate\r\n\r\n").as_bytes(),
    );
    let mut received = Vec::new();
    loop {
        let mut buffer = [0; 4096];
        let length = socket.read(&mut buffer).expect("an answer");
        assert!(length > 0, "cut after {}", received.escape_ascii());
        received.extend_from_slice(&buffer[..length]);
        let Some(head) = Head::parse(&received).expect("an answer") else {
            continue;
        };
        if received.len() as u64 == head.length as u64 + head.content_length.expect("a length") {
            let body = String::from_utf8_lossy(&received[head.length..]).into_owned();
            return (body, head.close);
        }
    }
}

/// Nothing has come on it: neither bytes, nor an end, nor a reset.
fn is_quiet(socket: &Socket) -> bool {
    socket.set_nonblocking(true).expect("nonblocking");
    let peeked = socket.peek(&mut [std::mem::MaybeUninit::uninit()]);
    socket.set_nonblocking(false).expect("blocking");
    peeked.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
}

fn wait_drained(gate: &Gate) {
    wait_until("the old generation has ended", || {
        gate.metrics().sum("generations", &[("state", "draining")]) == 0.0
    });
}

#[test]
fn idle_clients_are_told_with_their_next_answer() {
    let net = Net::new();
    let (gate, file) = gate(&net, &[]);
    let clients: Vec<Socket> = (0..CLIENTS).map(|_| connect(gate.public())).collect();
    for client in &clients {
        assert_eq!(request(client, "/first"), ("/first".to_owned(), false));
    }
    change(&gate, &file, "new");
    gate.expect_log(STOPPED);
    for client in &clients {
        assert!(is_quiet(client), "cut between two requests");
        assert_eq!(request(client, "/second"), ("/second".to_owned(), true));
        assert_eq!(read_all(client).0, b"");
    }
    wait_drained(&gate);
    let metrics = gate.metrics();
    assert_eq!(metrics.sum("forced_closes_total", &[]), 0.0);
}

/// The test above can fail: HAProxy's own reload, with this configuration, cuts them all.
#[test]
fn haproxy_alone_cuts_idle_clients() {
    let net = Net::new();
    let directory = tempfile::tempdir().expect("a directory");
    let (file, public) = (directory.path().join("haproxy.cfg"), net.free_address());
    fs::write(&file, configuration(directory.path(), public, "")).expect("haproxy.cfg");
    let alone = Alone::start(&file).expect("it listens");
    let clients: Vec<Socket> = (0..CLIENTS).map(|_| connect(public)).collect();
    for client in &clients {
        assert_eq!(request(client, "/first"), ("/first".to_owned(), false));
    }
    let _alone = alone.reload(&file);
    for client in &clients {
        assert_eq!(read_all(client).0, b"", "it isn't cut");
    }
}

#[test]
fn h2_clients_are_told_and_answered() {
    let net = Net::new();
    let (gate, file) = gate(&net, &[]);
    let mut clients: Vec<Connection> = (0..CLIENTS)
        .map(|_| Connection::open(gate.public()).expect("a connection"))
        .collect();
    for client in &mut clients {
        assert_eq!(client.get("/first").expect("an answer"), "/first");
    }
    change(&gate, &file, "new");
    gate.expect_log(STOPPED);
    for mut client in clients {
        // One that hasn't seen it yet asks once more.
        assert_eq!(client.get("/second").expect("an answer"), "/second");
        assert!(client.is_told_to_go(), "no GOAWAY came before the answer");
    }
    wait_drained(&gate);
    assert_eq!(gate.metrics().sum("forced_closes_total", &[]), 0.0);
}

/// What the clients of HTTP/2 have come to.
#[derive(Default)]
struct Counts {
    stop: AtomicBool,
    answered: AtomicU32,
    told: AtomicU32,
}

#[test]
fn load_kept_connections_across_reloads() {
    const RELOADS: u32 = 30;
    let Some(net) = Net::isolated() else { return };
    let (gate, file) = gate(&net, &["--max-generations", "16"]);
    let load = Load::start(Plan {
        fresh_per_second: 100,
        kept: 100,
        downloads: 0,
        ..Plan::standing(gate.public())
    });
    let counts = Arc::new(Counts::default());
    let clients: Vec<_> = (0..CLIENTS as u64)
        .map(|number| {
            let (counts, public) = (Arc::clone(&counts), gate.public());
            thread::spawn(move || h2_client(public, number, &counts))
        })
        .collect();
    load.wait_flowing();
    wait_until("HTTP/2 flows", || {
        counts.answered.load(Ordering::Relaxed) > CLIENTS as u32
    });
    for _ in 0..RELOADS {
        change(&gate, &file, "");
    }
    counts.stop.store(true, Ordering::Relaxed);
    let report = load.stop();
    report.print("30 reloads");
    let failures: Vec<String> = clients
        .into_iter()
        .filter_map(|client| client.join().expect("a client").err())
        .collect();
    let [answered, told] =
        [&counts.answered, &counts.told].map(|count| count.load(Ordering::Relaxed));
    println!("30 reloads: HTTP/2: {answered} ok, {told} told to go, {failures:?} failed");
    assert_eq!(failures, [""; 0]);
    report.expect_standing();
    assert_eq!(report.kept.ended_idle, 0, "cut between two requests");
    assert!(
        told >= RELOADS,
        "only {told} connections have seen a reload"
    );
    assert_eq!(gate.metrics().sum("forced_closes_total", &[]), 0.0);
}

/// Asks at random moments, on one connection until it is told to go. The first failure ends it.
fn h2_client(public: SocketAddr, number: u64, counts: &Counts) -> Result<(), String> {
    let mut asked = 0_u64;
    while !counts.stop.load(Ordering::Relaxed) {
        let mut connection = Connection::open(public).map_err(|error| format!("open: {error}"))?;
        while !connection.is_told_to_go() && !counts.stop.load(Ordering::Relaxed) {
            let path = format!("/h2-{number}-{asked}");
            let answer = connection
                .get(&path)
                .map_err(|error| format!("{path}: {error}"))?;
            if answer != path {
                return Err(format!("{path} was answered with {answer}"));
            }
            counts.answered.fetch_add(1, Ordering::Relaxed);
            asked += 1;
            // Up to 400 ms, unlike any other's; what comes meanwhile is heard with the next answer.
            let pause = (number + 1).wrapping_mul(asked.wrapping_mul(7919)) % 400;
            let mut fds = [PollFd::new(connection.as_fd(), PollFlags::POLLIN)];
            let pause = PollTimeout::try_from(Duration::from_millis(pause)).expect("a short time");
            if poll(&mut fds, pause).is_ok_and(|ready| ready > 0) {
                connection
                    .hear()
                    .map_err(|error| format!("while idle: {error}"))?;
            }
        }
        let told = connection.is_told_to_go();
        counts.told.fetch_add(u32::from(told), Ordering::Relaxed);
    }
    Ok(())
}

#[test]
fn a_kept_previous_generation_serves_again_after_a_rollback() {
    let net = Net::new();
    let (gate, file) = gate(&net, &["--keep-previous", "60s"]);
    let stats = gate.dir().join("stats.sock");
    let first = process(&stats);
    let old = connect(gate.public());
    assert_eq!(request(&old, "/a"), ("/a".to_owned(), false));
    change(&gate, &file, "new");
    let second = process(&stats);
    assert_ne!(first, second);
    let new = connect(gate.public());
    assert_eq!(request(&new, "/a"), ("new/a".to_owned(), false));
    // It hasn't been told anything.
    assert_eq!(request(&old, "/b"), ("/b".to_owned(), false));

    gate.run(["rollback"]).expect_code(0);
    assert_eq!(process(&stats), first, "the stats socket is another one's");
    assert_eq!(
        http::get(gate.public(), "/c").expect("an answer").text(),
        "/c"
    );
    assert_eq!(request(&old, "/c"), ("/c".to_owned(), false));
    assert_eq!(request(&new, "/c"), ("new/c".to_owned(), false));

    gate.run(["rollback"]).expect_code(0);
    assert_eq!(process(&stats), second, "the stats socket is another one's");
    let answer = http::get(gate.public(), "/d").expect("an answer");
    assert_eq!(answer.text(), "new/d");
    assert_eq!(request(&new, "/d"), ("new/d".to_owned(), false));
    assert_eq!(request(&old, "/d"), ("/d".to_owned(), false));
    assert!(!gate.log().contains(STOPPED), "one was told to stop");
}
