//! The pages of docs/reference: options, commands, metrics.
//!
//! Invariant: that directory holds what is written here, and nothing else; a test compares.

use std::fs;
use std::io;
use std::path::Path;

use clap::{Arg, Args, Command};
use syngate_metrics::description::{self, Description};
use syngate_metrics::{
    AcceptErrno, CloseReason, ConnectionState, DispatchResult, GenerationState, Label,
    PendingOutcome, ReloadOutcome, ReloadPhase,
};

use super::{make, visible};
use crate::cli::options::{ProcessOptions, RunArgs, ServiceOptions};
use crate::config::layer;

/// What each page begins with.
const NOTE: &str =
    "<!-- Written by `syngate generate reference docs/reference`; a test compares. -->\n\n";

const OPTIONS: &str = "\
# Options of `run` and `check`

Each option is a flag, a key of the file by the name in the second column, and a variable: `SYNGATE_` and the key in capitals.
[Configuration](../configuration.md) says how the three go together, and how values are written.
";

const COMMANDS: &str = "\
# Commands

All but `run`, `check` and `demo` ask a running gate, over its [control socket](../control.md).
[Exit codes](../exit-codes.md) are one list for all.
";

const METRICS: &str = "\
# Metrics

At `/metrics` of the metrics address, in the Prometheus text format. Every series whose labels are known at the start is there from
the start, at zero; no counter falls while its service is there. [Monitoring](../monitoring.md) has a dashboard and alerts.
";

const NO_WORDS: &str = "
`direction` is `in` (client to backend) or `out`; `generation` is the number of one that lives. Histograms have buckets from 1 ms to
60 s, that of reloads from 10 ms to an hour.
";

/// Writes every page into `dir`.
pub(super) fn write(dir: &Path) -> io::Result<()> {
    make(dir)?;
    pages()
        .into_iter()
        .try_for_each(|(name, text)| fs::write(dir.join(name), text))
}

/// Each page's name and text.
fn pages() -> [(&'static str, String); 3] {
    [
        ("commands.md", commands()),
        ("metrics.md", metrics()),
        ("options.md", options()),
    ]
}

fn options() -> String {
    let all = RunArgs::augment_args(Command::new("syngate"));
    let config = all.get_arguments().filter(|arg| arg.get_id() == "config");
    let (process, service) = (
        layer::options::<ProcessOptions>(),
        layer::options::<ServiceOptions>(),
    );
    let head = ["Flag", "Key", "Default", "Meaning"];
    let row = |arg: &Arg, key: String| {
        let (default, meaning) = meaning(arg);
        [code(&flag(arg)), key, default, meaning]
    };
    let keyed = |arg: &Arg| row(arg, code(arg.get_id().as_str()));
    [
        format!("{NOTE}{OPTIONS}"),
        format!(
            "## The file\n\n{}",
            table(head, config.map(|arg| row(arg, String::new())))
        ),
        format!(
            "## The gate\n\n{}",
            table(head, process.get_arguments().map(keyed))
        ),
        format!(
            "## A service\n\n{}",
            table(head, service.get_arguments().map(keyed))
        ),
    ]
    .join("\n")
}

fn commands() -> String {
    let mut root = visible();
    root.build();
    let mut sections = vec![format!("{NOTE}{COMMANDS}")];
    for verb in root.get_subcommands() {
        let usage = verb.clone().render_usage().to_string();
        let usage = usage.trim_start_matches("Usage: ").trim_end();
        let about = verb
            .get_about()
            .map(ToString::to_string)
            .unwrap_or_default();
        let mut section = format!("## {}\n\n```\n{usage}\n```\n\n{about}.\n", verb.get_name());
        let long = verb
            .get_long_about()
            .map(ToString::to_string)
            .unwrap_or_default();
        if let Some((_, more)) = long.split_once("\n\n") {
            section += &format!("\n{more}\n");
        }
        let own: Vec<&Arg> = verb
            .get_arguments()
            .filter(|arg| arg.get_id() != "help")
            .collect();
        if own.iter().any(|arg| arg.get_id() == "config") {
            section += "\nIts options are [a page of their own](options.md).\n";
        } else if !own.is_empty() {
            let rows = own.into_iter().map(|arg| {
                let (default, meaning) = meaning(arg);
                [code(&flag(arg)), default, meaning]
            });
            section += &format!("\n{}", table(["Argument", "Default", "Meaning"], rows));
        }
        sections.push(section);
    }
    sections.join("\n")
}

fn metrics() -> String {
    let families = |all: Vec<Description>| {
        let row = |one: Description| {
            let labels: Vec<String> = one.labels.iter().map(|label| code(label)).collect();
            [
                code(&one.name),
                one.kind.to_owned(),
                labels.join(", "),
                one.help,
            ]
        };
        table(
            ["Series", "Type", "Labels", "Meaning"],
            all.into_iter().map(row),
        )
    };
    [
        format!("{NOTE}{METRICS}"),
        format!(
            "## Of a service\n\n{}{NO_WORDS}",
            families(description::of_a_service())
        ),
        format!(
            "## Of the process\n\n{}",
            families(description::of_the_process())
        ),
        "## Values of labels\n".to_owned(),
        values::<ConnectionState>("state", "connections_open"),
        values::<CloseReason>("reason", "connections_closed_total"),
        values::<AcceptErrno>("errno", "accept_errors_total"),
        values::<PendingOutcome>("outcome", "pending_outcomes_total"),
        values::<DispatchResult>("result", "dispatch_attempts_total"),
        values::<GenerationState>("state", "generations"),
        values::<ReloadOutcome>("outcome", "reloads_total"),
        values::<ReloadPhase>("phase", "reload_duration_seconds"),
    ]
    .join("\n")
}

/// The words of a label.
fn values<L: Label>(label: &str, family: &str) -> String {
    let rows = L::ALL
        .iter()
        .map(|value| [code(value.as_str()), value.meaning().to_owned()]);
    format!(
        "### `{label}` of `syngate_{family}`\n\n{}",
        table(["Value", "Meaning"], rows)
    )
}

/// How an option is written on the command line.
fn flag(arg: &Arg) -> String {
    let value = value(arg);
    match arg.get_long() {
        None if arg.is_last_set() => format!("-- {value} [ARG...]"),
        None => value,
        Some(long) if value.is_empty() => format!("--{long}"),
        Some(long) if arg.is_require_equals_set() => format!("--{long}[={value}]"),
        Some(long) => format!("--{long} {value}"),
    }
}

/// What stands for an option's value: its words, if `--help` shows them, else its name.
fn value(arg: &Arg) -> String {
    if !arg.get_action().takes_values() {
        return String::new();
    }
    let words: Vec<String> = arg
        .get_possible_values()
        .iter()
        .map(|word| word.get_name().to_owned())
        .collect();
    if !words.is_empty() && !arg.is_hide_possible_values_set() {
        return words.join("|");
    }
    let names = arg.get_value_names().unwrap_or_default();
    names.first().map(ToString::to_string).unwrap_or_default()
}

/// An option's default and its help. A default that depends stands at the help's end, in brackets.
fn meaning(arg: &Arg) -> (String, String) {
    let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    let fixed = arg
        .get_default_values()
        .first()
        .filter(|_| arg.get_action().takes_values());
    let fixed = fixed.map(|value| value.to_string_lossy().into_owned());
    let bracket = help
        .strip_suffix(']')
        .and_then(|help| help.rsplit_once(" ["));
    let depends = |note: &str| note.starts_with("default: ") || note.starts_with("HAProxy: ");
    let (meaning, note) = match bracket {
        Some((meaning, note)) if depends(note) => (
            meaning,
            Some(note.trim_start_matches("default: ").to_owned()),
        ),
        _ => (help.as_str(), None),
    };
    let default: Vec<String> = fixed.into_iter().chain(note).collect();
    (default.join("; "), meaning.to_owned())
}

fn code(text: &str) -> String {
    format!("`{text}`")
}

/// A table of Markdown, in which a bar has to be escaped.
fn table<const N: usize>(head: [&str; N], rows: impl Iterator<Item = [String; N]>) -> String {
    let line = |cells: [String; N]| {
        let cells = cells.map(|cell| cell.replace('|', "\\|"));
        format!("| {} |\n", cells.join(" | "))
    };
    let mut text = line(head.map(str::to_owned)) + "|" + &" --- |".repeat(N) + "\n";
    text.extend(rows.map(line));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_in_docs_is_what_the_code_says() {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/reference");
        for (name, text) in pages() {
            let there = fs::read_to_string(docs.join(name)).unwrap_or_default();
            let first = there
                .lines()
                .zip(text.lines())
                .find(|(there, text)| there != text);
            assert!(
                there == text,
                "docs/reference/{name} differs, first in {first:?}: run `cargo run -- generate reference docs/reference`"
            );
        }
        let mut names: Vec<_> = fs::read_dir(&docs)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(names, pages().map(|(name, _)| name));
    }

    #[test]
    fn a_default_is_what_is_fixed_and_what_depends() {
        let arg = |help: &'static str| Arg::new("x").long("x").value_name("X").help(help);
        let plain = |help, default: &str, rest: &str| {
            assert_eq!(meaning(&arg(help)), (default.to_owned(), rest.to_owned()));
        };
        plain(
            "Bound [default: 30s; replace: 5s]",
            "30s; replace: 5s",
            "Bound",
        );
        plain("In [services.NAME]", "", "In [services.NAME]");
        let both = arg("Ends it [HAProxy: SIGUSR1]").default_value("SIGTERM");
        let default = "SIGTERM; HAProxy: SIGUSR1".to_owned();
        assert_eq!(meaning(&both), (default, "Ends it".to_owned()));
    }
}
