//! What a workload has come to, as it is kept in `benches/results/`.

use std::borrow::Cow;
use std::fs;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::arguments::Output;
use crate::chart;
use crate::machine;
use crate::measure::Bench;
use crate::statistics::Spread;
use crate::workloads::Workload;

/// A column of numbers. A workload's first one is what relays are compared by.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Measure {
    pub(crate) name: Cow<'static, str>,
    pub(crate) lower_is_better: bool,
}

/// What the gate wants to reach: at least this, or where lower is better at most. By the median of the measure that relays are compared
/// by; of another one, in every round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Goal {
    pub(crate) gate: &'static str,
    /// Whose number its own is divided by; none where its own is what counts.
    pub(crate) peer: Option<&'static str>,
    pub(crate) measure: usize,
    pub(crate) bound: f64,
}

/// The measures of one slice; none where a relay has no such number, or the slice has failed.
pub(crate) type Sample = Vec<Option<f64>>;

/// One relay.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) relay: String,
    /// It is syngate: the others are its peers.
    pub(crate) gate: bool,
    /// It connects to a unix socket.
    pub(crate) unix: bool,
    /// One a round; a number a measure.
    pub(crate) samples: Vec<Sample>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) workload: String,
    pub(crate) title: String,
    pub(crate) about: String,
    pub(crate) date: String,
    pub(crate) machine: String,
    pub(crate) versions: Vec<String>,
    pub(crate) command: String,
    pub(crate) measures: Vec<Measure>,
    /// Not of the result, but of the workload.
    #[serde(skip)]
    pub(crate) goals: &'static [Goal],
    /// Whether ratios of the relays' numbers say something.
    pub(crate) compared: bool,
    pub(crate) rows: Vec<Row>,
}

impl Row {
    /// Of one measure, over the rounds.
    pub(crate) fn spread(&self, measure: usize) -> Option<Spread> {
        Spread::of(self.samples.iter().filter_map(|sample| sample[measure]))
    }

    /// This row's first measure over the other's, round by round.
    pub(crate) fn ratio(&self, other: &Row) -> Option<Spread> {
        let pairs = self.samples.iter().zip(&other.samples);
        Spread::of(pairs.filter_map(|(own, other)| Some(own[0]? / other[0]?)))
    }
}

impl Report {
    pub(crate) fn new(
        workload: &Workload,
        rows: Vec<Row>,
        bench: &Bench,
        command: &str,
    ) -> io::Result<Report> {
        Ok(Report {
            workload: workload.name.to_owned(),
            title: workload.title.to_owned(),
            about: workload.about.to_owned(),
            date: machine::date()?,
            machine: machine::description()?,
            versions: bench.programs.versions(),
            command: command.to_owned(),
            measures: workload.measures.to_vec(),
            goals: workload.goals,
            compared: workload.compared,
            rows,
        })
    }

    pub(crate) fn rounds(&self) -> usize {
        self.rows
            .iter()
            .map(|row| row.samples.len())
            .max()
            .unwrap_or(0)
    }

    fn row(&self, relay: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.relay == relay)
    }

    /// Whether `ratio`, of the gate over a peer, is the peer's win: its better quartile too is on the wrong side of 1.
    pub(crate) fn peer_wins(&self, ratio: Spread) -> bool {
        if self.measures[0].lower_is_better {
            ratio.low > 1.0
        } else {
            ratio.high < 1.0
        }
    }

    /// What `goal` is about, and whether it is met; `None` where a relay didn't take part, or its peer has no number.
    pub(crate) fn reached(&self, goal: &Goal) -> Option<(Option<Spread>, bool)> {
        let gate = self.row(goal.gate)?;
        let spread = match goal.peer.map(|peer| self.row(peer)) {
            None => gate.spread(goal.measure),
            Some(peer) => {
                let peer = peer?;
                peer.spread(0)?;
                gate.ratio(peer)
            }
        };
        let meets = |value: f64| match self.measures[goal.measure].lower_is_better {
            true => value <= goal.bound,
            false => value >= goal.bound,
        };
        let met = match goal.measure {
            0 => spread.is_some_and(|spread| meets(spread.median)),
            other => {
                let mut samples = gate.samples.iter();
                samples.all(|sample| sample[other].is_some_and(meets))
            }
        };
        Some((spread, met))
    }

    /// Writes the document and the chart.
    pub(crate) fn write(&self, output: &Output) -> io::Result<()> {
        fs::create_dir_all(&output.results)?;
        let file = output.results.join(format!("{}.json", self.workload));
        let json = serde_json::to_string_pretty(self).map_err(io::Error::other)?;
        fs::write(file, json + "\n")?;
        self.draw(output)
    }

    /// Writes the chart alone.
    pub(crate) fn draw(&self, output: &Output) -> io::Result<()> {
        let file = output.results.join(format!("{}.svg", self.workload));
        fs::write(file, chart::draw(self))
    }

    /// `None` where the workload has no result yet.
    pub(crate) fn read(results: &Path, workload: &Workload) -> io::Result<Option<Report>> {
        let file = results.join(format!("{}.json", workload.name));
        match fs::read(&file) {
            Ok(json) => {
                let mut report: Report = serde_json::from_slice(&json).map_err(|error| {
                    let file = file.display();
                    io::Error::other(format!(
                        "{file} isn't a result; remove it, or measure again: {error}"
                    ))
                })?;
                report.goals = workload.goals;
                Ok(Some(report))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// A report of two relays, for the tests of what is made of one.
#[cfg(test)]
pub(crate) fn example(gate: &[f64], peer: &[f64]) -> Report {
    let row = |relay: &str, values: &[f64]| Row {
        relay: relay.to_owned(),
        gate: relay == "syngate",
        unix: false,
        samples: values.iter().map(|value| vec![Some(*value)]).collect(),
    };
    Report {
        workload: "short".to_owned(),
        title: "Short <connections>".to_owned(),
        about: "What it is.".to_owned(),
        date: "2026-01-31".to_owned(),
        machine: "a machine".to_owned(),
        versions: vec!["syngate 0".to_owned()],
        command: "benches/run".to_owned(),
        measures: vec![Measure {
            name: "connections".into(),
            lower_is_better: false,
        }],
        goals: &[],
        compared: true,
        rows: vec![row("syngate", gate), row("peer & sons", peer)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_of_the_same_round() {
        // Each round is ten times as fast as the last; the ratio is the same in all.
        let report = example(&[2.0, 20.0, 200.0], &[1.0, 10.0, 100.0]);
        let ratio = report.rows[0].ratio(&report.rows[1]).expect("a ratio");
        assert_eq!((ratio.low, ratio.median, ratio.high), (2.0, 2.0, 2.0));
    }

    #[test]
    fn a_round_that_failed_for_one_is_compared_for_none() {
        let mut report = example(&[2.0, 2.0], &[1.0, 1.0]);
        report.rows[1].samples[0] = vec![None];
        let ratio = report.rows[0].ratio(&report.rows[1]).expect("a ratio");
        assert_eq!(ratio.median, 2.0);
        report.rows[1].samples[1] = vec![None];
        assert_eq!(report.rows[0].ratio(&report.rows[1]), None);
    }

    #[test]
    fn who_wins_depends_on_what_is_better() {
        let mut report = example(&[1.0], &[2.0]);
        let ratio = report.rows[0].ratio(&report.rows[1]).expect("a ratio");
        assert!(report.peer_wins(ratio));
        report.measures[0].lower_is_better = true;
        assert!(!report.peer_wins(ratio));
    }

    #[test]
    fn what_is_written_can_be_read() {
        let report = example(&[1.0], &[2.0]);
        let json = serde_json::to_string(&report).expect("JSON");
        let read: Report = serde_json::from_str(&json).expect("a report");
        assert_eq!(read.rows[1].samples, report.rows[1].samples);
    }
}
