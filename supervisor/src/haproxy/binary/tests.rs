use std::fs::{self, Permissions};

use super::*;
use crate::child::tests::spawner;

#[test]
fn every_form_of_the_version_is_read() {
    for (text, release, version) in [
        ("HA-Proxy version 1.8.0 2017/11/26\n", "1.8.0", (1, 8, 0)),
        (
            "HA-Proxy version 2.0.0 2019/06/16 - https://haproxy.org/\n",
            "2.0.0",
            (2, 0, 0),
        ),
        (
            "HAProxy version 2.4.22-f8e3218 2023/02/14 - x\nStatus: y\n",
            "2.4.22-f8e3218",
            (2, 4, 22),
        ),
        (
            "HAProxy version 2.4.18-0ubuntu1.3 2022/10/20\n",
            "2.4.18-0ubuntu1.3",
            (2, 4, 18),
        ),
        (
            "HAProxy version 2.6.12-1+deb12u1 2023/12/16\n",
            "2.6.12-1+deb12u1",
            (2, 6, 12),
        ),
        (
            "[NOTICE] something first\nHAProxy version 3.5-dev5-1234 2026/08/21\n",
            "3.5-dev5-1234",
            (3, 5, 0),
        ),
    ] {
        assert_eq!(
            parse(text),
            Some((release.into(), version, Vec::new())),
            "{text}"
        );
    }
}

#[test]
fn what_says_no_version_is_no_haproxy() {
    for text in [
        "",
        "nginx version: nginx/1.22.1\n",
        "HAProxy version \n",
        "HAProxy version unknown\n",
        "HAProxy version 3\n",
    ] {
        assert_eq!(parse(text), None, "{text}");
    }
}

#[test]
fn features_are_those_with_a_plus() {
    let text = "HAProxy version 3.5-dev5 2026/08/21\nBuild options : \n  OPTIONS = USE_LUA=1\n\n\
                Feature list : -51DEGREES +ACCEPT4 +LUA -QUIC +OPENSSL\n\
                Detected feature list : +HAVE_WORKING_TCP_MD5SIG\n\nDefault settings :\n  +NOT\n";
    let (.., features) = parse(text).expect("read");
    assert_eq!(
        features,
        ["ACCEPT4", "LUA", "OPENSSL", "HAVE_WORKING_TCP_MD5SIG"]
    );
}

fn script(path: &Path, text: &str) {
    fs::write(path, format!("#!/bin/sh\n{text}\n")).expect("written");
    fs::set_permissions(path, Permissions::from_mode(0o755)).expect("executable");
}

#[tokio::test]
async fn the_real_one_is_found_in_path_and_known_afterwards() {
    let (spawner, _right) = spawner().await;
    let binaries = Binaries::default();
    let binary = binaries.of("haproxy", &spawner).await.expect("haproxy");
    assert!(binary.program.is_absolute(), "{binary:?}");
    assert!(binary.version >= (2, 0, 0), "{binary:?}");
    assert!(binary.has("EPOLL") && !binary.has("KQUEUE"), "{binary:?}");
    assert!(binary.idle_close, "{binary:?}");

    let mark = |it: &mut (Stamp, Binary)| it.1.release = "remembered".into();
    binaries.lock().values_mut().for_each(mark);
    let again = binaries.clone().of("haproxy", &spawner).await;
    assert_eq!(again.expect("haproxy").release, "remembered");
}

#[tokio::test]
async fn a_new_program_in_an_old_place_is_asked_anew() {
    let (spawner, _right) = spawner().await;
    let directory = tempfile::tempdir().expect("a directory");
    let place = directory.path().join("haproxy");
    let word = place.to_str().expect("a plain path");
    let binaries = Binaries::default();
    let real = binaries.of("haproxy", &spawner).await.expect("haproxy");
    fs::copy(&real.program, &place).expect("copied");
    let copy = binaries.of(word, &spawner).await.expect("the copy");
    assert_eq!(copy.release, real.release);
    assert_eq!(binaries.lock().len(), 2);

    // A script is never remembered: what it starts may change while it doesn't.
    for release in ["2.7.1", "2.7.2"] {
        fs::remove_file(&place).expect("removed");
        script(&place, "cat \"$0.says\"");
        let says = directory.path().join("haproxy.says");
        for patch in ["", "-b"] {
            fs::write(&says, format!("HAProxy version {release}{patch} 2023\n")).expect("written");
            let script = binaries.of(word, &spawner).await.expect("the script");
            assert_eq!(script.release, format!("{release}{patch}"));
        }
    }
}

#[tokio::test]
async fn an_older_one_is_asked_whether_it_knows_the_option() {
    let (spawner, _right) = spawner().await;
    let directory = tempfile::tempdir().expect("a directory");
    let place = directory.path().join("old");
    let word = place.to_str().expect("a plain path");
    for (otherwise, knows) in [("exec haproxy \"$@\"", true), ("exit 1", false)] {
        let version = "[ \"$1\" = -vv ] && echo 'HAProxy version 2.4.0 2021' && exit";
        script(&place, &format!("{version}\n{otherwise}"));
        let old = Binaries::default().of(word, &spawner).await.expect("old");
        assert_eq!(
            (old.version, old.idle_close),
            ((2, 4, 0), knows),
            "{otherwise}"
        );
    }
    // The answer is the option's: a real one refuses the same text with another word in its place.
    script(
        &place,
        "[ \"$1\" = -vv ] && echo 'HAProxy version 2.4.0 2021' && exit\nsed s/idle-close-on-response/no-such-option/ \"$3\" >\"$0.cfg\"; exec haproxy -c -f \"$0.cfg\"",
    );
    let old = Binaries::default().of(word, &spawner).await.expect("old");
    assert!(!old.idle_close);
}

#[tokio::test]
async fn what_is_no_haproxy_is_one_sentence_that_says_what_to_do() {
    let (spawner, _right) = spawner().await;
    let binaries = Binaries::default();
    for (program, what, remedy) in [
        (
            "no-such-haproxy",
            "`no-such-haproxy` wasn't found in PATH",
            "install it, or give its full path",
        ),
        (
            "/nowhere/haproxy",
            "`/nowhere/haproxy` doesn't exist",
            "correct the path",
        ),
        (
            "true",
            "doesn't say what an HAProxy says (exited with status 0)",
            "--haproxy-binary",
        ),
        ("false", "(exited with status 1)", "--haproxy-binary"),
    ] {
        let error = binaries.of(program, &spawner).await.expect_err(program);
        assert!(error.contains(what) && error.contains(remedy), "{error}");
        assert!(!error.contains('\n'), "{error}");
    }
    assert!(binaries.lock().is_empty());
}
