//! As much of HTTP/1.1 as the tests need on the asking side.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// A whole answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// An answer's head.
#[derive(Debug)]
pub(crate) struct Head {
    /// Where the body begins.
    pub(crate) length: usize,
    pub(crate) status: u16,
    /// `None`: the body ends with the connection.
    pub(crate) content_length: Option<u64>,
    pub(crate) close: bool,
}

impl Head {
    /// `None` when it isn't complete yet.
    pub(crate) fn parse(bytes: &[u8]) -> io::Result<Option<Head>> {
        let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else {
            return Ok(None);
        };
        let text = std::str::from_utf8(&bytes[..end])
            .map_err(|_| io::Error::from(ErrorKind::InvalidData))?;
        let mut lines = text.split("\r\n");
        let status = lines.next().and_then(|line| {
            line.strip_prefix("HTTP/1.")?
                .split(' ')
                .nth(1)?
                .parse()
                .ok()
        });
        let mut head = Head {
            length: end + 4,
            status: status.ok_or(ErrorKind::InvalidData)?,
            content_length: None,
            close: false,
        };
        for line in lines {
            let (name, value) = line.split_once(':').ok_or(ErrorKind::InvalidData)?;
            match name.to_ascii_lowercase().as_str() {
                "content-length" => head.content_length = value.trim().parse().ok(),
                "connection" => head.close = value.trim().eq_ignore_ascii_case("close"),
                _ => {}
            }
        }
        Ok(Some(head))
    }
}

/// One GET over TCP, on a connection of its own, with 10 s for each step.
pub(crate) fn get(address: SocketAddr, path: &str) -> io::Result<Answer> {
    let stream = TcpStream::connect_timeout(&address, Duration::from_secs(10))?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    exchange(stream, "GET", path)
}

/// One request over a unix socket.
pub(crate) fn unix(socket: &Path, method: &str, path: &str) -> io::Result<Answer> {
    let stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    exchange(stream, method, path)
}

fn exchange(mut stream: impl Read + Write, method: &str, path: &str) -> io::Result<Answer> {
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: gate\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
    );
    stream.write_all(request.as_bytes())?;
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes)?;
    let head = Head::parse(&bytes)?.ok_or(ErrorKind::UnexpectedEof)?;
    let body = bytes.split_off(head.length);
    match head.content_length {
        Some(length) if length != body.len() as u64 => Err(ErrorKind::UnexpectedEof.into()),
        _ => Ok(Answer {
            status: head.status,
            body,
        }),
    }
}
