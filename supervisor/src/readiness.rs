//! How a generation proves that it is ready.
//!
//! [`Ready`] is what a user writes; [`Proof`] is the same with what one generation needs for it. A proof only waits: the
//! caller races it against the end of the process, since nothing is ready that isn't alive. It may be dropped at any
//! moment; a command that it runs is killed with its group then.

use std::fmt;
use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use nix::fcntl::OFlag;
use syngate_gate::Target;
use syngate_gate::listener::KeptListener;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::time::{sleep, timeout};

use crate::accepting;
use crate::child::{End, Spawner};
use crate::command::{Command, FIRST_DESCRIPTOR, SpawnError};
use crate::dial;
use crate::haproxy;
use crate::notify::NotifySocket;

/// How soon a failed connect is tried again.
pub(crate) const CONNECT_AGAIN: Duration = Duration::from_millis(25);

/// How soon a backend that has said "not yet" is asked again.
const ASK_AGAIN: Duration = Duration::from_millis(100);

/// What one connect, or one exchange, may take before it is given up and tried again.
const ATTEMPT: Duration = Duration::from_secs(5);

/// The highest number that `fd:N` may name.
const LAST_DESCRIPTOR: RawFd = 255;

/// The kind of proof, as configured: `tcp`, `http:PATH`, `notify`, `fd:N` or `exec:CMD`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ready {
    /// It accepts connections.
    Tcp,
    /// A GET of this path is answered with a status from 200 to 399.
    Http(String),
    /// It sends `READY=1` to its `NOTIFY_SOCKET` (sd_notify(3)).
    Notify,
    /// It writes a newline to this descriptor (s6's `notification-fd`).
    Fd(RawFd),
    /// This command exits with status 0.
    Exec(Vec<String>),
}

/// Why a text is no [`Ready`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseReadyError {
    /// No such kind.
    #[error("`{0}` is no proof of readiness: use tcp, http:PATH, notify, fd:N or exec:CMD")]
    Kind(String),
    /// Not a path that can stand in a request.
    #[error("`{0}` is no path of a request: start it with `/` and escape spaces as %20")]
    Path(String),
    /// Not a descriptor that can be passed.
    #[error("`{0}` is no descriptor to report readiness on: use a number from 3 to 255")]
    Descriptor(String),
    /// Not words of a shell.
    #[error("`{0}` is no command: it is empty, or a quote isn't closed")]
    Command(String),
}

impl FromStr for Ready {
    type Err = ParseReadyError;

    fn from_str(text: &str) -> Result<Self, ParseReadyError> {
        match text.split_once(':') {
            None if text == "tcp" => Ok(Ready::Tcp),
            None if text == "notify" => Ok(Ready::Notify),
            Some(("http", path)) => {
                let good = path.starts_with('/') && path.parse::<hyper::Uri>().is_ok();
                good.then(|| Ready::Http(path.into()))
                    .ok_or(ParseReadyError::Path(path.into()))
            }
            Some(("fd", number)) => {
                let parsed = number.parse().ok();
                let good = parsed.filter(|fd| (FIRST_DESCRIPTOR..=LAST_DESCRIPTOR).contains(fd));
                good.map(Ready::Fd)
                    .ok_or(ParseReadyError::Descriptor(number.into()))
            }
            Some(("exec", command)) => {
                let words = shlex::split(command).filter(|words| !words.is_empty());
                words
                    .map(Ready::Exec)
                    .ok_or(ParseReadyError::Command(command.into()))
            }
            _ => Err(ParseReadyError::Kind(text.into())),
        }
    }
}

impl fmt::Display for Ready {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ready::Tcp => f.write_str("tcp"),
            Ready::Http(path) => write!(f, "http:{path}"),
            Ready::Notify => f.write_str("notify"),
            Ready::Fd(number) => write!(f, "fd:{number}"),
            Ready::Exec(words) => {
                let quote = |word: &String| shlex::try_quote(word).map_or(word.clone(), Into::into);
                write!(
                    f,
                    "exec:{}",
                    words.iter().map(quote).collect::<Vec<_>>().join(" ")
                )
            }
        }
    }
}

/// One generation's way to prove that it is ready.
pub enum Proof {
    /// Every endpoint accepts a connect.
    Connect {
        /// Private endpoints that nobody but the generation listens on: they refused before it was started.
        endpoints: Vec<Target>,
        /// What is sent first: a PROXY header with the command LOCAL, or nothing.
        hello: Vec<u8>,
    },
    /// The generation accepts from every kept listener: its epoll sets name them (proc(5)), or a test connection has
    /// left the accept queue.
    Accepting {
        /// The leader's pid.
        leader: i32,
        /// All of them.
        listeners: Vec<Arc<KeptListener>>,
        /// As for `Connect`.
        hello: Vec<u8>,
    },
    /// A GET is answered with a status from 200 to 399. A kept listener serves as well: the request waits in it.
    Http {
        /// Where to ask.
        endpoint: Target,
        /// As for `Connect`.
        hello: Vec<u8>,
        /// What to ask for.
        path: String,
    },
    /// `READY=1` comes from the leader's group.
    Notify {
        /// The generation's own socket.
        socket: NotifySocket,
        /// The leader's pid.
        leader: i32,
    },
    /// A newline comes through a pipe. Made by [`Proof::newline`].
    Newline {
        /// Our end.
        reader: pipe::Receiver,
        /// The number of the other end in the child.
        number: RawFd,
    },
    /// HAProxy answers on its stats socket: all its listeners are open then.
    Haproxy(Target),
    /// A command exits with status 0.
    Exec {
        /// Who runs it.
        spawner: Spawner,
        /// Its words.
        argv: Vec<String>,
        /// Added to its environment, as for the generation.
        env: Vec<(String, std::ffi::OsString)>,
    },
}

/// Why a generation isn't ready. Its end is told by its exit, not here.
#[derive(Debug, thiserror::Error)]
pub enum NotReady {
    /// It had its time.
    #[error("not ready within {within:?}: {why}")]
    InTime {
        /// `ready_timeout`.
        within: Duration,
        /// What the last try met.
        why: String,
    },
    /// The descriptor of `fd:N` was closed without a newline.
    #[error(
        "descriptor {0} was closed before a newline came: the server must write one to it when it is ready"
    )]
    Closed(RawFd),
    /// The command of `exec:CMD` can't run.
    #[error("the readiness command can't run: {0}")]
    Command(#[from] SpawnError),
    /// The notification socket or the pipe can't be read.
    #[error("the proof of readiness can't be read: {0}")]
    Unreadable(#[from] io::Error),
}

impl Proof {
    /// A pipe for `fd:N`: the proof, and the descriptor to pass to the child ([`Command::descriptors`]).
    ///
    /// # Errors
    /// No descriptor is free.
    pub fn newline(number: RawFd) -> io::Result<(Self, (RawFd, OwnedFd))> {
        let (reader, writer) = nix::unistd::pipe2(OFlag::O_CLOEXEC)?;
        let reader = pipe::Receiver::from_owned_fd(reader)?;
        Ok((Proof::Newline { reader, number }, (number, writer)))
    }

    /// Waits until the proof is there.
    ///
    /// # Errors
    /// It doesn't come `within` this time, or can't come any more.
    pub async fn wait(mut self, within: Duration) -> Result<(), NotReady> {
        let mut why = self.awaited();
        match timeout(within, self.come(&mut why)).await {
            Ok(result) => result,
            Err(_) => Err(NotReady::InTime { within, why }),
        }
    }

    /// What is missing as long as nothing else is known.
    fn awaited(&self) -> String {
        match self {
            Proof::Connect { .. } | Proof::Http { .. } => "no answer came".into(),
            Proof::Accepting { .. } => "it accepts nothing from its listeners".into(),
            Proof::Notify { .. } => "READY=1 didn't come".into(),
            Proof::Haproxy(_) => "HAProxy doesn't answer on its stats socket".into(),
            Proof::Newline { number, .. } => format!("no newline came through descriptor {number}"),
            Proof::Exec { .. } => "the readiness command didn't end".into(),
        }
    }

    async fn come(&mut self, why: &mut String) -> Result<(), NotReady> {
        match self {
            Proof::Connect { endpoints, hello } => {
                for endpoint in endpoints {
                    while let Err(error) = attempt(dial::greet(endpoint, hello)).await {
                        *why = format!("connect to {endpoint}: {error}");
                        sleep(CONNECT_AGAIN).await;
                    }
                }
                Ok(())
            }
            Proof::Accepting {
                leader,
                listeners,
                hello,
            } => Ok(accepting::accepts(*leader, listeners, hello, why).await?),
            Proof::Http {
                endpoint,
                hello,
                path,
            } => loop {
                match attempt(dial::get(endpoint, hello, path)).await {
                    Ok(status) if (200..400).contains(&status) => return Ok(()),
                    Ok(status) => {
                        *why = format!("GET {path} from {endpoint} was answered with {status}");
                        sleep(ASK_AGAIN).await;
                    }
                    Err(error) => {
                        *why = format!("GET {path} from {endpoint}: {error}");
                        sleep(CONNECT_AGAIN).await;
                    }
                }
            },
            Proof::Notify { socket, leader } => Ok(socket.ready(*leader).await?),
            Proof::Haproxy(stats) => {
                while let Err(error) = haproxy::runtime::answers(stats).await {
                    *why = format!("`show info` on its stats socket: {error}");
                    sleep(ASK_AGAIN).await;
                }
                Ok(())
            }
            Proof::Newline { reader, number } => {
                let mut bytes = [0; 64];
                loop {
                    match reader.read(&mut bytes).await? {
                        0 => return Err(NotReady::Closed(*number)),
                        count if bytes[..count].contains(&b'\n') => return Ok(()),
                        _ => {}
                    }
                }
            }
            Proof::Exec { spawner, argv, env } => {
                loop {
                    let command = Command {
                        argv: argv.clone(),
                        env: env.clone(),
                        ..Command::default()
                    };
                    // Its deadline is that of the whole proof, which drops it.
                    let outcome = spawner.run_to_end(command, Duration::MAX).await?;
                    match outcome.end {
                        end if end.success() => return Ok(()),
                        End::TimedOut(_) => {}
                        End::Exited(exit) => {
                            let words = outcome.output.last_lines(1).join(" ");
                            *why = format!("the readiness command {exit} {words}")
                                .trim_end()
                                .into();
                        }
                    }
                    sleep(ASK_AGAIN).await;
                }
            }
        }
    }
}

/// Bounds one try.
pub(crate) async fn attempt<T>(exchange: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    timeout(ATTEMPT, exchange)
        .await
        .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

#[cfg(test)]
#[path = "readiness_tests.rs"]
mod tests;
