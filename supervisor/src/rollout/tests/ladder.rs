//! The ladder and what follows a crash, rule by rule.

use std::time::Duration;

use syngate_metrics::ReloadOutcome;

use super::world::{Config, MS, Owed, SECOND, World, config, reload};
use crate::config::{ServiceConfig, Strategy};
use crate::rollout::{Action, End, Event, Request, exit};

/// Actions as short words, without the steps.
pub(super) fn words(world: &mut World) -> Vec<String> {
    let word = |action| match action {
        Action::Load(..) => Some("load".to_owned()),
        Action::Check(..) => Some("check".to_owned()),
        Action::CancelCheck => Some("cancel check".to_owned()),
        Action::Open(..) => Some("open".to_owned()),
        Action::Start {
            generation,
            heir_of: None,
            ..
        } => Some(format!("start {generation}")),
        Action::Start {
            generation,
            heir_of: Some(older),
            ..
        } => Some(format!("start {generation} heir of {older}")),
        Action::Activate(Some(number)) => Some(format!("activate {number}")),
        Action::Activate(None) => Some("activate none".to_owned()),
        Action::WatchQueue(number) => Some(format!("queue {number}")),
        Action::WatchLeases(number) => Some(format!("leases {number}")),
        Action::LeaveQueue(number) => Some(format!("leave queue {number}")),
        Action::Reset(number) => Some(format!("reset {number}")),
        Action::Signal(number, signal) => Some(format!("{signal} {number}")),
        Action::Kill(number) => Some(format!("kill {number}")),
        Action::Forget(number) => Some(format!("forget {number}")),
        Action::Hold => Some("hold".to_owned()),
        Action::Release => Some("release".to_owned()),
        Action::Probe => Some("probe".to_owned()),
        Action::Retrying => Some("retrying".to_owned()),
        Action::Restarting => Some("restarting".to_owned()),
        Action::Finished { outcome, .. } => Some(format!("finished {outcome}")),
        Action::Answer(caller, exit, _) => Some(format!("answer {caller} {exit}")),
        Action::Step { .. } => None,
    };
    world.take().into_iter().filter_map(word).collect()
}

/// Pays what the running reload needs until its generation starts.
pub(super) fn climb(world: &mut World) -> u64 {
    loop {
        let next = world
            .owed
            .iter()
            .find(|owed| matches!(owed, Owed::Load(..) | Owed::Check(..) | Owed::Open(_)));
        match next.cloned() {
            Some(owed) => world.pay(&owed, true),
            None => break,
        }
    }
    let start = world.owed.iter().find_map(|owed| match owed {
        Owed::Start(number) => Some(*number),
        _ => None,
    });
    start.expect("a generation starts")
}

/// Climbs to the flip.
pub(super) fn flip(world: &mut World) -> u64 {
    let number = climb(world);
    world.pay(&Owed::Start(number), true);
    world.wait(world.file.ready_settle);
    assert_eq!(world.rollout.active(), Some(number));
    number
}

pub(super) fn replace() -> ServiceConfig {
    ServiceConfig {
        strategy: Strategy::Replace,
        ..config()
    }
}

#[test]
fn a_reload_climbs_the_ladder_and_the_old_one_drains() {
    let mut world = World::serving(config());
    let caller = world.ask(reload());
    assert_eq!(words(&mut world), ["load"]);
    climb(&mut world);
    assert_eq!(words(&mut world), ["check", "open", "start 2"]);
    world.pay(&Owed::Start(2), true);
    assert_eq!(words(&mut world), Vec::<String>::new());
    world.wait(100 * MS);
    assert_eq!(words(&mut world), ["activate 2"]);
    world.wait(999 * MS);
    assert_eq!(
        words(&mut world),
        Vec::<String>::new(),
        "min-ready hasn't passed"
    );
    world.wait(MS);
    assert_eq!(
        words(&mut world),
        ["finished success", &format!("answer {caller} 0"), "queue 1"]
    );
    assert_eq!(
        world.answer(caller),
        (exit::DONE, "generation 2 serves; generation 1 drains")
    );
    world.pay(&Owed::Queue(1), true);
    assert_eq!(words(&mut world), ["SIGUSR1 1", "leases 1"]);
    world.pay(&Owed::Leases(1), true);
    assert_eq!(words(&mut world), ["SIGTERM 1"]);
    world.pay(&Owed::End(1), true);
    assert_eq!(words(&mut world), ["forget 1"]);
}

#[test]
fn a_drain_that_takes_too_long_is_reset_stopped_and_killed() {
    let mut world = World::serving(config());
    world.ask(reload());
    flip(&mut world);
    world.wait(SECOND);
    words(&mut world);
    world.wait(30 * SECOND);
    assert_eq!(
        words(&mut world),
        ["leave queue 1", "SIGUSR1 1", "leases 1"],
        "its queue never became empty"
    );
    world.wait(30 * SECOND);
    assert_eq!(words(&mut world), ["reset 1", "SIGTERM 1"]);
    world.wait(5 * SECOND);
    assert_eq!(words(&mut world), ["kill 1"]);
}

#[test]
fn without_a_drain_signal_the_timeout_runs_from_the_delay_on() {
    let mut world = World::serving(ServiceConfig {
        drain_signal: None,
        drain_delay: 2 * SECOND,
        ..config()
    });
    world.ask(reload());
    flip(&mut world);
    world.wait(SECOND);
    words(&mut world);
    world.wait(2 * SECOND);
    assert_eq!(words(&mut world), ["queue 1"]);
    world.wait(10 * SECOND);
    world.pay(&Owed::Queue(1), true);
    assert_eq!(words(&mut world), ["leases 1"]);
    world.wait(20 * SECOND);
    assert_eq!(words(&mut world), ["reset 1", "SIGTERM 1"]);
}

#[test]
fn callers_share_the_waiting_run_and_none_joins_a_running_one() {
    let mut world = World::serving(config());
    let first = world.ask(reload());
    climb(&mut world);
    let second = world.ask(reload());
    let third = world.ask(Request::Reload {
        all: true,
        drained: false,
    });
    flip(&mut world);
    world.wait(SECOND);
    assert_eq!(world.unanswered(), [second, third]);
    assert!(world.answers.contains_key(&first));
    world.settle();
    assert!(world.unanswered().is_empty());
    assert_eq!(world.finished.len(), 2);
    assert_eq!(world.rollout.active(), Some(3));
}

#[test]
fn each_failure_says_what_happened_and_what_serves() {
    type Fail = fn(&mut World);
    let cases: [(Fail, ReloadOutcome, &str); 6] = [
        (
            |world| {
                world.pay(
                    &Owed::Load(2, crate::rollout::Source::File { all: false }),
                    false,
                );
            },
            ReloadOutcome::CheckFailed,
            "reload failed: it says no; generation 1 serves",
        ),
        (
            |world| {
                climb(world);
                world.pay(&Owed::Start(2), false);
            },
            ReloadOutcome::NotReady,
            "reload failed: generation 2 isn't ready: connection refused; generation 1 serves",
        ),
        (
            |world| {
                climb(world);
                world.crash(2);
            },
            ReloadOutcome::StartFailed,
            "reload failed: generation 2 exited with status 1 before it was ready: no luck; generation 1 serves",
        ),
        (
            |world| {
                let number = climb(world);
                world.feed(Event::Ended(
                    number,
                    End::NotStarted("no such command".to_owned()),
                ));
            },
            ReloadOutcome::StartFailed,
            "reload failed: generation 2 can't be started: no such command; generation 1 serves",
        ),
        (
            |world| {
                climb(world);
                world.pay(&Owed::Start(2), true);
                world.wait(50 * MS);
                world.crash(2);
            },
            ReloadOutcome::StartFailed,
            "reload failed: generation 2 exited with status 1 after it was ready, before it was active: no luck; generation 1 serves",
        ),
        (
            |world| {
                flip(world);
                world.wait(500 * MS);
                world.crash(2);
            },
            ReloadOutcome::FlippedBack,
            "reload failed: generation 2 exited with status 1 within min-ready, and was flipped back: no luck; generation 1 serves",
        ),
    ];
    for (fail, outcome, message) in cases {
        let mut world = World::serving(config());
        let caller = world.ask(reload());
        fail(&mut world);
        assert_eq!(world.answer(caller), (exit::FAILED, message));
        assert_eq!(world.finished, [(outcome, message.to_owned())]);
        world.settle();
        assert_eq!(world.rollout.active(), Some(1));
        // The next one works.
        let next = world.ask(reload());
        world.settle();
        assert_eq!(world.answer(next).0, exit::DONE);
    }
}

#[test]
fn a_port_that_cannot_be_had_ends_the_reload() {
    let mut world = World::serving(config());
    let caller = world.ask(reload());
    let load = world.owed[0].clone();
    world.pay(&load, true);
    let Owed::Check(run, Config(checked)) = world.owed[0].clone() else {
        panic!("no check")
    };
    world.pay(&Owed::Check(run, Config(checked)), true);
    world.pay(&Owed::Open(run), false);
    assert_eq!(
        world.answer(caller),
        (
            exit::FAILED,
            "reload failed: it says no; generation 1 serves"
        )
    );
    assert_eq!(world.finished[0].0, ReloadOutcome::ListenFailed);
}

#[test]
fn a_crash_is_restarted_at_once_and_the_heir_takes_over() {
    let mut world = World::serving(config());
    world.wait(10 * SECOND);
    words(&mut world);
    world.crash(1);
    assert_eq!(
        words(&mut world),
        [
            "activate none",
            "restarting",
            "start 2 heir of 1",
            "forget 1"
        ]
    );
    world.settle();
    assert_eq!(words(&mut world), ["activate 2"]);
}

#[test]
fn the_delay_doubles_for_those_that_die_young_and_is_forgotten_after() {
    let mut world = World::serving(config());
    world.wait(10 * SECOND);
    let mut delays = Vec::new();
    for _ in 0..10 {
        let number = *world.processes().last().expect("one lives");
        world.crash(number);
        delays.push(
            world
                .rollout
                .deadline()
                .map_or(Duration::ZERO, |at| at - world.now)
                .as_millis(),
        );
        world.wait(10 * SECOND);
    }
    assert_eq!(
        delays,
        [0, 100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]
    );
    world.settle();
    world.wait(10 * SECOND);
    let number = world.rollout.active().expect("one is active");
    world.crash(number);
    assert_eq!(
        world.owed,
        [Owed::Start(number + 1)],
        "one that lived long is restarted at once"
    );
}

#[test]
fn a_run_waits_for_a_restart_and_replaces_it() {
    let mut world = World::serving(config());
    world.wait(10 * SECOND);
    world.crash(1);
    let caller = world.ask(reload());
    let load = world.owed[1].clone();
    world.pay(&load, true);
    let check = world.owed[1].clone();
    world.pay(&check, true);
    let open = world.owed[1].clone();
    world.pay(&open, true);
    assert_eq!(world.owed, [Owed::Start(2)], "one starts at a time");
    world.settle();
    assert_eq!(world.answer(caller).0, exit::DONE);
    assert_eq!(world.rollout.active(), Some(3));
}

#[test]
fn a_crash_while_a_reload_starts_is_healed_by_the_reload() {
    let mut world = World::serving(config());
    world.wait(10 * SECOND);
    let caller = world.ask(reload());
    climb(&mut world);
    world.crash(1);
    assert_eq!(world.owed, [Owed::Start(2)]);
    words(&mut world);
    world.settle();
    assert_eq!(
        words(&mut world)[..2],
        ["activate 2", "forget 1"],
        "then its leftovers have a place to go"
    );
    assert_eq!(world.answer(caller).0, exit::DONE);
}

#[test]
fn a_crash_while_a_reload_fails_brings_the_old_configuration_back() {
    let mut world = World::serving(config());
    world.wait(10 * SECOND);
    let caller = world.ask(reload());
    climb(&mut world);
    world.crash(1);
    world.crash(2);
    assert_eq!(world.answer(caller).0, exit::NOTHING_SERVES);
    assert_eq!(world.owed, [Owed::Start(3)]);
    assert!(std::sync::Arc::ptr_eq(
        &world.configs[&3],
        &world.configs[&1]
    ));
}

#[test]
fn a_first_start_that_fails_is_tried_again_while_connections_are_held() {
    let mut world = World::new(config());
    world.feed(Event::Start);
    world.crash(1);
    assert_eq!(world.finished[0].0, ReloadOutcome::StartFailed);
    assert_eq!(
        world.finished[0].1,
        "start failed: generation 1 exited with status 1 before it was ready: no luck; \
         nothing serves: each connection waits up to 30s for a start that succeeds"
    );
    assert_eq!(world.owed, []);
    world.wait(100 * MS);
    assert_eq!(world.owed, [Owed::Start(2)]);
    world.settle();
    assert_eq!(world.rollout.active(), Some(2));
}

#[test]
fn replace_stops_the_old_one_before_the_new_one_starts() {
    let mut world = World::serving(replace());
    let caller = world.ask(reload());
    let (load, check) = (world.owed[0].clone(), Owed::Open(2));
    world.pay(&load, true);
    let owed = world.owed[0].clone();
    world.pay(&owed, true);
    world.pay(&check, true);
    assert_eq!(
        words(&mut world),
        ["load", "check", "open", "activate none", "queue 1"]
    );
    world.pay(&Owed::Queue(1), true);
    world.pay(&Owed::Leases(1), true);
    world.pay(&Owed::End(1), true);
    assert_eq!(
        words(&mut world),
        ["SIGUSR1 1", "leases 1", "SIGTERM 1", "forget 1", "start 2"]
    );
    world.settle();
    assert_eq!(world.answer(caller), (exit::DONE, "generation 2 serves"));
}

#[test]
fn replace_tries_again_until_pending_timeout_and_goes_on_after() {
    let mut world = World::serving(replace());
    let caller = world.ask(reload());
    while !world.owed.contains(&Owed::Start(2)) {
        let owed = world.owed[0].clone();
        world.pay(&owed, true);
    }
    let mut number = 2;
    while world.unanswered() == [caller] {
        if world.owed.contains(&Owed::Start(number)) {
            world.crash(number);
            number += 1;
        }
        let at = world.rollout.deadline().expect("something is due");
        world.wait(at - world.now);
    }
    assert!(number > 5, "{number} starts");
    let (code, message) = world.answer(caller);
    assert_eq!(code, exit::NOTHING_SERVES);
    assert!(
        message.contains("exited with status 1 before it was ready: no luck"),
        "{message}"
    );
    world.settle();
    assert!(world.rollout.active().is_some());
}
