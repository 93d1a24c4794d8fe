//! Placeholder.

pub mod child;
pub mod output;
pub mod reaper;
mod sys;
