//! The clients: one thread, one epoll set, in the harness's own process, on the core that relays don't use.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollEvent, EpollTimeout};

pub(crate) mod bulk;
pub(crate) mod exchange;
pub(crate) mod paced;
pub(crate) mod schedule;

use bulk::Bulk;
use exchange::Exchange;

/// What a client does with its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Habit {
    /// One request; the client closes and opens the next connection.
    Closes,
    /// One request; the backend closes, and the client opens the next connection.
    IsClosed,
    /// Request follows request.
    Repeats,
    /// One request, then the connection stays as it is.
    Stays,
}

/// Which way bulk data goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// From the backend to the client.
    Down,
    /// From the client to the backend.
    Up,
}

/// A load that runs for as long as one likes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A request and its answer: on a new connection each, or over and over on the same.
    Exchange {
        connections: usize,
        habit: Habit,
        /// Between two new connections; `None`: each follows the end of another at once.
        pace: Option<Duration>,
    },
    /// Bytes.
    Bulk {
        streams: usize,
        direction: Direction,
    },
}

/// What has come of a load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Connections, answers or bytes that are complete.
    pub(crate) operations: u64,
    /// Connections that ended otherwise.
    pub(crate) errors: u64,
}

/// A load that is going on. Between two runs connections stay as they are.
pub(crate) enum Load {
    Exchange(Exchange),
    Bulk(Bulk),
}

impl Load {
    /// Connects to `targets` in turn.
    pub(crate) fn open(kind: Kind, targets: &[SocketAddr]) -> io::Result<Load> {
        Ok(match kind {
            Kind::Exchange {
                connections,
                habit,
                pace,
            } => Load::Exchange(Exchange::open(targets, connections, habit)?.at(pace)),
            Kind::Bulk { streams, direction } => {
                Load::Bulk(Bulk::open(targets[0], streams, direction)?)
            }
        })
    }

    /// Goes on for `time`.
    pub(crate) fn run(&mut self, time: Duration) -> io::Result<Tally> {
        match self {
            Load::Exchange(exchange) => exchange.run(time, u64::MAX),
            Load::Bulk(bulk) => bulk.run(time),
        }
    }
}

/// Waits for events at most for `time`, rounded up to a millisecond.
fn wait<'a>(
    epoll: &Epoll,
    events: &'a mut [EpollEvent],
    time: Duration,
) -> io::Result<&'a [EpollEvent]> {
    let milliseconds = u16::try_from(time.as_micros().div_ceil(1000)).unwrap_or(u16::MAX);
    match epoll.wait(events, EpollTimeout::from(milliseconds)) {
        Ok(count) => Ok(&events[..count]),
        Err(Errno::EINTR) => Ok(&[]),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests;
