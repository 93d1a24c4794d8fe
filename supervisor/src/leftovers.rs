//! Processes that a dead gate has left, and how they are ended.
//!
//! Invariants:
//! - A process is ended only if it is proven to belong to a dead generation, in one of three ways:
//!   it is the leader (pid, start time, boot and pid namespace match); it was started with `SYNGATE_DIR` naming this very directory,
//!   as seen from its own root; or it is in the leader's group and session, while the pid of the leader, which the
//!   group keeps from being used again, is nobody else's.
//! - It is signalled through a pidfd whose process was looked at again after the pidfd was made.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use nix::sys::signal::Signal;
use nix::unistd::Pid;

use crate::procfs::{self, Process};
use crate::runtime_dir::same_file;
use crate::sys;

/// The variable in which each child finds its generation's directory. It also proves whose child it was, so it has to
/// be exactly [`crate::runtime_dir::GenerationDir::path`].
pub const DIR_VARIABLE: &str = "SYNGATE_DIR";

/// How long a leftover has to end after SIGTERM, and again after SIGKILL.
const GRACE: Duration = Duration::from_secs(1);

/// Name of the file in a generation's directory that says who leads it.
pub(crate) const LEADER: &str = "leader";

/// Ends every process of the generation with this directory: SIGTERM, 1 s, SIGKILL. Says how many there were, or which
/// don't end.
pub(crate) async fn end(directory: &Path) -> Result<usize, Vec<i32>> {
    let mut count = 0;
    // A process may fork between the look and the signal, so SIGKILL gets several rounds.
    for signal in [
        Signal::SIGTERM,
        Signal::SIGKILL,
        Signal::SIGKILL,
        Signal::SIGKILL,
    ] {
        let found = processes(directory);
        if found.is_empty() {
            return Ok(count);
        }
        count = count.max(found.len());
        let pids = pids(&found);
        tracing::warn!(directory = %directory.display(), ?pids, %signal, "ending leftovers");
        let pidfds: Vec<OwnedFd> = found.iter().filter_map(|it| send(it, signal)).collect();
        // Either all have ended or the next round looks again.
        let _ = tokio::time::timeout(GRACE, all_end(pidfds)).await;
    }
    match processes(directory) {
        left if left.is_empty() => Ok(count),
        left => Err(pids(&left)),
    }
}

fn pids(processes: &[Process]) -> Vec<i32> {
    processes.iter().map(|process| process.pid).collect()
}

/// The living processes that belong to this generation.
fn processes(directory: &Path) -> Vec<Process> {
    let own = std::process::id().cast_signed();
    let leader = fs::read_to_string(directory.join(LEADER)).ok();
    let leader = leader.as_deref().and_then(Leader::from_text);
    // A pid of another boot or container means nobody here.
    let leader = leader.filter(|leader| Some(&leader.space) == procfs::pid_space().as_ref());
    let mut all = procfs::processes();
    let number_taken = leader.as_ref().is_some_and(|leader| {
        all.iter()
            .any(|process| process.pid == leader.pid && process.start != leader.start)
    });
    let in_group = |process: &Process| {
        !number_taken && leader.as_ref().is_some_and(|leader| leader.leads(process))
    };
    all.retain(|process| {
        process.pid != own
            && !process.zombie
            && (in_group(process) || is_named_by(directory, process.pid))
    });
    all
}

/// Whether a process was started with [`DIR_VARIABLE`] naming this directory: by the same path, and the same
/// directory from where that process sees it (a container may use the same path for another one).
fn is_named_by(directory: &Path, pid: i32) -> bool {
    let variable = [
        DIR_VARIABLE.as_bytes(),
        b"=",
        directory.as_os_str().as_bytes(),
    ]
    .concat();
    if !procfs::has_variable(pid, &variable) {
        return false;
    }
    let root = Path::new("/proc").join(pid.to_string()).join("root");
    let below = directory.strip_prefix("/").unwrap_or(directory);
    match (fs::metadata(root.join(below)), fs::metadata(directory)) {
        (Ok(theirs), Ok(ours)) => same_file(&theirs, &ours),
        _ => false,
    }
}

/// Signals this very process; its pidfd if it is still there.
fn send(process: &Process, signal: Signal) -> Option<OwnedFd> {
    let pidfd = sys::pidfd_open(Pid::from_raw(process.pid)).ok()?;
    // The pid may have been used again before the pidfd was made; the start time tells.
    let again = procfs::process(process.pid)?;
    if again.start != process.start {
        return None;
    }
    sys::pidfd_send_signal(&pidfd, signal).ok()?;
    Some(pidfd)
}

/// Waits until each of these processes has ended: then its pidfd is readable.
async fn all_end(pidfds: Vec<OwnedFd>) {
    for pidfd in pidfds {
        if let Ok(pidfd) = sys::readable(pidfd) {
            // An error ends the wait early, and the caller looks again.
            let _ = pidfd.readable().await;
        }
    }
}

/// The identity of a leader, and what its group has in common.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Leader {
    pub(crate) pid: i32,
    pub(crate) start: u64,
    pub(crate) session: i32,
    /// Where the pid means something ([`procfs::pid_space`]).
    pub(crate) space: String,
}

impl Leader {
    pub(crate) fn of(pid: i32) -> Option<Self> {
        let Process { start, session, .. } = procfs::process(pid)?;
        Some(Leader {
            pid,
            start,
            session,
            space: procfs::pid_space()?,
        })
    }

    /// Whether a process is in the group, provided that the leader's pid is nobody else's.
    fn leads(&self, process: &Process) -> bool {
        process.group == self.pid && process.session == self.session && process.start >= self.start
    }

    pub(crate) fn to_text(&self) -> String {
        let Leader {
            pid,
            start,
            session,
            space,
        } = self;
        format!("pid {pid}\nstart {start}\nsession {session}\nspace {space}\n")
    }

    pub(crate) fn from_text(text: &str) -> Option<Self> {
        let field = |name| {
            text.lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))
        };
        Some(Leader {
            pid: field("pid")?.parse().ok()?,
            start: field("start")?.parse().ok()?,
            session: field("session")?.parse().ok()?,
            space: field("space")?.to_owned(),
        })
    }
}
