//! A verb's steps, as lines: on a terminal a step that is told again, such as a drain's count, takes its own line again.

use std::io::{self, IsTerminal, Write};

use syngate_supervisor::protocol::Step;

/// A terminal's line, less one so that nothing wraps.
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

/// What was shown last, and where.
pub(crate) struct Progress {
    output: Output,
    terminal: bool,
    last: Option<Step>,
}

impl Progress {
    pub(crate) fn new(output: Output) -> Self {
        let terminal = match output {
            Output::Stdout => io::stdout().is_terminal(),
            Output::Stderr => io::stderr().is_terminal(),
            Output::None => false,
        };
        Self {
            output,
            terminal,
            last: None,
        }
    }

    /// Shows a step.
    pub(crate) fn show(&mut self, step: &Step) {
        let text = self.render(step);
        self.write(&text);
        self.last = Some(step.clone());
    }

    /// Shows the last word of a success, unless the last step said the same.
    pub(crate) fn close(&mut self, message: &str) {
        if self
            .last
            .as_ref()
            .is_none_or(|last| last.message != message)
        {
            self.write(&format!("{message}\n"));
        }
    }

    fn render(&self, step: &Step) -> String {
        let line = line(step);
        if !self.terminal {
            return line + "\n";
        }
        let again = self.last.as_ref().is_some_and(|last| {
            (&last.service, last.generation, &last.step)
                == (&step.service, step.generation, &step.step)
        });
        let short: String = line.chars().take(COLUMNS).collect();
        format!("{}{short}\n", if again { LINE_AGAIN } else { "" })
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

/// `   0.28 s  default  ready       generation 4 is ready`
fn line(step: &Step) -> String {
    let message = printable(&step.message).replace('\n', " ");
    let line = format!(
        "{:7.2} s  {}  {:<10}  {message}",
        step.elapsed_seconds, step.service, step.step
    );
    line.trim_end().to_owned()
}

/// Text for a terminal, which must not obey a backend: its last words may be in a message.
pub(crate) fn printable(text: &str) -> String {
    text.replace(|each: char| each.is_control() && each != '\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(word: &str, message: &str) -> Step {
        Step {
            at: 0.0,
            elapsed_seconds: 1.234,
            service: "web".into(),
            generation: Some(3),
            step: word.into(),
            message: message.into(),
        }
    }

    fn shown(terminal: bool, steps: &[Step]) -> String {
        let mut progress = Progress {
            output: Output::None,
            terminal,
            last: None,
        };
        let mut text = String::new();
        for step in steps {
            text += &progress.render(step);
            progress.show(step);
        }
        text
    }

    #[test]
    fn one_plain_line_a_step() {
        let steps = [
            step("draining", "12 connections"),
            step("draining", "3 connections"),
        ];
        assert_eq!(
            shown(false, &steps),
            "   1.23 s  web  draining    12 connections\n   1.23 s  web  draining    3 connections\n"
        );
    }

    #[test]
    fn a_terminal_shows_a_count_in_place() {
        let steps = [
            step("draining", "12"),
            step("draining", "3"),
            step("drained", ""),
        ];
        assert_eq!(
            shown(true, &steps),
            "   1.23 s  web  draining    12\n\x1b[1A\x1b[2K   1.23 s  web  draining    3\n   1.23 s  web  drained\n"
        );
    }

    #[test]
    fn a_terminal_gets_no_wrapped_line_and_no_escape() {
        let text = shown(
            true,
            &[step("failed", &format!("\x1b[2J{}", "x".repeat(200)))],
        );
        assert!(!text.contains('\x1b'));
        assert_eq!(text.chars().count(), COLUMNS + 1);
    }
}
