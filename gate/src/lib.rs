//! The data path: one plain epoll loop a core, which accepts, holds, dispatches and relays connections.
//!
//! One connection's way through the code is `listener` -> `worker` -> `connection` -> `relay`; the other modules are called by
//! these, hold no phase and call nobody back. [`Gate`] is the boundary: the supervisor holds it, and the gate knows nothing of
//! processes.
//!
//! Invariants:
//!
//! - A public listening socket is made once and stays open while its listener is configured.
//! - Every accepted connection is relayed, held, or closed with a counted reason.
//! - After [`Gate::activate`] has returned, no new lease on another generation appears, but for listeners that the new one doesn't
//!   know, and which close soon.
//! - An idle connection holds no buffer; a dispatch takes no lock and touches no shared cache line.

pub mod accept_queue;
pub mod gate;
pub mod generation;
pub mod listener;
pub mod proxy_protocol;

mod admission;
mod closing;
mod commands;
mod connection;
mod deadlines;
mod dialer;
mod dispatch;
mod doubts;
mod greeting;
mod pauses;
mod pending;
mod relay;
mod shared;
mod slots;
mod socket;
mod splice;
mod sys;
mod worker;

pub use gate::{
    ConnectionInfo, Event, Gate, ListenerId, NoSuchService, Overflow, ServiceId, ServiceSettings,
    Settings,
};
pub use generation::{Endpoint, Endpoints, Generation, Target};
