//! The endpoint over real sockets.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

use nix::sys::resource::{Resource, UsageWho, getrlimit, getrusage, setrlimit};
use nix::sys::time::TimeValLike;

use super::*;

/// Longer than any test lasts.
const NEVER: Duration = Duration::from_secs(600);

/// An answer that takes longer is a failure.
const PATIENCE: Duration = Duration::from_secs(20);

/// Limits that a test hits only on purpose.
const PATIENT: Limits = Limits {
    connections: 64,
    header: NEVER,
    connection: NEVER,
    status: NEVER,
};

fn healthy() -> Health {
    Health {
        live: Box::new(|| true),
        ready: Box::new(|| Ok(())),
        sample: Box::new(|| {}),
        status: Box::new(|| Box::pin(async { None })),
    }
}

fn start(limits: Limits, metrics: Arc<Metrics>, health: Health) -> (Admin, SocketAddr) {
    let listener = net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let admin = serve_within(limits, listener, metrics, health).unwrap();
    (admin, address)
}

fn start_healthy(limits: Limits) -> (Admin, SocketAddr) {
    start(limits, Metrics::new("1", 1), healthy())
}

fn send(address: SocketAddr, request: &str) -> TcpStream {
    send_over(TcpStream::connect(address).unwrap(), request)
}

fn send_over(mut stream: TcpStream, request: &str) -> TcpStream {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    stream
}

fn receive(mut stream: TcpStream) -> String {
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    reply
}

fn get(address: SocketAddr, path: &str) -> String {
    receive(send(
        address,
        &format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n"),
    ))
}

/// Status, header in lower case, body.
fn parts(reply: &str) -> (&str, String, &str) {
    let (head, body) = reply.split_once("\r\n\r\n").expect(reply);
    let (status, header) = head.split_once("\r\n").expect(reply);
    (&status["HTTP/1.1 ".len()..], header.to_lowercase(), body)
}

#[test]
fn a_scrape_samples_first() {
    let metrics = Metrics::new("1", 1);
    let service = metrics.service("web");
    let mut health = healthy();
    let sampled = AtomicUsize::new(0);
    health.sample = Box::new(move || service.set_active(sampled.fetch_add(1, SeqCst) as u64 + 1));
    let (_admin, address) = start(PATIENT, metrics, health);
    for scrape in 1..3 {
        let reply = get(address, "/metrics");
        let (status, header, body) = parts(&reply);
        assert_eq!(status, "200 OK");
        assert!(
            header.contains("content-type: text/plain; version=0.0.4; charset=utf-8"),
            "{header}"
        );
        let expected = format!("\nsyngate_generation_active{{service=\"web\"}} {scrape}\n");
        assert!(body.contains(&expected), "{body}");
    }
}

#[test]
fn health_is_asked_each_time() {
    let well = Arc::new(AtomicBool::new(true));
    let (live, ready) = (Arc::clone(&well), Arc::clone(&well));
    let health = Health {
        live: Box::new(move || live.load(SeqCst)),
        ready: Box::new(move || match ready.load(SeqCst) {
            true => Ok(()),
            false => Err("web: no active generation for 16 s".to_owned()),
        }),
        ..healthy()
    };
    let (_admin, address) = start(PATIENT, Metrics::new("1", 1), health);
    let ask = |path| {
        let reply = get(address, path);
        let (status, _, body) = parts(&reply);
        format!("{status}: {body}")
    };
    assert_eq!(ask("/livez"), "200 OK: ok\n");
    assert_eq!(ask("/readyz"), "200 OK: ok\n");
    well.store(false, SeqCst);
    assert_eq!(
        ask("/livez"),
        "503 Service Unavailable: the supervisor or a worker doesn't turn\n"
    );
    assert_eq!(
        ask("/readyz"),
        "503 Service Unavailable: web: no active generation for 16 s\n"
    );
    well.store(true, SeqCst);
    assert_eq!(ask("/readyz"), "200 OK: ok\n");
}

#[test]
fn browsers_get_the_page_and_others_a_list() {
    let (_admin, address) = start_healthy(PATIENT);
    let ask = |accept: &str| {
        let request = format!("GET / HTTP/1.1\r\nHost: x\r\n{accept}\r\n");
        receive(send(address, &request))
    };
    // As a browser has it, and a proxy that makes several headers of one.
    for accept in [
        "Accept: text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8\r\n",
        "Accept: application/xml\r\nAccept: text/html\r\n",
    ] {
        let reply = ask(accept);
        let (status, header, body) = parts(&reply);
        assert_eq!((status, body), ("200 OK", PAGE));
        for line in [
            "content-type: text/html; charset=utf-8",
            "content-security-policy: default-src 'none'; script-src 'unsafe-inline';",
            "frame-ancestors 'none'",
            "vary: accept",
        ] {
            assert!(header.contains(line), "{line} is missing in {header}");
        }
    }
    for accept in ["", "Accept: */*\r\n", "Accept: text/plain\r\n"] {
        let reply = ask(accept);
        let (status, header, body) = parts(&reply);
        assert_eq!((status, body), ("200 OK", INDEX));
        for line in ["content-type: text/plain; charset=utf-8", "vary: accept"] {
            assert!(header.contains(line), "{line} is missing in {header}");
        }
    }
}

/// It is small, asks for nothing but what stands beside it (whatever path a proxy has put before that), and sets text as text.
#[test]
fn the_page_is_alone() {
    assert!(PAGE.len() < 14 * 1024, "{} bytes", PAGE.len());
    for never in [
        "//cdn",
        "http:",
        "https:",
        "url(",
        "@import",
        "href=\"/",
        "fetch('/",
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
    ] {
        assert!(!PAGE.contains(never), "{never}");
    }
    for beside in ["href=\"metrics\"", "href=\"status\"", "fetch('status'"] {
        assert!(PAGE.contains(beside), "{beside}");
    }
}

#[test]
fn the_status_is_json() {
    let status = || Status {
        at: 1.5,
        version: "1".to_owned(),
        pid: 7,
        uptime_seconds: 0.5,
        metrics: None,
        ready: false,
        not_ready: Some("web: \"starts\"".to_owned()),
        connections: 1,
        max_connections: 2,
        pending: 3,
        pending_max: 4,
        services: Vec::new(),
    };
    let health = Health {
        status: Box::new(move || Box::pin(async move { Some(status()) })),
        ..healthy()
    };
    let (_admin, address) = start(PATIENT, Metrics::new("1", 1), health);
    let reply = get(address, "/status");
    let (code, header, body) = parts(&reply);
    assert_eq!(code, "200 OK");
    assert!(
        header.contains("content-type: application/json"),
        "{header}"
    );
    assert_eq!(serde_json::from_str::<Status>(body).unwrap(), status());
}

#[test]
fn a_gate_that_stops_has_no_status() {
    let (_admin, address) = start_healthy(PATIENT);
    let reply = get(address, "/status");
    let (code, _, body) = parts(&reply);
    assert_eq!(
        (code, body),
        ("503 Service Unavailable", "the gate is stopping\n")
    );
}

#[test]
fn a_supervisor_that_never_answers_keeps_nobody_else_waiting() {
    let (asks, asked) = mpsc::channel();
    let stuck = |limits| {
        let asks = asks.clone();
        let health = Health {
            status: Box::new(move || {
                let _ = asks.send(());
                Box::pin(std::future::pending::<Option<Status>>())
            }),
            ..healthy()
        };
        start(limits, Metrics::new("1", 1), health)
    };
    let (_admin, address) = stuck(PATIENT);
    let _waits = send(address, "GET /status HTTP/1.1\r\nHost: x\r\n\r\n");
    asked.recv_timeout(PATIENCE).unwrap();
    assert!(get(address, "/livez").ends_with("ok\n"));

    let (_admin, address) = stuck(Limits {
        status: Duration::from_millis(50),
        ..PATIENT
    });
    let reply = get(address, "/status");
    let (code, _, body) = parts(&reply);
    assert_eq!(
        (code, body),
        ("503 Service Unavailable", "the supervisor doesn't answer\n")
    );
}

#[test]
fn other_paths_and_methods_are_refused() {
    let (_admin, address) = start_healthy(PATIENT);
    let status = |request: &str| {
        let reply = receive(send(address, request));
        parts(&reply).0.to_owned()
    };
    assert_eq!(status("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), "200 OK");
    assert_eq!(
        status("GET /readyz?verbose HTTP/1.1\r\nHost: x\r\n\r\n"),
        "200 OK"
    );
    assert_eq!(
        status("GET /metrics/ HTTP/1.1\r\nHost: x\r\n\r\n"),
        "404 Not Found"
    );
    assert_eq!(
        status("GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx"),
        "413 Payload Too Large"
    );
    let reply = receive(send(
        address,
        "POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n",
    ));
    let (status, header, _) = parts(&reply);
    assert_eq!(status, "405 Method Not Allowed");
    assert!(header.contains("allow: get, head"), "{header}");
}

#[test]
fn head_is_get_without_the_body() {
    let (_admin, address) = start_healthy(PATIENT);
    let reply = receive(send(address, "HEAD /readyz HTTP/1.1\r\nHost: x\r\n\r\n"));
    let (status, header, body) = parts(&reply);
    assert_eq!((status, body), ("200 OK", ""));
    assert!(header.contains("content-length: 3"), "{header}");
}

#[test]
fn garbage_harms_nobody_else() {
    let (_admin, address) = start_healthy(PATIENT);
    let long = format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(2 * HEADER_SIZE));
    for garbage in [
        "\x16\x03\x01\x02\x00\x01",
        "\r\n\r\nnonsense\r\n\r\n",
        &long,
        "",
    ] {
        let mut stream = send(address, garbage);
        // A refusal, an end or a reset: all are right, as long as it ends. A reset may be there already.
        let _ = stream.shutdown(net::Shutdown::Write);
        let _ = stream.read_to_end(&mut Vec::new());
    }
    assert!(get(address, "/livez").ends_with("ok\n"));
}

#[test]
fn a_header_that_never_ends_is_cut_off() {
    let (_admin, address) = start_healthy(Limits {
        connections: 1,
        header: Duration::from_millis(50),
        ..PATIENT
    });
    let _silent = TcpStream::connect(address).unwrap();
    let _slow = send(address, "GET /metrics HTTP/1.1\r\nHost:");
    assert!(get(address, "/livez").ends_with("ok\n"));
}

#[test]
fn a_client_that_never_reads_is_cut_off() {
    let metrics = Metrics::new("1", 1);
    // More text than a connection's buffers hold.
    for number in 0..1000 {
        metrics.service(&format!("service{number}"));
    }
    let limits = Limits {
        connections: 1,
        connection: Duration::from_millis(500),
        ..PATIENT
    };
    let (_admin, address) = start(limits, metrics, healthy());
    let mut deaf = send(address, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(get(address, "/livez").ends_with("ok\n"));
    let mut got = Vec::new();
    let _ = deaf.read_to_end(&mut got);
    assert!(!got.ends_with(b"\n"), "all of it fitted into the buffers");
}

#[test]
fn clients_over_the_limit_wait() {
    let (_admin, address) = start_healthy(Limits {
        connections: 2,
        ..PATIENT
    });
    let idle = [(); 2].map(|()| TcpStream::connect(address).unwrap());
    let mut third = send(address, "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n");
    third
        .set_read_timeout(Some(Duration::from_millis(100)))
        .unwrap();
    let refused = third.read(&mut [0]).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::WouldBlock);
    third.set_read_timeout(Some(PATIENCE)).unwrap();
    drop(idle);
    assert!(receive(third).ends_with("ok\n"));
}

#[test]
fn a_stopped_endpoint_is_gone() {
    let (admin, address) = start_healthy(PATIENT);
    let mut open = TcpStream::connect(address).unwrap();
    admin.stop();
    assert!(matches!(open.read(&mut [0]), Ok(0) | Err(_)));
    net::TcpListener::bind(address).expect("the port is free");
}

/// In a process of its own, since the limit is the whole process's.
#[test]
fn it_answers_when_descriptors_run_out() {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "admin::tests::without_descriptors"])
        .output()
        .unwrap();
    let output = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success(), "{output}");
    assert!(output.contains("1 passed"), "{output}");
}

#[test]
#[ignore = "run by it_answers_when_descriptors_run_out"]
fn without_descriptors() {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    let limit = |soft| setrlimit(Resource::RLIMIT_NOFILE, soft, hard).unwrap();
    limit(64);
    let (admin, address) = start_healthy(PATIENT);

    // Everything is taken: the reserve pays, again and again.
    let mut taken = Vec::new();
    while let Ok(file) = std::fs::File::open("/dev/null") {
        taken.push(file);
    }
    for _ in 0..20 {
        // One is for our own end of the connection; the endpoint may be faster, to fill its reserve, and keeps it then.
        let stream = loop {
            taken.pop();
            if let Ok(stream) = TcpStream::connect(address) {
                break stream;
            }
        };
        let request = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";
        let reply = receive(send_over(stream, request));
        assert!(reply.contains("process_open_fds"), "{reply}");
        taken.extend(std::fs::File::open("/dev/null"));
    }

    // No number under the limit is free, whatever is given up: nobody spins, and it recovers.
    drop(taken);
    drop(admin);
    let (_admin, address) = start_healthy(Limits {
        connections: 1,
        ..PATIENT
    });
    let first = TcpStream::connect(address).unwrap();
    let mut second = send(address, "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n");
    second
        .set_read_timeout(Some(Duration::from_millis(500)))
        .unwrap();
    let cpu = || {
        let usage = getrusage(UsageWho::RUSAGE_SELF).unwrap();
        usage.user_time().num_milliseconds() + usage.system_time().num_milliseconds()
    };
    let before = cpu();
    limit(3);
    drop(first);
    let starved = second.read(&mut [0]).unwrap_err();
    assert_eq!(starved.kind(), ErrorKind::WouldBlock);
    assert!(cpu() - before < 50, "it spins");
    limit(64);
    second.set_read_timeout(Some(PATIENCE)).unwrap();
    assert!(receive(second).ends_with("ok\n"));
}
