//! Backends: the commands that start them, and configurations of real servers.
//!
//! All answer a path with the path itself, and `/download/N` with the pattern, so that one load fits them all.

use std::fs::{self, File};
use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::gate::Gate;
use super::{http, pattern, wait_until};

/// How a generation receives its connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hop {
    /// `{socket}`.
    Socket,
    /// `{addr}` and `{port}`.
    Address,
    /// `{fd}`: a kept listener.
    Fd,
}

impl Hop {
    fn of_test_backend(self) -> &'static str {
        match self {
            Hop::Socket => "unix:{socket}",
            Hop::Address => "tcp:{addr}:{port}",
            Hop::Fd => "fd:{fd}",
        }
    }
}

/// The command of `tests/backend/server.rs`.
pub(crate) fn own(hop: Hop, options: &[&str]) -> Vec<String> {
    command(hop.of_test_backend(), options)
}

/// [`own`] on any LISTEN that it understands.
pub(crate) fn command(listen: &str, options: &[&str]) -> Vec<String> {
    let directory = Path::new(env!("CARGO_BIN_EXE_syngate"))
        .parent()
        .expect("a directory");
    let program = directory.join("examples/test-backend");
    assert!(
        program.exists(),
        "{} is missing: cargo build --example test-backend",
        program.display()
    );
    let words = [program.to_str().expect("a plain path"), listen];
    words
        .into_iter()
        .chain(options.iter().copied())
        .map(str::to_owned)
        .collect()
}

/// Which generation answers behind a gate.
pub(crate) fn generation(gate: &Gate) -> String {
    let answer = http::get(gate.public(), "/generation");
    answer.expect("an answer").text()
}

/// A server that a test runs beside the gate; killed when dropped.
pub(crate) struct Outside {
    child: Child,
}

impl Outside {
    /// `test-backend` on `address`, once it accepts.
    pub(crate) fn start(address: SocketAddr, options: &[&str]) -> Outside {
        Outside::command(
            address,
            &command(&format!("tcp:{address}"), options),
            Path::new("."),
        )
    }

    /// A command for [`Hop::Address`], run as the gate would run it, once it accepts.
    pub(crate) fn command(address: SocketAddr, words: &[String], directory: &Path) -> Outside {
        let (ip, port) = (address.ip().to_string(), address.port().to_string());
        let words: Vec<String> = words
            .iter()
            .map(|word| word.replace("{addr}", &ip).replace("{port}", &port))
            .collect();
        let mut process = Command::new(&words[0]);
        process
            .args(&words[1..])
            .current_dir(directory)
            .stdin(Stdio::null());
        process
            .env("SYNGATE_ADDR", ip)
            .env("SYNGATE_PORT", port)
            .env("SYNGATE_DIR", directory);
        let child = process.spawn().expect("the backend starts");
        wait_until("the backend accepts", || {
            std::net::TcpStream::connect(address).is_ok()
        });
        Outside { child }
    }

    /// `test-backend` on a unix socket, once it is there.
    pub(crate) fn start_unix(path: &Path, options: &[&str]) -> Outside {
        let words = command(&format!("unix:{}", path.display()), options);
        let mut process = Command::new(&words[0]);
        let child = process
            .args(&words[1..])
            .stdin(Stdio::null())
            .spawn()
            .expect("the backend starts");
        wait_until("the backend accepts", || {
            std::os::unix::net::UnixStream::connect(path).is_ok()
        });
        Outside { child }
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.id()).expect("a pid"))
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).expect("the backend's process");
    }

    /// Waits for its end.
    pub(crate) fn wait(&mut self) {
        wait_until("the backend ends", || {
            self.child.try_wait().expect("wait").is_some()
        });
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        // SIGTERM first: a master ends its workers.
        if let Ok(None) = self.child.try_wait() {
            self.signal(Signal::SIGTERM);
            wait_quietly(&mut self.child);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// True when it ended within a second.
fn wait_quietly(child: &mut Child) -> bool {
    (0..100).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        matches!(child.try_wait(), Ok(Some(_)))
    })
}

/// The command of HAProxy with a configuration of its user's own: it answers short requests itself, and has downloads
/// from the server on the unix socket `app`. A client that leaves without a request gets no error message, which it would
/// answer with a reset.
pub(crate) fn haproxy(directory: &Path, hop: Hop, app: &Path) -> Vec<String> {
    let bind = match hop {
        Hop::Socket => "unix@${SYNGATE_SOCKET}",
        Hop::Address => "${SYNGATE_ADDR}:${SYNGATE_PORT}",
        Hop::Fd => "fd@${SYNGATE_FD}",
    };
    let backlog = if hop == Hop::Fd { "" } else { " backlog 1024" };
    let text = format!(
        "global
    maxconn 4000
defaults
    mode http
    timeout connect 5s
    timeout client 60s
    timeout server 60s
    timeout http-keep-alive 30s
    option idle-close-on-response
    option http-ignore-probes
frontend front
    bind \"{bind}\"{backlog}
    http-request return status 200 content-type text/plain lf-string %[path] unless {{ path_beg /download/ }}
    default_backend app
backend app
    server app unix@{}
",
        app.display()
    );
    let file = directory.join("haproxy.cfg");
    fs::write(&file, text).expect("haproxy.cfg");
    ["haproxy", "-W", "-f", file.to_str().expect("a plain path")]
        .map(str::to_owned)
        .to_vec()
}

/// The command of nginx. It can't read its address from the environment, so a script writes each generation's
/// configuration.
pub(crate) fn nginx(directory: &Path, hop: Hop, download_bytes: u64) -> Vec<String> {
    // A placeholder in the command tells the gate which hop is meant.
    let (listen, placeholder) = match hop {
        Hop::Socket => ("unix:$SYNGATE_SOCKET", "{socket}"),
        Hop::Address => ("$SYNGATE_ADDR:$SYNGATE_PORT", "{addr}"),
        Hop::Fd => ("unix:$bound", "{fd}"),
    };
    // nginx takes over the descriptors in NGINX that are bound to an address of its configuration. /proc knows which it is.
    let passed = if hop == Hop::Fd {
        "inode=$(readlink /proc/self/fd/$SYNGATE_FD | tr -dc 0-9)
bound=$(awk -v inode=$inode '$7 == inode { print $8 }' /proc/net/unix)
export NGINX=\"$SYNGATE_FD;\"
"
    } else {
        ""
    };
    let root = directory.join("www");
    fs::create_dir_all(root.join("download")).expect("a directory");
    write_pattern(
        &root.join("download").join(download_bytes.to_string()),
        download_bytes,
    );
    let template = format!(
        "daemon off;
user root;
worker_processes 1;
error_log stderr warn;
pid nginx.pid;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    default_type text/plain;
    keepalive_timeout 60s;
    keepalive_requests 1000000;
    server {{
        listen ADDRESS backlog=1024;
        location /download/ {{ root {}; }}
        location / {{ return 200 $uri; }}
    }}
}}
",
        root.display()
    );
    let script = format!(
        "set -e
{passed}mkdir -p \"$SYNGATE_DIR/nginx\"
sed \"s|ADDRESS|{listen}|\" nginx.template > \"$SYNGATE_DIR/nginx.conf\"
exec nginx -e stderr -p \"$SYNGATE_DIR/nginx\" -c \"$SYNGATE_DIR/nginx.conf\"
"
    );
    fs::write(directory.join("nginx.template"), template).expect("nginx.template");
    fs::write(directory.join("nginx.sh"), script).expect("nginx.sh");
    ["sh", "nginx.sh", placeholder].map(str::to_owned).to_vec()
}

/// The command of a plain Python HTTP server on `{addr}` and `{port}`.
pub(crate) fn python(directory: &Path) -> Vec<String> {
    let program = r#"import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PATTERN = open(sys.argv[3], "rb").read()

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1

    def do_GET(self):
        body = self.path.encode()
        if self.path.startswith("/download/"):
            body = PATTERN[:int(self.path.split("/")[2])]
        self.send_response_only(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

class Server(ThreadingHTTPServer):
    request_queue_size = 1024

Server((sys.argv[1], int(sys.argv[2])), Handler).serve_forever()
"#;
    fs::write(directory.join("server.py"), program).expect("server.py");
    write_pattern(&directory.join("pattern"), 10_000_000);
    [
        "/usr/bin/python3",
        "server.py",
        "{addr}",
        "{port}",
        "pattern",
    ]
    .map(str::to_owned)
    .to_vec()
}

fn write_pattern(path: &Path, length: u64) {
    let mut file = File::create(path).expect("a file");
    let mut at = 0;
    while at < length {
        let piece = pattern::at(at, usize::try_from(length - at).expect("a size"));
        file.write_all(piece).expect("a file");
        at += piece.len() as u64;
    }
}
