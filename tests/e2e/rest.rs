//! A backend may end when it has written its answer, and before the client has it: while the gate stops, and when its service goes.

use std::fs;
use std::time::Duration;

use nix::sys::signal::Signal;
use nix::unistd::Pid;
use socket2::Socket;

use crate::common::backend::{self, Hop};
use crate::common::gate::{Gate, Setup};
use crate::common::net::Net;
use crate::common::wait_until;
use crate::common::wire::{End, connect, read_all, send};
use crate::stop::{alive, expect_clean_exit, wait_relayed};

/// More than a client's socket takes while nobody reads, and no more than the sockets between hold.
const ANSWER: usize = 200_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Goes {
    Gate,
    Service,
}

/// A gate with two services, one of which goes, and a client of that one that reads nothing for the moment.
struct World {
    gate: Gate,
    client: Socket,
    backend: Pid,
    goes: Goes,
    stays: String,
    _net: Net,
}

impl World {
    /// `options` are lines of the file.
    fn new(goes: Goes, process: &str, options: &str, answer: usize) -> World {
        let net = Net::new();
        let setup = Setup::bare(&net).options(["--config", "syngate.toml"]);
        let service = |name: &str, listen| {
            let command = backend::own(Hop::Socket, &[]);
            format!(
                "[services.{name}]\nlisten = '{listen}'\ndrain_signal = 'TERM'\ncommand = {command:?}\n{options}\n"
            )
        };
        let stays = format!("{process}\n{}", service("stays", net.free_address()));
        let file = setup.dir().join("syngate.toml");
        fs::write(file, stays.clone() + &service("goes", setup.public())).expect("the file");
        let gate = setup.start();
        let status = gate.status_json();
        let services = status["services"].as_array().expect("services");
        let mut services = services.iter();
        let service = services.find(|service| service["name"] == "goes");
        let pid = service.and_then(|service| service["generations"][0]["pid"].as_i64());
        let backend = Pid::from_raw(pid.expect("a pid") as i32);

        let client = connect(gate.public());
        client.set_recv_buffer_size(65536).expect("SO_RCVBUF");
        let request = format!("GET /download/{answer} HTTP/1.1\r\nConnection: close\r\n\r\n");
        send(&client, request.as_bytes());
        wait_relayed(&gate);
        World {
            gate,
            client,
            backend,
            goes,
            stays,
            _net: net,
        }
    }

    /// Lets it go, and waits until its backend has ended.
    fn go(&self) {
        match self.goes {
            Goes::Gate => self.gate.signal(Signal::SIGTERM),
            Goes::Service => {
                let file = self.gate.dir().join("syngate.toml");
                fs::write(file, &self.stays).expect("the file");
                self.gate.run(["reload"]).expect_code(0);
            }
        }
        wait_until("the backend has ended", || !alive(self.backend));
    }

    fn expect_gone(&mut self) {
        match self.goes {
            Goes::Gate => expect_clean_exit(&mut self.gate, Duration::from_secs(6)),
            Goes::Service => wait_until("the service has ended", || {
                let status = self.gate.status_json();
                status["services"].as_array().expect("services").len() == 1
            }),
        }
    }
}

const SENT: &str = "clients are still being sent its answers";

#[test]
fn it_reaches_a_client_that_reads_it_late() {
    for goes in [Goes::Gate, Goes::Service] {
        let mut world = World::new(goes, "", "", ANSWER);
        world.go();
        world.gate.expect_log(SENT);
        if goes == Goes::Service {
            let status = world.gate.run(["status"]);
            status.expect_words(&["clients are still being sent the rest"]);
        }
        let (answer, end) = read_all(&world.client);
        assert_eq!(end, End::Eof, "{goes:?}");
        assert!(answer.len() > ANSWER, "{goes:?}: {}", answer.len());
        world.expect_gone();
        let log = world.gate.log();
        assert!(!log.contains("reset ("), "{goes:?}: {log}");
    }
}

/// The time that it has is the drain's or the stop's, or what a second SIGTERM leaves.
#[test]
fn a_client_that_reads_nothing_is_reset_in_time() {
    for (goes, process, options, signals, reason) in [
        (
            Goes::Service,
            "",
            "drain_timeout = '3s'",
            0,
            "drain_timeout",
        ),
        (Goes::Gate, "shutdown_timeout = '5s'", "", 1, "shutdown"),
        (Goes::Gate, "shutdown_timeout = '1h'", "", 2, "shutdown"),
    ] {
        let mut world = World::new(goes, process, options, ANSWER);
        world.go();
        world.gate.expect_log(SENT);
        if signals == 2 {
            world.gate.signal(Signal::SIGTERM);
        }
        let reset = format!("1 client has not been sent its answers in time: reset ({reason})");
        world.gate.expect_log(&reset);
        assert_eq!(read_all(&world.client).1, End::Reset, "{goes:?}");
        world.expect_gone();
    }
}

/// Whoever has everything, the end too, hears of nothing else, and is waited for by nobody.
#[test]
fn a_client_that_has_everything_is_let_go() {
    for goes in [Goes::Gate, Goes::Service] {
        let mut world = World::new(goes, "", "drain_timeout = 'off'", 1000);
        wait_until("the client has all of it", || {
            let mut bytes = [std::mem::MaybeUninit::uninit(); 4096];
            world.client.peek(&mut bytes).expect("peek") > 1000
        });
        world.go();
        world.expect_gone();
        let log = world.gate.log();
        assert!(!log.contains("reset ("), "{goes:?}: {log}");
        let error = world.client.take_error().expect("SO_ERROR");
        assert!(error.is_none(), "{goes:?}");
        let (answer, end) = read_all(&world.client);
        assert_eq!(end, End::Eof, "{goes:?}");
        assert!(answer.len() > 1000, "{goes:?}");
    }
}
