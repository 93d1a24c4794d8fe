//! The HAProxy adapter.
//!
//! - [`binary`] says what is known of an haproxy program.
//! - [`runtime`] asks a running process over its stats socket.
//! - [`state`] carries over what operators and checks have set at run time, from one process to its successor.

pub mod binary;
pub mod runtime;
pub mod state;
