//! What is known to be wrong before anything starts: the checks of the first start, and of each run.

use std::path::Path;
use std::sync::{Arc, Mutex};

use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::StartError;
use super::context::{Context, Message};
use super::service::Service;
use crate::child::Spawner;
use crate::command::Command;
use crate::config::{Backend, ServiceConfig};
use crate::haproxy::{self, NotRead};
use crate::launch::{self, Places, Site};
use crate::rollout::Event;
use crate::runtime_dir::GenerationDir;

/// The services, complete and checked. One whose HAProxy has no configuration yet stays as it is.
pub(super) async fn all(cx: &Context) -> Result<Vec<ServiceConfig>, StartError> {
    let mut services = Vec::new();
    for config in &cx.config.services {
        let service = config.name.clone();
        let refused = |why| StartError::Check {
            service: service.clone(),
            why,
        };
        launch::find_program(config)
            .map_err(|why| StartError::System(format!("service {service}: {why}")))?;
        let complete = match haproxy::read(config.clone(), &cx.binaries, &cx.spawner).await {
            Ok(complete) => complete,
            Err(NotRead::Missing(file)) => {
                let file = file.display();
                tracing::warn!(
                    service,
                    "{file} doesn't exist yet: the first reload begins to serve"
                );
                services.push(config.clone());
                continue;
            }
            Err(NotRead::Bad(why)) => return Err(refused(why)),
        };
        haproxy::warn(&complete, None);
        let directory = cx.runtime_dir.path();
        let checked = check(&complete, &cx.spawner, directory, directory).await;
        checked.map_err(|failed| {
            refused(match failed.output {
                Some(output) => format!("{}\n{}", failed.why, output.trim_end()),
                None => failed.why,
            })
        })?;
        services.push(complete);
    }
    Ok(services)
}

impl Service {
    pub(super) fn begin_check(&mut self, cx: &Context, run: u64, config: Arc<ServiceConfig>) {
        self.check_began = Instant::now();
        let (messages, id) = (cx.messages.clone(), self.id);
        let (spawner, directory) = (cx.spawner.clone(), cx.runtime_dir.path().to_owned());
        let task = tokio::spawn(async move {
            let result = check(&config, &spawner, &directory, &directory).await;
            let result = result.map_err(|CheckFailed { why, output }| {
                if let Some(output) = output {
                    let _ = messages.send(Message::CheckSays(id, output));
                }
                why
            });
            let _ = messages.send(Message::Event(id, Event::Checked(run, result)));
        });
        self.check = Some(AbortOnDropHandle::new(task));
    }
}

/// Why a check says no.
#[derive(Debug)]
pub struct CheckFailed {
    /// One line.
    pub why: String,
    /// All that the check command has printed, if that is more.
    pub output: Option<String>,
}

impl From<String> for CheckFailed {
    fn from(why: String) -> CheckFailed {
        CheckFailed { why, output: None }
    }
}

/// Everything that can be known before a start, the configured check last. That runs as generation 0 would: with a directory of its
/// own in `scratch`, and places that nobody else has.
///
/// # Errors
/// It says no, or can't run.
pub async fn check(
    config: &ServiceConfig,
    spawner: &Spawner,
    runtime_dir: &Path,
    scratch: &Path,
) -> Result<(), CheckFailed> {
    launch::check(config, runtime_dir)?;
    let name = match &config.check {
        Some(argv) => {
            let words = argv.iter().map(String::as_str);
            let line = shlex::try_join(words).unwrap_or_else(|_| argv.join(" "));
            format!("the check `{line}`")
        }
        None => "the check".to_owned(),
    };
    let outcome = match (&config.backend, &config.check) {
        (Backend::Command { .. }, Some(_)) | (Backend::Haproxy(_), _) => {
            let directory = GenerationDir::for_check(scratch, &config.name)
                .await
                .map_err(|error| error.to_string())?;
            let places = Mutex::new(Places::new());
            let site = Site::make(config, 0, directory, &places, None).await?;
            site.check(config, spawner).await?
        }
        (Backend::Addresses(_), Some(argv)) => {
            let command = Command::new(argv.clone());
            let outcome = spawner.run_to_end(command, config.check_timeout).await;
            outcome.map_err(|error| format!("{name} can't run: {error}"))?
        }
        (_, None) => return Ok(()),
    };
    if outcome.end.success() {
        return Ok(());
    }
    let Some(last) = outcome.output.last_lines(1).pop() else {
        return Err(format!("{name} {}", outcome.end).into());
    };
    let alerts = match &config.backend {
        Backend::Haproxy(_) => haproxy::alerts(&outcome.output),
        _ => None,
    };
    let last = alerts.unwrap_or(last);
    let text = outcome.output.text();
    Err(CheckFailed {
        why: format!("{name} {}: {last}", outcome.end),
        output: (text.trim() != last).then_some(text),
    })
}
