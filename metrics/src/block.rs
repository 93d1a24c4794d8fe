//! The data path's counters: one block a worker, written by that worker's thread alone.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::labels::{
    AcceptErrno, CloseReason, ConnectionState, DispatchResult, Label, PendingOutcome,
};

/// A counter with one writer: a plain load and store, no locked instruction. Any thread may read it.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`. Only the block's own worker may call this.
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }

    /// Adds one.
    pub fn inc(&self) {
        self.add(1);
    }

    /// The value now.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// A gauge with one writer; the sum over all workers is what a scrape shows. A connection that is handed to another worker is
/// counted down here and up there, so one worker's part may be below zero for a moment: the sum never is for long.
#[derive(Debug, Default)]
pub struct Gauge(AtomicU64);

impl Gauge {
    /// Adds one. Only the block's own worker may call this.
    pub fn inc(&self) {
        self.0.store(self.0.load(Relaxed).wrapping_add(1), Relaxed);
    }

    /// Takes one away.
    pub fn dec(&self) {
        self.0.store(self.0.load(Relaxed).wrapping_sub(1), Relaxed);
    }

    /// The value now, as a part of a wrapping sum.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }

    /// The value of a whole sum: zero while a hand-over makes it look negative.
    pub(crate) fn level(&self) -> u64 {
        (self.get() as i64).max(0) as u64
    }

    fn absorb(&self, other: &Self) {
        self.0.store(self.get().wrapping_add(other.get()), Relaxed);
    }
}

/// One cell for each value of a label, in the block itself: a box would put two workers' cells on one cache line.
#[derive(Debug)]
pub struct Cells<L, T> {
    cells: [T; Cells::<(), ()>::MOST],
    label: PhantomData<L>,
}

impl Cells<(), ()> {
    /// The most values that a label of the data path has.
    const MOST: usize = 12;
}

impl<L, T: Default> Default for Cells<L, T> {
    fn default() -> Self {
        Cells {
            cells: Default::default(),
            label: PhantomData,
        }
    }
}

impl<L: Label, T> Cells<L, T> {
    /// Each value of the label with its cell, in the label's order.
    pub fn iter(&self) -> impl Iterator<Item = (L, &T)> {
        L::ALL.iter().map(|label| (*label, &self[*label]))
    }
}

impl<L: Label> Cells<L, Counter> {
    fn absorb(&self, other: &Self) {
        for (label, counter) in other.iter() {
            self[label].add(counter.get());
        }
    }
}

impl<L: Label> Cells<L, Gauge> {
    fn absorb(&self, other: &Self) {
        for (label, gauge) in other.iter() {
            self[label].absorb(gauge);
        }
    }
}

impl<L: Label, T> std::ops::Index<L> for Cells<L, T> {
    type Output = T;
    fn index(&self, label: L) -> &T {
        const { assert!(L::ALL.len() <= Cells::<(), ()>::MOST) };
        &self.cells[label.index()]
    }
}

/// A histogram with one writer. Buckets are 1 ms to 60 s, see [`Histogram::BOUNDS`].
#[derive(Debug, Default)]
pub struct Histogram {
    buckets: [Counter; Histogram::BOUNDS.len() + 1],
    sum_nanoseconds: Counter,
}

impl Histogram {
    /// Upper bounds in seconds; one more bucket takes what is above the last.
    pub const BOUNDS: [f64; 15] = [
        0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
    ];

    /// Counts one duration. Only the block's own worker may call this.
    pub fn observe(&self, duration: Duration) {
        let seconds = duration.as_secs_f64();
        let bucket = Self::BOUNDS.partition_point(|bound| *bound < seconds);
        self.buckets[bucket].inc();
        self.sum_nanoseconds.add(duration.as_nanos() as u64);
    }

    /// The count in each bucket (not cumulative), the last one above every bound.
    pub fn counts(&self) -> impl Iterator<Item = u64> + '_ {
        self.buckets.iter().map(Counter::get)
    }

    /// The sum of all durations, in seconds.
    pub fn sum(&self) -> f64 {
        self.sum_nanoseconds.get() as f64 / 1e9
    }

    fn absorb(&self, other: &Self) {
        for (mine, theirs) in self.buckets.iter().zip(&other.buckets) {
            mine.add(theirs.get());
        }
        self.sum_nanoseconds.add(other.sum_nanoseconds.get());
    }
}

/// What one worker counts for one listener. Aligned so that two workers' blocks share no cache line (two lines are fetched at
/// once on x86).
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct ListenerBlock {
    /// Connections accepted.
    pub accepted: Counter,
    /// Connections open, by what they do.
    pub open: Cells<ConnectionState, Gauge>,
    /// Connections closed, by reason.
    pub closed: Cells<CloseReason, Counter>,
    /// Bytes from the client to the backend.
    pub bytes_in: Counter,
    /// Bytes from the backend to the client.
    pub bytes_out: Counter,
    /// Failed accepts, by error.
    pub accept_errors: Cells<AcceptErrno, Counter>,
}

impl ListenerBlock {
    /// Adds all that `other` counts. A sum of blocks is a block, which belongs to whoever sums.
    pub(crate) fn absorb(&self, other: &Self) {
        self.accepted.add(other.accepted.get());
        self.open.absorb(&other.open);
        self.closed.absorb(&other.closed);
        self.bytes_in.add(other.bytes_in.get());
        self.bytes_out.add(other.bytes_out.get());
        self.accept_errors.absorb(&other.accept_errors);
    }
}

/// What one worker counts for one service. Aligned as [`ListenerBlock`] is.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct ServiceBlock {
    /// From the accept to the successful connect.
    pub pending_wait: Histogram,
    /// How waits ended.
    pub pending_outcomes: Cells<PendingOutcome, Counter>,
    /// Connects to endpoints, by result.
    pub dispatch_attempts: Cells<DispatchResult, Counter>,
    /// Connections dispatched again after a failed connect.
    pub redispatches: Counter,
    /// How long successful connects took.
    pub connect_duration: Histogram,
    /// Connections reset because a deadline (`drain_timeout`, shutdown) had passed.
    pub forced_closes: Counter,
}

impl ServiceBlock {
    /// Adds all that `other` counts, as [`ListenerBlock::absorb`] does.
    pub(crate) fn absorb(&self, other: &Self) {
        self.pending_wait.absorb(&other.pending_wait);
        self.pending_outcomes.absorb(&other.pending_outcomes);
        self.dispatch_attempts.absorb(&other.dispatch_attempts);
        self.redispatches.add(other.redispatches.get());
        self.connect_duration.absorb(&other.connect_duration);
        self.forced_closes.add(other.forced_closes.get());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_whole_pairs_of_cache_lines() {
        assert_eq!(align_of::<ListenerBlock>(), 128);
        assert_eq!(size_of::<ListenerBlock>() % 128, 0);
        assert_eq!(align_of::<ServiceBlock>(), 128);
        assert_eq!(size_of::<ServiceBlock>() % 128, 0);
    }

    #[test]
    fn a_duration_on_a_bound_is_counted_below_it() {
        let histogram = Histogram::default();
        histogram.observe(Duration::ZERO);
        histogram.observe(Duration::from_millis(1));
        histogram.observe(Duration::from_micros(1001));
        histogram.observe(Duration::from_secs(60));
        histogram.observe(Duration::from_secs(61));
        let counts: Vec<u64> = histogram.counts().collect();
        assert_eq!(counts, [2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1]);
        assert!((histogram.sum() - 121.002_001).abs() < 1e-9);
    }

    #[test]
    fn a_gauge_may_fall_in_one_block_and_rise_in_another() {
        let (ours, theirs, sum) = (Gauge::default(), Gauge::default(), Gauge::default());
        ours.dec();
        sum.absorb(&ours);
        assert_eq!(sum.level(), 0);
        theirs.inc();
        theirs.inc();
        sum.absorb(&theirs);
        assert_eq!(sum.level(), 1);
    }

    #[test]
    fn a_sum_of_blocks_holds_every_field() {
        let (a, b) = (ServiceBlock::default(), ServiceBlock::default());
        a.pending_wait.observe(Duration::from_secs(1));
        a.pending_outcomes[PendingOutcome::Timeout].inc();
        a.dispatch_attempts[DispatchResult::NoPort].add(2);
        a.redispatches.add(3);
        a.connect_duration.observe(Duration::from_secs(2));
        a.forced_closes.add(4);
        b.absorb(&a);
        b.absorb(&a);
        assert_eq!(b.pending_wait.counts().sum::<u64>(), 2);
        assert_eq!(b.pending_wait.sum(), 2.0);
        assert_eq!(b.pending_outcomes[PendingOutcome::Timeout].get(), 2);
        assert_eq!(b.dispatch_attempts[DispatchResult::NoPort].get(), 4);
        assert_eq!(b.redispatches.get(), 6);
        assert_eq!(b.connect_duration.sum(), 4.0);
        assert_eq!(b.forced_closes.get(), 8);
    }
}
