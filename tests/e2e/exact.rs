//! Bytes, their order, and how a connection ends: what one side did is what the other side sees.

use std::net::Shutdown;
use std::thread;
use std::time::Duration;

use socket2::Socket;

use crate::common::gate::Setup;
use crate::common::net::Net;
use crate::common::wait_until;
use crate::common::wire::{
    End, Endpoint, Wire, expect, read_all, read_pattern, reset, send, send_pattern, timed,
};

const MIB: u64 = 1024 * 1024;

#[test]
fn client_ends_its_half_first() {
    let net = Net::new();
    for endpoint in Endpoint::ALL {
        let wire = Wire::new(&net, endpoint, &[]);
        let (client, server) = wire.pair();
        send(&client, b"0123456789");
        client.shutdown(Shutdown::Write).expect("shutdown");
        assert_eq!(
            read_all(&server),
            (b"0123456789".to_vec(), End::Eof),
            "{endpoint:?}"
        );
        let writer = thread::spawn(move || send_pattern(&server, MIB));
        assert_eq!(read_pattern(&client), (MIB, End::Eof), "{endpoint:?}");
        writer.join().expect("the writer").expect("write");
        closed_once(&wire, "eof");
    }
}

#[test]
fn server_ends_its_half_first() {
    let net = Net::new();
    for endpoint in Endpoint::ALL {
        let wire = Wire::new(&net, endpoint, &[]);
        let (client, server) = wire.pair();
        send(&server, b"0123456789");
        server.shutdown(Shutdown::Write).expect("shutdown");
        assert_eq!(
            read_all(&client),
            (b"0123456789".to_vec(), End::Eof),
            "{endpoint:?}"
        );
        let writer = thread::spawn(move || send_pattern(&client, MIB));
        assert_eq!(read_pattern(&server), (MIB, End::Eof), "{endpoint:?}");
        writer.join().expect("the writer").expect("write");
        closed_once(&wire, "eof");
    }
}

#[test]
fn client_ends_its_half_while_pending() {
    let net = Net::new();
    for endpoint in Endpoint::ALL {
        let wire = Wire::new(&net, endpoint, &[]);
        wire.gate.run(["hold"]).expect_code(0);
        let client = wire.connect();
        send(&client, b"a whole request");
        client.shutdown(Shutdown::Write).expect("shutdown");
        wait_until("it is pending", || {
            wire.gate
                .metrics()
                .sum("connections_open", &[("state", "pending")])
                == 1.0
        });
        assert!(wire.try_accept().is_none(), "dispatched while held");
        wire.gate.run(["release"]).expect_code(0);
        let server = wire.accept();
        assert_eq!(
            read_all(&server),
            (b"a whole request".to_vec(), End::Eof),
            "{endpoint:?}"
        );
        send(&server, b"its answer");
        drop(server);
        assert_eq!(
            read_all(&client),
            (b"its answer".to_vec(), End::Eof),
            "{endpoint:?}"
        );
        closed_once(&wire, "eof");
    }
}

#[test]
fn server_resets_after_its_bytes() {
    let net = Net::new();
    let wire = Wire::new(&net, Endpoint::Tcp, &[]);
    let (client, server) = wire.pair();
    send_pattern(&server, 64 * 1024).expect("write");
    wait_until("the gate has read all", || {
        wire.gate
            .metrics()
            .sum("relayed_bytes_total", &[("direction", "out")])
            == 65536.0
    });
    reset(server);
    assert_eq!(read_pattern(&client), (64 * 1024, End::Reset));
    closed_once(&wire, "backend_reset");
}

#[test]
fn server_resets_while_the_client_reads_slowly() {
    let net = Net::new();
    let wire = Wire::new(&net, Endpoint::Tcp, &[]);
    let (client, server) = wire.pair();
    let writer = thread::spawn(move || {
        send_pattern(&server, 4 * MIB).expect("write");
        reset(server);
    });
    let ((length, end), took) = timed(|| read_pattern(&client));
    assert_eq!(end, End::Reset, "after {length} bytes");
    assert!(took < Duration::from_secs(10), "{took:?}");
    writer.join().expect("the writer");
    closed_once(&wire, "backend_reset");
}

#[test]
fn client_resets_in_the_middle_of_an_upload() {
    let net = Net::new();
    for endpoint in Endpoint::ALL {
        let wire = Wire::new(&net, endpoint, &[]);
        let (client, server) = wire.pair();
        let writer = thread::spawn(move || {
            send_pattern(&client, 4 * MIB).expect("write");
            reset(client);
        });
        let (length, end) = read_pattern(&server);
        // A unix socket knows no reset that its peer could send.
        let expected = if endpoint == Endpoint::Tcp {
            End::Reset
        } else {
            End::Eof
        };
        assert_eq!(end, expected, "{endpoint:?} after {length} bytes");
        writer.join().expect("the writer");
        closed_once(&wire, "client_reset");
    }
}

#[test]
fn client_resets_after_all_bytes_have_passed() {
    let net = Net::new();
    for endpoint in Endpoint::ALL {
        let wire = Wire::new(&net, endpoint, &[]);
        let (client, server) = wire.pair();
        send_pattern(&client, 64 * 1024).expect("write");
        wait_until("the gate has read all", || {
            wire.gate
                .metrics()
                .sum("relayed_bytes_total", &[("direction", "in")])
                == 65536.0
        });
        reset(client);
        let expected = if endpoint == Endpoint::Tcp {
            End::Reset
        } else {
            End::Eof
        };
        assert_eq!(read_pattern(&server), (64 * 1024, expected), "{endpoint:?}");
    }
}

#[test]
fn urgent_bytes_stay_in_order() {
    let net = Net::new();
    let urgent = |from: &Socket, to: &Socket| {
        send(from, b"aaa");
        assert_eq!(from.send_out_of_band(b"!").expect("MSG_OOB"), 1);
        send(from, b"bbb");
        expect(to, b"aaa!bbb");
    };
    for endpoint in Endpoint::ALL {
        let wire = Wire::new(&net, endpoint, &[]);
        let (client, server) = wire.pair();
        urgent(&client, &server);
        if endpoint == Endpoint::Tcp {
            urgent(&server, &client);
        }
        send(&client, b"more");
        expect(&server, b"more");
        send(&server, b"and back");
        expect(&client, b"and back");
        drop(client);
        assert_eq!(read_all(&server), (Vec::new(), End::Eof), "{endpoint:?}");
    }
}

#[test]
fn one_byte_at_a_time() {
    let net = Net::new();
    for endpoint in Endpoint::ALL {
        let wire = Wire::new(&net, endpoint, &[]);
        let (client, server) = wire.pair();
        client.set_tcp_nodelay(true).expect("TCP_NODELAY");
        let text: Vec<u8> = (0..2000_u32).map(|n| (n % 251) as u8).collect();
        for byte in text.chunks(1) {
            send(&client, byte);
            expect(&server, byte);
            send(&server, byte);
            expect(&client, byte);
        }
        // And without waiting for each other.
        thread::scope(|scope| {
            for (from, to) in [(&client, &server), (&server, &client)] {
                let text = &text;
                scope.spawn(move || text.chunks(1).for_each(|byte| send(from, byte)));
                scope.spawn(move || expect(to, text));
            }
        });
        drop(server);
        assert_eq!(read_all(&client), (Vec::new(), End::Eof), "{endpoint:?}");
    }
}

#[test]
fn server_speaks_first() {
    let net = Net::new();
    for endpoint in Endpoint::ALL {
        let wire = Wire::new(&net, endpoint, &[]);
        let (client, server) = wire.pair();
        send(&server, b"220 ready\r\n");
        expect(&client, b"220 ready\r\n");
        send(&client, b"QUIT\r\n");
        expect(&server, b"QUIT\r\n");
    }
}

#[test]
fn an_end_without_a_byte_passes_and_is_not_tried_again() {
    let net = Net::new();
    for endpoint in Endpoint::ALL {
        let wire = Wire::new(&net, endpoint, &[]);
        let (client, server) = wire.pair();
        drop(server);
        assert_eq!(read_all(&client), (Vec::new(), End::Eof), "{endpoint:?}");
        drop(client);
        closed_once(&wire, "eof");
        assert!(wire.try_accept().is_none(), "dispatched again");
        assert_eq!(wire.gate.metrics().sum("redispatches_total", &[]), 0.0);
    }
}

#[test]
fn load_one_gibibyte_each_way() {
    let net = Net::new();
    for endpoint in Endpoint::ALL {
        let wire = Wire::new(&net, endpoint, &[]);
        let (client, server) = wire.pair();
        thread::scope(|scope| {
            for (from, to) in [(&client, &server), (&server, &client)] {
                scope.spawn(move || {
                    send_pattern(from, 1024 * MIB).expect("write");
                    from.shutdown(Shutdown::Write).expect("shutdown");
                });
                scope.spawn(move || assert_eq!(read_pattern(to), (1024 * MIB, End::Eof)));
            }
        });
        let metrics = wire.gate.metrics();
        for direction in ["in", "out"] {
            let relayed = metrics.sum("relayed_bytes_total", &[("direction", direction)]);
            assert_eq!(relayed, (1024 * MIB) as f64, "{endpoint:?} {direction}");
        }
    }
}

#[test]
fn unix_listener_and_a_bound_port_lead_to_the_same_backend() {
    let net = Net::new();
    let setup = Setup::new(&net);
    let path = setup.dir().join("public.sock");
    let listen = format!("local=unix:{},mode=0600", path.display());
    let wire = Wire::with(setup, &net, Endpoint::Tcp, &["--listen", &listen]);
    let client = Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None).expect("a socket");
    client
        .connect(&socket2::SockAddr::unix(&path).expect("a path"))
        .expect("connect");
    let server = wire.accept();
    send(&client, b"hello");
    client.shutdown(Shutdown::Write).expect("shutdown");
    assert_eq!(read_all(&server), (b"hello".to_vec(), End::Eof));
    send(&server, b"bye");
    drop(server);
    assert_eq!(read_all(&client), (b"bye".to_vec(), End::Eof));
    let metrics = wire.gate.metrics();
    assert_eq!(
        metrics.sum("connections_accepted_total", &[("listener", "local")]),
        1.0
    );
    assert_eq!(
        metrics.sum("connections_accepted_total", &[("listener", "l0")]),
        0.0
    );
}

/// Exactly one connection has been closed, for this reason.
#[track_caller]
fn closed_once(wire: &Wire, reason: &str) {
    wait_until("the connection is counted", || {
        wire.gate.metrics().sum("connections_closed_total", &[]) > 0.0
    });
    let metrics = wire.gate.metrics();
    assert_eq!(
        metrics.sum("connections_closed_total", &[("reason", reason)]),
        1.0,
        "{metrics:?}"
    );
    assert_eq!(metrics.sum("connections_closed_total", &[]), 1.0);
}
