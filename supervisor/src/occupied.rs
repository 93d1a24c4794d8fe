//! Whether a private endpoint is free before its generation is started: who answers there already would be taken for
//! the new generation, and would pass for ready.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

use syngate_gate::Target;

use crate::readiness::attempt;
use crate::{dial, procfs};

/// Somebody answers at an endpoint that should be free.
#[derive(Debug, thiserror::Error)]
#[error(
    "{endpoint} isn't free, {holder} answers there: end that, or give the backend another address"
)]
pub struct Occupied {
    /// Where.
    pub endpoint: Target,
    /// `NAME (pid N)`, or that it can't be seen.
    pub holder: String,
}

/// Makes sure that a connect to `endpoint` is refused. A unix socket's file without a listener counts as free.
///
/// # Errors
/// It isn't refused; the error names who listens, where this user may see that.
pub async fn require_free(endpoint: &Target) -> Result<(), Occupied> {
    match attempt(dial::greet(endpoint, &[])).await {
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound
            ) =>
        {
            Ok(())
        }
        Ok(_) | Err(_) => {
            let holders = match endpoint {
                Target::Tcp(address) => procfs::holders(&tcp_listeners(*address)),
                Target::Unix(path) => procfs::holders(&unix_listeners(path)),
                Target::Nameless(_) => Vec::new(),
            };
            let holder = match holders.is_empty() {
                true => "a process that can't be seen from here".into(),
                false => holders.join(", "),
            };
            Err(Occupied {
                endpoint: endpoint.clone(),
                holder,
            })
        }
    }
}

/// Inodes of the sockets that listen on this address, or on all addresses of its port.
fn tcp_listeners(address: SocketAddr) -> Vec<u64> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"]
        .map(|path| fs::read_to_string(path).unwrap_or_default());
    let listens = |line: &str| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let (ip, port) = fields.get(1)?.split_once(':')?;
        let ip = address_of(ip)?;
        let here = ip.is_unspecified() || ip.to_canonical() == address.ip().to_canonical();
        let same = here && u16::from_str_radix(port, 16).ok()? == address.port();
        (same && *fields.get(3)? == LISTEN).then_some(fields.get(9)?.parse().ok()?)
    };
    tables
        .iter()
        .flat_map(|table| table.lines())
        .filter_map(listens)
        .collect()
}

/// TCP_LISTEN, as /proc/net/tcp writes it.
const LISTEN: &str = "0A";

/// An address as /proc/net/tcp writes it: words of 32 bits, each in this machine's order.
fn address_of(hex: &str) -> Option<IpAddr> {
    let mut bytes = Vec::new();
    for at in (0..hex.len()).step_by(8) {
        bytes.extend(
            u32::from_str_radix(hex.get(at..at + 8)?, 16)
                .ok()?
                .to_ne_bytes(),
        );
    }
    let v4 = <[u8; 4]>::try_from(bytes.as_slice()).map(|bytes| Ipv4Addr::from(bytes).into());
    let v6 = || <[u8; 16]>::try_from(bytes.as_slice()).map(|bytes| Ipv6Addr::from(bytes).into());
    v4.or_else(|_| v6()).ok()
}

/// Inodes of the unix sockets that were bound to this path.
fn unix_listeners(path: &Path) -> Vec<u64> {
    let table = fs::read("/proc/net/unix").unwrap_or_default();
    let table = String::from_utf8_lossy(&table);
    let bound = |line: &str| {
        let fields: Vec<&str> = line.splitn(7, ' ').collect();
        let (inode, name) = fields.get(6)?.trim_start().split_once(' ')?;
        (Path::new(name) == path).then_some(inode.parse().ok()?)
    };
    table.lines().filter_map(bound).collect()
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::unix::net::UnixListener;

    use super::*;

    async fn words(endpoint: &Target) -> String {
        require_free(endpoint).await.expect_err("held").to_string()
    }

    #[tokio::test]
    async fn who_holds_an_endpoint_is_named() {
        let own = format!("(pid {}) answers", std::process::id());
        for (bound, asked) in [
            ("127.0.0.1:0", "127.0.0.1"),
            ("0.0.0.0:0", "127.0.0.7"),
            ("[::1]:0", "::1"),
            ("[::]:0", "127.0.0.1"),
        ] {
            let listener = TcpListener::bind(bound).expect("bind");
            let port = listener.local_addr().expect("bound").port();
            let address = SocketAddr::new(asked.parse().expect("an address"), port);
            let endpoint = Target::Tcp(address);
            assert!(
                words(&endpoint).await.contains(&own),
                "{bound}: {}",
                words(&endpoint).await
            );
            drop(listener);
            require_free(&endpoint).await.expect("free again");
        }
    }

    #[tokio::test]
    async fn a_unix_socket_is_held_while_somebody_listens() {
        let dir = tempfile::tempdir().expect("a directory");
        let endpoint = Target::Unix(dir.path().join("a b"));
        require_free(&endpoint).await.expect("no file");
        let listener = UnixListener::bind(dir.path().join("a b")).expect("bind");
        let own = format!("(pid {}) answers", std::process::id());
        assert!(
            words(&endpoint).await.contains(&own),
            "{}",
            words(&endpoint).await
        );
        drop(listener);
        require_free(&endpoint)
            .await
            .expect("a file that nobody listens on");
    }
}
