//! Requests at a fixed pace on one connection: how long an answer takes where nothing waits for anything else.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use crate::wire::{ANSWER, REQUEST, Sources, connect};

/// Between two requests: 500 a second.
const PACE: Duration = Duration::from_millis(2);

/// The times from request to answer, in microseconds, sorted.
pub(crate) fn latencies(target: SocketAddr, time: Duration) -> io::Result<Vec<f64>> {
    let mut socket = connect(target, Sources::default().next())?;
    socket.set_nonblocking(false)?;
    let mut latencies = Vec::new();
    let start = Instant::now();
    let mut due = start;
    while due - start < time {
        thread::sleep(due.saturating_duration_since(Instant::now()));
        let asked = Instant::now();
        socket.write_all(&REQUEST)?;
        socket.read_exact(&mut [0; ANSWER.len()])?;
        latencies.push(asked.elapsed().as_secs_f64() * 1e6);
        due += PACE;
    }
    latencies.remove(0); // the connection's own beginning
    latencies.sort_by(f64::total_cmp);
    Ok(latencies)
}
