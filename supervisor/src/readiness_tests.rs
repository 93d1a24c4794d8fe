use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use proptest::prelude::*;

use super::*;
use crate::child::tests::{eventually, runs, spawner};

const LONG: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(300);

fn unix(path: &Path) -> Target {
    Target::Unix(path.into())
}

async fn words(proof: Proof) -> String {
    proof.wait(SHORT).await.expect_err("not ready").to_string()
}

#[test]
fn what_a_user_writes_is_read_and_written_back() {
    let exec = |words: &[&str]| Ready::Exec(words.iter().copied().map(String::from).collect());
    for (text, ready) in [
        ("tcp", Ready::Tcp),
        ("http:/health?full=1", Ready::Http("/health?full=1".into())),
        ("notify", Ready::Notify),
        ("fd:3", Ready::Fd(3)),
        ("exec:curl -f http://x", exec(&["curl", "-f", "http://x"])),
        ("exec:sh -c 'a b'", exec(&["sh", "-c", "a b"])),
    ] {
        assert_eq!(text.parse(), Ok(ready.clone()), "{text}");
        assert_eq!(ready.to_string(), text);
    }
}

#[test]
fn what_is_no_proof_is_refused_with_a_reason() {
    for (text, reason) in [
        ("", "is no proof of readiness"),
        ("tcp:80", "is no proof of readiness"),
        ("https:/x", "use tcp, http:PATH"),
        ("http:health", "start it with `/`"),
        ("http:/a b", "escape spaces"),
        ("fd:2", "from 3 to 255"),
        ("fd:x", "from 3 to 255"),
        ("exec:", "is empty"),
        ("exec:'a", "a quote isn't closed"),
    ] {
        let error = text.parse::<Ready>().expect_err(text).to_string();
        assert!(error.contains(reason), "{text}: {error}");
    }
}

proptest! {
    #[test]
    fn any_command_survives_being_written(words in prop::collection::vec("[^\0]{0,12}", 1..5)) {
        let ready = Ready::Exec(words);
        prop_assert_eq!(ready.to_string().parse(), Ok(ready));
    }

    #[test]
    fn no_text_is_a_panic(text in ".{0,40}") {
        let _ = text.parse::<Ready>();
    }
}

#[tokio::test]
async fn a_connect_is_tried_until_all_endpoints_accept_and_sends_the_hello() {
    let dir = tempfile::tempdir().expect("a directory");
    let (first, second) = (dir.path().join("a"), dir.path().join("b"));
    let proof = |hello: &[u8]| Proof::Connect {
        endpoints: vec![unix(&first), unix(&second)],
        hello: hello.into(),
    };
    let why = words(proof(b"")).await;
    assert!(
        why.starts_with("not ready within 300ms: connect to unix:") && why.contains("/a: "),
        "{why}"
    );
    let listener = UnixListener::bind(&first).expect("bind");
    let why = words(proof(b"")).await;
    assert!(why.contains("/b: "), "{why}");
    let waiting = tokio::spawn(proof(b"hello").wait(LONG));
    let _second = UnixListener::bind(&second).expect("bind");
    waiting.await.expect("no panic").expect("ready");
    let mut texts = Vec::new();
    for _ in 0..2 {
        let mut text = String::new();
        let (mut stream, _) = listener.accept().expect("a probe");
        stream.read_to_string(&mut text).expect("its bytes");
        texts.push(text);
    }
    assert_eq!(texts, ["", "hello"]);
}

/// Answers one request after the other; returns what was asked.
fn serve(
    listener: UnixListener,
    answers: &'static [&'static str],
) -> std::thread::JoinHandle<Vec<String>> {
    let answer = move |reply: &&str| {
        let (mut stream, _) = listener.accept().expect("a request");
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).expect("a byte");
            request.extend(byte);
        }
        stream.write_all(reply.as_bytes()).expect("written");
        String::from_utf8_lossy(&request).into_owned()
    };
    std::thread::spawn(move || answers.iter().map(answer).collect())
}

#[tokio::test]
async fn http_is_asked_until_the_status_is_good() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("http");
    let server = serve(
        UnixListener::bind(&path).expect("bind"),
        &[
            "HTTP/1.1 503 Starting\r\ncontent-length: 0\r\n\r\n",
            "not http at all\r\n\r\n",
            "HTTP/1.1 302 Found\r\ncontent-length: 100\r\n\r\n",
        ],
    );
    let proof = Proof::Http {
        endpoint: unix(&path),
        hello: b"PROXY\r\n".into(),
        path: "/up?x".into(),
    };
    proof.wait(LONG).await.expect("ready");
    let asked = server.join().expect("the server ends");
    assert_eq!(asked.len(), 3);
    assert!(
        asked[0].starts_with("PROXY\r\nGET /up?x HTTP/1.1\r\nhost: localhost\r\n"),
        "{}",
        asked[0]
    );
}

#[tokio::test]
async fn http_that_is_never_good_says_what_was_answered() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("http");
    let bad = "HTTP/1.1 500 Broken\r\ncontent-length: 0\r\n\r\n";
    let listener = UnixListener::bind(&path).expect("bind");
    let server = std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            let mut request = [0; 500];
            let length = stream.read(&mut request).unwrap_or_default();
            if request[..length].starts_with(b"end") {
                return;
            }
            // One whose time is up has gone before it asked, or before it heard.
            let _ = stream.write_all(bad.as_bytes());
        }
    });
    let proof = Proof::Http {
        endpoint: unix(&path),
        hello: Vec::new(),
        path: "/".into(),
    };
    let why = words(proof).await;
    assert!(
        why.contains("GET / from unix:") && why.ends_with("was answered with 500"),
        "{why}"
    );
    let mut last = UnixStream::connect(&path).expect("the last one");
    last.write_all(b"end").expect("written");
    server.join().expect("the server ends");
}

#[tokio::test]
async fn a_newline_counts_and_an_end_without_one_does_not() {
    let (proof, (number, writer)) = Proof::newline(7).expect("a pipe");
    assert_eq!(number, 7);
    let waiting = tokio::spawn(proof.wait(LONG));
    nix::unistd::write(&writer, b"almost").expect("written");
    tokio::task::yield_now().await;
    nix::unistd::write(&writer, b" there\n").expect("written");
    waiting.await.expect("no panic").expect("ready");

    let (proof, (_, writer)) = Proof::newline(7).expect("a pipe");
    nix::unistd::write(&writer, b"no").expect("written");
    drop(writer);
    assert!(words(proof).await.starts_with("descriptor 7 was closed"));

    let (proof, _open) = Proof::newline(7).expect("a pipe");
    assert!(
        words(proof)
            .await
            .ends_with("no newline came through descriptor 7")
    );
}

#[tokio::test]
async fn a_command_is_run_until_it_succeeds() {
    let (spawner, _right) = spawner().await;
    let dir = tempfile::tempdir().expect("a directory");
    let proof = |script: &str| Proof::Exec {
        spawner: spawner.clone(),
        argv: ["sh", "-c", script].map(String::from).into(),
        env: vec![("SYNGATE_DIR".into(), dir.path().into())],
    };
    let counted = "echo >> $SYNGATE_DIR/runs; test $(wc -l < $SYNGATE_DIR/runs) = 3";
    proof(counted).wait(LONG).await.expect("ready");
    let why = words(proof("echo too early; exit 4")).await;
    assert_eq!(
        why,
        "not ready within 300ms: the readiness command exited with status 4 too early"
    );

    let why = words(proof("echo $$ > $SYNGATE_DIR/pid; exec sleep 1000")).await;
    assert!(why.ends_with("the readiness command didn't end"), "{why}");
    let pid = std::fs::read_to_string(dir.path().join("pid")).expect("it ran");
    let pid = pid.trim().parse().expect("a pid");
    eventually("it is killed", || !runs(pid)).await;

    let missing = Proof::Exec {
        spawner: spawner.clone(),
        argv: vec!["no-such-probe".into()],
        env: vec![],
    };
    assert!(
        words(missing)
            .await
            .contains("`no-such-probe` wasn't found in PATH")
    );
}
