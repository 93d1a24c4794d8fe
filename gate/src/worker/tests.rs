//! A worker without its thread: the second of two, turned by the test.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex};

use syngate_metrics::{ConnectionState, Metrics, PendingOutcome};
use tokio::sync::mpsc;

use super::expiry::is_armed;
use super::*;
use crate::gate::{ListenerId, Overflow, ServiceId, ServiceSettings};
use crate::listener::{self, Address, LocalAddress, Options, Own};
use crate::shared::{Ack, Command, Handoff, Inbox, Load, Message, SharedListener};

const SERVICE: ServiceId = ServiceId(1);
const LISTENER: ListenerId = ListenerId(2);
const LOOPBACK: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

struct Ground {
    worker: Worker,
    shared: Arc<Shared>,
    metrics: Arc<syngate_metrics::Service>,
    settings: ServiceSettings,
}

impl Ground {
    /// With an open listener.
    fn new() -> Ground {
        let (events, _) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared {
            inboxes: (0..2).map(|_| Inbox::new().unwrap()).collect(),
            loads: (0..2).map(|_| Load::default()).collect(),
            open: AtomicU64::new(0),
            pending: AtomicU64::new(0),
            max_connections: AtomicU64::new(100),
            pending_max: AtomicU64::new(100),
            paused_listeners: AtomicU32::new(0),
            events,
            warned: Mutex::default(),
        });
        let epoll = Worker::epoll(1, &shared).unwrap();
        let metrics = Metrics::new("test", 2).service("default");
        let settings = ServiceSettings {
            pending_timeout: Duration::from_secs(30),
            pending_overflow: Overflow::Backpressure,
            dispatch_concurrency: 64,
            connect_timeout: Duration::from_secs(3),
            idle_timeout: None,
            half_close_timeout: None,
            keepalive: None,
            send_proxy: None,
            accept_proxy: None,
            accept_proxy_timeout: Duration::from_secs(3),
            sources: Vec::new(),
        };
        let mut ground = Ground {
            worker: Worker::new(1, Arc::clone(&shared), epoll),
            shared,
            metrics,
            settings,
        };
        let (metrics, settings) = (Arc::clone(&ground.metrics), ground.settings.clone());
        ground.command(Command::AddService(SERVICE, metrics, Arc::new(settings)));
        let options = Options {
            backlog: 16,
            keepalive: None,
            v6only: false,
            own: Own::default(),
        };
        let socket = listener::bind("l0", &Address::Tcp(LOOPBACK), &options).unwrap();
        let metrics = ground.metrics.listener("l0");
        let listener = SharedListener::new(LISTENER, SERVICE, Arc::new(socket), metrics, false);
        ground.command(Command::Open(Arc::new(listener)));
        ground
    }

    fn send(&self, message: Message) {
        self.shared.inboxes[1].send(message);
    }

    /// A turn in which there is mail.
    fn turn(&mut self) {
        let event = EpollEvent::new(EpollFlags::EPOLLIN, Token::INBOX.data(Side::Client));
        self.worker.turn(&[event]);
    }

    /// Has a command done, which is acknowledged.
    fn command(&mut self, command: Command) {
        let (ack, mut done) = Ack::new();
        self.send(Message::Command(command, ack));
        self.turn();
        assert_eq!(
            done.try_recv(),
            Err(mpsc::error::TryRecvError::Disconnected)
        );
    }

    /// What the other worker does with a connection that it has accepted.
    fn hand_over(&self) -> TcpStream {
        let listener = TcpListener::bind(LOOPBACK).unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (accepted, peer) = listener.accept().unwrap();
        let metrics = self.metrics.listener("l0");
        metrics.block(0).accepted.inc();
        self.shared.open.fetch_add(1, Ordering::SeqCst);
        self.shared.pending.fetch_add(1, Ordering::SeqCst);
        self.send(Message::Handoff(Handoff {
            client: OwnedFd::from(accepted),
            peer: Some(peer),
            listener: LISTENER,
            service: SERVICE,
            metrics,
            reserved: true,
        }));
        client
    }
}

#[test]
fn what_is_handed_over_after_the_close_is_kept_and_the_listener_goes_with_it() {
    let mut ground = Ground::new();
    ground.command(Command::Close(LISTENER));
    assert!(ground.worker.listeners.iter().all(Option::is_none));
    let client = ground.hand_over();
    ground.turn();
    assert_eq!(ground.worker.slots.len(), 1);
    assert_eq!(ground.shared.pending.load(Ordering::SeqCst), 1);
    crate::socket::Socket::accepted(client.into(), false).reset_on_close(); // And is dropped.
    while ground.worker.slots.len() > 0 {
        let mut events = [EpollEvent::empty(); 8];
        let n = ground.worker.epoll.wait(&mut events, 1000u16).unwrap();
        ground.worker.turn(&events[..n]);
    }
    assert!(ground.worker.listeners.iter().all(Option::is_none));
    assert_eq!(ground.shared.pending.load(Ordering::SeqCst), 0);
    assert_eq!(ground.shared.open.load(Ordering::SeqCst), 0);
    assert_eq!(ground.metrics.closed(CloseReason::ClientReset), 1);
}

#[test]
fn what_is_handed_over_to_a_removed_service_is_closed_and_counted() {
    let mut ground = Ground::new();
    ground.command(Command::RemoveService(SERVICE));
    let _client = ground.hand_over();
    ground.turn();
    assert_eq!(ground.worker.slots.len(), 0);
    assert_eq!(ground.shared.pending.load(Ordering::SeqCst), 0);
    assert_eq!(ground.shared.open.load(Ordering::SeqCst), 0);
    assert_eq!(ground.metrics.closed(CloseReason::Shutdown), 1);
}

#[test]
fn what_is_handed_over_with_the_stop_ends_with_the_others() {
    let mut ground = Ground::new();
    let _early = ground.hand_over();
    ground.turn();
    let (ack, _done) = Ack::new();
    ground.send(Message::Command(Command::Stop, ack));
    let _late = ground.hand_over();
    ground.turn();
    assert!(ground.worker.stopped);
    assert_eq!(ground.shared.open.load(Ordering::SeqCst), 0);
    assert_eq!(ground.metrics.closed(CloseReason::Shutdown), 2);
    assert_eq!(ground.metrics.pending_outcomes(PendingOutcome::Shutdown), 2);
    assert_eq!(ground.metrics.open(ConnectionState::Pending), 0);
}

#[test]
fn an_earlier_deadline_leaves_no_second_one_behind() {
    let mut ground = Ground::new();
    let _client = ground.hand_over();
    ground.turn();
    // Each of these is earlier than the last, so each is armed.
    for seconds in [20, 10] {
        ground.settings.pending_timeout = Duration::from_secs(seconds);
        let settings = Arc::new(ground.settings.clone());
        ground.command(Command::Activate(SERVICE, None, settings, Arc::default()));
    }
    // And from then on it is put off whenever it comes.
    ground.settings.pending_timeout = Duration::from_secs(1000);
    let settings = Arc::new(ground.settings.clone());
    ground.command(Command::Activate(SERVICE, None, settings, Arc::default()));
    let mut live = 0;
    let now = ground.worker.clock.now();
    let seconds = |seconds| now + Duration::from_secs(seconds);
    while let Some((at, Due::Connection(token))) = ground.worker.deadlines.pop(seconds(100)) {
        live += usize::from(is_armed(&ground.worker.slots, at, token));
    }
    assert_eq!(live, 1);
}

#[test]
fn a_pause_ends_with_its_listener() {
    let mut ground = Ground::new();
    let socket = ground.worker.listeners[0].as_ref().unwrap().socket.clone();
    let socket = socket.unwrap();
    socket
        .paused
        .store(crate::shared::Pause::FULL, Ordering::SeqCst);
    ground
        .shared
        .paused_listeners
        .fetch_add(1, Ordering::SeqCst);
    ground.shared.max_connections.store(0, Ordering::Relaxed);
    ground.command(Command::Close(LISTENER));
    assert_eq!(ground.shared.paused_listeners.load(Ordering::SeqCst), 0);
}

/// A unix endpoint connects at once, so that a connection can be dispatched, relayed and ended in one look.
#[test]
fn one_that_ends_in_the_look_that_dispatches_it_leaves_the_queue_once() {
    let mut ground = Ground::new();
    let _client = ground.hand_over();
    ground.turn();
    assert_eq!(ground.shared.pending.load(Ordering::SeqCst), 1);
    let listener = ground.worker.listeners[0].as_mut().unwrap();
    let token = listener.queue.front(|_| true).unwrap();
    listener.queue.pop();
    ground.worker.queue_changed(0);
    ground.worker.look(token, |connection, context| {
        context.listener.open[ConnectionState::Pending].dec();
        context.listener.open[ConnectionState::Greeting].inc();
        connection.phase = Phase::Greeting;
        Next::Close(CloseReason::Eof)
    });
    ground.turn();
    assert_eq!(ground.worker.slots.len(), 0);
    assert_eq!(ground.shared.pending.load(Ordering::SeqCst), 0);
}

/// At the limit a pause isn't over with each connection that ends, and it is never for good.
#[test]
fn a_pause_at_the_limit_ends_with_ample_room_or_a_moment_after_some() {
    let mut ground = Ground::new();
    let shared = Arc::clone(&ground.shared);
    let socket = ground.worker.socket(0).unwrap();
    let LocalAddress::Tcp(address) = *socket.socket.address() else {
        unreachable!()
    };
    shared.max_connections.store(64, Ordering::Relaxed);
    let looks = || {
        let told = shared.inboxes.iter().map(|inbox| inbox.take().len());
        told.sum::<usize>()
    };
    for (ends, at_once) in [(4, true), (1, false)] {
        shared.open.store(64, Ordering::SeqCst);
        let _waits = TcpStream::connect(address).unwrap();
        ground.worker.accept(0);
        assert!(socket.is_paused());
        ground.turn();
        looks();
        for _ in 1..ends {
            shared.open.fetch_sub(1, Ordering::SeqCst);
            ground.worker.made_room();
            assert_eq!(looks(), 0);
        }
        shared.open.fetch_sub(1, Ordering::SeqCst);
        ground.worker.made_room();
        assert_eq!(looks() > 0, at_once);
        if at_once {
            ground.worker.look_at_pauses();
        }
        assert_eq!(socket.is_paused(), !at_once);
        while socket.is_paused() {
            ground.worker.turn(&[]);
        }
        ground.worker.accept(0);
        assert_eq!(ground.worker.slots.len(), 1);
        let token = ground.worker.slots.token(0);
        ground
            .worker
            .look(token, |_, _| Next::Close(CloseReason::Eof));
        ground.turn();
        looks();
    }
}

/// The accept after the last one would be for nothing.
#[test]
fn a_wake_up_takes_one_connection_and_several_while_they_keep_coming() {
    let mut ground = Ground::new();
    let LocalAddress::Tcp(address) = *ground.worker.socket(0).unwrap().socket.address() else {
        unreachable!()
    };
    let connect = || TcpStream::connect(address).unwrap();
    let _first = [connect(), connect(), connect()];
    ground.turn();
    ground.worker.accept(0);
    assert_eq!(ground.worker.slots.len(), 1);
    ground.turn();
    ground.worker.accept(0);
    assert_eq!(ground.worker.slots.len(), 3);
    ground.turn();
    ground.turn();
    let _later = [connect(), connect()];
    ground.worker.accept(0);
    assert_eq!(ground.worker.slots.len(), 4);
}
