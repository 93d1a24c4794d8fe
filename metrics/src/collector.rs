//! Sums the workers' blocks at a scrape, and hands the registry what [`FAMILIES`] names.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use prometheus::core::{Collector, Desc};
use prometheus::proto::{self, LabelPair, Metric, MetricFamily, MetricType};

use crate::block::{Histogram, ServiceBlock};
use crate::families::FAMILIES;
use crate::listener::ListenerTotals;
use crate::{Service, Services, lock};

/// One family of series, of which each service has its own.
pub(crate) struct Family {
    pub(crate) name: &'static str,
    pub(crate) help: &'static str,
    pub(crate) kind: MetricType,
    /// The labels beside `service`.
    pub(crate) labels: &'static [&'static str],
    /// Tells a service's samples to the second argument.
    pub(crate) read: fn(&Snapshot, &mut Samples),
}

/// A service as one scrape sees it: its blocks are summed once, not once a family.
pub(crate) struct Snapshot {
    name: String,
    pub(crate) listeners: BTreeMap<String, ListenerTotals>,
    pub(crate) block: ServiceBlock,
    /// What the supervisor reports is read in place.
    pub(crate) reported: Arc<Service>,
}

/// Collects one family's samples.
pub(crate) struct Samples<'a> {
    family: &'a Family,
    service: &'a str,
    metrics: Vec<Metric>,
}

impl Samples<'_> {
    pub(crate) fn each_listener(
        &mut self,
        service: &Snapshot,
        read: impl Fn(&ListenerTotals) -> u64,
    ) {
        for (listener, sum) in &service.listeners {
            self.value(&[listener], read(sum) as f64);
        }
    }

    pub(crate) fn flag(&mut self, flag: bool) {
        self.value(&[], f64::from(u8::from(flag)));
    }

    pub(crate) fn value(&mut self, labels: &[&str], value: f64) {
        let mut metric = self.labelled(labels);
        if self.family.kind == MetricType::COUNTER {
            let mut counter = proto::Counter::default();
            counter.set_value(value);
            metric.set_counter(counter);
        } else {
            let mut gauge = proto::Gauge::default();
            gauge.set_value(value);
            metric.set_gauge(gauge);
        }
        self.metrics.push(metric);
    }

    pub(crate) fn histogram(&mut self, labels: &[&str], histogram: proto::Histogram) {
        let mut metric = self.labelled(labels);
        metric.set_histogram(histogram);
        self.metrics.push(metric);
    }

    fn labelled(&self, values: &[&str]) -> Metric {
        let names = self.family.labels;
        debug_assert_eq!(names.len(), values.len(), "{}", self.family.name);
        let mut pairs = vec![pair("service", self.service)];
        pairs.extend(
            names
                .iter()
                .zip(values)
                .map(|(name, value)| pair(name, value)),
        );
        Metric::from_label(pairs)
    }
}

fn pair(name: &str, value: &str) -> LabelPair {
    let mut pair = LabelPair::default();
    pair.set_name(name.to_owned());
    pair.set_value(value.to_owned());
    pair
}

/// A block's histogram as Prometheus wants it: each bucket with all that are below it.
pub(crate) fn cumulated(histogram: &Histogram) -> proto::Histogram {
    let mut below = 0;
    let mut counts = histogram.counts().map(|count| {
        below += count;
        below
    });
    let buckets = Histogram::BOUNDS
        .iter()
        .zip(&mut counts)
        .map(|(bound, count)| {
            let mut bucket = proto::Bucket::default();
            bucket.set_upper_bound(*bound);
            bucket.set_cumulative_count(count);
            bucket
        })
        .collect();
    let mut out = proto::Histogram::default();
    out.set_bucket(buckets);
    out.set_sample_count(counts.last().unwrap_or_default());
    out.set_sample_sum(histogram.sum());
    out
}

/// Reads every service at each scrape.
pub(crate) struct ServiceCollector {
    services: Arc<Services>,
    descs: Vec<Desc>,
}

impl ServiceCollector {
    pub(crate) fn new(services: Arc<Services>) -> ServiceCollector {
        let descs = FAMILIES
            .iter()
            .map(|family| {
                desc(
                    family.name,
                    family.help,
                    &[&["service"], family.labels].concat(),
                )
            })
            .collect();
        ServiceCollector { services, descs }
    }

    fn snapshots(&self) -> Vec<Snapshot> {
        lock(&self.services)
            .iter()
            .map(|(name, service)| Snapshot {
                name: name.clone(),
                listeners: service.listener_totals(),
                block: service.totals(),
                reported: Arc::clone(service),
            })
            .collect()
    }
}

impl Collector for ServiceCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.descs.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let snapshots = self.snapshots();
        FAMILIES
            .iter()
            .map(|each| {
                let mut metrics = Vec::new();
                for snapshot in &snapshots {
                    let mut samples = Samples {
                        family: each,
                        service: &snapshot.name,
                        metrics,
                    };
                    (each.read)(snapshot, &mut samples);
                    metrics = samples.metrics;
                }
                family(each.name, each.help, each.kind, metrics)
            })
            .collect()
    }
}

/// What a collector tells the registry about a family; `labels` are those that vary.
pub(crate) fn desc(name: &str, help: &str, labels: &[&str]) -> Desc {
    let labels = labels.iter().map(|label| (*label).to_owned()).collect();
    Desc::new(name.to_owned(), help.to_owned(), labels, HashMap::new())
        .expect("the names in this crate are valid, and no help is empty")
}

/// A family with its samples, as the registry gathers it.
pub(crate) fn family(
    name: &str,
    help: &str,
    kind: MetricType,
    metrics: Vec<Metric>,
) -> MetricFamily {
    let mut family = MetricFamily::default();
    family.set_name(name.to_owned());
    family.set_help(help.to_owned());
    family.set_field_type(kind);
    family.set_metric(metrics);
    family
}
