//! Reloads under an open load: who fails, and who waits.

use std::io;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::{Bench, rounds, rows};
use crate::backend::{self, Behaviour};
use crate::load::schedule::{self, Outcome};
use crate::namespace;
use crate::process::Process;
use crate::relays::{Program, Programs, Reload, Site, haproxy, syngate};
use crate::report::{Row, Sample};
use crate::statistics::percentile;
use crate::workloads::Workload;

const RATE: u32 = 3000;
const RELOADS: u32 = 22;
const QUICK_RELOADS: u32 = 4;
const BETWEEN: Duration = Duration::from_millis(1300);
/// So many reloads make a part, and a part without any comes before each: what else the machine does meets both.
const PART: u32 = 2;
/// After the last reload of a part: 90,000 connections in all.
const AFTER: Duration = Duration::from_millis(128);
const ROUNDS: usize = 5;
/// A median from here on, in milliseconds, is that of a queue: the machine has too much else to do.
const BUSY: f64 = 20.0;

pub(super) fn run(bench: &Bench, workload: &Workload) -> io::Result<Vec<Row>> {
    let mut sites = bench.sites(workload)?;
    let iptables = Command::new("iptables").arg("--version").output().is_ok();
    if !iptables {
        Programs::skipped("dropping SYNs: there is no iptables");
        sites.retain(|site| site.relay.reload != Some(Reload::SynDrop));
    }
    if !bench.programs.has(Program::Haproxy) {
        sites.retain(|site| site.relay.reload != Some(Reload::GateHaproxy));
    }
    let reloads = if bench.quick { QUICK_RELOADS } else { RELOADS };
    Ok(rounds(
        bench.rounds.min(ROUNDS),
        rows(&sites),
        workload,
        |number| {
            namespace::within(&[], &[], || {
                let site = &sites[number];
                let _backend =
                    backend::start(Behaviour::Answer, &[site.backend()], &bench.cores.load()?)?;
                let mut reloaded = Reloaded::start(bench, site)?;
                let target = site.targets()[0];
                schedule::run(target, 300, 300)?; // until the first generation serves
                let count = (RATE as f64 * (BETWEEN * PART + AFTER).as_secs_f64()) as usize;
                let (mut with, mut without) = (Outcome::default(), Outcome::default());
                let mut failures = 0;
                for _ in 0..reloads / PART {
                    without.add(schedule::run(target, count, RATE)?);
                    thread::scope(|scope| {
                        let reloading = scope.spawn(|| reloaded.run(PART));
                        with.add(schedule::run(target, count, RATE)?);
                        failures += reloading
                            .join()
                            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
                        io::Result::Ok(())
                    })?;
                }
                let median = percentile(&without.latencies, 0.5);
                if median > BUSY {
                    let name = site.relay.name;
                    eprintln!(
                        "=== TOO BUSY: without a reload the median through {name} is {median:.0} ms ==="
                    );
                }
                Ok(sample(&with, &without, failures))
            })
        },
    ))
}

/// In the order of the workload's measures.
fn sample(with: &Outcome, without: &Outcome, failures: u32) -> Sample {
    let at = |outcome: &Outcome, share| percentile(&outcome.latencies, share);
    vec![
        Some(at(with, 0.999) / at(without, 0.999)),
        Some(with.failed as f64),
        Some(at(with, 0.5)),
        Some(at(with, 0.99)),
        Some(at(with, 0.999)),
        Some(at(with, 1.0)),
        Some(without.failed as f64),
        Some(at(without, 0.5)),
        Some(at(without, 0.999)),
        Some(at(without, 1.0)),
        Some(f64::from(failures)),
    ]
}

/// A relay, and how it is reloaded.
struct Reloaded<'a> {
    bench: &'a Bench,
    site: &'a Site,
    way: Reload,
    /// The last one serves; those before it may still be ending.
    processes: Vec<Process>,
}

impl<'a> Reloaded<'a> {
    fn start(bench: &'a Bench, site: &'a Site) -> io::Result<Reloaded<'a>> {
        let way = site
            .relay
            .reload
            .ok_or_else(|| io::Error::other("nothing to reload"))?;
        let mut reloaded = Reloaded {
            bench,
            site,
            way,
            processes: Vec::new(),
        };
        let path = bench.programs.path(site.relay.program);
        let mut command = match way {
            Reload::Hup => {
                let process = site.start(&bench.programs, &bench.cores.relay(1)?)?;
                reloaded.processes.extend(process);
                return Ok(reloaded);
            }
            Reload::GateHaproxy => {
                let mut command = syngate::base(site, path);
                command.args(["--min-ready", "100ms", "--haproxy-binary"]);
                command.arg(bench.programs.path(Program::Haproxy));
                command.arg("--haproxy").arg(haproxy::configure(site)?);
                command
            }
            Reload::GateCommand => {
                let mut command = syngate::base(site, path);
                command.args(["--min-ready", "100ms", "--listen"]);
                command.arg(site.listeners()[0].to_string()).arg("--");
                command
                    .arg(std::env::current_exe()?)
                    .args(["backend", "answer={addr}:{port}"]);
                command
            }
            Reload::Usr2 => {
                let mut command = reloaded.haproxy()?;
                command.arg("-W");
                command
            }
            Reload::Successor | Reload::SynDrop => reloaded.haproxy()?,
        };
        reloaded.begin(&mut command)?;
        let serving = reloaded.processes.last_mut().expect("it has begun");
        site.wait(serving)?;
        Ok(reloaded)
    }

    /// Reloads `count` times, the first time now, and one each 1.3 s; says how many have failed.
    fn run(&mut self, count: u32) -> io::Result<u32> {
        let start = Instant::now();
        let mut failures = 0;
        for number in 0..count {
            let due = start + BETWEEN * number;
            thread::sleep(due.saturating_duration_since(Instant::now()));
            failures += u32::from(!self.reload()?);
        }
        Ok(failures)
    }

    /// Whether it has succeeded, as far as the way tells.
    fn reload(&mut self) -> io::Result<bool> {
        match self.way {
            Reload::GateHaproxy | Reload::GateCommand => {
                let program = self.bench.programs.path(Program::Syngate);
                let mut verb = syngate::ask(self.site, program, "reload");
                self.tool(&mut verb)
            }
            Reload::Usr2 => self.signal(Signal::SIGUSR2),
            Reload::Hup => self.signal(Signal::SIGHUP),
            Reload::Successor => self.succeed(),
            Reload::SynDrop => {
                let dropped = self.tool(&mut self.rule("-I"))?;
                thread::sleep(Duration::from_millis(500));
                let succeeded = self.succeed()?;
                let old = self.processes.len() - 2;
                let end = Instant::now() + Duration::from_secs(5);
                // The new one has bound its ports when the old one has gone.
                while self.processes[old].child.try_wait()?.is_none() && Instant::now() < end {
                    thread::sleep(Duration::from_millis(5));
                }
                Ok(self.tool(&mut self.rule("-D"))? && dropped && succeeded)
            }
        }
    }

    fn signal(&self, signal: Signal) -> io::Result<bool> {
        self.processes.last().expect("one serves").signal(signal)?;
        Ok(true)
    }

    /// A new process, which asks the old one to finish.
    fn succeed(&mut self) -> io::Result<bool> {
        let old = self.processes.last().expect("one serves").pid();
        let mut command = self.haproxy()?;
        self.begin(command.arg("-sf").arg(old.to_string()))?;
        Ok(true)
    }

    fn haproxy(&self) -> io::Result<Command> {
        let program = self.bench.programs.path(self.site.relay.program);
        let mut command = Command::new(program);
        command
            .args(["-db", "-q", "-f"])
            .arg(haproxy::configure(self.site)?);
        Ok(command)
    }

    fn begin(&mut self, command: &mut Command) -> io::Result<()> {
        let log = std::fs::File::create(self.site.directory.join("log"))?;
        command.stdout(Stdio::null()).stderr(log);
        let process = Process::start(command, &self.bench.cores.relay(1)?)?;
        self.processes.push(process);
        Ok(())
    }

    /// Runs a command to its end on the relay's core, as all that a reload needs.
    fn tool(&self, command: &mut Command) -> io::Result<bool> {
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut process = Process::start(command, &self.bench.cores.relay(1)?)?;
        Ok(process.child.wait()?.success())
    }

    fn rule(&self, verb: &str) -> Command {
        let mut command = Command::new("iptables");
        command.args([
            "-w", verb, "INPUT", "-p", "tcp", "--syn", "-j", "DROP", "--dport",
        ]);
        command.arg(self.site.listeners()[0].port().to_string());
        command
    }
}
