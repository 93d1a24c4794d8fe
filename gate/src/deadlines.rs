//! A worker's clock, read once a turn, and its heap of deadlines.
//!
//! An entry only says "look at this then": a deadline that has moved on (bytes re-arm a time-out) stays in the heap, and who is
//! looked at says when to look again. So re-arming costs nothing on the hot path. Entries that nobody waits for any more are
//! swept out when they are the greater part.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

/// Entries below which sweeping isn't worth it.
const SLACK: usize = 1024;

/// Microseconds since the worker's start. Monotonic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Tick(u64);

impl Tick {
    /// Later than every other.
    pub(crate) const NEVER: Tick = Tick(u64::MAX);

    /// Time since an earlier tick; zero if it isn't earlier.
    pub(crate) fn since(self, earlier: Tick) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

impl std::ops::Add<Duration> for Tick {
    type Output = Tick;
    fn add(self, duration: Duration) -> Tick {
        let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        Tick(self.0.saturating_add(micros))
    }
}

/// Where ticks come from.
#[derive(Debug)]
pub(crate) struct Clock {
    start: Instant,
    now: Tick,
    stamped: Tick,
}

impl Clock {
    pub(crate) fn new() -> Clock {
        Clock {
            start: Instant::now(),
            now: Tick(0),
            stamped: Tick(0),
        }
    }

    /// This turn's time.
    pub(crate) fn now(&self) -> Tick {
        self.now
    }

    /// This turn's time, or a little later: after every earlier stamp, so that stamps are in the order of their making.
    pub(crate) fn stamp(&mut self) -> Tick {
        self.stamped = self.now.max(Tick(self.stamped.0 + 1));
        self.stamped
    }

    /// Reads the clock; returns how long it has been since the last reading.
    pub(crate) fn turn(&mut self) -> Duration {
        let last = self.now;
        self.now = Tick(0) + self.start.elapsed();
        self.now.since(last)
    }
}

/// Whom to look at when.
#[derive(Debug)]
pub(crate) struct Deadlines<T>(BinaryHeap<Reverse<(Tick, T)>>);

impl<T: Ord> Deadlines<T> {
    pub(crate) fn new() -> Deadlines<T> {
        Deadlines(BinaryHeap::new())
    }

    pub(crate) fn push(&mut self, at: Tick, whom: T) {
        self.0.push(Reverse((at, whom)));
    }

    /// The next one that is due, and since when.
    pub(crate) fn pop(&mut self, now: Tick) -> Option<(Tick, T)> {
        let Reverse((at, _)) = self.0.peek()?;
        if *at > now {
            return None;
        }
        self.0.pop().map(|Reverse(entry)| entry)
    }

    /// Drops what nobody waits for, if `live` entries at most are waited for and there are many more.
    pub(crate) fn sweep(&mut self, live: usize, mut is_live: impl FnMut(Tick, &T) -> bool) {
        if self.0.len() > 2 * live + SLACK {
            self.0.retain(|Reverse((at, whom))| is_live(*at, whom));
        }
    }

    /// Until the next one; `most` where there is none before.
    pub(crate) fn wait(&self, now: Tick, most: Duration) -> Duration {
        self.0
            .peek()
            .map_or(most, |Reverse((at, _))| at.since(now).min(most))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_due_comes_in_order_and_not_before() {
        let mut deadlines = Deadlines::new();
        for ms in [30, 10, 20] {
            deadlines.push(Tick(0) + Duration::from_millis(ms), ms);
        }
        let at = |ms| Tick(0) + Duration::from_millis(ms);
        assert_eq!(deadlines.pop(at(9)), None);
        assert_eq!(
            deadlines.wait(at(9), Duration::from_secs(1)),
            Duration::from_millis(1)
        );
        assert_eq!(deadlines.pop(at(25)), Some((at(10), 10)));
        assert_eq!(deadlines.pop(at(25)), Some((at(20), 20)));
        assert_eq!(deadlines.pop(at(25)), None);
        assert_eq!(deadlines.pop(Tick::NEVER), Some((at(30), 30)));
        assert_eq!(
            deadlines.wait(at(0), Duration::from_secs(1)),
            Duration::from_secs(1)
        );
    }

    #[test]
    fn what_nobody_waits_for_is_swept_out() {
        let mut deadlines = Deadlines::new();
        for n in 0..10_000 {
            deadlines.push(Tick(n), n);
            deadlines.sweep(10, |at, n| at == Tick(*n) && n % 1000 == 0);
            assert!(deadlines.0.len() <= 2 * 10 + SLACK + 1);
        }
        for n in 0..10 {
            while deadlines.pop(Tick(n * 1000 - n.min(1))).is_some() {}
            assert_eq!(
                deadlines.pop(Tick(n * 1000)).map(|(_, n)| n),
                (n > 0).then_some(n * 1000)
            );
        }
    }

    #[test]
    fn stamps_are_in_order_within_a_turn() {
        let mut clock = Clock::new();
        clock.turn();
        let stamps: Vec<Tick> = (0..9).map(|_| clock.stamp()).collect();
        assert!(stamps.is_sorted_by(|a, b| a < b) && stamps[0] >= clock.now());
    }

    #[test]
    fn a_tick_never_overflows() {
        assert_eq!(Tick::NEVER + Duration::MAX, Tick::NEVER);
        assert_eq!(Tick(0).since(Tick(5)), Duration::ZERO);
    }
}
