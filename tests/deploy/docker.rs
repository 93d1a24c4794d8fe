//! The images, with a real Docker engine.
//!
//! One test, since all of it needs one engine and images that take minutes to build. Its containers are run as
//! `docs/container.md` recommends: read-only, without capabilities, without new privileges.

mod compose;
mod engine;
mod images;

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use tempfile::TempDir;

use self::engine::{Container, Engine, GATEWAY};
use self::images::{FRONT, GATE};
use crate::common::backend::Outside;
use crate::common::load::{Failure, Load, Plan};
use crate::common::net::Net;
use crate::common::{http, wait_until, wait_within};
use crate::tree::Tree;

/// New connections a second: counts matter here, not the pace.
const PACE: u32 = 200;

#[test]
fn images_serve_reload_and_stop() {
    if let Some(program) = engine::missing() {
        return super::skip("docker", &format!("no {program}"));
    }
    // While the test is still in the network that the tree may come from.
    let tree = match Tree::new() {
        Ok(tree) => tree,
        Err(why) => return super::skip("docker", &why),
    };
    let Some(net) = Net::isolated() else { return };
    let engine = match Engine::start() {
        Ok(engine) => engine,
        Err(words) => return super::skip("docker", &words),
    };

    images::import_bases(&engine, &tree);
    drop(tree);
    let context = images::context();
    images::build_both(&engine, context.path());
    images::expect_metadata(&engine, FRONT, "syngate-haproxy");
    images::expect_metadata(&engine, GATE, "syngate");
    images::change_elsewhere_builds_nothing(&engine, context.path());
    images::change_reuses_dependencies(&engine, context.path());

    let app = SocketAddr::from((GATEWAY, net.free_address().port()));
    let _app = Outside::start(app, &[]);
    let config = Config::new(app);
    let front = front(&engine, &config, &[]);
    serves_as_nobody(&front);
    becomes_healthy(&front);
    reaps_orphans(&front);
    reloads_lose_nothing(&front, &config);
    drop(front);
    stop_loses_nothing_in_time(&engine, &config);
    relays_to_a_server_elsewhere(&engine, app);
    compose::walks_through(&engine, context.path());
}

/// The directory that the front tier has its configuration from.
struct Config {
    directory: TempDir,
    app: SocketAddr,
}

impl Config {
    fn new(app: SocketAddr) -> Config {
        let directory = tempfile::tempdir().expect("a directory");
        // Uid 65532 must be able to read it.
        let everybody = fs::Permissions::from_mode(0o755);
        fs::set_permissions(directory.path(), everybody).expect("a mode");
        let config = Config { directory, app };
        config.write("at first");
        config
    }

    /// A configuration whose `/which` says `word`. Other paths are answered by themselves, downloads by the server outside.
    fn write(&self, word: &str) {
        self.put(&format!(
            "global
    maxconn 4000
defaults
    mode http
    timeout connect 5s
    timeout client 60s
    timeout server 60s
    timeout http-keep-alive 30s
    option idle-close-on-response
    option http-ignore-probes
frontend web
    bind :80
    bind :443
    http-request return status 200 content-type text/plain string \"{word}\" if {{ path /which }}
    http-request return status 200 content-type text/plain lf-string %[path] unless {{ path_beg /download/ }}
    default_backend app
backend app
    server app {}
",
            self.app
        ));
    }

    /// A configuration that HAProxy refuses.
    fn spoil(&self) {
        self.put("frontend web\n    bind :80\n    no-such-keyword\n");
    }

    fn put(&self, text: &str) {
        fs::write(self.directory.path().join("haproxy.cfg"), text).expect("haproxy.cfg");
    }
}

/// The front tier, once it serves.
fn front<'a>(engine: &'a Engine, config: &Config, options: &[&str]) -> Container<'a> {
    let mount = format!(
        "--volume={}:/usr/local/etc/haproxy:ro",
        config.directory.path().display()
    );
    let more = ["--env=SYNGATE_MAX_GENERATIONS=16", &mount, FRONT];
    let front = Container::start(engine, "front", &[options, &more].concat());
    wait_until("the front tier serves", || {
        http::get(front.at(80), "/").is_ok_and(|answer| answer.status == 200)
    });
    front
}

fn which(front: &Container) -> String {
    let answer = http::get(front.at(80), "/which").expect("an answer");
    assert_eq!(answer.status, 200);
    answer.text()
}

fn serves_as_nobody(front: &Container) {
    for port in [80, 443] {
        let answer = http::get(front.at(port), "/from-outside").expect("an answer");
        assert_eq!(
            (answer.status, answer.text().as_str()),
            (200, "/from-outside")
        );
    }
    let metrics = front.metrics();
    assert_eq!(metrics.sum("generations", &[("state", "active")]), 1.0);

    let said = |command: &[&str]| {
        let done = front.exec(command);
        done.expect_code(0);
        done.out.trim_end().to_owned()
    };
    assert_eq!(said(&["cat", "/proc/1/comm"]), "syngate");
    let directory = said(&["stat", "--format=%u:%g %a", "/run/syngate"]);
    assert_eq!(directory, "65532:65532 700");
    // Read-only it is indeed, and unprivileged.
    assert_ne!(front.exec(["touch", "/tmp/file"]).code, Some(0));
    let status = said(&["cat", "/proc/1/status"]);
    let nobody = "Uid:\t65532\t65532\t65532\t65532";
    for line in [nobody, "CapEff:\t0000000000000000", "NoNewPrivs:\t1"] {
        assert!(status.contains(line), "{status}");
    }
}

/// The engine asks every 10 s.
fn becomes_healthy(container: &Container) {
    wait_within(Duration::from_secs(90), "the container is healthy", || {
        (container.inspect("{{.State.Health.Status}}") == "healthy").then_some(())
    });
}

/// Processes that outlive their parent are process 1's, and it is told of their end.
fn reaps_orphans(front: &Container) {
    let script = "for i in 1 2 3 4 5 6 7 8 9 10; do (sleep 0.2 &); done";
    front.exec(["sh", "-c", script]).expect_code(0);
    wait_until("nothing is left of ten orphans", || {
        let done = front.exec(["ps", "-e", "-o", "stat=", "-o", "comm="]);
        done.expect_code(0);
        // A zombie keeps its name.
        let mut lines = done.out.lines();
        !lines.any(|line| line.contains("sleep") || line.starts_with('Z'))
    });
    assert_eq!(front.metrics().sum("backend_restarts_total", &[]), 0.0);
}

/// By `docker exec` and by SIGHUP, with good configurations and bad ones, under load.
fn reloads_lose_nothing(front: &Container, config: &Config) {
    let load = Load::start(Plan {
        fresh_per_second: PACE,
        ..Plan::standing(front.at(80))
    });
    load.wait_flowing();
    let count = |outcome| {
        let metrics = front.metrics();
        metrics.sum("reloads_total", &[("outcome", outcome)])
    };
    let (good, bad) = (count("success"), count("check_failed"));

    for word in ["by exec", "by exec again"] {
        config.write(word);
        front.exec(["syngate", "reload"]).expect_code(0);
        assert_eq!(which(front), word);
    }
    config.spoil();
    let refused = front.exec(["syngate", "reload"]);
    refused.expect_code(1).expect_words(&["no-such-keyword"]);
    assert_eq!(which(front), "by exec again");

    front.signal("HUP");
    wait_until("the bad one is refused again", || {
        count("check_failed") == bad + 2.0
    });
    assert_eq!(which(front), "by exec again");
    for (done, word) in [(3.0, "by signal"), (4.0, "by signal again")] {
        config.write(word);
        front.signal("HUP");
        wait_until("the reload has succeeded", || {
            count("success") == good + done
        });
        assert_eq!(which(front), word);
    }

    let report = load.stop();
    report.print("six reloads in a container");
    report.expect_standing();
    let metrics = front.metrics();
    assert_eq!(metrics.sum("forced_closes_total", &[]), 0.0);
    assert_eq!(metrics.sum("listener_drops_total", &[]), 0.0);
}

/// In the test's own network, which is there when the container has gone: whoever comes too late is refused at once. So every
/// other failure is of a connection that was in time.
fn stop_loses_nothing_in_time(engine: &Engine, config: &Config) {
    config.write("until it stops");
    let sysctl = "/proc/sys/net/ipv4/ip_unprivileged_port_start";
    fs::write(sysctl, "0").expect("the sysctl");
    let front = front(engine, config, &["--network=host"]);
    assert_eq!(front.at(80).ip(), Ipv4Addr::LOCALHOST);
    // The downloads under way come to their end within `shutdown_timeout`.
    let load = Load::start(Plan {
        fresh_per_second: PACE,
        kept: 0,
        download_time: Duration::from_secs(2),
        ..Plan::standing(front.at(80))
    });
    load.wait_flowing();
    front.stop();
    let status = front.inspect("{{.State.ExitCode}}");
    assert_eq!(status, "0", "137 is the engine's SIGKILL after 10 s");
    let report = load.stop();
    report.print("docker stop");
    assert_eq!(report.failures(), report.failed(Failure::Refused));
    assert!(report.downloads.ok >= report.plan.downloads as u64);
}

/// The image FROM scratch: a static binary, which finds names without the system's files. It is as careful as the other one, and can
/// be watched from outside.
fn relays_to_a_server_elsewhere(engine: &Engine, app: SocketAddr) {
    let host = format!("--add-host=app.test:{}", app.ip());
    for backend in [app.to_string(), format!("app.test:{}", app.port())] {
        let command = ["run", "--listen", "80", "--backend", &backend];
        let words = [&[host.as_str(), GATE][..], &command].concat();
        let gate = Container::start(engine, "gate", &words);
        wait_until("the server answers", || {
            http::get(gate.at(80), "/relayed").is_ok_and(|answer| answer.text() == "/relayed")
        });
        gate.exec(["syngate", "status", "--ready"]).expect_code(0);
        let metrics = gate.metrics();
        assert_eq!(metrics.sum("generations", &[("state", "active")]), 1.0);
        let directory = gate.listed("/run/syngate");
        assert!(
            directory.starts_with("drwx------ 65532/65532 "),
            "{directory}"
        );
        becomes_healthy(&gate);
        gate.stop();
        assert_eq!(gate.inspect("{{.State.ExitCode}}"), "0", "{backend}");
    }
}
