//! Real processes side by side, each with a stats socket that was passed to it, as the supervisor starts them: `haproxy -W`.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::path::Path;

use syngate_gate::listener::KeptListener;

use super::*;
use crate::child::tests::spawner;
use crate::child::{Child, Spawner};
use crate::command::Command;
use crate::haproxy::runtime::answers;

const LONG: Duration = Duration::from_secs(20);

/// A process that answers. Dropping it kills it.
struct Haproxy {
    _child: Child,
    stats: KeptListener,
}

/// Starts processes in one directory.
struct Place {
    spawner: Spawner,
    directory: tempfile::TempDir,
    _right: tokio::sync::MutexGuard<'static, ()>,
}

impl Place {
    async fn new() -> Self {
        let (spawner, right) = spawner().await;
        Place {
            spawner,
            directory: tempfile::tempdir().expect("a directory"),
            _right: right,
        }
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Starts one with these lines in `global` and in `listen web`, and waits until it answers.
    async fn start(&self, global: &str, web: &str) -> Haproxy {
        let stats = KeptListener::unix(self.path()).expect("a stats socket");
        let file = self.path().join("haproxy.cfg");
        let text = format!(
            "global\n stats socket fd@3 level admin\n {global}\n\
             defaults\n mode http\n timeout client 5s\n timeout server 5s\n timeout connect 5s\n timeout check 60s\n\
             listen web\n bind unix@{}/web\n{web}\n",
            self.path().display()
        );
        fs::write(&file, text).expect("written");
        let mut command = Command::new(["haproxy", "-W", "-f", file.to_str().expect("a path")]);
        let passed = stats.as_fd().try_clone_to_owned().expect("a copy");
        command.listeners.push(("stats".into(), passed));
        let child = self.spawner.spawn(command, None).expect("started");
        tokio::select! {
            answer = tokio::time::timeout(LONG, answers(stats.address())) => answer.expect("in time").expect("an answer"),
            exit = child.exited() => panic!("{exit}: {}", child.output().text()),
        }
        Haproxy {
            _child: child,
            stats,
        }
    }
}

impl Haproxy {
    async fn ask(&self, command: &str) -> String {
        ask(self.stats.address(), command, LONG)
            .await
            .expect("an answer")
    }

    /// Gives orders, none of which is refused.
    async fn obey(&self, orders: &[&str]) {
        for order in orders {
            assert_eq!(self.ask(order).await, "\n", "{order}");
        }
    }

    async fn to(&self, successor: &Haproxy) -> CarriedOver {
        let (old, new) = (self.stats.address(), successor.stats.address());
        carry_over(old, new, LONG).await.expect("carried over")
    }

    /// Asks until this is so of a server.
    async fn eventually(&self, name: &str, is: impl Fn(&Server) -> bool) {
        let asked = async {
            while !is(&self.server(name).await) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(LONG, asked).await.expect(name);
    }

    async fn server(&self, name: &str) -> Server {
        let state = Table::parse(&self.ask(SHOW).await).expect("a state");
        let mut servers = state.servers.into_iter();
        servers.find(|server| server.name == name).expect(name)
    }
}

/// A server that takes connections and says nothing, so that a check of it never ends.
fn silent() -> (TcpListener, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let port = listener.local_addr().expect("its address").port();
    (listener, port)
}

#[tokio::test]
async fn what_an_operator_has_set_is_there_ten_processes_later() {
    let place = Place::new().await;
    let (_silent, port) = silent();
    let web = format!(
        " option httpchk\n server maint 127.0.0.1:1001\n server drain 127.0.0.1:1002\n server weight 127.0.0.1:1003 weight 10\n \
         server found.down 127.0.0.1:{port} check inter 60s\n server tracking 127.0.0.1:1004 track web/found.down\n \
         server down 127.0.0.1:1005\n server unwatched 127.0.0.1:{port} check inter 60s\n \
         server enabled 127.0.0.1:1006 disabled\n server disabled 127.0.0.1:1007 disabled\n server plain 127.0.0.1:1008"
    );
    let mut active = place.start("", &web).await;
    active
        .obey(&[
            "set server web/maint state maint",
            "set server web/drain state drain",
            "set server web/weight weight 3",
            "set server web/found.down health down",
            "set server web/down health down",
            "disable health web/unwatched",
            "set server web/enabled state ready",
        ])
        .await;
    for process in 1..=10 {
        let next = place.start("", &web).await;
        let done = active.to(&next).await;
        assert_eq!(
            (done.servers, &done.warnings[..]),
            (7, &[][..]),
            "process {process}"
        );
        active = next;
    }
    let mut seen = Vec::new();
    for name in [
        "maint",
        "drain",
        "weight",
        "found.down",
        "tracking",
        "down",
        "unwatched",
        "enabled",
        "disabled",
        "plain",
    ] {
        let server = active.server(&format!("web/{name}")).await;
        seen.push((
            name,
            server.operation,
            server.admin,
            server.weight,
            server.check & check::ENABLED,
        ));
    }
    assert_eq!(
        seen,
        [
            ("maint", 0, 1, 1, 0),
            ("drain", 2, 8, 1, 0),
            ("weight", 2, 0, 3, 0),
            ("found.down", 0, 0, 1, 4),
            ("tracking", 0, 0, 1, 0),
            ("down", 0, 0, 1, 0),
            ("unwatched", 2, 0, 1, 0),
            ("enabled", 2, 4, 1, 0),
            ("disabled", 0, 5, 1, 0),
            ("plain", 2, 0, 1, 0),
        ]
    );
}

#[tokio::test]
async fn a_server_at_another_port_is_another_server() {
    let place = Place::new().await;
    for (old, new) in [
        // Written out, and by a variable: then the line with the server is the same.
        (
            ["", " server s 127.0.0.1:1443\n server t 127.0.0.1:1"],
            ["", " server s 127.0.0.1:2443\n server t 127.0.0.1:1"],
        ),
        (
            [
                "setenv P 1443",
                " server s \"127.0.0.1:${P}\"\n server t 127.0.0.1:1",
            ],
            [
                "setenv P 2443",
                " server s \"127.0.0.1:${P}\"\n server t 127.0.0.1:1",
            ],
        ),
    ] {
        let active = place.start(old[0], old[1]).await;
        active
            .obey(&[
                "set server web/s state maint",
                "set server web/s weight 0",
                "set server web/t state maint",
            ])
            .await;
        let next = place.start(new[0], new[1]).await;
        let done = active.to(&next).await;
        assert_eq!(done.servers, 1, "the one that has stayed where it was");
        assert_eq!(done.warnings.len(), 2, "{done:?}");
        assert!(
            done.warnings[0].contains("it was at 127.0.0.1:1443 and is at 127.0.0.1:2443"),
            "{done:?}"
        );
        let server = next.server("web/s").await;
        assert_eq!(
            (server.place.port, server.admin, server.weight),
            (2443, 0, 1)
        );
        assert_eq!(next.server("web/t").await.admin, 1);
    }
}

#[tokio::test]
async fn an_address_that_was_set_at_run_time_ends_with_its_process() {
    let place = Place::new().await;
    let web = " server s 127.0.0.1:1443";
    let active = place.start("", web).await;
    active
        .ask("set server web/s addr 127.0.0.2 port 2443")
        .await;
    active.obey(&["set server web/s state maint"]).await;
    assert_eq!(
        active.server("web/s").await.place.to_string(),
        "127.0.0.2:2443"
    );
    let next = place.start("", web).await;
    let done = active.to(&next).await;
    assert_eq!((done.servers, done.warnings.len()), (0, 1), "{done:?}");
    let server = next.server("web/s").await;
    assert_eq!(
        (server.place.to_string(), server.admin),
        ("127.0.0.1:1443".to_owned(), 0)
    );
}

#[tokio::test]
async fn down_is_undone_by_a_check_that_succeeds() {
    let place = Place::new().await;
    let (listener, port) = silent();
    let web = |inter: &str| {
        format!(" option httpchk\n server s 127.0.0.1:{port} check inter {inter} rise 2")
    };
    let active = place.start("", &web("60s")).await;
    active.obey(&["set server web/s health down"]).await;
    let next = place.start("", &web("200ms")).await;
    assert_eq!(active.to(&next).await.servers, 1);
    assert_eq!(next.server("web/s").await.operation, STOPPED);
    // From now on the server answers, also the checks that have begun.
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a check");
            let lines = BufReader::new(&stream).lines();
            let request = lines.take_while(|line| line.as_ref().is_ok_and(|it| !it.is_empty()));
            if request.count() > 0 {
                stream
                    .write_all(b"HTTP/1.0 200 OK\r\n\r\n")
                    .expect("answered");
            }
        }
    });
    next.eventually("web/s", |server| server.operation == 2)
        .await;
}

#[tokio::test]
async fn a_check_of_the_new_process_has_the_last_word() {
    let place = Place::new().await;
    let (_listener, port) = silent();
    let web = format!(" server s 127.0.0.1:{port} check inter 60s");
    let active = place.start("", &web).await;
    active.obey(&["set server web/s health down"]).await;
    let next = place.start("", &web).await;
    // It needs no more than a connection.
    next.eventually("web/s", |server| server.found == check::PASSED)
        .await;
    assert_eq!(active.to(&next).await, CarriedOver::default());
    assert_eq!(next.server("web/s").await.operation, 2);
}

#[tokio::test]
async fn what_haproxy_refuses_is_a_warning_and_the_rest_is_set() {
    let place = Place::new().await;
    let servers = " server a 127.0.0.1:1001 weight 10\n server b 127.0.0.1:1002 weight 10";
    let active = place.start("", servers).await;
    active
        .obey(&["set server web/a weight 5", "set server web/b state maint"])
        .await;
    let next = place
        .start("", &format!(" balance static-rr\n{servers}"))
        .await;
    let done = active.to(&next).await;
    assert_eq!(done.servers, 1);
    assert_eq!(done.warnings.len(), 1, "{done:?}");
    assert!(
        done.warnings[0].starts_with(
            "HAProxy refused `set server web/a weight 5`: Backend is using a static LB"
        ),
        "{done:?}"
    );
    assert_eq!(next.server("web/b").await.admin, 1);
}

#[tokio::test]
async fn a_thousand_servers_are_set_in_many_lines() {
    let place = Place::new().await;
    let servers: String = (0..1000)
        .map(|number| {
            format!(
                " server a-server-with-a-long-name-{number} 127.0.0.1:{}\n",
                1000 + number
            )
        })
        .collect();
    let active = place.start("", &servers).await;
    for hundred in 0..10 {
        let orders = (0..100).map(|one| {
            format!(
                "set server web/a-server-with-a-long-name-{} state maint",
                hundred * 100 + one
            )
        });
        active.ask(&orders.collect::<Vec<_>>().join(";")).await;
    }
    // The smallest buffer that HAProxy's own services can live with.
    let next = place.start("tune.bufsize 4096", &servers).await;
    assert_eq!(
        active.to(&next).await,
        CarriedOver {
            servers: 1000,
            warnings: Vec::new()
        }
    );
    let state = Table::parse(&next.ask(SHOW).await).expect("a state");
    assert!(state.servers.iter().all(|server| server.admin == 1));
}

#[tokio::test]
async fn a_process_that_is_gone_is_an_error_in_time() {
    let place = Place::new().await;
    let active = place.start("", " server s 127.0.0.1:1001").await;
    // Its listener is kept, so the question waits there for nobody.
    let gone = KeptListener::unix(place.path()).expect("a listener");
    let within = Duration::from_millis(200);
    let error = carry_over(gone.address(), active.stats.address(), within).await;
    let error = error.expect_err("nobody answers");
    assert!(
        error.starts_with("HAProxy was asked `show servers state` at unix"),
        "{error}"
    );
}
