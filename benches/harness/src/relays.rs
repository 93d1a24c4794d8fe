//! The relays: what stands between load and backend, how each is configured, and how it starts.
//!
//! All are set up alike: nothing is logged, the listeners have the same backlog, time-outs never strike, and each may use all of
//! the descriptors. A new peer is a variant of [`Program`] and a module that makes its command.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sched::CpuSet;

use crate::process::Process;
use crate::wire::Place;

pub(crate) mod haproxy;
mod nginx;
mod programs;
pub(crate) mod syngate;

pub(crate) use programs::Programs;

/// Whose relay it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Program {
    /// No relay: the client connects to the backend.
    Direct,
    Syngate,
    /// Another build of syngate, to compare with.
    SyngateBefore,
    /// The one that the distribution has.
    Haproxy,
    /// The newest one.
    HaproxyNew,
    Nginx,
}

/// One relay as it is configured. Its name is the label of its row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Relay {
    pub(crate) name: &'static str,
    pub(crate) program: Program,
    /// Connects to the backend's unix socket.
    pub(crate) unix: bool,
    /// HAProxy: `option splice-request` and `splice-response`.
    pub(crate) splice: bool,
    /// nginx: the size of its buffers.
    pub(crate) buffer: &'static str,
    /// Its metrics are read every 100 ms while it is measured.
    pub(crate) scraped: bool,
    /// The backend isn't on a loopback address, and it is connected to from so many addresses.
    pub(crate) remote_sources: Option<u8>,
    /// How it is reloaded, where that is measured.
    pub(crate) reload: Option<Reload>,
}

/// How a relay takes over a new configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reload {
    /// `syngate reload`, with the distribution's HAProxy behind the gate.
    GateHaproxy,
    /// `syngate reload`, with the backend itself behind the gate.
    GateCommand,
    /// HAProxy: a new process with `-sf` and the old one's number.
    Successor,
    /// HAProxy: the same while new connections are dropped by iptables.
    SynDrop,
    /// HAProxy: SIGUSR2 to the master of `-W`, which passes the listeners on.
    Usr2,
    /// nginx: SIGHUP.
    Hup,
}

const fn relay(name: &'static str, program: Program) -> Relay {
    Relay {
        name,
        program,
        unix: false,
        splice: false,
        buffer: "16k",
        scraped: false,
        remote_sources: None,
        reload: None,
    }
}

/// In the order of the tables.
pub(crate) const SYNGATE: Relay = relay("syngate", Program::Syngate);
pub(crate) const SYNGATE_UNIX: Relay = SYNGATE.unix("syngate, unix");
pub(crate) const BEFORE: Relay = relay("syngate before", Program::SyngateBefore);
pub(crate) const BEFORE_UNIX: Relay = BEFORE.unix("syngate before, unix");
pub(crate) const HAPROXY_NEW: Relay = relay("HAProxy new", Program::HaproxyNew);
pub(crate) const HAPROXY_NEW_UNIX: Relay = HAPROXY_NEW.unix("HAProxy new, unix");
pub(crate) const HAPROXY_NEW_SPLICE: Relay = HAPROXY_NEW.splice("HAProxy new, splice");
pub(crate) const HAPROXY: Relay = relay("HAProxy", Program::Haproxy);
pub(crate) const HAPROXY_UNIX: Relay = HAPROXY.unix("HAProxy, unix");
pub(crate) const HAPROXY_SPLICE: Relay = HAPROXY.splice("HAProxy, splice");
pub(crate) const NGINX: Relay = relay("nginx", Program::Nginx);
pub(crate) const NGINX_UNIX: Relay = NGINX.unix("nginx, unix");
pub(crate) const NGINX_64K: Relay = Relay {
    name: "nginx, 64k buffers",
    buffer: "64k",
    ..NGINX
};
pub(crate) const DIRECT: Relay = relay("direct", Program::Direct);

impl Relay {
    const fn unix(self, name: &'static str) -> Relay {
        Relay {
            name,
            unix: true,
            ..self
        }
    }

    const fn splice(self, name: &'static str) -> Relay {
        Relay {
            name,
            splice: true,
            ..self
        }
    }

    pub(crate) const fn scraped(self, name: &'static str) -> Relay {
        Relay {
            name,
            scraped: true,
            ..self
        }
    }

    pub(crate) const fn reloaded(self, name: &'static str, reload: Reload) -> Relay {
        Relay {
            name,
            reload: Some(reload),
            ..self
        }
    }

    pub(crate) const fn remote(self, name: &'static str, sources: u8) -> Relay {
        Relay {
            name,
            remote_sources: Some(sources),
            ..self
        }
    }
}

/// Where one relay of a measurement has its place: its addresses, its directory, its backend.
#[derive(Clone, Debug)]
pub(crate) struct Site {
    pub(crate) relay: Relay,
    number: u8,
    /// For files and unix sockets; the relay's own.
    pub(crate) directory: PathBuf,
    pub(crate) demands: Demands,
}

/// What a workload asks of every relay.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Demands {
    pub(crate) listeners: u16,
    pub(crate) workers: u8,
    /// Tell the backend the client's address: PROXY v2; nginx has only v1.
    pub(crate) proxy: bool,
}

impl Demands {
    pub(crate) const PLAIN: Demands = Demands {
        listeners: 1,
        workers: 1,
        proxy: false,
    };
}

/// Not on a loopback network, though on the loopback device.
pub(crate) const REMOTE: &str = "10.9.0.1";

/// The addresses of that network to connect from.
pub(crate) fn remote_sources(count: u8) -> impl Iterator<Item = Ipv4Addr> {
    (1..=count).map(|number| Ipv4Addr::new(10, 9, 1, number))
}

const FIRST_PORT: u16 = 8000;
const BACKEND_PORT: u16 = 9000;
const METRICS_PORT: u16 = 9464;

impl Site {
    /// Makes the directory, below `directory`.
    pub(crate) fn new(
        relay: Relay,
        number: usize,
        directory: &Path,
        demands: Demands,
    ) -> io::Result<Site> {
        let directory = directory.join(number.to_string());
        fs::create_dir_all(&directory)?;
        Ok(Site {
            relay,
            number: u8::try_from(number + 1).map_err(io::Error::other)?,
            directory,
            demands,
        })
    }

    /// The address that it listens at.
    pub(crate) fn address(&self) -> Ipv4Addr {
        Ipv4Addr::new(127, 0, 1, self.number)
    }

    /// Its ports: first and last.
    pub(crate) fn ports(&self) -> (u16, u16) {
        (FIRST_PORT, FIRST_PORT + self.demands.listeners - 1)
    }

    /// Where it listens.
    pub(crate) fn listeners(&self) -> Vec<SocketAddr> {
        let (first, last) = self.ports();
        (first..=last)
            .map(|port| (self.address(), port).into())
            .collect()
    }

    /// Its backend's place. Each relay has one of its own, so that none uses up another's ports.
    pub(crate) fn backend(&self) -> Place {
        if self.relay.unix {
            return Place::Unix(self.directory.join("backend.sock"));
        }
        let address = match self.relay.remote_sources {
            Some(_) => REMOTE.parse().expect("an address"),
            None => Ipv4Addr::new(127, 0, 2, self.number),
        };
        Place::Tcp((address, BACKEND_PORT).into())
    }

    /// The addresses to connect from, where it isn't the system's choice.
    pub(crate) fn sources(&self) -> Vec<Ipv4Addr> {
        match self.relay.remote_sources {
            Some(count) if count > 1 => remote_sources(count).collect(),
            _ => Vec::new(),
        }
    }

    /// Where its metrics are, if they are asked for.
    pub(crate) fn metrics(&self) -> Option<SocketAddr> {
        self.relay
            .scraped
            .then(|| (self.address(), METRICS_PORT).into())
    }

    /// Where clients connect to.
    pub(crate) fn targets(&self) -> Vec<SocketAddr> {
        match (self.relay.program, self.backend()) {
            (Program::Direct, Place::Tcp(backend)) => vec![backend],
            _ => self.listeners(),
        }
    }

    /// Starts the relay and returns when it accepts; `None` for a direct connection.
    pub(crate) fn start(&self, programs: &Programs, cores: &CpuSet) -> io::Result<Option<Process>> {
        let Some(mut command) = self.command(programs)? else {
            return Ok(None);
        };
        let log = fs::File::create(self.directory.join("log"))?;
        command.stdout(Stdio::null()).stderr(log);
        let mut process = Process::start(&mut command, cores)?;
        self.wait(&mut process)?;
        Ok(Some(process))
    }

    fn command(&self, programs: &Programs) -> io::Result<Option<Command>> {
        let path = programs.path(self.relay.program);
        Ok(match self.relay.program {
            Program::Direct => None,
            Program::Syngate | Program::SyngateBefore => Some(syngate::command(self, path)?),
            Program::Haproxy | Program::HaproxyNew => Some(haproxy::command(self, path)?),
            Program::Nginx => Some(nginx::command(self, path)?),
        })
    }

    /// Returns when the last listener accepts.
    pub(crate) fn wait(&self, process: &mut Process) -> io::Result<()> {
        let (_, last) = self.ports();
        let deadline = Instant::now() + Duration::from_secs(20);
        while TcpStream::connect((self.address(), last)).is_err() {
            let ended = process.child.try_wait()?;
            if ended.is_some() || Instant::now() > deadline {
                let log = fs::read_to_string(self.directory.join("log")).unwrap_or_default();
                let (name, log) = (self.relay.name, log.trim());
                return Err(io::Error::other(format!("{name} doesn't listen: {log}")));
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }
}
