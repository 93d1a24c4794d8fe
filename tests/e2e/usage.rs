//! What can't be: one sentence that names the place and the cure, the right exit code, and nothing half started.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use crate::common::backend::{self, Hop};
use crate::common::done::Done;
use crate::common::gate::Setup;
use crate::common::net::Net;

/// Starts what can't start: it ends with `code`, says `words`, and leaves no socket, no port and no child.
#[track_caller]
fn refused(setup: Setup, code: i32, words: &[&str]) {
    let public = setup.public();
    let mut gate = setup.spawn();
    let status = gate.wait_exit(Duration::from_secs(15));
    let log = gate.log();
    assert_eq!(status.code(), Some(code), "{log}");
    for word in words {
        assert!(log.contains(word), "`{word}` is missing in:\n{log}");
    }
    assert!(!log.contains("panicked"), "{log}");
    assert!(log.lines().count() <= 12, "that is no sentence:\n{log}");
    assert!(!gate.control().exists(), "the control socket is left");
    assert_eq!(gate.children(), []);
    assert_free(public);
}

#[track_caller]
fn assert_free(address: SocketAddr) {
    drop(TcpListener::bind(address).expect("the public port is free"));
}

fn with_backend(net: &Net) -> Setup {
    Setup::new(net).backend(backend::own(Hop::Socket, &[]))
}

#[test]
fn bad_flags_are_usage_errors() {
    let net = Net::new();
    for (options, words) in [
        (
            &["--drain-timout", "5s"][..],
            &["--drain-timout", "drain-timeout"][..],
        ),
        (&["--drain-timeout", "5"], &["--drain-timeout", "5"]),
        (
            &["--drain-timeout", "5 parsecs"],
            &["--drain-timeout", "parsecs"],
        ),
        (&["--listen", "127.0.0.1:99999"], &["--listen", "99999"]),
        (&["--listen", "nonsense"], &["--listen", "nonsense"]),
        (&["--strategy", "hope"], &["--strategy", "hope", "replace"]),
        (&["--ready", "whenever"], &["--ready", "whenever"]),
        (
            &["--drain-signal", "SIGNOTHING"],
            &["--drain-signal", "SIGNOTHING"],
        ),
        (
            &["--accept-proxy", "10.0.0.0/64"],
            &["--accept-proxy", "10.0.0.0/64"],
        ),
        (&["--send-proxy", "v3"], &["--send-proxy", "v3"]),
        (&["--workers", "0"], &["--workers"]),
        (&["--pending-max", "-1"], &["-1"]),
    ] {
        refused(with_backend(&net).options(options), 2, words);
    }
}

#[test]
fn contradictions_are_configuration_errors() {
    let net = Net::new();
    refused(Setup::new(&net), 78, &["backend"]);
    refused(
        Setup::bare(&net).options(["--backend", "127.0.0.1:9"]),
        78,
        &["listen"],
    );
    let twice = Setup::new(&net);
    let listen = twice.public().to_string();
    refused(
        twice.options(["--backend", "127.0.0.1:9", "--listen", &listen]),
        78,
        &[&listen],
    );
    refused(
        Setup::new(&net).options(["--backend", "nobody=127.0.0.1:9"]),
        78,
        &["nobody"],
    );
}

#[test]
fn bad_variables_are_configuration_errors() {
    let net = Net::new();
    refused(
        with_backend(&net).environment("SYNGATE_DRAIN_TIMEOUT", "soon"),
        78,
        &["SYNGATE_DRAIN_TIMEOUT", "soon"],
    );
    // Kubernetes makes variables of this kind.
    drop(
        with_backend(&net)
            .environment("SYNGATE_PORT", "tcp://10.0.0.1:80")
            .start(),
    );
}

#[test]
fn bad_files_are_configuration_errors() {
    let net = Net::new();
    let service = "[services.web]\nlisten = ['127.0.0.1:7']\nbackend = ['127.0.0.1:9']\n";
    let cases: [(String, &[&str]); 7] = [
        (
            format!("lame_dock = '5s'\n{service}"),
            &["lame_dock", "syngate.toml"],
        ),
        (
            format!("lame_duck = 5\n{service}"),
            &["lame_duck", "syngate.toml"],
        ),
        (
            format!("lame_duck = '5 lightyears'\n{service}"),
            &["lame_duck", "lightyears"],
        ),
        ("this is no TOML".to_owned(), &["syngate.toml", "1"]),
        (
            format!("{service}colour = 'green'"),
            &["colour", "syngate.toml"],
        ),
        (
            format!("{service}{}", service.replace("web", "other")),
            &["127.0.0.1:7", "web", "syngate.toml:5"],
        ),
        (
            service.replace("backend = ['127.0.0.1:9']", ""),
            &["web", "backend"],
        ),
    ];
    for (text, words) in cases {
        let setup = Setup::bare(&net).options(["--config", "syngate.toml"]);
        fs::write(setup.dir().join("syngate.toml"), text).expect("the file");
        refused(setup, 78, words);
    }
    refused(
        Setup::bare(&net).options(["--config", "nowhere.toml"]),
        78,
        &["nowhere.toml"],
    );
}

#[test]
fn several_services_in_a_file_run_and_reload_by_name() {
    let net = Net::new();
    let (one, two) = (net.free_address(), net.free_address());
    let setup = Setup::bare(&net).options(["--config", "syngate.toml"]);
    let command = format!("{:?}", backend::own(Hop::Socket, &[]));
    let service = |name: &str, address| {
        format!(
            "[services.{name}]\nlisten = ['{address}']\nmin_ready = '100ms'\ncommand = {command}\n"
        )
    };
    fs::write(
        setup.dir().join("syngate.toml"),
        service("one", one) + &service("two", two),
    )
    .expect("the file");
    let gate = setup.start();
    gate.run(["reload", "two"]).expect_code(0);
    let generation = |address| {
        crate::common::http::get(address, "/generation")
            .expect("an answer")
            .text()
    };
    assert_eq!(
        (generation(one), generation(two)),
        ("1".to_owned(), "2".to_owned())
    );
    gate.run(["reload"]).expect_code(0);
    assert_eq!(
        (generation(one), generation(two)),
        ("2".to_owned(), "3".to_owned())
    );
    gate.run(["rollback"]).expect_words(&["one", "two"]); // which one?
    // A file that can't be read changes nothing.
    fs::write(gate.dir().join("syngate.toml"), "nonsense").expect("the file");
    let done = gate.run(["reload"]);
    done.expect_words(&["syngate.toml"]);
    assert_ne!(done.code, Some(0));
    assert_eq!(
        (generation(one), generation(two)),
        ("2".to_owned(), "3".to_owned())
    );
    // A service that goes with the file goes with the next reload of all.
    fs::write(gate.dir().join("syngate.toml"), service("one", one)).expect("the file");
    gate.run(["reload"]).expect_code(0);
    assert_eq!(generation(one), "3");
    assert_free(two);
}

#[test]
fn taken_port_is_named() {
    let net = Net::new();
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    let setup = with_backend(&net).options(["--listen", &address]);
    refused(setup, 71, &[&address]);
    let setup = with_backend(&net).replace_metrics(taken.local_addr().expect("an address"));
    refused(setup, 71, &[&address]);
}

#[test]
fn port_80_without_the_right_names_the_cure() {
    let Some(net) = Net::isolated() else { return };
    let setup = Setup::bare(&net).options(["--listen", "127.0.0.1:80", "--backend", "127.0.0.1:9"]);
    fs::set_permissions(
        setup.dir(),
        std::os::unix::fs::PermissionsExt::from_mode(0o777),
    )
    .expect("chmod");
    let as_nobody = [
        "setpriv",
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
    ];
    refused(
        setup.under(as_nobody),
        71,
        &[
            "port 80",
            "net.ipv4.ip_unprivileged_port_start",
            "CAP_NET_BIND_SERVICE",
        ],
    );
}

#[test]
fn missing_command_is_named() {
    let net = Net::new();
    refused(
        Setup::new(&net).backend(vec!["/no/such/server".to_owned()]),
        71,
        &["/no/such/server"],
    );
    refused(
        Setup::new(&net).backend(vec!["no-such-server".to_owned()]),
        71,
        &["no-such-server"],
    );
}

#[test]
fn no_place_for_the_control_socket_is_named() {
    let net = Net::new();
    let setup = with_backend(&net).replace_control("/proc/nowhere/control.sock");
    refused(setup, 71, &["/proc/nowhere"]);
}

#[test]
fn check_says_what_run_would() {
    let net = Net::new();
    let check =
        |setup: &Setup| Done::from(setup.command_of("check").output().expect("syngate runs"));
    let good = with_backend(&net);
    check(&good).expect_code(0);
    assert_free(good.public());
    assert!(!good.dir().join("control.sock").exists());
    let failing = with_backend(&net).options(["--check", "sh -c 'echo line 3 is wrong; exit 1'"]);
    check(&failing)
        .expect_code(78)
        .expect_words(&["line 3 is wrong"]);
    check(&Setup::new(&net))
        .expect_code(78)
        .expect_words(&["backend"]);
}
