//! The documents: every link leads somewhere, every page is linked, and what they name exists: series, exit codes, variables. Of the
//! manifests: what Kubernetes can't know. The pages that the binary writes, and docs/control.md, are checked where the code is.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use nix::sys::signal::Signal;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every file below `directory`.
fn files(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.push(path);
        }
    }
    found
}

/// Every page below `directory`.
fn pages(directory: &Path) -> Vec<PathBuf> {
    let mut pages = files(directory);
    pages.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    pages
}

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A page's lines outside of code.
fn prose(page: &Path) -> Vec<String> {
    let mut code = false;
    let mut lines = Vec::new();
    for line in read(page).lines() {
        if line.trim_start().starts_with("```") {
            code = !code;
        } else if !code {
            lines.push(line.to_owned());
        }
    }
    lines
}

/// Where a page's links lead that stay here: the file, and the heading's anchor.
fn links(page: &Path) -> Vec<(PathBuf, Option<String>)> {
    let directory = page.parent().expect("a directory");
    let mut found = Vec::new();
    for line in prose(page) {
        for rest in line.split("](").skip(1) {
            let target = rest.split(')').next().unwrap_or_default();
            if target.contains("://") {
                continue;
            }
            let (file, anchor) = match target.split_once('#') {
                Some((file, anchor)) => (file, Some(anchor.to_owned())),
                None => (target, None),
            };
            let file = if file.is_empty() {
                page.to_owned()
            } else {
                directory.join(file)
            };
            found.push((file, anchor));
        }
    }
    found
}

/// The anchor of a heading: small letters, no punctuation, `-` for a space.
fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = text
        .chars()
        .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[test]
fn every_link_leads_somewhere_and_every_page_is_linked() {
    let docs = root().join("docs");
    let mut all = pages(&docs);
    all.extend(["README.md", "CONTRIBUTING.md", "CHANGELOG.md"].map(|name| root().join(name)));
    let mut broken = Vec::new();
    for page in &all {
        for (file, wanted) in links(page) {
            let there = file.exists()
                && wanted.as_ref().is_none_or(|wanted| {
                    prose(&file)
                        .iter()
                        .any(|line| line.starts_with('#') && anchor(line) == *wanted)
                });
            if !there {
                broken.push(format!("{}: {} {wanted:?}", page.display(), file.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));

    let index = docs.join("README.md");
    let canonical = |path: &PathBuf| fs::canonicalize(path).expect("a page");
    let mut linked: BTreeSet<_> = links(&index)
        .iter()
        .map(|(file, _)| canonical(file))
        .collect();
    linked.insert(canonical(&index));
    let missing: Vec<_> = pages(&docs)
        .into_iter()
        .filter(|page| !linked.contains(&canonical(page)))
        .collect();
    assert!(
        missing.is_empty(),
        "docs/README.md doesn't link {missing:?}"
    );
}

/// For each series of a scrape its labels and their values.
type Series = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

/// What a gate's scrape has, as far as it is known before the first connection.
fn series() -> Series {
    let metrics = syngate_metrics::Metrics::new("1", 1);
    let service = metrics.service("web");
    let _listener = service.listener("http");
    service.set_generation_connections(&[(1, 0)]);
    let mut all = Series::new();
    for line in metrics
        .encode()
        .lines()
        .filter(|line| !line.starts_with('#'))
    {
        let (name, labels, _) = selector(line);
        let known = all.entry(name.to_owned()).or_default();
        for (label, value) in labels {
            known.entry(label).or_default().insert(value);
        }
    }
    all
}

/// A series' name, and its labels with their values, as they stand in a scrape or in a query; and what follows.
fn selector(text: &str) -> (&str, Vec<(String, String)>, &str) {
    let of_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let (name, rest) = text.split_at(text.find(|c| !of_name(c)).unwrap_or(text.len()));
    let Some(mut rest) = rest.strip_prefix('{') else {
        return (name, Vec::new(), rest);
    };
    let mut labels = Vec::new();
    while let Some((label, value)) = rest.split_once('"')
        && !label.contains('}')
        && let Some((value, after)) = value.split_once('"')
    {
        let label = label.trim_matches(|c| !of_name(c));
        labels.push((label.to_owned(), value.to_owned()));
        rest = after;
    }
    (name, labels, rest)
}

/// Alerts, dashboard and pages ask for nothing that isn't there.
#[test]
fn every_series_that_is_named_exists() {
    let all = series();
    let of_one_gate = [
        "job",
        "instance",
        "version",
        "generation",
        "service",
        "listener",
    ];
    let mut files = pages(&root().join("docs"));
    files.extend(
        [
            "README.md",
            "packaging/grafana/syngate.json",
            "packaging/prometheus/alerts.yml",
            "packaging/prometheus/alerts_test.yml",
        ]
        .map(|name| root().join(name)),
    );
    let (mut wrong, mut named) = (Vec::new(), 0);
    for file in &files {
        let text = read(file).replace("\\\"", "\"");
        for (at, _) in text.match_indices("syngate_") {
            let before = text[..at].chars().next_back().unwrap_or(' ');
            let (name, labels, rest) = selector(&text[at..]);
            // A part of another word, a pattern for grep, a name of a package in the log.
            let other = before.is_alphanumeric() || rest.starts_with(['(', '*', '=']);
            if other || ["syngate_", "syngate_gate", "syngate_supervisor"].contains(&name) {
                continue;
            }
            named += 1;
            let histogram = format!("{name}_bucket");
            let Some(known) = all.get(name).or_else(|| all.get(&histogram)) else {
                wrong.push(format!("{}: {name}", file.display()));
                continue;
            };
            for (label, values) in labels {
                let free = of_one_gate.contains(&&*label) || values.contains('$');
                let fits = |value: &str| known.get(&label).is_some_and(|all| all.contains(value));
                if !free && !values.split('|').all(fits) {
                    wrong.push(format!(
                        "{}: {name}{{{label}=\"{values}\"}}",
                        file.display()
                    ));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(named > 100, "{named} found: the search is wrong");
}

/// The cells of the table rows in a text, without the escapes.
fn rows(text: &str) -> impl Iterator<Item = Vec<&str>> {
    let rows = text.lines().filter_map(|line| line.strip_prefix('|'));
    rows.map(|row| row.split('|').map(str::trim).collect())
}

#[test]
fn the_exit_codes_are_those_of_the_page() {
    let code = read("supervisor/src/exit.rs");
    let constants = code
        .lines()
        .filter_map(|line| line.strip_prefix("pub const "));
    let mut there: BTreeSet<u8> = constants
        .map(|constant| {
            let (_, value) = constant.split_once(": u8 = ").expect("a code");
            value.trim_end_matches(';').parse().expect("a number")
        })
        .collect();
    // What abort(3) ends with.
    there.insert(128 + Signal::SIGABRT as u8);

    let page = read("docs/exit-codes.md");
    let (page, _) = page.split_once("\n## Signals").expect("the signals");
    let mut said: BTreeSet<u8> = rows(page).filter_map(|row| row[0].parse().ok()).collect();
    let prose = page.lines().filter(|line| !line.starts_with('|'));
    for line in prose {
        let numbers = line.split(|c: char| !c.is_ascii_digit());
        said.extend(numbers.filter_map(|number| number.parse::<u8>().ok()));
    }
    assert_eq!(there, said);

    for file in files(&root().join("src")) {
        for line in read(&file).lines() {
            let given = ["ExitCode::from(", "complain("].iter().filter_map(|call| {
                let (_, given) = line.split_once(call)?;
                given.chars().next()
            });
            let bare = given.filter(char::is_ascii_digit).count() > 0;
            assert!(!bare, "{}: a code without a name: {line}", file.display());
        }
    }
}

/// The words of a text that begin as the gate's variables do.
fn variables(text: &str) -> impl Iterator<Item = &str> {
    text.match_indices("SYNGATE_").map(|(at, _)| {
        let rest = &text[at..];
        let of_name = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
        &rest[..rest.find(|c| !of_name(c)).unwrap_or(rest.len())]
    })
}

/// The gate leaves a variable alone that it doesn't know, so a wrong one would say nothing.
#[test]
fn every_variable_that_is_named_exists() {
    let options = read("docs/reference/options.md");
    let keys = rows(&options).filter_map(|row| row.get(1)?.strip_prefix('`')?.strip_suffix('`'));
    let mut known: BTreeSet<String> = keys
        .filter(|key| *key != "command")
        .map(|key| format!("SYNGATE_{}", key.to_uppercase()))
        .collect();
    assert!(known.contains("SYNGATE_DRAIN_TIMEOUT"), "{known:?}");
    known.insert("SYNGATE_CONFIG".to_owned());

    let page = read("docs/configuration.md");
    let (_, told) = page
        .split_once("\n## What COMMAND is told")
        .expect("what it is told");
    let (told, _) = told.split_once("\n## ").expect("what follows");
    known.extend(
        rows(told)
            .flat_map(|row| variables(row[1]))
            .map(str::to_owned),
    );
    assert!(known.contains("SYNGATE_GENERATION"), "{known:?}");
    // Of one listener among several.
    let of_listener = [
        "SYNGATE_ADDR_",
        "SYNGATE_PORT_",
        "SYNGATE_SOCKET_",
        "SYNGATE_FD_",
    ];

    let mut all = files(&root().join("packaging"));
    all.extend(files(&root().join("docs")));
    all.extend(["Dockerfile", "README.md"].map(|name| root().join(name)));
    let (mut wrong, mut named) = (Vec::new(), 0);
    for file in &all {
        let text = read(file);
        for name in variables(&text).filter(|name| *name != "SYNGATE_") {
            named += 1;
            if !known.contains(name) && !of_listener.iter().any(|place| name.starts_with(place)) {
                wrong.push(format!("{}: {name}", file.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(named > 50, "{named} found: the search is wrong");
}

/// A gate that is killed before its time loses connections, and a sidecar that isn't one is never started beside it.
#[test]
fn the_manifests_give_the_gate_its_time_and_its_sidecar() {
    let (mut pods, mut sidecars) = (0, 0);
    for file in files(&root().join("packaging/kubernetes")) {
        let text = read(&file);
        let file = file.display();
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        let seconds = |name: &str| -> u64 {
            let name = format!("- name: {name}");
            let at = lines.iter().position(|line| *line == name);
            let value = at.and_then(|at| lines[at + 1].strip_prefix("value: "));
            let value = value.and_then(|value| value.strip_suffix('s')?.parse().ok());
            value.unwrap_or_else(|| panic!("{file}: no seconds after {name:?}"))
        };
        for line in &lines {
            if let Some(grace) = line.strip_prefix("terminationGracePeriodSeconds: ") {
                pods += 1;
                let grace: u64 = grace.parse().expect("seconds");
                let needed = seconds("SYNGATE_LAME_DUCK") + seconds("SYNGATE_SHUTDOWN_TIMEOUT") + 5;
                assert!(
                    grace >= needed,
                    "{file}: {grace} s, and {needed} s at least"
                );
            }
        }
        let Some((_, rest)) = text.split_once("\n      initContainers:\n") else {
            continue;
        };
        let (containers, _) = rest
            .split_once("\n      containers:\n")
            .expect("the others");
        let count = |start: &str| containers.lines().filter(|line| *line == start).count();
        let names = |line: &&str| line.starts_with("        - name: ");
        let of_init = containers.lines().filter(names).count();
        assert_eq!(
            count("          restartPolicy: Always"),
            of_init,
            "{file}: an init container that isn't a sidecar"
        );
        sidecars += of_init;
    }
    assert_eq!((pods, sidecars), (2, 1), "the search is wrong");
}
