use std::time::Duration;

use nix::sys::signal::Signal;
use syngate_gate::Overflow;
use syngate_gate::listener::Address;
use syngate_gate::proxy_protocol::Version;
use syngate_supervisor::config::Strategy;
use syngate_supervisor::readiness::Ready;

use super::*;

#[test]
fn the_defaults_are_those_of_the_table() {
    let loaded = flags("--listen 8080 -- app --port {port}").unwrap();
    let process = &loaded.config.process;
    assert_eq!(process.control, Path::new("/run/syngate/control.sock"));
    assert_eq!(process.runtime_dir, Path::new("/run/syngate"));
    assert_eq!(process.metrics, Some("127.0.0.1:9464".parse().unwrap()));
    assert_eq!(process.workers, 4);
    assert_eq!(process.max_connections, (1024 - 128 - 1) / 2);
    assert_eq!(process.pending_max, 10_000);
    assert_eq!(process.lame_duck, Duration::ZERO);
    assert_eq!(process.shutdown_timeout, Duration::from_secs(8));
    assert_eq!(
        (loaded.log_format, loaded.log_level.as_str()),
        (LogFormat::Text, "info")
    );
    assert_eq!(loaded.warnings, Vec::<String>::new());

    let service = only(loaded);
    let second = Duration::from_secs(1);
    assert_eq!(service.name, "default");
    assert_eq!(service.listeners[0].name, "l0");
    assert_eq!(service.listeners[0].address, Address::Port(8080));
    let argv = ["app", "--port", "{port}"].map(str::to_owned).to_vec();
    assert_eq!(
        service.backend,
        Backend::Command {
            argv,
            fixed: vec![]
        }
    );
    assert_eq!(
        (service.pass, service.strategy),
        (Pass::None, Strategy::Overlap)
    );
    assert_eq!((service.check, service.check_timeout), (None, 30 * second));
    assert_eq!(
        (service.ready, service.ready_timeout),
        (Ready::Tcp, 30 * second)
    );
    assert_eq!(
        (service.ready_settle, service.min_ready),
        (second / 10, second)
    );
    assert_eq!(
        (service.drain_delay, service.drain_signal),
        (Duration::ZERO, None)
    );
    assert_eq!(service.drain_timeout, Some(30 * second));
    assert_eq!(service.stop_signal, nix::sys::signal::SIGTERM);
    assert_eq!(service.stop_timeout, 5 * second);
    assert_eq!(service.keep_previous, Duration::ZERO);
    assert_eq!((service.max_generations, service.retry), (8, false));
    assert_eq!(
        (service.backlog, service.keepalive),
        (4096, Some(60 * second))
    );
    let gate = service.gate;
    assert_eq!(gate.pending_timeout, 30 * second);
    assert_eq!(gate.pending_overflow, Overflow::Backpressure);
    assert_eq!(gate.dispatch_concurrency, 64);
    assert_eq!(gate.connect_timeout, 3 * second);
    assert_eq!(
        (gate.idle_timeout, gate.half_close_timeout),
        (None, Some(300 * second))
    );
    assert_eq!(gate.keepalive, Some(60 * second));
    assert_eq!((gate.send_proxy, gate.accept_proxy), (None, None));
    assert_eq!(gate.accept_proxy_timeout, 3 * second);
    assert!(gate.sources.is_empty());
}

#[test]
fn some_defaults_depend_on_others() {
    let replace = only(flags("--listen 80 --strategy replace -- app").unwrap());
    assert_eq!(replace.drain_timeout, Some(Duration::from_secs(5)));
    assert_eq!(replace.gate.pending_timeout, Duration::from_secs(40));
    let passed = flags("--listen 80 -- app fd@{fd}").unwrap();
    assert_eq!(passed.config.process.max_connections, (1024 - 128 - 17) / 2);
    assert_eq!(only(passed).pass, Pass::Fd);
    let off = only(flags("--listen 80 --drain-timeout off --strategy replace -- app").unwrap());
    assert_eq!(off.drain_timeout, None);
    let beside = flags("--listen 80 --control /tmp/x/c.sock -- app").unwrap();
    assert_eq!(beside.config.process.runtime_dir, Path::new("/tmp/x"));
    let here = flags("--listen 80 --control c.sock -- app").unwrap();
    assert_eq!(here.config.process.runtime_dir, Path::new("."));
}

#[test]
fn haproxy_has_defaults_of_its_own() {
    let service = only(flags("--haproxy haproxy.cfg").unwrap());
    assert_eq!(service.listeners, []);
    assert_eq!(service.drain_signal, Some(Signal::SIGUSR1));
    assert_eq!(service.stop_signal, Signal::SIGUSR1);
    assert_eq!(service.gate.send_proxy, Some(Version::V2));
    assert!(service.retry && !service.is_complete());
    for other in [
        "--listen 80",
        "--backend 127.0.0.1:80",
        "--pass fd",
        "--check true",
        "--ready tcp",
        "--send-proxy v1",
        "--accept-proxy 10.0.0.0/8",
        "--strategy replace",
        "-- haproxy",
    ] {
        let error = flags(&format!("--haproxy haproxy.cfg {other}")).unwrap_err();
        let what = error.to_string();
        let place = match other {
            "-- haproxy" => "COMMAND",
            _ => other.split(' ').next().unwrap(),
        };
        assert!(what.starts_with(place), "{what}");
        assert!(what.contains("beside haproxy"), "{what}");
    }
}

/// marathon-lb's variable, where it is meant.
#[test]
fn sigterm_delay_is_haproxys_drain_timeout() {
    let delayed = |delay: &str, line: &str| {
        let variables = [("HAPROXY_RELOAD_SIGTERM_DELAY", delay)];
        loader_with(line, &variables, facts()).and_then(|loader| loader.load())
    };
    let haproxy = "--haproxy haproxy.cfg";
    let timeout = |line: &str| only(delayed("5m", line).unwrap()).drain_timeout;
    assert_eq!(timeout(haproxy), Some(Duration::from_secs(300)));
    let written = format!("{haproxy} --drain-timeout 1s");
    assert_eq!(timeout(&written), Some(Duration::from_secs(1)));
    let other = "--listen 8080 --backend 127.0.0.1:80";
    assert_eq!(timeout(other), Some(Duration::from_secs(30)));
    let error = delayed("soon", haproxy).unwrap_err().to_string();
    assert!(
        error.starts_with("HAPROXY_RELOAD_SIGTERM_DELAY: `soon`"),
        "{error}"
    );
}
