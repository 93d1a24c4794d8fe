//! Reading a header: both versions, told apart by their first bytes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::{Addresses, LOCAL, MAX_WRITTEN, PROXY, SIGNATURE};

/// The longest header that is read, in bytes. A header of version 2 may announce 65,551; 4 KiB leaves over 3,800 bytes for
/// TLVs even behind a pair of unix addresses, and bounds what a peer can make the kernel keep before it is known.
pub const MAX_READ: usize = 4096;

/// The signature, version and command, family and protocol, length.
const V2_FIXED: usize = 16;

/// Type and length of a TLV.
const TLV_FIXED: usize = 3;

/// The TLV that carries a checksum of the whole header.
const TLV_CRC32C: u8 = 0x03;

/// The longest line of version 1, its CRLF counted.
const V1_MAX: usize = MAX_WRITTEN;

/// What the bytes that have come so far are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parsed {
    /// The start of a header; more bytes are needed.
    Incomplete,
    /// A header, and the connection's own bytes behind it.
    Header {
        /// How many bytes the header takes.
        len: usize,
        /// The ends that it names; `None` where it names none (`LOCAL`, `UNKNOWN`, unix, datagrams): the connection's own count.
        addresses: Option<Addresses>,
    },
    /// Not a header; the connection must be closed.
    Bad(BadHeader),
}

/// Why the bytes are no PROXY header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadHeader {
    /// Neither version's first bytes.
    #[error("the connection doesn't start with a PROXY header")]
    NoHeader,
    /// Version 1 without a CRLF in its first 107 bytes.
    #[error("the PROXY v1 line is longer than {V1_MAX} bytes")]
    LineTooLong,
    /// Version 1 with a line feed or carriage return of its own.
    #[error("the PROXY v1 line doesn't end in CR LF")]
    LineEnd,
    /// Version 1 with another word than TCP4, TCP6 or UNKNOWN.
    #[error("the PROXY v1 line names a protocol other than TCP4, TCP6 and UNKNOWN")]
    Protocol,
    /// Version 1 with too few or too many fields, or more than one space between them.
    #[error("the PROXY v1 line doesn't have two addresses and two ports")]
    Fields,
    /// Version 1 with something that is no address of the named family.
    #[error("the PROXY v1 line has a malformed address")]
    Address,
    /// Version 1 with something that isn't a decimal number up to 65535 without leading zeros.
    #[error("the PROXY v1 line has a malformed port")]
    Port,
    /// The binary signature with a version other than 2.
    #[error("the binary PROXY header has version {0}, not 2")]
    Version(u8),
    /// Version 2 with a command other than LOCAL and PROXY.
    #[error("the PROXY v2 header has the unknown command {0}")]
    Command(u8),
    /// Version 2 with an address family or a transport protocol that the specification doesn't have.
    #[error("the PROXY v2 header has the unknown family and protocol {0:#04x}")]
    Family(u8),
    /// Version 2 longer than [`MAX_READ`].
    #[error("the PROXY v2 header has {0} bytes, more than {MAX_READ}")]
    TooLong(usize),
    /// Version 2 whose length leaves no room for the addresses of its family.
    #[error("the PROXY v2 header is too short for its addresses")]
    TooShort,
    /// Version 2 with a TLV that reaches behind the header's end.
    #[error("the PROXY v2 header has a malformed TLV")]
    Tlv,
    /// Version 2 with a checksum that doesn't match.
    #[error("the PROXY v2 header has a wrong CRC32C")]
    Checksum,
}

/// Reads the header that `bytes`, the start of a connection, begin with.
pub fn parse(bytes: &[u8]) -> Parsed {
    let read = if starts_alike(bytes, &SIGNATURE) {
        parse_v2(bytes)
    } else if starts_alike(bytes, b"PROXY ") {
        parse_v1(bytes)
    } else {
        Err(BadHeader::NoHeader)
    };
    match read {
        Ok(Some((len, addresses))) => Parsed::Header { len, addresses },
        Ok(None) => Parsed::Incomplete,
        Err(bad) => Parsed::Bad(bad),
    }
}

/// Length and addresses; `None` while bytes are missing.
type Read = Result<Option<(usize, Option<Addresses>)>, BadHeader>;

/// One starts with the other.
fn starts_alike(bytes: &[u8], start: &[u8]) -> bool {
    bytes.iter().zip(start).all(|(a, b)| a == b)
}

fn parse_v1(bytes: &[u8]) -> Read {
    let start = &bytes[..bytes.len().min(V1_MAX)];
    let Some(line_len) = start.windows(2).position(|pair| pair == b"\r\n") else {
        return if has_bare_line_feed(start) {
            Err(BadHeader::LineEnd)
        } else if start.len() == V1_MAX {
            Err(BadHeader::LineTooLong)
        } else {
            Ok(None)
        };
    };
    let addresses = parse_line(&start[..line_len])?;
    Ok(Some((line_len + 2, addresses)))
}

/// A line feed that no carriage return stands before ends no header, and nothing that follows can mend it. Behind `UNKNOWN` it
/// is one more byte to ignore.
fn has_bare_line_feed(start: &[u8]) -> bool {
    start.contains(&b'\n') && !start.starts_with(b"PROXY UNKNOWN ")
}

fn parse_line(line: &[u8]) -> Result<Option<Addresses>, BadHeader> {
    if line == b"PROXY UNKNOWN" || line.starts_with(b"PROXY UNKNOWN ") {
        return Ok(None);
    }
    if line.iter().any(|byte| matches!(byte, b'\r' | b'\n')) {
        return Err(BadHeader::LineEnd);
    }
    let line = str::from_utf8(line).map_err(|_| BadHeader::Fields)?;
    let mut fields = line.split(' ').skip(1);
    let address: fn(&str) -> Result<IpAddr, BadHeader> = match fields.next() {
        Some("TCP4") => |field| {
            field
                .parse()
                .map(IpAddr::V4)
                .map_err(|_| BadHeader::Address)
        },
        Some("TCP6") => |field| {
            field
                .parse()
                .map(IpAddr::V6)
                .map_err(|_| BadHeader::Address)
        },
        _ => return Err(BadHeader::Protocol),
    };
    let mut field = || fields.next().ok_or(BadHeader::Fields);
    let (source, destination) = (address(field()?)?, address(field()?)?);
    let (source_port, destination_port) = (port(field()?)?, port(field()?)?);
    if fields.next().is_some() {
        return Err(BadHeader::Fields);
    }
    Ok(Some(Addresses {
        source: SocketAddr::new(source.to_canonical(), source_port),
        destination: SocketAddr::new(destination.to_canonical(), destination_port),
    }))
}

/// `u16::from_str` alone would take `+80` and `080`.
fn port(field: &str) -> Result<u16, BadHeader> {
    let strict = field == "0" || field.starts_with(|first| matches!(first, '1'..='9'));
    strict
        .then(|| field.parse().ok())
        .flatten()
        .ok_or(BadHeader::Port)
}

fn parse_v2(bytes: &[u8]) -> Read {
    let command = match bytes.get(12) {
        None => return Ok(None),
        Some(&byte) if byte >> 4 != 2 => return Err(BadHeader::Version(byte >> 4)),
        Some(&byte) if !matches!(byte, LOCAL | PROXY) => {
            return Err(BadHeader::Command(byte & 0x0f));
        }
        Some(&byte) => byte,
    };
    let Some(&family) = bytes.get(13) else {
        return Ok(None);
    };
    // A local header's family and body are for the sender alone.
    let family = match (command, family >> 4, family & 0x0f) {
        (LOCAL, ..) | (_, 0..=3, 0) | (_, 0, 1 | 2) => Family::Unspecified,
        (_, 1, transport @ (1 | 2)) => Family::Inet(transport),
        (_, 2, transport @ (1 | 2)) => Family::Inet6(transport),
        (_, 3, 1 | 2) => Family::Unix,
        _ => return Err(BadHeader::Family(family)),
    };
    let Some(length) = bytes.get(14..V2_FIXED) else {
        return Ok(None);
    };
    let body_len = usize::from(u16::from_be_bytes([length[0], length[1]]));
    let len = V2_FIXED + body_len;
    if len > MAX_READ {
        return Err(BadHeader::TooLong(len));
    }
    if body_len < family.addresses_len() {
        return Err(BadHeader::TooShort);
    }
    let Some(header) = bytes.get(..len) else {
        return Ok(None);
    };
    if !matches!(family, Family::Unspecified) {
        check_tlvs(header, V2_FIXED + family.addresses_len())?;
    }
    Ok(Some((len, family.addresses(&header[V2_FIXED..]))))
}

/// What stands in the body of a version 2 header, with the transport (1 stream, 2 datagram) where it decides.
#[derive(Clone, Copy)]
enum Family {
    /// Whatever is in the body, it is to be ignored.
    Unspecified,
    Inet(u8),
    Inet6(u8),
    Unix,
}

impl Family {
    fn addresses_len(self) -> usize {
        match self {
            Family::Unspecified => 0,
            Family::Inet(_) => 12,
            Family::Inet6(_) => 36,
            Family::Unix => 216,
        }
    }

    /// The addresses of a stream. A receiver that has no use for a family or a transport takes it as unspecified.
    fn addresses(self, body: &[u8]) -> Option<Addresses> {
        let (source, destination, ports): (IpAddr, IpAddr, _) = match self {
            Family::Inet(1) => (
                Ipv4Addr::from(array::<4>(body, 0)).into(),
                Ipv4Addr::from(array::<4>(body, 4)).into(),
                8,
            ),
            Family::Inet6(1) => (
                Ipv6Addr::from(array::<16>(body, 0)).into(),
                Ipv6Addr::from(array::<16>(body, 16)).into(),
                32,
            ),
            _ => return None,
        };
        let port = |at| u16::from_be_bytes(array(body, at));
        Some(Addresses {
            source: SocketAddr::new(source.to_canonical(), port(ports)),
            destination: SocketAddr::new(destination.to_canonical(), port(ports + 2)),
        })
    }
}

/// The `N` bytes at `at`, which the caller has made sure of.
fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[at..at + N]);
    array
}

/// Walks over the TLVs, which begin at `at` and must end where the header does; a checksum among them must be right.
fn check_tlvs(header: &[u8], mut at: usize) -> Result<(), BadHeader> {
    while at < header.len() {
        let fixed = header.get(at..at + TLV_FIXED).ok_or(BadHeader::Tlv)?;
        let value = at + TLV_FIXED;
        let end = value + usize::from(u16::from_be_bytes([fixed[1], fixed[2]]));
        let bytes = header.get(value..end).ok_or(BadHeader::Tlv)?;
        if fixed[0] == TLV_CRC32C {
            let sent: [u8; 4] = bytes.try_into().map_err(|_| BadHeader::Tlv)?;
            // It was computed with its own four bytes zero.
            let parts = [&header[..value], &[0; 4], &header[end..]];
            if crc32c(&parts) != u32::from_be_bytes(sent) {
                return Err(BadHeader::Checksum);
            }
        }
        at = end;
    }
    Ok(())
}

/// CRC-32C (Castagnoli, RFC 3720 appendix B.4) of the parts one after the other.
fn crc32c(parts: &[&[u8]]) -> u32 {
    let bytes = parts.iter().flat_map(|part| part.iter());
    !bytes.fold(u32::MAX, |crc, byte| {
        CRC32C[usize::from(crc as u8 ^ byte)] ^ (crc >> 8)
    })
}

/// The effect of each value of a byte, least significant bit first.
static CRC32C: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = (crc >> 1) ^ (0x82f6_3b78 * (crc & 1));
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};
