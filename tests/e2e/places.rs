//! Where a gate can listen, and the ports that it connects from.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr};
use std::time::Instant;

use socket2::Socket;

use crate::common::backend::{self, Hop, Outside};
use crate::common::gate::{Gate, Setup};
use crate::common::net::{Net, add_address, set_sysctl};
use crate::common::wire::{End, Endpoint, Wire, expect, read_all, send};
use crate::common::{http, wait_until};

/// An address of this machine that isn't of loopback: towards it the gate has the ports of its source addresses and no more.
const ELSEWHERE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 9, 0, 1));
/// All of 10.9 is the machine's, once this is.
const NETWORK: &str = "10.9.0.1/16";

/// So few local ports are left to connect from.
const PORTS: usize = 64;
const RANGE: &str = "32768 32831";

fn answers(address: &str, port: u16) -> bool {
    let address = SocketAddr::new(address.parse().expect("an IP"), port);
    http::get(address, "/here").is_ok_and(|answer| answer.text() == "/here")
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
    gate.expect_log("family=IPv4 ");
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

/// The backlog in force is what the system allows of the one that is asked for.
#[test]
fn the_backlog_in_force_is_told() {
    let Some(net) = Net::isolated() else { return };
    set_sysctl("core/somaxconn", "50");
    for (asked, granted) in [("7", "backlog=7"), ("1000", "backlog=50")] {
        let gate = Setup::new(&net)
            .options(["--backlog", asked])
            .backend(backend::own(Hop::Socket, &[]))
            .start();
        let log = gate.log();
        let line = log.lines().find(|line| line.contains("listening"));
        let line = line.unwrap_or_else(|| panic!("no listener in {log}"));
        assert!(line.split(' ').any(|word| word == granted), "{line}");
    }
}

#[test]
fn few_local_ports_are_no_limit_on_loopback() {
    let Some(net) = Net::isolated() else { return };
    let wire = Wire::new(&net, Endpoint::Tcp, &[]);
    let clients = come_to_few_ports(&wire, 200);
    serve(&wire, &clients, 200);
}

#[test]
fn each_source_address_has_ports_of_its_own() {
    let Some(net) = Net::isolated() else { return };
    add_address(NETWORK);
    let sources = ["10.9.1.1", "10.9.1.2", "10.9.1.3", "10.9.1.4"];
    let wire = Wire::on_ip(&net, ELSEWHERE, &["--source", &sources.join(",")]);
    let clients = come_to_few_ports(&wire, 200);
    let servers = serve(&wire, &clients, 200);
    let mut ports: BTreeMap<String, usize> = BTreeMap::new();
    for server in servers.values() {
        *ports.entry(peer(server).ip().to_string()).or_default() += 1;
    }
    assert!(ports.keys().eq(&sources), "{ports:?}");
    assert!(ports.values().all(|used| *used <= PORTS), "{ports:?}");
    assert_eq!(no_port(&wire.gate), 0.0);
    assert!(!wire.gate.log().contains(REFUSED), "{}", wire.gate.log());
}

/// Without IP_LOCAL_PORT_RANGE (ip(7)) connect(2) looks through every second port before it takes one of the others: the longer,
/// the more are in use.
#[test]
fn a_port_is_looked_for_among_odd_and_even_ones() {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").expect("the kernel's version");
    let version: Vec<u32> = release.split('.').flat_map(str::parse).take(2).collect();
    if version < vec![6, 8] {
        eprintln!("SKIPPED: this kernel looks for a port in two turns, whatever it is told");
        return;
    }
    let Some(net) = Net::isolated() else { return };
    add_address(NETWORK);
    let wire = Wire::on_ip(&net, ELSEWHERE, &["--source", "10.9.1.1"]);
    let clients = come_to_few_ports(&wire, PORTS / 2);
    let servers = serve(&wire, &clients, PORTS / 2);
    let odd: BTreeSet<u16> = servers.values().map(|one| peer(one).port() % 2).collect();
    assert_eq!(odd.len(), 2, "all are odd, or all are even");
}

/// That is said once, and counted; who has no port waits for one, and is served when there are some again.
#[test]
fn ports_that_run_out_are_waited_for() {
    let Some(net) = Net::isolated() else { return };
    add_address(NETWORK);
    let wire = Wire::on_ip(&net, ELSEWHERE, &["--workers", "2", "--source", "10.9.1.1"]);
    let begun = Instant::now();
    let clients = come_to_few_ports(&wire, 200);
    let mut served = serve(&wire, &clients, PORTS);
    let mut numbers: BTreeSet<u8> = BTreeSet::new();
    let open = |state| {
        let metrics = wire.gate.metrics();
        metrics.sum("connections_open", &[("state", state)])
    };
    wait_until("both workers have tried again", || {
        no_port(&wire.gate) >= 6.0
    });
    let tries = no_port(&wire.gate);
    // Each worker waits a second after each.
    let most = 2.0 * (begun.elapsed().as_secs_f64() + 1.0);
    assert!(tries <= most, "{tries} tries, and at most {most} expected");
    assert_eq!((open("relaying"), open("pending")), (64.0, 136.0));
    assert!(wire.try_accept().is_none());
    let told = |words| wire.gate.log().matches(words).count();
    assert_eq!(told(REFUSED), 1, "{}", wire.gate.log());
    assert_eq!(told(AGAIN), 0, "{}", wire.gate.log());
    wire.gate.expect_log("no local port is free");
    let status = wire.gate.run(["status"]);
    status.expect_words(&["takes no connection", "no local port is free"]);

    // The server's end is the first: a port of which the gate's is would be in TIME_WAIT for a minute.
    while !served.is_empty() {
        numbers.extend(served.keys());
        for (number, server) in std::mem::take(&mut served) {
            drop(server);
            let client = &clients[usize::from(number)];
            assert_eq!(read_all(client), (Vec::new(), End::Eof));
            client.shutdown(Shutdown::Write).expect("shutdown");
        }
        let left = clients.len() - numbers.len();
        served = serve(&wire, &clients, left.min(PORTS));
    }
    assert_eq!(numbers.len(), clients.len(), "somebody was served twice");
}

/// It costs a connect to find out, not the connection.
#[test]
fn a_source_address_that_is_gone_is_left_out() {
    let Some(net) = Net::isolated() else { return };
    add_address(NETWORK);
    let wire = Wire::on_ip(&net, ELSEWHERE, &["--source", "10.8.1.1,10.9.1.1"]);
    for _ in 0..3 {
        let (_client, server) = wire.pair();
        assert_eq!(peer(&server).ip().to_string(), "10.9.1.1");
    }
}

const REFUSED: &str = "an endpoint takes no connection";
const AGAIN: &str = "the endpoint takes connections again";

/// Clients who have said their number, one byte, and were held until few local ports were left: these are for the gate alone.
fn come_to_few_ports(wire: &Wire, count: usize) -> Vec<Socket> {
    wire.gate.run(["hold"]).expect_code(0);
    let clients = (0..count).map(|number| {
        let client = wire.connect();
        send(&client, &[u8::try_from(number).expect("a byte")]);
        client
    });
    let clients: Vec<Socket> = clients.collect();
    wait_until("all wait", || {
        let metrics = wire.gate.metrics();
        metrics.sum("connections_open", &[("state", "pending")]) == count as f64
    });
    set_sysctl("ipv4/ip_local_port_range", RANGE);
    wire.gate.run(["release"]).expect_code(0);
    clients
}

/// Accepts so many connections, and has each client hear its own number.
fn serve(wire: &Wire, clients: &[Socket], count: usize) -> BTreeMap<u8, Socket> {
    let accept = |_| {
        let server = wire.accept();
        let mut number = [0];
        (&mut &server).read_exact(&mut number).expect("a number");
        send(&server, &number);
        expect(&clients[usize::from(number[0])], &number);
        (number[0], server)
    };
    let servers: BTreeMap<u8, Socket> = (0..count).map(accept).collect();
    assert_eq!(servers.len(), count, "two clients with one number");
    servers
}

fn peer(server: &Socket) -> SocketAddr {
    let address = server.peer_addr().expect("a peer");
    address.as_socket().expect("an IP address")
}

/// Connects for which no source address had a port.
fn no_port(gate: &Gate) -> f64 {
    let no_port = [("result", "no_port")];
    gate.metrics().sum("dispatch_attempts_total", &no_port)
}
