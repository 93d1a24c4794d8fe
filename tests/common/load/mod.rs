//! The load of the tests: many short connections, some kept ones, a few slow downloads, all with their answers checked.
//!
//! Short connections are opened by the clock, whether or not earlier ones have been answered: a server that stands still
//! meets a queue, as it would outside.

mod download;
mod fresh;
mod kept;

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::mem;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::{http, wait_until};

/// Short connections a second of the standing load.
pub(crate) const PACE: u32 = 1000;

/// What a load consists of.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) target: SocketAddr,
    /// Short connections a second, one request each, the server closes.
    pub(crate) fresh_per_second: u32,
    /// Clients that keep their connection, and connect anew when it has ended.
    pub(crate) kept: usize,
    /// A kept connection lives this long at most ...
    pub(crate) kept_life: Duration,
    /// ... and makes so many requests, at random moments.
    pub(crate) kept_requests: usize,
    /// Downloads under way at any time.
    pub(crate) downloads: usize,
    pub(crate) download_bytes: u64,
    /// A download is read at the pace that makes it last about so long.
    pub(crate) download_time: Duration,
    /// One answer may take so long.
    pub(crate) patience: Duration,
}

impl Plan {
    /// [`PACE`] short connections a second, 50 kept ones, four downloads of 10 MB.
    pub(crate) fn standing(target: SocketAddr) -> Plan {
        Plan {
            target,
            fresh_per_second: PACE,
            kept: 50,
            kept_life: Duration::from_secs(4),
            kept_requests: 20,
            downloads: 4,
            download_bytes: 10_000_000,
            download_time: Duration::from_secs(4),
            patience: Duration::from_secs(30),
        }
    }

    /// Short connections alone.
    pub(crate) fn fresh(target: SocketAddr, per_second: u32) -> Plan {
        Plan {
            fresh_per_second: per_second,
            kept: 0,
            downloads: 0,
            ..Plan::standing(target)
        }
    }
}

/// New connections a second that the server at `address` bears beside other work: half of what it answers to clients that ask as
/// fast as they can, and [`PACE`] at most.
pub(crate) fn pace(address: SocketAddr) -> u32 {
    const CLIENTS: u32 = 8;
    const EACH: u32 = 100;
    let start = Instant::now();
    thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                for _ in 0..EACH {
                    let answer = http::get(address, "/pace").expect("an answer");
                    assert_eq!(answer.status, 200);
                }
            });
        }
    });
    let answered = f64::from(CLIENTS * EACH) / start.elapsed().as_secs_f64();
    ((answered / 2.0) as u32).clamp(1, PACE)
}

/// How a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Failure {
    /// The connect was refused.
    Refused,
    /// The connection was reset: before, within or after the answer.
    Reset,
    /// The request was sent, and the connection ended without an answer.
    Unanswered,
    /// The answer ended too early.
    Short,
    /// The answer isn't the one to this request.
    WrongBytes,
    /// No end within the plan's patience.
    Timeout,
    /// The client's own system said no.
    Other(i32),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        match error.kind() {
            ErrorKind::ConnectionRefused => Failure::Refused,
            ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::ConnectionAborted => {
                Failure::Reset
            }
            ErrorKind::UnexpectedEof => Failure::Short,
            ErrorKind::WouldBlock | ErrorKind::TimedOut => Failure::Timeout,
            ErrorKind::InvalidData => Failure::WrongBytes,
            _ => Failure::Other(error.raw_os_error().unwrap_or(0)),
        }
    }
}

/// The counts of one kind of load.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) ok: u64,
    pub(crate) failed: BTreeMap<Failure, u64>,
    /// From the connect (of a kept client: from the request) to the end of the answer, of those that succeeded.
    pub(crate) waits: Vec<Duration>,
    /// Kept connections that the server ended between two requests, as it may.
    pub(crate) ended_idle: u64,
    /// How long after the last request that was answered (the connect before the first) a kept connection was found ended: at
    /// least what the server lets it idle, however busy the machine, unless something else ended it.
    pub(crate) soonest_end: Option<Duration>,
    /// When after the load's start the first failures happened.
    pub(crate) first_failures: Vec<(Duration, Failure)>,
}

impl Tally {
    fn add(&mut self, outcome: Result<Duration, Failure>, since: Instant) {
        match outcome {
            Ok(wait) => {
                self.ok += 1;
                self.waits.push(wait);
            }
            Err(failure) => {
                *self.failed.entry(failure).or_default() += 1;
                if self.first_failures.len() < 5 {
                    self.first_failures.push((since.elapsed(), failure));
                }
            }
        }
    }

    /// A kept connection, whose last answered request began at `last`, has ended.
    fn ended(&mut self, last: Instant) {
        let idle = last.elapsed();
        self.soonest_end = Some(self.soonest_end.map_or(idle, |soonest| soonest.min(idle)));
    }

    fn merge(&mut self, other: Tally) {
        self.ok += other.ok;
        for (failure, count) in other.failed {
            *self.failed.entry(failure).or_default() += count;
        }
        self.waits.extend(other.waits);
        self.ended_idle += other.ended_idle;
        self.soonest_end = self.soonest_end.into_iter().chain(other.soonest_end).min();
        self.first_failures.extend(other.first_failures);
    }

    pub(crate) fn failures(&self) -> u64 {
        self.failed.values().sum()
    }

    /// The wait that `share` (0 to 1) of all stay within.
    pub(crate) fn quantile(&self, share: f64) -> Duration {
        let mut waits = self.waits.clone();
        waits.sort_unstable();
        let last = waits.len().checked_sub(1).expect("at least one answer");
        waits[(share * last as f64).ceil() as usize]
    }
}

/// What a load has come to.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) plan: Plan,
    pub(crate) fresh: Tally,
    pub(crate) kept: Tally,
    pub(crate) downloads: Tally,
    pub(crate) lasted: Duration,
}

impl Report {
    pub(crate) fn failures(&self) -> u64 {
        self.fresh.failures() + self.kept.failures() + self.downloads.failures()
    }

    pub(crate) fn failed(&self, failure: Failure) -> u64 {
        let of = |tally: &Tally| tally.failed.get(&failure).copied().unwrap_or(0);
        of(&self.fresh) + of(&self.kept) + of(&self.downloads)
    }

    /// Shows the counts, for the record of a run.
    pub(crate) fn print(&self, name: &str) {
        let seconds = self.lasted.as_secs_f64();
        for (kind, tally) in [
            ("fresh", &self.fresh),
            ("kept", &self.kept),
            ("download", &self.downloads),
        ] {
            if tally.ok + tally.failures() > 0 {
                println!(
                    "{name}: {kind}: {} ok, {} failed {:?} {:?}, {} ended idle, in {seconds:.1} s",
                    tally.ok,
                    tally.failures(),
                    tally.failed,
                    tally.first_failures,
                    tally.ended_idle
                );
            }
        }
    }

    /// Nothing failed, and new connections came at the plan's pace, up to the last moments.
    #[track_caller]
    pub(crate) fn expect_clean(&self) {
        assert_eq!(
            self.failures(),
            0,
            "fresh {:?}, kept {:?}, downloads {:?}",
            self.fresh.failed,
            self.kept.failed,
            self.downloads.failed
        );
        let planned = f64::from(self.plan.fresh_per_second) * self.lasted.as_secs_f64();
        self.expect_many("new connections", &self.fresh, 0.95 * planned);
    }

    /// [`Report::expect_clean`], and kept clients and downloads had their share. They wait for answers, which a busy server
    /// gives late, so no share is whole.
    #[track_caller]
    pub(crate) fn expect_standing(&self) {
        self.expect_clean();
        let (plan, seconds) = (&self.plan, self.lasted.as_secs_f64());
        let lives = seconds / plan.kept_life.as_secs_f64();
        let kept = (plan.kept * plan.kept_requests) as f64 * lives;
        self.expect_many("kept requests", &self.kept, 0.4 * kept);
        let downloads = plan.downloads as f64 * seconds / plan.download_time.as_secs_f64();
        self.expect_many("downloads", &self.downloads, 0.4 * downloads);
    }

    #[track_caller]
    fn expect_many(&self, what: &str, tally: &Tally, least: f64) {
        let (found, lasted) = (tally.ok, self.lasted);
        assert!(
            found as f64 >= least,
            "{found} {what} in {lasted:?} are less than {least:.0}"
        );
    }
}

/// What the threads of a load share.
struct Shared {
    plan: Plan,
    start: Instant,
    stop: AtomicBool,
    fresh: AtomicU64,
    kept: AtomicU64,
    kept_failed: AtomicU64,
    downloads: AtomicU64,
    downloads_failed: AtomicU64,
}

impl Shared {
    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// A load under way.
pub(crate) struct Load {
    shared: Arc<Shared>,
    fresh: Vec<JoinHandle<Tally>>,
    kept: Vec<JoinHandle<Tally>>,
    downloads: Vec<JoinHandle<Tally>>,
}

impl Load {
    /// Starts it in the calling thread's network namespace.
    pub(crate) fn start(plan: Plan) -> Load {
        let shared = Arc::new(Shared {
            plan,
            start: Instant::now(),
            stop: AtomicBool::new(false),
            fresh: AtomicU64::new(0),
            kept: AtomicU64::new(0),
            kept_failed: AtomicU64::new(0),
            downloads: AtomicU64::new(0),
            downloads_failed: AtomicU64::new(0),
        });
        let spawn = |number: usize, run: fn(&Shared, u64) -> Tally| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || run(&shared, number as u64))
        };
        let plan = &shared.plan;
        Load {
            fresh: (0..usize::from(plan.fresh_per_second > 0))
                .map(|number| spawn(number, fresh::run))
                .collect(),
            kept: (0..plan.kept)
                .map(|number| spawn(number, kept::run))
                .collect(),
            downloads: (0..plan.downloads)
                .map(|number| spawn(number, download::run))
                .collect(),
            shared,
        }
    }

    /// Short connections that have succeeded so far.
    pub(crate) fn fresh_ok(&self) -> u64 {
        self.shared.fresh.load(Ordering::Relaxed)
    }

    /// Waits until each kind of load has had its first success: for a download, its first bytes.
    pub(crate) fn wait_flowing(&self) {
        let plan = &self.shared.plan;
        wait_until("the load flows", || {
            self.fresh_ok() >= u64::from(plan.fresh_per_second.min(100))
                && self.shared.kept.load(Ordering::Relaxed) >= plan.kept as u64
                && self.shared.downloads.load(Ordering::Relaxed) >= plan.downloads as u64
        });
    }

    /// Waits until a kept client and a download have failed.
    pub(crate) fn wait_failing(&self) {
        wait_until("the load fails", || {
            self.shared.kept_failed.load(Ordering::Relaxed) > 0
                && self.shared.downloads_failed.load(Ordering::Relaxed) > 0
        });
    }

    /// Opens nothing more, lets everything under way come to its end, and counts.
    pub(crate) fn stop(mut self) -> Report {
        self.shared.stop.store(true, Ordering::Relaxed);
        let lasted = self.shared.start.elapsed();
        let collect = |threads: Vec<JoinHandle<Tally>>| {
            let mut sum = Tally::default();
            threads
                .into_iter()
                .for_each(|thread| sum.merge(thread.join().expect("a thread of the load")));
            sum
        };
        Report {
            plan: self.shared.plan.clone(),
            fresh: collect(mem::take(&mut self.fresh)),
            kept: collect(mem::take(&mut self.kept)),
            downloads: collect(mem::take(&mut self.downloads)),
            lasted,
        }
    }
}

impl Drop for Load {
    /// The threads of a load that nobody counts end by themselves.
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
    }
}
