//! Both ends of a relayed connection in the test's own hands: a client's socket, the gate, a listener behind it.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use socket2::{Domain, SockAddr, Socket, Type};

use super::gate::{Gate, Setup};
use super::net::Net;
use super::pattern;

/// What the gate connects to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Endpoint {
    Tcp,
    Unix,
}

impl Endpoint {
    pub(crate) const ALL: [Endpoint; 2] = [Endpoint::Tcp, Endpoint::Unix];
}

/// No step of an exchange takes longer.
const LIMIT: Duration = Duration::from_secs(20);

/// Of a backend that is never too slow.
const BACKLOG: i32 = 1024;

/// A gate whose backend is a listener of the test's own.
pub(crate) struct Wire {
    pub(crate) gate: Gate,
    listener: Socket,
}

impl Wire {
    /// A running gate with `options`, its backend listening and empty.
    pub(crate) fn new(net: &Net, endpoint: Endpoint, options: &[&str]) -> Wire {
        Wire::with(Setup::new(net), net, endpoint, options)
    }

    pub(crate) fn with(setup: Setup, net: &Net, endpoint: Endpoint, options: &[&str]) -> Wire {
        let (listener, address) = listen(&setup, net, endpoint, BACKLOG);
        Wire::before(setup, listener, &address, options)
    }

    /// A running gate before a backend on this IP address of the machine.
    pub(crate) fn on_ip(net: &Net, ip: IpAddr, options: &[&str]) -> Wire {
        let address = SocketAddr::new(ip, net.free_address().port());
        let listener = listen_on(&address.into(), BACKLOG);
        Wire::before(Setup::new(net), listener, &address.to_string(), options)
    }

    fn before(setup: Setup, listener: Socket, address: &str, options: &[&str]) -> Wire {
        let gate = setup
            .options(["--backend", address])
            .options(options)
            .start();
        let wire = Wire { gate, listener };
        wire.listener.set_nonblocking(true).expect("nonblocking");
        while wire.listener.accept().is_ok() {} // the gate's readiness probe
        wire
    }

    /// A client's new connection to the gate.
    pub(crate) fn connect(&self) -> Socket {
        connect(self.gate.public())
    }

    /// The backend's next connection.
    pub(crate) fn accept(&self) -> Socket {
        let limit = PollTimeout::try_from(LIMIT).expect("milliseconds");
        let mut comes = [PollFd::new(self.listener.as_fd(), PollFlags::POLLIN)];
        poll(&mut comes, limit).expect("poll");
        self.try_accept().expect("the backend gets a connection")
    }

    /// The backend's next connection, if it is already there.
    pub(crate) fn try_accept(&self) -> Option<Socket> {
        match self.listener.accept() {
            Ok((socket, _)) => {
                prepare(&socket);
                Some(socket)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => None,
            Err(error) => panic!("accept: {error}"),
        }
    }

    /// A client's connection and its continuation at the backend.
    pub(crate) fn pair(&self) -> (Socket, Socket) {
        let client = self.connect();
        (client, self.accept())
    }
}

/// A listener for a gate's backend, and the address that `--backend` takes.
pub(crate) fn listen(
    setup: &Setup,
    net: &Net,
    endpoint: Endpoint,
    backlog: i32,
) -> (Socket, String) {
    let (address, name) = match endpoint {
        Endpoint::Tcp => {
            let address = net.free_address();
            (address.into(), address.to_string())
        }
        Endpoint::Unix => {
            let path = setup.dir().join("backend.sock");
            let address = SockAddr::unix(&path).expect("a path");
            (address, format!("unix:{}", path.display()))
        }
    };
    (listen_on(&address, backlog), name)
}

/// A listener there.
pub(crate) fn listen_on(address: &SockAddr, backlog: i32) -> Socket {
    let socket = Socket::new(address.domain(), Type::STREAM, None).expect("a socket");
    socket.set_reuse_address(true).expect("SO_REUSEADDR");
    socket.bind(address).expect("bind");
    socket.listen(backlog).expect("listen");
    socket
}

/// A TCP connection to `address` with time-outs, so that a hang is a failure.
pub(crate) fn connect(address: SocketAddr) -> Socket {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None).expect("a socket");
    socket
        .connect_timeout(&address.into(), LIMIT)
        .expect("connect");
    prepare(&socket);
    socket
}

fn prepare(socket: &Socket) {
    socket.set_nonblocking(false).expect("blocking");
    socket.set_read_timeout(Some(LIMIT)).expect("SO_RCVTIMEO");
    socket.set_write_timeout(Some(LIMIT)).expect("SO_SNDTIMEO");
}

/// How a stream ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum End {
    Eof,
    Reset,
}

/// Everything up to the end, and which one that was.
#[track_caller]
pub(crate) fn read_all(mut socket: &Socket) -> (Vec<u8>, End) {
    let mut bytes = Vec::new();
    match socket.read_to_end(&mut bytes) {
        Ok(_) => (bytes, End::Eof),
        Err(error) if error.kind() == ErrorKind::ConnectionReset => (bytes, End::Reset),
        Err(error) => panic!(
            "neither an end nor a reset after {} bytes: {error}",
            bytes.len()
        ),
    }
}

/// Exactly `expected` comes next.
#[track_caller]
pub(crate) fn expect(mut socket: &Socket, expected: &[u8]) {
    let mut bytes = vec![0; expected.len()];
    socket
        .read_exact(&mut bytes)
        .unwrap_or_else(|error| panic!("{error} instead of {}", expected.escape_ascii()));
    assert_eq!(
        bytes.escape_ascii().to_string(),
        expected.escape_ascii().to_string()
    );
}

#[track_caller]
pub(crate) fn send(mut socket: &Socket, bytes: &[u8]) {
    socket.write_all(bytes).expect("write");
}

/// Writes `length` bytes of the pattern.
pub(crate) fn send_pattern(mut socket: &Socket, length: u64) -> std::io::Result<()> {
    let mut at = 0;
    while at < length {
        let piece = pattern::at(at, usize::try_from(length - at).unwrap_or(pattern::CHUNK));
        socket.write_all(piece)?;
        at += piece.len() as u64;
    }
    Ok(())
}

/// Reads the pattern up to the end: how many bytes, and the end. Panics at the first byte that differs.
#[track_caller]
pub(crate) fn read_pattern(mut socket: &Socket) -> (u64, End) {
    let mut buffer = vec![0; pattern::CHUNK];
    let mut at = 0;
    loop {
        match socket.read(&mut buffer) {
            Ok(0) => return (at, End::Eof),
            Ok(length) => {
                assert!(
                    buffer[..length] == *pattern::at(at, length),
                    "wrong bytes between {at} and {}",
                    at + length as u64
                );
                at += length as u64;
            }
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return (at, End::Reset),
            Err(error) => panic!("after {at} bytes: {error}"),
        }
    }
}

/// Ends the connection with a reset.
pub(crate) fn reset(socket: Socket) {
    socket.set_linger(Some(Duration::ZERO)).expect("SO_LINGER");
    drop(socket);
}

/// How long `act` took.
pub(crate) fn timed<T>(act: impl FnOnce() -> T) -> (T, Duration) {
    let start = Instant::now();
    (act(), start.elapsed())
}
