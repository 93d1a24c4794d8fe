//! `events [SERVICE]`: the gate's steps as they happen, until an interrupt, the gate's end, or nobody reads them.

use std::io::{self, IsTerminal};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use hyper::Method;
use syngate_supervisor::protocol::{Line, Step};

use super::http::{Failure, ask};
use super::{View, complain, fail, fetch_status, print};
use crate::progress::printable;

/// `events [SERVICE]`: exit 0 after an interrupt, and where the gate ends as it was told to.
pub(crate) async fn events(control: Option<&Path>, service: Option<&str>, view: View) -> ExitCode {
    let ended = tokio::select! {
        ended = follow(control, service, view) => ended,
        _ = tokio::signal::ctrl_c() => Ok(()),
    };
    ended.map_or_else(fail, |()| ExitCode::SUCCESS)
}

async fn follow(control: Option<&Path>, service: Option<&str>, view: View) -> Result<(), Failure> {
    let mut events = ask(control, Method::GET, "/v1/events")
        .await?
        .accepted()
        .await?;
    if service.is_some() {
        // There is one of this name.
        fetch_status(control, service).await?;
    }
    if view == View::Text && io::stdout().is_terminal() {
        complain("waits for events; Ctrl-C ends it");
    }
    while let Some(line) = events.line().await? {
        let shown = match (view, serde_json::from_slice(&line)) {
            (_, Ok(Line::Step(step))) if service.is_some_and(|name| name != step.service) => None,
            (View::Json, _) => Some(String::from_utf8_lossy(&line).into_owned()),
            (View::Text, Ok(line)) => text(&line),
            // A newer gate may send lines of a type that this client doesn't know.
            (View::Text, Err(_)) => None,
        };
        if shown.is_some_and(|shown| !print(&(shown + "\n"))) {
            return Ok(());
        }
    }
    if view == View::Text {
        complain("the gate has stopped");
    }
    Ok(())
}

/// `2026-01-31T12:00:00.250Z  web  ready       generation 4 is ready`
pub(super) fn text(line: &Line) -> Option<String> {
    match line {
        Line::Step(Step {
            at,
            service,
            step,
            message,
            ..
        }) => {
            let at = SystemTime::UNIX_EPOCH + Duration::try_from_secs_f64(*at).unwrap_or_default();
            let at = humantime::format_rfc3339_millis(at);
            let message = printable(message).replace('\n', " ");
            Some(
                format!("{at}  {service}  {step:<10}  {message}")
                    .trim_end()
                    .to_owned(),
            )
        }
        Line::Lost { lines } => Some(format!(
            "{lines} lines are missing here: they were read too slowly"
        )),
        Line::Done(_) => None,
    }
}
