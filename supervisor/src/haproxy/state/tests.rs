//! Without a process: what HAProxy said once, and what it might say.

use proptest::prelude::*;

use super::*;

const HEADER: &str = "1\n# be_id be_name srv_id srv_name srv_addr srv_op_state srv_admin_state srv_uweight srv_iweight \
                      srv_time_since_last_change srv_check_status srv_check_result srv_check_health srv_check_state \
                      srv_agent_state bk_f_forced_id srv_f_forced_id srv_fqdn srv_port srvrecord srv_use_ssl srv_check_port \
                      srv_check_addr srv_agent_addr srv_agent_port\n";

/// One line of an answer.
#[derive(Debug, Clone)]
struct Row {
    name: &'static str,
    address: &'static str,
    port: u16,
    operation: u32,
    admin: u32,
    weight: u32,
    configured: u32,
    found: u32,
    health: u32,
    check: u32,
    agent: u32,
    fqdn: &'static str,
    record: &'static str,
    check_port: u16,
    check_address: &'static str,
}

/// A server that nothing has happened to, with a check.
const PLAIN: Row = Row {
    name: "s",
    address: "127.0.0.1",
    port: 1443,
    operation: 2,
    admin: 0,
    weight: 10,
    configured: 10,
    found: 0,
    health: 2,
    check: 6,
    agent: 0,
    fqdn: "-",
    record: "-",
    check_port: 0,
    check_address: "-",
};

fn answer(rows: &[Row]) -> String {
    let line = |row: &Row| {
        format!(
            "2 web 1 {} {} {} {} {} {} 17 6 {} {} {} {} 0 0 {} {} {} 0 {} {} - 0\n",
            row.name,
            row.address,
            row.operation,
            row.admin,
            row.weight,
            row.configured,
            row.found,
            row.health,
            row.check,
            row.agent,
            row.fqdn,
            row.port,
            row.record,
            row.check_port,
            row.check_address
        )
    };
    HEADER.to_owned() + &rows.iter().map(line).collect::<String>() + "\n"
}

/// The orders for one server, and the warnings.
fn between(old: Row, new: Row) -> (String, Vec<String>) {
    let Carried { orders, warnings } = carry(&answer(&[old]), &answer(&[new]));
    (joined(&orders), warnings)
}

fn orders(old: Row, new: Row) -> String {
    let (orders, warnings) = between(old.clone(), new.clone());
    assert_eq!(warnings, [""; 0], "{old:?} {new:?}");
    orders
}

const FRESH: [&str; 2] = [
    include_str!("recorded/fresh-2.6.txt"),
    include_str!("recorded/fresh-3.5.txt"),
];
const SET: [&str; 2] = [
    include_str!("recorded/set-2.6.txt"),
    include_str!("recorded/set-3.5.txt"),
];

#[test]
fn what_was_recorded_is_carried_over_between_all_versions() {
    for (old, new) in [(0, 0), (1, 1), (0, 1), (1, 0)] {
        let carried = carry(SET[old], FRESH[new]);
        let said: Vec<String> = carried.orders.iter().map(Order::to_string).collect();
        let mut expected = vec![
            "set server web/plain state maint",
            "set server web/drain state drain",
            "set server web/weighed weight 3",
            "set server web/checked health down",
            "disable health web/unwatched",
            "disable agent web/unwatched",
            "set server web/downed health down",
            "set server web/enabled state ready",
            "set server web/drained.too state drain",
            "set server web/named weight 0",
            "set server templates/t_2 weight 0",
        ];
        if old == 1 {
            // 3.5 doesn't tell that it is down by `track`. The order will be refused.
            expected.insert(4, "set server web/tracking health down");
        }
        assert_eq!(said, expected, "{old} {new}");
        assert_eq!(
            carried.warnings,
            [
                "`set server web/readdressed state maint` isn't carried over: \
                 it was at 127.0.0.1:2455 and is at 127.0.0.1:1455",
                "`set server web/unix state maint` isn't carried over: \
                 it was at an address that HAProxy doesn't tell and is at an address that HAProxy doesn't tell",
            ],
            "{old} {new}"
        );
    }
}

#[test]
fn what_was_recorded_needs_nothing_when_it_is_the_same() {
    for same in FRESH.into_iter().chain(SET) {
        let carried = carry(same, same);
        assert_eq!(carried.orders, []);
    }
    assert_eq!(carry(FRESH[0], FRESH[1]), Carried::default());
    assert_eq!(carry(FRESH[1], FRESH[0]), Carried::default());
}

#[test]
fn another_place_gets_nothing_and_an_operator_hears_why() {
    let old = Row {
        admin: 1,
        operation: 0,
        weight: 3,
        ..PLAIN
    };
    let moved = [
        (
            Row {
                port: 2443,
                ..PLAIN
            },
            "127.0.0.1:1443 and is at 127.0.0.1:2443",
        ),
        (
            Row {
                address: "::1",
                ..PLAIN
            },
            "127.0.0.1:1443 and is at [::1]:1443",
        ),
        (
            Row {
                address: "-",
                ..PLAIN
            },
            "and is at an address that HAProxy doesn't tell",
        ),
        (
            Row {
                fqdn: "app.example",
                ..PLAIN
            },
            "and is at 127.0.0.1:1443 (app.example)",
        ),
        (
            Row {
                record: "_http._tcp.app.example",
                ..PLAIN
            },
            "isn't carried over",
        ),
    ];
    for (new, why) in moved {
        let (orders, warnings) = between(old.clone(), new);
        assert_eq!(orders, "");
        assert_eq!(warnings.len(), 2, "maintenance and weight: {warnings:?}");
        assert!(
            warnings[0].starts_with("`set server web/s state maint` ") && warnings[0].contains(why),
            "{warnings:?}"
        );
    }
    // A check's word is nothing that an operator would miss.
    let down = Row {
        operation: 0,
        health: 0,
        ..PLAIN
    };
    assert_eq!(
        orders(
            down,
            Row {
                port: 2443,
                ..PLAIN
            }
        ),
        ""
    );
}

#[test]
fn the_administrative_state_is_an_operators_unless_the_configuration_has_changed() {
    let (none, maint, disabled, enabled, drain) = (0, 1, 5, 4, 8);
    let drained_though_disabled = 12;
    for (old, new, expected) in [
        (maint, none, "set server web/s state maint"),
        (drain, none, "set server web/s state drain"),
        (none, none, ""),
        (maint, maint, ""),
        (drain, drain, ""),
        // Its own agent has said so since it started.
        (none, maint, ""),
        (none, drain, ""),
        (maint, drain, "set server web/s state maint"),
        (drain, maint, "set server web/s state drain"),
        // `disabled` in both.
        (disabled, disabled, ""),
        (enabled, disabled, "set server web/s state ready"),
        (
            drained_though_disabled,
            disabled,
            "set server web/s state drain",
        ),
        // `disabled` was written, or deleted.
        (maint, disabled, ""),
        (none, disabled, ""),
        (drain, disabled, ""),
        (disabled, none, ""),
        (enabled, none, ""),
        (drained_though_disabled, none, ""),
        // Inherited from a tracked server (2, 16), without an address (32), with a name that was set (64): not its own.
        (2, none, ""),
        (16, none, ""),
        (32, none, ""),
        (64, none, ""),
        (3, none, "set server web/s state maint"),
        (0x40 | drain | 2, none, "set server web/s state drain"),
    ] {
        let operation = if old & 0x23 == 0 { 2 } else { 0 };
        let old_row = Row {
            admin: old,
            operation,
            ..PLAIN
        };
        let new_row = Row {
            admin: new,
            operation: if new & 0x23 == 0 { 2 } else { 0 },
            ..PLAIN
        };
        assert_eq!(orders(old_row, new_row), expected, "{old:#x} {new:#x}");
    }
}

#[test]
fn a_weight_is_carried_over_while_the_configured_one_stays() {
    for (old, new, expected) in [
        ((10, 10), (10, 10), ""),
        ((3, 10), (10, 10), "set server web/s weight 3"),
        ((0, 10), (10, 10), "set server web/s weight 0"),
        ((256, 1), (1, 1), "set server web/s weight 256"),
        ((3, 10), (20, 20), ""),
        ((10, 10), (20, 20), ""),
        ((3, 10), (3, 10), ""),
        // Its own agent has set one since it started.
        ((3, 10), (5, 10), ""),
    ] {
        let row = |(weight, configured)| Row {
            weight,
            configured,
            ..PLAIN
        };
        assert_eq!(orders(row(old), row(new)), expected, "{old:?} {new:?}");
    }
}

#[test]
fn a_check_that_was_switched_off_stays_off() {
    let both = Row { agent: 22, ..PLAIN };
    let off = Row {
        check: 2,
        agent: 18,
        ..PLAIN
    };
    assert_eq!(
        orders(off.clone(), both.clone()),
        "disable health web/s;disable agent web/s"
    );
    assert_eq!(
        orders(off.clone(), Row { check: 0, ..PLAIN }),
        "",
        "there is none any more"
    );
    assert_eq!(
        orders(Row { check: 0, ..PLAIN }, both),
        "",
        "there was none"
    );
    assert_eq!(orders(off.clone(), off), "");
}

#[test]
fn down_is_carried_over_where_something_undoes_it() {
    let down = Row {
        operation: 0,
        health: 0,
        ..PLAIN
    };
    let unchecked = Row { check: 0, ..PLAIN };
    let by_operator = Row {
        check: 0,
        ..down.clone()
    };
    let cases = [
        (
            "checked",
            down.clone(),
            PLAIN,
            "set server web/s health down",
        ),
        (
            "on its way up",
            Row {
                health: 1,
                found: 3,
                ..down.clone()
            },
            PLAIN,
            "",
        ),
        (
            "the new one has checked",
            down.clone(),
            Row { found: 3, ..PLAIN },
            "",
        ),
        (
            "the new one has failed once",
            down.clone(),
            Row { found: 2, ..PLAIN },
            "set server web/s health down",
        ),
        (
            "404",
            Row {
                operation: 3,
                ..PLAIN
            },
            PLAIN,
            "set server web/s health stopping",
        ),
        ("already", down.clone(), down.clone(), ""),
        ("up", PLAIN, down.clone(), ""),
        ("no check any more", down.clone(), unchecked.clone(), ""),
        (
            "check off by now",
            down.clone(),
            Row { check: 2, ..PLAIN },
            "",
        ),
        (
            "another port checked",
            down.clone(),
            Row {
                check_port: 81,
                ..PLAIN
            },
            "",
        ),
        (
            "another address checked",
            down.clone(),
            Row {
                check_address: "::1",
                ..PLAIN
            },
            "",
        ),
        (
            "by an operator",
            by_operator.clone(),
            unchecked.clone(),
            "set server web/s health down",
        ),
        ("checked now", by_operator.clone(), PLAIN, ""),
        (
            "by track",
            Row {
                health: 2,
                ..by_operator.clone()
            },
            unchecked.clone(),
            "",
        ),
        (
            "by an agent",
            Row {
                agent: 22,
                ..by_operator.clone()
            },
            Row {
                agent: 22,
                ..unchecked.clone()
            },
            "",
        ),
        (
            "in maintenance by track",
            Row {
                admin: 2,
                ..down.clone()
            },
            PLAIN,
            "",
        ),
        (
            "without an address",
            Row {
                admin: 32,
                ..down.clone()
            },
            PLAIN,
            "",
        ),
        (
            "the new one is in maintenance",
            down.clone(),
            Row { admin: 2, ..PLAIN },
            "",
        ),
        (
            "drained and down",
            Row {
                admin: 8,
                ..down.clone()
            },
            PLAIN,
            "set server web/s state drain;set server web/s health down",
        ),
        (
            "in maintenance",
            Row {
                admin: 1,
                ..down.clone()
            },
            PLAIN,
            "set server web/s state maint",
        ),
        (
            "enabled and down",
            Row {
                admin: 4,
                ..down.clone()
            },
            Row {
                admin: 5,
                operation: 2,
                check: 14,
                ..down
            },
            "set server web/s state ready;set server web/s health down",
        ),
    ];
    for (what, old, new, expected) in cases {
        assert_eq!(orders(old, new), expected, "{what}");
    }
}

#[test]
fn columns_go_by_their_names_and_old_versions_have_fewer() {
    let header = "# srv_name be_name srv_port srv_addr srv_iweight srv_uweight srv_admin_state srv_op_state srv_fqdn \
                  srv_agent_state srv_check_state srv_check_health srv_check_result later";
    let old = format!("1\n{header}\ns web 80 10.0.0.1 1 1 1 0 - 0 0 0 0 x\n\n");
    let new = answer(&[Row {
        address: "10.0.0.1",
        port: 80,
        weight: 1,
        configured: 1,
        check: 0,
        ..PLAIN
    }]);
    assert_eq!(
        joined(&carry(&old, &new).orders),
        "set server web/s state maint"
    );
}

#[test]
fn an_unknown_format_carries_nothing_and_is_told() {
    let good = answer(&[PLAIN]);
    let maint = answer(&[Row { admin: 1, ..PLAIN }]);
    for (old, new, which, format) in [
        (maint.replacen('1', "2", 1), good.clone(), "old", "`2`"),
        (maint.clone(), good.replacen('1', "2", 1), "new", "`2`"),
        (
            "Permission denied\n\n".to_owned(),
            good,
            "old",
            "`Permission denied`",
        ),
        (maint, String::new(), "new", "``"),
    ] {
        let carried = carry(&old, &new);
        assert_eq!(carried.orders, []);
        assert_eq!(
            carried.warnings,
            [format!(
                "no server's state is carried over: that of the {which} HAProxy can't be read, its format is {format} and not 1"
            )]
        );
    }
}

#[test]
fn lines_that_are_not_understood_are_left_out_and_counted() {
    let strange = Row {
        name: "a;b",
        ..PLAIN
    };
    let maint = Row { admin: 1, ..PLAIN };
    let old = answer(&[strange.clone(), maint]) + "half a line\n";
    let carried = carry(&old, &answer(&[strange, PLAIN]));
    assert_eq!(joined(&carried.orders), "set server web/s state maint");
    assert_eq!(carried.warnings.len(), 2, "{carried:?}");
    assert!(
        carried.warnings[0].starts_with("2 servers of the old HAProxy are left out"),
        "{carried:?}"
    );
    assert!(
        carried.warnings[1].starts_with("1 servers of the new HAProxy are left out"),
        "{carried:?}"
    );
}

#[test]
fn a_name_that_is_there_twice_reaches_nobody() {
    let maint = Row { admin: 1, ..PLAIN };
    let (one, two) = (answer(&[PLAIN]), answer(&[PLAIN, PLAIN]));
    let both = answer(&[maint.clone(), maint.clone()]);
    assert_eq!(carry(&both, &one), Carried::default());
    let carried = carry(&answer(&[maint]), &two);
    assert_eq!(carried.orders, []);
    assert!(
        carried.warnings[0].ends_with("there are two of its name"),
        "{carried:?}"
    );
}

#[test]
fn a_server_that_is_gone_or_new_gets_nothing() {
    let maint = Row { admin: 1, ..PLAIN };
    let other = Row {
        name: "other",
        ..PLAIN
    };
    assert_eq!(
        carry(&answer(&[maint]), &answer(&[other])),
        Carried::default()
    );
}

#[test]
fn orders_are_cut_into_lines_that_fit() {
    let order = |number: usize| Order {
        server: format!("backend/server_{number}"),
        setting: Setting::Maint,
    };
    let orders: Vec<Order> = (0..1000).map(order).collect();
    let cut: Vec<&[Order]> = lines(&orders).collect();
    assert_eq!(cut.concat(), orders);
    assert!(cut.len() > 20 && cut.len() < 40, "{}", cut.len());
    assert!(
        cut.iter()
            .all(|line| !line.is_empty() && joined(line).len() < LINE)
    );
    let long = [Order {
        server: "b/".to_owned() + &"s".repeat(2 * LINE),
        setting: Setting::Drain,
    }];
    assert_eq!(lines(&long).collect::<Vec<_>>(), [&long]);
    assert_eq!(lines(&[]).count(), 0);
}

#[test]
fn each_order_has_its_reply() {
    assert_eq!(replies("\n"), [""]);
    assert_eq!(
        replies("\nNo such server.\n\n\n"),
        ["", "No such server.", ""]
    );
    assert_eq!(replies("one\ntwo\n\n"), ["one two"]);
    assert_eq!(replies(""), [""; 0]);
}

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
