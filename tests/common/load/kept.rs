//! A client that keeps its connection and asks at random moments.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::{Failure, Shared, Tally};
use crate::common::http::Head;

/// How a pause between two requests ended.
enum Pause {
    /// It is time for the next one.
    Over,
    /// The server closed the connection, as it may.
    Closed,
}

pub(super) fn run(shared: &Shared, number: u64) -> Tally {
    let mut tally = Tally::default();
    let mut random =
        Random(0x5851_f42d_4c95_7f2d ^ (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    while !shared.stopped() {
        if let Err(failure) = life(shared, &mut random, &mut tally) {
            tally.add(Err(failure), shared.start);
            shared.kept_failed.fetch_add(1, Ordering::Relaxed);
            // A refused connect comes back at once: don't let the failed ones crowd out the rest.
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    tally
}

/// One connection, from its connect to its end.
fn life(shared: &Shared, random: &mut Random, tally: &mut Tally) -> Result<(), Failure> {
    let plan = &shared.plan;
    let mut moments: Vec<Duration> = (0..plan.kept_requests)
        .map(|_| plan.kept_life.mul_f64(random.share()))
        .collect();
    moments.sort_unstable();
    let born = Instant::now();
    let stream = TcpStream::connect_timeout(&plan.target, plan.patience)?;
    stream.set_read_timeout(Some(plan.patience))?;
    stream.set_nodelay(true)?;
    let mut asked = born;
    for moment in moments {
        let last = asked;
        let paused = pause(&stream, born + moment).inspect_err(|_| tally.ended(last))?;
        if matches!(paused, Pause::Closed) {
            tally.ended_idle += 1;
            tally.ended(last);
            break;
        }
        if shared.stopped() || born.elapsed() > plan.kept_life {
            break;
        }
        asked = Instant::now();
        let path = format!("/kept-{:x}", random.next());
        let close = request(&stream, &path).inspect_err(|_| tally.ended(last))?;
        tally.add(Ok(asked.elapsed()), shared.start);
        shared.kept.fetch_add(1, Ordering::Relaxed);
        if close {
            break;
        }
    }
    Ok(())
}

/// Waits until `due`, with an eye on the connection.
fn pause(stream: &TcpStream, due: Instant) -> Result<Pause, Failure> {
    let left = due.saturating_duration_since(Instant::now());
    let timeout = PollTimeout::try_from(left).expect("a short time");
    let mut fds = [PollFd::new(stream.as_fd(), PollFlags::POLLIN)];
    if poll(&mut fds, timeout).map_err(std::io::Error::from)? == 0 {
        return Ok(Pause::Over);
    }
    match stream.peek(&mut [0]) {
        Ok(0) => Ok(Pause::Closed),
        Ok(_) => Err(Failure::WrongBytes),
        Err(error) => Err(error.into()),
    }
}

/// Sends one request and checks its answer; true when the server means to close.
fn request(mut stream: &TcpStream, path: &str) -> Result<bool, Failure> {
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: gate\r\n\r\n").as_bytes())?;
    let mut received = Vec::new();
    loop {
        let mut buffer = [0; 4096];
        match stream.read(&mut buffer) {
            Ok(0) if received.is_empty() => return Err(Failure::Unanswered),
            Ok(0) => return Err(Failure::Short),
            Ok(length) => received.extend_from_slice(&buffer[..length]),
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(error.into()),
        }
        let Some(head) = Head::parse(&received)? else {
            continue;
        };
        let length = head.content_length.ok_or(Failure::WrongBytes)?;
        let body = &received[head.length..];
        if body.len() as u64 >= length {
            return if head.status == 200 && body == path.as_bytes() {
                Ok(head.close)
            } else {
                Err(Failure::WrongBytes)
            };
        }
    }
}

/// A small generator (xorshift64): the moments shall differ between clients, not between runs.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Between 0 and 1.
    fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}
