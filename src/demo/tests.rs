//! The clients against the backend, without a gate between them, and against servers that don't do what they should.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, UnixListener};
use tokio::task::yield_now;

use super::backend::{Listener, serve};
use super::load::Tally;
use super::*;

const KEPT_FOR_TESTS: Habit = Habit {
    life: Duration::MAX,
    pause: Duration::from_millis(2),
};

/// A backend, and clients of it.
async fn backend_and_clients() -> (Arc<AtomicBool>, Arc<Clients>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let clients = Clients::new(listener.local_addr().unwrap());
    let draining = Arc::new(AtomicBool::new(false));
    let greeting = "generation 1 version 1\n".to_owned();
    let served = serve(Listener::Tcp(listener), greeting, Arc::clone(&draining));
    tokio::spawn(served);
    (draining, clients)
}

/// Clients of a server that sends this to each, and reads until the client ends.
async fn clients_of(answer: &'static str) -> Arc<Clients> {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let clients = Clients::new(listener.local_addr().unwrap());
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                stream.write_all(answer.as_bytes()).await.unwrap();
                let (mut reader, mut writer) = stream.split();
                writer.shutdown().await.unwrap();
                let _ = tokio::io::copy(&mut reader, &mut tokio::io::sink()).await;
            });
        }
    });
    clients
}

async fn until(mut condition: impl FnMut() -> bool) {
    while !condition() {
        yield_now().await;
    }
}

/// The one failure that one connection met.
async fn failure_of(clients: &Arc<Clients>) -> String {
    let one = Arc::clone(clients).always_kept(Habit::ONE_REQUEST);
    let failing = tokio::spawn(one);
    until(|| clients.tally().failed > 0).await;
    clients.stop();
    failing.await.unwrap();
    let tally = clients.tally();
    assert_eq!(tally.new, 0);
    tally.reasons[0].clone()
}

#[tokio::test]
async fn all_that_is_begun_ends_well() {
    let (_, clients) = backend_and_clients().await;
    let new = tokio::spawn(Arc::clone(&clients).always_new());
    let kept = tokio::spawn(Arc::clone(&clients).always_kept(KEPT_FOR_TESTS));
    until(|| {
        let Tally { new, requests, .. } = clients.tally();
        new >= 50 && requests >= 50
    })
    .await;
    clients.stop();
    new.await.unwrap();
    kept.await.unwrap();
    let tally = clients.tally();
    assert_eq!((tally.failed, tally.reasons), (0, vec![]));
    assert_eq!(tally.kept, 1, "it wasn't told to reconnect");
    assert_eq!(tally.connect.len() as u64, tally.new + tally.kept);
    assert_eq!(tally.connect.len(), tally.first_byte.len());
}

#[tokio::test]
async fn a_kept_client_reconnects_when_it_is_told() {
    let (draining, clients) = backend_and_clients().await;
    let kept = tokio::spawn(Arc::clone(&clients).always_kept(KEPT_FOR_TESTS));
    until(|| clients.tally().requests >= 5).await;
    draining.store(true, Ordering::Relaxed);
    until(|| clients.tally().kept >= 3).await;
    clients.stop();
    kept.await.unwrap();
    assert_eq!(clients.tally().failed, 0);
}

#[tokio::test]
async fn an_old_version_is_a_failure() {
    let (_, clients) = backend_and_clients().await;
    clients.expect(2);
    let reason = failure_of(&clients).await;
    assert!(
        reason.contains("served by version 1, when 2 was active"),
        "{reason}"
    );
}

#[tokio::test]
async fn a_wrong_answer_is_a_failure() {
    let clients = clients_of("generation 1 version 1\npong 1\n").await;
    let reason = failure_of(&clients).await;
    assert!(reason.contains("`pong 1` answers `last 1`"), "{reason}");
}

#[tokio::test]
async fn a_byte_too_many_is_a_failure() {
    let clients = clients_of("generation 1 version 1\nlast 1\nx").await;
    let reason = failure_of(&clients).await;
    assert!(reason.contains("bytes after the last answer"), "{reason}");
}

#[tokio::test]
async fn only_what_the_killed_generation_had_accepted_is_cut() {
    // It greets, and ends before it has answered.
    let clients = clients_of("generation 7 version 1\n").await;
    clients.killing(7);
    let cut = tokio::spawn(Arc::clone(&clients).always_kept(Habit::ONE_REQUEST));
    until(|| clients.tally().cut >= 2).await;
    clients.stop();
    cut.await.unwrap();
    assert_eq!(clients.tally().failed, 0);

    let clients = clients_of("generation 8 version 1\n").await;
    clients.killing(7);
    let reason = failure_of(&clients).await;
    assert!(reason.contains("greeted by generation 8"), "{reason}");
    assert_eq!(clients.tally().cut, 0);
}

#[tokio::test]
async fn one_that_was_not_greeted_may_be_cut() {
    let clients = clients_of("").await;
    clients.killing(7);
    let reason = failure_of(&clients).await;
    assert!(reason.contains("not greeted"), "{reason}");
    assert_eq!(clients.tally().cut, 1);

    let clients = clients_of("").await;
    clients.killing(7);
    clients.succeeded();
    failure_of(&clients).await;
    assert_eq!(
        clients.tally().cut,
        0,
        "it was dialled when the successor was there"
    );
}

#[tokio::test]
async fn a_kept_listener_serves_as_well() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("kept.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let greeting = "generation 3 version 4\n".to_owned();
    tokio::spawn(serve(Listener::Unix(listener), greeting, Arc::default()));
    let mut stream = tokio::net::UnixStream::connect(path).await.unwrap();
    stream.write_all(b"ping 1\nlast 2\n").await.unwrap();
    let mut all = String::new();
    tokio::io::AsyncReadExt::read_to_string(&mut stream, &mut all)
        .await
        .unwrap();
    assert_eq!(all, "generation 3 version 4\npong 1\nlast 2\n");
}
