//! Every time-out.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::Duration;

use syngate_gate::ServiceSettings;
use syngate_metrics::{CloseReason, PendingOutcome};

use crate::common::{Fixture, LOOPBACK, rest, settings, until};

fn relayed(settings: ServiceSettings) -> (Fixture, TcpStream, TcpStream) {
    let fixture = Fixture::new(1, settings);
    let listener = TcpListener::bind(LOOPBACK).unwrap();
    fixture.activate(&fixture.generation(1, listener.local_addr().unwrap()));
    let client = fixture.client();
    let (backend, _) = listener.accept().unwrap();
    (fixture, client, backend)
}

#[test]
fn an_idle_connection_is_closed() {
    let (fixture, mut client, mut backend) = relayed(ServiceSettings {
        idle_timeout: Some(Duration::from_secs(1)),
        ..settings()
    });
    // Bytes in either direction put it off.
    for _ in 0..10 {
        client.write_all(b"x").unwrap();
        backend.read_exact(&mut [0; 1]).unwrap();
        backend.write_all(b"y").unwrap();
        client.read_exact(&mut [0; 1]).unwrap();
        std::thread::park_timeout(Duration::from_millis(150));
    }
    assert_eq!(rest(client), b"");
    assert_eq!(fixture.stop().closed(CloseReason::IdleTimeout), 1);
}

#[test]
fn an_idle_timeout_that_is_set_later_is_heeded() {
    let (fixture, client, _backend) = relayed(settings());
    let hasty = ServiceSettings {
        idle_timeout: Some(Duration::from_millis(100)),
        ..settings()
    };
    fixture.activate_with(&fixture.generation(2, LOOPBACK), hasty);
    assert_eq!(rest(client), b"");
    assert_eq!(fixture.stop().closed(CloseReason::IdleTimeout), 1);
}

#[test]
fn a_half_closed_connection_is_closed_unless_bytes_pass() {
    let (fixture, client, mut backend) = relayed(ServiceSettings {
        half_close_timeout: Some(Duration::from_millis(1500)),
        ..settings()
    });
    // Idle for longer than the time-out, which begins with the end of a side.
    std::thread::park_timeout(Duration::from_millis(2000));
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(rest(&mut backend), b"");
    for _ in 0..8 {
        backend.write_all(b"y").unwrap();
        std::thread::park_timeout(Duration::from_millis(250));
    }
    assert_eq!(rest(client), b"yyyyyyyy");
    assert_eq!(fixture.stop().closed(CloseReason::HalfCloseTimeout), 1);
}

#[test]
fn a_reset_client_is_not_kept_by_a_backend_that_reads_nothing() {
    let (fixture, mut client, _backend) = relayed(ServiceSettings {
        half_close_timeout: Some(Duration::from_millis(200)),
        ..settings()
    });
    client.set_nonblocking(true).unwrap();
    let bytes = vec![0; 1_000_000];
    let mut stuck = 0;
    while stuck < 100 {
        if client.write(&bytes).is_ok_and(|n| n > 0) {
            stuck = 0;
        } else {
            stuck += 1;
            std::thread::park_timeout(Duration::from_millis(1));
        }
    }
    crate::common::reset(&client);
    drop(client);
    fixture.until_empty();
    assert_eq!(fixture.stop().closed(CloseReason::HalfCloseTimeout), 1);
}

#[test]
fn a_pending_connection_is_closed_and_counted() {
    let fixture = Fixture::new(
        2,
        ServiceSettings {
            pending_timeout: Duration::from_millis(100),
            ..settings()
        },
    );
    let clients: Vec<TcpStream> = (0..50).map(|_| fixture.client()).collect();
    for client in clients {
        assert_eq!(rest(client), b"");
    }
    fixture.until_empty();
    let numbers = fixture.stop();
    assert_eq!(numbers.closed(CloseReason::PendingTimeout), 50);
    assert_eq!(numbers.pending_outcomes(PendingOutcome::Timeout), 50);
}

#[test]
fn at_the_stop_every_wait_has_an_outcome() {
    let fixture = Fixture::new(2, settings());
    let _clients: Vec<TcpStream> = (0..20).map(|_| fixture.client()).collect();
    until("all wait", || fixture.gate.pending_connections() == 20);
    let numbers = fixture.stop();
    assert_eq!(numbers.closed(CloseReason::Shutdown), 20);
    assert_eq!(numbers.pending_outcomes(PendingOutcome::Shutdown), 20);
}

#[test]
fn a_header_that_never_comes_is_not_waited_for() {
    let fixture = Fixture::new(
        1,
        ServiceSettings {
            accept_proxy: Some("127.0.0.0/8".parse().unwrap()),
            accept_proxy_timeout: Duration::from_millis(200),
            ..settings()
        },
    );
    let mut client = fixture.client();
    client.write_all(b"PROXY TCP4 ").unwrap();
    let mut end = [0; 1];
    assert!(!matches!(client.read(&mut end), Ok(1)));
    fixture.until_empty();
    assert_eq!(fixture.stop().closed(CloseReason::ProxyHeader), 1);
}
