//! Whether the gate turns and serves, for whoever looks: `/livez`, `/readyz`, the service manager.

use tokio::time::Instant;

use super::Supervisor;
use super::service::Service;
use crate::board::STUCK;

impl Supervisor {
    /// The loop turns; do the workers?
    pub(super) fn beat(&mut self) {
        let now = Instant::now();
        let mut live = true;
        for ((seen, at), turns) in self.turns.iter_mut().zip(self.cx.gate.turns()) {
            if *seen != turns {
                (*seen, *at) = (turns, now);
            }
            live &= at.elapsed() < STUCK;
        }
        if live {
            self.cx.board.beat();
            self.manager.alive();
        }
    }

    /// Tells whoever looks at readiness, and the service manager.
    pub(super) fn publish(&mut self) {
        let not_ready = match self.stop {
            Some(_) => Some("the gate is stopping".to_owned()),
            None => self.services.iter().find_map(Service::not_ready),
        };
        let ready = not_ready.map_or(Ok(()), Err);
        self.asked.ready.send_if_modified(|old| {
            let changed = *old != ready;
            *old = ready;
            changed
        });
        if self.stop.is_some()
            || !self
                .services
                .iter()
                .all(|service| service.begun || service.removed)
        {
            return;
        }
        let running = self
            .services
            .iter()
            .any(|service| service.rollout.reloading());
        if running && self.told_ready && !self.reloading {
            self.reloading = true;
            self.manager.reloading();
        } else if !running && (self.reloading || !self.told_ready) {
            (self.reloading, self.told_ready) = (false, true);
            let last = |service: &Service| {
                let last = service.history.reloads().next_back()?;
                Some(format!("{}: {}", service.name, last.message))
            };
            let status: Vec<String> = self.services.iter().filter_map(last).collect();
            self.manager.ready(&status.join("; "));
        }
    }
}

impl Service {
    /// Why `/readyz` says no, if it does.
    fn not_ready(&self) -> Option<String> {
        if self.removed {
            return None;
        }
        let patience = self.rollout.config().gate.pending_timeout / 2;
        let name = &self.name;
        if !self.served {
            // One that came with a reload gets the time that one has which has lost its generation; one that has no configuration
            // yet doesn't count.
            let early = self.late && self.idle_since.elapsed() < patience;
            let counts = !early && self.rollout.config().is_complete();
            return counts.then(|| format!("{name} hasn't had an active generation yet"));
        }
        let idle = self.rollout.active().is_none() && self.idle_since.elapsed() >= patience;
        idle.then(|| {
            format!(
                "{name} has had no active generation for {:.1}s",
                self.idle_since.elapsed().as_secs_f64()
            )
        })
    }
}
