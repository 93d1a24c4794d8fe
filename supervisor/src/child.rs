//! Children: what to start, starting it, and what can be done with it while it runs.
//!
//! Invariants:
//! - A child has a process group of its own, standard input from `/dev/null`, no descriptor but 0 to 2 and those passed
//!   on purpose, default signal dispositions, an empty mask, and the soft RLIMIT_NOFILE that the gate had found.
//! - What the gate's own supervisor told the gate (`NOTIFY_SOCKET`, `WATCHDOG_*`, `LISTEN_*`) isn't passed on.
//! - A child gets SIGTERM when the spawning *thread* ends (PR_SET_PDEATHSIG); so one thread starts them all.
//! - No process without an owner: a [`Child`] that is dropped takes its group along, and the end of the leader ends
//!   the group ([`crate::reaper`]).

use std::ffi::{CString, OsString};
use std::fs::File;
use std::future::Future;
use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::thread::ThreadId;
use std::time::Duration;

use nix::fcntl::OFlag;
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use tokio::net::unix::pipe;
use tokio::sync::watch;

use crate::output::{Label, Log, Output, pump};
use crate::reaper::{Exit, Leader, Reaper};
use crate::sys::{self, Failure, Image, Step};

/// Variables that the gate's own supervisor set for the gate alone.
const OURS: [&str; 6] = [
    "NOTIFY_SOCKET",
    "WATCHDOG_USEC",
    "WATCHDOG_PID",
    "LISTEN_FDS",
    "LISTEN_FDNAMES",
    "LISTEN_PID",
];

/// Number of the first descriptor that is passed (SD_LISTEN_FDS_START).
pub const FIRST_DESCRIPTOR: RawFd = 3;

/// Whether a variable of the gate is also its children's.
fn passed_on((name, _): &(OsString, OsString)) -> bool {
    OURS.iter().all(|ours| name != ours)
}

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

/// Starts children. Everything that they inherit from the gate is captured when it is made.
#[derive(Clone)]
pub struct Spawner {
    reaper: Reaper,
    log: Log,
    environment: Vec<(OsString, OsString)>,
    nofile: u64,
    thread: ThreadId,
}

impl Spawner {
    /// Captures the environment and this thread, and starts the thread that logs the children's output. `nofile` is the
    /// soft RLIMIT_NOFILE as the gate found it, before it raised its own.
    ///
    /// # Errors
    /// That thread can't be started.
    pub fn new(reaper: Reaper, nofile: u64) -> io::Result<Self> {
        Ok(Spawner {
            reaper,
            log: Log::start()?,
            environment: std::env::vars_os().filter(passed_on).collect(),
            nofile,
            thread: std::thread::current().id(),
        })
    }

    /// Starts `command`. Its lines go to the log under `label`, if there is one.
    ///
    /// Returns when the program was executed, so an error here says that it never ran. Needs a tokio runtime.
    ///
    /// # Errors
    /// The command can't be found or executed, or the system refuses.
    ///
    /// # Panics
    /// On another thread than that of [`Spawner::new`]: the child would get SIGTERM when that thread ends.
    pub fn spawn(&self, command: Command, label: Option<Label>) -> Result<Child, SpawnError> {
        assert_eq!(
            std::thread::current().id(),
            self.thread,
            "children are started by one thread"
        );
        let program = command.argv.first().cloned().ok_or(SpawnError::Empty)?;
        let directory = command.directory.clone();
        let system = |source| SpawnError::System {
            program: program.clone(),
            source,
        };
        let (reader, writer) =
            nix::unistd::pipe2(OFlag::O_CLOEXEC).map_err(|e| system(e.into()))?;
        let pipe = pipe::Receiver::from_owned_fd(reader).map_err(system)?;
        let environment = self.environment(&command);
        let path = environment.iter().rev().find(|(name, _)| name == "PATH");
        let path = path.map_or(DEFAULT_PATH.into(), |(_, path)| path.clone());
        let image = self.image(command, &environment, &path, writer, &program)?;

        let Leader { pid, pidfd, exit } = self
            .reaper
            .start_leader(image)
            .map_err(|failure| explain(failure, &program, &path, directory))?;
        let output = Output::default();
        let lines = label.map(|label| self.log.lines(label));
        let (ended, end) = watch::channel(None);
        let pumped = pump(pipe, output.clone(), lines, exit);
        tokio::spawn(async move { ended.send_replace(Some(pumped.await)) });
        Ok(Child {
            pid,
            pidfd,
            output,
            end,
            reaper: self.reaper.clone(),
        })
    }

    /// Runs `command` to its end, or kills it with its group after `timeout`. What it leaves behind in its group when
    /// it ends is killed as well. A future that is dropped kills it too.
    ///
    /// # Errors
    /// As [`Spawner::spawn`].
    pub async fn run_to_end(
        &self,
        command: Command,
        timeout: Duration,
    ) -> Result<Outcome, SpawnError> {
        let child = self.spawn(command, None)?;
        let end = match tokio::time::timeout(timeout, child.exited()).await {
            Ok(exit) => End::Exited(exit),
            Err(_) => End::TimedOut(timeout),
        };
        Ok(Outcome {
            end,
            output: child.output().clone(),
        })
    }

    /// The variables of the child, the later of two with one name being the right one.
    fn environment(&self, command: &Command) -> Vec<(OsString, OsString)> {
        let mut all = self.environment.clone();
        all.extend(
            command
                .env
                .iter()
                .map(|(name, value)| (name.into(), value.clone())),
        );
        if command.listen_fds {
            let names: Vec<&str> = command
                .listeners
                .iter()
                .map(|(name, _)| name.as_str())
                .collect();
            all.push(("LISTEN_FDS".into(), names.len().to_string().into()));
            all.push(("LISTEN_FDNAMES".into(), names.join(":").into()));
        }
        all
    }

    fn image(
        &self,
        command: Command,
        environment: &[(OsString, OsString)],
        path: &OsString,
        output: OwnedFd,
        program: &str,
    ) -> Result<Image, SpawnError> {
        let c_string = |bytes: &[u8]| {
            CString::new(bytes)
                .map_err(|_| SpawnError::Nul(String::from_utf8_lossy(bytes).into_owned()))
        };
        let mut env: Vec<CString> = Vec::with_capacity(environment.len());
        for (at, (name, value)) in environment.iter().enumerate() {
            if environment[at + 1..].iter().all(|(later, _)| later != name) {
                env.push(c_string(
                    &[name.as_bytes(), b"=", value.as_bytes()].concat(),
                )?);
            }
        }
        let programs = if program.contains('/') {
            vec![c_string(program.as_bytes())?]
        } else {
            std::env::split_paths(path)
                .filter(|directory| !directory.as_os_str().is_empty())
                .map(|directory| c_string(directory.join(program).as_os_str().as_bytes()))
                .collect::<Result<_, _>>()?
        };
        let stdin = File::open("/dev/null").map_err(|source| SpawnError::System {
            program: program.into(),
            source,
        })?;
        let listeners = command.listeners.into_iter().map(|(_, listener)| listener);
        let mut passed: Vec<(RawFd, OwnedFd)> = (FIRST_DESCRIPTOR..).zip(listeners).collect();
        for (number, descriptor) in command.descriptors {
            if number < FIRST_DESCRIPTOR || passed.iter().any(|(taken, _)| *taken == number) {
                return Err(SpawnError::DescriptorTaken(number));
            }
            passed.push((number, descriptor));
        }
        let directory = command.directory.as_deref().map(Path::as_os_str);
        Ok(Image {
            programs,
            argv: command
                .argv
                .iter()
                .map(|word| c_string(word.as_bytes()))
                .collect::<Result<_, _>>()?,
            env,
            listen_pid: command.listen_fds,
            directory: directory
                .map(|directory| c_string(directory.as_bytes()))
                .transpose()?,
            stdin: stdin.into(),
            output,
            passed,
            nofile: self.nofile,
        })
    }
}

/// Turns a step and an errno into a sentence.
fn explain(
    failure: Failure,
    program: &str,
    path: &OsString,
    directory: Option<PathBuf>,
) -> SpawnError {
    let name = program.to_owned();
    let Failure {
        step,
        error: source,
    } = failure;
    match (step, source.raw_os_error()) {
        (Step::Exec, Some(libc::ENOENT | libc::ENOTDIR)) if !program.contains('/') => {
            let mut candidates =
                std::env::split_paths(path).map(|directory| directory.join(program));
            match candidates.find(|candidate| candidate.is_file()) {
                Some(found) => SpawnError::NoInterpreter(found.display().to_string()),
                None => SpawnError::NotInPath {
                    program: name,
                    path: path.to_string_lossy().into_owned(),
                },
            }
        }
        (Step::Exec, Some(libc::ENOENT | libc::ENOTDIR)) => {
            match directory.unwrap_or_default().join(program).is_file() {
                true => SpawnError::NoInterpreter(name),
                false => SpawnError::NotFound(name),
            }
        }
        (Step::Exec, Some(libc::EACCES | libc::EPERM)) => SpawnError::Denied(name),
        (Step::Exec, Some(libc::ENOEXEC)) => SpawnError::NotExecutable(name),
        (Step::Directory, _) => SpawnError::Directory {
            program: name,
            directory: directory.unwrap_or_default(),
            source,
        },
        _ => SpawnError::System {
            program: name,
            source,
        },
    }
}

/// A running child, the leader of its process group. Dropping it kills the group.
pub struct Child {
    pid: Pid,
    pidfd: OwnedFd,
    output: Output,
    end: watch::Receiver<Option<Exit>>,
    reaper: Reaper,
}

impl Child {
    /// Its process id, which is also its group's.
    pub fn pid(&self) -> i32 {
        self.pid.as_raw()
    }

    /// Sends `signal` to the leader alone, through its pidfd; one that has ended is no error.
    ///
    /// # Errors
    /// The child runs under another uid by now.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        sys::pidfd_send_signal(&self.pidfd, signal)
    }

    /// Kills the whole group, unless the leader has ended, which ended the group.
    pub fn kill_group(&self) {
        self.reaper.signal_group(self.pid, Signal::SIGKILL);
    }

    /// Waits for the end of the leader, and until all that was in its pipe by then is in [`Child::output`].
    pub fn exited(&self) -> impl Future<Output = Exit> + Send + 'static {
        let mut end = self.end.clone();
        async move { ended(&mut end).await }
    }

    /// How it ended, if it has.
    pub fn exit(&self) -> Option<Exit> {
        *self.end.borrow()
    }

    /// What it has printed.
    pub fn output(&self) -> &Output {
        &self.output
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill_group();
    }
}

/// Waits for an exit. Without a sender (the runtime is going down) there is none to wait for.
pub(crate) async fn ended(exit: &mut watch::Receiver<Option<Exit>>) -> Exit {
    let exit = exit.wait_for(Option::is_some).await.map(|exit| *exit);
    match exit {
        Ok(Some(exit)) => exit,
        _ => std::future::pending().await,
    }
}

/// How a command that was run to its end went.
pub struct Outcome {
    /// Its end.
    pub end: End,
    /// Its last 64 KiB of output.
    pub output: Output,
}

/// The end of a command with a deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// It ended by itself.
    Exited(Exit),
    /// It was killed, with its group, after this time.
    TimedOut(Duration),
}

impl End {
    /// It exited with status 0, in time.
    pub fn success(self) -> bool {
        self == End::Exited(Exit::Status(0))
    }
}

impl std::fmt::Display for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            End::Exited(exit) => exit.fmt(f),
            End::TimedOut(timeout) => write!(f, "didn't end within {timeout:?} and was killed"),
        }
    }
}

#[cfg(test)]
#[path = "child_tests.rs"]
pub(crate) mod tests;
