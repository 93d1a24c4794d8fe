//! HAProxy, in mode tcp.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Programs, Site};
use crate::wire::{BACKLOG, Place};

/// Of each instance; enough for 16 streams.
const PIPES: u64 = 100;
/// Descriptors for all but connections, pipes and listeners.
const RESERVE: u64 = 500;

pub(super) fn command(site: &Site, program: &Path) -> io::Result<Command> {
    let mut command = Command::new(program);
    command.args(["-db", "-q", "-f"]).arg(configure(site)?);
    Ok(command)
}

/// Writes the configuration and says where it is.
pub(crate) fn configure(site: &Site) -> io::Result<PathBuf> {
    let file = site.directory.join("haproxy.cfg");
    fs::write(&file, text(site))?;
    Ok(file)
}

fn text(site: &Site) -> String {
    let free = Programs::descriptors() - RESERVE - 2 * PIPES - u64::from(site.demands.listeners);
    let (first, last) = site.ports();
    let splice = if site.relay.splice {
        "    option splice-request\n    option splice-response\n"
    } else {
        ""
    };
    format!(
        "global\n    nbthread {workers}\n    maxconn {maxconn}\n    maxpipes {PIPES}\n\
         defaults\n    mode tcp\n    timeout connect 10s\n    timeout client 10m\n    timeout server 10m\n{splice}\
         frontend public\n    bind {address}:{first}-{last} backlog {BACKLOG}\n    default_backend servers\n\
         backend servers\n    balance roundrobin\n{servers}",
        workers = site.demands.workers,
        maxconn = free / 2,
        address = site.address(),
        servers = servers(site),
    )
}

/// One line; with several source addresses one for each, which is how HAProxy gets more ports.
fn servers(site: &Site) -> String {
    let address = match site.backend() {
        Place::Tcp(address) => address.to_string(),
        Place::Unix(path) => format!("unix@{}", path.display()),
    };
    let proxy = if site.demands.proxy {
        " send-proxy-v2"
    } else {
        ""
    };
    let sources = site.sources();
    if sources.is_empty() {
        return format!("    server s {address}{proxy}\n");
    }
    sources
        .iter()
        .map(|source| format!("    server s{source} {address}{proxy} source {source}\n"))
        .collect()
}
