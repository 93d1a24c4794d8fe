//! How a generation proves that it is ready, and how it receives its listener.

use std::fs;
use std::io::Read;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use crate::common::backend::{self, Hop, Outside, generation};
use crate::common::gate::Setup;
use crate::common::http;
use crate::common::net::Net;
use crate::common::wait_until;

/// Long enough that a gate which doesn't wait for the proof is caught.
const SLOW: &str = "start=700";

#[test]
fn each_proof_is_waited_for() {
    let net = Net::new();
    let exec = "exec:sh -c \"test -e ready.$SYNGATE_GENERATION\"";
    let cases: [(&str, Hop, &[&str]); 6] = [
        ("tcp", Hop::Socket, &[SLOW]),
        ("tcp", Hop::Address, &[SLOW]),
        ("http:/health", Hop::Fd, &[SLOW]),
        ("notify", Hop::Fd, &[SLOW, "notify=yes"]),
        ("fd:5", Hop::Socket, &[SLOW, "ready-file=/proc/self/fd/5"]),
        (exec, Hop::Socket, &[SLOW, "ready-file=ready.{generation}"]),
    ];
    for (ready, hop, options) in cases {
        let setup = Setup::new(&net).options(["--ready", ready, "--min-ready", "100ms"]);
        let gate = setup.backend(backend::own(hop, options)).start();
        assert_eq!(generation(&gate), "1", "{ready} {hop:?}");
        gate.reload();
        assert_eq!(generation(&gate), "2", "{ready} {hop:?}");
        let metrics = gate.metrics();
        assert_eq!(
            metrics.sum("redispatches_total", &[]),
            0.0,
            "{ready} {hop:?}: dispatched before it was ready"
        );
    }
}

#[test]
fn a_proof_that_never_comes_fails_the_reload() {
    let net = Net::new();
    for ready in ["notify", "fd:5", "http:/health", "exec:false"] {
        let setup = Setup::new(&net).options(["--ready", ready, "--ready-timeout", "1s"]);
        // It accepts, and doesn't say what is asked for.
        let options: &[&str] = if ready.starts_with("http") {
            &["reset-every=1"]
        } else {
            &[]
        };
        let gate = setup.backend(backend::own(Hop::Socket, options)).spawn();
        wait_until("it has given up", || {
            let metrics = gate.metrics_if_up();
            metrics.is_some_and(|metrics| {
                metrics.find("reloads_total", &[("outcome", "not_ready")]) >= Some(1.0)
            })
        });
        assert_eq!(
            gate.ask("/readyz").expect("an answer").status,
            503,
            "{ready}"
        );
    }
}

/// Somebody else answers at the new generation's address: that is no proof, and it never becomes active.
#[test]
fn an_address_that_somebody_else_serves_is_refused() {
    let net = Net::new();
    let address = net.free_address();
    let stranger = Outside::start(address, &["content=/dev/null"]);
    let setup =
        Setup::new(&net).options(["--backend", &address.to_string(), "--ready-timeout", "2s"]);
    let setup = setup.options(["--strategy", "replace"]);
    let gate = setup
        .backend(backend::command(&format!("tcp:{address}"), &["never=yes"]))
        .spawn();
    wait_until("the start has failed", || {
        gate.log().contains(&address.port().to_string())
    });
    assert_ne!(
        gate.ask("/readyz")
            .map(|answer| answer.status)
            .unwrap_or(503),
        200
    );
    drop(stranger);
}

#[test]
fn listen_fds_reach_the_server_with_its_own_pid() {
    let net = Net::new();
    let setup = Setup::new(&net).options([
        "--pass",
        "listen-fds",
        "--ready",
        "http:/",
        "--min-ready",
        "100ms",
    ]);
    let gate = setup.backend(backend::command("activated:l0", &[])).start();
    assert_eq!(generation(&gate), "1");
    gate.reload();
    assert_eq!(generation(&gate), "2");
}

/// nginx knows passed listeners by the variable that it makes for its own successor.
#[test]
fn nginx_takes_a_passed_listener() {
    let net = Net::new();
    let setup = Setup::new(&net).options(["--pass", "fd", "--min-ready", "100ms"]);
    let command = backend::nginx(setup.dir(), Hop::Fd, 1000);
    let gate = setup.backend(command).start();
    for reload in 0..3 {
        for request in 0..20 {
            let path = format!("/{reload}-{request}");
            let answer = http::get(gate.public(), &path).expect("an answer");
            assert_eq!(answer.text(), path);
        }
        gate.reload();
    }
    assert_eq!(
        http::get(gate.public(), "/last").expect("an answer").text(),
        "/last"
    );
    assert!(!gate.log().contains("[emerg]"), "{}", gate.log());
}

/// A child sees what is meant for it, and nothing of the gate's own.
#[test]
fn environment_of_a_backend_is_its_own() {
    let net = Net::new();
    let notify = tempfile::tempdir().expect("a directory");
    let path = notify.path().join("notify");
    let socket = UnixDatagram::bind(&path).expect("a socket");
    socket
        .set_read_timeout(Some(Duration::from_secs(20)))
        .expect("a time-out");
    let setup = Setup::new(&net);
    let command = backend::own(Hop::Socket, &[]);
    let script = "env > env.txt; ls -l /proc/self/fd > fd.txt; exec \"$@\"";
    fs::write(setup.dir().join("start.sh"), script).expect("a script");
    let words = ["sh", "start.sh"]
        .map(str::to_owned)
        .into_iter()
        .chain(command)
        .collect();
    let setup = setup.environment("NOTIFY_SOCKET", path.to_str().expect("a plain path"));
    let gate = setup
        .environment("WATCHDOG_USEC", "3000000")
        .backend(words)
        .start();
    let env = fs::read_to_string(gate.dir().join("env.txt")).expect("the variables");
    for wanted in ["SYNGATE_SOCKET=", "SYNGATE_GENERATION=1\n", "SYNGATE_DIR="] {
        assert!(env.contains(wanted), "{wanted} is missing in:\n{env}");
    }
    for foreign in ["NOTIFY_SOCKET", "WATCHDOG_", "LISTEN_"] {
        assert!(!env.contains(foreign), "{foreign} has passed:\n{env}");
    }
    let sockets = fs::read_to_string(gate.dir().join("fd.txt")).expect("the descriptors");
    assert!(
        !sockets.contains("socket:"),
        "a socket of the gate's has passed:\n{sockets}"
    );
    // The service manager has heard that the gate is ready.
    let mut heard = String::new();
    while !heard.contains("READY=1") {
        let mut buffer = [0; 4096];
        let length = socket.recv(&mut buffer).expect("a notification");
        heard.push_str(&String::from_utf8_lossy(&buffer[..length]));
    }
}

/// What the backend prints stands in the log, and a flood of it blocks nobody.
#[test]
fn output_of_a_backend_goes_to_the_log() {
    let net = Net::new();
    let setup = Setup::new(&net);
    let command = backend::own(Hop::Socket, &[]);
    let script =
        "echo hello from the backend; head -c 3000000 /dev/zero | tr '\\0' x; echo; exec \"$@\"";
    fs::write(setup.dir().join("start.sh"), script).expect("a script");
    let words = ["sh", "start.sh"]
        .map(str::to_owned)
        .into_iter()
        .chain(command)
        .collect();
    let gate = setup.backend(words).start();
    gate.expect_log("hello from the backend");
    let mut body = String::new();
    http::get(gate.public(), "/")
        .expect("an answer")
        .body
        .as_slice()
        .read_to_string(&mut body)
        .expect("text");
    assert_eq!(body, "/");
}
