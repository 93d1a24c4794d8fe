//! HAProxy's tokenizer: a line's words, and where in the line each was written.
//!
//! Invariants:
//! - A word's text is what HAProxy's `parse_line()` makes of it (configuration manual, section 2.2); its span covers the bytes
//!   that it was written with, quotes included, and nothing else.
//! - Bytes are bytes: no encoding is assumed, and no input makes it fail but those that HAProxy refuses.

use std::ops::Range;

/// The most words of one line (MAX_LINE_ARGS).
const WORDS_MAX: usize = 64;

/// One word of a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Word {
    /// What HAProxy takes it for.
    pub(super) text: Vec<u8>,
    /// Where it is written, in bytes of the line.
    pub(super) span: Range<usize>,
    /// False where a variable takes part whose value isn't known here: then `text` is only some of it.
    pub(super) known: bool,
    /// It came out of a `${NAME[*]}`, with others that have the same span.
    pub(super) shared: bool,
}

/// What an environment variable has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Value {
    /// This.
    Set(Vec<u8>),
    /// Nothing.
    Unset,
    /// What can't be said here: HAProxy sets it itself.
    Unknown,
}

/// Why HAProxy refuses a line before it looks at its words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Malformed {
    #[error("a quote isn't closed; close it, or write \\\" or \\'")]
    Quote,
    #[error("the brace of a variable isn't closed; write ${{NAME}}")]
    Brace,
    #[error(
        "a $ in weak quotes is followed by no name; write \\$, or the text between strong quotes"
    )]
    Name,
    #[error("\\x isn't followed by two hexadecimal digits; write \\\\x for the text itself")]
    Hex,
    #[error("a variable's name is followed by [, but not by [*]; write ${{NAME[*]}}")]
    Expansion,
    #[error("it has more than {WORDS_MAX} words; HAProxy takes no more in one line")]
    TooMany,
}

/// Splits a line, which may or may not end with its line feed. `variable` is asked for each `$NAME` in weak quotes, also for
/// the `.LINE`, `.FILE` and `.SECTION` of HAProxy's own.
pub(super) fn split(
    line: &[u8],
    variable: &dyn Fn(&[u8]) -> Value,
) -> Result<Vec<Word>, Malformed> {
    let mut splitter = Splitter {
        line,
        at: 0,
        variable,
        quote: None,
        words: Vec::new(),
    };
    while splitter.skip_blanks() {
        splitter.word()?;
    }
    Ok(splitter.words)
}

/// A text as HAProxy reads it back: with nothing escaped that needs no escape.
pub(super) fn quote(text: &[u8]) -> Vec<u8> {
    if text.is_empty() {
        return b"''".to_vec();
    }
    let mut quoted = Vec::with_capacity(text.len());
    for &byte in text {
        match byte {
            b' ' | b'\\' | b'#' | b'\'' | b'"' => quoted.extend([b'\\', byte]),
            b'\t' => quoted.extend(b"\\t"),
            b'\n' => quoted.extend(b"\\n"),
            b'\r' => quoted.extend(b"\\r"),
            b'\x0b' | b'\x0c' => quoted.extend(format!("\\x{byte:02x}").bytes()),
            _ => quoted.push(byte),
        }
    }
    quoted
}

struct Splitter<'a> {
    line: &'a [u8],
    at: usize,
    variable: &'a dyn Fn(&[u8]) -> Value,
    quote: Option<u8>,
    words: Vec<Word>,
}

/// A word being read: several where `${NAME[*]}` splits it.
struct Draft {
    parts: Vec<Vec<u8>>,
    known: bool,
}

impl Draft {
    fn push(&mut self, byte: u8) {
        // There is always one.
        if let Some(part) = self.parts.last_mut() {
            part.push(byte);
        }
    }
}

impl Splitter<'_> {
    /// The byte `ahead` of here; 0, as in C, at the end.
    fn peek(&self, ahead: usize) -> u8 {
        self.line.get(self.at + ahead).copied().unwrap_or(0)
    }

    /// Whether there is another word.
    fn skip_blanks(&mut self) -> bool {
        // A carriage return ends the line where a word could begin or go on, but not amid blanks.
        if !self.words.is_empty() && self.peek(0) == b'\r' {
            return false;
        }
        while is_blank(self.peek(0)) {
            self.at += 1;
        }
        !matches!(self.peek(0), 0 | b'#')
    }

    fn word(&mut self) -> Result<(), Malformed> {
        let start = self.at;
        let mut draft = Draft {
            parts: vec![Vec::new()],
            known: true,
        };
        loop {
            match self.peek(0) {
                0 | b'\n' | b'\r' => break,
                b'#' if self.quote.is_none() => break,
                byte @ (b'"' | b'\'') if self.quote.is_none_or(|open| open == byte) => {
                    self.quote = self.quote.is_none().then_some(byte);
                    self.at += 1;
                }
                b'\\' if self.quote != Some(b'\'') => self.escape(&mut draft)?,
                byte if is_blank(byte) && self.quote.is_none() => break,
                b'$' if self.quote == Some(b'"') => self.variable(&mut draft)?,
                byte => {
                    draft.push(byte);
                    self.at += 1;
                }
            }
        }
        if self.quote.is_some() {
            return Err(Malformed::Quote);
        }
        let shared = draft.parts.len() > 1;
        for text in draft.parts {
            self.words.push(Word {
                text,
                span: start..self.at,
                known: draft.known,
                shared,
            });
        }
        if self.words.len() > WORDS_MAX {
            return Err(Malformed::TooMany);
        }
        Ok(())
    }

    /// A backslash, outside strong quotes. One that begins no escape stands for itself.
    fn escape(&mut self, draft: &mut Draft) -> Result<(), Malformed> {
        let next = self.peek(1);
        let (byte, length) = match next {
            b' ' | b'\\' | b'#' | b'\'' | b'"' => (next, 2),
            b't' => (b'\t', 2),
            b'n' => (b'\n', 2),
            b'r' => (b'\r', 2),
            b'$' if self.quote == Some(b'"') => (b'$', 2),
            b'x' => match (hex(self.peek(2)), hex(self.peek(3))) {
                (Some(high), Some(low)) => (high << 4 | low, 4),
                _ => return Err(Malformed::Hex),
            },
            _ => (b'\\', 1),
        };
        self.at += length;
        draft.push(byte);
        Ok(())
    }

    /// `$NAME`, `${NAME}`, `${NAME-default}`, `${NAME[*]}`: in weak quotes.
    fn variable(&mut self, draft: &mut Draft) -> Result<(), Malformed> {
        self.at += 1;
        let braced = self.peek(0) == b'{';
        self.at += usize::from(braced);
        let first = self.peek(0);
        if !first.is_ascii_alphabetic() && !matches!(first, b'_' | b'.') {
            return Err(Malformed::Name);
        }
        let start = self.at;
        self.at += 1;
        while is_name(self.peek(0)) {
            self.at += 1;
        }
        let mut value = (self.variable)(&self.line[start..self.at]);
        let mut splits = false;
        if braced && self.peek(0) == b'[' {
            if (self.peek(1), self.peek(2)) != (b'*', b']') {
                return Err(Malformed::Expansion);
            }
            self.at += 3;
            splits = true;
        }
        if braced {
            let default = self.at + 1;
            if self.peek(0) == b'-' {
                while !matches!(self.peek(0), 0 | b'\n' | b'}') {
                    self.at += 1;
                }
                if self.peek(0) == b'}' && value == Value::Unset {
                    value = Value::Set(self.line[default..self.at].to_vec());
                }
            }
            if self.peek(0) != b'}' {
                return Err(Malformed::Brace);
            }
            self.at += 1;
        }
        match value {
            Value::Set(text) if splits => spread(&text, draft),
            Value::Set(text) => text.into_iter().for_each(|byte| draft.push(byte)),
            // Versions differ in whether such a word is there at all.
            Value::Unset if splits => draft.known = false,
            Value::Unset => {}
            Value::Unknown => draft.known = false,
        }
        Ok(())
    }
}

/// A word for each word of the value.
fn spread(text: &[u8], draft: &mut Draft) {
    let outer = |edge: Option<&u8>| edge.copied().is_none_or(is_blank);
    if outer(text.first()) || outer(text.last()) {
        // Versions differ in whether blanks at the ends make an empty word.
        draft.known = false;
    }
    let mut blank = false;
    for &byte in text {
        if is_blank(byte) {
            blank = true;
            continue;
        }
        if std::mem::take(&mut blank) {
            draft.parts.push(Vec::new());
        }
        draft.push(byte);
    }
}

/// isspace(3) in the C locale.
pub(super) fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}

/// What a variable's name goes on with.
pub(super) fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

fn hex(byte: u8) -> Option<u8> {
    // A digit is less than 16.
    char::from(byte).to_digit(16).map(|digit| digit as u8)
}

#[cfg(test)]
#[path = "words_tests.rs"]
mod tests;
