//! The control socket under bad treatment: refused or bounded, and the gate goes on.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::common::backend::{self, Hop};
use crate::common::gate::{Gate, Setup};
use crate::common::net::Net;
use crate::common::{http, wait_until};

#[test]
fn socket_is_its_owners_alone() {
    let net = Net::new();
    let gate = server(&net);
    let mode = fs::metadata(gate.control())
        .expect("the control socket")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600, "{mode:o}");
}

/// Even where the file's mode lets another user in, the gate looks who it is.
#[test]
fn another_user_is_refused() {
    let Some(net) = Net::isolated() else { return };
    let gate = server(&net);
    let open =
        |path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("chmod");
    open(gate.dir(), 0o755);
    let request = |gate: &Gate| {
        let mut curl = std::process::Command::new("setpriv");
        curl.args([
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            "curl",
            "--silent",
            "--max-time",
            "10",
            "--unix-socket",
        ]);
        curl.arg(gate.control()).args([
            "--write-out",
            "%{http_code}",
            "--request",
            "POST",
            "http://gate/v1/services/default/reload",
        ]);
        String::from_utf8(curl.output().expect("setpriv and curl run").stdout).expect("text")
    };
    assert!(
        request(&gate).ends_with("000"),
        "a mode of 0600 lets nobody else connect"
    );
    open(gate.control(), 0o666);
    let answer = request(&gate);
    assert!(
        answer.ends_with("403") || answer.ends_with("000"),
        "{answer}"
    );
    assert_eq!(gate.reloads("success"), 0.0);
    expect_alive(&gate);
}

#[test]
fn garbage_is_answered_with_an_error_or_an_end() {
    let net = Net::new();
    let gate = server(&net);
    let long = [
        b"GET /".to_vec(),
        vec![b'a'; 1_000_000],
        b" HTTP/1.1\r\n\r\n".to_vec(),
    ]
    .concat();
    let body = [
        b"POST /v1/services/default/reload HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n".to_vec(),
        vec![b'['; 1_000_000],
    ]
    .concat();
    let cases: [(&str, &[u8]); 7] = [
        ("not HTTP", b"\0\x01\x02\xff\r\n\r\n"),
        ("a line of 1 MB", &long),
        ("a body of 1 MB", &body),
        ("no such path", b"GET /v1/nothing HTTP/1.1\r\nConnection: close\r\n\r\n"),
        ("wrong method", b"DELETE /v1/status HTTP/1.1\r\nConnection: close\r\n\r\n"),
        ("no such service", b"POST /v1/services/nobody/reload HTTP/1.1\r\nConnection: close\r\n\r\n"),
        ("bad JSON", b"POST /v1/services/default/activate HTTP/1.1\r\nConnection: close\r\nContent-Length: 3\r\n\r\n{{{"),
    ];
    for (what, bytes) in cases {
        let mut stream = UnixStream::connect(gate.control()).expect("the control socket");
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .expect("a time-out");
        let _ = stream.write_all(bytes); // it may be closed before the end
        let mut answer = Vec::new();
        match stream.read_to_end(&mut answer) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                panic!("{what}: no answer and no end")
            }
            _ => {}
        }
        let answer = String::from_utf8_lossy(&answer);
        assert!(
            answer.is_empty() || answer.starts_with("HTTP/1.1 4"),
            "{what}: {answer}"
        );
        expect_alive(&gate);
    }
    assert_eq!(
        gate.reloads("success"),
        0.0,
        "garbage has reloaded something"
    );
}

#[test]
fn clients_that_never_read_do_not_hold_up_a_reload() {
    let net = Net::new();
    let gate = server(&net);
    let silent: Vec<UnixStream> = (0..50)
        .map(|_| UnixStream::connect(gate.control()).expect("the control socket"))
        .collect();
    for mut stream in &silent[..25] {
        stream
            .write_all(b"GET /v1/events HTTP/1.1\r\nHost: gate\r\n\r\n")
            .expect("write");
    }
    for _ in 0..3 {
        gate.reload();
    }
    expect_alive(&gate);
}

#[test]
fn client_that_dies_does_not_stop_its_reload() {
    let net = Net::new();
    let gate = server(&net);
    let mut client = gate.verb(["reload"]).spawn().expect("syngate runs");
    wait_until("it runs", || {
        gate.metrics().sum("generations", &[("state", "starting")])
            + gate.metrics().sum("generation_active", &[])
            > 1.0
    });
    client.kill().expect("the client");
    client.wait().expect("wait");
    wait_until("it has succeeded", || gate.reloads("success") == 1.0);
    expect_alive(&gate);
}

#[test]
fn second_gate_on_the_same_socket_leaves_the_first_alone() {
    let net = Net::new();
    let gate = server(&net);
    let control = gate.control().display().to_string();
    let directory = gate.dir().display().to_string();
    let cases: [(&[&str], &str); 2] = [
        (&[], &directory),
        (&["--runtime-dir", "elsewhere"], &control),
    ];
    for (options, word) in cases {
        let other = Setup::new(&net)
            .options(["--backend", "127.0.0.1:9"])
            .options(options);
        fs::create_dir(other.dir().join("elsewhere")).expect("a directory");
        let mut other = other.replace_control(&control).spawn();
        let status = other.wait_exit(Duration::from_secs(10));
        assert_eq!(status.code(), Some(71), "{}", other.log());
        assert!(other.log().contains(word), "{}", other.log());
        expect_alive(&gate);
    }
    gate.reload();
}

#[test]
fn file_at_the_sockets_path_is_left_untouched() {
    let net = Net::new();
    let setup = Setup::new(&net).options(["--backend", "127.0.0.1:9"]);
    let path = setup.dir().join("control.sock");
    fs::write(&path, "precious").expect("a file");
    let mut gate = setup.spawn();
    assert_eq!(
        gate.wait_exit(Duration::from_secs(10)).code(),
        Some(71),
        "{}",
        gate.log()
    );
    assert_eq!(fs::read_to_string(&path).expect("the file"), "precious");
    assert!(gate.log().contains("control.sock"), "{}", gate.log());
}

#[test]
fn removed_socket_is_not_missed_by_what_runs() {
    let net = Net::new();
    let mut gate = server(&net);
    fs::remove_file(gate.control()).expect("the control socket");
    gate.run(["status"]).expect_code(3);
    gate.signal(nix::sys::signal::Signal::SIGHUP);
    wait_until("it has reloaded", || gate.reloads("success") == 1.0);
    // What somebody else has put there isn't removed at the end.
    fs::write(gate.control(), "somebody else's").expect("a file");
    gate.signal(nix::sys::signal::Signal::SIGTERM);
    assert_eq!(
        gate.wait_exit(Duration::from_secs(10)).code(),
        Some(0),
        "{}",
        gate.log()
    );
    assert!(gate.control().exists());
}

fn server(net: &Net) -> Gate {
    Setup::new(net)
        .options(["--min-ready", "100ms"])
        .backend(backend::own(Hop::Socket, &["start=100"]))
        .start()
}

/// It serves, it answers at its control socket, and it hasn't panicked.
#[track_caller]
fn expect_alive(gate: &Gate) {
    assert_eq!(
        http::get(gate.public(), "/alive")
            .expect("an answer")
            .text(),
        "/alive"
    );
    let status = http::unix(gate.control(), "GET", "/v1/status").expect("a status");
    assert_eq!(status.status, 200, "{}", status.text());
    assert!(
        fs::metadata(gate.control())
            .expect("the control socket")
            .file_type()
            .is_socket()
    );
    assert!(!gate.log().contains("panicked"), "{}", gate.log());
}
