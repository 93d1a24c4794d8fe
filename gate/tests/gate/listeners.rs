//! Listeners that come and go, and what waits in them.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use syngate_gate::listener::{self, Address, KeptListener, Listener, LocalAddress, Options, Own};
use syngate_gate::{Generation, ListenerId, NoSuchService, Target};
use syngate_metrics::{CloseReason, ConnectionState};

use crate::common::{
    Fixture, LOOPBACK, ask, bind, descriptors_again, echo, in_a_child, no_more_descriptors,
    options, settings, tcp_endpoint, until, wait,
};

#[test]
fn a_closing_listener_loses_nobody() {
    for _ in 0..20 {
        let fixture = Fixture::new(2, settings());
        fixture.activate(&fixture.generation(1, echo("")));
        // Some are still in the kernel's queue when it closes, some on their way between the workers.
        let clients: Vec<TcpStream> = (0..200).map(|_| fixture.client()).collect();
        wait(fixture.gate.close(fixture.listener));
        assert!(TcpStream::connect(fixture.address).is_err());
        for client in clients {
            assert_eq!(ask(client, b"x"), b"x");
        }
        fixture.until_empty();
        assert_eq!(fixture.stop().closed(CloseReason::Eof), 200);
    }
}

#[test]
fn a_listener_that_is_handed_over_refuses_nobody() {
    let fixture = Fixture::new(2, settings());
    fixture.activate(&fixture.generation(1, echo("old ")));
    let heir = wait(fixture.gate.add_service("heir", settings()));
    let endpoints = vec![(None, vec![tcp_endpoint(echo("new "))])];
    let generation = Generation::new(1, 2, endpoints, Vec::new());
    wait(
        fixture
            .gate
            .activate(heir, Some(generation), settings(), &[]),
    );
    let old = fixture.client();
    fixture.until_open(1);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let (mut listener, mut to) = (fixture.listener, [heir, fixture.service]);
            for _ in 0..51 {
                let handed = fixture.gate.hand_over(listener, to[0], "public", false);
                listener = wait(handed).unwrap();
                to.reverse();
            }
            done.store(true, Ordering::Relaxed);
        });
        while !done.load(Ordering::Relaxed) {
            let answer = ask(fixture.client(), b"x");
            assert!(answer == b"old x" || answer == b"new x");
        }
    });
    assert_eq!(ask(fixture.client(), b"x"), b"new x");
    // The old one's connections are its own, and its listener isn't there any more.
    wait(fixture.gate.close(fixture.listener));
    let gone = fixture
        .gate
        .hand_over(fixture.listener, heir, "public", false);
    assert_eq!(wait(gone), None);
    assert_eq!(ask(old, b"x"), b"old x");
    let text = fixture.metrics.encode();
    let of = |service: &str, name: &str| {
        text.contains(&format!("service=\"{service}\",listener=\"{name}\""))
    };
    assert!(of("heir", "public") && !of("default", "public") && !of("default", "l0"));
    fixture.stop();
}

/// Who waits for the close may have the address at once, whoever looks at the listeners meanwhile.
#[test]
fn a_closed_listener_leaves_its_address() {
    let fixture = Fixture::new(2, settings());
    let done = AtomicBool::new(false);
    let looks = || {
        while !done.load(Ordering::Relaxed) {
            fixture.gate.sample();
        }
    };
    thread::scope(|scope| {
        scope.spawn(looks);
        let mut listener = fixture.listener;
        let failed = (0..50).find_map(|_| {
            wait(fixture.gate.close(listener));
            let again = listener::bind("l0", &Address::Tcp(fixture.address), &options());
            match again {
                Ok(again) => {
                    listener = wait(fixture.gate.open(fixture.service, again, false)).unwrap();
                }
                Err(error) => return Some(error.to_string()),
            }
            None
        });
        done.store(true, Ordering::Relaxed);
        assert_eq!(failed, None);
    });
    fixture.stop();
}

#[test]
fn those_who_wait_outlive_their_listener_and_are_counted_to_the_end() {
    let fixture = Fixture::new(2, settings());
    let clients: Vec<TcpStream> = (0..20).map(|_| fixture.client()).collect();
    fixture.until_pending(20);
    wait(fixture.gate.close(fixture.listener));
    let (stay, leave) = clients.split_at(10);
    leave.iter().for_each(crate::common::reset);
    let stay: Vec<TcpStream> = stay
        .iter()
        .map(|client| client.try_clone().unwrap())
        .collect();
    drop(clients);
    fixture.until_pending(10);
    stay.iter().for_each(crate::common::reset);
    drop(stay);
    fixture.until_empty();
    let again = wait(
        fixture
            .gate
            .open(fixture.service, bind(&Address::Tcp(LOOPBACK)), false),
    )
    .unwrap();
    assert_ne!(again, fixture.listener);
    fixture.stop();
}

#[test]
fn what_waits_in_a_kept_listener_is_adopted_with_its_bytes() {
    let directory = tempfile::tempdir().unwrap();
    for unix in [false, true] {
        let kept = match unix {
            true => KeptListener::unix(directory.path()).unwrap(),
            false => KeptListener::tcp(LOOPBACK).unwrap(),
        };
        let fixture = Fixture::new(2, settings());
        let mut answers = Vec::new();
        for n in 0..100 {
            let what = format!("queued {n}");
            match kept.address() {
                Target::Tcp(address) => {
                    let mut client = TcpStream::connect(address).unwrap();
                    client.write_all(what.as_bytes()).unwrap();
                    client.shutdown(std::net::Shutdown::Write).unwrap();
                    answers.push((what, Box::new(client) as Box<dyn Read>));
                }
                address => {
                    let socket =
                        socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None)
                            .unwrap();
                    socket.connect(&address.address().unwrap()).unwrap();
                    let mut client = UnixStream::from(socket);
                    client.write_all(what.as_bytes()).unwrap();
                    client.shutdown(std::net::Shutdown::Write).unwrap();
                    answers.push((what, Box::new(client)));
                }
            }
        }
        wait(
            fixture
                .gate
                .adopt(fixture.service, "l0", kept.adopt("l0").unwrap()),
        );
        assert_eq!(fixture.gate.open_connections(), 100);
        fixture.activate(&fixture.generation(1, echo("")));
        for (what, mut client) in answers {
            let mut answer = String::new();
            client.read_to_string(&mut answer).unwrap();
            assert_eq!(answer, what);
        }
        fixture.until_empty();
        fixture.stop();
    }
}

/// Connections to a kept listener that nobody has accepted.
fn queue_at(kept: &KeptListener) -> Vec<socket2::Socket> {
    let address = kept.address().address().unwrap();
    let domain = address.domain();
    let sockets = (0..20).map(|_| {
        let socket = socket2::Socket::new(domain, socket2::Type::STREAM, None).unwrap();
        socket.connect(&address).unwrap();
        socket
    });
    sockets.collect()
}

#[test]
fn what_waits_for_a_listener_that_is_gone_is_closed_and_counted() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::new(2, settings());
    fixture.activate(&fixture.generation(1, echo("")));
    for kept in [
        KeptListener::unix(directory.path()).unwrap(),
        KeptListener::tcp(LOOPBACK).unwrap(),
    ] {
        let clients = queue_at(&kept);
        let adopted = kept.adopt("l0").unwrap();
        wait(fixture.gate.adopt(fixture.service, "gone", adopted));
        for mut client in clients {
            assert_eq!(client.read(&mut [0; 1]).unwrap_or(0), 0); // An end, or a reset.
        }
    }
    assert_eq!(fixture.gate.open_connections(), 0);
    let text = fixture.metrics.encode();
    assert!(!text.contains(r#"listener="gone""#));
    assert_eq!(fixture.stop().closed(CloseReason::Unaccepted), 40);
}

/// Some servers call shutdown(2) on what was passed to them: nothing can be accepted from it any more, by anybody.
#[test]
fn a_kept_listener_that_was_shut_down_is_let_go() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::new(1, settings());
    for kept in [
        KeptListener::unix(directory.path()).unwrap(),
        KeptListener::tcp(LOOPBACK).unwrap(),
    ] {
        let _clients = queue_at(&kept);
        let adopted = kept.adopt("l0").unwrap();
        socket2::SockRef::from(&kept)
            .shutdown(std::net::Shutdown::Both)
            .unwrap();
        wait(fixture.gate.adopt(fixture.service, "l0", adopted));
    }
    assert_eq!(fixture.accept_errors("other"), 1); // A unix one only seems to be empty.
    fixture.stop();
}

#[test]
fn an_adoption_waits_for_descriptors() {
    if in_a_child("listeners::an_adoption_waits_for_descriptors") {
        return;
    }
    let kept = KeptListener::tcp(LOOPBACK).unwrap();
    let Target::Tcp(address) = *kept.address() else {
        unreachable!()
    };
    let fixture = Fixture::new(2, settings());
    let clients: Vec<TcpStream> = (0..20)
        .map(|_| TcpStream::connect(address).unwrap())
        .collect();
    let listener = kept.adopt("l0").unwrap();
    no_more_descriptors();
    thread::scope(|scope| {
        let adopting = scope.spawn(|| {
            let mut adopting = Box::pin(fixture.gate.adopt(fixture.service, "l0", listener));
            let mut context = std::task::Context::from_waker(std::task::Waker::noop());
            until("it is done", || {
                adopting.as_mut().poll(&mut context).is_ready()
            });
        });
        until("EMFILE is counted", || fixture.accept_errors("EMFILE") > 0);
        assert!(!adopting.is_finished());
        descriptors_again();
    });
    fixture.activate(&fixture.generation(1, echo("")));
    for client in clients {
        assert_eq!(ask(client, b"x"), b"x");
    }
    fixture.stop();
}

#[test]
fn a_removed_service_leaves_nothing_and_others_run_on() {
    let fixture = Fixture::new(2, settings());
    fixture.activate(&fixture.generation(1, echo("")));
    let other = wait(fixture.gate.add_service("other", settings()));
    let listener = bind(&Address::Tcp(LOOPBACK));
    let LocalAddress::Tcp(address) = *listener.address() else {
        unreachable!()
    };
    let id: ListenerId = wait(fixture.gate.open(other, listener, false)).unwrap();
    let waiting = TcpStream::connect(address).unwrap();
    let held = fixture.client();
    fixture.until_open(2);
    fixture.until_pending(1);
    wait(fixture.gate.remove_service(other));
    assert!(crate::common::is_reset(waiting));
    fixture.until_pending(0);
    assert!(TcpStream::connect(address).is_err(), "nobody listens");
    // Commands for what has gone are acknowledged all the same.
    wait(fixture.gate.close(id));
    wait(fixture.gate.hold(other, true));
    wait(fixture.gate.activate(other, None, settings(), &[]));
    wait(fixture.gate.remove_service(other));
    assert!(wait(fixture.gate.connections(other)).is_empty());
    let late = bind(&Address::Tcp(LOOPBACK));
    let opened = wait(fixture.gate.open(other, late, false));
    assert_eq!(opened, Err(NoSuchService));
    assert_eq!(ask(held, b"x"), b"x");
    fixture.stop();
}

#[test]
fn a_listing_has_every_connection_once() {
    let fixture = Fixture::new(2, settings());
    let clients: Vec<TcpStream> = (0..700).map(|_| fixture.client()).collect();
    fixture.until_pending(700);
    let listed = wait(fixture.gate.connections(fixture.service));
    let mut peers: Vec<_> = listed.iter().map(|one| one.peer.unwrap()).collect();
    peers.sort();
    let mut expected: Vec<_> = clients.iter().map(|c| c.local_addr().unwrap()).collect();
    expected.sort();
    assert_eq!(peers, expected);
    assert!(
        listed
            .iter()
            .all(|one| one.state == ConnectionState::Pending
                && one.generation.is_none()
                && one.listener == "l0")
    );
    fixture.stop();
}

#[test]
fn the_generation_that_is_reset_is_reset_alone() {
    let fixture = Fixture::new(2, settings());
    let first = fixture.generation(1, echo("one "));
    fixture.activate(&first);
    let old: Vec<TcpStream> = (0..10).map(|_| fixture.client()).collect();
    until("leases", || first.leases() == 10);
    fixture.activate(&fixture.generation(2, echo("two ")));
    let new = fixture.client();
    wait(
        fixture
            .gate
            .reset(fixture.service, 1, CloseReason::DrainTimeout),
    );
    assert_eq!(first.leases(), 0);
    for client in old {
        assert!(crate::common::is_reset(client));
    }
    assert_eq!(ask(new, b"x"), b"two x");
    let numbers = fixture.stop();
    assert_eq!(numbers.forced_closes(), 10);
    assert_eq!(numbers.closed(CloseReason::DrainTimeout), 10);
}

#[test]
fn a_close_waits_for_who_is_connected_and_has_said_nothing() {
    let own = Own {
        defer_accept: true,
        ..Own::default()
    };
    let deferring = Options { own, ..options() };
    let listener = listener::bind("l0", &Address::Tcp(LOOPBACK), &deferring).unwrap();
    let fixture = Fixture::with(2, settings(), 100, 100, listener);
    fixture.activate(&fixture.generation(1, echo("")));
    let silent = fixture.client();
    assert_eq!(ask(fixture.client(), b"x"), b"x");
    fixture.until_empty();
    wait(fixture.gate.close(fixture.listener));
    assert!(TcpStream::connect(fixture.address).is_err());
    assert_eq!(fixture.gate.open_connections(), 1);
    assert_eq!(ask(silent, b"late"), b"late");
    fixture.stop();
}

/// A reload has removed it: the next generation knows nothing of it, and the last one drains.
#[test]
fn who_came_through_a_removed_listener_goes_to_the_old_generation() {
    let fixture = Fixture::new(2, settings());
    let address_of = |listener: &Listener| match listener.address() {
        LocalAddress::Tcp(address) => *address,
        LocalAddress::Unix(_) => unreachable!(),
    };
    let removed = listener::bind("removed", &Address::Tcp(LOOPBACK), &options()).unwrap();
    let address = address_of(&removed);
    let removed = wait(fixture.gate.open(fixture.service, removed, false)).unwrap();
    let old = fixture.generation(1, echo("old "));
    fixture.activate(&old);
    wait(fixture.gate.hold(fixture.service, true));
    let connect = || TcpStream::connect(address).unwrap();
    let (waiting, stays) = (connect(), fixture.client());
    fixture.until_pending(2);
    let named = |backend| (Some("l0".to_owned()), vec![tcp_endpoint(backend)]);
    for (number, name) in [(2, "new "), (3, "newer ")] {
        let endpoints = vec![named(echo(name))];
        fixture.activate(&Generation::new(number, 2, endpoints, Vec::new()));
    }
    wait(fixture.gate.hold(fixture.service, false));
    assert_eq!(ask(waiting, b"x"), b"old x");
    assert_eq!(ask(stays, b"x"), b"newer x");
    assert_eq!(ask(connect(), b"x"), b"old x");
    let late = connect();
    wait(fixture.gate.close(removed));
    assert_eq!(ask(late, b"x"), b"old x");
    assert_eq!(ask(fixture.client(), b"x"), b"newer x");
    fixture.until_empty();
    assert_eq!(old.leases(), 0);
    fixture.stop();
}

/// Two listeners change names with each flip, and each of their clients goes where its address says: those that wait, those that
/// come while it happens, and those that another worker has accepted.
#[test]
fn names_change_with_the_flip_for_all_who_came_by_them() {
    let fixture = Fixture::new(2, settings());
    let other = listener::bind("other", &Address::Tcp(LOOPBACK), &options()).unwrap();
    let LocalAddress::Tcp(second) = *other.address() else {
        unreachable!()
    };
    let other = wait(fixture.gate.open(fixture.service, other, false)).unwrap();
    let backends = [echo("one "), echo("two ")];
    let flip = |number, names: [&str; 2]| {
        let named = |(name, backend): (&str, _)| {
            let endpoints = vec![tcp_endpoint(backend)];
            (Some(name.to_owned()), endpoints)
        };
        let endpoints = names.into_iter().zip(backends).map(named).collect();
        let generation = Some(Generation::new(number, 2, endpoints, Vec::new()));
        let ids = [fixture.listener, other];
        let names: Vec<_> = ids.into_iter().zip(names).collect();
        let flip = fixture
            .gate
            .activate(fixture.service, generation, settings(), &names);
        wait(flip);
    };
    let connect = |address| TcpStream::connect(address).unwrap();
    // Nothing is active yet, or the service is held: they wait.
    for (number, names) in [(1, ["a", "b"]), (2, ["c", "d"])] {
        let waiting: Vec<_> = (0..20)
            .map(|_| (fixture.client(), connect(second)))
            .collect();
        fixture.until_pending(40);
        flip(number, names);
        wait(fixture.gate.hold(fixture.service, false));
        for (one, two) in waiting {
            assert_eq!(ask(one, b"x"), b"one x");
            assert_eq!(ask(two, b"x"), b"two x");
        }
        fixture.until_empty();
        wait(fixture.gate.hold(fixture.service, true));
    }
    wait(fixture.gate.hold(fixture.service, false));
    let stays = fixture.client();
    fixture.until_open(1);
    let done = AtomicBool::new(false);
    let mut clients = 81;
    thread::scope(|scope| {
        scope.spawn(|| {
            for number in 3..100 {
                flip(number, [["c", "d"], ["d", "c"]][number as usize % 2]);
            }
            done.store(true, Ordering::Relaxed);
        });
        while !done.load(Ordering::Relaxed) {
            assert_eq!(ask(fixture.client(), b"x"), b"one x");
            assert_eq!(ask(connect(second), b"x"), b"two x");
            clients += 2;
        }
    });
    assert_eq!(ask(stays, b"x"), b"one x");
    fixture.until_empty();
    let numbers = fixture.stop();
    assert_eq!(numbers.accepted(), clients);
    assert_eq!(numbers.closed(CloseReason::Eof), clients);
    assert_eq!(numbers.open(ConnectionState::Relaying), 0);
    assert_eq!(numbers.open(ConnectionState::Pending), 0);
}

/// It would come back to the generation that has reset it.
#[test]
fn what_the_old_generation_resets_at_a_removed_listener_passes_to_the_client() {
    let fixture = Fixture::new(1, settings());
    let backend = std::net::TcpListener::bind(LOOPBACK).unwrap();
    fixture.activate(&fixture.generation(1, backend.local_addr().unwrap()));
    let endpoints = vec![(Some("other".to_owned()), vec![tcp_endpoint(echo(""))])];
    fixture.activate(&Generation::new(2, 1, endpoints, Vec::new()));
    let client = fixture.client();
    let (accepted, _) = backend.accept().unwrap();
    crate::common::reset(&accepted);
    drop(accepted);
    assert!(crate::common::is_reset(client));
    assert_eq!(fixture.stop().closed(CloseReason::BackendReset), 1);
}
