use std::fs;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, TcpStream, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use socket2::{Domain, SockRef, Type};

use super::*;
use crate::accept_queue::tests::defer_handshakes;

fn options() -> Options {
    Options {
        backlog: 100,
        keepalive: Some(Duration::from_secs(60)),
        v6only: false,
        own: Own::default(),
    }
}

const V4: Ipv4Addr = Ipv4Addr::LOCALHOST;

fn bind_text(text: &str) -> Result<Listener, BindError> {
    bind("l0", &text.parse().unwrap(), &options())
}

fn port(listener: &Listener) -> u16 {
    match listener.address() {
        LocalAddress::Tcp(address) => address.port(),
        LocalAddress::Unix(path) => panic!("{}", path.display()),
    }
}

/// Waits until a connection can be accepted, and accepts it.
fn accept(listener: &Listener) -> (OwnedFd, Option<SocketAddr>) {
    let mut fds = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
    assert_eq!(
        poll(&mut fds, PollTimeout::from(5000u16)),
        Ok(1),
        "nobody came"
    );
    listener.accept().unwrap()
}

mod addresses;

#[test]
fn a_port_is_dual_stack() {
    let listener = bind_text("0").unwrap();
    assert_eq!(listener.family(), Family::DualStack);
    for client in [IpAddr::from(V4), Ipv6Addr::LOCALHOST.into()] {
        let stream = TcpStream::connect((client, port(&listener))).unwrap();
        let (_connection, peer) = accept(&listener);
        assert_eq!(peer, Some(stream.local_addr().unwrap()));
    }
    let error = listener.accept().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
}

#[test]
fn a_port_is_ipv4_where_ipv6_is_switched_off() {
    // A network namespace of this thread alone; it needs the right to make one.
    if nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).is_err() {
        return;
    }
    fs::write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1").unwrap();
    let listener = bind_text("0").unwrap();
    assert_eq!(listener.family(), Family::V4);
    let error = bind_text("[::1]:0").unwrap_err();
    assert!(matches!(error, BindError::NotOurs(_)), "{error}");
}

#[test]
fn ipv6_alone_leaves_the_port_to_ipv4() {
    let v4 = bind_text("127.0.0.1:0").unwrap();
    assert_eq!(v4.family(), Family::V4);
    let address = Address::Tcp((Ipv6Addr::UNSPECIFIED, port(&v4)).into());
    let v6only = Options {
        v6only: true,
        ..options()
    };
    let v6 = bind("l1", &address, &v6only).unwrap();
    assert_eq!(v6.family(), Family::V6);
    let error = bind("l2", &address, &options()).unwrap_err();
    assert!(matches!(error, BindError::InUse { .. }), "{error}");
}

#[test]
fn accepted_connections_inherit_what_the_relay_needs() {
    for text in ["0", "127.0.0.1:0", "[::1]:0"] {
        let listener = bind_text(text).unwrap();
        let LocalAddress::Tcp(address) = listener.address() else {
            panic!("{text}");
        };
        let _client = TcpStream::connect(address).unwrap();
        let (connection, _) = accept(&listener);
        let socket = SockRef::from(&connection);
        assert!(socket.tcp_nodelay().unwrap());
        assert!(socket.out_of_band_inline().unwrap());
        assert!(socket.keepalive().unwrap());
        assert_eq!(socket.tcp_keepalive_time().unwrap().as_secs(), 60);
        assert_eq!(socket.tcp_keepalive_interval().unwrap().as_secs(), 10);
        assert_eq!(socket.tcp_keepalive_retries().unwrap(), 6);
        for fd in [connection.as_fd(), listener.as_fd()] {
            let flags = OFlag::from_bits_truncate(fcntl(fd, FcntlArg::F_GETFL).unwrap());
            assert!(flags.contains(OFlag::O_NONBLOCK));
            let flags = FdFlag::from_bits_truncate(fcntl(fd, FcntlArg::F_GETFD).unwrap());
            assert!(flags.contains(FdFlag::FD_CLOEXEC));
        }
        assert!(!SockRef::from(&listener).reuse_port().unwrap());
    }
}

#[test]
fn keepalive_is_as_long_as_the_kernel_allows() {
    for (asked, seconds) in [(100, 1), (1_500, 1), (100_000_000, 32_767)] {
        let options = Options {
            keepalive: Some(Duration::from_millis(asked)),
            ..options()
        };
        let listener = bind("l0", &Address::Tcp((V4, 0).into()), &options).unwrap();
        let time = SockRef::from(&listener).tcp_keepalive_time().unwrap();
        assert_eq!(time.as_secs(), seconds);
    }
    let options = Options {
        keepalive: None,
        ..options()
    };
    let listener = bind("l0", &Address::Tcp((V4, 0).into()), &options).unwrap();
    assert!(!SockRef::from(&listener).keepalive().unwrap());
}

#[test]
fn says_who_stands_in_the_way() {
    let listener = bind_text("127.0.0.1:0").unwrap();
    let taken = listener.address().to_string();
    let error = bind_text(&taken).unwrap_err().to_string();
    assert!(error.starts_with(&format!("{taken} is in use")), "{error}");
    assert!(error.contains(&format!("ss -lntp 'sport = :{}'", port(&listener))));

    let error = bind_text("192.0.2.1:0").unwrap_err();
    assert!(matches!(error, BindError::NotOurs(_)), "{error}");

    let refused = io::Error::from_raw_os_error(libc::EACCES);
    let error = bind::tcp_error(&Address::Port(80), refused).to_string();
    assert!(error.contains("port 80"), "{error}");
    assert!(error.contains("net.ipv4.ip_unprivileged_port_start"));
    assert!(error.contains("CAP_NET_BIND_SERVICE"));

    let error = bind_text("fd:web").unwrap_err();
    assert!(matches!(error, BindError::NotPassed(name) if name == "web"));
}

#[test]
fn the_backlog_is_what_the_system_allows() {
    let directory = tempfile::tempdir().unwrap();
    let unix = format!("unix:{}", directory.path().join("s").display());
    let somaxconn = fs::read_to_string("/proc/sys/net/core/somaxconn").unwrap();
    let somaxconn: u32 = somaxconn.trim().parse().unwrap();
    for text in ["127.0.0.1:0", &unix] {
        for (asked, effective) in [(7, 7), (u32::MAX, somaxconn)] {
            let options = Options {
                backlog: asked,
                ..options()
            };
            let listener = bind("l0", &text.parse().unwrap(), &options).unwrap();
            let queue = listener.queue(&mut Reader::new()).unwrap();
            assert_eq!(queue.max, effective, "{text}");
        }
    }
}

#[test]
fn a_full_queue_shows_in_the_drops() {
    let options = Options {
        backlog: 1,
        ..options()
    };
    let listener = bind("l0", &Address::Tcp((V4, 0).into()), &options).unwrap();
    let _clients = connect_without_waiting(&listener, 2);
    let full = Queue { len: 2, max: 1 };
    assert_eq!(listener.queue(&mut Reader::new()).unwrap(), full);
    assert_eq!(listener.drops().unwrap(), 0);
    let _dropped = connect_without_waiting(&listener, 3);
    assert_eq!(listener.queue(&mut Reader::new()).unwrap(), full);
    assert_eq!(listener.drops().unwrap(), 3);
}

/// On one machine the kernel answers the SYN within the call.
fn connect_without_waiting(listener: &Listener, count: usize) -> Vec<Socket> {
    let address = SocketAddr::from((V4, port(listener)));
    let connect = |_| {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.set_nonblocking(true).unwrap();
        let error = socket.connect(&address.into()).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EINPROGRESS));
        socket
    };
    (0..count).map(connect).collect()
}

#[test]
fn a_listener_that_refuses_new_ones_can_be_emptied() {
    for (text, client) in [
        ("127.0.0.1:0", IpAddr::from(V4)),
        ("0", V4.into()),
        ("0", Ipv6Addr::LOCALHOST.into()),
    ] {
        let listener = bind_text(text).unwrap();
        let address = SocketAddr::new(client, port(&listener));
        let _queued = TcpStream::connect(address).unwrap();
        defer_handshakes(&listener);
        let mut half_done = TcpStream::connect(address).unwrap();
        let mut reader = Reader::new();
        assert_eq!(reader.syn_recv(address).unwrap(), 1);

        let drops = listener.drops().unwrap(); // the deferred acknowledgement
        listener.refuse_new().unwrap();
        let error = TcpStream::connect(address).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);

        half_done.write_all(b"late").unwrap();
        let (_queued, _) = accept(&listener);
        let (late, peer) = accept(&listener);
        assert_eq!(peer, Some(half_done.local_addr().unwrap()));
        assert_eq!(reader.syn_recv(address).unwrap(), 0);
        assert_eq!(listener.queue(&mut reader).unwrap().len, 0);
        assert_eq!(listener.drops().unwrap(), drops);

        let mut late = TcpStream::from(late);
        let mut bytes = [0; 4];
        late.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"late");
        late.write_all(b"same").unwrap();
        half_done.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"same");
    }
}

mod unix;

mod inherited;

mod kept_listeners;
