//! What is added to HAProxy's command line, as far as it changes what its configuration says (management guide, section 3).

use std::path::PathBuf;

use super::Refusal;

/// What messages name instead of a file.
pub(super) const PLACE: &str = "--haproxy-args";

/// The arguments, read as HAProxy reads them.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Arguments {
    /// `-n`: it counts instead of a `maxconn` in `global`.
    pub(super) maxconn: Option<u32>,
    /// `-S`: the addresses of the master's own socket.
    pub(super) master_sockets: Vec<String>,
    /// `-dX`: X and what follows it.
    debug: Vec<String>,
}

impl Arguments {
    /// Reads them all.
    ///
    /// # Errors
    /// One of them would take HAProxy out of the supervisor's hands, or have it read what the gate doesn't know.
    pub(super) fn read(arguments: &[String]) -> Result<Arguments, Refusal> {
        let mut read = Arguments::default();
        let mut rest = arguments.iter().map(String::as_str);
        while let Some(argument) = rest.next() {
            // HAProxy refuses one without a dash.
            let flag = argument.strip_prefix('-').unwrap_or_default();
            let why = match flag.as_bytes() {
                [b'd', option @ ..] => {
                    read.debug
                        .push(String::from_utf8_lossy(option).into_owned());
                    continue;
                }
                // The value is the next argument, whatever follows the letter.
                [b'n', ..] => {
                    let given = rest.next().and_then(|value| value.trim().parse().ok());
                    read.maxconn = given.filter(|&it| it > 0);
                    continue;
                }
                [b'S', ..] => {
                    read.master_sockets.extend(rest.next().map(String::from));
                    continue;
                }
                [b'L' | b'N' | b'm' | b'p' | b'x', ..] => {
                    rest.next();
                    continue;
                }
                [b'D', ..] => "the supervisor holds the process; remove it",
                [b'c' | b'v', ..] => "HAProxy would end at once; remove it",
                [b's', b'f' | b't', ..] => {
                    "the supervisor ends old generations by itself; remove it"
                }
                [b'C', ..] => {
                    "relative paths would begin elsewhere than for the gate; start the gate in that directory"
                }
                [b'f', ..] | [b'-'] => "the gate wouldn't know that file; name it with --haproxy",
                _ => continue,
            };
            return Err(refuse(format!("{argument} can't be there: {why}")));
        }
        Ok(read)
    }

    /// Whether a `-d` with this letter is there.
    pub(super) fn debugs(&self, letter: char) -> bool {
        self.debug.iter().any(|it| it.starts_with(letter))
    }
}

/// Refuses them, with a reason.
pub(super) fn refuse(why: impl Into<String>) -> Refusal {
    Refusal {
        file: PathBuf::from(PLACE),
        line: 0,
        why: why.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Arguments, Refusal> {
        let arguments: Vec<String> = text.split_whitespace().map(String::from).collect();
        Arguments::read(&arguments)
    }

    #[test]
    fn the_last_maxconn_counts() {
        let maxconn = |text| read(text).unwrap().maxconn;
        assert_eq!(maxconn("-q -n 4000"), Some(4000));
        assert_eq!(maxconn("-n 4000 -n 5000"), Some(5000));
        assert_eq!(maxconn("-n 0"), None);
        assert_eq!(maxconn("-n"), None);
        assert_eq!(maxconn("-L -n -m 100"), None);
        assert_eq!(maxconn("-n4000 -q"), None);
    }

    #[test]
    fn what_is_debugged_is_known() {
        let arguments = read("-de -dGx -q -S /run/m,mode,660").unwrap();
        assert!(arguments.debugs('e') && arguments.debugs('G') && !arguments.debugs('R'));
        assert_eq!(arguments.master_sockets, ["/run/m,mode,660"]);
    }

    #[test]
    fn what_would_take_it_out_of_hand_is_refused() {
        for text in ["-D", "-c", "-vv", "-sf 12", "-C /", "-f x.cfg", "-- x.cfg"] {
            let why = read(text).unwrap_err().to_string();
            assert!(why.starts_with("--haproxy-args: -"), "{why}");
        }
        read("-Ws -db -V -q -dM -x /run/s -p /run/p").unwrap();
    }
}
