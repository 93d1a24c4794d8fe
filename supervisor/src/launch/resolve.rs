//! Where a `--backend` is, and what the gate needs to know of an address.

use std::io;

use syngate_gate::accept_queue::{Probe, Reader};
use syngate_gate::{Endpoint, Endpoints, Target};

use crate::config::{BackendAddress, BackendTarget};

/// The addresses of each listener, each listener once, in the order given. Names are resolved now.
///
/// # Errors
/// A sentence that names what can't be resolved.
pub(crate) async fn addresses(
    backends: &[BackendAddress],
) -> Result<Vec<(Option<String>, Vec<Target>)>, String> {
    let mut all: Vec<(Option<String>, Vec<Target>)> = Vec::new();
    for backend in backends {
        let found = match &backend.address {
            BackendTarget::Unix(path) => vec![Target::Unix(path.clone())],
            BackendTarget::Tcp(host, port) => {
                let cannot =
                    |error: io::Error| format!("backend {host}:{port} can't be resolved: {error}");
                let found = tokio::net::lookup_host((host.as_str(), *port)).await;
                found.map_err(cannot)?.map(Target::Tcp).collect()
            }
        };
        match all.iter_mut().find(|(name, _)| *name == backend.listener) {
            Some((_, addresses)) => addresses.extend(found),
            None => all.push((backend.listener.clone(), found)),
        }
    }
    Ok(all)
}

/// The endpoints at these addresses, once somebody listens there.
///
/// # Errors
/// The system doesn't tell which socket listens there.
pub(crate) fn endpoints(all: Vec<(Option<String>, Vec<Target>)>) -> io::Result<Endpoints> {
    let mut reader = Reader::new();
    let mut endpoint = |target: Target| {
        let queue = probe(&target, &mut reader)?;
        Ok(Endpoint { target, queue })
    };
    let mut endpoints = |(name, addresses): (_, Vec<Target>)| {
        let made: io::Result<Vec<_>> = addresses.into_iter().map(&mut endpoint).collect();
        Ok((name, made?))
    };
    all.into_iter().map(&mut endpoints).collect()
}

/// How the accept queue at an address is read.
pub(super) fn probe(address: &Target, reader: &mut Reader) -> io::Result<Probe> {
    match address {
        Target::Tcp(address) => Probe::tcp(*address),
        Target::Unix(path) => Ok(reader.find_unix(path)?.map_or(Probe::Unknown, Probe::Unix)),
        // A kept listener's, which has its own.
        Target::Nameless(_) => Ok(Probe::Unknown),
    }
}
