//! From what was written to what is run.
//!
//! | file | what must hold |
//! | --- | --- |
//! | `defaults` | what holds where nothing is written |
//! | `sources` | flags, variables and file are read alike, the first wins, and a bad value names its place |
//! | `service` | what one service can't mean, and what it hardly means |
//! | `process` | what the machine, the other services and a running gate don't allow |

mod defaults;
mod process;
mod service;
mod sources;

use std::ffi::OsString;

use clap::Parser;

use super::*;
use crate::cli::{Cli, Verb};

fn facts() -> Facts {
    Facts {
        default_control: || Ok(PathBuf::from("/run/syngate/control.sock")),
        nofile: 1024,
        cores: 4,
        ephemeral_ports: 32768..=60999,
        inherited: Some(vec!["web".to_owned(), "tls".to_owned()]),
    }
}

fn args(line: &str) -> RunArgs {
    let words = ["syngate", "run"]
        .into_iter()
        .chain(line.split_whitespace());
    match Cli::try_parse_from(words) {
        Ok(Cli {
            verb: Verb::Run(args),
        }) => args,
        other => panic!("{line}: {other:?}"),
    }
}

fn loader_with(line: &str, variables: &[(&str, &str)], facts: Facts) -> Result<Loader, StartError> {
    let environment = |name: &str| {
        let found = variables.iter().find(|(known, _)| *known == name);
        found.map(|(_, text)| OsString::from(text))
    };
    Loader::new(args(line), &environment, facts)
}

/// Loads what flags say.
fn flags(line: &str) -> Result<Loaded, StartError> {
    loader_with(line, &[], facts())?.load()
}

/// Loads a file, under the name `gate.toml`, beneath flags and variables.
fn file(text: &str, line: &str, variables: &[(&str, &str)]) -> Result<Loaded, String> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("gate.toml");
    std::fs::write(&path, text).unwrap();
    let path = path.display().to_string();
    loader_with(&format!("--config {path} {line}"), variables, facts())
        .and_then(|loader| loader.load())
        .map_err(|error| error.to_string().replace(&path, "gate.toml"))
}

#[track_caller]
fn refuses(line: &str, says: &str) {
    assert_eq!(
        flags(line).unwrap_err(),
        StartError::Invalid(says.to_owned())
    );
}

fn only(loaded: Loaded) -> ServiceConfig {
    let [service] = <[_; 1]>::try_from(loaded.config.services).unwrap();
    service
}
