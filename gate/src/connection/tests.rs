//! One connection through its phases, with socket pairs; the test is its worker and its epoll set.

mod ground;

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::time::Instant;

use nix::sys::epoll::{EpollCreateFlags, EpollEvent, EpollTimeout};
use nix::sys::socket::{MsgFlags, recv};
use socket2::SockRef;
use tokio::sync::mpsc;

use self::ground::*;
use super::resets::LINGER;
use super::*;
use crate::accept_queue::Probe;
use crate::dialer::Dialer;
use crate::gate::{Event, Overflow, ServiceId};
use crate::generation::{Endpoint, Generation, Local, Target};
use crate::proxy_protocol;

#[test]
fn a_greeting_may_be_cut_anywhere_and_the_payload_stays_in_the_kernel() {
    let addresses = Addresses {
        source: "192.0.2.10:51234".parse().unwrap(),
        destination: "198.51.100.20:443".parse().unwrap(),
    };
    for version in [proxy_protocol::Version::V1, proxy_protocol::Version::V2] {
        let header = proxy_protocol::header(version, Some(&addresses));
        for cut in 1..header.len() {
            let mut ground = Ground::new();
            let (mut client, inner) = unix();
            let mut connection = ground.connection(inner, Phase::Greeting);
            client.write_all(&header[..cut]).unwrap();
            let edge = EpollFlags::EPOLLIN;
            let next = connection.event(Side::Client, edge, &mut ground.context());
            assert_eq!(next, Next::Wait);
            client.write_all(&header[cut..]).unwrap();
            client.write_all(b"payload").unwrap();
            let next = connection.event(Side::Client, edge, &mut ground.context());
            assert_eq!(next, Next::Queue);
            assert_eq!(connection.state(), ConnectionState::Pending);
            assert_eq!(connection.peer, Some(addresses.source));
            let mut rest = [0; 100];
            let fd = connection.client.as_fd().as_raw_fd();
            let n = recv(fd, &mut rest, MsgFlags::MSG_DONTWAIT).unwrap();
            assert_eq!(&rest[..n], b"payload");
        }
    }
}

#[test]
fn a_greeting_that_ends_or_stays_away_is_closed() {
    let mut ground = Ground::new();
    let (mut client, inner) = unix();
    let mut connection = ground.connection(inner, Phase::Greeting);
    client.write_all(b"PROXY ").unwrap();
    let edge = EpollFlags::EPOLLIN;
    let next = connection.event(Side::Client, edge, &mut ground.context());
    assert_eq!(next, Next::Wait);
    assert_eq!(connection.expired(&mut ground.context()), Next::Wait);
    let start = ground.now;
    ground.now = start + Duration::from_secs(3);
    let closed = Next::Close(CloseReason::ProxyHeader);
    assert_eq!(connection.expired(&mut ground.context()), closed);
    ground.now = start;
    client.shutdown(std::net::Shutdown::Write).unwrap();
    let edge = EpollFlags::EPOLLIN | EpollFlags::EPOLLRDHUP;
    let next = connection.event(Side::Client, edge, &mut ground.context());
    assert_eq!(next, closed);
}

#[test]
fn a_pending_client_that_was_reset_goes_and_a_half_closed_one_stays() {
    let mut ground = Ground::new();
    let (client, inner) = tcp();
    let mut connection = ground.connection(inner, pending());
    client.shutdown(std::net::Shutdown::Write).unwrap();
    let edge = EpollFlags::EPOLLIN | EpollFlags::EPOLLRDHUP;
    let next = connection.event(Side::Client, edge, &mut ground.context());
    assert_eq!(next, Next::Wait);
    reset(client);
    until(&connection.client, PollFlags::POLLERR);
    connection.look_for_reset(); // Its edge is still on its way.
    let closed = Next::Close(CloseReason::ClientReset);
    assert_eq!(connection.advance(&mut ground.context()), closed);
}

/// What the kernel of the backend may not have taken on: nobody has heard anything from it yet.
#[test]
fn a_connection_is_proven_by_the_first_byte_either_way() {
    for from in [Side::Client, Side::Backend] {
        let mut ground = Ground::new();
        let (mut client, inner) = tcp();
        let mut connection = ground.connection(inner, pending());
        assert!(!connection.is_unproven());
        let mut served = ground.relay(&mut connection);
        assert!(connection.is_unproven());
        let sender = match from {
            Side::Client => &mut client,
            Side::Backend => &mut served,
        };
        sender.write_all(b"hello").unwrap();
        let receiver = match from {
            Side::Client => &connection.client,
            Side::Backend => backend(&connection),
        };
        until(receiver, PollFlags::POLLIN);
        let edge = EpollFlags::EPOLLIN;
        connection.event(from, edge, &mut ground.context());
        let start = Instant::now();
        while connection.is_unproven() {
            assert!(start.elapsed() < LINGER, "it is never acknowledged");
        }
    }
}

/// Its backend's end is on its way when the death of the process is told. A client that had its answer and ended its side has lost
/// nothing.
#[test]
fn a_death_cuts_off_whoever_was_not_content() {
    for (answered, ended) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut ground = Ground::new();
        let (mut client, inner) = tcp();
        let mut connection = ground.connection(inner, pending());
        let mut served = ground.relay(&mut connection);
        let readable = EpollFlags::EPOLLIN;
        client.write_all(b"request").unwrap();
        until(&connection.client, PollFlags::POLLIN);
        connection.event(Side::Client, readable, &mut ground.context());
        served.read_exact(&mut [0; 7]).unwrap();
        if answered {
            served.write_all(b"answer").unwrap();
            until(backend(&connection), PollFlags::POLLIN);
            connection.event(Side::Backend, readable, &mut ground.context());
            client.read_exact(&mut [0; 6]).unwrap();
        }
        let end = EpollFlags::EPOLLIN | EpollFlags::EPOLLRDHUP;
        if ended {
            client.shutdown(std::net::Shutdown::Write).unwrap();
            until(&connection.client, PollFlags::POLLIN);
            connection.event(Side::Client, end, &mut ground.context());
        }
        drop(served);
        until(backend(&connection), PollFlags::POLLIN);
        connection.backend_gone(&mut ground.context());
        client.shutdown(std::net::Shutdown::Write).unwrap();
        until(&connection.client, PollFlags::POLLIN);
        connection.event(Side::Client, end, &mut ground.context());
        let next = connection.event(Side::Backend, end, &mut ground.context());
        let reason = match answered && ended {
            true => CloseReason::Eof,
            false => CloseReason::BackendGone,
        };
        assert_eq!(next, Next::Close(reason), "{answered}, {ended}");
    }
}

#[test]
fn a_reset_without_a_byte_goes_to_another_generation_only_if_this_one_has_gone() {
    #[derive(Clone, Copy, PartialEq)]
    enum Then {
        Lives,
        Ended,
        Inactive,
        EndedInDoubt,
        InactiveInDoubt,
    }
    for then in [
        Then::Lives,
        Then::Ended,
        Then::Inactive,
        Then::EndedInDoubt,
        Then::InactiveInDoubt,
    ] {
        let mut ground = Ground::new();
        let (_client, inner) = tcp();
        let mut connection = ground.connection(inner, pending());
        reset(ground.relay(&mut connection));
        until(backend(&connection), PollFlags::POLLERR);
        match then {
            Then::Ended => ground.local.generation.set_ended(),
            Then::Inactive => ground.local.deactivate(),
            _ => {}
        }
        let mut next = connection.event(Side::Backend, RESET, &mut ground.context());
        if next == Next::Wait {
            match then {
                Then::EndedInDoubt => ground.local.generation.set_ended(),
                Then::InactiveInDoubt => ground.local.deactivate(),
                _ => {}
            }
            ground.now = connection.deadline(&ground.settings);
            next = connection.expired(&mut ground.context());
        }
        if then == Then::Lives {
            assert_eq!(next, Next::Close(CloseReason::BackendReset));
            continue;
        }
        assert_eq!(next, Next::Queue);
        assert_eq!(connection.state(), ConnectionState::Pending);
        assert_eq!(ground.leases(), 0);
        assert_eq!(
            ground.service.dispatch_attempts[DispatchResult::Reset].get(),
            1
        );
        assert_eq!(ground.service.redispatches.get(), 1);
    }
}

#[test]
fn a_reset_after_a_byte_passes_whatever_has_become_of_the_generation() {
    let mut ground = Ground::new();
    let (mut client, inner) = tcp();
    let mut connection = ground.connection(inner, pending());
    let mut accepted = ground.relay(&mut connection);
    accepted.write_all(b"x").unwrap();
    until(backend(&connection), PollFlags::POLLIN);
    let edge = EpollFlags::EPOLLIN;
    let next = connection.event(Side::Backend, edge, &mut ground.context());
    assert_eq!(next, Next::Wait);
    client.read_exact(&mut [0; 1]).unwrap();
    reset(accepted);
    until(backend(&connection), PollFlags::POLLERR);
    ground.local.deactivate();
    let mut next = connection.event(Side::Backend, RESET, &mut ground.context());
    while next == Next::Wait {
        ground.now = connection.deadline(&ground.settings);
        next = connection.expired(&mut ground.context());
    }
    assert_eq!(next, Next::Close(CloseReason::BackendReset));
    drop(connection);
    let end = client.read(&mut [0; 1]).unwrap_err();
    assert_eq!(end.kind(), std::io::ErrorKind::ConnectionReset);
}

#[test]
fn bytes_read_in_vain_are_sent_first_to_the_next_backend() {
    let mut ground = Ground::new();
    let (mut client, inner) = unix();
    let mut connection = ground.connection(inner, pending());
    client.write_all(b"request").unwrap();
    client.shutdown(std::net::Shutdown::Write).unwrap();
    let edge = EpollFlags::EPOLLIN | EpollFlags::EPOLLRDHUP;
    let next = connection.event(Side::Client, edge, &mut ground.context());
    assert_eq!(next, Next::Wait);
    ground.local.deactivate();
    reset(ground.dispatch(&mut connection));
    until(backend(&connection), PollFlags::POLLERR);
    let edge = RESET | EpollFlags::EPOLLOUT;
    let next = connection.event(Side::Backend, edge, &mut ground.context());
    assert_eq!(next, Next::Queue);
    let mut accepted = ground.relay(&mut connection);
    let mut all = Vec::new();
    accepted.read_to_end(&mut all).unwrap();
    assert_eq!(all, b"request");
}

#[test]
fn a_connect_that_takes_too_long_is_tried_again() {
    let mut ground = Ground::new();
    let (_client, inner) = unix();
    let mut connection = ground.connection(inner, pending());
    let _backend = ground.dispatch(&mut connection);
    assert_eq!(ground.leases(), 1);
    assert_eq!(connection.expired(&mut ground.context()), Next::Wait);
    ground.now = connection.deadline(&ground.settings);
    assert_eq!(connection.expired(&mut ground.context()), Next::Queue);
    assert_eq!(ground.leases(), 0);
    let timeouts = &ground.service.dispatch_attempts[DispatchResult::Timeout];
    assert_eq!(timeouts.get(), 1);
    // The wait goes on from the accept, not anew.
    let deadline = connection.accepted + ground.settings.pending_timeout;
    assert_eq!(connection.deadline(&ground.settings), deadline);
}

#[test]
fn a_connect_that_meets_itself_is_no_backend() {
    let mut ground = Ground::new();
    let (_client, inner) = unix();
    let mut connection = ground.connection(inner, pending());
    let own = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    own.bind(&LOOPBACK.into()).unwrap();
    let address = own.local_addr().unwrap();
    own.connect(&address).unwrap();
    let dialer = ground.dialer(address.as_socket().unwrap());
    let (attempt, _, _) = dialer.dial(ground.now).ok().unwrap();
    let lease = Lease::new(&ground.local);
    let itself = Socket::connecting(own.into(), false, true);
    let next = connection.dispatched(lease, attempt, itself, &mut ground.context());
    assert_eq!(next, Next::Queue);
    assert!(dialer.is_idle());
    let refused = &ground.service.dispatch_attempts[DispatchResult::Refused];
    assert_eq!(refused.get(), 1);
}

/// A connection that its backend has reset, whose client's kernel has no room for all that came before, as long as the client
/// doesn't read; and how much that was.
fn reset_on_its_way(ground: &mut Ground) -> (TcpStream, Connection, usize) {
    let (client, inner) = tcp();
    let mut connection = ground.connection(inner, pending());
    let mut accepted = ground.relay(&mut connection);
    let (mut sent, mut next) = (0, Next::Wait);
    // Much more than that, so that it takes the client several times.
    while connection.client.undelivered() < 400_000 {
        accepted.write_all(&[7; 100_000]).unwrap();
        sent += 100_000;
        until(backend(&connection), PollFlags::POLLIN);
        let edge = EpollFlags::EPOLLIN;
        next = connection.event(Side::Backend, edge, &mut ground.context());
    }
    assert_eq!(next, Next::Wait);
    reset(accepted);
    until(backend(&connection), PollFlags::POLLERR);
    let next = connection.event(Side::Backend, RESET, &mut ground.context());
    assert_eq!(next, Next::Wait);
    (client, connection, sent)
}

#[test]
fn a_reset_waits_as_long_as_some_of_it_is_taken() {
    let almost = LINGER - Duration::from_millis(1);
    let mut ground = Ground::new();
    let (mut client, mut connection, _) = reset_on_its_way(&mut ground);
    ground.now = ground.now + almost;
    assert_eq!(connection.expired(&mut ground.context()), Next::Wait);
    let before = connection.client.undelivered();
    let start = Instant::now();
    while connection.client.undelivered() == before {
        assert!(start.elapsed() < Duration::from_secs(20));
        client.read_exact(&mut [0; 1000]).unwrap();
    }
    assert!(connection.client.undelivered() > 0, "some is left");
    ground.now = ground.now + almost; // Nearly twice as long as it may take without that.
    assert_eq!(connection.expired(&mut ground.context()), Next::Wait);
    ground.now = ground.now + LINGER;
    let end = Next::Close(CloseReason::BackendReset);
    assert_eq!(connection.expired(&mut ground.context()), end);
}

#[test]
fn a_reset_waits_for_what_is_still_on_its_way() {
    let mut ground = Ground::new();
    let (mut client, mut connection, sent) = reset_on_its_way(&mut ground);
    let mut got = 0;
    let mut buffer = [0; 10_000];
    let mut end = None;
    let start = Instant::now();
    while end.is_none() {
        assert!(start.elapsed() < Duration::from_secs(20));
        if connection.client.undelivered() > 0 || got < 100_000 {
            got += client.read(&mut buffer).unwrap();
        }
        let edge = EpollFlags::EPOLLOUT;
        // The clock stands still: only the delivery can end it.
        match connection.event(Side::Client, edge, &mut ground.context()) {
            Next::Wait => {}
            next => end = Some(next),
        }
    }
    assert_eq!(end, Some(Next::Close(CloseReason::BackendReset)));
    drop(connection);
    loop {
        match client.read(&mut buffer) {
            Ok(n) => got += n,
            Err(error) => {
                assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
                break;
            }
        }
    }
    assert_eq!(got, sent);
}

#[test]
fn an_edge_that_comes_while_it_is_on_the_run_list_is_kept_for_its_turn() {
    let mut ground = Ground::new();
    let (mut client, inner) = unix();
    let mut connection = ground.connection(inner, pending());
    let mut accepted = ground.relay(&mut connection);
    connection.running = true;
    client.write_all(b"x").unwrap();
    let edge = EpollFlags::EPOLLIN;
    let next = connection.event(Side::Client, edge, &mut ground.context());
    assert_eq!((next, connection.bytes()), (Next::Wait, (0, 0)));
    connection.running = false;
    assert_eq!(connection.advance(&mut ground.context()), Next::Wait);
    accepted.read_exact(&mut [0; 1]).unwrap();
}

#[test]
fn a_backend_that_was_given_up_says_nothing_any_more() {
    let mut ground = Ground::new();
    let (_client, inner) = unix();
    let mut connection = ground.connection(inner, pending());
    let accepted = ground.dispatch(&mut connection);
    let event = EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, 1);
    ground.epoll.add(backend(&connection), event).unwrap();
    // As a child has it between fork and exec.
    let copy = backend(&connection).as_fd().try_clone_to_owned().unwrap();
    let copy = Socket::connecting(copy, false, true);
    let next = connection.withdraw(&mut ground.context());
    assert_eq!(next, Next::Queue);
    reset(accepted);
    until(&copy, PollFlags::POLLERR);
    let mut events = [EpollEvent::empty(); 1];
    assert_eq!(ground.epoll.wait(&mut events, EpollTimeout::ZERO), Ok(0));
}

#[test]
fn the_gauges_follow_the_phases() {
    let mut ground = Ground::new();
    let (_client, inner) = unix();
    let mut connection = ground.connection(inner, pending());
    let open = |ground: &Ground| {
        let states = [
            ConnectionState::Pending,
            ConnectionState::Connecting,
            ConnectionState::Relaying,
        ];
        states.map(|state| ground.listener.open[state].get())
    };
    assert_eq!(open(&ground), [1, 0, 0]);
    let _first = ground.dispatch(&mut connection);
    assert_eq!(open(&ground), [0, 1, 0]);
    connection.withdraw(&mut ground.context());
    assert_eq!(open(&ground), [1, 0, 0]);
    let _second = ground.relay(&mut connection);
    assert_eq!(open(&ground), [0, 0, 1]);
}
