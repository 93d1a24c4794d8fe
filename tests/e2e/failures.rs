//! Reloads that fail: the old generation serves all the time, the caller hears why, and the next reload works.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::common::backend::{self, Hop, generation};
use crate::common::gate::{Gate, Setup};
use crate::common::load::{Failure, Load, Plan};
use crate::common::net::Net;
use crate::common::wait_until;
use crate::crash::expect_counted;

/// A way to fail, its words, and what it counts as.
struct Case {
    /// Options of the next generation.
    mode: &'static str,
    words: &'static [&'static str],
    outcome: &'static str,
}

const CASES: [Case; 3] = [
    Case {
        mode: "never=yes",
        words: &["ready"],
        outcome: "not_ready",
    },
    Case {
        mode: "fail=yes",
        words: &["cannot serve: the moon is in the wrong phase"],
        outcome: "start_failed",
    },
    Case {
        mode: "exit-after=50",
        words: &["ends as it was told to"],
        outcome: "start_failed",
    },
];

#[test]
fn load_failed_reloads_leave_the_old_generation_serving() {
    let Some(net) = Net::isolated() else { return };
    let gate = server(&net);
    let load = Load::start(Plan::standing(gate.public()));
    load.wait_flowing();

    fs::write(gate.dir().join("bad"), "").expect("a file");
    let mut expected = gate.reloads("check_failed") + 1.0;
    gate.run(["reload"])
        .expect_code(1)
        .expect_words(&["line 7: no such thing as a frobnicator"]);
    assert_eq!(gate.reloads("check_failed"), expected);
    assert_eq!(gate.metrics().sum("generation_active", &[]), 1.0);
    fs::remove_file(gate.dir().join("bad")).expect("a file");

    for case in CASES {
        let active = gate.metrics().sum("generation_active", &[]);
        expected = gate.reloads(case.outcome) + 1.0;
        set_mode(&gate, case.mode);
        let done = gate.run(["reload"]);
        done.expect_code(1).expect_words(case.words);
        assert_eq!(done.err.trim().lines().count(), 1, "{}", done.err);
        let metrics = gate.metrics();
        assert_eq!(gate.reloads(case.outcome), expected, "{}", case.mode);
        assert_eq!(
            metrics.sum("generation_active", &[]),
            active,
            "{}",
            case.mode
        );
        assert_eq!(metrics.sum("last_reload_successful", &[]), 0.0);
        set_mode(&gate, "");
        gate.reload();
        assert_eq!(gate.metrics().sum("last_reload_successful", &[]), 1.0);
    }
    let report = load.stop();
    report.print("failing reloads");
    report.expect_standing();
    let metrics = gate.metrics();
    assert_eq!(metrics.sum("forced_closes_total", &[]), 0.0);
    assert_eq!(metrics.sum("listener_drops_total", &[]), 0.0);
}

#[test]
fn load_a_generation_that_dies_after_the_flip_is_flipped_back() {
    let Some(net) = Net::isolated() else { return };
    let gate = server(&net);
    let load = Load::start(Plan::standing(gate.public()));
    load.wait_flowing();
    // It settles for 100 ms, and dies about 500 ms after the flip.
    set_mode(&gate, "exit-after=600");
    gate.run(["reload"])
        .expect_code(1)
        .expect_words(&["ends as it was told to"]);
    let metrics = gate.metrics();
    assert_eq!(gate.reloads("flipped_back"), 1.0);
    assert_eq!(metrics.sum("generation_active", &[]), 1.0);
    set_mode(&gate, "");
    gate.reload();
    let report = load.stop();
    report.print("dies after the flip");
    for never in [Failure::Refused, Failure::Timeout, Failure::WrongBytes] {
        assert_eq!(report.failed(never), 0, "{never:?}");
    }
    // What it had accepted is lost with it, and no more.
    expect_counted(&gate, &report, 1);
}

#[test]
fn a_check_that_hangs_is_killed_with_its_group() {
    let net = Net::new();
    let setup = Setup::new(&net).options(["--check-timeout", "500ms", "--check", "sh check.sh"]);
    fs::write(
        setup.dir().join("check.sh"),
        "test -e hang && { sleep 600 & sleep 600; }; exit 0",
    )
    .expect("a script");
    let gate = setup.backend(backend::own(Hop::Socket, &[])).start();
    let before = gate.children().len();
    fs::write(gate.dir().join("hang"), "").expect("a file");
    gate.run(["reload"]).expect_code(1).expect_words(&["check"]);
    assert_eq!(
        gate.children().len(),
        before,
        "the check's processes are left"
    );
    assert_eq!(gate.reloads("check_failed"), 1.0);
    fs::remove_file(gate.dir().join("hang")).expect("a file");
    gate.reload();
}

/// What a check starts ends with it, though it has left the check's group: after it, and when the gate stops in the middle of it.
#[test]
fn a_check_that_leaves_a_daemon_leaves_nothing() {
    let net = Net::new();
    let setup = Setup::new(&net).options(["--check", "sh check.sh"]);
    // It goes on only when the daemon is in a session of its own.
    let check = "test -e fork || exit 0
setsid sh -c '> escaped; exec sleep 600' < /dev/null > /dev/null 2>&1 &
until test -e escaped; do sleep 0.01; done
test ! -e hang || sleep 600";
    fs::write(setup.dir().join("check.sh"), check).expect("a script");
    let mut gate = setup.backend(backend::own(Hop::Socket, &[])).start();
    fs::write(gate.dir().join("fork"), "").expect("a file");
    gate.run(["reload", "--wait", "drained"]).expect_code(0);
    assert_eq!(gate.children().len(), 1, "the backend alone");
    fs::remove_file(gate.dir().join("escaped")).expect("a file");
    fs::write(gate.dir().join("hang"), "").expect("a file");
    let mut caller = gate.verb(["reload"]).spawn().expect("syngate runs");
    wait_until("the check runs", || gate.dir().join("escaped").exists());
    gate.signal(nix::sys::signal::Signal::SIGTERM);
    gate.wait_exit(std::time::Duration::from_secs(10));
    caller.wait().expect("a caller");
    assert_eq!(gate.children().len(), 0, "{}", gate.log());
}

#[test]
fn a_check_that_prints_without_end_is_bounded() {
    let net = Net::new();
    let setup = Setup::new(&net).options(["--check", "sh check.sh"]);
    fs::write(
        setup.dir().join("check.sh"),
        "test -e loud && { head -c 10000000 /dev/zero | tr '\\0' x; exit 1; }; exit 0",
    )
    .expect("a script");
    let gate = setup.backend(backend::own(Hop::Socket, &[])).start();
    fs::write(gate.dir().join("loud"), "").expect("a file");
    let done = gate.run(["reload"]);
    done.expect_code(1);
    assert!(
        done.out.len() + done.err.len() < 300_000,
        "{} bytes",
        done.out.len() + done.err.len()
    );
    assert!(
        gate.log().len() < 300_000,
        "{} bytes in the log",
        gate.log().len()
    );
}

/// What runs goes on; a reload that needs the directory fails, and works again when it is back.
#[test]
fn a_runtime_directory_that_goes_and_comes_back() {
    let net = Net::new();
    let setup = Setup::new(&net).options(["--runtime-dir", "run", "--min-ready", "100ms"]);
    let (here, away) = (setup.dir().join("run"), setup.dir().join("away"));
    fs::create_dir(&here).expect("a directory");
    fs::set_permissions(&here, PermissionsExt::from_mode(0o700)).expect("chmod");
    let gate = setup.backend(backend::own(Hop::Address, &[])).start();
    fs::rename(&here, &away).expect("rename");
    fs::write(&here, "not a directory").expect("a file");
    gate.run(["reload"]).expect_code(1).expect_words(&["run"]);
    assert_eq!(generation(&gate), "1");
    fs::remove_file(&here).expect("a file");
    fs::rename(&away, &here).expect("rename");
    gate.reload();
    assert_ne!(generation(&gate), "1");
}

/// A gate that sees a small file system at its runtime directory, alone.
fn with_a_small_runtime_directory(net: &Net) -> Gate {
    let mount = "mount -t tmpfs -o size=64k,nr_inodes=64,mode=700 none run && exec \"$0\" \"$@\"";
    let setup = Setup::new(net)
        .options(["--runtime-dir", "run", "--min-ready", "100ms"])
        .under(["unshare", "--mount", "sh", "-c", mount]);
    fs::create_dir(setup.dir().join("run")).expect("a directory");
    setup.backend(backend::own(Hop::Socket, &[])).start()
}

/// One that is read-only for a time.
#[test]
fn a_runtime_directory_that_is_read_only() {
    let Some(net) = Net::isolated() else { return };
    let gate = with_a_small_runtime_directory(&net);
    let inside = |command: &[&str]| {
        let mut nsenter = Command::new("nsenter");
        nsenter.arg(format!("--mount=/proc/{}/ns/mnt", gate.pid()));
        let status = nsenter.args(command).arg(gate.dir().join("run")).status();
        assert!(status.expect("nsenter runs").success(), "{command:?}");
    };
    // Over the mount that the gate has a file open in, which can't become read-only.
    let run = gate.dir().join("run");
    inside(&[
        "mount",
        "-o",
        "bind,ro",
        run.to_str().expect("a plain path"),
    ]);
    let done = gate.run(["reload"]);
    let words = [
        "Read-only file system",
        "writable `runtime_dir`",
        "generation 1 serves",
    ];
    done.expect_code(1).expect_words(&words);
    assert_eq!(done.err.trim().lines().count(), 1, "{}", done.err);
    assert_eq!(generation(&gate), "1");
    inside(&["umount"]);
    gate.reload();
    assert_ne!(generation(&gate), "1");
}

/// One without room for a file's content costs a reload nothing but a warning; without room for a directory it fails.
#[test]
fn a_runtime_directory_that_is_full() {
    let Some(net) = Net::isolated() else { return };
    let gate = with_a_small_runtime_directory(&net);
    // As the gate sees it.
    let inside = gate.dir().join("run");
    let inside = format!("/proc/{}/root{}", gate.pid(), inside.display());
    fs::write(format!("{inside}/large"), vec![0; 100_000]).expect_err("it is full");
    gate.reload();
    assert_eq!(generation(&gate), "2");
    gate.expect_log("a later gate won't know this generation's process");
    wait_until("nothing of the first is left", || {
        !Path::new(&format!("{inside}/gen-default-1")).exists()
    });
    let filler = |number| format!("{inside}/{number}");
    let made = (0..64)
        .take_while(|number| fs::create_dir(filler(*number)).is_ok())
        .count();
    gate.run(["reload"])
        .expect_code(1)
        .expect_words(&["No space left", "generation 2 serves"]);
    assert_eq!(generation(&gate), "2");
    for number in 0..made {
        fs::remove_dir(filler(number)).expect("a directory");
    }
    gate.reload();
    assert_ne!(generation(&gate), "2");
}

/// The first start fails at its check: nothing is opened, and the exit code says that the configuration is bad.
#[test]
fn a_failing_check_at_the_first_start_ends_the_gate() {
    let net = Net::new();
    let setup = Setup::new(&net).options(["--check", "sh -c 'echo no such backend; exit 1'"]);
    let mut gate = setup.backend(backend::own(Hop::Socket, &[])).spawn();
    let status = gate.wait_exit(std::time::Duration::from_secs(10));
    assert_eq!(status.code(), Some(78), "{}", gate.log());
    assert!(gate.log().contains("no such backend"), "{}", gate.log());
}

/// A server whose options are read anew at each start from the file `mode`, with a check that fails while `bad` exists.
fn server(net: &Net) -> Gate {
    let setup = Setup::new(net).options([
        "--ready-timeout",
        "1s",
        "--min-ready",
        "1s",
        "--check",
        "sh check.sh",
    ]);
    let check = "test -e bad || exit 0; echo 'line 7: no such thing as a frobnicator' >&2; exit 1";
    fs::write(setup.dir().join("check.sh"), check).expect("a script");
    fs::write(setup.dir().join("mode"), "").expect("a file");
    let command = backend::own(Hop::Socket, &[]);
    let start = format!("exec {} \"$1\" $(cat mode)", command[0]);
    fs::write(setup.dir().join("start.sh"), start).expect("a script");
    setup
        .backend(["sh", "start.sh", &command[1]].map(str::to_owned).to_vec())
        .start()
}

fn set_mode(gate: &Gate, mode: &str) {
    fs::write(gate.dir().join("mode"), mode).expect("a file");
}
