//! The processes behind the gate: generations, the ladder from check to drain, and the control socket.

mod accepting;
mod backend_address;
mod board;
pub mod child;
pub mod command;
pub mod config;
pub mod control;
mod dial;
mod drain;
pub mod handle;
pub mod haproxy;
pub mod inherited;
mod launch;
pub mod leftovers;
pub mod names;
pub mod notify;
pub mod occupied;
pub mod output;
mod procfs;
pub mod protocol;
pub mod readiness;
pub mod reaper;
pub mod reserve;
pub mod rollout;
pub mod runtime_dir;
pub mod supervisor;
mod sys;
