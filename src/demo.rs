//! `syngate demo`: the main job on a backend of its own, under load, with what can go wrong in it.
//!
//! It starts the real thing: this executable as `syngate run`, with two services whose backends are this executable again
//! ([`backend`]), and asks it over its control socket as any client would. The load comes from this process ([`load`]). What a
//! reload finds is what a user would have written: a new version, a slip of the pen, a configuration that never gets ready.
//!
//! Only connections can fail it, and no delay does: whatever takes longer on a busy machine is waited for.

mod backend;
mod gate;
mod load;
mod table;
mod verdict;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use syngate_supervisor::protocol::{ServiceStatus, Status};
use tokio::signal::unix::{self, SignalKind};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

pub(crate) use backend::{BackendArgs, backend};
use gate::Gate;
use load::{Clients, Habit};
use table::{Table, say};
use verdict::Verdict;

/// Clients of `web` that keep their connections, until they are told that an answer is the last one.
const KEPT: usize = 50;
const FOREVER: Habit = Habit {
    life: Duration::MAX,
    pause: Duration::from_millis(400),
};

/// Clients of `jobs`, whose connections end within a second.
const WORKERS: usize = 20;
const A_JOB: Habit = Habit {
    life: Duration::from_millis(500),
    pause: Duration::from_millis(200),
};

/// The demo reloads at least this long.
const LENGTH: Duration = Duration::from_secs(15);

/// Between two steps.
const PAUSE: Duration = Duration::from_millis(150);

/// How long the operator's hold is.
const HOLD: Duration = Duration::from_millis(500);

/// From the kill to the successor.
const RESTART: Duration = Duration::from_secs(60);

/// So many reloads in a row may be too slow for `ready_timeout`: the machine is busy.
const TOO_SLOW: u32 = 10;

const REDRAW: Duration = Duration::from_millis(250);

/// 128 and SIGINT, as a shell says it.
const INTERRUPTED: u8 = 130;

/// Carries out the verb.
pub(crate) fn run() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    match runtime {
        Ok(runtime) => runtime.block_on(demo()),
        Err(error) => crate::complain(crate::REFUSED, &format!("no runtime for the demo: {error}")),
    }
}

async fn demo() -> ExitCode {
    let interrupted = match interrupted() {
        Ok(interrupted) => interrupted,
        Err(error) => {
            return crate::complain(
                crate::REFUSED,
                &format!("signals can't be watched: {error}"),
            );
        }
    };
    let gate = match Gate::start() {
        Ok(gate) => gate,
        Err(why) => return crate::complain(crate::REFUSED, &why),
    };
    let shown = tokio::select! {
        shown = show(&gate) => shown,
        status = gate.ended() => Err(format!("the gate ended with {status}")),
        () = interrupted => {
            say("\ninterrupted");
            // Whatever becomes of it, it is gone when this returns.
            let _ = gate.stop().await;
            return ExitCode::from(INTERRUPTED);
        }
    };
    let log = gate.log();
    let good = match shown {
        Ok(verdict) => {
            say(&verdict.to_string());
            verdict.is_good()
        }
        Err(why) => {
            crate::complain(1, &why);
            eprintln!("{}", gate.last_lines());
            false
        }
    };
    if !good {
        gate.keep_directory();
        eprintln!("the gate's log is {}", log.display());
    }
    let stopped = gate.stop().await;
    if let Err(why) = &stopped {
        crate::complain(1, why);
    }
    match good && stopped.is_ok() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

/// Ends when somebody wants the demo to end.
fn interrupted() -> std::io::Result<impl Future<Output = ()>> {
    let mut interrupt = unix::signal(SignalKind::interrupt())?;
    let mut terminate = unix::signal(SignalKind::terminate())?;
    let mut hangup = unix::signal(SignalKind::hangup())?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    })
}

/// All of it, on a gate that has just been started.
async fn show(gate: &Gate) -> Result<Verdict, String> {
    let status = gate.active().await?;
    let (pid, metrics) = (gate.pid(), gate.metrics());
    say(&format!(
        "the gate: process {pid}; its metrics while this runs: {metrics}"
    ));
    let web = Clients::new(address(&status, "web")?);
    let jobs = Clients::new(address(&status, "jobs")?);
    let table = Table::new([("web", &web), ("jobs", &jobs)]);
    let story = Story {
        gate,
        table: &table,
        web: &web,
        jobs: &jobs,
        version: Cell::new(1),
        reloads: RefCell::default(),
        unexpected: RefCell::default(),
    };

    let mut load = JoinSet::new();
    load.spawn(Arc::clone(&web).always_new());
    for _ in 0..KEPT {
        load.spawn(Arc::clone(&web).always_kept(FOREVER));
    }
    for _ in 0..WORKERS {
        load.spawn(Arc::clone(&jobs).always_kept(A_JOB));
    }
    let finish = async {
        let told = story.tell().await;
        web.stop();
        jobs.stop();
        while load.join_next().await.is_some() {}
        told
    };
    let told = tokio::select! {
        told = finish => told,
        never = keep_drawing(gate, &table) => match never {},
    };

    let mut verdict = Verdict {
        took: table.elapsed(),
        tally: web.tally(),
        reloads: story.reloads.take(),
        unexpected: story.unexpected.take(),
        ..Verdict::default()
    };
    verdict.tally.add(jobs.tally());
    verdict.unexpected.extend(told.err());
    match gate.scrape().await {
        Ok(metrics) => verdict.read_metrics(&metrics),
        Err(why) => verdict.unexpected.push(why),
    }
    Ok(verdict)
}

async fn keep_drawing(gate: &Gate, table: &Table) -> Infallible {
    let mut ticks = interval(REDRAW);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        // Where it doesn't answer, the story says so.
        if let Ok(status) = gate.status().await {
            table.update(&status);
        }
    }
}

/// Where a service's only listener is.
fn address(status: &Status, service: &str) -> Result<SocketAddr, String> {
    let mut services = status.services.iter();
    let listener = services
        .find(|status| status.name == service)
        .and_then(|status| status.listeners.first())
        .ok_or_else(|| format!("the gate's status has no listener of {service}"))?;
    let address = &listener.address;
    address
        .parse()
        .map_err(|_| format!("`{address}` is no address of a listener"))
}

/// What happens to the gate. Each step returns when it is over.
struct Story<'a> {
    gate: &'a Gate,
    table: &'a Table,
    web: &'a Clients,
    jobs: &'a Clients,
    /// The last one that was written to a configuration.
    version: Cell<u64>,
    reloads: RefCell<BTreeMap<String, u64>>,
    unexpected: RefCell<Vec<String>>,
}

impl Story<'_> {
    /// An error ends it early.
    async fn tell(&self) -> Result<(), String> {
        self.reload_well("web", 6).await?;
        self.slip().await?;
        self.reload_well("web", 5).await?;
        self.never_ready().await?;
        self.reload_well("web", 5).await?;
        self.hold().await?;
        self.kill().await?;
        self.reload_well("jobs", 1).await?;
        self.reload_well("web", 4).await?;
        while self.table.elapsed() < LENGTH {
            self.reload_well("web", 1).await?;
        }
        Ok(())
    }

    /// Reloads until so many have succeeded.
    async fn reload_well(&self, service: &str, count: u32) -> Result<(), String> {
        let mut too_slow = 0;
        let mut good = 0;
        while good < count {
            let version = self.next_version();
            let outcome = self
                .reload(service, &format!("version {version}\n"))
                .await?;
            if outcome == "success" {
                good += 1;
                self.clients(service).expect(version);
            } else {
                too_slow += 1;
                if too_slow == TOO_SLOW {
                    return Err(format!(
                        "{TOO_SLOW} reloads of {service} failed: the last was {outcome}"
                    ));
                }
            }
        }
        Ok(())
    }

    /// A word is misspelt: the backend's check must say so.
    async fn slip(&self) -> Result<(), String> {
        let config = format!("verison {}\n", self.next_version());
        let outcome = self.reload("web", &config).await?;
        self.must_be("check_failed", "a configuration with a slip", &outcome);
        Ok(())
    }

    /// The check can't see that this one never gets ready.
    async fn never_ready(&self) -> Result<(), String> {
        let config = format!("version {}\nready never\n", self.next_version());
        let outcome = self.reload("web", &config).await?;
        self.must_be("not_ready", "a generation that never gets ready", &outcome);
        Ok(())
    }

    async fn hold(&self) -> Result<(), String> {
        let held = self.gate.ask("web", "hold").await?;
        self.table.event("web", &held.message);
        sleep(HOLD).await;
        let released = self.gate.ask("web", "release").await?;
        self.table.event("web", &released.message);
        for (what, exit) in [("hold", held.exit), ("release", released.exit)] {
            if exit != 0 {
                self.surprise(format!("{what} ended with {exit}"));
            }
        }
        sleep(PAUSE).await;
        Ok(())
    }

    /// Kills the active generation. What it had accepted is lost; what waits in its listener isn't.
    async fn kill(&self) -> Result<(), String> {
        let (generation, pid) = active(&self.gate.service("web").await?)
            .ok_or("web has no active generation to kill")?;
        self.web.killing(generation);
        kill(pid, Signal::SIGKILL)
            .map_err(|error| format!("generation {generation} can't be killed: {error}"))?;
        self.table
            .event("web", &format!("kill -9 of generation {generation}"));
        let successor = async {
            loop {
                match active(&self.gate.service("web").await?) {
                    Some((number, _)) if number != generation => return Ok(number),
                    _ => sleep(REDRAW / 10).await,
                }
            }
        };
        let number = timeout(RESTART, successor).await.unwrap_or_else(|_| {
            Err(format!(
                "no successor of generation {generation} after {RESTART:?}"
            ))
        })?;
        self.web.succeeded();
        self.table
            .event("web", &format!("generation {number} is its successor"));
        sleep(PAUSE).await;
        Ok(())
    }

    /// One reload, and its outcome in the word of the metrics.
    async fn reload(&self, service: &str, config: &str) -> Result<String, String> {
        self.gate.configure(service, config)?;
        let done = self.gate.ask(service, "reload").await?;
        let last = self.gate.service(service).await?.last_reload;
        let outcome = match (done.exit, last) {
            (0, _) => "success".to_owned(),
            (_, Some(last)) => last.outcome,
            (exit, None) => format!("exit {exit}"),
        };
        *self
            .reloads
            .borrow_mut()
            .entry(outcome.clone())
            .or_default() += 1;
        self.table.event(service, &done.message);
        sleep(PAUSE).await;
        Ok(outcome)
    }

    fn must_be(&self, expected: &str, what: &str, outcome: &str) {
        if outcome != expected {
            self.surprise(format!("the reload with {what} was {outcome}"));
        }
    }

    fn surprise(&self, what: String) {
        self.unexpected.borrow_mut().push(what);
    }

    fn next_version(&self) -> u64 {
        self.version.update(|version| version + 1);
        self.version.get()
    }

    fn clients(&self, service: &str) -> &Clients {
        match service {
            "jobs" => self.jobs,
            _ => self.web,
        }
    }
}

/// The active generation and its process.
fn active(service: &ServiceStatus) -> Option<(u64, Pid)> {
    let number = service.active?;
    let mut generations = service.generations.iter();
    let generation = generations.find(|generation| generation.number == number)?;
    Some((number, Pid::from_raw(generation.pid?.cast_signed())))
}

#[cfg(test)]
#[path = "demo/tests.rs"]
mod tests;
