//! A load that goes on and on: all relays run side by side, and are loaded in turn.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::{Bench, rounds, rows};
use crate::backend::{self, Behaviour};
use crate::load::{Direction, Habit, Kind, Load};
use crate::namespace;
use crate::process::Process;
use crate::relays::Site;
use crate::report::{Row, Sample};
use crate::workloads::Workload;

/// What is measured, and what goes before it until all connections are there.
const SLICE: Duration = Duration::from_millis(350);
const BEFORE: Duration = Duration::from_millis(60);

pub(super) fn run(bench: &Bench, workload: &Workload, load: Kind) -> io::Result<Vec<Row>> {
    let sites = bench.sites(workload)?;
    namespace::within(&[], &[], || {
        let places: Vec<_> = sites.iter().map(Site::backend).collect();
        let _backend = backend::start(behaviour(load), &places, &bench.cores.load()?)?;
        let (sites, relays) = bench.start(sites)?;
        for (site, relay) in sites.iter().zip(&relays) {
            // A warm-up: what fails here fails again, and is told then.
            let _ = slice(site, relay.as_ref(), load, bench.slice(SLICE));
        }
        Ok(rounds(bench.rounds, rows(&sites), workload, |number| {
            let relay = relays[number].as_ref();
            slice(&sites[number], relay, load, bench.slice(SLICE))
        }))
    })
}

fn behaviour(load: Kind) -> Behaviour {
    match load {
        Kind::Exchange {
            habit: Habit::IsClosed,
            ..
        } => Behaviour::AnswerOnce,
        Kind::Exchange { .. } => Behaviour::Answer,
        Kind::Bulk {
            direction: Direction::Down,
            ..
        } => Behaviour::Source,
        Kind::Bulk { .. } => Behaviour::Sink,
    }
}

/// Operations a relay's CPU second, operations a second, errors.
fn slice(site: &Site, relay: Option<&Process>, load: Kind, time: Duration) -> io::Result<Sample> {
    let mut going = Load::open(load, &site.targets())?;
    going.run(BEFORE)?;
    let (tally, cpu, elapsed) = while_scraped(site.metrics(), || {
        let before = relay.map(Process::cpu).transpose()?;
        let start = Instant::now();
        let tally = going.run(time)?;
        let elapsed = start.elapsed();
        let after = relay.map(Process::cpu).transpose()?;
        let cpu = before.zip(after).map(|(before, after)| after - before);
        io::Result::Ok((tally, cpu, elapsed))
    })?;
    let operations = tally.operations as f64 / unit(load);
    Ok(vec![
        cpu.map(|cpu| operations / cpu.as_secs_f64()),
        Some(operations / elapsed.as_secs_f64()),
        Some(tally.errors as f64),
    ])
}

/// Bulk data is counted in gigabytes.
fn unit(load: Kind) -> f64 {
    match load {
        Kind::Exchange { .. } => 1.0,
        Kind::Bulk { .. } => 1e9,
    }
}

/// Between two looks at the metrics.
const SCRAPE: Duration = Duration::from_millis(100);

/// Does `work`, and meanwhile reads the metrics at `place`, if any.
fn while_scraped<T>(
    place: Option<SocketAddr>,
    work: impl FnOnce() -> io::Result<T>,
) -> io::Result<T> {
    let Some(place) = place else { return work() };
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let scraper = scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                scrape(place)?;
                thread::park_timeout(SCRAPE);
            }
            io::Result::Ok(())
        });
        let done = work();
        over.store(true, Ordering::Relaxed);
        scraper.thread().unpark();
        scraper
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        done
    })
}

fn scrape(place: SocketAddr) -> io::Result<()> {
    let mut stream = TcpStream::connect(place)?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n")?;
    let mut page = Vec::new();
    stream.read_to_end(&mut page)?;
    if page.starts_with(b"HTTP/1.1 200") {
        return Ok(());
    }
    Err(io::Error::other("/metrics doesn't answer with 200"))
}
