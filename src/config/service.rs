//! One service: its defaults that depend on others.

mod contradictions;
mod warnings;

use std::collections::HashSet;
use std::fmt::Display;
use std::time::Duration;

use nix::sys::signal::Signal;
use syngate_gate::ServiceSettings;
use syngate_gate::listener::{Address, Named, Own};
use syngate_gate::proxy_protocol::Version;
use syngate_supervisor::config::{Backend, Haproxy, ListenerConfig, Pass, ServiceConfig, Strategy};
use syngate_supervisor::names::there_are;

use super::StartError;
use super::facts::Facts;
use super::file::Service;
use super::placeholders::{Word, uses};
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
        let pass = match options.pass {
            Some(pass) => pass,
            None if uses(&options.command, Word::Fd) => Pass::Fd,
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
            if options.backend.is_empty() {
                return Err(self.error(
                    "backend",
                    "no backend: say what starts one after `--`, or where one listens with --backend",
                ));
            }
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
                // A replace may take 40 s by its defaults: to drain 5 s, to stop 5 s, to become ready 30 s.
                pending_timeout: options.pending_timeout.unwrap_or(match options.strategy {
                    Strategy::Overlap => Duration::from_secs(30),
                    Strategy::Replace => Duration::from_secs(40),
                }),
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
        service
            .backends_fit()
            .map_err(|what| self.error("backend", what))?;
        warnings.extend(self.warnings(&service));
        Ok(service)
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
        Err(self.error(
            "listen",
            format_args!(
                "no inherited socket is called {wanted} ({}): set FileDescriptorName= in the socket unit, or LISTEN_FDNAMES",
                there_are(names)
            ),
        ))
    }
}
