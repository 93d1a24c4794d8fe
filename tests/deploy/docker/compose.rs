//! The front tier to try of `docs/container.md`: its commands, with Debian's Compose.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;

use serde_json::json;

use super::engine::Engine;
use super::images::{self, DEBIAN};
use crate::common::done::Done;
use crate::common::{http, wait_until};
use crate::{prometheus, run};

/// The ports that the file publishes. Nobody else is in the test's network.
const FRONT: u16 = 8080;
const PROMETHEUS: u16 = 9090;

pub(super) fn walks_through(engine: &Engine, context: &Path) {
    let directory = context.join("packaging/compose");
    let file = directory.join("compose.yaml");
    let bases = directory.join("bases.yaml");
    let command = || engine.compose(&[&file, &bases]);
    if command().is_none() {
        return crate::skip("compose", "no docker-compose");
    }
    let command = || command().expect("it was there");
    let compose = |words: &[&str]| run(command().args(words));
    let text = fs::read_to_string(&file).expect("compose.yaml");
    build_prometheus(engine, image(&text, "prom/prometheus:"));
    let build = json!({"network": "none", "args": images::bases()});
    let text = json!({"services": {"front": {"build": build}}}).to_string();
    fs::write(&bases, text).expect("bases.yaml");

    // Builds leave some too: a step that fails its container.
    let there = || {
        let containers = engine.run(["ps", "--all", "--quiet"]);
        (containers, engine.run(["volume", "ls", "--quiet"]))
    };
    let before = there();
    let said = compose(&["up", "--build", "--detach"]);
    let up = Up(command);
    images::expect_compiled_nothing(&said);
    wait_until("the front tier serves", || {
        says().is_some_and(|words| words == "hello from HAProxy\n")
    });
    let config = directory.join("haproxy/haproxy.cfg");
    let text = fs::read_to_string(&config).expect("haproxy.cfg");
    fs::write(&config, text.replace("hello from HAProxy", "other words")).expect("haproxy.cfg");
    compose(&["exec", "-T", "front", "syngate", "reload"]);
    assert_eq!(says().as_deref(), Some("other words\n"));

    let query = "syngate_reloads_total{outcome=\"success\"}";
    wait_until("Prometheus has the reload", || {
        let answer = ask(&format!("query?query={}", encoded(query)));
        answer.is_some_and(|answer| answer["data"]["result"][0]["value"][1] == "2")
    });
    let rules = ask("rules").expect("an answer");
    let groups = rules["data"]["groups"].as_array().expect("groups");
    assert!(!groups.is_empty(), "{rules}");
    drop(up);
    assert_eq!(there(), before);
}

/// What the file has started, until it is dropped.
struct Up<F: Fn() -> Command>(F);

impl<F: Fn() -> Command> Drop for Up<F> {
    fn drop(&mut self) {
        if std::thread::panicking()
            && let Ok(logs) = (self.0)().args(["logs", "--no-color"]).output()
        {
            eprintln!("--- logs ---\n{}", Done::from(logs).out);
        }
        let down = (self.0)().args(["down", "--volumes"]).output();
        if !std::thread::panicking() {
            Done::from(down.expect("docker-compose")).expect_code(0);
        }
    }
}

fn image<'a>(compose: &'a str, name: &str) -> &'a str {
    let mut images = compose
        .lines()
        .filter_map(|line| line.trim().strip_prefix("image: "));
    images
        .find(|image| image.starts_with(name))
        .expect("the image")
}

/// Debian's Prometheus, in an image of the name, user and command of Prometheus's own.
fn build_prometheus(engine: &Engine, name: &str) {
    let context = tempfile::tempdir().expect("a directory");
    fs::copy("/usr/bin/prometheus", context.path().join("prometheus")).expect("prometheus");
    let dockerfile = format!(
        "FROM {DEBIAN}
COPY prometheus /bin/prometheus
RUN mkdir /prometheus && chown nobody:nogroup /prometheus
USER nobody
WORKDIR /prometheus
ENTRYPOINT [\"/bin/prometheus\"]
CMD [\"--config.file=/etc/prometheus/prometheus.yml\", \"--storage.tsdb.path=/prometheus\"]
"
    );
    fs::write(context.path().join("Dockerfile"), dockerfile).expect("Dockerfile");
    let mut build = engine.docker(["build", "--network=none", "--tag", name]);
    run(build.arg(context.path()));
}

fn published(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

/// What the front tier answers, if it does.
fn says() -> Option<String> {
    let answer = http::get(published(FRONT), "/").ok()?;
    (answer.status == 200).then(|| answer.text())
}

fn ask(question: &str) -> Option<serde_json::Value> {
    let path = format!("/api/v1/{question}");
    let answer = prometheus::get(published(PROMETHEUS), &path).ok()?;
    serde_json::from_slice(&answer.body).ok()
}

fn encoded(query: &str) -> String {
    form_urlencoded::byte_serialize(query.as_bytes()).collect()
}
