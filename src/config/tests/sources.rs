use std::time::Duration;

use proptest::prelude::{Just, Strategy as _, any, prop_assert_eq, prop_oneof, proptest};
use syngate_gate::Overflow;
use syngate_gate::listener::Address;
use syngate_gate::proxy_protocol::Version;

use super::*;

#[test]
fn flag_over_variable_over_file_over_default() {
    let text = "workers = 3\npending_max = 3\nlame_duck = \"3s\"\n[services.web]\nlisten = 80\ncommand = \"app\"\n\
        min_ready = \"3s\"\nready_timeout = \"3s\"\nconnect_timeout = \"4s\"\n";
    let variables = [
        ("SYNGATE_WORKERS", "2"),
        ("SYNGATE_PENDING_MAX", "2"),
        ("SYNGATE_READY_TIMEOUT", "2s"),
        ("SYNGATE_MIN_READY", "2s"),
        ("SYNGATE_PORT", "tcp://10.0.0.1:80"),
        ("SYNGATE_METRICS", ""),
    ];
    let loaded = file(text, "--workers 1 --min-ready 1s", &variables).unwrap();
    let process = &loaded.config.process;
    assert_eq!((process.workers, process.pending_max), (1, 2));
    assert_eq!(process.lame_duck, Duration::from_secs(3));
    assert!(process.metrics.is_some());
    let service = only(loaded);
    assert_eq!(service.name, "web");
    assert_eq!(service.min_ready, Duration::from_secs(1));
    assert_eq!(service.ready_timeout, Duration::from_secs(2));
    assert_eq!(service.gate.connect_timeout, Duration::from_secs(4));
}

#[test]
fn repeated_values_stand_side_by_side_in_a_variable() {
    let variables = [
        ("SYNGATE_LISTEN", "80 tls=443"),
        ("SYNGATE_BACKEND", "l0=127.0.0.1:8080  tls=127.0.0.1:8443"),
        ("SYNGATE_SOURCE", "10.0.0.1,10.0.0.2"),
    ];
    let loader = loader_with("", &variables, facts()).unwrap();
    let service = only(loader.load().unwrap());
    assert_eq!(service.listeners.len(), 2);
    assert_eq!(service.gate.sources.len(), 2);
    assert!(matches!(service.backend, Backend::Addresses(all) if all.len() == 2));
}

#[test]
fn every_option_is_read_from_a_file() {
    let text = r#"
        control = "/tmp/g/control.sock"
        runtime_dir = "/tmp/g/run"
        metrics = "off"
        workers = 2
        log_format = "json"
        log_level = "debug"
        max_connections = 100
        pending_max = 50
        lame_duck = "1s"
        shutdown_timeout = "5s"

        [services.web]
        listen = ["fd:web", "unix:/run/a.sock,mode=0660"]
        command = ["app", "{dir}"]
        pass = "listen-fds"
        check = "app -t"
        check_timeout = "10s"
        ready = "http:/health"
        ready_timeout = "20s"
        ready_settle = "0s"
        min_ready = "off"
        drain_delay = "1s"
        drain_signal = "USR1"
        drain_timeout = "1m"
        retry = true
        stop_signal = "QUIT"
        stop_timeout = "2s"
        keep_previous = "10s"
        max_generations = 3
        pending_timeout = "5s"
        pending_overflow = "reset"
        dispatch_concurrency = 8
        connect_timeout = "1s"
        idle_timeout = "10m"
        half_close_timeout = "off"
        keepalive = "off"
        backlog = 128
        source = ["10.0.0.1", "10.0.0.2"]
        send_proxy = "v2"
        accept_proxy = ["10.0.0.0/8", "unix"]
        accept_proxy_timeout = "1s"

        [services.front]
        haproxy = ["/etc/haproxy/haproxy.cfg", "/etc/haproxy/conf.d"]
        haproxy_binary = "/opt/haproxy/sbin/haproxy"
        haproxy_args = "-q -n 4000"
    "#;
    // Whatever option is added has to be here too.
    for key in layer::keys::<ProcessOptions>()
        .iter()
        .chain(&layer::keys::<ServiceOptions>())
        .filter(|key| *key != "backend" && *key != "strategy")
    {
        assert!(text.contains(&format!("{key} = ")), "{key}");
    }
    let loaded = file(text, "", &[]).unwrap();
    assert_eq!(loaded.config.process.metrics, None);
    assert_eq!(loaded.config.process.max_connections, 100);
    assert_eq!(loaded.log_format, LogFormat::Json);
    let mut services = loaded.config.services.into_iter();
    let service = services.next().unwrap();
    assert_eq!(service.pass, Pass::ListenFds);
    assert_eq!(service.min_ready, Duration::ZERO);
    assert!(service.retry);
    assert_eq!(service.gate.send_proxy, Some(Version::V2));
    assert_eq!(
        service.gate.accept_proxy,
        Some("10.0.0.0/8,unix".parse().unwrap())
    );
    assert_eq!(service.gate.half_close_timeout, None);
    assert_eq!(service.gate.sources.len(), 2);
    let front = services.next().unwrap();
    let Backend::Haproxy(haproxy) = front.backend else {
        panic!("{:?}", front.backend);
    };
    assert_eq!(haproxy.files.len(), 2);
    assert_eq!(haproxy.program, "/opt/haproxy/sbin/haproxy");
    assert_eq!(haproxy.arguments, ["-q", "-n", "4000"]);
}

#[test]
fn bad_values_name_their_place() {
    let text = "metrics = \"9464\"\n[services.web]\nlisten = 80\ncommand = \"app\"\n";
    assert_eq!(
        file(text, "", &[]).unwrap_err(),
        "gate.toml:1: metrics: `9464` isn't IP:PORT: write 127.0.0.1:9464, [::1]:9464 or off"
    );
    let variables = [("SYNGATE_MIN_READY", "5"), ("SYNGATE_LISTEN", "80")];
    let loader = loader_with("", &variables, facts()).unwrap();
    assert_eq!(
        loader.load().unwrap_err().to_string(),
        "SYNGATE_MIN_READY: `5` has no unit: write 5s or 5ms"
    );
    let text = "[services.web]\npass = \"fds\"\n";
    assert_eq!(
        file(text, "", &[]).unwrap_err(),
        "gate.toml:2: pass: `fds` isn't known: write fd or listen-fds or none"
    );
    let text = "[services.web]\nretry = 1\n";
    assert_eq!(
        file(text, "", &[]).unwrap_err(),
        "gate.toml:2: retry: `1` isn't known: write true or false"
    );
    let text = "[services.web]\nbacklog = 0\n";
    let error = file(text, "", &[]).unwrap_err();
    assert!(error.starts_with("gate.toml:2: backlog: "), "{error}");
}

#[test]
fn a_file_that_cant_be_read_is_named() {
    assert_eq!(
        flags("--config /nowhere/gate.toml --listen 80 -- app").unwrap_err(),
        StartError::Invalid(
            "/nowhere/gate.toml doesn't exist: name another with --config".to_owned()
        )
    );
    let variables = [("SYNGATE_CONFIG", "/nowhere/else.toml")];
    let error = loader_with("", &variables, facts())
        .unwrap()
        .load()
        .unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("/nowhere/else.toml doesn't exist")
    );
}

#[test]
fn with_several_services_a_flag_for_one_is_refused() {
    let text = "[services.a]\nlisten = 80\nbackend = \"h:1\"\n[services.b]\nlisten = 81\nbackend = \"h:1\"\n";
    assert_eq!(
        file(text, "--workers 2", &[])
            .unwrap()
            .config
            .services
            .len(),
        2
    );
    let says = "the file has several services, and this doesn't say which is meant: write it into the file";
    assert_eq!(
        file(text, "--min-ready 1s", &[]).unwrap_err(),
        format!("--min-ready: {says}")
    );
    assert_eq!(
        file(text, "-- app", &[]).unwrap_err(),
        format!("COMMAND: {says}")
    );
    let variables = [("SYNGATE_STOP_SIGNAL", "INT")];
    assert_eq!(
        file(text, "", &variables).unwrap_err(),
        format!("SYNGATE_STOP_SIGNAL: {says}")
    );
}

#[test]
fn the_command_line_is_sound() {
    use clap::CommandFactory;

    Cli::command().debug_assert();
}

#[test]
fn values_on_the_command_line_are_refused_by_its_parser() {
    for line in [
        "--min-ready 5",
        "--listen x",
        "--backend 80",
        "--retry=maybe",
        "--log-level a=b=c",
        "--workers 0",
    ] {
        let words = ["syngate", "run"]
            .into_iter()
            .chain(line.split_whitespace());
        let error = Cli::try_parse_from(words).unwrap_err();
        assert_eq!(error.exit_code(), 2, "{line}");
    }
}

/// A duration and its text.
fn duration() -> impl proptest::strategy::Strategy<Value = (Duration, String)> {
    (
        1..1000_u64,
        prop_oneof![Just(("ms", 1)), Just(("s", 1000)), Just(("m", 60_000))],
    )
        .prop_map(|(n, (unit, factor))| (Duration::from_millis(n * factor), format!("{n}{unit}")))
}

proptest! {
    #[test]
    fn what_is_rendered_is_read_back(
        min_ready in duration(),
        drain_timeout in proptest::option::of(duration()),
        argv in proptest::collection::vec("[a-z$ '\"\\\\-]{1,8}", 1..4),
        port in 1..65535_u16,
        reset in any::<bool>(),
        backlog in 1..10_000_u32,
    ) {
        let overflow = if reset { "reset" } else { "backpressure" };
        let drain = drain_timeout.as_ref().map_or("off", |(_, text)| text);
        let command: Vec<_> = argv.iter().map(|arg| format!("{arg:?}")).collect();
        let text = format!(
            "[services.web]\nlisten = {port}\ncommand = [{}]\nmin_ready = \"{}\"\ndrain_timeout = \"{drain}\"\npending_overflow = \"{overflow}\"\nbacklog = {backlog}\n",
            command.join(", "), min_ready.1,
        );
        let service = only(file(&text, "", &[]).unwrap());
        prop_assert_eq!(service.listeners[0].address.clone(), Address::Port(port));
        prop_assert_eq!(service.backend, Backend::Command { argv, fixed: vec![] });
        prop_assert_eq!(service.min_ready, min_ready.0);
        prop_assert_eq!(service.drain_timeout, drain_timeout.map(|(time, _)| time));
        prop_assert_eq!(service.gate.pending_overflow == Overflow::Reset, reset);
        prop_assert_eq!(service.backlog, backlog);
    }
}
