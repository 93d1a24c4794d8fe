//! Method, path and query of a request, read into what is asked for. No I/O here.

use std::time::Duration;

use hyper::{Method, StatusCode};
use percent_encoding::percent_decode_str;

use crate::config::BackendAddress;
use crate::names::there_are;
use crate::protocol::Request;

/// The name that stands for the only service. No service can be called so.
pub(super) const ONLY: &str = "-";

/// What is asked for.
#[derive(Debug, PartialEq)]
pub(super) enum Route {
    Status,
    Ready,
    Events,
    Connections {
        service: String,
        generation: Option<u64>,
    },
    Verb(Request),
}

/// A request that can't be answered: the status and one sentence.
#[derive(Debug, PartialEq)]
pub(super) struct Refusal {
    pub(super) status: StatusCode,
    pub(super) message: String,
}

impl Refusal {
    pub(super) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self {
            status,
            message: message.into(),
        }
    }

    fn parameter(message: String) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }
}

/// Reads a request line.
pub(super) fn route(method: &Method, path: &str, query: Option<&str>) -> Result<Route, Refusal> {
    let mut parameters = Parameters::new(query.unwrap_or_default());
    let segments: Vec<&str> = path.split('/').skip(1).collect();
    let (wanted, route) = match *segments {
        ["v1", "status"] => (Method::GET, Route::Status),
        ["v1", "ready"] => (Method::GET, Route::Ready),
        ["v1", "events"] => (Method::GET, Route::Events),
        ["v1", "services", service, "connections"] => {
            let generation = parameters.parsed("generation", str::parse)?;
            (
                Method::GET,
                Route::Connections {
                    service: decoded(service),
                    generation,
                },
            )
        }
        ["v1", "reload"] => {
            let request = Request::Reload {
                service: None,
                drained: parameters.drained()?,
            };
            (Method::POST, Route::Verb(request))
        }
        ["v1", "services", service, verb] => (
            Method::POST,
            Route::Verb(request(service, verb, &mut parameters)?),
        ),
        _ => return Err(unknown(path)),
    };
    if *method != wanted {
        let message = format!("{path} takes {wanted}, not {method}");
        return Err(Refusal::new(StatusCode::METHOD_NOT_ALLOWED, message));
    }
    parameters.finish()?;
    Ok(route)
}

fn request(service: &str, verb: &str, parameters: &mut Parameters) -> Result<Request, Refusal> {
    let service = Some(decoded(service));
    Ok(match verb {
        "reload" => Request::Reload {
            service,
            drained: parameters.drained()?,
        },
        "hold" => Request::Hold {
            service,
            timeout: parameters.parsed("timeout", duration)?,
            owned: parameters.flag("owned")?,
        },
        "release" => Request::Release {
            service,
            when_ready: parameters.flag("when_ready")?,
        },
        "activate" => Request::Activate {
            service,
            backends: parameters.backends()?,
            drained: parameters.drained()?,
        },
        "rollback" => Request::Rollback { service },
        _ => return Err(unknown(&format!("/v1/services/NAME/{verb}"))),
    })
}

fn unknown(path: &str) -> Refusal {
    let message = format!(
        "{path} is unknown: there are /v1/status, /v1/ready, /v1/events, /v1/reload, and under /v1/services/NAME \
         connections, reload, hold, release, activate and rollback"
    );
    Refusal::new(StatusCode::NOT_FOUND, message)
}

/// Finds the service that a request names among those that there are.
pub(super) fn resolve<'a>(name: &str, names: &[&'a str]) -> Result<&'a str, Refusal> {
    match *names {
        [only] if name == ONLY => Ok(only),
        _ if name == ONLY => {
            let message = format!("name a service: {}", there_are(names));
            Err(Refusal::new(StatusCode::NOT_FOUND, message))
        }
        _ => names
            .iter()
            .find(|known| **known == name)
            .copied()
            .ok_or_else(|| {
                let message = format!("there is no service {name:?}: {}", there_are(names));
                Refusal::new(StatusCode::NOT_FOUND, message)
            }),
    }
}

/// The query's parameters; each is taken once, and none may be left.
struct Parameters(Vec<(String, String)>);

impl Parameters {
    fn new(query: &str) -> Self {
        Self(
            form_urlencoded::parse(query.as_bytes())
                .into_owned()
                .collect(),
        )
    }

    fn all(&mut self, name: &str) -> Vec<String> {
        self.0
            .extract_if(.., |(key, _)| key == name)
            .map(|(_, value)| value)
            .collect()
    }

    fn one(&mut self, name: &str) -> Result<Option<String>, Refusal> {
        let mut values = self.all(name);
        let value = values.pop();
        match values.is_empty() {
            true => Ok(value),
            false => Err(Refusal::parameter(format!(
                "the parameter {name} may be given once"
            ))),
        }
    }

    fn parsed<T, E: ToString>(
        &mut self,
        name: &str,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Result<Option<T>, Refusal> {
        let Some(value) = self.one(name)? else {
            return Ok(None);
        };
        let refusal = |error: E| {
            Refusal::parameter(format!(
                "{name}={value} can't be read: {}",
                error.to_string()
            ))
        };
        parse(&value).map(Some).map_err(refusal)
    }

    fn flag(&mut self, name: &str) -> Result<bool, Refusal> {
        let parse = |value: &str| match value {
            "1" => Ok(true),
            "0" => Ok(false),
            _ => Err("it is 0 or 1"),
        };
        Ok(self.parsed(name, parse)?.unwrap_or(false))
    }

    fn drained(&mut self) -> Result<bool, Refusal> {
        let parse = |value: &str| match value {
            "active" => Ok(false),
            "drained" => Ok(true),
            _ => Err("it is active or drained"),
        };
        Ok(self.parsed("wait", parse)?.unwrap_or(false))
    }

    fn backends(&mut self) -> Result<Vec<BackendAddress>, Refusal> {
        let backends = self.all("backend");
        if backends.is_empty() {
            return Err(Refusal::parameter(
                "give at least one backend=[LISTENER=]ADDR".into(),
            ));
        }
        let parse = |text: &String| {
            text.parse()
                .map_err(|error| Refusal::parameter(format!("backend={text}: {error}")))
        };
        backends.iter().map(parse).collect()
    }

    fn finish(self) -> Result<(), Refusal> {
        match self.0.first() {
            None => Ok(()),
            Some((name, _)) => Err(Refusal::parameter(format!(
                "the parameter {name:?} means nothing here"
            ))),
        }
    }
}

fn decoded(segment: &str) -> String {
    percent_decode_str(segment).decode_utf8_lossy().into_owned()
}

/// As in a configuration: far from where adding it to a clock overflows.
const LONGEST: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

fn duration(text: &str) -> Result<Duration, String> {
    let duration = humantime::parse_duration(text)
        .map_err(|error| format!("{error} (as in 500ms, 30s, 5m)"))?;
    if duration > LONGEST {
        return Err(format!("`{text}` is too long: at most ten years"));
    }
    Ok(duration)
}

#[cfg(test)]
#[path = "route_tests.rs"]
mod tests;
