//! What the gate's workers say.

use std::time::Duration;

use syngate_gate::{Event, ServiceId};
use tokio::time::Instant;

use super::Supervisor;

/// What the gate lacks is said this often at most.
const LACK_AGAIN: Duration = Duration::from_secs(1);

impl Supervisor {
    pub(super) fn hear(&mut self, event: Event) {
        match event {
            Event::Released {
                service,
                generation,
            } => {
                if let Some(service) = self.services.iter().find(|one| one.id == service) {
                    service.released(&self.cx, generation);
                }
            }
            Event::Refused {
                service,
                generation,
                why,
            } => {
                if self.set_refused(service, generation, Some(&why)) {
                    tracing::warn!(
                        service = self.name_of(service),
                        generation,
                        "an endpoint takes no connection: {why}; its connections wait"
                    );
                }
            }
            Event::Lacks {
                service,
                generation,
                why,
            } => {
                if self.lack_told.is_some_and(|at| at.elapsed() < LACK_AGAIN) {
                    return;
                }
                tracing::warn!(
                    service = self.name_of(service),
                    generation,
                    "the gate can't connect to an endpoint: {why}; connections wait: raise the limit of open files, or lower max_connections"
                );
                self.lack_told = Some(Instant::now());
            }
            Event::Answers {
                service,
                generation,
            } => {
                if self.set_refused(service, generation, None) {
                    tracing::info!(
                        service = self.name_of(service),
                        generation,
                        "the endpoint takes connections again"
                    );
                }
            }
        }
    }

    fn name_of(&self, id: ServiceId) -> Option<&str> {
        let service = self.services.iter().find(|service| service.id == id)?;
        Some(&service.name)
    }

    /// Whether that is news: each worker finds out by itself.
    fn set_refused(&mut self, id: ServiceId, generation: u64, why: Option<&str>) -> bool {
        let service = self.services.iter_mut().find(|service| service.id == id);
        let Some(live) = service.and_then(|service| service.lives.get_mut(&generation)) else {
            return false;
        };
        let news = live.refused.as_deref() != why;
        live.refused = why.map(str::to_owned);
        news
    }
}
