//! Against stand-ins that say what a HAProxy would say, or something else. The real one answers in [`crate::haproxy::state`].

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixListener;

use super::*;

const LONG: Duration = Duration::from_secs(20);

/// A socket that takes one line and does this with the connection.
fn serve<F>(
    then: impl FnOnce(String, BufReader<tokio::net::UnixStream>) -> F + Send + 'static,
) -> (Target, tempfile::TempDir)
where
    F: Future<Output = ()> + Send,
{
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("stats");
    let listener = UnixListener::bind(&path).expect("a listener");
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.expect("a connection");
        let mut stream = BufReader::new(stream);
        let mut line = String::new();
        stream.read_line(&mut line).await.expect("a line");
        then(line, stream).await;
    });
    (Target::Unix(path), directory)
}

fn say(answer: &'static str) -> (Target, tempfile::TempDir) {
    serve(move |_, mut stream| async move {
        // In two pieces, as a long answer comes.
        let (head, tail) = answer.as_bytes().split_at(answer.len() / 2);
        stream.write_all(head).await.expect("written");
        tokio::task::yield_now().await;
        stream.write_all(tail).await.expect("written");
    })
}

#[tokio::test]
async fn one_line_is_sent_and_the_whole_answer_is_returned() {
    let (target, _directory) = serve(|line, mut stream| async move {
        let answer = format!("you said {line}and\nmore\n\n");
        stream.write_all(answer.as_bytes()).await.expect("written");
    });
    let answer = ask(&target, "show info;show stat", LONG).await;
    assert_eq!(
        answer.as_deref(),
        Ok("you said show info;show stat\nand\nmore\n\n")
    );
}

#[tokio::test]
async fn consent_is_an_empty_line() {
    let (target, _directory) = say("\n");
    assert_eq!(ask(&target, "set it", LONG).await.as_deref(), Ok("\n"));
}

#[tokio::test]
async fn half_an_answer_is_an_error_that_says_what_was_asked() {
    for half in ["", "1\n# be_id be_name", "1\n# be_id be_name\n"] {
        let (target, _directory) = say(half);
        let error = ask(&target, "show servers state", LONG).await;
        let error = error.expect_err(half);
        assert!(
            error.starts_with("HAProxy was asked `show servers state` at unix:")
                && error.contains("ended in the middle"),
            "{error}"
        );
    }
}

#[tokio::test]
async fn a_long_command_is_told_by_its_beginning() {
    let (target, _directory) = say("");
    let command = "set server web/a state maint;".repeat(40);
    let error = ask(&target, &command, LONG).await.expect_err("no answer");
    assert!(
        error.contains("maint; ...` at") || error.contains(" ...` at"),
        "{error}"
    );
    assert!(error.len() < 400, "{error}");
}

#[tokio::test]
async fn nobody_and_silence_are_errors() {
    let directory = tempfile::tempdir().expect("a directory");
    let nobody = Target::Unix(directory.path().join("nobody"));
    let error = ask(&nobody, "show info", LONG).await.expect_err("nobody");
    assert!(error.contains("No such file"), "{error}");

    let (target, _directory) = serve(|_, stream| async move {
        std::future::pending::<()>().await;
        drop(stream);
    });
    let error = ask(&target, "show info", Duration::from_millis(30)).await;
    let error = error.expect_err("silence");
    assert!(error.ends_with("it didn't answer within 30ms"), "{error}");
}

#[tokio::test]
async fn an_endless_answer_is_given_up() {
    let (target, _directory) = serve(|_, mut stream| async move {
        let piece = vec![b'x'; 1 << 20];
        while stream.write_all(&piece).await.is_ok() {}
    });
    let error = ask(&target, "show info", LONG).await.expect_err("endless");
    assert!(error.contains("longer than 67108864 bytes"), "{error}");
}

#[tokio::test]
async fn only_a_pid_is_a_proof_that_a_process_answers() {
    let (target, _directory) = say("Name: HAProxy\nPid: 4711\n\n");
    answers(&target).await.expect("an answer");
    let (target, _directory) = say("Unknown command\n\n");
    let error = answers(&target).await.expect_err("no pid").to_string();
    assert_eq!(error, "`show info` was answered with `Unknown command`");
}
