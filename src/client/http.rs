//! One request to the gate, and its answer line by line.

use std::path::{Path, PathBuf};
use std::time::Duration;

use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::header::HOST;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use syngate_supervisor::control::{self, ControlError};
use syngate_supervisor::exit;
use tokio::net::UnixStream;
use tokio_util::task::AbortOnDropHandle;

/// Longer than any line that a gate writes.
const LINE_MAX: usize = 1 << 20;

/// Why a verb has no last line.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error(transparent)]
    Nobody(#[from] ControlError),
    #[error(
        "the gate at {} ended the connection ({why}): it answers its own user and root, and stops when it is told to",
        path.display()
    )]
    Cut { path: PathBuf, why: String },
    #[error(
        "the answer of the gate at {} {why}: the gate's log may say more, if it wasn't killed",
        path.display()
    )]
    Broken { path: PathBuf, why: String },
    #[error("{0}")]
    Unavailable(String),
    #[error("{0}")]
    Refused(String),
    #[error("{0}")]
    Gone(String),
    #[error("no answer within {limit:?}: {what}")]
    TimedOut { limit: Duration, what: &'static str },
}

impl Failure {
    /// The exit code (docs/exit-codes.md).
    pub(crate) fn exit(&self) -> u8 {
        match self {
            Self::Gone(_) => exit::FAILED,
            Self::Refused(_) => exit::NOT_UNDERSTOOD,
            Self::Nobody(_) | Self::Cut { .. } | Self::Broken { .. } | Self::Unavailable(_) => {
                exit::NO_GATE
            }
            Self::TimedOut { .. } => exit::TIMED_OUT,
        }
    }
}

/// A path with parameters.
pub(crate) struct Query {
    path: String,
    parameters: form_urlencoded::Serializer<'static, String>,
}

impl Query {
    pub(crate) fn new(path: String) -> Self {
        Self {
            path,
            parameters: form_urlencoded::Serializer::new(String::new()),
        }
    }

    pub(crate) fn with(mut self, name: &str, value: &str) -> Self {
        self.parameters.append_pair(name, value);
        self
    }

    pub(crate) fn with_duration(self, name: &str, value: Option<Duration>) -> Self {
        match value {
            Some(value) => self.with(name, &format!("{}ms", value.as_millis())),
            None => self,
        }
    }

    pub(crate) fn finish(mut self) -> String {
        match self.parameters.finish() {
            query if query.is_empty() => self.path,
            query => format!("{}?{query}", self.path),
        }
    }
}

/// An answer that has begun. Dropping it ends the connection.
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    body: Incoming,
    /// Bytes that don't make a line yet.
    rest: Vec<u8>,
    path: PathBuf,
    _connection: AbortOnDropHandle<()>,
}

/// Sends a request to the gate at `control`, or to the first that answers at a default place.
pub(crate) async fn ask(
    control: Option<&Path>,
    method: Method,
    target: &str,
) -> Result<Answer, Failure> {
    let (stream, path) = control::connect(control)?;
    let exchange = async {
        let stream = UnixStream::from_std(stream).map_err(|error| error.to_string())?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| error.to_string())?;
        // An error of the connection is the error of its request, too.
        let connection = tokio::spawn(async move { drop(connection.await) });
        let connection = AbortOnDropHandle::new(connection);
        let request = Request::builder()
            .method(method)
            .uri(target)
            .header(HOST, "syngate")
            .body(Empty::<Bytes>::new())
            .map_err(|error| error.to_string())?;
        let answer = sender
            .send_request(request)
            .await
            .map_err(|error| error.to_string())?;
        Ok((answer, connection))
    };
    match exchange.await {
        Ok((answer, connection)) => Ok(Answer {
            status: answer.status(),
            body: answer.into_body(),
            rest: Vec::new(),
            path,
            _connection: connection,
        }),
        Err(why) => Err(Failure::Cut { path, why }),
    }
}

impl Answer {
    /// This answer if it is what was asked for, else what the gate says against it.
    pub(crate) async fn accepted(self) -> Result<Self, Failure> {
        let status = self.status;
        if status.is_success() {
            return Ok(self);
        }
        let message = self.reason().await?;
        Err(match status {
            StatusCode::SERVICE_UNAVAILABLE => Failure::Unavailable(message),
            StatusCode::GONE => Failure::Gone(message),
            _ => Failure::Refused(message),
        })
    }

    /// The sentence of an answer other than 200.
    pub(crate) async fn reason(self) -> Result<String, Failure> {
        let status = self.status;
        let body: serde_json::Value = self.json().await?;
        let sentence = body.get("error").or_else(|| body.get("not_ready"));
        Ok(match sentence.and_then(serde_json::Value::as_str) {
            Some(sentence) => sentence.to_owned(),
            None => format!("the gate answers {status}"),
        })
    }

    /// The next line, without its end; `None` after the last. May be cancelled.
    pub(crate) async fn line(&mut self) -> Result<Option<Vec<u8>>, Failure> {
        loop {
            if let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let after = self.rest.split_off(end + 1);
                let mut line = std::mem::replace(&mut self.rest, after);
                line.truncate(end);
                return Ok(Some(line));
            }
            if self.rest.len() > LINE_MAX {
                return Err(self.broken("has a line of over 1 MiB"));
            }
            match self.body.frame().await {
                Some(Ok(frame)) => {
                    if let Some(data) = frame.data_ref() {
                        self.rest.extend_from_slice(data);
                    }
                }
                // The error says no more.
                Some(Err(_)) => return Err(self.broken("was cut off")),
                None => return Ok(None),
            }
        }
    }

    /// The whole answer, as one document.
    pub(crate) async fn json<T: DeserializeOwned>(mut self) -> Result<T, Failure> {
        let mut document = Vec::new();
        while let Some(line) = self.line().await? {
            document.extend(line);
        }
        self.read(&document)
    }

    /// Reads a line.
    pub(crate) fn read<T: DeserializeOwned>(&self, line: &[u8]) -> Result<T, Failure> {
        serde_json::from_slice(line)
            .map_err(|error| self.broken(&format!("can't be read ({error})")))
    }

    /// It ended before its last line.
    pub(crate) fn cut(&self) -> Failure {
        self.broken("has no last line")
    }

    fn broken(&self, why: &str) -> Failure {
        Failure::Broken {
            path: self.path.clone(),
            why: why.to_owned(),
        }
    }
}
