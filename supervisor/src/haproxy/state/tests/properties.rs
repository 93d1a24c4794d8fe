//! What holds for whatever two processes say.

use proptest::prelude::*;

use super::*;

/// What HAProxy does with an order.
fn obey(row: &mut Row, order: &Order) {
    match order.setting {
        Setting::Maint => (row.admin, row.operation) = (row.admin & !8 | 1, 0),
        Setting::Drain => (row.admin, row.operation) = (row.admin & !1 | 8, 2),
        Setting::Ready => (row.admin, row.operation) = (row.admin & !9, 2),
        Setting::Weight(weight) => row.weight = weight,
        Setting::HealthOff => row.check &= !4,
        Setting::AgentOff => row.agent &= !4,
        Setting::Stopping => row.operation = 3,
        Setting::Down => (row.operation, row.health) = (0, 0),
    }
}

fn row(name: &'static str) -> impl Strategy<Value = Row> {
    let place = (
        prop::sample::select(vec!["127.0.0.1", "::1", "-"]),
        prop::sample::select(vec![1443_u16, 2443]),
        prop::sample::select(vec!["-", "app.example"]),
        prop::sample::select(vec!["-", "_x._tcp.example"]),
    );
    let state = (
        0..5_u32,
        0..128_u32,
        0..4_u32,
        0..4_u32,
        0..3_u32,
        0..16_u32,
        0..32_u32,
        0..2_u16,
        0..5_u32,
    );
    (place, state).prop_map(move |(place, state)| Row {
        name,
        address: place.0,
        port: place.1,
        fqdn: place.2,
        record: place.3,
        operation: state.0,
        admin: state.1,
        weight: state.2,
        configured: state.3,
        health: state.4,
        check: state.5,
        agent: state.6,
        check_port: state.7,
        found: state.8,
        check_address: "-",
    })
}

fn table() -> impl Strategy<Value = Vec<Row>> {
    let rows = (row("a"), row("b"), row("c"), row("d"));
    (rows, prop::collection::vec(any::<bool>(), 4)).prop_map(|((a, b, c, d), there)| {
        let rows = [a, b, c, d].into_iter().zip(there);
        rows.filter_map(|(row, there)| there.then_some(row))
            .collect()
    })
}

proptest! {
    #[test]
    fn no_order_ever_carries_an_address_or_a_port(old in table(), new in table()) {
        let carried = carry(&answer(&old), &answer(&new));
        for order in &carried.orders {
            let text = order.to_string();
            let words: Vec<&str> = text.split(' ').collect();
            let known = match words[..] {
                ["set", "server", _, "state", "maint" | "drain" | "ready"] => true,
                ["set", "server", _, "weight", weight] => weight.parse::<u32>().is_ok_and(|it| it <= 256),
                ["set", "server", _, "health", "down" | "stopping"] => true,
                ["disable", "health" | "agent", _] => true,
                _ => false,
            };
            prop_assert!(known, "{}", text);
            let name = order.server.strip_prefix("web/").expect("of this backend");
            let one = |rows: &[Row]| rows.iter().find(|row| row.name == name).cloned().expect("in both");
            let (was, is) = (one(&old), one(&new));
            prop_assert_ne!(is.address, "-");
            prop_assert_eq!((was.address, was.port, was.fqdn, was.record), (is.address, is.port, is.fqdn, is.record));
        }
    }

    #[test]
    fn the_same_twice_needs_no_order(both in table()) {
        prop_assert_eq!(carry(&answer(&both), &answer(&both)).orders, []);
    }

    #[test]
    fn what_was_carried_over_is_not_carried_over_again(old in table(), new in table()) {
        let carried = carry(&answer(&old), &answer(&new));
        let mut set = new;
        for order in &carried.orders {
            let row = set.iter_mut().find(|row| order.server == format!("web/{}", row.name));
            obey(row.expect("it is there"), order);
        }
        prop_assert_eq!(carry(&answer(&old), &answer(&set)).orders, []);
    }

    #[test]
    fn no_text_is_a_panic(old in "(1\n# (be_name|srv_name|srv_addr| |srv_port){0,6}\n)?[ -~\n]{0,200}", new in ".{0,100}") {
        carry(&old, &new);
        carry(&new, &old);
    }
}
