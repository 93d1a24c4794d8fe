//! The gate with real sockets: what its handle promises.

mod common;
mod deaths;
mod dispatch;
mod flips;
mod limits;
mod listeners;
mod proxy;
mod relaying;
mod timeouts;
