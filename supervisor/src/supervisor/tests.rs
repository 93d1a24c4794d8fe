//! The loop on the real gate with real processes.

mod fixture;
mod listeners;

use std::io::{Read, Write};
use std::net::TcpStream;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use syngate_gate::listener::{Address, Own};

use super::*;
use crate::child::tests::spawner;
use crate::config::{Backend, ListenerConfig, Pass, Strategy};
use crate::protocol::{Line, Request, Status};
use fixture::*;

#[tokio::test]
async fn every_way_to_listen_is_served_reloaded_and_stopped() {
    let (spawner, _right) = spawner().await;
    let ways: [(&[&str], Pass); 5] = [
        (&["{addr}", "{port}"], Pass::None),
        (&["unix:{socket}"], Pass::None),
        (&["fd:{fd}"], Pass::Fd),
        (&["fd:{fd}", "{port}"], Pass::Fd),
        (&["fd:3"], Pass::ListenFds),
    ];
    for (words, pass) in ways {
        let named = |name| server(&[&[name], words].concat());
        let fixture = Fixture::serving(
            &spawner,
            vec![ServiceConfig {
                pass,
                ..service(named("one"))
            }],
        )
        .await;
        assert_eq!(fixture.get().await, "one", "{words:?}");
        fixture.change(|service| {
            service.backend = Backend::Command {
                argv: named("two"),
                fixed: Vec::new(),
            };
        });
        let done = fixture
            .ask(Request::Reload {
                service: None,
                drained: true,
            })
            .await
            .0;
        assert_eq!(done.exit, 0, "{words:?}: {}", done.message);
        assert_eq!(fixture.get().await, "two", "{words:?}");
        let status = fixture.handle.status().await.unwrap();
        assert_eq!(
            status.services[0].generations.len(),
            1,
            "{words:?}: {status:#?}"
        );
        let directory = fixture.stop().await;
        assert_eq!(left_in(directory.path()), Vec::<String>::new(), "{words:?}");
    }
}

#[tokio::test]
async fn a_command_that_names_no_place_may_take_it_from_the_environment() {
    let (spawner, _right) = spawner().await;
    for listen in ["$SYNGATE_ADDR $SYNGATE_PORT", "unix:$SYNGATE_SOCKET"] {
        let directory = tempfile::tempdir().unwrap();
        let script = directory.path().join("start");
        let python = directory.path().join("server.py");
        std::fs::write(&python, SERVER).unwrap();
        let text = format!("exec python3 {} hello {listen}\n", python.display());
        std::fs::write(&script, text).unwrap();
        let argv = vec!["sh".to_owned(), script.to_str().unwrap().to_owned()];
        let fixture = Fixture::serving(&spawner, vec![service(argv)]).await;
        assert_eq!(fixture.get().await, "hello", "{listen}");
        fixture.stop().await;
    }
}

#[tokio::test]
async fn failures_leave_the_old_generation_serving() {
    let (spawner, _right) = spawner().await;
    let fixture =
        Fixture::serving(&spawner, vec![service(server(&["one", "unix:{socket}"]))]).await;
    let good = fixture.file.lock().unwrap().services[0].clone();
    type Change = fn(&mut ServiceConfig);
    let cases: [(Change, &str); 4] = [
        (
            |service| {
                service.check = Some(vec![
                    "sh".into(),
                    "-c".into(),
                    "echo no good; exit 3".into(),
                ]);
            },
            "reload failed: the check `sh -c 'echo no good; exit 3'` exited with status 3: no good; generation 1 serves",
        ),
        (
            |service| {
                let argv = vec![
                    "sh".into(),
                    "-c".into(),
                    "echo {socket}; echo no luck; exit 7".into(),
                ];
                service.backend = Backend::Command {
                    argv,
                    fixed: Vec::new(),
                };
            },
            "exited with status 7 before it was ready: no luck; generation 1 serves",
        ),
        (
            |service| {
                let argv = vec!["sleep".into(), "100".into()];
                service.backend = Backend::Command {
                    argv,
                    fixed: Vec::new(),
                };
                service.ready_timeout = Duration::from_millis(100);
            },
            "generation 1 serves",
        ),
        (
            |service| {
                let argv = vec!["no-such-command".into(), "{socket}".into()];
                service.backend = Backend::Command {
                    argv,
                    fixed: Vec::new(),
                };
            },
            "can't be started: command `no-such-command` wasn't found",
        ),
    ];
    for (change, message) in cases {
        fixture.change(change);
        let done = fixture.reload().await;
        assert_eq!(done.exit, 1, "{}", done.message);
        assert!(done.message.contains(message), "{}", done.message);
        assert_eq!(fixture.get().await, "one");
        fixture.change(|service| *service = good.clone());
    }
    assert_eq!(fixture.reload().await.exit, 0);
    let directory = fixture.stop().await;
    assert_eq!(left_in(directory.path()), Vec::<String>::new());
}

#[tokio::test]
async fn a_killed_generation_is_started_again_and_its_queue_survives() {
    let (spawner, _right) = spawner().await;
    let fixture = Fixture::serving(
        &spawner,
        vec![ServiceConfig {
            pass: Pass::Fd,
            ..service(server(&["one", "fd:{fd}"]))
        }],
    )
    .await;
    let pid = |status: &Status| status.services[0].generations[0].pid.unwrap().cast_signed();
    let first = pid(&fixture.handle.status().await.unwrap());
    // Stopped, so that connections are queued in its kept listener.
    freeze(Pid::from_raw(first)).await;
    let address = fixture.address().await;
    let clients: Vec<_> = (0..5).map(|_| tokio::spawn(get(address))).collect();
    fixture
        .until(|status| status.services[0].generations[0].connections == 5)
        .await;
    kill(Pid::from_raw(first), Signal::SIGKILL).unwrap();
    for client in clients {
        assert_eq!(client.await.unwrap(), "one");
    }
    let status = fixture
        .until(|status| status.services[0].active == Some(2))
        .await;
    assert_ne!(pid(&status), first);
    fixture.stop().await;
}

#[tokio::test]
async fn what_is_left_in_a_kept_listener_goes_to_the_next_generation() {
    let (spawner, _right) = spawner().await;
    let fixture = Fixture::serving(
        &spawner,
        vec![ServiceConfig {
            pass: Pass::Fd,
            ..service(server(&["one", "fd:{fd}"]))
        }],
    )
    .await;
    let status = fixture.handle.status().await.unwrap();
    let first = Pid::from_raw(status.services[0].generations[0].pid.unwrap().cast_signed());
    freeze(first).await;
    let address = fixture.address().await;
    let client = tokio::spawn(get(address));
    fixture
        .until(|status| status.services[0].generations[0].connections == 1)
        .await;
    let argv = server(&["two", "fd:{fd}"]);
    fixture.change(|service| {
        service.backend = Backend::Command {
            argv,
            fixed: Vec::new(),
        }
    });
    assert_eq!(fixture.reload().await.exit, 0);
    kill(first, Signal::SIGKILL).unwrap();
    assert_eq!(client.await.unwrap(), "two");
    fixture.stop().await;
}

#[tokio::test]
async fn replace_holds_connections_while_nothing_runs() {
    let (spawner, _right) = spawner().await;
    let fixture = Fixture::serving(
        &spawner,
        vec![ServiceConfig {
            strategy: Strategy::Replace,
            ..service(server(&["one", "{addr}", "{port}"]))
        }],
    )
    .await;
    let address = fixture.address().await;
    let clients = tokio::spawn(async move {
        for _ in 0..50 {
            assert_eq!(get(address).await, "one");
        }
    });
    for _ in 0..3 {
        let done = fixture.reload().await;
        assert_eq!(done.exit, 0, "{}", done.message);
    }
    clients.await.unwrap();
    fixture.stop().await;
}

#[tokio::test]
async fn services_come_and_go_with_a_reload_of_all() {
    let (spawner, _right) = spawner().await;
    let one = service(server(&["one", "unix:{socket}"]));
    let two = ServiceConfig {
        name: "two".to_owned(),
        ..service(server(&["two", "unix:{socket}"]))
    };
    let fixture = Fixture::serving(&spawner, vec![one.clone()]).await;
    fixture.file.lock().unwrap().services.push(two);
    let (done, _) = fixture
        .ask(Request::Reload {
            service: None,
            drained: false,
        })
        .await;
    assert_eq!(done.exit, 0, "{}", done.message);
    let status = fixture.handle.status().await.unwrap();
    let address = status.services[1].listeners[0].address.parse().unwrap();
    assert_eq!(get(address).await, "two");
    fixture.file.lock().unwrap().services.pop();
    assert_eq!(fixture.reload().await.exit, 0);
    fixture.until(|status| status.services.len() == 1).await;
    assert!(TcpStream::connect(address).is_err());
    fixture.file.lock().unwrap().process.workers = 2;
    let done = fixture.reload().await;
    assert!(
        done.exit == 1 && done.message.contains("`workers` has changed"),
        "{}",
        done.message
    );
    fixture.stop().await;
}

#[tokio::test]
async fn a_new_port_that_is_taken_ends_the_reload() {
    let (spawner, _right) = spawner().await;
    let fixture =
        Fixture::serving(&spawner, vec![service(server(&["one", "unix:{socket}"]))]).await;
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = Address::Tcp(taken.local_addr().unwrap());
    let listener = ListenerConfig {
        name: "l1".to_owned(),
        address,
        own: Own::default(),
        raw: false,
    };
    fixture.change(|service| service.listeners.push(listener));
    let done = fixture.reload().await;
    assert_eq!(done.exit, 1);
    assert!(done.message.contains("is in use"), "{}", done.message);
    assert_eq!(fixture.get().await, "one");
    // A reload by name leaves the listeners alone.
    let named = Request::Reload {
        service: Some("default".to_owned()),
        drained: false,
    };
    assert_eq!(fixture.ask(named).await.0.exit, 0);
    fixture.stop().await;
}

#[tokio::test]
async fn hold_release_and_rollback() {
    let (spawner, _right) = spawner().await;
    let keep_previous = Duration::from_secs(60);
    let fixture = Fixture::serving(
        &spawner,
        vec![ServiceConfig {
            keep_previous,
            ..service(server(&["one", "unix:{socket}"]))
        }],
    )
    .await;
    let hold = Request::Hold {
        service: None,
        timeout: None,
        owned: false,
    };
    assert_eq!(fixture.ask(hold).await.0.exit, 0);
    let address = fixture.address().await;
    let client = tokio::spawn(get(address));
    fixture
        .until(|status| status.services[0].pending == 1)
        .await;
    let release = Request::Release {
        service: None,
        when_ready: true,
    };
    assert_eq!(fixture.ask(release).await.0.exit, 0);
    assert_eq!(client.await.unwrap(), "one");

    let argv = server(&["two", "unix:{socket}"]);
    fixture.change(|service| {
        service.backend = Backend::Command {
            argv,
            fixed: Vec::new(),
        }
    });
    assert_eq!(fixture.reload().await.exit, 0);
    assert_eq!(fixture.get().await, "two");
    let done = fixture.ask(Request::Rollback { service: None }).await.0;
    assert_eq!(done.exit, 0, "{}", done.message);
    assert_eq!(fixture.get().await, "one");

    // An owned hold ends with its owner.
    let mut lines = fixture.handle.request(Request::Hold {
        service: None,
        timeout: None,
        owned: true,
    });
    while !matches!(lines.recv().await, Some(Line::Step(step)) if step.step == "held") {}
    drop(lines);
    fixture.until(|status| !status.services[0].held).await;
    fixture.stop().await;
}

#[tokio::test]
async fn activate_leads_to_a_server_that_somebody_else_runs() {
    let (spawner, _right) = spawner().await;
    let fixture =
        Fixture::serving(&spawner, vec![service(server(&["one", "unix:{socket}"]))]).await;
    let outside = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = outside.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in outside.incoming() {
            let _ = stream.unwrap().write_all(b"outside");
        }
    });
    let backends = vec![format!("127.0.0.1:{port}").parse().unwrap()];
    let activate = Request::Activate {
        service: None,
        backends,
        drained: true,
    };
    let done = fixture.ask(activate).await.0;
    assert_eq!(done.exit, 0, "{}", done.message);
    assert_eq!(fixture.get().await, "outside");
    // A reload keeps it, until the file's backend changes.
    assert_eq!(fixture.reload().await.exit, 0);
    assert_eq!(fixture.get().await, "outside");
    let argv = server(&["two", "unix:{socket}"]);
    fixture.change(|service| {
        service.backend = Backend::Command {
            argv,
            fixed: Vec::new(),
        }
    });
    assert_eq!(fixture.reload().await.exit, 0);
    assert_eq!(fixture.get().await, "two");
    fixture.stop().await;
}

#[tokio::test]
async fn a_first_start_that_cannot_be_is_none() {
    let (spawner, _right) = spawner().await;
    let mut bad = service(server(&["one", "unix:{socket}"]));
    bad.check = Some(vec!["false".to_owned()]);
    let error = Fixture::start(&spawner, vec![bad])
        .await
        .run
        .await
        .unwrap()
        .unwrap_err();
    assert_eq!(
        (error.exit_code(), error.to_string()),
        (
            78,
            "service default: the check `false` exited with status 1".into()
        )
    );

    let missing = service(vec!["no-such-command".to_owned(), "{socket}".to_owned()]);
    let fixture = Fixture::start(&spawner, vec![missing]).await;
    let error = fixture.run.await.unwrap().unwrap_err();
    assert_eq!(error.exit_code(), 71, "{error}");

    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut bad = service(server(&["one", "unix:{socket}"]));
    bad.listeners[0].address = Address::Tcp(taken.local_addr().unwrap());
    let error = Fixture::start(&spawner, vec![bad])
        .await
        .run
        .await
        .unwrap()
        .unwrap_err();
    assert_eq!(error.exit_code(), 71, "{error}");
}

#[tokio::test]
async fn a_second_shutdown_does_not_wait_for_connections() {
    let (spawner, _right) = spawner().await;
    let fixture =
        Fixture::serving(&spawner, vec![service(server(&["one", "unix:{socket}"]))]).await;
    let mut client = TcpStream::connect(fixture.address().await).unwrap();
    fixture.until(|status| status.connections == 1).await;
    let began = Instant::now();
    fixture.handle.shutdown();
    fixture.handle.shutdown();
    fixture.run.await.unwrap().unwrap();
    assert!(
        began.elapsed() < Duration::from_secs(4),
        "{:?}",
        began.elapsed()
    );
    let mut text = Vec::new();
    let _ = client.read_to_end(&mut text);
}
