//! The verbs against a real control socket, behind which a script plays the gate.

use std::ffi::OsString;
use std::path::PathBuf;

use nix::sys::signal::{Signal, raise};
use syngate_supervisor::control::{bind, serve};
use syngate_supervisor::handle::{Ask, Asked, pair};
use syngate_supervisor::protocol::{Request, ServiceStatus, Step};
use tokio::sync::mpsc;

use super::hold::{HoldError, run};
use super::*;

struct Gate {
    path: PathBuf,
    _directory: tempfile::TempDir,
}

impl Gate {
    /// Plays a gate with the services `web` and `mail`; `script` gets each verb.
    fn start(mut script: impl FnMut(Request, mpsc::Sender<Line>) + Send + 'static) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("control.sock");
        let socket = bind(&path).unwrap();
        let (
            handle,
            Asked {
                mut asks, ready, ..
            },
        ) = pair();
        tokio::spawn(async move {
            ready
                .send(Err("web has no active generation".into()))
                .unwrap();
            while let Some(ask) = asks.recv().await {
                match ask {
                    Ask::Request { request, lines } => script(request, lines),
                    Ask::Status(answer) => answer.send(a_status()).unwrap(),
                    Ask::Connections { answer, .. } => answer.send(Ok(vec![])).unwrap(),
                    Ask::Shutdown => {}
                }
            }
        });
        tokio::spawn(serve(socket, handle, std::future::pending()));
        Self {
            path,
            _directory: directory,
        }
    }

    fn control(&self) -> Option<&Path> {
        Some(&self.path)
    }

    /// `hold web -- sh -c SCRIPT`
    async fn hold_while(&self, script: &str) -> Result<u8, HoldError> {
        let command = ["sh", "-c", script].map(OsString::from);
        run(self.control(), Some("web"), None, &command).await
    }
}

/// A gate that holds and releases as it is told, and says what it was asked.
fn holding() -> (Gate, mpsc::UnboundedReceiver<Request>) {
    let (asked, requests) = mpsc::unbounded_channel();
    let mut owner = None;
    let gate = Gate::start(move |request, lines| {
        match request {
            Request::Hold { .. } => {
                lines.try_send(step("held")).unwrap();
                owner = Some(lines);
            }
            _ => {
                for lines in owner.take().into_iter().chain([lines]) {
                    lines.try_send(done(0, "released")).unwrap();
                }
            }
        }
        asked.send(request).unwrap();
    });
    (gate, requests)
}

fn a_status() -> Status {
    let service = |name: &str| ServiceStatus {
        name: name.into(),
        listeners: vec![],
        active: None,
        held: false,
        pending: 0,
        running: None,
        generations: vec![],
        last_reload: None,
        reloads: vec![],
        activated: None,
        last_failure: None,
    };
    Status {
        at: 1.0,
        version: "0.0.0".into(),
        pid: 1,
        uptime_seconds: 1.0,
        metrics: None,
        ready: false,
        not_ready: None,
        connections: 0,
        max_connections: 1,
        pending: 0,
        pending_max: 1,
        services: vec![service("web"), service("mail")],
    }
}

fn step(word: &str) -> Line {
    Line::Step(Step {
        at: 0.0,
        elapsed_seconds: 0.0,
        service: "web".into(),
        generation: None,
        step: word.into(),
        message: String::new(),
    })
}

fn done(exit: u8, message: &str) -> Line {
    Line::Done(Done {
        exit,
        message: message.into(),
    })
}

async fn reload_within(gate: &Gate, limit: Duration) -> Result<Done, Failure> {
    let patience = Patience {
        wait: Wait::Drained,
        timeout: limit,
    };
    let query = Query::new(verb(Some("web"), "reload"));
    post_within(gate.control(), query, patience).await
}

const LONG: Duration = Duration::from_secs(60);

#[tokio::test]
async fn a_reload_ends_with_the_gates_last_line() {
    let gate = Gate::start(|request, lines| {
        assert_eq!(
            request,
            Request::Reload {
                service: Some("web".into()),
                drained: true
            }
        );
        lines.try_send(step("check")).unwrap();
        lines
            .try_send(done(1, "the check failed; generation 1 is active"))
            .unwrap();
    });
    let done = reload_within(&gate, LONG).await.unwrap();
    assert_eq!(
        (done.exit, &*done.message),
        (1, "the check failed; generation 1 is active")
    );
}

#[tokio::test]
async fn a_reload_that_takes_too_long_exits_5_and_one_that_is_cut_3() {
    let (keep, mut kept) = mpsc::unbounded_channel();
    let gate = Gate::start(move |_, lines| keep.send(lines).unwrap());
    let failure = reload_within(&gate, Duration::from_millis(50))
        .await
        .unwrap_err();
    assert_eq!(failure.exit(), 5);
    assert!(failure.to_string().contains("the run goes on"), "{failure}");
    kept.recv().await.unwrap().closed().await;

    let gate = Gate::start(|_, lines| lines.try_send(step("check")).unwrap());
    let failure = reload_within(&gate, LONG).await.unwrap_err();
    assert_eq!(failure.exit(), 3);
    assert!(
        failure.to_string().contains("has no last line"),
        "{failure}"
    );
}

#[tokio::test]
async fn nobody_there_exits_3_and_names_the_path() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let failure = fetch_status(Some(&path), None).await.unwrap_err();
    assert_eq!(failure.exit(), 3);
    assert!(
        failure.to_string().contains(path.to_str().unwrap()),
        "{failure}"
    );
}

#[tokio::test]
async fn an_unknown_service_exits_2_and_lists_those_that_there_are() {
    let gate = Gate::start(|_, _| {});
    let there_are = "there is no service \"no/../x?\": there are web, mail";
    let target = verb(Some("no/../x?"), "rollback");
    for failure in [
        post(gate.control(), &target).await.unwrap_err(),
        fetch_status(gate.control(), Some("no/../x?"))
            .await
            .unwrap_err(),
    ] {
        assert_eq!((failure.exit(), &*failure.to_string()), (2, there_are));
    }
    let failure = post(gate.control(), &verb(None, "rollback"))
        .await
        .unwrap_err();
    assert_eq!(failure.to_string(), "name a service: there are web, mail");
}

#[tokio::test]
async fn a_generation_that_isnt_there_exits_1() {
    let gate = Gate::start(|_, _| {});
    let target = "/v1/services/web/connections?generation=9";
    let answer = ask(gate.control(), Method::GET, target).await.unwrap();
    let failure = answer.accepted().await.map(|_| ()).unwrap_err();
    let says = "there is no generation 9: there is none";
    assert_eq!((failure.exit(), &*failure.to_string()), (1, says));
}

#[test]
fn an_event_is_one_line_with_its_time() {
    let step = |message: &str| {
        Line::Step(Step {
            at: 1_767_225_600.25,
            elapsed_seconds: 3.0,
            service: "web".into(),
            generation: Some(4),
            step: "ready".into(),
            message: message.into(),
        })
    };
    let says = "2026-01-01T00:00:00.250Z  web  ready       generation 4 is ready";
    let line = step("generation 4\nis ready");
    assert_eq!(events::text(&line).as_deref(), Some(says));
    let line = step("\x1b[2J").clone();
    assert!(!events::text(&line).unwrap().contains('\x1b'));
    let lost = Line::Lost { lines: 7 };
    assert!(
        events::text(&lost)
            .unwrap()
            .starts_with("7 lines are missing")
    );
}

#[tokio::test]
async fn status_is_of_all_or_of_one() {
    let gate = Gate::start(|_, _| {});
    assert_eq!(
        fetch_status(gate.control(), None).await.unwrap(),
        a_status()
    );
    let one = fetch_status(gate.control(), Some("mail")).await.unwrap();
    assert_eq!(one.services, a_status().services[1..]);
    let reason = is_ready(gate.control()).await.unwrap();
    assert_eq!(reason.as_deref(), Some("web has no active generation"));
}

#[tokio::test]
async fn activate_carries_its_backends() {
    let (asked, mut requests) = mpsc::unbounded_channel();
    let gate = Gate::start(move |request, lines| {
        asked.send(request).unwrap();
        lines.try_send(done(0, "")).unwrap();
    });
    let backends = ["l0=[::1]:80", "unix:/run/a b&c.sock"].map(|text| text.parse().unwrap());
    let patience = Patience {
        wait: Wait::Drained,
        timeout: LONG,
    };
    activate(gate.control(), Some("web"), &backends, patience).await;
    assert_eq!(
        requests.recv().await.unwrap(),
        Request::Activate {
            service: Some("web".into()),
            backends: backends.into(),
            drained: true
        }
    );
}

#[tokio::test]
async fn hold_exits_with_the_commands_status_and_always_releases() {
    for (script, code) in [("exit 0", 0), ("exit 7", 7), ("kill -KILL $$", 128 + 9)] {
        let (gate, mut requests) = holding();
        assert_eq!(gate.hold_while(script).await.unwrap(), code, "{script}");
        let hold = Request::Hold {
            service: Some("web".into()),
            timeout: None,
            owned: true,
        };
        assert_eq!(requests.recv().await.unwrap(), hold);
        let release = Request::Release {
            service: Some("web".into()),
            when_ready: true,
        };
        assert_eq!(requests.recv().await.unwrap(), release);
    }
}

#[tokio::test]
async fn a_command_that_cant_be_run_releases_too() {
    let (gate, mut requests) = holding();
    let command = [OsString::from("/nowhere/command")];
    let code = run(gate.control(), Some("web"), Some(LONG), &command)
        .await
        .unwrap();
    assert_eq!(code, 127);
    let hold = Request::Hold {
        service: Some("web".into()),
        timeout: Some(LONG),
        owned: true,
    };
    assert_eq!(requests.recv().await.unwrap(), hold);
    assert!(matches!(
        requests.recv().await.unwrap(),
        Request::Release { .. }
    ));
}

#[tokio::test]
async fn a_hold_that_is_refused_runs_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let witness = directory.path().join("witness");
    let gate = Gate::start(|_, lines| lines.try_send(done(1, "already held")).unwrap());
    let error = gate
        .hold_while(&format!("touch {}", witness.display()))
        .await
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "not held, and the command wasn't run: already held"
    );
    assert!(!witness.exists());
}

#[tokio::test]
async fn a_hold_that_ends_before_the_command_is_a_failure() {
    let gate = Gate::start(move |request, lines| match request {
        Request::Hold { .. } => {
            lines.try_send(step("held")).unwrap();
            lines
                .try_send(done(5, "released: the hold's time is up"))
                .unwrap();
        }
        _ => lines.try_send(done(0, "it isn't held")).unwrap(),
    });
    assert_eq!(gate.hold_while("exit 0").await.unwrap(), 125);
    assert_eq!(gate.hold_while("exit 7").await.unwrap(), 7);
}

#[tokio::test]
async fn a_term_reaches_the_command_and_the_release_follows() {
    let (gate, mut requests) = holding();
    let code = gate
        .hold_while("kill -TERM $PPID; exec sleep 600")
        .await
        .unwrap();
    assert_eq!(code, 128 + 15);
    requests.recv().await.unwrap();
    assert!(matches!(
        requests.recv().await.unwrap(),
        Request::Release { .. }
    ));
}

#[tokio::test]
async fn an_interrupt_before_the_hold_stands_gives_it_up() {
    let (gone, mut was_gone) = mpsc::unbounded_channel();
    let gate = Gate::start(move |_, lines| {
        raise(Signal::SIGINT).unwrap();
        let gone = gone.clone();
        tokio::spawn(async move {
            lines.closed().await;
            gone.send(()).unwrap();
        });
    });
    assert_eq!(gate.hold_while("exit 0").await.unwrap(), 128 + 2);
    was_gone.recv().await.unwrap();
}
