//! Public ports follow the configuration.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;

use socket2::Socket;

use crate::common::gate::Setup;
use crate::common::net::Net;
use crate::common::wait_until;
use crate::common::wire::{End, connect, read_all, send};
use crate::fixture::{curl, echo, expect_text, in_front_of, listening};

const METRICS: u16 = 7000;

const HEAD: &str = "global
    maxconn 100
defaults
    mode tcp
    timeout connect 5s
    timeout client 30s
    timeout server 30s
";

/// A frontend for each of `ports`, all with one server.
fn passing(ports: &[u16]) -> String {
    let front = |port: &u16| {
        format!("listen p{port}\n    bind 127.0.0.1:{port}\n    server app 127.0.0.1:9000\n")
    };
    HEAD.to_owned() + &ports.iter().map(front).collect::<String>()
}

fn setup(net: &Net) -> (Setup, PathBuf) {
    let setup = Setup::bare(net).replace_metrics(address(METRICS));
    let file = setup.dir().join("haproxy.cfg");
    (in_front_of(setup, &file), file)
}

fn address(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

fn answers(port: u16) -> bool {
    curl([format!("http://127.0.0.1:{port}/")]).status == 200
}

/// The ports that are open beside the metrics and the server.
fn public() -> Vec<u16> {
    let others = [address(METRICS), address(9000)];
    let all = listening()
        .into_iter()
        .filter(|address| !others.contains(address));
    all.map(|address| address.port()).collect()
}

/// The first half of a request; the server waits for the other.
fn begin(port: u16) -> Socket {
    let client = connect(address(port));
    send(&client, b"GET /half HTTP/1.1\r\n");
    client
}

#[track_caller]
fn finish(client: &Socket) {
    send(client, b"\r\n");
    let (answer, end) = read_all(client);
    let text = String::from_utf8_lossy(&answer).into_owned();
    assert!(text.ends_with("get /half http/1.1\n"), "{text}");
    assert_eq!(end, End::Eof);
}

#[test]
fn ports_come_and_go() {
    let Some(net) = Net::isolated() else { return };
    echo("127.0.0.1:9000");
    let (setup, file) = setup(&net);
    fs::write(&file, passing(&[8000, 8001])).expect("haproxy.cfg");
    let gate = setup.start();
    assert_eq!(public(), [8000, 8001]);
    for round in 0..3 {
        let (goes, comes) = if round % 2 == 0 {
            (8001, 8002)
        } else {
            (8002, 8001)
        };
        let running = [begin(8000), begin(goes)];
        wait_until("both have come to HAProxy", || {
            gate.metrics()
                .sum("connections_open", &[("state", "relaying")])
                >= 2.0
        });
        fs::write(&file, passing(&[8000, comes])).expect("haproxy.cfg");
        gate.reload();
        assert!(answers(8000) && answers(comes));
        wait_until("the port is closed", || !public().contains(&goes));
        running.iter().for_each(finish);
    }
    assert_eq!(gate.metrics().sum("forced_closes_total", &[]), 0.0);
}

/// A section's name isn't its port's: the name moves at the flip, a socket and its connections stay.
#[test]
fn frontends_that_are_renamed() {
    let Some(net) = Net::isolated() else { return };
    echo("127.0.0.1:9000");
    let (setup, file) = setup(&net);
    let named = |names: [(&str, u16); 2]| {
        let section = |(name, port)| {
            format!("listen {name}\n    bind *:{port}\n    server app 127.0.0.1:9000\n")
        };
        HEAD.to_owned() + &names.map(section).concat()
    };
    fs::write(&file, named([("blue", 8000), ("green", 8001)])).expect("haproxy.cfg");
    let gate = setup.start();
    for names in [
        [("green", 8000), ("blue", 8001)],
        [("red", 8000), ("green", 8002)],
        [("one", 8000), ("two", 8002)],
    ] {
        let running = begin(8000);
        fs::write(&file, named(names)).expect("haproxy.cfg");
        gate.reload();
        assert!(names.iter().all(|&(_, port)| answers(port)), "{names:?}");
        let status = gate.status_json();
        for (name, port) in names {
            let listeners = status["services"][0]["listeners"].as_array();
            let listeners = listeners.expect("listeners").iter();
            let port = format!(":{port}");
            let on_port = |one: &&serde_json::Value| {
                one["address"]
                    .as_str()
                    .expect("an address")
                    .ends_with(&port)
            };
            let named: Vec<_> = listeners.filter(on_port).map(|one| &one["name"]).collect();
            assert_eq!(named, [name]);
        }
        finish(&running);
    }
}

/// The gate has one socket an address, which closes after the flip: one that overlaps it takes two reloads.
#[test]
fn an_address_that_gets_wider_and_narrower() {
    let Some(net) = Net::isolated() else { return };
    echo("127.0.0.1:9000");
    let (setup, file) = setup(&net);
    let bound = |address: &str| {
        format!("{HEAD}listen one\n    bind {address}\n    server app 127.0.0.1:9000\n")
    };
    fs::write(&file, bound("127.0.0.1:8000")).expect("haproxy.cfg");
    let gate = setup.start();
    let mut before = "127.0.0.1:8000".to_owned();
    for (bind, address) in [
        ("*:8000", "0.0.0.0:8000"),
        (":::8000", "[::]:8000"),
        ("127.0.0.1:8000", "127.0.0.1:8000"),
    ] {
        fs::write(&file, bound(bind)).expect("haproxy.cfg");
        let words = format!("{address} overlaps {before}, which is open as listener one");
        gate.run(["reload"]).expect_code(1).expect_words(&[&words]);
        assert!(answers(8000), "{before}");
        fs::write(&file, bound("127.0.0.1:8001")).expect("haproxy.cfg");
        gate.reload();
        wait_until("the port is closed", || !public().contains(&8000));
        fs::write(&file, bound(bind)).expect("haproxy.cfg");
        gate.reload();
        before = address.to_owned();
    }
    assert!(answers(8000));
}

#[test]
fn a_port_that_does_not_come_closes_nothing() {
    let Some(net) = Net::isolated() else { return };
    echo("127.0.0.1:9000");
    let _taken = std::net::TcpListener::bind(address(8002)).expect("bind");
    let (setup, file) = setup(&net);
    fs::write(&file, passing(&[8000, 8001])).expect("haproxy.cfg");
    let gate = setup.start();
    fs::write(&file, passing(&[8000, 8002, 8003])).expect("haproxy.cfg");
    gate.run(["reload"])
        .expect_code(1)
        .expect_words(&["127.0.0.1:8002"]);
    assert!(answers(8000) && answers(8001));
    fs::write(&file, passing(&[8000, 8003])).expect("haproxy.cfg");
    gate.reload();
    assert!(answers(8000) && answers(8003));
}

/// marathon-lb starts HAProxy before it has written a configuration.
#[test]
fn a_configuration_that_comes_late() {
    let Some(net) = Net::isolated() else { return };
    echo("127.0.0.1:9000");
    let (setup, file) = setup(&net);
    let gate = setup.start();
    gate.expect_log("the first reload begins to serve");
    assert_eq!(gate.ask("/readyz").expect("an answer").status, 200);
    assert_eq!(public(), [0; 0]);
    assert_eq!(gate.children(), []);
    // Nothing to read is still no reason to end.
    let done = gate.run(["reload"]);
    assert_ne!(done.code, Some(0), "{done:?}");
    done.expect_words(&[file.to_str().expect("a plain path"), "doesn't exist"]);
    fs::write(&file, passing(&[8000])).expect("haproxy.cfg");
    gate.reload();
    assert!(answers(8000));
    assert_eq!(public(), [8000]);
    assert_eq!(gate.ask("/readyz").expect("an answer").status, 200);
}

#[test]
fn two_frontends_on_one_port_share_its_clients() {
    const EACH: usize = 60;
    let Some(net) = Net::isolated() else { return };
    let (setup, file) = setup(&net);
    let front = |name: &str| {
        format!(
            "frontend {name}\n    mode http\n    bind 127.0.0.1:8000\n    http-request return status 200 content-type text/plain string {name}\n"
        )
    };
    fs::write(&file, HEAD.to_owned() + &front("one") + &front("two")).expect("haproxy.cfg");
    let gate = setup.start();
    gate.expect_log(&format!("{}:", file.display()));
    let mut counts = [0; 2];
    for _ in 0..2 * EACH {
        match curl(["http://127.0.0.1:8000/"]).body.as_str() {
            "one" => counts[0] += 1,
            "two" => counts[1] += 1,
            other => panic!("{other}"),
        }
    }
    println!("one {}, two {}", counts[0], counts[1]);
    assert!(counts.iter().all(|&count| count > EACH / 2), "{counts:?}");
    // A later configuration has but one.
    fs::write(&file, HEAD.to_owned() + &front("two")).expect("haproxy.cfg");
    gate.reload();
    expect_text("http://127.0.0.1:8000/", "two");
    assert!((0..20).all(|_| curl(["http://127.0.0.1:8000/"]).body == "two"));
}
