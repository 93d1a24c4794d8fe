//! The options of a `bind` line: which take a value, and which belong to the public socket (configuration manual, section 5.1).

use super::words::Word;

/// What becomes of an option when its bind moves behind the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It stays on the private bind.
    Stays,
    /// It says how the socket is made: the gate's listener takes it over.
    Moves,
    /// It says how the socket is made, and the gate can't do it: what is lost, in words.
    Lost(&'static str),
    /// It says who connects: without it the bind would do something else. Why, in words.
    Refused(&'static str),
}

/// An option as it is written.
pub(super) struct Opt<'a> {
    /// Its words' indices: the keyword's, and how many values follow.
    pub(super) at: usize,
    pub(super) values: usize,
    pub(super) name: &'a [u8],
    /// Its first value; empty where there is none.
    pub(super) value: &'a [u8],
    pub(super) fate: Fate,
}

/// The options from the word `first` on. What isn't known to have a value has none: HAProxy will say what it thinks of it.
pub(super) fn options(words: &[Word], first: usize) -> Vec<Opt<'_>> {
    let mut options = Vec::new();
    let mut at = first;
    while let Some(word) = words.get(at) {
        let (values, fate) = describe(&word.text);
        let values = values.min(words.len() - at - 1);
        options.push(Opt {
            at,
            values,
            name: &word.text,
            value: words
                .get(at + 1)
                .filter(|_| values > 0)
                .map_or(b"", |it| &it.text),
            fate,
        });
        at += 1 + values;
    }
    options
}

fn describe(name: &[u8]) -> (usize, Fate) {
    match name {
        b"backlog" | b"interface" | b"mss" => (1, Fate::Moves),
        b"defer-accept" | b"tfo" | b"v4v6" | b"v6only" => (0, Fate::Moves),
        b"gid" | b"group" | b"mode" | b"uid" | b"user" => (1, Fate::Moves),
        b"cc" => (
            1,
            Fate::Lost("the system's congestion control is used towards clients"),
        ),
        b"tcp-ut" => (
            1,
            Fate::Lost("the system's TCP user timeout is used towards clients"),
        ),
        b"tcp-ss" => (1, Fate::Lost("no SYN is saved, so fc_saved_syn finds none")),
        b"shards" => (1, Fate::Lost("one socket takes its connections")),
        b"namespace" => (
            1,
            Fate::Refused("the gate listens in its own network namespace alone"),
        ),
        b"tcp-md5sig" => (1, Fate::Refused("the gate knows no TCP signatures")),
        b"transparent" => (
            0,
            Fate::Refused("the gate listens on this machine's own addresses alone"),
        ),
        b"accept-netscaler-cip"
        | b"alpn"
        | b"ca-file"
        | b"ca-ignore-err"
        | b"ca-sign-file"
        | b"ca-sign-pass"
        | b"ca-verify-file"
        | b"ciphers"
        | b"ciphersuites"
        | b"client-sigalgs"
        | b"crl-file"
        | b"crt"
        | b"crt-ignore-err"
        | b"crt-list"
        | b"curves"
        | b"default-crt"
        | b"ecdhe"
        | b"ech"
        | b"expose-fd"
        | b"guid-prefix"
        | b"id"
        | b"idle-ping"
        | b"ktls"
        | b"label"
        | b"level"
        | b"maxconn"
        | b"name"
        | b"nbconn"
        | b"nice"
        | b"npn"
        | b"process"
        | b"proto"
        | b"quic-cc-algo"
        | b"quic-socket"
        | b"severity-output"
        | b"sigalgs"
        | b"ssl-max-ver"
        | b"ssl-min-ver"
        | b"thread"
        | b"tls-ticket-keys"
        | b"verify" => (1, Fate::Stays),
        _ => (0, Fate::Stays),
    }
}
