//! What HAProxy 2.6 and 3.5 make of these lines was read off `parse_line()` and tried with both.

use proptest::prelude::*;

use super::*;

fn variable(name: &[u8]) -> Value {
    match name {
        b"A" => Value::Set(b"one".to_vec()),
        b"LIST" => Value::Set(b"one two  three".to_vec()),
        b"EMPTY" => Value::Set(Vec::new()),
        b"SECRET" => Value::Unknown,
        _ => Value::Unset,
    }
}

fn texts(line: &str) -> Vec<String> {
    let words = split(line.as_bytes(), &variable).unwrap();
    let text = |word: Word| String::from_utf8(word.text).unwrap();
    words.into_iter().map(text).collect()
}

#[test]
fn blanks_separate_and_comments_end() {
    assert_eq!(texts("  bind\t *:80  # public"), ["bind", "*:80"]);
    assert_eq!(texts("bind *:80#glued"), ["bind", "*:80"]);
    assert_eq!(texts("bind \\#1 '#2' \"#3\""), ["bind", "#1", "#2", "#3"]);
    assert_eq!(texts(" # all"), [""; 0]);
    assert_eq!(texts("a\rb"), ["a"]);
    assert_eq!(texts("a \r b\x0bc"), ["a", "b", "c"]);
    assert_eq!(texts("a b\r\n"), ["a", "b"]);
}

#[test]
fn quotes_and_escapes() {
    assert_eq!(texts(r#"a\ b "c d" 'e f'g"#), ["a b", "c d", "e fg"]);
    assert_eq!(texts(r#"'a"b' "a'b" "a\"b""#), ["a\"b", "a'b", "a\"b"]);
    assert_eq!(texts(r"\t\n\r\x41\\ \q"), ["\t\n\rA\\", "\\q"]);
    assert_eq!(texts(r"'\t\' x"), ["\\t\\", "x"]);
    assert_eq!(texts("a '' b"), ["a", "", "b"]);
}

#[test]
fn variables_count_in_weak_quotes_alone() {
    assert_eq!(
        texts(r#""$A" "${A}b" $A '$A' "\$A""#),
        ["one", "oneb", "$A", "$A", "$A"]
    );
    assert_eq!(
        texts(r#""${NOPE-x y}" "${A-x}" "${EMPTY-x}" "$NOPE""#),
        ["x y", "one", "", ""]
    );
    assert_eq!(
        texts(r#"a "${LIST[*]}" b"#),
        ["a", "one", "two", "three", "b"]
    );
    let words = split(br#"a "x${LIST[*]}y" "$SECRET" "${NOPE[*]}""#, &variable).unwrap();
    let shown: Vec<_> = words
        .iter()
        .map(|it| (&it.text[..], it.known, it.shared))
        .collect();
    assert_eq!(
        shown,
        [
            (&b"a"[..], true, false),
            (b"xone", true, true),
            (b"two", true, true),
            (b"threey", true, true),
            (b"", false, false),
            (b"", false, false),
        ]
    );
    assert!(words[1].span == words[3].span);
}

#[test]
fn what_haproxy_refuses_is_refused() {
    let refused = |line: &str| split(line.as_bytes(), &variable).unwrap_err();
    assert_eq!(refused("a 'b"), Malformed::Quote);
    assert_eq!(refused("a \"b'"), Malformed::Quote);
    assert_eq!(refused("\"${A\""), Malformed::Brace);
    assert_eq!(refused("\"${A-x"), Malformed::Brace);
    assert_eq!(refused("\"$1\""), Malformed::Name);
    assert_eq!(refused("\\xg1"), Malformed::Hex);
    assert_eq!(refused("\"${A[1]}\""), Malformed::Expansion);
    assert_eq!(refused(&"a ".repeat(65)), Malformed::TooMany);
    assert_eq!(texts(&"a ".repeat(64)).len(), 64);
}

proptest! {
    #[test]
    fn a_quoted_word_is_read_back(text in prop::collection::vec(1u8.., 0..40)) {
        let words = split(&quote(&text), &|_| Value::Unknown).unwrap();
        prop_assert_eq!(words.len(), 1);
        prop_assert_eq!(&words[0].text, &text);
    }

    #[test]
    fn spans_cover_what_is_read(line in "[a-c$#{}*\\[\\] \t\r'\"\\\\-]{0,40}") {
        if let Ok(words) = split(line.as_bytes(), &variable) {
            let mut end = 0;
            for word in words.iter().filter(|word| !word.shared) {
                prop_assert!(word.span.start >= end);
                end = word.span.end;
                let again = split(&line.as_bytes()[word.span.clone()], &variable).unwrap();
                prop_assert_eq!(&again[0].text, &word.text);
            }
        }
    }
}
