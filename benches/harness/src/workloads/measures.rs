//! The columns of the tables; the first of each is what relays are compared by.

use std::borrow::Cow;

use crate::report::Measure;

const fn higher(name: &'static str) -> Measure {
    Measure {
        name: Cow::Borrowed(name),
        lower_is_better: false,
    }
}

const fn lower(name: &'static str) -> Measure {
    Measure {
        name: Cow::Borrowed(name),
        lower_is_better: true,
    }
}

pub(super) const CONNECTIONS: &[Measure] = &[
    higher("connections a relay CPU second"),
    higher("connections a second"),
    lower("errors"),
];

pub(super) const ANSWERS: &[Measure] = &[
    higher("answers a relay CPU second"),
    higher("answers a second"),
    lower("errors"),
];

pub(super) const BYTES: &[Measure] = &[
    higher("GB a relay CPU second"),
    higher("GB a second"),
    lower("errors"),
];

pub(super) const MEMORY: &[Measure] = &[
    lower("bytes a connection"),
    lower("MB without connections"),
    higher("connections"),
];

pub(super) const DELAYS: &[Measure] = &[
    lower("µs added to the direct median"),
    lower("median, µs"),
    lower("99 %, µs"),
];

pub(super) const SLOPE: &[Measure] = &[
    lower("CPU a connection, last tenth / first"),
    higher("connections"),
    lower("errors"),
    lower("CPU µs each, first tenth"),
    lower("CPU µs each, last tenth"),
    lower("cores used when no port is left"),
];

pub(super) const WAITING: &[Measure] = &[
    lower("bytes a pending connection"),
    lower("ms to serve 5,000"),
    lower("CPU µs each"),
    lower("errors"),
];

pub(super) const RELOADED: &[Measure] = &[
    lower("99.9 % with reloads / without"),
    lower("failed"),
    lower("median, ms"),
    lower("99 %, ms"),
    lower("99.9 %, ms"),
    lower("longest, ms"),
    lower("failed without reloads"),
    lower("median without, ms"),
    lower("99.9 % without, ms"),
    lower("longest without, ms"),
    lower("failed reloads"),
];
