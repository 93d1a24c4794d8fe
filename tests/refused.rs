//! What doesn't start: the exit code, one sentence that names the place and the cure, and nothing left behind.

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output};

/// Runs the binary in a directory of its own, with `gate.toml` there, and no variable but PATH.
fn syngate(dir: &Path, file: &str, args: &[&str], variables: &[(&str, &str)]) -> Output {
    fs::write(dir.join("gate.toml"), file).unwrap();
    Command::new(env!("CARGO_BIN_EXE_syngate"))
        .args(args)
        .current_dir(dir)
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .envs(variables.iter().copied())
        .output()
        .unwrap()
}

#[track_caller]
fn refuses(output: &Output, code: i32, says: &[&str]) {
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{text}");
    for what in says {
        assert!(text.contains(what), "`{what}` isn't in: {text}");
    }
}

const GOOD: &str = "[services.web]\nlisten = \"127.0.0.1:0\"\ncommand = \"sleep 60\"\n";

/// What each `run` here has besides what it is about.
const RUN: [&str; 7] = [
    "run",
    "--config",
    "gate.toml",
    "--control",
    "control.sock",
    "--metrics",
    "off",
];

#[test]
fn a_bad_flag_is_a_usage_error() {
    let dir = tempfile::tempdir().unwrap();
    for (args, says) in [
        (&["run", "--frobnicate"][..], "--frobnicate"),
        (
            &["run", "--min-ready", "5"],
            "`5` has no unit: write 5s or 5ms",
        ),
        (&["run", "--listen", "8080x"], "8080x"),
        (&["nothing"], "nothing"),
        (&["reload", "--wait", "never"], "never"),
        (&["activate"], "--backend"),
        (&["run", "--listen", "80", "app"], "stands after ` -- `"),
        (&["hold", "systemctl", "restart"], "stands after ` -- `"),
    ] {
        refuses(&syngate(dir.path(), GOOD, args, &[]), 2, &[says]);
    }
}

#[test]
fn a_bad_file_is_named_with_its_line() {
    let dir = tempfile::tempdir().unwrap();
    for (file, says) in [
        (
            "wrokers = 2\n",
            "gate.toml:1: unknown key `wrokers`: did you mean `workers`?",
        ),
        (
            "lame_duck = \"3 sec\"\n[services.a]\nlisten = 80\nbackend = \"h:1\"\n",
            "gate.toml:1: lame_duck: ",
        ),
        (
            "[services.a]\nlisten = 80\nbackend = \"h:1\"\n[services.b]\nlisten = 80\nbackend = \"h:1\"\n",
            "gate.toml:5: listen: 80 is taken by 80 of listener l0 of service a: remove one",
        ),
        ("[services.a\n", "gate.toml:1: "),
    ] {
        for verb in ["run", "check"] {
            let output = syngate(dir.path(), file, &[verb, "--config", "gate.toml"], &[]);
            refuses(&output, 78, &[says]);
            assert_eq!(String::from_utf8_lossy(&output.stderr).lines().count(), 1);
        }
    }
}

#[test]
fn a_bad_variable_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let variables = [
        ("SYNGATE_PENDING_MAX", "many"),
        ("SYNGATE_PORT", "tcp://10.0.0.1:80"),
    ];
    let output = syngate(dir.path(), GOOD, &RUN, &variables);
    refuses(
        &output,
        78,
        &["SYNGATE_PENDING_MAX: `many` isn't a whole number"],
    );
}

#[test]
fn a_command_that_isnt_there_is_the_systems_refusal() {
    let dir = tempfile::tempdir().unwrap();
    let file = "[services.web]\nlisten = \"127.0.0.1:0\"\ncommand = \"no-such-server\"\n";
    for args in [
        &RUN[..],
        &[
            "check",
            "--config",
            "gate.toml",
            "--control",
            "control.sock",
        ],
    ] {
        let output = syngate(dir.path(), file, args, &[]);
        refuses(&output, 71, &["no-such-server", "PATH", "install it"]);
        assert!(!dir.path().join("control.sock").exists());
    }
}

#[test]
fn the_backends_own_words_say_why_its_check_failed() {
    let dir = tempfile::tempdir().unwrap();
    let file = format!("{GOOD}check = \"sh -c 'echo line 7 is bad >&2; exit 1'\"\n");
    for args in [
        &RUN[..],
        &[
            "check",
            "--config",
            "gate.toml",
            "--control",
            "control.sock",
        ],
    ] {
        let output = syngate(dir.path(), &file, args, &[]);
        refuses(
            &output,
            78,
            &["web", "exited with status 1", "line 7 is bad"],
        );
    }
    let file = format!("{GOOD}check = \"sleep 60\"\ncheck_timeout = \"100ms\"\n");
    refuses(
        &syngate(dir.path(), &file, &RUN, &[]),
        78,
        &["didn't end within 100ms"],
    );
}

#[test]
fn a_metrics_address_that_is_taken_is_the_systems_refusal() {
    let dir = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let args = [&RUN[..6], &[address.as_str()]].concat();
    let output = syngate(dir.path(), GOOD, &args, &[]);
    refuses(
        &output,
        71,
        &[&address, "give another address with --metrics"],
    );
}

#[test]
fn something_else_at_the_control_sockets_path_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("control.sock"), "precious").unwrap();
    refuses(&syngate(dir.path(), GOOD, &RUN, &[]), 71, &["control.sock"]);
    let kept = fs::read_to_string(dir.path().join("control.sock")).unwrap();
    assert_eq!(kept, "precious");
}

#[test]
fn a_place_where_no_socket_can_be_is_named_with_the_cure() {
    let dir = tempfile::tempdir().unwrap();
    for path in ["/proc/x.sock", "/dev/null/x.sock"] {
        let mut args = RUN;
        args[4] = path;
        let output = syngate(dir.path(), GOOD, &args, &[]);
        refuses(
            &output,
            71,
            &[path, "--control", "give a path in a directory"],
        );
        assert_eq!(String::from_utf8_lossy(&output.stderr).lines().count(), 1);
    }
}

#[test]
fn who_may_not_ask_is_told_whose_the_socket_is() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("control.sock");
    let _gate = UnixListener::bind(&path).unwrap();
    // Where everybody can reach it.
    let program = dir.path().join("syngate");
    fs::copy(env!("CARGO_BIN_EXE_syngate"), &program).unwrap();
    let mut status = Command::new(program);
    status.args(["status", "--control"]).arg(&path);
    let me = nix::unistd::geteuid();
    let says = if me.is_root() {
        // Root may always, so somebody else asks.
        fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        status.uid(65_534);
        "uid 65534 may not use the control socket".to_owned()
    } else {
        fs::set_permissions(&path, Permissions::from_mode(0o000)).unwrap();
        format!("uid {me} may not use the control socket")
    };
    let output = status.output().unwrap();
    let owner = format!("is uid {me}'s: ask as that user or as root");
    refuses(&output, 3, &[&says, path.to_str().unwrap(), &owner]);
}

#[test]
fn nobody_answers_where_no_gate_is() {
    let dir = tempfile::tempdir().unwrap();
    for args in [
        &["reload"][..],
        &["status", "--json"],
        &["release"],
        &["hold"],
    ] {
        let args = [args, &["--control", "control.sock"]].concat();
        refuses(&syngate(dir.path(), GOOD, &args, &[]), 3, &["control.sock"]);
    }
    let variables = [("SYNGATE_CONTROL", "elsewhere.sock")];
    refuses(
        &syngate(dir.path(), GOOD, &["status"], &variables),
        3,
        &["elsewhere.sock"],
    );
}

#[test]
fn a_good_configuration_is_said_to_be_good() {
    let dir = tempfile::tempdir().unwrap();
    let output = syngate(dir.path(), GOOD, &["check", "--config", "gate.toml"], &[]);
    refuses(&output, 0, &[]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(text, "the configuration is good\nweb: l0=127.0.0.1:0\n");
}

#[test]
fn a_port_that_is_taken_is_named_with_the_way_to_find_its_holder() {
    let dir = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let file = format!("[services.web]\nlisten = \"{address}\"\ncommand = \"touch started\"\n");
    refuses(
        &syngate(dir.path(), &file, &RUN, &[]),
        71,
        &[&address, "in use", "ss -lntp"],
    );
    assert!(!dir.path().join("started").exists());
    assert!(!dir.path().join("control.sock").exists());
}

#[test]
fn a_second_gate_is_told_of_the_first_and_a_term_ends_a_check_that_hangs() {
    let dir = tempfile::tempdir().unwrap();
    let fifo = dir.path().join("checking");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let file =
        format!("{GOOD}check = \"sh -c 'exec 3> checking; echo begins >&3; exec sleep 600'\"\n");
    fs::write(dir.path().join("gate.toml"), &file).unwrap();
    let mut gate = Command::new(env!("CARGO_BIN_EXE_syngate"))
        .args(RUN)
        .current_dir(dir.path())
        .spawn()
        .unwrap();
    let mut check = BufReader::new(fs::File::open(&fifo).unwrap());
    let mut line = String::new();
    check.read_line(&mut line).unwrap();
    assert_eq!(line, "begins\n");

    let second = syngate(dir.path(), &file, &RUN, &[]);
    refuses(&second, 71, &["another gate", &gate.id().to_string()]);

    let pid = nix::unistd::Pid::from_raw(gate.id().cast_signed());
    nix::sys::signal::kill(pid, nix::sys::signal::SIGTERM).unwrap();
    assert_eq!(gate.wait().unwrap().code(), Some(0));
    // Ends when the last process that could write has.
    assert_eq!(check.read_to_string(&mut line).unwrap(), 0);
    assert!(!dir.path().join("control.sock").exists());
}
