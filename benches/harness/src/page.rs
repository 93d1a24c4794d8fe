//! `BENCHMARKS.md`, made from the results that are there.

use std::fmt::Write;
use std::fs;
use std::io;
use std::path::Path;

use crate::arguments::Output;
use crate::report::{Report, Row};
use crate::statistics::Spread;
use crate::workloads;

const HEAD: &str = "\
# Benchmarks

syngate beside HAProxy, nginx and a direct connection. `benches/run` has made this page; its head, and `benches/run --help`, say
how. Don't edit it.

How to read it:

- The measure is what a relay does with a second of its own CPU time (`schedstat` of all its processes and threads). What else the
  machine does meanwhile costs a relay time, but hardly any CPU time.
- The relay has one core, load and backend have another; all is in a network namespace of its own, without loss, with reno.
- Relays are loaded in turn, in slices of a few tenths of a second. A ratio is of two slices of one round. Quoted are the median over the
  rounds and, in brackets, the quartiles.
- `A / this` is A's number divided by the row's. Differences of a few per cent are noise.
- All relays are set up alike: one worker unless the workload says two, no log, a backlog of 4,096, no time-out that strikes.
  What is HAProxy's or nginx's default stays so, unless the row says otherwise.
- `HAProxy` is the distribution's, `HAProxy new` the newest one.
- nginx doesn't pass a half close on: it closes both sides at the first end of stream. That saves it system calls.
";

/// Writes the page from all results that are there.
pub(crate) fn write(output: &Output) -> io::Result<()> {
    let base = output.page.parent().unwrap_or(&output.page);
    let charts = output.results.strip_prefix(base).unwrap_or(&output.results);
    let reports = read(&output.results)?;
    fs::write(&output.page, page(&reports, &charts.display().to_string()))
}

/// Writes the page and the charts from all results that are there.
pub(crate) fn redraw(output: &Output) -> io::Result<()> {
    for report in read(&output.results)? {
        report.draw(output)?;
    }
    write(output)
}

fn read(results: &Path) -> io::Result<Vec<Report>> {
    let mut reports = Vec::new();
    for workload in workloads::all() {
        reports.extend(Report::read(results, &workload)?);
    }
    Ok(reports)
}

fn page(reports: &[Report], charts: &str) -> String {
    let mut page = HEAD.to_owned();
    page += "\n## Where a peer wins\n\nRows of one kind (TCP or unix endpoint) in which the better quartile of the ratio, too, is the peer's.\n\n";
    list(&mut page, reports.iter().flat_map(peers_wins));
    page += "\n## Which goals are missed\n\nBy the median; a count by each round.\n\n";
    list(&mut page, reports.iter().flat_map(missed));
    for report in reports {
        let chart = match charts {
            "" => format!("{}.svg", report.workload),
            folder => format!("{folder}/{}.svg", report.workload),
        };
        let _ = write!(
            page,
            "\n{}\n![{}]({chart})\n",
            section(report),
            report.title
        );
    }
    page
}

/// An item a line.
fn list(page: &mut String, lines: impl Iterator<Item = String>) {
    let before = page.len();
    for line in lines {
        let _ = writeln!(page, "- {line}");
    }
    if page.len() == before {
        *page += "None.\n";
    }
}

/// A line a goal.
fn missed(report: &Report) -> Vec<String> {
    let missed = goals(report).into_iter().filter(|(_, met)| !met);
    missed
        .map(|(goal, _)| format!("{}: {goal}", report.title))
        .collect()
}

/// The rows that others are compared with.
fn gates(report: &Report) -> impl Iterator<Item = &Row> {
    report.rows.iter().filter(|row| row.gate && report.compared)
}

/// A line a peer that beats a gate of the same kind.
fn peers_wins(report: &Report) -> Vec<String> {
    gates(report)
        .flat_map(|gate| {
            let peers = report
                .rows
                .iter()
                .filter(|row| !row.gate && row.unix == gate.unix);
            peers.filter_map(|peer| {
                let ratio = gate.ratio(peer).filter(|ratio| report.peer_wins(*ratio))?;
                Some(format!(
                    "{}: {} against {}: {}",
                    report.title,
                    gate.relay,
                    peer.relay,
                    spread(ratio)
                ))
            })
        })
        .collect()
}

/// One workload: what it is, its table, its goals, and how it was measured.
pub(crate) fn section(report: &Report) -> String {
    let better = if report.measures[0].lower_is_better {
        "less"
    } else {
        "more"
    };
    let gates: Vec<&Row> = gates(report).collect();
    let mut columns = vec![
        String::new(),
        format!("{} ({better} is better)", report.measures[0].name),
    ];
    columns.extend(gates.iter().map(|gate| format!("{} / this", gate.relay)));
    columns.extend(
        report.measures[1..]
            .iter()
            .map(|measure| measure.name.to_string()),
    );
    let mut text = format!("## {}\n\n{}\n\n", report.title, report.about);
    line(&mut text, &columns);
    line(&mut text, &vec!["---".to_owned(); columns.len()]);
    for row in &report.rows {
        let mut cells = vec![row.relay.clone(), row.spread(0).map_or_else(dash, spread)];
        cells.extend(gates.iter().map(|gate| {
            let other = (gate.relay != row.relay).then(|| gate.ratio(row)).flatten();
            other.map_or_else(dash, spread)
        }));
        cells.extend((1..report.measures.len()).map(|measure| {
            row.spread(measure)
                .map_or_else(dash, |spread| figure(spread.median))
        }));
        line(&mut text, &cells);
    }
    for (number, (goal, _)) in goals(report).iter().enumerate() {
        text += if number == 0 { "\nGoals:\n\n" } else { "" };
        let _ = writeln!(text, "- {goal}");
    }
    let _ = write!(
        text,
        "\n{} rounds, {}, {}; {}. `{}`\n",
        report.rounds(),
        report.date,
        report.machine,
        report.versions.join("; "),
        report.command,
    );
    text
}

/// What was wanted, a line each, and whether it is reached.
fn goals(report: &Report) -> Vec<(String, bool)> {
    let goals = report.goals.iter().filter_map(|goal| {
        let (reached, met) = report.reached(goal)?;
        let measure = &report.measures[goal.measure];
        let what = match (goal.peer, goal.measure) {
            (Some(peer), _) => format!("{} / {peer}", goal.gate),
            (None, 0) => goal.gate.to_owned(),
            (None, _) => format!("{}: {}, in every round", goal.gate, measure.name),
        };
        let bound = if measure.lower_is_better {
            "at most"
        } else {
            "at least"
        };
        let verdict = if met { "reached" } else { "**missed**" };
        let reached = reached.map_or_else(|| "no result".to_owned(), spread);
        let line = format!(
            "{what}: {bound} {}; {verdict} with {reached}",
            if goal.bound < 1000.0 {
                goal.bound.to_string()
            } else {
                figure(goal.bound)
            }
        );
        Some((line, met))
    });
    goals.collect()
}

fn line(text: &mut String, cells: &[String]) {
    let _ = writeln!(text, "| {} |", cells.join(" | "));
}

fn dash() -> String {
    "–".to_owned()
}

fn spread(spread: Spread) -> String {
    format!(
        "{} [{}–{}]",
        figure(spread.median),
        figure(spread.low),
        figure(spread.high)
    )
}

/// Three digits that count, or a whole number, thousands apart: 0.0123, 1.23, 12.3, 1,234, 2.
pub(crate) fn figure(value: f64) -> String {
    let size = value.abs();
    if size >= 99.95 || value.fract() == 0.0 {
        return thousands(value.round());
    }
    let digits = (2 - size.log10().floor() as i32).clamp(0, 6) as usize;
    format!("{value:.digits$}")
}

fn thousands(whole: f64) -> String {
    let digits = format!("{:.0}", whole.abs());
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if whole < 0.0 {
        format!("-{text}")
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Goal, Measure, example};

    #[test]
    fn figures_have_three_digits_that_count() {
        for (value, text) in [
            (0.0, "0"),
            (2.0, "2"),
            (0.012_34, "0.0123"),
            (1.234, "1.23"),
            (12.34, "12.3"),
            (99.99, "100"),
            (1234.4, "1,234"),
            (1_234_567.0, "1,234,567"),
            (-1234.0, "-1,234"),
        ] {
            assert_eq!(figure(value), text);
        }
    }

    #[test]
    fn a_section_has_the_ratio_and_its_spread() {
        let text = section(&example(&[3.0, 2.0, 4.0], &[1.0, 1.0, 1.0]));
        assert!(
            text.contains("| peer & sons | 1 [1–1] | 3 [2.50–3.50] |"),
            "{text}"
        );
        assert!(text.contains("3 rounds, 2026-01-31"));
    }

    #[test]
    fn the_page_says_where_a_peer_wins() {
        let slower = example(&[1.0; 3], &[2.0; 3]);
        let faster = example(&[2.0; 3], &[1.0; 3]);
        assert!(
            page(&[slower], "c")
                .contains("- Short <connections>: syngate against peer & sons: 0.500")
        );
        assert!(page(&[faster], "c").contains("None.\n\n## Which"));
    }

    #[test]
    fn charts_are_found_from_where_the_page_is() {
        let report = example(&[1.0], &[1.0]);
        let reports = [report];
        assert!(page(&reports, "benches/results").contains("(benches/results/short.svg)"));
        assert!(page(&reports, "").contains("(short.svg)"));
    }

    #[test]
    fn a_goal_is_reached_or_missed() {
        const fn goal(bound: f64) -> [Goal; 1] {
            [Goal {
                gate: "syngate",
                peer: Some("peer & sons"),
                measure: 0,
                bound,
            }]
        }
        const MET: [Goal; 1] = goal(1.1);
        const MISSED: [Goal; 1] = goal(1.3);
        let mut report = example(&[1.2], &[1.0]);
        for (goals, verdict) in [
            (&MET, "reached with 1.20"),
            (&MISSED, "**missed** with 1.20"),
        ] {
            report.goals = goals;
            assert!(section(&report).contains(verdict));
            let missed = page(&[report.clone()], "").contains("- Short <connections>: syngate /");
            assert_eq!(missed, verdict.starts_with("**"));
        }
    }

    /// A relay that gives up early has few connections, and may have none to compare.
    #[test]
    fn a_goal_that_has_no_number_is_missed_and_a_count_holds_in_every_round() {
        const GOALS: [Goal; 2] = [
            Goal {
                gate: "syngate",
                peer: None,
                measure: 0,
                bound: 1.0,
            },
            Goal {
                gate: "syngate",
                peer: None,
                measure: 1,
                bound: 0.0,
            },
        ];
        let mut report = example(&[1.0; 3], &[1.0; 3]);
        report.goals = &GOALS;
        report.measures.push(Measure {
            name: "errors".into(),
            lower_is_better: true,
        });
        for (samples, missed) in [
            ([vec![Some(1.0), Some(0.0)], vec![Some(1.0), Some(0.0)]], 0),
            ([vec![Some(1.0), Some(0.0)], vec![Some(1.0), Some(1.0)]], 1),
            ([vec![Some(1.0), Some(0.0)], vec![None, None]], 1),
            ([vec![None, Some(0.0)], vec![None, Some(0.0)]], 1),
            ([vec![None, None], vec![None, None]], 2),
        ] {
            report.rows[0].samples = samples.to_vec();
            assert_eq!(super::missed(&report).len(), missed, "{samples:?}");
        }
    }

    /// Neither is edited by hand, and a change of how they are drawn is drawn again: [`write`] and [`Report::write`].
    #[test]
    fn the_page_and_the_charts_are_those_of_the_results() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let results = root.join("benches/results");
        let reports = read(&results).expect("results");
        assert!(!reports.is_empty());
        let published = fs::read_to_string(root.join("BENCHMARKS.md")).expect("the page");
        assert!(
            page(&reports, "benches/results") == published,
            "BENCHMARKS.md isn't what benches/results says"
        );
        for report in reports {
            let chart = results.join(format!("{}.svg", report.workload));
            let published = fs::read_to_string(&chart).expect("a chart");
            assert!(crate::chart::draw(&report) == published, "{chart:?}");
        }
    }
}
