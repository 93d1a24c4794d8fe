//! What a file of servers' states once did, and can't do here: the configuration says where a server is. What an operator has set
//! at run time stays, as long as the server is the same.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use crate::common::gate::Setup;
use crate::common::net::Net;
use crate::common::{http, wait_for};
use crate::fixture::{Alone, echo, in_front_of};

const PUBLIC: &str = "127.0.0.1:8000";

/// Where the server was, and where it is.
const PORTS: [u16; 2] = [1443, 2443];

/// The first bytes of a PROXY protocol header of version 2.
const PROXY_V2: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

/// Where a configuration says the port.
#[derive(Clone, Copy, Debug)]
enum Written {
    /// In the line of the server.
    Out,
    /// In a variable: the line of the server is the same.
    Variable,
}

/// The incident's configuration, before (0) and after (1) the server's port changed.
fn incident(directory: &Path, written: Written, version: usize) -> String {
    let port = PORTS[version];
    let proxy = ["", "send-proxy-v2"][version];
    let (variable, defaults, server) = match written {
        Written::Out => (
            String::new(),
            String::new(),
            format!("127.0.0.1:{port} {proxy}"),
        ),
        Written::Variable => (
            format!("setenv APP_PORT {port}"),
            format!("default-server weight 1 {proxy}"),
            "\"127.0.0.1:${APP_PORT}\"".to_owned(),
        ),
    };
    format!(
        "global
    maxconn 100
    stats socket {directory}/stats.sock level admin
    server-state-file {directory}/states
    {variable}
defaults
    mode tcp
    load-server-state-from-file global
    timeout connect 5s
    timeout client 5s
    timeout server 5s
    {defaults}
listen front
    bind {PUBLIC}
    server app {server}
",
        directory = directory.display()
    )
}

/// One command at a stats socket.
pub(crate) fn ask(socket: &Path, command: &str) -> String {
    let mut stream = UnixStream::connect(socket).expect("the stats socket");
    stream
        .write_all(format!("{command}\n").as_bytes())
        .expect("write");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

/// What marathon-lb's `reload_haproxy.sh` does before a reload.
fn dump(directory: &Path) {
    let states = ask(&directory.join("stats.sock"), "show servers state");
    assert!(states.contains(" app "), "{states}");
    fs::write(directory.join("states"), states).expect("the states");
}

/// Listeners on both ports, to see which one a client's bytes come to.
struct Servers([TcpListener; 2]);

impl Servers {
    fn new() -> Servers {
        Servers(PORTS.map(|port| {
            let listener = TcpListener::bind(("127.0.0.1", port)).expect("the port is free");
            listener.set_nonblocking(true).expect("nonblocking");
            listener
        }))
    }

    /// Which of them a new client reaches, and whether a header comes first.
    fn reached(&self) -> (u16, bool) {
        let mut client = TcpStream::connect(PUBLIC).expect("connect");
        client.write_all(b"hello").expect("write");
        let (port, mut server) = wait_for("a connection of the client", || {
            let both = PORTS.iter().zip(&self.0);
            both.filter_map(|(port, listener)| Some((*port, listener.accept().ok()?.0)))
                .next()
        });
        server.set_nonblocking(false).expect("blocking");
        server
            .set_read_timeout(Some(Duration::from_secs(10)))
            .expect("SO_RCVTIMEO");
        let mut received = Vec::new();
        while !received.ends_with(b"hello") {
            let mut buffer = [0; 256];
            let length = server.read(&mut buffer).expect("the client's bytes");
            assert!(length > 0, "an end after {}", received.escape_ascii());
            received.extend_from_slice(&buffer[..length]);
        }
        (port, received.starts_with(PROXY_V2))
    }
}

#[test]
fn haproxy_alone_keeps_the_old_port() {
    let Some(_net) = Net::isolated() else { return };
    let servers = Servers::new();
    for written in [Written::Out, Written::Variable] {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("haproxy.cfg");
        fs::write(&file, incident(directory.path(), written, 0)).expect("haproxy.cfg");
        let alone = Alone::start(&file).expect("it listens");
        assert_eq!(servers.reached(), (1443, false), "{written:?}");
        dump(directory.path());
        fs::write(&file, incident(directory.path(), written, 1)).expect("haproxy.cfg");
        let _alone = alone.reload(&file);
        // The header shows that it is the new configuration.
        assert_eq!(servers.reached(), (1443, true), "{written:?}");
    }
}

#[test]
fn the_new_port_gets_its_clients() {
    let Some(net) = Net::isolated() else { return };
    let servers = Servers::new();
    for written in [Written::Out, Written::Variable] {
        let setup = Setup::bare(&net);
        let directory = setup.dir().to_owned();
        let file = directory.join("haproxy.cfg");
        fs::write(&file, incident(&directory, written, 0)).expect("haproxy.cfg");
        let gate = in_front_of(setup, &file).start();
        assert_eq!(servers.reached(), (1443, false), "{written:?}");
        dump(&directory);
        fs::write(&file, incident(&directory, written, 1)).expect("haproxy.cfg");
        gate.reload();
        assert_eq!(servers.reached(), (2443, true), "{written:?}");
        // Nor does it come back.
        dump(&directory);
        gate.reload();
        assert_eq!(servers.reached(), (2443, true), "{written:?}");
    }
}

/// Five servers, one of which moves.
fn five(directory: &Path, moving: u16) -> String {
    format!(
        "global
    maxconn 100
    stats socket {directory}/stats.sock level admin
    server-state-file {directory}/states
defaults
    mode http
    load-server-state-from-file global
    timeout connect 5s
    timeout client 5s
    timeout server 5s
listen front
    bind {PUBLIC}
    balance roundrobin
    server maint 127.0.0.1:9001
    server drain 127.0.0.1:9002
    server light 127.0.0.1:9003 weight 100
    server moving 127.0.0.1:{moving}
    server untouched 127.0.0.1:9006 weight 100
",
        directory = directory.display()
    )
}

/// What `show stat` says of a server.
#[derive(Debug, PartialEq, Eq)]
struct Server {
    status: String,
    weight: u32,
    sessions: u32,
}

fn servers(socket: &Path) -> BTreeMap<String, Server> {
    let text = ask(socket, "show stat");
    let mut lines = text.lines();
    let names: Vec<&str> = lines
        .next()
        .expect("a header")
        .trim_start_matches("# ")
        .split(',')
        .collect();
    let rows = lines.filter(|line| !line.is_empty()).map(|line| {
        let row: BTreeMap<&str, &str> = names.iter().copied().zip(line.split(',')).collect();
        let number = |name: &str| row[name].parse().unwrap_or(0);
        let server = Server {
            status: row["status"].to_owned(),
            weight: number("weight"),
            sessions: number("stot"),
        };
        (row["svname"].to_owned(), server)
    });
    rows.filter(|(name, _)| name != "FRONTEND" && name != "BACKEND")
        .collect()
}

#[test]
fn what_an_operator_has_set_outlives_ten_reloads() {
    let Some(net) = Net::isolated() else { return };
    for port in [9001, 9002, 9003, 9004, 9005, 9006] {
        echo(&format!("127.0.0.1:{port}"));
    }
    let setup = Setup::bare(&net);
    let directory = setup.dir().to_owned();
    let (file, socket) = (directory.join("haproxy.cfg"), directory.join("stats.sock"));
    fs::write(&file, five(&directory, 9004)).expect("haproxy.cfg");
    let gate = in_front_of(setup, &file).start();
    let there = fs::symlink_metadata(&socket).expect("the canonical path");
    assert!(there.file_type().is_socket());
    for order in [
        "set server front/maint state maint",
        "set server front/drain state drain",
        "set server front/light weight 30",
        "set server front/moving state maint",
    ] {
        assert_eq!(ask(&socket, order).trim(), "", "{order}");
    }
    let set = servers(&socket);
    assert_eq!(set["moving"].status, "MAINT");

    let mut processes = BTreeSet::from([process(&socket)]);
    fs::write(&file, five(&directory, 9005)).expect("haproxy.cfg");
    for reload in 1..=10 {
        gate.reload();
        processes.insert(process(&socket));
        for _ in 0..10 {
            let public: SocketAddr = PUBLIC.parse().expect("an address");
            assert_eq!(http::get(public, "/").expect("an answer").status, 200);
        }
        let now = servers(&socket);
        for (name, status, weight) in [
            ("maint", "MAINT", 1),
            ("drain", "DRAIN", 1),
            ("light", "no check", 30),
            ("moving", "no check", 1),
            ("untouched", "no check", 100),
        ] {
            let server = &now[name];
            assert_eq!(server.status, status, "{name} after {reload}: {now:?}");
            assert_eq!(server.weight, weight, "{name} after {reload}: {now:?}");
        }
        let used = ["maint", "drain", "light", "untouched"].map(|name| now[name].sessions > 0);
        assert_eq!(used, [false, false, true, true], "after {reload}: {now:?}");
    }
    assert_eq!(processes.len(), 11, "{processes:?}");
    // What isn't carried over is told.
    gate.expect_log("front/moving");
}

/// The process that answers at a stats socket.
pub(crate) fn process(socket: &Path) -> String {
    let info = ask(socket, "show info");
    let pid = info.lines().find_map(|line| line.strip_prefix("Pid: "));
    pid.expect("a pid").to_owned()
}
