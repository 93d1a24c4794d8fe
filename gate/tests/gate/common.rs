//! What the tests share: a gate with one service and one listener, and backends for it.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, unshare};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use syngate_gate::accept_queue::Probe;
use syngate_gate::listener::{self, Address, KeptListener, Listener, LocalAddress, Options, Own};
use syngate_gate::{
    Endpoint, Event, Gate, Generation, ListenerId, Overflow, ServiceId, ServiceSettings, Settings,
    Target,
};
use syngate_metrics::{CloseReason, ConnectionState, Label, Metrics, Service};
use tokio::sync::mpsc::UnboundedReceiver;

pub(crate) const LOOPBACK: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// A test that waits longer than this has failed.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs a future of the gate's, which needs no runtime.
pub(crate) fn wait<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    runtime.block_on(future)
}

/// Waits for something that comes true by itself.
pub(crate) fn until(what: &str, mut is_true: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_true() {
        assert!(start.elapsed() < PATIENCE, "never came true: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub(crate) fn settings() -> ServiceSettings {
    ServiceSettings {
        pending_timeout: Duration::from_secs(60),
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

pub(crate) fn options() -> Options {
    Options {
        backlog: 4096,
        keepalive: None,
        v6only: false,
        own: Own::default(),
    }
}

pub(crate) fn bind(address: &Address) -> Listener {
    listener::bind("l0", address, &options()).unwrap()
}

/// A gate with a service that has one listener, and nothing active.
pub(crate) struct Fixture {
    pub(crate) gate: Gate,
    pub(crate) events: UnboundedReceiver<Event>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) service: ServiceId,
    pub(crate) listener: ListenerId,
    pub(crate) address: SocketAddr,
    pub(crate) workers: usize,
    pub(crate) settings: ServiceSettings,
}

impl Fixture {
    pub(crate) fn new(workers: usize, settings: ServiceSettings) -> Fixture {
        Fixture::limited(workers, settings, 10_000, 10_000)
    }

    pub(crate) fn limited(
        workers: usize,
        settings: ServiceSettings,
        max_connections: u64,
        pending_max: u64,
    ) -> Fixture {
        let listener = bind(&Address::Tcp(LOOPBACK));
        Fixture::with(workers, settings, max_connections, pending_max, listener)
    }

    pub(crate) fn with(
        workers: usize,
        settings: ServiceSettings,
        max_connections: u64,
        pending_max: u64,
        listener: Listener,
    ) -> Fixture {
        let metrics = Metrics::new("test", workers);
        let process = Settings {
            workers,
            max_connections,
            pending_max,
        };
        let (gate, events) = Gate::start(&process, &metrics).unwrap();
        let service = wait(gate.add_service("default", settings.clone()));
        let address = match listener.address() {
            LocalAddress::Tcp(address) => *address,
            LocalAddress::Unix(_) => LOOPBACK,
        };
        let listener = wait(gate.open(service, listener, false)).unwrap();
        Fixture {
            gate,
            events,
            metrics,
            service,
            listener,
            address,
            workers,
            settings,
        }
    }

    pub(crate) fn generation(&self, number: u64, backend: SocketAddr) -> Arc<Generation> {
        self.generation_at(number, vec![tcp_endpoint(backend)])
    }

    pub(crate) fn generation_at(&self, number: u64, endpoints: Vec<Endpoint>) -> Arc<Generation> {
        Generation::new(number, self.workers, vec![(None, endpoints)], Vec::new())
    }

    /// One whose clients send the PROXY header themselves.
    pub(crate) fn raw_generation(&self, number: u64, backend: SocketAddr) -> Arc<Generation> {
        let endpoints = vec![(None, vec![tcp_endpoint(backend)])];
        Generation::new(number, self.workers, endpoints, vec!["l0".to_owned()])
    }

    pub(crate) fn activate(&self, generation: &Arc<Generation>) {
        self.activate_with(generation, self.settings.clone());
    }

    pub(crate) fn activate_with(&self, generation: &Arc<Generation>, settings: ServiceSettings) {
        let generation = Some(Arc::clone(generation));
        wait(self.gate.activate(self.service, generation, settings, &[]));
    }

    /// Nothing is active any more.
    pub(crate) fn deactivate(&self) {
        wait(
            self.gate
                .activate(self.service, None, self.settings.clone(), &[]),
        );
    }

    pub(crate) fn client(&self) -> TcpStream {
        TcpStream::connect(self.address).unwrap()
    }

    pub(crate) fn numbers(&self) -> Arc<Service> {
        self.metrics.service("default")
    }

    /// Connects to endpoints that ended so.
    pub(crate) fn attempts(&self, result: &str) -> u64 {
        let name =
            format!("syngate_dispatch_attempts_total{{service=\"default\",result=\"{result}\"}} ");
        let text = self.metrics.encode();
        let value = text.lines().find_map(|line| line.strip_prefix(&name));
        value.unwrap().parse().unwrap()
    }

    /// Accepts that failed so.
    pub(crate) fn accept_errors(&self, errno: &str) -> u64 {
        let errno = format!("errno=\"{errno}\"");
        let text = self.metrics.encode();
        let counts = text.lines().filter(|line| {
            line.starts_with("syngate_accept_errors_total") && line.contains(&errno)
        });
        counts
            .map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap())
            .sum()
    }

    pub(crate) fn until_pending(&self, count: u64) {
        until("so many pending", || {
            self.gate.pending_connections() == count
        });
    }

    pub(crate) fn until_open(&self, count: u64) {
        until("so many open", || self.gate.open_connections() == count);
    }

    /// Waits until every connection has ended.
    pub(crate) fn until_empty(&self) {
        self.until_open(0);
        self.until_pending(0);
    }

    /// Stops the gate; its books must balance. Returns them.
    pub(crate) fn stop(self) -> Arc<Service> {
        let numbers = self.numbers();
        wait(self.gate.stop());
        let closed: u64 = CloseReason::ALL
            .iter()
            .map(|reason| numbers.closed(*reason))
            .sum();
        assert_eq!(numbers.accepted(), closed);
        for state in ConnectionState::ALL {
            assert_eq!(numbers.open(*state), 0, "{state}");
        }
        numbers
    }
}

pub(crate) fn tcp_endpoint(backend: SocketAddr) -> Endpoint {
    Endpoint {
        target: Target::Tcp(backend),
        queue: Probe::Tcp(backend),
    }
}

pub(crate) fn unix_endpoint(path: PathBuf) -> Endpoint {
    Endpoint {
        target: Target::Unix(path),
        queue: Probe::Unknown,
    }
}

pub(crate) fn kept_endpoint(kept: &KeptListener) -> Endpoint {
    Endpoint {
        target: kept.address().clone(),
        queue: kept.probe().clone(),
    }
}

/// Answers each connection with its name and what it was sent, after the client's end.
pub(crate) fn echo(name: &'static str) -> SocketAddr {
    let listener = TcpListener::bind(LOOPBACK).unwrap();
    let address = listener.local_addr().unwrap();
    serve(listener, name);
    address
}

pub(crate) fn serve(listener: TcpListener, name: &'static str) {
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
}

/// A port on which nobody listens, for as long as the test keeps it.
pub(crate) fn deaf() -> (socket2::Socket, SocketAddr) {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&LOOPBACK.into()).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    (socket, address)
}

pub(crate) fn ask(mut client: TcpStream, what: &[u8]) -> Vec<u8> {
    client.write_all(what).unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    rest(client)
}

pub(crate) fn rest(mut stream: impl Read) -> Vec<u8> {
    let mut all = Vec::new();
    stream.read_to_end(&mut all).unwrap();
    all
}

/// Closes with a reset.
pub(crate) fn reset(client: &TcpStream) {
    let socket = socket2::SockRef::from(client);
    socket.set_linger(Some(Duration::ZERO)).unwrap();
}

/// Whether the stream ends by a reset.
pub(crate) fn is_reset(mut client: TcpStream) -> bool {
    let end = client.read(&mut [0; 1]);
    end.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionReset)
}

/// A network of its own for this thread and those that it makes; with as many descriptors as may be had.
pub(crate) fn own_network() {
    unshare(CloneFlags::CLONE_NEWNET).expect("the tests need CAP_SYS_ADMIN");
    let status = std::process::Command::new("ip")
        .args(["link", "set", "lo", "up"])
        .status()
        .unwrap();
    assert!(status.success());
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
}

/// Runs the test of this name in a process of its own, since it changes what is the process's. False in that process.
pub(crate) fn in_a_child(test: &str) -> bool {
    const CHILD: &str = "SYNGATE_TEST_CHILD";
    if std::env::var_os(CHILD).is_some() {
        return false;
    }
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(CHILD, "1")
        .status();
    assert!(child.unwrap().success());
    true
}

/// Lowers the limit to the descriptors that are open.
pub(crate) fn no_more_descriptors() {
    // The one that reads the directory is closed again.
    let used = std::fs::read_dir("/proc/self/fd").unwrap().count() as u64 - 1;
    setrlimit(Resource::RLIMIT_NOFILE, used, DESCRIPTORS).unwrap();
}

/// Lifts it again.
pub(crate) fn descriptors_again() {
    setrlimit(Resource::RLIMIT_NOFILE, DESCRIPTORS, DESCRIPTORS).unwrap();
}

const DESCRIPTORS: u64 = 4096;

/// A count of this thread's network (`/proc/net/netstat`).
pub(crate) fn kernel_count(name: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/net/netstat").unwrap();
    let lines: Vec<&str> = text.lines().collect();
    for pair in lines.chunks(2) {
        let mut names = pair[0].split(' ').zip(pair[1].split(' '));
        if let Some((_, value)) = names.find(|(known, _)| *known == name) {
            return value.parse().unwrap();
        }
    }
    panic!("the kernel doesn't count {name}");
}
