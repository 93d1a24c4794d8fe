//! The steps that a gate tells at its control socket.

use std::io::{BufRead, BufReader, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::thread::{self, JoinHandle};

use serde_json::Value;

use super::gate::Gate;

/// One step of a generation, or of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) generation: Option<u64>,
    pub(crate) step: String,
}

/// A reader of `/v1/events`.
pub(crate) struct Events {
    stream: UnixStream,
    reader: JoinHandle<Vec<Step>>,
}

impl Events {
    /// Every step from now on.
    pub(crate) fn follow(gate: &Gate) -> Events {
        let mut stream = UnixStream::connect(gate.control()).expect("the control socket");
        stream
            .write_all(b"GET /v1/events HTTP/1.1\r\nHost: gate\r\n\r\n")
            .expect("write");
        let mut lines = BufReader::new(stream.try_clone().expect("dup")).lines();
        let head = lines.next().expect("a line").expect("a line");
        assert!(head.contains("200"), "{head}");
        // What stands between the objects is HTTP's.
        let objects = lines
            .map_while(Result::ok)
            .filter(|line| line.starts_with('{'));
        let reader = thread::spawn(move || objects.map(|line| parse(&line)).collect());
        Events { stream, reader }
    }

    /// All that came.
    pub(crate) fn stop(self) -> Vec<Step> {
        self.stream.shutdown(Shutdown::Both).expect("shutdown");
        self.reader.join().expect("a whole answer")
    }
}

fn parse(line: &str) -> Step {
    let object: Value = serde_json::from_str(line).expect("JSON");
    assert_eq!(object["type"], "step", "steps are missing: {object}");
    Step {
        generation: object["generation"].as_u64(),
        step: object["step"].as_str().expect("a word").to_owned(),
    }
}
