//! A Debian tree as a machine: its own systemd is the first process of namespaces of its own, in the test's network.
//!
//! So the test's clients reach what listens there, and the kernel's counts of drops are those of both. Nothing of it outlives the
//! [`Machine`]: with its first process the kernel ends all others, and with these go its mounts.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use super::tree::Tree;
use super::{has, run, skip};
use crate::common::done::Done;
use crate::common::net::Net;
use crate::common::scrape::Metrics;
use crate::common::{backend, http, wait_for, wait_until, wait_within};

/// What the first process of the namespaces runs before it is systemd.
const BOOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/deploy/boot.sh");

/// How long a machine may take for its start.
const BOOT_LIMIT: Duration = Duration::from_secs(120);

/// Units that would be in the way: HAProxy's ports and its runtime directory are to be the gate's, and nobody logs in.
const MASKED: [&str; 3] = ["haproxy.service", "console-getty.service", "getty.target"];

/// A machine that runs.
pub(crate) struct Machine {
    /// script(1), whose terminal is the machine's console. It ends after the first process.
    console: Child,
    /// The first process, as it is seen from here.
    first: Pid,
    cgroup: Cgroup,
    tree: Tree,
}

impl Machine {
    /// `Err` says why it doesn't start, with its last words.
    pub(crate) fn boot(tree: Tree) -> Result<Machine, String> {
        for program in ["script", "unshare", "nsenter", "pivot_root"] {
            if !has(program) {
                return Err(format!("no {program}"));
            }
        }
        let cgroup = Cgroup::new(tree.path())?;
        for unit in MASKED {
            let place = tree.path().join("etc/systemd/system").join(unit);
            symlink("/dev/null", place).expect("a link");
        }
        let state = tempfile::tempdir().expect("a directory");
        let mut console = Command::new("script")
            .args([
                "--quiet",
                "--flush",
                "--command",
                "exec sh \"$BOOT\" outside",
            ])
            .arg(state.path().join("console"))
            .env("SHELL", "/bin/sh")
            .env("BOOT", BOOT)
            .env("TREE", tree.path())
            .env("CGROUP", &cgroup.0)
            .env("STATE", state.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("script starts");
        let first = wait_for("the machine's first process", || {
            if console.try_wait().expect("wait").is_some() {
                return Some(Err(last_words("it doesn't start", &state)));
            }
            let pid = fs::read_to_string(state.path().join("pid")).ok()?;
            Some(Ok(Pid::from_raw(pid.trim().parse().ok()?)))
        })?;
        let mut machine = Machine {
            console,
            first,
            cgroup,
            tree,
        };
        machine
            .wait_booted()
            .map_err(|why| last_words(&why, &state))?;
        Ok(machine)
    }

    fn wait_booted(&mut self) -> Result<(), String> {
        let start = Instant::now();
        let asked = self.running("systemd/private");
        wait_within(2 * BOOT_LIMIT, "systemd", || {
            // Before it is systemd, its root directory may be the one outside.
            let name = fs::read_to_string(format!("/proc/{}/comm", self.first));
            if name.is_ok_and(|name| name.trim() == "systemd") && asked.exists() {
                Some(Ok(()))
            } else if self.console.try_wait().expect("wait").is_some() {
                Some(Err("its first process ends".to_owned()))
            } else if start.elapsed() > BOOT_LIMIT {
                Some(Err("systemd doesn't come up".to_owned()))
            } else {
                None
            }
        })?;
        let seconds = BOOT_LIMIT.as_secs().to_string();
        let state = self.done(&[
            "timeout",
            &seconds,
            "systemctl",
            "is-system-running",
            "--wait",
        ]);
        match state.out.trim() {
            "running" => Ok(()),
            // Units of the distribution that can't start in a container are none of ours.
            "degraded" => {
                eprintln!("{}", self.run(&["systemctl", "--failed", "--no-legend"]));
                Ok(())
            }
            _ => Err(format!("it isn't running: {state:?}")),
        }
    }

    /// A file of its root directory, as it is seen from here: nothing of what is mounted there.
    pub(crate) fn path(&self, inside: &str) -> PathBuf {
        self.tree.path().join(inside.trim_start_matches('/'))
    }

    /// A file below its `/run`.
    fn running(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root/run/{name}", self.first))
    }

    pub(crate) fn write(&self, inside: &str, text: &str) {
        let path = self.path(inside);
        fs::create_dir_all(path.parent().expect("a file has a directory")).expect("a directory");
        fs::write(path, text).expect("a file");
    }

    /// Puts a program there, in the place of one that may run.
    pub(crate) fn install(&self, program: &Path, inside: &str) {
        let path = self.path(inside);
        let new = path.with_extension("new");
        fs::copy(program, &new).expect("a copy");
        fs::set_permissions(&new, fs::Permissions::from_mode(0o755)).expect("a mode");
        fs::rename(&new, &path).expect("a name");
    }

    /// A command that will run there, as root.
    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        command
            .args(["--target", &self.first.to_string()])
            .args(["--mount", "--uts", "--ipc", "--pid", "--cgroup", "--"])
            .args(words)
            .env_clear()
            .envs([("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"), ("LC_ALL", "C")])
            .stdin(Stdio::null());
        command
    }

    /// Runs a command to its end.
    pub(crate) fn done(&self, words: &[&str]) -> Done {
        Done::from(self.command(words).output().expect("nsenter runs"))
    }

    /// Runs a command, which must succeed, and returns what it has written to stdout.
    #[track_caller]
    pub(crate) fn run(&self, words: &[&str]) -> String {
        run(&mut self.command(words))
    }

    /// A property of a unit, as `systemctl show` has it.
    pub(crate) fn property(&self, unit: &str, name: &str) -> String {
        let said = self.run(&["systemctl", "show", "--value", "--property", name, unit]);
        said.trim().to_owned()
    }

    #[track_caller]
    pub(crate) fn expect_state(&self, unit: &str, state: &str) {
        assert_eq!(self.property(unit, "ActiveState"), state, "{unit}");
    }

    pub(crate) fn wait_state(&self, unit: &str, state: &str) {
        wait_until(&format!("{unit} is {state}"), || {
            self.property(unit, "ActiveState") == state
        });
    }

    /// What the journal has of a unit: its own words, and systemd's of it.
    pub(crate) fn journal(&self, unit: &str) -> String {
        self.run(&["journalctl", "--no-pager", "--output=cat", "--unit", unit])
    }

    /// Waits until the journal of a unit has these words.
    pub(crate) fn expect_journal(&self, unit: &str, words: &str) {
        wait_until(words, || self.journal(unit).contains(words));
    }

    /// The processes in the cgroup of a service: their ids as they are seen from here, and their names.
    pub(crate) fn processes(&self, service: &str) -> Vec<(Pid, String)> {
        let list = self.cgroup.0.join("system.slice").join(service);
        // Without a process there is no cgroup.
        let list = fs::read_to_string(list.join("cgroup.procs")).unwrap_or_default();
        let named = |line: &str| {
            let pid = Pid::from_raw(line.parse().ok()?);
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
            Some((pid, name.trim().to_owned()))
        };
        list.lines().filter_map(named).collect()
    }

    /// The process of this name in a service, once there is no other: a generation that was replaced may not have ended yet.
    pub(crate) fn process(&self, service: &str, name: &str) -> Pid {
        wait_for(&format!("one {name} in {service}"), || {
            let all = self.processes(service);
            let mut found = all.iter().filter(|(_, found)| found == name);
            let (pid, _) = found.next()?;
            found.next().is_none().then_some(*pid)
        })
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if !matches!(self.console.try_wait(), Ok(None)) {
            return;
        }
        if std::thread::panicking() {
            let journal = self.done(&["journalctl", "--no-pager", "--lines=100"]);
            eprintln!("--- the machine's journal ---\n{}--- end ---", journal.out);
        }
        let _ = kill(self.first, Signal::SIGKILL);
        let _ = self.console.wait();
    }
}

/// Why, and the end of what the console shows.
fn last_words(why: &str, state: &TempDir) -> String {
    let said = fs::read(state.path().join("console")).unwrap_or_default();
    let said = String::from_utf8_lossy(&said);
    let lines: Vec<&str> = said.lines().collect();
    let last = &lines[lines.len().saturating_sub(10)..];
    format!("{why}: {}", last.join("\n"))
}

/// A cgroup, removed with all below it. By then no process may be left there.
struct Cgroup(PathBuf);

impl Cgroup {
    /// Below this process's own, with the name of a tree's root directory.
    fn new(tree: &Path) -> Result<Cgroup, String> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").expect("mountinfo");
        // proc_pid_mountinfo(5): the fifth field is the mount point; after a dash comes the type.
        let mount = mounts
            .lines()
            .find(|line| line.contains(" - cgroup2 "))
            .and_then(|line| line.split(' ').nth(4))
            .ok_or("no cgroup2 is mounted")?;
        let groups = fs::read_to_string("/proc/self/cgroup").expect("cgroups");
        let own = groups
            .lines()
            .find_map(|line| line.strip_prefix("0::/"))
            .ok_or("this process has no cgroup")?;
        let name = tree.file_name().expect("a directory has a name");
        let path = Path::new(mount).join(own).join(name);
        fs::create_dir(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Cgroup(path))
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        if let Err(error) = remove(&self.0) {
            eprintln!("{} stays: {error}", self.0.display());
        }
    }
}

/// Its files are the kernel's, and go with it.
fn remove(cgroup: &Path) -> io::Result<()> {
    for entry in fs::read_dir(cgroup)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove(&entry.path())?;
        }
    }
    fs::remove_dir(cgroup)
}

/// A machine with a backend that waits for a gate. The file `/srv/content` is what it answers for `/content`.
pub(crate) struct Server {
    pub(crate) machine: Machine,
    pub(crate) net: Net,
    pub(crate) public: SocketAddr,
    pub(crate) metrics: SocketAddr,
}

impl Server {
    /// `None` where there can't be one, and says so.
    pub(crate) fn new(test: &str) -> Option<Server> {
        // Before the test is in a network from which no mirror can be reached.
        let tree = Tree::new().map_err(|why| skip(test, &why)).ok()?;
        let net = Net::isolated()?;
        let machine = Machine::boot(tree).map_err(|why| skip(test, &why)).ok()?;
        let backend = backend::command("", &[]).swap_remove(0);
        machine.install(Path::new(&backend), "/usr/local/bin/test-backend");
        machine.write("/srv/content", "first");
        Some(Server {
            public: net.free_address(),
            metrics: net.free_address(),
            machine,
            net,
        })
    }

    /// The file of `syngate.service` and `syngate-activated.service`, with the keys of one service.
    pub(crate) fn configure(&self, keys: &str) {
        let text = format!(
            "metrics = \"{}\"\n[services.web]\nmin_ready = \"100ms\"\n{keys}",
            self.metrics
        );
        self.machine.write("/etc/syngate/syngate.toml", &text);
    }

    /// [`Server::configure`] with the machine's backend, which may not run while its page is empty. Its check lasts for as long as
    /// there is a file `/srv/checking`.
    pub(crate) fn configure_backend(&self, listen: &str) {
        self.configure(&format!(
            "listen = \"{listen}\"
command = \"/usr/local/bin/test-backend unix:{{socket}} content=/srv/content\"
check = \"sh -c 'while test -e /srv/checking; do sleep 0.1; done; test -s /srv/content && exit; echo the page is empty; exit 1'\"
"
        ));
    }

    /// Has `syngate-activated.socket` listen at the public address.
    pub(crate) fn configure_socket(&self) {
        self.machine.write(
            "/etc/systemd/system/syngate-activated.socket.d/override.conf",
            &format!("[Socket]\nListenStream=\nListenStream={}\n", self.public),
        );
        self.systemctl(&["daemon-reload"]);
    }

    pub(crate) fn systemctl(&self, words: &[&str]) {
        self.machine.run(&[&["systemctl"], words].concat());
    }

    /// What the public address answers.
    #[track_caller]
    pub(crate) fn answer(&self, path: &str) -> String {
        http::get(self.public, path).expect("an answer").text()
    }

    pub(crate) fn metrics(&self) -> Metrics {
        let answer = http::get(self.metrics, "/metrics").expect("a scrape");
        Metrics::parse(&answer.text())
    }

    /// Whether the gate of this service runs the file that is installed, not one that has been replaced.
    pub(crate) fn runs_installed(&self, service: &str) -> bool {
        let gate = self.machine.process(service, "syngate");
        let program = fs::read_link(format!("/proc/{gate}/exe")).expect("its program");
        // proc_pid_exe(5).
        !program.to_string_lossy().ends_with(" (deleted)")
    }
}
