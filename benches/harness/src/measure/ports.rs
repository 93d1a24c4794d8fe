//! Short connections until each port towards the backend has been used: whoever closes a connection first keeps its port in TIME_WAIT
//! for a minute. With `tcp_tw_reuse=0` loopback is as any other network in this.

use std::io;
use std::time::Duration;

use super::{Bench, rounds, rows};
use crate::backend::{self, Behaviour};
use crate::load::Habit;
use crate::load::exchange::Exchange;
use crate::namespace;
use crate::process::Process;
use crate::relays::{REMOTE, Relay, Site, remote_sources};
use crate::report::{Row, Sample};
use crate::workloads::Workload;

/// The default `ip_local_port_range` has 28,232 ports.
const CONNECTIONS: u64 = 100_000;
const QUICK: u64 = 40_000;
/// As many as one address can give.
const OF_ONE_ADDRESS: u64 = 28_000;
const AT_A_TIME: usize = 32;
/// A tenth that takes longer is the last one: a relay that has collapsed isn't watched for an hour.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a relay is watched that has no port left.
const EXHAUSTED: Duration = Duration::from_secs(3);

pub(super) fn run(bench: &Bench, workload: &Workload) -> io::Result<Vec<Row>> {
    let sites = bench.sites(workload)?;
    let sources: Vec<String> = remote_sources(u8::MAX)
        .map(|address| address.to_string())
        .collect();
    let mut addresses = vec![REMOTE];
    addresses.extend(sources.iter().take(4).map(String::as_str));
    Ok(rounds(bench.rounds, rows(&sites), workload, |number| {
        // A namespace each time: one without a single TIME_WAIT.
        namespace::within(&[("tcp_tw_reuse", "0")], &addresses, || {
            let site = &sites[number];
            let cores = bench.cores.relay(workload.demands.workers)?;
            let _backend =
                backend::start(Behaviour::Answer, &[site.backend()], &bench.cores.load()?)?;
            match site.start(&bench.programs, &cores)? {
                Some(relay) => sample(site, &relay, count(site.relay, bench.quick)),
                None => Ok(vec![None; workload.measures.len()]),
            }
        })
    }))
}

fn count(relay: Relay, quick: bool) -> u64 {
    match relay.remote_sources {
        Some(1) => OF_ONE_ADDRESS,
        _ if quick => QUICK,
        _ => CONNECTIONS,
    }
}

/// CPU time a connection of the last tenth over the first one's; how many connections; errors; CPU microseconds a connection of the
/// first tenth and of the last; and for a relay with one address its share of a core when that has no port left.
fn sample(site: &Site, relay: &Process, count: u64) -> io::Result<Sample> {
    let mut clients = Exchange::open(&site.targets(), AT_A_TIME, Habit::Closes)?;
    let (mut connections, mut errors) = (0, 0);
    let mut costs = Vec::new();
    for _ in 0..10 {
        let before = relay.cpu()?;
        let tally = clients.run(PATIENCE, count / 10)?;
        let cpu = relay.cpu()? - before;
        connections += tally.operations;
        errors += tally.errors;
        if tally.operations > 0 {
            costs.push(cpu.as_secs_f64() * 1e6 / tally.operations as f64);
        }
        if tally.operations < count / 10 {
            break;
        }
    }
    let exhausted = match site.relay.remote_sources {
        Some(1) => {
            let before = relay.cpu()?;
            clients.run(EXHAUSTED, u64::MAX)?;
            let cpu = relay.cpu()? - before;
            Some(cpu.as_secs_f64() / EXHAUSTED.as_secs_f64())
        }
        _ => None,
    };
    let (first, last) = (costs.first().copied(), costs.last().copied());
    Ok(vec![
        first.zip(last).map(|(first, last)| last / first),
        Some(connections as f64),
        Some(errors as f64),
        first,
        last,
        exhausted,
    ])
}
