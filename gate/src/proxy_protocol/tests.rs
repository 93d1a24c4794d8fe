use std::net::{IpAddr, SocketAddr};

use proptest::prelude::*;

use super::parse::BadHeader;
use super::*;

/// TCP4 192.0.2.10:51234 to 198.51.100.20:443 with a CRC32C TLV.
const WITH_CHECKSUM: &str =
    "0d0a0d0a000d0a515549540a21110013c000020ac6336414c82201bb030004a1d95b54";

fn hex(text: &str) -> Vec<u8> {
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap())
        .collect()
}

fn addresses(source: &str, destination: &str) -> Addresses {
    Addresses {
        source: source.parse().unwrap(),
        destination: destination.parse().unwrap(),
    }
}

fn v2(command: u8, family: u8, body: &[u8]) -> Vec<u8> {
    let mut header = SIGNATURE.to_vec();
    header.extend([command, family]);
    header.extend(u16::try_from(body.len()).unwrap().to_be_bytes());
    header.extend(body);
    header
}

fn tlv(kind: u8, value: &[u8]) -> Vec<u8> {
    let mut tlv = vec![kind];
    tlv.extend(u16::try_from(value.len()).unwrap().to_be_bytes());
    tlv.extend(value);
    tlv
}

/// 192.0.2.1:1000 to 192.0.2.2:2000 and what follows.
fn inet_body(tlvs: &[u8]) -> Vec<u8> {
    let mut body = vec![192, 0, 2, 1, 192, 0, 2, 2, 0x03, 0xe8, 0x07, 0xd0];
    body.extend(tlvs);
    body
}

/// The header is read with payload glued to it and without, and none of its prefixes says anything but `Incomplete`.
#[track_caller]
fn good(header: &[u8], expected: Option<Addresses>) {
    let parsed = Parsed::Header {
        len: header.len(),
        addresses: expected,
    };
    assert_eq!(parse(header), parsed);
    assert_eq!(parse(&[header, b"GET / HTTP/1.1\r\n\r\n"].concat()), parsed);
    for len in 0..header.len() {
        assert_eq!(parse(&header[..len]), Parsed::Incomplete, "first {len}");
    }
}

#[track_caller]
fn bad(header: &[u8], expected: BadHeader) {
    assert_eq!(parse(header), Parsed::Bad(expected));
    for len in 0..header.len() {
        let parsed = parse(&header[..len]);
        assert!(!matches!(parsed, Parsed::Header { .. }), "first {len}");
    }
}

#[test]
fn reads_good_lines() {
    let plain = addresses("192.0.2.1:1000", "192.0.2.2:443");
    good(b"PROXY TCP4 192.0.2.1 192.0.2.2 1000 443\r\n", Some(plain));
    good(
        b"PROXY TCP6 ::ffff:192.0.2.1 ::FFFF:c000:202 1000 443\r\n",
        Some(plain),
    );
    good(
        b"PROXY TCP6 2001:db8::1 2001:0DB8::2 65535 0\r\n",
        Some(addresses("[2001:db8::1]:65535", "[2001:db8::2]:0")),
    );
    good(b"PROXY UNKNOWN\r\n", None);
    good(b"PROXY UNKNOWN \n what\r ever\xff\r\n", None);
    let longest = format!("PROXY UNKNOWN {}\r\n", "x".repeat(91));
    assert_eq!(longest.len(), 107);
    good(longest.as_bytes(), None);
}

#[test]
fn refuses_bad_lines() {
    use BadHeader::*;
    let long = format!("PROXY UNKNOWN {}", "x".repeat(94));
    assert_eq!(long.len(), 108);
    bad(long.as_bytes(), LineTooLong);
    bad(format!("{long}\r\n").as_bytes(), LineTooLong);
    for (line, expected) in [
        ("PROXY TCP4 192.0.2.1 192.0.2.2 1000 443\n", LineEnd),
        ("PROXY TCP4 192.0.2.1 192.0.2.2 1000 443\n\r\n", LineEnd),
        ("PROXY TCP4 192.0.2.1 192.0.2.2\r1000 443\r\n", LineEnd),
        ("PROXY UNKNOWN\n", LineEnd),
        ("PROXY UNKNOWNS\r\n", Protocol),
        ("PROXY UDP4 192.0.2.1 192.0.2.2 1000 443\r\n", Protocol),
        ("PROXY \r\n", Protocol),
        ("PROXY TCP4 192.0.2.1 192.0.2.2 01000 443\r\n", Port),
        ("PROXY TCP4 192.0.2.1 192.0.2.2 1000 00\r\n", Port),
        ("PROXY TCP4 192.0.2.1 192.0.2.2 +1000 443\r\n", Port),
        ("PROXY TCP4 192.0.2.1 192.0.2.2 1000 65536\r\n", Port),
        ("PROXY TCP4 192.0.2.1 192.0.2.2 1000 \r\n", Port),
        ("PROXY TCP4 192.0.2.01 192.0.2.2 1000 443\r\n", Address),
        ("PROXY TCP4 192.0.2 192.0.2.2 1000 443\r\n", Address),
        ("PROXY TCP4 ::1 ::1 1000 443\r\n", Address),
        ("PROXY TCP6 192.0.2.1 192.0.2.2 1000 443\r\n", Address),
        ("PROXY TCP6 00001::1 ::1 1000 443\r\n", Address),
        ("PROXY TCP4  192.0.2.1 192.0.2.2 1000 443\r\n", Address),
        ("PROXY TCP4 192.0.2.1 192.0.2.2 1000\r\n", Fields),
        ("PROXY TCP4 192.0.2.1 192.0.2.2 1000 443 \r\n", Fields),
        ("GET / HTTP/1.1\r\n", NoHeader),
        ("proxy TCP4 192.0.2.1 192.0.2.2 1000 443\r\n", NoHeader),
        ("\r\n\r\n\r\n", NoHeader),
    ] {
        bad(line.as_bytes(), expected);
    }
}

#[test]
fn reads_good_binary_headers() {
    let checked = addresses("192.0.2.10:51234", "198.51.100.20:443");
    good(&hex(WITH_CHECKSUM), Some(checked));
    let plain = addresses("192.0.2.1:1000", "192.0.2.2:2000");
    good(&v2(PROXY, TCP4, &inet_body(&[])), Some(plain));
    let tlvs = [tlv(0xe0, &[7; 1990]), tlv(4, &[]), tlv(0x20, &[3; 4])].concat();
    assert!(tlvs.len() >= 2000);
    good(&v2(PROXY, TCP4, &inet_body(&tlvs)), Some(plain));
    let longest = tlv(4, &vec![0; MAX_READ - 16 - 12 - 3]);
    good(&v2(PROXY, TCP4, &inet_body(&longest)), Some(plain));
}

#[test]
fn takes_the_connections_own_addresses_where_none_are_of_use() {
    good(&v2(LOCAL, UNSPEC, &[]), None);
    good(&v2(LOCAL, TCP4, &inet_body(&[])), None);
    good(&v2(LOCAL, 0xff, b"for the sender alone"), None);
    good(&v2(PROXY, UNSPEC, &[]), None);
    good(&v2(PROXY, UNSPEC, b"whatever"), None);
    good(&v2(PROXY, 0x31, &[0; 216]), None);
    good(&v2(PROXY, 0x12, &inet_body(&[])), None);
    good(&v2(PROXY, 0x22, &[0; 36]), None);
}

#[test]
fn refuses_bad_binary_headers() {
    use BadHeader::*;
    let body = inet_body(&[]);
    bad(&v2(0x11, TCP4, &body), Version(1));
    bad(&v2(0x22, TCP4, &body), Command(2));
    bad(&v2(PROXY, 0x41, &body), Family(0x41));
    bad(&v2(PROXY, 0x13, &body), Family(0x13));
    bad(&v2(PROXY, TCP4, &[0; 65535]), TooLong(16 + 65535));
    bad(&v2(PROXY, TCP4, &[0; MAX_READ - 15]), TooLong(MAX_READ + 1));
    bad(&v2(PROXY, TCP4, &body[..11]), TooShort);
    bad(&v2(PROXY, TCP6, &[0; 35]), TooShort);
    bad(&v2(PROXY, 0x31, &[0; 215]), TooShort);
    bad(&v2(PROXY, TCP4, &inet_body(&[4, 0])), Tlv);
    bad(&v2(PROXY, TCP4, &inet_body(&[4, 0, 1])), Tlv);
    bad(&v2(PROXY, TCP4, &inet_body(&tlv(3, &[1; 5]))), Tlv);
    bad(&v2(PROXY, TCP4, &inet_body(&tlv(3, &[1; 4]))), Checksum);
    // The checksum covers every byte of the header.
    for at in 16..28 {
        let mut header = hex(WITH_CHECKSUM);
        header[at] ^= 1;
        bad(&header, Checksum);
    }
}

#[test]
fn writes_what_the_client_dialled() {
    let plain = addresses("127.0.0.1:50000", "127.0.0.1:80");
    let mapped = addresses("[::ffff:127.0.0.1]:50000", "[::ffff:127.0.0.1]:80");
    let line = b"PROXY TCP4 127.0.0.1 127.0.0.1 50000 80\r\n";
    assert_eq!(*header(Version::V1, Some(&plain)), *line);
    assert_eq!(*header(Version::V1, Some(&mapped)), *line);
    let binary = hex("0d0a0d0a000d0a515549540a2111000c7f0000017f000001c3500050");
    assert_eq!(*header(Version::V2, Some(&plain)), *binary);
    assert_eq!(*header(Version::V2, Some(&mapped)), *binary);
    let mixed = addresses("[2001:db8::1]:50000", "192.0.2.1:80");
    assert_eq!(
        *header(Version::V1, Some(&mixed)),
        *b"PROXY TCP6 2001:db8::1 ::ffff:192.0.2.1 50000 80\r\n"
    );
    assert_eq!(*header(Version::V1, None), *b"PROXY UNKNOWN\r\n");
    assert_eq!(*header(Version::V2, None), *v2(LOCAL, UNSPEC, &[]));
}

fn any_address() -> impl Strategy<Value = SocketAddr> {
    let ip = prop_oneof![
        any::<[u8; 4]>().prop_map(IpAddr::from),
        any::<[u8; 4]>().prop_map(|v4| IpAddr::V6(std::net::Ipv4Addr::from(v4).to_ipv6_mapped())),
        any::<[u8; 16]>().prop_map(IpAddr::from),
    ];
    (ip, any::<u16>()).prop_map(SocketAddr::from)
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Another implementation's view of a header.
fn read_independently(header: &[u8]) -> (SocketAddr, SocketAddr) {
    use ppp::{HeaderResult, v1, v2};
    match HeaderResult::parse(header) {
        HeaderResult::V1(Ok(read)) => match read.addresses {
            v1::Addresses::Tcp4(a) => (
                (a.source_address, a.source_port).into(),
                (a.destination_address, a.destination_port).into(),
            ),
            v1::Addresses::Tcp6(a) => (
                (a.source_address, a.source_port).into(),
                (a.destination_address, a.destination_port).into(),
            ),
            v1::Addresses::Unknown => panic!("unknown"),
        },
        HeaderResult::V2(Ok(read)) => match read.addresses {
            v2::Addresses::IPv4(a) => (
                (a.source_address, a.source_port).into(),
                (a.destination_address, a.destination_port).into(),
            ),
            v2::Addresses::IPv6(a) => (
                (a.source_address, a.source_port).into(),
                (a.destination_address, a.destination_port).into(),
            ),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

proptest! {
    #[test]
    fn what_is_written_is_read(
        version in prop_oneof![Just(Version::V1), Just(Version::V2)],
        source in any_address(),
        destination in any_address(),
    ) {
        let header = header(version, Some(&Addresses { source, destination }));
        let (source, destination) = (canonical(source), canonical(destination));
        good(&header, Some(Addresses { source, destination }));
        let (read_source, read_destination) = read_independently(&header);
        prop_assert_eq!(canonical(read_source), source);
        prop_assert_eq!(canonical(read_destination), destination);
    }

    #[test]
    fn reads_what_others_write(
        source in any::<([u8; 4], u16)>(),
        destination in any::<([u8; 4], u16)>(),
        note in proptest::collection::vec(any::<u8>(), 0..2000),
    ) {
        let addresses = Addresses { source: source.into(), destination: destination.into() };
        let header = ppp::v2::Builder::with_addresses(
            ppp::v2::Version::Two | ppp::v2::Command::Proxy,
            ppp::v2::Protocol::Stream,
            (addresses.source, addresses.destination),
        )
        .write_tlv(ppp::v2::Type::NoOp, &note)
        .unwrap()
        .build()
        .unwrap();
        good(&header, Some(addresses));
        let line = ppp::v1::Addresses::from((addresses.source, addresses.destination)).to_string();
        good(line.as_bytes(), Some(addresses));
    }

    #[test]
    fn no_bytes_make_it_panic_or_change_its_mind(
        start in proptest::sample::select(vec![&b""[..], b"PROXY ", b"PROXY TCP4 ", &SIGNATURE]),
        rest in proptest::collection::vec(any::<u8>(), 0..300),
    ) {
        let bytes = [start, &rest].concat();
        let whole = parse(&bytes);
        for len in 0..bytes.len() {
            match parse(&bytes[..len]) {
                Parsed::Incomplete => {}
                // More bytes name a more precise reason at most.
                Parsed::Bad(_) => prop_assert!(matches!(whole, Parsed::Bad(_))),
                header => prop_assert_eq!(header, whole),
            }
        }
    }
}

#[test]
fn trusts_the_listed_peers_alone() {
    let trusted: Trusted = "10.0.0.0/8, ::1,192.0.2.7,2001:db8::/32".parse().unwrap();
    let contains = |peer: &str| trusted.contains(Some(peer.parse().unwrap()));
    for peer in ["10.255.0.1", "::ffff:10.1.2.3", "::1", "192.0.2.7"] {
        assert!(contains(peer), "{peer}");
    }
    assert!(contains("2001:db8:ffff::1"));
    for peer in ["11.0.0.1", "::2", "192.0.2.8", "2001:db9::1", "127.0.0.1"] {
        assert!(!contains(peer), "{peer}");
    }
    assert!(!trusted.contains(None));
}

#[test]
fn trusts_unix_peers_and_whole_families() {
    let peer = |text: &str| Some(text.parse::<IpAddr>().unwrap());
    let unix: Trusted = "unix".parse().unwrap();
    assert!(unix.contains(None) && !unix.contains(peer("127.0.0.1")));
    let v4: Trusted = "0.0.0.0/0".parse().unwrap();
    assert!(v4.contains(peer("203.0.113.9")) && !v4.contains(peer("::1")));
    let v6: Trusted = "::/0".parse().unwrap();
    assert!(v6.contains(peer("::1")) && !v6.contains(peer("::ffff:203.0.113.9")));
    let mapped: Trusted = "::ffff:10.0.0.0/104".parse().unwrap();
    assert_eq!(mapped, "10.0.0.0/8".parse().unwrap());
}

#[test]
fn says_what_is_wrong_with_a_list() {
    let error = |list: &str| list.parse::<Trusted>().unwrap_err();
    assert_eq!(error(""), BadTrusted::Address(String::new()));
    assert_eq!(
        error("::1,localhost"),
        BadTrusted::Address("localhost".into())
    );
    assert_eq!(
        error("10.0.0.0/33"),
        BadTrusted::Prefix("10.0.0.0/33".into(), 32)
    );
    assert_eq!(
        error("10.0.0.1/8").to_string(),
        "`10.0.0.1/8` has bits set behind its prefix: write 10.0.0.0/8 for that network"
    );
}
