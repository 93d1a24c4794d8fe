//! Servers that somebody else runs: whether they are ready, and whether the active ones answer.

use std::sync::Arc;

use syngate_gate::{Generation, Target};
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

/// Returns when some endpoint of the active generation takes a connection.
pub(super) async fn answers(mut active: watch::Receiver<Option<Arc<Generation>>>, hello: Vec<u8>) {
    loop {
        let targets: Vec<_> = match &*active.borrow_and_update() {
            Some(generation) => generation
                .all_endpoints()
                .map(|endpoint| endpoint.target.clone())
                .collect(),
            None => Vec::new(),
        };
        for target in targets {
            if dial::greet(&target, &hello).await.is_ok() {
                return;
            }
        }
        sleep(crate::readiness::CONNECT_AGAIN).await;
    }
}
