//! A network namespace of a test's own, and the kernel's counts of what it dropped there.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::ops::Sub;
use std::os::fd::AsRawFd;
use std::process::Command;

use nix::sched::{CloneFlags, unshare};
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recv, sendto, socket,
};

/// Where a test's sockets live. Threads and processes that the test makes later live there too.
pub(crate) struct Net {
    own: bool,
}

/// What this namespace's TCP has lost so far: resent SYNs, and connections that didn't fit into a listener's queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Drops {
    pub(crate) syn_retrans: u64,
    pub(crate) listen_drops: u64,
    pub(crate) listen_overflows: u64,
}

impl Sub for Drops {
    type Output = Drops;
    fn sub(self, earlier: Drops) -> Drops {
        Drops {
            syn_retrans: self.syn_retrans - earlier.syn_retrans,
            listen_drops: self.listen_drops - earlier.listen_drops,
            listen_overflows: self.listen_overflows - earlier.listen_overflows,
        }
    }
}

impl Net {
    /// A namespace of the test's own where the rights allow one, else the one that is there.
    pub(crate) fn new() -> Net {
        if !nix::unistd::geteuid().is_root() {
            return Net { own: false };
        }
        unshare(CloneFlags::CLONE_NEWNET).expect("a network namespace");
        raise_loopback();
        // A thousand connections a second, each in TIME_WAIT for a minute: beyond this number a client's end is forgotten at
        // once, and what the server still says is answered with a reset.
        set_sysctl("ipv4/tcp_max_tw_buckets", "300000");
        Net { own: true }
    }

    /// Like [`Net::new`], for a test that has no meaning in a shared network: `None`, and says so, where it can't be had.
    pub(crate) fn isolated() -> Option<Net> {
        let net = Net::new();
        if !net.own {
            super::skip("it needs root, for a network namespace of its own");
        }
        net.own.then_some(net)
    }

    /// The counts since the namespace was made.
    pub(crate) fn drops(&self) -> Drops {
        let table = fs::read_to_string("/proc/thread-self/net/netstat").expect("netstat");
        let mut lines = table.lines();
        let count = |name: &str, names: &str, values: &str| {
            let place = names.split(' ').position(|word| word == name);
            place
                .and_then(|place| values.split(' ').nth(place))
                .and_then(|value| value.parse().ok())
        };
        while let (Some(names), Some(values)) = (lines.next(), lines.next()) {
            if names.starts_with("TcpExt:") {
                let count = |name| count(name, names, values).expect(name);
                return Drops {
                    syn_retrans: count("TCPSynRetrans"),
                    listen_drops: count("ListenDrops"),
                    listen_overflows: count("ListenOverflows"),
                };
            }
        }
        panic!("no TcpExt in netstat");
    }

    /// An address of 127.0.0.1 with a port that nobody listens on, outside of the range that connects take theirs from, and
    /// of those that the tests' configurations name: HAProxy's have ports up to 21,999 and from 31,000, as marathon-lb writes
    /// them. Whoever binds those comes later, and would find one taken.
    pub(crate) fn free_address(&self) -> SocketAddr {
        use std::sync::atomic::{AtomicU16, Ordering};
        static NEXT: AtomicU16 = AtomicU16::new(0);
        let start = std::process::id().wrapping_mul(61) as u16;
        for _ in 0..1000 {
            let port = 22_000 + start.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % 8_000;
            if TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok() {
                return SocketAddr::from((Ipv4Addr::LOCALHOST, port));
            }
        }
        panic!("no free port");
    }
}

/// `ip link set lo up`, by a netlink message (rtnetlink(7): RTM_NEWLINK with `struct ifinfomsg`).
fn raise_loopback() {
    const RTM_NEWLINK: u16 = 16;
    const NLM_F_REQUEST_ACK: u16 = 1 | 4;
    const IFF_UP: u32 = 1;
    let mut message = Vec::with_capacity(32);
    message.extend_from_slice(&32_u32.to_ne_bytes()); // length
    message.extend_from_slice(&RTM_NEWLINK.to_ne_bytes());
    message.extend_from_slice(&NLM_F_REQUEST_ACK.to_ne_bytes());
    message.extend_from_slice(&[0; 8]); // sequence, sender
    message.extend_from_slice(&[0; 4]); // family, padding, type
    message.extend_from_slice(&1_i32.to_ne_bytes()); // index: lo is always the first
    message.extend_from_slice(&IFF_UP.to_ne_bytes()); // flags
    message.extend_from_slice(&IFF_UP.to_ne_bytes()); // which of them to change

    let netlink = socket(
        AddressFamily::Netlink,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC,
        SockProtocol::NetlinkRoute,
    )
    .expect("a netlink socket");
    sendto(
        netlink.as_raw_fd(),
        &message,
        &NetlinkAddr::new(0, 0),
        MsgFlags::empty(),
    )
    .expect("RTM_NEWLINK");
    let mut answer = [0; 1024];
    let length = recv(netlink.as_raw_fd(), &mut answer, MsgFlags::empty()).expect("an answer");
    assert!(
        length >= 20 && answer[16..20] == [0; 4],
        "lo doesn't come up"
    );
}

/// Gives this thread's loopback interface another address.
pub(crate) fn add_address(address: &str) {
    let mut ip = Command::new("ip");
    ip.args(["address", "add", address, "dev", "lo"]);
    if address.contains(':') {
        ip.arg("nodad");
    }
    let output = ip.output().expect("ip (Debian's iproute2) is needed");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{address}: {said}");
}

/// Of this thread's network namespace.
pub(crate) fn set_sysctl(name: &str, value: &str) {
    fs::write(format!("/proc/sys/net/{name}"), value).expect(name);
}
