//! The loop on the real gate with real processes.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use syngate_gate::listener::{Address, Own};
use syngate_gate::{Overflow, ServiceSettings, Settings};
use tempfile::TempDir;
use tokio::task::JoinHandle;

use super::*;
use crate::child::tests::{eventually, spawner};
use crate::config::{Argv, Backend, ListenerConfig, Pass, ProcessConfig, Strategy};
use crate::protocol::{Done, Line, Request, Status, Step};
use crate::readiness::Ready;

const PATIENCE: Duration = Duration::from_secs(20);

/// Answers each connection with the file of its name and ends it. LISTEN is `fd:N`, `unix:PATH` or `IP PORT`.
const SERVER: &str = r#"
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

struct Fixture {
    directory: TempDir,
    file: Arc<Mutex<Config>>,
    handle: Handle,
    run: JoinHandle<Result<(), StartError>>,
}

fn server(words: &[&str]) -> Argv {
    ["python3", "-c", SERVER]
        .iter()
        .chain(words)
        .map(|word| (*word).to_owned())
        .collect()
}

fn service(argv: Argv) -> ServiceConfig {
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
    async fn start(spawner: &Spawner, services: Vec<ServiceConfig>) -> Fixture {
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
    async fn serving(spawner: &Spawner, services: Vec<ServiceConfig>) -> Fixture {
        let fixture = Fixture::start(spawner, services).await;
        fixture.until(|status| status.ready).await;
        fixture
    }

    async fn until(&self, wanted: impl Fn(&Status) -> bool) -> Status {
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

    async fn ask(&self, request: Request) -> (Done, Vec<Step>) {
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

    async fn reload(&self) -> Done {
        self.ask(Request::Reload {
            service: None,
            drained: false,
        })
        .await
        .0
    }

    fn change(&self, change: impl FnOnce(&mut ServiceConfig)) {
        change(&mut self.file.lock().unwrap().services[0]);
    }

    async fn address(&self) -> SocketAddr {
        let status = self.handle.status().await.unwrap();
        status.services[0].listeners[0].address.parse().unwrap()
    }

    /// What a client reads.
    async fn get(&self) -> String {
        get(self.address().await).await
    }

    async fn stop(self) -> TempDir {
        self.handle.shutdown();
        let run = tokio::time::timeout(PATIENCE, self.run).await;
        run.expect("it stops in time").unwrap().unwrap();
        self.directory
    }
}

async fn get(address: SocketAddr) -> String {
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
async fn freeze(pid: Pid) {
    kill(pid, Signal::SIGSTOP).unwrap();
    let stopped = || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        stat.rsplit(')')
            .next()
            .is_some_and(|rest| rest.trim_start().starts_with('T'))
    };
    eventually("the process stops", stopped).await;
}

fn left_in(directory: &Path) -> Vec<String> {
    let names = std::fs::read_dir(directory).unwrap().flatten();
    let names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with("gen-")).collect()
}

#[tokio::test]
async fn every_way_to_listen_is_served_reloaded_and_stopped() {
    let (spawner, _right) = spawner().await;
    let ways: [(&[&str], Pass); 5] = [
        (&["{addr}", "{port}"], Pass::None),
        (&["unix:{socket}"], Pass::None),
        (&["fd:{fd}"], Pass::Fd),
        (&["fd:{fd}", "{port}"], Pass::Fd),
        (&["fd:3"], Pass::ListenFds),
    ];
    for (words, pass) in ways {
        let named = |name| server(&[&[name], words].concat());
        let fixture = Fixture::serving(
            &spawner,
            vec![ServiceConfig {
                pass,
                ..service(named("one"))
            }],
        )
        .await;
        assert_eq!(fixture.get().await, "one", "{words:?}");
        fixture.change(|service| {
            service.backend = Backend::Command {
                argv: named("two"),
                fixed: Vec::new(),
            };
        });
        let done = fixture
            .ask(Request::Reload {
                service: None,
                drained: true,
            })
            .await
            .0;
        assert_eq!(done.exit, 0, "{words:?}: {}", done.message);
        assert_eq!(fixture.get().await, "two", "{words:?}");
        let status = fixture.handle.status().await.unwrap();
        assert_eq!(
            status.services[0].generations.len(),
            1,
            "{words:?}: {status:#?}"
        );
        let directory = fixture.stop().await;
        assert_eq!(left_in(directory.path()), Vec::<String>::new(), "{words:?}");
    }
}

#[tokio::test]
async fn a_command_that_names_no_place_may_take_it_from_the_environment() {
    let (spawner, _right) = spawner().await;
    for listen in ["$SYNGATE_ADDR $SYNGATE_PORT", "unix:$SYNGATE_SOCKET"] {
        let directory = tempfile::tempdir().unwrap();
        let script = directory.path().join("start");
        let python = directory.path().join("server.py");
        std::fs::write(&python, SERVER).unwrap();
        let text = format!("exec python3 {} hello {listen}\n", python.display());
        std::fs::write(&script, text).unwrap();
        let argv = vec!["sh".to_owned(), script.to_str().unwrap().to_owned()];
        let fixture = Fixture::serving(&spawner, vec![service(argv)]).await;
        assert_eq!(fixture.get().await, "hello", "{listen}");
        fixture.stop().await;
    }
}

#[tokio::test]
async fn failures_leave_the_old_generation_serving() {
    let (spawner, _right) = spawner().await;
    let fixture =
        Fixture::serving(&spawner, vec![service(server(&["one", "unix:{socket}"]))]).await;
    let good = fixture.file.lock().unwrap().services[0].clone();
    type Change = fn(&mut ServiceConfig);
    let cases: [(Change, &str); 4] = [
        (
            |service| {
                service.check = Some(vec![
                    "sh".into(),
                    "-c".into(),
                    "echo no good; exit 3".into(),
                ]);
            },
            "reload failed: the check `sh -c 'echo no good; exit 3'` exited with status 3: no good; generation 1 serves",
        ),
        (
            |service| {
                let argv = vec![
                    "sh".into(),
                    "-c".into(),
                    "echo {socket}; echo no luck; exit 7".into(),
                ];
                service.backend = Backend::Command {
                    argv,
                    fixed: Vec::new(),
                };
            },
            "exited with status 7 before it was ready: no luck; generation 1 serves",
        ),
        (
            |service| {
                let argv = vec!["sleep".into(), "100".into()];
                service.backend = Backend::Command {
                    argv,
                    fixed: Vec::new(),
                };
                service.ready_timeout = Duration::from_millis(100);
            },
            "generation 1 serves",
        ),
        (
            |service| {
                let argv = vec!["no-such-command".into(), "{socket}".into()];
                service.backend = Backend::Command {
                    argv,
                    fixed: Vec::new(),
                };
            },
            "can't be started: command `no-such-command` wasn't found",
        ),
    ];
    for (change, message) in cases {
        fixture.change(change);
        let done = fixture.reload().await;
        assert_eq!(done.exit, 1, "{}", done.message);
        assert!(done.message.contains(message), "{}", done.message);
        assert_eq!(fixture.get().await, "one");
        fixture.change(|service| *service = good.clone());
    }
    assert_eq!(fixture.reload().await.exit, 0);
    let directory = fixture.stop().await;
    assert_eq!(left_in(directory.path()), Vec::<String>::new());
}

#[tokio::test]
async fn a_killed_generation_is_started_again_and_its_queue_survives() {
    let (spawner, _right) = spawner().await;
    let fixture = Fixture::serving(
        &spawner,
        vec![ServiceConfig {
            pass: Pass::Fd,
            ..service(server(&["one", "fd:{fd}"]))
        }],
    )
    .await;
    let pid = |status: &Status| status.services[0].generations[0].pid.unwrap().cast_signed();
    let first = pid(&fixture.handle.status().await.unwrap());
    // Stopped, so that connections are queued in its kept listener.
    freeze(Pid::from_raw(first)).await;
    let address = fixture.address().await;
    let clients: Vec<_> = (0..5).map(|_| tokio::spawn(get(address))).collect();
    fixture
        .until(|status| status.services[0].generations[0].connections == 5)
        .await;
    kill(Pid::from_raw(first), Signal::SIGKILL).unwrap();
    for client in clients {
        assert_eq!(client.await.unwrap(), "one");
    }
    let status = fixture
        .until(|status| status.services[0].active == Some(2))
        .await;
    assert_ne!(pid(&status), first);
    fixture.stop().await;
}

#[tokio::test]
async fn what_is_left_in_a_kept_listener_goes_to_the_next_generation() {
    let (spawner, _right) = spawner().await;
    let fixture = Fixture::serving(
        &spawner,
        vec![ServiceConfig {
            pass: Pass::Fd,
            ..service(server(&["one", "fd:{fd}"]))
        }],
    )
    .await;
    let status = fixture.handle.status().await.unwrap();
    let first = Pid::from_raw(status.services[0].generations[0].pid.unwrap().cast_signed());
    freeze(first).await;
    let address = fixture.address().await;
    let client = tokio::spawn(get(address));
    fixture
        .until(|status| status.services[0].generations[0].connections == 1)
        .await;
    let argv = server(&["two", "fd:{fd}"]);
    fixture.change(|service| {
        service.backend = Backend::Command {
            argv,
            fixed: Vec::new(),
        }
    });
    assert_eq!(fixture.reload().await.exit, 0);
    kill(first, Signal::SIGKILL).unwrap();
    assert_eq!(client.await.unwrap(), "two");
    fixture.stop().await;
}

#[tokio::test]
async fn replace_holds_connections_while_nothing_runs() {
    let (spawner, _right) = spawner().await;
    let fixture = Fixture::serving(
        &spawner,
        vec![ServiceConfig {
            strategy: Strategy::Replace,
            ..service(server(&["one", "{addr}", "{port}"]))
        }],
    )
    .await;
    let address = fixture.address().await;
    let clients = tokio::spawn(async move {
        for _ in 0..50 {
            assert_eq!(get(address).await, "one");
        }
    });
    for _ in 0..3 {
        let done = fixture.reload().await;
        assert_eq!(done.exit, 0, "{}", done.message);
    }
    clients.await.unwrap();
    fixture.stop().await;
}

#[tokio::test]
async fn services_come_and_go_with_a_reload_of_all() {
    let (spawner, _right) = spawner().await;
    let one = service(server(&["one", "unix:{socket}"]));
    let two = ServiceConfig {
        name: "two".to_owned(),
        ..service(server(&["two", "unix:{socket}"]))
    };
    let fixture = Fixture::serving(&spawner, vec![one.clone()]).await;
    fixture.file.lock().unwrap().services.push(two);
    let (done, _) = fixture
        .ask(Request::Reload {
            service: None,
            drained: false,
        })
        .await;
    assert_eq!(done.exit, 0, "{}", done.message);
    let status = fixture.handle.status().await.unwrap();
    let address = status.services[1].listeners[0].address.parse().unwrap();
    assert_eq!(get(address).await, "two");
    fixture.file.lock().unwrap().services.pop();
    assert_eq!(fixture.reload().await.exit, 0);
    fixture.until(|status| status.services.len() == 1).await;
    assert!(TcpStream::connect(address).is_err());
    fixture.file.lock().unwrap().process.workers = 2;
    let done = fixture.reload().await;
    assert!(
        done.exit == 1 && done.message.contains("`workers` has changed"),
        "{}",
        done.message
    );
    fixture.stop().await;
}

#[tokio::test]
async fn a_new_port_that_is_taken_ends_the_reload() {
    let (spawner, _right) = spawner().await;
    let fixture =
        Fixture::serving(&spawner, vec![service(server(&["one", "unix:{socket}"]))]).await;
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = Address::Tcp(taken.local_addr().unwrap());
    let listener = ListenerConfig {
        name: "l1".to_owned(),
        address,
        own: Own::default(),
        raw: false,
    };
    fixture.change(|service| service.listeners.push(listener));
    let done = fixture.reload().await;
    assert_eq!(done.exit, 1);
    assert!(done.message.contains("is in use"), "{}", done.message);
    assert_eq!(fixture.get().await, "one");
    // A reload by name leaves the listeners alone.
    let named = Request::Reload {
        service: Some("default".to_owned()),
        drained: false,
    };
    assert_eq!(fixture.ask(named).await.0.exit, 0);
    fixture.stop().await;
}

#[tokio::test]
async fn hold_release_and_rollback() {
    let (spawner, _right) = spawner().await;
    let keep_previous = Duration::from_secs(60);
    let fixture = Fixture::serving(
        &spawner,
        vec![ServiceConfig {
            keep_previous,
            ..service(server(&["one", "unix:{socket}"]))
        }],
    )
    .await;
    let hold = Request::Hold {
        service: None,
        timeout: None,
        owned: false,
    };
    assert_eq!(fixture.ask(hold).await.0.exit, 0);
    let address = fixture.address().await;
    let client = tokio::spawn(get(address));
    fixture
        .until(|status| status.services[0].pending == 1)
        .await;
    let release = Request::Release {
        service: None,
        when_ready: true,
    };
    assert_eq!(fixture.ask(release).await.0.exit, 0);
    assert_eq!(client.await.unwrap(), "one");

    let argv = server(&["two", "unix:{socket}"]);
    fixture.change(|service| {
        service.backend = Backend::Command {
            argv,
            fixed: Vec::new(),
        }
    });
    assert_eq!(fixture.reload().await.exit, 0);
    assert_eq!(fixture.get().await, "two");
    let done = fixture.ask(Request::Rollback { service: None }).await.0;
    assert_eq!(done.exit, 0, "{}", done.message);
    assert_eq!(fixture.get().await, "one");

    // An owned hold ends with its owner.
    let mut lines = fixture.handle.request(Request::Hold {
        service: None,
        timeout: None,
        owned: true,
    });
    while !matches!(lines.recv().await, Some(Line::Step(step)) if step.step == "held") {}
    drop(lines);
    fixture.until(|status| !status.services[0].held).await;
    fixture.stop().await;
}

#[tokio::test]
async fn activate_leads_to_a_server_that_somebody_else_runs() {
    let (spawner, _right) = spawner().await;
    let fixture =
        Fixture::serving(&spawner, vec![service(server(&["one", "unix:{socket}"]))]).await;
    let outside = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = outside.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in outside.incoming() {
            let _ = stream.unwrap().write_all(b"outside");
        }
    });
    let backends = vec![format!("127.0.0.1:{port}").parse().unwrap()];
    let activate = Request::Activate {
        service: None,
        backends,
        drained: true,
    };
    let done = fixture.ask(activate).await.0;
    assert_eq!(done.exit, 0, "{}", done.message);
    assert_eq!(fixture.get().await, "outside");
    // A reload keeps it, until the file's backend changes.
    assert_eq!(fixture.reload().await.exit, 0);
    assert_eq!(fixture.get().await, "outside");
    let argv = server(&["two", "unix:{socket}"]);
    fixture.change(|service| {
        service.backend = Backend::Command {
            argv,
            fixed: Vec::new(),
        }
    });
    assert_eq!(fixture.reload().await.exit, 0);
    assert_eq!(fixture.get().await, "two");
    fixture.stop().await;
}

#[tokio::test]
async fn a_first_start_that_cannot_be_is_none() {
    let (spawner, _right) = spawner().await;
    let mut bad = service(server(&["one", "unix:{socket}"]));
    bad.check = Some(vec!["false".to_owned()]);
    let error = Fixture::start(&spawner, vec![bad])
        .await
        .run
        .await
        .unwrap()
        .unwrap_err();
    assert_eq!(
        (error.exit_code(), error.to_string()),
        (
            78,
            "service default: the check `false` exited with status 1".into()
        )
    );

    let missing = service(vec!["no-such-command".to_owned(), "{socket}".to_owned()]);
    let fixture = Fixture::start(&spawner, vec![missing]).await;
    let error = fixture.run.await.unwrap().unwrap_err();
    assert_eq!(error.exit_code(), 71, "{error}");

    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut bad = service(server(&["one", "unix:{socket}"]));
    bad.listeners[0].address = Address::Tcp(taken.local_addr().unwrap());
    let error = Fixture::start(&spawner, vec![bad])
        .await
        .run
        .await
        .unwrap()
        .unwrap_err();
    assert_eq!(error.exit_code(), 71, "{error}");
}

#[tokio::test]
async fn a_second_shutdown_does_not_wait_for_connections() {
    let (spawner, _right) = spawner().await;
    let fixture =
        Fixture::serving(&spawner, vec![service(server(&["one", "unix:{socket}"]))]).await;
    let mut client = TcpStream::connect(fixture.address().await).unwrap();
    fixture.until(|status| status.connections == 1).await;
    let began = Instant::now();
    fixture.handle.shutdown();
    fixture.handle.shutdown();
    fixture.run.await.unwrap().unwrap();
    assert!(
        began.elapsed() < Duration::from_secs(4),
        "{:?}",
        began.elapsed()
    );
    let mut text = Vec::new();
    let _ = client.read_to_end(&mut text);
}

/// The largest segment that a client of this address sends, in bytes. On loopback it is half the window, where nothing else
/// makes it smaller.
fn segment(address: SocketAddr) -> u32 {
    let client = TcpStream::connect(address).unwrap();
    socket2::SockRef::from(&client).tcp_mss().unwrap()
}

#[tokio::test]
async fn an_open_listener_takes_over_what_a_reload_asks_of_it() {
    let (spawner, _right) = spawner().await;
    let fixture =
        Fixture::serving(&spawner, vec![service(server(&["one", "unix:{socket}"]))]).await;
    let address = fixture.address().await;
    assert!(segment(address) > 1000);
    fixture.change(|service| {
        service.listeners[0].own.mss = Some(1000);
        service.listeners[0].raw = true;
        service.backlog = 5;
    });
    assert_eq!(fixture.reload().await.exit, 0);
    // With port 0 another socket would have another port.
    assert_eq!(fixture.address().await, address);
    assert!(segment(address) <= 1000);

    // What the kernel refuses, and what fails, leaves it as it was.
    fixture.change(|service| service.listeners[0].own.mss = Some(20));
    assert_eq!(fixture.reload().await.exit, 0);
    assert!(segment(address) <= 1000);
    fixture.change(|service| {
        service.listeners[0].own.mss = None;
        service.backend = Backend::Command {
            argv: vec!["false".to_owned()],
            fixed: Vec::new(),
        };
    });
    assert_eq!(fixture.reload().await.exit, 1);
    assert!(segment(address) <= 1000);

    fixture.change(|service| {
        service.backend = self::service(server(&["two", "unix:{socket}"])).backend;
    });
    assert_eq!(fixture.reload().await.exit, 0);
    assert!(segment(address) > 1000);
    assert_eq!(fixture.get().await, "two");
    fixture.stop().await;
}

#[tokio::test]
async fn what_no_open_listener_can_change_ends_the_reload() {
    let (spawner, _right) = spawner().await;
    // Keeps the port for the gate: it doesn't listen.
    let reserved = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None);
    let reserved = reserved.unwrap();
    reserved.set_reuse_address(true).unwrap();
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    reserved.bind(&any.into()).unwrap();
    let address = reserved.local_addr().unwrap().as_socket().unwrap();
    let mut config = service(server(&["one", "unix:{socket}"]));
    config.listeners[0].address = Address::Tcp(address);
    let fixture = Fixture::serving(&spawner, vec![config]).await;

    let interface = |interface: Option<&str>| {
        fixture.change(|service| {
            service.listeners[0].own.interface = interface.map(str::to_owned);
        });
    };
    interface(Some("lo"));
    let done = fixture.reload().await;
    assert_eq!(done.exit, 1);
    let reason = format!(
        "{address} is open as listener l0, and v6only and interface of an open socket can't be changed"
    );
    assert!(done.message.contains(&reason), "{}", done.message);
    assert_eq!(fixture.get().await, "one");

    interface(None);
    fixture.change(|service| service.listeners[0].name = "web".to_owned());
    let done = fixture.reload().await;
    let reason = "is open as listener l0, and the name of an open socket can't be changed";
    assert!(done.message.contains(reason), "{}", done.message);
    assert_eq!(fixture.get().await, "one");
    fixture.stop().await;
}
