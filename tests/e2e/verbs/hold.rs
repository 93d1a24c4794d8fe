//! `hold` and `release`.

use std::fs;
use std::time::Duration;

use super::{generation, server};
use crate::common::backend::Outside;
use crate::common::gate::Setup;
use crate::common::http;
use crate::common::load::{Load, Plan};
use crate::common::net::{Drops, Net};
use crate::common::wait_until;
use crate::common::wire::{End, Endpoint, Wire, read_all, send};

#[test]
fn load_hold_around_a_restart_by_an_outside_script() {
    let Some(net) = Net::isolated() else { return };
    let setup = Setup::new(&net);
    let socket = setup.dir().join("app.sock");
    let mut app = Outside::start_unix(&socket, &[]);
    let gate = setup
        .options(["--backend", &format!("unix:{}", socket.display())])
        .start();
    let before = net.drops();
    let load = Load::start(Plan {
        kept_life: Duration::from_secs(1),
        download_time: Duration::from_secs(1),
        ..Plan::standing(gate.public())
    });
    load.wait_flowing();
    // The script: stop the old server (it ends when its connections have), then start the new one.
    let script = "kill -TERM $1; while kill -0 $1 2>/dev/null; do sleep 0.02; done; rm -f app.sock; touch restarted";
    fs::write(gate.dir().join("restart.sh"), script).expect("a script");
    for _ in 0..3 {
        let pid = app.pid().to_string();
        let mut hold = gate
            .verb(["hold", "--", "sh", "restart.sh", &pid])
            .spawn()
            .expect("syngate runs");
        app.wait();
        wait_until("the script is done", || {
            gate.dir().join("restarted").exists()
        });
        fs::remove_file(gate.dir().join("restarted")).expect("a file");
        app = Outside::start_unix(&socket, &[]);
        assert_eq!(hold.wait().expect("wait").code(), Some(0));
        assert_eq!(gate.metrics().sum("held", &[]), 0.0);
        let served = load.fresh_ok();
        wait_until("it serves", || load.fresh_ok() > served + 500);
    }
    let report = load.stop();
    report.print("hold -- CMD");
    report.expect_clean();
    assert_eq!(net.drops() - before, Drops::default());
}

#[test]
fn hold_hands_on_the_status_of_its_command() {
    let net = Net::new();
    let gate = server(&net, &[]);
    gate.run(["hold", "--", "sh", "-c", "exit 42"])
        .expect_code(42);
    assert_eq!(
        gate.metrics().sum("held", &[]),
        0.0,
        "a failing command releases too"
    );
    gate.run(["hold", "--", "/no/such/program"])
        .expect_code(127)
        .expect_words(&["/no/such/program"]);
    assert_eq!(gate.metrics().sum("held", &[]), 0.0);
    assert_eq!(
        http::get(gate.public(), "/").expect("an answer").text(),
        "/"
    );
}

/// The server accepts as soon as it is back; it is ready when it says so.
#[test]
fn hold_ends_when_the_backend_is_ready_in_its_own_words() {
    let net = Net::new();
    let address = net.free_address();
    let _app = Outside::start(address, &[]);
    let setup = Setup::new(&net).options(["--backend", &address.to_string()]);
    let setup = setup.options(["--ready", "exec:sh -c 'echo >> asked; test -e healthy'"]);
    fs::write(setup.dir().join("healthy"), "").expect("a file");
    let gate = setup.start();
    let mut hold = gate
        .verb(["hold", "--", "rm", "asked", "healthy"])
        .spawn()
        .expect("syngate runs");
    let asked = gate.dir().join("asked");
    wait_until("it is asked again and again", || {
        fs::read(&asked).is_ok_and(|lines| !gate.dir().join("healthy").exists() && lines.len() > 2)
    });
    assert_eq!(gate.metrics().sum("held", &[]), 1.0);
    fs::write(gate.dir().join("healthy"), "").expect("a file");
    assert_eq!(hold.wait().expect("wait").code(), Some(0));
    assert_eq!(gate.metrics().sum("held", &[]), 0.0);
}

#[test]
fn hold_lasts_until_release_or_its_timeout() {
    let net = Net::new();
    let wire = Wire::new(&net, Endpoint::Unix, &[]);
    wire.gate.run(["hold"]).expect_code(0);
    assert_eq!(wire.gate.metrics().sum("held", &[]), 1.0);
    let client = wire.connect();
    wait_until("it is pending", || {
        wire.gate
            .metrics()
            .sum("connections_open", &[("state", "pending")])
            == 1.0
    });
    wire.gate.run(["release"]).expect_code(0);
    drop(wire.accept());
    drop(client);

    wire.gate.run(["hold", "--timeout", "300ms"]).expect_code(0);
    let client = wire.connect();
    let server = wire.accept(); // released by itself
    send(&server, b"hello");
    drop(server);
    assert_eq!(read_all(&client), (b"hello".to_vec(), End::Eof));
    // The workers dispatch before the supervisor has said it.
    wait_until("it is said to be released", || {
        wire.gate.metrics().sum("held", &[]) == 0.0
    });
    wire.gate.expect_log("the hold's time is up");
}

#[test]
fn hold_whose_client_dies_is_released() {
    let net = Net::new();
    let gate = server(&net, &[]);
    let mut hold = gate
        .verb(["hold", "--", "sleep", "600"])
        .spawn()
        .expect("syngate runs");
    wait_until("it is held", || gate.metrics().sum("held", &[]) == 1.0);
    hold.kill().expect("the client");
    hold.wait().expect("wait");
    wait_until("it is released", || gate.metrics().sum("held", &[]) == 0.0);
    assert_eq!(
        http::get(gate.public(), "/").expect("an answer").text(),
        "/"
    );
}

#[test]
fn reload_while_held_changes_the_active_generation() {
    let net = Net::new();
    let gate = server(&net, &["--min-ready", "100ms"]);
    gate.run(["hold"]).expect_code(0);
    gate.run(["reload"]).expect_code(0).expect_words(&["held"]);
    assert_eq!(gate.metrics().sum("generation_active", &[]), 2.0);
    gate.run(["release"]).expect_code(0);
    assert_eq!(generation(&gate), "2");
}
