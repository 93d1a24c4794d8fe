//! `syngate demo`: the main job on a backend of its own, under load, with what can go wrong in it.
//!
//! It starts the real thing: this executable as `syngate run`, with two services whose backends are this executable again
//! ([`backend`]), and asks it over its control socket as any client would. The load comes from this process ([`load`]). What a
//! reload finds is what a user would have written: a new version, a slip of the pen, a configuration that never gets ready.
//!
//! It fails when a connection isn't served as it should be, or a step doesn't end as it must. No delay fails it: whatever takes
//! longer on a busy machine is waited for.

mod backend;
mod gate;
mod load;
mod story;
mod table;
mod verdict;

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::Signal;
use syngate_supervisor::exit;
use syngate_supervisor::protocol::Status;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use crate::complain;
pub(crate) use backend::{BackendArgs, backend};
use gate::Gate;
use load::{Clients, Habit};
use story::Story;
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

/// Open descriptors of the gate, which needs two a connection, and enough for this process and the backends.
const DESCRIPTORS: u64 = 1024;

/// Between two drawings of the table.
const REDRAW: Duration = Duration::from_millis(250);

/// As a shell says it.
const INTERRUPTED: u8 = exit::BY_SIGNAL + Signal::SIGINT as u8;

/// Carries out the verb.
pub(crate) fn run() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    match runtime {
        Ok(runtime) => runtime.block_on(demo()),
        Err(error) => complain(exit::REFUSED, &format!("no runtime for the demo: {error}")),
    }
}

async fn demo() -> ExitCode {
    let (interrupted, gate) = match prepare() {
        Ok(both) => both,
        Err(why) => return complain(exit::REFUSED, &why),
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
    let good = match shown {
        Ok(verdict) => {
            say(&verdict.to_string());
            verdict.is_good()
        }
        Err(why) => {
            complain(exit::FAILED, &why);
            false
        }
    };
    if !good {
        gate.keep_directory();
        let (log, last_lines) = (gate.log(), gate.last_lines());
        eprintln!(
            "the gate's log, {}, ends with:\n{last_lines}",
            log.display()
        );
        // How it ends now adds nothing.
        let _ = gate.stop().await;
        return ExitCode::FAILURE;
    }
    match gate.stop().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => complain(exit::FAILED, &why),
    }
}

/// Starts the gate. The future ends when somebody wants the demo to end; from here on no signal ends it otherwise.
fn prepare() -> Result<(impl Future<Output = ()>, Gate), String> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)
        .map_err(|error| format!("the limit of open descriptors can't be read: {error}"))?;
    if hard < DESCRIPTORS {
        return Err(format!(
            "the demo needs {DESCRIPTORS} open descriptors, and the limit is {hard}: raise it (ulimit -Hn)"
        ));
    }
    if soft < DESCRIPTORS {
        setrlimit(Resource::RLIMIT_NOFILE, DESCRIPTORS, hard)
            .map_err(|error| format!("the limit of open descriptors can't be raised: {error}"))?;
    }
    let interrupted =
        interrupted().map_err(|error| format!("signals can't be watched: {error}"))?;
    Ok((interrupted, Gate::start()?))
}

fn interrupted() -> io::Result<impl Future<Output = ()>> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
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
    let story = Story::new(gate, &table, &web, &jobs);

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
        reloads: story.reloads(),
        unexpected: story.unexpected(),
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

#[cfg(test)]
#[path = "demo/tests.rs"]
mod tests;
