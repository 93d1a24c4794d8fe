//! A hundred reloads between two configurations of marathon-lb lose no connection, and fail no client that keeps one.

use std::fs;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::common::backend::Outside;
use crate::common::gate::{Gate, Setup};
use crate::common::http;
use crate::common::load::{Load, Plan};
use crate::common::net::{Drops, Net};
use crate::common::wait_until;
use crate::fixture::{echo, in_front_of, own_root};
use crate::samples;

/// A sample, and a port that it alone has.
const SAMPLES: [(&str, &str); 2] = [
    ("03-mixed", "127.0.0.1:10102"),
    ("07-binds", "127.0.0.42:10201"),
];

/// The servers behind those ports.
const SERVERS: [&str; 4] = [
    "127.0.0.1:31200",
    "127.0.0.1:31210",
    "127.0.0.1:31000",
    "127.0.0.1:31010",
];

const RELOADS: u32 = 100;

/// Reloads where clients fail by themselves: enough to compare.
const COMPARED: u32 = 30;

/// A gate in front of the first sample. Its port 80 has what a load needs.
struct Bench {
    net: Net,
    gate: Gate,
    file: PathBuf,
    texts: [String; 2],
    _app: Outside,
}

impl Bench {
    fn new(keep_alive: &str) -> Option<Bench> {
        let net = Net::isolated()?;
        own_root();
        samples::furnish();
        SERVERS.into_iter().for_each(echo);
        let setup = Setup::bare(&net).options(["--max-generations", "16"]);
        let socket = setup.dir().join("app.sock");
        // A unix socket: what the namespace counts is between the clients and the gate.
        let app = Outside::start_unix(&socket, &[]);
        let texts = SAMPLES.map(|(name, _)| adapted(name, keep_alive, &socket));
        let file = setup.dir().join("haproxy.cfg");
        fs::write(&file, &texts[0]).expect("haproxy.cfg");
        Some(Bench {
            gate: in_front_of(setup, &file).start(),
            net,
            file,
            texts,
            _app: app,
        })
    }

    /// To the other sample and back, so many reloads in all. Its own port is there, and the other one's isn't.
    fn reload(&self, times: u32) {
        for round in 1..=times as usize {
            let (now, before) = (round % 2, (round - 1) % 2);
            fs::write(&self.file, &self.texts[now]).expect("haproxy.cfg");
            self.gate.reload();
            let answer = http::get(own_port(now), "/").expect("an answer");
            assert_eq!(answer.status, 200, "{}", SAMPLES[now].0);
            // Not earlier: a SYN that meets the close itself may be dropped, and is refused when it is sent again.
            wait_until("the other port is closed", || !listens(own_port(before)));
            let gone = http::get(own_port(before), "/").expect_err("a port that has gone");
            assert_eq!(gone.kind(), ErrorKind::ConnectionRefused, "{gone}");
        }
    }
}

/// Whether anybody listens there. Cheaper than a look through /proc, where every ended connection still stands.
fn listens(address: SocketAddr) -> bool {
    let listed = Command::new("ss")
        .args(["-Hlnt", "src", &address.to_string()])
        .output()
        .expect("ss runs");
    assert!(listed.status.success(), "{listed:?}");
    !listed.stdout.is_empty()
}

fn own_port(sample: usize) -> SocketAddr {
    SAMPLES[sample].1.parse().expect("an address")
}

/// The sample with a server for what the load asks at port 80.
fn adapted(name: &str, keep_alive: &str, app: &Path) -> String {
    let mut text = samples::text(name);
    let front = "frontend marathon_http_in\n  bind *:80\n  mode http\n";
    let changes = [
        (front, format!("{front}  default_backend load\n")),
        (
            "  timeout http-keep-alive  1s\n",
            format!("  timeout http-keep-alive {keep_alive}\n"),
        ),
    ];
    for (old, new) in changes {
        assert_eq!(text.matches(old).count(), 1, "{name}: {old}");
        text = text.replace(old, &new);
    }
    format!(
        "{text}\nbackend load\n  mode http\n  server app unix@{}\n",
        app.display()
    )
}

/// 1,000 new connections a second, and clients that reuse theirs within 4 s.
fn plan(kept: usize, kept_requests: usize) -> Plan {
    Plan {
        kept,
        kept_requests,
        downloads: 0,
        ..Plan::standing(SocketAddr::from(([127, 0, 0, 1], 80)))
    }
}

#[test]
fn load_a_hundred_reloads() {
    let Some(bench) = Bench::new("30s") else {
        return;
    };
    let before = bench.net.drops();
    let load = Load::start(plan(100, 10));
    load.wait_flowing();
    bench.reload(RELOADS);
    let report = load.stop();
    report.print("100 reloads between samples");
    report.expect_standing();
    // Not even where HTTP would allow it: between two requests.
    assert_eq!(report.kept.ended_idle, 0);
    assert_eq!(bench.net.drops() - before, Drops::default());
    assert_eq!(bench.gate.reloads("success"), f64::from(RELOADS));
    let metrics = bench.gate.metrics();
    for never in [
        "forced_closes_total",
        "listener_drops_total",
        "backend_restarts_total",
    ] {
        assert_eq!(metrics.sum(never, &[]), 0.0, "{never}");
    }
}

/// With the samples' own second, HAProxy closes a connection at the moment when its client asks again, now and then, and the more
/// often the busier the machine is: a new process that starts beside it is enough. Whatever ends a connection so comes after that
/// second, with reloads as without; what a reload would end comes at any moment.
#[test]
fn load_reloads_with_a_short_keep_alive() {
    let done = Arc::new(AtomicBool::new(false));
    let quiet = {
        let done = Arc::clone(&done);
        thread::spawn(move || {
            short_keep_alive("no reload", |_| {
                while !done.load(Ordering::Relaxed) {
                    thread::park();
                }
            });
        })
    };
    let reloading =
        thread::spawn(|| short_keep_alive("30 reloads", |bench| bench.reload(COMPARED)));
    let reloading = reloading.join();
    done.store(true, Ordering::Relaxed);
    quiet.thread().unpark();
    quiet.join().expect("the one without reloads");
    reloading.expect("the one with reloads");
}

/// A load for as long as `act` takes, with clients that often pause for more than the second after which HAProxy closes.
fn short_keep_alive(name: &str, act: impl FnOnce(&Bench)) {
    let Some(bench) = Bench::new("1s") else {
        return;
    };
    let before = bench.net.drops();
    let load = Load::start(Plan {
        fresh_per_second: 200,
        ..plan(150, 4)
    });
    load.wait_flowing();
    act(&bench);
    let report = load.stop();
    report.print(&format!("{name}, keep-alive of 1 s"));
    assert_eq!(report.fresh.failures(), 0, "{:?}", report.fresh.failed);
    assert!(report.kept.ended_idle > 0, "no pause was longer than 1 s");
    let soonest = report.kept.soonest_end.expect("some ended");
    println!("{name}: the first end after {soonest:?}");
    // HAProxy's clock is as old as its last wake-up.
    assert!(soonest >= Duration::from_millis(900), "{name}: {soonest:?}");
    assert_eq!(bench.net.drops() - before, Drops::default());
}
