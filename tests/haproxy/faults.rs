//! Reloads that fail: what served serves, its stats socket answers, the caller hears why, and the next reload works.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use crate::common::gate::{Gate, Setup};
use crate::common::net::Net;
use crate::common::wait_until;
use crate::fixture::{Alone, curl, expect_text, in_front_of};

const URL: &str = "http://127.0.0.1:8000/";

/// Answers `answer`; more lines of `global`, and more sections.
fn configuration(directory: &Path, answer: &str, global: &str, sections: &str) -> String {
    let maxconn = if global.contains("maxconn") {
        ""
    } else {
        "maxconn 100"
    };
    format!(
        "global
    {maxconn}
    localpeer here
    stats socket {}/stats.sock level admin
    {global}
defaults
    mode http
    timeout connect 5s
    timeout client 5s
    timeout server 5s
frontend front
    bind 127.0.0.1:8000
    http-request return status 200 content-type text/plain string {answer}
{sections}
",
        directory.display()
    )
}

/// What keeps a generation from starting.
struct Fault {
    name: &'static str,
    global: &'static str,
    sections: &'static str,
    /// What the caller is told.
    words: &'static [&'static str],
    outcome: &'static str,
    /// HAProxy's own check finds nothing.
    valid: bool,
}

/// A program that knows nothing of any gate listens on it.
const TAKEN: &str = "127.0.0.1:8100";

const FAULTS: [Fault; 7] = [
    Fault {
        name: "an unknown keyword",
        global: "",
        sections: "    frobnicate",
        words: &["[ALERT]", "unknown keyword 'frobnicate'"],
        outcome: "check_failed",
        valid: false,
    },
    Fault {
        name: "a server that nobody uses in this way",
        global: "",
        sections: "backend app\n    server app 127.0.0.1:8000 chek",
        words: &["[ALERT]", "'chek'"],
        outcome: "check_failed",
        valid: false,
    },
    Fault {
        name: "a public port that is taken",
        global: "",
        sections: "frontend other\n    bind 127.0.0.1:8100\n    http-request deny",
        words: &["127.0.0.1:8100"],
        outcome: "listen_failed",
        valid: true,
    },
    Fault {
        name: "a port for peers that is taken",
        global: "",
        sections: "peers all\n    bind 127.0.0.1:8100\n    server here\nbackend table\n    stick-table type ip size 10 peers all",
        words: &["[ALERT]", "127.0.0.1:8100"],
        outcome: "start_failed",
        valid: true,
    },
    Fault {
        name: "a port for logs that is taken",
        global: "",
        sections: "log-forward logs\n    bind 127.0.0.1:8100\n    log 127.0.0.1:8514 local0",
        words: &["[ALERT]", "127.0.0.1:8100"],
        outcome: "start_failed",
        valid: true,
    },
    Fault {
        name: "more connections than there are descriptors",
        global: "maxconn 50000",
        sections: "",
        words: &[
            "haproxy.cfg:5: ",
            "needs at least 1000",
            "its limit is 20000",
            "raise the hard limit",
        ],
        outcome: "check_failed",
        valid: true,
    },
    Fault {
        name: "a directory that isn't there, found when the sockets are bound",
        global: "chroot /nonexistent",
        sections: "",
        words: &["[ALERT]", "/nonexistent"],
        outcome: "start_failed",
        valid: true,
    },
];

/// What serves.
#[derive(Debug, PartialEq)]
struct Serving {
    answer: String,
    /// Of the process that answers at the canonical path of the stats socket.
    stats: String,
    generation: f64,
}

impl Serving {
    fn look(gate: &Gate) -> Serving {
        Serving {
            answer: curl([URL]).body,
            stats: stats_pid(&gate.dir().join("stats.sock")).expect("the stats socket answers"),
            generation: gate.metrics().sum("generation_active", &[]),
        }
    }
}

/// Who answers at a stats socket.
fn stats_pid(path: &Path) -> io::Result<String> {
    let mut stream = UnixStream::connect(path)?;
    stream.write_all(b"show info\n")?;
    stream.shutdown(Shutdown::Write)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let pid = answer.lines().find_map(|line| line.strip_prefix("Pid: "));
    pid.map(str::to_owned)
        .ok_or_else(|| io::Error::other(answer.clone()))
}

fn write(gate: &Gate, answer: &str, global: &str, sections: &str) {
    let text = configuration(gate.dir(), answer, global, sections);
    fs::write(file(gate.dir()), text).expect("haproxy.cfg");
}

fn file(directory: &Path) -> PathBuf {
    directory.join("haproxy.cfg")
}

fn gate(net: &Net) -> Gate {
    // The limit is the one that a message names.
    let setup = Setup::bare(net).under(["prlimit", "--nofile=20000:20000"]);
    let text = configuration(setup.dir(), "first", "", "");
    let path = file(setup.dir());
    fs::write(&path, text).expect("haproxy.cfg");
    in_front_of(setup, &path).start()
}

#[test]
fn whatever_fails_the_last_one_serves() {
    let Some(net) = Net::isolated() else { return };
    let _taken = TcpListener::bind(TAKEN).expect("bind");
    let gate = gate(&net);
    for (number, fault) in FAULTS.iter().enumerate() {
        let name = fault.name;
        let before = Serving::look(&gate);
        let counted = gate.reloads(fault.outcome);
        write(&gate, "bad", fault.global, fault.sections);
        assert_eq!(is_valid(&file(gate.dir())), fault.valid, "{name}");
        let done = gate.run(["reload"]);
        println!("{name}:\n{}", done.err);
        done.expect_code(1);
        for word in fault.words {
            assert!(
                done.err.contains(word),
                "{name}: `{word}` is missing in:\n{}",
                done.err
            );
        }
        assert_eq!(Serving::look(&gate), before, "{name}");
        // It may have been tried again by itself since.
        assert!(gate.reloads(fault.outcome) > counted, "{name}");

        let answer = format!("fixed{number}");
        write(&gate, &answer, "", "");
        gate.reload();
        let after = Serving::look(&gate);
        assert_eq!(after.answer, answer, "{name}");
        assert_ne!(after.stats, before.stats, "{name}");
    }
}

fn is_valid(file: &Path) -> bool {
    let mut check = std::process::Command::new(crate::fixture::program());
    let output = check.arg("-c").arg("-f").arg(file).output();
    output.expect("haproxy runs").status.success()
}

/// What happens without a gate: the socket of a start that fails takes the place of the one that answers.
#[test]
fn without_a_gate_a_failed_start_leaves_the_stats_socket_dead() {
    let Some(_net) = Net::isolated() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let (good, bad) = (file(directory.path()), directory.path().join("bad.cfg"));
    fs::write(&good, configuration(directory.path(), "first", "", "")).expect("haproxy.cfg");
    let text = configuration(directory.path(), "second", "chroot /nonexistent", "");
    // On a port of its own: what is shown is about the path.
    fs::write(&bad, text.replace(":8000", ":8001")).expect("bad.cfg");
    let alone = Alone::start(&good).expect("HAProxy starts");
    let socket = directory.path().join("stats.sock");
    stats_pid(&socket).expect("the stats socket answers");
    // An older one says that it is ready before it fails.
    if let Some(mut failing) = Alone::start(&bad) {
        failing.wait();
    }
    assert_eq!(curl([URL]).body, "first");
    let error = stats_pid(&socket).expect_err("nobody listens");
    assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    drop(alone);
}

/// Who writes a bad configuration and then a good one needn't ask twice.
#[test]
fn a_failed_reload_is_tried_again_until_the_file_is_good() {
    let Some(net) = Net::isolated() else { return };
    let gate = gate(&net);
    write(&gate, "bad", "", "    frobnicate");
    gate.run(["reload"]).expect_code(1);
    write(&gate, "good", "", "");
    expect_text(URL, "good");
    wait_until("the stats socket is the new one's", || {
        let generation = gate.metrics().sum("generation_active", &[]);
        generation > 1.0 && stats_pid(&gate.dir().join("stats.sock")).is_ok()
    });
}

/// A first start with a configuration that HAProxy refuses ends the gate, in HAProxy's own words.
#[test]
fn a_bad_configuration_at_the_first_start() {
    let Some(net) = Net::isolated() else { return };
    let setup = Setup::bare(&net);
    let path = file(setup.dir());
    let text = configuration(setup.dir(), "bad", "", "    frobnicate");
    fs::write(&path, text).expect("haproxy.cfg");
    let mut gate = in_front_of(setup, &path).spawn();
    let status = gate.wait_exit(std::time::Duration::from_secs(10));
    assert_eq!(status.code(), Some(78), "{}", gate.log());
    for word in ["[ALERT]", "unknown keyword 'frobnicate'"] {
        assert!(gate.log().contains(word), "{}", gate.log());
    }
}
