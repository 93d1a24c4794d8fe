//! The control socket: HTTP/1.1 with JSON on a unix socket (docs/control.md).
//!
//! Nothing that a client does reaches further than its own connection. One request a connection; at most [`CLIENTS`] at once;
//! a head has 64 KiB and 5 s; a client that takes nothing for 30 s is cut; one of another user is closed before it is
//! read. The supervisor never waits for a client. A client's end is noticed while nothing is written, and drops its lines:
//! the supervisor then ends a hold that it owned, and lets everything else go on. At the end readers of events hear the last
//! steps, and an end that isn't cut.

mod route;
mod socket;

use std::convert::Infallible;
use std::io::{self, Write as _};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http_body_util::{Either, Full};
use hyper::body::{Body, Bytes, Frame, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use nix::unistd::Uid;
use serde::Serialize;
use serde_json::json;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{broadcast, mpsc};
use tokio::task::JoinSet;
use tokio::time::{Sleep, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::handle::{Handle, Stopping};
use crate::names::there_are;
use crate::protocol::{Line, Request, Step};
use crate::reserve::Reserve;
use route::{Refusal, Route};
pub use socket::{ControlError, ControlSocket, bind, connect, default_path};

/// Clients at once. One more is told so and closed.
pub const CLIENTS: usize = 64;

/// A request's head, and what is buffered for a client that reads slowly.
const BUFFER_BYTES: usize = 64 * 1024;

/// From the accept to the end of the head.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);

/// A client that takes no byte of what waits for it is cut after this.
const STALL_TIMEOUT: Duration = Duration::from_secs(30);

/// After an accept that failed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// For last lines, after the shutdown.
const LINGER: Duration = Duration::from_millis(500);

/// What a client over the limit reads.
const FULL: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\ncontent-type: application/json\r\n\r\n\
    {\"error\":\"the control socket has 64 clients already: end some, such as readers of /v1/events\"}\n";

/// Answers clients until `shutdown` resolves, which should be the last thing that a gate does: a client may watch it stop.
/// The socket's file is removed then; clients that haven't ended 500 ms later are cut.
pub async fn serve(
    socket: ControlSocket,
    handle: Handle,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    let ControlSocket {
        name,
        listener,
        mut reserve,
        admitted,
    } = socket;
    let listener = UnixListener::from_std(listener)?;
    let mut shutdown = pin!(shutdown);
    let mut clients = JoinSet::new();
    let ends = CancellationToken::new();
    loop {
        reserve.refill(&listener);
        let affordable = reserve.is_full() || clients.is_empty();
        tokio::select! {
            () = &mut shutdown => break,
            Some(_) = clients.join_next() => {}
            accepted = accept(&listener, &mut reserve), if affordable => match accepted {
                Ok(stream) if !is_admitted(&stream, admitted) => {}
                Ok(stream) if clients.len() >= CLIENTS => turn_away(stream),
                Ok(stream) => {
                    clients.spawn(converse(stream, handle.clone(), ends.clone()));
                }
                Err(error) => {
                    tracing::warn!(%error, "the control socket can't accept a client");
                    sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
    drop(name);
    drop(listener);
    ends.cancel();
    let last_lines = async { while clients.join_next().await.is_some() {} };
    let _ = timeout(LINGER, last_lines).await;
    Ok(())
}

/// The next client, at the price of the reserve if need be.
async fn accept(listener: &UnixListener, reserve: &mut Reserve) -> io::Result<UnixStream> {
    let accepted = match listener.accept().await {
        Err(error) if reserve.give_up_for(&error) => listener.accept().await,
        accepted => accepted,
    };
    accepted.map(|(stream, _)| stream)
}

/// Tells a client over the limit why it is closed. Its buffer is empty, so the write doesn't wait.
fn turn_away(stream: UnixStream) {
    let _ = stream.into_std().and_then(|mut stream| stream.write(FULL));
}

/// Whether the client is the gate's user or root (unix(7), SO_PEERCRED).
fn is_admitted(stream: &UnixStream, admitted: [Uid; 2]) -> bool {
    match stream.peer_cred() {
        Ok(peer) if admitted.contains(&Uid::from_raw(peer.uid())) => true,
        Ok(peer) => {
            tracing::warn!(
                uid = peer.uid(),
                "a client of another user was closed at the control socket"
            );
            false
        }
        Err(_) => false, // gone
    }
}

/// One client, one request.
async fn converse(stream: UnixStream, handle: Handle, ends: CancellationToken) {
    let service = service_fn(|request| answer(request, &handle, &ends));
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(BUFFER_BYTES)
        .keep_alive(false)
        .serve_connection(
            TokioIo::new(Impatient {
                stream,
                stall: None,
            }),
            service,
        )
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "a client of the control socket ended early");
    }
}

type Answer = Response<Either<Full<Bytes>, Lines>>;

async fn answer(
    request: hyper::Request<Incoming>,
    handle: &Handle,
    ends: &CancellationToken,
) -> Result<Answer, Infallible> {
    Ok(match respond(&request, handle, ends).await {
        Ok(answer) => answer,
        Err(Refusal { status, message }) => json_answer(status, &json!({ "error": message })),
    })
}

async fn respond(
    request: &hyper::Request<Incoming>,
    handle: &Handle,
    ends: &CancellationToken,
) -> Result<Answer, Refusal> {
    if !request.body().is_end_stream() {
        let message = "a request has no body here: parameters stand in the query";
        return Err(Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, message));
    }
    let uri = request.uri();
    match route::route(request.method(), uri.path(), uri.query())? {
        Route::Status => Ok(json_answer(StatusCode::OK, &handle.status().await?)),
        Route::Ready => Ok(match handle.ready() {
            Ok(()) => json_answer(StatusCode::OK, &json!({ "ready": true })),
            Err(reason) => json_answer(
                StatusCode::SERVICE_UNAVAILABLE,
                &json!({ "ready": false, "not_ready": reason }),
            ),
        }),
        Route::Events => {
            let (lines, receiver) = mpsc::channel(1);
            tokio::spawn(forward(handle.events(), lines, ends.clone()));
            Ok(lines_answer(Either::Right(Lines::new(receiver, true))))
        }
        Route::Connections {
            service,
            generation,
        } => {
            let service = resolve(&service, handle).await?;
            let connections = handle.connections(&service, generation).await?;
            let connections =
                connections.map_err(|message| Refusal::new(StatusCode::NOT_FOUND, message))?;
            if let Some(number) = generation
                && connections.is_empty()
            {
                lives(&service, number, handle).await?;
            }
            let lines: Vec<u8> = connections.iter().flat_map(json_line).collect();
            Ok(lines_answer(Either::Left(Full::from(lines))))
        }
        Route::Verb(mut verb) => {
            if let Some(name) = verb.service_mut() {
                *name = resolve(name, handle).await?;
            }
            // A hold that belongs to its client lasts as long as the connection.
            let stays = matches!(verb, Request::Hold { owned: true, .. });
            let lines = Lines::new(handle.request(verb), stays);
            Ok(lines_answer(Either::Right(lines)))
        }
    }
}

async fn resolve(name: &str, handle: &Handle) -> Result<String, Refusal> {
    let status = handle.status().await?;
    let names: Vec<&str> = status
        .services
        .iter()
        .map(|service| service.name.as_str())
        .collect();
    route::resolve(name, &names).map(str::to_owned)
}

/// Refuses a generation that isn't there, and says which are.
async fn lives(service: &str, number: u64, handle: &Handle) -> Result<(), Refusal> {
    let status = handle.status().await?;
    let service = status.services.iter().find(|one| one.name == service);
    let live: Vec<u64> = service
        .into_iter()
        .flat_map(|service| service.generations.iter().map(|one| one.number))
        .collect();
    if live.contains(&number) {
        return Ok(());
    }
    let message = format!("there is no generation {number}: {}", there_are(&live));
    Err(Refusal::new(StatusCode::GONE, message))
}

impl From<Stopping> for Refusal {
    fn from(stopping: Stopping) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, stopping.to_string())
    }
}

/// Carries steps to one reader of events, until it, they or the gate end. Steps that a slow reader missed are counted to it.
async fn forward(
    mut steps: broadcast::Receiver<Step>,
    lines: mpsc::Sender<Line>,
    ends: CancellationToken,
) {
    loop {
        let step = tokio::select! {
            biased;
            () = lines.closed() => return,
            step = steps.recv() => step,
            () = ends.cancelled() => return,
        };
        let line = match step {
            Ok(step) => Line::Step(step),
            Err(broadcast::error::RecvError::Lagged(lines)) => Line::Lost { lines },
            Err(broadcast::error::RecvError::Closed) => return,
        };
        if lines.send(line).await.is_err() {
            return;
        }
    }
}

fn json_answer(status: StatusCode, value: &impl Serialize) -> Answer {
    let mut answer = Response::new(Either::Left(Full::from(json_line(value))));
    *answer.status_mut() = status;
    answer
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    answer
}

fn lines_answer(body: Either<Full<Bytes>, Lines>) -> Answer {
    let mut answer = Response::new(body);
    answer.headers_mut().insert(
        CONTENT_TYPE,
        HeaderValue::from_static("application/x-ndjson"),
    );
    answer
}

/// One line of JSON. The protocol's types have string keys alone, so encoding them can't fail.
fn json_line(value: &impl Serialize) -> Vec<u8> {
    let mut line = serde_json::to_vec(value).unwrap_or_default();
    line.push(b'\n');
    line
}

/// A body of JSON lines. Dropping it, which is what a client's end does, closes the sender's side.
struct Lines {
    receiver: mpsc::Receiver<Line>,
    /// It goes on after [`Line::Done`].
    stays: bool,
    ended: bool,
}

impl Lines {
    fn new(receiver: mpsc::Receiver<Line>, stays: bool) -> Lines {
        Lines {
            receiver,
            stays,
            ended: false,
        }
    }
}

impl Body for Lines {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let line = ready!(self.receiver.poll_recv(cx));
        self.ended = !self.stays && matches!(line, Some(Line::Done(_)));
        Poll::Ready(line.map(|line| Ok(Frame::data(json_line(&line).into()))))
    }
}

/// A stream whose writes fail once its peer has taken nothing for [`STALL_TIMEOUT`].
struct Impatient {
    stream: UnixStream,
    stall: Option<Pin<Box<Sleep>>>,
}

impl AsyncRead for Impatient {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Impatient {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if let Poll::Ready(written) = Pin::new(&mut self.stream).poll_write(cx, bytes) {
            self.stall = None;
            return Poll::Ready(written);
        }
        let stall = self
            .stall
            .get_or_insert_with(|| Box::pin(sleep(STALL_TIMEOUT)));
        ready!(stall.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod document_tests;
#[cfg(test)]
#[path = "control/tests.rs"]
mod tests;
