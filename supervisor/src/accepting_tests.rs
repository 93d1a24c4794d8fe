use std::os::fd::AsFd;

use super::*;
use crate::child::tests::{eventually, spawner};
use crate::child::{Child, Spawner};
use crate::command::Command;

const LONG: Duration = Duration::from_secs(20);

/// Serves descriptor 3 as `sys.argv[1]` says; prints each accept.
const SERVER: &str = r#"
import select, socket, sys
listener = socket.socket(fileno=3)
def accept():
    connection, _ = listener.accept()
    print("accepted", connection.recv(100).decode(), flush=True)
if sys.argv[1] == "epoll":
    poll = select.epoll()
    poll.register(3)
    while poll.poll():
        accept()
if sys.argv[1] == "poll":
    poll = select.poll()
    poll.register(3)
    while poll.poll():
        accept()
if sys.argv[1] == "blocking":
    while True:
        accept()
if sys.argv[1] == "other":
    other = socket.create_server(("127.0.0.1", 0))
    poll = select.epoll()
    poll.register(other)
    print("polls another", flush=True)
    poll.poll()
"#;

fn kept() -> [Arc<KeptListener>; 2] {
    let dir = tempfile::tempdir().expect("a directory");
    let tcp = KeptListener::tcp("127.0.0.1:0".parse().expect("an address"));
    let unix = KeptListener::unix(dir.path());
    [tcp, unix].map(|listener| Arc::new(listener.expect("a listener")))
}

fn serve(spawner: &Spawner, wrapper: &[&str], how: &str, listener: &KeptListener) -> Child {
    let words = wrapper
        .iter()
        .copied()
        .chain(["python3", "-c", SERVER, how]);
    let copy = listener.as_fd().try_clone_to_owned().expect("a copy");
    let listeners = vec![("l0".into(), copy)];
    spawner
        .spawn(
            Command {
                listeners,
                ..Command::new(words)
            },
            None,
        )
        .expect("python starts")
}

async fn ready(child: &Child, listener: &Arc<KeptListener>) {
    let mut why = String::new();
    let proof = accepts(
        child.pid(),
        std::slice::from_ref(listener),
        b"hello",
        &mut why,
    );
    let ready = tokio::time::timeout(LONG, proof).await;
    ready
        .unwrap_or_else(|_| panic!("{why}; {}", child.output().text()))
        .expect("can be looked at");
}

#[tokio::test]
async fn an_epoll_set_is_proof_and_nothing_is_touched() {
    let (spawner, _right) = spawner().await;
    for listener in kept() {
        let child = serve(&spawner, &[], "epoll", &listener);
        ready(&child, &listener).await;
        assert_eq!(child.output().text(), "");
    }
}

#[tokio::test]
async fn a_worker_in_a_session_of_its_own_counts() {
    let (spawner, _right) = spawner().await;
    let [listener, _] = kept();
    // It ends with its master all the same, so that the test leaves nobody behind.
    let script = "setsid setpriv --pdeathsig KILL \"$@\" & wait";
    let wrapper = ["sh", "-c", script, "sh"];
    let child = serve(&spawner, &wrapper, "epoll", &listener);
    ready(&child, &listener).await;
    assert_eq!(child.output().text(), "");
}

#[tokio::test]
async fn without_epoll_an_accepted_test_connection_is_proof() {
    let (spawner, _right) = spawner().await;
    for how in ["poll", "blocking"] {
        for listener in kept() {
            let child = serve(&spawner, &[], how, &listener);
            ready(&child, &listener).await;
            eventually("the hello", || child.output().text() == "accepted hello\n").await;
        }
    }
}

#[tokio::test]
async fn who_has_the_listener_and_does_not_accept_is_not_ready() {
    let (spawner, _right) = spawner().await;
    for listener in kept() {
        let child = serve(&spawner, &[], "other", &listener);
        eventually("it polls another", || !child.output().text().is_empty()).await;
        // Somebody else's set doesn't count either.
        let bystander = serve(&spawner, &[], "epoll", &listener);
        ready(&bystander, &listener).await;
        drop(bystander);
        let mut why = String::new();
        let listeners = [listener.clone()];
        let proof = accepts(child.pid(), &listeners, b"", &mut why);
        let over = tokio::time::timeout(4 * IDLE, proof).await;
        assert!(over.is_err());
        assert_eq!(
            why,
            format!("it doesn't accept from {}", listener.address())
        );
    }
}

#[test]
fn the_members_of_a_set_are_read_and_other_lines_are_not() {
    let info = "pos:\t0\nflags:\t02\nmnt_id:\t16\nino:\t61\n\
        tfd:        5 events:       19 data:                5  pos:0 ino:2b07 sdev:8\n\
        tfd:        6 events:       19 data:                6  pos:0 ino:zz sdev:8\n";
    assert_eq!(sockets(info), [(0x2b07, 8)]);
}
