//! How a workload becomes numbers.

use std::env;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::arguments::Arguments;
use crate::machine::Cores;
use crate::process::Process;
use crate::relays::{Program, Programs, Site};
use crate::report::{Row, Sample};
use crate::workloads::{Method, Workload};

mod idle;
mod latency;
mod pending;
mod ports;
mod reloads;
mod steady;

/// What all measurements share. Its directory is removed when it is dropped.
pub(crate) struct Bench {
    pub(crate) programs: Programs,
    cores: Cores,
    rounds: usize,
    quick: bool,
    directory: PathBuf,
}

impl Bench {
    pub(crate) fn new(programs: Programs, arguments: &Arguments) -> io::Result<Bench> {
        Programs::raise_descriptors()?;
        // Short, since unix sockets are below it; in a process namespace the number alone isn't unique.
        let own = format!(
            "syngate-bench-{}-{}",
            std::process::id(),
            crate::machine::clock()
        );
        let directory = env::temp_dir().join(own);
        fs::create_dir(&directory)?;
        Ok(Bench {
            programs,
            cores: Cores::take()?,
            rounds: arguments.rounds,
            quick: arguments.quick,
            directory,
        })
    }

    /// A slice, or a shorter one.
    fn slice(&self, usual: Duration) -> Duration {
        if self.quick { usual / 3 } else { usual }
    }

    /// Starts the relays of all sites, side by side; a peer that doesn't start is left out, and a line says why.
    fn start(&self, sites: Vec<Site>) -> io::Result<(Vec<Site>, Vec<Option<Process>>)> {
        let (mut started, mut relays) = (Vec::new(), Vec::new());
        for site in sites {
            let cores = self.cores.relay(site.demands.workers)?;
            match site.start(&self.programs, &cores) {
                Ok(relay) => {
                    relays.push(relay);
                    started.push(site);
                }
                Err(error) if site.relay.program == Program::Syngate => return Err(error),
                Err(error) => Programs::skipped(&error.to_string()),
            }
        }
        Ok((started, relays))
    }

    /// A place for each relay that can take part, below a directory of the workload's own.
    fn sites(&self, workload: &Workload) -> io::Result<Vec<Site>> {
        let directory = self.directory.join(workload.name);
        let there = workload
            .relays
            .iter()
            .filter(|relay| self.programs.has(relay.program));
        there
            .enumerate()
            .map(|(number, relay)| Site::new(*relay, number, &directory, workload.demands))
            .collect()
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// Measures `workload`: a row a relay that is there.
pub(crate) fn run(bench: &Bench, workload: &Workload) -> io::Result<Vec<Row>> {
    match workload.method {
        Method::Steady(load) => steady::run(bench, workload, load),
        Method::Idle => idle::run(bench, workload),
        Method::Latency => latency::run(bench, workload),
        Method::Ports => ports::run(bench, workload),
        Method::Pending => pending::run(bench, workload),
        Method::Reloads => reloads::run(bench, workload),
    }
}

/// A row a site, without a sample yet.
fn rows(sites: &[Site]) -> Vec<Row> {
    let row = |site: &Site| Row {
        relay: site.relay.name.to_owned(),
        gate: site.relay.program == Program::Syngate,
        unix: site.relay.unix,
        samples: Vec::new(),
    };
    sites.iter().map(row).collect()
}

/// Takes one sample for each row a round, in an order that changes from round to round, so that none always follows the same one.
/// A sample that fails is empty, and a line says why.
fn rounds(
    rounds: usize,
    mut rows: Vec<Row>,
    workload: &Workload,
    mut sample: impl FnMut(usize) -> io::Result<Sample>,
) -> Vec<Row> {
    for round in 0..rounds {
        for number in order(round, rows.len()) {
            let taken = sample(number).unwrap_or_else(|error| {
                eprintln!(
                    "=== FAILED: {}, round {round}: {error} ===",
                    rows[number].relay
                );
                vec![None; workload.measures.len()]
            });
            rows[number].samples.push(taken);
        }
        eprint!(".");
    }
    eprintln!();
    rows
}

/// Begins with another one each round, and runs backwards every second time.
fn order(round: usize, count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    if count > 0 {
        order.rotate_left(round / 2 % count);
    }
    if round % 2 == 1 {
        order.reverse();
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_round_has_everyone_once() {
        for round in 0..20 {
            let mut order = order(round, 5);
            order.sort_unstable();
            assert_eq!(order, [0, 1, 2, 3, 4]);
        }
        assert_ne!(order(0, 5)[0], order(1, 5)[0]);
        assert!(order(3, 0).is_empty());
    }

    #[test]
    fn a_failed_sample_is_empty() {
        let workload = crate::workloads::all().remove(0);
        let row = |name: &str| Row {
            relay: name.to_owned(),
            gate: false,
            unix: false,
            samples: Vec::new(),
        };
        let rows = rounds(
            2,
            vec![row("a"), row("b")],
            &workload,
            |number| match number {
                0 => Ok(vec![Some(1.0); 3]),
                _ => Err(io::Error::other("no")),
            },
        );
        assert_eq!(rows[0].samples, [[Some(1.0); 3]; 2]);
        assert_eq!(rows[1].samples, [[None; 3]; 2]);
    }
}
