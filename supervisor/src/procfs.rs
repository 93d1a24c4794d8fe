//! What /proc says about processes (proc(5)). Everything here is a look at one moment: a process may be gone in the
//! next, and then it is simply not in the answer.

use std::ffi::OsString;
use std::fs;

/// The fields of `/proc/PID/stat` that tell processes apart, and whether they are at work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    pub(crate) parent: i32,
    pub(crate) group: i32,
    pub(crate) session: i32,
    /// Clock ticks from boot to its start: with the pid and the boot, its identity.
    pub(crate) start: u64,
    /// Clock ticks on a CPU, of all its threads.
    pub(crate) cpu: u64,
    /// It runs or waits for a disk.
    pub(crate) busy: bool,
    /// It has ended and waits for its parent.
    pub(crate) zombie: bool,
}

/// The process with this pid.
pub(crate) fn process(pid: i32) -> Option<Process> {
    parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Every process of this pid namespace that this one may see.
pub(crate) fn processes() -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let pid = |entry: fs::DirEntry| entry.file_name().to_str()?.parse().ok();
    entries
        .flatten()
        .filter_map(pid)
        .filter_map(process)
        .collect()
}

/// The processes of `all` that belong to `leader`: it, its group, and the descendants of both.
pub(crate) fn family(leader: i32, mut all: Vec<Process>) -> Vec<Process> {
    let mut family = Vec::new();
    loop {
        let (found, rest): (Vec<Process>, Vec<Process>) = all.into_iter().partition(|process| {
            process.group == leader
                || process.pid == leader
                || family
                    .iter()
                    .any(|known: &Process| known.pid == process.parent)
        });
        if found.is_empty() {
            return family;
        }
        family.extend(found);
        all = rest;
    }
}

/// Whether the environment that this process was started with has exactly this `NAME=VALUE`.
pub(crate) fn has_variable(pid: i32, variable: &[u8]) -> bool {
    fs::read(format!("/proc/{pid}/environ")).is_ok_and(|environ| {
        environ
            .split(|&byte| byte == 0)
            .any(|entry| entry == variable)
    })
}

/// Where a pid and a start time mean one process: this boot and this pid namespace. Nothing where /proc isn't mounted.
pub(crate) fn pid_space() -> Option<String> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let namespace = fs::read_link("/proc/self/ns/pid").ok()?;
    Some(format!("{} {}", boot.trim(), namespace.display()))
}

/// The command's name and the pid of each process that holds one of these sockets.
pub(crate) fn holders(inodes: &[u64]) -> Vec<String> {
    let targets: Vec<OsString> = inodes
        .iter()
        .map(|it| format!("socket:[{it}]").into())
        .collect();
    let holds = |process: &Process| {
        let descriptors = fs::read_dir(format!("/proc/{}/fd", process.pid));
        let links = descriptors.into_iter().flatten().flatten();
        links
            .filter_map(|it| fs::read_link(it.path()).ok())
            .any(|it| targets.contains(&it.into()))
    };
    let name = |Process { pid, .. }: Process| {
        let comm = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        format!("{} (pid {pid})", comm.trim())
    };
    processes().into_iter().filter(holds).map(name).collect()
}

/// The command's name stands in parentheses and may hold anything, parentheses too: fields are counted after the last.
fn parse(stat: &str) -> Option<Process> {
    let (head, tail) = stat.rsplit_once(')')?;
    let pid = head.split_once(' ')?.0.parse().ok()?;
    let fields: Vec<&str> = tail.split_ascii_whitespace().collect();
    Some(Process {
        pid,
        zombie: matches!(*fields.first()?, "Z" | "X"),
        busy: matches!(*fields.first()?, "R" | "D"),
        cpu: fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?,
        parent: fields.get(1)?.parse().ok()?,
        group: fields.get(2)?.parse().ok()?,
        session: fields.get(3)?.parse().ok()?,
        start: fields.get(19)?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process_of(pid: i32, parent: i32, group: i32) -> Process {
        Process {
            pid,
            parent,
            group,
            session: 39,
            start: 99887,
            cpu: 5,
            busy: false,
            zombie: false,
        }
    }

    #[test]
    fn a_name_with_parentheses_and_spaces_is_no_trap() {
        let stat = "42 (a) R 1 (b) S 7 40 39 0 -1 4194560 1 2 3 4 2 3 7 8 20 0 1 0 99887 5 6";
        assert_eq!(parse(stat), Some(process_of(42, 7, 40)));
        assert_eq!(parse("42 (cut) S 7"), None);
    }

    #[test]
    fn this_process_is_seen() {
        let pid = std::process::id().cast_signed();
        let own = process(pid).expect("this process");
        assert_eq!(own.group, nix::unistd::getpgrp().as_raw());
        assert!(
            processes()
                .iter()
                .any(|it| (it.pid, it.start) == (pid, own.start))
        );
    }

    #[test]
    fn a_family_is_the_group_and_all_descendants_in_any_order() {
        let all = vec![
            process_of(13, 12, 12), // grandchild, in a session of its own
            process_of(12, 10, 12), // child that left the group
            process_of(10, 1, 10),  // the leader
            process_of(11, 1, 10),  // orphan in the group
            process_of(20, 1, 20),  // somebody else
        ];
        let mut pids: Vec<i32> = family(10, all).iter().map(|process| process.pid).collect();
        pids.sort_unstable();
        assert_eq!(pids, [10, 11, 12, 13]);
    }
}
