//! The machine: its cores and what identifies it.

use std::fs;
use std::io;
use std::process::Command;
use std::time::UNIX_EPOCH;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use crate::relays::Programs;

/// Which cores relays have, and which load and backend.
#[derive(Clone, Debug)]
pub(crate) struct Cores {
    allowed: Vec<usize>,
}

impl Cores {
    /// Those that this process may use. Puts it, and all it starts, on the last one.
    pub(crate) fn take() -> io::Result<Cores> {
        let own = sched_getaffinity(Pid::from_raw(0))?;
        let allowed: Vec<usize> = (0..CpuSet::count())
            .filter(|core| own.is_set(*core).unwrap_or(false))
            .collect();
        if allowed.len() < 2 {
            Programs::skipped("pinning: there is one core; relay, load and backend share it");
        }
        let cores = Cores { allowed };
        sched_setaffinity(Pid::from_raw(0), &cores.load()?)?;
        Ok(cores)
    }

    /// The first ones, one a worker.
    pub(crate) fn relay(&self, workers: u8) -> io::Result<CpuSet> {
        set(self.allowed.iter().take(workers.into()))
    }

    /// The last one. With fewer than three, a relay with two workers shares it.
    pub(crate) fn load(&self) -> io::Result<CpuSet> {
        set(self.allowed.last())
    }
}

fn set<'a>(cores: impl IntoIterator<Item = &'a usize>) -> io::Result<CpuSet> {
    let mut set = CpuSet::new();
    for core in cores {
        set.set(*core)?;
    }
    Ok(set)
}

/// One line: processor, cores, memory, kernel.
pub(crate) fn description() -> io::Result<String> {
    let cpus = fs::read_to_string("/proc/cpuinfo")?;
    let model = field(&cpus, "model name").unwrap_or("unknown processor");
    let cores = cpus
        .lines()
        .filter(|line| line.starts_with("processor"))
        .count();
    let memory = fs::read_to_string("/proc/meminfo")?;
    let kibibytes: u64 = field(&memory, "MemTotal")
        .and_then(|text| text.split(' ').next()?.parse().ok())
        .unwrap_or(0);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let gibibytes = kibibytes >> 20;
    Ok(format!(
        "{model}, {cores} cores, {gibibytes} GiB, Linux {}",
        kernel.trim()
    ))
}

/// The first value of `name` in a file of `name: value` lines.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim())
    })
}

/// Today, as in 2026-01-31.
pub(crate) fn date() -> io::Result<String> {
    let output = Command::new("date").args(["-u", "+%F"]).output()?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Milliseconds since 1970.
pub(crate) fn clock() -> u128 {
    UNIX_EPOCH.elapsed().map_or(0, |time| time.as_millis())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_the_first_of_its_name() {
        let text = "processor\t: 0\nmodel name\t: A: B\nprocessor\t: 1\nMemTotal:   42 kB\n";
        assert_eq!(field(text, "model name"), Some("A: B"));
        assert_eq!(field(text, "MemTotal"), Some("42 kB"));
        assert_eq!(field(text, "flags"), None);
    }

    #[test]
    fn this_machine_has_a_description() {
        assert!(description().expect("proc").contains("Linux "));
    }
}
