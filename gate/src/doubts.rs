//! Ends whose cause isn't known yet: a process that dies closes its sockets before anybody knows of its death.
//!
//! Invariants:
//!
//! - The connection itself is gone: only the count of its end waits, at most [`NEWS`] and a turn. Until then fewer are counted as
//!   closed than have ended; no count ever falls.
//! - Each end is counted once: as `backend_gone` if the death of its generation is told in time, else as what it looked like.
//! - Ends of the same kind share an entry, so a flood of them costs no memory and an ordinary end costs nothing.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use syngate_metrics::{CloseReason, Listener};

use crate::deadlines::Tick;
use crate::gate::ServiceId;
use crate::generation::Local;

/// So long is waited for the news of a death: a master that ends after its worker takes its time.
const NEWS: Duration = Duration::from_secs(1);

/// Ends that are no farther apart share an entry.
const SLOT: Duration = Duration::from_millis(100);

/// Ends of one kind.
struct Doubt {
    since: Tick,
    service: ServiceId,
    generation: u64,
    listener: Arc<Listener>,
    /// What they looked like.
    reason: CloseReason,
    count: u64,
}

/// A worker's ends in doubt, the oldest first.
#[derive(Default)]
pub(crate) struct Doubts(VecDeque<Doubt>);

impl Doubts {
    /// Adds an end that the death of `local` may have caused. Returns when somebody must look, if nobody does yet.
    pub(crate) fn add(
        &mut self,
        now: Tick,
        local: &Local,
        listener: &Arc<Listener>,
        reason: CloseReason,
    ) -> Option<Tick> {
        let recent = self.0.iter_mut().rev();
        let mut recent = recent.take_while(|doubt| now.since(doubt.since) < SLOT);
        let same = recent.find(|doubt| {
            local.is_of(doubt.service, doubt.generation)
                && doubt.reason == reason
                && Arc::ptr_eq(&doubt.listener, listener)
        });
        if let Some(same) = same {
            same.count += 1;
            return None;
        }
        let first = self.0.is_empty();
        self.0.push_back(Doubt {
            since: now,
            service: local.service,
            generation: local.generation.number(),
            listener: Arc::clone(listener),
            reason,
            count: 1,
        });
        first.then_some(now + NEWS)
    }

    /// A generation has died: that is what has ended its connections.
    pub(crate) fn backend_gone(&mut self, service: ServiceId, generation: u64, worker: usize) {
        self.0.retain(|doubt| {
            let theirs = doubt.service == service && doubt.generation == generation;
            if theirs {
                let block = doubt.listener.block(worker);
                block.closed[CloseReason::BackendGone].add(doubt.count);
            }
            !theirs
        });
    }

    /// Counts the ends for which no news has come as what they looked like. Returns when the next ones are due.
    pub(crate) fn expire(&mut self, now: Tick, worker: usize) -> Option<Tick> {
        while let Some(doubt) = self.0.front() {
            let until = doubt.since + NEWS;
            if until > now {
                return Some(until);
            }
            doubt.listener.block(worker).closed[doubt.reason].add(doubt.count);
            self.0.pop_front();
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use syngate_metrics::Metrics;
    use tokio::sync::mpsc;

    use super::*;
    use crate::generation::Generation;

    const SERVICE: ServiceId = ServiceId(1);

    fn at(milliseconds: u64) -> Tick {
        Tick::default() + Duration::from_millis(milliseconds)
    }

    #[test]
    fn each_end_is_counted_once_as_what_is_known_in_time() {
        let service = Metrics::new("test", 1).service("default");
        let listener = service.listener("l0");
        let local = |number| {
            let generation = Generation::of_process(number, 1, Vec::new(), Vec::new());
            Local::new(generation, SERVICE, 0, mpsc::unbounded_channel().0)
        };
        let (old, new) = (local(1), local(2));
        let counts = || {
            let reasons = [
                CloseReason::Eof,
                CloseReason::BackendReset,
                CloseReason::BackendGone,
            ];
            reasons.map(|reason| service.closed(reason))
        };
        let mut doubts = Doubts::default();
        let (eof, reset) = (CloseReason::Eof, CloseReason::BackendReset);
        assert_eq!(doubts.add(at(0), &old, &listener, eof), Some(at(1000)));
        for _ in 0..1000 {
            assert_eq!(doubts.add(at(50), &old, &listener, eof), None);
            assert_eq!(doubts.add(at(50), &old, &listener, reset), None);
            assert_eq!(doubts.add(at(60), &new, &listener, eof), None);
        }
        assert_eq!(doubts.0.len(), 3);
        assert_eq!(doubts.add(at(500), &old, &listener, eof), None);
        assert_eq!(doubts.expire(at(999), 0), Some(at(1000)));
        assert_eq!(counts(), [0, 0, 0]);
        // Too late for the first ones, which are counted as what they looked like.
        assert_eq!(doubts.expire(at(1000), 0), Some(at(1050)));
        assert_eq!(counts(), [1001, 0, 0]);
        doubts.backend_gone(SERVICE, 1, 0);
        assert_eq!(counts(), [1001, 0, 1001]);
        doubts.backend_gone(ServiceId(2), 2, 0);
        assert_eq!(doubts.expire(Tick::NEVER, 0), None);
        assert_eq!(counts(), [2001, 0, 1001]);
    }
}
