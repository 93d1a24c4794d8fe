//! The last runs of a service, and what took how long in each.
//!
//! Invariant: a phase belongs to the run that goes on when it ends, but a drain, which outlives its run: it belongs to the run that
//! replaced the generation. What a restart takes belongs to none.

use std::collections::VecDeque;
use std::time::Duration;

use syngate_metrics::{Label, ReloadOutcome, ReloadPhase};

use super::context::wall_clock;
use crate::protocol::{Phase, Reload};

/// Runs that are remembered.
const KEPT: usize = 10;

#[derive(Debug, Default)]
pub(super) struct History {
    /// Oldest first.
    ended: VecDeque<Reload>,
    /// What is known of the run that goes on.
    now: Begun,
}

#[derive(Debug, Default)]
struct Begun {
    generation: Option<u64>,
    replaced: Option<u64>,
    phases: Vec<Phase>,
}

fn phase(phase: ReloadPhase, time: Duration) -> Phase {
    Phase {
        phase: phase.as_str().to_owned(),
        seconds: time.as_secs_f64(),
    }
}

impl History {
    /// The run that goes on starts this generation.
    pub(super) fn starts(&mut self, generation: u64) {
        self.now.generation = Some(generation);
    }

    /// In the run that goes on this generation gets no new connections any more.
    pub(super) fn replaces(&mut self, generation: u64) {
        self.now.replaced = Some(generation);
    }

    /// In the run that goes on this generation gets the new connections: again, after a flip back.
    pub(super) fn keeps(&mut self, generation: u64) {
        self.now.replaced = self.now.replaced.filter(|replaced| *replaced != generation);
    }

    /// A phase of the run that goes on has ended.
    pub(super) fn took(&mut self, which: ReloadPhase, time: Duration) {
        self.now.phases.push(phase(which, time));
    }

    /// A generation that was replaced has ended.
    pub(super) fn drained(&mut self, generation: u64, time: Duration) {
        let drain = phase(ReloadPhase::Drain, time);
        if self.now.replaced == Some(generation) {
            return self.now.phases.push(drain);
        }
        let mut newest_first = self.ended.iter_mut().rev();
        if let Some(run) = newest_first.find(|run| run.replaced == Some(generation)) {
            run.phases.push(drain);
        }
    }

    /// The run that went on has ended.
    pub(super) fn ended(&mut self, outcome: ReloadOutcome, message: String, took: Duration) {
        let Begun {
            generation,
            replaced,
            phases,
        } = std::mem::take(&mut self.now);
        if self.ended.len() == KEPT {
            self.ended.pop_front();
        }
        self.ended.push_back(Reload {
            generation,
            replaced,
            outcome: outcome.to_string(),
            message,
            at: wall_clock(),
            seconds: took.as_secs_f64(),
            phases,
        });
    }

    /// Oldest first.
    pub(super) fn reloads(&self) -> impl DoubleEndedIterator<Item = &Reload> {
        self.ended.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn phases(reload: &Reload) -> Vec<(&str, f64)> {
        let phases = reload.phases.iter();
        phases
            .map(|one| (one.phase.as_str(), one.seconds))
            .collect()
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_drain_belongs_to_the_run_that_replaced_the_generation() {
        let mut history = History::default();
        for number in 2..5 {
            history.took(ReloadPhase::Check, seconds(number));
            history.starts(number);
            history.replaces(number - 1);
            history.ended(ReloadOutcome::Success, String::new(), seconds(9));
        }
        history.took(ReloadPhase::Check, seconds(7));
        history.drained(1, seconds(60));
        history.drained(3, seconds(30));
        history.drained(99, seconds(1));
        history.ended(ReloadOutcome::CheckFailed, "no".to_owned(), seconds(7));
        let all: Vec<_> = history.reloads().map(phases).collect();
        assert_eq!(
            all,
            [
                vec![("check", 2.0), ("drain", 60.0)],
                vec![("check", 3.0)],
                vec![("check", 4.0), ("drain", 30.0)],
                vec![("check", 7.0)],
            ]
        );
        let last = history.reloads().next_back().expect("four");
        assert_eq!((last.generation, &*last.outcome), (None, "check_failed"));
    }

    /// What it flips back to stays; what it flips back from ends.
    #[test]
    fn the_drain_of_a_flip_back_is_that_of_the_new_generation() {
        let mut history = History::default();
        history.starts(2);
        history.replaces(1);
        history.replaces(2);
        history.ended(ReloadOutcome::FlippedBack, String::new(), seconds(1));
        history.drained(2, seconds(5));
        let last = history.reloads().next_back().expect("one");
        assert_eq!(phases(last), [("drain", 5.0)]);
        history.drained(1, seconds(5));
        assert_eq!(history.reloads().count(), 1);
    }

    #[test]
    fn the_last_ones_are_kept() {
        let mut history = History::default();
        for number in 0..25 {
            history.ended(ReloadOutcome::Success, number.to_string(), seconds(1));
        }
        let kept: Vec<_> = history.reloads().map(|one| one.message.clone()).collect();
        assert_eq!(kept.len(), KEPT);
        assert_eq!(kept[0], "15");
    }
}
