//! What marathon-lb and its zdd expect of a reload, in a pid namespace as a container has it: runit, the scripts of
//! `packaging/marathon-lb`, a user who isn't root, and a stand-in for marathon-lb's own reload loop.

mod container;

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::common::net::Net;
use crate::common::{http, wait_until};

use container::{Container, END};

#[test]
fn load_fifty_changes_of_which_every_fifth_is_bad() {
    let Some(_net) = Net::isolated() else { return };
    let lb = Container::start(&[]);
    let _other = TcpListener::bind((Ipv4Addr::UNSPECIFIED, TAKEN)).expect("a port");
    let mut good = 0;
    let mut refused_by = [0; 5];
    for change in 1..=50_u16 {
        let text = lb.config(change);
        let port = 10_000 + change;
        if change % 5 != 0 {
            // The command has ended: nothing is left to wait for.
            assert_eq!(lb.change(&text, true), Change::Reloaded { looks: 1 });
            assert!(answers(port), "the port of {change}");
            if good > 0 {
                wait_until("the old port closes", || !answers(10_000 + good));
            }
            good = change;
        } else {
            let kind = usize::from(change / 5 % 5);
            let (old, new, validate, expected) = &bad()[kind];
            let said = lb.change(&text.replace(old, new), *validate);
            assert_eq!(said, *expected, "{new}");
            wait_until("the new port closes", || !answers(port));
            refused_by[kind] += 1;
        }
        assert_eq!(served(), good.to_string(), "after change {change}");
        lb.expect_stats_socket();
    }
    assert_eq!((good, refused_by), (49, [2; 5]));
    println!("marathon-lb's loop: 40 good changes served, 10 bad ones kept away");
}

/// A port of another program.
const TAKEN: u16 = 10_999;

/// What can't work: what is written instead of what, whether marathon-lb checks it before it asks for a reload, and what comes
/// of it.
fn bad() -> [(&'static str, String, bool, Change); 5] {
    let datagrams = "log-forward f\n  dgram-bind 192.0.2.1:1514\n  log global\n";
    let nonsense = "  nonsense\n";
    let port = format!("  bind *:{TAKEN}\n");
    [
        (END, nonsense.to_owned(), true, Change::Invalid),
        // With --skip-validation it doesn't.
        (END, nonsense.to_owned(), false, Change::Failed(1)),
        // The next three are valid for `haproxy -c`.
        (
            "maxconn 1000\n",
            "maxconn 10000000\n".to_owned(),
            true,
            Change::Failed(1),
        ),
        (END, port, true, Change::Failed(1)),
        // An address that this machine doesn't have, in a section that the gate leaves alone.
        (END, datagrams.to_owned(), true, Change::Failed(1)),
    ]
}

#[test]
fn what_was_fixed_on_disk_is_served_without_another_call() {
    let Some(_net) = Net::isolated() else { return };
    let lb = Container::start(&[]);
    assert!(matches!(
        lb.change(&lb.config(1), true),
        Change::Reloaded { .. }
    ));
    let broken = lb.config(2).replace(END, "  nonsense\n");
    assert_eq!(lb.change(&broken, false), Change::Failed(1));
    assert_eq!(served(), "1");
    lb.write(&lb.config(3));
    wait_until("the fixed configuration is served", || served() == "3");

    // The same with a cause that isn't in the file.
    let other = TcpListener::bind((Ipv4Addr::UNSPECIFIED, TAKEN)).expect("a port");
    let text = lb.config(4).replace(END, &format!("  bind *:{TAKEN}\n"));
    assert_eq!(lb.change(&text, true), Change::Failed(1));
    assert_eq!(lb.change(&text, true), Change::Unchanged);
    drop(other);
    wait_until("the port is free and taken", || {
        served() == "4" && answers(TAKEN)
    });
}

#[test]
fn a_reload_without_a_change_starts_a_new_haproxy() {
    let Some(_net) = Net::isolated() else { return };
    let lb = Container::start(&[]);
    let text = lb.config(1);
    assert_eq!(lb.change(&text, true), Change::Reloaded { looks: 1 });
    assert_eq!(lb.change(&text, true), Change::Unchanged);
    for _ in 0..5 {
        assert_eq!(lb.reload(), Change::Reloaded { looks: 1 });
    }
}

#[test]
fn without_a_configuration_it_waits_for_the_first_reload() {
    let Some(_net) = Net::isolated() else { return };
    let lb = Container::start(&[]);
    assert_eq!(lb.pids(), BTreeSet::new());
    assert!(!answers(80));
    // It isn't an endless loop of starts either: runit sees one process.
    lb.run(["sv", "check", &lb.service()]).expect_code(0);
    // Without a configuration there is nothing to serve: the command says so, and comes back.
    let reload = lb.run([lb.path("reload_haproxy.sh")]);
    reload
        .expect_code(4)
        .expect_words(&["haproxy.cfg doesn't exist"]);
    assert_eq!(
        lb.change(&lb.config(1), true),
        Change::Reloaded { looks: 1 }
    );
    assert_eq!(served(), "1");
    assert!(!lb.log().contains("panicked"), "{}", lb.log());
}

/// `sv reload` is SIGHUP, and comes back at once.
#[test]
fn sv_reload_is_a_reload() {
    let Some(_net) = Net::isolated() else { return };
    let lb = Container::start(&[("PORTS", "80,443,9090")]);
    lb.write(&lb.config(1));
    let reload = || lb.run(["sv", "reload", &lb.service()]);
    reload().expect_code(0);
    wait_until("the first configuration is served", || {
        answers(80) && served() == "1"
    });
    let gate = lb.run(["sv", "status", &lb.service()]).out;
    lb.write(&lb.config(2));
    reload().expect_code(0);
    wait_until("the second one is served", || served() == "2");
    let pid = |line: &str| line.split(')').next().map(str::to_owned);
    let now = lb.run(["sv", "status", &lb.service()]).out;
    assert_eq!(pid(&gate), pid(&now), "the gate is still the same process");
}

/// zdd goes on with a deployment when no more than two processes are named haproxy.
#[test]
fn two_pids_are_settled_and_more_are_draining() {
    let Some(_net) = Net::isolated() else { return };
    let lb = Container::start(&[]);
    let change = |version| {
        assert_eq!(
            lb.change(&lb.config(version), true),
            Change::Reloaded { looks: 1 }
        );
    };
    change(1);
    wait_until("two pids", || pids_as_zdd_sees_them() == 2);
    let client = Client::connect();
    change(2);
    assert_eq!(pids_as_zdd_sees_them(), 4);
    assert_eq!(lb.pids().len(), 4);
    change(3);
    wait_until(
        "the second one has ended, the first one has a client",
        || pids_as_zdd_sees_them() == 4,
    );
    client.ask();
    wait_until("two pids again", || pids_as_zdd_sees_them() == 2);
    assert_eq!(lb.pids().len(), 2);
    assert_eq!(lb.metric("forced_closes_total"), 0.0);
}

#[test]
fn sigterm_delay_bounds_the_drain() {
    let Some(_net) = Net::isolated() else { return };
    let lb = Container::start(&[("HAPROXY_RELOAD_SIGTERM_DELAY", "1s")]);
    lb.change(&lb.config(1), true);
    let mut client = Client::connect();
    lb.change(&lb.config(2), true);
    client.expect_end();
    wait_until("two pids", || pids_as_zdd_sees_them() == 2);
    assert_eq!(lb.metric("forced_closes_total"), 1.0);
}

#[test]
fn the_reload_command_waits_for_a_gate_that_runit_restarts() {
    let Some(_net) = Net::isolated() else { return };
    let lb = Container::start(&[]);
    lb.change(&lb.config(1), true);
    lb.run(["sv", "kill", &lb.service()]).expect_code(0);
    assert_eq!(
        lb.change(&lb.config(2), true),
        Change::Reloaded { looks: 1 }
    );
    assert_eq!(served(), "2");
}

/// A gate that doesn't move holds marathon-lb up no longer than the command's time-out, and does what it was asked for when it can.
#[test]
fn the_reload_command_is_bounded() {
    let Some(_net) = Net::isolated() else { return };
    let lb = Container::start(&[]);
    lb.change(&lb.config(1), true);
    lb.run(["sv", "pause", &lb.service()]).expect_code(0);
    lb.write(&lb.config(2));
    let script = lb.path("reload_haproxy.sh");
    let words = [script.as_os_str(), "--timeout".as_ref(), "1s".as_ref()];
    let start = Instant::now();
    lb.run(words).expect_code(5);
    assert!(start.elapsed() < Duration::from_secs(10));
    lb.run(["sv", "cont", &lb.service()]).expect_code(0);
    wait_until("the reload has gone on", || served() == "2");
}

/// What came of a change in marathon-lb's loop.
#[derive(Debug, PartialEq, Eq)]
enum Change {
    /// The file says so already.
    Unchanged,
    /// `haproxy -c` didn't take it; the file stays as it was.
    Invalid,
    /// The command's exit code. The file has the new text by now, so nobody asks again.
    Failed(i32),
    /// A new pid was seen, at this look since the command had ended.
    Reloaded { looks: u32 },
    /// No new pid, however often the command was run.
    GaveUp,
}

impl Container {
    /// What marathon-lb does with a text that it has generated. `validate`: it wasn't started with --skip-validation.
    fn change(&self, text: &str, validate: bool) -> Change {
        let file = self.path("haproxy.cfg");
        if fs::read_to_string(&file).is_ok_and(|now| now == text) {
            return Change::Unchanged;
        }
        let temporary = self.path("tmp/check.cfg");
        fs::write(&temporary, text).expect("write");
        let check = ["haproxy", "-f", temporary.to_str().expect("a path"), "-c"];
        if validate && self.run(check).code != Some(0) {
            return Change::Invalid;
        }
        fs::rename(temporary, file).expect("rename");
        self.reload()
    }

    /// Its wait for a reload: with --max-reload-retries 3 and --reload-interval 2.
    fn reload(&self) -> Change {
        const INTERVAL: Duration = Duration::from_secs(2);
        let command = self.path("reload_haproxy.sh");
        let old = self.pids();
        let mut looks = 0;
        for _ in 0..3 {
            let code = self.run([&command]).code.expect("an exit code");
            if code != 0 {
                return Change::Failed(code);
            }
            let end = Instant::now() + INTERVAL;
            while Instant::now() < end {
                looks += 1;
                if !self.pids().is_subset(&old) {
                    return Change::Reloaded { looks };
                }
                sleep(Duration::from_millis(100)); // as marathon-lb does
            }
        }
        Change::GaveUp
    }
}

fn local(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

/// Something listens there.
fn answers(port: u16) -> bool {
    TcpStream::connect(local(port)).is_ok()
}

/// The version of the configuration that is served.
fn served() -> String {
    http::get(local(80), "/").expect("an answer").text()
}

fn pids_as_zdd_sees_them() -> usize {
    let answer = http::get(local(9090), "/_haproxy_getpids").expect("an answer");
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.text().split_whitespace().count()
}

/// A client that keeps its connection.
struct Client(TcpStream);

impl Client {
    fn connect() -> Client {
        let stream = TcpStream::connect(local(80)).expect("connect");
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .expect("a time-out");
        let client = Client(stream);
        client.ask();
        client
    }

    fn ask(&self) {
        let mut stream = &self.0;
        stream
            .write_all(b"GET / HTTP/1.1\r\nHost: lb\r\n\r\n")
            .expect("write");
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n1") {
            let mut byte = [0];
            stream.read_exact(&mut byte).expect("an answer");
            answer.push(byte[0]);
        }
    }

    /// The connection is ended from the other side.
    fn expect_end(&mut self) {
        let error = match self.0.read(&mut [0]) {
            Ok(read) => return assert_eq!(read, 0),
            Err(error) => error,
        };
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    }
}
