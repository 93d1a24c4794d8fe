//! Short connections, opened by the clock, from one thread.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use socket2::{Domain, Socket, Type};

use super::{Failure, Shared, Tally};
use crate::common::http::Head;

/// One short connection.
struct Fresh {
    socket: Socket,
    path: String,
    sent: bool,
    received: Vec<u8>,
    opened: Instant,
}

pub(super) fn run(shared: &Shared, _: u64) -> Tally {
    let plan = &shared.plan;
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).expect("epoll");
    let mut tally = Tally::default();
    let mut open = BTreeMap::new(); // by number, so the oldest comes first
    let mut next = 0;
    let mut events = [EpollEvent::empty(); 256];
    loop {
        let due = (shared.start.elapsed().as_secs_f64() * f64::from(plan.fresh_per_second)) as u64;
        while next < due && !shared.stopped() {
            match Fresh::open(plan.target, next, &epoll) {
                Ok(fresh) => drop(open.insert(next, fresh)),
                Err(error) => tally.add(Err(error.into()), shared.start),
            }
            next += 1;
        }
        if open.is_empty() && shared.stopped() {
            return tally;
        }
        let ready = epoll.wait(&mut events, 1_u8).or_else(|error| {
            if error == nix::errno::Errno::EINTR {
                Ok(0)
            } else {
                Err(error)
            }
        });
        for event in &events[..ready.expect("epoll_wait")] {
            let Some(fresh) = open.get_mut(&event.data()) else {
                continue;
            };
            if let Some(outcome) = fresh.advance().transpose() {
                shared
                    .fresh
                    .fetch_add(u64::from(outcome.is_ok()), Ordering::Relaxed);
                tally.add(outcome, shared.start);
                open.remove(&event.data());
            }
        }
        while open
            .first_entry()
            .is_some_and(|oldest| oldest.get().opened.elapsed() > plan.patience)
        {
            open.pop_first();
            tally.add(Err(Failure::Timeout), shared.start);
        }
    }
}

impl Fresh {
    fn open(target: std::net::SocketAddr, number: u64, epoll: &Epoll) -> io::Result<Fresh> {
        let socket = Socket::new(
            Domain::for_address(target),
            Type::STREAM.nonblocking().cloexec(),
            None,
        )?;
        match socket.connect(&target.into()) {
            Err(error) if error.raw_os_error() != Some(nix::errno::Errno::EINPROGRESS as i32) => {
                return Err(error);
            }
            _ => {}
        }
        let edges = EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT | EpollFlags::EPOLLET;
        epoll.add(socket.as_fd(), EpollEvent::new(edges, number))?;
        Ok(Fresh {
            socket,
            path: format!("/fresh-{number}"),
            sent: false,
            received: Vec::new(),
            opened: Instant::now(),
        })
    }

    /// Goes on as far as it can; `Some` when it has come to its end.
    fn advance(&mut self) -> Result<Option<Duration>, Failure> {
        if let Some(error) = self.socket.take_error()? {
            return Err(error.into());
        }
        if !self.sent {
            let request = format!(
                "GET {} HTTP/1.1\r\nHost: gate\r\nConnection: close\r\n\r\n",
                self.path
            );
            match (&self.socket).write(request.as_bytes()) {
                Ok(length) if length == request.len() => self.sent = true,
                Err(error)
                    if error.kind() == ErrorKind::WouldBlock
                        || error.kind() == ErrorKind::NotConnected =>
                {
                    return Ok(None);
                }
                Ok(_) => return Err(Failure::Other(0)), // a first small write is never cut
                Err(error) => return Err(error.into()),
            }
        }
        let mut buffer = [0; 4096];
        loop {
            match (&self.socket).read(&mut buffer) {
                Ok(0) => return self.verdict().map(|()| Some(self.opened.elapsed())),
                Ok(length) => self.received.extend_from_slice(&buffer[..length]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The connection has ended: was it with the whole answer to this request?
    fn verdict(&self) -> Result<(), Failure> {
        if self.received.is_empty() {
            return Err(Failure::Unanswered);
        }
        let head = Head::parse(&self.received)?.ok_or(Failure::Short)?;
        let body = &self.received[head.length..];
        let expected = self.path.as_bytes();
        match (head.status, body) {
            (200, body) if body == expected => Ok(()),
            (200, body) if body.len() < expected.len() && expected.starts_with(body) => {
                Err(Failure::Short)
            }
            _ => Err(Failure::WrongBytes),
        }
    }
}
