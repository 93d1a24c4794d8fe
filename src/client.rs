//! The verbs that ask a running gate: one function each, over the control socket (docs/control.md).
//!
//! Each prints the gate's steps as they come and returns an exit code of docs/exit-codes.md: 1 for what isn't there (any more),
//! 2 for what the gate refuses as asked, 3 where no gate answers, 5 for a time-out; else what the gate's last line says.

mod events;
mod hold;
mod http;

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write as _};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use hyper::{Method, StatusCode};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use syngate_supervisor::config::BackendAddress;
use syngate_supervisor::exit;
use syngate_supervisor::names::there_are;
use syngate_supervisor::protocol::{Connection, Done, Line, Status};
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::cli::Patience;
use crate::progress::{Output, Progress, printable};
use crate::status;
pub(crate) use events::events;
pub(crate) use hold::hold_while;
use http::{Answer, Query};
pub(crate) use http::{Failure, ask};

/// For an answer that takes the gate no time.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Between two looks of `status --watch`.
const WATCH_PERIOD: Duration = Duration::from_secs(1);

/// What the caller of a reload or an `activate` waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// The new generation is active and min-ready has passed.
    Active,
    /// The old ones are drained too.
    Drained,
}

impl Wait {
    fn word(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Drained => "drained",
        }
    }
}

/// How a verb shows what it got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum View {
    /// For people.
    Text,
    /// JSON, as it came.
    Json,
}

impl View {
    /// `--json`, or not.
    pub(crate) fn of(json: bool) -> View {
        if json { View::Json } else { View::Text }
    }
}

/// `reload [SERVICE]`: all services where none is named.
pub(crate) async fn reload(
    control: Option<&Path>,
    service: Option<&str>,
    patience: Patience,
) -> ExitCode {
    let target = match service {
        None => "/v1/reload".to_owned(),
        Some(_) => verb(service, "reload"),
    };
    end(post_within(control, Query::new(target), patience).await)
}

/// `activate [SERVICE] --backend ADDR...`.
pub(crate) async fn activate(
    control: Option<&Path>,
    service: Option<&str>,
    backends: &[BackendAddress],
    patience: Patience,
) -> ExitCode {
    let query = Query::new(verb(service, "activate"));
    let with = |query: Query, backend: &BackendAddress| query.with("backend", &backend.to_string());
    end(post_within(control, backends.iter().fold(query, with), patience).await)
}

/// After `patience.timeout` it gives up waiting; the run goes on.
async fn post_within(
    control: Option<&Path>,
    query: Query,
    patience: Patience,
) -> Result<Done, Failure> {
    let limit = patience.timeout;
    let target = query.with("wait", patience.wait.word()).finish();
    let late = Failure::TimedOut {
        limit,
        what: "the run goes on: see `syngate status`",
    };
    timeout(limit, post(control, &target))
        .await
        .unwrap_or(Err(late))
}

/// `hold [SERVICE]`: until `release` or `limit` (the service's `pending_timeout` where none is given).
pub(crate) async fn hold(
    control: Option<&Path>,
    service: Option<&str>,
    limit: Option<Duration>,
) -> ExitCode {
    let target = Query::new(verb(service, "hold"))
        .with_duration("timeout", limit)
        .finish();
    end(post(control, &target).await)
}

/// `release [SERVICE]`.
pub(crate) async fn release(control: Option<&Path>, service: Option<&str>) -> ExitCode {
    end(post(control, &verb(service, "release")).await)
}

/// `rollback [SERVICE]`.
pub(crate) async fn rollback(control: Option<&Path>, service: Option<&str>) -> ExitCode {
    end(post(control, &verb(service, "rollback")).await)
}

/// `status [SERVICE]`, once or, with `watch`, every second until an interrupt.
pub(crate) async fn status(
    control: Option<&Path>,
    service: Option<&str>,
    view: View,
    watch: bool,
) -> ExitCode {
    let shown = match watch {
        false => show_status(control, service, view).await,
        true => tokio::select! {
            ended = watch_status(control, service, view) => ended,
            _ = tokio::signal::ctrl_c() => Ok(()),
        },
    };
    shown.map_or_else(fail, |()| ExitCode::SUCCESS)
}

/// `status --ready`: exit 0 where /readyz is 200, else 4 and why.
pub(crate) async fn ready(control: Option<&Path>) -> ExitCode {
    match is_ready(control).await {
        Ok(None) => ExitCode::SUCCESS,
        Ok(Some(reason)) => {
            complain(&reason);
            ExitCode::from(exit::NOTHING_SERVES)
        }
        Err(failure) => fail(failure),
    }
}

/// `connections [SERVICE]`, of one generation where it is given.
pub(crate) async fn connections(
    control: Option<&Path>,
    service: Option<&str>,
    generation: Option<u64>,
) -> ExitCode {
    let query = Query::new(verb(service, "connections"));
    let target = match generation {
        Some(number) => query.with("generation", &number.to_string()).finish(),
        None => query.finish(),
    };
    let list = async {
        let mut answer = ask(control, Method::GET, &target).await?.accepted().await?;
        let mut list: Vec<Connection> = Vec::new();
        while let Some(line) = answer.line().await? {
            list.push(answer.read(&line)?);
        }
        Ok(list)
    };
    match in_time(list).await {
        Ok(list) => {
            print(&status::connections(&list));
            ExitCode::SUCCESS
        }
        Err(failure) => fail(failure),
    }
}

/// The path of a service's verb; `-` stands for the only one.
fn verb(service: Option<&str>, verb: &str) -> String {
    // Encoded, so that no name can break out of its place.
    let encode = |name| Cow::from(utf8_percent_encode(name, NON_ALPHANUMERIC));
    format!("/v1/services/{}/{verb}", service.map_or("-".into(), encode))
}

/// A verb, to its last line.
async fn post(control: Option<&Path>, target: &str) -> Result<Done, Failure> {
    let mut answer = ask(control, Method::POST, target).await?.accepted().await?;
    follow(&mut answer, &mut Progress::new(Output::Stdout)).await
}

/// Shows steps until the last line.
pub(crate) async fn follow(answer: &mut Answer, progress: &mut Progress) -> Result<Done, Failure> {
    while let Some(line) = answer.line().await? {
        // A newer gate may send lines of a type that this client doesn't know.
        match serde_json::from_slice(&line) {
            Ok(Line::Step(step)) => progress.show(&step),
            Ok(Line::Done(done)) => {
                progress.close(&done);
                return Ok(done);
            }
            Ok(Line::Lost { .. }) | Err(_) => {}
        }
    }
    progress.cut();
    Err(answer.cut())
}

async fn show_status(
    control: Option<&Path>,
    service: Option<&str>,
    view: View,
) -> Result<(), Failure> {
    let status = fetch_status(control, service).await?;
    print(&match view {
        View::Text => status::text(&status, now(), status::Paint::for_stdout()),
        View::Json => json(&status),
    });
    Ok(())
}

/// Until nobody reads on.
async fn watch_status(
    control: Option<&Path>,
    service: Option<&str>,
    view: View,
) -> Result<(), Failure> {
    let redraw = view == View::Text && io::stdout().is_terminal();
    let mut ticks = interval(WATCH_PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut between = "";
    loop {
        ticks.tick().await;
        let status = fetch_status(control, service).await?;
        let text = match view {
            View::Json => one_line(&status),
            View::Text => {
                let text = status::text(&status, now(), status::Paint::for_stdout());
                match redraw {
                    true => status::redrawn(&text),
                    false => format!("{between}{text}"),
                }
            }
        };
        if !print(&text) {
            return Ok(());
        }
        between = "\n";
    }
}

pub(crate) async fn fetch_status(
    control: Option<&Path>,
    service: Option<&str>,
) -> Result<Status, Failure> {
    let status = async {
        let answer = ask(control, Method::GET, "/v1/status")
            .await?
            .accepted()
            .await?;
        answer.json::<Status>().await
    };
    let mut status = in_time(status).await?;
    if let Some(name) = service {
        let names: Vec<_> = status
            .services
            .iter()
            .map(|service| service.name.clone())
            .collect();
        status.services.retain(|service| service.name == name);
        if status.services.is_empty() {
            let message = format!("there is no service {name:?}: {}", there_are(&names));
            return Err(Failure::Refused(message));
        }
    }
    Ok(status)
}

/// Why the gate isn't ready, if it isn't.
async fn is_ready(control: Option<&Path>) -> Result<Option<String>, Failure> {
    in_time(async {
        let answer = ask(control, Method::GET, "/v1/ready").await?;
        match answer.status {
            StatusCode::OK => Ok(None),
            StatusCode::SERVICE_UNAVAILABLE => Ok(Some(answer.reason().await?)),
            _ => answer.accepted().await.map(|_| None),
        }
    })
    .await
}

async fn in_time<T>(answer: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let limit = ANSWER_TIMEOUT;
    let late = Failure::TimedOut {
        limit,
        what: "the gate is there but doesn't answer: is it stopped?",
    };
    timeout(limit, answer).await.unwrap_or(Err(late))
}

/// Says how a verb ended; a success has been shown.
fn end(ended: Result<Done, Failure>) -> ExitCode {
    match ended {
        Ok(done) => {
            if done.exit != 0 {
                complain(&done.message);
            }
            ExitCode::from(done.exit)
        }
        Err(failure) => fail(failure),
    }
}

fn fail(failure: Failure) -> ExitCode {
    complain(&failure.to_string());
    ExitCode::from(failure.exit())
}

/// One line on stderr. A stderr that is closed is nobody's concern.
fn complain(message: &str) {
    let _ = writeln!(io::stderr(), "syngate: {}", printable(message));
}

/// On stdout. Whether anybody reads on: a reader that has gone, as `head` does, is no error.
fn print(text: &str) -> bool {
    let mut stdout = io::stdout().lock();
    let written = stdout.write_all(text.as_bytes());
    written.and_then(|()| stdout.flush()).is_ok()
}

/// The protocol's types have string keys alone, so encoding them can't fail.
fn json(status: &Status) -> String {
    serde_json::to_string_pretty(status).unwrap_or_default() + "\n"
}

fn one_line(status: &Status) -> String {
    serde_json::to_string(status).unwrap_or_default() + "\n"
}

/// Seconds since 1970.
fn now() -> f64 {
    SystemTime::UNIX_EPOCH
        .elapsed()
        .unwrap_or_default()
        .as_secs_f64()
}

#[cfg(test)]
mod tests;
