//! What `.if` and `.elif` say (configuration manual, section 2.4).
//!
//! A condition that can't be evaluated here isn't an error: it may be about what only the program knows (its TLS library, what
//! its command line enables), or be one that HAProxy refuses itself.

use super::binary::Binary;
use super::environment::Environment;
use super::switches::Switches;
use super::words::Value;

/// Nested parentheses. HAProxy takes about 300.
const DEPTH_MAX: usize = 64;

/// Whether a condition holds; `None` where that can't be said here.
pub(super) fn evaluate(
    text: &[u8],
    environment: &Environment<'_>,
    binary: &Binary,
    switches: &Switches,
) -> Option<bool> {
    if text.is_empty() {
        return Some(false);
    }
    let mut parser = Parser {
        rest: text,
        environment,
        binary,
        switches,
    };
    let verdict = parser.expression(0).ok()?;
    parser.skip_blanks();
    verdict.filter(|_| parser.rest.is_empty())
}

/// What HAProxy refuses, or this parser doesn't know.
struct Unparsable;

/// `None` is "can't be said".
type Verdict = Option<bool>;

struct Parser<'a> {
    rest: &'a [u8],
    environment: &'a Environment<'a>,
    binary: &'a Binary,
    switches: &'a Switches,
}

impl Parser<'_> {
    fn skip_blanks(&mut self) {
        while let [b' ' | b'\t', rest @ ..] = self.rest {
            self.rest = rest;
        }
    }

    fn takes(&mut self, token: &[u8]) -> bool {
        let rest = self.rest.strip_prefix(token);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    /// AND `||` AND ...
    fn expression(&mut self, depth: usize) -> Result<Verdict, Unparsable> {
        let mut verdict = self.conjunction(depth)?;
        while self.takes(b"||") {
            let other = self.conjunction(depth)?;
            // Evaluated from the left, until one holds.
            verdict = match verdict {
                Some(false) => other,
                known => known,
            };
        }
        Ok(verdict)
    }

    /// TERM `&&` TERM ...
    fn conjunction(&mut self, depth: usize) -> Result<Verdict, Unparsable> {
        let mut verdict = self.term(depth)?;
        self.skip_blanks();
        while self.takes(b"&&") {
            let other = self.term(depth)?;
            verdict = match verdict {
                Some(true) => other,
                known => known,
            };
            self.skip_blanks();
        }
        Ok(verdict)
    }

    fn term(&mut self, depth: usize) -> Result<Verdict, Unparsable> {
        self.skip_blanks();
        let mut negated = false;
        while self.takes(b"!") {
            negated = !negated;
            self.skip_blanks();
        }
        let verdict = if let Some(number) = self.number() {
            number
        } else if self.takes(b"(") {
            if depth == DEPTH_MAX {
                return Err(Unparsable);
            }
            let verdict = self.expression(depth + 1)?;
            self.skip_blanks();
            if !self.takes(b")") {
                return Err(Unparsable);
            }
            verdict
        } else {
            self.predicate()?
        };
        Ok(verdict.map(|holds| holds != negated))
    }

    /// A number: whether it is other than 0. As strtol(3) reads it where it is written in decimal; what begins otherwise can't be
    /// said.
    fn number(&mut self) -> Option<Verdict> {
        let sign = self
            .rest
            .iter()
            .take_while(|byte| matches!(byte, b'+' | b'-'))
            .count();
        let digits = self.rest[sign..]
            .iter()
            .take_while(|byte| byte.is_ascii_digit())
            .count();
        if digits == 0 || sign > 1 {
            return None;
        }
        let (number, rest) = self.rest[sign..].split_at(digits);
        self.rest = rest;
        let based = number.len() > 1 && number[0] == b'0' || matches!(rest, [b'x' | b'X', ..]);
        Some((!based).then(|| number.iter().any(|&digit| digit != b'0')))
    }

    /// NAME(ARGUMENT,...)
    fn predicate(&mut self) -> Result<Verdict, Unparsable> {
        let length = self
            .rest
            .iter()
            .take_while(|byte| !matches!(byte, b' ' | b'('))
            .count();
        let (name, rest) = self.rest.split_at(length);
        self.rest = rest;
        let arguments = self.arguments()?;
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).ok();
        Ok(match (name, arguments.as_slice()) {
            (b"defined", [name]) => match self.environment.get(name) {
                Value::Set(_) => Some(true),
                Value::Unset => Some(false),
                Value::Unknown => None,
            },
            (b"streq", [left, right]) => Some(left == right),
            (b"strneq", [left, right]) => Some(left != right),
            (b"strstr", [whole, part]) => {
                Some(part.is_empty() || whole.windows(part.len()).any(|window| window == part))
            }
            (b"feature", [name]) => text(name).map(|name| self.binary.has(&name)),
            (b"version_atleast", [version]) => self.at_least(version),
            (b"version_before", [version]) => self.at_least(version).map(|is| !is),
            (b"enabled", [option]) => self.switches.is_on(option),
            (
                b"openssl_version_atleast"
                | b"openssl_version_before"
                | b"ssllib_name_startswith"
                | b"awslc_api_atleast"
                | b"awslc_api_before",
                [_],
            )
            | (b"fips_mode", _) => None,
            _ => return Err(Unparsable),
        })
    }

    /// The arguments in parentheses, if there are any.
    fn arguments(&mut self) -> Result<Vec<Vec<u8>>, Unparsable> {
        if !self.takes(b"(") {
            return Ok(Vec::new());
        }
        let mut arguments = vec![Vec::new()];
        let mut quote = None;
        while let [byte, rest @ ..] = self.rest {
            self.rest = rest;
            let escaped = match (byte, rest) {
                (b'\\', [next @ (b'\\' | b' ' | b'"' | b'\''), ..]) => Some(*next),
                (b'\\', [b'r', ..]) => Some(b'\r'),
                (b'\\', [b'n', ..]) => Some(b'\n'),
                (b'\\', [b't', ..]) => Some(b'\t'),
                _ => None,
            };
            // There is always one.
            let Some(argument) = arguments.last_mut() else {
                break;
            };
            match (byte, quote) {
                (b'\\', None | Some(b'"')) if escaped.is_some() => {
                    argument.extend(escaped);
                    self.rest = &rest[1..];
                }
                (b'"' | b'\'', None) => quote = Some(*byte),
                (b'"' | b'\'', Some(open)) if open == *byte => quote = None,
                (b',', None) => arguments.push(Vec::new()),
                (b')', None) => return Ok(arguments),
                _ => argument.push(*byte),
            }
        }
        Err(Unparsable)
    }

    fn at_least(&self, version: &[u8]) -> Verdict {
        let wanted = Version::parse(std::str::from_utf8(version).ok()?)?;
        Version::parse(&self.binary.release).map(|ours| ours >= wanted)
    }
}

/// A version, in the order in which HAProxy has them: development before release.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Version {
    major: u32,
    minor: u32,
    released: bool,
    /// Of a release, or of a development version.
    patch: u32,
    /// Commits since.
    commits: u32,
}

impl Version {
    /// `2.6`, `2.6.12`, `2.6.12-1+deb12u4`, `3.5-dev5`, `3.5-dev5-1a2b3c-120`.
    fn parse(text: &str) -> Option<Version> {
        let (major, rest) = leading_number(text)?;
        let (minor, rest) = leading_number(rest.strip_prefix('.')?)?;
        let (released, patch, rest) = if let Some(rest) = rest.strip_prefix("-dev") {
            let (number, rest) = leading_number(rest)?;
            (false, number, rest)
        } else if let Some(rest) = rest.strip_prefix('.') {
            let (number, rest) = leading_number(rest)?;
            (true, number, rest)
        } else {
            (true, 0, rest)
        };
        let commits = rest.rsplit('-').next().and_then(|it| it.parse().ok());
        Some(Version {
            major,
            minor,
            released,
            patch,
            commits: commits.unwrap_or(0),
        })
    }
}

fn leading_number(text: &str) -> Option<(u32, &str)> {
    let end = text
        .find(|it: char| !it.is_ascii_digit())
        .unwrap_or(text.len());
    Some((text[..end].parse().ok()?, &text[end..]))
}

#[cfg(test)]
mod tests {
    use super::super::File;
    use super::super::arguments::Arguments;
    use super::*;

    fn binary(release: &str) -> Binary {
        Binary {
            program: "haproxy".into(),
            release: release.to_owned(),
            version: (2, 6, 12),
            features: ["OPENSSL", "LUA", "EPOLL", "POLL", "LINUX_SPLICE"]
                .map(str::to_owned)
                .to_vec(),
            idle_close: true,
        }
    }

    fn is(text: &str) -> Option<bool> {
        let environment = Environment::new(&|name| (name == b"HOME").then(|| b"/root".to_vec()));
        let binary = binary("2.6.12-1+deb12u4");
        let arguments = Arguments::read(&["-dp".to_owned()]).unwrap();
        let file = File {
            path: "haproxy.cfg".into(),
            text: b"global\n nosplice\n".to_vec(),
        };
        let switches = Switches::of(&binary, &arguments, &[file]);
        evaluate(text.as_bytes(), &environment, &binary, &switches)
    }

    #[test]
    fn what_is_known_is_evaluated() {
        for holds in [
            "1",
            "!0",
            "defined(HOME)",
            "defined(NOPE) || defined(HOME)",
            "streq(a,a) && strneq(a,b)",
            "streq(\"a b\",'a b')",
            "!(streq(a,b) || streq(a,c))",
            "feature(OPENSSL)",
            "version_atleast(2.6)",
            "version_atleast(2.6.12)",
            "version_atleast(2.6-dev4)",
            "version_before(2.7)",
            "version_before(2.6.13)",
            "strstr(abc,b)",
            "(((1)))",
            "1 || openssl_version_atleast(3.0.0)",
            "enabled(EPOLL) && enabled(REUSEPORT)",
        ] {
            assert_eq!(is(holds), Some(true), "{holds}");
        }
        for fails in [
            "",
            "0",
            "!1",
            "defined(NOPE)",
            "feature(QUIC)",
            "version_before(2.6)",
            "0 && fips_mode",
            "enabled(POLL) || enabled(KQUEUE)",
        ] {
            assert_eq!(is(fails), Some(false), "{fails}");
        }
    }

    #[test]
    fn what_is_not_known_is_not_guessed() {
        let deep = "(".repeat(100_000);
        for unknown in [
            "openssl_version_atleast(3.0.0)",
            "enabled(SPLICE)",
            "enabled(FAST-FORWARD)",
            "defined(HAPROXY_MWORKER)",
            "nonsense",
            "1 2",
            "(1",
            "streq(a)",
            "0x10",
            deep.as_str(),
        ] {
            assert_eq!(is(unknown), None, "{unknown:.40}");
        }
    }

    #[test]
    fn development_comes_before_release() {
        let order = [
            "2.6",
            "2.7-dev0",
            "2.7-dev1",
            "2.7-dev1-abcdef-12",
            "2.7",
            "2.7.1",
            "3.0",
        ];
        assert!(order.is_sorted_by_key(|it| Version::parse(it).unwrap()));
        assert!(Version::parse("2.6.12").unwrap() > Version::parse("2.6.9-5").unwrap());
    }
}
