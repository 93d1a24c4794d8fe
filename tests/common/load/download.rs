//! Downloads that are read slowly.

use std::io::{Read, Write};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};

use super::{Failure, Plan, Shared, Tally};
use crate::common::http::Head;
use crate::common::pattern;

/// A download is read in so many portions.
const PORTIONS: u32 = 100;

pub(super) fn run(shared: &Shared, _: u64) -> Tally {
    let mut tally = Tally::default();
    while !shared.stopped() {
        let begun = Instant::now();
        let outcome = download(shared).map(|()| begun.elapsed());
        if outcome.is_err() {
            shared.downloads_failed.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(10));
        }
        tally.add(outcome, shared.start);
    }
    tally
}

fn download(shared: &Shared) -> Result<(), Failure> {
    let plan: &Plan = &shared.plan;
    let socket = Socket::new(Domain::for_address(plan.target), Type::STREAM, None)?;
    socket.set_recv_buffer_size(128 * 1024)?; // small, so that the pace reaches the server
    socket.connect_timeout(&plan.target.into(), plan.patience)?;
    socket.set_read_timeout(Some(plan.patience))?;
    let request = format!(
        "GET /download/{} HTTP/1.1\r\nHost: gate\r\nConnection: close\r\n\r\n",
        plan.download_bytes
    );
    (&socket).write_all(request.as_bytes())?;

    let (head, mut body) = head(&socket)?;
    if head.status != 200
        || head
            .content_length
            .is_some_and(|length| length != plan.download_bytes)
    {
        return Err(Failure::WrongBytes);
    }
    shared.downloads.fetch_add(1, Ordering::Relaxed);
    let begun = Instant::now();
    let mut at = 0;
    loop {
        for piece in body.chunks(pattern::CHUNK) {
            if piece != pattern::at(at, piece.len()) {
                return Err(Failure::WrongBytes);
            }
            at += piece.len() as u64;
        }
        if at > plan.download_bytes {
            return Err(Failure::WrongBytes);
        }
        let due = plan
            .download_time
            .mul_f64(at as f64 / plan.download_bytes as f64);
        std::thread::sleep(due.saturating_sub(begun.elapsed()));
        body.clear();
        let portion = plan.download_bytes / u64::from(PORTIONS) + 1;
        match (&socket).take(portion).read_to_end(&mut body)? {
            0 if at == plan.download_bytes => return Ok(()),
            0 => return Err(Failure::Short),
            _ => {}
        }
    }
}

/// The answer's head, and what came of the body with it.
fn head(mut socket: &Socket) -> Result<(Head, Vec<u8>), Failure> {
    let mut received = Vec::new();
    loop {
        let mut buffer = [0; 4096];
        match socket.read(&mut buffer)? {
            0 if received.is_empty() => return Err(Failure::Unanswered),
            0 => return Err(Failure::Short),
            length => received.extend_from_slice(&buffer[..length]),
        }
        if let Some(head) = Head::parse(&received)? {
            let body = received.split_off(head.length);
            return Ok((head, body));
        }
    }
}
