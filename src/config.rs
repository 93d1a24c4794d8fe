//! From what was written to what is run: flags over environment over file over defaults, parsed and checked once, before a
//! port opens, and again at each reload.
//!
//! - [`layer`]: what each source said, as text, with its place.
//! - [`file`]: the TOML file as layers.
//! - [`value`]: how a value is written.
//! - [`facts`]: what the machine allows, asked once.
//! - [`placeholders`]: which listeners a COMMAND names.
//! - [`service`]: one service's defaults, contradictions and warnings; those of the whole are here.
//!
//! Invariants: nothing here changes the world, so `syngate check` sees what `syngate run` would; an error says where
//! (`FILE:LINE`, flag or variable), what, and the cure; the first one ends it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use syngate_supervisor::config::{Backend, Config, Pass, ProcessConfig, ServiceConfig};
use syngate_supervisor::exit;

use crate::cli::options::{LogFormat, ProcessOptions, RunArgs, ServiceOptions};
use facts::Facts;
use file::File;
use layer::{Environment, Layer, Origin};

pub(crate) mod facts;
pub(crate) mod file;
pub(crate) mod layer;
mod placeholders;
mod service;
pub(crate) mod value;

/// The name of the one service where no file names any.
const ONLY: &str = "default";

/// Fewer clients than this aren't worth a start.
const FEWEST_CONNECTIONS: u64 = 8;

/// Why there is nothing to run.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum StartError {
    /// What was written is wrong: exit 78.
    #[error("{0}")]
    Invalid(String),
    /// The machine doesn't allow it: exit 71.
    #[error("{0}")]
    Refused(String),
}

impl StartError {
    /// The exit code of a `run` or `check` that ends with this (sysexits(3)).
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            StartError::Invalid(_) => exit::BAD_CONFIGURATION,
            StartError::Refused(_) => exit::REFUSED,
        }
    }

    fn at(origin: &Origin, what: impl std::fmt::Display) -> StartError {
        StartError::Invalid(format!("{origin}: {what}"))
    }
}

/// What there is to read, again and again: flags and environment as they were at the start, the file anew.
#[derive(Debug)]
pub(crate) struct Loader {
    file: Option<PathBuf>,
    flags: Layer,
    environment: Layer,
    sigterm_delay: Option<layer::Given>,
    facts: Facts,
    /// Found once, so that a reload doesn't move it.
    default_control: OnceLock<PathBuf>,
}

/// A configuration, and what else was written.
#[derive(Debug)]
pub(crate) struct Loaded {
    /// What is run.
    pub(crate) config: Config,
    /// How a line of the log looks.
    pub(crate) log_format: LogFormat,
    /// Which lines there are.
    pub(crate) log_level: String,
    /// What works, but hardly as meant; one sentence each.
    pub(crate) warnings: Vec<String>,
    process: Layer,
}

impl Loader {
    /// Reads the environment once. `--config` is also `SYNGATE_CONFIG`.
    pub(crate) fn new(
        args: RunArgs,
        environment: &Environment<'_>,
        facts: Facts,
    ) -> Result<Loader, StartError> {
        let file = environment(&layer::variable("config")).filter(|path| !path.is_empty());
        Ok(Loader {
            file: args.config.or(file.map(PathBuf::from)),
            flags: args.flags,
            environment: Layer::from_environment(environment)?,
            sigterm_delay: Layer::sigterm_delay(environment)?,
            facts,
            default_control: OnceLock::new(),
        })
    }

    /// Reads the file and checks everything.
    pub(crate) fn load(&self) -> Result<Loaded, StartError> {
        let mut file = match &self.file {
            Some(path) => file::parse(path, &read(path)?)?,
            None => File::default(),
        };
        let mut warnings = Vec::new();
        let mut services = Vec::new();
        for written in self.services(file.services)? {
            let options: ServiceOptions = written.keys.parse()?;
            let context = service::Context {
                written: &written,
                facts: &self.facts,
            };
            let service = context.check(options, &mut warnings)?;
            refuse_overlaps(&services, &service, &context)?;
            services.push(service);
        }
        let mut process = std::mem::take(&mut file.process);
        process.overlay(&self.environment);
        process.overlay(&self.flags);
        let options: ProcessOptions = process.parse()?;
        Ok(Loaded {
            config: Config {
                process: self.process(&options, &process, &services, &mut warnings)?,
                services,
            },
            log_format: options.log_format,
            log_level: options.log_level,
            warnings,
            process,
        })
    }

    /// Lays flags and environment over the services of the file.
    fn services(&self, mut services: Vec<file::Service>) -> Result<Vec<file::Service>, StartError> {
        if services.is_empty() {
            services.push(file::Service::unwritten(ONLY));
        }
        if services.len() > 1 {
            let stray = [&self.flags, &self.environment]
                .into_iter()
                .find_map(Layer::first_of::<ServiceOptions>);
            if let Some(given) = stray {
                return Err(StartError::at(
                    &given.origin,
                    "the file has several services, and this doesn't say which is meant: write it into the file",
                ));
            }
        }
        for service in &mut services {
            service.keys.overlay(&self.environment);
            service.keys.overlay(&self.flags);
            if let Some(delay) = &self.sigterm_delay
                && service.keys.has("haproxy")
                && !service.keys.has("drain_timeout")
            {
                service
                    .keys
                    .insert("drain_timeout".to_owned(), delay.clone());
            }
        }
        Ok(services)
    }

    fn default_control(&self) -> Result<PathBuf, StartError> {
        if let Some(found) = self.default_control.get() {
            return Ok(found.clone());
        }
        let found = (self.facts.default_control)()
            .map_err(|error| StartError::Refused(error.to_string()))?;
        Ok(self.default_control.get_or_init(|| found).clone())
    }

    fn process(
        &self,
        options: &ProcessOptions,
        keys: &Layer,
        services: &[ServiceConfig],
        warnings: &mut Vec<String>,
    ) -> Result<ProcessConfig, StartError> {
        let control = match &options.control {
            Some(path) => path.clone(),
            None => self.default_control()?,
        };
        let runtime_dir = match &options.runtime_dir {
            Some(path) => path.clone(),
            None => match control.parent() {
                Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
                _ => PathBuf::from("."),
            },
        };
        let workers = options.workers.unwrap_or(self.facts.cores);
        let allowed = allowed_connections(self.facts.nofile, workers.into(), services);
        if allowed < FEWEST_CONNECTIONS {
            return Err(StartError::Refused(format!(
                "the limit of {} open descriptors leaves room for {allowed} connections, and fewer than {FEWEST_CONNECTIONS} aren't worth a start: raise it (ulimit -Hn, LimitNOFILE=, --ulimit nofile)",
                self.facts.nofile
            )));
        }
        if let (Some(asked), Some(origin)) =
            (options.max_connections, keys.origin("max_connections"))
            && asked > allowed
        {
            warnings.push(format!(
                "{origin}: {asked} connections need more than the {} descriptors that this process may open: accepting pauses near {allowed}; raise the limit (ulimit -Hn, LimitNOFILE=, --ulimit nofile)",
                self.facts.nofile
            ));
        }
        Ok(ProcessConfig {
            control,
            runtime_dir,
            metrics: options.metrics.0,
            workers: workers.into(),
            max_connections: options.max_connections.unwrap_or(allowed),
            pending_max: options.pending_max,
            lame_duck: options.lame_duck,
            shutdown_timeout: options.shutdown_timeout,
        })
    }
}

impl Loaded {
    /// Refuses what a reload can't change, against what the gate started with.
    pub(crate) fn refuse_changes(&self, start: &Loaded) -> Result<(), StartError> {
        let (new, old) = (&self.config.process, &start.config.process);
        let fixed = [
            ("control", new.control == old.control),
            ("runtime_dir", new.runtime_dir == old.runtime_dir),
            ("metrics", new.metrics == old.metrics),
            ("workers", new.workers == old.workers),
            ("log_format", self.log_format == start.log_format),
            ("log_level", self.log_level == start.log_level),
        ];
        match fixed.iter().find(|(_, same)| !same) {
            None => Ok(()),
            Some((key, _)) => {
                let written = |loaded: &Loaded| loaded.process.origin(key).cloned();
                let place = written(self).or_else(|| written(start));
                let place = place.map_or_else(|| (*key).to_owned(), |origin| origin.to_string());
                Err(StartError::Invalid(format!(
                    "{place}: {key} is fixed for the life of the gate: put the old value back, or restart the gate"
                )))
            }
        }
    }
}

fn read(path: &Path) -> Result<String, StartError> {
    std::fs::read_to_string(path).map_err(|error| {
        let what = match error.kind() {
            io::ErrorKind::InvalidData => "isn't UTF-8: save it as UTF-8".to_owned(),
            io::ErrorKind::IsADirectory => "is a directory: name the file with --config".to_owned(),
            io::ErrorKind::NotFound => "doesn't exist: name another with --config".to_owned(),
            _ => format!(
                "can't be read ({error}): let uid {} read it",
                nix::unistd::geteuid()
            ),
        };
        StartError::Invalid(format!("{} {what}", path.display()))
    })
}

/// What the process needs for itself however low the limit is: logs, sockets, event queues, one reload, a scrape, a client of
/// the control socket; and two event queues a worker.
const OWN_DESCRIPTORS: u64 = 40;

/// Two descriptors a client, less what else is open: a reserve for files and sockets of the process itself, the listeners,
/// and their kept ones (ours, and a duplicate for the start of the next) for each generation that may live. HAProxy's listeners
/// aren't known here, and may come with any reload: it gets a quarter.
fn allowed_connections(nofile: u64, workers: u64, services: &[ServiceConfig]) -> u64 {
    let listeners: u64 = services
        .iter()
        .map(|service| {
            if matches!(service.backend, Backend::Haproxy(_)) {
                return nofile / 4;
            }
            let kept = match service.pass {
                Pass::None => 0,
                Pass::Fd | Pass::ListenFds => 2 * service.max_generations as u64,
            };
            service.listeners.len() as u64 * (1 + kept)
        })
        .sum();
    let own = OWN_DESCRIPTORS + 2 * workers;
    let reserve = (nofile / 4).min(128).max(own) + listeners;
    nofile.saturating_sub(reserve) / 2
}

/// Refuses a service that listens where it or an earlier one does already.
fn refuse_overlaps(
    earlier: &[ServiceConfig],
    service: &ServiceConfig,
    context: &service::Context<'_>,
) -> Result<(), StartError> {
    for (index, listener) in service.listeners.iter().enumerate() {
        let before = earlier
            .iter()
            .flat_map(|other| other.listeners.iter().map(move |taken| (other, taken)))
            .chain(
                service.listeners[..index]
                    .iter()
                    .map(|taken| (service, taken)),
            );
        for (other, taken) in before {
            if taken.overlaps(listener) {
                return Err(context.error(
                    "listen",
                    format_args!(
                        "{} is taken by {} of listener {} of service {}: remove one",
                        listener.address, taken.address, taken.name, other.name
                    ),
                ));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
