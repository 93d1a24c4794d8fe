//! The TOML file as layers of text. Its keys are the options' names; it knows no value's meaning.

use std::path::Path;
use std::sync::Arc;

use clap::Args;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::StartError;
use super::layer::{self, COMMAND, Given, Layer, Origin};
use super::value;
use crate::cli::options::{ProcessOptions, ServiceOptions};

/// What a file says.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct File {
    /// The keys at the top.
    pub(crate) process: Layer,
    /// `[services.NAME]`, in the file's order.
    pub(crate) services: Vec<Service>,
}

/// One `[services.NAME]`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Service {
    pub(crate) name: String,
    /// `FILE:LINE` of its heading, if it is in a file.
    pub(crate) place: Option<String>,
    pub(crate) keys: Layer,
}

impl Service {
    /// One that no file has.
    pub(crate) fn unwritten(name: &str) -> Service {
        Service {
            name: name.to_owned(),
            place: None,
            keys: Layer::default(),
        }
    }
}

/// Where a table of the file stands.
#[derive(Clone, Copy)]
enum Place<'a> {
    Top,
    Service(&'a str),
}

/// Parses a file's text. `path` is what errors call it.
pub(crate) fn parse(path: &Path, text: &str) -> Result<File, StartError> {
    let source = Source {
        path: path.into(),
        text,
    };
    let table = DeTable::parse(text).map_err(|error| {
        let line = error.span().map_or(1, |span| source.line(span.start));
        source.error(line, error.message())
    })?;
    let mut file = File::default();
    for (key, value) in in_order(table.get_ref()) {
        if key.get_ref() == "services" {
            file.services = source.services(value)?;
        } else {
            source.take::<ProcessOptions>(&mut file.process, Place::Top, key, value)?;
        }
    }
    Ok(file)
}

type Key<'a> = Spanned<std::borrow::Cow<'a, str>>;
type Value<'a> = Spanned<DeValue<'a>>;

/// A table's entries as they were written; the table itself sorts them by key.
fn in_order<'t, 'a>(table: &'t DeTable<'a>) -> Vec<(&'t Key<'a>, &'t Value<'a>)> {
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    entries
}

struct Source<'a> {
    path: Arc<Path>,
    text: &'a str,
}

impl Source<'_> {
    fn line(&self, offset: usize) -> usize {
        1 + self.text[..offset].matches('\n').count()
    }

    fn error(&self, line: usize, what: &str) -> StartError {
        StartError::Invalid(format!("{}:{line}: {what}", self.path.display()))
    }

    fn services(&self, value: &Value<'_>) -> Result<Vec<Service>, StartError> {
        let Some(services) = value.get_ref().as_table() else {
            let line = self.line(value.span().start);
            return Err(self.error(line, "services must be a table: write [services.NAME]"));
        };
        let mut all = Vec::new();
        for (name, value) in in_order(services) {
            let line = self.line(name.span().start);
            let name = name.get_ref().to_string();
            if !value::is_service_name(&name) {
                let what = format!(
                    "`{name}` can't be a service's name: use a to z, 0 to 9, _ and -, at most 63 of them"
                );
                return Err(self.error(line, &what));
            }
            let Some(table) = value.get_ref().as_table() else {
                let what = format!("services.{name} must be a table: write [services.{name}]");
                return Err(self.error(line, &what));
            };
            let mut keys = Layer::default();
            for (key, value) in in_order(table) {
                self.take::<ServiceOptions>(&mut keys, Place::Service(&name), key, value)?;
            }
            let place = Some(format!("{}:{line}", self.path.display()));
            all.push(Service { name, place, keys });
        }
        Ok(all)
    }

    /// Puts one entry into `layer`, if `A` has such a key.
    fn take<A: Args>(
        &self,
        layer: &mut Layer,
        place: Place<'_>,
        key: &Key<'_>,
        value: &Value<'_>,
    ) -> Result<(), StartError> {
        let line = self.line(key.span().start);
        let name = key.get_ref().as_ref();
        let options = layer::options::<A>();
        let Some(arg) = options.get_arguments().find(|arg| arg.get_id() == name) else {
            return Err(self.error(line, &unknown(name, place)));
        };
        let texts = texts(name, layer::is_repeatable(arg), value.get_ref())
            .map_err(|what| self.error(line, &format!("{name}: {what}")))?;
        let origin = Origin::File(Arc::clone(&self.path), line, name.to_owned());
        layer.insert(name.to_owned(), Given { texts, origin });
        Ok(())
    }
}

/// What to say of a key that isn't known in a place.
fn unknown(name: &str, place: Place<'_>) -> String {
    let (here, there) = (
        layer::keys::<ProcessOptions>(),
        layer::keys::<ServiceOptions>(),
    );
    let (here, there, belongs) = match place {
        Place::Top => (here, there, "it belongs into [services.NAME]".to_owned()),
        Place::Service(service) => {
            let belongs = format!(
                "it belongs to the gate, not to {service}: write it above all [services.NAME]"
            );
            (there, here, belongs)
        }
    };
    if there.iter().any(|key| key == name) {
        return format!("`{name}` can't stand here: {belongs}");
    }
    if let Place::Top = place
        && strsim::damerau_levenshtein(name, "services") <= 2
    {
        return format!("unknown table `{name}`: did you mean [services.NAME]?");
    }
    let near: Vec<_> = here
        .iter()
        .filter(|key| {
            strsim::damerau_levenshtein(key, name) <= 2 || strsim::jaro_winkler(key, name) > 0.9
        })
        .map(|key| format!("`{key}`"))
        .collect();
    if near.is_empty() {
        format!("unknown key `{name}`: remove it, or see `syngate run --help` for the names")
    } else {
        format!("unknown key `{name}`: did you mean {}?", near.join(" or "))
    }
}

/// A value as the texts that its parser takes.
fn texts(name: &str, repeatable: bool, value: &DeValue<'_>) -> Result<Vec<String>, String> {
    let items = match value {
        DeValue::Array(items) => items
            .iter()
            .map(|item| scalar(item.get_ref()))
            .collect::<Result<Vec<_>, _>>()?,
        single => {
            let text = scalar(single)?;
            return if name == COMMAND {
                value::command(&text)
            } else {
                Ok(vec![text])
            };
        }
    };
    if items.is_empty() {
        return Err("the array is empty: give a value, or remove the key".into());
    }
    match name {
        COMMAND => Ok(items),
        "check" => Ok(vec![quoted(&items)?]),
        "ready" => match items[0].strip_prefix("exec:") {
            Some(program) => {
                let mut argv = items.clone();
                argv[0] = program.to_owned();
                Ok(vec![format!("exec:{}", quoted(&argv)?)])
            }
            None => Err("an array must begin with \"exec:PROGRAM\"".into()),
        },
        "accept_proxy" => Ok(vec![items.join(",")]),
        _ if repeatable => Ok(items),
        _ => Err("takes one value, not an array".into()),
    }
}

fn quoted(argv: &[String]) -> Result<String, String> {
    shlex::try_join(argv.iter().map(String::as_str))
        .map_err(|_| "a command can't have a NUL in it: remove it".to_owned())
}

fn scalar(value: &DeValue<'_>) -> Result<String, String> {
    match value {
        DeValue::String(text) => Ok(text.to_string()),
        DeValue::Integer(number) => Ok(number.to_string()),
        DeValue::Boolean(truth) => Ok(truth.to_string()),
        other => Err(format!(
            "wants a string or a number, not a {}",
            other.type_str()
        )),
    }
}

#[cfg(test)]
#[path = "file_tests.rs"]
mod tests;
