//! What a command says about its listeners, and what can be known of it before a start.

use std::path::{Path, PathBuf};

use crate::config::{Backend, Pass, ServiceConfig};

/// The longest path of a unix socket, in bytes (unix(7), without the NUL).
const LONGEST_PATH: usize = 107;

/// What a command says about its listeners.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Named {
    pub(super) tcp: bool,
    pub(super) unix: bool,
}

impl Named {
    pub(super) fn in_command(argv: &[String]) -> Named {
        let names = |words: [&str; 2]| {
            argv.iter()
                .any(|arg| words.iter().any(|word| arg.contains(word)))
        };
        Named {
            tcp: names(["{addr", "{port"]) || names(["SYNGATE_ADDR", "SYNGATE_PORT"]),
            unix: names(["{socket", "SYNGATE_SOCKET"]),
        }
    }
}

/// What can be known before a start: the command is there, and a unix socket's path isn't too long. `directory` is the runtime
/// directory.
///
/// # Errors
/// A sentence.
pub(crate) fn check(config: &ServiceConfig, directory: &Path) -> Result<(), String> {
    let Backend::Command { argv, fixed } = &config.backend else {
        return Ok(());
    };
    let named = Named::in_command(argv);
    if config.pass != Pass::None || !fixed.is_empty() || !named.unix {
        return Ok(());
    }
    // As long as a path can get in this gate's life.
    let directory = directory.join(format!("gen-{}-{}", config.name, u32::MAX));
    for listener in &config.listeners {
        let path = socket_path(&directory, &listener.name);
        let length = path.as_os_str().len();
        if length > LONGEST_PATH {
            return Err(format!(
                "the path of the unix socket, {}, can have {length} bytes, and {LONGEST_PATH} are possible: choose a shorter runtime_dir",
                path.display()
            ));
        }
    }
    Ok(())
}

pub(super) fn socket_path(directory: &Path, listener: &str) -> PathBuf {
    directory.join(format!("{listener}.sock"))
}

/// Makes sure that there is a program to start; the start itself says more, but then the ports are open already.
///
/// # Errors
/// A sentence.
pub(crate) fn find_program(config: &ServiceConfig) -> Result<(), String> {
    let Backend::Command { argv, .. } = &config.backend else {
        return Ok(());
    };
    let Some(program) = argv.first() else {
        return Err("the command is empty: name the program to start".to_owned());
    };
    let path = std::env::var_os("PATH");
    let found = match (program.contains('/'), &path) {
        (true, _) => Path::new(program).is_file(),
        (false, Some(path)) => {
            std::env::split_paths(path).any(|directory| directory.join(program).is_file())
        }
        // The default of execvp(3) is looked at when it starts.
        (false, None) => true,
    };
    if found {
        return Ok(());
    }
    Err(format!(
        "command `{program}` doesn't exist: install it, or give its full path"
    ))
}
