//! A record of the log as text: `TIME LEVEL message name=value ...`, and in systemd's journal, which has the time and asks for the level
//! in its own way, `<PRIORITY>message name=value ...` (sd-daemon(3)).
//!
//! - A message of several lines, such as what a check has printed, is as many lines but the empty ones, each with the time, the level and all fields:
//!   grep finds it.
//! - A value has one form, whatever its type: bare, but quoted where it is empty or has spaces, quotes or control characters.
//! - No control character gets through: a backend's words may be in a message, and a terminal must not obey them.

use std::fmt::{self, Debug, Write as _};
use std::time::SystemTime;

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// For the text format. Spans aren't shown: there are none.
pub(super) struct Text {
    /// The journal reads it.
    pub(super) journal: bool,
}

impl<S, N> FormatEvent<S, N> for Text
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut record = Record {
            ansi: writer.has_ansi_escapes(),
            ..Record::default()
        };
        event.record(&mut record);
        let level = *event.metadata().level();
        let head = match self.journal {
            true => priority(level).to_owned(),
            false => record.head(SystemTime::now(), level),
        };
        record.write(&mut writer, &head)
    }
}

/// What an event says.
#[derive(Default)]
struct Record {
    message: String,
    /// ` name=value` each.
    fields: String,
    ansi: bool,
}

impl Record {
    fn head(&self, at: SystemTime, level: Level) -> String {
        let at = self.paint("2", &humantime::format_rfc3339_micros(at).to_string());
        let colour = match level {
            Level::ERROR => "31",
            Level::WARN => "33",
            Level::INFO => "32",
            Level::DEBUG => "34",
            Level::TRACE => "35",
        };
        format!("{at} {} ", self.paint(colour, &format!("{level:>5}")))
    }

    fn write(&self, output: &mut impl fmt::Write, head: &str) -> fmt::Result {
        let mut line = |text: &str| {
            let fields = match text.is_empty() {
                true => self.fields.trim_start(),
                false => &self.fields,
            };
            writeln!(output, "{head}{text}{fields}")
        };
        let mut lines = self
            .message
            .lines()
            .filter(|line| !line.is_empty())
            .peekable();
        if lines.peek().is_none() {
            return line("");
        }
        lines.try_for_each(|text| line(&printable(text)))
    }

    fn add(&mut self, name: &str, value: &str) {
        if name == "message" {
            value.clone_into(&mut self.message);
            return;
        }
        let name = self.paint("2", &format!("{name}="));
        let bare = |each: char| !each.is_whitespace() && !each.is_control() && each != '"';
        // Writing to a String can't fail.
        let _ = match !value.is_empty() && value.chars().all(bare) {
            true => write!(self.fields, " {name}{value}"),
            false => write!(self.fields, " {name}{value:?}"),
        };
    }

    /// In a colour of a terminal (ECMA-48: SGR), where there is one.
    fn paint(&self, code: &str, text: &str) -> String {
        match self.ansi {
            true => format!("\x1b[{code}m{text}\x1b[0m"),
            false => text.to_owned(),
        }
    }
}

/// The head of a line for the journal: a level of syslog(3).
fn priority(level: Level) -> &'static str {
    match level {
        Level::ERROR => "<3>",
        Level::WARN => "<4>",
        Level::INFO => "<6>",
        Level::DEBUG | Level::TRACE => "<7>",
    }
}

impl Visit for Record {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field.name(), value);
    }

    /// Numbers and what has `%` come here too.
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.add(field.name(), &format!("{value:?}"));
    }
}

fn printable(line: &str) -> String {
    let mut shown = String::with_capacity(line.len());
    for each in line.chars() {
        match each.is_control() && each != '\t' {
            true => shown.extend(each.escape_default()),
            false => shown.push(each),
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    /// What `log` logs, without times.
    fn logged(log: impl FnOnce()) -> Vec<String> {
        let without_time = |line: String| line.split_once(' ').unwrap().1.to_owned();
        let lines = written(Text { journal: false }, log);
        lines.into_iter().map(without_time).collect()
    }

    fn written(format: Text, log: impl FnOnce()) -> Vec<String> {
        #[derive(Clone, Default)]
        struct Lines(Arc<Mutex<Vec<u8>>>);
        impl std::io::Write for Lines {
            fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
                self.0.lock().unwrap().write(bytes)
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        let lines = Lines::default();
        let writer = lines.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .event_format(format)
            .with_writer(move || writer.clone())
            .finish();
        tracing::subscriber::with_default(subscriber, log);
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        assert!(text.is_empty() || text.ends_with('\n'), "{text}");
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn a_value_has_one_form_whatever_its_type() {
        let (text, none) = ("web", None::<u64>);
        let lines = logged(|| {
            tracing::info!(service = text, other = %text, number = 4, none, on = true, "listening");
            tracing::warn!(service = "two words", error = %"no (os error 2)", empty = "", quoted = "a\"b");
        });
        assert_eq!(
            lines,
            [
                " INFO listening service=web other=web number=4 on=true",
                r#" WARN service="two words" error="no (os error 2)" empty="" quoted="a\"b""#,
            ]
        );
    }

    #[test]
    fn each_line_of_a_message_is_a_line_with_all_fields() {
        let output = "line 7 is bad\n\nline 9 too\n";
        let lines = logged(|| tracing::error!(service = "web", step = "check", "{output}"));
        assert_eq!(
            lines,
            [
                "ERROR line 7 is bad service=web step=check",
                "ERROR line 9 too service=web step=check",
            ]
        );
    }

    #[test]
    fn the_journal_gets_priorities_and_no_times() {
        let lines = written(Text { journal: true }, || {
            tracing::error!(step = "check", "line 7\nline 9");
            tracing::warn!("late");
            tracing::info!(port = 80);
        });
        let expected = [
            "<3>line 7 step=check",
            "<3>line 9 step=check",
            "<4>late",
            "<6>port=80",
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn a_terminal_obeys_no_backend() {
        let lines = logged(|| tracing::info!(line = "\x1b[2J", "a\x1b[2J\rb\tc"));
        assert_eq!(lines, [" INFO a\\u{1b}[2J\\rb\tc line=\"\\u{1b}[2J\""]);
    }

    #[test]
    fn a_terminal_gets_colours() {
        let mut record = Record {
            ansi: true,
            ..Record::default()
        };
        record.add("message", "on");
        record.add("port", "80");
        let mut text = String::new();
        let at = UNIX_EPOCH + Duration::from_secs(1_767_225_600);
        let head = record.head(at, Level::WARN);
        record.write(&mut text, &head).unwrap();
        assert_eq!(
            text,
            "\x1b[2m2026-01-01T00:00:00.000000Z\x1b[0m \x1b[33m WARN\x1b[0m on \x1b[2mport=\x1b[0m80\n"
        );
    }
}
