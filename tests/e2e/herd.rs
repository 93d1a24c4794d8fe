//! Five thousand clients wait for a backend with a short queue: when it comes, it isn't trampled, and nobody jumps the line. What
//! those cost who wait, or do nothing.

use std::fs;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use socket2::{SockAddr, Socket};

use crate::common::gate::{Gate, Setup};
use crate::common::net::{Drops, Net};
use crate::common::wire::{Endpoint, Wire, connect, expect, listen, listen_on, reset, send};
use crate::common::{allow_descriptors, wait_until, wait_within};

const CLIENTS: usize = 5000;
const BACKLOG: i32 = 128;
/// Clients before the first look at the gate's memory, so that what it needs for any number of them isn't counted.
const FIRST: usize = 500;
/// Connections of which each has had an answer, at each look.
const IDLE: usize = 2000;
/// Of the gate's memory, a connection that waits or does nothing.
const MOST_BYTES: u64 = 400;
/// The backend is down for so long.
const DOWN: Duration = Duration::from_secs(5);

#[test]
fn load_herd_on_tcp_with_one_worker() {
    herd(Endpoint::Tcp, 1);
}

#[test]
fn load_herd_on_tcp_with_two_workers() {
    herd(Endpoint::Tcp, 2);
}

#[test]
fn load_herd_on_unix_with_one_worker() {
    herd(Endpoint::Unix, 1);
}

#[test]
fn load_herd_on_unix_with_two_workers() {
    herd(Endpoint::Unix, 2);
}

fn herd(endpoint: Endpoint, workers: usize) {
    let Some(net) = Net::isolated() else { return };
    allow_descriptors();
    let setup = Setup::new(&net).options([
        "--workers",
        &workers.to_string(),
        "--pending-timeout",
        "120s",
    ]);
    let (place, address) = listen(&setup, &net, endpoint, BACKLOG);
    let gate = setup.options(["--backend", &address]).start();
    // Down: the listener is gone, and those who come now wait.
    drop(place);
    if endpoint == Endpoint::Unix {
        fs::remove_file(address.strip_prefix("unix:").expect("a path")).expect("the socket");
    }
    let before = net.drops();
    let down = Instant::now();
    let mut clients: Vec<Option<Socket>> = Vec::new();
    let mut memory_of = |count| {
        clients.extend((clients.len()..count).map(|number| Some(client(&gate, number))));
        wait_until("all are pending", || waiting(&gate) == count as f64);
        gate.resident()
    };
    let (first, all) = (memory_of(FIRST), memory_of(CLIENTS));
    let what = format!("a pending connection, {endpoint:?}, {workers} workers");
    expect_little(all.saturating_sub(first), CLIENTS - FIRST, &what);

    let gone: Vec<usize> = (0..CLIENTS).filter(|number| number % 10 == 3).collect();
    gone.iter()
        .for_each(|number| reset(clients[*number].take().expect("a client")));
    wait_until("the reset ones are counted", || {
        gate.metrics()
            .sum("pending_outcomes_total", &[("outcome", "client_reset")])
            == gone.len() as f64
    });
    thread::sleep(DOWN.saturating_sub(down.elapsed()));

    let listener = relisten(endpoint, &address);
    let expected = CLIENTS - gone.len();
    let order = thread::spawn(move || serve(&listener, expected));
    for (number, client) in clients.iter().enumerate() {
        let Some(client) = client else { continue };
        let mut answer = String::new();
        (&mut &*client)
            .read_to_string(&mut answer)
            .unwrap_or_else(|error| panic!("client {number}: {error}"));
        assert_eq!(answer, format!("{number:08}"));
    }
    let order = order.join().expect("the backend");
    assert_eq!(order.len(), expected);
    assert!(
        !order.iter().any(|number| gone.contains(number)),
        "a client that was gone has reached the backend"
    );
    if workers == 1 {
        let early = order.windows(2).find(|pair| pair[0] > pair[1]);
        assert_eq!(early, None, "not in the order of their coming");
    }
    assert_eq!(net.drops() - before, Drops::default());
    assert_eq!(gate.metrics().sum("listener_drops_total", &[]), 0.0);
}

fn client(gate: &Gate, number: usize) -> Socket {
    let socket = connect(gate.public());
    (&mut &socket)
        .write_all(format!("{number:08}").as_bytes())
        .expect("write");
    socket
}

/// Clients that have no answer yet: pending, or being tried.
fn waiting(gate: &Gate) -> f64 {
    let metrics = gate.metrics();
    ["pending", "connecting"]
        .map(|state| metrics.sum("connections_open", &[("state", state)]))
        .iter()
        .sum()
}

fn relisten(endpoint: Endpoint, address: &str) -> Socket {
    let place = match endpoint {
        Endpoint::Tcp => address.parse::<SocketAddr>().expect("an address").into(),
        Endpoint::Unix => SockAddr::unix(&address[5..]).expect("a path"),
    };
    listen_on(&place, BACKLOG)
}

/// Answers `expected` clients, one after the other, and tells their order. A probe says nothing and doesn't count.
fn serve(listener: &Socket, expected: usize) -> Vec<usize> {
    let mut order = Vec::with_capacity(expected);
    while order.len() < expected {
        let (socket, _) = listener.accept().expect("accept");
        socket.set_nonblocking(false).expect("blocking");
        socket
            .set_read_timeout(Some(Duration::from_secs(20)))
            .expect("SO_RCVTIMEO");
        let mut number = [0; 8];
        if (&mut &socket).read_exact(&mut number).is_ok() {
            (&mut &socket).write_all(&number).expect("write");
            order.push(
                std::str::from_utf8(&number)
                    .expect("text")
                    .parse()
                    .expect("a number"),
            );
        }
    }
    order
}

/// A buffer, a pipe or a timer that a connection keeps when it has nothing to do would be seen.
#[test]
fn load_herd_that_does_nothing() {
    let Some(net) = Net::isolated() else { return };
    allow_descriptors();
    for endpoint in Endpoint::ALL {
        let wire = Wire::new(&net, endpoint, &[]);
        let mut pairs = Vec::new();
        let mut memory_of = |count| {
            while pairs.len() < count {
                let (client, server) = wire.pair();
                send(&client, b"a request");
                expect(&server, b"a request");
                send(&server, b"an answer");
                expect(&client, b"an answer");
                pairs.push((client, server));
            }
            wire.gate.resident()
        };
        let (first, all) = (memory_of(IDLE), memory_of(2 * IDLE));
        let what = format!("an idle connection, {endpoint:?}");
        expect_little(all.saturating_sub(first), IDLE, &what);
    }
}

#[track_caller]
fn expect_little(memory: u64, connections: usize, what: &str) {
    let each = memory / connections as u64;
    println!("{what}: {each} bytes of the gate's memory");
    assert!((1..=MOST_BYTES).contains(&each), "{what}: {each} bytes");
}

/// The gate holds the endpoint's load down also while the backend accepts nothing at all for a time.
#[test]
fn load_herd_before_a_backend_that_stalls() {
    let Some(net) = Net::isolated() else { return };
    allow_descriptors();
    for endpoint in Endpoint::ALL {
        let setup = Setup::new(&net).options(["--pending-timeout", "120s"]);
        let (listener, address) = listen(&setup, &net, endpoint, BACKLOG);
        let gate = setup.options(["--backend", &address]).start();
        let before = net.drops();
        let clients: Vec<Socket> = (0..1000).map(|number| client(&gate, number)).collect();
        wait_within(Duration::from_secs(30), "nothing moves any more", || {
            let first = gate
                .metrics()
                .sum("dispatch_attempts_total", &[("result", "ok")]);
            thread::sleep(Duration::from_millis(300));
            (gate
                .metrics()
                .sum("dispatch_attempts_total", &[("result", "ok")])
                == first)
                .then_some(())
        });
        let server = thread::spawn(move || serve(&listener, 1000));
        for client in &clients {
            let mut answer = [0; 8];
            (&mut &*client).read_exact(&mut answer).expect("an answer");
        }
        server.join().expect("the backend");
        assert_eq!(net.drops() - before, Drops::default(), "{endpoint:?}");
    }
}
