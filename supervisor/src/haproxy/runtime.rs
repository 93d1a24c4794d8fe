//! Questions and orders to a running HAProxy, over its stats socket (management guide, section 9.3).
//!
//! Invariants:
//! - One connection a line, closed as soon as the answer is there: a client that stays makes a stopping HAProxy wait for it.
//! - An answer is whole or an error. HAProxy ends each one with an empty line, so an end before that is a process that died.
//! - An answer is bounded in bytes, and [`ask`] in time.

use std::io;
use std::time::Duration;

use syngate_gate::Target;
use tokio::io::AsyncReadExt;
use tokio::time::timeout;

use crate::dial;

/// Bytes of an answer that are taken. A line of `show servers state` has about 150.
const LONGEST: u64 = 64 * 1024 * 1024;

/// Bytes of a command that are told in an error: a batch may have thousands.
const TOLD: usize = 80;

/// Sends one line, which may hold several commands separated by `;`, and returns the answer: each command's text, with an empty
/// line after it.
///
/// # Errors
/// There is no whole answer within this time. The sentence names the command.
pub async fn ask(target: &Target, command: &str, within: Duration) -> Result<String, String> {
    let why = match timeout(within, exchange(target, command)).await {
        Ok(Ok(answer)) => return Ok(answer),
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("it didn't answer within {within:?}"),
    };
    let told: String = command.chars().take(TOLD).collect();
    let dots = if told.len() < command.len() {
        " ..."
    } else {
        ""
    };
    Err(format!(
        "HAProxy was asked `{told}{dots}` at {target}: {why}"
    ))
}

/// Waits until a process answers at `stats`, a listener that only this process was given: so it has started and accepts from all
/// its listeners, since HAProxy enables them before it serves any. The kernel queues the request until then, so this is one
/// try, without an end in time: whoever calls knows when the process has ended instead.
///
/// # Errors
/// Nobody listens there, or the answer isn't that of an HAProxy.
pub async fn answers(stats: &Target) -> io::Result<()> {
    let answer = exchange(stats, "show info").await?;
    if answer.lines().any(|line| line.starts_with("Pid:")) {
        return Ok(());
    }
    let first = answer.lines().next().unwrap_or_default();
    Err(io::Error::other(format!(
        "`show info` was answered with `{first}`"
    )))
}

async fn exchange(target: &Target, command: &str) -> io::Result<String> {
    let hello = [command, "\n"].concat();
    let stream = dial::greet(target, hello.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.take(LONGEST + 1).read_to_end(&mut answer).await?;
    if answer.len() as u64 > LONGEST {
        return Err(io::Error::other(format!(
            "the answer is longer than {LONGEST} bytes"
        )));
    }
    if answer != b"\n" && !answer.ends_with(b"\n\n") {
        let why = "the answer ended in the middle: the process has ended, or isn't an HAProxy";
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, why));
    }
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

#[cfg(test)]
mod tests;
