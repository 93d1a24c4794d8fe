//! A plan in the making: edits, warnings, and what they need.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;

use super::copy::{Edit, Piece};
use super::document::{Document, Line, Standing, doubt};
use super::switches::Switches;
use super::{Refusal, World};

/// What is collected while the sections are gone through.
pub(super) struct Draft<'a> {
    pub(super) world: &'a World<'a>,
    pub(super) document: &'a Document,
    pub(super) warnings: Vec<String>,
    /// What helps only who looks for something.
    notes: Vec<String>,
    /// Whether HAProxy uses getaddrinfo(3): gethostbyname(3), which it uses otherwise, knows IPv4 alone.
    knows_families: bool,
    /// One list a file, not yet in order.
    edits: Vec<Vec<Edit>>,
    /// Lines that become comments.
    dropped: BTreeSet<usize>,
    /// What is written into a line that says nothing.
    filled: BTreeMap<usize, &'static str>,
}

/// What a draft has come to.
pub(super) struct Finished {
    /// A list a file, in order.
    pub(super) edits: Vec<Vec<Edit>>,
    pub(super) warnings: Vec<String>,
    pub(super) notes: Vec<String>,
}

impl<'a> Draft<'a> {
    pub(super) fn new(document: &'a Document, world: &'a World<'a>, switches: &Switches) -> Self {
        Draft {
            world,
            document,
            warnings: Vec::new(),
            notes: Vec::new(),
            knows_families: switches.is_on(b"GETADDRINFO") == Some(true),
            edits: vec![Vec::new(); document.files.len()],
            dropped: BTreeSet::new(),
            filled: BTreeMap::new(),
        }
    }

    pub(super) fn refuse(&self, line: &Line, why: impl Into<String>) -> Refusal {
        self.document.refuse(line, why)
    }

    pub(super) fn warn(&mut self, line: &Line, what: impl std::fmt::Display) {
        let place = self.document.place(line);
        self.warnings.push(format!("{place}: {what}"));
    }

    pub(super) fn note(&mut self, line: &Line, what: impl std::fmt::Display) {
        let place = self.document.place(line);
        self.notes.push(format!("{place}: {what}"));
    }

    /// The addresses of a host, as HAProxy looks them up.
    pub(super) fn resolve(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        let mut found = (self.world.resolve)(name)?;
        found.retain(|ip| self.knows_families || ip.is_ipv4());
        Ok(found)
    }

    /// Refuses a line that counts, when it can't be said whether it does.
    pub(super) fn settled(&self, line: &Line) -> Result<(), Refusal> {
        match line.standing {
            Standing::Doubtful(condition) => Err(self.refuse(line, doubt(condition))),
            _ => Ok(()),
        }
    }

    /// Refuses a line of which a word isn't known.
    pub(super) fn known(&self, line: &Line) -> Result<(), Refusal> {
        match line.words.iter().all(|word| word.known) {
            true => Ok(()),
            false => Err(self.refuse(
                line,
                "it has a variable whose value only HAProxy knows; write the value out",
            )),
        }
    }

    /// Writes something else in the place of a word.
    pub(super) fn replace(
        &mut self,
        line: &Line,
        word: usize,
        pieces: Vec<Piece>,
    ) -> Result<(), Refusal> {
        let word = &line.words[word];
        self.whole(line, word.shared)?;
        let range = line.range.start + word.span.start..line.range.start + word.span.end;
        self.edits[line.file].push(Edit { range, pieces });
        Ok(())
    }

    /// Writes words behind a word.
    pub(super) fn append(&mut self, line: &Line, word: usize, text: &str) {
        let at = line.range.start + line.words[word].span.end;
        self.edits[line.file].push(Edit {
            range: at..at,
            pieces: vec![Piece::text(format!(" {text}"))],
        });
    }

    /// Takes out words, and the blanks in front of them. Never the first one.
    pub(super) fn remove(&mut self, line: &Line, first: usize, last: usize) -> Result<(), Refusal> {
        let words = &line.words[first - 1..=last];
        self.whole(line, words.iter().any(|word| word.shared))?;
        let (before, after) = (words[0].span.end, words[words.len() - 1].span.end);
        self.edits[line.file].push(Edit {
            range: line.range.start + before..line.range.start + after,
            pieces: Vec::new(),
        });
        Ok(())
    }

    fn whole(&self, line: &Line, shared: bool) -> Result<(), Refusal> {
        match shared {
            false => Ok(()),
            true => Err(self.refuse(
                line,
                "one variable makes several of its words, of which one has to change; write the words out",
            )),
        }
    }

    /// Makes a line a comment.
    pub(super) fn drop_line(&mut self, index: usize) {
        self.dropped.insert(index);
    }

    /// Writes a directive into a line of this section that says nothing: one that was dropped, an empty one, or one with a
    /// comment, in this order. False where there is none.
    pub(super) fn fill(&mut self, lines: std::ops::Range<usize>, text: &'static str) -> bool {
        let free = |index: &usize| !self.filled.contains_key(index);
        let dropped = self.dropped.range(lines.clone()).copied().find(free);
        let spare =
            |index: &usize| self.document.lines[*index].standing == Standing::Spare && free(index);
        let is_empty = |index: &usize| {
            let line = &self.document.lines[*index];
            let text = &self.document.files[line.file].text[line.range.clone()];
            text.iter().all(|&byte| super::words::is_blank(byte))
        };
        let empty = || lines.clone().find(|index| spare(index) && is_empty(index));
        let comment = || lines.clone().find(spare);
        let found = dropped.or_else(empty).or_else(comment);
        if let Some(index) = found {
            self.filled.insert(index, text);
        }
        found.is_some()
    }

    /// Writes a new line in front of the line `index`, or at the end.
    pub(super) fn insert_line(&mut self, file: usize, index: usize, text: &str) {
        let source = &self.document.files[file].text;
        let next = self.document.lines.get(index);
        let at = next.filter(|line| line.file == file);
        let at = at.map_or(source.len(), |line| line.range.start);
        let terminated = at == 0 || source[at - 1] == b'\n';
        let text = match terminated {
            true => format!("{text}\n"),
            // HAProxy takes a last line without a line feed for a truncated file, and shall go on doing so.
            false => format!("\n{text}"),
        };
        self.edits[file].push(Edit {
            range: at..at,
            pieces: vec![Piece::text(text)],
        });
    }

    /// Whether the line has become a comment.
    pub(super) fn is_dropped(&self, index: usize) -> bool {
        self.dropped.contains(&index)
    }

    /// All that was collected.
    pub(super) fn finish(mut self) -> Finished {
        let mut fronts: BTreeMap<usize, String> = BTreeMap::new();
        for (index, text) in &self.filled {
            let line = &self.document.lines[*index];
            let goes_on = !line.range.is_empty();
            let blank = if goes_on { " " } else { "" };
            fronts.insert(*index, format!("  {text}{blank}"));
        }
        for index in &self.dropped {
            fronts.entry(*index).or_default().push_str("# ");
        }
        for (index, text) in fronts {
            let line = &self.document.lines[index];
            self.edits[line.file].push(Edit {
                range: line.range.start..line.range.start,
                pieces: vec![Piece::text(text)],
            });
        }
        for edits in &mut self.edits {
            edits.sort_by_key(|edit| (edit.range.start, edit.range.end));
        }
        Finished {
            edits: self.edits,
            warnings: self.warnings,
            notes: self.notes,
        }
    }
}
