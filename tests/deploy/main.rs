//! Where it runs: a real Docker engine, a real systemd, the Debian package, a real Prometheus, a real browser; and the benchmarks.
//!
//! | file | what must hold |
//! | --- | --- |
//! | `docker` | the images: read-only, without capabilities, as process 1; reloads and stops lose nothing |
//! | `systemd` | the units under a real systemd: start, reload, crash, socket activation, upgrade |
//! | `package` | the .deb installs, serves, upgrades and goes in a clean Debian |
//! | `prometheus` | what a real Prometheus has seen after three reloads, and the alerts that it knows |
//! | `page` | the status page in a browser |
//! | `benches` | the benchmarks run, and write what they should |
//! | `machine` | the Debian tree, booted: what `systemd` and `package` run in |
//! | `tree` | the Debian tree that some of them run in |
//!
//! They need root and programs that not every machine has; what is missing is said in a line, and the test skipped. None of them
//! runs beside another test (`.config/nextest.toml`).

#[expect(dead_code, reason = "what other suites use of the harness")]
#[path = "../common/mod.rs"]
mod common;

mod benches;
mod docker;
mod machine;
mod package;
mod page;
mod prometheus;
mod systemd;
mod tree;

use std::process::Command;

/// Says loudly that a test isn't run. nextest shows what these tests print.
fn skip(test: &str, why: &str) {
    eprintln!("=== SKIPPED: {test}: {why} ===");
}

/// Runs a command, which must succeed, and returns what it has written to stdout.
fn run(command: &mut Command) -> String {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let (stdout, stderr) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(
        output.status.success(),
        "{command:?}: {}\n{stdout}{stderr}",
        output.status
    );
    stdout.into_owned()
}

/// Whether the program is in PATH.
fn has(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}
