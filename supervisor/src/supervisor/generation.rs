//! One generation of a service, as the supervisor has it: process, place, endpoints, and the tasks that watch it.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nix::sys::signal::Signal;
use syngate_gate::{Endpoints, Generation, ServiceId, Target};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::context::{Context, Message};
use super::servers;
use crate::child::{Child, Spawner};
use crate::config::{Backend, ServiceConfig};
use crate::haproxy;
use crate::haproxy::state::CarriedOver;
use crate::launch::{Kept, Places, Site};
use crate::protocol::GenerationState;
use crate::readiness::NotReady;
use crate::reaper::Exit;
use crate::rollout::{End, Event};
use crate::runtime_dir::GenerationDir;

/// Bound of taking over the states of servers.
const STATES_WITHIN: Duration = Duration::from_secs(5);

/// What a start has made.
pub(super) struct Started {
    child: Child,
    site: Site,
}

/// A generation that isn't forgotten.
pub(super) struct Live {
    pub(super) config: Arc<ServiceConfig>,
    pub(super) began: Instant,
    /// When its process came to be.
    pub(super) started: Option<Instant>,
    /// When another one took its place.
    pub(super) replaced: Option<Instant>,
    pub(super) state: GenerationState,
    /// An endpoint of it that takes no connection, and why.
    pub(super) refused: Option<String>,
    /// Known once it is ready.
    pub(super) gate: Option<Arc<Generation>>,
    pub(super) queue_watch: Option<AbortOnDropHandle<()>>,
    pub(super) watch_leases: bool,
    process: Option<Started>,
    /// Also those that it took over and hasn't come to use.
    kept: Kept,
    /// It has had a signal: its end is no news.
    pub(super) told: bool,
    /// Signals that came before the process.
    called_off: Vec<Signal>,
    /// Starts it, and says when it is ready and when it ends.
    _task: AbortOnDropHandle<()>,
}

/// Where a generation's start says how it goes.
#[derive(Clone)]
pub(super) struct Report {
    messages: mpsc::UnboundedSender<Message>,
    service: ServiceId,
    pub(super) number: u64,
}

impl Report {
    fn send(&self, message: Message) {
        // Without a loop nobody needs to know.
        let _ = self.messages.send(message);
    }

    pub(super) fn event(&self, event: Event) {
        self.send(Message::Event(self.service, event));
    }

    fn not_started(&self, why: String) {
        self.event(Event::Ended(self.number, End::NotStarted(why)));
    }

    pub(super) fn ready(&self, endpoints: io::Result<Endpoints>) {
        match endpoints {
            Ok(endpoints) => self.send(Message::Ready(self.service, self.number, endpoints)),
            Err(error) => {
                let why = format!("its accept queue can't be found: {error}");
                self.event(Event::NotReady(self.number, why));
            }
        }
    }

    pub(super) fn not_ready(&self, error: NotReady, last_line: Option<String>) {
        let mut why = match error {
            NotReady::InTime { within, why } => format!("{why} (for {:.1}s)", within.as_secs_f64()),
            other => other.to_string(),
        };
        if let Some(line) = last_line {
            why = format!("{why}; its last line: {line}");
        }
        self.event(Event::NotReady(self.number, why));
    }
}

impl Live {
    /// Begins to start a generation. `kept` are the listeners of the one whose heir it is, `older` is the stats socket of the
    /// HAProxy whose servers' states it takes over.
    pub(super) fn start(
        cx: &mut Context,
        service: ServiceId,
        number: u64,
        config: Arc<ServiceConfig>,
        kept: Option<Kept>,
        older: Option<Target>,
    ) -> Live {
        let report = Report {
            messages: cx.messages.clone(),
            service,
            number,
        };
        let inherited = kept.clone().unwrap_or_default();
        let task = match &config.backend {
            Backend::Addresses(_) => tokio::spawn(servers::ready(
                report,
                Arc::clone(&config),
                cx.spawner.clone(),
            )),
            Backend::Command { .. } | Backend::Haproxy(_) => {
                match cx.runtime_dir.generation(&config.name, number) {
                    Ok(directory) => {
                        let begin = Begin {
                            config: Arc::clone(&config),
                            directory,
                            spawner: cx.spawner.clone(),
                            places: Arc::clone(&cx.places),
                            kept,
                            older,
                        };
                        tokio::spawn(process(report, begin))
                    }
                    Err(error) => {
                        report.not_started(error.to_string());
                        tokio::spawn(async {})
                    }
                }
            }
        };
        Live {
            config,
            began: Instant::now(),
            started: None,
            replaced: None,
            state: GenerationState::Starting,
            refused: None,
            gate: None,
            queue_watch: None,
            watch_leases: false,
            process: None,
            kept: inherited,
            told: false,
            called_off: Vec::new(),
            _task: AbortOnDropHandle::new(task),
        }
    }

    /// Its process runs.
    pub(super) fn started(&mut self, started: Started) {
        self.started = Some(Instant::now());
        self.kept = started.site.kept.clone();
        self.process = Some(started);
        for signal in std::mem::take(&mut self.called_off) {
            self.signal(signal);
        }
    }

    pub(super) fn pid(&self) -> Option<i32> {
        self.process.as_ref().map(|process| process.child.pid())
    }

    /// Where its HAProxy takes orders, if it is one that runs.
    pub(super) fn stats(&self) -> Option<Target> {
        self.process.as_ref()?.site.stats().cloned()
    }

    /// It has become active.
    pub(super) fn publish(&self) {
        if let Some(process) = &self.process {
            process.site.publish();
        }
    }

    /// Signals the process: the whole group with SIGKILL, else its leader. One that isn't there yet gets it when it is.
    pub(super) fn signal(&mut self, signal: Signal) {
        self.told = true;
        match &self.process {
            None => self.called_off.push(signal),
            Some(process) if signal == Signal::SIGKILL => process.child.kill_group(),
            Some(process) => {
                if let Err(error) = process.child.signal(signal) {
                    tracing::warn!(pid = process.child.pid(), %signal, %error, "can't signal a backend");
                }
            }
        }
    }

    /// Its kept listeners, for its heir.
    pub(super) fn bequeath(&mut self) -> Option<Kept> {
        let kept = std::mem::take(&mut self.kept);
        (!kept.is_empty()).then_some(kept)
    }

    /// Lets go of it. What is left in its kept listeners is accepted for the service's public ones of the same names.
    pub(super) fn forget(self, cx: &Context, service: ServiceId) {
        // Drops the child, which ends what is left of its group.
        let directory = self.process.map(|process| process.site.directory);
        let kept = self.kept;
        let gate = Arc::clone(&cx.gate);
        cx.clean_up.spawn(async move {
            for (name, kept) in kept {
                match kept.adopt("kept") {
                    Ok(left) => gate.adopt(service, &name, left).await,
                    Err(error) => {
                        tracing::warn!(%error, "connections left in a kept listener are lost");
                    }
                }
            }
            let Some(directory) = directory else { return };
            if let Err(error) = directory.end_processes().await {
                tracing::warn!(%error, "a generation has left processes");
            }
            if let Err(error) = directory.remove() {
                tracing::warn!(%error, "a generation's directory stays");
            }
        });
    }
}

/// What a start begins with.
struct Begin {
    config: Arc<ServiceConfig>,
    directory: GenerationDir,
    spawner: Spawner,
    places: Arc<Mutex<Places>>,
    kept: Option<Kept>,
    older: Option<Target>,
}

/// Starts a process, waits until it is ready, and until it ends.
async fn process(report: Report, begin: Begin) {
    let Begin {
        config,
        directory,
        spawner,
        places,
        kept,
        older,
    } = begin;
    let number = report.number;
    let path = directory.path().to_owned();
    let spawn = async {
        let site = Site::make(&config, number, directory, &places, kept).await?;
        site.refuses().await?;
        let (child, readiness) = site.spawn(&config, &spawner)?;
        Ok((site, child, readiness))
    };
    let (site, child, readiness) = match spawn.await {
        Ok(spawned) => spawned,
        Err(why) => {
            // What can't be removed now is at the next start.
            let _ = std::fs::remove_dir_all(path);
            return report.not_started(why);
        }
    };
    let mut exited = std::pin::pin!(child.exited());
    let output = child.output().clone();
    let ways = site.ways();
    let states = older.zip(site.stats().cloned());
    let ready = async {
        let way = readiness.wait(config.ready_timeout).await?;
        if let Some((older, new)) = states {
            take_over_states(&config.name, number, &older, &new).await;
        }
        Ok(way)
    };
    report.send(Message::Started(
        report.service,
        number,
        Box::new(Started { child, site }),
    ));
    let exit = tokio::select! {
        biased;
        exit = &mut exited => exit,
        ready = ready => {
            match ready {
                Ok(way) => report.ready(ways.endpoints(way)),
                Err(error) => report.not_ready(error, output.last_lines(1).pop()),
            }
            exited.await
        }
    };
    let last_line = match &config.backend {
        Backend::Haproxy(_) if !exit.success() => haproxy::alerts(&output),
        _ => None,
    };
    let last_line = last_line.or_else(|| output.last_lines(1).pop());
    let signals = config.drain_signal.into_iter().chain([config.stop_signal]);
    // A shell, and others that catch it, end with 128 and its number.
    let asked = |signal| {
        let number = signal as i32;
        exit == Exit::Signal(number) || exit == Exit::Status(128 + number)
    };
    report.event(Event::Ended(
        number,
        End::Exited {
            how: exit.to_string(),
            as_asked: exit.success() || signals.into_iter().any(asked),
            last_line,
        },
    ));
}

/// What an operator or a check has set in the older HAProxy, for servers that are the same in both. A reload doesn't fail for it.
async fn take_over_states(service: &str, generation: u64, older: &Target, new: &Target) {
    match haproxy::state::carry_over(older, new, STATES_WITHIN).await {
        Ok(CarriedOver { servers, warnings }) => {
            for warning in warnings {
                tracing::warn!(service, generation, "{warning}");
            }
            if servers > 0 {
                tracing::info!(service, generation, servers, "states of servers taken over");
            }
        }
        Err(error) => {
            tracing::warn!(
                service,
                generation,
                "states of servers couldn't be taken over: {error}"
            );
        }
    }
}

/// The names of endpoints, for people.
pub(super) fn places(endpoints: &Generation) -> Vec<String> {
    endpoints
        .all_endpoints()
        .map(|endpoint| endpoint.target.to_string())
        .collect()
}
