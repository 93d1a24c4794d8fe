//! A process on cores of its choice, what it and its descendants cost, and its end.
//!
//! CPU time is the first field of `/proc/PID/task/TID/schedstat` (nanoseconds on a CPU; see the kernel's
//! `Documentation/scheduler/sched-stats.rst`), summed over all threads of the process and its descendants. Threads and processes
//! that have ended are no longer in it, so it is read only around slices in which a relay starts and ends none.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;

/// Ended, with its descendants, when dropped.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) child: Child,
}

impl Process {
    /// Starts `command`, with all its threads on `cores`.
    pub(crate) fn start(command: &mut Command, cores: &CpuSet) -> io::Result<Process> {
        let own = sched_getaffinity(CALLER)?;
        sched_setaffinity(CALLER, cores)?;
        let child = command.stdin(Stdio::null()).spawn();
        sched_setaffinity(CALLER, &own)?;
        let child = child.map_err(|error| {
            let program = command.get_program().to_string_lossy();
            io::Error::new(error.kind(), format!("{program} can't be started: {error}"))
        })?;
        Ok(Process { child })
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed())
    }

    pub(crate) fn signal(&self, signal: Signal) -> io::Result<()> {
        Ok(kill(self.pid(), signal)?)
    }

    /// CPU time of all threads in the tree so far.
    pub(crate) fn cpu(&self) -> io::Result<Duration> {
        let mut sum = Duration::ZERO;
        for pid in self.tree()? {
            // A process may end between the two looks.
            let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else {
                continue;
            };
            for thread in threads {
                if let Ok(line) = fs::read_to_string(thread?.path().join("schedstat")) {
                    sum += on_cpu(&line).ok_or_else(|| unreadable("schedstat", &line))?;
                }
            }
        }
        Ok(sum)
    }

    /// Resident memory of the tree, in bytes.
    pub(crate) fn resident(&self) -> io::Result<u64> {
        let mut sum = 0;
        for pid in self.tree()? {
            if let Ok(status) = fs::read_to_string(format!("/proc/{pid}/status")) {
                sum += resident(&status).unwrap_or(0);
            }
        }
        Ok(sum)
    }

    /// The process and its descendants.
    fn tree(&self) -> io::Result<Vec<u32>> {
        let mut parents = HashMap::new();
        for entry in fs::read_dir("/proc")? {
            let Ok(pid) = entry?.file_name().to_string_lossy().parse::<u32>() else {
                continue;
            };
            if let Ok(line) = fs::read_to_string(format!("/proc/{pid}/stat")) {
                parents.insert(pid, parent(&line).ok_or_else(|| unreadable("stat", &line))?);
            }
        }
        Ok(descendants(self.child.id(), &parents))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(Some(_))) {
            return; // its number may be another's by now
        }
        let tree = self.tree().unwrap_or_else(|_| vec![self.child.id()]);
        for pid in &tree {
            let _ = kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL); // it may have ended
        }
        // Until all are gone: a port that one of them holds is the next relay's. Whose parent has gone is this process's own child,
        // since it is the first one of its namespace.
        let _ = self.child.wait();
        for pid in &tree[1..] {
            let _ = waitpid(Pid::from_raw(pid.cast_signed()), None);
        }
    }
}

const CALLER: Pid = Pid::from_raw(0);

fn unreadable(file: &str, text: &str) -> io::Error {
    io::Error::other(format!("the kernel's {file} has an unknown form: {text:?}"))
}

/// Time on a CPU, from a line of a `schedstat` file.
fn on_cpu(line: &str) -> Option<Duration> {
    let nanoseconds = line.split_ascii_whitespace().next()?.parse().ok()?;
    Some(Duration::from_nanos(nanoseconds))
}

/// The parent's number, from a `stat` file; the command in it may contain blanks and parentheses (proc_pid_stat(5)).
fn parent(line: &str) -> Option<u32> {
    let (_, rest) = line.rsplit_once(')')?;
    rest.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// `VmRSS` of a `status` file, in bytes; a zombie has none.
fn resident(status: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kibibytes * 1024)
}

/// `root`, and whatever descends from it.
fn descendants(root: u32, parents: &HashMap<u32, u32>) -> Vec<u32> {
    let mut found = vec![root];
    let mut looked = 0;
    while looked < found.len() {
        let parent = found[looked];
        found.extend(
            parents
                .iter()
                .filter(|(_, other)| **other == parent)
                .map(|(pid, _)| *pid),
        );
        looked += 1;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedstat_begins_with_the_time_on_a_cpu() {
        assert_eq!(
            on_cpu("1500000000 2000 37\n"),
            Some(Duration::from_millis(1500))
        );
        assert_eq!(on_cpu(""), None);
        assert_eq!(on_cpu("nan 1 2"), None);
    }

    #[test]
    fn a_command_with_parentheses_doesn_t_hide_the_parent() {
        assert_eq!(parent("42 (nginx) S 7 42 42 0 -1"), Some(7));
        assert_eq!(parent("42 (a) R 1 (b)) S 7 42 42"), Some(7));
        assert_eq!(parent("42 nginx S 7"), None);
    }

    #[test]
    fn resident_memory_is_in_kibibytes() {
        assert_eq!(
            resident("Name:\tx\nVmRSS:\t    1932 kB\n"),
            Some(1932 * 1024)
        );
        assert_eq!(resident("Name:\tx\nState:\tZ\n"), None);
    }

    #[test]
    fn a_tree_has_grandchildren_and_no_strangers() {
        let parents = HashMap::from([(1, 0), (5, 1), (6, 5), (7, 6), (8, 1)]);
        let mut tree = descendants(5, &parents);
        tree.sort_unstable();
        assert_eq!(tree, [5, 6, 7]);
    }

    #[test]
    fn a_busy_child_costs_time_and_has_memory() {
        let cores = sched_getaffinity(CALLER).expect("affinity");
        let mut command = Command::new("sh");
        command.args(["-c", "sh -c 'while :; do :; done' & wait"]);
        let process = Process::start(&mut command, &cores).expect("a shell");
        while process.cpu().expect("schedstat") < Duration::from_millis(20) {
            std::thread::yield_now();
        }
        assert!(process.tree().expect("the tree").len() > 1);
        assert!(process.resident().expect("status") > 0);
    }
}
