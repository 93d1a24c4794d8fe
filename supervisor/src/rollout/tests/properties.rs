//! Random sequences of events. The invariants are asserted by the [`World`] at each step, and here at the end.

use std::time::Duration;

use proptest::prelude::*;
use proptest::sample::Index;

use super::world::{SECOND, World, activate, config};
use crate::config::{ServiceConfig, Strategy as Rollouts};
use crate::protocol::GenerationState;
use crate::rollout::{Event, Generation, Request};

#[derive(Clone, Debug)]
enum Op {
    Ask(Request),
    Gone(Index),
    Pay(Index, bool),
    Crash(Index),
    Wait(Duration),
    ToDeadline,
    /// The file says another strategy from now on.
    Change,
    Shutdown,
    Emptied,
    ShutdownNow,
}

fn request() -> impl Strategy<Value = Request> {
    let hold = (0..40u64, any::<bool>()).prop_map(|(s, owned)| Request::Hold {
        timeout: Duration::from_secs(s),
        owned,
    });
    prop_oneof![
        6 => (any::<bool>(), any::<bool>()).prop_map(|(all, drained)| Request::Reload { all, drained }),
        1 => (0..3u16).prop_map(activate),
        2 => Just(Request::Rollback),
        1 => hold,
        1 => any::<bool>().prop_map(|when_ready| Request::Release { when_ready }),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        20 => request().prop_map(Op::Ask),
        4 => any::<Index>().prop_map(Op::Gone),
        60 => (any::<Index>(), prop::bool::weighted(0.85)).prop_map(|(which, good)| Op::Pay(which, good)),
        10 => any::<Index>().prop_map(Op::Crash),
        10 => (0..3_000u64).prop_map(|ms| Op::Wait(Duration::from_millis(ms))),
        30 => Just(Op::ToDeadline),
        1 => Just(Op::Change),
        1 => Just(Op::Shutdown),
        1 => Just(Op::Emptied),
        1 => Just(Op::ShutdownNow),
    ]
}

fn any_config() -> impl Strategy<Value = ServiceConfig> {
    let times = (0..3_000u64, 0..3_000u64, 0..3_000u64, 0..3_000u64);
    let rest = (
        any::<bool>(),
        any::<bool>(),
        any::<bool>(),
        2..5usize,
        any::<bool>(),
    );
    (times, rest).prop_map(
        |((settle, min_ready, delay, keep), (overlap, retry, signal, most, bounded))| {
            let mut config = config();
            let ms = Duration::from_millis;
            config.ready_settle = ms(settle / 10);
            config.min_ready = ms(min_ready);
            config.drain_delay = ms(delay.saturating_sub(1_500));
            config.keep_previous = ms(keep.saturating_sub(1_500) * 10);
            config.strategy = if overlap {
                Rollouts::Overlap
            } else {
                Rollouts::Replace
            };
            config.retry = retry;
            config.drain_signal = config.drain_signal.filter(|_| signal);
            config.drain_timeout = config.drain_timeout.filter(|_| bounded);
            config.max_generations = most;
            config
        },
    )
}

fn apply(world: &mut World, op: Op) {
    match op {
        Op::Ask(request) => {
            world.ask(request);
        }
        Op::Gone(which) if !world.unanswered().is_empty() => {
            let caller = *which.get(&world.unanswered());
            world.feed(Event::Gone(caller));
        }
        Op::Pay(which, good) if !world.owed.is_empty() => {
            let owed = which.get(&world.owed).clone();
            world.pay(&owed, good);
        }
        Op::Crash(which) if !world.processes().is_empty() => {
            let number = *which.get(&world.processes());
            world.crash(number);
        }
        Op::Wait(time) => world.wait(time),
        Op::ToDeadline => {
            if let Some(at) = world.rollout.deadline() {
                world.wait(at.saturating_sub(world.now));
            }
        }
        Op::Change => {
            world.file.strategy = match world.file.strategy {
                Rollouts::Overlap => Rollouts::Replace,
                Rollouts::Replace => Rollouts::Overlap,
            };
        }
        Op::Shutdown => {
            let until = Some(world.now + 6 * SECOND);
            world.feed(Event::Shutdown {
                until,
                grace: SECOND,
            });
        }
        Op::Emptied if world.ending => world.feed(Event::Emptied),
        Op::ShutdownNow => world.feed(Event::ShutdownNow),
        Op::Gone(_) | Op::Pay(..) | Op::Crash(_) | Op::Emptied => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_invariants_hold(config in any_config(), ops in prop::collection::vec(op(), 1..120), ends: bool) {
        let mut world = World::new(config);
        world.feed(Event::Start);
        for op in ops {
            apply(&mut world, op);
        }
        // From now on the outside does what it is asked.
        if ends && !world.ending {
            world.feed(Event::Shutdown { until: Some(world.now + 6 * SECOND), grace: SECOND });
        }
        if world.ending {
            world.feed(Event::Emptied);
        }
        world.settle();
        prop_assert!(world.unanswered().is_empty(), "{:?}", world.unanswered());
        let states: Vec<_> = world.rollout.generations().map(Generation::state).collect();
        if world.ending {
            prop_assert!(world.rollout.ended_all(), "left: {:?}", states);
        } else {
            prop_assert_eq!(states, vec![GenerationState::Active]);
        }
    }
}
