//! The gate as a process: started with a test's options, watched from outside, ended with the test.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use super::done::Done;
use super::net::Net;
use super::scrape::Metrics;
use super::{http, wait_for, wait_within};

/// The values of `reloads_total{outcome}`.
const OUTCOMES: [&str; 8] = [
    "success",
    "check_failed",
    "listen_failed",
    "start_failed",
    "not_ready",
    "flipped_back",
    "retried",
    "superseded",
];

const SYNGATE: &str = env!("CARGO_BIN_EXE_syngate");

/// What a gate will be started with: a directory, a public address, a control socket and a metrics address of its own.
pub(crate) struct Setup {
    dir: TempDir,
    public: SocketAddr,
    metrics: SocketAddr,
    program: Vec<OsString>,
    options: Vec<OsString>,
    environment: Vec<(String, String)>,
    backend: Vec<String>,
    stdin: Option<OwnedFd>,
}

impl Setup {
    /// `syngate run` with one listener.
    pub(crate) fn new(net: &Net) -> Setup {
        let setup = Setup::bare(net);
        let listen = setup.public.to_string();
        setup.options(["--listen", &listen])
    }

    /// Without a listener: a configuration file or the test names them.
    pub(crate) fn bare(net: &Net) -> Setup {
        let dir = tempfile::Builder::new()
            .prefix("syngate-test-")
            .tempdir()
            .expect("a directory");
        let (public, metrics) = (net.free_address(), net.free_address());
        let control = dir.path().join("control.sock").into();
        let options = vec![
            "--control".into(),
            control,
            "--metrics".into(),
            metrics.to_string().into(),
        ];
        Setup {
            dir,
            public,
            metrics,
            program: vec![SYNGATE.into()],
            options,
            environment: Vec::new(),
            backend: Vec::new(),
            stdin: None,
        }
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The public address: of the listener that [`Setup::new`] adds.
    pub(crate) fn public(&self) -> SocketAddr {
        self.public
    }

    pub(crate) fn options<S: AsRef<OsStr>>(
        mut self,
        options: impl IntoIterator<Item = S>,
    ) -> Setup {
        self.options
            .extend(options.into_iter().map(|option| option.as_ref().to_owned()));
        self
    }

    pub(crate) fn environment(mut self, name: &str, value: &str) -> Setup {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Started by `program`, which takes a command to run as its last arguments.
    pub(crate) fn under<S: Into<OsString>>(
        mut self,
        program: impl IntoIterator<Item = S>,
    ) -> Setup {
        self.program
            .splice(..0, program.into_iter().map(Into::into));
        self
    }

    /// Passes a descriptor as the standard input.
    pub(crate) fn stdin(mut self, stdin: impl Into<OwnedFd>) -> Setup {
        self.stdin = Some(stdin.into());
        self
    }

    /// The COMMAND after `--`.
    pub(crate) fn backend(mut self, command: Vec<String>) -> Setup {
        self.backend = command;
        self
    }

    /// Starts it and waits until every service has been active.
    pub(crate) fn start(self) -> Gate {
        let mut gate = self.spawn();
        gate.wait_ready();
        gate
    }

    /// Starts it and waits for nothing.
    pub(crate) fn spawn(mut self) -> Gate {
        let log = self.dir().join("gate.log");
        let sink = File::create(&log).expect("the log");
        let mut command = self.command_of("run");
        let stdin = self.stdin.take().map_or_else(Stdio::null, Stdio::from);
        let child = command
            .stdin(stdin)
            .stdout(sink.try_clone().expect("dup"))
            .stderr(sink)
            .spawn();
        Gate {
            child: child.expect("syngate starts"),
            control: self.dir().join("control.sock"),
            log,
            setup: Some(self),
            first_run: BTreeMap::new(),
        }
    }

    /// With a control socket elsewhere.
    pub(crate) fn replace_control(mut self, path: &str) -> Setup {
        self.options[1] = path.into(); // the first option is --control
        self
    }

    /// With a metrics address that the test chose.
    pub(crate) fn replace_metrics(mut self, address: SocketAddr) -> Setup {
        self.metrics = address;
        self.options[3] = address.to_string().into(); // the second option is --metrics
        self
    }

    /// The whole command line, for `run` or `check`.
    pub(crate) fn command_of(&self, verb: &str) -> Command {
        let mut command = Command::new(&self.program[0]);
        clean_environment(&mut command);
        command
            .args(&self.program[1..])
            .arg(verb)
            .args(&self.options)
            .current_dir(self.dir());
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        if !self.backend.is_empty() {
            command.arg("--").args(&self.backend);
        }
        command
    }
}

/// A running gate. When dropped, it and all that it started are killed, and after a failed test its log is shown.
pub(crate) struct Gate {
    child: Child,
    control: PathBuf,
    log: PathBuf,
    /// `None` only when [`Gate::again`] has taken it.
    setup: Option<Setup>,
    /// The counts of [`Gate::reloads`] when the first run had ended.
    first_run: BTreeMap<&'static str, f64>,
}

impl Gate {
    fn setup(&self) -> &Setup {
        self.setup
            .as_ref()
            .expect("a gate has a setup until it is started again")
    }

    pub(crate) fn public(&self) -> SocketAddr {
        self.setup().public
    }

    /// Where it serves `/metrics`.
    pub(crate) fn metrics_address(&self) -> SocketAddr {
        self.setup().metrics
    }

    pub(crate) fn dir(&self) -> &Path {
        self.setup().dir()
    }

    /// Another start of the same command line in the same directory, after this one has ended.
    pub(crate) fn again(mut self) -> Gate {
        self.child.wait().expect("wait");
        self.setup
            .take()
            .expect("a gate has a setup until it is started again")
            .start()
    }

    pub(crate) fn control(&self) -> &Path {
        &self.control
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.id()).expect("a pid"))
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).expect("the gate's process");
    }

    /// What the gate has logged so far.
    pub(crate) fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).expect("the log")).into_owned()
    }

    /// Waits until the log has these words: another thread writes it.
    #[track_caller]
    pub(crate) fn expect_log(&self, words: &str) {
        super::wait_until(words, || self.log().contains(words));
    }

    /// Waits until `/readyz` says 200 and the first run has ended; a gate that ends instead fails the test.
    pub(crate) fn wait_ready(&mut self) {
        wait_for("the gate is ready", || {
            if let Some(status) = self.child.try_wait().expect("wait") {
                panic!("the gate ended at its start: {status}\n{}", self.log());
            }
            self.ask("/readyz")
                .ok()
                .filter(|answer| answer.status == 200)
        });
        wait_for("the first run has ended", || {
            let status = http::unix(&self.control, "GET", "/v1/status").ok()?;
            let status: serde_json::Value = serde_json::from_slice(&status.body).expect("JSON");
            let services = status["services"].as_array().expect("services");
            services
                .iter()
                .all(|service| service["running"].is_null())
                .then_some(())
        });
        let metrics = self.metrics();
        let count = |outcome| metrics.sum("reloads_total", &[("outcome", outcome)]);
        self.first_run = OUTCOMES
            .into_iter()
            .map(|outcome| (outcome, count(outcome)))
            .collect();
    }

    /// Runs with this outcome since the gate was ready: `reloads_total` without the start.
    #[track_caller]
    pub(crate) fn reloads(&self, outcome: &str) -> f64 {
        self.metrics().sum("reloads_total", &[("outcome", outcome)]) - self.first_run[outcome]
    }

    /// A GET of the admin endpoint.
    pub(crate) fn ask(&self, path: &str) -> std::io::Result<http::Answer> {
        http::get(self.metrics_address(), path)
    }

    pub(crate) fn metrics(&self) -> Metrics {
        Metrics::parse(&self.ask("/metrics").expect("a scrape").text())
    }

    /// [`Gate::metrics`], or `None` while the gate isn't up yet.
    pub(crate) fn metrics_if_up(&self) -> Option<Metrics> {
        self.ask("/metrics")
            .ok()
            .map(|answer| Metrics::parse(&answer.text()))
    }

    /// A verb of the command line; its control socket is named by the environment.
    pub(crate) fn verb<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(SYNGATE);
        clean_environment(&mut command);
        command
            .args(arguments)
            .env("SYNGATE_CONTROL", &self.control)
            .current_dir(self.dir())
            .stdin(Stdio::null());
        command
    }

    /// Runs a verb to its end.
    pub(crate) fn run<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Done {
        Done::from(self.verb(arguments).output().expect("syngate runs"))
    }

    /// A reload that must succeed.
    pub(crate) fn reload(&self) {
        self.run(["reload"]).expect_code(0);
    }

    pub(crate) fn status_json(&self) -> serde_json::Value {
        let done = self.run(["status", "--json"]);
        done.expect_code(0);
        serde_json::from_str(&done.out).expect("JSON")
    }

    /// Its resident memory in bytes. VmRSS of /proc/PID/status is off by some dozen pages a core (proc(5)); this is counted.
    pub(crate) fn resident(&self) -> u64 {
        let rollup = format!("/proc/{}/smaps_rollup", self.pid());
        let rollup = fs::read_to_string(rollup).expect("smaps_rollup");
        let line = rollup
            .lines()
            .find_map(|line| line.strip_prefix("Rss:"))
            .expect("Rss");
        let kib: u64 = line
            .trim()
            .trim_end_matches(" kB")
            .parse()
            .expect("a number");
        kib * 1024
    }

    /// Ends within `limit`, or the test fails.
    pub(crate) fn wait_exit(&mut self, limit: Duration) -> ExitStatus {
        wait_within(limit, "the gate ends", || {
            self.child.try_wait().expect("wait")
        })
    }

    /// Every process that the gate has started, directly or not, and that still runs: known by the directory it runs in,
    /// so that those whose parent has gone are found too.
    pub(crate) fn children(&self) -> Vec<Pid> {
        let inside = |pid: &Pid| {
            fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd.starts_with(self.dir()))
        };
        let all = fs::read_dir("/proc")
            .expect("/proc")
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        all.map(Pid::from_raw)
            .filter(|pid| *pid != self.pid() && inside(pid))
            .collect()
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        if self.setup.is_none() {
            return;
        }
        if std::thread::panicking() {
            let log = self.log();
            let from = log.len().saturating_sub(20_000);
            eprintln!(
                "--- the gate's log ---\n{}\n--- end ---",
                String::from_utf8_lossy(&log.as_bytes()[from..])
            );
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(5) {
            let left = self.children();
            if left.is_empty() {
                break;
            }
            for pid in left {
                let _ = kill(pid, Signal::SIGKILL);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Variables that configure a gate, and descriptors passed to it, come from the test alone.
fn clean_environment(command: &mut Command) {
    let of_gate = |name: &str| {
        ["SYNGATE_", "LISTEN_", "NOTIFY_", "WATCHDOG_"]
            .iter()
            .any(|prefix| name.starts_with(prefix))
    };
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(of_gate)) {
        command.env_remove(name);
    }
    command.env_remove("XDG_RUNTIME_DIR");
}

/// `syngate` with these arguments and no gate around it.
pub(crate) fn syngate<S: AsRef<OsStr>>(
    directory: &Path,
    arguments: impl IntoIterator<Item = S>,
) -> Command {
    let mut command = Command::new(SYNGATE);
    clean_environment(&mut command);
    command
        .args(arguments)
        .current_dir(directory)
        .stdin(Stdio::null());
    command
}
