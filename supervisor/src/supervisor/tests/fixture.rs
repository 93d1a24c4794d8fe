//! A supervisor on a gate of its own.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use syngate_gate::listener::{Address, Own};
use syngate_gate::{Overflow, ServiceSettings, Settings};
use tempfile::TempDir;
use tokio::task::JoinHandle;

use crate::child::tests::eventually;
use crate::config::{Argv, Backend, ListenerConfig, Pass, ProcessConfig, Strategy};
use crate::protocol::{Done, Line, Request, Status, Step};
use crate::readiness::Ready;
use crate::supervisor::*;

pub(super) const PATIENCE: Duration = Duration::from_secs(20);

/// Answers each connection with the file of its name and ends it. LISTEN is `fd:N`, `unix:PATH` or `IP PORT`.
pub(super) const SERVER: &str = r#"
import os, signal, socket, sys
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
word = sys.argv[2]
if word.startswith("fd:"):
    s = socket.socket(fileno=int(word[3:]))
elif word.startswith("unix:"):
    s = socket.socket(socket.AF_UNIX); s.bind(word[5:]); s.listen(1024)
else:
    s = socket.socket(); s.bind((word, int(sys.argv[3]))); s.listen(1024)
while True:
    c, _ = s.accept()
    try:
        c.sendall(sys.argv[1].encode())
        c.shutdown(socket.SHUT_WR)
        c.recv(1)
    except OSError:
        pass
    c.close()
"#;

pub(super) struct Fixture {
    pub(super) directory: TempDir,
    pub(super) file: Arc<Mutex<Config>>,
    pub(super) handle: Handle,
    pub(super) run: JoinHandle<Result<(), StartError>>,
}

pub(super) fn server(words: &[&str]) -> Argv {
    ["python3", "-c", SERVER]
        .iter()
        .chain(words)
        .map(|word| (*word).to_owned())
        .collect()
}

pub(super) fn service(argv: Argv) -> ServiceConfig {
    ServiceConfig {
        name: "default".to_owned(),
        listeners: vec![ListenerConfig {
            name: "l0".to_owned(),
            address: Address::Tcp("127.0.0.1:0".parse().unwrap()),
            own: Own::default(),
            raw: false,
        }],
        backend: Backend::Command {
            argv,
            fixed: Vec::new(),
        },
        pass: Pass::None,
        strategy: Strategy::Overlap,
        check: None,
        check_timeout: Duration::from_secs(10),
        ready: Ready::Tcp,
        ready_timeout: Duration::from_secs(10),
        ready_settle: Duration::from_millis(10),
        min_ready: Duration::from_millis(50),
        drain_delay: Duration::ZERO,
        drain_signal: None,
        drain_timeout: Some(Duration::from_secs(5)),
        stop_signal: Signal::SIGTERM,
        stop_timeout: Duration::from_secs(5),
        keep_previous: Duration::ZERO,
        max_generations: 8,
        retry: false,
        gate: ServiceSettings {
            pending_timeout: PATIENCE,
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
        },
        backlog: 128,
        keepalive: None,
    }
}

impl Fixture {
    pub(super) async fn start(spawner: &Spawner, services: Vec<ServiceConfig>) -> Fixture {
        let directory = tempfile::tempdir().unwrap();
        let process = ProcessConfig {
            control: directory.path().join("control.sock"),
            runtime_dir: directory.path().to_owned(),
            metrics: None,
            workers: 1,
            max_connections: 1000,
            pending_max: 1000,
            lame_duck: Duration::ZERO,
            shutdown_timeout: Duration::from_secs(8),
        };
        let config = Config { process, services };
        let file = Arc::new(Mutex::new(config.clone()));
        let metrics = Metrics::new("test", 1);
        let settings = Settings {
            workers: 1,
            max_connections: 1000,
            pending_max: 1000,
        };
        let (gate, gate_events) = Gate::start(&settings, &metrics).unwrap();
        let reader = Arc::clone(&file);
        let (supervisor, handle) = Supervisor::new(Parts {
            gate,
            gate_events,
            metrics,
            metrics_address: Some(([127, 0, 0, 1], 9).into()),
            config,
            load: Box::new(move || Ok(reader.lock().unwrap().clone())),
            runtime_dir: RuntimeDir::open(directory.path()).unwrap(),
            spawner: spawner.clone(),
            manager: Manager::from_environment(),
            inherited: HashMap::new(),
            version: "test",
        });
        let run = tokio::spawn(supervisor.run());
        Fixture {
            directory,
            file,
            handle,
            run,
        }
    }

    /// Starts it and waits until it serves.
    pub(super) async fn serving(spawner: &Spawner, services: Vec<ServiceConfig>) -> Fixture {
        let fixture = Fixture::start(spawner, services).await;
        fixture.until(|status| status.ready).await;
        fixture
    }

    pub(super) async fn until(&self, wanted: impl Fn(&Status) -> bool) -> Status {
        let mut events = self.handle.events();
        let reached = async {
            loop {
                let status = self.handle.status().await.unwrap();
                if wanted(&status) {
                    return status;
                }
                // Steps tell of most changes; the rest is seen soon.
                let _ = tokio::time::timeout(Duration::from_millis(20), events.recv()).await;
            }
        };
        match tokio::time::timeout(PATIENCE, reached).await {
            Ok(status) => status,
            Err(_) => panic!("{:#?}", self.handle.status().await),
        }
    }

    pub(super) async fn ask(&self, request: Request) -> (Done, Vec<Step>) {
        let mut lines = self.handle.request(request);
        let mut steps = Vec::new();
        let all = async {
            while let Some(line) = lines.recv().await {
                match line {
                    Line::Step(step) => steps.push(step),
                    Line::Done(done) => return done,
                    Line::Lost { .. } => {}
                }
            }
            panic!("no answer");
        };
        let done = tokio::time::timeout(PATIENCE, all)
            .await
            .expect("an answer in time");
        (done, steps)
    }

    pub(super) async fn reload(&self) -> Done {
        self.ask(Request::Reload {
            service: None,
            drained: false,
        })
        .await
        .0
    }

    pub(super) fn change(&self, change: impl FnOnce(&mut ServiceConfig)) {
        change(&mut self.file.lock().unwrap().services[0]);
    }

    pub(super) async fn address(&self) -> SocketAddr {
        let status = self.handle.status().await.unwrap();
        status.services[0].listeners[0].address.parse().unwrap()
    }

    /// What a client reads.
    pub(super) async fn get(&self) -> String {
        get(self.address().await).await
    }

    pub(super) async fn stop(self) -> TempDir {
        self.handle.shutdown();
        let run = tokio::time::timeout(PATIENCE, self.run).await;
        run.expect("it stops in time").unwrap().unwrap();
        self.directory
    }
}

pub(super) async fn get(address: SocketAddr) -> String {
    tokio::task::spawn_blocking(move || {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        // The server ends its side once it has read something or the end.
        let _ = stream.write_all(b"x");
        text
    })
    .await
    .unwrap()
}

/// Stops a process, and returns when it has stopped: until then it may still accept.
pub(super) async fn freeze(pid: Pid) {
    kill(pid, Signal::SIGSTOP).unwrap();
    let stopped = || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        stat.rsplit(')')
            .next()
            .is_some_and(|rest| rest.trim_start().starts_with('T'))
    };
    eventually("the process stops", stopped).await;
}

pub(super) fn left_in(directory: &Path) -> Vec<String> {
    let names = std::fs::read_dir(directory).unwrap().flatten();
    let names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with("gen-")).collect()
}
