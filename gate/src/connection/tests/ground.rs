//! What a connection is tested with: the test is its worker and its epoll set.

use super::*;

pub(super) const LOOPBACK: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// What a worker lends.
pub(super) struct Ground {
    pub(super) now: Tick,
    pub(super) epoll: Epoll,
    pub(super) scratch: Scratch,
    pub(super) settings: ServiceSettings,
    pub(super) service: ServiceBlock,
    pub(super) listener: ListenerBlock,
    pub(super) local: Rc<Local>,
    pub(super) _events: mpsc::UnboundedReceiver<Event>,
}

impl Ground {
    pub(super) fn new() -> Ground {
        let (events, receiver) = mpsc::unbounded_channel();
        let generation = Generation::new(1, 1, Vec::new(), Vec::new());
        Ground {
            now: Tick::default() + Duration::from_secs(10),
            epoll: Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).unwrap(),
            scratch: Scratch::new(),
            settings: ServiceSettings {
                pending_timeout: Duration::from_secs(30),
                pending_overflow: Overflow::Backpressure,
                dispatch_concurrency: 64,
                connect_timeout: Duration::from_secs(3),
                idle_timeout: None,
                half_close_timeout: Some(Duration::from_secs(300)),
                keepalive: None,
                send_proxy: None,
                accept_proxy: None,
                accept_proxy_timeout: Duration::from_secs(3),
                sources: Vec::new(),
            },
            service: ServiceBlock::default(),
            listener: ListenerBlock::default(),
            local: Local::new(generation, ServiceId(1), 0, events),
            _events: receiver,
        }
    }

    pub(super) fn context(&mut self) -> Context<'_> {
        Context {
            now: self.now,
            epoll: &self.epoll,
            scratch: &mut self.scratch,
            settings: &self.settings,
            service: &self.service,
            listener: &self.listener,
            local: self.local.is_active().then_some(&self.local),
            raw: false,
        }
    }

    pub(super) fn connection(&self, client: Socket, phase: Phase) -> Connection {
        let connection = Connection::new(client, None, 0, false, phase, self.now);
        self.listener.open[connection.state()].inc();
        connection
    }

    pub(super) fn dialer(&self, address: SocketAddr) -> Rc<Dialer> {
        let endpoint = Endpoint {
            target: Target::Tcp(address),
            queue: Probe::Unknown,
        };
        Rc::new(Dialer::new(&self.local, &endpoint, &self.settings).unwrap())
    }

    /// Dispatches it to a backend of the test's own, whose end is returned.
    pub(super) fn dispatch(&mut self, connection: &mut Connection) -> TcpStream {
        let listener = TcpListener::bind(LOOPBACK).unwrap();
        let dialer = self.dialer(listener.local_addr().unwrap());
        let (attempt, backend, _) = dialer.dial(self.now).ok().unwrap();
        let (accepted, _) = listener.accept().unwrap();
        let lease = Lease::new(&self.local);
        let next = connection.dispatched(lease, attempt, backend, &mut self.context());
        assert_eq!(next, Next::Wait);
        accepted
    }

    /// The same, and the connect has succeeded.
    pub(super) fn relay(&mut self, connection: &mut Connection) -> TcpStream {
        let backend = self.dispatch(connection);
        let next = connection.event(Side::Backend, EpollFlags::EPOLLOUT, &mut self.context());
        assert_eq!(next, Next::Wait);
        assert!(matches!(connection.phase, Phase::Relaying { .. }));
        backend
    }

    pub(super) fn leases(&self) -> u64 {
        self.local.generation.leases()
    }
}

pub(super) fn unix() -> (UnixStream, Socket) {
    let (outer, inner) = UnixStream::pair().unwrap();
    inner.set_nonblocking(true).unwrap();
    (outer, Socket::accepted(inner.into(), true))
}

pub(super) fn tcp() -> (TcpStream, Socket) {
    let listener = TcpListener::bind(LOOPBACK).unwrap();
    let outer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let inner = listener.accept().unwrap().0;
    inner.set_nonblocking(true).unwrap();
    (outer, Socket::accepted(inner.into(), false))
}

pub(super) fn pending() -> Phase {
    Phase::Pending { unsent: None }
}

pub(super) fn reset(stream: TcpStream) {
    let socket = SockRef::from(&stream);
    socket.set_linger(Some(Duration::ZERO)).unwrap();
}

/// Waits until the socket shows these events.
pub(super) fn until(socket: &Socket, events: PollFlags) {
    let start = Instant::now();
    loop {
        let mut fds = [PollFd::new(socket.as_fd(), events)];
        poll(&mut fds, 100u16).unwrap();
        if fds[0].revents().is_some_and(|seen| seen.contains(events)) {
            return;
        }
        assert!(start.elapsed() < Duration::from_secs(20));
    }
}

pub(super) fn backend(connection: &Connection) -> &Socket {
    match &connection.phase {
        Phase::Connecting { backend, .. }
        | Phase::Relaying { backend, .. }
        | Phase::Resetting { backend, .. } => backend,
        other => panic!("{other:?}"),
    }
}

pub(super) const RESET: EpollFlags = EpollFlags::EPOLLERR
    .union(EpollFlags::EPOLLHUP)
    .union(EpollFlags::EPOLLIN);
