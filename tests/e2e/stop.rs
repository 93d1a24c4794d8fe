//! The gate's own end: bounded, clean, and nothing of it stays.

use std::fs;
use std::net::TcpListener;
use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use socket2::Socket;

use crate::common::backend::{self, Hop};
use crate::common::gate::{Gate, Setup};
use crate::common::http;
use crate::common::net::Net;
use crate::common::wait_until;
use crate::common::wire::{connect, read_all, send, timed};

#[test]
fn sigterm_lets_connections_end_and_leaves_nothing() {
    let net = Net::new();
    let mut gate = Setup::new(&net)
        .backend(backend::own(Hop::Socket, &[]))
        .start();
    let under_way = connect(gate.public());
    send(
        &under_way,
        b"GET /sleep/1000 HTTP/1.1\r\nConnection: close\r\n\r\n",
    );
    wait_relayed(&gate);
    gate.signal(Signal::SIGTERM);
    let (answer, _) = read_all(&under_way);
    assert!(
        answer.ends_with(b"/sleep/1000"),
        "{}",
        answer.escape_ascii()
    );
    drop(under_way);
    // Not at the end of shutdown_timeout: there is nothing left to wait for.
    expect_clean_exit(&mut gate, Duration::from_secs(4));
}

/// A stop that resets nothing says nothing of resets, however it goes.
#[test]
fn a_stop_without_connections_speaks_of_no_reset() {
    for signals in 1..=2 {
        let net = Net::new();
        let mut gate = Setup::new(&net)
            .backend(backend::own(Hop::Socket, &[]))
            .start();
        for _ in 0..signals {
            gate.signal(Signal::SIGTERM);
        }
        assert_eq!(gate.wait_exit(Duration::from_secs(10)).code(), Some(0));
        let log = gate.log();
        for word in ["reset", "accept queue"] {
            assert!(!log.contains(word), "{log}");
        }
    }
}

#[test]
fn sigterm_is_bounded_by_shutdown_timeout() {
    let net = Net::new();
    let mut gate = Setup::new(&net)
        .options(["--shutdown-timeout", "4s"])
        .backend(backend::own(Hop::Socket, &[]))
        .start();
    let _idle = stays(&gate);
    gate.signal(Signal::SIGTERM);
    let (status, took) = timed(|| gate.wait_exit(Duration::from_secs(10)));
    assert_eq!(status.code(), Some(0), "{}", gate.log());
    assert!(took < Duration::from_secs(5), "{took:?}");
    expect_nothing_left(&gate);
}

#[test]
fn a_second_sigterm_ends_it_at_once() {
    let net = Net::new();
    let mut gate = Setup::new(&net)
        .options(["--shutdown-timeout", "60s"])
        .backend(backend::own(Hop::Socket, &[]))
        .start();
    let _idle = stays(&gate);
    gate.signal(Signal::SIGTERM);
    wait_leaves(&gate);
    gate.signal(Signal::SIGTERM);
    expect_clean_exit(&mut gate, Duration::from_secs(5));
}

#[test]
fn sigterm_while_a_generation_starts_ends_that_too() {
    let net = Net::new();
    let mut gate = Setup::new(&net)
        .backend(backend::own(Hop::Socket, &["start=60000"]))
        .spawn();
    wait_until("one is starting", || {
        gate.ask("/metrics").is_ok()
            && gate.metrics().find("generations", &[("state", "starting")]) == Some(1.0)
    });
    gate.signal(Signal::SIGTERM);
    expect_clean_exit(&mut gate, Duration::from_secs(10));
}

/// Both generations of a flip that isn't proven yet end, and so does the reload, with a word on why.
#[test]
fn sigterm_within_min_ready_ends_both_generations() {
    let net = Net::new();
    let setup = Setup::bare(&net).options(["--config", "syngate.toml"]);
    let file = setup.dir().join("syngate.toml");
    let text = format!(
        "[services.default]\nlisten = ['{}']\ncommand = {:?}\nmin_ready = ",
        setup.public(),
        backend::own(Hop::Socket, &[])
    );
    fs::write(&file, format!("{text}'100ms'")).expect("the file");
    let mut gate = setup.start();
    fs::write(&file, format!("{text}'60s'")).expect("the file");
    let reload = gate
        .verb(["reload"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("a caller");
    wait_until("the second serves", || {
        gate.metrics().sum("generation_active", &[]) == 2.0
    });
    gate.signal(Signal::SIGTERM);
    let told = reload.wait_with_output().expect("it ends");
    assert_eq!(told.status.code(), Some(1));
    let words = String::from_utf8_lossy(&told.stderr).into_owned();
    assert!(words.contains("shuts down"), "{words}");
    expect_clean_exit(&mut gate, Duration::from_secs(10));
}

#[test]
fn lame_duck_goes_on_accepting() {
    let net = Net::new();
    let setup = Setup::new(&net).options(["--lame-duck", "1s"]);
    let mut gate = setup.backend(backend::own(Hop::Socket, &[])).start();
    gate.signal(Signal::SIGTERM);
    wait_leaves(&gate);
    assert_eq!(
        http::get(gate.public(), "/late").expect("an answer").text(),
        "/late"
    );
    expect_clean_exit(&mut gate, Duration::from_secs(10));
}

#[test]
fn killed_gate_leaves_no_backend_behind() {
    let net = Net::new();
    for (name, hop) in [
        ("own", Hop::Socket),
        ("nginx", Hop::Socket),
        ("haproxy", Hop::Address),
    ] {
        let setup = Setup::new(&net);
        let app = setup.dir().join("app.sock");
        let command = match name {
            "own" => backend::own(hop, &[]),
            "nginx" => backend::nginx(setup.dir(), hop, 1000),
            _ => backend::haproxy(setup.dir(), hop, &app),
        };
        let mut gate = setup.backend(command).start();
        assert!(!gate.children().is_empty());
        gate.signal(Signal::SIGKILL);
        gate.wait_exit(Duration::from_secs(5));
        wait_until("its backend has ended", || gate.children().is_empty());
        drop(TcpListener::bind(gate.public()).expect("the port is free"));
        // The next one finds a control socket that nobody serves, and starts.
        let next = gate.again();
        assert_eq!(
            http::get(next.public(), "/next").expect("an answer").text(),
            "/next",
            "{name}"
        );
    }
}

/// A backend that outlives the signal which its parent's death sends is ended by the next start.
#[test]
fn next_start_ends_what_a_killed_gate_has_left() {
    let net = Net::new();
    let setup = Setup::new(&net);
    let script = "trap '' TERM; while :; do sleep 0.05; done & exec \"$@\"";
    fs::write(setup.dir().join("stubborn.sh"), script).expect("a script");
    let mut command = vec!["sh".to_owned(), "stubborn.sh".to_owned()];
    command.extend(backend::own(Hop::Socket, &[]));
    let mut gate = setup
        .options(["--stop-timeout", "500ms"])
        .backend(command)
        .start();
    let left = gate.children();
    gate.signal(Signal::SIGKILL);
    gate.wait_exit(Duration::from_secs(5));
    let next = gate.again();
    wait_until("what was left has ended", || {
        !left.iter().any(|pid| alive(*pid))
    });
    assert_eq!(
        http::get(next.public(), "/next").expect("an answer").text(),
        "/next"
    );
}

#[test]
fn first_process_of_a_container_reaps_and_ends_all() {
    let Some(net) = Net::isolated() else { return };
    let setup = Setup::new(&net);
    let script =
        "i=0; while [ $i -lt 50 ]; do (sh -c 'exit 3' &) ; i=$((i + 1)); done; exec \"$@\"";
    fs::write(setup.dir().join("orphans.sh"), script).expect("a script");
    let mut command = vec!["sh".to_owned(), "orphans.sh".to_owned()];
    command.extend(backend::own(Hop::Socket, &[]));
    let (mut gate, first) = as_first_process(setup, command);
    wait_until("no zombie is left", || {
        gate.children().iter().all(|pid| state(*pid) != Some('Z')) && zombies() == 0
    });
    gate.reload();
    assert_eq!(
        gate.metrics().sum("backend_restarts_total", &[]),
        0.0,
        "an orphan's status was taken for the backend's"
    );
    assert_eq!(
        http::get(gate.public(), "/").expect("an answer").text(),
        "/"
    );
    kill(first, Signal::SIGTERM).expect("the gate");
    expect_clean_exit(&mut gate, Duration::from_secs(10));
}

#[test]
fn first_process_ends_at_once_at_a_second_sigterm() {
    let Some(net) = Net::isolated() else { return };
    let setup = Setup::new(&net).options(["--shutdown-timeout", "60s"]);
    let (mut gate, first) = as_first_process(setup, backend::own(Hop::Socket, &[]));
    let _idle = stays(&gate);
    kill(first, Signal::SIGTERM).expect("the gate");
    wait_leaves(&gate);
    kill(first, Signal::SIGTERM).expect("the gate");
    expect_clean_exit(&mut gate, Duration::from_secs(5));
}

/// The kernel ends all that lives in the namespace of a first process that dies.
#[test]
fn first_process_that_is_killed_takes_its_backends_along() {
    let Some(net) = Net::isolated() else { return };
    let setup = Setup::new(&net);
    let script = "trap '' TERM; while :; do sleep 0.05; done & exec \"$@\"";
    fs::write(setup.dir().join("stubborn.sh"), script).expect("a script");
    let mut command = vec!["sh".to_owned(), "stubborn.sh".to_owned()];
    command.extend(backend::own(Hop::Socket, &[]));
    let (mut gate, first) = as_first_process(setup, command);
    kill(first, Signal::SIGKILL).expect("the gate");
    gate.wait_exit(Duration::from_secs(5));
    assert_eq!(gate.children(), [], "processes are left");
    drop(TcpListener::bind(gate.public()).expect("the port is free"));
    let next = gate.again();
    assert_eq!(
        http::get(next.public(), "/next").expect("an answer").text(),
        "/next"
    );
}

/// A gate that is process 1 of a namespace of its own, and its process as it is seen from here.
fn as_first_process(setup: Setup, command: Vec<String>) -> (Gate, Pid) {
    let container = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"];
    let gate = setup.under(container).backend(command).start();
    let first = gate
        .children()
        .into_iter()
        .find(|pid| command_of(*pid) == "syngate")
        .expect("the gate");
    (gate, first)
}

/// A connection that its client never ends.
fn stays(gate: &Gate) -> Socket {
    let idle = connect(gate.public());
    send(&idle, b"GET /stays HTTP/1.1\r\n\r\n");
    wait_relayed(gate);
    idle
}

pub(crate) fn wait_relayed(gate: &Gate) {
    let relaying = [("state", "relaying")];
    wait_until("it is relayed", || {
        gate.metrics().sum("connections_open", &relaying) == 1.0
    });
}

/// It has taken up a SIGTERM.
fn wait_leaves(gate: &Gate) {
    wait_until("it says that it leaves", || {
        gate.ask("/readyz")
            .map_or(true, |answer| answer.status == 503)
    });
}

#[track_caller]
pub(crate) fn expect_clean_exit(gate: &mut Gate, within: Duration) {
    assert_eq!(gate.wait_exit(within).code(), Some(0), "{}", gate.log());
    expect_nothing_left(gate);
}

#[track_caller]
fn expect_nothing_left(gate: &Gate) {
    assert_eq!(gate.children(), [], "processes are left");
    assert!(!gate.control().exists(), "the control socket is left");
    drop(TcpListener::bind(gate.public()).expect("the port is free"));
    assert!(gate.ask("/livez").is_err(), "the metrics port is served");
}

fn state(pid: Pid) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(") ").next()?.chars().next()
}

pub(crate) fn alive(pid: Pid) -> bool {
    state(pid).is_some_and(|state| state != 'Z')
}

fn command_of(pid: Pid) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm"))
        .unwrap_or_default()
        .trim()
        .to_owned()
}

/// Zombies among this test's descendants: they have no directory any more, so they are known by their parents.
fn zombies() -> usize {
    let parent_of = |pid: Pid| -> Option<i32> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit(") ").next()?.split(' ').nth(1)?.parse().ok()
    };
    let mine = |mut pid: Pid| loop {
        match parent_of(pid) {
            Some(parent) if parent == std::process::id() as i32 => return true,
            Some(parent) if parent > 1 => pid = Pid::from_raw(parent),
            _ => return false,
        }
    };
    let all = fs::read_dir("/proc")
        .expect("/proc")
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    all.map(Pid::from_raw)
        .filter(|pid| state(*pid) == Some('Z') && mine(*pid))
        .count()
}
