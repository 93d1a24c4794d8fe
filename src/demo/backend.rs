//! The demo's backend: a server of lines that knows nothing of reloads, but for one signal.
//!
//! It greets each connection with its generation and the version of its configuration. `ping N` is answered with `pong N`;
//! `last N` with `last N`, and the connection is closed. After SIGUSR1 every answer is a last one. SIGTERM ends it at once, as
//! it ends any program that does nothing about it.
//!
//! Invariant: a connection is accepted only when the one before has been greeted. So whoever was accepted knows by whom, but
//! for one at most.

use std::convert::Infallible;
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Args;
use syngate_supervisor::inherited;
use syngate_supervisor::notify::Manager;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::sleep;
use tokio_util::either::Either;

/// After a failed accept, such as for want of descriptors.
const ACCEPT_AGAIN: Duration = Duration::from_millis(10);

#[derive(Args, Debug)]
pub(crate) struct BackendArgs {
    /// Its configuration: `version N`, and perhaps `ready never`
    #[arg(value_name = "FILE")]
    config: PathBuf,
    /// Only verify the configuration
    #[arg(long)]
    check: bool,
    /// IP:PORT or unix:PATH to listen on [default: the socket that was passed]
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
    /// Lock this file, so that no second one can run
    #[arg(long, value_name = "FILE")]
    lock: Option<PathBuf>,
}

/// Carries out the hidden verb.
pub(crate) fn backend(args: &BackendArgs) -> ExitCode {
    match run(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &BackendArgs) -> Result<(), String> {
    // First of all: until now nothing but what was passed can have its descriptor's number.
    let passed = inherited::take(std::process::id(), &|name| std::env::var_os(name))
        .map_err(|error| error.to_string())?;
    let config = Config::read(&args.config)?;
    if args.check {
        return Ok(());
    }
    let _lock = args.lock.as_deref().map(lock).transpose()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| format!("no runtime: {error}"))?;
    runtime.block_on(async {
        if config.never_ready {
            eprintln!("this configuration is never ready");
            std::future::pending::<()>().await;
        }
        let draining = Arc::new(AtomicBool::new(false));
        let mut drain = signal(SignalKind::user_defined1())
            .map_err(|error| format!("SIGUSR1 can't be watched: {error}"))?;
        let flag = Arc::clone(&draining);
        tokio::spawn(async move {
            while drain.recv().await.is_some() {
                flag.store(true, Ordering::Relaxed);
            }
        });
        let listener = match (&args.listen, passed.into_iter().next()) {
            (Some(address), _) => Listener::bind(address).await,
            (None, Some((_, socket))) => Listener::passed(socket),
            (None, None) => return Err("no socket was passed: give --listen".to_owned()),
        };
        let listener = listener.map_err(|error| format!("can't listen: {error}"))?;
        let generation = std::env::var("SYNGATE_GENERATION").unwrap_or_default();
        let greeting = format!("generation {generation} version {}\n", config.version);
        eprint!("serving: {greeting}");
        Manager::from_environment().ready("serving");
        match serve(listener, greeting, draining).await {}
    })
}

/// What the file says.
#[derive(Debug, PartialEq)]
struct Config {
    version: u64,
    never_ready: bool,
}

impl Config {
    fn read(path: &Path) -> Result<Config, String> {
        let text = fs::read_to_string(path);
        let text = text.map_err(|error| format!("{}: {error}", path.display()))?;
        Config::parse(&text).map_err(|why| format!("{}:{why}", path.display()))
    }

    fn parse(text: &str) -> Result<Config, String> {
        let (mut version, mut never_ready) = (None, false);
        for (line, number) in text.lines().zip(1..) {
            match line.split_once(' ') {
                Some(("version", value)) => {
                    let parsed = value.parse();
                    version =
                        Some(parsed.map_err(|_| format!("{number}: `{value}` is no version"))?);
                }
                Some(("ready", "never")) => never_ready = true,
                _ => return Err(format!("{number}: `{line}` isn't known: write `version N`")),
            }
        }
        let version = version.ok_or("1: there is no version: write `version N`")?;
        Ok(Config {
            version,
            never_ready,
        })
    }
}

fn lock(path: &Path) -> Result<File, String> {
    let file = File::create(path).map_err(|error| format!("{}: {error}", path.display()))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(error) => Err(format!(
            "{} can't be locked ({error}): another one runs, and there can be one only",
            path.display()
        )),
    }
}

/// Where connections come from.
pub(super) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    async fn bind(address: &str) -> io::Result<Listener> {
        match address.strip_prefix("unix:") {
            Some(path) => UnixListener::bind(path).map(Listener::Unix),
            None => TcpListener::bind(address).await.map(Listener::Tcp),
        }
    }

    /// A kept listener, which is a unix socket unless the command asks for an address.
    fn passed(socket: OwnedFd) -> io::Result<Listener> {
        let socket = net::UnixListener::from(socket);
        socket.set_nonblocking(true)?;
        UnixListener::from_std(socket).map(Listener::Unix)
    }

    async fn accept(&self) -> io::Result<Either<TcpStream, UnixStream>> {
        Ok(match self {
            Listener::Tcp(listener) => Either::Left(listener.accept().await?.0),
            Listener::Unix(listener) => Either::Right(listener.accept().await?.0),
        })
    }
}

/// Serves until the process ends. Once `draining` is set, every answer is a last one.
pub(super) async fn serve(
    listener: Listener,
    greeting: String,
    draining: Arc<AtomicBool>,
) -> Infallible {
    loop {
        let mut stream = match listener.accept().await {
            Ok(stream) => BufReader::new(stream),
            Err(error) => {
                eprintln!("accept: {error}");
                sleep(ACCEPT_AGAIN).await;
                continue;
            }
        };
        // A fresh socket takes this at once. A client that has gone already isn't our concern.
        if stream.write_all(greeting.as_bytes()).await.is_ok() {
            tokio::spawn(converse(stream, Arc::clone(&draining)));
        }
    }
}

async fn converse(
    mut stream: BufReader<Either<TcpStream, UnixStream>>,
    draining: Arc<AtomicBool>,
) -> io::Result<()> {
    let mut line = String::new();
    while stream.read_line(&mut line).await? > 0 {
        let (word, number) = line.trim_end().split_once(' ').unwrap_or_default();
        let last = word == "last" || draining.load(Ordering::Relaxed);
        let answer = if last { "last" } else { "pong" };
        let answer = format!("{answer} {number}\n");
        stream.write_all(answer.as_bytes()).await?;
        if last {
            break;
        }
        line.clear();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_is_read_and_a_slip_is_named() {
        let version = |version, never_ready| {
            Ok(Config {
                version,
                never_ready,
            })
        };
        assert_eq!(Config::parse("version 7\n"), version(7, false));
        assert_eq!(Config::parse("version 7\nready never\n"), version(7, true));
        let slip = Config::parse("version 7\nverison 8\n").unwrap_err();
        assert!(slip.starts_with("2: `verison 8`"), "{slip}");
        assert!(Config::parse("").unwrap_err().starts_with("1: "));
    }

    #[test]
    fn a_second_one_does_not_run() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        let held = lock(&path).unwrap();
        let refused = lock(&path).unwrap_err();
        assert!(refused.contains("another one runs"), "{refused}");
        drop(held);
        lock(&path).unwrap();
    }
}
