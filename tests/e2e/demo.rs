//! `syngate demo`, as somebody who has just built it sees it.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::Stdio;

use crate::common::gate::syngate;
use crate::common::http;
use crate::common::net::{Drops, Net};

#[test]
fn load_demo_fails_nothing() {
    let Some(net) = Net::isolated() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let mut demo = syngate(directory.path(), ["demo"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("syngate runs");
    let mut lines = BufReader::new(demo.stdout.take().expect("a pipe"))
        .lines()
        .map_while(Result::ok);
    let metrics: SocketAddr = lines
        .find_map(|line| {
            let (address, _) = line.split_once("http://")?.1.split_once("/metrics")?;
            address.parse().ok()
        })
        .expect("the URL of the metrics");
    let scrape = http::get(metrics, "/metrics").expect("a scrape while it runs");
    assert!(scrape.text().contains("syngate_build_info"));

    let said: Vec<String> = lines.collect();
    let verdict = said.join("\n");
    let status = demo.wait().expect("wait");
    assert_eq!(status.code(), Some(0), "{verdict}");
    println!("{}", &verdict[verdict.find("verdict").unwrap_or(0)..]);
    assert_eq!(said.last().map(|line| line.trim()), Some("0 failed"));
    let reloads = said
        .iter()
        .find_map(|line| line.split_once(" reloads: "))
        .expect("the reloads");
    let count: u32 = reloads.0.trim().parse().expect("a number");
    assert!(count >= 20, "{count} reloads");
    for outcome in ["1 check_failed", "1 not_ready"] {
        assert!(reloads.1.contains(outcome), "{}", reloads.1);
    }
    for row in [
        "new connections",
        "cut by the kill",
        "connect",
        "first byte",
    ] {
        assert!(verdict.contains(row), "{row} is missing in:\n{verdict}");
    }
    assert_eq!(net.drops(), Drops::default());
}
