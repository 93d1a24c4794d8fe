//! How much later an answer comes through a relay that has nothing else to do.

use std::io;
use std::time::Duration;

use super::{Bench, rounds, rows};
use crate::backend::{self, Behaviour};
use crate::load::paced;
use crate::namespace;
use crate::relays::{Program, Site};
use crate::report::{Row, Sample};
use crate::statistics::percentile;
use crate::workloads::Workload;

/// 500 requests each.
const SLICE: Duration = Duration::from_secs(1);

pub(super) fn run(bench: &Bench, workload: &Workload) -> io::Result<Vec<Row>> {
    let sites = bench.sites(workload)?;
    namespace::within(&[], &[], || {
        let places: Vec<_> = sites.iter().map(Site::backend).collect();
        let _backend = backend::start(Behaviour::Answer, &places, &bench.cores.load()?)?;
        let (sites, _relays) = bench.start(sites)?;
        let mut rows = rounds(bench.rounds, rows(&sites), workload, |number| {
            let latencies = paced::latencies(sites[number].targets()[0], bench.slice(SLICE))?;
            let at = |share| Some(percentile(&latencies, share));
            Ok(vec![None, at(0.5), at(0.99)])
        });
        let direct = sites
            .iter()
            .position(|site| site.relay.program == Program::Direct);
        let base = direct.map_or(Vec::new(), |direct| rows[direct].samples.clone());
        for row in &mut rows {
            add_difference(&mut row.samples, &base);
        }
        Ok(rows)
    })
}

/// The first measure: the median, less the direct one's median of the same round.
fn add_difference(samples: &mut [Sample], base: &[Sample]) {
    for (sample, base) in samples.iter_mut().zip(base) {
        let both = sample[1].zip(base[1]);
        sample[0] = both
            .map(|(median, direct)| median - direct)
            .filter(|added| *added != 0.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_added_is_added_to_the_same_round() {
        let base = vec![vec![None, Some(40.0)], vec![None, Some(50.0)]];
        let mut samples = vec![vec![None, Some(100.0)], vec![None, None]];
        add_difference(&mut samples, &base);
        assert_eq!(samples[0][0], Some(60.0));
        assert_eq!(samples[1][0], None);
        let mut direct = base.clone();
        add_difference(&mut direct, &base);
        assert_eq!(direct[0][0], None, "a direct connection adds nothing");
    }
}
