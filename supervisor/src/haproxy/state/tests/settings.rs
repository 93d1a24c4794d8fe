//! What is carried over of a server that is the same in both.

use super::*;

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
