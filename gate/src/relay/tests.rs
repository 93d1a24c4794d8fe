//! The pump between two socket pairs. The edges are real ones, from an edge-triggered epoll set; when they are told, and in how
//! many pieces, is the test's choice. An edge is never lost, and nothing is looked at without one: a lost wake-up hangs the test.

mod world;

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use proptest::prelude::*;
use socket2::{Domain, SockRef, Type};

use self::world::*;
use super::*;
use crate::sys;

#[derive(Clone, Debug)]
enum Step {
    Write(Side, usize),
    Read(Side, usize),
    Finish(Side),
    Reset(Side),
    Collect,
    Tell(usize, u32),
    Run,
}

fn side() -> impl Strategy<Value = Side> {
    prop_oneof![Just(Side::Client), Just(Side::Backend)]
}

fn step() -> impl Strategy<Value = Step> {
    let flags = [
        EpollFlags::all(),
        EpollFlags::EPOLLIN,
        EpollFlags::EPOLLOUT,
        EpollFlags::EPOLLRDHUP,
        EpollFlags::EPOLLERR | EpollFlags::EPOLLHUP,
    ];
    let flags = flags.map(|flags| flags.bits() as u32);
    prop_oneof![
        6 => (side(), prop_oneof![1..200usize, 1..20_000usize, Just(300_000)]).prop_map(|(side, n)| Step::Write(side, n)),
        4 => (side(), prop_oneof![1..200usize, 1..20_000usize, Just(300_000)]).prop_map(|(side, n)| Step::Read(side, n)),
        6 => Just(Step::Collect),
        8 => (any::<usize>(), prop::sample::select(flags.to_vec())).prop_map(|(which, flags)| Step::Tell(which, flags)),
        4 => Just(Step::Run),
    ]
}

/// Steps in which each side may end or be reset, once.
fn steps(reset: bool) -> impl Strategy<Value = Vec<Step>> {
    let ends = prop::collection::vec((side(), any::<prop::sample::Index>(), any::<bool>()), 0..3);
    (prop::collection::vec(step(), 0..80), ends).prop_map(move |(mut steps, ends)| {
        for (side, at, is_reset) in ends {
            let step = match reset && is_reset {
                true => Step::Reset(side),
                false => Step::Finish(side),
            };
            let at = at.index(steps.len() + 1);
            steps.insert(at, step);
        }
        steps
    })
}

fn play(world: &mut World, steps: Vec<Step>) {
    for step in steps {
        match step {
            Step::Write(side, n) => world.outer(side).write(side, n),
            Step::Read(side, n) => world.outer(side).read(n),
            Step::Finish(side) => world.outer(side).finish(),
            Step::Reset(side) => world.outer(side).reset(),
            Step::Collect => world.collect(0),
            Step::Tell(which, mask) => world.tell(which, EpollFlags::from_bits_retain(mask as i32)),
            Step::Run => world.run(),
        }
    }
    world.settle();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, max_shrink_iters: 30, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever happens in whatever order, what comes out is what went in, and then the end.
    #[test]
    fn bytes_order_and_ends_are_exact(
        tcp in any::<[bool; 2]>(),
        buffer in prop::sample::select(vec![0, 4_000, 20_000]),
        header in prop_oneof![Just(0usize), 1..108usize],
        unsent in prop_oneof![Just(0usize), 1..3000usize, Just(40_000)],
        pipes in prop::sample::select(vec![0usize, 8]),
        steps in steps(false),
    ) {
        let mut world = World::new(tcp, buffer, &vec![1; header], &vec![2; unsent], pipes);
        play(&mut world, steps);
    }

    /// A reset passes as a reset, after all that was received before it.
    #[test]
    fn a_reset_passes_after_what_came_before_it(
        buffer in prop::sample::select(vec![0, 4_000, 20_000]),
        header in prop_oneof![Just(0usize), 1..108usize],
        pipes in prop::sample::select(vec![0usize, 8]),
        steps in steps(true),
    ) {
        let mut world = World::new([true, true], buffer, &vec![1; header], &[], pipes);
        play(&mut world, steps);
    }
}

/// A world after its first turn, with all edges told.
fn begun(tcp: [bool; 2]) -> World {
    let mut world = World::new(tcp, 0, &[], &[], 8);
    world.collect(0);
    tell_all(&mut world);
    world.run();
    world
}

fn tell_all(world: &mut World) {
    while !world.raised.is_empty() {
        world.tell(0, EpollFlags::all());
    }
}

/// Waits for the edges that `flags` are in, and tells nothing.
fn raised(world: &mut World, side: Side, flags: EpollFlags) {
    let start = Instant::now();
    let seen = |world: &World| {
        let of_side = world.raised.iter().filter(|(raised, _)| *raised == side);
        of_side
            .fold(EpollFlags::empty(), |all, (_, flags)| all | *flags)
            .contains(flags)
    };
    while !seen(world) {
        assert!(start.elapsed() < PATIENCE);
        world.collect(1);
    }
}

#[test]
fn an_end_that_came_with_the_last_bytes_needs_no_edge_of_its_own() {
    for tcp in [[true, true], [false, false]] {
        let mut world = begun(tcp);
        world.client.write(Side::Client, 3);
        world.client.finish();
        raised(
            &mut world,
            Side::Client,
            EpollFlags::EPOLLIN | EpollFlags::EPOLLRDHUP,
        );
        tell_all(&mut world);
        assert_eq!(world.relay.up.stream, Stream::Ended);
        assert_eq!(world.relay.bytes(), (3, 0));
        world.settle();
    }
}

#[test]
fn an_end_that_was_seen_while_the_way_was_blocked_is_read_later() {
    let mut world = begun([true, true]);
    while world.relay.up.kept.is_none() {
        world.client.write(Side::Client, 100_000);
        world.collect(1);
        tell_all(&mut world);
        world.run();
    }
    world.client.write(Side::Client, 10);
    world.client.finish();
    raised(&mut world, Side::Client, EpollFlags::EPOLLRDHUP);
    tell_all(&mut world);
    assert_eq!(world.relay.up.stream, Stream::Open);
    world.settle();
}

#[test]
fn an_answer_is_read_though_the_request_can_t_be_written() {
    for tcp in [true, false] {
        let mut world = begun([true, tcp]);
        world.client.write(Side::Client, 1000);
        raised(&mut world, Side::Client, EpollFlags::EPOLLIN);
        tell_all(&mut world);
        world.backend.write(Side::Backend, 5000);
        // Closed with the request unread: a reset follows the answer.
        world.backend.reset = true;
        world.backend.sure = 5000;
        world.backend.socket = None;
        world.client.write(Side::Client, 1000);
        raised(&mut world, Side::Client, EpollFlags::EPOLLIN);
        let of_client = |(side, _): &(Side, _)| *side == Side::Client;
        let at = world.raised.iter().position(of_client).unwrap();
        world.tell(at, EpollFlags::all()); // The backend's edges come only after the failed write.
        world.settle();
        assert_eq!(world.turn, Turn::Reset(Side::Backend));
        assert_eq!(world.client.got.len(), 5000);
    }
}

#[test]
fn a_turn_ends_while_there_is_more() {
    let mut world = begun([true, true]);
    let start = Instant::now();
    while world.turn != Turn::More {
        assert!(start.elapsed() < PATIENCE, "no turn is ended by its budget");
        world.client.write(Side::Client, 2_000_000);
        world.collect(1);
        tell_all(&mut world);
        world.backend.read(10_000_000);
    }
    // An edge that comes now waits for its turn on the run list.
    let before = world.relay.bytes();
    world.client.write(Side::Client, 1000);
    world.collect(1);
    tell_all(&mut world);
    assert_eq!(world.relay.bytes(), before);
    world.settle();
}

#[test]
fn urgent_bytes_stay_in_their_place() {
    for from in [Side::Client, Side::Backend] {
        let mut world = begun([true, true]);
        world.outer(from).write(from, 3);
        let urgent = [byte(from, 3)];
        world
            .outer(from)
            .socket
            .as_ref()
            .unwrap()
            .send_out_of_band(&urgent)
            .unwrap();
        world.outer(from).sent = 4;
        world.outer(from).write(from, 3);
        raised(&mut world, from, EpollFlags::EPOLLIN | EpollFlags::EPOLLPRI);
        world.settle();
        assert_eq!(world.outer(other(from)).got.len(), 7);
    }
}

/// The read that follows a full one begins at the urgent byte, whose edge is still to come.
#[test]
fn an_urgent_byte_behind_a_full_read_stays_in_its_place() {
    for from in [Side::Client, Side::Backend] {
        let mut world = begun([true, true]);
        while world.outer(from).sent < BUFFER {
            let left = BUFFER - world.outer(from).sent;
            world.outer(from).write(from, left);
        }
        let urgent = [byte(from, BUFFER)];
        world
            .outer(from)
            .socket
            .as_ref()
            .unwrap()
            .send_out_of_band(&urgent)
            .unwrap();
        world.outer(from).sent += 1;
        world.outer(from).write(from, 3);
        raised(&mut world, from, EpollFlags::EPOLLIN | EpollFlags::EPOLLPRI);
        // The edge of the first bytes had been taken before the rest came.
        let of_sender = |(side, _): &(Side, _)| *side == from;
        let at = world.raised.iter().position(of_sender).unwrap();
        world.tell(at, EpollFlags::EPOLLIN);
        world.settle();
        assert_eq!(world.outer(other(from)).got.len(), BUFFER + 4);
    }
}

#[test]
fn an_urgent_byte_is_not_the_end_of_bulk() {
    for from in [Side::Client, Side::Backend] {
        let mut world = begun([true, true]);
        world.relay.up.full_reads = BULK;
        world.relay.down.full_reads = BULK;
        let urgent = [byte(from, 0)];
        world
            .outer(from)
            .socket
            .as_ref()
            .unwrap()
            .send_out_of_band(&urgent)
            .unwrap();
        world.outer(from).sent = 1;
        world.outer(from).write(from, 3);
        world.outer(from).finish();
        raised(
            &mut world,
            from,
            EpollFlags::EPOLLIN | EpollFlags::EPOLLPRI | EpollFlags::EPOLLRDHUP,
        );
        // The edge of the first byte had been taken before the rest came.
        let of_sender = |(side, _): &(Side, _)| *side == from;
        let at = world.raised.iter().position(of_sender).unwrap();
        world.tell(at, EpollFlags::EPOLLIN);
        world.settle();
        assert_eq!(world.outer(other(from)).got.len(), 4);
    }
}

#[test]
fn bulk_moves_through_a_pipe_and_its_tail_arrives() {
    let mut world = begun([true, true]);
    let start = Instant::now();
    while !matches!(world.relay.up.kept.as_deref(), Some(Kept::Pipe(_))) {
        assert!(start.elapsed() < PATIENCE, "no pipe is used");
        world.client.write(Side::Client, 1_000_000);
        world.collect(1);
        tell_all(&mut world);
        world.run();
        if !matches!(world.relay.up.kept.as_deref(), Some(Kept::Pipe(_))) {
            world.backend.read(20_000);
        }
    }
    world.client.write(Side::Client, 23);
    world.settle();
}

/// What a backend that was reset didn't take goes to the next one, whole, and then the end.
#[test]
fn what_was_read_in_vain_goes_to_another_backend() {
    for finish in [false, true] {
        for header in [0, 28] {
            let mut world = World::new([true, true], 0, &vec![1; header], &[], 8);
            world.client.write(Side::Client, 100);
            if finish {
                world.client.finish();
                raised(&mut world, Side::Client, EpollFlags::EPOLLRDHUP);
            }
            world.backend.reset();
            raised(&mut world, Side::Client, EpollFlags::EPOLLIN);
            raised(&mut world, Side::Backend, EpollFlags::EPOLLERR);
            world.turn = Turn::Waits;
            tell_all(&mut world);
            world.run();
            assert_eq!(world.turn, Turn::Reset(Side::Backend));
            assert!(world.relay.is_untouched());
            let unsent = world.relay.take_unsent();
            assert_eq!(unsent.as_ref().map(|bytes| bytes.len()), Some(100));

            let mut next = World::new([true, true], 0, &vec![3; header], &[], 8);
            next.relay = Relay::new(&vec![3; header], unsent);
            let (client, _) = world.inner.take().unwrap();
            let (_, backend) = next.inner.take().unwrap();
            next.inner = Some((client, backend));
            next.epoll = world.epoll;
            let (_, backend) = next.inner.as_ref().unwrap();
            let edges = EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT | EpollFlags::EPOLLRDHUP;
            let event = EpollEvent::new(edges | EpollFlags::EPOLLET, 1);
            next.epoll.add(backend, event).unwrap();
            next.client = world.client;
            next.running = true;
            next.run();
            let stream = if finish { Stream::Ended } else { Stream::Open };
            assert_eq!(next.relay.up.stream, stream, "no other edge will come");
            next.settle();
            assert_eq!(next.backend.got.len(), header + 100);
        }
    }
}

#[test]
fn the_unsent_bytes_are_right_wherever_the_header_was_cut() {
    let header = [1u8; 28];
    let client: Vec<u8> = (0..100).collect();
    for cut in 0..=header.len() {
        let mut relay = Relay::new(&header, Some(client.clone().into()));
        relay.up.written = cut as u64;
        if let Some(Kept::Bytes(_, at)) = relay.up.kept.as_deref_mut() {
            *at = cut;
        }
        assert!(relay.is_untouched());
        assert_eq!(relay.take_unsent().as_deref(), Some(&client[..]));
    }
    let mut relay = Relay::new(&header, Some(client.into()));
    relay.up.written = header.len() as u64 + 1;
    assert!(!relay.is_untouched());
}
