//! The environment variables that a configuration sees: the process's, and what its `global` sections make of them as they are
//! read (`setenv`, `presetenv`, `unsetenv`, `resetenv`; configuration manual, sections 2.3 and 3.1).

use std::collections::{HashMap, HashSet};

use super::words::{Value, Word, is_name};

/// What HAProxy sets itself, whatever the process has. Which of them are set, and to what, depends on its version, its command
/// line and on whether it only checks.
const OWN: [&[u8]; 17] = [
    b"HAPROXY_BRANCH",
    b"HAPROXY_CFGFILES",
    b"HAPROXY_CLI",
    b"HAPROXY_HTTPS_LOG_FMT",
    b"HAPROXY_HTTP_CLF_LOG_FMT",
    b"HAPROXY_HTTP_LOG_FMT",
    b"HAPROXY_KEYLOG_BC_LOG_FMT",
    b"HAPROXY_KEYLOG_FC_LOG_FMT",
    b"HAPROXY_LOCALPEER",
    b"HAPROXY_MASTER_CLI",
    b"HAPROXY_MWORKER",
    b"HAPROXY_MWORKER_REEXEC",
    b"HAPROXY_MWORKER_WAIT_ONLY",
    b"HAPROXY_PROCESSES",
    b"HAPROXY_STARTUP_VERSION",
    b"HAPROXY_TCP_CLF_LOG_FMT",
    b"HAPROXY_TCP_LOG_FMT",
];

/// What each generation gets another value of begins so.
const PLACES: &[u8] = b"SYNGATE_";

/// The variables at one moment of the reading.
pub(super) struct Environment<'a> {
    process: &'a dyn Fn(&[u8]) -> Option<Vec<u8>>,
    /// What the configuration has set or unset.
    changed: HashMap<Vec<u8>, Value>,
    /// After a `resetenv`: what is left of the process's.
    kept: Option<HashSet<Vec<u8>>>,
}

impl<'a> Environment<'a> {
    pub(super) fn new(process: &'a dyn Fn(&[u8]) -> Option<Vec<u8>>) -> Self {
        Environment {
            process,
            changed: HashMap::new(),
            kept: None,
        }
    }

    pub(super) fn get(&self, name: &[u8]) -> Value {
        if let Some(value) = self.changed.get(name) {
            return value.clone();
        }
        if OWN.contains(&name) || name.starts_with(PLACES) {
            return Value::Unknown;
        }
        if self.kept.as_ref().is_some_and(|kept| !kept.contains(name)) {
            return Value::Unset;
        }
        (self.process)(name).map_or(Value::Unset, Value::Set)
    }

    /// Takes in a line of a `global` section, if it is one that changes variables.
    ///
    /// Where a name isn't known, nothing is any more: the words are refused (`Err`).
    pub(super) fn apply(&mut self, words: &[Word]) -> Result<(), ()> {
        let Some((keyword, arguments)) = words.split_first() else {
            return Ok(());
        };
        let names = match keyword.text.as_slice() {
            b"setenv" | b"presetenv" => &arguments[..arguments.len().min(1)],
            b"unsetenv" | b"resetenv" => arguments,
            _ => return Ok(()),
        };
        if names.iter().any(|name| !name.known) {
            return Err(());
        }
        let names = names.iter().map(|name| name.text.clone());
        match (keyword.text.as_slice(), arguments) {
            (b"setenv" | b"presetenv", [name, value, ..]) => {
                let keeps = keyword.text == b"presetenv" && self.get(&name.text) != Value::Unset;
                if !keeps {
                    self.changed.insert(name.text.clone(), value_of(value));
                }
            }
            (b"unsetenv", _) => self.changed.extend(names.map(|name| (name, Value::Unset))),
            (b"resetenv", _) => {
                let mut listed: HashSet<Vec<u8>> = names.collect();
                self.changed.retain(|name, _| listed.contains(name));
                if let Some(kept) = &self.kept {
                    listed.retain(|name| kept.contains(name));
                }
                // They are gone too, unless listed.
                for own in OWN.iter().filter(|own| !listed.contains(**own)) {
                    self.changed.insert(own.to_vec(), Value::Unset);
                }
                self.kept = Some(listed);
            }
            _ => {}
        }
        Ok(())
    }

    /// The address parser's own expansion of `$NAME` and `${NAME}`, whatever the quotes were. It knows no default: of
    /// `${NAME-x}` it takes `${NAME` and leaves the rest. `None` where a value isn't known.
    pub(super) fn expand(&self, text: &[u8]) -> Option<Vec<u8>> {
        let mut expanded = Vec::with_capacity(text.len());
        let mut rest = text;
        while let Some(dollar) = rest.iter().position(|&byte| byte == b'$') {
            expanded.extend_from_slice(&rest[..dollar]);
            rest = &rest[dollar + 1..];
            let braced = rest.first() == Some(&b'{');
            rest = &rest[usize::from(braced)..];
            let length = rest.iter().take_while(|&&byte| is_name(byte)).count();
            match self.get(&rest[..length]) {
                Value::Set(value) => expanded.extend(value),
                Value::Unset => {}
                Value::Unknown => return None,
            }
            rest = &rest[length..];
            if braced && rest.first() == Some(&b'}') {
                rest = &rest[1..];
            }
        }
        expanded.extend_from_slice(rest);
        Some(expanded)
    }
}

fn value_of(word: &Word) -> Value {
    match word.known {
        true => Value::Set(word.text.clone()),
        false => Value::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::super::words::split;
    use super::*;

    fn process(name: &[u8]) -> Option<Vec<u8>> {
        (name == b"HOME" || name == b"PORT").then(|| name.to_ascii_lowercase())
    }

    fn read(lines: &[&str]) -> Environment<'static> {
        let mut environment = Environment::new(&process);
        for line in lines {
            let words = split(line.as_bytes(), &|name| environment.get(name)).unwrap();
            environment.apply(&words).unwrap();
        }
        environment
    }

    #[test]
    fn setenv_and_its_kin_do_as_they_say() {
        let environment = read(&[
            "setenv A 1",
            "presetenv A 2",
            "presetenv PORT 3",
            "setenv B \"$A$PORT\"",
        ]);
        assert_eq!(environment.get(b"A"), Value::Set(b"1".to_vec()));
        assert_eq!(environment.get(b"B"), Value::Set(b"1port".to_vec()));
        let environment = read(&["setenv A 1", "setenv B 2", "resetenv A HOME"]);
        assert_eq!(environment.get(b"A"), Value::Set(b"1".to_vec()));
        assert_eq!(environment.get(b"HOME"), Value::Set(b"home".to_vec()));
        assert_eq!(environment.get(b"B"), Value::Unset);
        assert_eq!(environment.get(b"PORT"), Value::Unset);
        assert_eq!(environment.get(b"HAPROXY_CLI"), Value::Unset);
        assert_eq!(read(&["unsetenv HOME"]).get(b"HOME"), Value::Unset);
        assert_eq!(read(&[]).get(b"HAPROXY_CLI"), Value::Unknown);
        assert_eq!(read(&[]).get(b"SYNGATE_DIR"), Value::Unknown);
    }

    #[test]
    fn addresses_are_expanded_as_the_address_parser_does() {
        let environment = read(&["setenv A 127.0.0.1"]);
        let expand = |text: &str| {
            let expanded = environment.expand(text.as_bytes());
            expanded.map(|text| String::from_utf8(text).unwrap())
        };
        assert_eq!(expand("$A:80").as_deref(), Some("127.0.0.1:80"));
        assert_eq!(expand("${A}:80").as_deref(), Some("127.0.0.1:80"));
        assert_eq!(expand("${NOPE}:80").as_deref(), Some(":80"));
        assert_eq!(expand("${NOPE-x}:80").as_deref(), Some("-x}:80"));
        assert_eq!(expand("a$").as_deref(), Some("a"));
        assert_eq!(expand("$HAPROXY_LOCALPEER:80"), None);
    }
}
