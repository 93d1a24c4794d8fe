//! End to end: the real binary in front of a real HAProxy, whose configuration nobody had to change.
//!
//! | file | what must hold |
//! | --- | --- |
//! | `marathon` | what marathon-lb and zdd expect of a reload, with the scripts of `packaging/marathon-lb` |

#[path = "../common/mod.rs"]
#[expect(
    dead_code,
    reason = "the harness has more for the tests of other backends"
)]
mod common;

mod marathon;
