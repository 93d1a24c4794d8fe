//! A file with several services: what comes, goes, moves and comes back with a reload.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::common::backend::{self, Hop};
use crate::common::gate::{Gate, Setup};
use crate::common::http;
use crate::common::net::Net;
use crate::common::wait_until;
use crate::common::wire::{connect, read_all, send};

/// The public port stays open though the first start fails, and whoever came is served once a start succeeds.
#[test]
fn clients_wait_while_the_first_start_fails() {
    let net = Net::new();
    let setup = Setup::new(&net);
    let command = backend::own(Hop::Socket, &[]);
    let script = format!(
        "test -e bad && {{ echo no moon; exit 1; }}; exec {} \"$1\"",
        command[0]
    );
    fs::write(setup.dir().join("start.sh"), script).expect("a script");
    fs::write(setup.dir().join("bad"), "").expect("a file");
    let command = ["sh", "start.sh", &command[1]].map(str::to_owned).to_vec();
    let mut gate = setup.backend(command).spawn();
    wait_until("the first run has failed", || failed_starts(&gate) == 1.0);
    assert_eq!(gate.ask("/readyz").expect("an answer").status, 503);
    let public = gate.public();
    let client = thread::spawn(move || http::get(public, "/generation"));
    wait_until("it waits", || {
        gate.metrics()
            .sum("connections_open", &[("state", "pending")])
            == 1.0
    });
    fs::remove_file(gate.dir().join("bad")).expect("a file");
    let answer = client.join().expect("a client").expect("an answer");
    assert_ne!(answer.text(), "1");
    gate.wait_ready();
    gate.reload();
}

/// The same for a service that comes with a reload; what served before serves, and the gate is as ready as it was.
#[test]
fn a_new_service_that_cannot_start_concerns_no_other() {
    let net = Net::new();
    let (one, two) = (net.free_address(), net.free_address());
    let gate = gate(&net, &[service("one", one, "")]);
    let failing = "check = \"sh -c 'echo line 3; exit 1'\"\n";
    write(
        &gate,
        &[service("one", one, ""), service("two", two, failing)],
    );
    gate.run(["reload"])
        .expect_code(4)
        .expect_words(&["line 3"]);
    assert_eq!(gate.ask("/readyz").expect("an answer").status, 200);
    assert_eq!(generation(one), "2");

    let bad = service("two", two, "").replace("test-backend", "test-backend-that-isnt-there");
    write(&gate, &[service("one", one, ""), bad]);
    let done = gate.run(["reload"]);
    done.expect_code(4)
        .expect_words(&["each connection waits up to 30s for a start that succeeds"]);
    assert_eq!(gate.ask("/readyz").expect("an answer").status, 200);
    let client = thread::spawn(move || http::get(two, "/generation"));
    wait_until("it waits", || {
        gate.metrics().sum(
            "connections_open",
            &[("service", "two"), ("state", "pending")],
        ) == 1.0
    });
    write(&gate, &[service("one", one, ""), service("two", two, "")]);
    gate.run(["reload"]).expect_code(0);
    client.join().expect("a client").expect("an answer");
}

/// Every service's last reload has failed when the file can't be read, and each says so.
#[test]
fn a_file_that_cannot_be_read_is_a_failed_reload() {
    let net = Net::new();
    let (one, two) = (net.free_address(), net.free_address());
    let both = [service("one", one, ""), service("two", two, "")];
    let gate = gate(&net, &both);
    for text in ["[services.one]\nlisten = [", "colour = 'red'\n", ""] {
        let before = gate.reloads("check_failed");
        fs::write(gate.dir().join("syngate.toml"), text).expect("the file");
        gate.run(["reload"]).expect_code(1);
        assert_eq!(gate.reloads("check_failed"), before + 2.0);
        assert_eq!(gate.metrics().sum("last_reload_successful", &[]), 0.0);
        for service in gate.status_json()["services"].as_array().expect("services") {
            assert_eq!(service["last_reload"]["outcome"], "check_failed");
        }
        write(&gate, &both);
        gate.reload();
        assert_eq!(gate.metrics().sum("last_reload_successful", &[]), 2.0);
    }
}

/// A listener that moves keeps its name's series, and they count what comes in at the new address.
#[test]
fn a_listener_moves_to_another_address_and_counts_on() {
    let net = Net::new();
    let mut address = net.free_address();
    let gate = gate(&net, &[service("one", address, "")]);
    for moves in 1..=3 {
        let before = address;
        address = net.free_address();
        write(&gate, &[service("one", address, "")]);
        gate.reload();
        wait_until("the old port is closed", || {
            TcpStream::connect(before).is_err()
        });
        generation(address);
        let series = [("service", "one"), ("listener", "l0")];
        wait_until("it is counted", || {
            gate.metrics().find("connections_accepted_total", &series) >= Some(f64::from(moves))
        });
        gate.metrics().sum("listener_drops_total", &series);
    }
}

/// A service that was removed still drains when one of its name comes back: that is another one, with numbers of its own, and it
/// has its port from the start.
#[test]
fn a_service_comes_back_while_the_old_one_drains() {
    let net = Net::new();
    let (one, two) = (net.free_address(), net.free_address());
    let gate = gate(&net, &[service("one", one, ""), service("two", two, "")]);
    let old = connect(two);
    send(&old, b"GET /first HTTP/1.1\r\n\r\n");
    wait_until("it is relayed", || relaying(&gate, "two") == 1.0);
    write(&gate, &[service("one", one, "")]);
    gate.reload();
    write(&gate, &[service("one", one, ""), service("two", two, "")]);
    gate.reload();
    assert_eq!(generation(two), "2");
    assert_eq!(names(&gate), ["one", "two", "two"]);
    // The old connection is the old process's to its end.
    send(
        &old,
        b"GET /generation HTTP/1.1\r\nConnection: close\r\n\r\n",
    );
    let (answers, _) = read_all(&old);
    assert!(answers.ends_with(b"1"), "{}", answers.escape_ascii());
    drop(old);
    wait_until("the old one has ended", || names(&gate) == ["one", "two"]);
    assert_eq!(generation(two), "2");
    assert!(
        gate.metrics()
            .sum("generation_active", &[("service", "two")])
            == 2.0
    );
    gate.run(["reload", "two"]).expect_code(0);
}

/// Under another name it takes the port over, and no client finds that closed.
#[test]
fn a_service_gets_another_name() {
    let net = Net::new();
    let address = net.free_address();
    let gate = gate(&net, &[service("one", address, "")]);
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let clients = scope.spawn(|| {
            let mut answers = 0;
            while !over.load(Ordering::Relaxed) {
                generation(address);
                answers += 1;
            }
            answers
        });
        for name in ["two", "three", "one"] {
            write(&gate, &[service(name, address, "")]);
            gate.reload();
        }
        over.store(true, Ordering::Relaxed);
        assert!(clients.join().expect("each gets its answer") > 0);
    });
    wait_until("the others have ended", || names(&gate) == ["one"]);
    let metrics = gate.metrics();
    assert_eq!(metrics.sum("listener_drops_total", &[]), 0.0);
    assert_eq!(
        metrics.find("connections_accepted_total", &[("service", "two")]),
        None
    );
}

/// What a reload takes away serves until what the reload brings does; a service that is back in the file stays.
#[test]
fn a_service_stays_while_the_one_in_its_place_cannot_start() {
    let net = Net::new();
    let address = net.free_address();
    let gate = gate(&net, &[service("one", address, "")]);
    let failing = "check = \"sh -c 'echo line 3; exit 1'\"\n";
    let started_in_vain = service("two", address, "").replace("test-backend", "no-such-backend");
    for bad in [service("two", address, failing), started_in_vain] {
        write(&gate, &[bad]);
        gate.run(["reload"]).expect_code(4);
        assert_eq!(names(&gate), ["one", "two"]);
        assert_eq!(
            gate.status_json()["services"][0]["running"],
            "ends when two serves"
        );
        assert_eq!(generation(address), "1");
        gate.expect_log("it ends when two serves");
    }
    // The mistake is seen: as it was.
    write(&gate, &[service("one", address, "")]);
    gate.reload();
    wait_until("the other has ended", || names(&gate) == ["one"]);
    assert_eq!(generation(address), "2");
    // Or put right.
    write(&gate, &[service("two", address, failing)]);
    gate.run(["reload"]).expect_code(4);
    write(&gate, &[service("two", address, "")]);
    gate.reload();
    wait_until("the other has ended", || names(&gate) == ["two"]);
    generation(address);
}

/// While nothing serves, what is open is what the last good file says.
#[test]
fn a_port_that_is_gone_from_the_file_closes_though_nothing_serves() {
    let net = Net::new();
    let (kept, gone) = (net.free_address(), net.free_address());
    let bad = |address| {
        format!(
            "[services.one]\nlisten = ['{address}']\ncommand = ['sh', '-c', 'exit 3', '{{socket}}']\n"
        )
    };
    let setup = Setup::bare(&net).options(["--config", "syngate.toml"]);
    fs::write(setup.dir().join("syngate.toml"), bad(gone)).expect("the file");
    let gate = setup.spawn();
    wait_until("the first run has failed", || failed_starts(&gate) == 1.0);
    write(&gate, &[bad(kept)]);
    gate.run(["reload"]).expect_code(4);
    wait_until("the old port is closed", || {
        TcpStream::connect(gone).is_err()
    });
    let client = thread::spawn(move || http::get(kept, "/generation"));
    write(&gate, &[service("one", kept, "")]);
    gate.reload();
    client.join().expect("a client").expect("an answer");
}

fn gate(net: &Net, services: &[String]) -> Gate {
    let setup = Setup::bare(net).options(["--config", "syngate.toml"]);
    fs::write(setup.dir().join("syngate.toml"), services.concat()).expect("the file");
    setup.start()
}

fn write(gate: &Gate, services: &[String]) {
    fs::write(gate.dir().join("syngate.toml"), services.concat()).expect("the file");
}

fn service(name: &str, address: SocketAddr, more: &str) -> String {
    let command = backend::own(Hop::Socket, &[]);
    format!(
        "[services.{name}]\nlisten = ['{address}']\nmin_ready = '100ms'\ncommand = {command:?}\n{more}"
    )
}

fn generation(address: SocketAddr) -> String {
    http::get(address, "/generation").expect("an answer").text()
}

fn names(gate: &Gate) -> Vec<String> {
    let status = gate.status_json();
    let services = status["services"].as_array().expect("services").iter();
    let name = |service: &serde_json::Value| service["name"].as_str().expect("a name").to_owned();
    services.map(name).collect()
}

fn relaying(gate: &Gate, service: &str) -> f64 {
    gate.metrics().sum(
        "connections_open",
        &[("service", service), ("state", "relaying")],
    )
}

fn failed_starts(gate: &Gate) -> f64 {
    let metrics = gate.metrics_if_up();
    metrics.map_or(0.0, |metrics| {
        metrics
            .find("reloads_total", &[("outcome", "start_failed")])
            .unwrap_or_default()
    })
}
