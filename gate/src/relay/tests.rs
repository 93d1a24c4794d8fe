//! The pump between two socket pairs. The edges are real ones, from an edge-triggered epoll set; when they are told, and in how
//! many pieces, is the test's choice. An edge is never lost, and nothing is looked at without one: a lost wake-up hangs the test.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use proptest::prelude::*;
use socket2::{Domain, SockRef, Type};

use super::*;
use crate::sys;

/// A test that waits longer than this has lost a wake-up.
const PATIENCE: Duration = Duration::from_secs(40);

/// An outer socket, and the gate's end of it.
fn pair(tcp: bool, side: Side, buffer: usize) -> (socket2::Socket, Socket) {
    let (outer, inner) = if tcp {
        let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
        SockRef::from(&listener)
            .set_out_of_band_inline(true)
            .unwrap();
        let dialled = socket2::Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        if buffer > 0 {
            // A window that is smaller than a segment is opened by timers alone.
            SockRef::from(&listener).set_tcp_mss(1000).unwrap();
            dialled.set_tcp_mss(1000).unwrap();
        }
        let address = listener.local_addr().unwrap();
        dialled.connect(&address.into()).unwrap();
        let accepted = listener.accept().unwrap().0;
        match side {
            Side::Client => (dialled, accepted.into()),
            Side::Backend => {
                SockRef::from(&accepted)
                    .set_out_of_band_inline(true)
                    .unwrap();
                (accepted.into(), dialled)
            }
        }
    } else {
        socket2::Socket::pair(Domain::UNIX, Type::STREAM, None).unwrap()
    };
    for socket in [&outer, &inner] {
        socket.set_nonblocking(true).unwrap();
        if buffer > 0 {
            socket.set_send_buffer_size(buffer).unwrap();
            socket.set_recv_buffer_size(buffer).unwrap();
        }
    }
    let inner = match side {
        Side::Client => Socket::accepted(inner.into(), !tcp),
        Side::Backend => Socket::connecting(inner.into(), !tcp, true),
    };
    (outer, inner)
}

fn other(side: Side) -> Side {
    match side {
        Side::Client => Side::Backend,
        Side::Backend => Side::Client,
    }
}

/// How a stream ended for the one who reads it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Eof,
    Reset,
}

/// An outer end: what it has sent and what it has got.
struct Outer {
    socket: Option<socket2::Socket>,
    tcp: bool,
    sent: usize,
    /// What of that must arrive, whatever happens.
    sure: usize,
    finished: bool,
    reset: bool,
    got: Vec<u8>,
    end: Option<End>,
}

/// The byte that a side sends at a place in its stream.
fn byte(side: Side, at: usize) -> u8 {
    (at ^ (at >> 8) ^ (at >> 16)) as u8 ^ if side == Side::Client { 0 } else { 0x55 }
}

impl Outer {
    fn write(&mut self, side: Side, len: usize) {
        let Some(socket) = self.socket.as_mut().filter(|_| !self.finished) else {
            return;
        };
        let bytes: Vec<u8> = (self.sent..self.sent + len)
            .map(|at| byte(side, at))
            .collect();
        self.sent += socket.write(&bytes).unwrap_or(0); // Full, or reset: no matter.
    }

    fn read(&mut self, most: usize) {
        let Some(socket) = self.socket.as_mut().filter(|_| self.end.is_none()) else {
            return;
        };
        let mut buffer = vec![0; most];
        match socket.read(&mut buffer) {
            Ok(0) if most > 0 => self.end = Some(End::Eof),
            Ok(n) => self.got.extend(&buffer[..n]),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => self.end = Some(End::Reset),
        }
    }

    fn finish(&mut self) {
        if let Some(socket) = self.socket.as_ref().filter(|_| !self.finished) {
            let _ = socket.shutdown(std::net::Shutdown::Write);
        }
        self.finished = true;
    }

    fn reset(&mut self) {
        if let Some(socket) = self.socket.take() {
            let lost = match self.tcp {
                true => sys::unacknowledged(socket.as_fd()).unwrap(),
                false => 0,
            };
            self.sure = self.sent.saturating_sub(lost as usize); // An unacknowledged FIN counts as one.
            socket.set_linger(Some(Duration::ZERO)).unwrap();
            self.reset = true;
        }
    }
}

/// A relay between two outer ends.
struct World {
    client: Outer,
    backend: Outer,
    inner: Option<(Socket, Socket)>,
    epoll: Epoll,
    /// Edges that were raised and not yet told.
    raised: Vec<(Side, EpollFlags)>,
    relay: Relay,
    scratch: Scratch,
    running: bool,
    turn: Turn,
    /// What goes to the backend before the client's bytes.
    prefix: Vec<u8>,
}

impl World {
    fn new(tcp: [bool; 2], buffer: usize, header: &[u8], unsent: &[u8], pipes: usize) -> World {
        let (client, inner_client) = pair(tcp[0], Side::Client, buffer);
        let (backend, inner_backend) = pair(tcp[1], Side::Backend, buffer);
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).unwrap();
        let edges = EpollFlags::EPOLLIN
            | EpollFlags::EPOLLOUT
            | EpollFlags::EPOLLRDHUP
            | EpollFlags::EPOLLPRI
            | EpollFlags::EPOLLET;
        epoll.add(&inner_client, EpollEvent::new(edges, 0)).unwrap();
        epoll
            .add(&inner_backend, EpollEvent::new(edges, 1))
            .unwrap();
        let outer = |socket, tcp| Outer {
            socket: Some(socket),
            tcp,
            sent: 0,
            sure: 0,
            finished: false,
            reset: false,
            got: Vec::new(),
            end: None,
        };
        let mut scratch = Scratch::new();
        scratch.pipes.allow(pipes);
        World {
            client: outer(client, tcp[0]),
            backend: outer(backend, tcp[1]),
            inner: Some((inner_client, inner_backend)),
            epoll,
            raised: Vec::new(),
            relay: Relay::new(header, (!unsent.is_empty()).then(|| unsent.into())),
            scratch,
            running: true, // A relay begins with a turn.
            turn: Turn::More,
            prefix: [header, unsent].concat(),
        }
    }

    fn outer(&mut self, side: Side) -> &mut Outer {
        match side {
            Side::Client => &mut self.client,
            Side::Backend => &mut self.backend,
        }
    }

    /// Takes up the edges that were raised since.
    fn collect(&mut self, wait: u16) {
        let mut events = [EpollEvent::empty(); 4];
        let n = self
            .epoll
            .wait(&mut events, EpollTimeout::from(wait))
            .unwrap();
        for event in &events[..n] {
            let side = [Side::Client, Side::Backend][event.data() as usize];
            self.raised.push((side, event.events()));
        }
    }

    /// Tells an edge, or those of its flags that are in `mask`: the others come later.
    fn tell(&mut self, which: usize, mask: EpollFlags) {
        if self.raised.is_empty() {
            return;
        }
        let which = which % self.raised.len();
        let (side, flags) = self.raised[which];
        let told = match flags & mask {
            told if told.is_empty() => flags,
            told => told,
        };
        match flags - told {
            left if left.is_empty() => drop(self.raised.remove(which)),
            left => self.raised[which].1 = left,
        }
        let Some((client, backend)) = &mut self.inner else {
            return;
        };
        match side {
            Side::Client => client.note(told),
            Side::Backend => backend.note(told),
        }
        if !self.running {
            self.look();
        }
    }

    /// Its turn on the run list has come.
    fn run(&mut self) {
        if std::mem::take(&mut self.running) {
            self.look();
        }
    }

    fn look(&mut self) {
        if matches!(self.turn, Turn::Ended | Turn::Reset(_)) {
            return;
        }
        let Some((client, backend)) = &mut self.inner else {
            return;
        };
        let before = self.relay.bytes();
        self.turn = self.relay.turn(client, backend, &mut self.scratch);
        let after = self.relay.bytes();
        // The budget, and what was kept from the turn before.
        const MOST: u64 = 600_000;
        assert!(
            after.0 - before.0 <= MOST && after.1 - before.1 <= MOST,
            "a turn is bounded"
        );
        self.running = self.turn == Turn::More;
    }

    /// Lets everything come to its end, and checks what came out.
    fn settle(&mut self) {
        self.client.finish();
        self.backend.finish();
        let start = Instant::now();
        let mut reset_by = None;
        while self.inner.is_some()
            || self.client.socket.is_some() && self.client.end.is_none()
            || self.backend.socket.is_some() && self.backend.end.is_none()
        {
            assert!(
                start.elapsed() < PATIENCE,
                "hangs: {:?}, {:?}, {:?}, ends {:?}, got {} of {} up and {} of {} down",
                self.turn,
                self.relay,
                self.inner,
                (self.client.end, self.backend.end),
                self.backend.got.len(),
                self.prefix.len() + self.client.sent,
                self.client.got.len(),
                self.backend.sent
            );
            self.collect(u16::from(!self.running));
            while !self.raised.is_empty() {
                self.tell(0, EpollFlags::all());
            }
            self.run();
            self.client.read(100_000);
            self.backend.read(100_000);
            match self.turn {
                Turn::Ended => drop(self.inner.take()),
                Turn::Reset(by) => {
                    let (_, left, since) = reset_by.get_or_insert((by, u32::MAX, Instant::now()));
                    if let Some((client, backend)) = &mut self.inner {
                        let to = if by == Side::Client { backend } else { client };
                        to.discard(&mut self.scratch.buffer);
                        let undelivered = to.undelivered();
                        if undelivered < *left {
                            (*left, *since) = (undelivered, Instant::now());
                        }
                        // Bounded, as it is for a connection: a peer whose own end nobody reads may drop what acknowledges a FIN.
                        if undelivered == 0 || since.elapsed() > PATIENCE / 4 {
                            to.reset_on_close();
                            self.inner = None;
                        }
                    }
                }
                Turn::Waits | Turn::More => {}
            }
        }
        self.check(reset_by.map(|(by, ..)| by));
        let relay = std::mem::replace(&mut self.relay, Relay::new(&[], None));
        relay.release(&mut self.scratch.pipes);
    }

    fn check(&self, reset_by: Option<Side>) {
        if let Some(by) = reset_by {
            let (by, to) = match by {
                Side::Client => (&self.client, &self.backend),
                Side::Backend => (&self.backend, &self.client),
            };
            assert!(by.reset, "a reset that nobody has sent");
            if to.socket.is_some() && to.tcp && !by.finished {
                assert_eq!(to.end, Some(End::Reset));
            }
        }
        let any_reset = self.client.reset || self.backend.reset;
        for (side, from, to, prefix) in [
            (Side::Client, &self.client, &self.backend, &self.prefix[..]),
            (Side::Backend, &self.backend, &self.client, &[]),
        ] {
            let expected = prefix
                .iter()
                .copied()
                .chain((0..from.sent).map(|at| byte(side, at)));
            let expected: Vec<u8> = expected.take(to.got.len()).collect();
            assert!(to.got == expected, "the stream from {side:?} was changed");
            let got = to.got.len();
            if !any_reset {
                assert_eq!(got, prefix.len() + from.sent);
                assert_eq!(to.end, Some(End::Eof));
            } else if from.reset && !to.reset {
                assert!(got >= prefix.len() + from.sure, "{got} of {}", from.sure);
            }
        }
    }
}

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
