//! The HAProxy adapter: a stock configuration in, and out of it what the gate listens on and the copy that a generation runs.
//!
//! - [`plan()`] reads the configuration: which public listeners the gate opens, which private ones HAProxy gets instead, and what its
//!   copy says.
//! - [`read`] takes everything that a run needs from the disk at one moment, when the run begins: what changes later is the next
//!   run's.
//! - [`binary`] says what is known of an haproxy program, [`runtime`] asks a running process over its stats socket, and [`state`]
//!   carries over what operators and checks have set at run time, from one process to its successor.
//!
//! Invariants:
//! - Planning is pure: text in, plan out. What it asks of the world comes in through [`World`].
//! - A line that needn't change is byte for byte the same in the copy, and stands in the same line where that can be, so that
//!   HAProxy's own messages name the user's line.
//! - What can't be fronted stays with HAProxy and is warned about, or is refused with file, line and reason; nothing is guessed.
//! - What HAProxy refuses is left for its own check to refuse, whose message is the better one, unless it would be lost on the way.

mod address;
mod arguments;
pub mod binary;
mod bind;
mod blocks;
mod conditions;
mod copy;
mod document;
mod draft;
mod environment;
mod front;
mod global;
mod idle_close;
mod limits;
mod maps;
mod own_samples;
mod plan;
mod proxies;
mod publics;
mod rules;
pub mod runtime;
mod servers;
mod socket_options;
pub mod state;
mod switches;
mod words;

use std::io;
use std::net::{IpAddr, ToSocketAddrs};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::sys::resource::{Resource, getrlimit};
use nix::unistd::{Gid, Group, getegid, getgroups};

use crate::child::Spawner;
use crate::config::{Backend, Haproxy, ServiceConfig};
use crate::output::Output;

use binary::Binaries;
pub use binary::Binary;
pub use copy::{Copy, Place};
pub use plan::{Plan, plan};

/// One configuration file as it was read. Bytes: HAProxy takes any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// As it was given; messages name it so.
    pub path: PathBuf,
    /// All of it.
    pub text: Vec<u8>,
}

/// What is asked of the world while planning: everything else is pure.
pub struct World<'a> {
    /// The program that will run the copy.
    pub binary: &'a Binary,
    /// The effective uid isn't 0.
    pub unprivileged: bool,
    /// Descriptors that one process may have: the hard RLIMIT_NOFILE, or as many as there can be where the program may raise it.
    pub descriptors: u64,
    /// A variable of the process that HAProxy will run in.
    pub environment: &'a dyn Fn(&[u8]) -> Option<Vec<u8>>,
    /// What is added to its command line.
    pub arguments: &'a [String],
    /// The addresses of a host that a bind names, in the resolver's order.
    pub resolve: &'a dyn Fn(&str) -> io::Result<Vec<IpAddr>>,
    /// Whether the gate's user is in this group, a name or a number.
    pub joined: &'a dyn Fn(&[u8]) -> bool,
    /// A map file's bytes.
    pub read: &'a dyn Fn(&Path) -> io::Result<Vec<u8>>,
}

/// Why a configuration can't be fronted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{}: {why}", .file.display(), LineNumber(*.line))]
pub struct Refusal {
    /// The file that it is about.
    pub file: PathBuf,
    /// Counted from 1; 0 is the whole file.
    pub line: usize,
    /// What is wrong, and what to do.
    pub why: String,
}

/// `:LINE`, or nothing.
struct LineNumber(usize);

impl std::fmt::Display for LineNumber {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            0 => Ok(()),
            line => write!(f, ":{line}"),
        }
    }
}

/// Why there is no plan.
#[derive(Debug, thiserror::Error)]
pub enum NotRead {
    /// marathon-lb, for one, starts before it has written its first configuration.
    #[error("{} doesn't exist: write it, or name another with --haproxy", .0.display())]
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
    // A name in a bind may take a resolver's time, and the supervisor's thread waits for nobody.
    let arguments = haproxy.arguments.clone();
    let planned = move || in_this_world(files, &binary, &arguments);
    let planned = tokio::task::spawn_blocking(planned).await;
    let plan = match planned {
        Ok(plan) => plan.map_err(|refusal| NotRead::Bad(refusal.to_string()))?,
        Err(error) => return Err(NotRead::Bad(format!("it can't be read: {error}"))),
    };
    config.listeners = plan.listeners().to_vec();
    haproxy.plan = Some(Arc::new(plan));
    Ok(config)
}

/// Logs what is to be known of a configuration, unless it was known `before`.
pub(crate) fn warn(config: &ServiceConfig, before: Option<&ServiceConfig>) {
    let service = &config.name;
    let known = before.map_or(&[][..], warnings);
    for warning in warnings(config).iter().filter(|it| !known.contains(it)) {
        tracing::warn!(service, "{warning}");
    }
    for note in planned(config).map_or(&[][..], Plan::notes) {
        tracing::debug!(service, "{note}");
    }
}

/// What works, but hardly as meant; one sentence each.
pub fn warnings(config: &ServiceConfig) -> &[String] {
    planned(config).map_or(&[], Plan::warnings)
}

fn planned(config: &ServiceConfig) -> Option<&Plan> {
    match &config.backend {
        Backend::Haproxy(Haproxy { plan, .. }) => plan.as_deref(),
        _ => None,
    }
}

/// Why HAProxy didn't start: its alerts, since the last one seldom says why.
pub(crate) fn alerts(output: &Output) -> Option<String> {
    /// More than these name the same cause again.
    const MOST: usize = 4;
    let lines = output.last_lines(usize::MAX);
    let alerts = lines.into_iter().filter(|line| line.starts_with("[ALERT]"));
    let alerts: Vec<String> = alerts.take(MOST).collect();
    (!alerts.is_empty()).then(|| alerts.join("; "))
}

/// The files of each `-f`: of a directory those that end in `.cfg`, and have it nowhere else, in the order of their names
/// (management guide, section 3).
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
        let suffix = name.windows(4).position(|part| part == b".cfg");
        let is_last = suffix.is_some_and(|at| at + 4 == name.len());
        if is_last && !name.starts_with(b".") && path.is_file() {
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

fn in_this_world(files: Vec<File>, binary: &Binary, arguments: &[String]) -> Result<Plan, Refusal> {
    let world = World {
        binary,
        arguments,
        unprivileged: !nix::unistd::geteuid().is_root(),
        descriptors: descriptors(),
        environment: &|name| {
            std::env::var_os(std::ffi::OsStr::from_bytes(name)).map(OsStringExt::into_vec)
        },
        resolve: &resolve,
        joined: &joined,
        read: &|path| std::fs::read(path),
    };
    plan(files, &world)
}

/// How many a process of ours may have. One with CAP_SYS_RESOURCE raises its limit by itself, up to fs.nr_open
/// (capabilities(7), proc_sys_fs(5)).
fn descriptors() -> u64 {
    const CAP_SYS_RESOURCE: u64 = 1 << 24;
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let status = read("/proc/self/status");
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    let most = match effective.unwrap_or_default() & CAP_SYS_RESOURCE {
        0 => None,
        _ => read("/proc/sys/fs/nr_open").trim().parse().ok(),
    };
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap_or((u64::MAX, u64::MAX));
    most.unwrap_or(hard).max(hard)
}

/// All addresses of a name, in the order in which getaddrinfo(3) has them: HAProxy takes the first (configuration manual, 4.2,
/// `bind`).
fn resolve(name: &str) -> io::Result<Vec<IpAddr>> {
    let addresses = (name, 0).to_socket_addrs()?;
    Ok(addresses.map(|address| address.ip()).collect())
}

fn joined(group: &[u8]) -> bool {
    let Ok(name) = std::str::from_utf8(group) else {
        return false;
    };
    let number = name.parse().ok().map(Gid::from_raw);
    let known = || Group::from_name(name).ok().flatten().map(|it| it.gid);
    let Some(group) = number.or_else(known) else {
        return false;
    };
    getegid() == group || getgroups().is_ok_and(|groups| groups.contains(&group))
}
