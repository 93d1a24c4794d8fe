//! A file with several services: what comes, goes, moves and comes back with a reload.

use std::fs;
use std::net::SocketAddr;
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
        .expect_words(&["connections are held until a new start succeeds"]);
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
            std::net::TcpStream::connect(before).is_err()
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
    let status = gate.status_json();
    let names: Vec<_> = status["services"]
        .as_array()
        .expect("services")
        .iter()
        .map(|service| service["name"].as_str().expect("a name"))
        .collect();
    assert_eq!(names, ["one", "two", "two"]);
    // The old connection is the old process's to its end.
    send(
        &old,
        b"GET /generation HTTP/1.1\r\nConnection: close\r\n\r\n",
    );
    let (answers, _) = read_all(&old);
    assert!(answers.ends_with(b"1"), "{}", answers.escape_ascii());
    drop(old);
    wait_until("the old one has ended", || {
        gate.status_json()["services"]
            .as_array()
            .is_some_and(|services| services.len() == 2)
    });
    assert_eq!(generation(two), "2");
    assert!(
        gate.metrics()
            .sum("generation_active", &[("service", "two")])
            == 2.0
    );
    gate.run(["reload", "two"]).expect_code(0);
}

/// Under another name it has the port as soon as the old one has closed it.
#[test]
fn a_service_gets_another_name() {
    let net = Net::new();
    let address = net.free_address();
    let gate = gate(&net, &[service("one", address, "")]);
    for name in ["two", "three", "one"] {
        write(&gate, &[service(name, address, "")]);
        gate.reload();
        generation(address);
    }
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
