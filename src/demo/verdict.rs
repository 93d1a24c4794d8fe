//! How it ended, in numbers.

use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::time::Duration;

use super::load::Tally;

/// The bound of the wait histogram's bucket above which a connection counts as held.
const HELD_OVER: &str = "0.01";

/// What the demo has found out.
#[derive(Debug, Default)]
pub(super) struct Verdict {
    pub(super) took: Duration,
    pub(super) tally: Tally,
    /// By outcome, in the words of `syngate_reloads_total`.
    pub(super) reloads: BTreeMap<String, u64>,
    /// Connections that waited in the gate for over 10 ms.
    pub(super) held: u64,
    pub(super) redispatched: u64,
    /// What went otherwise than it should, apart from connections.
    pub(super) unexpected: Vec<String>,
}

impl Verdict {
    /// Whether nothing failed.
    pub(super) fn is_good(&self) -> bool {
        self.tally.failed == 0 && self.unexpected.is_empty()
    }

    /// Takes what the gate has counted from its metrics.
    pub(super) fn read_metrics(&mut self, metrics: &str) {
        let all = sum(metrics, "syngate_pending_wait_seconds_count", "");
        let at_once = sum(
            metrics,
            "syngate_pending_wait_seconds_bucket",
            &format!("le=\"{HELD_OVER}\""),
        );
        // Sums of counters.
        self.held = (all - at_once) as u64;
        self.redispatched = sum(metrics, "syngate_redispatches_total", "") as u64;
    }
}

/// The sum of a metric's series that have a label.
fn sum(metrics: &str, name: &str, label: &str) -> f64 {
    let values = metrics.lines().filter_map(|line| {
        let (series, value) = line.rsplit_once(' ')?;
        let labels = series.strip_prefix(name)?.strip_prefix('{')?;
        labels.contains(label).then(|| value.parse::<f64>().ok())?
    });
    values.sum()
}

impl Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tally = &self.tally;
        let seconds = self.took.as_secs_f64();
        let outcomes: Vec<_> = self
            .reloads
            .iter()
            .map(|(outcome, count)| format!("{count} {outcome}"))
            .collect();
        writeln!(f, "verdict, after {seconds:.1} s")?;
        let rate = tally.new as f64 / seconds;
        writeln!(f, "{:>9} new connections, {rate:.0}/s", tally.new)?;
        writeln!(
            f,
            "{:>9} requests on {} kept connections",
            tally.requests, tally.kept
        )?;
        let reloads: u64 = self.reloads.values().sum();
        writeln!(f, "{reloads:>9} reloads: {}", outcomes.join(", "))?;
        writeln!(
            f,
            "{:>9} held: they waited in the gate for over 10 ms",
            self.held
        )?;
        writeln!(f, "{:>9} redispatched", self.redispatched)?;
        writeln!(
            f,
            "{:>9} cut by the kill: the killed generation had accepted them",
            tally.cut
        )?;
        writeln!(
            f,
            "{:>20} {:>10} {:>10} {:>10}   milliseconds",
            "p50", "p99", "p99.9", "max"
        )?;
        quantiles(f, "connect", &tally.connect)?;
        quantiles(f, "first byte", &tally.first_byte)?;
        for reason in tally.reasons.iter().chain(&self.unexpected) {
            writeln!(f, "{:>9} {reason}", "!")?;
        }
        write!(f, "{:>9} failed", tally.failed)
    }
}

/// Both are from the beginning of the connect.
fn quantiles(f: &mut fmt::Formatter<'_>, what: &str, times: &[Duration]) -> fmt::Result {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    write!(f, "{what:>10}")?;
    for permille in [500, 990, 999, 1000] {
        let width = if permille == 500 { 9 } else { 10 };
        match quantile(&sorted, permille) {
            Some(time) => write!(f, " {:>width$.2}", time.as_secs_f64() * 1000.0)?,
            None => write!(f, " {:>width$}", "-")?,
        }
    }
    writeln!(f)
}

/// The smallest value that this many of a thousand don't exceed.
fn quantile(sorted: &[Duration], permille: usize) -> Option<Duration> {
    let rank = (sorted.len() * permille).div_ceil(1000);
    sorted.get(rank.checked_sub(1)?).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_one_of_the_values() {
        assert_eq!(quantile(&[], 500), None);
        let one = [Duration::from_millis(7)];
        assert_eq!(quantile(&one, 500), Some(one[0]));
        assert_eq!(quantile(&one, 1000), Some(one[0]));
        let thousand: Vec<_> = (1..=1000).map(Duration::from_micros).collect();
        let micros = |permille| quantile(&thousand, permille).unwrap().as_micros();
        assert_eq!([500, 990, 999, 1000].map(micros), [500, 990, 999, 1000]);
    }

    #[test]
    fn metrics_are_summed_over_services() {
        let metrics = "\
# TYPE syngate_redispatches_total counter
syngate_redispatches_total{service=\"jobs\"} 2
syngate_redispatches_total{service=\"web\"} 3
syngate_pending_wait_seconds_bucket{service=\"web\",le=\"0.005\"} 80
syngate_pending_wait_seconds_bucket{service=\"web\",le=\"0.01\"} 90
syngate_pending_wait_seconds_bucket{service=\"web\",le=\"+Inf\"} 100
syngate_pending_wait_seconds_count{service=\"web\"} 100
";
        let mut verdict = Verdict::default();
        verdict.read_metrics(metrics);
        assert_eq!((verdict.held, verdict.redispatched), (10, 5));
    }

    #[test]
    fn a_failure_or_a_surprise_is_not_good() {
        let mut verdict = Verdict::default();
        assert!(verdict.is_good());
        assert!(verdict.to_string().ends_with(" 0 failed"));
        verdict.unexpected.push("surprise".to_owned());
        assert!(!verdict.is_good());
        assert!(verdict.to_string().contains("surprise"));
        let mut verdict = Verdict::default();
        verdict.tally.failed = 1;
        assert!(!verdict.is_good());
    }
}
