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
    let mut looks = Looks::default();
    loop {
        // Before the queues: in the order in which a connection moves, so that none is missed.
        let unproven = gate.unproven(service, &generation).await;
        let began = Instant::now();
        if looks.empty_twice(&generation, unproven > 0) {
            return;
        }
        tokio::time::sleep(pause(began.elapsed())).await;
    }
}

#[derive(Debug, Default)]
struct Looks {
    reader: Reader,
    /// How many in a row have found nothing.
    empty: u32,
}

impl Looks {
    /// One more look, which says whether it and the one before have found nothing. Where no handshake can be half done the queues
    /// alone are looked at, and a long dump is spared.
    fn empty_twice(&mut self, generation: &Generation, half_done: bool) -> bool {
        let reader = &mut self.reader;
        let empty = sum(generation, |probe| reader.queued(probe)) == 0
            && (!half_done || undelivered(generation, reader) == 0);
        self.empty = if empty { self.empty + 1 } else { 0 };
        self.empty >= 2
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
    use std::net::{SocketAddr, TcpListener, TcpStream};

    use syngate_gate::listener::{self, LocalAddress};
    use syngate_gate::{Endpoint, Target};

    use super::*;

    fn generation_at(address: SocketAddr, queue: Probe) -> Arc<Generation> {
        let target = Target::Tcp(address);
        let endpoint = Endpoint { target, queue };
        Generation::new(1, 1, vec![(None, vec![endpoint])], Vec::new())
    }

    #[test]
    fn a_queue_is_empty_once_all_is_accepted() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let generation = generation_at(address, Probe::Tcp(address));
        for half_done in [false, true] {
            let mut looks = Looks::default();
            let clients = [(); 3].map(|()| TcpStream::connect(address).unwrap());
            assert_eq!(undelivered(&generation, &mut looks.reader), 3);
            for _ in &clients {
                assert!(!looks.empty_twice(&generation, half_done));
                listener.accept().unwrap();
            }
            assert!(!looks.empty_twice(&generation, half_done), "once");
            assert!(looks.empty_twice(&generation, half_done));
        }
    }

    /// One that waits for its first bytes (TCP_DEFER_ACCEPT) is in no queue.
    #[test]
    fn a_handshake_that_is_half_done_is_waited_for() {
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
        let generation = generation_at(address, Probe::Tcp(address));
        let mut client = TcpStream::connect(address).unwrap();
        let mut looks = Looks::default();
        for _ in 0..3 {
            assert!(!looks.empty_twice(&generation, true));
        }
        client.write_all(b"first").unwrap();
        listener.accept().unwrap();
        assert!(!looks.empty_twice(&generation, true), "once");
        assert!(looks.empty_twice(&generation, true));
    }

    #[test]
    fn the_pause_after_a_look_is_bounded_both_ways() {
        let ms = Duration::from_millis;
        for (look, expected) in [(0, 5), (1, 10), (9, 90), (11, 100), (60_000, 100)] {
            assert_eq!(pause(ms(look)), ms(expected));
        }
        assert_eq!(pause(Duration::MAX), AT_MOST);
    }

    #[test]
    fn what_cannot_be_known_counts_as_empty() {
        let generation = generation_at("192.0.2.1:80".parse().unwrap(), Probe::Unknown);
        let mut looks = Looks::default();
        assert!(!looks.empty_twice(&generation, true), "once");
        assert!(looks.empty_twice(&generation, true));
    }
}
