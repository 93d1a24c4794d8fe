//! Where a generation's connections go.

use std::io;

use syngate_gate::accept_queue::{Probe, Reader};
use syngate_gate::{Endpoint, Endpoints, Target};

use super::resolve::{self, addresses};
use crate::config::BackendAddress;

/// Where each public listener's connections go: one of the ways in which a server may listen.
pub(super) type Way = Vec<(Option<String>, Target)>;

/// The places of one generation.
pub(crate) struct Ways {
    pub(super) ways: Vec<Way>,
    /// Of kept listeners, in the order of the way.
    pub(super) probes: Vec<Probe>,
}

impl Ways {
    /// What the gate dials, and how it reads the queues there.
    ///
    /// # Errors
    /// The system refuses to tell.
    pub(crate) fn endpoints(&self, way: usize) -> io::Result<Endpoints> {
        let mut reader = Reader::new();
        let mut endpoints = Endpoints::new();
        for (index, (name, address)) in self.ways[way].iter().enumerate() {
            let queue = match self.probes.get(index) {
                Some(probe) => probe.clone(),
                None => resolve::probe(address, &mut reader)?,
            };
            let endpoint = Endpoint {
                target: address.clone(),
                queue,
            };
            match endpoints.iter_mut().find(|(other, _)| other == name) {
                Some((_, several)) => several.push(endpoint),
                None => endpoints.push((name.clone(), vec![endpoint])),
            }
        }
        Ok(endpoints)
    }
}

/// The way of a command whose places are fixed.
///
/// # Errors
/// A name that can't be resolved.
pub(super) async fn fixed_way(fixed: &[BackendAddress]) -> Result<Way, String> {
    let mut way = Way::new();
    for (name, addresses) in addresses(fixed).await? {
        way.extend(addresses.into_iter().map(|address| (name.clone(), address)));
    }
    Ok(way)
}
