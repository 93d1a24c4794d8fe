//! The one place that waits for children.
//!
//! Invariants:
//! - A pid in the table is a leader (a child that [`crate::child`] started) that isn't reaped. So its number and its
//!   process group can't have been reused, and a signal to either hits what it is meant for.
//! - Starting and entering a leader is one step under the table's lock, as is reaping and removing it: no exit status
//!   is stolen and none is missed, however soon the child ends.
//! - The end of a leader ends its group: SIGKILL goes to the group while the leader is still a zombie.
//! - Every other child that has ended is an orphan that was given to us as PID 1 or as a subreaper: reaped, forgotten.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::sys::{self, Failure, Image};

/// How a process ended. `Display` is an operator's words: "exited with status 1", "was killed by SIGKILL".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// It exited by itself, with this status (0 to 255).
    Status(i32),
    /// A signal with this number ended it.
    Signal(i32),
}

impl Exit {
    /// Status 0.
    pub fn success(self) -> bool {
        self == Exit::Status(0)
    }

    fn from_wait_status(status: i32) -> Self {
        if libc::WIFSIGNALED(status) {
            Exit::Signal(libc::WTERMSIG(status))
        } else {
            Exit::Status(libc::WEXITSTATUS(status))
        }
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Exit::Status(status) => write!(f, "exited with status {status}"),
            Exit::Signal(number) => match Signal::try_from(number) {
                Ok(signal) => write!(f, "was killed by {signal}"),
                Err(_) => write!(f, "was killed by signal {number}"),
            },
        }
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

/// Children reaped in one turn before other tasks get theirs.
const TURN: usize = 64;

/// A leader that was just started.
pub(crate) struct Leader {
    pub(crate) pid: Pid,
    pub(crate) pidfd: OwnedFd,
    pub(crate) exit: watch::Receiver<Option<Exit>>,
}

type Leaders = HashMap<i32, watch::Sender<Option<Exit>>>;

/// The process's only reaper. Clones share one table.
#[derive(Clone)]
pub struct Reaper {
    leaders: Arc<Mutex<Leaders>>,
}

impl Reaper {
    /// Makes this process a subreaper and starts the task that reaps on every SIGCHLD. Needs a tokio runtime; once a
    /// process.
    ///
    /// # Errors
    /// The signal handler can't be installed.
    pub fn start() -> io::Result<Self> {
        nix::sys::prctl::set_child_subreaper(true)?;
        let mut children = signal(SignalKind::child())?;
        let reaper = Reaper {
            leaders: Arc::default(),
        };
        let turns = reaper.clone();
        tokio::spawn(async move {
            loop {
                // The first turn comes before the first signal: an exec in place may have left some behind.
                while turns.turn() == TURN {
                    tokio::task::yield_now().await;
                }
                if children.recv().await.is_none() {
                    return;
                }
            }
        });
        Ok(reaper)
    }

    /// Executes `image` and enters it as a leader. The receiver gets its exit.
    pub(crate) fn start_leader(&self, image: Image) -> Result<Leader, Failure> {
        let mut leaders = self.leaders();
        let (pid, pidfd) = sys::spawn(image)?;
        let (sender, exit) = watch::channel(None);
        leaders.insert(pid.as_raw(), sender);
        Ok(Leader { pid, pidfd, exit })
    }

    /// Sends `signal` to the group of `leader`, if that isn't reaped yet.
    pub(crate) fn signal_group(&self, leader: Pid, signal: Signal) {
        let leaders = self.leaders();
        if leaders.contains_key(&leader.as_raw())
            && let Err(error) = killpg(leader, signal)
        {
            tracing::warn!(pid = leader.as_raw(), %signal, %error, "can't signal a process group");
        }
    }

    /// Reaps what has ended, at most [`TURN`]; says how many.
    fn turn(&self) -> usize {
        let mut leaders = self.leaders();
        for reaped in 0..TURN {
            let Some(pid) = sys::next_ended() else {
                return reaped;
            };
            let leader = leaders.remove(&pid.as_raw());
            if leader.is_some() {
                // Members that changed their uid can't be ended from here; nothing else can go wrong.
                let _ = killpg(pid, Signal::SIGKILL);
            }
            let status = sys::reap(pid);
            if let (Some(sender), Some(status)) = (leader, status) {
                sender.send_replace(Some(Exit::from_wait_status(status)));
            }
        }
        TURN
    }

    fn leaders(&self) -> MutexGuard<'_, Leaders> {
        self.leaders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
