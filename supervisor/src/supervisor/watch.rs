//! What a service waits for: checks, queues, leases, holds and probes, each a task that tells the loop; and what is done where it
//! has waited in vain.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use syngate_gate::accept_queue::Reader;
use syngate_metrics::CloseReason;
use tokio::time::{Instant, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::context::{Context, Message};
use super::generation::answers;
use super::service::Service;
use super::status::how_many;
use crate::child::Spawner;
use crate::command::Command;
use crate::config::{Backend, ServiceConfig};

use crate::launch::{Places, Site};
use crate::rollout::Event;
use crate::runtime_dir::GenerationDir;
use crate::{drain, haproxy, launch};

/// A hold waits this long for the active endpoints' queues to become empty.
const HOLD_WAITS: Duration = Duration::from_secs(5);

impl Service {
    pub(super) fn begin_check(&mut self, cx: &Context, run: u64, config: Arc<ServiceConfig>) {
        self.check_began = Instant::now();
        let (messages, id) = (cx.messages.clone(), self.id);
        let (spawner, directory) = (cx.spawner.clone(), cx.runtime_dir.path().to_owned());
        let task = tokio::spawn(async move {
            let result = check(&config, &spawner, &directory, &directory).await;
            let result = result.map_err(|CheckFailed { why, output }| {
                if let Some(output) = output {
                    let _ = messages.send(Message::CheckSays(id, output));
                }
                why
            });
            let _ = messages.send(Message::Event(id, Event::Checked(run, result)));
        });
        self.check = Some(AbortOnDropHandle::new(task));
    }

    pub(super) fn watch_queue(&mut self, cx: &Context, number: u64) {
        let Some(live) = self.lives.get_mut(&number) else {
            return;
        };
        let Some(generation) = live.gate.clone() else {
            return cx.event(self.id, Event::Empty(number));
        };
        let (messages, id) = (cx.messages.clone(), self.id);
        let task = tokio::spawn(async move {
            drain::emptied(generation).await;
            let _ = messages.send(Message::Event(id, Event::Empty(number)));
        });
        live.queue_watch = Some(AbortOnDropHandle::new(task));
    }

    /// A worker has no lease on a generation any more, or somebody wants to know.
    pub(super) fn released(&self, cx: &Context, number: u64) {
        let Some(live) = self.lives.get(&number) else {
            return;
        };
        let leases = live
            .gate
            .as_ref()
            .map_or(0, |generation| generation.leases());
        if live.watch_leases && leases == 0 {
            cx.event(self.id, Event::Drained(number));
        }
    }

    /// A generation gets its signal though connections may be left in its accept queues.
    pub(super) fn leave_queue(&self, cx: &Context, number: u64) {
        let live = self.lives.get(&number).and_then(|live| live.gate.as_ref());
        let left = live.map_or(0, |generation| {
            drain::undelivered(generation, &mut Reader::new())
        });
        if left > 0 {
            let message = format!(
                "generation {number} has left {} in its accept queue",
                how_many(left.into())
            );
            self.step(cx, Some(number), "draining", message);
        }
    }

    /// Resets what a generation hasn't drained in time.
    pub(super) async fn reset(&self, cx: &Context, number: u64) {
        let reason = if cx.stopping {
            CloseReason::Shutdown
        } else {
            CloseReason::DrainTimeout
        };
        let live = self.lives.get(&number).and_then(|live| live.gate.as_ref());
        let left = live.map_or(0, |generation| generation.leases());
        if left > 0 {
            let message = format!(
                "generation {number} isn't drained in time: {} reset ({reason})",
                how_many(left)
            );
            self.step(cx, Some(number), "reset", message);
        }
        cx.gate.reset(self.id, number, reason).await;
    }

    pub(super) async fn begin_hold(&mut self, cx: &Context) {
        let (gate, id, messages) = (Arc::clone(&cx.gate), self.id, cx.messages.clone());
        let active = self.active.borrow().clone();
        let mut hold = Box::pin(async move {
            gate.hold(id, true).await;
            let queue = async {
                if let Some(generation) = active {
                    drain::emptied(generation).await;
                }
            };
            let warning = timeout(HOLD_WAITS, queue).await.err().map(|_| {
                format!("the backend hasn't accepted all connections after {HOLD_WAITS:?}")
            });
            let _ = messages.send(Message::Event(id, Event::Held(warning)));
        });
        // The workers hear it now, before anything else that is said to them.
        let first = std::future::poll_fn(|context| Poll::Ready(hold.as_mut().poll(context)));
        if first.await.is_pending() {
            self.hold = Some(AbortOnDropHandle::new(tokio::spawn(hold)));
        }
    }

    pub(super) fn begin_probe(&mut self, cx: &Context) {
        let (id, messages) = (self.id, cx.messages.clone());
        let answers = answers(
            self.active.subscribe(),
            launch::hello(self.rollout.config()),
        );
        let task = tokio::spawn(async move {
            answers.await;
            let _ = messages.send(Message::Event(id, Event::Answers));
        });
        self.probe = Some(AbortOnDropHandle::new(task));
    }
}

/// Why a check says no.
#[derive(Debug)]
pub struct CheckFailed {
    /// One line.
    pub why: String,
    /// All that the check command has printed, if that is more.
    pub output: Option<String>,
}

impl From<String> for CheckFailed {
    fn from(why: String) -> CheckFailed {
        CheckFailed { why, output: None }
    }
}

/// Everything that can be known before a start, the configured check last. That runs as generation 0 would: with a directory of its
/// own in `scratch`, and places that nobody else has.
///
/// # Errors
/// It says no, or can't run.
pub async fn check(
    config: &ServiceConfig,
    spawner: &Spawner,
    runtime_dir: &Path,
    scratch: &Path,
) -> Result<(), CheckFailed> {
    launch::check(config, runtime_dir)?;
    let outcome = match (&config.backend, &config.check) {
        (Backend::Command { .. }, Some(_)) | (Backend::Haproxy(_), _) => {
            let directory = GenerationDir::for_check(scratch, &config.name)
                .await
                .map_err(|error| error.to_string())?;
            let places = Mutex::new(Places::new());
            let site = Site::make(config, 0, directory, &places, None).await?;
            site.check(config, spawner).await?
        }
        (Backend::Addresses(_), Some(argv)) => {
            let command = Command::new(argv.clone());
            let outcome = spawner.run_to_end(command, config.check_timeout).await;
            outcome.map_err(|error| format!("the check can't run: {error}"))?
        }
        (_, None) => return Ok(()),
    };
    if outcome.end.success() {
        return Ok(());
    }
    let Some(last) = outcome.output.last_lines(1).pop() else {
        return Err(format!("the check {}", outcome.end).into());
    };
    let alerts = match &config.backend {
        Backend::Haproxy(_) => haproxy::alerts(&outcome.output),
        _ => None,
    };
    let last = alerts.unwrap_or(last);
    let text = outcome.output.text();
    Err(CheckFailed {
        why: format!("the check {}: {last}", outcome.end),
        output: (text.trim() != last).then_some(text),
    })
}
