//! `.if` blocks: which lines HAProxy reads (configuration manual, section 2.4).

use super::document::Standing;

/// Nested blocks (MAXNESTEDCONDS).
const NESTED_MAX: usize = 99;

/// The blocks that aren't closed yet, outermost first.
#[derive(Default)]
pub(super) struct Blocks(Vec<Block>);

struct Block {
    /// Of its branches so far, one was taken.
    taken: bool,
    /// What its present branch is.
    standing: Standing,
}

impl Blocks {
    /// Whether lines are read here.
    pub(super) fn standing(&self) -> Standing {
        self.0.last().map_or(Standing::Read, |it| it.standing)
    }

    /// Takes in `.if` and its kin, in a line of this number. What HAProxy refuses itself is let pass: its message is the better one.
    pub(super) fn directive(
        &mut self,
        keyword: &[u8],
        line: usize,
        condition: impl FnOnce() -> Option<bool>,
    ) {
        let branch = |holds: Option<bool>| match holds {
            Some(true) => Standing::Read,
            Some(false) => Standing::Skipped,
            None => Standing::Doubtful(line),
        };
        match keyword {
            b".if" if self.0.len() < NESTED_MAX => {
                let standing = match self.standing() {
                    Standing::Read => branch(condition()),
                    outer => outer,
                };
                self.0.push(Block {
                    taken: standing == Standing::Read,
                    standing,
                });
            }
            b".elif" | b".else" => {
                let Some(mut block) = self.0.pop() else {
                    return;
                };
                block.standing = match (self.standing(), block.standing) {
                    (Standing::Read, doubtful @ Standing::Doubtful(_)) => doubtful,
                    (Standing::Read, _) if block.taken => Standing::Skipped,
                    (Standing::Read, _) if keyword == b".else" => Standing::Read,
                    (Standing::Read, _) => branch(condition()),
                    (outer, _) => outer,
                };
                block.taken |= block.standing == Standing::Read;
                self.0.push(block);
            }
            b".endif" => {
                self.0.pop();
            }
            _ => {}
        }
    }
}
