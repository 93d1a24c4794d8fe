//! What the handle knows of the services and listeners that there are.

use std::collections::HashMap;
use std::sync::Arc;

use super::{ListenerId, ServiceId};
use crate::shared::SharedListener;

#[derive(Default)]
pub(super) struct Registry {
    next: u32,
    pub(super) services: HashMap<ServiceId, Arc<syngate_metrics::Service>>,
    /// Looked at under the lock, never cloned out of it: what was removed here is open in no other place than the workers.
    pub(super) listeners: HashMap<ListenerId, Arc<SharedListener>>,
}

impl Registry {
    pub(super) fn id(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    pub(super) fn listener(&self, service: ServiceId, name: &str) -> Option<ListenerId> {
        let mut open = self.listeners.values();
        open.find(|open| open.service == service && open.metrics.name() == name)
            .map(|open| open.id)
    }

    /// Gives an open listener another name. The one that it was and the one that it is.
    pub(super) fn rename(
        &mut self,
        id: ListenerId,
        name: &str,
    ) -> Option<(Arc<SharedListener>, Arc<SharedListener>)> {
        let old = self.listeners.get_mut(&id)?;
        let metrics = self.services.get(&old.service)?.listener(name);
        let new = Arc::new(old.heir(id, old.service, metrics, old.raw));
        Some((std::mem::replace(old, Arc::clone(&new)), new))
    }

    /// Ends the series of a listener that is gone. One that has moved to another address goes on counting in the same.
    pub(super) fn forget_metrics(&self, service: ServiceId, name: &str) {
        if self.listener(service, name).is_none()
            && let Some(service) = self.services.get(&service)
        {
            service.remove_listener(name);
        }
    }
}
