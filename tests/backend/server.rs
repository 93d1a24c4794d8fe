//! The backend of the end to end tests: a small HTTP/1.1 server that can also misbehave.
//!
//! `test-backend LISTEN [OPTION=VALUE]...` with LISTEN one of `tcp:IP:PORT`, `unix:PATH`, `fd:N`, `activated:NAME`
//! (the first descriptor of sd_listen_fds(3), which must be called NAME and meant for this process).
//!
//! | path | answer |
//! | --- | --- |
//! | `/content` | what the file of `content=` held when the process started |
//! | `/generation` | the number that the gate gave to this generation |
//! | `/pid` | this process's id |
//! | `/download/N` | N bytes of the pattern |
//! | `/sleep/MS` | its own path, after MS milliseconds |
//! | any other | its own path |
//!
//! At SIGTERM it accepts what its listener has queued, closes it, answers what was asked with `connection: close`, and ends
//! when the last connection has.

mod pattern;

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, FromRawFd, OwnedFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{self as unix, UnixDatagram, UnixStream};
use std::process::exit;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use nix::fcntl::{Flock, FlockArg};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use socket2::{Domain, SockAddr, Socket, Type};

/// What the command line says.
struct Options {
    listen: String,
    /// `backlog=N`.
    backlog: i32,
    /// `start=MS`: this long between the start and the listening.
    start: Duration,
    /// `accept-every=MS`: one connection is accepted in this time.
    accept_every: Duration,
    /// `answer-after=MS`: each answer takes this long.
    answer_after: Duration,
    /// `abrupt=yes`: at SIGTERM the listener is closed with what it has queued.
    abrupt: bool,
    /// `lock=FILE`: locked for the process's life; a second process ends at once.
    lock: Option<String>,
    /// `starting=FILE`: locked until it listens; two that start at once are noted in the journal as `overlap`.
    starting: Option<String>,
    /// `content=FILE`.
    content: Vec<u8>,
    /// `journal=FILE`: gets a line for each start, accepted request and end.
    journal: Option<File>,
    /// `exit-after=MS`: the process ends this long after it began to listen.
    exit_after: Option<Duration>,
    /// `never=yes`: it runs and never listens.
    never: bool,
    /// `notify=yes`: says READY=1 to NOTIFY_SOCKET (sd_notify(3)) when it listens.
    notify: bool,
    /// `ready-file=PATH`: writes a line into this file, or descriptor under /proc/self/fd, when it listens.
    ready_file: Option<String>,
    /// `fail=yes`: it says why and ends before it listens.
    fail: bool,
    /// `reset-every=N`: every N-th connection is reset instead of answered.
    reset_every: usize,
    /// `cut-every=N`: every N-th connection gets half of its answer.
    cut_every: usize,
    /// `garble-every=N`: every N-th connection gets an answer to another request.
    garble_every: usize,
}

/// What all connections share.
struct Server {
    options: Options,
    draining: AtomicBool,
    open: AtomicUsize,
    served: AtomicUsize,
}

fn main() {
    let options = parse();
    if options.fail {
        eprintln!("test-backend: cannot serve: the moon is in the wrong phase");
        exit(7);
    }
    // Blocked before any thread starts, so that only the waiting thread sees it.
    let mut term = SigSet::empty();
    term.add(Signal::SIGTERM);
    term.thread_block().expect("sigmask");

    let _lock = options.lock.as_deref().map(|path| {
        lock(path).unwrap_or_else(|| {
            eprintln!("test-backend: {path} is locked: another instance runs");
            exit(9)
        })
    });
    let starting = options.starting.as_deref().map(lock);
    let server = Arc::new(Server {
        options,
        draining: AtomicBool::new(false),
        open: AtomicUsize::new(0),
        served: AtomicUsize::new(0),
    });
    server.note(if matches!(starting, Some(None)) {
        "overlap"
    } else {
        "start"
    });
    thread::sleep(server.options.start);
    if server.options.never {
        term.wait().expect("sigwait");
        return;
    }
    let listener = server.options.listen().unwrap_or_else(|error| {
        eprintln!(
            "test-backend: cannot listen on {}: {error}",
            server.options.listen
        );
        exit(8)
    });
    server.note("listening");
    drop(starting);
    server
        .options
        .tell_ready()
        .expect("somebody who wants to know");
    if let Some(after) = server.options.exit_after {
        thread::spawn(move || {
            thread::sleep(after);
            eprintln!("test-backend: ends as it was told to");
            exit(6)
        });
    }
    let (wake, woken) = UnixStream::pair().expect("socketpair");
    thread::spawn(move || {
        term.wait().expect("sigwait");
        drop(wake);
    });
    server.serve(listener, &woken);
    server.note("end");
}

fn parse() -> Options {
    let mut args = std::env::args().skip(1);
    let mut options = Options {
        listen: args.next().expect("LISTEN"),
        backlog: 1024,
        start: Duration::ZERO,
        accept_every: Duration::ZERO,
        answer_after: Duration::ZERO,
        abrupt: false,
        lock: None,
        starting: None,
        content: Vec::new(),
        journal: None,
        exit_after: None,
        never: false,
        notify: false,
        ready_file: None,
        fail: false,
        reset_every: usize::MAX,
        cut_every: usize::MAX,
        garble_every: usize::MAX,
    };
    for arg in args {
        let (key, value) = arg.split_once('=').expect("OPTION=VALUE");
        let number = || value.parse().expect("a number");
        let millis = || Duration::from_millis(value.parse().expect("milliseconds"));
        match key {
            "backlog" => options.backlog = value.parse().expect("a number"),
            "start" => options.start = millis(),
            "accept-every" => options.accept_every = millis(),
            "answer-after" => options.answer_after = millis(),
            "abrupt" => options.abrupt = true,
            "lock" => options.lock = Some(value.into()),
            "starting" => options.starting = Some(value.into()),
            "content" => options.content = std::fs::read(value).expect("the content"),
            "journal" => {
                let file = OpenOptions::new().append(true).create(true).open(value);
                options.journal = Some(file.expect("the journal"));
            }
            "exit-after" => options.exit_after = Some(millis()),
            "never" => options.never = true,
            "notify" => options.notify = true,
            "ready-file" => options.ready_file = Some(value.into()),
            "fail" => options.fail = true,
            "reset-every" => options.reset_every = number(),
            "cut-every" => options.cut_every = number(),
            "garble-every" => options.garble_every = number(),
            _ => panic!("unknown option {key}"),
        }
    }
    options
}

fn lock(path: &str) -> Option<Flock<File>> {
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .expect("the lock file");
    Flock::lock(file, FlockArg::LockExclusiveNonblock).ok()
}

impl Options {
    fn listen(&self) -> io::Result<Socket> {
        let (kind, place) = self.listen.split_once(':').expect("KIND:PLACE");
        let socket = match kind {
            "tcp" => {
                let address: SocketAddr = place.parse().expect("IP:PORT");
                let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
                socket.set_reuse_address(true)?;
                socket.bind(&address.into())?;
                socket.listen(self.backlog)?;
                socket
            }
            "unix" => {
                let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
                socket.bind(&SockAddr::unix(place)?)?;
                socket.listen(self.backlog)?;
                socket
            }
            "fd" => {
                let fd = place.parse().expect("a descriptor");
                inherited(fd)
            }
            "activated" => {
                let is =
                    |name: &str, value: &str| std::env::var(name).is_ok_and(|found| found == value);
                let mine = is("LISTEN_PID", &std::process::id().to_string());
                if !(mine && is("LISTEN_FDS", "1") && is("LISTEN_FDNAMES", place)) {
                    return Err(io::Error::other("LISTEN_* are for somebody else"));
                }
                inherited(3)
            }
            _ => panic!("LISTEN is tcp:, unix:, fd: or activated:"),
        };
        socket.set_nonblocking(true)?;
        Ok(socket)
    }

    fn tell_ready(&self) -> io::Result<()> {
        if self.notify {
            let place = std::env::var("NOTIFY_SOCKET").map_err(io::Error::other)?;
            let address = match place.strip_prefix('@') {
                Some(name) => unix::SocketAddr::from_abstract_name(name)?,
                None => unix::SocketAddr::from_pathname(&place)?,
            };
            UnixDatagram::unbound()?.send_to_addr(b"READY=1", &address)?;
        }
        if let Some(path) = &self.ready_file {
            let mut file = OpenOptions::new().append(true).create(true).open(path)?;
            file.write_all(b"\n")?;
        }
        Ok(())
    }
}

/// A socket that the parent passed.
fn inherited(fd: RawFd) -> Socket {
    #[expect(unsafe_code, reason = "an inherited descriptor comes as a number")]
    // SAFETY: the parent passed this descriptor for this process's use, and nothing else here knows its number.
    let owned = unsafe { OwnedFd::from_raw_fd(fd) };
    Socket::from(owned)
}

impl Server {
    fn note(&self, what: &str) {
        if let Some(journal) = &self.options.journal {
            let line = format!("{what} {}\n", std::process::id());
            (&mut &*journal)
                .write_all(line.as_bytes())
                .expect("the journal");
        }
    }

    /// Accepts until `woken` says that SIGTERM came, then ends as the module says.
    fn serve(self: &Arc<Self>, listener: Socket, woken: &UnixStream) {
        loop {
            let mut fds = [
                PollFd::new(listener.as_fd(), PollFlags::POLLIN),
                PollFd::new(woken.as_fd(), PollFlags::POLLIN),
            ];
            match poll(&mut fds, PollTimeout::NONE) {
                Ok(_) | Err(nix::errno::Errno::EINTR) => {}
                Err(error) => panic!("poll: {error}"),
            }
            if fds[1].any() == Some(true) {
                break;
            }
            self.accept(&listener);
        }
        self.draining.store(true, Ordering::SeqCst);
        if !self.options.abrupt {
            while self.accept(&listener) {}
        }
        drop(listener);
        while self.open.load(Ordering::SeqCst) > 0 {
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// True when there may be more.
    fn accept(self: &Arc<Self>, listener: &Socket) -> bool {
        let socket = match listener.accept() {
            Ok((socket, _)) => socket,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
            Err(_) => return true, // the client has gone
        };
        self.open.fetch_add(1, Ordering::SeqCst);
        let server = Arc::clone(self);
        let number = self.served.fetch_add(1, Ordering::SeqCst) + 1;
        let serve = move || {
            // A client that went away is its own affair.
            let _ = server.connection(&socket, number);
            drop(socket);
            server.open.fetch_sub(1, Ordering::SeqCst);
        };
        thread::Builder::new()
            .stack_size(128 * 1024)
            .spawn(serve)
            .expect("a thread");
        thread::sleep(self.options.accept_every);
        true
    }

    fn connection(&self, socket: &Socket, number: usize) -> io::Result<()> {
        let mut unread = Vec::new();
        while let Some(request) = read_request(socket, &mut unread)? {
            let options = &self.options;
            if number.is_multiple_of(options.reset_every) {
                return socket.set_linger(Some(Duration::ZERO));
            }
            let path = request.split(' ').nth(1).unwrap_or("/");
            self.note(path);
            thread::sleep(options.answer_after);
            let close = self.draining.load(Ordering::SeqCst)
                || request.to_ascii_lowercase().contains("connection: close");
            let (body, length) = match path.split('/').collect::<Vec<_>>()[..] {
                ["", "content"] => (options.content.clone(), options.content.len() as u64),
                ["", "generation"] => text(std::env::var("SYNGATE_GENERATION").unwrap_or_default()),
                ["", "pid"] => text(std::process::id().to_string()),
                ["", "download", length] => (Vec::new(), length.parse().unwrap_or(0)),
                ["", "sleep", millis] => {
                    thread::sleep(Duration::from_millis(millis.parse().unwrap_or(0)));
                    text(path.to_owned())
                }
                _ if number.is_multiple_of(options.garble_every) => {
                    text("/somebody-else".to_owned())
                }
                _ => text(path.to_owned()),
            };
            let mut answer = format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: {}\r\n\r\n",
                if close { "close" } else { "keep-alive" }
            )
            .into_bytes();
            answer.extend_from_slice(&body);
            if number.is_multiple_of(options.cut_every) {
                return (&mut &*socket).write_all(&answer[..answer.len() - body.len() / 2 - 1]);
            }
            (&mut &*socket).write_all(&answer)?;
            if body.is_empty() {
                download(socket, length)?;
            }
            if close {
                return Ok(());
            }
        }
        Ok(())
    }
}

fn text(text: String) -> (Vec<u8>, u64) {
    let length = text.len() as u64;
    (text.into_bytes(), length)
}

fn download(mut socket: &Socket, length: u64) -> io::Result<()> {
    let mut sent = 0;
    while sent < length {
        let left = usize::try_from(length - sent).unwrap_or(pattern::CHUNK);
        let piece = pattern::at(sent, left);
        socket.write_all(piece)?;
        sent += piece.len() as u64;
    }
    Ok(())
}

/// The next request's head, or `None` at a clean end; what came after it stays in `unread`.
fn read_request(mut socket: &Socket, unread: &mut Vec<u8>) -> io::Result<Option<String>> {
    loop {
        if let Some(end) = unread.windows(4).position(|window| window == b"\r\n\r\n") {
            let head = unread.drain(..end + 4).collect();
            return String::from_utf8(head).map(Some).map_err(io::Error::other);
        }
        let mut buffer = [0; 4096];
        match socket.read(&mut buffer)? {
            0 if unread.is_empty() => return Ok(None),
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            n => unread.extend_from_slice(&buffer[..n]),
        }
    }
}
