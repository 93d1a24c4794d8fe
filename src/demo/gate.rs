//! The gate of the demo: `syngate run` as a child, in a private directory, and asked as any client asks it.
//!
//! Invariant: when it is dropped, its process, what that process has started and (unless it was told to keep it) the directory
//! are gone. Nothing of the user's own setting reaches it: the environment is empty, and so no variable of a real gate is read.

use std::cell::{Cell, RefCell};
use std::fs::{self, File};
use std::io;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::HOST;
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, mkdtemp};
use syngate_supervisor::protocol::{Done, ServiceStatus, Status};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{sleep, timeout};

use crate::client::{self, Failure};
use crate::progress::{Output, Progress};

/// What the gate is told. Its working directory is the one of this file, and so it is for what it starts.
const CONFIG: &str = r#"
shutdown_timeout = "4s"

# Generations stand side by side. The gate makes their listening socket and keeps a copy: what waits in it survives them.
[services.web]
listen = "127.0.0.1:0"
command = ["/proc/self/exe", "demo-backend", "web.conf"]
check = ["/proc/self/exe", "demo-backend", "--check", "web.conf"]
pass = "listen-fds"
ready = "notify"
ready_timeout = "1s"
min_ready = "100ms"
drain_signal = "SIGUSR1"
drain_timeout = "60s"
pending_timeout = "60s"

# Two of these can't run at once: the old one has to end before the new one starts.
[services.jobs]
listen = "127.0.0.1:0"
command = ["/proc/self/exe", "demo-backend", "--lock", "jobs.lock", "--listen", "{addr}:{port}", "jobs.conf"]
check = ["/proc/self/exe", "demo-backend", "--check", "jobs.conf"]
strategy = "replace"
ready_timeout = "1s"
min_ready = "100ms"
drain_signal = "SIGUSR1"
drain_timeout = "30s"
pending_timeout = "60s"
"#;

/// From the start until all services are active.
const START: Duration = Duration::from_secs(30);

/// Between two looks at something that doesn't tell.
const AGAIN: Duration = Duration::from_millis(20);

/// A verb takes no longer, whatever happens.
const VERB: Duration = Duration::from_secs(90);

/// From SIGTERM to SIGKILL: over `shutdown_timeout`.
const STOP: Duration = Duration::from_secs(6);

/// What is left of a gate that had to be killed ends within this.
const REMAINS: Duration = Duration::from_secs(2);

/// So many lines of its log are shown.
const LAST_LINES: usize = 12;

/// A running gate.
pub(super) struct Gate {
    child: RefCell<Child>,
    metrics: SocketAddr,
    /// Bound, and never listening: so nobody but the gate gets the port.
    _reserved: TcpSocket,
    directory: PathBuf,
    keep: Cell<bool>,
}

impl Gate {
    /// Starts it.
    pub(super) fn start() -> Result<Gate, String> {
        let (reserved, metrics) =
            reserve_port().map_err(|error| format!("no port of 127.0.0.1 is free: {error}"))?;
        let directory = private_directory()?;
        let child = launch(&directory, metrics).map_err(|error| {
            // It is empty or nearly so; the error counts.
            let _ = fs::remove_dir_all(&directory);
            format!(
                "the gate can't be started in {}: {error}",
                directory.display()
            )
        })?;
        Ok(Gate {
            child: RefCell::new(child),
            metrics,
            _reserved: reserved,
            directory,
            keep: Cell::new(false),
        })
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.borrow().id()
    }

    /// Where its metrics are.
    pub(super) fn metrics(&self) -> String {
        format!("http://{}/metrics", self.metrics)
    }

    /// Where its log is.
    pub(super) fn log(&self) -> PathBuf {
        self.directory.join("gate.log")
    }

    /// The directory stays, for somebody to look into.
    pub(super) fn keep_directory(&self) {
        self.keep.set(true);
    }

    /// The last lines of its log.
    pub(super) fn last_lines(&self) -> String {
        let log = fs::read(self.log()).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(LAST_LINES)..].join("\n")
    }

    /// Returns when it has ended.
    pub(super) async fn ended(&self) -> ExitStatus {
        loop {
            if let Ok(Some(status)) = self.child.borrow_mut().try_wait() {
                return status;
            }
            sleep(AGAIN).await;
        }
    }

    /// Its status, once all services are active.
    pub(super) async fn active(&self) -> Result<Status, String> {
        let all_active = async {
            loop {
                // Until its control socket is there, nobody answers.
                if let Ok(status) = self.status().await
                    && status
                        .services
                        .iter()
                        .all(|service| service.active.is_some())
                {
                    return status;
                }
                sleep(AGAIN).await;
            }
        };
        timeout(START, all_active)
            .await
            .map_err(|_| format!("the gate isn't ready after {START:?}"))
    }

    pub(super) async fn status(&self) -> Result<Status, Failure> {
        client::fetch_status(Some(&self.control()), None).await
    }

    pub(super) async fn service(&self, name: &str) -> Result<ServiceStatus, String> {
        let status = self.status().await.map_err(|error| error.to_string())?;
        let mut services = status.services.into_iter();
        services
            .find(|service| service.name == name)
            .ok_or_else(|| format!("the gate's status has no service {name}"))
    }

    /// Writes a service's configuration, as a whole: a reader sees the old one or the new one.
    pub(super) fn configure(&self, service: &str, text: &str) -> Result<(), String> {
        configure(&self.directory, service, text)
            .map_err(|error| format!("{service}'s configuration can't be written: {error}"))
    }

    /// Asks for a verb of a service and waits for its last line. `verb` may have parameters.
    pub(super) async fn ask(&self, service: &str, verb: &str) -> Result<Done, String> {
        let target = format!("/v1/services/{service}/{verb}");
        let control = self.control();
        let exchange = async {
            let answer = client::ask(Some(&control), Method::POST, &target).await?;
            let mut unseen = Progress::new(Output::None);
            client::follow(&mut answer.accepted().await?, &mut unseen).await
        };
        match timeout(VERB, exchange).await {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(failure)) => Err(format!("{verb} of {service}: {failure}")),
            Err(_) => Err(format!("{verb} of {service}: no end after {VERB:?}")),
        }
    }

    /// Its metrics, as Prometheus gets them.
    pub(super) async fn scrape(&self) -> Result<String, String> {
        let exchange = async {
            let stream = TokioIo::new(TcpStream::connect(self.metrics).await?);
            let (mut sender, connection) =
                http1::handshake(stream).await.map_err(io::Error::other)?;
            // An error of the connection is the error of its request, too.
            tokio::spawn(connection);
            let request = Request::get("/metrics").header(HOST, self.metrics.to_string());
            let request = request
                .body(Empty::<Bytes>::new())
                .map_err(io::Error::other)?;
            let answer = sender
                .send_request(request)
                .await
                .map_err(io::Error::other)?;
            let body = answer
                .into_body()
                .collect()
                .await
                .map_err(io::Error::other)?;
            Ok::<_, io::Error>(String::from_utf8_lossy(&body.to_bytes()).into_owned())
        };
        exchange
            .await
            .map_err(|error| format!("{}: {error}", self.metrics()))
    }

    /// Ends it as an operator would, and waits for it.
    pub(super) async fn stop(self) -> Result<(), String> {
        signal(&self.child.borrow(), Signal::SIGTERM);
        match timeout(STOP, self.ended()).await {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(format!(
                "the gate ended with {status} when it was told to stop"
            )),
            Err(_) => Err(format!(
                "the gate didn't end within {STOP:?}, and was killed"
            )),
        }
    }

    fn control(&self) -> PathBuf {
        control(&self.directory)
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        let child = self.child.get_mut();
        // Both do nothing where it has ended.
        let _ = child.kill();
        let _ = child.wait();
        end_remains(&self.directory);
        if !self.keep.get() {
            // What can't be removed is left to whoever cleans the temp dir.
            let _ = fs::remove_dir_all(&self.directory);
        }
    }
}

/// A new directory of mode 0700. Where there is no temp dir, as in a small container, there may still be shared memory.
fn private_directory() -> Result<PathBuf, String> {
    let temp = std::env::temp_dir();
    let make = |parent: &Path| -> io::Result<PathBuf> {
        fs::canonicalize(mkdtemp(&parent.join("syngate-demo.XXXXXX"))?)
    };
    make(&temp)
        .or_else(|error| make(Path::new("/dev/shm")).map_err(|_| error))
        .map_err(|error| {
            format!(
                "no directory can be made in {}: {error}: set TMPDIR to a writable place",
                temp.display()
            )
        })
}

/// A port for a socket that another process will bind: while this one is bound, the system gives the port to nobody else, and
/// SO_REUSEADDR on both lets them share it (socket(7)).
fn reserve_port() -> io::Result<(TcpSocket, SocketAddr)> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(SocketAddr::from(([127, 0, 0, 1], 0)))?;
    let address = socket.local_addr()?;
    Ok((socket, address))
}

fn launch(directory: &Path, metrics: SocketAddr) -> io::Result<Child> {
    fs::write(directory.join("demo.toml"), CONFIG)?;
    configure(directory, "web", "version 1\n")?;
    configure(directory, "jobs", "version 1\n")?;
    Command::new("/proc/self/exe")
        .arg0("syngate")
        .args(["run", "--config", "demo.toml", "--control"])
        .arg(control(directory))
        .arg("--runtime-dir")
        .arg(directory)
        .args(["--metrics", &metrics.to_string()])
        .current_dir(directory)
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(File::create(directory.join("gate.log"))?)
        // An interrupt from a terminal is for the demo alone, which then ends the gate.
        .process_group(0)
        .spawn()
}

fn control(directory: &Path) -> PathBuf {
    directory.join("control.sock")
}

fn configure(directory: &Path, service: &str, text: &str) -> io::Result<()> {
    let new = directory.join(format!("{service}.conf.new"));
    fs::write(&new, text)?;
    fs::rename(new, directory.join(format!("{service}.conf")))
}

/// The child hasn't been waited for, or has ended, and then this is refused.
fn signal(child: &Child, signal: Signal) {
    let _ = kill(Pid::from_raw(child.id().cast_signed()), signal);
}

/// Kills what a gate has left that couldn't end its children, and waits until it is gone.
fn end_remains(directory: &Path) {
    let deadline = Instant::now() + REMAINS;
    loop {
        let remains = processes_in(directory);
        if remains.is_empty() || Instant::now() >= deadline {
            return;
        }
        for pid in remains {
            // It may have ended meanwhile.
            let _ = kill(pid, Signal::SIGKILL);
        }
        std::thread::sleep(AGAIN);
    }
}

/// The processes of this executable that work in the directory: they are the demo's, whoever has become their parent.
fn processes_in(directory: &Path) -> Vec<Pid> {
    let ours = fs::read_link("/proc/self/exe").ok();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let is_ours = |entry: &fs::DirEntry| {
        let link = |name| fs::read_link(entry.path().join(name)).ok();
        link("cwd").as_deref() == Some(directory) && link("exe") == ours
    };
    entries
        .filter(is_ours)
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .map(Pid::from_raw)
        .collect()
}
