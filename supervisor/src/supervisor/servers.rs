//! Servers that somebody else runs: whether they are ready; and whether the active generation is, after a hold.

use std::sync::Arc;

use syngate_gate::{Endpoint, Generation, Target};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::generation::Report;
use crate::child::Spawner;
use crate::config::{Backend, ServiceConfig};
use crate::readiness::{NotReady, Proof, Ready};
use crate::rollout::Event;
use crate::{dial, launch};

/// Waits until servers that somebody else runs are ready.
pub(super) async fn ready(report: Report, config: Arc<ServiceConfig>, spawner: Spawner) {
    let Backend::Addresses(backends) = &config.backend else {
        return;
    };
    let addresses = match launch::addresses(backends).await {
        Ok(addresses) => addresses,
        Err(why) => return report.event(Event::NotReady(report.number, why)),
    };
    let groups = addresses.iter().map(|(_, group)| group.clone()).collect();
    if let Err(error) = prove(&config, groups, spawner).await {
        return report.not_ready(error, None);
    }
    report.ready(launch::endpoints(addresses));
}

/// Every listener has a server that is ready.
async fn prove(
    config: &ServiceConfig,
    groups: Vec<Vec<Target>>,
    spawner: Spawner,
) -> Result<(), NotReady> {
    if let Ready::Exec(argv) = &config.ready {
        let proof = Proof::Exec {
            spawner,
            argv: argv.clone(),
            env: Vec::new(),
        };
        return proof.wait(config.ready_timeout).await;
    }
    let hello = launch::hello(config);
    for group in groups {
        let mut proofs = JoinSet::new();
        for endpoint in group {
            let hello = hello.clone();
            let proof = match &config.ready {
                Ready::Http(path) => Proof::Http {
                    endpoint,
                    hello,
                    path: path.clone(),
                },
                _ => Proof::Connect {
                    endpoints: vec![endpoint],
                    hello,
                },
            };
            proofs.spawn(proof.wait(config.ready_timeout));
        }
        let mut result = Ok(());
        while let Some(Ok(proof)) = proofs.join_next().await {
            result = proof;
            if result.is_ok() {
                break;
            }
        }
        result?;
    }
    Ok(())
}

/// Returns when the active generation is ready: somebody else's servers as `ready` says, which may be asked at any time; a process of
/// the gate's, which has proven that at its start, when an endpoint takes a connection.
pub(super) async fn answers(
    mut active: watch::Receiver<Option<Arc<Generation>>>,
    config: Arc<ServiceConfig>,
    spawner: Spawner,
) {
    loop {
        let generation = active.borrow_and_update().clone();
        let answers = async {
            let Some(generation) = generation else {
                return false;
            };
            if let Backend::Addresses(_) = config.backend {
                let targets =
                    |group: &[Endpoint]| group.iter().map(|one| one.target.clone()).collect();
                let groups = generation.groups().map(targets).collect();
                return prove(&config, groups, spawner.clone()).await.is_ok();
            }
            let hello = launch::hello(&config);
            for endpoint in generation.all_endpoints() {
                if dial::greet(&endpoint.target, &hello).await.is_ok() {
                    return true;
                }
            }
            false
        };
        tokio::select! {
            ready = answers => if ready { return },
            changed = active.changed() => if changed.is_err() { return }, // The service has ended.
        }
        sleep(crate::readiness::CONNECT_AGAIN).await;
    }
}
