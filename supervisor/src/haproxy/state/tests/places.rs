//! Which servers are the same.

use super::*;

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
