//! As much of HTTP/2 as the tests need on the asking side: one stream at a time, in clear text and with prior knowledge
//! (RFC 9113), short requests and answers.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Frame types and flags (RFC 9113, section 6).
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// A client's connection.
pub(crate) struct Connection {
    stream: TcpStream,
    next: u32,
    told_to_go: bool,
}

struct Frame {
    kind: u8,
    flags: u8,
    stream: u32,
    payload: Vec<u8>,
}

impl Connection {
    pub(crate) fn open(address: SocketAddr) -> io::Result<Connection> {
        let stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(20)))?;
        stream.set_nodelay(true)?;
        let mut connection = Connection {
            stream,
            next: 1,
            told_to_go: false,
        };
        connection.stream.write_all(PREFACE)?;
        connection.write(SETTINGS, 0, 0, &[])?;
        Ok(connection)
    }

    /// GOAWAY has come.
    pub(crate) fn is_told_to_go(&self) -> bool {
        self.told_to_go
    }

    /// A whole answer's body; its status is 200.
    pub(crate) fn get(&mut self, path: &str) -> io::Result<String> {
        let stream = self.next;
        self.next += 2;
        // HPACK (RFC 7541, appendix A): GET, http, and literals for :path and :authority that nobody remembers.
        let mut block = vec![0x82, 0x86];
        for (name, value) in [(0x04, path), (0x01, "gate")] {
            let length = u8::try_from(value.len()).expect("a short value");
            assert!(length < 127, "a short value");
            block.extend([name, length]);
            block.extend(value.as_bytes());
        }
        self.write(HEADERS, END_STREAM | END_HEADERS, stream, &block)?;
        let mut body = Vec::new();
        loop {
            let frame = self.read()?;
            self.note(&frame)?;
            if frame.stream != stream {
                continue;
            }
            match frame.kind {
                // `:status: 200` is one byte of HPACK's table.
                HEADERS if frame.payload.first() != Some(&0x88) => {
                    return Err(io::Error::other("the status isn't 200"));
                }
                DATA => body.extend(&frame.payload),
                RST_STREAM => return Err(io::Error::other("the stream is reset")),
                _ => {}
            }
            if matches!(frame.kind, HEADERS | DATA) && frame.flags & END_STREAM != 0 {
                return String::from_utf8(body).map_err(io::Error::other);
            }
        }
    }

    /// Takes one frame that has come between two requests.
    pub(crate) fn hear(&mut self) -> io::Result<()> {
        let frame = self.read()?;
        self.note(&frame)
    }

    fn note(&mut self, frame: &Frame) -> io::Result<()> {
        match frame.kind {
            SETTINGS if frame.flags & ACK == 0 => self.write(SETTINGS, ACK, 0, &[])?,
            GOAWAY => self.told_to_go = true,
            _ => {}
        }
        Ok(())
    }

    fn write(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> io::Result<()> {
        let length = u32::try_from(payload.len()).expect("a short frame");
        let mut frame = length.to_be_bytes()[1..].to_vec();
        frame.extend([kind, flags]);
        frame.extend(stream.to_be_bytes());
        frame.extend(payload);
        self.stream.write_all(&frame)
    }

    fn read(&mut self) -> io::Result<Frame> {
        let mut head = [0; 9];
        self.stream.read_exact(&mut head)?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        if length > 1 << 14 {
            return Err(ErrorKind::InvalidData.into());
        }
        let mut payload = vec![0; length as usize];
        self.stream.read_exact(&mut payload)?;
        Ok(Frame {
            kind: head[3],
            flags: head[4],
            stream: u32::from_be_bytes([head[5], head[6], head[7], head[8]]) & (u32::MAX >> 1),
            payload,
        })
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
