//! Placeholder.

pub mod proxy_protocol;
