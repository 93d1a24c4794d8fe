//! What the gate counts and the supervisor reports, as Prometheus series.
//!
//! Invariants:
//!
//! - A counter of the data path is one cell of a block that belongs to one worker. Only that worker's thread writes it, with a
//!   plain load and store, so counting costs no locked instruction and no shared cache line. A scrape sums the blocks.
//! - Every series whose labels are known when a service or a listener is made is there from that moment, at zero.
//! - No counter falls: what a removed listener had counted stays, under `listener="removed"`.
//! - There are no statics: a process may hold several [`Metrics`], as tests do.

mod block;
mod labels;

pub use block::{Cells, Counter, Gauge, Histogram, ListenerBlock, ServiceBlock};
pub use labels::{
    AcceptErrno, CloseReason, ConnectionState, DispatchResult, Label, PendingOutcome,
    ReloadOutcome, ReloadPhase,
};
