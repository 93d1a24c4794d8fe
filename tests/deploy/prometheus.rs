//! A real Prometheus, with the configuration and the alerts that are shipped, watches a gate through three reloads. Then it is asked
//! what it has seen, and everything that the dashboard asks.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use super::{has, skip};
use crate::common::backend::{self, Hop};
use crate::common::gate::{Gate, Setup};
use crate::common::http::{self, Answer, Head};
use crate::common::net::Net;
use crate::common::wait_for;

/// Connections before each reload.
const CONNECTIONS: u32 = 20;

/// What the dashboard's variables stand for, but the instance.
const VARIABLES: [(&str, &str); 5] = [
    ("$__rate_interval", "1m"),
    ("$__interval", "30s"),
    ("$__range", "10m"),
    ("$job", "syngate"),
    ("$service", "default"),
];

#[test]
fn a_real_prometheus_through_three_reloads() {
    if !has("prometheus") {
        return skip("prometheus", "no `prometheus` in PATH");
    }
    let Some(net) = Net::isolated() else { return };
    let gate = gate(&net);
    let at_start = gate
        .metrics()
        .sum("reloads_total", &[("outcome", "success")]);
    let prometheus = Prometheus::watch(&net, gate.metrics_address());
    prometheus.wait_seen("syngate_generation_active", 1.0);

    for reloads in [1.0, 2.0] {
        connect(&gate);
        gate.run(["reload", "--wait", "drained"]).expect_code(0);
        prometheus.wait_seen(
            r#"syngate_reloads_total{outcome="success"}"#,
            at_start + reloads,
        );
    }
    connect(&gate);
    fs::write(gate.dir().join("bad"), "").expect("a file");
    gate.run(["reload"]).expect_code(1);
    prometheus.wait_seen(r#"syngate_reloads_total{outcome="check_failed"}"#, 1.0);

    expect_counted(&prometheus, at_start);
    expect_one_healthy_target(&prometheus, gate.metrics_address());
    expect_metadata(&prometheus, &gate);
    expect_alerts(&prometheus);
    expect_dashboard(&prometheus, gate.metrics_address());
}

/// What was done is what was counted.
fn expect_counted(prometheus: &Prometheus, at_start: f64) {
    for (query, expected) in [
        (
            "sum(syngate_connections_accepted_total)",
            f64::from(3 * CONNECTIONS),
        ),
        ("sum(syngate_listener_drops_total)", 0.0),
        ("sum(syngate_reloads_total)", at_start + 3.0),
        ("syngate_last_reload_successful", 0.0),
        ("max_over_time(syngate_generation_active[10m])", 3.0),
    ] {
        assert_eq!(prometheus.value(query), Some(expected), "{query}");
    }
    // Each sample: one generation followed the other, and the failed reload changed nothing.
    let found = prometheus.query("syngate_generation_active[10m]");
    let samples = found[0]["values"].as_array().expect("samples");
    let mut active: Vec<&str> = samples
        .iter()
        .map(|sample| sample[1].as_str().expect("a value"))
        .collect();
    active.dedup();
    assert_eq!(active, ["1", "2", "3"]);
}

fn expect_one_healthy_target(prometheus: &Prometheus, gate: SocketAddr) {
    let targets = prometheus.api("targets?state=active");
    let targets = targets["activeTargets"].as_array().expect("targets");
    assert_eq!(targets.len(), 1, "{targets:?}");
    assert_eq!(targets[0]["health"], "up", "{targets:?}");
    assert_eq!(targets[0]["lastError"], "");
    assert_eq!(targets[0]["labels"]["job"], "syngate");
    assert_eq!(targets[0]["labels"]["instance"], gate.to_string());
}

/// Prometheus knows each family's type and meaning as the scrape says them.
fn expect_metadata(prometheus: &Prometheus, gate: &Gate) {
    let known = prometheus.api("metadata");
    let scrape = gate.ask("/metrics").expect("a scrape").text();
    let mut families = 0;
    for (key, mark) in [("type", "# TYPE "), ("help", "# HELP ")] {
        for line in scrape.lines().filter_map(|line| line.strip_prefix(mark)) {
            let (name, said) = line.split_once(' ').expect("a name, and what it is");
            assert_eq!(known[name][0][key], said, "{name}");
            families += 1;
        }
    }
    assert!(families > 2 * 20, "{families}\n{scrape}");
}

/// All rules are there and can be evaluated, and the only alert is the one on the failed reload.
fn expect_alerts(prometheus: &Prometheus) {
    const EXPECTED: &str = "SyngateReloadFailed";
    let rules = wait_for(
        "every rule is evaluated, and one has something to say",
        || {
            let rules = prometheus.rules();
            let evaluated = rules.values().all(|rule| rule["health"] != "unknown");
            (evaluated && rules[EXPECTED]["state"] != "inactive").then_some(rules)
        },
    );
    let shipped = fs::read_to_string(packaging("prometheus/alerts.yml")).expect("the alerts");
    let mut names: Vec<&str> = shipped
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- alert: "))
        .collect();
    names.sort_unstable();
    let loaded: Vec<&String> = rules.keys().collect();
    assert_eq!(loaded, names);
    for (name, rule) in &rules {
        assert_eq!(rule["health"], "ok", "{rule}");
        // It fires after a minute.
        let states: &[&str] = match name.as_str() {
            EXPECTED => &["pending", "firing"],
            _ => &["inactive"],
        };
        let state = rule["state"].as_str().expect("a state");
        assert!(states.contains(&state), "{rule}");
    }
    let alert = &rules[EXPECTED]["alerts"][0];
    let summary = alert["annotations"]["summary"].as_str().expect("a summary");
    assert!(summary.starts_with("default on 127.0.0.1:"), "{summary}");
}

/// Each question of the dashboard has an answer.
fn expect_dashboard(prometheus: &Prometheus, gate: SocketAddr) {
    let text = fs::read_to_string(packaging("grafana/syngate.json")).expect("the dashboard");
    let dashboard: Value = serde_json::from_str(&text).expect("JSON");
    let put_in = |question: &str| {
        let of_gate = question.replace("$instance", &gate.to_string());
        let all = VARIABLES.iter().fold(of_gate, |text, (variable, value)| {
            text.replace(variable, value)
        });
        assert!(!all.contains('$'), "a variable is left: {all}");
        all
    };
    let expressions = strings(&dashboard, "expr");
    assert!(expressions.len() >= 30, "{}", expressions.len());
    let unanswered: Vec<String> = expressions
        .into_iter()
        .map(put_in)
        .filter(|expression| prometheus.query(expression).is_empty())
        .collect();
    assert!(unanswered.is_empty(), "no data: {unanswered:#?}");
    expect_panels(&dashboard);

    // The choices at its top: label_values(SELECTOR, LABEL).
    let choices = strings(&dashboard, "definition");
    assert_eq!(choices.len(), 3, "{choices:?}");
    for choice in choices {
        let words = choice
            .strip_prefix("label_values(")
            .and_then(|rest| rest.strip_suffix(')'))
            .and_then(|rest| rest.rsplit_once(", "));
        let (selector, label) = words.unwrap_or_else(|| panic!("{choice}"));
        let found = prometheus.query(&put_in(selector));
        assert!(!found.is_empty(), "{choice}");
        for series in found {
            assert!(series["metric"][label].is_string(), "{choice}: {series}");
        }
    }
}

/// What nobody should have to do without, whatever else comes and goes.
fn expect_panels(dashboard: &Value) {
    const ANNOTATION: &str = "annotation";
    let list = |pointer| dashboard.pointer(pointer).and_then(Value::as_array);
    let of_kind = |kind: &str| -> Vec<&Value> {
        if kind == ANNOTATION {
            let all = list("/annotations/list").expect("annotations");
            all.iter().filter(|one| one["enable"] == true).collect()
        } else {
            let all = list("/panels").expect("panels");
            all.iter().filter(|one| one["type"] == kind).collect()
        }
    };
    for (kind, words) in [
        (ANNOTATION, "syngate_last_reload_success_timestamp_seconds{"),
        (ANNOTATION, "increase(syngate_reloads_total{"),
        ("state-timeline", "syngate_generation_active{"),
        (
            "timeseries",
            "sum by (reason) (increase(syngate_connections_closed_total{",
        ),
        ("timeseries", "increase(syngate_listener_drops_total{"),
        ("timeseries", "rate(syngate_pending_wait_seconds_bucket{"),
    ] {
        let found = of_kind(kind)
            .into_iter()
            .flat_map(|one| strings(one, "expr"))
            .any(|expression| expression.contains(words));
        assert!(found, "no {kind} asks for {words}");
    }
}

/// All strings that are called `key`, wherever they stand.
fn strings<'a>(value: &'a Value, key: &str) -> Vec<&'a str> {
    match value {
        Value::Array(values) => values
            .iter()
            .flat_map(|value| strings(value, key))
            .collect(),
        Value::Object(members) => members
            .iter()
            .flat_map(|(name, value)| match value.as_str() {
                Some(text) if name == key => vec![text],
                _ => strings(value, key),
            })
            .collect(),
        _ => Vec::new(),
    }
}

/// A gate whose check fails while there is a file `bad`.
fn gate(net: &Net) -> Gate {
    let setup = Setup::new(net).options(["--min-ready", "100ms", "--check", "sh check.sh"]);
    let check = "test -e bad || exit 0; echo 'line 7: no such thing' >&2; exit 1";
    fs::write(setup.dir().join("check.sh"), check).expect("a script");
    setup.backend(backend::own(Hop::Socket, &[])).start()
}

fn connect(gate: &Gate) {
    for _ in 0..CONNECTIONS {
        http::get(gate.public(), "/").expect("an answer");
    }
}

fn packaging(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("packaging")
        .join(path)
}

/// A Prometheus that scrapes one gate each second; killed when dropped, and after a failed test its log is shown.
struct Prometheus {
    child: Child,
    address: SocketAddr,
    directory: TempDir,
}

impl Prometheus {
    /// With what is shipped, but for the target and the intervals.
    fn watch(net: &Net, gate: SocketAddr) -> Prometheus {
        let directory = tempfile::Builder::new()
            .prefix("syngate-prometheus-")
            .tempdir()
            .expect("a directory");
        let inside = |name: &str| directory.path().join(name);
        let shipped = packaging("prometheus/prometheus.yml");
        let mut configuration = fs::read_to_string(shipped).expect("the configuration");
        for (shipped, here, times) in [
            ("127.0.0.1:9464", gate.to_string(), 1),
            ("interval: 15s", "interval: 1s".to_owned(), 2),
        ] {
            assert_eq!(configuration.matches(shipped).count(), times, "{shipped}");
            configuration = configuration.replace(shipped, &here);
        }
        fs::write(inside("prometheus.yml"), configuration).expect("the configuration");
        fs::copy(packaging("prometheus/alerts.yml"), inside("alerts.yml")).expect("the alerts");

        let log = File::create(inside("log")).expect("the log");
        let address = net.free_address();
        let child = Command::new("prometheus")
            .arg("--config.file=prometheus.yml")
            .arg("--storage.tsdb.path=data")
            .arg(format!("--web.listen-address={address}"))
            .current_dir(directory.path())
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("dup"))
            .stderr(log)
            .spawn()
            .expect("prometheus starts");
        let mut prometheus = Prometheus {
            child,
            address,
            directory,
        };
        wait_for("Prometheus is ready", || {
            let ended = prometheus.child.try_wait().expect("wait");
            assert!(ended.is_none(), "Prometheus ended: {ended:?}");
            let answer = get(address, "/-/ready").ok()?;
            (answer.status == 200).then_some(())
        });
        prometheus
    }

    /// Waits until a scrape has this value.
    fn wait_seen(&self, query: &str, value: f64) {
        wait_for(&format!("{query} is {value}"), || {
            (self.value(query) == Some(value)).then_some(())
        });
    }

    /// The value of the only series that the query finds.
    fn value(&self, query: &str) -> Option<f64> {
        match &self.query(query)[..] {
            [] => None,
            [one] => one["value"][1].as_str()?.parse().ok(),
            more => panic!("{query} finds {more:?}"),
        }
    }

    /// What an instant query finds.
    fn query(&self, expression: &str) -> Vec<Value> {
        let query = form_urlencoded::Serializer::new(String::new())
            .append_pair("query", expression)
            .finish();
        let data = self.api(&format!("query?{query}"));
        data["result"].as_array().expect(expression).clone()
    }

    /// All rules by their names.
    fn rules(&self) -> BTreeMap<String, Value> {
        let data = self.api("rules");
        let groups = data["groups"].as_array().expect("groups");
        let rules = groups
            .iter()
            .flat_map(|group| group["rules"].as_array().expect("rules"));
        rules
            .map(|rule| {
                let name = rule["name"].as_str().expect("a name");
                (name.to_owned(), rule.clone())
            })
            .collect()
    }

    /// The data of an answer of the HTTP API, which must be a success.
    fn api(&self, path: &str) -> Value {
        let answer = get(self.address, &format!("/api/v1/{path}")).expect("an answer");
        let mut answer: Value = serde_json::from_slice(&answer.body).expect("JSON");
        assert_eq!(answer["status"], "success", "{path}: {answer}");
        answer["data"].take()
    }
}

/// By HTTP/1.0: an answer of Prometheus in version 1.1 may come in chunks.
pub(crate) fn get(address: SocketAddr, path: &str) -> io::Result<Answer> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    write!(stream, "GET {path} HTTP/1.0\r\n\r\n")?;
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes)?;
    let head = Head::parse(&bytes)?.ok_or(ErrorKind::UnexpectedEof)?;
    let body = bytes.split_off(head.length);
    let status = head.status;
    Ok(Answer { status, body })
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let log = fs::read_to_string(self.directory.path().join("log")).unwrap_or_default();
            eprintln!("--- Prometheus's log ---\n{log}--- end ---");
        }
    }
}
