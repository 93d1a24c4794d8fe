//! docs/control.md and the code say the same: paths, parameters, statuses, fields and words, in both directions.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use hyper::{Method, StatusCode};
use serde_json::{Value, json};
use syngate_metrics::{ConnectionState, Label, ReloadPhase};

use super::route::{Refusal, Route, route};
use crate::protocol::{
    Connection, Done, Failure, GenerationState, GenerationStatus, Line, ListenerStatus, Phase,
    Reload, ServiceStatus, Status, Step,
};

const PAGE: &str = include_str!("../../../docs/control.md");
const ROUTES: &str = include_str!("route.rs");

/// The rows of the page's table that begins with `head`, cell by cell. An escaped bar becomes a slash.
fn table(head: &str) -> Vec<Vec<String>> {
    let (_, rest) = PAGE.split_once(&format!("\n{head}\n")).expect(head);
    let rows = rest
        .lines()
        .skip(1)
        .take_while(|line| line.starts_with('|'));
    let cells = |row: &str| {
        let row = row.replace("\\|", "/");
        let cells = row.trim_matches('|').split('|');
        cells.map(|cell| cell.trim().to_owned()).collect()
    };
    rows.map(cells).collect()
}

/// What a cell has as code.
fn words(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

/// The literals of some Rust that are one word.
fn literals(code: &str) -> BTreeSet<&str> {
    let is_word =
        |text: &&str| !text.is_empty() && text.chars().all(|c| c.is_ascii_lowercase() || c == '_');
    code.split('"').skip(1).step_by(2).filter(is_word).collect()
}

/// Every state of a generation: another one doesn't compile before it stands here.
fn states() -> [GenerationState; 5] {
    use GenerationState::{Active, Draining, Failed, Ready, Starting};
    match Starting {
        Starting | Ready | Active | Draining | Failed => {}
    }
    [Starting, Ready, Active, Draining, Failed]
}

/// A status with everything that may be null, or without.
fn status(full: bool) -> Value {
    let text = || full.then(String::new);
    let generation = |state| GenerationStatus {
        number: 1,
        state,
        pid: full.then_some(1),
        age_seconds: 1.0,
        connections: 1,
        endpoints: vec![],
        waits_for: text(),
        refused: text(),
    };
    let reload = Reload {
        generation: full.then_some(1),
        replaced: full.then_some(1),
        outcome: String::new(),
        message: String::new(),
        at: 1.0,
        seconds: 1.0,
        phases: vec![Phase {
            phase: String::new(),
            seconds: 1.0,
        }],
    };
    let failure = Failure {
        generation: 1,
        message: String::new(),
        at: 1.0,
    };
    let service = ServiceStatus {
        name: String::new(),
        listeners: vec![ListenerStatus {
            name: String::new(),
            address: String::new(),
            backlog: 1,
            drops: 1,
        }],
        active: full.then_some(1),
        held: true,
        pending: 1,
        running: text(),
        generations: states().map(generation).into(),
        last_reload: full.then(|| reload.clone()),
        reloads: vec![reload],
        last_failure: full.then_some(failure),
        activated: full.then(Vec::new),
    };
    json!(Status {
        at: 1.0,
        version: String::new(),
        pid: 1,
        uptime_seconds: 1.0,
        metrics: text(),
        ready: true,
        not_ready: text(),
        connections: 1,
        max_connections: 1,
        pending: 1,
        pending_max: 1,
        services: vec![service],
    })
}

fn connection(full: bool) -> Value {
    json!(Connection {
        listener: String::new(),
        peer: String::new(),
        generation: full.then_some(1),
        state: String::new(),
        age_seconds: 1.0,
        bytes_in: 1,
        bytes_out: 1,
    })
}

/// A field's type, in the page's words.
fn kind(full: &Value, empty: &Value) -> String {
    let kind = match full {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "list",
        Value::Object(_) => "object",
    };
    let or_null = if empty.is_null() { " or null" } else { "" };
    format!("{kind}{or_null}")
}

const FIELDS: &str = "| field | type | meaning |";
const CONNECTION: &str = "Each connection, a line each of the answer to `connections`:";

/// The words of a label.
fn labels<L: Label>() -> Vec<String> {
    let words = L::ALL.iter().map(|label| label.as_str().to_owned());
    words.collect()
}

#[test]
fn the_fields_of_the_status_are_those_of_the_page() {
    let all = [status(true), status(false)];
    let connections = [connection(true), connection(false)];
    for (caption, [full, empty], place) in [
        ("The document:", &all, ""),
        ("Each service:", &all, "/services/0"),
        ("Each listener:", &all, "/services/0/listeners/0"),
        ("Each generation:", &all, "/services/0/generations/0"),
        ("Each reload:", &all, "/services/0/reloads/0"),
        (
            "Each phase of a reload:",
            &all,
            "/services/0/reloads/0/phases/0",
        ),
        ("The last failure:", &all, "/services/0/last_failure"),
        (CONNECTION, &connections, ""),
    ] {
        let full = full.pointer(place).expect("a value");
        let empty = empty.pointer(place).filter(|value| value.is_object());
        let empty = empty.unwrap_or(full);
        let fields = full.as_object().expect("an object").iter();
        let there: BTreeMap<String, String> = fields
            .map(|(name, value)| (name.clone(), kind(value, &empty[name])))
            .collect();
        let mut said = BTreeMap::new();
        for row in table(&format!("{caption}\n\n{FIELDS}")) {
            for name in words(&row[0]) {
                said.insert(name.to_owned(), row[1].clone());
            }
        }
        assert_eq!(there, said, "{caption}");
    }
}

#[test]
fn the_words_of_the_status_are_those_of_the_page() {
    let said = |caption: &str, field: &str| -> Vec<String> {
        let rows = table(&format!("{caption}\n\n{FIELDS}"));
        let row = rows.iter().find(|row| row[0] == format!("`{field}`"));
        let words = words(&row.expect(field)[2]).into_iter();
        // A metric's name is where they come from.
        let words = words.filter(|word| !word.starts_with("syngate_"));
        words.map(str::to_owned).collect()
    };
    assert_eq!(
        said("Each phase of a reload:", "phase"),
        labels::<ReloadPhase>()
    );
    assert_eq!(said(CONNECTION, "state"), labels::<ConnectionState>());
    let states = states().map(|state| json!(state).as_str().expect("a word").to_owned());
    assert_eq!(said("Each generation:", "state"), states);
}

#[test]
fn the_lines_are_those_of_the_page() {
    let lines = [
        Line::Step(Step {
            at: 1.0,
            elapsed_seconds: 1.0,
            service: String::new(),
            generation: None,
            step: String::new(),
            message: String::new(),
        }),
        Line::Done(Done {
            exit: 0,
            message: String::new(),
        }),
        Line::Lost { lines: 1 },
    ];
    // Another one doesn't compile before it stands above.
    match &lines[0] {
        Line::Step(_) | Line::Done(_) | Line::Lost { .. } => {}
    }
    let mut there = BTreeSet::new();
    for line in lines {
        let line = json!(line);
        let fields = line.as_object().expect("an object").keys();
        for field in fields.filter(|field| *field != "type") {
            there.insert((
                line["type"].as_str().expect("a word").to_owned(),
                field.clone(),
            ));
        }
    }
    let (mut said, mut kind) = (BTreeSet::new(), String::new());
    for row in table("| type | field | meaning |") {
        if let [word] = *words(&row[0]) {
            word.clone_into(&mut kind);
        }
        said.insert((kind.clone(), words(&row[1])[0].to_owned()));
    }
    assert_eq!(there, said);
}

/// Adds the words that `step` is called with, and that are chosen for it, in the code below `directory`.
fn steps(directory: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path
            .file_stem()
            .is_some_and(|name| name.to_string_lossy().ends_with("tests"))
        {
            continue;
        }
        if path.is_dir() {
            steps(&path, found);
            continue;
        }
        let code = fs::read_to_string(&path).expect("a file");
        for start in [".step(", "let step ="] {
            for rest in code.split(start).skip(1) {
                let statement = rest.split(';').next().unwrap_or_default();
                found.extend(literals(statement).into_iter().map(str::to_owned));
            }
        }
    }
}

#[test]
fn the_steps_are_those_of_the_page() {
    let mut there = BTreeSet::new();
    steps(
        &Path::new(env!("CARGO_MANIFEST_DIR")).join("src"),
        &mut there,
    );
    let rows = table("| `step` | what happens |");
    let said: BTreeSet<String> = rows
        .iter()
        .flat_map(|row| words(&row[0]))
        .map(str::to_owned)
        .collect();
    assert_eq!(there, said);
}

/// Asks with a query, and with what `activate` can't do without.
fn ask(request: &str, query: &str) -> Result<Route, Refusal> {
    let (method, path) = request.split_once(' ').expect("a method and a path");
    let method: Method = method.parse().expect("a method");
    let needed = path.ends_with("/activate") && !query.starts_with("backend=");
    let needed = if needed { "&backend=127.0.0.1:1" } else { "" };
    route(&method, path, Some(&format!("{query}{needed}")))
}

#[test]
fn the_paths_and_parameters_are_those_of_the_page() {
    let (mut said, mut said_of) = (BTreeSet::new(), BTreeSet::new());
    for row in table("| request | parameters | answer |") {
        let request = words(&row[0])[0].to_owned();
        for parameter in words(&row[1]) {
            let (name, values) = parameter.split_once('=').expect("a value");
            let values = values.replace("[LISTENER=]ADDR", "127.0.0.1:1");
            for value in values.replace('N', "1").split('/') {
                let query = format!("{name}={value}");
                let answer = ask(&request, &query);
                assert!(answer.is_ok(), "{request}?{query}: {answer:?}");
            }
            said_of.insert((request.clone(), name.to_owned()));
        }
        said.insert(request);
    }

    // Whatever the code knows is a word in it.
    let (mut there, mut there_of) = (BTreeSet::new(), BTreeSet::new());
    for word in literals(ROUTES) {
        for path in [format!("/v1/{word}"), format!("/v1/services/NAME/{word}")] {
            for method in ["GET", "POST"] {
                let request = format!("{method} {path}");
                let refused = ask(&request, "")
                    .err()
                    .map(|refusal| refusal.status.as_u16());
                if !matches!(refused, Some(404 | 405)) {
                    there.insert(request);
                }
            }
        }
    }
    for request in &there {
        for parameter in literals(ROUTES) {
            let refusal = ask(request, &format!("{parameter}=?")).expect_err("no value");
            if !refusal.message.ends_with("means nothing here") {
                there_of.insert((request.clone(), parameter.to_owned()));
            }
        }
    }
    assert_eq!(there, said);
    assert_eq!(there_of, said_of);
}

#[test]
fn the_statuses_are_those_of_the_page() {
    let code = [ROUTES, include_str!("../control.rs")].concat();
    let mut there: BTreeSet<u16> = (400..600)
        .filter(|status| {
            let status = StatusCode::from_u16(*status).expect("a status");
            let name = status.canonical_reason().unwrap_or("?").to_uppercase();
            code.contains(&format!("StatusCode::{}", name.replace(' ', "_")))
        })
        .collect();
    there.insert(431); // hyper's own
    let rows = table("| status | meaning |");
    let said = rows.iter().map(|row| row[0].parse().expect("a number"));
    assert_eq!(there, said.collect());
}
