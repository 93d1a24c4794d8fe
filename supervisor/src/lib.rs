//! The processes behind the gate.

mod accepting;
mod backend_address;
pub mod child;
pub mod command;
pub mod config;
pub mod control;
mod dial;
pub mod handle;
pub mod inherited;
pub mod leftovers;
pub mod notify;
pub mod occupied;
pub mod output;
mod procfs;
pub mod protocol;
pub mod readiness;
pub mod reaper;
pub mod runtime_dir;
mod sys;
