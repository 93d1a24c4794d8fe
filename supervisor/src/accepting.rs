//! Whether a generation accepts from its kept listeners.
//!
//! A connect to a kept listener proves nothing by itself: the gate's own copy listens, so the kernel completes it
//! whoever is there. Two things do prove it, for each listener:
//!
//! 1. An epoll set of a process of the generation holds the listener: `/proc/PID/fdinfo` of the set names the inode
//!    (`tfd:` lines, proc(5)). This look touches nothing, and servers that use epoll register a listener when they begin
//!    to serve.
//! 2. A test connection has left the accept queue. Nobody else accepts from this queue, so the generation did, whether
//!    by poll, a blocking accept or io_uring. The server sees a connection that ends without a request, as with any TCP
//!    probe. So it is only made when the first proof hasn't come and the generation has been idle for [`IDLE`] (it has
//!    started, as far as one can see), at the latest after [`PASSIVE`].
//!
//! Where /proc can't be read (another uid, `hidepid`) the second one decides.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::stat::{fstat, major, minor};
use syngate_gate::accept_queue::Reader;
use syngate_gate::listener::KeptListener;
use tokio::time::sleep;

use crate::dial::{self, Stream};
use crate::procfs::{self, Process};
use crate::readiness::{CONNECT_AGAIN, attempt};

/// How long a generation has to be without work before it gets a test connection.
const IDLE: Duration = Duration::from_millis(300);

/// After this time it gets one though it is at work.
const PASSIVE: Duration = Duration::from_secs(5);

/// A look may take this share of the time at most, since it runs on the supervisor's thread.
const SHARE: u32 = 10;

/// A socket's inode and its file system's device, as /proc writes them.
type Socket = (u64, u64);

/// A listener of which nothing is known yet.
struct Unproven {
    listener: Arc<KeptListener>,
    socket: Socket,
    /// The test connection, once it is made.
    test: Option<Box<dyn Stream>>,
    /// The queue was empty at the last look, with the test connection made.
    empty: bool,
}

impl Unproven {
    fn new(listener: Arc<KeptListener>) -> io::Result<Self> {
        let stat = fstat(&*listener)?;
        // The kernel's own form of a device number, in which fdinfo prints it.
        let device = major(stat.st_dev) << 20 | minor(stat.st_dev);
        Ok(Unproven {
            listener,
            socket: (stat.st_ino, device),
            test: None,
            empty: false,
        })
    }

    /// Makes the test connection; once it is made, says whether it was accepted. The queue has to be empty in two looks:
    /// a connection may be established for its client a moment before it is in the queue.
    async fn accepted(&mut self, hello: &[u8], reader: &mut Reader) -> io::Result<bool> {
        if self.test.is_none() {
            self.test = Some(attempt(dial::greet(self.listener.address(), hello)).await?);
            return Ok(false);
        }
        let before = self.empty;
        self.empty = self.listener.queue(reader)?.len == 0;
        Ok(before && self.empty)
    }
}

/// Waits until the generation of `leader` accepts from all of `listeners`; `why` says what is missing meanwhile.
///
/// # Errors
/// A listener can't be looked at.
pub(crate) async fn accepts(
    leader: i32,
    listeners: &[Arc<KeptListener>],
    hello: &[u8],
    why: &mut String,
) -> io::Result<()> {
    let begin = Instant::now();
    let mut idle_since = begin;
    let mut work = None;
    let mut reader = Reader::new();
    let mut unproven = Vec::new();
    for listener in listeners {
        unproven.push(Unproven::new(listener.clone())?);
    }
    loop {
        let look = Instant::now();
        let family = procfs::family(leader, procfs::processes());
        let polled = polled_by(&family);
        let cost = look.elapsed();
        unproven.retain(|it| !polled.contains(&it.socket));
        let before = work.replace(family.iter().map(|it| (it.pid, it.cpu)).collect::<Vec<_>>());
        if before != work || family.iter().any(|it| it.busy) {
            idle_since = look;
        }
        if idle_since.elapsed() >= IDLE || begin.elapsed() >= PASSIVE {
            let mut left = Vec::new();
            for mut it in unproven {
                let accepted = it.accepted(hello, &mut reader).await;
                if let Ok(true) = accepted {
                    continue;
                }
                let address = it.listener.address();
                *why = match accepted {
                    Err(error) => format!("a test connection to {address}: {error}"),
                    Ok(_) => format!("it doesn't accept from {address}"),
                };
                left.push(it);
            }
            unproven = left;
        }
        if unproven.is_empty() {
            return Ok(());
        }
        sleep(CONNECT_AGAIN.max(cost * SHARE)).await;
    }
}

/// The sockets in epoll sets of these processes.
fn polled_by(family: &[Process]) -> HashSet<Socket> {
    let sets = family.iter().flat_map(|process| epoll_sets(process.pid));
    sets.flat_map(|set| sockets(&set)).collect()
}

/// `/proc/PID/fdinfo/N` of each epoll set of a process.
fn epoll_sets(pid: i32) -> Vec<String> {
    let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fd")) else {
        return Vec::new();
    };
    let is_set = |entry: &fs::DirEntry| {
        fs::read_link(entry.path())
            .is_ok_and(|target| target.as_os_str() == "anon_inode:[eventpoll]")
    };
    let info = |entry: fs::DirEntry| {
        let number = entry.file_name();
        fs::read_to_string(format!("/proc/{pid}/fdinfo/{}", number.to_string_lossy())).ok()
    };
    descriptors
        .flatten()
        .filter(is_set)
        .filter_map(info)
        .collect()
}

/// The members of an epoll set, from lines such as `tfd: 5 events: 19 data: 5 pos:0 ino:2b07 sdev:8`.
fn sockets(fdinfo: &str) -> Vec<Socket> {
    let members = fdinfo.lines().filter(|line| line.starts_with("tfd:"));
    let member = |line: &str| {
        let field = |name| {
            let value = line
                .split_ascii_whitespace()
                .find_map(|word| word.strip_prefix(name))?;
            u64::from_str_radix(value, 16).ok()
        };
        Some((field("ino:")?, field("sdev:")?))
    };
    members.filter_map(member).collect()
}

#[cfg(test)]
#[path = "accepting_tests.rs"]
mod tests;
