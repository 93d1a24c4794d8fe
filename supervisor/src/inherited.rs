//! The sockets that the gate was started with: sd_listen_fds(3), from the gate's side.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;

use crate::command::FIRST_DESCRIPTOR;
use crate::sys;

/// What systemd calls a socket without a name.
const UNNAMED: &str = "unknown";

/// Why the variables mean nothing.
#[derive(Debug, thiserror::Error)]
pub enum InheritedError {
    /// A variable can't be read.
    #[error(
        "{name} is `{text}`, which isn't {wanted}: let the service manager set it, or unset LISTEN_PID"
    )]
    Variable {
        /// Its name.
        name: &'static str,
        /// What it says.
        text: String,
        /// What it should be.
        wanted: &'static str,
    },
    /// There are fewer descriptors than announced.
    #[error(
        "LISTEN_FDS announces {announced} sockets, and descriptor {missing} isn't open: {source}"
    )]
    Missing {
        /// LISTEN_FDS.
        announced: usize,
        /// The first that isn't there.
        missing: i32,
        /// Why.
        source: io::Error,
    },
}

/// Takes the sockets that were passed to process `pid`, with their names, and makes them CLOEXEC.
///
/// To be called once, as the first thing that a process does: until then nothing else can have these numbers.
///
/// # Errors
/// The variables are for this process and can't be read, or announce what isn't there.
pub fn take(
    pid: u32,
    environment: &dyn Fn(&str) -> Option<OsString>,
) -> Result<Vec<(String, OwnedFd)>, InheritedError> {
    let names = names(pid, environment)?;
    let announced = names.len();
    let take = |(name, number)| match sys::inherited(number) {
        Ok(socket) => Ok((name, socket)),
        Err(source) => Err(InheritedError::Missing {
            announced,
            missing: number,
            source,
        }),
    };
    names
        .into_iter()
        .zip(FIRST_DESCRIPTOR..)
        .map(take)
        .collect()
}

/// The sockets' names, in their order; none where the variables are another process's.
fn names(
    pid: u32,
    environment: &dyn Fn(&str) -> Option<OsString>,
) -> Result<Vec<String>, InheritedError> {
    let text = |name| environment(name).map(|text| text.to_string_lossy().into_owned());
    let number = |name, wanted| match text(name) {
        None => Ok(None),
        Some(text) => match text.parse::<u32>() {
            Ok(number) => Ok(Some(number)),
            Err(_) => Err(InheritedError::Variable { name, text, wanted }),
        },
    };
    if number("LISTEN_PID", "a process's id")? != Some(pid) {
        return Ok(Vec::new());
    }
    let wanted = "a number of sockets up to 1000";
    let count = match number("LISTEN_FDS", wanted)?.unwrap_or(0) {
        count @ 0..=1000 => count as usize,
        count => {
            let (name, text) = ("LISTEN_FDS", count.to_string());
            return Err(InheritedError::Variable { name, text, wanted });
        }
    };
    let Some(all) = text("LISTEN_FDNAMES").filter(|_| count > 0) else {
        return Ok(vec![UNNAMED.to_owned(); count]);
    };
    let names: Vec<_> = all.split(':').map(str::to_owned).collect();
    if names.len() != count {
        return Err(InheritedError::Variable {
            name: "LISTEN_FDNAMES",
            text: all,
            wanted: "one name a socket, separated by colons",
        });
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names_from(variables: &[(&str, &str)]) -> Result<Vec<String>, String> {
        let environment = |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, text)| OsString::from(text))
        };
        names(7, &environment).map_err(|error| error.to_string())
    }

    #[test]
    fn sockets_are_named_in_their_order() {
        let passed = [
            ("LISTEN_PID", "7"),
            ("LISTEN_FDS", "3"),
            ("LISTEN_FDNAMES", "web:web:"),
        ];
        assert_eq!(names_from(&passed).unwrap(), ["web", "web", ""]);
        assert_eq!(names_from(&passed[..2]).unwrap(), [UNNAMED; 3]);
    }

    #[test]
    fn what_is_another_processs_is_left_alone() {
        assert!(names_from(&[]).unwrap().is_empty());
        let others = [("LISTEN_PID", "8"), ("LISTEN_FDS", "3")];
        assert!(names_from(&others).unwrap().is_empty());
        assert!(names_from(&others[1..]).unwrap().is_empty());
    }

    #[test]
    fn what_cant_be_read_is_named() {
        for (name, text) in [
            ("LISTEN_PID", "x"),
            ("LISTEN_FDS", "-1"),
            ("LISTEN_FDS", "1001"),
            ("LISTEN_FDNAMES", "a:b:c"),
        ] {
            let variables = [(name, text), ("LISTEN_PID", "7"), ("LISTEN_FDS", "2")];
            let error = names_from(&variables).unwrap_err();
            assert!(error.starts_with(&format!("{name} is `{text}`")), "{error}");
        }
    }
}
