//! Answers as versions write them, and others.

use super::*;

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
