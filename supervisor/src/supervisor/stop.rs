//! The end of a service, and of the gate itself.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::task::AbortOnDropHandle;

use super::Supervisor;
use super::context::{Context, Message};
use super::service::Service;
use crate::rollout::Event;

/// The end of `shutdown_timeout` that is the children's.
const CHILDREN: Duration = Duration::from_secs(2);

/// Of [`CHILDREN`], from `stop_signal` to the kill.
const GRACE: Duration = Duration::from_secs(1);

/// Between the first two looks at what clients are still being sent; twice as long from one to the next.
const SENT_AGAIN: Duration = Duration::from_millis(20);

/// And so long at most.
const SENT_AGAIN_MOST: Duration = Duration::from_secs(1);

/// The gate stops.
#[derive(Clone, Copy)]
pub(super) enum Stop {
    /// It goes on accepting for `lame_duck`.
    LameDuck,
    /// All ends until then.
    Closing(Instant),
}

impl Supervisor {
    pub(super) async fn shut_down(&mut self) {
        match self.stop {
            None => {
                tracing::info!("stopping");
                self.manager.stopping();
                self.stop = Some(Stop::LameDuck);
                let (messages, wait) = (self.cx.messages.clone(), self.cx.config.process.lame_duck);
                tokio::spawn(async move {
                    sleep(wait).await;
                    let _ = messages.send(Message::Close);
                });
            }
            Some(_) => {
                tracing::warn!("stopping at once");
                self.cx.stopping = true;
                self.stop = Some(Stop::Closing(Instant::now() + GRACE));
                for service in &mut self.services {
                    service.sending = None;
                    service.feed(&mut self.cx, Event::ShutdownNow).await;
                }
            }
        }
    }

    /// `lame_duck` has passed.
    pub(super) async fn close(&mut self) {
        if !matches!(self.stop, Some(Stop::LameDuck)) {
            return;
        }
        self.cx.stopping = true;
        let timeout = self.cx.config.process.shutdown_timeout;
        let end = Instant::now() + timeout;
        self.stop = Some(Stop::Closing(end));
        let until = self.cx.now() + timeout.saturating_sub(CHILDREN);
        for service in &mut self.services {
            service.empty(&self.cx, Some(self.cx.origin + until));
            // One that was ending already may have had longer: it waits anew.
            service.sending = None;
            let event = Event::Shutdown {
                until: Some(until),
                grace: GRACE,
            };
            service.feed(&mut self.cx, event).await;
        }
    }

    /// The shutdown is over: everything has ended, or its time has.
    pub(super) fn is_over(&self) -> bool {
        match self.stop {
            Some(Stop::Closing(end)) => {
                Instant::now() >= end || self.services.iter().all(Service::has_ended)
            }
            _ => false,
        }
    }

    /// Waits for what is being cleaned up, and ends what nobody cleans up: the processes of a check that was cut short.
    pub(super) async fn sweep(&self) {
        let sweep = async {
            self.cx.clean_up.wait().await;
            self.cx.runtime_dir.recover().await
        };
        if !matches!(timeout(CHILDREN, sweep).await, Ok(Ok(_))) {
            tracing::warn!("not all that was started has ended: the next start will end it");
        }
    }

    /// Ends what is left, kills first.
    pub(super) async fn end(mut self) {
        for mut service in self.services.drain(..) {
            for (_, live) in std::mem::take(&mut service.lives) {
                live.forget(&self.cx, service.id);
            }
        }
        self.cx.clean_up.close();
        self.sweep().await;
        self.cx.calls.end("the gate has stopped");
        self.cx.gate.stop().await;
    }
}

impl Service {
    /// Whether nothing of it is left: no generation, and no client that is still being sent what one has said at its end.
    pub(super) fn has_ended(&self) -> bool {
        self.rollout.ended_all() && self.sent
    }

    /// What it waits for once it has no generation.
    pub(super) fn sends_rest(&self) -> Option<String> {
        let sends = self.rollout.ended_all() && !self.sent;
        sends.then(|| "clients are still being sent the rest".to_owned())
    }

    /// Its last generation has ended: a backend that has written an answer may end before the client has it. Waits until the clients
    /// have what is on its way to them, or the service must end. Nothing is given to a generation any more, so no client comes to
    /// these; [`Service::sent`] follows, unless a shutdown that ends sooner has it wait anew.
    pub(super) fn await_sent(&mut self, cx: &Context) {
        let (gate, messages, id) = (Arc::clone(&cx.gate), cx.messages.clone(), self.id);
        let end = self.rollout.ends_by().map(|until| cx.origin + until);
        let name = self.name.clone();
        self.sending = Some(AbortOnDropHandle::new(tokio::spawn(async move {
            let sent = async {
                let mut pause = SENT_AGAIN;
                loop {
                    let clients = gate.owed(id).await;
                    if clients == 0 {
                        return;
                    }
                    // At the first look some have only just been told the end.
                    if pause == 2 * SENT_AGAIN {
                        tracing::info!(
                            service = name,
                            clients,
                            "the backend has ended; clients are still being sent its answers"
                        );
                    }
                    sleep(pause).await;
                    pause = (pause * 2).min(SENT_AGAIN_MOST);
                }
            };
            let in_time = match end {
                Some(end) => timeout_at(end, sent).await.is_ok(),
                None => {
                    sent.await;
                    true
                }
            };
            let _ = messages.send(Message::Sent(id, in_time));
        })));
    }

    /// Nothing more is sent to its clients: who hasn't got everything in time is reset.
    pub(super) async fn sent(&mut self, cx: &Context, in_time: bool) {
        let reason = cx.cut_for();
        let count = match in_time {
            true => 0,
            false => cx.gate.reset_owed(self.id, reason).await,
        };
        if count > 0 {
            let message = format!(
                "the backend has ended, and {} not been sent its answers in time: reset ({reason})",
                if count == 1 {
                    "1 client has".to_owned()
                } else {
                    format!("{count} clients have")
                }
            );
            self.step(cx, None, "reset", message);
        }
        self.sent = true;
    }
}
