//! The servers of `docs/kept-listeners.md`, read out of it, with its command lines.

use std::fs;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use socket2::{Domain, Socket, Type};

use crate::common::gate::{Gate, Setup};
use crate::common::http;
use crate::common::net::Net;
use crate::common::wait_until;
use crate::document::blocks;

const DOCUMENT: &str = include_str!("../../docs/kept-listeners.md");

/// A gate with the document's command line that has `word`, on a free port, and these files beside it.
fn start(net: &Net, word: &str, files: &[(&str, &str)]) -> Gate {
    let line = blocks(DOCUMENT, "sh").into_iter().find(|block| {
        block.starts_with("syngate run ") && block.contains(word) && block.lines().count() == 1
    });
    let line = line.expect("a command line").trim();
    let listen = "syngate run --listen 8080 ";
    let rest = line.strip_prefix(listen).expect("a listener");
    let (options, command) = rest.split_once(" -- ").expect("a command");
    let words = |text: &str| shlex::split(text).expect("words");
    let setup = Setup::new(net).options(words(options));
    for (name, text) in files {
        fs::write(setup.dir().join(name), text).expect(name);
    }
    setup
        .options(["--min-ready", "100ms"])
        .backend(words(command))
        .start()
}

#[test]
fn nginx_of_the_document() {
    let net = Net::new();
    let files = [
        ("nginx.conf.in", blocks(DOCUMENT, "nginx")[0]),
        ("nginx.sh", blocks(DOCUMENT, "sh")[0]),
    ];
    let gate = start(&net, "nginx.sh", &files);
    for reload in 0..3 {
        let path = format!("/{reload}");
        // The client's own address, which isn't the gate's.
        let answer = String::from_utf8(read(send(gate.public(), &path))).expect("text");
        assert!(
            answer.ends_with(&format!("\r\n\r\n127.7.7.7 {path}")),
            "{answer}"
        );
        gate.reload();
    }
    expect_one_generation(&gate, 4);
    assert!(!gate.log().contains("[emerg]"), "{}", gate.log());
    survives_a_crash(&gate);
}

#[test]
fn server_of_the_document_that_takes_listen_fds() {
    let net = Net::new();
    let gate = start(
        &net,
        "server.py",
        &[("server.py", blocks(DOCUMENT, "python")[0])],
    );
    let mut pids = Vec::new();
    for _ in 0..3 {
        let answer = ask(&gate, "/here");
        let (pid, path) = answer.split_once(' ').expect("two words");
        assert_eq!(path, "/here");
        pids.push(pid.to_owned());
        gate.reload();
    }
    pids.dedup();
    assert_eq!(pids.len(), 3, "a process for each generation");
    expect_one_generation(&gate, 4);
    survives_a_crash(&gate);
}

fn ask(gate: &Gate, path: &str) -> String {
    http::get(gate.public(), path).expect("an answer").text()
}

fn expect_one_generation(gate: &Gate, number: u64) {
    wait_until("the old generations have ended", || {
        let status = gate.status_json();
        let generations = status["services"][0]["generations"].clone();
        generations.as_array().is_some_and(|all| all.len() == 1)
            && generations[0]["number"] == number
    });
    assert_eq!(gate.metrics().sum("forced_closes_total", &[]), 0.0);
}

/// A request that waits in the kept listener of a stopped server is answered by its successor after `kill -9`.
fn survives_a_crash(gate: &Gate) {
    let status = gate.status_json();
    let leader = status["services"][0]["generations"][0]["pid"].as_i64();
    let group = Pid::from_raw(-i32::try_from(leader.expect("a pid")).expect("a pid"));
    kill(group, Signal::SIGSTOP).expect("stop");
    let dispatched = gate
        .metrics()
        .sum("dispatch_attempts_total", &[("result", "ok")]);
    let clients: Vec<Socket> = (0..20).map(|_| send(gate.public(), "/waits")).collect();
    wait_until("they wait in the kept listener", || {
        let now = gate
            .metrics()
            .sum("dispatch_attempts_total", &[("result", "ok")]);
        now == dispatched + 20.0
    });
    kill(group, Signal::SIGKILL).expect("kill");
    for client in clients {
        let answer = String::from_utf8(read(client)).expect("text");
        assert!(
            answer.starts_with("HTTP/1.") && answer.contains(" 200 "),
            "{answer}"
        );
    }
}

/// A request from an address of the client's own.
fn send(address: SocketAddr, path: &str) -> Socket {
    let mut client = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    let own = SocketAddr::from(([127, 7, 7, 7], 0));
    client.bind(&own.into()).expect("bind");
    client.connect(&address.into()).expect("connect");
    client
        .set_read_timeout(Some(Duration::from_secs(20)))
        .expect("a time-out");
    let request = format!("GET {path} HTTP/1.0\r\n\r\n");
    client.write_all(request.as_bytes()).expect("write");
    client
}

fn read(mut client: Socket) -> Vec<u8> {
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).expect("an answer");
    answer
}
