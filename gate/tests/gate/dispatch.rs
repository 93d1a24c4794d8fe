//! Who is dispatched, in which order, and what happens to endpoints that don't answer.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use socket2::{Domain, SockAddr, SockRef, Socket, Type};
use syngate_gate::accept_queue::{Probe, Reader, UnixInode};
use syngate_gate::listener::KeptListener;
use syngate_gate::{Endpoint, Event, ServiceSettings, Target};
use syngate_metrics::{CloseReason, ConnectionState, PendingOutcome};

use crate::common::{
    Fixture, LOOPBACK, ask, deaf, echo, kept_endpoint, kernel_count, own_network, reset, rest,
    serve, settings, tcp_endpoint, unix_endpoint, until, wait,
};

#[test]
fn with_one_worker_the_first_to_come_is_the_first_to_be_served() {
    let fixture = Fixture::new(1, settings());
    let mut clients: Vec<TcpStream> = (0..300).map(|_| fixture.client()).collect();
    for (n, client) in clients.iter_mut().enumerate() {
        client.write_all(&(n as u32).to_be_bytes()).unwrap();
    }
    fixture.until_pending(300);
    let listener = TcpListener::bind(LOOPBACK).unwrap();
    fixture.activate(&fixture.generation(1, listener.local_addr().unwrap()));
    for n in 0..300u32 {
        let (stream, _) = listener.accept().unwrap();
        let mut first = [0; 4];
        std::io::Read::read_exact(&mut &stream, &mut first).unwrap();
        assert_eq!(u32::from_be_bytes(first), n);
    }
    drop(clients);
    fixture.stop();
}

/// A backend of a small backlog, which accepts and answers by one thread.
fn slow_backend(unix: bool, served: Arc<AtomicU64>) -> (Endpoint, Option<tempfile::TempDir>) {
    let (endpoint, listener, directory) = if unix {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
        socket.bind(&SockAddr::unix(&path).unwrap()).unwrap();
        socket.listen(128).unwrap();
        let mut endpoint = unix_endpoint(path);
        endpoint.queue = Probe::Unix(UnixInode::of(&socket).unwrap());
        (endpoint, socket, Some(directory))
    } else {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&LOOPBACK.into()).unwrap();
        socket.listen(128).unwrap();
        let address = socket.local_addr().unwrap().as_socket().unwrap();
        (tcp_endpoint(address), socket, None)
    };
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            served.fetch_add(1, Ordering::Relaxed);
            let _ = stream.write_all(b"served");
        }
    });
    (endpoint, directory)
}

#[test]
fn five_thousand_who_have_waited_don_t_overflow_a_small_backlog() {
    own_network();
    for unix in [false, true] {
        let fixture = Fixture::new(2, settings());
        let clients: Vec<TcpStream> = (0..5000).map(|_| fixture.client()).collect();
        fixture.until_pending(5000);
        let (gone, waiting) = clients.split_at(200);
        let waiting: Vec<TcpStream> = waiting.iter().map(|c| c.try_clone().unwrap()).collect();
        gone.iter().for_each(reset);
        drop(clients);
        fixture.until_pending(4800);
        let before = kernel_count("ListenOverflows");
        let served = Arc::new(AtomicU64::new(0));
        let (endpoint, _directory) = slow_backend(unix, Arc::clone(&served));
        fixture.activate(&fixture.generation_at(1, vec![endpoint]));
        for client in waiting {
            assert_eq!(rest(client), b"served");
        }
        assert_eq!(kernel_count("ListenOverflows"), before);
        assert_eq!(served.load(Ordering::Relaxed), 4800);
        fixture.until_empty();
        let numbers = fixture.stop();
        assert_eq!(numbers.pending_outcomes(PendingOutcome::ClientReset), 200);
        assert_eq!(numbers.pending_outcomes(PendingOutcome::Dispatched), 4800);
    }
}

#[test]
fn a_hold_is_acknowledged_when_the_connects_under_way_have_ended() {
    let soon = ServiceSettings {
        connect_timeout: Duration::from_millis(300),
        ..settings()
    };
    let fixture = Fixture::new(2, soon);
    // A full queue swallows the SYN: the connect goes on until its time-out.
    let full = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    full.bind(&LOOPBACK.into()).unwrap();
    full.listen(0).unwrap();
    let address = full.local_addr().unwrap().as_socket().unwrap();
    let _filler = TcpStream::connect(address).unwrap();
    let endpoint = Endpoint {
        target: Target::Tcp(address),
        queue: Probe::Unknown,
    };
    fixture.activate(&fixture.generation_at(1, vec![endpoint]));
    let client = fixture.client();
    let numbers = fixture.numbers();
    until("a connect", || {
        numbers.open(ConnectionState::Connecting) == 1
    });
    let holds = async {
        let first = fixture.gate.hold(fixture.service, true);
        let second = fixture.gate.hold(fixture.service, true);
        let (mut first, mut second) = (Box::pin(first), Box::pin(second));
        std::future::poll_fn(|context| {
            let both = (first.as_mut().poll(context), second.as_mut().poll(context));
            // Whichever is the first to return, nothing is under way then.
            if both.0.is_ready() || both.1.is_ready() {
                assert_eq!(numbers.open(ConnectionState::Connecting), 0);
                return std::task::Poll::Ready(());
            }
            std::task::Poll::Pending
        })
        .await;
    };
    wait(holds);
    assert_eq!(fixture.gate.pending_connections(), 1);
    assert_eq!(fixture.attempts("timeout"), 1);
    fixture.activate(&fixture.generation(2, echo("two ")));
    wait(fixture.gate.hold(fixture.service, false));
    assert_eq!(ask(client, b"x"), b"two x");
    fixture.stop();
}

#[test]
fn after_a_crash_new_connections_wait_for_the_next_generation() {
    let fixture = Fixture::new(2, settings());
    let first = fixture.generation(1, echo("one "));
    fixture.activate(&first);
    assert_eq!(ask(fixture.client(), b"x"), b"one x");
    wait(fixture.gate.backend_gone(fixture.service, &first));
    fixture.deactivate();
    let waiting = fixture.client();
    fixture.until_pending(1);
    fixture.activate(&fixture.generation(2, echo("two ")));
    assert_eq!(ask(waiting, b"x"), b"two x");
    fixture.stop();
}

#[test]
fn what_a_dying_backend_resets_untouched_goes_to_the_next_generation() {
    let fixture = Fixture::new(1, settings());
    let listener = TcpListener::bind(LOOPBACK).unwrap();
    let first = fixture.generation(1, listener.local_addr().unwrap());
    fixture.activate(&first);
    let client = fixture.client();
    let (accepted, _) = listener.accept().unwrap();
    fixture.deactivate();
    reset(&accepted);
    drop(accepted);
    fixture.until_pending(1);
    fixture.activate(&fixture.generation(2, echo("two ")));
    assert_eq!(ask(client, b"x"), b"two x");
    assert_eq!(first.leases(), 0);
    fixture.stop();
}

#[test]
fn what_a_living_backend_resets_passes_to_the_client() {
    let fixture = Fixture::new(1, settings());
    let listener = TcpListener::bind(LOOPBACK).unwrap();
    fixture.activate(&fixture.generation(1, listener.local_addr().unwrap()));
    let client = fixture.client();
    let (accepted, _) = listener.accept().unwrap();
    reset(&accepted);
    drop(accepted);
    assert!(crate::common::is_reset(client));
    let numbers = fixture.stop();
    assert_eq!(numbers.closed(CloseReason::BackendReset), 1);
}

#[test]
fn several_endpoints_take_turns_and_one_that_refuses_is_skipped() {
    let fixture = Fixture::new(1, settings());
    let (_deaf, refusing) = deaf();
    let endpoints = [echo("a "), refusing, echo("b ")].map(tcp_endpoint);
    fixture.activate(&fixture.generation_at(1, endpoints.into()));
    let answers: Vec<Vec<u8>> = (0..20).map(|_| ask(fixture.client(), b"x")).collect();
    let of_a = answers.iter().filter(|answer| *answer == b"a x").count();
    assert!((7..=13).contains(&of_a), "{of_a} of 20");
    assert!(answers.iter().all(|a| a == b"a x" || a == b"b x"));
    fixture.stop();
}

#[test]
fn a_refusing_endpoint_is_told_once_and_so_is_its_recovery() {
    let mut fixture = Fixture::new(1, settings());
    let (socket, address) = deaf();
    fixture.activate(&fixture.generation(1, address));
    let waiting: Vec<TcpStream> = (0..20).map(|_| fixture.client()).collect();
    fixture.until_pending(20);
    until("several attempts", || fixture.attempts("refused") >= 4);
    assert!(fixture.attempts("refused") < 200, "it backs off");
    socket.listen(128).unwrap();
    serve(socket.into(), "");
    for client in waiting {
        assert_eq!(ask(client, b"x"), b"x");
    }
    let mut told = Vec::new();
    while let Ok(event) = fixture.events.try_recv() {
        told.push(event);
    }
    assert!(
        matches!(&told[..], [Event::Refused { .. }, Event::Answers { .. }]),
        "{told:?}"
    );
    fixture.stop();
}

#[test]
fn two_hundred_connections_fit_into_sixty_four_ports() {
    own_network();
    std::fs::write("/proc/sys/net/ipv4/ip_local_port_range", "40000 40063").unwrap();
    let directory = tempfile::tempdir().unwrap();
    let address = syngate_gate::listener::Address::Unix {
        path: directory.path().join("l"),
        mode: None,
    };
    let listener = crate::common::bind(&address);
    let fixture = Fixture::with(2, settings(), 1000, 1000, listener);
    let backend = TcpListener::bind("127.0.0.1:9000").unwrap();
    fixture.activate(&fixture.generation(1, backend.local_addr().unwrap()));
    let mut held = Vec::new();
    for _ in 0..200 {
        let client = UnixStream::connect(directory.path().join("l")).unwrap();
        let (mut accepted, _) = backend.accept().unwrap();
        accepted.write_all(b"yes").unwrap();
        let mut answer = [0; 3];
        std::io::Read::read_exact(&mut &client, &mut answer).unwrap();
        held.push((client, accepted));
    }
    drop(held);
    fixture.until_empty();
    fixture.stop();
}

#[test]
fn a_unix_endpoint_is_filled_as_far_as_it_goes() {
    let fixture = Fixture::new(1, settings());
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let listener = UnixListener::bind(&path).unwrap();
    SockRef::from(&listener).listen(3).unwrap();
    fixture.activate(&fixture.generation_at(1, vec![unix_endpoint(path)]));
    let clients: Vec<TcpStream> = (0..30).map(|_| fixture.client()).collect();
    until("a full backlog", || fixture.attempts("again") > 0);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.write_all(b"yes");
        }
    });
    for client in clients {
        assert_eq!(rest(client), b"yes");
    }
    fixture.until_empty();
    fixture.stop();
}

#[test]
fn two_kept_listeners_of_one_listener_get_equal_parts() {
    let directory = tempfile::tempdir().unwrap();
    for workers in [1, 2] {
        let fixture = Fixture::new(workers, settings());
        // Some have waited, and some come one by one.
        let mut clients: Vec<TcpStream> = (0..100).map(|_| fixture.client()).collect();
        fixture.until_pending(100);
        let kept = [(); 2].map(|()| KeptListener::unix(directory.path()).unwrap());
        let generation = fixture.generation_at(1, kept.iter().map(kept_endpoint).collect());
        fixture.activate(&generation);
        for count in 101..=200 {
            clients.push(fixture.client());
            until("it is dispatched", || generation.leases() == count);
        }
        let mut reader = Reader::new();
        let queues = kept
            .each_ref()
            .map(|kept| kept.queue(&mut reader).unwrap().len);
        let difference = queues[0].abs_diff(queues[1]);
        assert!(difference as usize <= workers, "{queues:?}");
        assert_eq!(queues.iter().sum::<u32>(), 200);
        // Their backend has died: what both have queued is taken over for the one public listener.
        fixture.deactivate();
        wait(fixture.gate.backend_gone(fixture.service, &generation));
        for kept in &kept {
            wait(
                fixture
                    .gate
                    .adopt(fixture.service, "l0", kept.adopt("kept").unwrap()),
            );
            assert_eq!(kept.queue(&mut reader).unwrap().len, 0);
        }
        fixture.activate(&fixture.generation(2, echo("two ")));
        for client in clients {
            assert_eq!(ask(client, b"x"), b"two x");
        }
        fixture.until_empty();
        fixture.stop();
    }
}
