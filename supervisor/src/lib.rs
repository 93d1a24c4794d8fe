//! Placeholder.

pub mod child;
pub mod notify;
pub mod output;
mod procfs;
pub mod reaper;
pub mod runtime_dir;
mod sys;
