//! `hold -- CMD`: hold, run CMD, wait until the backend is ready, release.
//!
//! The hold is owned by this process: it stands as long as its answer is open, so whatever ends this process, `kill -9` too,
//! releases. CMD gets our stdin, stdout and stderr; steps go to stderr. An interrupt from a terminal reaches CMD by itself and
//! is only counted here: the second one ends us at once. SIGTERM and SIGHUP are passed on.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::time::Duration;

use hyper::Method;
use nix::sys::signal::{Signal as Number, kill};
use nix::unistd::Pid;
use syngate_supervisor::exit::{BY_SIGNAL, HOLD_FAILED, NOT_EXECUTABLE, NOT_FOUND};
use syngate_supervisor::protocol::{Done, Line};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::http::{Answer, Failure, Query, ask};
use super::{complain, follow, verb};
use crate::progress::{Output, Progress};

/// `hold [SERVICE] -- CMD...`: exits with CMD's status, 128 and the signal's number where one ended it, 126 or 127 where
/// it can't be run, or 125 where the hold failed: then CMD wasn't run, or connections may have been lost.
pub(crate) async fn hold_while(
    control: Option<&Path>,
    service: Option<&str>,
    limit: Option<Duration>,
    command: &[OsString],
) -> ExitCode {
    ExitCode::from(
        run(control, service, limit, command)
            .await
            .unwrap_or_else(|failure| {
                complain(&failure.to_string());
                HOLD_FAILED
            }),
    )
}

/// Why it exits with 125.
#[derive(Debug, thiserror::Error)]
pub(super) enum HoldError {
    #[error(transparent)]
    Gate(#[from] Failure),
    #[error("not held, and the command wasn't run: {0}")]
    NotHeld(String),
    #[error("signals can't be watched: {0}")]
    Signals(#[from] io::Error),
}

pub(super) async fn run(
    control: Option<&Path>,
    service: Option<&str>,
    limit: Option<Duration>,
    command: &[OsString],
) -> Result<u8, HoldError> {
    let mut signals = Signals::watch()?;
    let mut progress = Progress::new(Output::Stderr);
    let held = hold(control, service, limit, &mut progress);
    let mut hold = tokio::select! {
        held = held => held?,
        number = signals.end() => return Ok(BY_SIGNAL + number),
    };

    let Some(code) = execute(command, &mut hold, &mut signals, &mut progress).await? else {
        return Ok(BY_SIGNAL + Number::SIGINT as u8);
    };
    if hold.ended {
        return Ok(if code == 0 { HOLD_FAILED } else { code });
    }
    let released = tokio::select! {
        done = release(control, service, &mut hold, &mut progress) => done?,
        number = signals.end() => return Ok(BY_SIGNAL + number),
    };
    if released.exit != 0 {
        complain(&released.message);
    }
    Ok(match (code, released.exit) {
        (0, 0) => 0,
        (0, _) => HOLD_FAILED,
        (code, _) => code,
    })
}

/// A hold that stands while its answer is open.
struct Hold {
    answer: Answer,
    /// It has ended before the command did, and that was said.
    ended: bool,
}

async fn hold(
    control: Option<&Path>,
    service: Option<&str>,
    limit: Option<Duration>,
    progress: &mut Progress,
) -> Result<Hold, HoldError> {
    let query = Query::new(verb(service, "hold")).with("owned", "1");
    let target = query.with_duration("timeout", limit).finish();
    let mut answer = ask(control, Method::POST, &target)
        .await?
        .accepted()
        .await?;
    while let Some(line) = answer.line().await? {
        match serde_json::from_slice(&line) {
            Ok(Line::Step(step)) => {
                progress.show(&step);
                if step.step == "held" {
                    return Ok(Hold {
                        answer,
                        ended: false,
                    });
                }
            }
            Ok(Line::Done(done)) => return Err(HoldError::NotHeld(done.message)),
            Ok(Line::Lost { .. }) | Err(_) => {}
        }
    }
    Err(answer.cut().into())
}

/// Releases when the backend is ready; the hold's own last line says how it ended.
async fn release(
    control: Option<&Path>,
    service: Option<&str>,
    hold: &mut Hold,
    progress: &mut Progress,
) -> Result<Done, Failure> {
    let target = Query::new(verb(service, "release"))
        .with("when_ready", "1")
        .finish();
    let mut answer = ask(control, Method::POST, &target)
        .await?
        .accepted()
        .await?;
    // Both answers end with the hold and tell the same steps; the release alone may be refused.
    let mut unseen = Progress::new(Output::None);
    let refused = async {
        match follow(&mut answer, &mut unseen).await {
            Ok(done) if done.exit == 0 => std::future::pending().await,
            refused => refused,
        }
    };
    tokio::select! {
        refused = refused => refused,
        done = follow(&mut hold.answer, progress) => done,
    }
}

/// Runs the command to its end and returns its exit code; `None` after a second interrupt.
async fn execute(
    command: &[OsString],
    hold: &mut Hold,
    signals: &mut Signals,
    progress: &mut Progress,
) -> Result<Option<u8>, HoldError> {
    // The command line's parser wants at least one word.
    let Some((program, arguments)) = command.split_first() else {
        return Ok(Some(0));
    };
    let mut child = match Command::new(program).args(arguments).spawn() {
        Ok(child) => child,
        Err(error) => {
            complain(&format!("{} can't be run: {error}", program.display()));
            let missing = error.kind() == io::ErrorKind::NotFound;
            return Ok(Some(if missing { NOT_FOUND } else { NOT_EXECUTABLE }));
        }
    };
    let mut interrupted = false;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(code(status)));
        }
        tokio::select! {
            _ = signals.child.recv() => {}
            _ = signals.interrupt.recv() => match interrupted {
                true => return Ok(None),
                false => interrupted = true,
            },
            _ = signals.quit.recv() => {}
            _ = signals.terminate.recv() => pass_on(&child, Number::SIGTERM),
            _ = signals.hangup.recv() => pass_on(&child, Number::SIGHUP),
            done = follow(&mut hold.answer, progress), if !hold.ended => {
                let why = done.map_or_else(|failure| failure.to_string(), |done| done.message);
                complain(&format!("the hold has ended before the command: {why}"));
                hold.ended = true;
            }
        }
    }
}

/// The child hasn't been waited for, so its pid is still its own.
fn pass_on(child: &Child, number: Number) {
    if let Ok(pid) = i32::try_from(child.id()) {
        let _ = kill(Pid::from_raw(pid), number);
    }
}

/// As a shell's `$?`. A signal's number is below 128, an exit status below 256.
fn code(status: ExitStatus) -> u8 {
    let code = status
        .code()
        .or_else(|| Some(i32::from(BY_SIGNAL) + status.signal()?));
    code.and_then(|code| u8::try_from(code).ok())
        .unwrap_or(HOLD_FAILED)
}

/// Watched from before the hold, so that none ends this process without a release.
struct Signals {
    child: Signal,
    interrupt: Signal,
    quit: Signal,
    terminate: Signal,
    hangup: Signal,
}

impl Signals {
    fn watch() -> io::Result<Self> {
        Ok(Self {
            child: signal(SignalKind::child())?,
            interrupt: signal(SignalKind::interrupt())?,
            quit: signal(SignalKind::quit())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// Waits for one that ends a process, and returns its number.
    async fn end(&mut self) -> u8 {
        let number = tokio::select! {
            _ = self.interrupt.recv() => Number::SIGINT,
            _ = self.quit.recv() => Number::SIGQUIT,
            _ = self.terminate.recv() => Number::SIGTERM,
            _ = self.hangup.recv() => Number::SIGHUP,
        };
        number as u8
    }
}
