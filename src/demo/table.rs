//! The live table: redrawn in place on a terminal, plain lines elsewhere.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use syngate_supervisor::protocol::Status;

use super::load::Clients;
use crate::progress::printable;

/// A terminal's line, less one so that nothing wraps.
const COLUMNS: usize = 79;

/// Rates are of this time.
const WINDOW: Duration = Duration::from_secs(1);

/// Up some lines (ECMA-48: CUU), and clear to the end of a line (EL).
const CLEAR: &str = "\x1b[K";

/// What is shown. One row a service.
pub(super) struct Table {
    began: Instant,
    terminal: bool,
    state: RefCell<State>,
}

struct State {
    rows: Vec<Row>,
    last_event: String,
    /// Lines of the last drawing, which the next one overwrites.
    drawn: usize,
    /// When plain rows were printed.
    printed: Instant,
}

struct Row {
    service: &'static str,
    clients: Arc<Clients>,
    rates: Rates,
    pending: u64,
    active: Option<u64>,
}

impl Table {
    pub(super) fn new(rows: [(&'static str, &Arc<Clients>); 2]) -> Table {
        let began = Instant::now();
        let row = |(service, clients): (&'static str, &Arc<Clients>)| Row {
            service,
            clients: Arc::clone(clients),
            rates: Rates::default(),
            pending: 0,
            active: None,
        };
        Table {
            began,
            terminal: io::stdout().is_terminal(),
            state: RefCell::new(State {
                rows: rows.map(row).into(),
                last_event: String::new(),
                drawn: 0,
                printed: began,
            }),
        }
    }

    /// Since the beginning.
    pub(super) fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// Something happened to a service.
    pub(super) fn event(&self, service: &str, event: &str) {
        let event = format!("{service:<5}  {}", printable(event).replace('\n', " "));
        if self.terminal {
            self.state.borrow_mut().last_event = event;
            self.draw();
        } else {
            say(&format!("{}  {event}", self.clock()));
        }
    }

    /// Takes in what the gate says and what the clients have counted, and shows it; plain rows once a second.
    pub(super) fn update(&self, status: &Status) {
        let now = Instant::now();
        let mut state = self.state.borrow_mut();
        for row in &mut state.rows {
            let (connections, requests) = row.clients.counts();
            row.rates.sample(now, connections, requests);
            let mut services = status.services.iter();
            if let Some(service) = services.find(|service| service.name == row.service) {
                (row.pending, row.active) = (service.pending, service.active);
            }
        }
        if self.terminal {
            drop(state);
            self.draw();
        } else if now.duration_since(state.printed) >= WINDOW {
            state.printed = now;
            for row in &state.rows {
                say(&format!("{}  {}", self.clock(), row.words()));
            }
        }
    }

    fn draw(&self) {
        let mut state = self.state.borrow_mut();
        let header = format!(
            "{}  connections/s  requests/s  pending  active",
            self.clock()
        );
        let event = format!("last event: {}", state.last_event);
        let rows = state.rows.iter().map(Row::columns);
        let lines: Vec<String> = [header].into_iter().chain(rows).chain([event]).collect();
        let mut text = match state.drawn {
            0 => String::new(),
            drawn => format!("\x1b[{drawn}A"),
        };
        state.drawn = lines.len();
        for line in lines {
            text.extend(line.chars().take(COLUMNS));
            text += CLEAR;
            text.push('\n');
        }
        print(&text);
    }

    fn clock(&self) -> String {
        format!("{:5.1} s", self.elapsed().as_secs_f64())
    }
}

impl Row {
    fn columns(&self) -> String {
        let (connections, requests) = self.rates.per_second();
        let (service, pending, active) = (self.service, self.pending, self.active());
        format!("{service:<7}  {connections:>13.0}  {requests:>10.0}  {pending:>7}  {active:>6}")
    }

    fn words(&self) -> String {
        let (connections, requests) = self.rates.per_second();
        let (service, pending, active) = (self.service, self.pending, self.active());
        format!(
            "{service:<5}  {connections:.0} connections/s, {requests:.0} requests/s, {pending} pending, active: {active}"
        )
    }

    fn active(&self) -> String {
        self.active
            .map_or("none".to_owned(), |number| number.to_string())
    }
}

/// Counts of the last second.
#[derive(Default)]
struct Rates(VecDeque<(Instant, u64, u64)>);

impl Rates {
    fn sample(&mut self, now: Instant, connections: u64, requests: u64) {
        self.0.push_back((now, connections, requests));
        // One that is older stays, so that the samples span the window.
        while self
            .0
            .get(1)
            .is_some_and(|(at, ..)| now.duration_since(*at) >= WINDOW)
        {
            self.0.pop_front();
        }
    }

    /// Connections, and requests on kept ones.
    fn per_second(&self) -> (f64, f64) {
        let (Some(first), Some(last)) = (self.0.front(), self.0.back()) else {
            return (0.0, 0.0);
        };
        let seconds = last.0.duration_since(first.0).as_secs_f64();
        if seconds == 0.0 {
            return (0.0, 0.0);
        }
        let rate = |from: u64, to: u64| (to - from) as f64 / seconds;
        (rate(first.1, last.1), rate(first.2, last.2))
    }
}

/// A line on stdout.
pub(super) fn say(line: &str) {
    print(&format!("{line}\n"));
}

/// A reader that has gone, as `head` does, is no error.
fn print(text: &str) {
    let mut stdout = io::stdout().lock();
    let _ = stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_of_the_last_second() {
        let begin = Instant::now();
        let mut rates = Rates::default();
        assert_eq!(rates.per_second(), (0.0, 0.0));
        for step in 0..20_u32 {
            // The first 2.5 seconds have 1,000 a second, then there is nothing.
            let new = u64::from(step.min(10)) * 250;
            rates.sample(begin + step * Duration::from_millis(250), new, 0);
            match step {
                10 => assert_eq!(rates.per_second().0, 1000.0),
                12 => assert_eq!(rates.per_second().0, 500.0),
                14.. => assert_eq!(rates.per_second().0, 0.0),
                _ => {}
            }
        }
    }
}
