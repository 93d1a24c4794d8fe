//! Listeners whose options change.

use std::net::{SocketAddr, TcpStream};

use syngate_gate::listener::Address;

use super::fixture::*;
use crate::child::tests::spawner;
use crate::config::Backend;

/// The largest segment that a client of this address sends, in bytes. On loopback it is half the window, where nothing else
/// makes it smaller.
fn segment(address: SocketAddr) -> u32 {
    let client = TcpStream::connect(address).unwrap();
    socket2::SockRef::from(&client).tcp_mss().unwrap()
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
    // Keeps the port for the gate: it doesn't listen.
    let reserved = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None);
    let reserved = reserved.unwrap();
    reserved.set_reuse_address(true).unwrap();
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    reserved.bind(&any.into()).unwrap();
    let address = reserved.local_addr().unwrap().as_socket().unwrap();
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

    interface(None);
    fixture.change(|service| service.listeners[0].name = "web".to_owned());
    let done = fixture.reload().await;
    let reason = "is open as listener l0, and the name of an open socket can't be changed";
    assert!(done.message.contains(reason), "{}", done.message);
    assert_eq!(fixture.get().await, "one");
    fixture.stop().await;
}
