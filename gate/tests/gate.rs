//! The gate with real sockets: what its handle promises.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use syngate_gate::accept_queue::Probe;
use syngate_gate::listener::{self, Address, LocalAddress, Options};
use syngate_gate::{
    Endpoint, Event, Gate, Generation, Overflow, ServiceId, ServiceSettings, Settings, Target,
};
use syngate_metrics::{CloseReason, Metrics, PendingOutcome};
use tokio::sync::mpsc::UnboundedReceiver;

const LOOPBACK: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// Runs a future of the gate's, which needs no runtime.
fn wait<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    runtime.block_on(future)
}

fn settings() -> ServiceSettings {
    ServiceSettings {
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
    }
}

struct Fixture {
    gate: Gate,
    events: UnboundedReceiver<Event>,
    metrics: Arc<Metrics>,
    service: ServiceId,
    address: SocketAddr,
    workers: usize,
}

impl Fixture {
    fn new(workers: usize, settings: ServiceSettings) -> Fixture {
        let metrics = Metrics::new("test", workers);
        let process = Settings {
            workers,
            max_connections: 1000,
            pending_max: 1000,
        };
        let (gate, events) = Gate::start(&process, &metrics).unwrap();
        let service = wait(gate.add_service("default", settings));
        let options = Options {
            backlog: 1024,
            keepalive: None,
            v6only: false,
        };
        let listener = listener::bind("l0", &Address::Tcp(LOOPBACK), &options).unwrap();
        let LocalAddress::Tcp(address) = *listener.address() else {
            unreachable!()
        };
        wait(gate.open(service, listener));
        Fixture {
            gate,
            events,
            metrics,
            service,
            address,
            workers,
        }
    }

    fn generation(&self, number: u64, backend: SocketAddr) -> Arc<Generation> {
        let queue = Probe::Tcp(backend);
        let endpoint = Endpoint {
            target: Target::Tcp(backend),
            queue,
        };
        Generation::new(number, self.workers, vec![(None, vec![endpoint])])
    }

    fn activate(&self, generation: &Arc<Generation>) {
        wait(
            self.gate
                .activate(self.service, Some(Arc::clone(generation))),
        );
    }

    fn client(&self) -> TcpStream {
        TcpStream::connect(self.address).unwrap()
    }
}

/// Answers each connection with its name and what it was sent, after the client's end.
fn echo(name: &'static str) -> SocketAddr {
    let listener = TcpListener::bind(LOOPBACK).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            std::thread::spawn(move || {
                let mut all = Vec::new();
                if stream.read_to_end(&mut all).is_ok() {
                    let _ = stream.write_all(name.as_bytes());
                    let _ = stream.write_all(&all);
                }
            });
        }
    });
    address
}

fn ask(mut client: TcpStream, what: &[u8]) -> Vec<u8> {
    client.write_all(what).unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).unwrap();
    answer
}

#[test]
fn a_pending_connection_is_dispatched_when_a_generation_becomes_active() {
    let fixture = Fixture::new(2, settings());
    let early = fixture.client();
    let first = fixture.generation(1, echo("one "));
    fixture.activate(&first);
    assert_eq!(ask(early, b"early"), b"one early");
    assert_eq!(ask(fixture.client(), b"late"), b"one late");
    let service = fixture.metrics.service("default");
    assert_eq!(service.accepted(), 2);
    wait(fixture.gate.stop());
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
    while first.leases() != 1 {
        std::thread::yield_now();
    }
    fixture.activate(&second);
    assert_eq!(ask(fixture.client(), b"new"), b"two new");
    assert_eq!(first.leases(), 1);
    assert_eq!(ask(old, b"b"), b"one ab");
    let released = Event::Released {
        service: fixture.service,
        generation: 1,
    };
    while first.leases() > 0 || fixture.events.blocking_recv() != Some(released.clone()) {}
    wait(fixture.gate.stop());
}

#[test]
fn bulk_passes_unharmed_in_both_directions() {
    let fixture = Fixture::new(1, settings());
    fixture.activate(&fixture.generation(1, echo("")));
    let bulk: Vec<u8> = (0..40_000_000u32).map(|n| (n ^ (n >> 11)) as u8).collect();
    assert!(ask(fixture.client(), &bulk) == bulk);
    wait(fixture.gate.stop());
}

#[test]
fn what_is_held_waits_and_what_is_refused_is_dispatched_later() {
    let fixture = Fixture::new(2, settings());
    let closed = TcpListener::bind(LOOPBACK).unwrap().local_addr().unwrap();
    fixture.activate(&fixture.generation(1, closed));
    let waiting = fixture.client();
    wait(fixture.gate.hold(fixture.service, true));
    fixture.activate(&fixture.generation(2, echo("two ")));
    let held = fixture.client();
    assert_eq!(wait(fixture.gate.connections(fixture.service)).len(), 2);
    wait(fixture.gate.hold(fixture.service, false));
    assert_eq!(ask(waiting, b"waited"), b"two waited");
    assert_eq!(ask(held, b"held"), b"two held");
    wait(fixture.gate.stop());
}
