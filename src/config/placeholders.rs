//! The placeholders of a COMMAND that stand for a listener's private place.

use std::fmt;

/// What of the place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    Addr,
    Port,
    Socket,
    Fd,
}

impl Word {
    fn parse(text: &str) -> Option<Word> {
        [Word::Addr, Word::Port, Word::Socket, Word::Fd]
            .into_iter()
            .find(|word| word.to_string() == text)
    }
}

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Word::Addr => "addr",
            Word::Port => "port",
            Word::Socket => "socket",
            Word::Fd => "fd",
        })
    }
}

/// `{port}` or `{port_web}`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Placeholder<'a> {
    pub(super) word: Word,
    /// `None`: the first one.
    pub(super) listener: Option<&'a str>,
}

impl fmt::Display for Placeholder<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.listener {
            None => write!(f, "{{{}}}", self.word),
            Some(name) => write!(f, "{{{}_{name}}}", self.word),
        }
    }
}

/// All of a command line, in its order.
pub(super) fn placeholders(argv: &[String]) -> Vec<Placeholder<'_>> {
    argv.iter()
        .flat_map(|arg| arg.split('{').skip(1))
        .filter_map(|opened| parse(opened.split_once('}')?.0))
        .collect()
}

/// Whether one of them has this word.
pub(super) fn uses(argv: &[String], word: Word) -> bool {
    placeholders(argv).iter().any(|one| one.word == word)
}

fn parse(inside: &str) -> Option<Placeholder<'_>> {
    let (word, listener) = match inside.split_once('_') {
        None => (inside, None),
        Some((word, name)) => (word, Some(name)),
    };
    let is_of_a_name = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_');
    if !listener.is_none_or(|name| name.bytes().all(is_of_a_name)) {
        return None;
    }
    Some(Placeholder {
        word: Word::parse(word)?,
        listener,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_found_wherever_they_stand() {
        let argv = [
            "app",
            "--at={addr}:{port_web_2}",
            "{{fd}",
            "{dir}/{socket",
            "{portal}",
            "{port x}",
            "{port_x: 1}",
        ];
        let argv = argv.map(str::to_owned);
        let found: Vec<_> = placeholders(&argv)
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(found, ["{addr}", "{port_web_2}", "{fd}"]);
        assert!(uses(&argv, Word::Port) && !uses(&argv, Word::Socket));
    }
}
