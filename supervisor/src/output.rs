//! What a child prints: its last 64 KiB, and its lines in the log.
//!
//! Invariants:
//! - A child is never blocked by us for long: its pipe is read whatever becomes of what was read.
//! - The supervisor is never blocked by a slow log: lines go through a bounded queue to a thread that logs them; those
//!   that find it full are counted, and the count is logged as soon as the log moves again.
//! - Memory is bounded: 64 KiB a child, 1,024 lines of at most 4 KiB a process.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::sync::watch;

use crate::reaper::{Exit, ended};

/// Bytes of its output that are kept of a child.
pub const KEPT: usize = 64 * 1024;

/// Bytes of a line that reach the log.
const LINE: usize = 4 * 1024;

/// Characters of a line that is told in a sentence.
const QUOTED: usize = 400;

/// Lines that wait for the log.
const QUEUE: usize = 1024;

/// Bytes that are still read after the end of the leader: somebody who outlives it may print for ever.
const AFTER_END: usize = 1024 * 1024;

/// The last [`KEPT`] bytes that a child has printed to its standard output and error, in the order of printing. Clones
/// share them.
#[derive(Clone, Default)]
pub struct Output {
    ring: Arc<Mutex<Ring>>,
}

#[derive(Default)]
struct Ring {
    bytes: VecDeque<u8>,
    /// Bytes that had to leave.
    cut: u64,
}

impl Output {
    /// The kept text. Where bytes had to leave, its first line says how many.
    pub fn text(&self) -> String {
        let (text, cut) = self.kept();
        match cut {
            0 => text,
            _ => format!("[{cut} bytes before this were cut]\n{text}"),
        }
    }

    /// The last `count` lines that aren't blank, the oldest first, each short enough for a sentence.
    pub fn last_lines(&self, count: usize) -> Vec<String> {
        let (text, _) = self.kept();
        let lines = text
            .lines()
            .map(str::trim_end)
            .filter(|line| !line.is_empty());
        let mut last: Vec<String> = lines.rev().take(count).map(quoted).collect();
        last.reverse();
        last
    }

    fn kept(&self) -> (String, u64) {
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        let text = String::from_utf8_lossy(ring.bytes.make_contiguous()).into_owned();
        (text, ring.cut)
    }

    fn push(&self, bytes: &[u8]) {
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        ring.bytes.extend(bytes);
        let surplus = ring.bytes.len().saturating_sub(KEPT);
        ring.bytes.drain(..surplus);
        ring.cut += surplus as u64;
    }
}

/// A line, or its beginning.
fn quoted(line: &str) -> String {
    let mut head: String = line.chars().take(QUOTED).collect();
    if head.len() < line.len() {
        head.push_str(" ...");
    }
    head
}

/// Whose lines these are, in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Label {
    /// Name of the service.
    pub service: Arc<str>,
    /// Number of the generation.
    pub generation: u64,
}

/// The way of lines to the log. Clones share the queue; its thread ends with the last of them.
#[derive(Clone)]
pub(crate) struct Log {
    queue: SyncSender<(Label, String)>,
    dropped: Arc<AtomicU64>,
    /// Closed when the thread has ended.
    ended: watch::Receiver<()>,
}

impl Log {
    /// Starts the thread that logs.
    pub(crate) fn start() -> io::Result<Self> {
        let (running, ended) = watch::channel(());
        let (log, lines) = Log::queue(ended);
        let dropped = log.dropped.clone();
        std::thread::Builder::new()
            .name("output-log".into())
            .spawn(move || {
                let _running = running;
                for (label, line) in lines {
                    let Label {
                        service,
                        generation,
                    } = label;
                    tracing::info!(target: "syngate::output", %service, generation, "{line}");
                    let dropped = dropped.swap(0, Ordering::Relaxed);
                    if dropped > 0 {
                        tracing::warn!(
                            lines = dropped,
                            "lines of backends were dropped: the log is too slow"
                        );
                    }
                }
            })?;
        Ok(log)
    }

    fn queue(ended: watch::Receiver<()>) -> (Self, Receiver<(Label, String)>) {
        let (queue, lines) = sync_channel(QUEUE);
        (
            Log {
                queue,
                dropped: Arc::default(),
                ended,
            },
            lines,
        )
    }

    /// Waits until all is logged, once no other clone is left, at most `within`.
    pub(crate) async fn close(self, within: Duration) {
        let Log {
            queue, mut ended, ..
        } = self;
        drop(queue);
        // An error is the end that is waited for; a log that doesn't move isn't.
        let _ = tokio::time::timeout(within, ended.changed()).await;
    }

    /// The lines of one child.
    pub(crate) fn lines(&self, label: Label) -> Lines {
        Lines {
            log: self.clone(),
            label,
            line: Vec::new(),
            cut: false,
        }
    }

    fn send(&self, label: &Label, line: String) {
        if self.queue.try_send((label.clone(), line)).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Cuts a stream of bytes into lines for the log; what a line has over [`LINE`] bytes is left out.
pub(crate) struct Lines {
    log: Log,
    label: Label,
    line: Vec<u8>,
    cut: bool,
}

impl Lines {
    fn push(&mut self, bytes: &[u8]) {
        for piece in bytes.split_inclusive(|&byte| byte == b'\n') {
            let (text, ends) = match piece.split_last() {
                Some((b'\n', text)) => (text, true),
                _ => (piece, false),
            };
            let room = LINE - self.line.len();
            self.cut |= text.len() > room;
            self.line.extend_from_slice(&text[..text.len().min(room)]);
            if ends {
                self.end_line();
            }
        }
    }

    fn end_line(&mut self) {
        let mut line = String::from_utf8_lossy(self.line.trim_ascii_end()).into_owned();
        self.line.clear();
        if std::mem::take(&mut self.cut) {
            line.push_str(" [cut]");
        }
        if !line.is_empty() {
            self.log.send(&self.label, line);
        }
    }
}

/// Reads a child's pipe until the child has ended and what was in the pipe by then is read.
///
/// The end of the output doesn't decide: a child may close it early, and somebody else may hold it open for ever.
pub(crate) async fn pump(
    mut pipe: pipe::Receiver,
    output: Output,
    mut lines: Option<Lines>,
    mut exit: watch::Receiver<Option<Exit>>,
) -> Exit {
    let mut buffer = vec![0; 16 * 1024];
    let mut take = |bytes: &[u8]| {
        output.push(bytes);
        if let Some(lines) = &mut lines {
            lines.push(bytes);
        }
    };
    let mut open = true;
    let exit = loop {
        tokio::select! {
            exit = ended(&mut exit) => break exit,
            read = pipe.read(&mut buffer), if open => match read {
                Ok(count @ 1..) => take(&buffer[..count]),
                Ok(0) | Err(_) => open = false,
            },
        }
    };
    let mut rest = AFTER_END;
    while rest > 0 {
        // Not through tokio: what it hasn't been told of yet it wouldn't read.
        match nix::unistd::read(&pipe, &mut buffer) {
            Ok(count @ 1..) => {
                take(&buffer[..count]);
                rest = rest.saturating_sub(count);
            }
            Ok(0) | Err(_) => break,
        }
    }
    if let Some(lines) = &mut lines {
        lines.end_line();
    }
    exit
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logged(chunks: &[&[u8]]) -> Vec<String> {
        let (log, lines) = Log::queue(watch::channel(()).1);
        let mut splitter = log.lines(Label {
            service: "web".into(),
            generation: 3,
        });
        chunks.iter().for_each(|chunk| splitter.push(chunk));
        splitter.end_line();
        drop((splitter, log));
        lines.into_iter().map(|(_, line)| line).collect()
    }

    #[test]
    fn keeps_the_last_bytes_and_says_what_it_cut() {
        let output = Output::default();
        output.push(b"first\n");
        output.push(&vec![b'x'; KEPT - 5]);
        output.push(b"\n\nlast\n");
        let text = output.text();
        assert!(
            text.starts_with("[8 bytes before this were cut]\nxxx"),
            "{}",
            &text[..60]
        );
        assert!(text.ends_with("xxx\n\nlast\n"));
        assert_eq!(output.last_lines(1), ["last"]);
        let all = output.last_lines(9);
        assert_eq!(all.len(), 2, "blank lines don't count");
        assert_eq!(all[0], format!("{} ...", "x".repeat(QUOTED)));
    }

    #[test]
    fn lines_come_out_whole_wherever_the_reads_cut_them() {
        let text = b"one\r\n\ntwo and more\nthree";
        for at in 0..text.len() {
            let (head, tail) = text.split_at(at);
            assert_eq!(
                logged(&[head, tail]),
                ["one", "two and more", "three"],
                "cut at {at}"
            );
        }
    }

    #[test]
    fn a_long_line_is_cut_once_and_the_next_is_whole() {
        let long = vec![b'a'; 3 * LINE];
        let lines = logged(&[&long, &long, b"\nnext\n"]);
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[0].len(), LINE + " [cut]".len());
        assert_eq!(lines[1], "next");
    }

    #[test]
    fn a_log_that_does_not_move_blocks_nobody_and_the_drops_are_counted() {
        let (log, lines) = Log::queue(watch::channel(()).1);
        let mut splitter = log.lines(Label {
            service: "web".into(),
            generation: 1,
        });
        for _ in 0..QUEUE + 7 {
            splitter.push(b"line\n");
        }
        assert_eq!(log.dropped.load(Ordering::Relaxed), 7);
        assert_eq!(lines.try_iter().count(), QUEUE);
    }

    #[tokio::test]
    async fn closing_waits_for_the_thread_and_not_for_ever() {
        let log = Log::start().expect("a thread");
        let other = log.clone();
        let short = Duration::from_millis(50);
        let begin = std::time::Instant::now();
        other.clone().close(short).await;
        assert!(begin.elapsed() >= short, "another clone may still send");
        drop(log);
        let long = Duration::from_secs(60);
        other.close(long).await;
        assert!(begin.elapsed() < long);
    }
}
