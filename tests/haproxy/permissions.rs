//! Who may reach a stats socket: those whom its line lets in, as without a gate.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;

use nix::unistd::{Gid, Uid, setfsgid, setfsuid};

use crate::common::gate::Setup;
use crate::common::net::Net;
use crate::fixture::in_front_of;
use crate::states::process;

/// Somebody else, and a group of his.
const OTHER: u32 = 65534;

/// The sockets, and whether somebody else may use each.
const SOCKETS: [(&str, &str, bool); 4] = [
    ("all.sock", "mode 666", true),
    ("group.sock", "mode 660 gid 65534", true),
    ("user.sock", "mode 600 user nobody", true),
    ("root.sock", "mode 600", false),
];

fn configuration(directory: &Path, answer: &str) -> String {
    let line = |(name, options, _): &(&str, &str, bool)| {
        let path = directory.join(name);
        format!("    stats socket {} {options}\n", path.display())
    };
    let sockets: String = SOCKETS.iter().map(line).collect();
    format!(
        "global
    maxconn 100
{sockets}defaults
    mode http
    timeout connect 5s
    timeout client 30s
    timeout server 30s
frontend front
    bind 127.0.0.1:8000
    http-request return status 200 content-type text/plain string {answer}
"
    )
}

/// Whether a path leads to a socket that somebody else may connect to. The ids count for this thread's files alone
/// (setfsuid(2)).
fn reaches(path: PathBuf) -> bool {
    let other = thread::spawn(move || {
        setfsgid(Gid::from_raw(OTHER));
        setfsuid(Uid::from_raw(OTHER));
        UnixStream::connect(path).map(drop)
    });
    match other.join().expect("no panic") {
        Ok(()) => true,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
            false
        }
    }
}

#[test]
fn a_stats_socket_is_open_to_whom_its_line_lets_in() {
    let Some(net) = Net::isolated() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let open = fs::Permissions::from_mode(0o755);
    fs::set_permissions(directory.path(), open).expect("a directory for all");
    let setup = Setup::bare(&net).options(["--keep-previous", "60s"]);
    let file = setup.dir().join("haproxy.cfg");
    fs::write(&file, configuration(directory.path(), "first")).expect("haproxy.cfg");
    let mut gate = in_front_of(setup, &file).start();
    let expect_as_configured = || {
        for (name, options, may) in SOCKETS {
            let path = directory.path().join(name);
            assert_eq!(reaches(path), may, "{name}: {options}");
        }
    };
    expect_as_configured();
    let first = process(&directory.path().join("root.sock"));
    fs::write(&file, configuration(directory.path(), "second")).expect("haproxy.cfg");
    gate.reload();
    expect_as_configured();
    assert_ne!(process(&directory.path().join("root.sock")), first);
    gate.run(["rollback"]).expect_code(0);
    expect_as_configured();
    assert_eq!(process(&directory.path().join("root.sock")), first);

    // The private ones are nobody else's, and what was made beside the public names goes with its generation.
    let private = fs::read_dir(gate.dir()).expect("the runtime directory");
    for entry in private.map(|entry| entry.expect("an entry")) {
        let mode = entry.metadata().expect("metadata").permissions().mode();
        let name = entry.file_name();
        assert!(
            !name.to_string_lossy().starts_with("gen-") || mode & 0o077 == 0,
            "{name:?}: {mode:o}"
        );
    }
    gate.signal(nix::sys::signal::Signal::SIGTERM);
    gate.wait_exit(std::time::Duration::from_secs(20));
    let left = fs::read_dir(directory.path()).expect("the directory");
    let mut left: Vec<_> = left
        .map(|entry| entry.expect("an entry").file_name())
        .collect();
    left.sort();
    let mut names = SOCKETS.map(|(name, ..)| name);
    names.sort_unstable();
    assert_eq!(left, names);
}
