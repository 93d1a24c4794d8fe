//! `status` and `connections` for people: plain text, aligned, at most [`COLUMNS`] wide where names allow. No I/O here.

use std::fmt::Write as _;
use std::io::{self, IsTerminal};

use syngate_supervisor::protocol::{
    Connection, GenerationState, GenerationStatus, Reload, ServiceStatus, Status,
};

use crate::progress::printable;

/// What every terminal has.
const COLUMNS: usize = 80;

/// Where a service's lines begin.
const INDENT: &str = "  ";

/// Whether words that matter are coloured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Paint(bool);

impl Paint {
    /// Colours on a terminal, unless NO_COLOR is set and not empty (no-color.org).
    pub(crate) fn for_stdout() -> Self {
        let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self(io::stdout().is_terminal() && !unwanted)
    }

    fn good(self, text: &str) -> String {
        self.code("32", text)
    }

    fn odd(self, text: &str) -> String {
        self.code("33", text)
    }

    fn bad(self, text: &str) -> String {
        self.code("31", text)
    }

    fn code(self, code: &str, text: &str) -> String {
        match self.0 && !text.trim().is_empty() {
            true => format!("\x1b[{code}m{text}\x1b[0m"),
            false => text.to_owned(),
        }
    }
}

/// The status of a gate; `now` in seconds since 1970.
pub(crate) fn text(status: &Status, now: f64, paint: Paint) -> String {
    let ready = match (status.ready, &status.not_ready) {
        (true, _) => paint.good("ready"),
        (false, None) => paint.bad("not ready"),
        (false, Some(why)) => paint.bad(&format!("not ready: {}", printable(why))),
    };
    let mut lines = vec![
        format!(
            "syngate {}, pid {}, up {}",
            status.version,
            status.pid,
            age(status.uptime_seconds)
        ),
        ready,
        format!(
            "{} of {} connections, {} of {} pending",
            status.connections, status.max_connections, status.pending, status.pending_max
        ),
    ];
    lines.extend(status.metrics.iter().map(|url| format!("metrics at {url}")));
    for each in &status.services {
        lines.push(String::new());
        service(each, now, paint, &mut lines);
    }
    lines.join("\n") + "\n"
}

fn service(service: &ServiceStatus, now: f64, paint: Paint, lines: &mut Vec<String>) {
    let serves = match service.active {
        Some(number) => paint.good(&format!("generation {number} is active")),
        None => paint.bad("nothing serves, connections wait"),
    };
    let mut head = format!("{}: {serves}", service.name);
    if service.held {
        head += &paint.odd(", held");
    }
    if service.pending > 0 {
        head += &paint.odd(&format!(", {} pending", service.pending));
    }
    if let Some(running) = &service.running {
        head += &format!(", {}", printable(running));
    }
    lines.push(head);
    if let Some(addresses) = &service.activated {
        let text = format!(
            "activated: {}, until the file's backend changes",
            addresses.join(" ")
        );
        lines.extend(wrapped(INDENT, &text));
    }

    let mut listeners = Table::new([Align::Left, Align::Left, Align::Right, Align::Right]);
    listeners.row(["listener", "address", "queue", "drops"]);
    for listener in &service.listeners {
        listeners.row([
            &listener.name,
            &listener.address,
            &listener.backlog.to_string(),
            &listener.drops.to_string(),
        ]);
    }
    lines.extend(listeners.lines(INDENT));

    if !service.generations.is_empty() {
        lines.extend(generations(&service.generations, paint));
    }
    for (number, why) in service
        .generations
        .iter()
        .filter_map(|one| Some((one.number, one.refused.as_ref()?)))
    {
        let text = format!(
            "generation {number} takes no connection: {}; connections wait",
            printable(why)
        );
        lines.extend(wrapped(INDENT, &text).iter().map(|line| paint.bad(line)));
    }
    if let Some(last) = &service.last_reload {
        last_reload(last, now, paint, lines);
    }
    let reloaded = service.last_reload.as_ref().map_or(0.0, |last| last.at);
    // What failed before that is in its message.
    if let Some(failure) = service
        .last_failure
        .as_ref()
        .filter(|one| one.at > reloaded)
    {
        let ago = age((now - failure.at).max(0.0));
        lines.push(format!(
            "{INDENT}last failure: {}, {ago} ago",
            paint.bad(&format!("generation {}", failure.generation))
        ));
        lines.extend(wrapped("    ", &printable(&failure.message)));
    }
}

fn generations(generations: &[GenerationStatus], paint: Paint) -> Vec<String> {
    let mut table = Table::new([
        Align::Right,
        Align::Left,
        Align::Right,
        Align::Right,
        Align::Right,
        Align::Left,
    ]);
    table.row(["generation", "state", "pid", "age", "connections", ""]);
    for generation in generations {
        let detail = match &generation.waits_for {
            Some(what) => format!("waits for {}", printable(what)),
            None => generation.endpoints.join(" "),
        };
        table.row([
            &generation.number.to_string(),
            word(generation.state),
            &generation.pid.map_or("-".to_owned(), |pid| pid.to_string()),
            &age(generation.age_seconds),
            &generation.connections.to_string(),
            &detail,
        ]);
    }
    let mut lines = table.lines(INDENT);
    for (line, generation) in lines.iter_mut().skip(1).zip(generations) {
        let word = word(generation.state);
        let painted = match generation.state {
            GenerationState::Active => paint.good(word),
            GenerationState::Failed => paint.bad(word),
            GenerationState::Starting | GenerationState::Ready | GenerationState::Draining => {
                paint.odd(word)
            }
        };
        *line = line.replacen(word, &painted, 1);
    }
    lines
}

fn last_reload(last: &Reload, now: f64, paint: Paint, lines: &mut Vec<String>) {
    let ago = age((now - last.at).max(0.0));
    let head = format!(
        "last reload: {}, {ago} ago, took {:.1} s{}",
        last.outcome,
        last.seconds,
        phases(last)
    );
    let painted = match last.outcome.as_str() {
        "success" => paint.good(&last.outcome),
        _ => paint.bad(&last.outcome),
    };
    lines.push(format!(
        "{INDENT}{}",
        head.replacen(&last.outcome, &painted, 1)
    ));
    lines.extend(wrapped("    ", &printable(&last.message)));
}

/// What took a tenth of a second and more. The drain outlives the run, and is no part of its time.
fn phases(last: &Reload) -> String {
    let long = last
        .phases
        .iter()
        .filter(|one| one.seconds >= 0.1 && one.phase != "drain");
    let named: Vec<String> = long
        .map(|one| format!("{} {:.1} s", printable(&one.phase), one.seconds))
        .collect();
    match named.is_empty() {
        true => String::new(),
        false => format!(" ({})", named.join(", ")),
    }
}

/// The connections of a service, oldest first.
pub(crate) fn connections(list: &[Connection]) -> String {
    if list.is_empty() {
        return "no connections\n".to_owned();
    }
    let mut oldest_first: Vec<_> = list.iter().collect();
    oldest_first.sort_by(|a, b| b.age_seconds.total_cmp(&a.age_seconds));
    let mut table = Table::new([
        Align::Left,
        Align::Left,
        Align::Right,
        Align::Left,
        Align::Right,
        Align::Right,
        Align::Right,
    ]);
    table.row([
        "listener",
        "client",
        "generation",
        "state",
        "age",
        "in",
        "out",
    ]);
    for connection in oldest_first {
        table.row([
            &connection.listener,
            &connection.peer,
            &connection
                .generation
                .map_or("-".to_owned(), |number| number.to_string()),
            &connection.state,
            &age(connection.age_seconds),
            &bytes(connection.bytes_in),
            &bytes(connection.bytes_out),
        ]);
    }
    table.lines("").join("\n") + "\n"
}

/// Text that takes the place of the last one on a terminal (ECMA-48: CUP, EL, ED): without a clear first, so that it doesn't
/// flicker.
pub(crate) fn redrawn(text: &str) -> String {
    format!("\x1b[H{}\x1b[J", text.replace('\n', "\x1b[K\n"))
}

fn word(state: GenerationState) -> &'static str {
    match state {
        GenerationState::Starting => "starting",
        GenerationState::Ready => "ready",
        GenerationState::Active => "active",
        GenerationState::Draining => "draining",
        GenerationState::Failed => "failed",
    }
}

/// The two largest units: `0.3s`, `42s`, `3m 5s`, `2h 0m`, `12d 3h`.
fn age(seconds: f64) -> String {
    if seconds < 9.95 {
        return format!("{seconds:.1}s");
    }
    // Saturates; nothing lives that long.
    let seconds = seconds.round() as u64;
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, _) => format!("{minutes}m {}s", seconds % 60),
        (0, _, _) => format!("{hours}h {}m", minutes % 60),
        _ => format!("{days}d {}h", hours % 24),
    }
}

/// `999`, `1.5k`, `23M`: powers of 1,000.
fn bytes(count: u64) -> String {
    let mut rest = count as f64;
    let mut units = ["", "k", "M", "G", "T", "P", "E"].into_iter();
    let mut unit = units.next().unwrap_or_default();
    while rest >= 999.5
        && let Some(next) = units.next()
    {
        rest /= 1000.0;
        unit = next;
    }
    match unit.is_empty() || rest >= 9.95 {
        true => format!("{rest:.0}{unit}"),
        false => format!("{rest:.1}{unit}"),
    }
}

#[derive(Clone, Copy)]
enum Align {
    Left,
    Right,
}

/// Rows of cells, as wide as the widest of their column; the last column takes what is left of the line.
struct Table<const N: usize> {
    align: [Align; N],
    rows: Vec<[String; N]>,
}

impl<const N: usize> Table<N> {
    fn new(align: [Align; N]) -> Self {
        Self {
            align,
            rows: Vec::new(),
        }
    }

    fn row(&mut self, cells: [&str; N]) {
        self.rows.push(cells.map(printable));
    }

    fn lines(&self, indent: &str) -> Vec<String> {
        let width = |column: usize| {
            let cells = self.rows.iter().map(|row| row[column].chars().count());
            cells.max().unwrap_or(0)
        };
        let widths: [usize; N] = std::array::from_fn(width);
        let line = |row: &[String; N]| {
            let mut line = indent.to_owned();
            for (column, cell) in row.iter().enumerate() {
                let gap = if column == 0 { "" } else { "  " };
                let width = widths[column];
                // Writing to a String can't fail.
                let _ = match self.align[column] {
                    Align::Left => write!(line, "{gap}{cell:<width$}"),
                    Align::Right => write!(line, "{gap}{cell:>width$}"),
                };
            }
            shortened(line.trim_end())
        };
        self.rows.iter().map(line).collect()
    }
}

/// Cut to a line, with a sign that it was.
fn shortened(line: &str) -> String {
    match line.chars().count() > COLUMNS {
        true => line.chars().take(COLUMNS - 1).chain(['…']).collect(),
        false => line.to_owned(),
    }
}

/// Broken between words, each line with the indent; a longer word stands alone.
fn wrapped(indent: &str, text: &str) -> Vec<String> {
    let mut lines = Vec::new();
    for paragraph in text.lines() {
        let mut line = indent.to_owned();
        for word in paragraph.split_whitespace() {
            let begun = line.len() > indent.len();
            if begun && line.chars().count() + 1 + word.chars().count() > COLUMNS {
                lines.push(std::mem::replace(&mut line, format!("{indent}{word}")));
                continue;
            }
            if begun {
                line.push(' ');
            }
            line += word;
        }
        lines.push(line);
    }
    lines
}

#[cfg(test)]
#[path = "status_tests.rs"]
mod tests;
