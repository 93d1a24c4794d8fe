//! End to end: the real binary, real backends, and what a client sees.
//!
//! One file a group of scenarios. Tests whose name begins with `load_` need the machine for themselves; nextest runs them one
//! at a time (`.config/nextest.toml`).

#[path = "../common/mod.rs"]
mod common;

mod coalesce;
mod control;
mod crash;
mod drain;
mod exact;
mod failures;
mod harness;
mod herd;
mod limits;
mod metrics;
mod places;
mod proxy;
mod ready;
mod reload;
mod replace;
mod stop;
mod usage;
mod verbs;
