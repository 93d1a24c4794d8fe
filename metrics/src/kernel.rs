//! The kernel's own counts of connections that a full accept queue lost, for this network namespace.

use std::fs;

use prometheus::core::{Collector, Desc};
use prometheus::proto::{Counter, Metric, MetricFamily, MetricType};

use crate::collector::{desc, family};

/// The kernel's name in the TcpExt line, the series, and its help.
const SERIES: [(&str, &str, &str); 2] = [
    (
        "ListenDrops",
        "syngate_kernel_listen_drops_total",
        "SYNs and handshakes dropped by any TCP listener of this network namespace, whoever owns it, since the namespace was made.",
    ),
    (
        "ListenOverflows",
        "syngate_kernel_listen_overflows_total",
        "Of these drops, those because a listener's accept queue was full; raise its backlog and net.core.somaxconn if this grows.",
    ),
];

/// Reads `/proc/thread-self/net/netstat` at each scrape. Where it can't be read the series are absent: a zero would be a lie.
pub(crate) struct KernelCollector {
    descs: Vec<Desc>,
}

impl KernelCollector {
    pub(crate) fn new() -> KernelCollector {
        KernelCollector {
            descs: SERIES
                .iter()
                .map(|(_, name, help)| desc(name, help, &[]))
                .collect(),
        }
    }
}

impl Collector for KernelCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.descs.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let netstat = fs::read_to_string("/proc/thread-self/net/netstat").unwrap_or_default();
        SERIES
            .iter()
            .filter_map(|(key, name, help)| {
                let mut counter = Counter::default();
                counter.set_value(tcp_ext(&netstat, key)? as f64);
                let mut metric = Metric::default();
                metric.set_counter(counter);
                Some(family(name, help, MetricType::COUNTER, vec![metric]))
            })
            .collect()
    }
}

/// The value of a TcpExt key. The file has two lines a group: the keys, then their values, each behind the group's name.
fn tcp_ext(netstat: &str, key: &str) -> Option<u64> {
    let mut lines = netstat
        .lines()
        .filter_map(|line| line.strip_prefix("TcpExt:"));
    let (keys, values) = (lines.next()?, lines.next()?);
    let place = keys.split_whitespace().position(|word| word == key)?;
    values.split_whitespace().nth(place)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_stands_below_its_key() {
        let netstat = "TcpExt: SyncookiesSent ListenOverflows ListenDrops TCPHPHits\nTcpExt: 1 22 333 4\n\
                       IpExt: InNoRoutes ListenDrops\nIpExt: 5 6\n";
        assert_eq!(tcp_ext(netstat, "ListenDrops"), Some(333));
        assert_eq!(tcp_ext(netstat, "ListenOverflows"), Some(22));
        assert_eq!(tcp_ext(netstat, "Listen"), None);
    }

    #[test]
    fn what_is_cut_off_is_not_guessed() {
        assert_eq!(tcp_ext("", "ListenDrops"), None);
        assert_eq!(tcp_ext("TcpExt: ListenDrops\n", "ListenDrops"), None);
        assert_eq!(
            tcp_ext("TcpExt: A ListenDrops\nTcpExt: 1\n", "ListenDrops"),
            None
        );
        assert_eq!(
            tcp_ext("TcpExt: ListenDrops\nTcpExt: -1\n", "ListenDrops"),
            None
        );
    }
}
