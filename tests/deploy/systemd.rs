//! The units of `packaging/systemd`, under a real systemd.

use std::fs;
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};

use crate::common::http;
use crate::common::load::{Failure, Load, Plan, Report};
use crate::common::net::Drops;
use crate::common::wait_until;
use crate::common::wire::{End, connect, read_all, send};
use crate::machine::Server;

const PLAIN: &str = "syngate.service";
/// The file of those of a name of their own, and one of them.
const TEMPLATE: &str = "syngate@.service";
const NAMED: &str = "syngate@two.service";
const ACTIVATED: &str = "syngate-activated.service";
const SOCKET: &str = "syngate-activated.socket";

/// New connections a second: counts matter here, not the pace.
const PACE: u32 = 200;

#[test]
fn the_service_starts_reloads_and_comes_back() {
    let Some(server) = server() else { return };
    server.machine.write(
        "/etc/systemd/system/syngate.service.d/watchdog.conf",
        "[Service]\nWatchdogSec=5\n",
    );
    server.systemctl(&["daemon-reload"]);
    server.configure_backend(&server.public.to_string());
    server.systemctl(&["start", PLAIN]);
    server.machine.expect_state(PLAIN, "active");
    assert_eq!(server.answer("/content"), "first");

    reloads(&server);
    reload_by_signal_is_one_for_systemd(&server);
    another_runs_beside_it(&server);
    backend_comes_back(&server);
    gate_comes_back(&server);
    watchdog_ends_a_gate_that_hangs(&server);
    stop_leaves_nothing(&server);
}

fn reloads(server: &Server) {
    let machine = &server.machine;
    let gate = machine.process(PLAIN, "syngate");
    machine.write("/srv/content", "second");
    server.systemctl(&["reload", PLAIN]);
    assert_eq!(server.answer("/content"), "second");

    let serving = machine.process(PLAIN, "test-backend");
    machine.write("/srv/content", "");
    machine.done(&["systemctl", "reload", PLAIN]).expect_code(1);
    machine.expect_journal(PLAIN, "the page is empty");
    machine.expect_state(PLAIN, "active");
    assert_eq!(server.answer("/content"), "second");
    assert_eq!(machine.process(PLAIN, "test-backend"), serving);
    assert_eq!(machine.process(PLAIN, "syngate"), gate);
}

/// Nobody has asked systemd for it.
fn reload_by_signal_is_one_for_systemd(server: &Server) {
    let machine = &server.machine;
    machine.write("/srv/content", "by signal");
    machine.write("/srv/checking", "");
    kill(machine.process(PLAIN, "syngate"), Signal::SIGHUP).expect("the gate");
    machine.wait_state(PLAIN, "reloading");
    fs::remove_file(machine.path("/srv/checking")).expect("the file");
    machine.wait_state(PLAIN, "active");
    assert_eq!(server.answer("/content"), "by signal");
}

/// With a file, a directory and a control socket of its own.
fn another_runs_beside_it(server: &Server) {
    let machine = &server.machine;
    let (public, metrics) = (server.net.free_address(), server.net.free_address());
    let text = fs::read_to_string(machine.path("/etc/syngate/syngate.toml")).expect("the file");
    let text = text
        .replace(&server.public.to_string(), &public.to_string())
        .replace(&server.metrics.to_string(), &metrics.to_string());
    machine.write("/etc/syngate/two.toml", &text);
    server.systemctl(&["start", NAMED]);
    let beside = server.answer("/content");
    machine.write("/srv/content", "of two");
    server.systemctl(&["reload", NAMED]);
    let answer = http::get(public, "/content").expect("an answer");
    assert_eq!(answer.text(), "of two");
    assert_eq!(server.answer("/content"), beside);
    let control = "/run/syngate-two/control.sock";
    let status = machine.run(&["syngate", "status", "--json", "--control", control]);
    let status: serde_json::Value = serde_json::from_str(&status).expect("JSON");
    assert_eq!(status["metrics"], format!("http://{metrics}/metrics"));
    assert_eq!(status["services"][0]["active"], 2);
    server.systemctl(&["stop", NAMED]);
    machine.run(&["test", "!", "-e", "/run/syngate-two"]);
    assert_eq!(server.answer("/content"), beside);
}

fn backend_comes_back(server: &Server) {
    let machine = &server.machine;
    let gate = machine.process(PLAIN, "syngate");
    machine.write("/srv/content", "third");
    let backend = machine.process(PLAIN, "test-backend");
    kill(backend, Signal::SIGKILL).expect("the backend");
    wait_until("another backend serves", || content_is(server, "third"));
    assert_eq!(machine.process(PLAIN, "syngate"), gate);
    assert_eq!(machine.property(PLAIN, "NRestarts"), "0");
}

fn gate_comes_back(server: &Server) {
    let machine = &server.machine;
    let backend = machine.process(PLAIN, "test-backend");
    machine.write("/srv/content", "fourth");
    kill(machine.process(PLAIN, "syngate"), Signal::SIGKILL).expect("the gate");
    wait_restarted(server, "1");
    wait_until("it serves", || content_is(server, "fourth"));
    let left = machine.processes(PLAIN);
    assert!(left.iter().all(|(pid, _)| *pid != backend), "{left:?}");
}

fn watchdog_ends_a_gate_that_hangs(server: &Server) {
    let machine = &server.machine;
    machine.write("/srv/content", "fifth");
    kill(machine.process(PLAIN, "syngate"), Signal::SIGSTOP).expect("the gate");
    machine.expect_journal(PLAIN, "Failed with result 'watchdog'");
    wait_restarted(server, "2");
    wait_until("it serves", || content_is(server, "fifth"));
}

fn stop_leaves_nothing(server: &Server) {
    let machine = &server.machine;
    server.systemctl(&["stop", PLAIN]);
    machine.expect_state(PLAIN, "inactive");
    assert_eq!(machine.property(PLAIN, "Result"), "success");
    assert_eq!(machine.property(PLAIN, "ExecMainStatus"), "0");
    assert_eq!(machine.processes(PLAIN), []);
    machine.run(&["test", "!", "-e", "/run/syngate"]);
    TcpStream::connect(server.public).expect_err("the port is closed");
}

fn content_is(server: &Server, expected: &str) -> bool {
    http::get(server.public, "/content").is_ok_and(|answer| answer.text() == expected)
}

/// systemd has started it again so often.
fn wait_restarted(server: &Server, times: &str) {
    wait_until("systemd starts it again", || {
        server.machine.property(PLAIN, "NRestarts") == times
            && server.machine.property(PLAIN, "ActiveState") == "active"
    });
}

/// What Debian's HAProxy has as its configuration, behind the gate with the lines of `docs/systemd.md`.
#[test]
fn haproxy_runs_with_the_lines_of_the_documentation() {
    let Some(server) = server() else { return };
    let machine = &server.machine;
    machine.write(
        "/etc/systemd/system/syngate.service.d/haproxy.conf",
        &lines_for_haproxy(),
    );
    machine.run(&["groupadd", "--system", "--force", "ssl-cert"]);
    server.systemctl(&["daemon-reload"]);
    server.configure("haproxy = \"/etc/haproxy/haproxy.cfg\"\n");
    let stock = fs::read_to_string(machine.path("/etc/haproxy/haproxy.cfg")).expect("haproxy.cfg");
    let write = |answer: &str, more: &str| {
        let text = format!(
            "{stock}
frontend front
    bind {}
    http-request return status 200 content-type text/plain string {answer}
{more}",
            server.public
        );
        machine.write("/etc/haproxy/haproxy.cfg", &text);
    };

    write("first", "");
    server.systemctl(&["start", PLAIN]);
    assert_eq!(server.answer("/"), "first");
    machine.run(&["test", "-S", "/run/haproxy/admin.sock"]);

    write("second", "");
    server.systemctl(&["reload", PLAIN]);
    assert_eq!(server.answer("/"), "second");

    write("third", "    moon dark\n");
    machine.done(&["systemctl", "reload", PLAIN]).expect_code(1);
    machine.expect_journal(PLAIN, "unknown keyword 'moon'");
    machine.expect_state(PLAIN, "active");
    assert_eq!(server.answer("/"), "second");

    server.systemctl(&["stop", PLAIN]);
    assert_eq!(machine.property(PLAIN, "Result"), "success");
    assert_eq!(machine.processes(PLAIN), []);
}

/// The drop-in that `docs/systemd.md` has for HAProxy.
fn lines_for_haproxy() -> String {
    let page = include_str!("../../docs/systemd.md");
    let (_, after) = page.split_once("\nHAProxy, `haproxy = ").expect("HAProxy");
    let (_, block) = after.split_once("```ini\n").expect("a block");
    block.split_once("```").expect("its end").0.to_owned()
}

/// Who has been accepted when the stop comes is answered; who comes later is refused, and nobody is cut off.
#[test]
fn load_a_stop_loses_nothing_in_time() {
    const WAITING: usize = 20;
    let Some(server) = server() else { return };
    server.configure_backend(&server.public.to_string());
    server.systemctl(&["start", PLAIN]);
    let load = Load::start(Plan::fresh(server.public, PACE));
    load.wait_flowing();
    let clients: Vec<_> = (0..WAITING).map(|_| connect(server.public)).collect();
    for client in &clients {
        send(
            client,
            b"GET /sleep/3000 HTTP/1.1\r\nConnection: close\r\n\r\n",
        );
    }
    wait_until("they are relayed", || {
        let relaying = [("state", "relaying")];
        server.metrics().sum("connections_open", &relaying) >= WAITING as f64
    });
    server.systemctl(&["stop", PLAIN]);
    for client in &clients {
        let (answer, end) = read_all(client);
        assert!(
            answer.ends_with(b"/sleep/3000"),
            "{}",
            answer.escape_ascii()
        );
        assert_eq!(end, End::Eof);
    }
    let report = load.stop();
    report.print("stop");
    assert_eq!(
        report.failures(),
        report.failed(Failure::Refused),
        "{:?}",
        report.fresh.failed
    );
    assert_eq!(server.machine.property(PLAIN, "Result"), "success");
    assert_eq!(server.machine.property(PLAIN, "ExecMainStatus"), "0");
    assert_eq!(server.machine.processes(PLAIN), []);
}

#[test]
fn load_sockets_of_systemd_outlive_the_gate() {
    let Some(server) = server() else { return };
    server.configure_socket();
    server.configure_backend("fd:web");
    server.systemctl(&["start", SOCKET]);
    server.machine.expect_state(ACTIVATED, "inactive");
    clients_start_the_service(&server);

    let before = server.net.drops();
    let report = upgrade_under_load(&server, ACTIVATED);
    report.print("upgrade, sockets of systemd");
    report.expect_clean();
    assert_eq!(server.net.drops() - before, Drops::default());

    // What the page says of the two kinds of unit: one stops the other.
    server.configure_backend(&server.public.to_string());
    server.systemctl(&["start", PLAIN]);
    server.machine.expect_state(ACTIVATED, "inactive");
    server.machine.expect_state(SOCKET, "inactive");

    // The same load can fail.
    let report = upgrade_under_load(&server, PLAIN);
    report.print("upgrade, sockets of the gate");
    assert!(report.failed(Failure::Refused) > 0, "{report:?}");

    server.configure_backend("fd:web");
    server.systemctl(&["start", SOCKET]);
    server.machine.expect_state(PLAIN, "inactive");
    assert_eq!(server.answer("/content"), "first");
    server.systemctl(&["stop", SOCKET]);
    server.machine.expect_state(ACTIVATED, "inactive");
    assert_eq!(server.machine.processes(ACTIVATED), []);
    TcpStream::connect(server.public).expect_err("the port is closed");
}

/// Who comes before there is a gate waits for it.
fn clients_start_the_service(server: &Server) {
    let clients: Vec<_> = (0..10).map(|_| connect(server.public)).collect();
    for client in &clients {
        send(
            client,
            b"GET /content HTTP/1.1\r\nConnection: close\r\n\r\n",
        );
    }
    for client in &clients {
        let (answer, end) = read_all(client);
        assert!(answer.ends_with(b"first"), "{}", answer.escape_ascii());
        assert_eq!(end, End::Eof);
    }
    server.machine.wait_state(ACTIVATED, "active");
}

/// Puts another binary in the place of the one that runs, and restarts the service, under connections that end by themselves.
fn upgrade_under_load(server: &Server, service: &str) -> Report {
    let life = Duration::from_millis(1800);
    let load = Load::start(Plan {
        fresh_per_second: PACE,
        kept: 10,
        kept_life: life,
        download_time: life,
        ..Plan::standing(server.public)
    });
    load.wait_flowing();
    install_gate(server);
    assert!(!server.runs_installed(service), "the old one runs on");
    server.systemctl(&["restart", service]);
    assert!(server.runs_installed(service), "the new one runs");
    let served = load.fresh_ok();
    wait_until("the new one serves", || {
        load.fresh_ok() > served + u64::from(PACE)
    });
    load.stop()
}

/// A machine with the gate and its units, as one installs them by hand.
fn server() -> Option<Server> {
    let server = Server::new("systemd")?;
    install_gate(&server);
    let units = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/systemd");
    for unit in [PLAIN, TEMPLATE, ACTIVATED, SOCKET] {
        let text = fs::read_to_string(units.join(unit)).expect("a unit");
        let place = format!("/etc/systemd/system/{unit}");
        server.machine.write(&place, &text);
    }
    server.systemctl(&["daemon-reload"]);
    Some(server)
}

fn install_gate(server: &Server) {
    let built = Path::new(env!("CARGO_BIN_EXE_syngate"));
    server.machine.install(built, "/usr/bin/syngate");
}
