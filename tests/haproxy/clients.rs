//! The client that HAProxy knows is the real one.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use crate::common::gate::Setup;
use crate::common::net::{Net, add_address};
use crate::fixture::{certificate, curl, echo, in_front_of};

const ADDRESSES: [&str; 6] = [
    "10.1.55.1/32",
    "10.1.55.43/32",
    "10.1.55.44/32",
    "2001:db8::1/128",
    "2001:db8::43/128",
    "2001:db8::44/128",
];

/// A port for each of plain and TLS, in both families; friends are known by their address.
fn configuration(directory: &str) -> String {
    format!(
        "global
    maxconn 100
    log {directory}/log format raw local0
defaults
    mode http
    log global
    log-format \"%ci %cp %fi %fp %sslv\"
    timeout connect 5s
    timeout client 5s
    timeout server 5s
    option forwardfor
frontend front
    bind :8080
    bind :8443 ssl crt {directory}/cert.pem
    bind :::8080 v6only
    bind :::8443 v6only ssl crt {directory}/cert.pem
    tcp-request connection reject if {{ src 10.1.55.44 2001:db8::44 }}
    acl friend src 10.1.55.43 2001:db8::43
    http-request set-header X-Friend yes if friend
    default_backend app
backend app
    server app 127.0.0.1:8000
"
    )
}

#[test]
fn the_log_the_header_and_the_acl_have_the_real_client() {
    let Some(net) = Net::isolated() else { return };
    ADDRESSES.into_iter().for_each(add_address);
    echo("127.0.0.1:8000");
    let setup = Setup::bare(&net);
    let directory = setup.dir().to_owned();
    certificate(&directory.join("cert.pem"), &["app.test"]);
    let log = UnixDatagram::bind(directory.join("log")).expect("a socket");
    log.set_read_timeout(Some(Duration::from_secs(10)))
        .expect("SO_RCVTIMEO");
    let file = directory.join("haproxy.cfg");
    fs::write(&file, configuration(&directory.display().to_string())).expect("haproxy.cfg");
    let gate = in_front_of(setup, &file).start();

    let from = [
        ("10.1.55.43", "10.1.55.1", true),
        ("127.0.0.1", "127.0.0.1", false),
        ("10.1.55.1", "10.1.55.1", false),
        ("2001:db8::43", "2001:db8::1", true),
        ("2001:db8::1", "2001:db8::1", false),
        ("::1", "::1", false),
    ];
    for (client, server, friend) in from {
        for (scheme, port, version) in [("http", 8080, "-"), ("https", 8443, "TLSv1.3")] {
            let address = SocketAddr::new(server.parse().expect("an IP"), port);
            let url = format!("{scheme}://{address}/");
            let reply = curl(["--interface", client, &url]);
            assert_eq!(reply.status, 200, "{url} from {client}");
            let local = reply.local.expect("its address");
            assert_eq!(local.ip().to_string(), client);
            let forwarded = format!("x-forwarded-for: {client}\n");
            assert!(
                reply.body.contains(&forwarded),
                "{url} from {client}: {}",
                reply.body
            );
            let is_friend = reply.body.contains("x-friend: yes\n");
            assert_eq!(is_friend, friend, "{url} from {client}: {}", reply.body);
            let expected = format!("{client} {} {server} {port} {version}", local.port());
            assert_eq!(line(&log), expected, "{url}");
        }
    }
    // A rule about connections sees the real client, too.
    for (client, server) in [
        ("10.1.55.44", "10.1.55.1"),
        ("2001:db8::44", "[2001:db8::1]"),
    ] {
        for url in [
            format!("http://{server}:8080/"),
            format!("https://{server}:8443/"),
        ] {
            assert_eq!(
                curl(["--interface", client, &url]).status,
                0,
                "{url} from {client}"
            );
        }
    }
    drop(gate);
}

/// The next line of HAProxy's log that is about a request, not about a proxy that starts or stops.
fn line(log: &UnixDatagram) -> String {
    let mut buffer = [0; 1024];
    loop {
        let length = log.recv(&mut buffer).expect("a line of the log");
        let text = String::from_utf8_lossy(&buffer[..length]);
        if text.starts_with(|first: char| first.is_ascii_hexdigit() || first == ':') {
            return text.trim_end().to_owned();
        }
    }
}
