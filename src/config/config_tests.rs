use std::ffi::OsString;
use std::time::Duration;

use clap::Parser;
use nix::sys::signal::Signal;
use proptest::prelude::{Just, Strategy as _, any, prop_assert_eq, prop_oneof, proptest};
use syngate_gate::Overflow;
use syngate_gate::proxy_protocol::Version;
use syngate_supervisor::config::{Backend, Strategy};
use syngate_supervisor::readiness::Ready;

use super::*;
use crate::cli::{Cli, Verb};

fn facts() -> Facts {
    Facts {
        default_control: || Ok(PathBuf::from("/run/syngate/control.sock")),
        nofile: 1024,
        cores: 4,
        ephemeral_ports: 32768..=60999,
        inherited: Some(vec!["web".to_owned(), "tls".to_owned()]),
    }
}

fn args(line: &str) -> RunArgs {
    let words = ["syngate", "run"]
        .into_iter()
        .chain(line.split_whitespace());
    match Cli::try_parse_from(words) {
        Ok(Cli {
            verb: Verb::Run(args),
        }) => args,
        other => panic!("{line}: {other:?}"),
    }
}

fn loader_with(line: &str, variables: &[(&str, &str)], facts: Facts) -> Result<Loader, StartError> {
    let environment = |name: &str| {
        let found = variables.iter().find(|(known, _)| *known == name);
        found.map(|(_, text)| OsString::from(text))
    };
    Loader::new(args(line), &environment, facts)
}

/// Loads what flags say.
fn flags(line: &str) -> Result<Loaded, StartError> {
    loader_with(line, &[], facts())?.load()
}

/// Loads a file, under the name `gate.toml`, beneath flags and variables.
fn file(text: &str, line: &str, variables: &[(&str, &str)]) -> Result<Loaded, String> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("gate.toml");
    std::fs::write(&path, text).unwrap();
    let path = path.display().to_string();
    loader_with(&format!("--config {path} {line}"), variables, facts())
        .and_then(|loader| loader.load())
        .map_err(|error| error.to_string().replace(&path, "gate.toml"))
}

#[track_caller]
fn refuses(line: &str, says: &str) {
    assert_eq!(
        flags(line).unwrap_err(),
        StartError::Invalid(says.to_owned())
    );
}

fn only(loaded: Loaded) -> ServiceConfig {
    let [service] = <[_; 1]>::try_from(loaded.config.services).unwrap();
    service
}

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
fn a_service_needs_a_listener_and_a_backend() {
    refuses(
        "-- app",
        "service default: no listener: say where clients come in, as in --listen 8080",
    );
    refuses(
        "--listen 80",
        "service default: no backend: say what starts one after `--`, or where one listens with --backend",
    );
    refuses(
        "--listen a=80 --listen b=81 --backend a=h:1",
        "--backend: listener b has no backend: add --backend b=ADDR, or one without a name for all",
    );
    refuses(
        "--listen 80 --backend web=h:1",
        "--backend: there is no listener web (there are l0): name one of these, or none for all",
    );
    assert_eq!(
        file("[services.web]\nbackend = \"h:1\"\n", "", &[]).unwrap_err(),
        "gate.toml:1: service web: no listener: say where clients come in, as in --listen 8080"
    );
}

#[test]
fn listeners_dont_collide() {
    refuses(
        "--listen l1=80 --listen 81 -- app",
        "--listen: two listeners are called l1: give one another name, as in --listen web=8080",
    );
    refuses(
        "--listen 80 --listen web=80 -- app",
        "--listen: 80 is taken by 80 of listener l0 of service default: remove one",
    );
    for both in [
        ["80", "[::]:80"],
        ["[::1]:80", "80"],
        ["0.0.0.0:80", "127.0.0.1:80"],
        ["[::]:80", "[::1]:80"],
        ["unix:/a", "unix:/a,mode=0600"],
        ["fd:web", "fd:web"],
    ] {
        let line = format!("--listen {} --listen {} -- app", both[0], both[1]);
        let error = flags(&line).unwrap_err().to_string();
        assert!(error.contains("is taken by"), "{line}: {error}");
    }
    for both in [
        ["80", "81"],
        ["80", "0.0.0.0:80"],
        ["[::]:80", "0.0.0.0:80"],
        ["127.0.0.1:80", "127.0.0.2:80"],
        ["127.0.0.1:0", "127.0.0.1:0"],
        ["unix:/a", "unix:/b"],
        ["fd:web", "fd:tls"],
    ] {
        let line = format!("--listen {} --listen {} -- app", both[0], both[1]);
        assert!(flags(&line).is_ok(), "{line}");
    }
    let text = "[services.a]\nlisten = 80\nbackend = \"h:1\"\n[services.b]\nlisten = [81, 80]\nbackend = \"h:1\"\n";
    assert_eq!(
        file(text, "", &[]).unwrap_err(),
        "gate.toml:5: listen: 80 is taken by 80 of listener l0 of service a: remove one"
    );
}

#[test]
fn inherited_sockets_must_be_there() {
    refuses(
        "--listen fd:http -- app",
        "--listen: no inherited socket is called http (there are web, tls): set FileDescriptorName= in the socket unit, or LISTEN_FDNAMES",
    );
    let unknown = Facts {
        inherited: None,
        ..facts()
    };
    let loader = loader_with("--listen fd:http -- app", &[], unknown).unwrap();
    assert!(loader.load().is_ok());
}

#[test]
fn what_needs_a_command_is_refused_without_one() {
    let cure = "say what starts the backend after `--`, or remove it";
    for (flag, what) in [
        ("pass fd", "there is no COMMAND to pass listeners to"),
        ("strategy replace", "there is no COMMAND to replace"),
        ("ready notify", "there is no COMMAND that could say so"),
        ("ready fd:3", "there is no COMMAND that could say so"),
        ("drain-signal USR1", "there is no COMMAND to signal"),
    ] {
        let key = flag.split(' ').next().unwrap();
        refuses(
            &format!("--listen 80 --backend h:1 --{flag}"),
            &format!("--{key}: {what}: {cure}"),
        );
    }
}

#[test]
fn a_commands_placeholders_agree_with_the_rest() {
    for tcp in ["{addr}", "{port}", "{addr_l0}"] {
        refuses(
            &format!("--listen 80 -- app {{socket}} {tcp}"),
            "COMMAND: {socket} asks for a unix socket, {addr} and {port} for TCP: use one kind",
        );
    }
    assert_eq!(
        only(flags("--listen web=80 -- app {fd_web}").unwrap()).pass,
        Pass::Fd
    );
    for pass in ["none", "listen-fds"] {
        refuses(
            &format!("--listen 80 --pass {pass} -- app {{fd}}"),
            "--pass: COMMAND has {fd}, and no listener is passed that way: write fd, or remove {fd}",
        );
    }
    refuses(
        "--listen 80 --backend 127.0.0.1:81 --pass fd --strategy replace -- app",
        "--backend: with pass COMMAND listens on what it is passed, so it has no address of its own: remove one of the two",
    );
    refuses(
        "--listen 80 --backend 127.0.0.1:81 -- app",
        "--backend: two generations can't listen on one address at once: use {addr}, {port} or {socket} in COMMAND, or add --strategy replace",
    );
    assert!(flags("--listen 80 --backend 127.0.0.1:81 --strategy replace -- app").is_ok());
}

#[test]
fn strategies_have_their_limits() {
    refuses(
        "--listen 80 --strategy replace --keep-previous 1m -- app",
        "--keep-previous: replace stops the old generation before the new one starts, so there is nothing to keep: remove one of the two",
    );
    refuses(
        "--listen 80 --strategy replace --retry -- app",
        "--retry: replace tries a failed start again by itself: remove retry",
    );
    refuses(
        "--listen 80 --max-generations 1 -- app",
        "--max-generations: a reload needs room for two generations: write at least 2, or add --strategy replace",
    );
    assert!(flags("--listen 80 --strategy replace --max-generations 1 -- app").is_ok());
    assert!(flags("--listen 80 --strategy replace --retry=false -- app").is_ok());
}

#[test]
fn what_works_but_hardly_as_meant_is_warned_about() {
    let warnings = |line: &str| flags(line).unwrap().warnings;
    let [port] = <[_; 1]>::try_from(warnings("--listen 80 --backend 127.0.0.1:40000")).unwrap();
    assert!(
        port.starts_with("--backend: port 40000 is in net.ipv4.ip_local_port_range"),
        "{port}"
    );
    assert!(warnings("--listen 80 --backend 10.0.0.1:40000").is_empty());
    assert!(warnings("--listen 80 --backend localhost:8080").is_empty());

    let [gap] = <[_; 1]>::try_from(warnings("--listen 80 --strategy replace -- app")).unwrap();
    assert!(gap.contains("a replace may take 40s"), "{gap}");
    assert!(warnings("--listen 80 --strategy replace --pending-timeout 40s -- app").is_empty());

    let [kept] = <[_; 1]>::try_from(warnings("--listen 80 --keep-previous 500ms -- app")).unwrap();
    assert!(
        kept.starts_with("--keep-previous: shorter than min_ready (1s)"),
        "{kept}"
    );

    let [many] = <[_; 1]>::try_from(warnings("--listen 80 --max-connections 448 -- app")).unwrap();
    assert!(many.contains("accepting pauses near 447"), "{many}");
}

#[test]
fn too_few_descriptors_are_the_systems_refusal() {
    let with = |nofile| {
        let facts = Facts { nofile, ..facts() };
        loader_with("--listen 80 -- app", &[], facts)
            .unwrap()
            .load()
    };
    assert_eq!(
        with(256).unwrap().config.process.max_connections,
        (256 - 64 - 1) / 2
    );
    // 40 and two for each of four workers are the process's own, and there is a listener.
    assert_eq!(with(65).unwrap().config.process.max_connections, 8);
    let error = with(64).unwrap_err();
    assert!(matches!(&error, StartError::Refused(what) if what.contains("room for 7 connections")));
    assert!(matches!(with(0), Err(StartError::Refused(_))));
}

#[test]
fn no_place_for_the_control_socket_matters_only_where_none_is_given() {
    let nowhere = || Facts {
        default_control: || {
            Err(syngate_supervisor::control::ControlError::NoPlace {
                tried: "/run: read-only".to_owned(),
            })
        },
        ..facts()
    };
    let load = |line| loader_with(line, &[], nowhere()).unwrap().load();
    assert!(
        matches!(load("--listen 80 -- app"), Err(StartError::Refused(what)) if what.contains("/run: read-only"))
    );
    assert!(load("--listen 80 --control /tmp/c.sock -- app").is_ok());
}

#[test]
fn a_reload_reads_the_file_anew_and_refuses_what_is_fixed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("gate.toml");
    let write = |top: &str, service: &str| {
        let text = format!("{top}\n[services.web]\nlisten = 80\ncommand = \"app\"\n{service}\n");
        std::fs::write(&path, text).unwrap();
    };
    write("workers = 1\npending_max = 5", "");
    let loader = loader_with(&format!("--config {}", path.display()), &[], facts()).unwrap();
    let start = loader.load().unwrap();

    write("workers = 1\npending_max = 6", "min_ready = \"2s\"");
    let next = loader.load().unwrap();
    assert_eq!(next.refuse_changes(&start), Ok(()));
    assert_eq!(next.config.process.pending_max, 6);
    assert_eq!(next.config.services[0].min_ready, Duration::from_secs(2));

    for (top, key) in [
        ("workers = 2", "workers"),
        ("workers = 1\nmetrics = \"off\"", "metrics"),
        ("workers = 1\ncontrol = \"/tmp/other.sock\"", "control"),
        ("workers = 1\nruntime_dir = \"/tmp/other\"", "runtime_dir"),
        ("workers = 1\nlog_level = \"debug\"", "log_level"),
        ("workers = 1\nlog_format = \"json\"", "log_format"),
        ("", "workers"),
    ] {
        write(top, "");
        let error = loader.load().unwrap().refuse_changes(&start).unwrap_err();
        let says = format!(
            "{key} is fixed for the life of the gate: put the old value back, or restart the gate"
        );
        assert!(error.to_string().contains(&says), "{error}");
        assert!(
            error
                .to_string()
                .starts_with(&format!("{}:", path.display())),
            "{error}"
        );
    }
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
