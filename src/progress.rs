//! A verb's steps, as lines: on a terminal a step that is told again, such as a drain's count, takes its own line again.
//!
//! Nothing is said twice: the last word of a success isn't shown where a step has said it, nor a failed step where the last word
//! says it, which goes to stderr.

use std::collections::HashSet;
use std::io::{self, IsTerminal, Write};

use syngate_supervisor::protocol::{Done, Step};

/// What every terminal has, less one: a longer line may have wrapped, so none takes its place.
const COLUMNS: usize = 79;

/// Up one line and clear it (ECMA-48: CUU, EL).
const LINE_AGAIN: &str = "\x1b[1A\x1b[2K";

/// Where steps go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Output {
    Stdout,
    /// Where stdout is somebody else's.
    Stderr,
    None,
}

/// What was shown, and where.
pub(crate) struct Progress {
    output: Output,
    terminal: bool,
    last: Option<Step>,
    /// It is one line of a terminal.
    replaceable: bool,
    /// A failure that is shown unless the last word is next and says the same.
    failed: Option<Step>,
    said: HashSet<String>,
}

impl Progress {
    pub(crate) fn new(output: Output) -> Self {
        let terminal = match output {
            Output::Stdout => io::stdout().is_terminal(),
            Output::Stderr => io::stderr().is_terminal(),
            Output::None => false,
        };
        Self::on(output, terminal)
    }

    fn on(output: Output, terminal: bool) -> Self {
        Self {
            output,
            terminal,
            last: None,
            replaceable: false,
            failed: None,
            said: HashSet::new(),
        }
    }

    /// Shows a step.
    pub(crate) fn show(&mut self, step: &Step) {
        let text = self.step(step);
        self.write(&text);
    }

    /// Shows what is left to say on stdout. A failure's last word is the caller's to say.
    pub(crate) fn close(&mut self, done: &Done) {
        let text = self.end(done);
        self.write(&text);
    }

    /// There is no last word: shows what was kept back.
    pub(crate) fn cut(&mut self) {
        let text = self.kept_back();
        self.write(&text);
    }

    fn kept_back(&mut self) -> String {
        let failed = self.failed.take();
        failed.map_or_else(String::new, |failed| self.render(&failed))
    }

    fn step(&mut self, step: &Step) -> String {
        let mut text = self.kept_back();
        match step.step.as_str() {
            "failed" => self.failed = Some(step.clone()),
            _ => text += &self.render(step),
        }
        text
    }

    fn end(&mut self, done: &Done) -> String {
        let repeats = |failed: &mut Step| {
            let words = words(failed);
            done.message
                .lines()
                .any(|line| words.iter().any(|word| word == line))
        };
        self.failed.take_if(repeats);
        let mut text = self.kept_back();
        if done.exit == 0 {
            for line in done
                .message
                .lines()
                .filter(|line| !self.said.contains(*line))
            {
                text += &format!("{line}\n");
            }
        }
        text
    }

    fn render(&mut self, step: &Step) -> String {
        self.said.extend(words(step));
        let last = self.last.replace(step.clone());
        let again = self.terminal
            && self.replaceable
            && last.is_some_and(|last| {
                (&last.service, last.generation, &last.step)
                    == (&step.service, step.generation, &step.step)
            });
        let text = lines(step);
        self.replaceable = text.lines().count() == 1 && text.trim_end().chars().count() <= COLUMNS;
        match again && self.replaceable {
            true => format!("{LINE_AGAIN}{text}"),
            false => text,
        }
    }

    /// A reader that has gone doesn't stop the verb.
    fn write(&self, text: &str) {
        let _ = match self.output {
            Output::Stdout => io::stdout().write_all(text.as_bytes()),
            Output::Stderr => io::stderr().write_all(text.as_bytes()),
            Output::None => Ok(()),
        };
    }
}

/// A step's message as a last word may have it: of one service, or of one among several.
fn words(step: &Step) -> [String; 2] {
    let Step {
        service, message, ..
    } = step;
    [message.clone(), format!("{service}: {message}")]
}

/// `   0.28 s  default  ready       generation 4 is ready`; what a check has printed is as many such lines.
fn lines(step: &Step) -> String {
    let message = printable(&step.message);
    let line = |message: &str| {
        let line = format!(
            "{:7.2} s  {}  {:<10}  {message}",
            step.elapsed_seconds, step.service, step.step
        );
        format!("{}\n", line.trim_end())
    };
    match message.is_empty() {
        true => line(""),
        false => message.lines().map(line).collect(),
    }
}

/// Text for a terminal, which must not obey a backend: its last words may be in a message.
pub(crate) fn printable(text: &str) -> String {
    text.replace(|each: char| each.is_control() && each != '\n', " ")
}

#[cfg(test)]
#[path = "progress_tests.rs"]
mod tests;
