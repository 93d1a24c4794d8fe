//! The HAProxy adapter: a stock haproxy.cfg, in front of which nobody had to change anything.
//!
//! - [`plan`] reads the configuration, pure: which public listeners the gate opens, which private ones HAProxy gets instead, and
//!   what its copy says.
//! - [`read`] takes everything that a run needs from the disk at one moment, when the run begins: what changes later is the next
//!   run's.
//! - [`binary`] says what is known of an haproxy program.
//! - [`runtime`] asks a running process over its stats socket.
//! - [`state`] carries over what operators and checks have set at run time, from one process to its successor.

use std::io;
use std::net::{IpAddr, ToSocketAddrs};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::sys::resource::{Resource, getrlimit};

use crate::child::Spawner;
use crate::config::{Backend, Haproxy, ServiceConfig};

pub mod binary;
pub mod runtime;
mod skeleton;
pub mod state;

use binary::{Binaries, Binary};
pub(crate) use skeleton::Place;
pub use skeleton::{File, Plan, Refusal, World, plan};

/// Why there is no plan.
#[derive(Debug, thiserror::Error)]
pub enum NotRead {
    /// marathon-lb, for one, starts before it has written its first configuration.
    #[error("{} doesn't exist", .0.display())]
    Missing(PathBuf),
    /// A sentence that says where, what and what to do.
    #[error("{0}")]
    Bad(String),
}

impl From<NotRead> for String {
    fn from(error: NotRead) -> String {
        error.to_string()
    }
}

/// Fills in what HAProxy's configuration says, as it is on the disk now. Any other service is returned as it is.
///
/// # Errors
/// The files aren't there, can't be read, or can't be fronted; or there is no such program.
pub async fn read(
    mut config: ServiceConfig,
    binaries: &Binaries,
    spawner: &Spawner,
) -> Result<ServiceConfig, NotRead> {
    let Backend::Haproxy(haproxy) = &mut config.backend else {
        return Ok(config);
    };
    let files = files(&haproxy.files)?;
    let binary = binaries
        .of(&haproxy.program, spawner)
        .await
        .map_err(NotRead::Bad)?;
    let plan =
        in_this_world(files, &binary).map_err(|refusal| NotRead::Bad(refusal.to_string()))?;
    config.listeners = plan.listeners().to_vec();
    haproxy.plan = Some(Arc::new(plan));
    Ok(config)
}

/// Logs what is to be known of a configuration, unless it was known `before`.
pub(crate) fn warn(config: &ServiceConfig, before: Option<&ServiceConfig>) {
    let known = before.map_or(&[][..], warnings);
    for warning in warnings(config) {
        if !known.contains(warning) {
            tracing::warn!(service = config.name, "{warning}");
        }
    }
}

/// What works, but hardly as meant; one sentence each.
pub fn warnings(config: &ServiceConfig) -> &[String] {
    match &config.backend {
        Backend::Haproxy(Haproxy {
            plan: Some(plan), ..
        }) => plan.warnings(),
        _ => &[],
    }
}

/// The files of each `-f`: of a directory those that end in `.cfg`, in the order of their names (management guide, section 3).
fn files(given: &[PathBuf]) -> Result<Vec<File>, NotRead> {
    let mut files = Vec::new();
    for path in given {
        let paths = match path.is_dir() {
            true => in_directory(path).map_err(|error| unreadable(path, &error))?,
            false => vec![path.clone()],
        };
        for path in paths {
            let text = std::fs::read(&path).map_err(|error| unreadable(&path, &error))?;
            files.push(File { path, text });
        }
    }
    Ok(files)
}

fn in_directory(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in directory.read_dir()? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().as_bytes();
        if name.ends_with(b".cfg") && !name.starts_with(b".") && path.is_file() {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

fn unreadable(path: &Path, error: &io::Error) -> NotRead {
    match error.kind() {
        io::ErrorKind::NotFound => NotRead::Missing(path.to_owned()),
        _ => NotRead::Bad(format!("{} can't be read: {error}", path.display())),
    }
}

fn in_this_world(files: Vec<File>, binary: &Binary) -> Result<Plan, Refusal> {
    let (_, descriptors) = getrlimit(Resource::RLIMIT_NOFILE).unwrap_or((u64::MAX, u64::MAX));
    let world = World {
        binary,
        unprivileged: !nix::unistd::geteuid().is_root(),
        descriptors,
        environment: &|name| {
            std::env::var_os(std::ffi::OsStr::from_bytes(name)).map(OsStringExt::into_vec)
        },
        resolve: &resolve,
        read: &|path| std::fs::read(path),
    };
    plan(files, &world)
}

/// The first address of a name, as HAProxy takes it (configuration manual, 4.2, `bind`).
fn resolve(name: &str) -> io::Result<IpAddr> {
    let mut addresses = (name, 0).to_socket_addrs()?;
    let first = addresses.next().map(|address| address.ip());
    first.ok_or_else(|| io::ErrorKind::NotFound.into())
}
