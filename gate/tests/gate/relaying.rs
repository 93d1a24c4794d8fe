//! Relaying, and who relays to whom.

use std::io::Write;
use std::net::TcpStream;

use syngate_gate::Event;
use syngate_metrics::{CloseReason, PendingOutcome};

use crate::common::{Fixture, ask, deaf, echo, settings, until, wait};

#[test]
fn a_pending_connection_is_dispatched_when_a_generation_becomes_active() {
    let fixture = Fixture::new(2, settings());
    let early = fixture.client();
    let first = fixture.generation(1, echo("one "));
    fixture.activate(&first);
    assert_eq!(ask(early, b"early"), b"one early");
    assert_eq!(ask(fixture.client(), b"late"), b"one late");
    let service = fixture.stop();
    assert_eq!(service.accepted(), 2);
    assert_eq!(service.closed(CloseReason::Eof), 2);
    assert_eq!(service.pending_outcomes(PendingOutcome::Dispatched), 2);
}

#[test]
fn after_a_flip_new_connections_go_to_the_new_generation_and_the_old_one_is_released() {
    let mut fixture = Fixture::new(2, settings());
    let first = fixture.generation(1, echo("one "));
    let second = fixture.generation(2, echo("two "));
    fixture.activate(&first);
    let mut old = fixture.client();
    old.write_all(b"a").unwrap();
    until("a lease", || first.leases() == 1);
    fixture.activate(&second);
    assert_eq!(ask(fixture.client(), b"new"), b"two new");
    assert_eq!(first.leases(), 1);
    assert_eq!(ask(old, b"b"), b"one ab");
    let released = Event::Released {
        service: fixture.service,
        generation: 1,
    };
    while first.leases() > 0 || fixture.events.blocking_recv() != Some(released.clone()) {}
    fixture.stop();
}

/// Whose backend may not know of them: those on which nothing has come back and nothing was acknowledged, over all workers.
#[test]
fn connections_are_unproven_until_something_has_passed() {
    let fixture = Fixture::new(2, settings());
    let generation = fixture.generation(1, echo(""));
    fixture.activate(&generation);
    let mut clients: Vec<TcpStream> = (0..10).map(|_| fixture.client()).collect();
    until("all are dispatched", || generation.leases() == 10);
    let unproven = |generation| wait(fixture.gate.unproven(fixture.service, generation));
    assert_eq!((unproven(1), unproven(2)), (10, 0));
    for client in &mut clients[..4] {
        client.write_all(b"a").unwrap();
    }
    until("four are proven", || unproven(1) == 6);
    drop(clients);
    fixture.until_empty();
    assert_eq!(unproven(1), 0);
    fixture.stop();
}

#[test]
fn bulk_passes_unharmed_in_both_directions() {
    let fixture = Fixture::new(1, settings());
    fixture.activate(&fixture.generation(1, echo("")));
    let bulk: Vec<u8> = (0..64_000_000u32).map(|n| (n ^ (n >> 11)) as u8).collect();
    assert!(ask(fixture.client(), &bulk) == bulk);
    fixture.stop();
}

#[test]
fn what_is_held_waits_and_what_is_refused_is_dispatched_later() {
    let fixture = Fixture::new(2, settings());
    let (_closed, closed) = deaf();
    fixture.activate(&fixture.generation(1, closed));
    let waiting = fixture.client();
    wait(fixture.gate.hold(fixture.service, true));
    fixture.activate(&fixture.generation(2, echo("two ")));
    let held = fixture.client();
    assert_eq!(wait(fixture.gate.connections(fixture.service)).len(), 2);
    wait(fixture.gate.hold(fixture.service, false));
    assert_eq!(ask(waiting, b"waited"), b"two waited");
    assert_eq!(ask(held, b"held"), b"two held");
    fixture.stop();
}
