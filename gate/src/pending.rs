//! The order of a listener's pending connections in one worker: first accepted, first dispatched.

use std::collections::VecDeque;

use crate::deadlines::Tick;

/// Stale entries that are left in place.
const SLACK: usize = 64;

/// A queue of tokens, ordered by the time of the accept. An entry whose connection has gone is stale: it is skipped when its turn
/// comes, so leaving the queue early costs nothing.
#[derive(Debug)]
pub(crate) struct PendingQueue<T> {
    entries: VecDeque<(Tick, T)>,
    live: usize,
}

impl<T: Copy> PendingQueue<T> {
    pub(crate) fn new() -> PendingQueue<T> {
        PendingQueue {
            entries: VecDeque::new(),
            live: 0,
        }
    }

    /// Connections that wait.
    pub(crate) fn len(&self) -> usize {
        self.live
    }

    /// Puts one in its place: at the end, or, if its connect has failed, before all that were accepted after it.
    pub(crate) fn insert(&mut self, accepted: Tick, token: T) {
        let place = match self.entries.back() {
            Some((last, _)) if *last > accepted => self
                .entries
                .partition_point(|(other, _)| *other <= accepted),
            _ => self.entries.len(),
        };
        self.entries.insert(place, (accepted, token));
        self.live += 1;
    }

    /// The one whose turn it is.
    pub(crate) fn front(&mut self, is_live: impl Fn(T) -> bool) -> Option<T> {
        while let Some((_, token)) = self.entries.front() {
            if is_live(*token) {
                return Some(*token);
            }
            self.entries.pop_front();
        }
        None
    }

    /// Takes the front away: it was dispatched.
    pub(crate) fn pop(&mut self) {
        self.entries.pop_front();
        self.live -= 1;
    }

    /// One that isn't at the front has gone.
    pub(crate) fn left(&mut self, is_live: impl Fn(T) -> bool) {
        self.live -= 1;
        if self.entries.len() > 2 * self.live + SLACK {
            self.entries.retain(|(_, token)| is_live(*token));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    fn at(n: u64) -> Tick {
        Tick::default() + Duration::from_micros(n)
    }

    #[derive(Clone, Debug)]
    enum Step {
        Accept,
        /// Dispatch the front; its connect fails if `true`.
        Dispatch(bool),
        Leave(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => Just(Step::Accept),
            2 => any::<bool>().prop_map(Step::Dispatch),
            1 => any::<usize>().prop_map(Step::Leave),
        ]
    }

    proptest! {
        /// Whatever leaves and comes back, the front is the one that was accepted first, and the count is right.
        #[test]
        fn the_first_accepted_is_the_first_dispatched(steps in prop::collection::vec(step(), 0..400)) {
            let mut queue = PendingQueue::new();
            let mut waiting = BTreeSet::new();
            let mut accepted = 0;
            for step in steps {
                match step {
                    Step::Accept => {
                        accepted += 1;
                        waiting.insert(accepted);
                        queue.insert(at(accepted), accepted);
                    }
                    Step::Dispatch(fails) => {
                        let front = queue.front(|token| waiting.contains(&token));
                        prop_assert_eq!(front, waiting.first().copied());
                        if let Some(token) = front {
                            queue.pop();
                            if fails {
                                queue.insert(at(token), token);
                            } else {
                                waiting.remove(&token);
                            }
                        }
                    }
                    Step::Leave(which) if !waiting.is_empty() => {
                        let token = *waiting.iter().nth(which % waiting.len()).unwrap();
                        waiting.remove(&token);
                        queue.left(|token| waiting.contains(&token));
                    }
                    Step::Leave(_) => {}
                }
                prop_assert_eq!(queue.len(), waiting.len());
                prop_assert!(queue.entries.len() <= 2 * waiting.len() + SLACK + 1);
            }
        }
    }
}
