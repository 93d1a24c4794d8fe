//! Where a gate can listen, and the ports that it connects from.

use std::fs;
use std::net::SocketAddr;

use crate::common::backend::{self, Hop, Outside};
use crate::common::gate::Setup;
use crate::common::http;
use crate::common::net::Net;
use crate::common::wire::{Endpoint, Wire, expect, send};

fn answers(address: &str, port: u16) -> bool {
    let address = SocketAddr::new(address.parse().expect("an IP"), port);
    http::get(address, "/here").is_ok_and(|answer| answer.text() == "/here")
}

/// Of this thread's network namespace.
fn set_sysctl(name: &str, value: &str) {
    fs::write(format!("/proc/sys/net/{name}"), value).expect(name);
}

#[test]
fn bare_port_serves_both_families() {
    let net = Net::new();
    let setup = Setup::bare(&net);
    let port = setup.public().port();
    let gate = setup
        .options(["--listen", &port.to_string()])
        .backend(backend::own(Hop::Socket, &[]))
        .start();
    assert!(answers("127.0.0.1", port), "{}", gate.log());
    assert!(answers("::1", port), "{}", gate.log());
}

#[test]
fn both_families_can_have_their_own_listener() {
    let net = Net::new();
    let address = net.free_address();
    let _backend = Outside::start(address, &[]);
    let setup = Setup::bare(&net).options(["--backend", &address.to_string()]);
    let port = setup.public().port();
    let (four, six) = (format!("four=0.0.0.0:{port}"), format!("six=[::]:{port}"));
    let gate = setup.options(["--listen", &four, "--listen", &six]).start();
    assert!(
        answers("127.0.0.1", port) && answers("::1", port),
        "{}",
        gate.log()
    );
    for listener in ["four", "six"] {
        let accepted = gate
            .metrics()
            .sum("connections_accepted_total", &[("listener", listener)]);
        assert_eq!(accepted, 1.0, "{listener}");
    }
}

/// A server that tells its listeners apart gets an address for each.
#[test]
fn each_listener_can_have_an_endpoint_of_its_own() {
    let net = Net::new();
    let (one, two) = (net.free_address(), net.free_address());
    let (listen_one, listen_two) = (format!("one={one}"), format!("two={two}"));
    let setup = Setup::bare(&net).options(["--listen", &listen_one, "--listen", &listen_two]);
    let program = &backend::own(Hop::Socket, &[])[0];
    let script =
        format!("{program} unix:$SYNGATE_SOCKET_ONE & exec {program} unix:$SYNGATE_SOCKET_TWO");
    let command = ["sh", "-c", &script, "sh", "{socket}"]
        .map(str::to_owned)
        .to_vec();
    let gate = setup.backend(command).start();
    let pid = |address| http::get(address, "/pid").expect("an answer").text();
    assert_ne!(pid(one), pid(two));
    drop(gate);
}

#[test]
fn without_ipv6_a_bare_port_is_ipv4_and_says_so() {
    let Some(net) = Net::isolated() else { return };
    set_sysctl("ipv6/conf/all/disable_ipv6", "1");
    let setup = Setup::bare(&net);
    let port = setup.public().port();
    let gate = setup
        .options(["--listen", &port.to_string()])
        .backend(backend::own(Hop::Socket, &[]))
        .start();
    assert!(answers("127.0.0.1", port), "{}", gate.log());
}

#[test]
fn inherited_listener_is_served() {
    let net = Net::new();
    let setup = Setup::bare(&net);
    let socket = std::net::TcpListener::bind(setup.public()).expect("a port");
    // The variables of sd_listen_fds(3), with the pid that the gate will have.
    let script = "exec env LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=web \"$@\" 3<&0 </dev/null";
    let setup = setup.under(["sh", "-c", script, "sh"]).stdin(socket);
    let gate = setup
        .options(["--listen", "fd:web"])
        .backend(backend::own(Hop::Socket, &[]))
        .start();
    assert_eq!(
        http::get(gate.public(), "/here").expect("an answer").text(),
        "/here"
    );
    gate.reload();
    assert_eq!(
        http::get(gate.public(), "/here").expect("an answer").text(),
        "/here"
    );
}

#[test]
fn few_local_ports_are_no_limit_on_loopback() {
    let Some(net) = Net::isolated() else { return };
    let wire = Wire::new(&net, Endpoint::Tcp, &[]);
    set_sysctl("ipv4/ip_local_port_range", "32768 32831");
    // The clients bind their own addresses, so that they don't meet the same limit.
    let clients: Vec<_> = (0..200)
        .map(|number: u8| {
            let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)
                .expect("a socket");
            let from = SocketAddr::from(([127, 9, number, 1], 0));
            socket.bind(&from.into()).expect("bind");
            socket.connect(&wire.gate.public().into()).expect("connect");
            send(&socket, &[number]);
            socket
        })
        .collect();
    let mut numbers: Vec<(u8, socket2::Socket)> = (0..clients.len())
        .map(|_| {
            let server = wire.accept();
            let mut number = [0];
            std::io::Read::read_exact(&mut &server, &mut number).expect("a number");
            (number[0], server)
        })
        .collect();
    numbers.sort_by_key(|(number, _)| *number);
    for ((number, server), client) in numbers.iter().zip(&clients) {
        send(server, &[*number]);
        expect(client, &[*number]);
    }
}
