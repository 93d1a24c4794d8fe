//! The gate's own end.

use std::time::Duration;

use tokio::time::{Instant, timeout};

use super::Supervisor;
use super::context::Message;
use crate::rollout::Event;

/// The end of `shutdown_timeout` that is the children's.
const CHILDREN: Duration = Duration::from_secs(2);

/// Of [`CHILDREN`], from `stop_signal` to the kill.
const GRACE: Duration = Duration::from_secs(1);

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
                    tokio::time::sleep(wait).await;
                    let _ = messages.send(Message::Close);
                });
            }
            Some(_) => {
                tracing::warn!("stopping at once");
                self.cx.stopping = true;
                self.stop = Some(Stop::Closing(Instant::now() + GRACE));
                for service in &mut self.services {
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
                Instant::now() >= end || self.services.iter().all(|one| one.rollout.ended_all())
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
