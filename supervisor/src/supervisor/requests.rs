//! What is asked of services, and which one is meant.

use tokio::sync::mpsc;

use super::Supervisor;
use super::calls::done;
use super::listeners::Left;
use super::service::Service;
use crate::config::{ListenerConfig, ServiceConfig};
use crate::exit;
use crate::names::there_are;
use crate::protocol::{Line, Request};
use crate::rollout::{self, Event};

impl Supervisor {
    pub(super) async fn request(&mut self, request: Request, lines: mpsc::Sender<Line>) {
        if self.stop.is_some() {
            return done(&lines, exit::FAILED, "the gate is stopping".to_owned());
        }
        let (name, request) = match request {
            Request::Reload {
                service: None,
                drained,
            } => {
                return self.reload_all(drained, lines).await;
            }
            Request::Reload { service, drained } => (
                service,
                rollout::Request::Reload {
                    all: false,
                    drained,
                },
            ),
            Request::Hold {
                service,
                timeout,
                owned,
            } => {
                let name = self.only(service.as_deref()).ok();
                let default = name.and_then(|at| self.services.get(at));
                let default = default.map(|service| service.rollout.config().gate.pending_timeout);
                let timeout = timeout.or(default).unwrap_or_default();
                (service, rollout::Request::Hold { timeout, owned })
            }
            Request::Release {
                service,
                when_ready,
            } => (service, rollout::Request::Release { when_ready }),
            Request::Activate {
                service,
                backends,
                drained,
            } => (service, rollout::Request::Activate { backends, drained }),
            Request::Rollback { service } => (service, rollout::Request::Rollback),
        };
        match self.only(name.as_deref()) {
            Err(why) => done(&lines, exit::FAILED, why),
            Ok(index) => {
                let service = &mut self.services[index];
                service.asked();
                let caller = self.cx.call(lines, vec![service.name.clone()]);
                service
                    .feed(&mut self.cx, Event::Request(caller, request))
                    .await;
            }
        }
    }

    /// The service of this name, or the only one.
    pub(super) fn only(&self, name: Option<&str>) -> Result<usize, String> {
        let names: Vec<&str> = self.services.iter().map(|one| one.name.as_str()).collect();
        match name {
            None if self.services.len() == 1 => Ok(0),
            None => Err(format!(
                "there are several services, name one of {}",
                names.join(", ")
            )),
            Some(name) => {
                let named = |service: &Service| service.name == name;
                let found = self
                    .services
                    .iter()
                    .position(|service| named(service) && !service.removed)
                    .or_else(|| self.services.iter().position(named));
                found.ok_or_else(|| format!("there is no service {name}: {}", there_are(&names)))
            }
        }
    }

    /// A run in each service; those that are new in the file come, those that aren't in it any more go.
    async fn reload_all(&mut self, drained: bool, lines: mpsc::Sender<Line>) {
        // A file that can't be read changes no service; the runs come to the same answer, and each says so in its own name.
        if let Ok(config) = self.cx.load() {
            self.follow(config.services).await;
        }
        let stays = |service: &&Service| !service.removed && !service.leaving;
        let going_on = self.services.iter().filter(stays);
        let names = going_on.map(|service| service.name.clone()).collect();
        let caller = self.cx.call(lines, names);
        let request = rollout::Request::Reload { all: true, drained };
        let stays = |service: &&mut Service| !service.removed && !service.leaving;
        for service in self.services.iter_mut().filter(stays) {
            service
                .feed(&mut self.cx, Event::Request(caller, request.clone()))
                .await;
        }
    }

    /// Adds the services that are new. Those that aren't wanted any more leave, but serve until all new ones do, and those that take
    /// over a listener of theirs: a new one may be one of them under another name, and its start may fail.
    async fn follow(&mut self, wanted: Vec<ServiceConfig>) {
        for service in self.services.iter_mut().filter(|one| !one.removed) {
            service.leaving = !wanted.iter().any(|other| other.name == service.name);
        }
        let leaving = self.services.iter().filter(|service| service.leaving);
        self.cx.leaving = leaving
            .flat_map(|service| {
                let open = service.listeners.iter().cloned();
                open.map(|open| Left {
                    service: service.id,
                    open,
                })
            })
            .collect();
        for service in self.services.iter_mut().filter(|one| one.served) {
            let config = wanted.iter().find(|config| config.name == service.name);
            let mut listeners = config.into_iter().flat_map(|config| &config.listeners);
            let has =
                |listener: &ListenerConfig| self.cx.leaving.iter().any(|one| one.has(listener));
            service.awaited = listeners.any(has);
        }
        for config in &wanted {
            let here = |service: &Service| service.name == config.name && !service.removed;
            if !self.services.iter().any(here) {
                // An older one of the name may still drain: what it counts from now on is nobody's.
                self.metrics.remove_service(&config.name);
                self.add(config.clone(), true).await;
            }
        }
        self.cx.config.services = wanted;
        let awaited: Vec<&str> = self.awaited().map(|one| one.name.as_str()).collect();
        if awaited.is_empty() {
            return;
        }
        for service in self.services.iter().filter(|one| one.leaving) {
            tracing::info!(
                service = service.name,
                "the service isn't in the configuration any more: it ends when {} serves",
                awaited.join(", ")
            );
        }
    }

    /// The services for which those that leave wait.
    pub(super) fn awaited(&self) -> impl Iterator<Item = &Service> {
        let waits =
            |one: &&Service| (one.awaited || one.takes_over()) && !one.leaving && !one.removed;
        self.services.iter().filter(waits)
    }

    /// Ends the services that leave, once those that came serve.
    pub(super) async fn end_leaving(&mut self) {
        if self.stop.is_some()
            || !self.services.iter().any(|one| one.leaving)
            || self.awaited().next().is_some()
        {
            return;
        }
        for service in self.services.iter_mut().filter(|one| one.leaving) {
            service.leaving = false;
            service.removed = true;
            self.numbers
                .insert(service.name.clone(), service.rollout.last_number());
            let timeout = service.rollout.config().drain_timeout;
            let until = timeout.map(|timeout| self.cx.now() + timeout);
            let grace = service.rollout.config().stop_timeout;
            service.empty(&self.cx, until.map(|until| self.cx.origin + until));
            service
                .feed(&mut self.cx, Event::Shutdown { until, grace })
                .await;
        }
        self.cx.leaving.clear();
    }
}
