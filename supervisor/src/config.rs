//! What a supervisor runs, checked: the binary turns flags, environment and file into this once, before a port opens, and
//! again at each reload.

use std::net::{Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::Signal;
use syngate_gate::{ServiceSettings, listener};

use crate::haproxy::Plan;
use crate::names::there_are;
use crate::readiness::Ready;

/// One service: the listeners that flip together, and how the generations behind them are made.
#[derive(Clone, Debug, PartialEq)]
pub struct ServiceConfig {
    /// `default` without a file.
    pub name: String,
    /// At least one; HAProxy's come from its own configuration, and are none until that has been read.
    pub listeners: Vec<ListenerConfig>,
    /// What a generation is.
    pub backend: Backend,
    /// Whether the private listening sockets are made here and passed.
    pub pass: Pass,
    /// Whether two generations may run at once.
    pub strategy: Strategy,
    /// Run before each start; a non-zero status aborts the reload.
    pub check: Option<Argv>,
    /// Bound of one check.
    pub check_timeout: Duration,
    /// How a generation proves that it is ready.
    pub ready: Ready,
    /// Bound from the start to ready.
    pub ready_timeout: Duration,
    /// Ready and alive for this long before the flip.
    pub ready_settle: Duration,
    /// Alive for this long after the flip, else the old generation becomes active again.
    pub min_ready: Duration,
    /// From the end of min-ready to the drain's first step.
    pub drain_delay: Duration,
    /// Sent to a draining generation once its accept queue is empty.
    pub drain_signal: Option<Signal>,
    /// Bound of a drain; `None` is off.
    pub drain_timeout: Option<Duration>,
    /// Sent when drained.
    pub stop_signal: Signal,
    /// From `stop_signal` to SIGKILL.
    pub stop_timeout: Duration,
    /// For this long after a flip the old generation is left alone: something to roll back to.
    pub keep_previous: Duration,
    /// Generations that may live at once.
    pub max_generations: usize,
    /// Whether a failed reload is tried again by itself.
    pub retry: bool,
    /// What the data path needs to know.
    pub gate: ServiceSettings,
    /// `backlog` of public listeners.
    pub backlog: u32,
    /// TCP keepalive of public listeners; `None` is off.
    pub keepalive: Option<Duration>,
}

impl ServiceConfig {
    /// Whether it says all that a start needs: HAProxy's own configuration may not have been read, or not exist yet.
    pub fn is_complete(&self) -> bool {
        !matches!(&self.backend, Backend::Haproxy(haproxy) if haproxy.plan.is_none())
    }

    /// The names of the listeners whose clients send the PROXY header themselves.
    pub(crate) fn raw_listeners(&self) -> Vec<String> {
        let raw = self.listeners.iter().filter(|listener| listener.raw);
        raw.map(|listener| listener.name.clone()).collect()
    }

    /// Which listener an open one is, or becomes by another name.
    pub(crate) fn listener_of(&self, open: &ListenerConfig) -> Option<&ListenerConfig> {
        let mut all = self.listeners.iter();
        let same = all.find(|one| one.is_same_socket(open));
        same.or_else(|| {
            let mut all = self.listeners.iter();
            all.find(|one| one.has_address_of(open) && !one.has_any_port())
        })
    }

    /// Whether one of the listeners can be served by the socket of this one.
    pub(crate) fn has_socket(&self, listener: &ListenerConfig) -> bool {
        let mut listeners = self.listeners.iter();
        listeners.any(|other| other.is_same_socket(listener))
    }

    /// Whether each `--backend` has a listener, and each listener a backend. Places that a start makes are no concern here.
    ///
    /// # Errors
    /// A sentence without its place: `--backend`, its key in a file, or `activate` may have said it.
    pub fn backends_fit(&self) -> Result<(), String> {
        let backends = match &self.backend {
            Backend::Addresses(backends) => backends,
            Backend::Command { fixed, .. } if !fixed.is_empty() => fixed,
            Backend::Command { .. } | Backend::Haproxy(_) => return Ok(()),
        };
        let names: Vec<&str> = self.listeners.iter().map(|one| one.name.as_str()).collect();
        let named = backends.iter().map(|backend| backend.listener.as_deref());
        if let Some(stray) = named.clone().flatten().find(|name| !names.contains(name)) {
            return Err(format!(
                "there is no listener {stray} ({}): name one that there is, or none for all",
                there_are(&names)
            ));
        }
        let serves = |name: &str| named.clone().any(|one| one.is_none_or(|one| one == name));
        match names.iter().find(|name| !serves(name)) {
            None => Ok(()),
            Some(name) => Err(format!(
                "listener {name} has no backend: add one for it, as in {name}=ADDR, or one without a name for all"
            )),
        }
    }
}

/// A public address of a service.
#[derive(Clone, Debug, PartialEq)]
pub struct ListenerConfig {
    /// Given, or `l0`, `l1` ...
    pub name: String,
    /// Where it listens.
    pub address: listener::Address,
    /// What it asks of its socket, beside what the service does.
    pub own: listener::Own,
    /// Its clients send what the backend is to read: no PROXY header is sent, and none is read here.
    pub raw: bool,
}

impl ListenerConfig {
    fn has_any_port(&self) -> bool {
        match &self.address {
            listener::Address::Port(port) => *port == 0,
            listener::Address::Tcp(address) => address.port() == 0,
            listener::Address::Unix { .. } | listener::Address::Inherited(_) => false,
        }
    }

    /// Whether both can be served by one open socket, on which the rest is changed.
    pub(crate) fn is_same_socket(&self, other: &ListenerConfig) -> bool {
        self.name == other.name && self.has_address_of(other)
    }

    /// Whether a listener of another name could have this one's socket.
    pub(crate) fn has_address_of(&self, other: &ListenerConfig) -> bool {
        use listener::Address::{Inherited, Port, Tcp, Unix};
        match (&self.address, &other.address) {
            // The permissions of its file can be changed.
            (Unix { path: one, .. }, Unix { path: other, .. }) => one == other,
            (Inherited(_), _) => self.address == other.address,
            (Port(_) | Tcp(_) | Unix { .. }, _) => {
                self.address == other.address && self.own.is_same_socket(&other.own)
            }
        }
    }

    /// Whether no configuration can have both. An IPv4 and an IPv6 one it can: the latter is then for IPv6 alone.
    pub fn overlaps(&self, other: &ListenerConfig) -> bool {
        use listener::Address::{Inherited, Unix};
        match (&self.address, &other.address) {
            (Unix { path: one, .. }, Unix { path: other, .. }) => one == other,
            (Inherited(one), Inherited(other)) => one == other,
            _ => self.collides(other, |one, other| one.is_ipv4() == other.is_ipv4()),
        }
    }

    /// Whether its open socket keeps `wanted` from being bound: one for all IPv6 addresses that was opened alone has the IPv4
    /// ones too.
    pub(crate) fn stands_in_the_way_of(&self, wanted: &ListenerConfig) -> bool {
        self.overlaps(wanted) || self.collides(wanted, |_, _| true)
    }

    /// Whether both are TCP, on one port and one address, or one of them on all.
    fn collides(
        &self,
        other: &ListenerConfig,
        comparable: impl Fn(SocketAddr, SocketAddr) -> bool,
    ) -> bool {
        let tcp = |listener: &ListenerConfig| match listener.address {
            listener::Address::Port(port) => Some(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port))),
            listener::Address::Tcp(address) => Some(address),
            listener::Address::Unix { .. } | listener::Address::Inherited(_) => None,
        };
        let (Some(one), Some(other)) = (tcp(self), tcp(other)) else {
            return false;
        };
        let all = one.ip().is_unspecified() || other.ip().is_unspecified();
        // Port 0 is another one each time.
        one.port() == other.port()
            && one.port() != 0
            && (all || one.ip() == other.ip())
            && comparable(one, other)
    }
}

/// A command line, split.
pub type Argv = Vec<String>;

/// What a generation is.
#[derive(Clone, Debug, PartialEq)]
pub enum Backend {
    /// A process that the supervisor starts.
    Command {
        /// May contain `{addr}`, `{port}`, `{socket}`, `{fd}`, `{generation}`, `{dir}`.
        argv: Argv,
        /// Where it listens, if that is fixed (`--backend` beside a COMMAND); empty: a private endpoint a generation.
        fixed: Vec<BackendAddress>,
    },
    /// HAProxy with a configuration of its own.
    Haproxy(Haproxy),
    /// Somebody else's servers.
    Addresses(Vec<BackendAddress>),
}

/// An HAProxy whose public ports are the gate's: see [`crate::haproxy`].
#[derive(Clone, Debug, PartialEq)]
pub struct Haproxy {
    /// Configuration files and directories, as for its `-f`.
    pub files: Vec<PathBuf>,
    /// Its program; one without a slash is looked up in PATH at each start.
    pub program: String,
    /// Added to its command line.
    pub arguments: Argv,
    /// What the files said when the run began; `None` until they have been read.
    pub plan: Option<Arc<Plan>>,
}

/// One `--backend [LISTENER=]ADDR`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendAddress {
    /// For that listener; `None`: for all.
    pub listener: Option<String>,
    /// Where it is.
    pub address: BackendTarget,
}

/// The address of a backend, not yet resolved: names are, when a generation is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BackendTarget {
    /// A host name or an IP address, and a port.
    Tcp(String, u16),
    /// A unix socket's path.
    Unix(PathBuf),
}

/// How a backend gets its private listening sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// It makes them, from `{addr}`, `{port}` or `{socket}`.
    None,
    /// Kept listeners at the numbers in `{fd}`.
    Fd,
    /// Kept listeners by LISTEN_FDS (sd_listen_fds(3)).
    ListenFds,
}

/// Whether two generations may run at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// The new one beside the old one.
    Overlap,
    /// The old one ends before the new one starts; connections are held meanwhile.
    Replace,
}

/// What is the process's: fixed for its life, but for the two limits.
#[derive(Clone, Debug, PartialEq)]
pub struct ProcessConfig {
    /// The control socket.
    pub control: PathBuf,
    /// Locked; generation directories live in it.
    pub runtime_dir: PathBuf,
    /// The metrics endpoint as given; `None` is off.
    pub metrics: Option<SocketAddr>,
    /// Threads of the data path.
    pub workers: usize,
    /// Clients in any phase.
    pub max_connections: u64,
    /// Pending connections.
    pub pending_max: u64,
    /// After SIGTERM `/readyz` says 503 and accepting goes on for this long.
    pub lame_duck: Duration,
    /// Then all ends within this.
    pub shutdown_timeout: Duration,
}

/// Everything, as read at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The process's part.
    pub process: ProcessConfig,
    /// At least one service, names unique.
    pub services: Vec<ServiceConfig>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listener(address: &str) -> ListenerConfig {
        ListenerConfig {
            name: "l0".to_owned(),
            address: address.parse().expect("an address"),
            own: listener::Own::default(),
            raw: false,
        }
    }

    #[test]
    fn what_overlaps_and_what_only_an_open_socket_stands_in_the_way_of() {
        for (one, other, overlaps, in_the_way) in [
            ("80", "80", true, true),
            ("80", "[::1]:80", true, true),
            ("0.0.0.0:80", "127.0.0.1:80", true, true),
            ("unix:/a", "unix:/a,mode=0600", true, true),
            ("fd:web", "fd:web", true, true),
            ("80", "0.0.0.0:80", false, true),
            ("[::]:80", "127.0.0.1:80", false, true),
            ("[::1]:80", "127.0.0.1:80", false, false),
            ("127.0.0.1:80", "127.0.0.2:80", false, false),
            ("80", "81", false, false),
            ("127.0.0.1:0", "127.0.0.1:0", false, false),
            ("unix:/a", "fd:a", false, false),
        ] {
            let (one, other) = (listener(one), listener(other));
            for (one, other) in [(&one, &other), (&other, &one)] {
                assert_eq!(one.overlaps(other), overlaps, "{one:?} {other:?}");
                assert_eq!(
                    one.stands_in_the_way_of(other),
                    in_the_way,
                    "{one:?} {other:?}"
                );
            }
        }
    }
}
