//! What an operator sees.

use std::sync::Arc;

use syngate_gate::ConnectionInfo;
use syngate_metrics::ConnectionState;
use tokio::sync::oneshot;

use super::context::wall_clock;
use super::listeners::Open;
use super::service::Service;
use super::{Supervisor, generation};
use crate::protocol::{Connection, GenerationStatus, ListenerStatus, ServiceStatus, Status};

impl Supervisor {
    pub(super) fn status(&self) -> Status {
        let process = &self.cx.config.process;
        let ready = self.asked.ready.borrow().clone();
        Status {
            at: wall_clock(),
            version: self.version.to_owned(),
            pid: std::process::id(),
            uptime_seconds: self.cx.now().as_secs_f64(),
            metrics: self
                .metrics_address
                .map(|address| format!("http://{address}/metrics")),
            ready: ready.is_ok(),
            not_ready: ready.err(),
            connections: self.cx.gate.open_connections(),
            max_connections: process.max_connections,
            pending: self.cx.gate.pending_connections(),
            pending_max: process.pending_max,
            services: self
                .services
                .iter()
                .map(|service| self.service_status(service))
                .collect(),
        }
    }

    fn service_status(&self, service: &Service) -> ServiceStatus {
        let generations = service.rollout.generations().filter_map(|generation| {
            let live = service.lives.get(&generation.number())?;
            let connections = live.gate.as_ref().map_or(0, |gate| gate.leases());
            let waits_for = generation.waits_for().map(|waits| match waits {
                "connections" => how_many(connections),
                other => other.to_owned(),
            });
            Some(GenerationStatus {
                number: generation.number(),
                state: generation.state(),
                pid: live.pid().map(i32::cast_unsigned),
                age_seconds: live.began.elapsed().as_secs_f64(),
                connections,
                endpoints: live
                    .gate
                    .as_deref()
                    .map(generation::places)
                    .unwrap_or_default(),
                waits_for,
                refused: live.refused.clone(),
            })
        });
        let listener = |open: &Open| {
            let (backlog, drops) = self.cx.gate.kernel(open.id).unwrap_or_default();
            let (name, address) = (open.config.name.clone(), open.address.clone());
            ListenerStatus {
                name,
                address,
                backlog,
                drops,
            }
        };
        let leaves = service.leaving.then(|| {
            let awaited: Vec<&str> = self.awaited().map(|one| one.name.as_str()).collect();
            format!("ends when {} serves", awaited.join(", "))
        });
        ServiceStatus {
            name: service.name.clone(),
            listeners: service.listeners.iter().map(listener).collect(),
            active: service.rollout.active(),
            held: service.rollout.held(),
            pending: service.metrics.open(ConnectionState::Pending),
            running: service
                .rollout
                .running()
                .or(leaves)
                .or_else(|| service.sends_rest()),
            generations: generations.collect(),
            last_reload: service.history.reloads().next_back().cloned(),
            reloads: service.history.reloads().cloned().collect(),
            last_failure: service.last_failure.clone(),
            activated: service.activated(),
        }
    }

    /// The workers take their time to list them; the loop doesn't wait.
    pub(super) fn connections(
        &self,
        name: &str,
        generation: Option<u64>,
        answer: oneshot::Sender<Result<Vec<Connection>, String>>,
    ) {
        let id = match self.only(Some(name)) {
            Ok(index) => self.services[index].id,
            Err(why) => return drop(answer.send(Err(why))),
        };
        let gate = Arc::downgrade(&self.cx.gate);
        tokio::spawn(async move {
            let Some(gate) = gate.upgrade() else { return };
            let all = gate.connections(id).await;
            let wanted = all
                .into_iter()
                .filter(|one| generation.is_none() || one.generation == generation);
            let _ = answer.send(Ok(wanted.map(connection).collect()));
        });
    }
}

/// A count of connections, in words.
pub(super) fn how_many(connections: u64) -> String {
    match connections {
        1 => "1 connection".to_owned(),
        _ => format!("{connections} connections"),
    }
}

fn connection(info: ConnectionInfo) -> Connection {
    Connection {
        listener: info.listener,
        peer: info
            .peer
            .map_or_else(|| "unix".to_owned(), |peer| peer.to_string()),
        generation: info.generation,
        state: info.state.to_string(),
        age_seconds: info.age.as_secs_f64(),
        bytes_in: info.bytes_in,
        bytes_out: info.bytes_out,
    }
}
