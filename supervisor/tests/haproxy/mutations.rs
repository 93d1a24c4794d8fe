//! Random changes of the samples, of bytes and of words: nothing panics, nothing hangs, and a refusal names a line of the file.

use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use crate::samples::samples;
use crate::world::{Given, copy, file};

/// Words that matter somewhere.
const WORDS: &[&str] = &[
    "bind",
    "*:80",
    ":81-90",
    "accept-proxy",
    "abns@x",
    "unix@/x",
    "/y",
    "\"$P:1\"",
    "${PORT}",
    "from",
    "defaults",
    "frontend",
    "listen",
    "global",
    "backend",
    "peers",
    "no",
    "option",
    "tcp-request",
    "connection",
    "session",
    "reject",
    "stats",
    "socket",
    "map(/maps/a)",
    "-f",
    "fd@9",
    "quic4@:443",
    "namespace",
    "v6only",
    "interface",
    "mss",
    "disabled",
    "daemon",
    "pidfile",
    ".if",
    "1",
    "0",
    ".else",
    ".endif",
    ".elif",
    "defined(P)",
    "setenv",
    "resetenv",
    "P",
    "#",
    "'",
    "\"",
    "\\",
    ",",
    "\r",
    "\n",
    "[::]:80",
    "backlog",
    "unix-bind",
    "prefix",
    "server",
    "\"${LIST[*]}\"",
    "default-path",
    "config",
    "expect-proxy",
    "layer4",
    "65535",
];

/// How long all of it may take; what has been tried by then is enough.
const BOUND: Duration = Duration::from_secs(5);

fn mutate(text: &mut Vec<u8>, at: usize, kind: u8, byte: u8, word: usize) {
    let at = at % (text.len() + 1);
    let end = |from: usize| (from + 1 + usize::from(byte) % 40).min(text.len());
    match kind % 5 {
        0 if at < text.len() => text[at] = byte,
        1 if at < text.len() => {
            text.remove(at);
        }
        2 => text.insert(at, byte),
        3 => {
            let word = format!(" {} ", WORDS[word % WORDS.len()]);
            text.splice(at..at, word.into_bytes());
        }
        _ => {
            let some = text[at..end(at)].to_vec();
            let to = word % (text.len() + 1);
            text.splice(to..to, some);
        }
    }
}

#[test]
fn no_change_panics_or_hangs() {
    let mut runner = TestRunner::new_with_rng(
        Config::default(),
        TestRng::deterministic_rng(RngAlgorithm::ChaCha),
    );
    let one = (any::<usize>(), any::<u8>(), any::<u8>(), any::<usize>());
    let changes = (any::<usize>(), prop::collection::vec(one, 1..6));
    let samples = samples();
    let start = Instant::now();
    let (mut planned, mut refused) = (0, 0);
    while start.elapsed() < BOUND && planned + refused < 20_000 {
        let (sample, changes) = changes.new_tree(&mut runner).unwrap().current();
        let mut text = samples[sample % samples.len()].1.clone().into_bytes();
        for (at, kind, byte, word) in changes {
            mutate(&mut text, at, kind, byte, word);
        }
        match Given::default().plan(vec![file("haproxy.cfg", &text)]) {
            Ok(plan) => {
                planned += 1;
                assert!(copy(&plan).files[0].1.len() < 2 * text.len() + 1_000_000);
                let names = plan.listeners().iter().map(|it| it.name.as_str());
                assert!(
                    names
                        .collect::<Vec<_>>()
                        .iter()
                        .all(|it| syngate_gate::listener::is_listener_name(it))
                );
            }
            Err(refusal) => {
                refused += 1;
                let lines = text.split(|&byte| byte == b'\n').count();
                assert!((1..=lines).contains(&refusal.line), "{refusal}");
            }
        }
    }
    assert!(
        planned > 20 && refused > 20,
        "{planned} planned, {refused} refused"
    );
}
