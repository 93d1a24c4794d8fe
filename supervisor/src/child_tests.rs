//! Real processes. One test at a time, since a process has one reaper.

use std::collections::BTreeSet;
use std::ffi::{CString, OsString};
use std::fs::{self, File};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use nix::sys::signal::Signal;
use tokio::sync::{Mutex, MutexGuard};

use super::*;
use crate::command::{Inherited, OURS};
use crate::output::KEPT;
use crate::procfs;
use crate::sys::Image;

static ONE_REAPER: Mutex<()> = Mutex::const_new(());

/// A spawner with a reaper of its own, and the right to have one.
pub(crate) async fn spawner() -> (Spawner, MutexGuard<'static, ()>) {
    let right = ONE_REAPER.lock().await;
    let reaper = Reaper::start().expect("a reaper");
    (Spawner::new(reaper, 321).expect("a spawner"), right)
}

/// A command for sh(1).
pub(crate) fn shell(script: &str) -> Command {
    Command::new(["sh", "-c", script])
}

/// Looks again until `done`, or fails after 10 s.
pub(crate) async fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let look = async {
        while !done() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), look)
        .await
        .unwrap_or_else(|_| panic!("never: {what}"));
}

/// Whether a process exists and is no zombie.
pub(crate) fn runs(pid: i32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/status"))
        .is_ok_and(|status| !status.contains("State:\tZ"))
}

/// Waits for the first line of a child, which is a pid.
pub(crate) async fn printed_pid(child: &Child) -> i32 {
    eventually("a line", || !child.output().last_lines(1).is_empty()).await;
    child.output().last_lines(1)[0].parse().expect("a pid")
}

/// A program for `sys::spawn`, which no reaper knows as a leader.
pub(crate) fn image(argv: &[&str]) -> Image {
    let null = || {
        OwnedFd::from(
            File::options()
                .read(true)
                .write(true)
                .open("/dev/null")
                .expect("open"),
        )
    };
    let words = || {
        argv.iter()
            .map(|word| CString::new(*word).expect("no NUL"))
            .collect()
    };
    Image {
        programs: words(),
        argv: words(),
        env: Vec::new(),
        listen_pid: false,
        directory: None,
        stdin: null(),
        output: null(),
        passed: Vec::new(),
        nofile: 100,
    }
}

async fn run(spawner: &Spawner, command: Command) -> Outcome {
    spawner
        .run_to_end(command, Duration::from_secs(20))
        .await
        .expect("the command runs")
}

async fn text(spawner: &Spawner, command: Command) -> String {
    let outcome = run(spawner, command).await;
    assert!(
        outcome.end.success(),
        "{}: {}",
        outcome.end,
        outcome.output.text()
    );
    outcome.output.text()
}

/// Who waits for a check waits longer, and no client does.
#[tokio::test(flavor = "current_thread")]
async fn what_is_run_to_its_end_gives_way() {
    let own = std::process::Command::new("nice").output().expect("nice");
    let own: i32 = String::from_utf8_lossy(&own.stdout)
        .trim()
        .parse()
        .expect("a number");
    let nicer = (own + 10).min(19);
    let script = format!(r#"until [ "$(nice)" = {nicer} ]; do :; done"#);
    let (spawner, _right) = spawner().await;
    let outcome = run(&spawner, shell(&script)).await;
    assert!(outcome.end.success(), "{}", outcome.end);
}

#[tokio::test]
async fn an_exit_is_told_in_an_operators_words() {
    let (spawner, _right) = spawner().await;
    for (script, words) in [
        ("exit 0", "exited with status 0"),
        ("exit 3", "exited with status 3"),
        ("kill -KILL $$", "was killed by SIGKILL"),
        ("kill -40 $$", "was killed by signal 40"),
    ] {
        assert_eq!(
            run(&spawner, shell(script)).await.end.to_string(),
            words,
            "{script}"
        );
    }
}

#[tokio::test]
async fn the_environment_of_the_gates_own_supervisor_is_not_passed_on() {
    let (mut spawner, _right) = spawner().await;
    let of_the_gate = OURS
        .iter()
        .map(|name| (OsString::from(name), "of the gate".into()));
    let others = [
        ("KEPT".into(), "yes".into()),
        ("SYNGATE_PORT".into(), "8000".into()),
    ];
    spawner.inherited = Inherited::of(of_the_gate.chain(others), 100);
    let mut command = shell("env");
    command.env.push(("SYNGATE_PORT".into(), "8001".into()));
    command.env.push(("SYNGATE_PORT".into(), "8002".into()));
    let env = text(&spawner, command).await;
    assert!(!env.contains("of the gate"), "{env}");
    assert!(
        env.contains("KEPT=yes\n") && env.contains("SYNGATE_PORT=8002\n"),
        "{env}"
    );
    assert_eq!(env.matches("SYNGATE_PORT").count(), 1, "{env}");
}

#[tokio::test]
async fn only_the_passed_descriptors_are_open() {
    let (spawner, _right) = spawner().await;
    let leaked = nix::unistd::dup(File::open("/dev/null").expect("open")).expect("dup");
    let listener = || OwnedFd::from(TcpListener::bind("127.0.0.1:0").expect("bind"));
    let mut command = Command::new(["sleep", "1000"]);
    command.listeners = vec![("a".into(), listener()), ("b".into(), listener())];
    command.descriptors = vec![(9, File::open("/dev/zero").expect("open").into())];
    let child = spawner.spawn(command, None).expect("sleep starts");
    let open = || -> BTreeSet<i32> {
        let entries = fs::read_dir(format!("/proc/{}/fd", child.pid()))
            .expect("fds")
            .flatten();
        entries
            .map(|entry| entry.file_name().to_string_lossy().parse().expect("number"))
            .collect()
    };
    // Until the dynamic linker has closed its own.
    eventually("only these are open", || {
        open() == BTreeSet::from([0, 1, 2, 3, 4, 9])
    })
    .await;
    let target = |fd: i32| fs::read_link(format!("/proc/{}/fd/{fd}", child.pid())).expect("link");
    assert_eq!(target(0), Path::new("/dev/null"));
    assert_eq!(target(9), Path::new("/dev/zero"));
    assert_eq!(target(1), target(2));
    assert!(target(3).to_string_lossy().starts_with("socket:"));
    drop(leaked);
}

#[tokio::test]
async fn two_descriptors_never_get_one_number() {
    let (spawner, _right) = spawner().await;
    let null = || OwnedFd::from(File::open("/dev/null").expect("open"));
    for number in [2, 3] {
        let mut command = shell("true");
        command.listeners.push(("a".into(), null()));
        command.descriptors.push((number, null()));
        let error = spawner.spawn(command, None).err().expect("refused");
        assert!(
            matches!(error, SpawnError::DescriptorTaken(n) if n == number),
            "{error}"
        );
    }
}

#[tokio::test]
async fn listen_fds_names_the_sockets_and_the_pid_of_the_server() {
    let (spawner, _right) = spawner().await;
    let mut command = shell("echo $$ $LISTEN_PID $LISTEN_FDS $LISTEN_FDNAMES");
    command.listen_fds = true;
    for name in ["http", "https"] {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        command.listeners.push((name.into(), listener.into()));
    }
    let printed = text(&spawner, command).await;
    let words: Vec<&str> = printed.split_whitespace().collect();
    assert_eq!(words[0], words[1]);
    assert_eq!(words[2..], ["2", "http:https"]);
}

#[tokio::test]
async fn signals_and_limits_are_as_in_a_fresh_process() {
    let (spawner, _right) = spawner().await;
    let status = text(&spawner, Command::new(["cat", "/proc/self/status"])).await;
    for field in ["SigBlk", "SigIgn", "SigCgt"] {
        assert!(
            status.contains(&format!("{field}:\t0000000000000000\n")),
            "{status}"
        );
    }
    assert_eq!(text(&spawner, shell("ulimit -Sn")).await, "321\n");
}

#[tokio::test]
async fn a_command_that_can_not_start_says_why() {
    let (spawner, _right) = spawner().await;
    let dir = tempfile::tempdir().expect("a directory");
    let file = |name: &str, mode: u32, text: &str| {
        let path = dir.path().join(name);
        fs::write(&path, text).expect("write");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("chmod");
        path.display().to_string()
    };
    let denied = file("denied", 0o644, "#!/bin/sh\n");
    let words = |argv: &[&str]| {
        let command = Command::new(argv.iter().copied());
        spawner
            .spawn(command, None)
            .err()
            .expect("refused")
            .to_string()
    };
    assert!(words(&[]).contains("is empty"));
    assert!(words(&["no-such-command-here"]).contains("wasn't found in PATH (/"));
    assert!(words(&["/no/such/command"]).contains("doesn't exist"));
    assert!(words(&[&denied]).contains("permission denied"));
    assert!(words(&[&file("text", 0o755, "hello\n")]).contains("`#!` line"));
    assert!(words(&[&file("gone", 0o755, "#!/no/such/sh\n")]).contains("interpreter"));
    assert!(words(&["true", "a\0b"]).contains("NUL"));
    let mut command = shell("true");
    command.directory = Some("/no/such/directory".into());
    let error = spawner
        .spawn(command, None)
        .err()
        .expect("refused")
        .to_string();
    assert!(error.contains("/no/such/directory"), "{error}");
}

#[tokio::test]
async fn the_end_of_the_leader_ends_its_group() {
    let (spawner, _right) = spawner().await;
    let child = spawner
        .spawn(shell("sleep 1000 & echo $!"), None)
        .expect("sh starts");
    assert!(child.exited().await.success());
    let left: i32 = child.output().text().trim().parse().expect("a pid");
    eventually("the group ends", || !runs(left)).await;
    child
        .signal(Signal::SIGTERM)
        .expect("a signal to an ended child is no error");
    child.kill_group();
}

#[tokio::test]
async fn a_process_that_left_the_group_with_the_pipe_delays_nothing() {
    let (spawner, _right) = spawner().await;
    let script = "trap 'exit 4' TERM; setsid sleep 1000 & echo $!; wait";
    let child = spawner.spawn(shell(script), None).expect("sh starts");
    let stray = printed_pid(&child).await;
    eventually("it has left", || {
        procfs::process(stray).is_some_and(|it| it.group == stray)
    })
    .await;
    child.signal(Signal::SIGTERM).expect("a signal");
    assert_eq!(child.exited().await, Exit::Status(4));
    assert!(runs(stray));
    nix::sys::signal::kill(Pid::from_raw(stray), Signal::SIGKILL).expect("kill");
    eventually("the orphan is reaped", || {
        !Path::new(&format!("/proc/{stray}")).exists()
    })
    .await;
}

#[tokio::test]
async fn a_hanging_command_is_killed_with_its_group() {
    let (spawner, _right) = spawner().await;
    let command = shell("sleep 1000 & echo $! $$; wait");
    let outcome = spawner
        .run_to_end(command, Duration::from_millis(200))
        .await
        .expect("runs");
    assert_eq!(
        outcome.end.to_string(),
        "didn't end within 200ms and was killed"
    );
    let printed = outcome.output.text();
    let pids: Vec<i32> = printed
        .split_whitespace()
        .map(|pid| pid.parse().expect("pid"))
        .collect();
    assert_eq!(pids.len(), 2, "{printed}");
    eventually("both end", || pids.iter().all(|&pid| !runs(pid))).await;
}

#[tokio::test]
async fn ten_megabytes_are_read_and_the_last_64_kib_kept() {
    let (spawner, _right) = spawner().await;
    let text = text(
        &spawner,
        shell("head -c 10000000 /dev/zero | tr '\\0' x; echo; echo last words"),
    )
    .await;
    assert!(text.ends_with("x\nlast words\n"));
    assert!(text.len() < KEPT + 64, "{}", text.len());
    assert!(
        text.starts_with("[9934476 bytes before this were cut]\n"),
        "{}",
        &text[..60]
    );
}

#[tokio::test]
async fn orphans_are_reaped_and_no_status_is_stolen() {
    let (spawner, _right) = spawner().await;
    let orphans = shell(
        "for i in 1 2 3 4 5 6 7 8 9 10; do (for j in 1 2 3 4 5; do true & done) & done; exit 7",
    );
    let mut children = vec![(7, spawner.spawn(orphans, None).expect("starts"))];
    for status in 0..50 {
        children.push((
            status,
            spawner
                .spawn(shell(&format!("exit {status}")), None)
                .expect("starts"),
        ));
    }
    for (status, child) in &children {
        assert_eq!(child.exited().await, Exit::Status(*status));
    }
    let thread = nix::unistd::gettid();
    let ours = format!("/proc/self/task/{thread}/children");
    eventually("no zombie is left", || {
        fs::read_to_string(&ours).is_ok_and(|pids| pids.is_empty())
    })
    .await;
}

#[tokio::test]
async fn a_dropped_child_takes_its_group_along() {
    let (spawner, _right) = spawner().await;
    let child = spawner
        .spawn(Command::new(["sleep", "1000"]), None)
        .expect("starts");
    let (pid, exited) = (child.pid(), child.exited());
    assert!(runs(pid) && child.exit().is_none());
    drop(child);
    assert_eq!(exited.await, Exit::Signal(libc::SIGKILL));
}

#[test]
fn a_child_gets_sigterm_when_the_spawning_thread_ends() {
    let _right = ONE_REAPER.blocking_lock();
    let spawning = std::thread::spawn(|| {
        sys::spawn(image(&["/bin/sleep", "1000"]))
            .expect("sleep starts")
            .0
    });
    let pid = spawning.join().expect("the thread ends");
    let status = sys::reap(pid).expect("a child of ours");
    assert_eq!(libc::WTERMSIG(status), libc::SIGTERM);
}
