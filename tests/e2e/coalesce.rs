//! Many requests at once: one run at a time, and nobody gets the result of a run that began before its call.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::common::backend::{self, Hop};
use crate::common::events::{Events, Step};
use crate::common::gate::{Gate, Setup};
use crate::common::load::{Load, Plan};
use crate::common::net::Net;
use crate::common::{http, wait_until};

#[test]
fn load_two_hundred_signals_in_a_second() {
    let Some(net) = Net::isolated() else { return };
    let gate = server(&net);
    let events = Events::follow(&gate);
    let load = Load::start(Plan::standing(gate.public()));
    load.wait_flowing();
    let start = Instant::now();
    for number in 1..=200_u32 {
        write_content(&gate, number);
        gate.signal(Signal::SIGHUP);
        thread::sleep(
            (start + number * Duration::from_millis(5)).saturating_duration_since(Instant::now()),
        );
    }
    let sent = start.elapsed();
    wait_until("the last content is active", || content(&gate) == 200);
    wait_until("the last run has ended", || {
        gate.status_json()["services"][0]["running"].is_null()
    });
    let report = load.stop();
    report.print("200 SIGHUPs");
    report.expect_standing();
    let starts = expect_one_at_a_time(&gate, &events.stop());
    let runs = gate.reloads("success");
    println!("200 SIGHUPs in {sent:?}: {runs} runs, {starts} starts");
    assert_eq!(runs, starts as f64);
    assert!((1.0..200.0).contains(&runs), "{runs} runs");
}

#[test]
fn load_twenty_reloads_at_once() {
    let Some(net) = Net::isolated() else { return };
    let gate = server(&net);
    let events = Events::follow(&gate);
    let load = Load::start(Plan::standing(gate.public()));
    load.wait_flowing();
    let last = Mutex::new(0);
    thread::scope(|scope| {
        for _ in 0..20 {
            scope.spawn(|| {
                let mine = {
                    let mut last = last.lock().expect("the number");
                    *last += 1;
                    write_content(&gate, *last);
                    *last
                };
                gate.reload();
                let active = content(&gate);
                assert!(active >= mine, "told that {mine} is active, found {active}");
            });
        }
    });
    assert_eq!(content(&gate), 20);
    let report = load.stop();
    report.print("20 reloads at once");
    report.expect_standing();
    let starts = expect_one_at_a_time(&gate, &events.stop());
    let runs = gate.reloads("success");
    println!("20 reloads at once: {runs} runs, {starts} starts");
    assert_eq!(runs, starts as f64);
    assert!((1.0..20.0).contains(&runs), "{runs} runs");
}

/// A server that notes in `journal` when another one is starting too, and serves what `content` holds at its start.
fn server(net: &Net) -> Gate {
    let setup = Setup::new(net).options(["--min-ready", "100ms", "--max-generations", "16"]);
    fs::write(setup.dir().join("content"), "0000").expect("the content");
    let option = |name: &str| format!("{name}={}", setup.dir().join(name).display());
    let options = [
        option("content"),
        option("starting"),
        option("journal"),
        "start=50".to_owned(),
    ];
    let command = backend::own(Hop::Socket, &options.each_ref().map(String::as_str));
    setup.backend(command).start()
}

/// In place and in one write: a reader sees the old number or the new one.
fn write_content(gate: &Gate, number: u32) {
    let file = OpenOptions::new()
        .write(true)
        .open(gate.dir().join("content"))
        .expect("the content");
    file.write_all_at(format!("{number:04}").as_bytes(), 0)
        .expect("the content");
    (&file).flush().expect("the content");
}

fn content(gate: &Gate) -> u32 {
    http::get(gate.public(), "/content")
        .expect("an answer")
        .text()
        .parse()
        .expect("a number")
}

/// Of all that started, how many. From a start to the flip, the settling included, no other one starts: the servers have
/// seen it themselves until they listened, and the gate's steps say so to the end.
#[track_caller]
fn expect_one_at_a_time(gate: &Gate, steps: &[Step]) -> usize {
    let journal = fs::read_to_string(gate.dir().join("journal")).expect("the journal");
    assert!(
        !journal.lines().any(|line| line.starts_with("overlap")),
        "two were starting at once"
    );
    let mut starts = 0;
    let mut starting = None;
    for step in steps {
        match step.step.as_str() {
            "starting" => {
                assert_eq!(starting, None, "when another one started: {steps:#?}");
                starting = step.generation;
                starts += 1;
            }
            "active" => assert_eq!(starting.take(), step.generation, "{steps:#?}"),
            "failed" => panic!("{steps:#?}"),
            _ => {}
        }
    }
    assert_eq!(starting, None, "it never became active: {steps:#?}");
    let started = journal.lines().filter(|line| line.starts_with("start "));
    assert_eq!(started.count(), starts + 1, "with the gate's own start");
    starts
}
