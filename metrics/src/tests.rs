//! The crate as its users see it: handles in, text out.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;

use super::*;

/// Every sample of a scrape by its series, as `name{labels}`. Panics at a line that isn't of the format, at a series that is there
/// twice, and at one whose family has no HELP and TYPE before it.
fn scrape(metrics: &Metrics) -> BTreeMap<String, f64> {
    let mut samples = BTreeMap::new();
    let (mut helped, mut typed) = (String::new(), String::new());
    let text = metrics.encode();
    assert!(text.ends_with('\n'));
    for line in text.lines() {
        if let Some(comment) = line.strip_prefix("# ") {
            let mut words = comment.splitn(3, ' ');
            let (keyword, name) = (words.next().unwrap(), words.next().unwrap());
            assert!(!words.next().unwrap().is_empty(), "{line}");
            match keyword {
                "HELP" => helped = name.to_owned(),
                "TYPE" => typed = name.to_owned(),
                _ => panic!("{line}"),
            }
            continue;
        }
        let (series, value) = line.rsplit_once(' ').expect(line);
        let name = series.split('{').next().unwrap();
        assert!(name.starts_with(&typed) && helped == typed, "{line}");
        let labels = &series[name.len()..];
        assert!(
            labels.is_empty() || labels.starts_with('{') && labels.ends_with("\"}"),
            "{line}"
        );
        let value = value.parse().expect(line);
        assert_eq!(samples.insert(series.to_owned(), value), None, "{line}");
    }
    samples
}

fn series(name: &str, labels: &[(&str, &str)]) -> String {
    let labels: Vec<_> = labels
        .iter()
        .map(|(label, value)| format!("{label}=\"{value}\""))
        .collect();
    format!("syngate_{name}{{{}}}", labels.join(","))
}

fn words<L: Label>() -> impl Iterator<Item = &'static str> {
    L::ALL.iter().map(|label| label.as_str())
}

#[test]
fn a_process_has_its_series_before_any_service() {
    let samples = scrape(&Metrics::new("1.2.3", 1));
    assert_eq!(samples["syngate_build_info{version=\"1.2.3\"}"], 1.0);
    assert!(samples["process_open_fds"] > 0.0);
    assert!(samples.contains_key("process_cpu_seconds_total"));
    assert!(samples.contains_key("syngate_kernel_listen_drops_total"));
    assert!(samples.contains_key("syngate_kernel_listen_overflows_total"));
}

#[test]
fn every_series_is_there_from_the_start_at_zero() {
    let metrics = Metrics::new("1", 2);
    let service = metrics.service("web");
    service.listener("l0");
    let samples = scrape(&metrics);

    let web = ("service", "web");
    let l0 = ("listener", "l0");
    let mut expected = Vec::new();
    for name in [
        "redispatches_total",
        "generation_active",
        "last_reload_success_timestamp_seconds",
        "last_reload_successful",
        "forced_closes_total",
        "backend_restarts_total",
        "held",
        "pending_wait_seconds_sum",
        "pending_wait_seconds_count",
        "connect_duration_seconds_sum",
        "connect_duration_seconds_count",
    ] {
        expected.push(series(name, &[web]));
    }
    for name in [
        "pending_wait_seconds_bucket",
        "connect_duration_seconds_bucket",
    ] {
        expected.push(series(name, &[web, ("le", "0.001")]));
        expected.push(series(name, &[web, ("le", "60")]));
        expected.push(series(name, &[web, ("le", "+Inf")]));
    }
    for name in [
        "connections_accepted_total",
        "listener_backlog",
        "listener_drops_total",
    ] {
        expected.push(series(name, &[web, l0]));
    }
    let mut each = |name, label, words: &mut dyn Iterator<Item = &'static str>| {
        for word in words {
            expected.push(series(name, &[web, (label, word)]));
        }
    };
    each(
        "pending_outcomes_total",
        "outcome",
        &mut words::<PendingOutcome>(),
    );
    each(
        "dispatch_attempts_total",
        "result",
        &mut words::<DispatchResult>(),
    );
    each("generations", "state", &mut words::<GenerationState>());
    each("reloads_total", "outcome", &mut words::<ReloadOutcome>());
    each(
        "reload_duration_seconds_count",
        "phase",
        &mut words::<ReloadPhase>(),
    );
    let mut each = |name, label, words: &mut dyn Iterator<Item = &'static str>| {
        for word in words {
            expected.push(series(name, &[web, l0, (label, word)]));
        }
    };
    each("connections_open", "state", &mut words::<ConnectionState>());
    each(
        "connections_closed_total",
        "reason",
        &mut words::<CloseReason>(),
    );
    each(
        "relayed_bytes_total",
        "direction",
        &mut ["in", "out"].into_iter(),
    );
    each("accept_errors_total", "errno", &mut words::<AcceptErrno>());

    for series in &expected {
        assert_eq!(samples.get(series), Some(&0.0), "{series}");
    }
    let ours = samples
        .keys()
        .filter(|series| {
            series.contains("service=")
                && !series.contains("_bucket")
                && !series.contains("reload_duration")
        })
        .count();
    let checked = expected
        .iter()
        .filter(|series| !series.contains("_bucket") && !series.contains("reload_duration"))
        .count();
    assert_eq!(ours, checked, "a series that this test doesn't name");
}

#[test]
fn a_scrape_sums_the_workers() {
    let metrics = Metrics::new("1", 2);
    let service = metrics.service("web");
    let listener = service.listener("l0");
    for worker in [0, 1] {
        let block = listener.block(worker);
        block.accepted.add(5);
        block.open[ConnectionState::Relaying].inc();
        block.closed[CloseReason::Eof].add(2);
        block.bytes_out.add(1 << 40);
        block.accept_errors[AcceptErrno::Mfile].inc();
        let block = service.block(worker);
        block.pending_wait.observe(Duration::from_millis(3));
        block.pending_wait.observe(Duration::from_secs(100));
        block.pending_outcomes[PendingOutcome::Dispatched].inc();
        block.forced_closes.inc();
    }
    listener.block(0).open[ConnectionState::Relaying].dec();
    listener.block(0).open[ConnectionState::Relaying].dec();
    listener.set_backlog(7);
    listener.add_drops(3);

    let samples = scrape(&metrics);
    let of_listener = |name, label, word| {
        samples[&series(
            name,
            &[("service", "web"), ("listener", "l0"), (label, word)],
        )]
    };
    assert_eq!(of_listener("connections_open", "state", "relaying"), 0.0);
    assert_eq!(
        of_listener("connections_closed_total", "reason", "eof"),
        4.0
    );
    assert_eq!(
        of_listener("relayed_bytes_total", "direction", "out"),
        2f64.powi(41)
    );
    assert_eq!(of_listener("relayed_bytes_total", "direction", "in"), 0.0);
    assert_eq!(of_listener("accept_errors_total", "errno", "EMFILE"), 2.0);
    let wait = |le| {
        samples[&series(
            "pending_wait_seconds_bucket",
            &[("service", "web"), ("le", le)],
        )]
    };
    assert_eq!(
        [wait("0.0025"), wait("0.005"), wait("60"), wait("+Inf")],
        [0.0, 2.0, 2.0, 4.0]
    );
    let web = [("service", "web")];
    assert_eq!(samples[&series("pending_wait_seconds_count", &web)], 4.0);
    assert_eq!(samples[&series("pending_wait_seconds_sum", &web)], 200.006);
    let l0 = [("service", "web"), ("listener", "l0")];
    assert_eq!(samples[&series("listener_backlog", &l0)], 7.0);
    assert_eq!(samples[&series("listener_drops_total", &l0)], 3.0);

    assert_eq!(service.accepted(), 10);
    assert_eq!(service.closed(CloseReason::Eof), 4);
    assert_eq!(service.open(ConnectionState::Relaying), 0);
    assert_eq!(service.pending_outcomes(PendingOutcome::Dispatched), 2);
    assert_eq!(service.forced_closes(), 2);
}

#[test]
fn a_removed_listeners_connections_are_counted_on() {
    let metrics = Metrics::new("1", 1);
    let service = metrics.service("web");
    let listener = service.listener("l0");
    listener.block(0).accepted.add(2);
    listener.block(0).open[ConnectionState::Relaying].inc();
    listener.set_backlog(9);
    listener.add_drops(4);
    service.remove_listener("l0");
    listener.block(0).open[ConnectionState::Relaying].dec();
    listener.block(0).closed[CloseReason::Eof].inc();

    let check = || {
        let samples = scrape(&metrics);
        let removed = [("service", "web"), ("listener", "removed")];
        assert_eq!(
            samples[&series("connections_accepted_total", &removed)],
            2.0
        );
        assert_eq!(samples[&series("listener_drops_total", &removed)], 4.0);
        assert!(!samples.contains_key(&series("listener_backlog", &removed)));
        assert!(!samples.keys().any(|series| series.contains("l0")));
        assert_eq!(service.closed(CloseReason::Eof), 1);
        assert_eq!(service.open(ConnectionState::Relaying), 0);
    };
    check(); // its last connection still holds it
    drop(listener);
    check();
}

#[test]
fn a_listener_may_be_called_removed() {
    let metrics = Metrics::new("1", 1);
    let service = metrics.service("web");
    service.listener("a").block(0).accepted.inc();
    service.remove_listener("a");
    service.listener("removed").block(0).accepted.inc();
    let removed = [("service", "web"), ("listener", "removed")];
    assert_eq!(
        scrape(&metrics)[&series("connections_accepted_total", &removed)],
        2.0
    );
}

#[test]
fn handles_of_one_name_are_one() {
    let metrics = Metrics::new("1", 1);
    let service = metrics.service("web");
    assert!(Arc::ptr_eq(&service, &metrics.service("web")));
    assert!(Arc::ptr_eq(&service.listener("a"), &service.listener("a")));
    service.listener("a").block(0).accepted.inc();
    metrics.service("api");

    metrics.remove_service("web");
    let samples = scrape(&metrics);
    assert!(!samples.keys().any(|series| series.contains("\"web\"")));
    assert!(samples.contains_key(&series("held", &[("service", "api")])));
    assert_eq!(metrics.service("web").accepted(), 0);
    assert_eq!(service.accepted(), 1, "who holds it may count on");
}

#[test]
fn what_the_supervisor_reports_is_shown() {
    let metrics = Metrics::new("1", 1);
    let service = metrics.service("web");
    let web = ("service", "web");
    let get = |name: &str| scrape(&metrics)[&series(name, &[web])];

    service.reload_finished(ReloadOutcome::Success);
    assert_eq!(get("last_reload_successful"), 1.0);
    let since = get("last_reload_success_timestamp_seconds");
    assert!(since > 1.7e9, "{since}");
    service.reload_finished(ReloadOutcome::Superseded);
    service.reload_finished(ReloadOutcome::Retried);
    assert_eq!(get("last_reload_successful"), 1.0);
    service.reload_finished(ReloadOutcome::NotReady);
    assert_eq!(get("last_reload_successful"), 0.0);
    service.reload_finished(ReloadOutcome::Retried);
    assert_eq!(get("last_reload_successful"), 0.0);
    assert_eq!(get("last_reload_success_timestamp_seconds"), since);

    service.set_active(7);
    service.set_held(true);
    service.backend_restarted();
    service.set_generations(GenerationState::Draining, 2);
    service.set_generation_connections(&[(6, 10), (7, 0)]);
    service.observe_phase(ReloadPhase::Drain, Duration::from_secs(400));
    let samples = scrape(&metrics);
    let of = |name, label, word| samples.get(&series(name, &[web, (label, word)])).copied();
    assert_eq!(get("generation_active"), 7.0);
    assert_eq!(get("held"), 1.0);
    assert_eq!(get("backend_restarts_total"), 1.0);
    assert_eq!(of("reloads_total", "outcome", "retried"), Some(2.0));
    assert_eq!(of("generations", "state", "draining"), Some(2.0));
    assert_eq!(of("generation_connections", "generation", "6"), Some(10.0));
    assert_eq!(
        of("reload_duration_seconds_sum", "phase", "drain"),
        Some(400.0)
    );
    let drains = |le| {
        samples[&series(
            "reload_duration_seconds_bucket",
            &[web, ("phase", "drain"), ("le", le)],
        )]
    };
    assert_eq!([drains("300"), drains("900")], [0.0, 1.0]);

    service.set_generation_connections(&[(7, 1)]);
    let samples = scrape(&metrics);
    let of = |generation| {
        samples
            .get(&series(
                "generation_connections",
                &[web, ("generation", generation)],
            ))
            .copied()
    };
    assert_eq!([of("6"), of("7")], [None, Some(1.0)]);
}

#[derive(Clone, Debug)]
enum Step {
    /// Make the listener of this name, or get it, and keep the handle.
    Add(u8),
    Remove(u8),
    /// One worker counts through one of the handles.
    Count(prop::sample::Index, usize, u64),
    /// A connection ends: its handle goes.
    Drop(prop::sample::Index),
    Scrape,
}

fn step() -> impl Strategy<Value = Step> {
    let index = any::<prop::sample::Index>;
    prop_oneof![
        2 => (0..3u8).prop_map(Step::Add),
        2 => (0..3u8).prop_map(Step::Remove),
        4 => (index(), 0..2usize, 1..100u64).prop_map(|(i, worker, n)| Step::Count(i, worker, n)),
        1 => index().prop_map(Step::Drop),
        1 => Just(Step::Scrape),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever comes and goes: the service's sum is what was counted, `removed` never falls, and a listener's own series falls only
    /// by starting anew after a removal.
    #[test]
    fn no_counter_falls(steps in prop::collection::vec(step(), 1..60)) {
        let metrics = Metrics::new("1", 2);
        let service = metrics.service("web");
        let mut handles: Vec<Arc<Listener>> = Vec::new();
        let mut counted = 0;
        let mut before = BTreeMap::<String, u64>::new();
        for step in steps {
            match step {
                Step::Add(name) => handles.push(service.listener(&format!("l{name}"))),
                Step::Remove(name) => {
                    service.remove_listener(&format!("l{name}"));
                    before.remove(&format!("l{name}"));
                }
                Step::Count(index, worker, n) => if !handles.is_empty() {
                    let block = index.get(&handles).block(worker);
                    block.accepted.add(n);
                    block.closed[CloseReason::Unaccepted].add(n);
                    counted += n;
                },
                Step::Drop(index) => if !handles.is_empty() {
                    handles.swap_remove(index.index(handles.len()));
                },
                Step::Scrape => { scrape(&metrics); }
            }
            prop_assert_eq!(service.accepted(), counted);
            prop_assert_eq!(service.closed(CloseReason::Unaccepted), counted);
            let now: BTreeMap<String, u64> = service
                .listener_totals()
                .into_iter()
                .map(|(name, sum)| (name, sum.block.accepted.get()))
                .collect();
            for (name, value) in &before {
                prop_assert!(now.get(name).is_some_and(|now| now >= value), "{} fell", name);
            }
            before = now;
        }
    }
}
