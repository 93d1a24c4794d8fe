//! What is asked beside a reload, and how requests, holds and the end get on with each other, rule by rule.

use syngate_metrics::ReloadOutcome;

use super::ladder::{climb, flip, words};
use super::world::{MS, Owed, SECOND, World, activate, config, exited, reload};
use crate::config::{ServiceConfig, Strategy};
use crate::protocol::GenerationState;
use crate::rollout::{Event, Request, exit};

#[test]
fn a_failed_reload_is_tried_again_and_a_request_takes_its_place() {
    let mut world = World::serving(ServiceConfig {
        retry: true,
        ..config()
    });
    let caller = world.ask(reload());
    let number = climb(&mut world);
    world.crash(number);
    assert!(
        world.answer(caller).1.ends_with("; tried again in 1s"),
        "{:?}",
        world.answer(caller)
    );
    words(&mut world);
    world.wait(SECOND);
    assert_eq!(words(&mut world), ["retrying", "load"]);
    let number = climb(&mut world);
    words(&mut world);
    let next = world.ask(reload());
    assert_eq!(
        words(&mut world),
        [&format!("SIGTERM {number}"), "finished superseded", "load"]
    );
    world.settle();
    assert_eq!(world.answer(next).0, exit::DONE);
    assert_eq!(world.rollout.deadline(), None);
}

#[test]
fn retries_wait_longer_each_time_and_converge() {
    let mut world = World::serving(ServiceConfig {
        retry: true,
        ..config()
    });
    world.ask(reload());
    let mut delays = Vec::new();
    for _ in 0..8 {
        let number = climb(&mut world);
        world.crash(number);
        let at = world.rollout.deadline().expect("a retry is due");
        delays.push((at - world.now).as_secs());
        world.wait(at - world.now);
    }
    assert_eq!(delays, [1, 2, 4, 8, 16, 32, 60, 60]);
    world.settle();
    assert_eq!(
        world.finished.last().map(|(outcome, _)| *outcome),
        Some(ReloadOutcome::Success)
    );
}

#[test]
fn a_request_kills_the_check_of_a_retry() {
    let mut world = World::serving(ServiceConfig {
        retry: true,
        ..config()
    });
    world.ask(reload());
    let load = world.owed[0].clone();
    world.pay(&load, false);
    world.wait(SECOND);
    let load = world.owed[0].clone();
    world.pay(&load, true);
    words(&mut world);
    world.ask(reload());
    assert_eq!(
        words(&mut world)[..2],
        ["cancel check", "finished superseded"]
    );
}

#[test]
fn rollback_goes_back_while_the_old_one_is_kept() {
    let mut world = World::serving(ServiceConfig {
        keep_previous: 60 * SECOND,
        ..config()
    });
    world.ask(reload());
    flip(&mut world);
    world.wait(30 * SECOND);
    words(&mut world);
    let caller = world.ask(Request::Rollback);
    assert_eq!(words(&mut world), ["activate 1"]);
    world.wait(SECOND);
    assert_eq!(
        world.answer(caller),
        (exit::DONE, "generation 1 serves; generation 2 drains")
    );
    // And forth again.
    let caller = world.ask(Request::Rollback);
    world.wait(SECOND);
    assert_eq!(
        world.answer(caller),
        (exit::DONE, "generation 2 serves; generation 1 drains")
    );
}

/// Who wants to go back doesn't wait for a start that may take its time.
#[test]
fn rollback_takes_the_place_of_a_run_that_has_not_flipped() {
    let mut world = World::serving(ServiceConfig {
        keep_previous: 60 * SECOND,
        ..config()
    });
    world.ask(reload());
    flip(&mut world);
    world.wait(SECOND);
    let reload = world.ask(reload());
    let started = climb(&mut world);
    let caller = world.ask(Request::Rollback);
    assert_eq!(
        world.answer(reload),
        (
            exit::FAILED,
            "a new request took the place of the run; generation 2 serves"
        )
    );
    assert_eq!(world.rollout.active(), Some(1));
    assert!(world.owed.contains(&Owed::End(started)));
    world.wait(SECOND);
    assert_eq!(world.answer(caller).0, exit::DONE);
    world.settle();
}

#[test]
fn rollback_says_why_it_is_too_late() {
    let mut world = World::serving(config());
    let never = world.ask(Request::Rollback);
    world.ask(reload());
    flip(&mut world);
    let during = world.ask(Request::Rollback);
    world.wait(SECOND);
    assert_eq!(
        world.rollout.active(),
        Some(1),
        "what was asked for during min-ready isn't too late"
    );
    world.settle();
    let after = world.ask(Request::Rollback);
    assert_eq!(
        world.answer(never),
        (
            exit::FAILED,
            "rollback isn't possible: there is no previous generation; generation 1 serves"
        )
    );
    assert_eq!(world.answer(during).0, exit::DONE);
    assert_eq!(
        world.answer(after),
        (
            exit::FAILED,
            "rollback isn't possible: generation 2 has ended; generation 1 serves"
        )
    );
}

#[test]
fn activate_needs_no_process_and_no_check() {
    let mut world = World::serving(config());
    let caller = world.ask(activate(80));
    let load = world.owed[0].clone();
    world.pay(&load, true);
    assert_eq!(words(&mut world), ["load", "open"]);
    world.settle();
    assert_eq!(
        world.answer(caller),
        (exit::DONE, "generation 2 serves; generation 1 drains")
    );
    let next = world.ask(activate(81));
    words(&mut world);
    world.settle();
    assert_eq!(world.answer(next).0, exit::DONE);
    let words = words(&mut world);
    assert_eq!(
        words[words.len() - 3..],
        ["queue 2", "leases 2", "forget 2"],
        "no signal without a process"
    );
}

#[test]
fn a_newer_activate_takes_the_place_of_a_waiting_one() {
    let mut world = World::serving(config());
    world.ask(reload());
    let older = world.ask(activate(80));
    let newer = world.ask(activate(81));
    assert_eq!(
        world.answer(older),
        (
            exit::FAILED,
            "a newer activate took its place; generation 1 serves"
        )
    );
    world.settle();
    assert_eq!(world.answer(newer).0, exit::DONE);
}

#[test]
fn a_reload_while_held_moves_the_active_pointer_and_says_so() {
    let mut world = World::serving(config());
    let hold = world.ask(Request::Hold {
        timeout: 30 * SECOND,
        owned: false,
    });
    assert_eq!(words(&mut world), ["hold"]);
    world.pay(&Owed::Hold, true);
    assert_eq!(world.answer(hold).0, exit::DONE);
    let caller = world.ask(reload());
    flip(&mut world);
    world.wait(SECOND);
    assert_eq!(
        world.answer(caller),
        (
            exit::DONE,
            "generation 2 is active, and the service is held; generation 1 drains"
        )
    );
    let release = world.ask(Request::Release { when_ready: true });
    assert_eq!(world.unanswered(), [release]);
    world.pay(&Owed::Probe, true);
    assert_eq!(
        world.answer(release),
        (exit::DONE, "the backend answers; generation 2 serves")
    );
}

#[test]
fn a_hold_ends_with_its_time_or_its_owner() {
    let mut world = World::serving(config());
    let owned = world.ask(Request::Hold {
        timeout: 30 * SECOND,
        owned: true,
    });
    world.pay(&Owed::Hold, true);
    assert_eq!(world.unanswered(), [owned]);
    let other = world.ask(Request::Hold {
        timeout: 30 * SECOND,
        owned: false,
    });
    assert_eq!(world.answer(other).0, exit::FAILED);
    world.feed(Event::Gone(owned));
    assert!(!world.rollout.held());

    world.ask(Request::Hold {
        timeout: 30 * SECOND,
        owned: false,
    });
    words(&mut world);
    world.wait(30 * SECOND);
    assert_eq!(words(&mut world)[0], "release");
    assert!(!world.rollout.held());
}

#[test]
fn drained_means_that_every_older_generation_has_ended() {
    let mut world = World::serving(config());
    world.ask(reload());
    flip(&mut world);
    world.wait(SECOND);
    let caller = world.ask(Request::Reload {
        all: false,
        drained: true,
    });
    flip(&mut world);
    world.wait(SECOND);
    assert_eq!(world.unanswered(), [caller]);
    world.crash(1);
    assert_eq!(world.unanswered(), [caller]);
    world.crash(2);
    assert_eq!(
        world.answer(caller),
        (exit::DONE, "generation 3 serves; generation 2 drains")
    );
}

#[test]
fn a_reload_waits_for_room() {
    let mut world = World::serving(ServiceConfig {
        max_generations: 2,
        ..config()
    });
    world.ask(reload());
    flip(&mut world);
    world.wait(SECOND);
    let caller = world.ask(reload());
    assert_eq!(
        world.rollout.running().as_deref(),
        Some("waits for one of 2 generations to end")
    );
    assert!(!world.owed.iter().any(|owed| matches!(owed, Owed::Load(..))));
    world.crash(1);
    assert!(world.owed.iter().any(|owed| matches!(owed, Owed::Load(..))));
    world.settle();
    assert_eq!(world.answer(caller).0, exit::DONE);
}

#[test]
fn room_is_made_by_those_that_are_only_kept() {
    let keep_previous = 3600 * SECOND;
    let mut world = World::serving(ServiceConfig {
        max_generations: 3,
        keep_previous,
        ..config()
    });
    for _ in 0..2 {
        world.ask(reload());
        flip(&mut world);
        world.wait(SECOND);
    }
    words(&mut world);
    world.ask(reload());
    assert_eq!(
        words(&mut world),
        ["queue 1"],
        "generation 2 is the one to roll back to"
    );
}

/// A `replace` run that gave up has told the old one to go; that the next configuration overlaps doesn't change that.
#[test]
fn what_a_replace_run_has_begun_to_end_ends_under_another_strategy() {
    let mut world = World::serving(ServiceConfig {
        drain_timeout: None,
        ..config()
    });
    world.file.strategy = Strategy::Replace;
    world.ask(reload());
    let to_listeners = |world: &mut World| {
        for _ in 0..3 {
            let last = world.owed.last().cloned().expect("a run goes on");
            world.pay(&last, true);
        }
    };
    to_listeners(&mut world);
    assert_eq!(world.rollout.active(), None);
    world.file.strategy = Strategy::Overlap;
    world.ask(reload());
    world.wait(30 * SECOND);
    to_listeners(&mut world);
    words(&mut world);
    world.pay(&Owed::Queue(1), true);
    world.pay(&Owed::Leases(1), true);
    assert!(words(&mut world).contains(&"SIGTERM 1".to_owned()));
}

#[test]
fn a_shutdown_ends_starts_and_runs_and_lets_connections_end() {
    let mut world = World::serving(config());
    let caller = world.ask(reload());
    climb(&mut world);
    words(&mut world);
    world.feed(Event::Shutdown {
        until: Some(world.now + 6 * SECOND),
        grace: SECOND,
    });
    assert_eq!(
        words(&mut world),
        ["SIGTERM 2", &format!("answer {caller} 1")]
    );
    assert_eq!(
        world.rollout.active(),
        Some(1),
        "pending connections still need it"
    );
    world.feed(Event::Emptied);
    assert_eq!(words(&mut world), ["activate none", "queue 1"]);
    let late = world.ask(reload());
    assert_eq!(world.answer(late), (exit::FAILED, "the service shuts down"));
    world.wait(SECOND);
    assert_eq!(words(&mut world)[1..], ["kill 2"]);
    world.wait(5 * SECOND);
    assert_eq!(
        words(&mut world),
        [
            "leave queue 1",
            "SIGUSR1 1",
            "leases 1",
            "reset 1",
            "SIGTERM 1"
        ]
    );
    world.wait(SECOND);
    assert_eq!(words(&mut world), ["kill 1"]);
    world.feed(Event::Ended(1, exited(0)));
    world.feed(Event::Ended(2, exited(0)));
    assert!(world.rollout.ended_all());
}

#[test]
fn a_second_shutdown_is_at_once() {
    let mut world = World::serving(config());
    world.feed(Event::Shutdown {
        until: Some(world.now + 6 * SECOND),
        grace: SECOND,
    });
    world.feed(Event::Emptied);
    words(&mut world);
    world.feed(Event::ShutdownNow);
    let words = words(&mut world);
    assert!(words.contains(&"kill 1".to_owned()), "{words:?}");
    assert!(words.contains(&"reset 1".to_owned()), "{words:?}");
}

#[test]
fn a_crash_during_a_shutdown_is_not_healed() {
    let mut world = World::serving(config());
    world.feed(Event::Shutdown {
        until: None,
        grace: SECOND,
    });
    world.crash(1);
    assert!(world.rollout.ended_all());
    assert_eq!(world.rollout.deadline(), None);
}

#[test]
fn states_are_an_operators_words() {
    let mut world = World::serving(config());
    world.ask(reload());
    let number = climb(&mut world);
    let state = |world: &World| {
        let states: Vec<_> = world
            .rollout
            .generations()
            .map(|g| (g.state(), g.waits_for()))
            .collect();
        (states[0], states[1])
    };
    use GenerationState::{Active, Draining, Ready, Starting};
    assert_eq!(state(&world), ((Active, None), (Starting, None)));
    assert_eq!(world.rollout.running().as_deref(), Some("starting 2"));
    world.pay(&Owed::Start(number), true);
    assert_eq!(state(&world), ((Active, None), (Ready, None)));
    world.wait(100 * MS);
    assert_eq!(
        state(&world),
        ((Draining, Some("min-ready")), (Active, None))
    );
    assert_eq!(world.rollout.running().as_deref(), Some("min-ready 2"));
    world.wait(SECOND);
    assert_eq!(
        state(&world),
        ((Draining, Some("accept queue")), (Active, None))
    );
    assert_eq!(world.rollout.running(), None);
}
