//! syngate, before a backend that somebody else runs.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::Site;

pub(super) fn command(site: &Site, program: &Path) -> io::Result<Command> {
    let mut command = base(site, program);
    for listener in site.listeners() {
        command.arg("--listen").arg(listener.to_string());
    }
    command.arg("--backend").arg(site.backend().to_string());
    if site.demands.proxy {
        command.args(["--send-proxy", "v2"]);
    }
    let sources: Vec<String> = site.sources().iter().map(ToString::to_string).collect();
    if !sources.is_empty() {
        command.arg("--source").arg(sources.join(","));
    }
    Ok(command)
}

/// `run` with all that isn't a service's.
pub(crate) fn base(site: &Site, program: &Path) -> Command {
    let mut command = Command::new(program);
    let metrics = site
        .metrics()
        .map_or("off".to_owned(), |place| place.to_string());
    command
        .args(["run", "--log-level", "error", "--metrics", &metrics])
        .args(["--workers", &site.demands.workers.to_string()])
        .arg("--control")
        .arg(control(site));
    command
}

/// A verb for the gate that `site` has.
pub(crate) fn ask(site: &Site, program: &Path, verb: &str) -> Command {
    let mut command = Command::new(program);
    command.arg(verb).arg("--control").arg(control(site));
    command
}

fn control(site: &Site) -> PathBuf {
    site.directory.join("control.sock")
}
