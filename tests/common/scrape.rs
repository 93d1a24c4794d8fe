//! A scrape of the gate's metrics, and sums over its series.

use std::collections::BTreeMap;

/// One scrape: each series, as it is written, with its value.
#[derive(Debug)]
pub(crate) struct Metrics(BTreeMap<String, f64>);

impl Metrics {
    pub(crate) fn parse(text: &str) -> Metrics {
        let series = text
            .lines()
            .filter(|line| !line.starts_with('#') && !line.is_empty());
        let pair = |line: &str| {
            let (name, value) = line.rsplit_once(' ').expect("a series and its value");
            (name.to_owned(), value.parse().expect("a number"))
        };
        Metrics(series.map(pair).collect())
    }

    /// The sum over the series of `name` (without its prefix) that have all of `labels`; there must be one.
    #[track_caller]
    pub(crate) fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.find(name, labels)
            .unwrap_or_else(|| panic!("no series syngate_{name} with {labels:?}"))
    }

    /// [`Metrics::sum`], or `None` where there is no such series.
    pub(crate) fn find(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let wanted: Vec<String> = labels
            .iter()
            .map(|(key, value)| format!("{key}=\"{value}\""))
            .collect();
        let fits = |series: &str| {
            let rest = series
                .strip_prefix("syngate_")
                .and_then(|series| series.strip_prefix(name));
            let in_braces = rest.and_then(|rest| rest.strip_prefix('{')?.strip_suffix('}'));
            match (rest, in_braces) {
                (Some(""), _) => wanted.is_empty(),
                (_, Some(pairs)) => wanted
                    .iter()
                    .all(|pair| pairs.split(',').any(|found| found == pair)),
                _ => false,
            }
        };
        self.0
            .iter()
            .filter(|(series, _)| fits(series))
            .map(|(_, value)| *value)
            .reduce(|a, b| a + b)
    }
}
