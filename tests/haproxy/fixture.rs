//! What these tests share: a file system of one's own, certificates, servers, HAProxy with and without a gate, and clients.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, chdir, chroot};

use crate::common::gate::Setup;
use crate::common::wait_until;

/// The program under test.
pub(crate) fn program() -> String {
    std::env::var("HAPROXY").unwrap_or_else(|_| "haproxy".to_owned())
}

/// A gate in front of the program under test with this configuration.
pub(crate) fn in_front_of(setup: Setup, file: &Path) -> Setup {
    let options = ["--haproxy-binary", &program(), "--min-ready", "100ms"];
    let setup = setup.options(options).options(["--haproxy"]);
    setup.options([file.as_os_str()])
}

/// Where [`own_root`] is made; what is mounted below isn't seen there.
const ROOT: &str = "/mnt";

/// Gives the calling thread, and what it starts from now on, a file system of its own: it looks as it did, with an empty
/// `/run`, but what is written is seen by nobody else and gone afterwards. Sockets and `/dev` are the real ones.
pub(crate) fn own_root() {
    let here = std::env::current_dir().expect("a directory");
    unshare(CloneFlags::CLONE_NEWNS).expect("a mount namespace");
    let none = None::<&str>;
    let flags = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    mount(none, "/", none, flags, none).expect("mounts of one's own");
    let elsewhere = mounts();
    mount(Some("tmpfs"), ROOT, Some("tmpfs"), MsFlags::empty(), none).expect("a tmpfs");
    let [upper, work, root] = ["upper", "work", "root"].map(|name| Path::new(ROOT).join(name));
    for directory in [&upper, &work, &root] {
        fs::create_dir(directory).expect("a directory");
    }
    let layers = format!(
        "lowerdir=/,upperdir={},workdir={}",
        upper.display(),
        work.display()
    );
    let overlay = Some("overlay");
    mount(
        overlay,
        &root,
        overlay,
        MsFlags::empty(),
        Some(layers.as_str()),
    )
    .expect("an overlay");
    for path in elsewhere {
        let inside = root.join(path.strip_prefix("/").expect("an absolute path"));
        let flags = MsFlags::MS_BIND | MsFlags::MS_REC;
        mount(Some(&path), &inside, none, flags, none)
            .unwrap_or_else(|error| panic!("{} can't be bound: {error}", path.display()));
    }
    mount(
        Some("tmpfs"),
        &root.join("run"),
        Some("tmpfs"),
        MsFlags::empty(),
        none,
    )
    .expect("/run");
    chroot(&root).expect("chroot");
    chdir(&here).expect("the directory is still there");
}

/// The outermost mount points beside `/`.
fn mounts() -> Vec<PathBuf> {
    let table = fs::read_to_string("/proc/thread-self/mountinfo").expect("mountinfo");
    // proc_pid_mountinfo(5): the fifth field.
    let points = table.lines().filter_map(|line| line.split(' ').nth(4));
    let all: BTreeSet<PathBuf> = points.map(PathBuf::from).collect();
    let mut outermost: Vec<PathBuf> = Vec::new();
    for path in all {
        let inside = outermost.iter().any(|outer| path.starts_with(outer));
        let hidden = ["/run", "/var/run", ROOT]
            .iter()
            .any(|name| path.starts_with(name));
        if path != Path::new("/") && !inside && !hidden {
            outermost.push(path);
        }
    }
    outermost
}

/// Runs a command that must succeed.
fn run(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {said}");
}

/// A certificate of its own for these names, and its key, in one file.
pub(crate) fn certificate(file: &Path, names: &[&str]) {
    let names: Vec<String> = names.iter().map(|name| format!("DNS:{name}")).collect();
    let extension = format!("subjectAltName={}", names.join(","));
    let key = file.with_extension("key");
    let (certificate_file, key_file) = (file.display().to_string(), key.display().to_string());
    let request =
        "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=test";
    let mut arguments: Vec<&str> = request.split(' ').collect();
    arguments.extend([
        "-addext",
        &extension,
        "-out",
        &certificate_file,
        "-keyout",
        &key_file,
    ]);
    run("openssl", &arguments);
    let both = [fs::read(file), fs::read(&key)].map(|text| text.expect("openssl's file"));
    fs::write(file, both.concat()).expect("the certificate");
}

/// A server that answers each request with the request's own head, and closes. It ends with the test's process.
pub(crate) fn echo(address: &str) {
    let listener = TcpListener::bind(address).unwrap_or_else(|error| panic!("{address}: {error}"));
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || answer(&client));
        }
    });
}

/// A client that asks nothing gets nothing.
fn answer(mut client: &TcpStream) {
    let mut head = String::new();
    for line in BufReader::new(client).lines().map_while(Result::ok) {
        if line.is_empty() {
            let length = head.len();
            let first =
                format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n");
            // It may have left.
            let _ = client.write_all((first + &head).as_bytes());
            return;
        }
        head += &line.to_ascii_lowercase();
        head.push('\n');
    }
}

/// HAProxy without a gate, once it listens. Ended when dropped.
pub(crate) struct Alone(Child);

impl Alone {
    /// `None` when it doesn't come to listen.
    pub(crate) fn start(file: &Path) -> Option<Alone> {
        Alone::start_with(file, &[])
    }

    /// A reload: another one takes the place of this one, which is told to finish.
    pub(crate) fn reload(self, file: &Path) -> Alone {
        let pid = self.0.id().to_string();
        let next = Alone::start_with(file, &["-sf", &pid]).expect("it listens");
        let mut old = self;
        old.wait();
        next
    }

    fn start_with(file: &Path, arguments: &[&str]) -> Option<Alone> {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("notify");
        let socket = UnixDatagram::bind(&path).expect("a socket");
        socket
            .set_read_timeout(Some(Duration::from_millis(20)))
            .expect("SO_RCVTIMEO");
        let mut command = Command::new(program());
        command
            .arg("-Ws")
            .arg("-f")
            .arg(file)
            .args(arguments)
            .env("NOTIFY_SOCKET", &path);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let mut alone = Alone(command.spawn().expect("haproxy starts"));
        let mut message = [0; 256];
        loop {
            if let Ok(length) = socket.recv(&mut message) {
                // The newest says READY=1 of a failed start, too, but has no process to name then.
                let text = String::from_utf8_lossy(&message[..length]);
                if text.contains("READY=1") && text.contains("MAINPID=") {
                    return Some(alone);
                }
            }
            if alone.0.try_wait().expect("wait").is_some() {
                return None;
            }
        }
    }

    /// Waits for its end.
    pub(crate) fn wait(&mut self) {
        wait_until("HAProxy ends", || {
            self.0.try_wait().expect("wait").is_some()
        });
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        let pid = Pid::from_raw(i32::try_from(self.0.id()).expect("a pid"));
        if self.0.try_wait().expect("wait").is_none() {
            // The master ends its worker.
            let _ = kill(pid, Signal::SIGTERM);
        }
        let _ = self.0.wait();
    }
}

/// The TCP addresses on which anybody listens in the calling thread's network.
pub(crate) fn listening() -> BTreeSet<SocketAddr> {
    const LISTEN: &str = "0A"; // TCP_LISTEN
    let mut all = BTreeSet::new();
    for table in ["tcp", "tcp6"] {
        let text = fs::read_to_string(format!("/proc/thread-self/net/{table}")).expect("the table");
        for line in text.lines().skip(1) {
            let fields: Vec<&str> = line.split_whitespace().collect();
            if fields[3] == LISTEN {
                all.insert(address_in_table(fields[1]));
            }
        }
    }
    all
}

/// `0100007F:0050`: words of four bytes, each as this machine has them, and the port.
fn address_in_table(text: &str) -> SocketAddr {
    let (ip, port) = text.split_once(':').expect("an address and a port");
    let word = |at: usize| {
        u32::from_str_radix(&ip[at..at + 8], 16)
            .expect("hexadecimal")
            .to_ne_bytes()
    };
    let words: Vec<u8> = (0..ip.len()).step_by(8).flat_map(word).collect();
    let ip = match <[u8; 16]>::try_from(words.as_slice()) {
        Ok(bytes) => IpAddr::V6(Ipv6Addr::from(bytes)),
        Err(_) => IpAddr::V4(Ipv4Addr::from(word(0))),
    };
    SocketAddr::new(ip, u16::from_str_radix(port, 16).expect("a port"))
}

/// What curl got.
#[derive(Debug)]
pub(crate) struct Reply {
    /// 0: no answer at all.
    pub(crate) status: u16,
    /// Up to curl's own last line.
    pub(crate) body: String,
    /// Where it came from; nowhere over a unix socket.
    pub(crate) local: Option<SocketAddr>,
}

/// One request, with curl's options.
pub(crate) fn curl<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Reply {
    let last = "\n%{http_code} %{local_ip} %{local_port}";
    let mut command = Command::new("curl");
    command.args(["-s", "-k", "-m", "20", "--noproxy", "*", "-w", last]);
    let output = command.args(arguments).output().expect("curl runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (body, last) = text.rsplit_once('\n').expect("curl's own line");
    let words: Vec<&str> = last.split(' ').collect();
    let ip = words[1].parse().ok();
    Reply {
        status: words[0].parse().expect("a status"),
        body: body.to_owned(),
        local: ip.map(|ip| SocketAddr::new(ip, words[2].parse().expect("a port"))),
    }
}

/// Waits until `url` is answered with this text.
#[track_caller]
pub(crate) fn expect_text(url: &str, text: &str) {
    wait_until(&format!("{url} says {text}"), || curl([url]).body == text);
}
