use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::unix::net::{UnixListener, UnixStream};

use socket2::{Domain, SockAddr, Socket, Type};

use super::*;

/// A socket that listens on a free port.
fn listen(address: impl Into<IpAddr>, backlog: i32, set: impl FnOnce(&Socket)) -> (Socket, u16) {
    let address = SocketAddr::new(address.into(), 0);
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None).unwrap();
    set(&socket);
    socket.bind(&address.into()).unwrap();
    socket.listen(backlog).unwrap();
    let port = socket.local_addr().unwrap().as_socket().unwrap().port();
    (socket, port)
}

fn plain(_: &Socket) {}

fn connect(address: impl Into<IpAddr>, port: u16, count: usize) -> Vec<Socket> {
    let address = SocketAddr::new(address.into(), port);
    let connect = |_| {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None).unwrap();
        socket.connect(&address.into()).unwrap();
        socket
    };
    (0..count).map(connect).collect()
}

/// A handshake ends for the server with the client's first byte, or after these seconds (tcp(7)).
#[derive(Clone)]
struct DeferAccept;

nix::setsockopt_impl!(
    DeferAccept,
    libc::IPPROTO_TCP,
    libc::TCP_DEFER_ACCEPT,
    u32,
    nix::sys::socket::sockopt::SetStruct<u32>
);

/// From now on handshakes end for the client alone, until it sends something.
pub(crate) fn defer_handshakes(listener: &impl AsFd) {
    nix::sys::socket::setsockopt(listener, DeferAccept, &60).unwrap();
}

const V4: Ipv4Addr = Ipv4Addr::LOCALHOST;

#[test]
fn reads_tcp_by_descriptor_and_by_address() {
    let (listener, port) = listen(V4, 20, plain);
    let by_address = Probe::tcp((V4, port).into()).unwrap();
    let held = Probe::TcpHeld(Arc::new(listener.try_clone().unwrap().into()));
    let mut reader = Reader::new();
    for count in [0, 1, 7] {
        let clients = connect(V4, port, count);
        for probe in [&by_address, &held] {
            let len = count as u32;
            assert_eq!(reader.read(probe).unwrap(), Some(Queue { len, max: 20 }));
            assert_eq!(reader.undelivered(probe).unwrap(), Some(len));
        }
        for _ in clients {
            listener.accept().unwrap();
        }
    }
}

#[test]
fn finds_whoever_gets_the_connections_of_an_address() {
    let mut reader = Reader::new();
    let mut len = |address: IpAddr, port| {
        let probe = Probe::Tcp((address, port).into());
        let queue = reader.read(&probe).unwrap().map(|queue| queue.len);
        let undelivered = reader.undelivered(&probe).unwrap();
        assert_eq!(undelivered, Some(queue.unwrap_or(0)));
        queue
    };
    let (_any, port) = listen(Ipv4Addr::UNSPECIFIED, 20, plain);
    let _clients = connect(V4, port, 2);
    assert_eq!(len(V4.into(), port), Some(2));

    let dual = |socket: &Socket| socket.set_only_v6(false).unwrap();
    let (_dual, port) = listen(Ipv6Addr::UNSPECIFIED, 20, dual);
    let _clients = (connect(V4, port, 3), connect(Ipv6Addr::LOCALHOST, port, 1));
    assert_eq!(len(V4.into(), port), Some(4));
    assert_eq!(len(Ipv6Addr::LOCALHOST.into(), port), Some(4));

    let (_v6, port) = listen(Ipv6Addr::LOCALHOST, 20, plain);
    let _clients = connect(Ipv6Addr::LOCALHOST, port, 5);
    assert_eq!(len(Ipv6Addr::LOCALHOST.into(), port), Some(5));
    assert_eq!(len(V4.into(), port), None);
}

#[test]
fn a_shared_port_of_another_address_counts_nothing() {
    let (_listener, port) = listen(V4, 20, plain);
    let other = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let neighbour = Ipv4Addr::new(127, 0, 0, 2);
    other
        .bind(&SocketAddr::from((neighbour, port)).into())
        .unwrap();
    other.listen(20).unwrap();
    let _clients = connect(neighbour, port, 3);
    let mut reader = Reader::new();
    let probe = Probe::Tcp((V4, port).into());
    assert_eq!(reader.undelivered(&probe).unwrap(), Some(0));
    let probe = Probe::Tcp((neighbour, port).into());
    assert_eq!(reader.undelivered(&probe).unwrap(), Some(3));
}

#[test]
fn a_group_that_shares_an_address_is_empty_when_all_are() {
    let reuse = |socket: &Socket| socket.set_reuse_port(true).unwrap();
    let (_first, port) = listen(V4, 20, reuse);
    let second = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    reuse(&second);
    second.bind(&SocketAddr::from((V4, port)).into()).unwrap();
    second.listen(20).unwrap();
    let _clients = connect(V4, port, 12);
    let probe = Probe::Tcp((V4, port).into());
    let mut reader = Reader::new();
    assert_eq!(reader.undelivered(&probe).unwrap(), Some(12));
    assert!(reader.read(&probe).unwrap().unwrap().len <= 12);
}

#[test]
fn counts_handshakes_that_only_the_client_has_ended() {
    let dual = |socket: &Socket| socket.set_only_v6(false).unwrap();
    for (listening, address) in [
        (listen(V4, 20, plain), IpAddr::from(V4)),
        (listen(Ipv6Addr::UNSPECIFIED, 20, dual), V4.into()),
        (
            listen(Ipv6Addr::LOCALHOST, 20, plain),
            Ipv6Addr::LOCALHOST.into(),
        ),
    ] {
        let (listener, port) = listening;
        let _accepted_for = connect(address, port, 1);
        defer_handshakes(&listener);
        let _clients = connect(address, port, 3);
        let mut reader = Reader::new();
        let target = SocketAddr::new(address, port);
        assert_eq!(reader.syn_recv(target).unwrap(), 3, "{target}");
        let held = Probe::TcpHeld(Arc::new(listener.try_clone().unwrap().into()));
        for probe in [Probe::Tcp(target), held] {
            assert_eq!(reader.read(&probe).unwrap().unwrap().len, 1);
            assert_eq!(reader.undelivered(&probe).unwrap(), Some(4), "{probe:?}");
        }
        let elsewhere = SocketAddr::from((Ipv4Addr::new(127, 0, 0, 2), port));
        assert_eq!(reader.syn_recv(elsewhere).unwrap(), 0);
    }
}

#[test]
fn nobody_listens() {
    let (listener, port) = listen(V4, 20, plain);
    drop(listener);
    let mut reader = Reader::new();
    let probe = Probe::Tcp((V4, port).into());
    assert_eq!(reader.read(&probe).unwrap(), None);
    assert_eq!(reader.undelivered(&probe).unwrap(), Some(0));
    // The same netlink socket goes on after an answer that was an error.
    let (_listener, port) = listen(V4, 20, plain);
    let probe = Probe::Tcp((V4, port).into());
    assert_eq!(reader.read(&probe).unwrap().unwrap().len, 0);
}

#[test]
fn an_established_connection_is_no_listener() {
    let (listener, port) = listen(V4, 20, plain);
    let client = &connect(V4, port, 1)[0];
    let _server = listener.accept().unwrap();
    let client = client.local_addr().unwrap().as_socket().unwrap();
    assert_eq!(Reader::new().read(&Probe::Tcp(client)).unwrap(), None);
}

#[test]
fn another_machine_is_unknown() {
    // TEST-NET-1 (RFC 5737) is nobody's; our own gate may listen on the same port of the unspecified address.
    let (_any, port) = listen(Ipv4Addr::UNSPECIFIED, 20, plain);
    let probe = Probe::tcp((Ipv4Addr::new(192, 0, 2, 1), port).into()).unwrap();
    assert!(matches!(probe, Probe::Unknown));
    assert_eq!(Reader::new().read(&probe).unwrap(), None);
    assert_eq!(Reader::new().undelivered(&probe).unwrap(), None);
}

#[test]
fn reads_unix_by_descriptor_and_by_path() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let listener = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
    listener.bind(&SockAddr::unix(&path).unwrap()).unwrap();
    listener.listen(10).unwrap();
    let _other = UnixListener::bind(directory.path().join("other")).unwrap();

    let mut reader = Reader::new();
    let inode = UnixInode::of(&listener).unwrap();
    assert_eq!(reader.find_unix(&path).unwrap(), Some(inode));
    let link = directory.path().join("link");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    assert_eq!(reader.find_unix(&link).unwrap(), Some(inode));

    let _clients = [(); 4].map(|()| UnixStream::connect(&path).unwrap());
    let probe = Probe::Unix(inode);
    assert_eq!(
        reader.read(&probe).unwrap(),
        Some(Queue { len: 4, max: 10 })
    );
    assert_eq!(reader.undelivered(&probe).unwrap(), Some(4));

    drop(listener);
    assert_eq!(reader.read(&probe).unwrap(), None);
    assert_eq!(reader.undelivered(&probe).unwrap(), Some(0));
    assert_eq!(reader.find_unix(&path).unwrap(), None);
    assert!(reader.find_unix(&directory.path().join("none")).is_err());
}

#[test]
fn a_long_answer_comes_in_pieces() {
    // One answer has over 100 bytes, one datagram at most 32 KiB.
    let directory = tempfile::tempdir().unwrap();
    let bind = |n| UnixListener::bind(directory.path().join(format!("{n}"))).unwrap();
    let listeners: Vec<_> = (0..700).map(bind).collect();
    let mut reader = Reader::new();
    for n in [0, 350, 699] {
        let found = reader
            .find_unix(&directory.path().join(format!("{n}")))
            .unwrap();
        assert_eq!(found, Some(UnixInode::of(&listeners[n]).unwrap()));
    }
}
