//! sock_diag(7) over netlink(7): just the requests that the accept queues need. Layouts from `linux/netlink.h`,
//! `linux/inet_diag.h` and `linux/unix_diag.h`, in host byte order but for ports and addresses.

use std::io::{self, Read as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use socket2::{Domain, Protocol, Socket, Type};

use super::Queue;

/// Socket states, as the kernel numbers them (`net/tcp_states.h`); unix sockets use the same.
pub(super) const TCP_SYN_RECV: u8 = 3;
pub(super) const TCP_LISTEN: u8 = 10;

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const UNIX_DIAG_NAME: u16 = 0;
const UNIX_DIAG_VFS: u16 = 1;
const UNIX_DIAG_RQLEN: u16 = 4;
const UDIAG_SHOW_NAME: u32 = 1 << UNIX_DIAG_NAME;
const UDIAG_SHOW_VFS: u32 = 1 << UNIX_DIAG_VFS;
const UDIAG_SHOW_RQLEN: u32 = 1 << UNIX_DIAG_RQLEN;

/// A cookie that matches every socket.
const NO_COOKIE: [u8; 8] = [0xff; 8];

const NETLINK_HEADER: usize = 16;
const INET_MESSAGE: usize = 72;
const UNIX_MESSAGE: usize = 16;

/// The kernel never sends more at once.
const BUFFER: usize = 32 * 1024;

/// A netlink socket on which requests are asked one after the other.
#[derive(Debug)]
pub(super) struct SockDiag {
    socket: Socket,
    sequence: u32,
    buffer: Box<[u8]>,
}

/// A TCP socket of this namespace.
#[derive(Debug, Clone, Copy)]
pub(super) struct InetSocket {
    state: u8,
    /// Its local address, a mapped one as IPv4.
    pub(super) address: SocketAddr,
    /// The accept queue of a listening one.
    pub(super) queue: Queue,
}

/// A listening unix socket of this namespace.
#[derive(Debug, Clone, Copy)]
pub(super) struct UnixListener<'a> {
    pub(super) inode: u32,
    /// Device, as stat(2) has it, and the low half of the inode of the file it is bound to.
    pub(super) file: Option<(libc::dev_t, u32)>,
    /// The path as it was given to bind(2).
    pub(super) name: Option<&'a [u8]>,
}

impl SockDiag {
    pub(super) fn open() -> io::Result<SockDiag> {
        let protocol = Protocol::from(libc::NETLINK_SOCK_DIAG);
        let socket = Socket::new(
            Domain::from(libc::AF_NETLINK),
            Type::DGRAM.cloexec().nonblocking(),
            Some(protocol),
        )?;
        Ok(SockDiag {
            socket,
            sequence: 0,
            buffer: vec![0; BUFFER].into(),
        })
    }

    /// The listening socket that would get a connection to `address`.
    pub(super) fn inet_listener(&mut self, address: SocketAddr) -> io::Result<Option<InetSocket>> {
        let mut found = None;
        let request = inet_request(address, 1 << TCP_LISTEN);
        let result = self.ask(&request, 0, |message| found = inet_socket(message));
        match result {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            result => result.map(|()| found.filter(|socket| socket.state == TCP_LISTEN)),
        }
    }

    /// Every TCP socket of a family that is in a state on a local port.
    pub(super) fn each_inet(
        &mut self,
        family: libc::c_int,
        port: u16,
        state: u8,
        mut each: impl FnMut(InetSocket),
    ) -> io::Result<()> {
        let unspecified: IpAddr = match family {
            libc::AF_INET => Ipv4Addr::UNSPECIFIED.into(),
            _ => Ipv6Addr::UNSPECIFIED.into(),
        };
        let request = inet_request(SocketAddr::new(unspecified, port), 1 << state);
        self.ask(&request, libc::NLM_F_DUMP, |message| {
            if let Some(socket) = inet_socket(message) {
                each(socket);
            }
        })
    }

    /// The accept queue of the listening unix socket that has this inode.
    pub(super) fn unix_queue(&mut self, inode: u32) -> io::Result<Option<Queue>> {
        let mut found = None;
        let result = self.ask(&unix_request(inode, UDIAG_SHOW_RQLEN), 0, |message| {
            let listens = message.get(2) == Some(&TCP_LISTEN);
            let lengths =
                attributes(message, UNIX_MESSAGE).find(|(kind, _)| *kind == UNIX_DIAG_RQLEN);
            found = lengths.filter(|_| listens).and_then(|(_, lengths)| {
                Some(Queue {
                    len: u32_at(lengths, 0)?,
                    max: u32_at(lengths, 4)?,
                })
            });
        });
        match result {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            result => result.map(|()| found),
        }
    }

    /// Every listening unix socket.
    pub(super) fn each_unix_listener(
        &mut self,
        mut each: impl FnMut(UnixListener<'_>),
    ) -> io::Result<()> {
        let request = unix_request(0, UDIAG_SHOW_NAME | UDIAG_SHOW_VFS);
        self.ask(&request, libc::NLM_F_DUMP, |message| {
            let Some(inode) = u32_at(message, 4) else {
                return;
            };
            let mut socket = UnixListener {
                inode,
                file: None,
                name: None,
            };
            for (kind, value) in attributes(message, UNIX_MESSAGE) {
                match kind {
                    UNIX_DIAG_NAME => {
                        socket.name = Some(value.strip_suffix(b"\0").unwrap_or(value));
                    }
                    UNIX_DIAG_VFS => socket.file = file(value),
                    _ => {}
                }
            }
            each(socket);
        })
    }

    /// Sends a request and calls `each` with the payload of every answer.
    fn ask(
        &mut self,
        request: &[u8],
        flags: libc::c_int,
        mut each: impl FnMut(&[u8]),
    ) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let flags = (libc::NLM_F_REQUEST | flags) as u16;
        let mut message = Vec::with_capacity(NETLINK_HEADER + request.len());
        message.extend(((NETLINK_HEADER + request.len()) as u32).to_ne_bytes());
        message.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
        message.extend(flags.to_ne_bytes());
        message.extend(self.sequence.to_ne_bytes());
        message.extend([0; 4]); // to the kernel
        message.extend(request);
        self.socket.send(&message)?;
        loop {
            let len = (&self.socket).read(&mut self.buffer)?;
            let mut rest = &self.buffer[..len];
            while !rest.is_empty() {
                let (message, behind) = Message::split(rest).ok_or(io::ErrorKind::InvalidData)?;
                rest = behind;
                if message.sequence != self.sequence {
                    continue;
                }
                match libc::c_int::from(message.kind) {
                    libc::NLMSG_DONE => return Ok(()),
                    libc::NLMSG_ERROR => {
                        let code = u32_at(message.payload, 0).ok_or(io::ErrorKind::InvalidData)?;
                        return Err(io::Error::from_raw_os_error((code as i32).wrapping_neg()));
                    }
                    _ => each(message.payload),
                }
                if !message.multipart {
                    return Ok(());
                }
            }
        }
    }
}

/// One netlink message out of those that a datagram holds.
struct Message<'a> {
    kind: u16,
    multipart: bool,
    sequence: u32,
    payload: &'a [u8],
}

impl<'a> Message<'a> {
    fn split(bytes: &'a [u8]) -> Option<(Message<'a>, &'a [u8])> {
        let len = u32_at(bytes, 0)? as usize;
        let message = Message {
            kind: u16_at(bytes, 4)?,
            multipart: libc::c_int::from(u16_at(bytes, 6)?) & libc::NLM_F_MULTI != 0,
            sequence: u32_at(bytes, 8)?,
            payload: bytes.get(NETLINK_HEADER..len)?,
        };
        let behind = bytes.get(len.next_multiple_of(4)..).unwrap_or(&[]);
        Some((message, behind))
    }
}

/// `struct inet_diag_req_v2`.
fn inet_request(address: SocketAddr, states: u32) -> Vec<u8> {
    let (family, scope) = match address {
        SocketAddr::V4(_) => (libc::AF_INET, 0),
        SocketAddr::V6(v6) => (libc::AF_INET6, v6.scope_id()),
    };
    let mut request = vec![family as u8, libc::IPPROTO_TCP as u8, 0, 0];
    request.extend(states.to_ne_bytes());
    request.extend(address.port().to_be_bytes());
    request.extend([0; 2]); // any peer's port
    match address.ip() {
        IpAddr::V4(v4) => {
            request.extend(v4.octets());
            request.extend([0; 12]);
        }
        IpAddr::V6(v6) => request.extend(v6.octets()),
    }
    request.extend([0; 16]); // any peer
    request.extend(scope.to_ne_bytes());
    request.extend(NO_COOKIE);
    request
}

/// `struct inet_diag_msg`.
fn inet_socket(message: &[u8]) -> Option<InetSocket> {
    let message = message.get(..INET_MESSAGE)?;
    let port = u16::from_be_bytes([message[4], message[5]]);
    let ip: IpAddr = if libc::c_int::from(message[0]) == libc::AF_INET {
        Ipv4Addr::from(<[u8; 4]>::try_from(&message[8..12]).ok()?).into()
    } else {
        Ipv6Addr::from(<[u8; 16]>::try_from(&message[8..24]).ok()?).into()
    };
    Some(InetSocket {
        state: message[1],
        address: SocketAddr::new(ip.to_canonical(), port),
        queue: Queue {
            len: u32_at(message, 56)?,
            max: u32_at(message, 60)?,
        },
    })
}

/// `struct unix_diag_req`, for the listening ones alone.
fn unix_request(inode: u32, show: u32) -> Vec<u8> {
    let mut request = vec![libc::AF_UNIX as u8, 0, 0, 0];
    request.extend((1u32 << TCP_LISTEN).to_ne_bytes());
    request.extend(inode.to_ne_bytes());
    request.extend(show.to_ne_bytes());
    request.extend(NO_COOKIE);
    request
}

/// `struct unix_diag_vfs`, whose device is in the kernel's own form: 12 bits major, 20 bits minor.
fn file(value: &[u8]) -> Option<(libc::dev_t, u32)> {
    let (inode, device) = (u32_at(value, 0)?, u32_at(value, 4)?);
    Some((libc::makedev(device >> 20, device & 0xf_ffff), inode))
}

/// The attributes (`struct nlattr`) behind a message's fixed part.
fn attributes(message: &[u8], fixed: usize) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = message.get(fixed..).unwrap_or(&[]);
    std::iter::from_fn(move || {
        let len = usize::from(u16_at(rest, 0)?);
        let attribute = (u16_at(rest, 2)?, rest.get(4..len)?);
        rest = rest.get(len.next_multiple_of(4)..).unwrap_or(&[]);
        Some(attribute)
    })
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    let bytes = bytes.get(at..at + 2)?;
    Some(u16::from_ne_bytes(bytes.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at + 4)?;
    Some(u32::from_ne_bytes(bytes.try_into().ok()?))
}
