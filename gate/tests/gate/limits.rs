//! Limits: who waits, who is turned away, and that nobody spins.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use syngate_gate::listener;
use syngate_gate::{Overflow, ServiceSettings};
use syngate_metrics::{CloseReason, ConnectionState, PendingOutcome};

use crate::common::{
    Fixture, LOOPBACK, ask, descriptors_again, echo, in_a_child, is_reset, no_more_descriptors,
    options, settings, until,
};

/// CPU time of this process so far.
fn cpu() -> Duration {
    let usage = getrusage(UsageWho::RUSAGE_SELF).unwrap();
    let time = usage.user_time() + usage.system_time();
    Duration::from_micros(time.num_microseconds() as u64)
}

/// Watches the workers for half a second, in which nothing happens that they would have to do.
fn assert_no_spin(fixture: &Fixture) {
    let (turns, before): (u64, _) = (fixture.gate.turns().iter().sum(), cpu());
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(500) {
        std::thread::park_timeout(Duration::from_millis(100));
    }
    let turns = fixture.gate.turns().iter().sum::<u64>() - turns;
    assert!(turns < 200, "{turns} turns in which nothing was to be done");
    assert!(cpu() - before < Duration::from_millis(250));
}

#[test]
fn at_max_connections_new_clients_wait_in_the_kernel_and_come_in_later() {
    for workers in [1, 2] {
        let fixture = Fixture::limited(workers, settings(), 20, 1000);
        fixture.activate(&fixture.generation(1, echo("")));
        let clients: Vec<TcpStream> = (0..60).map(|_| fixture.client()).collect();
        until("the limit is reached", || {
            fixture.gate.open_connections() >= 20
        });
        assert_no_spin(&fixture);
        let most = 20 + workers as u64 - 1;
        assert!(fixture.gate.open_connections() <= most);
        for client in clients {
            assert_eq!(ask(client, b"x"), b"x");
        }
        fixture.until_empty();
        let numbers = fixture.stop();
        assert_eq!(numbers.closed(CloseReason::Eof), 60);
    }
}

#[test]
fn at_max_connections_new_clients_are_reset_where_that_is_asked_for() {
    let overflow = ServiceSettings {
        pending_overflow: Overflow::Reset,
        ..settings()
    };
    let fixture = Fixture::limited(1, overflow, 10, 1000);
    fixture.activate(&fixture.generation(1, echo("")));
    let served: Vec<TcpStream> = (0..10).map(|_| fixture.client()).collect();
    fixture.until_open(10);
    for _ in 0..10 {
        assert!(is_reset(fixture.client()));
    }
    for client in served {
        assert_eq!(ask(client, b"x"), b"x");
    }
    let numbers = fixture.stop();
    assert_eq!(numbers.closed(CloseReason::Overflow), 10);
    assert_eq!(numbers.pending_outcomes(PendingOutcome::Overflow), 10);
}

#[test]
fn pending_max_bounds_those_who_wait_and_a_dispatch_makes_room() {
    for workers in [1, 2] {
        let fixture = Fixture::limited(workers, settings(), 1000, 20);
        let clients: Vec<TcpStream> = (0..100).map(|_| fixture.client()).collect();
        until("the limit is reached", || {
            fixture.gate.pending_connections() >= 20
        });
        assert_no_spin(&fixture);
        assert_eq!(fixture.gate.pending_connections(), 20);
        fixture.activate(&fixture.generation(1, echo("")));
        for client in clients {
            assert_eq!(ask(client, b"x"), b"x");
        }
        fixture.until_empty();
        fixture.stop();
    }
}

#[test]
fn pending_max_resets_where_that_is_asked_for() {
    let overflow = ServiceSettings {
        pending_overflow: Overflow::Reset,
        ..settings()
    };
    let fixture = Fixture::limited(1, overflow, 1000, 10);
    let waiting: Vec<TcpStream> = (0..10).map(|_| fixture.client()).collect();
    fixture.until_pending(10);
    assert!(is_reset(fixture.client()));
    fixture.activate(&fixture.generation(1, echo("")));
    for client in waiting {
        assert_eq!(ask(client, b"x"), b"x");
    }
    assert_eq!(ask(fixture.client(), b"x"), b"x");
    fixture.stop();
}

/// An inherited listener has other holders, and one of them may shut it down.
#[test]
fn a_listener_that_can_t_accept_any_more_is_no_reason_to_spin() {
    let inherited = std::net::TcpListener::bind(LOOPBACK).unwrap();
    let holder = inherited.try_clone().unwrap();
    let listener = listener::from_inherited("l0", inherited.into(), &options()).unwrap();
    let fixture = Fixture::with(2, settings(), 100, 100, listener);
    socket2::SockRef::from(&holder)
        .shutdown(std::net::Shutdown::Both)
        .unwrap();
    until("the error is counted", || {
        fixture.accept_errors("other") > 0
    });
    assert_no_spin(&fixture);
    fixture.stop();
}

#[test]
fn a_listener_that_closes_while_it_is_paused_leaves_no_pause_behind() {
    let fixture = Fixture::limited(2, settings(), 10, 1000);
    fixture.activate(&fixture.generation(1, echo("")));
    let clients: Vec<TcpStream> = (0..20).map(|_| fixture.client()).collect();
    until("the limit is reached", || {
        fixture.gate.open_connections() >= 10
    });
    crate::common::wait(fixture.gate.close(fixture.listener));
    for client in clients {
        assert_eq!(ask(client, b"x"), b"x");
    }
    fixture.until_empty();
    fixture.stop();
}

#[test]
fn higher_limits_let_in_who_waits() {
    let fixture = Fixture::limited(2, settings(), 5, 1000);
    fixture.activate(&fixture.generation(1, echo("")));
    let _clients: Vec<TcpStream> = (0..50).map(|_| fixture.client()).collect();
    until("the limit is reached", || {
        fixture.gate.open_connections() >= 5
    });
    fixture.gate.set_limits(1000, 1000);
    fixture.until_open(50);
    fixture.stop();
}

#[test]
fn of_a_thousand_long_connections_no_worker_has_many_more_than_half() {
    let fixture = Fixture::new(2, settings());
    fixture.activate(&fixture.generation(1, echo("")));
    let _clients: Vec<TcpStream> = (0..1000).map(|_| fixture.client()).collect();
    fixture.until_open(1000);
    let numbers = fixture.numbers();
    until("all are relayed", || {
        numbers.open(ConnectionState::Relaying) == 1000
    });
    let listener = numbers.listener("l0");
    for worker in 0..2 {
        let count = listener.block(worker).open[ConnectionState::Relaying].get();
        assert!(count <= 600, "worker {worker} has {count}");
    }
    fixture.stop();
}

#[test]
fn without_descriptors_accepting_pauses_and_comes_back() {
    if in_a_child("limits::without_descriptors_accepting_pauses_and_comes_back") {
        return;
    }
    let fixture = Fixture::new(2, settings());
    fixture.activate(&fixture.generation(1, echo("")));
    assert_eq!(ask(fixture.client(), b"x"), b"x");
    let clients: Vec<TcpStream> = {
        let sockets = (0..20).map(|_| {
            socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap()
        });
        let sockets: Vec<_> = sockets.collect();
        no_more_descriptors();
        let connect = |socket: socket2::Socket| {
            socket.connect(&fixture.address.into()).unwrap();
            socket.into()
        };
        sockets.into_iter().map(connect).collect()
    };
    until("EMFILE is counted", || fixture.accept_errors("EMFILE") > 0);
    assert_no_spin(&fixture);
    descriptors_again();
    let start = Instant::now();
    for client in clients {
        assert_eq!(ask(client, b"x"), b"x");
    }
    assert!(start.elapsed() < Duration::from_secs(20), "it comes back");
    fixture.stop();
}
