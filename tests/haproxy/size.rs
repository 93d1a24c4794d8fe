//! Two hundred frontends, as a busy marathon-lb writes them.

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::common::gate::{Gate, Setup};
use crate::common::http;
use crate::common::net::Net;
use crate::fixture::{certificate, in_front_of, listening};

const FRONTENDS: u16 = 200;
/// HTTP, HTTPS, by application, statistics.
const OTHERS: [u16; 4] = [80, 443, 9091, 9090];
const RELOADS: usize = 5;

/// What the gate may need beside HAProxy's own start.
const LIMIT: Duration = Duration::from_secs(1);

fn configuration(directory: &Path, answer: &str) -> String {
    let mut text = format!(
        "global
    maxconn 1000
    stats socket {directory}/stats.sock
defaults
    mode http
    timeout connect 5s
    timeout client 5s
    timeout server 5s
listen stats
    bind 0.0.0.0:9090
    stats enable
frontend http_in
    bind *:80
frontend appid_in
    bind *:9091
frontend https_in
    bind *:443 ssl crt {directory}/cert.pem
",
        directory = directory.display()
    );
    for number in 0..FRONTENDS {
        let port = 10_000 + number;
        let answer = format!("string {answer}-{number}");
        let _ = write!(
            text,
            "frontend front_{number}
    bind *:{port}
    acl host hdr(host) -i app{number}.test
    http-request return status 200 content-type text/plain {answer}
    use_backend app_{number} if host
backend app_{number}
    balance roundrobin
    option forwardfor
    http-request set-header X-Forwarded-Port %[dst_port]
    server one 127.0.0.1:{one}
    server two 127.0.0.1:{two}
",
            one = 20_000 + number,
            two = 21_000 + number
        );
    }
    text
}

/// When a reload's steps came, since the call.
struct Times {
    read: Duration,
    starting: Duration,
    ready: Duration,
    active: Duration,
}

/// A reload, with its steps by this process's clock.
fn reload(gate: &Gate) -> Times {
    let start = Instant::now();
    let mut child = gate
        .verb(["reload"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("syngate runs");
    let output = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut steps = Vec::new();
    for line in output.lines().map_while(Result::ok) {
        // `   0.28 s  default  ready       generation 4 is ready`
        let word = line.split_whitespace().nth(3).expect("a step").to_owned();
        steps.push((word, start.elapsed()));
    }
    assert!(child.wait().expect("wait").success(), "{steps:?}");
    let of = |word: &str| {
        let found = steps.iter().find(|(step, _)| step == word);
        found.unwrap_or_else(|| panic!("no {word} in {steps:?}")).1
    };
    Times {
        read: of("check"),
        starting: of("starting"),
        ready: of("ready"),
        active: of("active"),
    }
}

fn expect_all(answer: &str) {
    for number in 0..FRONTENDS {
        let address = ([127, 0, 0, 1], 10_000 + number).into();
        let found = http::get(address, "/").expect("an answer").text();
        assert_eq!(found, format!("{answer}-{number}"));
    }
}

#[test]
fn load_two_hundred_frontends_flip_within_a_second() {
    let Some(net) = Net::isolated() else { return };
    let setup = Setup::bare(&net);
    certificate(&setup.dir().join("cert.pem"), &["app.test"]);
    let file = setup.dir().join("haproxy.cfg");
    fs::write(&file, configuration(setup.dir(), "first")).expect("haproxy.cfg");
    let gate = in_front_of(setup, &file).start();
    let ports: Vec<u16> = listening()
        .into_iter()
        .map(|address| address.port())
        .collect();
    assert!(OTHERS.iter().all(|port| ports.contains(port)), "{ports:?}");
    assert_eq!(
        ports.len(),
        usize::from(FRONTENDS) + OTHERS.len() + 1,
        "the metrics and {ports:?}"
    );
    expect_all("first");
    let mut rests = Vec::new();
    for number in 0..RELOADS {
        let answer = format!("next{number}");
        fs::write(&file, configuration(gate.dir(), &answer)).expect("haproxy.cfg");
        let times = reload(&gate);
        let own = times.ready - times.starting;
        println!(
            "204 binds: read after {} ms, checked after {} ms, active after {} ms, of which HAProxy's start took {} ms",
            times.read.as_millis(),
            times.starting.as_millis(),
            times.active.as_millis(),
            own.as_millis()
        );
        rests.push(times.active - own);
        expect_all(&answer);
    }
    // Whatever else the machine does only adds to it.
    let quickest = rests.iter().min().expect("a reload");
    assert!(*quickest < LIMIT, "{rests:?} beside HAProxy's own start");
}
