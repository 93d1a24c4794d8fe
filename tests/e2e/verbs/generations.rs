//! `rollback`, `activate`, and how long they and `reload` wait.

use std::fs;
use std::path::Path;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::{generation, server};
use crate::common::backend::{self, Hop, Outside};
use crate::common::done::Done;
use crate::common::gate::Setup;
use crate::common::http;
use crate::common::load::{Load, Plan};
use crate::common::net::{Drops, Net};
use crate::common::wait_until;
use crate::common::wire::{End, connect, read_all, send};

#[test]
fn load_rollback_while_the_previous_generation_is_kept() {
    let Some(net) = Net::isolated() else { return };
    let gate = server(&net, &["--keep-previous", "60s", "--min-ready", "100ms"]);
    let before = net.drops();
    let load = Load::start(Plan::standing(gate.public()));
    load.wait_flowing();
    gate.reload();
    assert_eq!(generation(&gate), "2");
    gate.run(["rollback"]).expect_code(0);
    assert_eq!(generation(&gate), "1");
    assert_eq!(gate.metrics().sum("generation_active", &[]), 1.0);
    gate.reload();
    assert_eq!(generation(&gate), "3");
    let report = load.stop();
    report.print("rollback");
    report.expect_standing();
    assert_eq!(net.drops() - before, Drops::default());
}

#[test]
fn rollback_that_comes_too_late_says_so() {
    let net = Net::new();
    let gate = server(&net, &["--min-ready", "100ms"]);
    let none = gate.run(["rollback"]);
    none.expect_code(1);
    assert!(!none.err.trim().is_empty(), "no reason is given");
    gate.reload();
    wait_until("the previous one has ended", || {
        gate.metrics().sum("generations", &[("state", "draining")]) == 0.0
    });
    let late = gate.run(["rollback"]);
    late.expect_code(1);
    assert!(!late.err.trim().is_empty(), "no reason is given");
    assert_eq!(generation(&gate), "2");
}

#[test]
fn load_activate_another_server() {
    let Some(net) = Net::isolated() else { return };
    let setup = Setup::new(&net);
    let (blue, green) = (
        setup.dir().join("blue.sock"),
        setup.dir().join("green.sock"),
    );
    let _blue = Outside::start_unix(&blue, &[]);
    let green_server = Outside::start_unix(&green, &[]);
    let gate = setup
        .options([
            "--min-ready",
            "100ms",
            "--ready-timeout",
            "2s",
            "--backend",
            &format!("unix:{}", blue.display()),
        ])
        .start();
    let before = net.drops();
    let load = Load::start(Plan::standing(gate.public()));
    load.wait_flowing();
    gate.run([
        "activate",
        "--backend",
        &format!("unix:{}", green.display()),
    ])
    .expect_code(0);
    assert_eq!(
        http::get(gate.public(), "/pid").expect("an answer").text(),
        green_server.pid().to_string()
    );
    // A reload keeps it, and the status says so.
    gate.reload();
    assert_eq!(
        http::get(gate.public(), "/pid").expect("an answer").text(),
        green_server.pid().to_string()
    );
    assert!(gate.status_json().to_string().contains("green.sock"));
    // Nor does one for a listener that isn't there, or one that leaves a listener without.
    gate.run(["activate", "--backend", "nobody=127.0.0.1:9"])
        .expect_code(1);
    // A server that isn't there never becomes active.
    gate.run(["activate", "--backend", "unix:nobody.sock"])
        .expect_code(1);
    assert_eq!(
        http::get(gate.public(), "/pid").expect("an answer").text(),
        green_server.pid().to_string()
    );
    let report = load.stop();
    report.print("activate");
    report.expect_standing();
    assert_eq!(net.drops() - before, Drops::default());
}

#[test]
fn wait_that_takes_too_long_ends_and_the_reload_goes_on() {
    let net = Net::new();
    let gate = server(&net, &["--min-ready", "1s"]);
    gate.run(["reload", "--timeout", "200ms"]).expect_code(5);
    wait_until("it has succeeded all the same", || {
        gate.reloads("success") == 1.0
    });
    assert_eq!(generation(&gate), "2");
}

/// The drain of what it replaces can be waited for, as that of a reload.
#[test]
fn activate_waits_as_long_as_it_is_told() {
    let net = Net::new();
    let setup = Setup::new(&net);
    let socket = |name: &str| setup.dir().join(format!("{name}.sock"));
    let (blue, green) = (socket("blue"), socket("green"));
    let _servers = [&blue, &green].map(|path| Outside::start_unix(path, &[]));
    let at = |path: &Path| format!("unix:{}", path.display());
    let gate = setup
        .options(["--min-ready", "1s", "--backend", &at(&blue)])
        .start();
    let activate = ["activate", "--backend", &at(&green), "--timeout", "200ms"];
    gate.run(activate).expect_code(5);
    wait_until("it has succeeded all the same", || {
        gate.reloads("success") == 1.0
    });
    let activate = ["activate", "--backend", &at(&blue), "--wait", "drained"];
    gate.run(activate).expect_code(0);
    let draining = gate.metrics().sum("generations", &[("state", "draining")]);
    assert_eq!(draining, 0.0);
}

/// Drained means drained, also after a reload that failed half way: its generation's connection is counted until it ends, and an
/// older generation than that to which it flipped back is waited for.
#[test]
fn after_a_flip_back_every_generation_counts() {
    let net = Net::new();
    let setup = Setup::bare(&net).options(["--config", "syngate.toml"]);
    let (public, file) = (setup.public(), setup.dir().join("syngate.toml"));
    let configure = |min_ready: &str| {
        let command = backend::own(Hop::Socket, &[]);
        let text = format!(
            "[services.web]\nlisten = '{public}'\nmin_ready = '{min_ready}'\ncommand = {command:?}\n"
        );
        fs::write(&file, text).expect("the file");
    };
    configure("100ms");
    let gate = setup.start();
    let service = || gate.status_json()["services"][0].clone();
    let generations = || -> Vec<(u64, u64)> {
        let service = service();
        let all = service["generations"].as_array().expect("generations");
        let number = |one: &Value, key: &str| one[key].as_u64().expect("a number");
        let pair = |one| (number(one, "number"), number(one, "connections"));
        all.iter().map(pair).collect()
    };
    let kept = connect(public);
    send(&kept, b"GET /kept HTTP/1.1\r\n\r\n");
    wait_until("it is the first one's", || generations() == [(1, 1)]);
    gate.reload();

    // The third dies after it has answered one client, which doesn't close.
    configure("60s");
    let mut reload = gate.verb(["reload"]).spawn().expect("syngate runs");
    wait_until("the third is active", || service()["active"] == 3);
    let late = connect(public);
    send(&late, b"GET /late HTTP/1.1\r\nConnection: close\r\n\r\n");
    let (answer, end) = read_all(&late);
    assert!(answer.ends_with(b"/late") && end == End::Eof, "{end:?}");
    let all = service()["generations"].clone();
    let third = all.as_array().expect("generations").last();
    let pid = third.and_then(|third| third["pid"].as_i64());
    kill(Pid::from_raw(pid.expect("a pid") as i32), Signal::SIGKILL).expect("killed");
    assert_eq!(reload.wait().expect("wait").code(), Some(1));
    assert_eq!(gate.reloads("flipped_back"), 1.0);
    assert_eq!(generations(), [(1, 1), (2, 0)]);
    assert_eq!(gate.status_json()["connections"], 2);

    configure("100ms");
    let mut reload = gate
        .verb(["reload", "--wait", "drained"])
        .spawn()
        .expect("syngate runs");
    wait_until("the second has ended", || generations() == [(1, 1), (4, 0)]);
    assert_eq!(reload.try_wait().expect("wait"), None);
    drop(late);
    wait_until("one is left", || gate.status_json()["connections"] == 1);
    assert_eq!(reload.try_wait().expect("wait"), None);
    drop(kept);
    assert_eq!(reload.wait().expect("wait").code(), Some(0));
    assert_eq!(generations(), [(4, 0)]);
}

/// On stdout or stderr, never on both.
#[test]
fn the_last_word_is_said_once() {
    let net = Net::new();
    let gate = server(&net, &["--min-ready", "100ms", "--check", "test ! -e bad"]);
    let count = |done: &Done, word: &str| format!("{}{}", done.out, done.err).matches(word).count();
    for wait in ["active", "drained"] {
        let done = gate.run(["reload", "--wait", wait]);
        assert_eq!(
            count(done.expect_code(0), "serves; generation"),
            1,
            "{done:?}"
        );
    }
    fs::write(gate.dir().join("bad"), "").expect("a file");
    let done = gate.run(["reload"]);
    assert_eq!(count(done.expect_code(1), "reload failed"), 1, "{done:?}");
    assert!(done.err.contains("reload failed"), "{done:?}");
}
