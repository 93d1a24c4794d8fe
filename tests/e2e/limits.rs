//! Every bound holds, is counted by its reason, and is never a silent hang or a spin.

use std::fs;
use std::io::{ErrorKind, Read};
use std::process::Command;
use std::thread;
use std::time::Duration;

use socket2::Socket;

use crate::common::gate::{Gate, Setup};
use crate::common::net::Net;
use crate::common::wire::{Endpoint, Wire, read_all, send};
use crate::common::{backend, http, wait_until};

#[test]
fn full_queue_leaves_the_rest_to_the_kernel() {
    let net = Net::new();
    let wire = Wire::new(&net, Endpoint::Tcp, &["--pending-max", "10"]);
    wire.gate.run(["hold"]).expect_code(0);
    let clients: Vec<Socket> = (0..15).map(|_| wire.connect()).collect();
    wait_until("ten are pending", || pending(&wire.gate) == 10.0);
    wait_until("five wait in the kernel", || {
        wire.gate.metrics().sum("listener_backlog", &[]) == 5.0
    });
    wire.gate.run(["release"]).expect_code(0);
    let servers: Vec<Socket> = clients.iter().map(|_| wire.accept()).collect();
    servers.iter().for_each(|server| send(server, b"hello"));
    drop(servers);
    for client in &clients {
        assert_eq!(read_all(client).0, b"hello");
    }
    let metrics = wire.gate.metrics();
    assert_eq!(
        metrics.sum("pending_outcomes_total", &[("outcome", "dispatched")]),
        15.0
    );
    assert_eq!(
        metrics.sum("connections_closed_total", &[("reason", "overflow")]),
        0.0
    );
    wire.gate
        .expect_log("pending_max is reached: accepting pauses");
}

#[test]
fn full_queue_resets_where_that_is_wanted() {
    let net = Net::new();
    let wire = Wire::new(
        &net,
        Endpoint::Tcp,
        &[
            "--workers",
            "1",
            "--pending-max",
            "10",
            "--pending-overflow",
            "reset",
        ],
    );
    wire.gate.run(["hold"]).expect_code(0);
    let first: Vec<Socket> = (0..10).map(|_| wire.connect()).collect();
    wait_until("ten are pending", || pending(&wire.gate) == 10.0);
    for _ in 0..5 {
        // The reset may come before the client has seen its connection made.
        let reset = std::net::TcpStream::connect(wire.gate.public())
            .and_then(|mut stream| stream.read(&mut [0]));
        assert!(reset.is_err_and(|error| error.kind() == ErrorKind::ConnectionReset));
    }
    let metrics = wire.gate.metrics();
    assert_eq!(
        metrics.sum("connections_closed_total", &[("reason", "overflow")]),
        5.0
    );
    assert_eq!(
        metrics.sum("pending_outcomes_total", &[("outcome", "overflow")]),
        5.0
    );
    wire.gate
        .expect_log("pending_max is reached: new connections are reset");
    wire.gate.run(["release"]).expect_code(0);
    first.iter().for_each(|_| drop(wire.accept()));
}

#[test]
fn a_wait_ends_with_pending_timeout() {
    let net = Net::new();
    let wire = Wire::new(&net, Endpoint::Tcp, &["--pending-timeout", "300ms"]);
    wire.gate.run(["hold", "--timeout", "30s"]).expect_code(0);
    let client = wire.connect();
    assert_eq!(read_all(&client).0, b"");
    wait_until("it is counted", || {
        closed(&wire.gate, "pending_timeout") == 1.0
    });
    assert_eq!(
        wire.gate
            .metrics()
            .sum("pending_outcomes_total", &[("outcome", "timeout")]),
        1.0
    );
    wire.gate.run(["release"]).expect_code(0);
    assert!(wire.try_accept().is_none());
    let (client, server) = wire.pair();
    send(&client, b"x");
    drop(client);
    assert_eq!(read_all(&server).0, b"x");
}

#[test]
fn a_pending_client_that_resets_never_reaches_the_backend() {
    let net = Net::new();
    let wire = Wire::new(&net, Endpoint::Tcp, &[]);
    wire.gate.run(["hold"]).expect_code(0);
    let client = wire.connect();
    wait_until("it is pending", || pending(&wire.gate) == 1.0);
    crate::common::wire::reset(client);
    wait_until("it is counted", || {
        closed(&wire.gate, "client_reset") == 1.0
    });
    wire.gate.run(["release"]).expect_code(0);
    let (client, server) = wire.pair();
    send(&client, b"the next one");
    drop(client);
    assert_eq!(read_all(&server).0, b"the next one");
}

#[test]
fn connections_at_the_limit_wait_for_their_turn() {
    let net = Net::new();
    let wire = Wire::new(&net, Endpoint::Tcp, &["--max-connections", "10"]);
    let mut running: Vec<(Socket, Socket)> = (0..10).map(|_| wire.pair()).collect();
    let late: Vec<Socket> = (0..5).map(|_| wire.connect()).collect();
    wait_until("five wait in the kernel", || {
        wire.gate.metrics().sum("listener_backlog", &[]) == 5.0
    });
    assert!(wire.try_accept().is_none());
    assert_eq!(wire.gate.metrics().sum("connections_open", &[]), 10.0);
    // Those that run are unharmed, and each that ends lets one in.
    send(&running[9].0, b"still here");
    crate::common::wire::expect(&running[9].1, b"still here");
    running.drain(..5);
    for client in &late {
        let server = wire.accept();
        send(&server, b"your turn");
        drop(server);
        let _ = client;
    }
    for client in &late {
        assert_eq!(read_all(client).0, b"your turn");
    }
    wire.gate
        .expect_log("max_connections is reached: accepting pauses");
}

#[test]
fn silent_connections_end_with_their_time_outs() {
    let net = Net::new();
    let wire = Wire::new(&net, Endpoint::Tcp, &["--half-close-timeout", "1s"]);
    let (client, server) = wire.pair();
    client
        .shutdown(std::net::Shutdown::Write)
        .expect("shutdown");
    assert_eq!(read_all(&server).0, b"");
    // Any byte re-arms it: ten of them take longer than the time-out.
    for _ in 0..10 {
        thread::sleep(Duration::from_millis(200));
        send(&server, b".");
    }
    assert_eq!(read_all(&client).0, b"..........");
    wait_until("it is counted", || {
        closed(&wire.gate, "half_close_timeout") == 1.0
    });

    let wire = Wire::new(&net, Endpoint::Tcp, &["--idle-timeout", "1s"]);
    let (client, server) = wire.pair();
    for _ in 0..10 {
        thread::sleep(Duration::from_millis(200));
        send(&client, b".");
    }
    assert_eq!(read_all(&server).0, b"..........");
    assert_eq!(read_all(&client).0, b"");
    wait_until("it is counted", || {
        closed(&wire.gate, "idle_timeout") == 1.0
    });
}

#[test]
fn load_out_of_descriptors_neither_spins_nor_stops() {
    let Some(net) = Net::isolated() else { return };
    let wire = Wire::new(&net, Endpoint::Tcp, &["--max-connections", "1000"]);
    let running: Vec<(Socket, Socket)> = (0..20).map(|_| wire.pair()).collect();
    limit_descriptors(&wire.gate, 30);
    let clients: Vec<Socket> = (0..200).map(|_| wire.connect()).collect();
    wait_until("accept has failed", || {
        wire.gate
            .metrics()
            .sum("accept_errors_total", &[("errno", "EMFILE")])
            > 0.0
    });
    let (before, lines) = (cpu_ticks(&wire.gate), wire.gate.log().lines().count());
    thread::sleep(Duration::from_secs(3));
    let (ticks, lines) = (
        cpu_ticks(&wire.gate) - before,
        wire.gate.log().lines().count() - lines,
    );
    wire.gate.expect_log("accepting pauses");
    assert!(ticks <= 15, "{ticks} of 300 hundredths of a second of CPU"); // 5 %
    // One a second about accepting, and one about the endpoint, for which there is no descriptor either.
    assert!(
        lines <= 8,
        "{lines} lines in three seconds:\n{}",
        wire.gate.log()
    );
    wire.gate.run(["status"]).expect_code(0);
    for (client, server) in &running {
        send(client, b"unharmed");
        crate::common::wire::expect(server, b"unharmed");
    }
    limit_descriptors(&wire.gate, 10_000);
    for _ in &clients {
        let server = wire.accept();
        send(&server, b"at last");
    }
    for client in &clients {
        crate::common::wire::expect(client, b"at last");
    }
}

#[test]
fn few_descriptors_from_the_start_are_said_and_kept_to() {
    let net = Net::new();
    let address = net.free_address();
    let _backend = backend::Outside::start(address, &[]);
    let setup = Setup::new(&net).options(["--backend", &address.to_string()]);
    let gate = setup.under(["prlimit", "--nofile=128:128"]).start();
    let answers: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..200)
            .map(|_| scope.spawn(|| http::get(gate.public(), "/sleep/50")))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("a client"))
            .collect()
    });
    assert!(
        answers.iter().all(|answer| answer
            .as_ref()
            .is_ok_and(|answer| answer.text() == "/sleep/50")),
        "{answers:?}"
    );
    let metrics = gate.metrics();
    assert_eq!(
        metrics.sum("accept_errors_total", &[]),
        0.0,
        "max_connections should have kept it from that"
    );
}

/// What the gate lacks isn't blamed on the endpoint.
#[test]
fn a_connect_without_a_descriptor_is_the_gates_own_failure() {
    let net = Net::new();
    let address = net.free_address();
    let _backend = backend::Outside::start(address, &[]);
    let gate = Setup::new(&net)
        .options(["--backend", &address.to_string(), "--workers", "1"])
        .start();
    gate.run(["hold"]).expect_code(0);
    let clients = [(); 8].map(|()| crate::common::wire::connect(gate.public()));
    wait_until("they wait", || pending(&gate) == 8.0);
    // Nothing above what is open now.
    let open = fs::read_dir(format!("/proc/{}/fd", gate.pid())).expect("its descriptors");
    limit_descriptors(&gate, open.count() as u64);
    gate.run(["release"]).expect_code(0);
    gate.expect_log("the gate can't connect to an endpoint");
    assert!(
        !gate.log().contains("takes no connection"),
        "{}",
        gate.log()
    );
    limit_descriptors(&gate, 1000);
    for client in &clients {
        send(client, b"GET /late HTTP/1.1\r\nConnection: close\r\n\r\n");
        let (answer, _) = read_all(client);
        assert!(answer.ends_with(b"/late"), "{}", answer.escape_ascii());
    }
}

/// Too few to work with are refused before anything is opened.
#[test]
fn hopelessly_few_descriptors_are_the_systems_refusal() {
    let net = Net::new();
    for limit in [24, 40] {
        let setup = Setup::new(&net).options(["--backend", "127.0.0.1:9"]);
        let limit = format!("--nofile={limit}:{limit}");
        let mut gate = setup.under(["prlimit", &limit]).spawn();
        let status = gate.wait_exit(Duration::from_secs(10));
        assert_eq!(status.code(), Some(71), "{}", gate.log());
        assert!(gate.log().contains("LimitNOFILE="), "{}", gate.log());
    }
}

fn pending(gate: &Gate) -> f64 {
    gate.metrics()
        .sum("connections_open", &[("state", "pending")])
}

fn closed(gate: &Gate, reason: &str) -> f64 {
    gate.metrics()
        .sum("connections_closed_total", &[("reason", reason)])
}

/// prlimit(2) on the running gate.
fn limit_descriptors(gate: &Gate, soft: u64) {
    let status = Command::new("prlimit")
        .args([format!("--pid={}", gate.pid()), format!("--nofile={soft}:")])
        .status();
    assert!(status.expect("prlimit runs").success());
}

/// Its user and system time, in hundredths of a second.
fn cpu_ticks(gate: &Gate) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{}/stat", gate.pid())).expect("stat");
    let fields = stat.rsplit(')').next().expect("fields").split_whitespace();
    fields
        .skip(11)
        .take(2)
        .map(|field| field.parse::<u64>().expect("a number"))
        .sum()
}
