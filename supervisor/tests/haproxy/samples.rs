//! Plans and copies of configurations that marathon-lb wrote, beside the configurations as `NAME.plan`.
//!
//! `SYNGATE_WRITE_PLANS=1` in the environment writes them anew.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use syngate_supervisor::haproxy::Plan;

use crate::world::{Given, copy, file};

/// Name and text of each.
pub(crate) fn samples() -> Vec<(PathBuf, String)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/haproxy/samples");
    let entries = directory.read_dir().unwrap().map(|it| it.unwrap().path());
    let mut samples: Vec<_> = entries
        .filter(|it| it.extension().is_some_and(|it| it == "cfg"))
        .map(|it| (it.clone(), std::fs::read_to_string(it).unwrap()))
        .collect();
    samples.sort();
    assert_eq!(samples.len(), 7);
    samples
}

fn shown(text: &str, plan: &Plan) -> String {
    let mut shown = String::new();
    let copy = copy(plan);
    for warning in plan.warnings() {
        writeln!(shown, "warning {warning}").unwrap();
    }
    for listener in plan.listeners() {
        let (name, address, own) = (&listener.name, &listener.address, &listener.own);
        write!(shown, "listener {name} {address}").unwrap();
        for (word, value) in [
            ("backlog", own.backlog.map(|it| it.to_string())),
            ("v6only", own.v6only.map(|it| it.to_string())),
            ("interface", own.interface.clone()),
            ("mss", own.mss.map(|it| it.to_string())),
        ] {
            if let Some(value) = value {
                write!(shown, " {word}={value}").unwrap();
            }
        }
        let flags = [
            (own.fast_open, "fast_open"),
            (own.defer_accept, "defer_accept"),
            (listener.raw, "raw"),
        ];
        for (_, flag) in flags.iter().filter(|it| it.0) {
            write!(shown, " {flag}").unwrap();
        }
        shown.push('\n');
    }
    let privates: Vec<_> = plan.privates().collect();
    writeln!(shown, "privates {}", privates.join(" ")).unwrap();
    for path in plan.stats_sockets().flatten() {
        writeln!(shown, "stats socket {}", path.display()).unwrap();
    }
    for (path, text) in &copy.files[1..] {
        writeln!(
            shown,
            "file {}\n{}",
            path.display(),
            String::from_utf8_lossy(text)
        )
        .unwrap();
    }
    let copied = String::from_utf8(copy.files[0].1.clone()).unwrap();
    assert_eq!(copied.lines().count(), text.lines().count());
    let lines = text.lines().zip(copied.lines()).enumerate();
    for (at, (old, new)) in lines.filter(|(_, (old, new))| old != new) {
        writeln!(shown, "{}\n- {old}\n+ {new}", at + 1).unwrap();
    }
    shown
}

#[test]
fn the_plans_of_all_samples_are_as_they_were() {
    for (path, text) in samples() {
        let name = path.file_name().unwrap().to_str().unwrap();
        let plan = Given::default().plan(vec![file(name, &text)]).unwrap();
        let shown = shown(&text, &plan);
        let snapshot = path.with_extension("plan");
        if std::env::var_os("SYNGATE_WRITE_PLANS").is_some() {
            std::fs::write(&snapshot, &shown).unwrap();
        }
        let wanted = std::fs::read_to_string(&snapshot).unwrap_or_default();
        assert_eq!(shown, wanted, "{name}");
    }
}

#[test]
fn the_untouched_samples_need_more_descriptors_than_most_machines_give() {
    let given = Given {
        descriptors: 20_000,
        ..Given::default()
    };
    for (path, text) in samples() {
        let error = given
            .plan(vec![file(path.to_str().unwrap(), &text)])
            .unwrap_err();
        assert!(
            error.why.contains("HAProxy needs at least 1000") && error.why.contains("20000"),
            "{error}"
        );
        assert!(
            text.lines()
                .nth(error.line - 1)
                .unwrap()
                .contains("maxconn 50000")
        );
    }
}

#[test]
fn a_long_configuration_takes_time_in_proportion() {
    let long = |frontends: usize| {
        let mut text = String::from("defaults\n mode http\n");
        for at in 0..frontends {
            writeln!(text, "frontend f{at}\n bind *:{}\n use_backend b{at}\nbackend b{at}\n server s 127.0.0.1:1\n", at + 1).unwrap();
        }
        text
    };
    let text = long(20_000);
    let start = std::time::Instant::now();
    let plan = Given::default().plan_text(&text).unwrap();
    assert_eq!(plan.listeners().len(), 20_000);
    // What grows with the square would take minutes.
    assert!(start.elapsed().as_secs() < 20, "{:?}", start.elapsed());
}
