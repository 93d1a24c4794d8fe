//! A verb's steps, as lines: on a terminal a step that is told again, such as a drain's count, takes its own line again.
//!
//! Nothing is said twice: the last word of a success isn't shown where a step has said it, nor a failed step where the last word
//! says it, which goes to stderr.

use std::collections::HashSet;
use std::io::{self, IsTerminal, Write};

use syngate_supervisor::protocol::{Done, Step};

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

/// What was shown, and where.
pub(crate) struct Progress {
    output: Output,
    terminal: bool,
    last: Option<Step>,
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
        let line = line(step);
        if !self.terminal {
            return line + "\n";
        }
        let again = last.as_ref().is_some_and(|last| {
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

/// A step's message as a last word may have it: of one service, or of one among several.
fn words(step: &Step) -> [String; 2] {
    let Step {
        service, message, ..
    } = step;
    [message.clone(), format!("{service}: {message}")]
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
        let mut progress = Progress::on(Output::None, terminal);
        steps.iter().map(|step| progress.step(step)).collect()
    }

    /// What follows the steps.
    fn closed(steps: &[Step], exit: u8, message: &str) -> String {
        let mut progress = Progress::on(Output::None, false);
        for step in steps {
            progress.step(step);
        }
        let message = message.to_owned();
        progress.end(&Done { exit, message })
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
            &[step("check", &format!("\x1b[2J{}", "x".repeat(200)))],
        );
        assert!(!text.contains('\x1b'));
        assert_eq!(text.chars().count(), COLUMNS + 1);
    }

    #[test]
    fn the_last_word_of_a_success_is_said_once() {
        let steps = [
            step("success", "generation 2 is active"),
            step("drained", ""),
        ];
        for said in ["generation 2 is active", "web: generation 2 is active"] {
            assert_eq!(closed(&steps, 0, said), "");
        }
        assert_eq!(
            closed(
                &steps,
                0,
                "web: generation 2 is active\nmail: nothing to do"
            ),
            "mail: nothing to do\n"
        );
    }

    #[test]
    fn a_failure_is_said_once_and_by_its_last_word() {
        let steps = [step("check", ""), step("failed", "reload failed: no")];
        assert_eq!(shown(false, &steps), "   1.23 s  web  check\n");
        for said in ["reload failed: no", "mail: fine\nweb: reload failed: no"] {
            assert_eq!(closed(&steps, 1, said), "");
        }
        let line = "   1.23 s  web  failed      reload failed: no\n";
        assert_eq!(closed(&steps, 0, "held"), format!("{line}held\n"));
        let steps = [step("failed", "reload failed: no"), step("check", "")];
        assert_eq!(
            shown(false, &steps),
            format!("{line}   1.23 s  web  check\n")
        );
    }
}
