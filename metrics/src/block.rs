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
