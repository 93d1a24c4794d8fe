//! One service: its defaults that depend on others, and its contradictions.

use std::collections::HashSet;
use std::fmt::Display;
use std::net::IpAddr;
use std::time::Duration;

use nix::sys::signal::Signal;
use syngate_gate::ServiceSettings;
use syngate_gate::listener::{Address, Named, Own};
use syngate_gate::proxy_protocol::Version;
use syngate_supervisor::config::{
    Argv, Backend, BackendAddress, BackendTarget, Haproxy, ListenerConfig, Pass, ServiceConfig,
    Strategy,
};
use syngate_supervisor::readiness::Ready;

use super::StartError;
use super::facts::Facts;
use super::file::Service;
use super::layer::COMMAND;
use crate::cli::options::ServiceOptions;

/// What a service is judged by.
pub(super) struct Context<'a> {
    pub(super) written: &'a Service,
    pub(super) facts: &'a Facts,
}

impl Context<'_> {
    /// An error about a key: where it was written, else where the service was.
    pub(super) fn error(&self, key: &str, what: impl Display) -> StartError {
        StartError::Invalid(format!("{}: {what}", self.place_of(key)))
    }

    fn place_of(&self, key: &str) -> String {
        let Service { name, place, keys } = self.written;
        match (keys.origin(key), place) {
            (Some(origin), _) => origin.to_string(),
            (None, Some(place)) => format!("{place}: service {name}"),
            (None, None) => format!("service {name}"),
        }
    }

    fn is_written(&self, key: &str) -> bool {
        self.written.keys.origin(key).is_some()
    }

    /// Fills in what depends on other keys, and refuses what can't be meant.
    pub(super) fn check(
        &self,
        options: ServiceOptions,
        warnings: &mut Vec<String>,
    ) -> Result<ServiceConfig, StartError> {
        let haproxy = !options.haproxy.is_empty();
        let listeners = match haproxy {
            true => Vec::new(), // They are in its configuration.
            false => self.listeners(options.listen)?,
        };
        self.backends_have_listeners(&options.backend, &listeners)?;
        let pass = match options.pass {
            Some(pass) => pass,
            None if uses(&options.command, "fd") => Pass::Fd,
            None => Pass::None,
        };
        let backend = if haproxy {
            self.haproxy()?;
            Backend::Haproxy(Haproxy {
                files: options.haproxy,
                program: options.haproxy_binary,
                arguments: options.haproxy_args.unwrap_or_default(),
                plan: None,
            })
        } else if options.command.is_empty() {
            self.without_command(pass, options.strategy, &options.ready)?;
            self.every_listener_has_one(&options.backend, &listeners)?;
            Backend::Addresses(options.backend)
        } else {
            self.command(&options.command, &options.backend, pass, options.strategy)?;
            Backend::Command {
                argv: options.command,
                fixed: options.backend,
            }
        };
        let service = ServiceConfig {
            name: self.written.name.clone(),
            listeners,
            backend,
            pass,
            strategy: options.strategy,
            check: options.check,
            check_timeout: options.check_timeout,
            ready: options.ready,
            ready_timeout: options.ready_timeout,
            ready_settle: options.ready_settle,
            min_ready: options.min_ready,
            drain_delay: options.drain_delay,
            drain_signal: options.drain_signal.or(haproxy.then_some(Signal::SIGUSR1)),
            drain_timeout: match (options.drain_timeout, options.strategy) {
                (Some(limit), _) => limit.0,
                (None, Strategy::Overlap) => Some(Duration::from_secs(30)),
                (None, Strategy::Replace) => Some(Duration::from_secs(5)),
            },
            // HAProxy ends by itself once it has been told to finish: SIGTERM would make it cry.
            stop_signal: match haproxy && !self.is_written("stop_signal") {
                true => Signal::SIGUSR1,
                false => options.stop_signal,
            },
            stop_timeout: options.stop_timeout,
            keep_previous: options.keep_previous,
            max_generations: options.max_generations.into(),
            retry: options.retry.unwrap_or(haproxy),
            gate: ServiceSettings {
                pending_timeout: options.pending_timeout,
                pending_overflow: options.pending_overflow,
                dispatch_concurrency: options.dispatch_concurrency,
                connect_timeout: options.connect_timeout,
                idle_timeout: options.idle_timeout.0,
                half_close_timeout: options.half_close_timeout.0,
                keepalive: options.keepalive.0,
                send_proxy: match haproxy {
                    true => Some(Version::V2),
                    false => options.send_proxy,
                },
                accept_proxy: options.accept_proxy,
                accept_proxy_timeout: options.accept_proxy_timeout,
                sources: options.source,
            },
            backlog: options.backlog,
            keepalive: options.keepalive.0,
        };
        self.strategy(&service)?;
        self.warn(&service, warnings);
        Ok(service)
    }

    /// Refuses what HAProxy has ways of its own for.
    fn haproxy(&self) -> Result<(), StartError> {
        let others = [
            (COMMAND, "haproxy starts it: remove COMMAND"),
            (
                "listen",
                "its configuration says where to listen: remove it",
            ),
            ("backend", "its configuration names the servers: remove it"),
            (
                "pass",
                "its listeners are always made here and passed: remove it",
            ),
            (
                "check",
                "its configuration is always checked, by haproxy -c: remove it",
            ),
            ("ready", "its stats socket proves it: remove it"),
            ("send_proxy", "it always gets PROXY v2: remove it"),
            ("accept_proxy", "write accept-proxy on its bind line"),
        ];
        for (key, cure) in others {
            if self.is_written(key) {
                return Err(
                    self.error(key, format_args!("this can't stand beside haproxy; {cure}"))
                );
            }
        }
        if self.is_written("strategy") {
            let what = "this can't stand beside haproxy; two generations of it can always run at once: remove it";
            return Err(self.error("strategy", what));
        }
        Ok(())
    }

    fn listeners(&self, listen: Vec<Named>) -> Result<Vec<ListenerConfig>, StartError> {
        if listen.is_empty() {
            return Err(self.error(
                "listen",
                "no listener: say where clients come in, as in --listen 8080",
            ));
        }
        let mut names = HashSet::new();
        let mut all = Vec::new();
        for (index, Named { name, address }) in listen.into_iter().enumerate() {
            let name = name.unwrap_or_else(|| format!("l{index}"));
            if !names.insert(name.clone()) {
                return Err(self.error(
                    "listen",
                    format_args!("two listeners are called {name}: give one another name, as in --listen web=8080"),
                ));
            }
            self.is_inherited(&address)?;
            all.push(ListenerConfig {
                name,
                address,
                own: Own::default(),
                raw: false,
            });
        }
        Ok(all)
    }

    fn is_inherited(&self, address: &Address) -> Result<(), StartError> {
        let (Address::Inherited(wanted), Some(names)) = (address, &self.facts.inherited) else {
            return Ok(());
        };
        if names.contains(wanted) {
            return Ok(());
        }
        let have = if names.is_empty() {
            "there are none".to_owned()
        } else {
            format!("there are {}", names.join(", "))
        };
        Err(self.error(
            "listen",
            format_args!(
                "no inherited socket is called {wanted} ({have}): set FileDescriptorName= in the socket unit, or LISTEN_FDNAMES"
            ),
        ))
    }

    fn backends_have_listeners(
        &self,
        backends: &[BackendAddress],
        listeners: &[ListenerConfig],
    ) -> Result<(), StartError> {
        let known = |name: &String| listeners.iter().any(|listener| listener.name == *name);
        let stray = backends
            .iter()
            .filter_map(|backend| backend.listener.as_ref())
            .find(|name| !known(name));
        match stray {
            None => Ok(()),
            Some(name) => {
                let names: Vec<_> = listeners.iter().map(|l| l.name.as_str()).collect();
                Err(self.error(
                    "backend",
                    format_args!(
                        "there is no listener {name} (there are {}): name one of these, or none for all",
                        names.join(", ")
                    ),
                ))
            }
        }
    }

    fn every_listener_has_one(
        &self,
        backends: &[BackendAddress],
        listeners: &[ListenerConfig],
    ) -> Result<(), StartError> {
        if backends.is_empty() {
            return Err(self.error(
                "backend",
                "no backend: say what starts one after `--`, or where one listens with --backend",
            ));
        }
        let serves = |backend: &BackendAddress, listener: &ListenerConfig| {
            backend
                .listener
                .as_ref()
                .is_none_or(|name| *name == listener.name)
        };
        match listeners
            .iter()
            .find(|listener| !backends.iter().any(|backend| serves(backend, listener)))
        {
            None => Ok(()),
            Some(listener) => Err(self.error(
                "backend",
                format_args!(
                    "listener {name} has no backend: add --backend {name}=ADDR, or one without a name for all",
                    name = listener.name
                ),
            )),
        }
    }

    /// What only a process can have.
    fn without_command(
        &self,
        pass: Pass,
        strategy: Strategy,
        ready: &Ready,
    ) -> Result<(), StartError> {
        let cure = "say what starts the backend after `--`, or remove it";
        if pass != Pass::None {
            return Err(self.error(
                "pass",
                format_args!("there is no COMMAND to pass listeners to: {cure}"),
            ));
        }
        if strategy == Strategy::Replace {
            return Err(self.error(
                "strategy",
                format_args!("there is no COMMAND to replace: {cure}"),
            ));
        }
        if matches!(ready, Ready::Notify | Ready::Fd(_)) {
            return Err(self.error(
                "ready",
                format_args!("there is no COMMAND that could say so: {cure}"),
            ));
        }
        if self.is_written("drain_signal") {
            return Err(self.error(
                "drain_signal",
                format_args!("there is no COMMAND to signal: {cure}"),
            ));
        }
        Ok(())
    }

    fn command(
        &self,
        argv: &Argv,
        fixed: &[BackendAddress],
        pass: Pass,
        strategy: Strategy,
    ) -> Result<(), StartError> {
        if uses(argv, "socket") && (uses(argv, "addr") || uses(argv, "port")) {
            return Err(self.error(
                COMMAND,
                "{socket} asks for a unix socket, {addr} and {port} for TCP: use one kind",
            ));
        }
        if uses(argv, "fd") && pass != Pass::Fd {
            return Err(self.error(
                "pass",
                "COMMAND has {fd}, and no listener is passed that way: write fd, or remove {fd}",
            ));
        }
        if fixed.is_empty() {
            return Ok(());
        }
        if pass != Pass::None {
            return Err(self.error(
                "backend",
                "with pass COMMAND listens on what it is passed, so it has no address of its own: remove one of the two",
            ));
        }
        if strategy == Strategy::Overlap {
            return Err(self.error(
                "backend",
                "two generations can't listen on one address at once: use {addr}, {port} or {socket} in COMMAND, or add --strategy replace",
            ));
        }
        Ok(())
    }

    fn strategy(&self, service: &ServiceConfig) -> Result<(), StartError> {
        match service.strategy {
            Strategy::Replace if !service.keep_previous.is_zero() => Err(self.error(
                "keep_previous",
                "replace stops the old generation before the new one starts, so there is nothing to keep: remove one of the two",
            )),
            Strategy::Replace if service.retry => Err(self.error(
                "retry",
                "replace tries a failed start again by itself: remove retry",
            )),
            Strategy::Overlap if service.max_generations < 2 => Err(self.error(
                "max_generations",
                "a reload needs room for two generations: write at least 2, or add --strategy replace",
            )),
            _ => Ok(()),
        }
    }

    fn warn(&self, service: &ServiceConfig, warnings: &mut Vec<String>) {
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
    }
}

/// Whether a command line has a placeholder, for the first listener (`{addr}`) or for one by its name (`{addr_web}`).
fn uses(argv: &Argv, placeholder: &str) -> bool {
    let (first, named) = (format!("{{{placeholder}}}"), format!("{{{placeholder}_"));
    argv.iter()
        .any(|arg| arg.contains(&first) || arg.contains(&named))
}

fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
}
