//! What goes into the state machine and what comes out.

use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::Signal;
use syngate_metrics::ReloadOutcome;

use crate::config::{BackendAddress, ServiceConfig};

/// A moment, as the time since some fixed one before it.
pub type Time = Duration;

/// Who asked: chosen by the caller of [`super::Rollout::handle`], one for each request.
pub type Caller = u64;

/// What happened.
#[derive(Clone, Debug)]
pub enum Event {
    /// The gate starts: the first run, with a configuration that is checked and whose listeners are open.
    Start,
    /// Somebody asks for something.
    Request(Caller, Request),
    /// Who asked has gone; a reload goes on, an owned hold ends.
    Gone(Caller),
    /// Answers [`Action::Load`].
    Loaded(u64, Result<Arc<ServiceConfig>, String>),
    /// Answers [`Action::Check`].
    Checked(u64, Result<(), String>),
    /// Answers [`Action::Open`].
    Opened(u64, Result<(), String>),
    /// Answers [`Action::Start`]: the generation has proven that it is ready.
    Ready(u64),
    /// Answers [`Action::Start`]: it hasn't, within `ready_timeout`; it may still run.
    NotReady(u64, String),
    /// Its process has ended, or never came to be.
    Ended(u64, End),
    /// Answers [`Action::WatchQueue`]: nothing is left in the generation's accept queues.
    Empty(u64),
    /// Answers [`Action::WatchLeases`]: no connection has a lease on it.
    Drained(u64),
    /// Answers [`Action::Hold`]; what didn't end in time, if anything.
    Held(Option<String>),
    /// Answers [`Action::Probe`].
    Answers,
    /// The service ends: runs, restarts and starts stop at once; what serves, serves until [`Event::Emptied`].
    Shutdown {
        /// Connections may go on until then; `None`: for as long as they take.
        until: Option<Time>,
        /// From `stop_signal` to the kill, at most.
        grace: Duration,
    },
    /// The public listeners are closed and nothing is pending.
    Emptied,
    /// The service ends at once.
    ShutdownNow,
    /// A deadline may have passed.
    Tick,
}

/// How a generation's process ended.
#[derive(Clone, Debug)]
pub enum End {
    /// There never was one: why not, as a sentence.
    NotStarted(String),
    /// It has ended.
    Exited {
        /// "exited with status 1".
        how: String,
        /// With status 0, or by a signal that ends its drain.
        as_asked: bool,
        /// The last line that it printed.
        last_line: Option<String>,
    },
}

impl End {
    /// What happened, with a word on when.
    pub(super) fn tell(&self, number: u64, when: &str) -> String {
        match self {
            End::NotStarted(why) => format!("generation {number} can't be started: {why}"),
            End::Exited {
                how,
                last_line: None,
                ..
            } => format!("generation {number} {how}{when}"),
            End::Exited {
                how,
                last_line: Some(line),
                ..
            } => {
                format!("generation {number} {how}{when}: {line}")
            }
        }
    }
}

/// What somebody asks for.
#[derive(Clone, Debug)]
pub enum Request {
    /// A new generation from the configuration as it is when the run begins.
    Reload {
        /// Listeners come and go too.
        all: bool,
        /// Answered only when what was replaced has ended.
        drained: bool,
    },
    /// A generation that somebody else runs.
    Activate {
        /// Where it is.
        backends: Vec<BackendAddress>,
        /// As in `Reload`.
        drained: bool,
    },
    /// Back to the previous generation.
    Rollback,
    /// Dispatch nothing.
    Hold {
        /// Released by itself after this.
        timeout: Duration,
        /// Released when the caller goes away; answered when it is released.
        owned: bool,
    },
    /// Dispatch again.
    Release {
        /// Once the active generation's endpoints answer.
        when_ready: bool,
    },
}

/// Where a run's configuration comes from.
#[derive(Clone, Debug, PartialEq)]
pub enum Source {
    /// The file.
    File {
        /// The service's listeners too.
        all: bool,
    },
    /// What is in force, with these in place of its backend.
    Addresses(Vec<BackendAddress>),
}

/// What to do.
#[derive(Clone, Debug)]
pub enum Action {
    /// Read the configuration, for the run with this number.
    Load(u64, Source),
    /// Run its check, and answer within `check_timeout`.
    Check(u64, Arc<ServiceConfig>),
    /// End the running check, if there is one; no answer.
    CancelCheck,
    /// Bind listeners that are new in it, without accepting; its time-outs and limits are in force from now on.
    Open(u64, Arc<ServiceConfig>),
    /// Start a generation, and answer within `ready_timeout`. Where there is a process, `Ended` follows in any case.
    Start {
        /// Its number.
        generation: u64,
        /// What to start.
        config: Arc<ServiceConfig>,
        /// An ended generation whose kept listeners it takes over.
        heir_of: Option<u64>,
    },
    /// Make it active in every worker, or none. The run's new listeners accept from now on.
    Activate(Option<u64>),
    /// Say when its accept queues are empty; a new watch replaces an older one.
    WatchQueue(u64),
    /// Say when it has no lease.
    WatchLeases(u64),
    /// Its drain's time is up before its accept queues were seen empty: tell everybody what is in them, if anything.
    LeaveQueue(u64),
    /// Its drain's time is up: reset its connections and tell everybody how many, if there are any.
    Reset(u64),
    /// Signal its process, or give up a start that hasn't come so far.
    Signal(u64, Signal),
    /// Kill its process group.
    Kill(u64),
    /// It has ended: let go of all that it had. What is left in its kept listeners goes to the active generation.
    Forget(u64),
    /// Dispatch nothing, and say when no connect is under way and the active endpoints' queues are empty.
    Hold,
    /// Dispatch again.
    Release,
    /// Say when the active generation's endpoints answer.
    Probe,
    /// Tell everybody.
    Step {
        /// Whose it is.
        generation: Option<u64>,
        /// One word.
        step: &'static str,
        /// One line for an operator.
        message: String,
    },
    /// A run has ended: count it, and let go of what it had opened and didn't come to use.
    Finished {
        /// How.
        outcome: ReloadOutcome,
        /// One line for an operator.
        message: String,
        /// When it began.
        began: Time,
    },
    /// An automatic retry begins.
    Retrying,
    /// A process is started again that nobody wanted to end.
    Restarting,
    /// The last word to a caller.
    Answer(Caller, u8, String),
}
