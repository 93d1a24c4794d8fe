//! Flips under load: nobody is lost, and nobody comes to the old generation any more.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::common::{Fixture, ask, echo, settings, until};

#[test]
fn thousands_of_flips_lose_nobody_and_end_every_lease() {
    let fixture = Fixture::new(2, settings());
    let backends = [echo("a "), echo("b ")];
    fixture.activate(&fixture.generation(1, backends[0]));
    let done = Arc::new(AtomicBool::new(false));
    let asked = Arc::new(AtomicU64::new(0));
    let clients: Vec<_> = (0..3)
        .map(|_| {
            let (done, asked, address) = (Arc::clone(&done), Arc::clone(&asked), fixture.address);
            std::thread::spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    let client = std::net::TcpStream::connect(address).unwrap();
                    let answer = ask(client, b"x");
                    assert!(answer == b"a x" || answer == b"b x", "{answer:?}");
                    asked.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    let mut old = Vec::new();
    for number in 2..3000 {
        let next = fixture.generation(number, backends[number as usize % 2]);
        fixture.activate(&next);
        // From now on the one before can only lose leases.
        if let Some(last) = old.last() {
            let last: &Arc<syngate_gate::Generation> = last;
            let leases = last.leases();
            for _ in 0..10 {
                assert!(last.leases() <= leases);
            }
        }
        old.push(next);
    }
    until("enough connections", || asked.load(Ordering::Relaxed) > 500);
    done.store(true, Ordering::Relaxed);
    for client in clients {
        client.join().unwrap();
    }
    fixture.until_empty();
    assert!(old.iter().all(|generation| generation.leases() == 0));
    fixture.stop();
}
