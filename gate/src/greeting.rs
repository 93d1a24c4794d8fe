//! PROXY headers of a connection: the one that its client sends, and the one that its backend gets.

use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, SockaddrStorage, getsockname, recv};
use syngate_metrics::CloseReason;

use crate::connection::{Connection, Context, Next, Phase};
use crate::proxy_protocol::{self, Addresses, Parsed};

impl Connection {
    /// Reads the PROXY header, and not one byte more.
    pub(crate) fn greet(&mut self, context: &mut Context<'_>) -> Next {
        let fd = self.client.as_fd().as_raw_fd();
        let peek = &mut context.scratch.buffer[..proxy_protocol::MAX_READ];
        let seen = match recv(fd, peek, MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT) {
            Ok(0) => return Next::Close(CloseReason::ProxyHeader),
            Ok(seen) => seen,
            Err(Errno::EAGAIN | Errno::EINTR) => return Next::Wait,
            Err(_) => return Next::Close(CloseReason::ClientReset),
        };
        match proxy_protocol::parse(&peek[..seen]) {
            Parsed::Incomplete if self.client.has_ended() => Next::Close(CloseReason::ProxyHeader),
            Parsed::Incomplete => Next::Wait,
            Parsed::Header { len, addresses } => {
                // It is there: it was peeked at.
                let _ = recv(fd, &mut peek[..len], MsgFlags::MSG_DONTWAIT);
                if let Some(addresses) = addresses {
                    self.peer = Some(addresses.source);
                    self.proxied = Some(Box::new(addresses));
                }
                self.enter(Phase::Pending { unsent: None }, context);
                Next::Queue
            }
            Parsed::Bad(why) => {
                tracing::debug!(peer = ?self.peer, "bad PROXY header: {why}");
                Next::Close(CloseReason::ProxyHeader)
            }
        }
    }

    /// The PROXY header for the backend: what the client's own header said, else the client and what it has dialled.
    pub(crate) fn header(&self, context: &Context<'_>) -> Option<proxy_protocol::Header> {
        let raw = self.raw || context.raw;
        let version = context.settings.send_proxy.filter(|_| !raw)?;
        let dialled = || {
            let name = getsockname::<SockaddrStorage>(self.client.as_fd().as_raw_fd()).ok()?;
            let v4 = name
                .as_sockaddr_in()
                .map(|v4| SocketAddr::from(std::net::SocketAddrV4::from(*v4)));
            v4.or_else(|| {
                name.as_sockaddr_in6()
                    .map(|v6| std::net::SocketAddrV6::from(*v6).into())
            })
        };
        let addresses = match (&self.proxied, self.peer) {
            (Some(addresses), _) => Some(**addresses),
            (None, Some(source)) => dialled().map(|destination| Addresses {
                source,
                destination,
            }),
            (None, None) => None,
        };
        Some(proxy_protocol::header(version, addresses.as_ref()))
    }
}
