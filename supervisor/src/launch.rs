//! What one generation of a command gets: a directory, private places to listen, placeholders and environment, kept listeners.
//!
//! How its connections reach it is seen from the command: `{socket}` is a unix socket, `{addr}` and `{port}` are TCP. With `pass`
//! the listeners are made here: unix sockets, unless the command names `{addr}` or `{port}`, which then say where they are. A
//! command that names none of them may take the place from its environment: then it gets both, and the one where it listens
//! counts.
//!
//! With several listeners a placeholder stands for the first one, and `{addr_NAME}` for another, as `SYNGATE_ADDR_NAME` does.

mod haproxy;
mod named;
mod place;
mod ready;
mod resolve;
mod ways;

use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};

use syngate_gate::listener::KeptListener;
use syngate_gate::{Target, proxy_protocol};

use crate::child::{Child, Outcome, Spawner};
use crate::command::{Command, FIRST_DESCRIPTOR};
use crate::config::{Backend, Pass, ServiceConfig};
use crate::leftovers::DIR_VARIABLE;
use crate::notify::NotifySocket;
use crate::occupied::require_free;
use crate::readiness::{Proof, Ready};
use crate::runtime_dir::GenerationDir;

use named::{Named, socket_path};
pub(crate) use named::{check, find_program};
pub(crate) use place::Places;
use ready::Readiness;
pub(crate) use resolve::{addresses, endpoints};
use ways::{Way, Ways, fixed_way};

/// Kept listeners, with the names of the public ones that they stand for, in their order.
pub(crate) type Kept = Vec<(String, Arc<KeptListener>)>;

/// What a generation of a command has.
pub(crate) struct Site {
    pub(crate) directory: GenerationDir,
    pub(crate) kept: Kept,
    number: u64,
    /// One, or TCP and unix where the command doesn't tell.
    ways: Vec<Way>,
    env: Vec<(String, OsString)>,
    placeholders: Vec<(String, String)>,
    /// What HAProxy has beside that.
    haproxy: Option<haproxy::Front>,
}

impl Site {
    /// Makes what generation `number` needs to start. `kept` are those of the generation whose heir it is.
    ///
    /// # Errors
    /// A sentence that says what can't be had.
    pub(crate) async fn make(
        config: &ServiceConfig,
        number: u64,
        directory: GenerationDir,
        places: &Mutex<Places>,
        kept: Option<Kept>,
    ) -> Result<Site, String> {
        let mut site = Site {
            directory,
            kept: kept.unwrap_or_default(),
            number,
            ways: Vec::new(),
            env: Vec::new(),
            placeholders: Vec::new(),
            haproxy: None,
        };
        if !site.kept.iter().all(|(_, kept)| kept.is_open()) {
            tracing::warn!(
                service = config.name,
                generation = number,
                "the backend has shut down the listeners that it was passed: the next one gets others, what they had queued is lost"
            );
            site.kept.clear();
        }
        match &config.backend {
            Backend::Command { argv, fixed } => {
                let named = Named::in_command(argv);
                if !fixed.is_empty() {
                    site.ways = vec![fixed_way(fixed).await?];
                } else if config.pass == Pass::None {
                    site.ways = site.private(config, named, places)?;
                } else {
                    let names = config.listeners.iter().map(|one| one.name.as_str());
                    site.keep(names, named, places)?;
                }
            }
            Backend::Haproxy(haproxy) => site.front(haproxy, places)?,
            Backend::Addresses(_) => return Err("there is no command to start".to_owned()),
        }
        site.describe(config);
        Ok(site)
    }

    /// Places where the server is to listen.
    fn private(
        &self,
        config: &ServiceConfig,
        named: Named,
        places: &Mutex<Places>,
    ) -> Result<Vec<Way>, String> {
        let mut tcp: Way = Vec::new();
        let mut unix: Way = Vec::new();
        for listener in &config.listeners {
            let name = || Some(listener.name.clone());
            let place =
                take(places).map_err(|error| format!("no private port is free: {error}"))?;
            tcp.push((name(), Target::Tcp(place)));
            let path = socket_path(self.directory.path(), &listener.name);
            unix.push((name(), Target::Unix(path)));
        }
        Ok(match named {
            Named { unix: true, .. } => vec![unix],
            Named { tcp: true, .. } => vec![tcp],
            _ => vec![tcp, unix],
        })
    }

    /// Listeners that are made here, one for each of these names, unless they were inherited.
    fn keep<'a>(
        &mut self,
        names: impl Iterator<Item = &'a str>,
        named: Named,
        places: &Mutex<Places>,
    ) -> Result<(), String> {
        let make = || match named.tcp {
            true => KeptListener::tcp(take(places)?),
            false => KeptListener::unix(self.directory.path()),
        };
        if self.kept.is_empty() {
            for name in names {
                let made = make()
                    .map_err(|error| format!("can't make the listener that is passed: {error}"))?;
                self.kept.push((name.to_owned(), Arc::new(made)));
            }
        }
        let address = |(name, kept): &(String, Arc<KeptListener>)| {
            (Some(name.clone()), kept.address().clone())
        };
        self.ways = vec![self.kept.iter().map(address).collect()];
        Ok(())
    }

    /// Fills in placeholders and environment.
    fn describe(&mut self, config: &ServiceConfig) {
        let directory = self.directory.path().to_string_lossy().into_owned();
        let mut all = vec![
            ("generation".to_owned(), self.number.to_string()),
            ("dir".to_owned(), directory),
        ];
        for way in &self.ways {
            for (index, listener) in config.listeners.iter().enumerate() {
                let of = |(name, _): &&(Option<String>, Target)| {
                    name.as_ref().is_none_or(|name| *name == listener.name)
                };
                let words = match way.iter().find(of) {
                    Some((_, Target::Tcp(address))) => vec![
                        ("addr", address.ip().to_string()),
                        ("port", address.port().to_string()),
                    ],
                    Some((_, Target::Unix(path))) => {
                        vec![("socket", path.to_string_lossy().into_owned())]
                    }
                    _ => Vec::new(),
                };
                add(&mut all, words, index, &listener.name);
            }
        }
        for (index, (name, _)) in self.kept.iter().enumerate() {
            let number = FIRST_DESCRIPTOR + index as i32;
            add(&mut all, vec![("fd", number.to_string())], index, name);
        }
        let variable = |(word, value): &(String, String)| {
            (format!("SYNGATE_{}", word.to_uppercase()), value.into())
        };
        self.env = all.iter().map(variable).collect();
        let path = self.directory.path().as_os_str().to_owned();
        self.env.push((DIR_VARIABLE.to_owned(), path));
        self.placeholders = all;
    }

    /// A command line with its placeholders filled in.
    pub(crate) fn fill(&self, argv: &[String]) -> Vec<String> {
        let fill = |arg: &String| {
            self.placeholders
                .iter()
                .fold(arg.clone(), |arg, (word, value)| {
                    arg.replace(&format!("{{{word}}}"), value)
                })
        };
        argv.iter().map(fill).collect()
    }

    /// Makes sure that nobody else listens where the generation is to listen: its readiness would prove nothing.
    ///
    /// # Errors
    /// A sentence that names who does.
    pub(crate) async fn refuses(&self) -> Result<(), String> {
        if !self.kept.is_empty() {
            return Ok(());
        }
        for (_, address) in self.ways.iter().flatten() {
            require_free(address)
                .await
                .map_err(|occupied| occupied.to_string())?;
        }
        Ok(())
    }

    /// A command of this generation's: with its placeholders, environment and descriptors.
    fn command(&self, argv: &[String]) -> io::Result<Command> {
        let mut command = Command {
            env: self.env.clone(),
            ..Command::new(self.fill(argv))
        };
        for (name, kept) in &self.kept {
            let copy = kept.as_fd().try_clone_to_owned()?;
            command.listeners.push((name.clone(), copy));
        }
        if let Some(haproxy) = &self.haproxy {
            let copy = haproxy.stats.as_fd().try_clone_to_owned()?;
            command.listeners.push(("stats".to_owned(), copy));
        }
        Ok(command)
    }

    /// Runs its check as the generation would be started. Nothing that it has started outlives it, in its group or not.
    ///
    /// # Errors
    /// It can't run.
    pub(crate) async fn check(
        self,
        config: &ServiceConfig,
        spawner: &Spawner,
    ) -> Result<Outcome, String> {
        let cannot = |error: &dyn std::fmt::Display| format!("the check can't run: {error}");
        let argv = match &self.haproxy {
            Some(haproxy) => &haproxy.check,
            None => config.check.as_deref().unwrap_or_default(),
        };
        let command = self.command(argv).map_err(|error| cannot(&error))?;
        let within = config.check_timeout;
        let outcome = spawner.run_to_end(command, within).await;
        let ended = self.directory.end_processes().await.map(drop);
        if let Err(error) = ended.and_then(|()| self.directory.remove()) {
            tracing::warn!(%error, "what the check has left stays");
        }
        outcome.map_err(|error| cannot(&error))
    }

    /// Starts the generation's process. What it needs for its proof of readiness is made before.
    ///
    /// # Errors
    /// A sentence.
    pub(crate) fn spawn(
        &self,
        config: &ServiceConfig,
        spawner: &Spawner,
    ) -> Result<(Child, Readiness), String> {
        let argv = match (&config.backend, &self.haproxy) {
            (Backend::Command { argv, .. }, _) => argv,
            (_, Some(haproxy)) => &haproxy.run,
            _ => return Err("there is no command to start".to_owned()),
        };
        let cannot =
            |error: io::Error| format!("its proof of readiness can't be prepared: {error}");
        let mut command = self.command(argv).map_err(cannot)?;
        command.listen_fds = config.pass == Pass::ListenFds;
        let mut prepared = None;
        let mut notify = None;
        match &config.ready {
            Ready::Notify => {
                let socket = NotifySocket::bind(self.directory.path()).map_err(cannot)?;
                let path = socket.path().as_os_str().to_owned();
                command.env.push(("NOTIFY_SOCKET".to_owned(), path));
                notify = Some(socket);
            }
            Ready::Fd(number) => {
                let (proof, descriptor) = Proof::newline(*number).map_err(cannot)?;
                command.descriptors.push(descriptor);
                prepared = Some(proof);
            }
            _ => {}
        }
        let label = crate::output::Label {
            service: config.name.as_str().into(),
            generation: self.number,
        };
        let child = spawner
            .spawn(command, Some(label))
            .map_err(|error| error.to_string())?;
        if let Err(error) = self.directory.record_leader(child.pid()) {
            tracing::warn!(%error, "a later gate won't know this generation's process");
        }
        let leader = child.pid();
        let proof = match (&config.ready, notify) {
            _ if let Some(haproxy) = &self.haproxy => {
                Some(Proof::Haproxy(haproxy.stats.address().clone()))
            }
            (Ready::Notify, Some(socket)) => Some(Proof::Notify { socket, leader }),
            (Ready::Exec(argv), _) => Some(Proof::Exec {
                spawner: spawner.clone(),
                argv: self.fill(argv),
                env: self.env.clone(),
            }),
            (Ready::Tcp, _) if !self.kept.is_empty() => Some(Proof::Accepting {
                leader,
                listeners: self.kept.iter().map(|(_, kept)| Arc::clone(kept)).collect(),
                hello: hello(config),
            }),
            _ => prepared,
        };
        let path = match &config.ready {
            Ready::Http(path) => Some(path.clone()),
            _ => None,
        };
        let connects = config.ready == Ready::Tcp && self.haproxy.is_none();
        let readiness = Readiness {
            proof,
            path,
            connects,
            ways: self.ways.clone(),
            hello: hello(config),
        };
        Ok((child, readiness))
    }

    /// Where its HAProxy takes orders, if it is one.
    pub(crate) fn stats(&self) -> Option<&Target> {
        self.haproxy.as_ref().map(|haproxy| haproxy.stats.address())
    }

    /// Makes the paths of its stats sockets lead to it, now that it is active.
    pub(crate) fn publish(&self) {
        for (canonical, private) in self.haproxy.iter().flat_map(|haproxy| &haproxy.links) {
            if let Err(error) = haproxy::publish(canonical, private) {
                tracing::warn!(
                    "the stats socket {} can't be led to the active generation, whose own is {}: {error}",
                    canonical.display(),
                    private.display()
                );
            }
        }
    }

    /// In which ways its server may listen.
    pub(crate) fn ways(&self) -> Ways {
        let probes = self
            .kept
            .iter()
            .map(|(_, kept)| kept.probe().clone())
            .collect();
        Ways {
            ways: self.ways.clone(),
            probes,
        }
    }
}

/// What a probe says first.
pub(crate) fn hello(config: &ServiceConfig) -> Vec<u8> {
    let header = |version| proxy_protocol::header(version, None).to_vec();
    config.gate.send_proxy.map(header).unwrap_or_default()
}

fn add(all: &mut Vec<(String, String)>, words: Vec<(&str, String)>, index: usize, name: &str) {
    for (word, value) in words {
        if index == 0 {
            all.push((word.to_owned(), value.clone()));
        }
        all.push((format!("{word}_{name}"), value));
    }
}

fn take(places: &Mutex<Places>) -> io::Result<SocketAddr> {
    places.lock().unwrap_or_else(PoisonError::into_inner).take()
}

#[cfg(test)]
mod tests;
