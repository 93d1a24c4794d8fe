//! Rendered text, compared whole.

use syngate_supervisor::protocol::{Failure, ListenerStatus, Phase};

use super::*;

const PLAIN: Paint = Paint(false);
const NOW: f64 = 1_000_000.0;

fn generation(number: u64, state: GenerationState) -> GenerationStatus {
    GenerationStatus {
        number,
        state,
        pid: Some(1300 + u32::try_from(number).unwrap()),
        age_seconds: 90.0,
        connections: 220,
        endpoints: vec!["127.83.4.1:20001".into()],
        waits_for: None,
        refused: None,
    }
}

fn web() -> ServiceStatus {
    let listener = |name: &str, address: &str, backlog, drops| ListenerStatus {
        name: name.into(),
        address: address.into(),
        backlog,
        drops,
    };
    ServiceStatus {
        name: "web".into(),
        listeners: vec![
            listener("http", "[::]:80", 0, 0),
            listener("tls", "0.0.0.0:443", 12, 3),
        ],
        active: Some(12),
        held: false,
        pending: 0,
        running: None,
        generations: vec![
            GenerationStatus {
                age_seconds: 86_400.0 * 3.0 + 7200.0,
                connections: 12,
                waits_for: Some("12 connections".into()),
                refused: None,
                ..generation(9, GenerationState::Draining)
            },
            generation(12, GenerationState::Active),
        ],
        last_reload: Some(Reload {
            generation: None,
            replaced: None,
            outcome: "success".into(),
            message: "generation 12 is active; generation 9 drains".into(),
            at: NOW - 90.0,
            seconds: 1.44,
            phases: [
                ("check", 0.31),
                ("start", 0.02),
                ("ready", 1.0),
                ("drain", 40.0),
            ]
            .map(|(phase, seconds)| Phase {
                phase: phase.into(),
                seconds,
            })
            .into(),
        }),
        reloads: vec![],
        activated: None,
        last_failure: None,
    }
}

fn gate(services: Vec<ServiceStatus>) -> Status {
    Status {
        at: 1.0,
        version: "0.1.0".into(),
        pid: 4711,
        uptime_seconds: 3725.0,
        metrics: Some("http://127.0.0.1:9464/metrics".into()),
        ready: true,
        not_ready: None,
        connections: 232,
        max_connections: 32_000,
        pending: 0,
        pending_max: 10_000,
        services,
    }
}

#[test]
fn a_gate_that_serves() {
    let expected = "\
syngate 0.1.0, pid 4711, up 1h 2m
ready
232 of 32000 connections, 0 of 10000 pending
metrics at http://127.0.0.1:9464/metrics

web: generation 12 is active
  listener  address      queue  drops
  http      [::]:80          0      0
  tls       0.0.0.0:443     12      3
  generation  state      pid     age  connections
           9  draining  1309   3d 2h           12  waits for 12 connections
          12  active    1312  1m 30s          220  127.83.4.1:20001
  last reload: success, 1m 30s ago, took 1.4 s (check 0.3 s, ready 1.0 s)
    generation 12 is active; generation 9 drains
";
    assert_eq!(text(&gate(vec![web()]), NOW, PLAIN), expected);
}

#[test]
fn a_gate_that_holds_after_a_failure() {
    let service = ServiceStatus {
        active: None,
        held: true,
        pending: 17,
        running: Some("retry in 3.2s".into()),
        generations: vec![],
        listeners: vec![],
        activated: Some(vec!["10.0.0.1:80".into(), "10.0.0.2:80".into()]),
        last_failure: None,
        last_reload: Some(Reload {
            generation: None,
            replaced: None,
            outcome: "start_failed".into(),
            message: "generation 13 ended with status 1 before it was ready, its last words: \x1b[31mcannot bind\x1b[0m to the address; nothing serves: connections are held".into(),
            at: NOW - 0.25,
            seconds: 0.06,
            phases: vec![],
        }),
        reloads: vec![],
        ..web()
    };
    let status = Status {
        ready: false,
        not_ready: Some("web has had no active generation for 16s".into()),
        metrics: None,
        ..gate(vec![service])
    };
    let expected = "\
syngate 0.1.0, pid 4711, up 1h 2m
not ready: web has had no active generation for 16s
232 of 32000 connections, 0 of 10000 pending

web: nothing serves, connections wait, held, 17 pending, retry in 3.2s
  activated: 10.0.0.1:80 10.0.0.2:80, until the file's backend changes
  listener  address  queue  drops
  last reload: start_failed, 0.2s ago, took 0.1 s
    generation 13 ended with status 1 before it was ready, its last words:
    [31mcannot bind [0m to the address; nothing serves: connections are held
";
    assert_eq!(text(&status, NOW, PLAIN), expected);
}

#[test]
fn what_a_successful_reload_doesnt_tell() {
    let mut service = web();
    service.generations[1].refused = Some("127.83.4.1:20001: Connection refused".into());
    let failure = |at| Failure {
        generation: 11,
        message: "generation 11 was killed by SIGSEGV; generation 12 serves".into(),
        at,
    };
    let of = |service: &ServiceStatus| text(&gate(vec![service.clone()]), NOW, PLAIN);
    assert!(of(&service).contains(
        "  generation 12 takes no connection: 127.83.4.1:20001: Connection refused;\n  connections wait\n"
    ));
    service.last_failure = Some(failure(NOW - 2.0));
    let says = "  last failure: generation 11, 2.0s ago\n    generation 11 was killed by SIGSEGV; generation 12 serves\n";
    assert!(of(&service).ends_with(says), "{}", of(&service));
    // The reload after it tells how it went on.
    service.last_failure = Some(failure(NOW - 1000.0));
    assert!(!of(&service).contains("last failure"));
}

#[test]
fn colours_change_no_text() {
    let status = gate(vec![web()]);
    let painted = text(&status, NOW, Paint(true));
    assert!(painted.contains("\x1b[32mactive\x1b[0m"));
    assert!(painted.contains("\x1b[33mdraining\x1b[0m"));
    let bare = ["\x1b[32m", "\x1b[33m", "\x1b[31m", "\x1b[0m"]
        .iter()
        .fold(painted, |text, code| text.replace(code, ""));
    assert_eq!(bare, text(&status, NOW, PLAIN));
}

#[test]
fn no_line_is_wider_than_a_terminal() {
    let mut service = web();
    service.generations[0].endpoints = vec!["unix:/run/syngate/".to_owned() + &"x".repeat(100)];
    service.generations[0].waits_for = None;
    let text = text(&gate(vec![service]), NOW, PLAIN);
    assert!(
        text.lines().all(|line| line.chars().count() <= COLUMNS),
        "{text}"
    );
    assert!(text.contains('…'));
}

#[test]
fn connections_stand_in_a_table() {
    let connection = |peer: &str, generation, age_seconds, bytes_in| Connection {
        listener: "http".into(),
        peer: peer.into(),
        generation,
        state: if generation.is_some() {
            "relaying"
        } else {
            "pending"
        }
        .into(),
        age_seconds,
        bytes_in,
        bytes_out: 1_234_567,
    };
    let list = [
        connection("127.0.0.1:40000", None, 0.3, 0),
        connection("[::1]:9", Some(12), 75.0, 999),
    ];
    let expected = "\
listener  client           generation  state        age   in   out
http      [::1]:9                  12  relaying  1m 15s  999  1.2M
http      127.0.0.1:40000           -  pending     0.3s    0  1.2M
";
    assert_eq!(connections(&list), expected);
    assert_eq!(connections(&[]), "no connections\n");
}

#[test]
fn ages_and_bytes_are_short() {
    let ages = [
        0.0,
        9.94,
        9.96,
        59.9,
        60.0,
        3599.0,
        3600.0,
        86_399.0,
        86_400.0 * 12.5,
    ];
    assert_eq!(
        ages.map(age).join("|"),
        "0.0s|9.9s|10s|1m 0s|1m 0s|59m 59s|1h 0m|23h 59m|12d 12h"
    );
    let counts = [
        0,
        999,
        1000,
        9949,
        9951,
        999_499,
        999_500,
        23_000_000,
        u64::MAX,
    ];
    assert_eq!(
        counts.map(bytes).join("|"),
        "0|999|1.0k|9.9k|10k|999k|1.0M|23M|18E"
    );
}
