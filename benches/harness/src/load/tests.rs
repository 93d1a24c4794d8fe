//! Load and backend without a relay between them.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use super::*;
use crate::backend::{Behaviour, thread};
use crate::wire::{ANSWER, REQUEST};

const PATIENCE: Duration = Duration::from_secs(20);

/// An address of 127/8 at which nobody listens.
fn nobody() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("its address")
}

#[test]
fn each_habit_gets_its_answers() {
    for (habit, behaviour, most) in [
        (Habit::Closes, Behaviour::Answer, 100),
        (Habit::IsClosed, Behaviour::AnswerOnce, 100),
        (Habit::Repeats, Behaviour::Answer, 100),
        (Habit::Stays, Behaviour::Answer, 8),
    ] {
        let mut exchange = Exchange::open(&[thread(behaviour)], 8, habit).expect("clients");
        let tally = exchange.run(PATIENCE, most).expect("a load");
        assert!(tally.operations >= most, "{habit:?}: {tally:?}");
        assert_eq!(tally.errors, 0, "{habit:?}");
    }
}

#[test]
fn a_pace_is_kept() {
    const PACE: Duration = Duration::from_millis(1);
    let target = [thread(Behaviour::Answer)];
    let exchange = Exchange::open(&target, 8, Habit::Closes).expect("clients");
    let mut exchange = exchange.at(Some(PACE));
    let start = Instant::now();
    let tally = exchange.run(PATIENCE, 100).expect("runs");
    // The first of each client, and one that is due at once.
    let most = start.elapsed().div_duration_f64(PACE) + 9.0;
    assert!(
        tally.operations >= 100 && tally.operations as f64 <= most,
        "{tally:?}"
    );
    assert_eq!(tally.errors, 0);
}

#[test]
fn targets_are_used_in_turn() {
    let listeners = [0; 2].map(|port| TcpListener::bind(("127.0.0.1", port)).expect("a port"));
    let targets = listeners
        .each_ref()
        .map(|listener| listener.local_addr().expect("its address"));
    let _clients = Exchange::open(&targets, 2, Habit::Stays).expect("clients");
    for listener in listeners {
        listener.accept().expect("a client at each");
    }
}

#[test]
fn what_isn_t_answered_is_an_error() {
    let refused = Exchange::open(&[nobody()], 1, Habit::Closes);
    let tally = refused
        .expect("clients")
        .run(Duration::from_millis(50), 1)
        .expect("a load");
    assert_eq!(tally.operations, 0);
    assert!(tally.errors > 0);

    let closed = thread(Behaviour::AnswerOnce);
    let mut exchange = Exchange::open(&[closed], 4, Habit::Repeats).expect("clients");
    let tally = exchange.run(PATIENCE, 50).expect("a load");
    assert!(
        tally.errors > 0,
        "a connection that was closed has answered on"
    );
}

#[test]
fn bulk_goes_both_ways() {
    for (direction, behaviour) in [
        (Direction::Down, Behaviour::Source),
        (Direction::Up, Behaviour::Sink),
    ] {
        let mut bulk = Bulk::open(thread(behaviour), 3, direction).expect("streams");
        // More than all buffers on the way hold.
        let mut bytes = 0;
        while bytes < 100_000_000 {
            bytes += bulk
                .run(Duration::from_millis(20))
                .expect("bytes")
                .operations;
        }
    }
}

#[test]
fn a_schedule_has_an_end_for_each_connection() {
    let answered = schedule::run(thread(Behaviour::Answer), 200, 2000).expect("a load");
    assert_eq!((answered.latencies.len(), answered.failed), (200, 0));
    assert!(answered.latencies.is_sorted());

    let refused = schedule::run(nobody(), 20, 2000).expect("a load");
    assert_eq!(refused.failed, 20);
    assert_eq!(refused.latencies, [10_000.0; 20]);
}

#[test]
fn paced_requests_are_timed_one_by_one() {
    let target = thread(Behaviour::Answer);
    let latencies = paced::latencies(target, Duration::from_millis(60)).expect("latencies");
    assert!(!latencies.is_empty() && latencies[0] > 0.0);
    assert!(latencies.is_sorted());
}

#[test]
fn a_proxy_header_in_pieces_is_skipped() {
    let mut stream = TcpStream::connect(thread(Behaviour::Answer)).expect("the backend");
    for piece in ["PROXY TCP4 127.0.0.1 ", "127.0.0.1 1 2\r", "\n"] {
        stream.write_all(piece.as_bytes()).expect("write");
    }
    for _ in 0..2 {
        let (begin, end) = REQUEST.split_at(30);
        stream.write_all(begin).expect("write");
        stream.write_all(end).expect("write");
        let mut answer = [0; ANSWER.len()];
        stream.read_exact(&mut answer).expect("an answer");
        assert_eq!(answer, ANSWER);
    }
}
