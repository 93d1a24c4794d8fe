//! Debian's Docker engine, started for one test, and containers in it.
//!
//! It is process 1 of a process namespace, so all that it starts ends with it, and with the test. It has mounts and a `/run` of
//! its own, and the network namespace of the test: the bridge with the containers is there.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::common::done::Done;
use crate::common::scrape::Metrics;
use crate::common::{http, wait_within};
use crate::run;

/// By their paths: something else may bear these names in /usr/local/bin.
const DOCKER: &str = "/usr/bin/docker";
const COMPOSE: &str = "/usr/bin/docker-compose";
const DOCKERD: &str = "/usr/sbin/dockerd";
const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

/// The test's own address on the bridge to the containers.
pub(super) const GATEWAY: Ipv4Addr = Ipv4Addr::new(172, 17, 0, 1);

/// A running engine. Dropped, it ends, and everything with it.
pub(super) struct Engine {
    /// `unshare`, which waits for the engine.
    outer: Child,
    /// The socket, the log and the client's configuration: not beside the data, since a socket's path has to be short.
    directory: TempDir,
    /// Images and containers.
    _data: TempDir,
}

/// What there has to be for an engine and isn't.
pub(super) fn missing() -> Option<&'static str> {
    [DOCKER, DOCKERD]
        .into_iter()
        .find(|program| !Path::new(program).is_file())
}

impl Engine {
    /// `Err` has the last words of engines that don't start.
    pub(super) fn start() -> Result<Engine, String> {
        Engine::with("overlay2").or_else(|first| {
            Engine::with("vfs").map_err(|second| format!("overlay2: {first}\nvfs: {second}"))
        })
    }

    fn with(driver: &str) -> Result<Engine, String> {
        let directory = tempfile::Builder::new()
            .prefix("engine-")
            .tempdir()
            .expect("a directory");
        let data = tempfile::Builder::new()
            .prefix("engine-")
            .tempdir_in(env!("CARGO_TARGET_TMPDIR"))
            .expect("a directory");
        let log = File::create(directory.path().join("log")).expect("the log");
        let outer = Command::new("unshare")
            .args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"])
            .args(["sh", "-c", "mount -t tmpfs tmpfs /run && exec \"$@\"", "sh"])
            .args([DOCKERD, "--host", &socket(&directory)])
            .arg("--data-root")
            .arg(data.path())
            .args(["--storage-driver", driver, &format!("--bip={GATEWAY}/16")])
            // The test talks to the containers' own addresses, and they to nobody outside.
            .args(["--iptables=false", "--ip-forward=false", "--ip-masq=false"])
            .env("PATH", PATH)
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("dup"))
            .stderr(log)
            .spawn()
            .expect("unshare");
        let mut engine = Engine {
            outer,
            directory,
            _data: data,
        };
        let limit = Duration::from_secs(60);
        let up = wait_within(limit, "the engine answers or ends", || {
            if engine.outer.try_wait().expect("wait").is_some() {
                return Some(false);
            }
            let asked = engine.docker(["version"]).output().expect("docker");
            asked.status.success().then_some(true)
        });
        if up {
            println!("the engine stores with {driver}");
            Ok(engine)
        } else {
            Err(engine.last_words(5))
        }
    }

    /// The client, with these arguments.
    pub(super) fn docker<S: AsRef<OsStr>>(
        &self,
        arguments: impl IntoIterator<Item = S>,
    ) -> Command {
        let mut command = Command::new(DOCKER);
        command
            .args(["--host", &socket(&self.directory)])
            .args(arguments)
            .env("PATH", PATH)
            .env("DOCKER_BUILDKIT", "0")
            .env("DOCKER_CONFIG", self.directory.path())
            .env_remove("DOCKER_CONTEXT")
            .stdin(Stdio::null());
        command
    }

    /// Debian's Compose, if it is there, with these files.
    pub(super) fn compose(&self, files: &[&Path]) -> Option<Command> {
        Path::new(COMPOSE).is_file().then(|| {
            let mut command = Command::new(COMPOSE);
            for file in files {
                command.arg("--file").arg(file);
            }
            command
                .env("PATH", PATH)
                .env("DOCKER_BUILDKIT", "0")
                .env("DOCKER_HOST", socket(&self.directory))
                .env("DOCKER_CONFIG", self.directory.path())
                .env_remove("DOCKER_CONTEXT")
                .stdin(Stdio::null());
            command
        })
    }

    /// Runs the client, which must succeed, and returns what it says.
    pub(super) fn run<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> String {
        run(&mut self.docker(arguments)).trim_end().to_owned()
    }

    /// One value of an image or a container, as a Go template.
    pub(super) fn inspect(&self, name: &str, format: &str) -> String {
        self.run(["inspect", "--format", format, name])
    }

    fn last_words(&self, lines: usize) -> String {
        let log = fs::read(self.directory.path().join("log")).expect("the log");
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().rev().take(lines).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    }

    /// As it is seen from here.
    fn process(&self) -> Option<Pid> {
        let outer = self.outer.id();
        let children = fs::read_to_string(format!("/proc/{outer}/task/{outer}/children")).ok()?;
        children.trim().parse().ok().map(Pid::from_raw)
    }

    /// True when it ended in time.
    fn ends(&mut self) -> bool {
        (0..2000).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            !matches!(self.outer.try_wait(), Ok(None))
        })
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- the engine's log ---\n{}", self.last_words(50));
        }
        if let Some(engine) = self.process() {
            // It removes the control groups of its containers, unless it can't.
            let _ = kill(engine, Signal::SIGTERM);
            if !self.ends() {
                let _ = kill(engine, Signal::SIGKILL);
            }
        } else {
            let _ = self.outer.kill();
        }
        let _ = self.outer.wait();
    }
}

fn socket(directory: &TempDir) -> String {
    format!("unix://{}/docker.sock", directory.path().display())
}

/// A container under everything that a careful user forbids it; removed when dropped.
pub(super) struct Container<'a> {
    engine: &'a Engine,
    name: &'a str,
    ip: Ipv4Addr,
}

impl<'a> Container<'a> {
    /// `docker run` with these options, image and arguments. Descriptors are as many as the engine has: more, not every engine may give.
    pub(super) fn start(engine: &'a Engine, name: &'a str, words: &[&str]) -> Container<'a> {
        let careful = [
            "--read-only",
            "--cap-drop=ALL",
            "--security-opt=no-new-privileges",
        ];
        let mut command = engine.docker(["run", "--detach", "--name", name]);
        run(command.args(careful).args(words));
        // One in the test's own network has no address.
        let ip = engine.inspect(name, "{{.NetworkSettings.IPAddress}}");
        let ip = ip.parse().unwrap_or(Ipv4Addr::LOCALHOST);
        Container { engine, name, ip }
    }

    pub(super) fn at(&self, port: u16) -> SocketAddr {
        SocketAddr::from((self.ip, port))
    }

    /// A command in it, run to its end.
    pub(super) fn exec<S: AsRef<OsStr>>(&self, command: impl IntoIterator<Item = S>) -> Done {
        let mut exec = self.engine.docker(["exec", self.name]);
        Done::from(exec.args(command).output().expect("docker"))
    }

    /// What tar(1) says of a file in it, whatever programs it has.
    pub(super) fn listed(&self, path: &str) -> String {
        let from = format!("{}:{path}", self.name);
        let mut copy = self.engine.docker(["cp", &from, "-"]);
        let mut copy = copy.stdout(Stdio::piped()).spawn().expect("docker");
        let stream = copy.stdout.take().expect("a pipe");
        let mut tar = Command::new("tar");
        tar.args(["--list", "--verbose", "--numeric-owner"]);
        let list = run(tar.stdin(stream));
        assert!(copy.wait().expect("wait").success(), "docker cp {from}");
        list
    }

    pub(super) fn inspect(&self, format: &str) -> String {
        self.engine.inspect(self.name, format)
    }

    pub(super) fn signal(&self, signal: &str) {
        self.engine.run(["kill", "--signal", signal, self.name]);
    }

    /// `docker stop` with its own time limit, after which the engine would kill.
    pub(super) fn stop(&self) {
        self.engine.run(["stop", self.name]);
    }

    /// What it says about itself to those outside.
    pub(super) fn metrics(&self) -> Metrics {
        let answer = http::get(self.at(9464), "/metrics").expect("a scrape");
        Metrics::parse(&answer.text())
    }
}

impl Drop for Container<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let logs = ["logs", "--tail", "100", self.name];
            if let Ok(logs) = self.engine.docker(logs).output() {
                let Done { out, err, .. } = Done::from(logs);
                eprintln!("--- the log of {} ---\n{out}{err}", self.name);
            }
        }
        let remove = ["rm", "--force", "--volumes", self.name];
        let _ = self.engine.docker(remove).output();
    }
}
