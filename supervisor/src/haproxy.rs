//! The HAProxy adapter: a stock configuration in, and out of it what the gate listens on and the copy that a generation runs.
//!
//! Invariants:
//! - Planning is pure: text in, plan out. What it asks of the world comes in through [`World`].
//! - A line that needn't change is byte for byte the same in the copy, and stands in the same line where that can be, so that
//!   HAProxy's own messages name the user's line.
//! - What can't be fronted stays with HAProxy and is warned about, or is refused with file, line and reason; nothing is guessed.
//! - What HAProxy refuses is left for its own check to refuse, whose message is the better one, unless it would be lost on the way.

mod address;
mod binary;
mod bind;
mod blocks;
mod conditions;
mod copy;
mod document;
mod draft;
mod environment;
mod front;
mod global;
mod idle_close;
mod limits;
mod maps;
mod plan;
mod proxies;
mod publics;
mod rules;
mod servers;
mod words;

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

pub use binary::Binary;
pub use copy::{Copy, Place};
pub use plan::{Plan, plan};

/// One configuration file as it was read. Bytes: HAProxy takes any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// As it was given; messages name it so.
    pub path: PathBuf,
    /// All of it.
    pub text: Vec<u8>,
}

/// What is asked of the world while planning: everything else is pure.
pub struct World<'a> {
    /// The program that will run the copy.
    pub binary: &'a Binary,
    /// The effective uid isn't 0.
    pub unprivileged: bool,
    /// Descriptors that one process may have: the hard RLIMIT_NOFILE, or as many as there can be where the program may raise it.
    pub descriptors: u64,
    /// A variable of the process that HAProxy will run in.
    pub environment: &'a dyn Fn(&[u8]) -> Option<Vec<u8>>,
    /// The address of a host that a bind names.
    pub resolve: &'a dyn Fn(&str) -> io::Result<IpAddr>,
    /// A map file's bytes.
    pub read: &'a dyn Fn(&Path) -> io::Result<Vec<u8>>,
}

/// Why a configuration can't be fronted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{}: {why}", .file.display(), LineNumber(*.line))]
pub struct Refusal {
    /// The file that it is about.
    pub file: PathBuf,
    /// Counted from 1; 0 is the whole file.
    pub line: usize,
    /// What is wrong, and what to do.
    pub why: String,
}

/// `:LINE`, or nothing.
struct LineNumber(usize);

impl std::fmt::Display for LineNumber {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            0 => Ok(()),
            line => write!(f, ":{line}"),
        }
    }
}
