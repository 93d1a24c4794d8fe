//! Which programs there are, and of which version.

use std::collections::BTreeMap;
use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

use super::Program;

/// Those that were found.
#[derive(Clone, Debug)]
pub(crate) struct Programs {
    found: BTreeMap<Program, (PathBuf, String)>,
}

/// The variable that names a program, the default, and what it is asked for its version.
const SOUGHT: [(Program, &str, &str, &str); 5] = [
    (Program::Syngate, "SYNGATE", "syngate", "--version"),
    (Program::SyngateBefore, "SYNGATE_BEFORE", "", "--version"),
    (Program::HaproxyNew, "HAPROXY_NEW", "", "-v"),
    (Program::Haproxy, "HAPROXY", "haproxy", "-v"),
    (Program::Nginx, "NGINX", "nginx", "-v"),
];

impl Programs {
    /// Looks for all, and says loudly which are missing.
    pub(crate) fn find() -> Programs {
        let mut found = BTreeMap::new();
        for (program, variable, default, flag) in SOUGHT {
            let named = env::var(variable).unwrap_or_else(|_| default.to_owned());
            match version(&named, flag) {
                Some(version) => {
                    found.insert(program, (PathBuf::from(named), version));
                }
                None if program == Program::SyngateBefore && named.is_empty() => {}
                None if named.is_empty() => {
                    Programs::skipped(&format!("a peer, since {variable} names no program"));
                }
                None => Programs::skipped(&format!(
                    "`{named}` doesn't start; {variable} can name another"
                )),
            }
        }
        Programs { found }
    }

    /// The hard limit of open descriptors, which this process and all that it starts may have.
    pub(crate) fn descriptors() -> u64 {
        // Linux answers this for any process about itself.
        let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap_or((1024, 1024));
        hard.min(1 << 20)
    }

    /// Raises this process's limit of open descriptors to the hard one; what it starts inherits it.
    pub(crate) fn raise_descriptors() -> std::io::Result<()> {
        let limit = Programs::descriptors();
        Ok(setrlimit(Resource::RLIMIT_NOFILE, limit, limit)?)
    }

    /// Says loudly that something is left out.
    pub(crate) fn skipped(what: &str) {
        eprintln!("=== SKIPPED: {what} ===");
    }

    pub(crate) fn has(&self, program: Program) -> bool {
        program == Program::Direct || self.found.contains_key(&program)
    }

    /// Empty for what wasn't found: ask [`Programs::has`] first.
    pub(crate) fn path(&self, program: Program) -> &Path {
        self.found
            .get(&program)
            .map_or(Path::new(""), |(path, _)| path)
    }

    /// One line a program, as the program itself says it.
    pub(crate) fn versions(&self) -> Vec<String> {
        self.found
            .values()
            .map(|(_, version)| version.clone())
            .collect()
    }
}

/// The first line that the program says about itself, on stdout or (nginx) on stderr.
fn version(program: &str, flag: &str) -> Option<String> {
    let output = Command::new(program).arg(flag).output().ok()?;
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    // HAProxy adds its address: "... - https://haproxy.org/".
    let line = said.lines().next()?.split(" - ").next()?.trim();
    (!line.is_empty()).then(|| line.to_owned())
}
