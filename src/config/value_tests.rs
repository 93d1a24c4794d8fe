use proptest::prelude::*;

use super::*;

#[test]
fn what_sleep_takes_is_a_limit() {
    for (text, milliseconds) in [
        ("30", 30_000),
        ("5m", 300_000),
        ("0.5", 500),
        ("1h 30m", 5_400_000),
        ("1d", 86_400_000),
        ("0", 1),
    ] {
        let limit = limit(&sleep(text).unwrap()).unwrap();
        assert_eq!(limit.0, Some(Duration::from_millis(milliseconds)), "{text}");
    }
    assert_eq!(sleep("infinity").as_deref(), Ok("off"));
    for text in ["", " ", "5x", "m", "-1", "nan", "5mm", "30s30"] {
        assert!(sleep(text).is_err(), "{text}");
    }
}

#[test]
fn durations_have_a_number_and_a_unit() {
    for (text, milliseconds) in [
        ("500ms", 500),
        ("30s", 30_000),
        ("5m", 300_000),
        ("1h", 3_600_000),
    ] {
        let duration = Duration::from_millis(milliseconds);
        assert_eq!(bound(text), Ok(duration));
        assert_eq!(delay(text), Ok(duration));
        assert_eq!(limit(text), Ok(Limit(Some(duration))));
    }
}

#[test]
fn bad_durations_say_what_is_wrong() {
    for (text, says) in [
        ("30", "`30` has no unit: write 30s or 30ms"),
        (
            "30sec",
            "`sec` in `30sec` isn't a unit: the units are ms, s, m and h",
        ),
        ("1.5s", "`.5s` in `1.5s` isn't a unit"),
        ("1m30s", "`m30s` in `1m30s` isn't a unit"),
        ("", "`` isn't a duration: write a whole number and a unit"),
        ("-1s", "`-1s` isn't a duration"),
        ("on", "`on` isn't a duration"),
        ("99999999999999999999s", "is too long"),
        ("18446744073709551615h", "is too long"),
        ("11000000m", "is too long"),
    ] {
        for error in [
            bound(text).unwrap_err(),
            delay(text).unwrap_err(),
            limit(text).unwrap_err(),
        ] {
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}

#[test]
fn off_and_zero_mean_what_the_option_can_bear() {
    assert!(bound("off").unwrap_err().contains("can't be off"));
    assert!(bound("0s").unwrap_err().contains("no time at all"));
    assert_eq!(delay("off"), Ok(Duration::ZERO));
    assert_eq!(delay("0s"), Ok(Duration::ZERO));
    assert_eq!(limit("off"), Ok(Limit(None)));
    assert!(limit("0s").unwrap_err().contains("write `off`"));
}

proptest! {
    #[test]
    fn any_text_gives_a_duration_or_a_sentence(text in "\\PC{0,12}") {
        let _ = (bound(&text), delay(&text), limit(&text));
    }

    #[test]
    fn milliseconds_are_read_back(milliseconds in 1..300_000_000_000_u64) {
        let text = format!("{milliseconds}ms");
        prop_assert_eq!(bound(&text), Ok(Duration::from_millis(milliseconds)));
    }
}

#[test]
fn signals_are_named_with_or_without_sig() {
    for text in ["SIGUSR1", "USR1", "usr1", "sigusr1"] {
        assert_eq!(signal(text), Ok(Signal::SIGUSR1), "{text}");
    }
    assert!(signal("SIGKILL").unwrap_err().contains("can't act on"));
    assert!(signal("10").unwrap_err().contains("isn't a signal"));
    assert!(signal("").unwrap_err().contains("isn't a signal"));
}

#[test]
fn commands_are_split_as_a_shell_does_without_expansion() {
    assert_eq!(
        command(r#"nginx -t -c "/etc/my nginx.conf" '$HOME' \*"#).unwrap(),
        ["nginx", "-t", "-c", "/etc/my nginx.conf", "$HOME", "*"]
    );
    assert!(command("nginx 'x").unwrap_err().contains("close it"));
    assert!(command("  ").unwrap_err().contains("empty"));
    assert!(command("'' x").unwrap_err().contains("empty"));
}

#[test]
fn metrics_are_an_address_or_off() {
    assert_eq!(metrics("off"), Ok(MetricsAddress(None)));
    let address = "[::1]:9464".parse().unwrap();
    assert_eq!(metrics("[::1]:9464"), Ok(MetricsAddress(Some(address))));
    assert!(
        metrics("9464")
            .unwrap_err()
            .contains("write 127.0.0.1:9464")
    );
}

#[test]
fn numbers_are_in_their_range() {
    let number = number(1..=1024_u16);
    assert_eq!((number("1"), number("1024")), (Ok(1), Ok(1024)));
    for text in ["0", "1025", "-1", "x", "", "1.5", "99999999"] {
        let says = format!("`{text}` isn't a whole number from 1 to 1024: write one");
        assert_eq!(number(text), Err(says));
    }
}

#[test]
fn service_names_are_short_and_plain() {
    for good in ["default", "web-1", "a_b", "8080"] {
        assert!(is_service_name(good), "{good}");
    }
    for bad in ["", "Web", "a/b", "..", "-a", "a.b", "ä", &"a".repeat(64)] {
        assert!(!is_service_name(bad), "{bad}");
    }
}
