//! The addresses of `bind`, `stats socket` and `server` lines (configuration manual, section 11.3 or 4.2, by version), as
//! HAProxy's `str2sa_range()` reads them after its expansion of variables.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;

/// One member of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Address {
    /// A TCP listener on each port.
    Tcp {
        ip: IpAddr,
        ports: RangeInclusive<u16>,
        /// `mptcp@`
        multipath: bool,
    },
    /// A unix socket's path, without the prefix that `unix-bind` may put in front of it.
    Unix(Vec<u8>),
    /// `abns@NAME` or `abnsz@NAME`.
    Abstract { prefix: &'static str, name: Vec<u8> },
    /// `fd@N`, `sockpair@N`: something inherited.
    Inherited,
    /// QUIC, UDP, or reverse HTTP: nothing that a TCP relay can stand before. Which, in words.
    Foreign(&'static str),
}

/// Why an address isn't understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum BadAddress {
    #[error("it is empty; is a variable not set?")]
    Empty,
    #[error("it has no port; write it as ADDRESS:PORT")]
    NoPort,
    #[error("its port isn't a number from 1 to 65535 or a range of them")]
    Port,
    #[error("its text isn't UTF-8")]
    Text,
    #[error("its host isn't an address of that family, and no name that can be looked up")]
    Host,
    #[error("the name of its host isn't found: {0}")]
    NotFound(String),
    #[error("the name of its host has no address of that family")]
    OtherFamily,
}

/// The families that an address may be limited to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Family {
    Any,
    V4,
    V6,
}

/// The addresses of a host, in the resolver's order.
pub(super) type Resolve<'a> = &'a dyn Fn(&str) -> io::Result<Vec<IpAddr>>;

/// Reads one member of a `bind` line's list. `resolve` looks a name up.
pub(super) fn parse(text: &[u8], resolve: Resolve<'_>) -> Result<Address, BadAddress> {
    if text.is_empty() {
        return Err(BadAddress::Empty);
    }
    let (text, datagram) = if let Some(rest) = text.strip_prefix(b"stream+") {
        (rest, None)
    } else if let Some(rest) = text.strip_prefix(b"dgram+") {
        (rest, Some("a datagram socket"))
    } else if let Some(rest) = text.strip_prefix(b"quic+") {
        (rest, Some("QUIC"))
    } else {
        (text, None)
    };
    let (tag, rest) = match text.iter().position(|&byte| byte == b'@') {
        Some(at) => (&text[..at], &text[at + 1..]),
        None => (&b""[..], text),
    };
    let (family, multipath) = match tag {
        b"uxst" => return Ok(Address::Unix(rest.to_vec())),
        b"unix" if datagram.is_none() => return Ok(Address::Unix(rest.to_vec())),
        b"abns" if datagram.is_none() => return Ok(named("abns@", rest)),
        b"abnsz" if datagram.is_none() => return Ok(named("abnsz@", rest)),
        b"fd" | b"sockpair" => return Ok(Address::Inherited),
        b"rhttp" => return Ok(Address::Foreign("reverse HTTP")),
        b"uxdg" | b"udp" | b"udp4" | b"udp6" => return Ok(Address::Foreign("a datagram socket")),
        b"quic4" | b"quic6" => return Ok(Address::Foreign("QUIC")),
        // These say that they are streams, whatever stands in front.
        b"tcp" => (Family::Any, false),
        b"tcp4" => (Family::V4, false),
        b"tcp6" => (Family::V6, false),
        b"mptcp" => (Family::Any, true),
        b"mptcp4" => (Family::V4, true),
        b"mptcp6" => (Family::V6, true),
        _ if let Some(datagram) = datagram => return Ok(Address::Foreign(datagram)),
        b"ip" => (Family::Any, false),
        b"ipv4" => (Family::V4, false),
        b"ipv6" => (Family::V6, false),
        _ if text.first() == Some(&b'/') => return Ok(Address::Unix(text.to_vec())),
        // An @ of something else is part of the host's name, which can't have one.
        _ => return inet(text, Family::Any, false, resolve),
    };
    inet(rest, family, multipath, resolve)
}

fn named(prefix: &'static str, name: &[u8]) -> Address {
    let name = name.to_vec();
    Address::Abstract { prefix, name }
}

fn inet(
    text: &[u8],
    family: Family,
    multipath: bool,
    resolve: Resolve<'_>,
) -> Result<Address, BadAddress> {
    let text = std::str::from_utf8(text).map_err(|_| BadAddress::Text)?;
    let colon = text
        .rfind([':', ']'])
        .filter(|&at| text[at..].starts_with(':'));
    let (host, port) = text.split_at(colon.ok_or(BadAddress::NoPort)?);
    let ports = ports(&port[1..])?;
    let ip = host_address(host, family, resolve)?;
    Ok(Address::Tcp {
        ip,
        ports,
        multipath,
    })
}

fn ports(text: &str) -> Result<RangeInclusive<u16>, BadAddress> {
    let (low, high) = text.split_once('-').unwrap_or((text, text));
    let port = |text: &str| {
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let port = text.parse().ok().filter(|&port: &u16| digits && port != 0);
        port.ok_or(BadAddress::Port)
    };
    let (low, high) = (port(low)?, port(high)?);
    match low <= high {
        true => Ok(low..=high),
        false => Err(BadAddress::Port),
    }
}

/// As `str2ip2()`: nothing and `*` are all addresses, of IPv4 unless the family says otherwise.
fn host_address(host: &str, family: Family, resolve: Resolve<'_>) -> Result<IpAddr, BadAddress> {
    let host = match host.strip_prefix('[') {
        Some(inner) => inner.strip_suffix(']').filter(|it| it.len() >= 2),
        None => Some(host),
    };
    let host = host.ok_or(BadAddress::Host)?;
    let of_family = |ip: IpAddr| match family {
        Family::Any => true,
        Family::V4 => ip.is_ipv4(),
        Family::V6 => ip.is_ipv6(),
    };
    let ip = match host {
        "" | "*" if family == Family::V6 => Ipv6Addr::UNSPECIFIED.into(),
        "" | "*" => Ipv4Addr::UNSPECIFIED.into(),
        _ => match host.parse() {
            Ok(ip) => ip,
            Err(_) if !is_host_name(host) => return Err(BadAddress::Host),
            Err(_) => {
                let found = resolve(host).map_err(|it| BadAddress::NotFound(it.to_string()))?;
                let first = found.into_iter().find(|&ip| of_family(ip));
                return first.ok_or(BadAddress::OtherFamily);
            }
        },
    };
    Some(ip).filter(|&ip| of_family(ip)).ok_or(BadAddress::Host)
}

/// As `resolv_hostname_validation()`, in outline: letters, digits, `-`, `_` and `.`.
fn is_host_name(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    text.bytes().all(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Address, BadAddress> {
        parse(text.as_bytes(), &|name| match name {
            "localhost" => Ok(vec![Ipv4Addr::LOCALHOST.into()]),
            "both" => Ok(vec![Ipv6Addr::LOCALHOST.into(), Ipv4Addr::LOCALHOST.into()]),
            _ => Err(io::Error::other("no such host")),
        })
    }

    fn tcp(text: &str) -> String {
        match read(text) {
            Ok(Address::Tcp { ip, ports, .. }) => format!("{ip} {}-{}", ports.start(), ports.end()),
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn each_form_of_a_tcp_address_is_read() {
        for any in [
            ":80",
            "*:80",
            "0.0.0.0:80",
            "ipv4@:80",
            "ipv4@*:80",
            "tcp@:80",
            "tcp4@:80",
            "stream+ipv4@:80",
            ":080",
        ] {
            assert_eq!(tcp(any), "0.0.0.0 80-80", "{any}");
        }
        for any in [":::80", "[::]:80", "ipv6@:::80", "ipv6@:80", "tcp6@*:80"] {
            assert_eq!(tcp(any), ":: 80-80", "{any}");
        }
        assert_eq!(tcp("::1:80"), "::1 80-80");
        assert_eq!(tcp("[::1]:80"), "::1 80-80");
        assert_eq!(tcp("localhost:80-82"), "127.0.0.1 80-82");
        assert_eq!(tcp("mptcp4@1.2.3.4:80"), "1.2.3.4 80-80");
    }

    #[test]
    fn a_name_has_an_address_of_the_family_that_is_asked_for() {
        assert_eq!(tcp("both:80"), "::1 80-80");
        assert_eq!(tcp("ipv4@both:80"), "127.0.0.1 80-80");
        assert_eq!(tcp("tcp6@both:80"), "::1 80-80");
        assert_eq!(tcp("tcp@[127.0.0.1]:80"), "127.0.0.1 80-80");
        assert_eq!(read("ipv6@localhost:80"), Err(BadAddress::OtherFamily));
    }

    #[test]
    fn other_families_are_told_apart() {
        assert_eq!(read("/run/x"), Ok(Address::Unix(b"/run/x".to_vec())));
        assert_eq!(read("unix@x"), Ok(Address::Unix(b"x".to_vec())));
        assert_eq!(read("dgram+uxst@x"), Ok(Address::Unix(b"x".to_vec())));
        assert_eq!(tcp("dgram+tcp4@:80"), "0.0.0.0 80-80");
        assert_eq!(read("abns@x"), Ok(named("abns@", b"x")));
        assert_eq!(read("fd@3"), Ok(Address::Inherited));
        assert_eq!(read("sockpair@3"), Ok(Address::Inherited));
        for foreign in [
            "quic4@:443",
            "quic+ipv6@:443",
            "udp@:53",
            "dgram+ipv4@:53",
            "rhttp@b/s",
        ] {
            assert!(
                matches!(read(foreign), Ok(Address::Foreign(_))),
                "{foreign}"
            );
        }
    }

    #[test]
    fn what_haproxy_refuses_is_refused() {
        for port in [
            ":85-83", ":0", ":+80", ":65536", ":80x", "*:http", ":80-", ":-80", ":",
        ] {
            assert_eq!(read(port), Err(BadAddress::Port), "{port}");
        }
        for none in ["80", "*", "[::1]", "ipv4@"] {
            assert_eq!(read(none), Err(BadAddress::NoPort), "{none}");
        }
        assert_eq!(read(""), Err(BadAddress::Empty));
        assert_eq!(read("ipv4@[::1]:80"), Err(BadAddress::Host));
        assert_eq!(read("a b:80"), Err(BadAddress::Host));
        assert_eq!(read("[::1:80"), Err(BadAddress::Host));
        assert!(matches!(read("nope:80"), Err(BadAddress::NotFound(_))));
    }
}
