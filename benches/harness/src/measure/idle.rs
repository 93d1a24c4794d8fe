//! What a connection that does nothing costs in memory.

use std::io;
use std::time::{Duration, Instant};

use super::{Bench, rounds, rows};
use crate::backend::{self, Behaviour};
use crate::load::Habit;
use crate::load::exchange::Exchange;
use crate::namespace;
use crate::process::Process;
use crate::relays::{Programs, Site};
use crate::report::{Row, Sample};
use crate::workloads::Workload;

/// Where descriptors allow so many: a relay needs two each.
const CONNECTIONS: u64 = 9000;
const RESERVE: u64 = 1000;
/// Opened at a time, well below a listener's backlog.
const BATCH: u64 = 250;
/// Before the first look at the memory, so that code and tables that every use needs aren't counted.
const WARM_UP: u64 = 100;
/// All must be answered within this.
const PATIENCE: Duration = Duration::from_secs(60);

pub(super) fn run(bench: &Bench, workload: &Workload) -> io::Result<Vec<Row>> {
    let sites = bench.sites(workload)?;
    let count = CONNECTIONS.min((Programs::descriptors() - RESERVE) / 2);
    namespace::within(&[], &[], || {
        let places: Vec<_> = sites.iter().map(Site::backend).collect();
        let _backend = backend::start(Behaviour::Answer, &places, &bench.cores.load()?)?;
        Ok(rounds(bench.rounds, rows(&sites), workload, |number| {
            let site = &sites[number];
            // A new process each time: memory that was given back isn't memory that is free.
            let cores = bench.cores.relay(workload.demands.workers)?;
            match site.start(&bench.programs, &cores)? {
                Some(relay) => sample(site, &relay, count),
                None => Ok(vec![None; workload.measures.len()]),
            }
        }))
    })
}

/// Bytes a connection, MB before the first one, and how many there were.
fn sample(site: &Site, relay: &Process, count: u64) -> io::Result<Sample> {
    let mut clients = Exchange::open(&site.targets(), 0, Habit::Stays)?;
    open(&mut clients, WARM_UP)?;
    let before = relay.resident()?;
    open(&mut clients, count)?;
    let after = relay.resident()?;
    Ok(vec![
        Some((after as f64 - before as f64) / count as f64),
        Some(before as f64 / 1e6),
        Some(count as f64),
    ])
}

/// Opens `count` connections more; each has had its answer when this returns.
fn open(clients: &mut Exchange, count: u64) -> io::Result<()> {
    let end = Instant::now() + PATIENCE;
    let mut left = count;
    while left > 0 {
        let batch = left.min(BATCH);
        clients.add(batch as usize)?;
        let tally = clients.run(end.saturating_duration_since(Instant::now()), batch)?;
        if tally.operations < batch || tally.errors > 0 {
            return Err(io::Error::other(format!(
                "of {batch} connections: {tally:?}"
            )));
        }
        left -= batch;
    }
    Ok(())
}
