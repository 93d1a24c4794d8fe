//! A configuration's lines as HAProxy reads them: split into words, in sections, with the `.if` blocks decided.
//!
//! Invariants:
//! - The files' bytes are kept as they are; a line is a range of them.
//! - What only the moment of reading knows (variables, conditions) is settled here: afterwards a document is data.
//! - Each byte is looked at a bounded number of times.

use std::ops::Range;

use super::blocks::Blocks;
use super::conditions;
use super::environment::Environment;
use super::switches::Switches;
use super::words::{self, Value, Word, is_blank};
use super::{File, Refusal, World};

/// Configuration files, read.
pub(super) struct Document {
    pub(super) files: Vec<File>,
    pub(super) lines: Vec<Line>,
    /// In order; what stands before a file's first section is in none.
    pub(super) sections: Vec<Section>,
}

/// One line.
pub(super) struct Line {
    /// Which file, as an index.
    pub(super) file: usize,
    /// Counted from 1.
    pub(super) number: usize,
    /// Its bytes in the file's text, without the line feed.
    pub(super) range: Range<usize>,
    /// What HAProxy sees of it, without a `no` or `default` in front: nothing after an empty word. Empty for lines that it doesn't read.
    pub(super) words: Vec<Word>,
    /// `no` or `default` stands in front.
    pub(super) modifier: Modifier,
    /// The address parser's own expansion of each word that has a `$`: its index, and the text if it is known.
    pub(super) expanded: Vec<(usize, Option<Vec<u8>>)>,
    pub(super) standing: Standing,
}

/// What stands in front of a keyword.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Modifier {
    None,
    No,
    Default,
}

/// Whether HAProxy reads a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    Read,
    /// Nothing is on it but blanks and a comment.
    Spare,
    /// Masked by a condition, or a directive.
    Skipped,
    /// It depends on the condition in this line of the same file, which can't be evaluated.
    Doubtful(usize),
}

/// A section: its header and all that follows up to the next.
pub(super) struct Section {
    pub(super) kind: Kind,
    pub(super) name: Vec<u8>,
    /// The section that is named after `from`.
    pub(super) from: Option<Vec<u8>>,
    /// Indices of its lines, header first.
    pub(super) lines: Range<usize>,
}

/// What kinds of sections there are, as far as it matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Global,
    Defaults,
    Frontend,
    Listen,
    Backend,
    Peers,
    LogForward,
    Program,
    Other,
}

impl Kind {
    fn of(keyword: &[u8]) -> Option<Kind> {
        Some(match keyword {
            b"global" => Kind::Global,
            b"defaults" => Kind::Defaults,
            b"frontend" => Kind::Frontend,
            b"listen" => Kind::Listen,
            b"backend" => Kind::Backend,
            b"peers" => Kind::Peers,
            b"log-forward" => Kind::LogForward,
            b"program" => Kind::Program,
            b"acme" | b"cache" | b"crt-store" | b"fcgi-app" | b"healthcheck" | b"http-errors"
            | b"log-profile" | b"mailers" | b"namespace_list" | b"resolvers" | b"ring"
            | b"traces" | b"userlist" => Kind::Other,
            _ => return None,
        })
    }

    /// Whether clients connect to it.
    pub(super) fn is_front(self) -> bool {
        matches!(self, Kind::Frontend | Kind::Listen)
    }

    /// Whether it is one of the four proxy sections.
    pub(super) fn is_proxy(self) -> bool {
        self.is_front() || matches!(self, Kind::Defaults | Kind::Backend)
    }
}

impl Line {
    /// The keyword.
    pub(super) fn keyword(&self) -> &[u8] {
        self.words.first().map_or(b"", |word| &word.text)
    }

    /// The text of a word; empty where there is none.
    pub(super) fn text(&self, index: usize) -> &[u8] {
        self.words.get(index).map_or(b"", |word| &word.text)
    }

    /// A word as the address parser reads it; `None` where a variable's value isn't known.
    pub(super) fn address(&self, index: usize) -> Option<&[u8]> {
        let word = self.words.get(index)?;
        match self.expanded.iter().find(|(at, _)| *at == index) {
            _ if !word.known => None,
            Some((_, expanded)) => expanded.as_deref(),
            None => Some(&word.text),
        }
    }
}

impl Document {
    /// Refuses a line, with a reason.
    pub(super) fn refuse(&self, line: &Line, why: impl Into<String>) -> Refusal {
        Refusal {
            file: self.files[line.file].path.clone(),
            line: line.number,
            why: why.into(),
        }
    }

    /// `FILE:LINE`.
    pub(super) fn place(&self, line: &Line) -> String {
        format!("{}:{}", self.files[line.file].path.display(), line.number)
    }
}

/// Reads all files, one after the other, as HAProxy does.
pub(super) fn read(
    files: Vec<File>,
    world: &World<'_>,
    switches: &Switches,
) -> Result<Document, Refusal> {
    let mut reader = Reader {
        world,
        switches,
        environment: Environment::new(world.environment),
        document: Document {
            files: Vec::new(),
            lines: Vec::new(),
            sections: Vec::new(),
        },
    };
    for file in files {
        reader.file(file)?;
    }
    Ok(reader.document)
}

struct Reader<'a> {
    world: &'a World<'a>,
    switches: &'a Switches,
    environment: Environment<'a>,
    document: Document,
}

impl Reader<'_> {
    fn file(&mut self, file: File) -> Result<(), Refusal> {
        let index = self.document.files.len();
        self.document.files.push(file);
        let mut blocks = Blocks::default();
        let mut section = None;
        let mut start = 0;
        let mut number = 0;
        while start < self.document.files[index].text.len() {
            number += 1;
            let rest = &self.document.files[index].text[start..];
            let length = rest.iter().position(|&byte| byte == b'\n');
            let end = start + length.unwrap_or(rest.len());
            let line = Line {
                file: index,
                number,
                range: start..end,
                words: Vec::new(),
                modifier: Modifier::None,
                expanded: Vec::new(),
                standing: Standing::Spare,
            };
            let line = self.line(line, &mut blocks, &mut section)?;
            self.document.lines.push(line);
            start = end + 1;
        }
        if let Some(last) = section {
            let section: &mut Section = &mut self.document.sections[last];
            section.lines.end = self.document.lines.len();
        }
        Ok(())
    }

    fn line(
        &mut self,
        mut line: Line,
        blocks: &mut Blocks,
        section: &mut Option<usize>,
    ) -> Result<Line, Refusal> {
        let text = &self.document.files[line.file].text[line.range.clone()];
        if text.contains(&0) {
            let why = "there is a NUL byte in the line, which ends HAProxy's reading; remove it";
            return Err(self.document.refuse(&line, why));
        }
        let standing = blocks.standing();
        let first = text.iter().find(|&&byte| !is_blank(byte));
        if first == Some(&b'[') {
            line.standing = Standing::Skipped;
            return Ok(line);
        }
        let variable = |name: &[u8]| self.variable(name, line.number, *section);
        match words::split(text, &variable) {
            Ok(words) => line.words = words,
            // HAProxy refuses it as well, wherever it stands.
            Err(malformed) => return Err(self.document.refuse(&line, malformed.to_string())),
        }
        match first {
            None | Some(b'#') => {
                line.standing = match standing {
                    Standing::Read => Standing::Spare,
                    other => other,
                };
                return Ok(line);
            }
            Some(_) => line.standing = standing,
        }
        if line.keyword().first() == Some(&b'.') {
            blocks.directive(line.keyword(), line.number, || self.condition(&line));
            line.standing = Standing::Skipped;
            line.words.clear();
            return Ok(line);
        }
        if line.standing == Standing::Skipped {
            line.words.clear();
            return Ok(line);
        }
        self.settle(&mut line);
        if let Some(kind) = Kind::of(line.keyword())
            && line.modifier == Modifier::None
        {
            self.header(kind, &line, section)?;
        } else if let Some(at) = *section
            && self.document.sections[at].kind == Kind::Global
        {
            self.global(&line)?;
        }
        Ok(line)
    }

    /// Takes off what HAProxy takes off in front of and behind the words, and expands addresses while the variables are as they are.
    fn settle(&self, line: &mut Line) {
        let empty = line
            .words
            .iter()
            .position(|word| word.text.is_empty() && word.known);
        line.words.truncate(empty.unwrap_or(line.words.len()));
        line.modifier = match line.keyword() {
            b"no" => Modifier::No,
            b"default" => Modifier::Default,
            _ => Modifier::None,
        };
        if line.modifier != Modifier::None {
            line.words.remove(0);
        }
        let dollars = line.words.iter().enumerate();
        let dollars = dollars.filter(|(_, word)| word.known && word.text.contains(&b'$'));
        line.expanded = dollars
            .map(|(at, word)| (at, self.environment.expand(&word.text)))
            .collect();
    }

    fn variable(&self, name: &[u8], line: usize, section: Option<usize>) -> Value {
        match name {
            b".LINE" => Value::Set(line.to_string().into_bytes()),
            // The copy is another file.
            b".FILE" => Value::Unknown,
            b".SECTION" => section.map_or(Value::Unset, |at| {
                let section = &self.document.sections[at];
                match section.name.is_empty() {
                    true => Value::Unknown,
                    false => Value::Set(section.name.clone()),
                }
            }),
            _ => self.environment.get(name),
        }
    }

    /// What the words after `.if` or `.elif` say.
    fn condition(&self, line: &Line) -> Option<bool> {
        let words = line.words.get(1..).unwrap_or_default();
        if words.iter().any(|word| !word.known) {
            return None;
        }
        let texts: Vec<&[u8]> = words.iter().map(|word| &word.text[..]).collect();
        let (environment, binary) = (&self.environment, self.world.binary);
        conditions::evaluate(&texts.join(&b' '), environment, binary, self.switches)
    }

    fn header(
        &mut self,
        kind: Kind,
        line: &Line,
        section: &mut Option<usize>,
    ) -> Result<(), Refusal> {
        let at = self.document.lines.len();
        if let Standing::Doubtful(condition) = line.standing {
            return Err(self.document.refuse(line, doubt(condition)));
        }
        if line.words.iter().any(|word| !word.known) {
            let why =
                "the section's name comes from a variable that only HAProxy knows; write it out";
            return Err(self.document.refuse(line, why));
        }
        if let Some(before) = *section {
            self.document.sections[before].lines.end = at;
        }
        let (name, from) = match (kind, line.text(1), line.text(2), line.text(3)) {
            (Kind::Defaults, b"from", from, b"") if !from.is_empty() => (&b""[..], Some(from)),
            (_, name, b"from", from) if kind.is_proxy() && !from.is_empty() => (name, Some(from)),
            (_, name, _, _) => (name, None),
        };
        *section = Some(self.document.sections.len());
        self.document.sections.push(Section {
            kind,
            name: name.to_vec(),
            from: from.map(<[u8]>::to_vec),
            lines: at..at + 1,
        });
        Ok(())
    }

    fn global(&mut self, line: &Line) -> Result<(), Refusal> {
        let changes = matches!(
            line.keyword(),
            b"setenv" | b"presetenv" | b"unsetenv" | b"resetenv"
        );
        if let (true, Standing::Doubtful(condition)) = (changes, line.standing) {
            return Err(self.document.refuse(line, doubt(condition)));
        }
        self.environment.apply(&line.words).map_err(|()| {
            let why = "the name of a variable comes from one that only HAProxy knows; write it out";
            self.document.refuse(line, why)
        })
    }
}

/// Why a line that matters can't stand where it does.
pub(super) fn doubt(condition: usize) -> String {
    format!(
        "whether this line counts depends on the condition in line {condition}, which only HAProxy can evaluate; \
         take the line out of the block, or write a condition on variables or the version"
    )
}
