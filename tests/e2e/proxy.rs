//! The PROXY protocol, out and in: addresses and payload are exact, and what is bad is refused.

use std::net::{IpAddr, Shutdown, SocketAddr};

use crate::common::gate::Setup;
use crate::common::net::Net;
use crate::common::wait_until;
use crate::common::wire::{End, Endpoint, Wire, connect, expect, read_all, send};

/// What `--send-proxy v1` says about this connection.
fn v1(client: SocketAddr, dialled: SocketAddr) -> Vec<u8> {
    let family = if client.is_ipv4() { "TCP4" } else { "TCP6" };
    let ends = format!(
        "{} {} {} {}",
        client.ip(),
        dialled.ip(),
        client.port(),
        dialled.port()
    );
    format!("PROXY {family} {ends}\r\n").into_bytes()
}

/// A version 2 header of command PROXY with these addresses and `extra` TLV bytes.
fn v2(client: SocketAddr, dialled: SocketAddr, extra: &[u8]) -> Vec<u8> {
    let octets = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let mut ends = [octets(client.ip()), octets(dialled.ip())].concat();
    ends.extend_from_slice(&client.port().to_be_bytes());
    ends.extend_from_slice(&dialled.port().to_be_bytes());
    ends.extend_from_slice(extra);
    let family = if client.is_ipv4() { 0x11 } else { 0x21 };
    v2_raw(0x21, family, &ends)
}

fn v2_raw(version_and_command: u8, family: u8, body: &[u8]) -> Vec<u8> {
    let mut header = b"\r\n\r\n\0\r\nQUIT\n".to_vec();
    header.extend_from_slice(&[version_and_command, family]);
    header.extend_from_slice(
        &u16::try_from(body.len())
            .expect("a short body")
            .to_be_bytes(),
    );
    header.extend_from_slice(body);
    header
}

fn address(socket: std::io::Result<socket2::SockAddr>) -> SocketAddr {
    socket
        .expect("an address")
        .as_socket()
        .expect("an IP address")
}

#[test]
fn proxy_header_goes_out_once_before_the_payload() {
    let net = Net::new();
    for endpoint in Endpoint::ALL {
        for (version, write) in [
            ("v1", v1 as fn(SocketAddr, SocketAddr) -> Vec<u8>),
            ("v2", |a, b| v2(a, b, &[])),
        ] {
            let setup = Setup::bare(&net);
            let port = setup.public().port();
            let wire = Wire::with(
                setup,
                &net,
                endpoint,
                &["--listen", &format!("[::]:{port}"), "--send-proxy", version],
            );
            for host in ["127.0.0.1", "127.1.2.3", "::1"] {
                let client = connect(SocketAddr::new(host.parse().expect("an IP"), port));
                let header = write(address(client.local_addr()), address(client.peer_addr()));
                send(&client, b"payload");
                client.shutdown(Shutdown::Write).expect("shutdown");
                let server = wire.accept();
                let (bytes, end) = read_all(&server);
                let expected = [header, b"payload".to_vec()].concat();
                assert_eq!(
                    bytes.escape_ascii().to_string(),
                    expected.escape_ascii().to_string(),
                    "{endpoint:?} {version} {host}"
                );
                assert_eq!(end, End::Eof);
                send(&server, b"answer");
                drop(server);
                assert_eq!(read_all(&client), (b"answer".to_vec(), End::Eof));
            }
        }
    }
}

#[test]
fn proxy_header_precedes_a_server_that_speaks_first() {
    let net = Net::new();
    let wire = Wire::new(&net, Endpoint::Tcp, &["--send-proxy", "v2"]);
    let (client, server) = wire.pair();
    expect(
        &server,
        &v2(
            address(client.local_addr()),
            address(client.peer_addr()),
            &[],
        ),
    );
    send(&server, b"220 ready\r\n");
    expect(&client, b"220 ready\r\n");
}

#[test]
fn proxy_header_comes_in_and_its_addresses_go_on() {
    let net = Net::new();
    let wire = Wire::new(
        &net,
        Endpoint::Tcp,
        &["--accept-proxy", "127.0.0.0/8", "--send-proxy", "v1"],
    );
    let from = |text: &str| text.parse::<SocketAddr>().expect("an address");
    let (four, to_four) = (from("192.0.2.10:51234"), from("198.51.100.20:443"));
    let (six, to_six) = (from("[2001:db8::1]:51234"), from("[2001:db8::2]:443"));
    let tlvs = [&[0xE0, 0x07, 0xCD][..], &[b'x'; 1997]].concat(); // one TLV of 1,997 bytes of a private type
    let named = [
        (v1(four, to_four), v1(four, to_four)),
        (v1(six, to_six), v1(six, to_six)),
        (v2(four, to_four, &[]), v1(four, to_four)),
        (v2(six, to_six, &tlvs), v1(six, to_six)),
        (
            v1(
                from("[::ffff:192.0.2.10]:51234"),
                from("[::ffff:198.51.100.20]:443"),
            ),
            v1(four, to_four),
        ),
    ];
    for (header, expected) in named {
        for pieces in [header.len() + 7, 1] {
            let client = wire.connect();
            client.set_tcp_nodelay(true).expect("TCP_NODELAY");
            for piece in [&header[..], b"payload"].concat().chunks(pieces) {
                send(&client, piece);
            }
            client.shutdown(Shutdown::Write).expect("shutdown");
            let (bytes, end) = read_all(&wire.accept());
            let expected = [&expected[..], b"payload"].concat();
            assert_eq!(
                bytes.escape_ascii().to_string(),
                expected.escape_ascii().to_string()
            );
            assert_eq!(end, End::Eof);
        }
    }
    // Without addresses in the header the connection's own ones count.
    for header in [
        b"PROXY UNKNOWN\r\n".to_vec(),
        v2_raw(0x20, 0, &[]),
        v2_raw(0x20, 0x11, &[9; 12]),
    ] {
        let client = wire.connect();
        send(&client, &[&header[..], b"payload"].concat());
        let server = wire.accept();
        let own = v1(address(client.local_addr()), address(client.peer_addr()));
        expect(&server, &[&own[..], b"payload"].concat());
    }
}

#[test]
fn bad_proxy_headers_are_closed_and_counted() {
    let net = Net::new();
    let options = [
        "--accept-proxy",
        "127.0.0.0/8",
        "--accept-proxy-timeout",
        "300ms",
    ];
    let wire = Wire::new(&net, Endpoint::Tcp, &options);
    let v4 = "192.0.2.10:1".parse().expect("an address");
    let mut checksummed = v2(v4, v4, &[3, 0, 4, 1, 2, 3, 4]); // PP2_TYPE_CRC32C, and wrong
    checksummed.extend_from_slice(b"payload");
    let bad: [(&str, Vec<u8>); 11] = [
        ("no header", b"GET / HTTP/1.1\r\n\r\n".to_vec()),
        (
            "no CRLF in 108 bytes",
            [b"PROXY TCP4 ".to_vec(), vec![b'1'; 97]].concat(),
        ),
        ("bare LF", b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2\n".to_vec()),
        (
            "leading zero in a port",
            b"PROXY TCP4 1.2.3.4 5.6.7.8 01 2\r\n".to_vec(),
        ),
        (
            "port out of range",
            b"PROXY TCP4 1.2.3.4 5.6.7.8 1 65536\r\n".to_vec(),
        ),
        (
            "family and address differ",
            b"PROXY TCP6 1.2.3.4 5.6.7.8 1 2\r\n".to_vec(),
        ),
        ("version 1 in binary", v2_raw(0x11, 0x11, &[1; 12])),
        ("command 2", v2_raw(0x22, 0x11, &[1; 12])),
        ("family 4", v2_raw(0x21, 0x41, &[1; 12])),
        ("too short for its family", v2_raw(0x21, 0x11, &[1; 11])),
        ("wrong checksum", checksummed),
    ];
    let count = bad.len();
    for (what, bytes) in bad {
        let client = wire.connect();
        send(&client, &bytes);
        assert_eq!(read_all(&client).0, b"", "{what}");
        assert!(wire.try_accept().is_none(), "{what}: was dispatched");
    }
    let slow = wire.connect();
    send(&slow, b"PROXY TC");
    assert_eq!(read_all(&slow).0, b"", "never completed");
    let count = count as f64 + 1.0;
    wait_until("all are counted", || {
        wire.gate
            .metrics()
            .sum("connections_closed_total", &[("reason", "proxy_header")])
            == count
    });
}

#[test]
fn proxy_header_from_others_than_the_trusted_is_refused() {
    let net = Net::new();
    let wire = Wire::new(&net, Endpoint::Tcp, &["--accept-proxy", "127.0.0.2/32"]);
    let v4 = "192.0.2.10:1".parse().expect("an address");
    let client = wire.connect(); // from 127.0.0.1
    let _ = std::io::Write::write(&mut &client, &v2(v4, v4, b"")); // it may be closed already
    assert_eq!(read_all(&client).0, b"");
    assert!(wire.try_accept().is_none(), "was dispatched");
    wait_until("it is counted", || {
        wire.gate
            .metrics()
            .sum("connections_closed_total", &[("reason", "proxy_header")])
            == 1.0
    });
}
