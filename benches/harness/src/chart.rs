//! One workload as a bar chart: a bar a relay, with the quartiles as a whisker.

use std::fmt::Write;

use crate::page::figure;
use crate::report::Report;

const WIDTH: f64 = 800.0;
/// Of the labels at the left.
const LABEL: f64 = 230.0;
/// Kept free at the right, for the numbers.
const MARGIN: f64 = 90.0;
const ROW: f64 = 26.0;
const HEAD: f64 = 52.0;

/// A document of its own, in SVG 1.1.
pub(crate) fn draw(report: &Report) -> String {
    let bars: Vec<_> = report
        .rows
        .iter()
        .filter_map(|row| Some((row, row.spread(0)?)))
        .collect();
    let most = bars
        .iter()
        .map(|(_, spread)| spread.high)
        .fold(0.0, f64::max);
    let scale = if most > 0.0 {
        (WIDTH - LABEL - MARGIN) / most
    } else {
        0.0
    };
    let height = HEAD + ROW * bars.len() as f64 + 10.0;
    let better = if report.measures[0].lower_is_better {
        "less"
    } else {
        "more"
    };
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
         <text x=\"10\" y=\"20\" font-size=\"15\">{}</text>\n\
         <text x=\"10\" y=\"40\" fill=\"#555\">{} ({better} is better)</text>\n",
        escaped(&report.title),
        escaped(&report.measures[0].name),
    );
    for (number, (row, spread)) in bars.iter().enumerate() {
        let top = HEAD + ROW * number as f64;
        let middle = top + 10.0;
        let base = middle + 4.5;
        let colour = if row.gate { "#2166ac" } else { "#b8c4ce" };
        let (from, to) = (LABEL + spread.low * scale, LABEL + spread.high * scale);
        // Writing to a string can't fail.
        let _ = writeln!(
            svg,
            "<text x=\"{:.0}\" y=\"{base:.1}\" text-anchor=\"end\">{}</text>\
             <rect x=\"{LABEL}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"20\" fill=\"{colour}\"/>\
             <path d=\"M{from:.1} {middle:.1}H{to:.1}\" stroke=\"#222\" stroke-width=\"2\"/>\
             <text x=\"{:.1}\" y=\"{base:.1}\">{}</text>",
            LABEL - 8.0,
            escaped(&row.relay),
            spread.median * scale,
            to.max(LABEL) + 6.0,
            figure(spread.median),
        );
    }
    svg + "</svg>\n"
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::example;

    #[test]
    fn the_longest_bar_ends_where_the_numbers_begin() {
        let svg = draw(&example(&[200.0], &[100.0]));
        assert!(
            svg.contains("width=\"480.0\" height=\"20\" fill=\"#2166ac\""),
            "{svg}"
        );
        assert!(
            svg.contains("width=\"240.0\" height=\"20\" fill=\"#b8c4ce\""),
            "{svg}"
        );
    }

    #[test]
    fn text_is_escaped() {
        let svg = draw(&example(&[2.0], &[1.0]));
        assert!(svg.contains("Short &lt;connections&gt;"));
        assert!(svg.contains("peer &amp; sons"));
    }

    #[test]
    fn a_relay_without_numbers_has_no_bar() {
        let mut report = example(&[2.0], &[1.0]);
        report.rows[1].samples = vec![vec![None]];
        assert!(!draw(&report).contains("peer"));
    }

    #[test]
    fn nothing_but_zeros_can_be_drawn() {
        let svg = draw(&example(&[0.0], &[0.0]));
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }
}
