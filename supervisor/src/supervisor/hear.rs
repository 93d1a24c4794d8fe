//! What the gate's workers say.

use std::time::Duration;

use syngate_gate::{Event, ServiceId};
use tokio::time::Instant;

use super::Supervisor;

/// What the gate lacks is said this often at most.
const LACK_AGAIN: Duration = Duration::from_secs(1);

impl Supervisor {
    pub(super) fn hear(&mut self, event: &Event) {
        let find = |id: &ServiceId| self.services.iter().find(|service| service.id == *id);
        match event {
            Event::Released {
                service,
                generation,
            } => {
                if let Some(service) = find(service) {
                    service.released(&self.cx, *generation);
                }
            }
            Event::Refused {
                service,
                generation,
                why,
            } => {
                let name = find(service).map(|service| service.name.as_str());
                tracing::warn!(
                    service = name,
                    generation,
                    "an endpoint takes no connection: {why}; its connections wait"
                );
            }
            Event::Lacks {
                service,
                generation,
                why,
            } => {
                if self.lack_told.is_some_and(|at| at.elapsed() < LACK_AGAIN) {
                    return;
                }
                let name = find(service).map(|service| service.name.as_str());
                tracing::warn!(
                    service = name,
                    generation,
                    "the gate can't connect to an endpoint: {why}; connections wait: raise the limit of open files, or lower max_connections"
                );
                self.lack_told = Some(Instant::now());
            }
            Event::Answers {
                service,
                generation,
            } => {
                let name = find(service).map(|service| service.name.as_str());
                tracing::info!(
                    service = name,
                    generation,
                    "the endpoint takes connections again"
                );
            }
        }
    }
}
