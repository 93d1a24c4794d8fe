//! Who waits for an answer, and what each has been told.

use std::collections::HashMap;

use tokio::sync::{broadcast, mpsc};

use crate::protocol::{Done, Line, Step};
use crate::rollout::Caller;

/// The open requests. A request for all services is one call with a part in each.
pub(super) struct Calls {
    last: Caller,
    open: HashMap<Caller, Call>,
    steps: broadcast::Sender<Step>,
}

struct Call {
    lines: mpsc::Sender<Line>,
    /// The services that haven't answered.
    left: Vec<String>,
    exit: u8,
    messages: Vec<String>,
}

impl Calls {
    pub(super) fn new(steps: broadcast::Sender<Step>) -> Calls {
        Calls {
            last: 0,
            open: HashMap::new(),
            steps,
        }
    }

    /// A call that each of these services answers.
    pub(super) fn add(&mut self, lines: mpsc::Sender<Line>, services: Vec<String>) -> Caller {
        self.last += 1;
        let call = Call {
            lines,
            left: services,
            exit: 0,
            messages: Vec::new(),
        };
        self.open.insert(self.last, call);
        self.last
    }

    /// A service answers. When the last one has, the caller hears the worst.
    pub(super) fn answer(&mut self, caller: Caller, service: &str, exit: u8, message: String) {
        let Some(call) = self.open.get_mut(&caller) else {
            return;
        };
        let several = call.left.len() + call.messages.len() > 1;
        call.left.retain(|other| other != service);
        call.exit = call.exit.max(exit);
        call.messages.push(if several {
            format!("{service}: {message}")
        } else {
            message
        });
        if call.left.is_empty()
            && let Some(call) = self.open.remove(&caller)
        {
            done(&call.lines, call.exit, call.messages.join("\n"));
        }
    }

    /// Tells a step to everybody who waits for its service, and to the readers of events.
    pub(super) fn tell(&self, step: &Step) {
        for call in self
            .open
            .values()
            .filter(|call| call.left.contains(&step.service))
        {
            // One that is too slow misses it: the loop doesn't wait.
            let _ = call.lines.try_send(Line::Step(step.clone()));
        }
        // Nobody may be reading.
        let _ = self.steps.send(step.clone());
    }

    /// Answers everybody: the loop ends.
    pub(super) fn end(&mut self, message: &str) {
        for (_, call) in self.open.drain() {
            done(&call.lines, 1, message.to_owned());
        }
    }
}

/// The last line.
pub(super) fn done(lines: &mpsc::Sender<Line>, exit: u8, message: String) {
    let _ = lines.try_send(Line::Done(Done { exit, message }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_for_all_is_the_worst() {
        let (steps, _events) = broadcast::channel(1);
        let mut calls = Calls::new(steps);
        let (lines, mut receiver) = mpsc::channel(4);
        let caller = calls.add(lines, vec!["a".to_owned(), "b".to_owned()]);
        calls.answer(caller, "b", 4, "it failed".to_owned());
        assert!(receiver.try_recv().is_err());
        calls.answer(caller, "a", 0, "it works".to_owned());
        let message = "b: it failed\na: it works".to_owned();
        assert_eq!(
            receiver.try_recv(),
            Ok(Line::Done(Done { exit: 4, message }))
        );
    }
}
