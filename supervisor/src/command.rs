//! What to start: a command, and all that its process finds when it begins.
//!
//! Invariants:
//! - What the gate's own supervisor told the gate (`NOTIFY_SOCKET`, `WATCHDOG_*`, `LISTEN_*`) isn't passed on.
//! - Standard input is `/dev/null`; beyond 0 to 2 there are only the descriptors that the command names, each number
//!   once.
//! - Nothing is left to do for the child: an image is complete.

use std::ffi::{CString, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use crate::sys::{Failure, Image, Step};

/// Variables that the gate's own supervisor set for the gate alone.
pub(crate) const OURS: [&str; 6] = [
    "NOTIFY_SOCKET",
    "WATCHDOG_USEC",
    "WATCHDOG_PID",
    "LISTEN_FDS",
    "LISTEN_FDNAMES",
    "LISTEN_PID",
];

/// Number of the first descriptor that is passed (SD_LISTEN_FDS_START).
pub const FIRST_DESCRIPTOR: RawFd = 3;

/// Where a bare command name is looked up when PATH isn't set.
const DEFAULT_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// A command to start.
#[derive(Debug, Default)]
pub struct Command {
    /// The program and its arguments. A program without a slash is looked up in the child's PATH at each start; empty
    /// elements of PATH are skipped.
    pub argv: Vec<String>,
    /// Variables to add to the environment of the gate, or to replace there.
    pub env: Vec<(String, OsString)>,
    /// Listening sockets with their names, passed as descriptors 3, 4, 5 ... in this order.
    pub listeners: Vec<(String, OwnedFd)>,
    /// Set LISTEN_FDS, LISTEN_FDNAMES and LISTEN_PID for `listeners` (sd_listen_fds(3)).
    pub listen_fds: bool,
    /// Other descriptors, each with the number that it gets in the child.
    pub descriptors: Vec<(RawFd, OwnedFd)>,
    /// Working directory; the gate's own if none.
    pub directory: Option<PathBuf>,
}

impl Command {
    /// A command with these words and nothing else.
    pub fn new(argv: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Command {
            argv: argv.into_iter().map(Into::into).collect(),
            ..Command::default()
        }
    }
}

/// Why a command didn't start.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// There is no word in the command.
    #[error("the command is empty: name the program to start")]
    Empty,
    /// A word or a variable contains a NUL byte, which no program can receive.
    #[error("`{0}` contains a NUL byte: take it out of the command or its environment")]
    Nul(String),
    /// No directory of PATH has it.
    #[error("command `{program}` wasn't found in PATH ({path}): install it, or give its full path")]
    NotInPath {
        /// The command's first word.
        program: String,
        /// PATH as searched.
        path: String,
    },
    /// The file doesn't exist.
    #[error("command `{0}` doesn't exist: install it, or correct the path")]
    NotFound(String),
    /// The file exists, but what its first line names doesn't.
    #[error("command `{0}` can't be executed: the interpreter or loader that it needs is missing")]
    NoInterpreter(String),
    /// Permission denied.
    #[error(
        "command `{0}` can't be executed: permission denied; check its mode, its directories and `noexec` mounts"
    )]
    Denied(String),
    /// The kernel can't execute this file.
    #[error(
        "command `{0}` can't be executed: it isn't a program for this machine; a script needs a `#!` line"
    )]
    NotExecutable(String),
    /// The working directory can't be entered.
    #[error("command `{program}` can't be started in directory {}: {source}", directory.display())]
    Directory {
        /// The command's first word.
        program: String,
        /// The directory asked for.
        directory: PathBuf,
        /// The kernel's reason.
        source: io::Error,
    },
    /// Two descriptors should get one number, or a number below 3.
    #[error("descriptor {0} can't be passed: the number is taken; choose another one")]
    DescriptorTaken(RawFd),
    /// No pipe for its output.
    #[error("no pipe can be made for a command's output: {0}; check the limit on descriptors")]
    Pipe(io::Error),
    /// The system refused: processes, memory, descriptors.
    #[error(
        "command `{program}` can't be started: {source}; check the limits on processes, memory and descriptors"
    )]
    System {
        /// The command's first word.
        program: String,
        /// The kernel's reason.
        source: io::Error,
    },
}

/// What every child has from the gate, as it was at the start.
#[derive(Clone)]
pub(crate) struct Inherited {
    variables: Vec<(OsString, OsString)>,
    /// Soft RLIMIT_NOFILE.
    nofile: u64,
}

impl Inherited {
    /// Keeps what isn't the gate's alone.
    pub(crate) fn of(variables: impl Iterator<Item = (OsString, OsString)>, nofile: u64) -> Self {
        let passed_on = |(name, _): &(OsString, OsString)| OURS.iter().all(|ours| name != ours);
        Inherited {
            variables: variables.filter(passed_on).collect(),
            nofile,
        }
    }

    /// Makes the image of `command`, which prints to `output`, and remembers where its program is looked for.
    pub(crate) fn image(
        &self,
        command: Command,
        output: OwnedFd,
    ) -> Result<(Image, Search), SpawnError> {
        let variables = self.variables_of(&command);
        let path = variables.iter().find(|(name, _)| name == "PATH");
        let search = Search {
            program: command.argv.first().cloned().ok_or(SpawnError::Empty)?,
            path: path.map_or(DEFAULT_PATH.into(), |(_, path)| path.clone()),
            directory: command.directory,
        };
        let stdin = File::open("/dev/null").map_err(|source| search.system(source))?;
        let candidates = search.candidates();
        let programs = candidates
            .iter()
            .map(|path| c_string(path.as_os_str().as_bytes()));
        let argv = command.argv.iter().map(|word| c_string(word.as_bytes()));
        let env = variables
            .iter()
            .map(|(name, value)| c_string(&[name.as_bytes(), b"=", value.as_bytes()].concat()));
        let directory = search
            .directory
            .as_ref()
            .map(|it| c_string(it.as_os_str().as_bytes()));
        let image = Image {
            programs: programs.collect::<Result<_, _>>()?,
            argv: argv.collect::<Result<_, _>>()?,
            env: env.collect::<Result<_, _>>()?,
            listen_pid: command.listen_fds,
            directory: directory.transpose()?,
            stdin: stdin.into(),
            output,
            passed: numbered(command.listeners, command.descriptors)?,
            nofile: self.nofile,
        };
        Ok((image, search))
    }

    /// The variables of the child, each name once: the command's own win.
    fn variables_of(&self, command: &Command) -> Vec<(OsString, OsString)> {
        let mut variables = self.variables.clone();
        let mut set = |name: &str, value: OsString| {
            variables.retain(|(other, _)| other != name);
            variables.push((name.into(), value));
        };
        for (name, value) in &command.env {
            set(name, value.clone());
        }
        if command.listen_fds {
            let names: Vec<&str> = command
                .listeners
                .iter()
                .map(|(name, _)| name.as_str())
                .collect();
            set("LISTEN_FDS", names.len().to_string().into());
            set("LISTEN_FDNAMES", names.join(":").into());
        }
        variables
    }
}

/// Gives the listeners the numbers from [`FIRST_DESCRIPTOR`] on.
fn numbered(
    listeners: Vec<(String, OwnedFd)>,
    descriptors: Vec<(RawFd, OwnedFd)>,
) -> Result<Vec<(RawFd, OwnedFd)>, SpawnError> {
    let listeners = listeners.into_iter().map(|(_, listener)| listener);
    let mut passed: Vec<(RawFd, OwnedFd)> = (FIRST_DESCRIPTOR..).zip(listeners).collect();
    for (number, descriptor) in descriptors {
        if number < FIRST_DESCRIPTOR || passed.iter().any(|(taken, _)| *taken == number) {
            return Err(SpawnError::DescriptorTaken(number));
        }
        passed.push((number, descriptor));
    }
    Ok(passed)
}

fn c_string(bytes: &[u8]) -> Result<CString, SpawnError> {
    CString::new(bytes).map_err(|_| SpawnError::Nul(String::from_utf8_lossy(bytes).into_owned()))
}

/// Where a program is looked for.
pub(crate) struct Search {
    program: String,
    path: OsString,
    directory: Option<PathBuf>,
}

impl Search {
    /// The paths to try, in this order.
    fn candidates(&self) -> Vec<PathBuf> {
        if self.program.contains('/') {
            return vec![self.program.clone().into()];
        }
        let directories = std::env::split_paths(&self.path);
        let directories = directories.filter(|directory| !directory.as_os_str().is_empty());
        directories
            .map(|directory| directory.join(&self.program))
            .collect()
    }

    pub(crate) fn system(&self, source: io::Error) -> SpawnError {
        SpawnError::System {
            program: self.program.clone(),
            source,
        }
    }

    /// Turns a step and an errno into a sentence.
    pub(crate) fn explain(
        self,
        Failure {
            step,
            error: source,
        }: Failure,
    ) -> SpawnError {
        match (step, source.raw_os_error()) {
            (Step::Exec, Some(libc::ENOENT | libc::ENOTDIR)) => self.not_found(),
            (Step::Exec, Some(libc::EACCES | libc::EPERM)) => SpawnError::Denied(self.program),
            (Step::Exec, Some(libc::ENOEXEC)) => SpawnError::NotExecutable(self.program),
            (Step::Directory, _) => SpawnError::Directory {
                program: self.program,
                directory: self.directory.unwrap_or_default(),
                source,
            },
            _ => self.system(source),
        }
    }

    /// The kernel says the same of a missing program and of one whose interpreter is missing.
    fn not_found(self) -> SpawnError {
        let from = self.directory.clone().unwrap_or_default();
        let mut candidates = self.candidates().into_iter();
        match candidates.find(|candidate| from.join(candidate).is_file()) {
            Some(found) => SpawnError::NoInterpreter(found.display().to_string()),
            None if self.program.contains('/') => SpawnError::NotFound(self.program),
            None => SpawnError::NotInPath {
                program: self.program,
                path: self.path.to_string_lossy().into_owned(),
            },
        }
    }
}
