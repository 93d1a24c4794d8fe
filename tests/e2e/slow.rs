//! Ten thousand clients that say nothing, or take nothing; and a gate that was stopped.

use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use socket2::{Domain, Socket, Type};

use crate::common::backend::Outside;
use crate::common::gate::{Gate, Setup};
use crate::common::net::{Net, set_sysctl};
use crate::common::wire::{Endpoint, Wire, expect, read_all, send};
use crate::common::{allow_descriptors, wait_for, wait_until};

const CLIENTS: usize = 10_000;
/// So many come at once.
const STEP: usize = 1000;
/// The gate bears each one for so long: on a slow machine it takes some seconds until all are there.
const TIMEOUT: Duration = Duration::from_secs(10);
/// An answer, of which the gate keeps what the kernel has no room for: one buffer at most.
const ANSWER: u64 = 64 * 1024;

#[test]
fn load_clients_that_never_say_who_they_are() {
    let Some(net) = Net::isolated() else { return };
    let siege = Siege {
        options: &[
            "--accept-proxy",
            "127.0.0.0/8",
            "--accept-proxy-timeout",
            "10s",
        ],
        says: String::new(),
        honest: "PROXY TCP4 192.0.2.1 198.51.100.1 1000 80\r\n",
        reasons: &["proxy_header"],
        most_each: 1024,
    };
    siege.lay(&net);
}

#[test]
fn load_clients_that_never_read() {
    let Some(net) = Net::isolated() else { return };
    // The kernel takes little of what a client doesn't read: the rest is the gate's.
    for name in ["ipv4/tcp_wmem", "ipv4/tcp_rmem"] {
        set_sysctl(name, "4096 4096 4096");
    }
    let siege = Siege {
        options: &["--half-close-timeout", "10s", "--idle-timeout", "10s"],
        says: format!("GET /download/{ANSWER} HTTP/1.1\r\nConnection: close\r\n\r\n"),
        honest: "",
        reasons: &["half_close_timeout", "idle_timeout"],
        // And what the allocator holds of those that were closed meanwhile. Two buffers each would be too much.
        most_each: ANSWER * 3 / 2,
    };
    siege.lay(&net);
}

/// What the clients do, and what it may cost.
struct Siege {
    options: &'static [&'static str],
    says: String,
    /// What those who mean well say before their request.
    honest: &'static str,
    /// What the others are closed for.
    reasons: &'static [&'static str],
    /// Of the gate's memory.
    most_each: u64,
}

impl Siege {
    fn lay(&self, net: &Net) {
        allow_descriptors();
        let setup = Setup::new(net);
        let socket = setup.dir().join("app.sock");
        let _app = Outside::start_unix(&socket, &[]);
        let gate = setup
            .options(["--backend", &format!("unix:{}", socket.display())])
            .options(self.options)
            .start();
        let limit = gate.status_json()["max_connections"]
            .as_f64()
            .expect("a number");
        let memory = gate.resident();
        let accepted = || gate.metrics().sum("connections_accepted_total", &[]);
        let clients: Vec<Socket> = (0..CLIENTS)
            .map(|number| {
                if number % STEP == 0 {
                    // Not faster than the gate, or the kernel's queue overflows.
                    let enough = (0.9 * limit).min(number.saturating_sub(STEP) as f64);
                    wait_until("it has accepted them", || accepted() >= enough);
                }
                let client = connect(gate.public());
                send(&client, self.says.as_bytes());
                client
            })
            .collect();
        let open = || gate.metrics().sum("connections_open", &[]);
        let most = limit.min(CLIENTS as f64);
        wait_until("nearly all are open", || open() > 0.95 * most);
        let open = open();
        assert!(open <= limit, "{open} of {limit} are open");
        // Where the limit is reached, those who mean well wait until a place is free.
        let mut longest = Duration::ZERO;
        for _ in 0..20 {
            let begun = Instant::now();
            self.ask_honestly(&gate);
            longest = longest.max(begun.elapsed());
        }
        assert!(longest < TIMEOUT + Duration::from_secs(5), "{longest:?}");
        let each = gate.resident().saturating_sub(memory) / open as u64;
        println!(
            "{:?}: {open} open of {limit}, {each} bytes each, others wait {longest:?} at most",
            self.reasons
        );
        assert!(each <= self.most_each, "{each} bytes each");

        let of_siege = |gate: &Gate| -> f64 {
            let metrics = gate.metrics();
            let closed = self
                .reasons
                .iter()
                .map(|reason| metrics.sum("connections_closed_total", &[("reason", reason)]));
            closed.sum()
        };
        wait_until("all have been closed", || of_siege(&gate) == CLIENTS as f64);
        for mut client in &clients {
            let mut bytes = Vec::new();
            match client.read_to_end(&mut bytes) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
                Err(error) => panic!("neither an end nor a reset: {error}"),
            }
        }
        self.ask_honestly(&gate);
        assert_eq!(gate.metrics().sum("listener_drops_total", &[]), 0.0);
        assert!(!gate.log().contains("panicked"));
    }

    fn ask_honestly(&self, gate: &Gate) {
        let client = crate::common::wire::connect(gate.public());
        let request = "GET /honest HTTP/1.1\r\nConnection: close\r\n\r\n";
        (&mut &client)
            .write_all(format!("{}{request}", self.honest).as_bytes())
            .expect("write");
        let (answer, _) = read_all(&client);
        assert!(answer.ends_with(b"/honest"), "{}", answer.escape_ascii());
    }
}

/// A client that has room for little.
fn connect(address: SocketAddr) -> Socket {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None).expect("a socket");
    socket.set_recv_buffer_size(2048).expect("SO_RCVBUF");
    socket
        .connect_timeout(&address.into(), Duration::from_secs(20))
        .expect("connect");
    socket
        .set_read_timeout(Some(Duration::from_secs(20)))
        .expect("SO_RCVTIMEO");
    socket
}

/// Deadlines go by a clock that runs on: those that have passed take effect, and the log says why; the others stand.
#[test]
fn gate_that_was_stopped_says_so_and_keeps_its_deadlines() {
    let net = Net::new();
    let options = ["--idle-timeout", "4s", "--pending-timeout", "60s"];
    let wire = Wire::new(&net, Endpoint::Tcp, &options);
    let (client, server) = wire.pair();
    send(&client, b"a last word");
    expect(&server, b"a last word");
    wire.gate.run(["hold"]).expect_code(0);
    let waiting = wire.connect();
    let open = |state| {
        wire.gate
            .metrics()
            .sum("connections_open", &[("state", state)])
    };
    wait_until("one is pending", || open("pending") == 1.0);
    assert!(!wire.gate.log().contains("was stopped"));

    wire.gate.signal(Signal::SIGSTOP);
    thread::sleep(Duration::from_secs(6)); // the time that it is stopped for
    let late = wire.connect(); // by the kernel
    wire.gate.signal(Signal::SIGCONT);
    let line = wait_for("the log says it", || {
        let log = wire.gate.log();
        let line = log.lines().find(|line| line.contains("was stopped for"));
        line.map(str::to_owned)
    });
    assert!(
        ["for 5 s", "for 6 s"]
            .iter()
            .any(|time| line.contains(time)),
        "{line}"
    );
    assert_eq!(read_all(&client).0, b"");
    wait_until("it is counted", || {
        wire.gate
            .metrics()
            .sum("connections_closed_total", &[("reason", "idle_timeout")])
            == 1.0
    });
    wait_until("the late one is pending too", || open("pending") == 2.0);
    wire.gate.run(["release"]).expect_code(0);
    // Each worker has an order of its own.
    let servers = [wire.accept(), wire.accept()];
    servers.iter().for_each(|server| send(server, b"hello"));
    for client in [waiting, late] {
        expect(&client, b"hello");
    }
}
