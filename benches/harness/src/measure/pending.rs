//! Connections that wait for a backend: what each costs in memory, and how they are handed over when it comes.

use std::io;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{Bench, rounds, rows};
use crate::backend::{self, Behaviour};
use crate::load::Habit;
use crate::load::exchange::Exchange;
use crate::namespace;
use crate::process::Process;
use crate::relays::{Program, Site, syngate};
use crate::report::{Row, Sample};
use crate::workloads::Workload;

const CONNECTIONS: u64 = 5000;
/// Opened at a time, well below the listener's backlog.
const BATCH: u64 = 500;
const PATIENCE: Duration = Duration::from_secs(30);

pub(super) fn run(bench: &Bench, workload: &Workload) -> io::Result<Vec<Row>> {
    let sites = bench.sites(workload)?;
    namespace::within(&[], &[], || {
        let places: Vec<_> = sites.iter().map(Site::backend).collect();
        let _backend = backend::start(Behaviour::Answer, &places, &bench.cores.load()?)?;
        Ok(rounds(bench.rounds, rows(&sites), workload, |number| {
            let site = &sites[number];
            let cores = bench.cores.relay(workload.demands.workers)?;
            match site.start(&bench.programs, &cores)? {
                Some(relay) => sample(bench, site, &relay),
                None => Ok(vec![None; workload.measures.len()]),
            }
        }))
    })
}

/// Bytes a pending connection; milliseconds from the release until all are answered; CPU microseconds a connection of the release;
/// errors.
fn sample(bench: &Bench, site: &Site, relay: &Process) -> io::Result<Sample> {
    let ask = |verb| syngate::ask(site, bench.programs.path(Program::Syngate), verb);
    let mut clients = Exchange::open(&site.targets(), 0, Habit::Stays)?;
    clients.add(BATCH as usize)?;
    expect(
        clients.run(PATIENCE, BATCH)?.operations,
        BATCH,
        "before the hold",
    )?;

    succeed(&mut ask("hold"))?;
    let before = relay.resident()?;
    let mut opened = 0;
    while opened < CONNECTIONS {
        clients.add(BATCH as usize)?;
        opened += BATCH;
        let end = Instant::now() + PATIENCE;
        while pending(&mut ask("status"))? < opened {
            if Instant::now() > end {
                return Err(io::Error::other(format!(
                    "{opened} connections don't get pending"
                )));
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
    let memory = relay.resident()? - before;

    let cpu = relay.cpu()?;
    let mut release = ask("release");
    release.stdout(Stdio::null()).stderr(Stdio::null());
    let start = Instant::now();
    // The clients are read from while the verb is at work.
    let verb = Process::start(&mut release, &bench.cores.relay(1)?)?;
    let tally = clients.run(PATIENCE, CONNECTIONS)?;
    let elapsed = start.elapsed();
    drop(verb);
    expect(tally.operations, CONNECTIONS, "after the release")?;
    let cpu = relay.cpu()? - cpu;
    let each = |value: f64| Some(value / CONNECTIONS as f64);
    Ok(vec![
        each(memory as f64),
        Some(elapsed.as_secs_f64() * 1e3),
        each(cpu.as_secs_f64() * 1e6),
        Some(tally.errors as f64),
    ])
}

fn pending(status: &mut Command) -> io::Result<u64> {
    let output = status.arg("--json").output()?;
    let status: Value = serde_json::from_slice(&output.stdout)?;
    status["pending"]
        .as_u64()
        .ok_or_else(|| io::Error::other("the status has no `pending`"))
}

fn succeed(command: &mut Command) -> io::Result<()> {
    let output = command.output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(io::Error::other(said))
}

fn expect(answered: u64, wanted: u64, when: &str) -> io::Result<()> {
    if answered == wanted {
        return Ok(());
    }
    Err(io::Error::other(format!(
        "{answered} of {wanted} are answered {when}"
    )))
}
