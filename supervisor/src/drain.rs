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
    let mut reader = Reader::new();
    let mut seen = 0;
    // A unix socket has no handshake.
    let tcp = generation
        .all_endpoints()
        .any(|endpoint| !endpoint.target.is_unix());
    loop {
        let began = Instant::now();
        let mut left = queued(&generation, &mut reader);
        // The workers are asked only then: they look at all of their connections.
        if left == 0 && tcp {
            // Before the queues again: in the order in which a connection moves, so that none is missed.
            left = match gate.unproven(service, generation.number()).await {
                0 => queued(&generation, &mut reader),
                _ => undelivered(&generation, &mut reader),
            };
        }
        seen = if left == 0 { seen + 1 } else { 0 };
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

/// Those of them that are in an accept queue: no long dump.
fn queued(generation: &Generation, reader: &mut Reader) -> u32 {
    sum(generation, |probe| reader.queued(probe))
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

    use nix::sys::socket::{setsockopt, sockopt};
    use syngate_gate::listener::{self, LocalAddress};
    use syngate_gate::{Endpoint, Settings, Target};
    use syngate_metrics::Metrics;
    use tokio::time::timeout;

    use super::*;
    use crate::child::tests::eventually;
    use crate::rollout::tests::world::config;

    /// A handshake ends for the server with the client's first byte, or after these seconds (tcp(7)).
    #[derive(Clone)]
    struct DeferAccept;

    nix::setsockopt_impl!(
        DeferAccept,
        libc::IPPROTO_TCP,
        libc::TCP_DEFER_ACCEPT,
        u32,
        sockopt::SetStruct<u32>
    );

    /// Longer than it takes to see an empty queue twice.
    const NEVER: Duration = Duration::from_millis(300);

    /// A gate with one connection, dispatched to a backend that accepts when it is told to.
    struct Scene {
        gate: Arc<Gate>,
        service: ServiceId,
        generation: Arc<Generation>,
        backend: TcpListener,
        client: TcpStream,
    }

    impl Scene {
        async fn new(prepare: impl FnOnce(&TcpListener)) -> Scene {
            let backend = TcpListener::bind("127.0.0.1:0").unwrap();
            prepare(&backend);
            let address = backend.local_addr().unwrap();
            let generation = generation_at(address, Probe::Tcp(address));
            let limits = Settings {
                workers: 1,
                max_connections: 10,
                pending_max: 10,
            };
            let (gate, _) = Gate::start(&limits, &Metrics::new("test", 1)).unwrap();
            let settings = config().gate;
            let service = gate.add_service("web", settings.clone()).await;
            let options = listener::Options {
                backlog: 8,
                keepalive: None,
                v6only: false,
                own: listener::Own::default(),
            };
            let any = listener::Address::Tcp("127.0.0.1:0".parse().unwrap());
            let public = listener::bind("public", &any, &options).unwrap();
            let LocalAddress::Tcp(address) = *public.address() else {
                panic!("a TCP listener");
            };
            gate.open(service, public, false).await.unwrap();
            let active = Some(Arc::clone(&generation));
            gate.activate(service, active, settings, &[]).await;
            let client = TcpStream::connect(address).unwrap();
            eventually("it is dispatched", || {
                undelivered(&generation, &mut Reader::new()) == 1
            })
            .await;
            Scene {
                gate: Arc::new(gate),
                service,
                generation,
                backend,
                client,
            }
        }

        async fn emptied(&self) {
            let gate = Arc::clone(&self.gate);
            emptied(gate, self.service, Arc::clone(&self.generation)).await;
        }
    }

    fn generation_at(address: SocketAddr, queue: Probe) -> Arc<Generation> {
        let target = Target::Tcp(address);
        let endpoint = Endpoint { target, queue };
        Generation::new(1, 1, vec![(None, vec![endpoint])], Vec::new())
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_queue_is_empty_once_all_is_accepted() {
        let scene = Scene::new(|_| {}).await;
        assert!(timeout(NEVER, scene.emptied()).await.is_err());
        let _accepted = scene.backend.accept().unwrap();
        scene.emptied().await;
        scene.gate.stop().await;
    }

    /// It is in no queue until the first bytes come.
    #[tokio::test(flavor = "current_thread")]
    async fn a_handshake_that_is_half_done_is_waited_for() {
        let mut scene = Scene::new(|backend| {
            setsockopt(backend, DeferAccept, &60).unwrap();
        })
        .await;
        assert_eq!(queued(&scene.generation, &mut Reader::new()), 0);
        assert!(timeout(NEVER, scene.emptied()).await.is_err());
        scene.client.write_all(b"first").unwrap();
        let _accepted = scene.backend.accept().unwrap();
        scene.emptied().await;
        assert_eq!(scene.gate.unproven(scene.service, 1).await, 0);
        scene.gate.stop().await;
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
        assert_eq!(undelivered(&generation, &mut Reader::new()), 0);
    }
}
