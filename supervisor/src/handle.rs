//! What the control socket, the signals and the admin endpoint hold of the supervisor's loop: a sender of questions, the
//! stream of steps, and the present readiness.
//!
//! A handle never blocks the loop: the loop answers what it is asked, and whoever asked may have gone by then.

use std::sync::Arc;

use tokio::sync::{broadcast, mpsc, oneshot, watch};

use crate::board::Board;
use crate::protocol::{Connection, Line, Request, Status, Step};

/// Lines that an asker may be behind before it loses some. A run writes a dozen; its drain one a second.
const LINES: usize = 256;

/// Steps that a reader of events may be behind before it loses some.
const STEPS: usize = 256;

/// A question to the loop.
#[derive(Debug)]
pub enum Ask {
    /// A verb. The loop sends with `try_send`, so that a slow asker costs it nothing; the last line is `Done`, then it drops
    /// the sender. A sender that is closed means that the asker has gone: a reload goes on, an owned hold ends.
    Request {
        /// The verb.
        request: Request,
        /// Where its lines go.
        lines: mpsc::Sender<Line>,
    },
    /// The status.
    Status(oneshot::Sender<Status>),
    /// The connections of a service.
    Connections {
        /// The service's name.
        service: String,
        /// Only this generation's.
        generation: Option<u64>,
        /// The list, or a sentence that says why there is none.
        answer: oneshot::Sender<Result<Vec<Connection>, String>>,
    },
    /// SIGTERM or SIGINT: a bounded stop; the second time at once.
    Shutdown,
}

/// The loop has ended, or ends: nobody answers any more.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("the gate is stopping and answers no more questions")]
pub struct Stopping;

/// The askers' side.
#[derive(Clone, Debug)]
pub struct Handle {
    asks: mpsc::UnboundedSender<Ask>,
    steps: broadcast::Sender<Step>,
    ready: watch::Receiver<Result<(), String>>,
    board: Arc<Board>,
}

/// The loop's side.
#[derive(Debug)]
pub struct Asked {
    /// Questions. Each asker waits for its answer before it asks again, so there are never more than there are askers.
    pub asks: mpsc::UnboundedReceiver<Ask>,
    /// Every step goes in here too.
    pub steps: broadcast::Sender<Step>,
    /// What `/readyz` says, kept up to date by the loop; the error says why not.
    pub ready: watch::Sender<Result<(), String>>,
    /// What other threads may look at.
    pub board: Arc<Board>,
}

/// Makes both sides; not ready yet.
pub fn pair() -> (Handle, Asked) {
    let (ask, asks) = mpsc::unbounded_channel();
    let (steps, _) = broadcast::channel(STEPS);
    let (ready, readiness) = watch::channel(Err("the gate is starting".to_owned()));
    let board = Arc::new(Board::new());
    let handle = Handle {
        asks: ask,
        steps: steps.clone(),
        ready: readiness,
        board: Arc::clone(&board),
    };
    let asked = Asked {
        asks,
        steps,
        ready,
        board,
    };
    (handle, asked)
}

impl Handle {
    /// Asks for a verb and returns its lines. They end without a `Done` if the loop ends first.
    pub fn request(&self, request: Request) -> mpsc::Receiver<Line> {
        let (lines, receiver) = mpsc::channel(LINES);
        // If the loop has ended, the sender is dropped here and the lines end at once.
        let _ = self.asks.send(Ask::Request { request, lines });
        receiver
    }

    /// The status of everything.
    pub async fn status(&self) -> Result<Status, Stopping> {
        self.ask(Ask::Status).await
    }

    /// The connections of one service, of one generation if given. The inner error is a sentence for the asker.
    pub async fn connections(
        &self,
        service: &str,
        generation: Option<u64>,
    ) -> Result<Result<Vec<Connection>, String>, Stopping> {
        let service = service.to_owned();
        self.ask(|answer| Ask::Connections {
            service,
            generation,
            answer,
        })
        .await
    }

    /// Every step from now on.
    pub fn events(&self) -> broadcast::Receiver<Step> {
        self.steps.subscribe()
    }

    /// What `/readyz` says, without a turn of the loop; the error says why not.
    pub fn ready(&self) -> Result<(), String> {
        self.ready.borrow().clone()
    }

    /// SIGHUP: a reload of everything, with nobody to answer.
    pub fn reload_all(&self) {
        drop(self.request(Request::Reload {
            service: None,
            drained: false,
        }));
    }

    /// SIGTERM or SIGINT: a bounded stop; the second time at once.
    pub fn shutdown(&self) {
        // The loop may have ended by itself.
        let _ = self.asks.send(Ask::Shutdown);
    }

    /// What `/livez` says: the loop and every worker have turned within 10 s. Never blocks.
    pub fn live(&self) -> bool {
        self.board.live()
    }

    /// Refreshes the gauges that have to be read from the kernel and the workers: to be called before a scrape.
    pub fn sample(&self) {
        self.board.sample();
    }

    async fn ask<T>(&self, ask: impl FnOnce(oneshot::Sender<T>) -> Ask) -> Result<T, Stopping> {
        let (sender, answer) = oneshot::channel();
        self.asks.send(ask(sender)).map_err(|_| Stopping)?;
        answer.await.map_err(|_| Stopping)
    }
}
