//! `kill -9` of the active generation, again and again, under load.

use super::gate::Gate;
use super::load::{Load, Plan, Report};
use super::wait_until;

/// Kills `kills` times: each time the active generation is gone after `kill`, and the next kill comes when its successor has
/// served `between` new connections.
pub(crate) fn kill_under_load(
    gate: &Gate,
    plan: Plan,
    kills: u32,
    between: u64,
    mut kill: impl FnMut(),
) -> Report {
    let load = Load::start(plan);
    load.wait_flowing();
    for round in 0..kills {
        kill();
        wait_until("it is started again", || {
            let metrics = gate.metrics();
            metrics.sum("backend_restarts_total", &[]) > f64::from(round)
                && metrics.sum("generations", &[("state", "active")]) == 1.0
        });
        let served = load.fresh_ok();
        wait_until("it serves", || load.fresh_ok() > served + between);
    }
    load.stop()
}

/// Connections that the gate has closed because their backend did.
pub(crate) fn lost(gate: &Gate) -> f64 {
    let metrics = gate.metrics();
    let closed = |reason| metrics.sum("connections_closed_total", &[("reason", reason)]);
    closed("backend_gone") + closed("backend_reset")
}
