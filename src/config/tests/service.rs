use super::*;

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
        "--backend: listener b has no backend: add one for it, as in b=ADDR, or one without a name for all",
    );
    refuses(
        "--listen 80 --backend web=h:1",
        "--backend: there is no listener web (there is l0): name one that there is, or none for all",
    );
    assert_eq!(
        file("[services.web]\nbackend = \"h:1\"\n", "", &[]).unwrap_err(),
        "gate.toml:1: service web: no listener: say where clients come in, as in --listen 8080"
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

    let replace = "--listen 80 --strategy replace";
    let line = format!("{replace} --ready-timeout 31s -- app");
    let [gap] = <[_; 1]>::try_from(warnings(&line)).unwrap();
    assert!(gap.contains("a replace may take 41s"), "{gap}");
    let line = format!("{replace} --ready-timeout 31s --pending-timeout 41s -- app");
    assert!(warnings(&line).is_empty());

    let [kept] = <[_; 1]>::try_from(warnings("--listen 80 --keep-previous 500ms -- app")).unwrap();
    assert!(
        kept.starts_with("--keep-previous: shorter than min_ready (1s)"),
        "{kept}"
    );

    let [many] = <[_; 1]>::try_from(warnings("--listen 80 --max-connections 448 -- app")).unwrap();
    assert!(many.contains("accepting pauses near 447"), "{many}");
}

/// What everybody sees who writes no more than has to be written.
#[test]
fn defaults_warn_of_nothing() {
    for line in [
        "--listen 80 -- app {port}",
        "--listen 80 -- app",
        "--listen 80 --backend 127.0.0.1:81",
        "--listen 80 --strategy replace -- app",
        "--listen 80 --strategy replace --backend 127.0.0.1:81 -- app",
        "--listen 80 --pass listen-fds -- app",
        "--listen fd:web --listen fd:tls -- app",
        "--haproxy haproxy.cfg",
    ] {
        assert_eq!(
            flags(line).unwrap().warnings,
            Vec::<String>::new(),
            "{line}"
        );
    }
}

#[test]
fn a_listener_that_no_placeholder_stands_for_is_warned_about() {
    let warnings = |line: &str| {
        flags(&format!("--listen web=80 --listen admin=81 {line}"))
            .unwrap()
            .warnings
    };
    for (line, lacks, variable) in [
        (
            "-- app {addr_web}:{port_web}",
            "listener admin has no {port_admin}",
            "SYNGATE_PORT_ADMIN",
        ),
        (
            "-- app {port}",
            "listener admin has no {port_admin}",
            "SYNGATE_PORT_ADMIN",
        ),
        (
            "-- app {socket_admin}",
            "listener web has no {socket_web}",
            "SYNGATE_SOCKET_WEB",
        ),
        (
            "-- app {fd_web}",
            "listener admin has no {fd_admin}",
            "SYNGATE_FD_ADMIN",
        ),
        (
            "-- app {addr_web}",
            "listener admin has no {addr_admin}",
            "SYNGATE_ADDR_ADMIN",
        ),
    ] {
        let says = format!("COMMAND: {lacks}: add it, unless what COMMAND starts reads {variable}");
        assert_eq!(warnings(line), [says], "{line}");
        assert_eq!(
            warnings(&format!("{line} ${variable}")),
            Vec::<String>::new(),
            "{line}"
        );
    }
    for line in [
        "-- app {port} {port_admin}",
        "-- app {port_web} {port_admin} {addr}",
        "--pass listen-fds -- app {port_web}",
        "--strategy replace --backend 127.0.0.1:82 -- app {port_web}",
        "-- app",
    ] {
        assert_eq!(warnings(line), Vec::<String>::new(), "{line}");
    }
    assert_eq!(
        warnings("-- app {port} {port_amdin}"),
        ["COMMAND: {port_amdin} stands for no listener (there are web, admin): correct its name"]
    );
}
