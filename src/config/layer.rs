//! What one source said, as text: the flags, the environment, or a table of the file. Layers are laid over each other before
//! anything is parsed, so each option has one parser, wherever it was written.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{ArgAction, ArgMatches, Args, Command, FromArgMatches};

use super::{StartError, value};
use crate::cli::options::{ProcessOptions, ServiceOptions};

/// Where a value was written; what an error begins with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// On the command line.
    Flag(String),
    /// In the environment.
    Variable(String),
    /// In the environment, under marathon-lb's name for it.
    SigtermDelay,
    /// In the file, with the number of its line.
    File(Arc<Path>, usize, String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Flag(key) if key == COMMAND => f.write_str("COMMAND"),
            Origin::Flag(key) => write!(f, "--{}", key.replace('_', "-")),
            Origin::Variable(key) => f.write_str(&variable(key)),
            Origin::SigtermDelay => f.write_str(SIGTERM_DELAY),
            Origin::File(path, line, key) => write!(f, "{}:{line}: {key}", path.display()),
        }
    }
}

/// The key of the command line that starts a backend. The others are the options' names.
pub(crate) const COMMAND: &str = "command";

/// marathon-lb's `drain_timeout`: after so long an old HAProxy is ended, as sleep(1) writes it.
const SIGTERM_DELAY: &str = "HAPROXY_RELOAD_SIGTERM_DELAY";

/// The texts that one option was given, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Given {
    pub(crate) texts: Vec<String>,
    pub(crate) origin: Origin,
}

/// Keys and what they were given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Layer(BTreeMap<String, Given>);

/// The environment as it is read here.
pub(crate) type Environment<'a> = dyn Fn(&str) -> Option<OsString> + 'a;

/// The variable of an option.
pub(crate) fn variable(key: &str) -> String {
    format!("SYNGATE_{}", key.to_ascii_uppercase())
}

/// The options that `A` has, as clap knows them: the one table of keys.
pub(crate) fn options<A: Args>() -> Command {
    A::augment_args(Command::new("syngate").no_binary_name(true))
}

/// Whether an option takes several values.
pub(crate) fn is_repeatable(arg: &clap::Arg) -> bool {
    matches!(arg.get_action(), ArgAction::Append)
}

/// The keys that `A` has.
pub(crate) fn keys<A: Args>() -> Vec<String> {
    options::<A>()
        .get_arguments()
        .map(|arg| arg.get_id().to_string())
        .collect()
}

impl Layer {
    /// What was on the command line; defaults aren't.
    pub(crate) fn from_flags(matches: &ArgMatches) -> Result<Layer, clap::Error> {
        let mut layer = Layer::default();
        for key in keys::<ProcessOptions>()
            .into_iter()
            .chain(keys::<ServiceOptions>())
        {
            if matches.value_source(&key) != Some(ValueSource::CommandLine) {
                continue;
            }
            let raw = matches.get_raw(&key).into_iter().flatten();
            let origin = Origin::Flag(key.clone());
            let texts = raw
                .map(|text| utf8(text, &origin))
                .collect::<Result<_, _>>();
            let texts = texts.map_err(|error| clap::Error::raw(ErrorKind::InvalidUtf8, error))?;
            layer.insert(key, Given { texts, origin });
        }
        Ok(layer)
    }

    /// What is in the environment. Variables that aren't an option's are somebody else's; an empty one is as none.
    pub(crate) fn from_environment(environment: &Environment<'_>) -> Result<Layer, StartError> {
        let mut layer = Layer::default();
        let (process, service) = (options::<ProcessOptions>(), options::<ServiceOptions>());
        for arg in process.get_arguments().chain(service.get_arguments()) {
            let key = arg.get_id().to_string();
            let Some(text) = environment(&variable(&key)).filter(|_| key != COMMAND) else {
                continue;
            };
            let origin = Origin::Variable(key.clone());
            let text = utf8(&text, &origin).map_err(StartError::Invalid)?;
            let texts: Vec<String> = if is_repeatable(arg) {
                text.split_whitespace().map(str::to_owned).collect()
            } else {
                Some(text)
                    .filter(|text| !text.is_empty())
                    .into_iter()
                    .collect()
            };
            if !texts.is_empty() {
                layer.insert(key, Given { texts, origin });
            }
        }
        Ok(layer)
    }

    /// What marathon-lb's environment says of an HAProxy's drain, if it does.
    pub(crate) fn sigterm_delay(
        environment: &Environment<'_>,
    ) -> Result<Option<Given>, StartError> {
        let Some(text) = environment(SIGTERM_DELAY).filter(|text| !text.is_empty()) else {
            return Ok(None);
        };
        let origin = Origin::SigtermDelay;
        let text = utf8(&text, &origin).map_err(StartError::Invalid)?;
        let text = value::sleep(&text).map_err(|what| StartError::at(&origin, what))?;
        Ok(Some(Given {
            texts: vec![text],
            origin,
        }))
    }

    pub(crate) fn insert(&mut self, key: String, given: Given) {
        self.0.insert(key, given);
    }

    /// Where a key was written; `None`: nowhere, it has its default.
    pub(crate) fn origin(&self, key: &str) -> Option<&Origin> {
        self.0.get(key).map(|given| &given.origin)
    }

    /// Whether it is in here.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.0.contains_key(key)
    }

    /// What a key was given.
    #[cfg(test)]
    pub(crate) fn texts(&self, key: &str) -> &[String] {
        self.0.get(key).map_or(&[], |given| &given.texts)
    }

    /// The first of `A`'s keys that is in here.
    pub(crate) fn first_of<A: Args>(&self) -> Option<&Given> {
        keys::<A>().iter().find_map(|key| self.0.get(key))
    }

    /// Puts `other` over this: its keys win.
    pub(crate) fn overlay(&mut self, other: &Layer) {
        self.0.extend(other.0.clone());
    }

    /// Parses the keys that `A` has. Each is parsed alone first, so that an error says where its value was written.
    pub(crate) fn parse<A: Args + FromArgMatches>(&self) -> Result<A, StartError> {
        let mut all = Vec::new();
        let mut command = Vec::new();
        for key in keys::<A>() {
            let Some(given) = self.0.get(&key) else {
                continue;
            };
            if key == COMMAND {
                command = given.texts.clone();
                continue;
            }
            let flag = key.replace('_', "-");
            let args: Vec<String> = given
                .texts
                .iter()
                .map(|text| format!("--{flag}={text}"))
                .collect();
            if let Err(error) = options::<A>().try_get_matches_from(&args) {
                return Err(StartError::at(&given.origin, reason(&error)));
            }
            all.extend(args);
        }
        if !command.is_empty() {
            all.push("--".to_owned());
            all.extend(command);
        }
        options::<A>()
            .try_get_matches_from(all)
            .and_then(|matches| A::from_arg_matches(&matches))
            .map_err(|error| StartError::Invalid(reason(&error)))
    }
}

fn utf8(text: &OsStr, origin: &Origin) -> Result<String, String> {
    text.to_str()
        .map(str::to_owned)
        .ok_or_else(|| format!("{origin} isn't UTF-8: write it in ASCII or UTF-8"))
}

/// Why clap refused a value, without its frame of usage and flags: that would name the wrong place.
fn reason(error: &clap::Error) -> String {
    use std::error::Error;

    if let Some(source) = error.source() {
        return source.to_string();
    }
    match (
        error.get(ContextKind::InvalidValue),
        error.get(ContextKind::ValidValue),
    ) {
        (Some(ContextValue::String(value)), Some(ContextValue::Strings(words))) => {
            format!("`{value}` isn't known: write {}", words.join(" or "))
        }
        _ => error.kind().to_string(),
    }
}
