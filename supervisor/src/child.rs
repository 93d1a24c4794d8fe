//! Children: starting a command, and what can be done with it while it runs.
//!
//! Invariants:
//! - A child has a process group of its own, default signal dispositions, an empty mask, the soft RLIMIT_NOFILE that the
//!   gate had found, and the environment and descriptors of its [`Command`].
//! - A child gets SIGTERM when the spawning *thread* ends (PR_SET_PDEATHSIG); so one thread starts them all.
//! - No process without an owner: a [`Child`] that is dropped takes its group along, and the end of the leader ends
//!   the group ([`crate::reaper`]).

use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::thread::ThreadId;
use std::time::Duration;

use nix::fcntl::OFlag;
use nix::sys::signal::Signal;
use nix::unistd::{Pid, pipe2};
use tokio::net::unix::pipe;
use tokio::sync::watch;

use crate::command::{Command, Inherited, SpawnError};
use crate::output::{Label, Log, Output, pump};
use crate::reaper::{Exit, Leader, Reaper, ended};
use crate::sys;

/// Starts children. Everything that they inherit from the gate is captured when it is made.
#[derive(Clone)]
pub struct Spawner {
    reaper: Reaper,
    log: Log,
    inherited: Inherited,
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
            inherited: Inherited::of(std::env::vars_os(), nofile),
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
        let pipe = pipe2(OFlag::O_CLOEXEC).map_err(|errno| SpawnError::Pipe(errno.into()));
        let (reader, writer) = pipe?;
        let reader = pipe::Receiver::from_owned_fd(reader).map_err(SpawnError::Pipe)?;
        let (image, search) = self.inherited.image(command, writer)?;
        let started = self.reaper.start_leader(image);
        let Leader { pid, pidfd, exit } = started.map_err(|failure| search.explain(failure))?;
        let output = Output::default();
        let lines = label.map(|label| self.log.lines(label));
        let (ended, end) = watch::channel(None);
        let pumped = pump(reader, output.clone(), lines, exit);
        tokio::spawn(async move { ended.send_replace(Some(pumped.await)) });
        Ok(Child {
            pid,
            pidfd,
            output,
            end,
            reaper: self.reaper.clone(),
        })
    }

    /// Waits until the log has what the children have printed, at most `within`; for the gate's own end. Other clones of
    /// this spawner must be gone and their children have ended, else it takes all this time.
    pub async fn close(self, within: Duration) {
        self.log.close(within).await;
    }

    /// Runs `command` to its end, or kills it with its group after `timeout`. What it leaves behind in its group when
    /// it ends is killed as well. A future that is dropped kills it too. It gives way to what serves: a check is no reason to keep a
    /// client waiting.
    ///
    /// # Errors
    /// As [`Spawner::spawn`].
    pub async fn run_to_end(
        &self,
        command: Command,
        timeout: Duration,
    ) -> Result<Outcome, SpawnError> {
        let child = self.spawn(command, None)?;
        // One that has ended already is no error, and neither is one that runs on as it is.
        let _ = sys::give_way(child.pid);
        let end = match tokio::time::timeout(timeout, child.exited()).await {
            Ok(exit) => End::Exited(exit),
            Err(_) => End::TimedOut(timeout),
        };
        Ok(Outcome {
            end,
            output: child.output().clone(),
        })
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
