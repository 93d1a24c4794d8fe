//! What HAProxy takes, the gate takes, and listens on as many addresses, or it says in which line is what it can't front.
//!
//! HAProxy itself is the judge: whether its check accepts a mutated sample, and on how many addresses it listens then, without a
//! gate. The mutations are the same in each run.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::common::done::Done;
use crate::common::gate::Setup;
use crate::common::net::Net;
use crate::fixture::{Alone, in_front_of, listening, own_root, program};
use crate::samples;

/// Of all samples together; about half a minute on two cores. `MUTATIONS` asks for another number.
const COUNT: usize = 200;
const THREADS: usize = 3;

/// What HAProxy keeps to itself in the sample that has it.
const PEERS: &str = "bind 127.0.0.61:1024";

/// Addresses in all forms, most of them good.
const ADDRESSES: &[&str] = &[
    "*:7001",
    ":7002",
    ":::7003",
    "[::1]:7004",
    "127.0.0.1:7005-7007",
    "127.0.0.1:7008,127.0.0.2:7009",
    "unix@/run/x.sock",
    "/run/y.sock",
    "abns@x",
    "ipv6@:7010",
    "ipv4@127.0.0.1:7011",
    "localhost:7012",
    "${NOPE-127.0.0.3}:7013",
    "\"*:7014\"",
    "'*:7015'",
    "*:7016#c",
    "\\*:7017",
    "tcp@127.0.0.1:7018",
    "::1:7019",
    "\"${HOME}:7020\"",
    "$NOPE:7021",
    "*:07022",
    "*:80",
    ":443,:7023",
    "*:0",
    "*:7024-7023",
    "fd@3",
    "udp@:7025",
    "no.such.host.invalid:7026",
    "[127.0.0.1]:7027",
    "127.1:7028",
    "ipv4@localhost:7029",
    "stream+ipv4@*:7030,",
    "dgram+tcp4@:7031",
    "uxst@/run/w.sock",
    "\"${HAPROXY_LOCALPEER}:7032\"",
    "127.0.0.1:70\"33\"",
    "\\x3a7034",
];

/// What may follow an address.
const OPTIONS: &[&str] = &[
    "accept-proxy",
    "v6only",
    "v4v6",
    "ssl crt /etc/ssl/cert.pem",
    "name x",
    "backlog 7",
    "interface lo",
    "maxconn 9",
    "tfo",
    "defer-accept",
    "mss 1400",
    "mode 660",
    "nice 5",
    "id 7",
    "# ssl",
    "name 'q x'",
    "alpn h2",
    "interface",
    "transparent",
    "user nobody group nogroup",
    "shards 2",
    "process 1/1",
    "level admin",
    "''",
    "\"$NOPE\"",
    "\"${HOME[*]}\"",
];

/// Lines of which some mean something where listeners are concerned.
const LINES: &[&str] = &[
    "tcp-request connection reject if { src 10.0.0.0/8 }",
    "setenv NOPE 127.0.0.4",
    "presetenv HOME /",
    ".if defined(HOME)",
    ".if !defined(HOME)",
    ".else",
    ".endif",
    "backlog 20",
    "disabled",
    "no bind",
    "maxconn 8",
    "daemon",
    "frontend other",
    "listen more",
    "backend last",
    "defaults",
    "global",
    "peers p",
    "mode tcp",
    "no option redispatch",
    "stats socket /run/z.sock level admin",
    "stats socket 127.0.0.1:7030",
    "option tcplog",
    "monitor-net 10.0.0.0/8",
    "# nothing",
    "",
    ".if enabled(EPOLL)",
    ".if !enabled(KQUEUE) && feature(OPENSSL)",
    "noepoll",
    "nogetaddrinfo",
    "unix-bind prefix /run/ mode 660",
    "stats socket *:7035 interface lo",
    "stats socket abns@z,/run/v.sock mode 600",
    "tcp-request connection expect-proxy layer4",
    "tcp-request session accept",
    "ulimit-n 5000",
    "maxconn 0",
    "resetenv PATH",
    "log-forward l",
    "[scope]",
];

/// A xorshift generator: the same numbers from the same seed.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }

    fn pick<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }
}

/// One or two changes: of words, of bytes, of lines, of binds.
fn mutate(sample: &str, random: &mut Random) -> Vec<u8> {
    let mut lines: Vec<Vec<u8>> = sample
        .lines()
        .map(|line| line.as_bytes().to_vec())
        .collect();
    for _ in 0..1 + random.below(2) {
        // Half of them where the listeners are.
        let interesting = |line: &Vec<u8>| {
            let text = String::from_utf8_lossy(line);
            ["bind ", "stats socket", "abns"]
                .iter()
                .any(|word| text.contains(word))
        };
        let near: Vec<usize> = (0..lines.len())
            .filter(|&at| interesting(&lines[at]))
            .collect();
        let at = match random.below(2) {
            0 if !near.is_empty() => random.pick(&near),
            _ => random.below(lines.len()),
        };
        match random.below(4) {
            0 => bytes(&mut lines[at], random),
            1 => words(&mut lines[at], random),
            2 => match random.below(4) {
                0 => drop(lines.remove(at)),
                1 => lines.insert(at, lines[at].clone()),
                2 => lines.swap(at, at.saturating_sub(1)),
                _ => lines.insert(at, format!("  {}", random.pick(LINES)).into_bytes()),
            },
            _ => {
                let mut line = format!("  bind {}", random.pick(ADDRESSES));
                for _ in 0..random.below(3) {
                    line = format!("{line} {}", random.pick(OPTIONS));
                }
                // In the place of another one, or after it.
                match random.below(2) {
                    0 => lines[at] = line.into_bytes(),
                    _ => lines.insert(at + 1, line.into_bytes()),
                }
            }
        }
    }
    let mut text = lines.join(&b'\n');
    text.push(b'\n');
    text
}

fn bytes(line: &mut Vec<u8>, random: &mut Random) {
    const BYTES: &[u8] = b" \t\\\"'#$:,@*{}[]-./00112233456789azAZ\r\x01\x7f\xff";
    let (at, byte) = (random.below(line.len() + 1), random.pick(BYTES));
    match random.below(3) {
        0 => line.insert(at, byte),
        _ if at == line.len() => line.push(byte),
        1 => line[at] = byte,
        _ => drop(line.remove(at)),
    }
}

fn words(line: &mut Vec<u8>, random: &mut Random) {
    let text = String::from_utf8_lossy(line).into_owned();
    let mut all: Vec<&str> = text.split_whitespace().collect();
    let at = random.below(all.len() + 1);
    match random.below(5) {
        0 if at < all.len() => drop(all.remove(at)),
        1 if at < all.len() => all.insert(at, all[at]),
        2 if all.len() > 1 => all[1] = random.pick(ADDRESSES),
        _ => all.push(random.pick(OPTIONS)),
    }
    *line = format!("  {}", all.join(" ")).into_bytes();
}

/// What came out, as counts.
#[derive(Debug, Default)]
struct Counts {
    /// Refused by HAProxy's own check.
    invalid: usize,
    /// Taken by both.
    taken: usize,
    /// Of these: HAProxy listens on as many addresses by itself.
    compared: usize,
    /// Taken by HAProxy and refused by the gate, by reason.
    refused: BTreeMap<String, usize>,
}

#[test]
fn load_what_haproxy_takes_the_gate_takes_or_says_why_not() {
    if Net::isolated().is_none() {
        return;
    }
    let given = std::env::var("MUTATIONS").ok();
    let count = given.map_or(COUNT, |count| count.parse().expect("a number"));
    let (next, counts) = (AtomicUsize::new(0), Mutex::new(Counts::default()));
    let wrong = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let net = Net::isolated().expect("root");
                own_root();
                samples::furnish();
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= count {
                        return;
                    }
                    if let Err(what) = try_one(&net, number, &counts) {
                        wrong.lock().expect("no panic").push(what);
                    }
                }
            });
        }
    });
    let (counts, wrong) = (
        counts.into_inner().expect("no panic"),
        wrong.into_inner().expect("no panic"),
    );
    println!("{count} mutations: {counts:#?}");
    assert!(
        wrong.is_empty(),
        "{} are wrong:\n{}",
        wrong.len(),
        wrong.join("\n\n")
    );
    let refused: usize = counts.refused.values().sum();
    assert!(
        counts.taken > 0 && counts.compared > 0 && counts.invalid > 0,
        "nothing was shown"
    );
    assert!(
        refused * 4 < counts.taken,
        "{refused} refused, {} taken",
        counts.taken
    );
}

fn try_one(net: &Net, number: usize, counts: &Mutex<Counts>) -> Result<(), String> {
    let name = samples::ALL[number % samples::ALL.len()];
    let sample = samples::text(name);
    let mut random =
        Random(0x9E37_79B9_7F4A_7C15 ^ (number as u64 + 1).wrapping_mul(0xD134_2543_DE82_EF95));
    random.below(2); // the first one is little mixed
    let text = mutate(&sample, &mut random);

    let setup = Setup::bare(net);
    let file = setup.dir().join("haproxy.cfg");
    fs::write(&file, &text).expect("haproxy.cfg");
    let accepted = is_valid(&file);
    let setup = in_front_of(setup, &file);
    let done = Done::from(setup.command_of("check").output().expect("syngate runs"));
    let wrong = |what: String| {
        let changed = changed(&sample, &text);
        Err(format!(
            "{number} of {name}: {what}\n{changed}\n{}{}",
            done.out, done.err
        ))
    };
    if done.code.is_none() || done.err.contains("panicked") {
        return wrong(format!("it ended with {:?}", done.code));
    }
    let count = |change: &dyn Fn(&mut Counts)| change(&mut counts.lock().expect("no panic"));
    if !accepted {
        count(&|counts| counts.invalid += 1);
        return match done.code {
            Some(0) => wrong("HAProxy refuses it, the gate takes it".to_owned()),
            _ => Ok(()),
        };
    }
    if done.code != Some(0) {
        let place = format!("{}:", file.display());
        let Some((_, rest)) = done.err.split_once(&place) else {
            return wrong("HAProxy takes it; the refusal has no place".to_owned());
        };
        let (line, why) = rest.split_once(": ").unwrap_or_default();
        if done.err.contains("[ALERT]") || !line.parse::<usize>().is_ok_and(|line| line > 0) {
            return wrong("HAProxy takes it; the refusal has no line".to_owned());
        }
        let why: String = why
            .chars()
            .filter(|each| !each.is_ascii_digit())
            .take(80)
            .collect();
        count(&|counts| *counts.refused.entry(why.clone()).or_default() += 1);
        return Ok(());
    }
    count(&|counts| counts.taken += 1);
    // Both listeners and the file may be of a size that this machine can't start.
    let before = listening();
    let Some(alone) = Alone::start(&file) else {
        return Ok(());
    };
    let without = (&listening() - &before).len();
    drop(alone);
    let own = usize::from(
        text.windows(PEERS.len())
            .any(|part| part == PEERS.as_bytes()),
    );
    let touches_peers = sample.contains(PEERS) && own == 0;
    let with = tcp_listeners(&done.out);
    count(&|counts| counts.compared += 1);
    if with + own != without && !touches_peers {
        return wrong(format!(
            "the gate listens on {with} addresses, HAProxy alone on {without}, {own} of them its own"
        ));
    }
    Ok(())
}

/// How many the check's summary names: `default: NAME=ADDRESS ...`.
fn tcp_listeners(summary: &str) -> usize {
    let addresses = summary
        .split_whitespace()
        .filter_map(|word| word.split_once('='));
    addresses
        .filter(|(_, address)| !address.starts_with("unix:"))
        .count()
}

fn is_valid(file: &Path) -> bool {
    let mut check = Command::new(program());
    check.arg("-c").arg("-f").arg(file).stdin(Stdio::null());
    check.output().expect("haproxy runs").status.success()
}

/// The lines that differ.
fn changed(sample: &str, text: &[u8]) -> String {
    let known: Vec<&[u8]> = sample.lines().map(str::as_bytes).collect();
    let lines: Vec<&[u8]> = text.split(|&byte| byte == b'\n').collect();
    let gone = known
        .iter()
        .filter(|line| !lines.contains(line))
        .map(|line| ("-", *line));
    let numbered = lines
        .iter()
        .enumerate()
        .filter(|(_, line)| !known.contains(line));
    let came = numbered.map(|(at, line)| format!("+{}: {}", at + 1, line.escape_ascii()));
    let gone = gone.map(|(sign, line)| format!("{sign}{}", line.escape_ascii()));
    gone.chain(came).collect::<Vec<_>>().join("\n")
}
