//! What there is to say of each family, without a value: for the reference.

use prometheus::proto::MetricType;

use crate::Metrics;
use crate::families::FAMILIES;

/// A family of series.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// Its name, with the prefix.
    pub name: String,
    /// `counter`, `gauge` or `histogram`.
    pub kind: &'static str,
    /// The names of its labels.
    pub labels: Vec<String>,
    /// What a scrape says of it.
    pub help: String,
}

/// The families of a service, in the order of a connection's life and then of a reload's.
pub fn of_a_service() -> Vec<Description> {
    FAMILIES
        .iter()
        .map(|family| Description {
            name: family.name.to_owned(),
            kind: kind(family.kind),
            labels: [&["service"], family.labels]
                .concat()
                .into_iter()
                .map(str::to_owned)
                .collect(),
            help: family.help.to_owned(),
        })
        .collect()
}

/// The families of the process and of its network namespace, by name.
pub fn of_the_process() -> Vec<Description> {
    // Without a service there are no others.
    let families = Metrics::new("", 1).registry.gather();
    families
        .iter()
        .map(|family| Description {
            name: family.name().to_owned(),
            kind: kind(family.get_field_type()),
            labels: family
                .get_metric()
                .iter()
                .take(1)
                .flat_map(prometheus::proto::Metric::get_label)
                .map(|label| label.name().to_owned())
                .collect(),
            help: family.help().to_owned(),
        })
        .collect()
}

fn kind(kind: MetricType) -> &'static str {
    match kind {
        MetricType::COUNTER => "counter",
        MetricType::HISTOGRAM => "histogram",
        // There are no summaries.
        MetricType::GAUGE | MetricType::SUMMARY | MetricType::UNTYPED => "gauge",
    }
}
