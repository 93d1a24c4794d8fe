//! `syngate check`: everything that `run` verifies before it opens a port, and the backend's own check.
//!
//! It opens no port, takes no lock and leaves a running gate alone, so it can stand before a reload.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use nix::sys::resource::{Resource, getrlimit};
use nix::unistd::{AccessFlags, access};
use syngate_supervisor::child::Spawner;
use syngate_supervisor::config::{Backend, Config};
use syngate_supervisor::haproxy::{self, binary::Binaries};
use syngate_supervisor::reaper::Reaper;
use syngate_supervisor::supervisor;

use crate::cli::options::RunArgs;
use crate::complain;
use crate::config::facts::Facts;
use crate::config::{Loader, StartError};

/// Carries out the verb.
pub(crate) fn check(args: RunArgs) -> ExitCode {
    match try_check(args) {
        Ok(summary) => {
            println!("{summary}");
            ExitCode::SUCCESS
        }
        Err(error) => complain(error.exit_code(), &error.to_string()),
    }
}

fn try_check(args: RunArgs) -> Result<String, StartError> {
    let environment = |name: &str| std::env::var_os(name);
    // Sockets are inherited by the gate itself, so their names aren't known here.
    let mut loaded = Loader::new(args, &environment, Facts::gather(None))?.load()?;
    for warning in &loaded.warnings {
        eprintln!("syngate: warning: {warning}");
    }
    commands_are_there(&loaded.config)?;
    let refused = |error| StartError::Refused(format!("the check can't be run: {error}"));
    // The soft limit, which children get: this process doesn't raise its own.
    let nofile = getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |(soft, _)| soft);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(refused)?;
    let process = loaded.config.process.clone();
    // The runtime directory may be a running gate's.
    let scratch = Scratch::make(&process.runtime_dir).map_err(refused)?;
    runtime.block_on(async {
        let spawner = Spawner::new(Reaper::start().map_err(refused)?, nofile).map_err(refused)?;
        for service in &mut loaded.config.services {
            let complete = haproxy::read(service.clone(), &Binaries::default(), &spawner).await;
            *service = complete.map_err(|error| {
                StartError::Invalid(format!("service {}: {error}", service.name))
            })?;
            for warning in haproxy::warnings(service) {
                eprintln!("syngate: warning: {warning}");
            }
            supervisor::check(service, &spawner, &process.runtime_dir, scratch.path())
                .await
                .map_err(|failed| {
                    let output = failed
                        .output
                        .map(|output| format!("\n{}", output.trim_end()));
                    let (name, output) = (&service.name, output.unwrap_or_default());
                    StartError::Invalid(format!("service {name}: {}{output}", failed.why))
                })?;
        }
        Ok(())
    })?;
    Ok(summary(&loaded.config))
}

/// A directory for as long as the checks run.
struct Scratch(PathBuf);

impl Scratch {
    /// In the temp dir; where there is none, in `other`.
    fn make(other: &Path) -> io::Result<Scratch> {
        let name = format!("syngate-check-{}", std::process::id());
        let make = |parent: &Path| {
            let path = parent.join(&name);
            DirBuilder::new().mode(0o700).create(&path)?;
            Ok(Scratch(path))
        };
        make(&std::env::temp_dir()).or_else(|_: io::Error| make(other))
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What can't be removed is left to who cleans the temp dir.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Looks for each service's COMMAND.
pub(crate) fn commands_are_there(config: &Config) -> Result<(), StartError> {
    for service in &config.services {
        if let Backend::Command { argv, .. } = &service.backend {
            can_be_executed(&service.name, &argv[0])?;
        }
    }
    Ok(())
}

/// Refuses a COMMAND that isn't there. One whose name depends on the generation is only known at its start.
fn can_be_executed(service: &str, program: &str) -> Result<(), StartError> {
    let path = std::env::var("PATH").unwrap_or_default();
    let is_there = |path: &Path| path.is_file() && access(path, AccessFlags::X_OK).is_ok();
    let found = if program.contains('{') {
        true
    } else if program.contains('/') {
        is_there(Path::new(program))
    } else {
        std::env::split_paths(&path).any(|dir| is_there(&dir.join(program)))
    };
    if found {
        return Ok(());
    }
    let cure = if program.contains('/') {
        "isn't an executable file: correct the path, or its mode".to_owned()
    } else {
        format!("isn't in PATH ({path}): install it, or give its full path")
    };
    Err(StartError::Refused(format!(
        "service {service}: command `{program}` {cure}"
    )))
}

fn summary(config: &Config) -> String {
    let mut text = "the configuration is good".to_owned();
    for service in &config.services {
        let listeners: Vec<_> = service
            .listeners
            .iter()
            .map(|listener| format!("{}={}", listener.name, listener.address))
            .collect();
        text.push_str(&format!("\n{}: {}", service.name, listeners.join(" ")));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_command_is_the_systems_refusal_and_says_where_it_was_looked_for() {
        assert_eq!(can_be_executed("web", "/bin/sh"), Ok(()));
        assert_eq!(can_be_executed("web", "sh"), Ok(()));
        assert_eq!(can_be_executed("web", "{dir}/app"), Ok(()));
        for (program, says) in [
            ("/nowhere/app", "isn't an executable file"),
            ("/etc", "isn't an executable file"),
            ("no-such-command-here", "isn't in PATH ("),
        ] {
            match can_be_executed("web", program) {
                Err(StartError::Refused(what)) => assert!(what.contains(says), "{what}"),
                other => panic!("{program}: {other:?}"),
            }
        }
    }
}
