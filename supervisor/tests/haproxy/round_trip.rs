//! What isn't touched is the same, byte for byte.

use proptest::prelude::*;

use crate::world::{Given, copy, file};

/// A line that needs no change, of any bytes that HAProxy's tokenizer takes.
fn harmless() -> impl Strategy<Value = Vec<u8>> {
    let garbage = prop::collection::vec(
        any::<u8>().prop_filter("ends or quotes", |byte| !b"\0\n\"'\\".contains(byte)),
        0..30,
    );
    let keyword = prop::sample::select(vec![
        "log",
        "#",
        "\t# x ",
        "  timeout client",
        "option",
        "acl a path_beg",
        "",
    ]);
    (keyword, garbage).prop_map(|(keyword, garbage)| {
        // The blank keeps the keyword a word of its own; one that is empty is a comment's.
        let keyword = if keyword.is_empty() { "#" } else { keyword };
        [keyword.as_bytes(), b" ", &garbage].concat()
    })
}

proptest! {
    #[test]
    fn an_untouched_configuration_is_the_same(
        lines in prop::collection::vec(harmless(), 0..20),
        ending in prop::sample::select(vec!["\n", "\r\n"]),
        last in any::<bool>(),
    ) {
        let mut text = b"backend b\n".to_vec();
        for line in &lines {
            text.extend_from_slice(line);
            text.extend_from_slice(ending.as_bytes());
        }
        if last {
            text.extend_from_slice(b" log global");
        }
        let plan = Given::default().plan(vec![file("haproxy.cfg", &text)]).unwrap();
        prop_assert_eq!(&copy(&plan).files[0].1, &text);
    }

    #[test]
    fn around_a_bind_all_is_the_same(
        before in prop::collection::vec(harmless(), 0..9),
        after in prop::collection::vec(harmless(), 0..9),
        blanks in "[ \t]{1,4}",
    ) {
        let around = |bind: &str| {
            let mut text = b"frontend f\n".to_vec();
            let lines = before.iter().map(Vec::as_slice);
            let lines = lines.chain([bind.as_bytes()]).chain(after.iter().map(Vec::as_slice));
            for line in lines {
                text.extend_from_slice(line);
                text.push(b'\n');
            }
            text
        };
        let text = around(&format!("{blanks}bind{blanks}*:80{blanks}ssl{blanks}# c"));
        let plan = Given::default().plan(vec![file("haproxy.cfg", &text)]).unwrap();
        let wanted = around(&format!("{blanks}bind{blanks}fd@4 accept-proxy{blanks}ssl{blanks}# c"));
        prop_assert_eq!(&copy(&plan).files[0].1, &wanted);
    }
}
