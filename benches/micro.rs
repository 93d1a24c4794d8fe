//! The pure parts of the hot path, and a scrape: `cargo bench --bench micro`.
#![allow(missing_docs)] // criterion's macros make public items

use std::hint::black_box;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::path::Path;

use criterion::{Criterion, criterion_group, criterion_main};
use syngate_gate::proxy_protocol::{Addresses, Version, header, parse};
use syngate_metrics::Metrics;
use syngate_supervisor::haproxy::binary::Binary;
use syngate_supervisor::haproxy::{File, Place, World, plan};

fn proxy_headers(criterion: &mut Criterion) {
    let source: SocketAddr = "192.0.2.10:51234".parse().expect("an address");
    let destination: SocketAddr = "198.51.100.20:443".parse().expect("an address");
    let addresses = Addresses {
        source,
        destination,
    };
    for version in [Version::V1, Version::V2] {
        criterion.bench_function(&format!("write a PROXY {version} header"), |bencher| {
            bencher.iter(|| header(version, Some(black_box(&addresses))));
        });
        let bytes = header(version, Some(&addresses));
        criterion.bench_function(&format!("read a PROXY {version} header"), |bencher| {
            bencher.iter(|| parse(black_box(&bytes)));
        });
    }
}

fn scrape(criterion: &mut Criterion) {
    let metrics = Metrics::new("bench", 2);
    let service = metrics.service("default");
    let listeners: Vec<_> = (0..1000)
        .map(|number| service.listener(&format!("l{number}")))
        .collect();
    criterion.bench_function("scrape 1,000 listeners", |bencher| {
        bencher.iter(|| black_box(metrics.encode()).len());
    });
    drop(listeners);
}

/// Reading, planning and copying; ten times the frontends should take ten times as long.
fn haproxy_configuration(criterion: &mut Criterion) {
    let binary = Binary {
        program: "haproxy".into(),
        release: "2.6.12".to_owned(),
        version: (2, 6, 12),
        features: Vec::new(),
        idle_close: true,
    };
    let world = World {
        binary: &binary,
        unprivileged: false,
        descriptors: 1 << 20,
        environment: &|_| None,
        arguments: &[],
        resolve: &|_| Err(ErrorKind::NotFound.into()),
        joined: &|_| false,
        read: &|_| Err(ErrorKind::NotFound.into()),
    };
    for frontends in [200_u16, 2000, 20_000] {
        let section = |number| {
            let port = 10_000 + number;
            format!(
                "frontend app_{number}\n  bind *:{port}\n  mode http\n  use_backend app_{number}\n
backend app_{number}\n  mode http\n  option forwardfor\n  server one 127.0.0.1:{port} check inter 5s\n\n"
            )
        };
        let text: String = (0..frontends).map(section).collect();
        criterion.bench_function(
            &format!("plan {frontends} frontends of HAProxy"),
            |bencher| {
                bencher.iter(|| {
                    let file = File {
                        path: "haproxy.cfg".into(),
                        text: text.clone().into_bytes(),
                    };
                    let plan = plan(vec![file], &world).expect("a plan");
                    let numbers: Vec<RawFd> = (3..).take(plan.listeners().len()).collect();
                    plan.copy(&Place {
                        directory: Path::new("/run/syngate/gen-default-1"),
                        privates: &numbers,
                        stats: 3 + RawFd::from(frontends),
                        stats_sockets: &[],
                        suffix: "gen-default-1",
                    })
                });
            },
        );
    }
}

criterion_group!(benches, proxy_headers, scrape, haproxy_configuration);
criterion_main!(benches);
