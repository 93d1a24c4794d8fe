//! Real unix sockets, and a loop that answers as the supervisor would.

use std::path::PathBuf;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::sync::oneshot;

use super::*;
use crate::handle::{Ask, Asked, pair};
use crate::protocol::{
    Connection, Done, GenerationState, GenerationStatus, Request, ServiceStatus, Status,
};

/// A server at a socket of its own. Verbs are handed to the test, the rest is answered.
struct Fixture {
    path: PathBuf,
    verbs: mpsc::UnboundedReceiver<(Request, mpsc::Sender<Line>)>,
    steps: broadcast::Sender<Step>,
    stop: oneshot::Sender<()>,
    served: tokio::task::JoinHandle<io::Result<()>>,
    _directory: tempfile::TempDir,
}

impl Fixture {
    fn start() -> Self {
        Self::start_for([nix::unistd::geteuid(), Uid::from_raw(0)])
    }

    fn start_for(admitted: [Uid; 2]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("control.sock");
        let mut socket = bind(&path).unwrap();
        socket.admitted = admitted;
        let (
            handle,
            Asked {
                mut asks,
                steps,
                ready,
                ..
            },
        ) = pair();
        let (verb, verbs) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            ready
                .send(Err("web has no active generation".into()))
                .unwrap();
            while let Some(ask) = asks.recv().await {
                match ask {
                    Ask::Request { request, lines } => drop(verb.send((request, lines))),
                    Ask::Status(answer) => drop(answer.send(status())),
                    Ask::Connections {
                        service,
                        generation,
                        answer,
                    } => {
                        assert_eq!(service, "web");
                        let one = (generation == Some(7)).then(|| connection(generation));
                        drop(answer.send(Ok(one.into_iter().collect())));
                    }
                    Ask::Shutdown => {}
                }
            }
        });
        let (stop, stopped) = oneshot::channel();
        let served = tokio::spawn(serve(socket, handle, async {
            let _ = stopped.await;
        }));
        Self {
            path,
            verbs,
            steps,
            stop,
            served,
            _directory: directory,
        }
    }

    async fn connect(&self) -> UnixStream {
        UnixStream::connect(&self.path).await.unwrap()
    }

    async fn send(&self, line: &str) -> BufReader<UnixStream> {
        let mut stream = self.connect().await;
        stream
            .write_all(format!("{line} HTTP/1.1\r\nhost: x\r\n\r\n").as_bytes())
            .await
            .unwrap();
        BufReader::new(stream)
    }

    /// The status and the body (with its chunks' frames).
    async fn ask(&self, line: &str) -> (u16, String) {
        read(self.send(line).await).await
    }
}

async fn read(mut client: impl AsyncReadExt + Unpin) -> (u16, String) {
    let mut answer = String::new();
    client.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer
        .split_once("\r\n\r\n")
        .unwrap_or_else(|| panic!("{answer:?}"));
    (
        head.split(' ').nth(1).unwrap().parse().unwrap(),
        body.to_owned(),
    )
}

/// Reads on to the line that holds `text`.
async fn read_to(client: &mut BufReader<UnixStream>, text: &str) -> String {
    loop {
        let mut line = String::new();
        assert_ne!(
            client.read_line(&mut line).await.unwrap(),
            0,
            "ended before {text:?}"
        );
        if line.contains(text) {
            return line;
        }
    }
}

fn status() -> Status {
    let service = ServiceStatus {
        name: "web".into(),
        listeners: vec![],
        active: None,
        held: false,
        pending: 0,
        running: None,
        generations: [7, 8].map(generation).into(),
        last_reload: None,
        reloads: vec![],
        activated: None,
        last_failure: None,
    };
    Status {
        at: 1.0,
        version: "0.0.0".into(),
        pid: 1,
        uptime_seconds: 1.0,
        metrics: None,
        ready: false,
        not_ready: None,
        connections: 0,
        max_connections: 1,
        pending: 0,
        pending_max: 1,
        services: vec![service],
    }
}

fn generation(number: u64) -> GenerationStatus {
    GenerationStatus {
        number,
        state: GenerationState::Draining,
        pid: None,
        age_seconds: 1.0,
        connections: 0,
        endpoints: vec![],
        waits_for: None,
        refused: None,
    }
}

fn connection(generation: Option<u64>) -> Connection {
    Connection {
        listener: "l0".into(),
        peer: "127.0.0.1:9".into(),
        generation,
        state: "relaying".into(),
        age_seconds: 1.0,
        bytes_in: 1,
        bytes_out: 2,
    }
}

fn step(word: &str) -> Step {
    Step {
        at: 0.0,
        elapsed_seconds: 0.1,
        service: "web".into(),
        generation: Some(1),
        step: word.into(),
        message: "m".into(),
    }
}

fn done() -> Line {
    Line::Done(Done {
        exit: 0,
        message: "generation 2 is active".into(),
    })
}

#[tokio::test]
async fn answers_questions() {
    let fixture = Fixture::start();
    let (code, body) = fixture.ask("GET /v1/status").await;
    assert_eq!(code, 200);
    assert_eq!(serde_json::from_str::<Status>(&body).unwrap(), status());

    let (code, body) = fixture
        .ask("GET /v1/services/-/connections?generation=7")
        .await;
    assert_eq!(code, 200);
    assert_eq!(
        serde_json::from_str::<Connection>(&body).unwrap(),
        connection(Some(7))
    );

    let (code, body) = fixture.ask("GET /v1/ready").await;
    assert_eq!(code, 503);
    assert_eq!(
        body,
        "{\"not_ready\":\"web has no active generation\",\"ready\":false}\n"
    );
}

#[tokio::test]
async fn a_generation_without_connections_isnt_one_that_isnt_there() {
    let fixture = Fixture::start();
    let (code, body) = fixture
        .ask("GET /v1/services/-/connections?generation=8")
        .await;
    assert_eq!((code, &*body), (200, ""));
    let (code, body) = fixture
        .ask("GET /v1/services/-/connections?generation=9")
        .await;
    assert_eq!(code, 410);
    assert_eq!(
        body,
        "{\"error\":\"there is no generation 9: there are 7, 8\"}\n"
    );
}

#[tokio::test]
async fn names_the_services_that_there_are() {
    let fixture = Fixture::start();
    let (code, body) = fixture.ask("POST /v1/services/other/reload").await;
    assert_eq!(code, 404);
    assert_eq!(
        body,
        "{\"error\":\"there is no service \\\"other\\\": there is web\"}\n"
    );
}

#[tokio::test]
async fn a_verb_streams_each_line_as_it_comes() {
    let mut fixture = Fixture::start();
    let mut client = fixture
        .send("POST /v1/services/-/reload?wait=drained")
        .await;
    let (request, lines) = fixture.verbs.recv().await.unwrap();
    assert_eq!(
        request,
        Request::Reload {
            service: Some("web".into()),
            drained: true
        }
    );
    lines.send(Line::Step(step("check"))).await.unwrap();
    // It is here before the next one is sent.
    let line = read_to(&mut client, "check").await;
    assert_eq!(
        serde_json::from_str::<Line>(&line).unwrap(),
        Line::Step(step("check"))
    );
    // Whoever answered may still hold its end.
    lines.send(done()).await.unwrap();
    read_to(&mut client, "\"type\":\"done\",\"exit\":0").await;
    let mut rest = Vec::new();
    client.read_to_end(&mut rest).await.unwrap();
    assert!(
        rest.ends_with(b"0\r\n\r\n"),
        "the last chunk says that nothing was cut"
    );
}

#[tokio::test]
async fn a_reload_of_all_names_no_service() {
    let mut fixture = Fixture::start();
    let _client = fixture.send("POST /v1/reload").await;
    let (request, _) = fixture.verbs.recv().await.unwrap();
    assert_eq!(
        request,
        Request::Reload {
            service: None,
            drained: false
        }
    );
}

#[tokio::test]
async fn a_client_that_goes_away_is_noticed_while_nothing_is_written() {
    let mut fixture = Fixture::start();
    let mut client = fixture.send("POST /v1/services/web/hold?owned=1").await;
    let (_, lines) = fixture.verbs.recv().await.unwrap();
    lines.send(Line::Step(step("held"))).await.unwrap();
    read_to(&mut client, "held").await;
    assert!(!lines.is_closed());
    drop(client);
    lines.closed().await;

    // Before its first line too; and the server goes on.
    let client = fixture.send("POST /v1/services/web/hold?owned=1").await;
    let (_, lines) = fixture.verbs.recv().await.unwrap();
    drop(client);
    lines.closed().await;
    assert_eq!(fixture.ask("GET /v1/status").await.0, 200);
}

#[tokio::test]
async fn events_reach_every_reader() {
    let fixture = Fixture::start();
    let mut readers = [
        fixture.send("GET /v1/events").await,
        fixture.send("GET /v1/events").await,
    ];
    for reader in &mut readers {
        read_to(reader, "\r\n").await; // it is subscribed once its head is there
    }
    fixture.steps.send(step("ready")).unwrap();
    for reader in &mut readers {
        read_to(reader, "\"type\":\"step\"").await;
    }
}

#[tokio::test]
async fn a_slow_reader_of_events_loses_some_and_is_told() {
    let fixture = Fixture::start();
    let mut reader = fixture.send("GET /v1/events").await;
    read_to(&mut reader, "\r\n").await;
    let mut long = step("draining");
    long.message = "x".repeat(10_000);
    for _ in 0..10_000 {
        fixture.steps.send(long.clone()).unwrap();
        tokio::task::yield_now().await;
    }
    let line = read_to(&mut reader, "\"type\":\"lost\"").await;
    assert!(matches!(
        serde_json::from_str(&line).unwrap(),
        Line::Lost { lines: 1.. }
    ));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_never_reads_is_cut() {
    let mut fixture = Fixture::start();
    let _client = fixture.send("POST /v1/services/web/reload").await;
    let (_, lines) = fixture.verbs.recv().await.unwrap();
    let mut long = step("draining");
    long.message = "x".repeat(100_000);
    // Ends because the server drops its side: nobody reads.
    while lines.send(Line::Step(long.clone())).await.is_ok() {}
}

#[tokio::test(start_paused = true)]
async fn a_client_that_sends_nothing_is_cut() {
    let fixture = Fixture::start();
    let start = tokio::time::Instant::now();
    let mut client = fixture.connect().await;
    assert_eq!(client.read(&mut [0]).await.unwrap(), 0);
    assert!(start.elapsed() >= HEAD_TIMEOUT && start.elapsed() < 2 * HEAD_TIMEOUT);
}

#[tokio::test]
async fn garbage_is_refused() {
    let fixture = Fixture::start();
    let mut client = fixture.connect().await;
    client
        .write_all(b"\x16\x03\x01\x02\x00 nonsense\r\n\r\n")
        .await
        .unwrap();
    assert_eq!(read(client).await.0, 400);

    // The server stops reading a line of 1 MB at 64 KiB; what is still being written then fails.
    let (mut reader, mut writer) = fixture.connect().await.into_split();
    let writing = tokio::spawn(async move {
        let _ = writer.write_all(b"GET /").await;
        writer.write_all(&vec![b'a'; 1 << 20]).await
    });
    let mut answer = Vec::new();
    let _ = reader.read_to_end(&mut answer).await;
    assert!(writing.await.unwrap().is_err());
    assert!(
        answer.is_empty() || answer.starts_with(b"HTTP/1.1 4"),
        "{answer:?}"
    );

    let mut client = fixture.connect().await;
    client
        .write_all(b"POST /v1/reload HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nhello")
        .await
        .unwrap();
    assert_eq!(read(client).await.0, 413);
    assert_eq!(fixture.ask("GET /v1/status").await.0, 200);
}

#[tokio::test]
async fn another_user_is_closed_unread() {
    let fixture = Fixture::start_for([Uid::from_raw(54_321); 2]);
    let mut client = fixture.connect().await;
    assert_eq!(client.read(&mut [0]).await.unwrap(), 0);
}

#[tokio::test]
async fn one_client_too_many_is_told() {
    let fixture = Fixture::start();
    let mut readers = Vec::new();
    for _ in 0..CLIENTS {
        let mut reader = fixture.send("GET /v1/events").await;
        read_to(&mut reader, "\r\n").await;
        readers.push(reader);
    }
    let (code, body) = read(fixture.connect().await).await;
    assert_eq!(code, 503);
    assert!(body.contains("64 clients"), "{body}");
}

#[tokio::test]
async fn the_end_removes_the_socket_and_lets_last_lines_out() {
    let mut fixture = Fixture::start();
    let mut client = fixture.send("POST /v1/services/web/reload").await;
    let (_, lines) = fixture.verbs.recv().await.unwrap();
    let mut reader = fixture.send("GET /v1/events").await;
    read_to(&mut reader, "\r\n").await; // it is subscribed once its head is there
    fixture.steps.send(step("drained")).unwrap();
    fixture.stop.send(()).unwrap();
    read_to(&mut reader, "drained").await;
    let mut rest = String::new();
    reader.read_to_string(&mut rest).await.unwrap();
    assert!(rest.ends_with("0\r\n\r\n"), "it isn't cut: {rest:?}");
    lines.send(done()).await.unwrap();
    drop(lines);
    read_to(&mut client, "\"type\":\"done\"").await;
    fixture.served.await.unwrap().unwrap();
    assert!(!fixture.path.exists());
}
