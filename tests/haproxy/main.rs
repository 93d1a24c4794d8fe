//! End to end: the real binary in front of a real HAProxy, whose configuration nobody had to change.
//!
//! | file | what must hold |
//! | --- | --- |
//! | `samples` | what marathon-lb writes: every public port answers as it does without a gate |
//! | `clients` | HAProxy knows the real client: in its log, in X-Forwarded-For, in an ACL |
//! | `faults` | whatever keeps the next generation from starting, the last one serves, and its stats socket answers |
//! | `ports` | ports come and go, a configuration comes late, two frontends share a port |
//! | `reloads`, `keepalive` | reloads lose no connection, and cut no client between two requests, H1 and H2 |
//! | `crashes` | after `kill -9` the next one serves what has queued |
//! | `permissions` | who may reach a stats socket |
//! | `states` | what an operator has set stays; where a server is, the configuration says |
//! | `marathon` | what marathon-lb and zdd expect of a reload, with the scripts of `packaging/marathon-lb` |
//! | `mutations` | what HAProxy takes, the gate takes, with as many listeners, or says where and why not |
//! | `shapes` | configurations that are legal and seldom tried open what they open without a gate |
//! | `size` | two hundred frontends |
//!
//! `HAPROXY` names the program under test, if it isn't the `haproxy` in PATH. Tests with fixed ports and paths have a network and,
//! where they need one, a file system of their own, for which they need root.

#[path = "../common/mod.rs"]
#[expect(
    dead_code,
    reason = "the harness has more for the tests of other backends"
)]
mod common;
mod fixture;
mod h2;

mod clients;
mod crashes;
mod faults;
mod keepalive;
mod marathon;
mod mutations;
mod permissions;
mod ports;
mod questions;
mod reloads;
mod samples;
mod shapes;
mod size;
mod states;
