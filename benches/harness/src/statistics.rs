//! Order statistics. Values that aren't numbers (a direct connection has no relay's CPU time) are left out.

/// Where a set of values lies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    /// The lower quartile.
    pub(crate) low: f64,
    pub(crate) median: f64,
    /// The upper quartile.
    pub(crate) high: f64,
}

impl Spread {
    /// Of the values that are numbers; `None` where there are none.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Option<Spread> {
        let mut values: Vec<f64> = values
            .into_iter()
            .filter(|value| value.is_finite())
            .collect();
        values.sort_by(f64::total_cmp);
        (!values.is_empty()).then(|| Spread {
            low: quantile(&values, 0.25),
            median: quantile(&values, 0.5),
            high: quantile(&values, 0.75),
        })
    }
}

/// Interpolated between the two nearest of `sorted`, which has at least one value.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let place = share * (sorted.len() - 1) as f64;
    let (below, above) = (place.floor() as usize, place.ceil() as usize);
    sorted[below] + (sorted[above] - sorted[below]) * place.fract()
}

/// The smallest of `sorted` that `share` of the values don't exceed (nearest rank); not a number where there are none.
pub(crate) fn percentile(sorted: &[f64], share: f64) -> f64 {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted
        .get(rank.saturating_sub(1))
        .copied()
        .unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_odd_and_an_even_number_of_values() {
        let odd = Spread::of([3.0, 1.0, 2.0]).expect("values");
        assert_eq!((odd.low, odd.median, odd.high), (1.5, 2.0, 2.5));
        let even = Spread::of([4.0, 1.0, 2.0, 3.0]).expect("values");
        assert_eq!((even.low, even.median, even.high), (1.75, 2.5, 3.25));
    }

    #[test]
    fn what_is_no_number_counts_for_nothing() {
        assert_eq!(Spread::of([f64::NAN, f64::INFINITY]), None);
        let one = Spread::of([f64::NAN, 7.0]).expect("a value");
        assert_eq!((one.low, one.median, one.high), (7.0, 7.0, 7.0));
    }

    #[test]
    fn percentiles_are_values_that_were_measured() {
        let values: Vec<f64> = (1..=1000).map(f64::from).collect();
        assert_eq!(percentile(&values, 0.5), 500.0);
        assert_eq!(percentile(&values, 0.999), 999.0);
        assert_eq!(percentile(&values, 1.0), 1000.0);
        assert_eq!(percentile(&[5.0], 0.0), 5.0);
        assert!(percentile(&[], 0.5).is_nan());
    }
}
