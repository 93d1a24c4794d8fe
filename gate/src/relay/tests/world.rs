//! Two outer sockets, the pump between them, and an epoll set whose edges the test tells.

use super::*;

/// A test that waits longer than this has lost a wake-up.
pub(super) const PATIENCE: Duration = Duration::from_secs(40);

/// An outer socket, and the gate's end of it.
pub(super) fn pair(tcp: bool, side: Side, buffer: usize) -> (socket2::Socket, Socket) {
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

pub(super) fn other(side: Side) -> Side {
    match side {
        Side::Client => Side::Backend,
        Side::Backend => Side::Client,
    }
}

/// How a stream ended for the one who reads it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum End {
    Eof,
    Reset,
}

/// An outer end: what it has sent and what it has got.
pub(super) struct Outer {
    pub(super) socket: Option<socket2::Socket>,
    pub(super) tcp: bool,
    pub(super) sent: usize,
    /// What of that must arrive, whatever happens.
    pub(super) sure: usize,
    pub(super) finished: bool,
    pub(super) reset: bool,
    pub(super) got: Vec<u8>,
    pub(super) end: Option<End>,
}

/// The byte that a side sends at a place in its stream.
pub(super) fn byte(side: Side, at: usize) -> u8 {
    (at ^ (at >> 8) ^ (at >> 16)) as u8 ^ if side == Side::Client { 0 } else { 0x55 }
}

impl Outer {
    pub(super) fn write(&mut self, side: Side, len: usize) {
        let Some(socket) = self.socket.as_mut().filter(|_| !self.finished) else {
            return;
        };
        let bytes: Vec<u8> = (self.sent..self.sent + len)
            .map(|at| byte(side, at))
            .collect();
        self.sent += socket.write(&bytes).unwrap_or(0); // Full, or reset: no matter.
    }

    pub(super) fn read(&mut self, most: usize) {
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

    pub(super) fn finish(&mut self) {
        if let Some(socket) = self.socket.as_ref().filter(|_| !self.finished) {
            let _ = socket.shutdown(std::net::Shutdown::Write);
        }
        self.finished = true;
    }

    pub(super) fn reset(&mut self) {
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
pub(super) struct World {
    pub(super) client: Outer,
    pub(super) backend: Outer,
    pub(super) inner: Option<(Socket, Socket)>,
    pub(super) epoll: Epoll,
    /// Edges that were raised and not yet told.
    pub(super) raised: Vec<(Side, EpollFlags)>,
    pub(super) relay: Relay,
    pub(super) scratch: Scratch,
    pub(super) running: bool,
    pub(super) turn: Turn,
    /// What goes to the backend before the client's bytes.
    pub(super) prefix: Vec<u8>,
}

impl World {
    pub(super) fn new(
        tcp: [bool; 2],
        buffer: usize,
        header: &[u8],
        unsent: &[u8],
        pipes: usize,
    ) -> World {
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

    pub(super) fn outer(&mut self, side: Side) -> &mut Outer {
        match side {
            Side::Client => &mut self.client,
            Side::Backend => &mut self.backend,
        }
    }

    /// Takes up the edges that were raised since.
    pub(super) fn collect(&mut self, wait: u16) {
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
    pub(super) fn tell(&mut self, which: usize, mask: EpollFlags) {
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
    pub(super) fn run(&mut self) {
        if std::mem::take(&mut self.running) {
            self.look();
        }
    }

    pub(super) fn look(&mut self) {
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
    pub(super) fn settle(&mut self) {
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

    pub(super) fn check(&self, reset_by: Option<Side>) {
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
