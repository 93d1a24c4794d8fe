//! Whether what the kernel has accepted for a generation has reached it. Until then a signal to the generation may reset it.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use syngate_gate::accept_queue::{Probe, Reader};
use syngate_gate::{Gate, Generation, ServiceId};

/// Between two looks, at least.
const AGAIN: Duration = Duration::from_millis(5);

/// A look may take this share of the time: one over many sockets is a long dump, on the supervisor's thread.
const SHARE: u32 = 10;

/// Between two looks, at most: one that took long because the machine did is no reason to let a drain wait.
const AT_MOST: Duration = Duration::from_millis(100);

/// Returns when the accept queues of all endpoints are empty and no handshake of ours towards them is half done, seen twice.
/// Endpoints of which nothing can be known count as empty; one that can't be read for want of descriptors or memory doesn't. May be
/// dropped at any moment.
pub(crate) async fn emptied(gate: Arc<Gate>, service: ServiceId, generation: Arc<Generation>) {
    let unproven = async || gate.unproven(service, &generation).await;
    emptied_where(&generation, unproven).await;
}

/// `unproven` counts our connections whose handshake may be half done: see [`Gate::unproven`]. Where there is none, the queues alone
/// are looked at, and the long dump is spared.
async fn emptied_where(generation: &Generation, unproven: impl AsyncFn() -> u64) {
    let mut reader = Reader::new();
    let mut seen = 0;
    loop {
        // In the order in which a connection moves, so that none is missed.
        let half_done = unproven().await > 0;
        let began = Instant::now();
        let empty = sum(generation, |probe| reader.queued(probe)) == 0
            && (!half_done || undelivered(generation, &mut reader) == 0);
        seen = if empty { seen + 1 } else { 0 };
        if seen == 2 {
            return;
        }
        tokio::time::sleep(pause(began.elapsed())).await;
    }
}

/// How long to wait after a look that took this long.
fn pause(look: Duration) -> Duration {
    look.saturating_mul(SHARE).clamp(AGAIN, AT_MOST)
}

/// Connections that the kernel has taken on for the generation and that it hasn't accepted.
pub(crate) fn undelivered(generation: &Generation, reader: &mut Reader) -> u32 {
    sum(generation, |probe| reader.undelivered(probe))
}

/// What `look` finds at all endpoints.
fn sum(generation: &Generation, mut look: impl FnMut(&Probe) -> io::Result<Option<u32>>) -> u32 {
    let count = |probe| match look(probe) {
        Ok(count) => count.unwrap_or(0),
        Err(error) => {
            tracing::debug!(generation = generation.number(), %error, "can't read an accept queue");
            let lacks = [
                Errno::EMFILE,
                Errno::ENFILE,
                Errno::ENOBUFS,
                Errno::ENOMEM,
                Errno::EAGAIN,
                Errno::EINTR,
            ];
            let errno = error.raw_os_error().map(Errno::from_raw);
            u32::from(errno.is_some_and(|errno| lacks.contains(&errno)))
        }
    };
    generation
        .all_endpoints()
        .map(|endpoint| &endpoint.queue)
        .map(count)
        .sum()
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::net::{TcpListener, TcpStream};
    use std::task::Poll;

    use syngate_gate::listener::{self, LocalAddress};
    use syngate_gate::{Endpoint, Target};

    use super::*;

    #[tokio::test(flavor = "current_thread")]
    async fn a_queue_is_empty_once_all_is_accepted() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let endpoint = Endpoint {
            target: Target::Tcp(address),
            queue: Probe::Tcp(address),
        };
        let generation = Generation::new(1, 1, vec![(None, vec![endpoint])], Vec::new());
        for unproven in [0, 3] {
            let emptied = emptied_where(&generation, async || unproven);
            let mut emptied = std::pin::pin!(emptied);
            let clients = [(); 3].map(|()| TcpStream::connect(address).unwrap());
            assert_eq!(undelivered(&generation, &mut Reader::new()), 3);
            for _ in &clients {
                assert!(poll(emptied.as_mut()).await.is_pending());
                listener.accept().unwrap();
            }
            emptied.await;
        }
    }

    /// A handshake that waits for its first bytes (TCP_DEFER_ACCEPT) is in no queue.
    #[tokio::test(flavor = "current_thread")]
    async fn a_handshake_that_is_half_done_is_waited_for() {
        let options = listener::Options {
            backlog: 8,
            keepalive: None,
            v6only: false,
            own: listener::Own {
                defer_accept: true,
                ..listener::Own::default()
            },
        };
        let any = listener::Address::Tcp("127.0.0.1:0".parse().unwrap());
        let listener = listener::bind("deferred", &any, &options).unwrap();
        let LocalAddress::Tcp(address) = *listener.address() else {
            panic!("a TCP listener");
        };
        let endpoint = Endpoint {
            target: Target::Tcp(address),
            queue: Probe::Tcp(address),
        };
        let generation = Generation::new(1, 1, vec![(None, vec![endpoint])], Vec::new());
        let mut client = TcpStream::connect(address).unwrap();
        let emptied = emptied_where(&generation, async || 1);
        let mut emptied = std::pin::pin!(emptied);
        assert!(poll(emptied.as_mut()).await.is_pending());
        client.write_all(b"first").unwrap();
        listener.accept().unwrap();
        emptied.await;
    }

    #[test]
    fn the_pause_after_a_look_is_bounded_both_ways() {
        let ms = Duration::from_millis;
        for (look, expected) in [(0, 5), (1, 10), (9, 90), (11, 100), (60_000, 100)] {
            assert_eq!(pause(ms(look)), ms(expected));
        }
        assert_eq!(pause(Duration::MAX), AT_MOST);
    }

    async fn poll(future: std::pin::Pin<&mut impl Future<Output = ()>>) -> Poll<()> {
        let mut future = future;
        std::future::poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await
    }

    #[tokio::test(flavor = "current_thread", start_paused = true)]
    async fn what_cannot_be_known_counts_as_empty() {
        let address = "192.0.2.1:80".parse().unwrap();
        let endpoint = Endpoint {
            target: Target::Tcp(address),
            queue: Probe::Unknown,
        };
        let generation = Generation::new(1, 1, vec![(None, vec![endpoint])], Vec::new());
        emptied_where(&generation, async || 1).await;
    }
}
