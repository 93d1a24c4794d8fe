//! The backend behind every relay: one thread, one epoll set, many listeners.
//!
//! `syngate-bench backend BEHAVIOUR=PLACE...` listens at each place, says `listening` on stdout, and serves until it is killed.
//! A PROXY header before a request is skipped.

use std::io;
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};

use nix::sched::CpuSet;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use socket2::Socket;

use crate::process::Process;
use crate::wire::{
    ANSWER, Moved, Place, REQUEST, accept, discard, listen, proxy_header, read, write,
};

/// What the backend does with a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Behaviour {
    /// Answers each request.
    Answer,
    /// Answers one request and closes.
    AnswerOnce,
    /// Sends without an end.
    Source,
    /// Reads without an end.
    Sink,
}

const WORDS: [(&str, Behaviour); 4] = [
    ("answer", Behaviour::Answer),
    ("answer-once", Behaviour::AnswerOnce),
    ("source", Behaviour::Source),
    ("sink", Behaviour::Sink),
];

/// Starts the backend as a process and returns when it listens at all `places`.
pub(crate) fn start(behaviour: Behaviour, places: &[Place], cores: &CpuSet) -> io::Result<Process> {
    let (word, _) = WORDS
        .iter()
        .find(|(_, other)| *other == behaviour)
        .expect("all have a word");
    let mut command = Command::new(std::env::current_exe()?);
    command
        .arg("backend")
        .args(places.iter().map(|place| format!("{word}={place}")))
        .stdout(Stdio::piped());
    let mut process = Process::start(&mut command, cores)?;
    let mut line = String::new();
    let stdout = process.child.stdout.take().expect("it is piped");
    io::BufRead::read_line(&mut io::BufReader::new(stdout), &mut line)?;
    if line.is_empty() {
        return Err(io::Error::other("the backend has ended before it listened"));
    }
    Ok(process)
}

/// Carries out the verb; returns only with an error.
pub(crate) fn serve(arguments: &[String]) -> io::Result<()> {
    let mut backend = Backend::new()?;
    for argument in arguments {
        let found = argument.split_once('=').and_then(|(word, place)| {
            let (_, behaviour) = WORDS.iter().find(|(other, _)| *other == word)?;
            Some((*behaviour, place.parse().ok()?))
        });
        let (behaviour, place) = found.ok_or_else(|| {
            io::Error::other(format!(
                "`{argument}` isn't BEHAVIOUR=PLACE, as in answer=127.0.0.1:9000"
            ))
        })?;
        backend.listen(behaviour, &place)?;
    }
    println!("listening");
    loop {
        backend.turn()?;
    }
}

struct Connection {
    socket: OwnedFd,
    behaviour: Behaviour,
    /// What has come of a request so far.
    request: Vec<u8>,
}

struct Backend {
    epoll: Epoll,
    listeners: Vec<(Socket, Behaviour)>,
    /// By token, less the number of listeners.
    connections: Vec<Option<Connection>>,
    free: Vec<usize>,
    buffer: Vec<u8>,
}

/// Of one read or write of bulk data.
const BULK: usize = 256 * 1024;

impl Backend {
    fn new() -> io::Result<Backend> {
        Ok(Backend {
            epoll: Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?,
            listeners: Vec::new(),
            connections: Vec::new(),
            free: Vec::new(),
            buffer: vec![0; BULK],
        })
    }

    fn listen(&mut self, behaviour: Behaviour, place: &Place) -> io::Result<()> {
        let socket = listen(place)?;
        let event = EpollEvent::new(EpollFlags::EPOLLIN, self.listeners.len() as u64);
        self.epoll.add(&socket, event)?;
        self.listeners.push((socket, behaviour));
        Ok(())
    }

    fn turn(&mut self) -> io::Result<()> {
        let mut events = [EpollEvent::empty(); 256];
        let count = match self.epoll.wait(&mut events, EpollTimeout::NONE) {
            Err(nix::errno::Errno::EINTR) => 0,
            count => count?,
        };
        for event in &events[..count] {
            let token = event.data() as usize;
            match token.checked_sub(self.listeners.len()) {
                None => self.accept(token)?,
                Some(slot) => self.serve(slot),
            }
        }
        Ok(())
    }

    fn accept(&mut self, listener: usize) -> io::Result<()> {
        for _ in 0..64 {
            let (socket, behaviour) = &self.listeners[listener];
            let (behaviour, Some(socket)) = (*behaviour, accept(socket)?) else {
                break;
            };
            let slot = self.free.pop().unwrap_or_else(|| {
                self.connections.push(None);
                self.connections.len() - 1
            });
            let interest = match behaviour {
                Behaviour::Source => EpollFlags::EPOLLOUT,
                _ => EpollFlags::EPOLLIN,
            };
            let token = (self.listeners.len() + slot) as u64;
            self.epoll.add(&socket, EpollEvent::new(interest, token))?;
            self.connections[slot] = Some(Connection {
                socket,
                behaviour,
                request: Vec::new(),
            });
        }
        Ok(())
    }

    fn serve(&mut self, slot: usize) {
        // An event of a connection that this turn has closed finds none.
        let Some(connection) = &mut self.connections[slot] else {
            return;
        };
        if !connection.serve(&mut self.buffer) {
            self.connections[slot] = None;
            self.free.push(slot);
        }
    }
}

impl Connection {
    /// Moves what can be moved; false at the end.
    fn serve(&mut self, buffer: &mut [u8]) -> bool {
        match self.behaviour {
            Behaviour::Source => write(&self.socket, buffer) != Moved::Ended,
            Behaviour::Sink => discard(&self.socket, buffer) != Moved::Ended,
            Behaviour::Answer | Behaviour::AnswerOnce => {
                match read(&self.socket, &mut buffer[..4096]) {
                    Moved::Bytes(count) => self.take(&buffer[..count]),
                    Moved::Later => true,
                    Moved::Ended => false,
                }
            }
        }
    }

    /// Takes a request, or a part of one; false at the end.
    fn take(&mut self, bytes: &[u8]) -> bool {
        if self.request.is_empty() && bytes == REQUEST {
            return self.answer(); // the common case, without a copy
        }
        self.request.extend_from_slice(bytes);
        let Some(header) = proxy_header(&self.request) else {
            return true;
        };
        if self.request.len() < header + REQUEST.len() {
            return true;
        }
        self.request.clear();
        self.answer()
    }

    /// A client has one request on its way, so an answer always fits into the socket's buffer.
    fn answer(&mut self) -> bool {
        let written = write(&self.socket, &ANSWER) == Moved::Bytes(ANSWER.len());
        written && self.behaviour == Behaviour::Answer
    }
}

/// A backend in a thread of the test's process; it ends with that.
#[cfg(test)]
pub(crate) fn thread(behaviour: Behaviour) -> std::net::SocketAddr {
    let mut backend = Backend::new().expect("an epoll set");
    let place = "127.0.0.1:0".parse().expect("a place");
    backend.listen(behaviour, &place).expect("a listener");
    let address = backend.listeners[0].0.local_addr().expect("its address");
    std::thread::spawn(move || {
        loop {
            backend.turn().expect("a turn");
        }
    });
    address.as_socket().expect("TCP")
}
