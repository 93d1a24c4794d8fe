//! The log: lines to stderr, as text or JSON.
//!
//! A record is put on a bounded queue and written by a thread of its own, so a reader that is slow or stuck never blocks the
//! gate. What finds the queue full is dropped, counted, and said.

mod text;

use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender, TrySendError};
use std::time::{Duration, Instant};

use nix::sys::stat::fstat;
use tracing::warn;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::MakeWriter;

use crate::cli::options::LogFormat;

/// Lines that wait for a slow reader.
const QUEUE: usize = 4096;

/// Dropped lines are said at most this often.
const SAID_EVERY: Duration = Duration::from_secs(1);

/// At the end the last lines are waited for this long.
const FLUSH: Duration = Duration::from_secs(1);

/// A level, or directives as tracing-subscriber's `EnvFilter` reads them; checked, not yet used.
///
/// `EnvFilter` takes a word that is no level for the name of a target, so a misspelt level would silence everything: here each
/// directive has a level.
pub(crate) fn filter(text: &str) -> Result<String, String> {
    let has_level = |directive: &str| {
        let (_, level) = directive.rsplit_once('=').unwrap_or(("", directive));
        !level.is_empty() && LevelFilter::from_str(level).is_ok()
    };
    if text.split(',').all(has_level) && EnvFilter::builder().parse(text).is_ok() {
        return Ok(text.to_owned());
    }
    Err(format!(
        "`{text}` isn't a level: write off, error, warn, info, debug or trace, or directives such as info,syngate_gate=debug"
    ))
}

/// The log of this process, until it is dropped.
#[derive(Debug)]
pub(crate) struct Log(Queue);

impl Log {
    /// Starts the log. `level` has been through [`filter`].
    ///
    /// # Errors
    ///
    /// No thread, or the process has a log already.
    pub(crate) fn start(format: LogFormat, level: &str) -> io::Result<Log> {
        let queue = Queue::start(io::stderr())?;
        let builder = tracing_subscriber::fmt()
            .with_env_filter(EnvFilter::new(level))
            .with_writer(queue.clone());
        let terminal = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        match format {
            LogFormat::Text => builder
                .with_ansi(terminal)
                .event_format(text::Text {
                    journal: is_journal(&io::stderr()),
                })
                .try_init(),
            LogFormat::Json => builder.json().flatten_event(true).try_init(),
        }
        .map_err(io::Error::other)?;
        Ok(Log(queue))
    }
}

/// Whether it is the stream to the journal that JOURNAL_STREAM names (systemd.exec(5)). A child whose stderr was redirected has
/// inherited the variable.
fn is_journal(output: &impl AsFd) -> bool {
    let named = std::env::var("JOURNAL_STREAM").unwrap_or_default();
    fstat(output).is_ok_and(|file| named == format!("{}:{}", file.st_dev, file.st_ino))
}

impl Drop for Log {
    /// Waits until what was logged is written, or for a second where nobody reads.
    fn drop(&mut self) {
        let (done, written) = mpsc::sync_channel(1);
        let deadline = Instant::now() + FLUSH;
        let mut message = Message::Flush(done);
        while let Err(TrySendError::Full(back)) = self.0.sender.try_send(message) {
            if Instant::now() >= deadline {
                return;
            }
            message = back;
            std::thread::sleep(Duration::from_millis(5));
        }
        // A time-out is the answer too: nobody reads.
        let _ = written.recv_timeout(deadline.saturating_duration_since(Instant::now()));
    }
}

enum Message {
    Line(Vec<u8>),
    Flush(SyncSender<()>),
}

/// The writing end of the queue. One write is one record.
#[derive(Clone, Debug)]
struct Queue {
    sender: SyncSender<Message>,
    dropped: Arc<AtomicU64>,
}

impl Queue {
    fn start(output: impl Write + Send + 'static) -> io::Result<Queue> {
        let (sender, receiver) = mpsc::sync_channel(QUEUE);
        let dropped = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&dropped);
        std::thread::Builder::new()
            .name("log".into())
            .spawn(move || write_all(&receiver, &counter, output))?;
        Ok(Queue { sender, dropped })
    }
}

impl Write for Queue {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.sender.try_send(Message::Line(line.to_vec())).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Queue {
    type Writer = Queue;

    fn make_writer(&'a self) -> Queue {
        self.clone()
    }
}

/// Writes lines until the last sender is gone. An output that fails is nobody's to complain to, so its errors are dropped.
fn write_all(lines: &Receiver<Message>, dropped: &AtomicU64, mut output: impl Write) {
    let mut said = 0;
    loop {
        match lines.recv_timeout(SAID_EVERY) {
            Ok(Message::Line(line)) => {
                let _ = output.write_all(&line);
            }
            Ok(Message::Flush(done)) => {
                let _ = output.flush();
                let _ = done.try_send(());
            }
            Err(RecvTimeoutError::Timeout) => {
                // Said when the queue is empty, so that this line isn't dropped in its turn.
                let total = dropped.load(Ordering::Relaxed);
                if total > said {
                    warn!(
                        lines = total - said,
                        "log lines were dropped: nobody read them fast enough"
                    );
                    said = total;
                }
            }
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::Sender;

    use super::*;

    /// An output whose reader decides when a line is read.
    struct Stuck {
        lines: Sender<Vec<u8>>,
        go: Receiver<()>,
    }

    impl Write for Stuck {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            let _ = self.go.recv();
            let _ = self.lines.send(line.to_vec());
            Ok(line.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_stuck_reader_costs_lines_but_no_time() {
        let (lines, written) = mpsc::channel();
        let (go, wait) = mpsc::channel();
        let mut queue = Queue::start(Stuck { lines, go: wait }).unwrap();
        // One may be in the writer's hands, and QUEUE wait; all others are dropped.
        let all = QUEUE + 100;
        for number in 0..all {
            queue.write_all(format!("{number}\n").as_bytes()).unwrap();
        }
        let dropped = usize::try_from(queue.dropped.load(Ordering::Relaxed)).unwrap();
        assert!((99..=100).contains(&dropped), "{dropped} dropped");
        drop(go);
        let kept: Vec<_> = (0..all - dropped)
            .map(|_| written.recv().unwrap())
            .collect();
        assert_eq!(kept[0], b"0\n");
        assert_eq!(kept[QUEUE - 1], format!("{}\n", QUEUE - 1).into_bytes());
    }

    #[test]
    fn levels_and_directives_are_checked() {
        for good in ["debug", "WARN", "off", "info,syngate_gate=debug"] {
            assert_eq!(filter(good), Ok(good.to_owned()));
        }
        for bad in [
            "loud",
            "",
            "info,",
            "info,syngate_gate=loud",
            "syngate_gate",
            "a=b=info",
        ] {
            let error = filter(bad).unwrap_err();
            assert!(error.contains("write off, error"), "{bad}: {error}");
        }
    }
}
