//! Listeners whose options and names change, and listeners that go.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use socket2::{Domain, Socket, Type};
use syngate_gate::listener::Address;

use super::fixture::*;
use crate::child::tests::spawner;
use crate::config::{Backend, ListenerConfig, ServiceConfig};
use crate::protocol::{ListenerStatus, Status};

/// The largest segment that a client of this address sends, in bytes. On loopback it is half the window, where nothing else
/// makes it smaller.
fn segment(address: SocketAddr) -> u32 {
    let client = TcpStream::connect(address).unwrap();
    socket2::SockRef::from(&client).tcp_mss().unwrap()
}

/// An address, and a socket that keeps it for the gate: it doesn't listen.
fn reserved() -> (SocketAddr, Socket) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_reuse_address(true).unwrap();
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    socket.bind(&any.into()).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    (address, socket)
}

#[tokio::test]
async fn an_open_listener_takes_over_what_a_reload_asks_of_it() {
    let (spawner, _right) = spawner().await;
    let fixture =
        Fixture::serving(&spawner, vec![service(server(&["one", "unix:{socket}"]))]).await;
    let address = fixture.address().await;
    assert!(segment(address) > 1000);
    fixture.change(|service| {
        service.listeners[0].own.mss = Some(1000);
        service.listeners[0].raw = true;
        service.backlog = 5;
    });
    assert_eq!(fixture.reload().await.exit, 0);
    // With port 0 another socket would have another port.
    assert_eq!(fixture.address().await, address);
    assert!(segment(address) <= 1000);

    // What the kernel refuses, and what fails, leaves it as it was.
    fixture.change(|service| service.listeners[0].own.mss = Some(20));
    assert_eq!(fixture.reload().await.exit, 0);
    assert!(segment(address) <= 1000);
    fixture.change(|service| {
        service.listeners[0].own.mss = None;
        service.backend = Backend::Command {
            argv: vec!["false".to_owned()],
            fixed: Vec::new(),
        };
    });
    assert_eq!(fixture.reload().await.exit, 1);
    assert!(segment(address) <= 1000);

    fixture.change(|service| {
        service.backend = self::service(server(&["two", "unix:{socket}"])).backend;
    });
    assert_eq!(fixture.reload().await.exit, 0);
    assert!(segment(address) > 1000);
    assert_eq!(fixture.get().await, "two");
    fixture.stop().await;
}

#[tokio::test]
async fn what_no_open_listener_can_change_ends_the_reload() {
    let (spawner, _right) = spawner().await;
    let (address, _reserved) = reserved();
    let mut config = service(server(&["one", "unix:{socket}"]));
    config.listeners[0].address = Address::Tcp(address);
    let fixture = Fixture::serving(&spawner, vec![config]).await;

    let interface = |interface: Option<&str>| {
        fixture.change(|service| {
            service.listeners[0].own.interface = interface.map(str::to_owned);
        });
    };
    interface(Some("lo"));
    let done = fixture.reload().await;
    assert_eq!(done.exit, 1);
    let reason = format!(
        "{address} is open as listener l0, and v6only and interface of an open socket can't be changed"
    );
    assert!(done.message.contains(&reason), "{}", done.message);
    assert_eq!(fixture.get().await, "one");

    fixture.stop().await;
}

/// A server for two listeners, the second of which has this name.
fn two(word: &str, second: &str) -> Backend {
    let script = "python3 -c \"$0\" \"$1\" \"unix:$2\" & exec python3 -c \"$0\" \"$1\" \"unix:$3\"";
    let second = format!("{{socket_{second}}}");
    let argv = ["sh", "-c", script, SERVER, word, "{socket}", &second];
    Backend::Command {
        argv: argv.map(str::to_owned).to_vec(),
        fixed: Vec::new(),
    }
}

/// A service with two addresses, and their reservations.
fn pair() -> (ServiceConfig, [(SocketAddr, Socket); 2]) {
    let addresses = [reserved(), reserved()];
    let mut config = service(Vec::new());
    config.backend = two("one", "l1");
    config.listeners.push(config.listeners[0].clone());
    config.listeners[1].name = "l1".to_owned();
    for (listener, (address, _)) in config.listeners.iter_mut().zip(&addresses) {
        listener.address = Address::Tcp(*address);
    }
    (config, addresses)
}

/// Two listeners whose names change places, and then for new ones, go on, and so do they when the new generation dies young.
#[tokio::test]
async fn names_of_open_listeners_change_with_the_flip() {
    let (spawner, _right) = spawner().await;
    let (config, addresses) = pair();
    let fixture = Fixture::serving(&spawner, vec![config]).await;
    let expect = async |names: [&str; 2], word: &str| {
        let status = fixture.handle.status().await.unwrap();
        for ((address, _), name) in addresses.iter().zip(names) {
            let listeners = &status.services[0].listeners;
            let is_it = |one: &&ListenerStatus| one.address == address.to_string();
            assert_eq!(listeners.iter().find(is_it).unwrap().name, name);
            assert_eq!(get(*address).await, word);
        }
    };
    let rename = |names: [&str; 2], word: &str| {
        fixture.change(|service| {
            for (listener, name) in service.listeners.iter_mut().zip(names) {
                listener.name = name.to_owned();
            }
            service.backend = two(word, names[1]);
        });
    };
    let names = [["l1", "l0"], ["web", "mail"], ["mail", "new"]];
    for names in names {
        rename(names, names[0]);
        assert_eq!(fixture.reload().await.exit, 0);
        expect(names, names[0]).await;
    }
    rename(["short", "lived"], "dies");
    fixture.change(|service| service.min_ready = PATIENCE);
    let dies = async {
        let active = |status: &Status| status.services[0].active == Some(5);
        let status = fixture.until(active).await;
        expect(["short", "lived"], "dies").await;
        let mut generations = status.services[0].generations.iter();
        let young = generations.find(|one| one.number == 5).unwrap();
        let pid = Pid::from_raw(young.pid.unwrap().cast_signed());
        kill(pid, Signal::SIGKILL).unwrap();
    };
    let (done, ()) = tokio::join!(fixture.reload(), dies);
    assert!(done.message.contains("flipped back"), "{}", done.message);
    expect(["mail", "new"], "mail").await;
    fixture.stop().await;
}

/// The permissions of a unix listener's file change on the open socket.
#[tokio::test]
async fn the_file_of_an_open_listener_gets_other_permissions() {
    let (spawner, _right) = spawner().await;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("public");
    let with = |mode| Address::Unix {
        path: path.clone(),
        mode,
    };
    let mut config = service(server(&["one", "unix:{socket}"]));
    config.listeners[0].address = with(None);
    let fixture = Fixture::serving(&spawner, vec![config]).await;
    let file = || std::fs::metadata(&path).unwrap();
    let (before, mode) = (file().ino(), || file().mode() & 0o777);
    for (wanted, is) in [(Some(0o666), 0o666), (Some(0o640), 0o640), (None, 0o600)] {
        fixture.change(|service| service.listeners[0].address = with(wanted));
        assert_eq!(fixture.reload().await.exit, 0);
        assert_eq!((mode(), file().ino()), (is, before));
    }
    fixture.stop().await;
}

/// A client that is connected to a listener when a reload removes it, and has said nothing, is the old generation's, which waits
/// for it though it has nobody else.
#[tokio::test]
async fn the_old_generation_waits_for_a_listener_that_closes() {
    let (spawner, _right) = spawner().await;
    let (mut config, [_, (second, _reserved)]) = pair();
    // The kernel keeps a silent client to itself, so the close takes a while.
    config.listeners[1].own.defer_accept = true;
    let fixture = Fixture::start(&spawner, vec![config]).await;
    fixture
        .until(|status| status.services[0].active == Some(1))
        .await;
    let mut silent = TcpStream::connect(second).unwrap();
    silent.set_read_timeout(Some(PATIENCE)).unwrap();
    fixture.change(|service| {
        service.listeners.pop();
        service.backend = self::service(server(&["two", "unix:{socket}"])).backend;
    });
    assert_eq!(fixture.reload().await.exit, 0);
    let text = tokio::task::spawn_blocking(move || {
        silent.write_all(b"x").unwrap();
        let mut text = String::new();
        silent.read_to_string(&mut text).map(|_| text)
    });
    assert_eq!(text.await.unwrap().unwrap(), "one");
    fixture.stop().await;
}

/// A service of this name at this address, whose server starts once there is this file.
fn when(name: &str, address: SocketAddr, there_is: &Path) -> ServiceConfig {
    let script =
        "while ! test -e \"$1\"; do sleep 0.01; done; exec python3 -c \"$0\" \"$2\" \"unix:$3\"";
    let argv = [
        "sh",
        "-c",
        script,
        SERVER,
        there_is.to_str().unwrap(),
        name,
        "{socket}",
    ];
    let mut config = service(argv.map(str::to_owned).to_vec());
    config.name = name.to_owned();
    config.listeners[0].address = Address::Tcp(address);
    config
}

/// Another service is to take over its port, but before that one is ready the reload is taken back.
#[tokio::test]
async fn a_service_that_comes_back_keeps_its_listener() {
    let (spawner, _right) = spawner().await;
    let directory = tempfile::tempdir().unwrap();
    let (here, later) = (directory.path(), directory.path().join("later"));
    let ((address, _one), (elsewhere, _two)) = (reserved(), reserved());
    let fixture = Fixture::serving(&spawner, vec![when("old", address, here)]).await;
    let file = |services| fixture.file.lock().unwrap().services = services;
    file(vec![when("new", address, &later)]);
    let taken_back = async {
        fixture
            .until(|status| {
                status
                    .services
                    .iter()
                    .any(|one| !one.generations.is_empty() && one.name == "new")
            })
            .await;
        file(vec![
            when("old", address, here),
            when("new", elsewhere, here),
        ]);
        let go = async {
            let is_back = |status: &Status| status.services[0].active == Some(2);
            fixture.until(is_back).await;
            std::fs::write(&later, "").unwrap();
        };
        tokio::join!(fixture.reload(), go).0
    };
    let (_, done) = tokio::join!(fixture.reload(), taken_back);
    assert_eq!(done.exit, 0, "{}", done.message);
    assert_eq!(get(address).await, "old");
    assert_eq!(get(elsewhere).await, "new");
    fixture.stop().await;
}

/// It needn't be a new service that takes over the port of one that leaves, nor the first one that serves.
#[tokio::test]
async fn a_port_goes_to_another_service_without_a_gap() {
    let (spawner, _right) = spawner().await;
    let directory = tempfile::tempdir().unwrap();
    let (here, later) = (directory.path(), directory.path().join("later"));
    let [(address, _one), (elsewhere, _two), (third, _three)] = [(); 3].map(|()| reserved());
    let services = vec![when("leaves", address, here), when("heir", elsewhere, here)];
    let fixture = Fixture::serving(&spawner, services).await;
    let mut heir = when("heir", address, &later);
    heir.listeners.push(ListenerConfig {
        name: "l1".to_owned(),
        ..when("heir", elsewhere, here).listeners.remove(0)
    });
    let Backend::Command { argv, .. } = &mut heir.backend else {
        unreachable!()
    };
    argv[2] = argv[2].replace("exec", "python3 -c \"$0\" \"$2\" \"unix:$4\" & exec");
    argv.push("{socket_l1}".to_owned());
    fixture.file.lock().unwrap().services = vec![heir, when("new", third, here)];
    let serves = async {
        let new = |status: &Status| {
            status
                .services
                .iter()
                .any(|one| one.name == "new" && one.active.is_some())
        };
        fixture.until(new).await;
        for _ in 0..10 {
            assert_eq!(get(address).await, "leaves");
        }
        std::fs::write(&later, "").unwrap();
        let gone = |status: &Status| !status.services.iter().any(|one| one.name == "leaves");
        while !gone(&fixture.handle.status().await.unwrap()) {
            assert!(["leaves", "heir"].contains(&get(address).await.as_str()));
        }
    };
    let (done, ()) = tokio::join!(fixture.reload(), serves);
    assert_eq!(done.exit, 0, "{}", done.message);
    assert_eq!(get(address).await, "heir");
    assert_eq!(get(elsewhere).await, "heir");
    fixture.stop().await;
}
