//! Placeholder.

pub mod accept_queue;
pub mod proxy_protocol;
mod sys;
