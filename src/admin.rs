//! The metrics address: `/metrics`, `/livez`, `/readyz`, and the status as a page and as JSON, over HTTP/1.1. Nothing here changes
//! anything.
//!
//! Invariants:
//!
//! - It runs on a thread and a runtime of its own, so it answers while the data path or the supervisor is busy.
//! - A connection carries one request, and its header, its whole life and the number of its kind are bounded. More clients than
//!   that wait in the kernel's backlog.
//! - It keeps a few descriptors in reserve. When the process has run out of them it gives these up for one connection at a time,
//!   so that the endpoint which tells what is wrong still answers.

use std::convert::Infallible;
use std::io;
use std::net;
use std::pin::Pin;
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use http_body_util::Full;
use hyper::body::{Body, Bytes};
use hyper::header::{
    ACCEPT, ALLOW, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderMap, HeaderValue, VARY,
};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use syngate_metrics::Metrics;
use syngate_supervisor::protocol::Status;
use syngate_supervisor::reserve::Reserve;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{self, Runtime};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time;
use tracing::{debug, warn};

const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const EXPOSITION: HeaderValue =
    HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const HTML: HeaderValue = HeaderValue::from_static("text/html; charset=utf-8");

/// The status for people with a browser: all in one file, which asks for `/status` again and again.
const PAGE: &str = include_str!("admin/status.html");

/// What the page may do: run what stands in it, and ask this endpoint (CSP level 3).
const PAGE_POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; connect-src 'self'; \
     base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
);

/// The same for who doesn't ask for HTML.
const INDEX: &str = "syngate\n\n\
    /metrics  what is counted, for Prometheus\n\
    /status   what goes on, as JSON; / in a browser shows it\n\
    /livez    200 while the supervisor and every worker turn\n\
    /readyz   200 while every service can serve, else 503 and the reason\n";

/// The longest request header, in bytes.
const HEADER_SIZE: usize = 16 * 1024;

/// After a failed accept nothing is tried for this long.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// At most one line about failed accepts in this time.
const WARN_INTERVAL: Duration = Duration::from_secs(1);

/// Descriptors in reserve: one for the connection, three that a scrape opens at once below /proc or as a kernel query.
const RESERVE: usize = 4;

/// What one listener may cost.
#[derive(Clone, Copy)]
struct Limits {
    /// Connections at once.
    connections: usize,
    /// From the accept to the end of the request's header.
    header: Duration,
    /// From the accept to the end of the connection.
    connection: Duration,
    /// For the supervisor to tell its status: it answers at once, or is stuck.
    status: Duration,
}

const LIMITS: Limits = Limits {
    connections: 64,
    header: Duration::from_secs(5),
    connection: Duration::from_secs(15),
    status: Duration::from_secs(3),
};

/// What the endpoint asks the rest of the process. Each call runs on the endpoint's only thread: it must return soon, whatever
/// state the data path is in.
pub(crate) struct Health {
    /// Whether the supervisor and all workers turn.
    pub(crate) live: Box<dyn Fn() -> bool + Send + Sync>,
    /// Whether every service can serve; if not, why, in one line.
    pub(crate) ready: Box<dyn Fn() -> Result<(), String> + Send + Sync>,
    /// Refreshes the gauges that somebody has to read from the kernel or the workers; called before each scrape.
    pub(crate) sample: Box<dyn Fn() + Send + Sync>,
    /// The status; `None` from a gate that stops. It may take the supervisor's time: others are answered meanwhile.
    pub(crate) status: Box<dyn Fn() -> BoxFuture<Option<Status>> + Send + Sync>,
}

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The running endpoint. Dropping it stops it, cuts its connections and waits for its thread.
pub(crate) struct Admin {
    /// Dropped to stop the thread.
    running: Option<oneshot::Sender<Infallible>>,
    thread: Option<JoinHandle<()>>,
}

impl Admin {
    /// Stops the endpoint; its port is free when this returns.
    pub(crate) fn stop(self) {
        drop(self);
    }
}

impl Drop for Admin {
    fn drop(&mut self) {
        self.running = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            warn!("the thread of the metrics endpoint panicked");
        }
    }
}

/// Serves on a bound listener, whose port may be any.
///
/// # Errors
///
/// If the system refuses the thread, an epoll descriptor, or the reserve.
pub(crate) fn serve(
    listener: net::TcpListener,
    metrics: Arc<Metrics>,
    health: Health,
) -> io::Result<Admin> {
    serve_within(LIMITS, listener, metrics, health)
}

fn serve_within(
    limits: Limits,
    listener: net::TcpListener,
    metrics: Arc<Metrics>,
    health: Health,
) -> io::Result<Admin> {
    let pages = Arc::new(Pages {
        metrics,
        health,
        patience: limits.status,
    });
    let (running, stopped) = oneshot::channel();
    let (tell, opened) = mpsc::sync_channel(1);
    // The thread makes its runtime itself: one that is of no use can't be dropped on the caller's.
    let serve = move || {
        let (opened, told) = match open(listener) {
            Ok(opened) => (Some(opened), Ok(())),
            Err(error) => (None, Err(error)),
        };
        // Whoever started the thread waits for this.
        let _ = tell.send(told);
        if let Some((runtime, door)) = opened {
            runtime.block_on(run(limits, door, pages, stopped));
        }
    };
    let thread = thread::Builder::new()
        .name("metrics".to_owned())
        .spawn(serve)?;
    opened.recv().map_err(io::Error::other)??;
    Ok(Admin {
        running: Some(running),
        thread: Some(thread),
    })
}

fn open(listener: net::TcpListener) -> io::Result<(Runtime, Door)> {
    let runtime = runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build()?;
    let door = Door::new(&runtime, listener)?;
    Ok((runtime, door))
}

async fn run(
    limits: Limits,
    mut door: Door,
    pages: Arc<Pages>,
    mut stopped: oneshot::Receiver<Infallible>,
) {
    let mut connections = JoinSet::new();
    loop {
        let room = connections.len() < limits.connections;
        let affordable = door.reserve.is_full() || connections.is_empty();
        tokio::select! {
            _ = &mut stopped => return,
            Some(_) = connections.join_next() => door.reserve.refill(&door.listener),
            stream = door.accept(), if room && affordable => {
                connections.spawn(converse(limits, stream, Arc::clone(&pages)));
            }
        }
    }
}

/// The listening socket, and the descriptors kept for the day when there are no others.
struct Door {
    listener: TcpListener,
    reserve: Reserve,
    /// When a failed accept was last logged.
    warned: Option<Instant>,
}

impl Door {
    fn new(runtime: &Runtime, listener: net::TcpListener) -> io::Result<Door> {
        listener.set_nonblocking(true)?;
        let _context = runtime.enter();
        Ok(Door {
            reserve: Reserve::new(RESERVE, &listener)?,
            listener: TcpListener::from_std(listener)?,
            warned: None,
        })
    }

    /// The next connection, at the price of the reserve if need be. May be cancelled at any time.
    async fn accept(&mut self) -> TcpStream {
        loop {
            self.reserve.refill(&self.listener);
            match self.listener.accept().await {
                Ok((stream, _)) => return stream,
                Err(error) if self.reserve.give_up_for(&error) => {
                    if let Ok((stream, _)) = self.listener.accept().await {
                        return stream;
                    }
                }
                Err(error) => self.warn(&error),
            }
            time::sleep(ACCEPT_PAUSE).await;
        }
    }

    fn warn(&mut self, error: &io::Error) {
        if self.warned.is_none_or(|at| at.elapsed() >= WARN_INTERVAL) {
            self.warned = Some(Instant::now());
            warn!(%error, "the metrics endpoint can't accept connections; it tries again");
        }
    }
}

/// Answers one request.
async fn converse(limits: Limits, stream: TcpStream, pages: Arc<Pages>) {
    let answer = service_fn(async |request| Ok::<_, Infallible>(pages.answer(&request).await));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header)
        .keep_alive(false)
        .max_buf_size(HEADER_SIZE)
        .serve_connection(TokioIo::new(stream), answer);
    match time::timeout(limits.connection, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => debug!(%error, "a client of the metrics endpoint was cut off"),
        Err(_) => debug!("a client of the metrics endpoint took too long"),
    }
}

/// What the endpoint can say.
struct Pages {
    metrics: Arc<Metrics>,
    health: Health,
    /// [`Limits::status`].
    patience: Duration,
}

impl Pages {
    async fn answer(&self, request: &Request<impl Body>) -> Response<Full<Bytes>> {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let mut refusal = text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n");
            let allowed = HeaderValue::from_static("GET, HEAD");
            refusal.headers_mut().insert(ALLOW, allowed);
            return refusal;
        }
        if !request.body().is_end_stream() {
            return text(StatusCode::PAYLOAD_TOO_LARGE, "no request body, please\n");
        }
        match request.uri().path() {
            "/metrics" => {
                (self.health.sample)();
                page(EXPOSITION, self.metrics.encode())
            }
            "/status" => self.status().await,
            "/livez" if (self.health.live)() => text(StatusCode::OK, "ok\n"),
            "/livez" => text(
                StatusCode::SERVICE_UNAVAILABLE,
                "the supervisor or a worker doesn't turn\n",
            ),
            "/readyz" => match (self.health.ready)() {
                Ok(()) => text(StatusCode::OK, "ok\n"),
                Err(reason) => text(StatusCode::SERVICE_UNAVAILABLE, reason + "\n"),
            },
            "/" => index(request.headers()),
            _ => text(StatusCode::NOT_FOUND, "not found; / lists what is here\n"),
        }
    }

    async fn status(&self) -> Response<Full<Bytes>> {
        let unavailable = |why: &'static str| text(StatusCode::SERVICE_UNAVAILABLE, why);
        match time::timeout(self.patience, (self.health.status)()).await {
            Ok(Some(status)) => match serde_json::to_vec(&status) {
                Ok(document) => page(JSON, document),
                Err(_) => unavailable("the status can't be written as JSON\n"),
            },
            Ok(None) => unavailable("the gate is stopping\n"),
            Err(_) => unavailable("the supervisor doesn't answer\n"),
        }
    }
}

/// For a browser the page, for others a list.
fn index(asked: &HeaderMap) -> Response<Full<Bytes>> {
    let accepts = asked.get_all(ACCEPT).iter();
    let mut words = accepts.filter_map(|value| value.to_str().ok());
    let mut index = match words.any(|words| words.contains("text/html")) {
        true => page(HTML, PAGE),
        false => page(TEXT, INDEX),
    };
    let headers = index.headers_mut();
    headers.insert(VARY, HeaderValue::from_static("Accept"));
    headers.insert(CONTENT_SECURITY_POLICY, PAGE_POLICY);
    index
}

fn page(kind: HeaderValue, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut page = text(StatusCode::OK, body);
    page.headers_mut().insert(CONTENT_TYPE, kind);
    page
}

fn text(status: StatusCode, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, TEXT);
    response
}

#[cfg(test)]
#[path = "admin_tests.rs"]
mod tests;
