//! What works, but hardly as meant.

use std::net::IpAddr;

use syngate_supervisor::config::{Backend, BackendTarget, Pass, ServiceConfig, Strategy};
use syngate_supervisor::names::there_are;

use super::Context;
use crate::config::layer::COMMAND;
use crate::config::placeholders::{Word, placeholders};

/// By which of them a listener's place is told, best first.
const PLACES: [Word; 4] = [Word::Port, Word::Socket, Word::Fd, Word::Addr];

impl Context<'_> {
    /// One sentence for each, after its place.
    pub(super) fn warnings(&self, service: &ServiceConfig) -> Vec<String> {
        let mut warnings = Vec::new();
        let mut warn = |key: &str, what: String| {
            warnings.push(format!("{}: {what}", self.place_of(key)));
        };
        let targets = match &service.backend {
            Backend::Command { fixed, .. } => fixed,
            Backend::Addresses(addresses) => addresses,
            Backend::Haproxy(_) => &Vec::new(),
        };
        let ports = &self.facts.ephemeral_ports;
        for target in targets {
            if let BackendTarget::Tcp(host, port) = &target.address
                && is_loopback(host)
                && ports.contains(port)
            {
                warn(
                    "backend",
                    format!(
                        "port {port} is in net.ipv4.ip_local_port_range ({} to {}), so any outgoing connection may take it: use one outside",
                        ports.start(),
                        ports.end()
                    ),
                );
            }
        }
        if service.strategy == Strategy::Replace {
            let gap = service.drain_timeout.unwrap_or_default()
                + service.stop_timeout
                + service.ready_timeout;
            let wait = service.gate.pending_timeout;
            if gap > wait {
                warn(
                    "pending_timeout",
                    format!(
                        "a replace may take {gap:?} (drain_timeout, stop_timeout and ready_timeout together), and connections wait only {wait:?}: raise pending_timeout, or lower these"
                    ),
                );
            }
        }
        let kept = service.keep_previous;
        if !kept.is_zero() && kept < service.min_ready {
            warn(
                "keep_previous",
                format!(
                    "shorter than min_ready ({:?}), which leaves the old generation alone anyway: raise it, or remove it",
                    service.min_ready
                ),
            );
        }
        for what in misplaced(service) {
            warn(COMMAND, what);
        }
        warnings
    }
}

/// Placeholders that stand for no listener, or listeners that no placeholder stands for where others have one.
fn misplaced(service: &ServiceConfig) -> Vec<String> {
    let Backend::Command { argv, fixed } = &service.backend else {
        return Vec::new();
    };
    let names: Vec<&str> = service
        .listeners
        .iter()
        .map(|one| one.name.as_str())
        .collect();
    let found = placeholders(argv);
    let strays: Vec<String> = found
        .iter()
        .filter(|one| one.listener.is_some_and(|name| !names.contains(&name)))
        .map(|stray| {
            let names = there_are(&names);
            format!("{stray} stands for no listener ({names}): correct its name")
        })
        .collect();
    let told = PLACES
        .into_iter()
        .find(|place| found.iter().any(|one| one.word == *place));
    let (true, Some(word)) = (strays.is_empty(), told) else {
        return strays;
    };
    if !fixed.is_empty() || service.pass == Pass::ListenFds {
        return Vec::new(); // It has other ways to know its places.
    }
    let is_told = |name: &str| {
        let mut same = found.iter().filter(|one| one.word == word);
        same.any(|one| one.listener.unwrap_or(names[0]) == name)
    };
    let variable = |name: &str| format!("SYNGATE_{word}_{name}").to_uppercase();
    let reads = |name: &str| argv.iter().any(|arg| arg.contains(&variable(name)));
    names
        .iter()
        .filter(|name| !is_told(name) && !reads(name))
        .map(|name| {
            let variable = variable(name);
            format!("listener {name} has no {{{word}_{name}}}: add it, unless what COMMAND starts reads {variable}")
        })
        .collect()
}

fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
}
