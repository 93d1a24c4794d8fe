//! PROXY headers, in and out.

use std::io::{Read, Write};
use std::net::{Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use ppp::HeaderResult;
use syngate_gate::listener::{Address, KeptListener, LocalAddress};
use syngate_gate::proxy_protocol::{Addresses, Version, header};
use syngate_gate::{Gate, Generation, ServiceSettings, Settings};
use syngate_metrics::{CloseReason, Metrics};

use crate::common::{
    Fixture, LOOPBACK, ask, bind, echo, kept_endpoint, settings, tcp_endpoint, unix_endpoint,
    until, wait,
};

fn sending(version: Version) -> ServiceSettings {
    ServiceSettings {
        send_proxy: Some(version),
        ..settings()
    }
}

/// What the backend gets, up to the client's end.
fn received(fixture: &Fixture, client: TcpStream, bytes: &[u8]) -> Vec<u8> {
    let listener = TcpListener::bind(LOOPBACK).unwrap();
    fixture.activate(&fixture.generation(1, listener.local_addr().unwrap()));
    (&client).write_all(bytes).unwrap();
    client.shutdown(std::net::Shutdown::Write).unwrap();
    let (mut accepted, _) = listener.accept().unwrap();
    let mut all = Vec::new();
    accepted.read_to_end(&mut all).unwrap();
    all
}

/// The addresses in a header, and the length of the header.
fn parsed(bytes: &[u8]) -> (SocketAddr, SocketAddr, usize) {
    match HeaderResult::parse(bytes) {
        HeaderResult::V1(Ok(header)) => {
            use ppp::v1::Addresses as V1;
            let length = header.header.len();
            match header.addresses {
                V1::Tcp4(tcp) => (
                    (tcp.source_address, tcp.source_port).into(),
                    (tcp.destination_address, tcp.destination_port).into(),
                    length,
                ),
                other => panic!("{other:?}"),
            }
        }
        HeaderResult::V2(Ok(header)) => {
            use ppp::v2::Addresses as V2;
            let length = header.header.len();
            match header.addresses {
                V2::IPv4(tcp) => (
                    (tcp.source_address, tcp.source_port).into(),
                    (tcp.destination_address, tcp.destination_port).into(),
                    length,
                ),
                V2::IPv6(tcp) => (
                    (tcp.source_address, tcp.source_port).into(),
                    (tcp.destination_address, tcp.destination_port).into(),
                    length,
                ),
                other => panic!("{other:?}"),
            }
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_backend_hears_of_the_client_in_both_versions() {
    for version in [Version::V1, Version::V2] {
        let fixture = Fixture::new(1, sending(version));
        let client = fixture.client();
        let source = client.local_addr().unwrap();
        let bytes = received(&fixture, client, b"hello");
        let (from, to, length) = parsed(&bytes);
        assert_eq!((from, to), (source, fixture.address));
        assert_eq!(&bytes[length..], b"hello");
        fixture.stop();
    }
}

#[test]
fn an_ipv4_client_of_a_dual_stack_listener_is_an_ipv4_client() {
    let listener = bind(&Address::Port(0));
    let LocalAddress::Tcp(address) = *listener.address() else {
        unreachable!()
    };
    let fixture = Fixture::with(1, sending(Version::V2), 100, 100, listener);
    let client = TcpStream::connect(("127.0.0.1", address.port())).unwrap();
    let source = client.local_addr().unwrap();
    let bytes = received(&fixture, client, b"x");
    let (from, to, _) = parsed(&bytes);
    assert_eq!(from, source);
    assert_eq!(to, SocketAddr::from(([127, 0, 0, 1], address.port())));
    if let Ok(client) = TcpStream::connect((Ipv6Addr::LOCALHOST, address.port())) {
        let source = client.local_addr().unwrap();
        let bytes = received(&fixture, client, b"x");
        let (from, to, _) = parsed(&bytes);
        assert_eq!(from, source);
        assert_eq!(to, (Ipv6Addr::LOCALHOST, address.port()).into());
    }
    fixture.stop();
}

#[test]
fn the_header_and_the_first_bytes_leave_in_one_piece() {
    let fixture = Fixture::new(1, sending(Version::V2));
    let mut client = fixture.client();
    client.write_all(b"first").unwrap();
    fixture.until_pending(1);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let listener = UnixListener::bind(&path).unwrap();
    fixture.activate(&fixture.generation_at(1, vec![unix_endpoint(path)]));
    let (mut accepted, _) = listener.accept().unwrap();
    let mut bytes = [0; 1000];
    let n = accepted.read(&mut bytes).unwrap();
    assert_eq!(n, 28 + 5);
    assert_eq!(&bytes[28..n], b"first");
    fixture.stop();
}

#[test]
fn a_client_s_own_header_is_taken_and_passed_on() {
    let both = ServiceSettings {
        accept_proxy: Some("127.0.0.0/8".parse().unwrap()),
        ..sending(Version::V2)
    };
    let addresses = Addresses {
        source: "192.0.2.10:51234".parse().unwrap(),
        destination: "198.51.100.20:443".parse().unwrap(),
    };
    for version in [Version::V1, Version::V2] {
        let fixture = Fixture::new(1, both.clone());
        let header = header(version, Some(&addresses));
        let mut client = fixture.client();
        client.set_nodelay(true).unwrap();
        // A byte a segment, and the payload glued to the last.
        let (last, bytes) = header.split_last().unwrap();
        for byte in bytes {
            client.write_all(&[*byte]).unwrap();
        }
        let payload = [&[*last], &b"payload"[..]].concat();
        let bytes = received(&fixture, client, &payload);
        let (from, to, length) = parsed(&bytes);
        assert_eq!((from, to), (addresses.source, addresses.destination));
        assert_eq!(&bytes[length..], b"payload");
        fixture.stop();
    }
}

#[test]
fn a_bad_header_and_a_peer_that_isn_t_trusted_are_closed() {
    for (trusted, bytes) in [
        ("127.0.0.0/8", &b"GET / HTTP/1.0\r\n\r\n"[..]),
        ("10.0.0.0/8", b"PROXY UNKNOWN\r\n"),
        ("127.0.0.0/8", b"PROXY TCP4 "),
    ] {
        let accepting = ServiceSettings {
            accept_proxy: Some(trusted.parse().unwrap()),
            ..settings()
        };
        let fixture = Fixture::new(1, accepting);
        fixture.activate(&fixture.generation(1, echo("")));
        let mut client = fixture.client();
        let _ = client.write_all(bytes);
        let _ = client.shutdown(std::net::Shutdown::Write);
        assert!(!matches!(client.read(&mut [0; 1]), Ok(1)));
        fixture.until_empty();
        assert_eq!(fixture.stop().closed(CloseReason::ProxyHeader), 1);
    }
}

#[test]
fn a_trusted_peer_s_unknown_header_leaves_its_own_address() {
    let accepting = ServiceSettings {
        accept_proxy: Some("127.0.0.0/8".parse().unwrap()),
        ..settings()
    };
    let fixture = Fixture::new(1, accepting);
    fixture.activate(&fixture.generation(1, echo("")));
    assert_eq!(ask(fixture.client(), b"PROXY UNKNOWN\r\nhello"), b"hello");
    fixture.stop();
}

#[test]
fn a_raw_listener_s_clients_send_the_header_themselves() {
    let both = ServiceSettings {
        accept_proxy: Some("10.0.0.0/8".parse().unwrap()),
        ..sending(Version::V2)
    };
    let metrics = Metrics::new("test", 2);
    let process = Settings {
        workers: 2,
        max_connections: 100,
        pending_max: 100,
    };
    let (gate, _events) = Gate::start(&process, &metrics).unwrap();
    let service = wait(gate.add_service("default", both.clone()));
    let listener = bind(&Address::Tcp(LOOPBACK));
    let LocalAddress::Tcp(address) = *listener.address() else {
        unreachable!()
    };
    wait(gate.open(service, listener, true)).unwrap();
    // Nothing is active yet, and nobody who isn't trusted is closed.
    let early = TcpStream::connect(address).unwrap();
    until("it waits", || gate.pending_connections() == 1);
    let endpoints = vec![(None, vec![tcp_endpoint(echo(""))])];
    let generation = Generation::new(1, 2, endpoints, vec!["l0".to_owned()]);
    wait(gate.activate(service, Some(generation), both, &[]));
    let sent = b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\nhello";
    assert_eq!(ask(early, sent), sent);
    for _ in 0..20 {
        assert_eq!(ask(TcpStream::connect(address).unwrap(), sent), sent);
    }
    wait(gate.stop());
}

#[test]
fn whether_a_listener_is_raw_changes_with_the_flip() {
    let fixture = Fixture::new(2, sending(Version::V1));
    let backend = echo("");
    let plain = fixture.generation(1, backend);
    let raw = fixture.raw_generation(2, backend);
    let starts = |client, start: &[u8]| ask(client, b"hello").starts_with(start);
    // Whoever waited is told as the generation expects that gets it.
    let waiting = fixture.client();
    fixture.until_pending(1);
    fixture.activate(&raw);
    assert!(starts(waiting, b"hello"));
    fixture.activate(&plain);
    assert!(starts(fixture.client(), b"PROXY TCP4 "));
    fixture.activate(&raw);
    assert!(starts(fixture.client(), b"hello"));
    fixture.deactivate();
    let waiting = fixture.client();
    fixture.until_pending(1);
    fixture.activate(&plain);
    assert!(starts(waiting, b"PROXY TCP4 "));
    fixture.stop();
}

/// Each generation gets the header that it was made for, also one that is flipped back to, under connects without end.
#[test]
fn the_header_changes_with_the_flip() {
    let fixture = Fixture::new(2, settings());
    let plain = fixture.generation(1, echo("plain "));
    let told = fixture.generation(2, echo("told "));
    fixture.activate(&plain);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..100 {
                fixture.activate_with(&told, sending(Version::V1));
                fixture.activate_with(&plain, settings());
            }
            done.store(true, Ordering::Relaxed);
        });
        while !done.load(Ordering::Relaxed) {
            let answer = ask(fixture.client(), b"hello");
            let fits = answer == b"plain hello" || answer.starts_with(b"told PROXY TCP4 ");
            assert!(fits, "{}", answer.escape_ascii());
        }
    });
    fixture.stop();
}

#[test]
fn a_unix_client_s_header_names_no_address() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("public");
    let address = Address::Unix {
        path: path.clone(),
        mode: None,
    };
    let fixture = Fixture::with(1, sending(Version::V2), 100, 100, bind(&address));
    let kept = KeptListener::unix(directory.path()).unwrap();
    let endpoint = kept_endpoint(&kept);
    fixture.activate(&fixture.generation_at(1, vec![endpoint]));
    let mut client = UnixStream::connect(path).unwrap();
    client.write_all(b"hello").unwrap();
    client.shutdown(std::net::Shutdown::Write).unwrap();
    let backend = UnixListener::from(kept.as_fd().try_clone_to_owned().unwrap());
    let (mut accepted, _) = backend.accept().unwrap();
    let mut bytes = Vec::new();
    accepted.read_to_end(&mut bytes).unwrap();
    // Signature, version 2 and LOCAL, no family, no addresses (section 2.2 of the specification).
    assert_eq!(bytes, b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0hello");
    drop(accepted);
    drop(client);
    fixture.stop();
}
