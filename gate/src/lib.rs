//! Placeholder.

pub mod accept_queue;
pub mod listener;
pub mod proxy_protocol;
mod sys;
