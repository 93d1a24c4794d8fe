//! The pure parts of the hot path, and a scrape: `cargo bench --bench micro`.
#![allow(missing_docs)] // criterion's macros make public items

use std::hint::black_box;
use std::net::SocketAddr;

use criterion::{Criterion, criterion_group, criterion_main};
use syngate_gate::proxy_protocol::{Addresses, Version, header, parse};
use syngate_metrics::Metrics;

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

criterion_group!(benches, proxy_headers, scrape);
criterion_main!(benches);
