//! How a value is written: text in, value out, no I/O. Flags, variables and the file's keys all come through here.

use std::fmt::Display;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use nix::sys::signal::Signal;
use syngate_supervisor::config::Argv;

/// A bound that can be off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limit(pub(crate) Option<Duration>);

/// `--metrics`: an address, or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MetricsAddress(pub(crate) Option<SocketAddr>);

/// Longer than any process lives, and far from where adding it to a clock overflows.
const LONGEST: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

/// A whole number and a unit: `500ms`, `30s`, `5m`, `1h`. Zero is allowed, `off` isn't.
fn duration(text: &str) -> Result<Duration, String> {
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    if number.is_empty() {
        return Err(format!(
            "`{text}` isn't a duration: write a whole number and a unit, as in 500ms, 30s or 5m"
        ));
    }
    let milliseconds: u64 = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60 * 1000,
        "h" => 60 * 60 * 1000,
        "" => return Err(format!("`{text}` has no unit: write {text}s or {text}ms")),
        _ => {
            return Err(format!(
                "`{unit}` in `{text}` isn't a unit: the units are ms, s, m and h"
            ));
        }
    };
    number
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(milliseconds))
        .map(Duration::from_millis)
        .filter(|duration| *duration <= LONGEST)
        .ok_or_else(|| format!("`{text}` is too long: at most ten years"))
}

/// A bound that something can't do without.
pub(crate) fn bound(text: &str) -> Result<Duration, String> {
    if text == "off" {
        return Err("this bound can't be off: write a duration such as 30s".into());
    }
    match duration(text)? {
        Duration::ZERO => Err(format!(
            "`{text}` leaves no time at all: write at least 1ms"
        )),
        duration => Ok(duration),
    }
}

/// A delay; `off` and `0s` are the same.
pub(crate) fn delay(text: &str) -> Result<Duration, String> {
    if text == "off" {
        return Ok(Duration::ZERO);
    }
    duration(text)
}

/// A bound, or `off`.
pub(crate) fn limit(text: &str) -> Result<Limit, String> {
    if text == "off" {
        return Ok(Limit(None));
    }
    match duration(text)? {
        Duration::ZERO => Err(format!(
            "`{text}` leaves no time at all: write `off` for no bound"
        )),
        duration => Ok(Limit(Some(duration))),
    }
}

/// What sleep(1) takes, numbers with or without a unit (s, m, h, d) that are added up, as the text of a [`limit`].
pub(crate) fn sleep(text: &str) -> Result<String, String> {
    let bad = || format!("`{text}` isn't what sleep(1) takes: write 30, 5m or 1h");
    let mut seconds = 0.0;
    for word in text.split_whitespace() {
        let (number, unit) = match word.find(|c: char| "smhd".contains(c)) {
            Some(at) => word.split_at(at),
            None => (word, "s"),
        };
        let unit = match unit {
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            "d" => 86_400.0,
            _ => return Err(bad()),
        };
        let number: f64 = number.parse().map_err(|_| bad())?;
        seconds += number * unit;
    }
    match seconds {
        _ if text.trim().is_empty() || seconds.is_nan() || seconds < 0.0 => Err(bad()),
        _ if seconds > LONGEST.as_secs_f64() => Ok("off".to_owned()),
        _ => Ok(format!("{}ms", (seconds * 1000.0).ceil().max(1.0))),
    }
}

/// Whether text is a service's name: a label of metrics, a directory and a part of a URL.
pub(crate) fn is_service_name(text: &str) -> bool {
    text.len() <= 63
        && text.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
        && text
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_' || c == '-')
}

/// A signal by its name, with or without `SIG`.
pub(crate) fn signal(text: &str) -> Result<Signal, String> {
    let name = text.to_ascii_uppercase();
    let name = if name.starts_with("SIG") {
        name
    } else {
        format!("SIG{name}")
    };
    match name.parse() {
        Ok(Signal::SIGKILL | Signal::SIGSTOP) => Err(format!(
            "a process can't act on {name}: write SIGTERM, SIGUSR1 or another that it can handle"
        )),
        Ok(signal) => Ok(signal),
        Err(_) => Err(format!(
            "`{text}` isn't a signal: write one as SIGTERM or TERM"
        )),
    }
}

/// A command line, split as a shell does, without expansion.
pub(crate) fn command(text: &str) -> Result<Argv, String> {
    match shlex::split(text) {
        None => Err(format!("`{text}` has a quote that doesn't end: close it")),
        Some(argv) if argv.first().is_none_or(String::is_empty) => {
            Err("the command is empty: name a program".into())
        }
        Some(argv) => Ok(argv),
    }
}

/// `IP:PORT`, or `off`.
pub(crate) fn metrics(text: &str) -> Result<MetricsAddress, String> {
    if text == "off" {
        return Ok(MetricsAddress(None));
    }
    text.parse()
        .map(|address| MetricsAddress(Some(address)))
        .map_err(|_| format!("`{text}` isn't IP:PORT: write 127.0.0.1:9464, [::1]:9464 or off"))
}

/// A whole number in a range.
pub(crate) fn number<N>(range: RangeInclusive<N>) -> impl Fn(&str) -> Result<N, String> + Clone
where
    N: Copy + Display + FromStr + PartialOrd,
{
    move |text| {
        let number = text.parse().ok().filter(|number| range.contains(number));
        let (first, last) = (range.start(), range.end());
        number.ok_or_else(|| {
            format!("`{text}` isn't a whole number from {first} to {last}: write one")
        })
    }
}

/// An IP address.
pub(crate) fn ip(text: &str) -> Result<IpAddr, String> {
    text.parse().map_err(|_| {
        format!("`{text}` isn't an IP address: write addresses of this machine, as in 10.0.0.1")
    })
}

#[cfg(test)]
#[path = "value_tests.rs"]
mod tests;
