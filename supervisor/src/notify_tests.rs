use super::*;
use crate::child::tests::{shell, spawner};

fn manager_on(name: &str, watchdog: &[(&str, &str)]) -> Manager {
    Manager::new(|variable| match variable {
        "NOTIFY_SOCKET" => Some(name.into()),
        _ => watchdog
            .iter()
            .find(|(name, _)| *name == variable)
            .map(|(_, value)| value.into()),
    })
}

fn text(socket: &UnixDatagram) -> String {
    let mut bytes = [0; 200];
    let length = socket.recv(&mut bytes).expect("a message");
    String::from_utf8_lossy(&bytes[..length]).into_owned()
}

#[test]
fn a_manager_hears_each_step_by_path_and_by_abstract_name() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("manager");
    let name = format!("syngate-notify-test-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).expect("a name");
    let sockets = [
        (
            UnixDatagram::bind(&path).expect("bind"),
            path.display().to_string(),
        ),
        (
            UnixDatagram::bind_addr(&address).expect("bind"),
            format!("@{name}"),
        ),
    ];
    for (socket, name) in &sockets {
        let manager = manager_on(name, &[]);
        manager.reloading();
        let reloading = text(socket);
        let since = reloading
            .strip_prefix("RELOADING=1\nSTATUS=reloading\nMONOTONIC_USEC=")
            .expect("the moment");
        assert!(since.parse::<u64>().expect("microseconds") > 0);
        manager.ready("web: 2 active\nFAKE=1");
        assert_eq!(text(socket), "READY=1\nSTATUS=web: 2 active FAKE=1");
        manager.alive();
        assert_eq!(text(socket), "WATCHDOG=1");
        manager.stopping();
        assert_eq!(text(socket), "STOPPING=1\nSTATUS=stopping");
    }
}

#[test]
fn a_manager_that_does_not_read_blocks_nobody() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("manager");
    let _deaf = UnixDatagram::bind(&path).expect("bind");
    let manager = manager_on(&path.display().to_string(), &[]);
    for _ in 0..100_000 {
        manager.alive();
    }
}

#[test]
fn the_watchdog_is_for_the_process_that_it_names() {
    let own = std::process::id().to_string();
    let second = Some(Duration::from_secs(1));
    let of = |variables: &[(&str, &str)]| manager_on("vsock:2:1", variables).watchdog();
    assert_eq!(of(&[("WATCHDOG_USEC", "1000000")]), second);
    assert_eq!(
        of(&[("WATCHDOG_USEC", "1000000"), ("WATCHDOG_PID", &own)]),
        second
    );
    assert_eq!(
        of(&[("WATCHDOG_USEC", "1000000"), ("WATCHDOG_PID", "1")]),
        None
    );
    assert_eq!(of(&[("WATCHDOG_USEC", "0")]), None);
    assert_eq!(of(&[]), None);
}

#[tokio::test]
async fn ready_counts_from_the_generations_own_group_only() {
    let (spawner, _right) = spawner().await;
    let dir = tempfile::tempdir().expect("a directory");
    let socket = NotifySocket::bind(dir.path()).expect("bind");
    let mode = std::fs::metadata(socket.path())
        .expect("the file")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);

    // The test's own process is outside the group.
    let own = UnixDatagram::unbound().expect("a socket");
    own.send_to(b"READY=1", socket.path()).expect("send");
    let send = "import socket, os, sys, signal
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
for m in ('STATUS=READY=1', 'READY=0', 'NOTREADY=1', 'MAINPID=1\\nREADY=1\\nSTATUS=up'):
    s.sendto(m.encode(), sys.argv[1])
signal.pause()";
    let mut command = shell("exec python3 -c \"$0\" \"$1\"");
    command
        .argv
        .extend([send.to_owned(), socket.path().display().to_string()]);
    let child = spawner.spawn(command, None).expect("python starts");

    let outsider = socket.next().await.expect("a message");
    assert_eq!(outsider.sender, std::process::id().cast_signed());
    own.send_to(b"READY=1", socket.path()).expect("send");
    tokio::time::timeout(Duration::from_secs(10), socket.ready(child.pid()))
        .await
        .expect("in time")
        .expect("ready");
    assert!(child.exit().is_none(), "{}", child.output().text());
    // All four of the child's messages were needed for it, so nothing is left.
    let left = tokio::time::timeout(Duration::ZERO, socket.next()).await;
    assert!(left.is_err() || left.is_ok_and(|m| m.is_ok_and(|m| m.sender != child.pid())));
}
