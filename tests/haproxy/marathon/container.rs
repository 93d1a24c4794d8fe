//! A container of marathon-lb, as far as its HAProxy goes.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::chown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::common::done::Done;
use crate::common::scrape::Metrics;
use crate::common::{http, wait_for, wait_until};

/// The user in the container: nobody.
const USER: u32 = 65534;

/// The last line of a configuration, which a test replaces by its own. It stands in a frontend.
pub(super) const END: &str = "# the end\n";

/// marathon-lb's container: runit as PID 1 of a pid namespace, run by a user who may do nothing more than bind low ports.
pub(super) struct Container {
    dir: TempDir,
    unshare: Child,
    init: Pid,
}

impl Container {
    /// Waits until the gate answers. There is no configuration yet.
    pub(super) fn start(environment: &[(&str, &str)]) -> Container {
        let dir = tempfile::tempdir().expect("a directory");
        for directory in ["bin", "run", "tmp", "service/haproxy"] {
            fs::create_dir_all(dir.path().join(directory)).expect("a directory");
        }
        let packaging = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/marathon-lb");
        let bin = dir.path().join("bin");
        // Copies: the user need not be able to reach what they were made from.
        copy(env!("CARGO_BIN_EXE_syngate").as_ref(), &bin.join("syngate"));
        for script in ["service/haproxy/run", "reload_haproxy.sh"] {
            copy(&packaging.join(script), &dir.path().join(script));
        }
        if let Ok(program) = std::env::var("HAPROXY") {
            copy(program.as_ref(), &bin.join("haproxy"));
        }
        fs::write(dir.path().join("getpids.lua"), GETPIDS).expect("getpids.lua");
        give(dir.path());

        let log = File::create(dir.path().join("log")).expect("the log");
        let mut command = Command::new("unshare");
        command
            .args(["--pid", "--fork", "--mount-proc", "setpriv"])
            .args([&format!("--reuid={USER}"), &format!("--regid={USER}")])
            .args(["--clear-groups", "--no-new-privs"])
            .args(["inh-caps", "ambient-caps", "bounding-set"].map(only_low_ports))
            .args(["runsvdir", "-P"])
            .arg(dir.path().join("service"));
        set_environment(&mut command, dir.path());
        command.envs(environment.iter().copied());
        let unshare = command
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("dup"))
            .stderr(log)
            .spawn()
            .expect("unshare starts");
        let parent = unshare.id();
        let init = wait_for("runit runs", || {
            let children = format!("/proc/{parent}/task/{parent}/children");
            let child = fs::read_to_string(children).ok()?.trim().parse().ok()?;
            let name = fs::read_to_string(format!("/proc/{child}/comm")).ok()?;
            (name.trim() == "runsvdir").then(|| Pid::from_raw(child))
        });
        let container = Container { dir, unshare, init };
        wait_until("the gate answers", || {
            container.run(["syngate", "status"]).code == Some(0)
        });
        container
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(super) fn service(&self) -> String {
        self.path("service/haproxy").display().to_string()
    }

    pub(super) fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.path("log")).expect("the log")).into_owned()
    }

    /// Runs a command in the container, as its user.
    pub(super) fn run<S: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = S>) -> Done {
        let mut command = Command::new("nsenter");
        let user = [format!("--setuid={USER}"), format!("--setgid={USER}")];
        command
            .args(["--pid", "--mount", "--target", &self.init.to_string()])
            .args(user)
            .args(words);
        set_environment(&mut command, self.dir.path());
        Done::from(command.stdin(Stdio::null()).output().expect("nsenter runs"))
    }

    /// `pidof haproxy`, by which marathon-lb knows a reload.
    pub(super) fn pids(&self) -> BTreeSet<i32> {
        let said = self.run(["pidof", "haproxy"]).out;
        let pids = said.split_whitespace();
        pids.map(|pid| pid.parse().expect("a pid")).collect()
    }

    /// A sum over a metric's series.
    pub(super) fn metric(&self, name: &str) -> f64 {
        let answer =
            http::get(SocketAddr::from((Ipv4Addr::LOCALHOST, 9464)), "/metrics").expect("a scrape");
        Metrics::parse(&answer.text()).sum(name, &[])
    }

    /// The stats socket answers at the path that the configuration gives it.
    pub(super) fn expect_stats_socket(&self) {
        let mut stats = UnixStream::connect(self.path("run/socket")).expect("the stats socket");
        stats.write_all(b"show info\n").expect("write");
        let mut answer = String::new();
        stats.read_to_string(&mut answer).expect("an answer");
        assert!(answer.contains("\nPid: "), "{answer}");
    }

    /// The new text stands at the configuration's place in one step.
    pub(super) fn write(&self, text: &str) {
        let temporary = self.path("tmp/new.cfg");
        fs::write(&temporary, text).expect("write");
        fs::rename(temporary, self.path("haproxy.cfg")).expect("rename");
    }

    /// A configuration as marathon-lb writes it: `version` is what port 80 answers, and makes the port of its only app. (An app's
    /// frontend and backend have one name there, which HAProxy 3.3 and newer refuse.)
    pub(super) fn config(&self, version: u16) -> String {
        let dir = self.dir.path().display();
        let port = 10_000 + version;
        format!(
            "global
  log /dev/log local0
  maxconn 1000
  stats socket {dir}/run/socket expose-fd listeners
  server-state-file global
  server-state-base {dir}/run/
  lua-load {dir}/getpids.lua
defaults
  load-server-state-from-file global
  log               global
  maxconn           500
  timeout connect          3s
  timeout client          30s
  timeout server          30s
  timeout http-keep-alive 30s
  timeout http-request    15s
  option            dontlognull
listen stats
  bind 0.0.0.0:9090
  balance
  mode http
  stats enable
  monitor-uri /_haproxy_health_check
  acl getpid path /_haproxy_getpids
  http-request use-service lua.getpids if getpid

frontend marathon_http_in
  bind *:80
  mode http
  http-request return status 200 content-type text/plain string {version}

frontend app_{port}
  bind *:{port}
  mode http
  use_backend servers

backend servers
  mode http
  server 127_0_0_1_9 127.0.0.1:9
frontend more
  bind 127.0.0.1:10998
  mode http
  default_backend servers
{END}"
        )
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- the container's log ---\n{}\n--- end ---", self.log());
        }
        // The end of PID 1 is that of all others.
        let _ = kill(self.init, Signal::SIGKILL);
        let _ = self.unshare.wait();
    }
}

/// A service that does what marathon-lb's does.
const GETPIDS: &str = r#"core.register_service("getpids", "http", function(applet)
  local pidof = io.popen("pidof haproxy")
  local pids = pidof:read("*a")
  pidof:close()
  applet:set_status(200)
  applet:add_header("content-length", string.len(pids))
  applet:start_response()
  applet:send(pids)
end)
"#;

fn only_low_ports(set: &str) -> String {
    format!("--{set}=-all,+net_bind_service")
}

/// What the container is started with, and each of its commands: the scripts' places are the test's own.
fn set_environment(command: &mut Command, dir: &Path) {
    let path = format!("{}/bin:/usr/sbin:/usr/bin:/sbin:/bin", dir.display());
    command
        .env_clear()
        .env("PATH", path)
        .env("HAPROXY_CONFIG", dir.join("haproxy.cfg"))
        .env("SYNGATE_CONTROL", dir.join("run/syngate/control.sock"))
        .env("SYNGATE_RUNTIME_DIR", dir.join("run/syngate"))
        .env("SYNGATE_MIN_READY", "100ms");
}

fn copy(from: &Path, to: &Path) {
    fs::copy(from, to).unwrap_or_else(|error| panic!("{}: {error}", from.display()));
}

/// Makes the container's user the owner of everything below.
fn give(path: &Path) {
    chown(path, Some(USER), Some(USER)).expect("chown");
    if path.is_dir() {
        for entry in fs::read_dir(path).expect("a directory") {
            give(&entry.expect("an entry").path());
        }
    }
}
