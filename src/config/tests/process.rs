use std::time::Duration;

use super::*;

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
