//! `docs/tutorial.md`, step by step, with the server, the command line, the configurations and the words that stand there.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::common::gate::{Gate, Setup};
use crate::common::http;
use crate::common::net::Net;
use crate::common::wait_until;
use crate::document::blocks;

const DOCUMENT: &str = include_str!("../../docs/tutorial.md");

/// The command line of the gate: its options, without the listener, and COMMAND.
fn command_line() -> (Vec<String>, Vec<String>) {
    let line = blocks(DOCUMENT, "sh")
        .into_iter()
        .find_map(|block| block.trim().strip_prefix("syngate run --listen 8080 "));
    let (options, command) = line
        .and_then(|rest| rest.split_once(" -- "))
        .expect("a command line");
    let words = |text: &str| shlex::split(text).expect("words");
    (words(options), words(command))
}

/// Writes the configuration of which the document has `word`, as it says.
fn configure(directory: &Path, word: &str) {
    let line = DOCUMENT
        .lines()
        .find(|line| line.starts_with("echo '{") && line.contains(word));
    let mut shell = Command::new("sh");
    let wrote = shell
        .args(["-c", line.expect(word)])
        .current_dir(directory)
        .status();
    assert!(wrote.expect("sh").success());
}

/// The document's line about a refused reload.
fn refusal(word: &str) -> &'static str {
    DOCUMENT
        .lines()
        .find(|line| line.starts_with("syngate: reload failed: ") && line.contains(word))
        .expect(word)
}

fn ask(gate: &Gate) -> String {
    http::get(gate.public(), "/").expect("an answer").text()
}

#[test]
fn the_tutorial_as_it_stands_there() {
    let net = Net::new();
    let (options, command) = command_line();
    let setup = Setup::new(&net).options(options).backend(command);
    fs::write(setup.dir().join("server.py"), blocks(DOCUMENT, "python")[0]).expect("the server");
    configure(setup.dir(), "hello\"}");
    let gate = setup.start();
    assert_eq!(ask(&gate), "hello\n");

    // Reload under load.
    let reloaded = AtomicBool::new(false);
    let answers = thread::scope(|scope| {
        let client = scope.spawn(|| {
            let mut answers = Vec::new();
            while !reloaded.load(Ordering::Relaxed)
                || answers.last().is_none_or(|one| one == "hello\n")
            {
                answers.push(ask(&gate));
            }
            answers
        });
        configure(gate.dir(), "good day");
        let done = gate.run(["reload"]);
        reloaded.store(true, Ordering::Relaxed);
        let steps = [
            "check", "starting", "ready", "active", "success", "draining",
        ];
        done.expect_code(0).expect_words(&steps);
        client.join().expect("no request fails")
    });
    let flip = answers
        .iter()
        .position(|one| one == "good day\n")
        .expect("the new one");
    assert!(
        answers[..flip].iter().all(|one| one == "hello\n"),
        "{answers:?}"
    );
    assert!(
        answers[flip..].iter().all(|one| one == "good day\n"),
        "{answers:?}"
    );

    // Two that are refused.
    for (configuration, word) in [
        ("\"greeting\": }", "Expecting value"),
        ("world", "KeyError"),
    ] {
        configure(gate.dir(), configuration);
        gate.run(["reload"])
            .expect_code(1)
            .expect_words(&[refusal(word)]);
        assert_eq!(ask(&gate), "good day\n");
    }
    let metrics = gate.metrics();
    assert_eq!(metrics.sum("last_reload_successful", &[]), 0.0);
    assert_eq!(metrics.sum("listener_drops_total", &[]), 0.0);
    configure(gate.dir(), "welcome");
    gate.reload();
    assert_eq!(ask(&gate), "welcome\n");

    // A crash.
    let status = gate.status_json();
    let active = &status["services"][0]["active"];
    let generations = status["services"][0]["generations"]
        .as_array()
        .expect("generations");
    let served = generations.iter().find(|one| &one["number"] == active);
    let pid = served.and_then(|one| one["pid"].as_i64()).expect("a pid");
    kill(Pid::from_raw(pid as i32), Signal::SIGKILL).expect("kill");
    // A process that isn't dead yet takes a request with it.
    wait_until("the server is dead", || {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
        stat.is_ok_and(|stat| stat.contains(") Z ")) || !Path::new(&format!("/proc/{pid}")).exists()
    });
    assert_eq!(ask(&gate), "welcome\n");
}
