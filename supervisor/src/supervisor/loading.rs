//! The configuration of a run: the file as it is when the run begins, but for what `activate` has put in place of its backend.

use std::sync::Arc;

use super::context::{Context, Message};
use super::service::Service;
use crate::config::{Backend, BackendAddress, ServiceConfig};
use crate::haproxy;
use crate::rollout::{Event, Source};

/// The addresses that `activate` put in place of the file's backend, until the file says something new.
pub(super) struct Activated {
    file: Backend,
    backends: Vec<BackendAddress>,
}

impl Service {
    /// The configuration of a run that begins now.
    pub(super) fn load(
        &mut self,
        cx: &mut Context,
        source: Source,
    ) -> Result<ServiceConfig, String> {
        let file = match source {
            Source::File { all } => {
                let config = cx.load()?;
                let found = config
                    .services
                    .into_iter()
                    .find(|service| service.name == self.name);
                let mut found = found.ok_or_else(|| {
                    format!(
                        "service {} isn't in the configuration: reload without a name to end it",
                        self.name
                    )
                })?;
                if !all && !matches!(found.backend, Backend::Haproxy(_)) {
                    found.listeners = self
                        .listeners
                        .iter()
                        .map(|open| open.config.clone())
                        .collect();
                    // A listener may have several inherited sockets.
                    found.listeners.dedup();
                }
                found
            }
            Source::Addresses(backends) => {
                let mut config = ServiceConfig::clone(self.rollout.config());
                let file = match &self.activated {
                    Some(activated) => activated.file.clone(),
                    None => config.backend,
                };
                config.backend = Backend::Addresses(backends.clone());
                config.backends_fit()?;
                self.activating = Some(Activated { file, backends });
                return Ok(config);
            }
        };
        let config = self.keep_activated(file);
        config.backends_fit()?;
        Ok(config)
    }

    /// Completes a configuration by what HAProxy's own says now, which takes a moment.
    pub(super) fn read(&self, cx: &Context, run: u64, config: Result<ServiceConfig, String>) {
        let config = match config {
            Ok(config) if !config.is_complete() => config,
            other => return cx.event(self.id, Event::Loaded(run, other.map(Arc::new))),
        };
        let (messages, id) = (cx.messages.clone(), self.id);
        let (binaries, spawner) = (cx.binaries.clone(), cx.spawner.clone());
        let before = Arc::clone(self.rollout.config());
        tokio::spawn(async move {
            let read = haproxy::read(config, &binaries, &spawner).await;
            let config = read.map(Arc::new).map_err(String::from);
            if let Ok(config) = &config {
                haproxy::warn(config, Some(&before));
            }
            let _ = messages.send(Message::Event(id, Event::Loaded(run, config)));
        });
    }

    /// `activate` counts until the file's backend changes, or HAProxy is reloaded.
    fn keep_activated(&mut self, mut config: ServiceConfig) -> ServiceConfig {
        match &self.activated {
            Some(activated) if activated.file == config.backend => {
                config.backend = Backend::Addresses(activated.backends.clone());
            }
            _ => self.activated = None,
        }
        config
    }

    /// What `activate` put in place of the configuration's backend.
    pub(super) fn activated(&self) -> Option<Vec<String>> {
        let activated = self.activated.as_ref()?;
        Some(activated.backends.iter().map(ToString::to_string).collect())
    }
}
