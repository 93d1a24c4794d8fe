//! A backend that dies: what it had accepted is counted as that, whatever its end looked like.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixListener;
use std::sync::Arc;

use syngate_gate::{Endpoint, Generation};
use syngate_metrics::CloseReason;

use crate::common::{Fixture, LOOPBACK, rest, settings, tcp_endpoint, unix_endpoint, until, wait};

const ENDS: [CloseReason; 4] = [
    CloseReason::Eof,
    CloseReason::ClientReset,
    CloseReason::BackendReset,
    CloseReason::BackendGone,
];

fn counted(fixture: &Fixture) -> u64 {
    ENDS.map(|reason| fixture.numbers().closed(reason))
        .iter()
        .sum()
}

/// A generation whose process is this test.
fn process(fixture: &Fixture, endpoint: Endpoint) -> Arc<Generation> {
    let endpoints = vec![(None, vec![endpoint])];
    let generation = Generation::of_process(1, fixture.workers, endpoints, Vec::new());
    fixture.activate(&generation);
    generation
}

fn listener() -> (TcpListener, Endpoint) {
    let listener = TcpListener::bind(LOOPBACK).unwrap();
    let address = listener.local_addr().unwrap();
    (listener, tcp_endpoint(address))
}

/// A request that the backend has read, and the backend's end of it.
fn requested(fixture: &Fixture, backend: &TcpListener) -> (TcpStream, TcpStream) {
    let mut client = fixture.client();
    client.write_all(b"request").unwrap();
    let (mut accepted, _) = backend.accept().unwrap();
    accepted.read_exact(&mut [0; 7]).unwrap();
    (client, accepted)
}

/// The client closes as soon as it sees the end, so that the gate has closed both sides before anybody knows of a death.
#[test]
fn what_a_dead_process_hasn_t_answered_is_counted_though_its_end_came_first() {
    for told in [true, false] {
        let fixture = Fixture::new(2, settings());
        let (backend, endpoint) = listener();
        let generation = process(&fixture, endpoint);
        for _ in 0..5 {
            let (client, accepted) = requested(&fixture, &backend);
            drop(accepted);
            assert_eq!(rest(client), b"");
        }
        for _ in 0..5 {
            // The process had accepted it, and its client has said nothing yet.
            let client = fixture.client();
            drop(backend.accept().unwrap());
            assert_eq!(rest(client), b"");
        }
        fixture.until_empty();
        assert_eq!(counted(&fixture), 0, "the cause isn't known yet");
        if told {
            wait(fixture.gate.backend_gone(fixture.service, &generation));
        }
        until("they are counted", || counted(&fixture) == 10);
        let numbers = fixture.stop();
        let reason = match told {
            true => CloseReason::BackendGone,
            false => CloseReason::Eof,
        };
        assert_eq!(numbers.closed(reason), 10);
    }
}

#[test]
fn what_a_dead_process_hasn_t_read_is_counted_too() {
    for unix in [false, true] {
        let fixture = Fixture::new(1, settings());
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let (tcp, endpoint) = listener();
        let local = UnixListener::bind(&path).unwrap();
        let generation = process(&fixture, if unix { unix_endpoint(path) } else { endpoint });
        let listener = fixture.numbers().listener("l0");
        for n in 1..=5 {
            let mut client = fixture.client();
            client.write_all(b"request").unwrap();
            until("it is written", || {
                listener.block(0).bytes_in.get() == n * 7
            });
            match unix {
                true => drop(local.accept().unwrap()),
                false => drop(tcp.accept().unwrap()),
            }
            let _ = client.read(&mut [0; 1]); // An end, or a reset.
        }
        fixture.until_empty();
        wait(fixture.gate.backend_gone(fixture.service, &generation));
        assert_eq!(fixture.stop().closed(CloseReason::BackendGone), 5);
    }
}

#[test]
fn what_was_answered_or_ended_by_its_client_has_ended_by_itself() {
    let fixture = Fixture::new(2, settings());
    let (backend, endpoint) = listener();
    let generation = process(&fixture, endpoint);
    let answered = || {
        let (client, mut accepted) = requested(&fixture, &backend);
        accepted.write_all(b"answer").unwrap();
        (client, accepted)
    };
    let (client, accepted) = answered();
    drop(accepted);
    assert_eq!(rest(client), b"answer");
    // A client that says goodbye: before the backend's end, and after it.
    let (mut client, mut accepted) = answered();
    client.read_exact(&mut [0; 6]).unwrap();
    client.write_all(b"bye").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(rest(&mut accepted), b"bye");
    drop(accepted);
    assert_eq!(rest(client), b"");
    let (mut client, mut accepted) = answered();
    accepted.shutdown(Shutdown::Write).unwrap();
    assert_eq!(rest(&mut client), b"answer");
    client.write_all(b"bye").unwrap();
    drop(client);
    assert_eq!(rest(&mut accepted), b"bye");
    drop(accepted);
    fixture.until_empty();
    wait(fixture.gate.backend_gone(fixture.service, &generation));
    assert_eq!(fixture.stop().closed(CloseReason::Eof), 3);
}

#[test]
fn what_somebody_else_runs_is_counted_at_once() {
    let fixture = Fixture::new(1, settings());
    let (backend, endpoint) = listener();
    fixture.activate(&fixture.generation_at(1, vec![endpoint]));
    let (client, accepted) = requested(&fixture, &backend);
    drop(accepted);
    assert_eq!(rest(client), b"");
    fixture.until_empty();
    assert_eq!(fixture.numbers().closed(CloseReason::Eof), 1);
    fixture.stop();
}

/// An open connection counts as well, and so does one whose end is still on its way through the gate.
#[test]
fn what_is_open_at_the_death_is_counted() {
    let fixture = Fixture::new(1, settings());
    let (backend, endpoint) = listener();
    let generation = process(&fixture, endpoint);
    let (clients, accepted): (Vec<TcpStream>, Vec<TcpStream>) =
        (0..400).map(|_| requested(&fixture, &backend)).unzip();
    drop(accepted);
    wait(fixture.gate.backend_gone(fixture.service, &generation));
    for client in clients {
        assert_eq!(rest(client), b"");
    }
    assert_eq!(fixture.stop().closed(CloseReason::BackendGone), 400);
}

/// A process that has died may have left others of its group with its sockets, which die a moment later.
#[test]
fn what_ends_after_the_news_is_counted_too() {
    let fixture = Fixture::new(2, settings());
    let (backend, endpoint) = listener();
    let generation = process(&fixture, endpoint);
    let (clients, accepted): (Vec<TcpStream>, Vec<TcpStream>) =
        (0..10).map(|_| requested(&fixture, &backend)).unzip();
    wait(fixture.gate.backend_gone(fixture.service, &generation));
    drop(accepted);
    for client in clients {
        assert_eq!(rest(client), b"");
    }
    fixture.until_empty();
    assert_eq!(fixture.stop().closed(CloseReason::BackendGone), 10);
}
