//! The benchmark harness, in its shortest form: every relay starts and answers, and what is written is whole.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::skip;

/// One workload of each kind that sets relays up in another way.
const WORKLOADS: [&str; 5] = ["short", "proxy", "ports", "pending", "reloads"];

#[test]
fn they_run_and_write_what_they_should() {
    if !nix::unistd::geteuid().is_root() {
        return skip("benches/run", "it needs root");
    }
    let out = tempfile::tempdir().expect("a directory");
    let said = benches(out.path(), "nginx", &WORKLOADS.join(","));
    assert!(!said.contains("=== FAILED"), "{said}");
    for workload in WORKLOADS {
        let file = |ending| out.path().join(format!("{workload}.{ending}"));
        let json = fs::read(file("json")).expect("a result");
        let report: serde_json::Value = serde_json::from_slice(&json).expect("JSON");
        let rows = report["rows"].as_array().expect("rows");
        assert!(rows.len() > 1, "{report}");
        for row in rows {
            let number = &row["samples"][0][0];
            // Without a relay no CPU time is a relay's.
            assert!(
                number.is_number() || row["relay"] == "direct",
                "{workload}: {row}"
            );
        }
        assert!(file("svg").exists(), "{workload}");
    }
    let page = fs::read_to_string(out.path().join("BENCHMARKS.md")).expect("the page");
    assert_eq!(page.matches("\n![").count(), WORKLOADS.len(), "{page}");
}

#[test]
fn a_peer_that_is_missing_is_said() {
    if !nix::unistd::geteuid().is_root() {
        return skip("benches/run", "it needs root");
    }
    let out = tempfile::tempdir().expect("a directory");
    let said = benches(out.path(), "/no/such/nginx", "latency");
    assert!(
        said.contains("=== SKIPPED: `/no/such/nginx` doesn't start; NGINX can name another ==="),
        "{said}"
    );
    let page = fs::read_to_string(out.path().join("BENCHMARKS.md")).expect("the page");
    assert!(
        page.contains("| syngate |") && !page.contains("| nginx"),
        "{page}"
    );
}

/// One short round into `out`; what it has said.
fn benches(out: &Path, nginx: &str, only: &str) -> String {
    let output = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/run"))
        .args(["--quick", "--rounds", "1", "--only", only, "--out"])
        .arg(out)
        .env("NGINX", nginx)
        .output()
        .expect("benches/run");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    said
}
