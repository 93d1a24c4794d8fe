//! The verbs beside `reload`: what they do, and what they exit with.

mod generations;
mod hold;
mod looks;

use std::fs;
use std::process::Stdio;

use nix::sys::signal::Signal;

use crate::common::backend::{self, Hop, generation};
use crate::common::gate::{Gate, Setup, syngate};
use crate::common::net::Net;
use crate::common::wait_until;

#[test]
fn verbs_without_a_gate_exit_with_3() {
    let directory = tempfile::tempdir().expect("a directory");
    for verb in [
        "reload",
        "status",
        "release",
        "rollback",
        "connections",
        "events",
        "hold",
    ] {
        let output = syngate(directory.path(), [verb, "--control", "nobody.sock"])
            .output()
            .expect("syngate runs");
        let done = crate::common::done::Done::from(output);
        done.expect_code(3).expect_words(&["nobody.sock"]);
    }
}

#[test]
fn signals_other_than_those_to_stop_leave_it_running() {
    let net = Net::new();
    let gate = server(&net, &[]);
    gate.signal(Signal::SIGUSR2);
    gate.signal(Signal::SIGPIPE);
    gate.signal(Signal::SIGHUP);
    wait_until("it has reloaded", || gate.reloads("success") == 1.0);
    assert_eq!(generation(&gate), "2");
}

#[test]
fn completions_and_man_pages_come_from_the_binary() {
    let directory = tempfile::tempdir().expect("a directory");
    for shell in ["bash", "zsh", "fish"] {
        let output = syngate(directory.path(), ["generate", "completions", shell])
            .stdout(Stdio::piped())
            .output()
            .expect("syngate runs");
        assert!(
            output.status.success() && output.stdout.len() > 500,
            "{shell}"
        );
    }
    assert!(
        syngate(directory.path(), ["generate", "man", "."])
            .status()
            .expect("syngate runs")
            .success()
    );
    let pages = fs::read_dir(directory.path()).expect("the pages").count();
    assert!(pages >= 10, "{pages} man pages");
}

fn server(net: &Net, options: &[&str]) -> Gate {
    Setup::new(net)
        .options(options)
        .backend(backend::own(Hop::Socket, &[]))
        .start()
}
