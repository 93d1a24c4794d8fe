//! End to end: the real binary, real backends, and what a client sees.
//!
//! | file | what must hold |
//! | --- | --- |
//! | `exact`, `proxy` | every byte, every end, every address |
//! | `reload` | a hundred reloads of HAProxy, nginx and Python lose nothing |
//! | `drain`, `replace`, `crash` | nor do drains, servers that can't run twice, and `kill -9` (but what the process had) |
//! | `failures`, `coalesce` | a failing reload changes nothing; many at once are one at a time |
//! | `services` | several services in a file come, go, move and come back |
//! | `herd`, `limits`, `slow` | thousands wait in order, or do nothing at all; every bound is kept, counted and said |
//! | `ready`, `places` | proofs of readiness, passed listeners; addresses to listen on and to connect from |
//! | `kept`, `cfserverd`, `tutorial` | the servers of docs/kept-listeners.md and docs/cf-serverd.md, and docs/tutorial.md, as they stand there |
//! | `stop`, `rest`, `control` | ends that leave nothing behind; a control socket that nobody can block |
//! | `budget` | system calls a connection |
//! | `verbs`, `metrics`, `usage` | the command line, its exit codes and words; the series |
//! | `demo` | the demo fails nothing, and says so |
//! | `harness` | the harness itself, without a gate |
//!
//! Counts are asserted, not times, but where a time is the promise. Tests whose name begins with `load_` need the machine for
//! themselves; nextest runs them one at a time (`.config/nextest.toml`).

#[path = "../common/mod.rs"]
mod common;

mod budget;
mod cfserverd;
mod coalesce;
mod control;
mod crash;
mod demo;
mod document;
mod drain;
mod exact;
mod failures;
mod harness;
mod herd;
mod kept;
mod limits;
mod metrics;
mod places;
mod proxy;
mod ready;
mod reload;
mod replace;
mod rest;
mod services;
mod slow;
mod stop;
mod tutorial;
mod usage;
mod verbs;
