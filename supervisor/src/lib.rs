//! The processes behind the gate.

mod accepting;
pub mod child;
pub mod command;
mod dial;
pub mod leftovers;
pub mod notify;
pub mod occupied;
pub mod output;
mod procfs;
pub mod readiness;
pub mod reaper;
pub mod runtime_dir;
mod sys;
