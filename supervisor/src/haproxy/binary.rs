//! What is known of an haproxy program.
//!
//! Invariants:
//! - Nothing is assumed that the program hasn't said itself: its version and features come from `haproxy -vv`, and whether an
//!   older one knows an option from `haproxy -c`.
//! - What was learned of a file holds as long as it is the same file. A script may start another program tomorrow, so it is
//!   asked each time.

use std::collections::HashMap;
use std::fs::{File, Metadata};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::sys::memfd::{MFdFlags, memfd_create};

use crate::child::{Outcome, Spawner};
use crate::command::{Command, FIRST_DESCRIPTOR};

/// What a question to the program may take. It needs milliseconds.
const PATIENCE: Duration = Duration::from_secs(10);

/// The first version whose manual has `option idle-close-on-response`.
const IDLE_CLOSE: Version = (2, 6, 0);

/// A configuration that is valid where the option is known.
const PROBE: &str = "\
defaults\n mode http\n timeout connect 1s\n timeout client 1s\n timeout server 1s\n option idle-close-on-response
frontend probe\n bind 127.0.0.1:1\n";

/// Major, minor and patch. Development versions have no patch: 0.
pub type Version = (u32, u32, u32);

/// What an haproxy program says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binary {
    /// Where it was found.
    pub program: PathBuf,
    /// Its version as it writes it: `2.6.12-1+deb12u1`, `3.5-dev5-1234`.
    pub release: String,
    /// The numbers of its version.
    pub version: Version,
    /// What it was built with, in its own words: `OPENSSL`, `LUA`.
    pub features: Vec<String>,
    /// Whether it knows `option idle-close-on-response`.
    pub idle_close: bool,
}

impl Binary {
    /// Whether it was built with this feature.
    pub fn has(&self, feature: &str) -> bool {
        self.features.iter().any(|it| it == feature)
    }
}

/// All programs that were asked so far. Clones share what they know.
#[derive(Debug, Clone, Default)]
pub struct Binaries {
    known: Arc<Mutex<HashMap<PathBuf, (Stamp, Binary)>>>,
}

/// What changes when a file is replaced or written.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    /// Seconds and nanoseconds.
    modified: (i64, i64),
}

impl Stamp {
    fn of(file: &Metadata) -> Self {
        Stamp {
            device: file.dev(),
            inode: file.ino(),
            size: file.size(),
            modified: (file.mtime(), file.mtime_nsec()),
        }
    }
}

impl Binaries {
    /// What is known of `program`, a path or a name to be looked up in PATH; it is run to find out where that isn't known yet.
    ///
    /// # Errors
    /// It can't be run, or it is no HAProxy. The sentence says what to do.
    ///
    /// # Panics
    /// As [`Spawner::spawn`].
    pub async fn of(&self, program: &str, spawner: &Spawner) -> Result<Binary, String> {
        let Some((path, stamp)) = find(program) else {
            // Running it says why there is none.
            return question(Path::new(program), spawner).await;
        };
        // Before it is run: what replaces it meanwhile has another stamp.
        if let Some((known, binary)) = self.lock().get(&path)
            && *known == stamp
        {
            return Ok(binary.clone());
        }
        let binary = question(&path, spawner).await?;
        if !is_script(&path) {
            self.lock().insert(path, (stamp, binary.clone()));
        }
        Ok(binary)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<PathBuf, (Stamp, Binary)>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The file that execvp(3) would run.
fn find(program: &str) -> Option<(PathBuf, Stamp)> {
    let candidates = match program.contains('/') {
        true => vec![PathBuf::from(program)],
        false => {
            let path = std::env::var_os("PATH").unwrap_or_default();
            let directories = std::env::split_paths(&path).filter(|it| !it.as_os_str().is_empty());
            directories.map(|it| it.join(program)).collect()
        }
    };
    candidates.into_iter().find_map(|path| {
        let file = path.metadata().ok()?;
        let runs = file.is_file() && file.permissions().mode() & 0o111 != 0;
        runs.then(|| (path, Stamp::of(&file)))
    })
}

fn is_script(path: &Path) -> bool {
    let mut start = [0; 2];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut start));
    read.is_ok() && start == *b"#!"
}

/// Asks the program all that there is to ask.
async fn question(program: &Path, spawner: &Spawner) -> Result<Binary, String> {
    let Some(word) = program.to_str() else {
        let shown = program.display();
        return Err(format!(
            "the haproxy program {shown} can't be run: its path isn't UTF-8; give it another name"
        ));
    };
    let said = run(spawner, Command::new([word, "-vv"])).await?;
    let text = said.output.text();
    let known = said.end.success().then(|| parse(&text)).flatten();
    let Some((release, version, features)) = known else {
        return Err(format!(
            "`{word} -vv` doesn't say what an HAProxy says ({}): name the haproxy program with --haproxy-binary{}",
            said.end,
            last_words(&said),
        ));
    };
    let idle_close = version >= IDLE_CLOSE || probe(word, spawner).await?;
    Ok(Binary {
        program: program.to_owned(),
        release,
        version,
        features,
        idle_close,
    })
}

/// Whether the program takes [`PROBE`]. `-c` opens no port.
async fn probe(program: &str, spawner: &Spawner) -> Result<bool, String> {
    let refused = |error: io::Error| format!("no configuration can be written to memory: {error}");
    let text = memfd_create(c"haproxy-probe", MFdFlags::MFD_CLOEXEC);
    let mut text = File::from(text.map_err(|errno| refused(errno.into()))?);
    text.write_all(PROBE.as_bytes()).map_err(refused)?;
    let mut command = Command::new([program, "-c", "-f"]);
    command
        .argv
        .push(format!("/proc/self/fd/{FIRST_DESCRIPTOR}"));
    command.descriptors.push((FIRST_DESCRIPTOR, text.into()));
    Ok(run(spawner, command).await?.end.success())
}

async fn run(spawner: &Spawner, command: Command) -> Result<Outcome, String> {
    let outcome = spawner.run_to_end(command, PATIENCE).await;
    outcome.map_err(|error| format!("HAProxy can't be run: {error}"))
}

fn last_words(outcome: &Outcome) -> String {
    let lines = outcome.output.last_lines(3);
    match lines.is_empty() {
        true => String::new(),
        false => format!("; its last lines: {}", lines.join(" | ")),
    }
}

/// Reads the text of `haproxy -vv`, as versions 1.8 to 3.5 write it: release, version, features.
fn parse(text: &str) -> Option<(String, Version, Vec<String>)> {
    let release = text.lines().find_map(|line| {
        let rest = line
            .strip_prefix("HAProxy version ")
            .or_else(|| line.strip_prefix("HA-Proxy version "))?;
        rest.split_whitespace().next()
    })?;
    let mut numbers = release.split('.').map(|part| {
        let end = part.find(|c: char| !c.is_ascii_digit());
        part[..end.unwrap_or(part.len())].parse().ok()
    });
    let version = (
        numbers.next().flatten()?,
        numbers.next().flatten()?,
        numbers.next().flatten().unwrap_or_default(),
    );
    // `Feature list :` says what was chosen when it was built, `Detected feature list :` (3.4) what was found to work.
    let features = text
        .lines()
        .filter_map(|line| {
            let (head, words) = line.split_once(':')?;
            head.trim_end().ends_with("eature list").then_some(words)
        })
        .flat_map(str::split_whitespace)
        .filter_map(|word| word.strip_prefix('+'));
    let features = features.map(String::from).collect();
    Some((release.to_owned(), version, features))
}

#[cfg(test)]
mod tests;
