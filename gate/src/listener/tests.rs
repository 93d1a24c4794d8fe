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

mod addresses {
    use super::*;

    #[test]
    fn are_read_and_written_alike() {
        let unix = |path: &str, mode| Address::Unix {
            path: path.into(),
            mode,
        };
        for (text, address) in [
            ("8080", Address::Port(8080)),
            ("0", Address::Port(0)),
            ("127.0.0.1:80", Address::Tcp(([127, 0, 0, 1], 80).into())),
            (
                "[::]:443",
                Address::Tcp((Ipv6Addr::UNSPECIFIED, 443).into()),
            ),
            ("unix:/run/x.sock", unix("/run/x.sock", None)),
            ("unix:x,y=1,mode=0660", unix("x,y=1", Some(0o660))),
            ("fd:web", Address::Inherited("web".into())),
        ] {
            assert_eq!(text.parse(), Ok(address.clone()), "{text}");
            assert_eq!(address.to_string(), text);
        }
    }

    #[test]
    fn say_what_is_wrong() {
        let long = format!("unix:/{}", "x".repeat(107));
        for (text, part) in [
            ("", "no address to listen on"),
            ("65536", "up to 65535"),
            ("127.0.0.1", "write 127.0.0.1:PORT"),
            ("127.0.0.1:x", "bad port"),
            ("127.0.0.1:70000", "bad port"),
            ("[::1]", "write [::1]:PORT"),
            ("::1:80", "in brackets"),
            ("localhost:80", "names a host"),
            ("*:80", "no address to listen on"),
            ("unix:", "no path"),
            ("unix:,mode=600", "no path"),
            ("unix:/x,mode=0999", "in octal"),
            ("unix:/x,mode=+600", "in octal"),
            ("unix:/x,mode=4755", "in octal"),
            (&long, "has 108 bytes"),
            ("fd:", "no name"),
        ] {
            let error = text.parse::<Address>().unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
            assert!(error.contains(text));
        }
    }

    #[test]
    fn may_have_a_name() {
        for (text, name, address) in [
            ("web=8080", Some("web"), "8080"),
            (
                "h2_alt=unix:/x,mode=0600",
                Some("h2_alt"),
                "unix:/x,mode=0600",
            ),
            ("8080", None, "8080"),
            ("unix:/x,mode=0600", None, "unix:/x,mode=0600"),
            ("unix:/a=b", None, "unix:/a=b"),
        ] {
            let named: Named = text.parse().unwrap();
            assert_eq!(named.name.as_deref(), name);
            assert_eq!(named.address.to_string(), address);
            assert_eq!(named.to_string(), text);
        }
        assert!("Web=8080".parse::<Named>().is_err());
        assert!("=8080".parse::<Named>().is_err());
    }
}

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

mod unix {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn has_the_mode_that_was_asked_for() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        for (suffix, expected) in [("", 0o600), (",mode=0666", 0o666), (",mode=0640", 0o640)] {
            let listener = bind_text(&format!("unix:{}{suffix}", path.display())).unwrap();
            assert_eq!(mode(&path), expected);
            assert!(listener.is_unix());
            let _client = UnixStream::connect(&path).unwrap();
            let (_connection, peer) = accept(&listener);
            assert_eq!(peer, None);
            assert_eq!(listener.drops().unwrap(), 0);
        }
        assert!(!path.exists(), "removed with its listener");
    }

    #[test]
    fn replaces_a_stale_file_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let text = format!("unix:{}", path.display());

        let live = UnixListener::bind(&path).unwrap();
        let error = bind_text(&text).unwrap_err();
        assert!(matches!(error, BindError::InUse { .. }), "{error}");
        UnixStream::connect(&path).unwrap();
        drop(live);
        assert!(path.exists(), "a file that refuses a connect");
        let listener = bind_text(&text).unwrap();
        UnixStream::connect(&path).unwrap();
        drop(listener);

        fs::write(&path, "precious").unwrap();
        let error = bind_text(&text).unwrap_err();
        assert!(matches!(error, BindError::NotASocket(_)), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    }

    #[test]
    fn removes_its_own_file_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let text = format!("unix:{}", path.display());
        let first = bind_text(&text).unwrap();
        fs::rename(&path, directory.path().join("moved")).unwrap();
        let second = bind_text(&text).unwrap();
        drop(first);
        UnixStream::connect(&path).unwrap();
        second.refuse_new().unwrap();
        assert!(!path.exists());
        accept(&second);
    }

    #[test]
    fn names_a_missing_directory() {
        let error = bind_text("unix:/nonexistent/s").unwrap_err();
        assert!(matches!(error, BindError::NoDirectory(_)), "{error}");
    }
}

mod inherited {
    use super::*;

    #[test]
    fn tcp_is_made_fit() {
        let socket = std::net::TcpListener::bind((V4, 0)).unwrap();
        let address = socket.local_addr().unwrap();
        let listener = from_inherited("web", socket.into(), &options()).unwrap();
        assert_eq!(listener.name(), "web");
        assert_eq!(*listener.address(), LocalAddress::Tcp(address));
        assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
        let _client = TcpStream::connect(address).unwrap();
        let (connection, _) = accept(&listener);
        assert!(SockRef::from(&connection).tcp_nodelay().unwrap());
    }

    #[test]
    fn tcp_stays_of_use_to_whoever_passed_it() {
        let socket = std::net::TcpListener::bind((V4, 0)).unwrap();
        let passed = socket.try_clone().unwrap();
        let listener = from_inherited("web", passed.into(), &options()).unwrap();
        listener.refuse_new().unwrap();
        drop(listener);
        TcpStream::connect(socket.local_addr().unwrap()).unwrap();
    }

    #[test]
    fn a_unix_file_stays_its_makers() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let socket = UnixListener::bind(&path).unwrap();
        let listener = from_inherited("web", socket.into(), &options()).unwrap();
        assert_eq!(*listener.address(), LocalAddress::Unix(path.clone()));
        drop(listener);
        assert!(path.exists());
    }

    #[test]
    fn anything_else_is_refused() {
        let unbound = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        let datagrams = UdpSocket::bind((V4, 0)).unwrap();
        let (connected, _peer) = UnixStream::pair().unwrap();
        let file = tempfile::tempfile().unwrap();
        for fd in [
            OwnedFd::from(unbound),
            datagrams.into(),
            connected.into(),
            file.into(),
        ] {
            let error = from_inherited("web", fd, &options()).unwrap_err();
            assert!(matches!(error, BindError::NotListening(_)), "{error}");
        }
    }
}

mod kept_listeners {
    use super::*;

    fn serves(kept: &KeptListener) {
        let address = kept.address().address().unwrap();
        let client = Socket::new(address.domain(), Type::STREAM, None).unwrap();
        client.connect(&address).unwrap();
        (&client).write_all(b"kept").unwrap();
        let mut reader = Reader::new();
        let queue = kept.queue(&mut reader).unwrap();
        assert_eq!((queue.len, queue.max > 1), (1, true));
        assert_eq!(reader.undelivered(kept.probe()).unwrap(), Some(1));
        let flags = fcntl(kept, FcntlArg::F_GETFL).unwrap();
        assert_eq!(flags & libc::O_NONBLOCK, 0, "as servers expect it");

        let listener = kept.adopt("l0").unwrap();
        let (connection, _) = accept(&listener);
        let mut bytes = [0; 4];
        assert_eq!((&Socket::from(connection)).read(&mut bytes).unwrap(), 4);
        assert_eq!(&bytes, b"kept");
        assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
    }

    #[test]
    fn tcp() {
        serves(&KeptListener::tcp((V4, 0).into()).unwrap());
    }

    /// shutdown(2) by any holder is for all, and for good.
    #[test]
    fn one_that_was_shut_down_is_not_open() {
        let directory = tempfile::tempdir().unwrap();
        for how in [Shutdown::Read, Shutdown::Both] {
            for kept in [
                KeptListener::tcp((V4, 0).into()).unwrap(),
                KeptListener::unix(directory.path()).unwrap(),
            ] {
                assert!(kept.is_open());
                let address = kept.address().address().unwrap();
                let client = Socket::new(address.domain(), Type::STREAM, None).unwrap();
                client.connect(&address).unwrap();
                assert!(kept.is_open(), "with a client that waits");
                let copy = Socket::from(kept.as_fd().try_clone_to_owned().unwrap());
                copy.shutdown(how).unwrap();
                assert!(!kept.is_open(), "{how:?}");
            }
        }
    }

    #[test]
    fn unix_leaves_no_name() {
        let directory = tempfile::tempdir().unwrap();
        let deep = directory.path().join("d".repeat(150));
        fs::create_dir(&deep).unwrap();
        let kept = KeptListener::unix(&deep).unwrap();
        assert_eq!(fs::read_dir(&deep).unwrap().count(), 0);
        assert!(kept.address().is_unix());
        serves(&kept);
        let second = KeptListener::unix(&deep).unwrap();
        drop(kept);
        serves(&second);
    }
}
