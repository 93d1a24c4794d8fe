//! What a service waits for: queues, leases, holds and probes, each a task that tells the loop; and what is done where it has
//! waited in vain.

use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use syngate_gate::accept_queue::Reader;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use super::context::{Context, Message};
use super::servers::answers;
use super::service::Service;
use super::status::how_many;
use crate::drain;
use crate::rollout::Event;

/// A hold waits this long for the active endpoints' queues to become empty.
const HOLD_WAITS: Duration = Duration::from_secs(5);

impl Service {
    pub(super) fn watch_queue(&mut self, cx: &Context, number: u64) {
        let Some(live) = self.lives.get_mut(&number) else {
            return;
        };
        let Some(generation) = live.gate.clone() else {
            return cx.event(self.id, Event::Empty(number));
        };
        let (gate, messages, id) = (Arc::clone(&cx.gate), cx.messages.clone(), self.id);
        let closing = self.closing.clone();
        let task = tokio::spawn(async move {
            // Who comes to a listener until it is closed goes to an older generation: see `Gate::activate`.
            closing.wait().await;
            drain::emptied(gate, id, generation).await;
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
    pub(super) fn leave_queue(&mut self, cx: &Context, number: u64) {
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
    pub(super) async fn reset(&mut self, cx: &Context, number: u64) {
        let reason = cx.cut_for();
        let count = cx.gate.reset(self.id, number, reason).await;
        if count > 0 {
            let message = format!(
                "generation {number} isn't drained in time: {} reset ({reason})",
                how_many(count)
            );
            self.step(cx, Some(number), "reset", message);
        }
    }

    pub(super) async fn begin_hold(&mut self, cx: &Context) {
        let (gate, id, messages) = (Arc::clone(&cx.gate), self.id, cx.messages.clone());
        let active = self.active.borrow().clone();
        let mut hold = Box::pin(async move {
            gate.hold(id, true).await;
            let queue = async {
                if let Some(generation) = active {
                    drain::emptied(Arc::clone(&gate), id, generation).await;
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
            Arc::clone(self.rollout.config()),
            cx.spawner.clone(),
        );
        let task = tokio::spawn(async move {
            answers.await;
            let _ = messages.send(Message::Event(id, Event::Answers));
        });
        self.probe = Some(AbortOnDropHandle::new(task));
    }
}
