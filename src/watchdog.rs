//! Whether loops still turn: what `/livez` says.

use std::time::{Duration, Instant};

/// A loop turns at least once a second; one that hasn't for this long is stuck.
const PATIENCE: Duration = Duration::from_secs(10);

/// The loops as they were last seen.
#[derive(Debug, Default)]
pub(crate) struct Watchdog {
    /// Turns of each loop, and when that number was new.
    seen: Vec<(u64, Instant)>,
}

impl Watchdog {
    /// Whether each loop has turned within 10 s, by the numbers of their turns `now`. A look that is the first sees nothing
    /// wrong.
    pub(crate) fn all_turn(&mut self, turns: &[u64], now: Instant) -> bool {
        self.seen.resize(turns.len(), (0, now));
        for (seen, &turns) in self.seen.iter_mut().zip(turns) {
            if seen.0 != turns {
                *seen = (turns, now);
            }
        }
        self.seen
            .iter()
            .all(|(_, since)| now.duration_since(*since) < PATIENCE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_that_stands_still_is_seen_after_ten_seconds() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut watchdog = Watchdog::default();
        assert!(watchdog.all_turn(&[5, 0], at(0)));
        assert!(watchdog.all_turn(&[6, 0], at(9)));
        assert!(!watchdog.all_turn(&[7, 0], at(10)));
        assert!(watchdog.all_turn(&[7, 1], at(11)));
        assert!(!watchdog.all_turn(&[7, 2], at(20)));
    }
}
