//! What is asked of services, and which one is meant.

use tokio::sync::mpsc;

use super::Supervisor;
use super::calls::done;
use crate::protocol::{Line, Request};
use crate::rollout::{self, Event};

impl Supervisor {
    pub(super) async fn request(&mut self, request: Request, lines: mpsc::Sender<Line>) {
        if self.stop.is_some() {
            return done(
                &lines,
                rollout::exit::FAILED,
                "the gate is stopping".to_owned(),
            );
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
            Err(why) => done(&lines, rollout::exit::FAILED, why),
            Ok(index) => {
                let service = &mut self.services[index];
                let caller = self.cx.call(lines, vec![service.name.clone()]);
                service
                    .feed(&mut self.cx, Event::Request(caller, request))
                    .await;
            }
        }
    }

    /// The service of this name, or the only one.
    pub(super) fn only(&self, name: Option<&str>) -> Result<usize, String> {
        let names = || {
            let names: Vec<&str> = self.services.iter().map(|one| one.name.as_str()).collect();
            names.join(", ")
        };
        match name {
            None if self.services.len() == 1 => Ok(0),
            None => Err(format!(
                "there are several services, name one of {}",
                names()
            )),
            Some(name) => {
                let found = self
                    .services
                    .iter()
                    .position(|service| service.name == name);
                found.ok_or_else(|| format!("there is no service {name}: there are {}", names()))
            }
        }
    }

    /// A run in each service; those that are new in the file come, those that aren't in it any more go.
    async fn reload_all(&mut self, drained: bool, lines: mpsc::Sender<Line>) {
        let config = match self.cx.load() {
            Ok(config) => config,
            Err(why) => {
                let message = format!("reload failed: {why}; what served before serves");
                tracing::warn!("{message}");
                return done(&lines, rollout::exit::FAILED, message);
            }
        };
        for service in &mut self.services {
            let stays = config
                .services
                .iter()
                .any(|other| other.name == service.name);
            if !stays && !service.removed {
                service.removed = true;
                let timeout = service.rollout.config().drain_timeout;
                let until = timeout.map(|timeout| self.cx.now() + timeout);
                let grace = service.rollout.config().stop_timeout;
                service.empty(&self.cx, until.map(|until| self.cx.origin + until));
                service
                    .feed(&mut self.cx, Event::Shutdown { until, grace })
                    .await;
            }
        }
        for wanted in &config.services {
            if !self
                .services
                .iter()
                .any(|service| service.name == wanted.name)
            {
                self.add(wanted.clone()).await;
            }
        }
        self.cx.config.services = config.services;
        let going_on = self.services.iter().filter(|service| !service.removed);
        let names = going_on.map(|service| service.name.clone()).collect();
        let caller = self.cx.call(lines, names);
        let request = rollout::Request::Reload { all: true, drained };
        for service in self.services.iter_mut().filter(|service| !service.removed) {
            service
                .feed(&mut self.cx, Event::Request(caller, request.clone()))
                .await;
        }
    }
}
