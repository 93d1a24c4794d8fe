//! The harness of the end to end tests: a network of one's own, the gate as a process, backends, and load.
//!
//! Nothing here waits for a time to pass: [`wait_until`] looks for what should come, up to a deadline.

pub(crate) mod backend;
pub(crate) mod done;
pub(crate) mod events;
pub(crate) mod gate;
pub(crate) mod http;
pub(crate) mod kills;
pub(crate) mod load;
pub(crate) mod net;
#[path = "../backend/pattern.rs"]
pub(crate) mod pattern;
pub(crate) mod scrape;
pub(crate) mod wire;

use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Asks `look` until it finds something; panics with `what` after 30 s.
pub(crate) fn wait_for<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    wait_within(Duration::from_secs(30), what, look)
}

/// [`wait_for`] a condition.
pub(crate) fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    wait_for(what, || holds().then_some(()));
}

/// [`wait_for`] with a deadline of its own.
pub(crate) fn wait_within<T>(
    limit: Duration,
    what: &str,
    mut look: impl FnMut() -> Option<T>,
) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(
            start.elapsed() < limit,
            "waited {limit:?} in vain for: {what}"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Says why a test isn't run. Where all must run it fails: nobody sees what a test prints that passes.
#[track_caller]
pub(crate) fn skip(why: &str) {
    let must_run = std::env::var_os("SYNGATE_TESTS_MUST_RUN").is_some();
    assert!(
        !must_run,
        "SYNGATE_TESTS_MUST_RUN is set, and this test can't: {why}"
    );
    eprintln!("=== SKIPPED: {why} ===");
}

/// As many open descriptors as the hard limit lets this process, and those that it starts, have.
pub(crate) fn allow_descriptors() {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("getrlimit");
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).expect("setrlimit");
}
