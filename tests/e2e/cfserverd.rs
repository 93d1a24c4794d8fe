//! The set-up of `docs/cf-serverd.md`, read out of it, with the real cf-serverd and its client; skipped, and says so, where
//! they aren't installed.
//!
//! The slow transfer is behind a [`Tap`], so that it is in its middle for as long as a test needs it there.

use std::fs::{self, DirBuilder};
use std::io::{self, Read};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::common::backend::Outside;
use crate::common::done::Done;
use crate::common::gate::{Gate, Setup};
use crate::common::net::Net;
use crate::common::{skip, wait_for, wait_until};

const DOCUMENT: &str = include_str!("../../docs/cf-serverd.md");

/// The document's directory, in place of which the test has one of its own.
const DOCUMENTED: &str = "/tmp/cf/";

const WORKDIR: &str = "CFENGINE_TEST_OVERRIDE_WORKDIR";

const SMALL: &[u8] = b"small";

/// More than all buffers between server and client hold.
const LARGE: usize = 64 << 20;

/// Where [`Tap`] stops.
const MIDDLE: u64 = 1 << 20;

#[test]
fn cf_serverd_of_the_document() {
    let (Some(net), true) = (Net::isolated(), installed()) else {
        return;
    };
    let setup = Setup::new(&net);
    let place = Place::new(setup.dir());
    place.admit(&place.alice);
    let gate = start(setup, &place);
    assert!(place.alice.is_admitted(gate.public()));
    assert!(!place.bob.is_admitted(gate.public()));

    let tap = Tap::start(gate.public());
    let transfer = place.alice.start_get(tap.address, "large");
    tap.wait_for_the_middle();
    place.admit(&place.bob);
    gate.reload();
    wait_until("the slow one alone is left to the old process", || {
        states(&gate) == ["1 draining 1", "2 active 0"]
    });
    assert!(place.bob.is_admitted(gate.public()));
    assert!(!place.alice.is_admitted(gate.public()));

    // No third one beside the two: it waits, and the second serves meanwhile.
    let mut third = gate.verb(["reload"]).spawn().expect("syngate runs");
    wait_until("the reload waits for an end", || {
        gate.status_json()["services"][0]["running"] == "waits for one of 2 generations to end"
    });
    assert!(place.bob.is_admitted(gate.public()));
    assert_eq!(states(&gate).len(), 2);
    assert!(third.try_wait().expect("wait").is_none());

    tap.open();
    wait_for_end(transfer);
    assert!(
        fs::read(place.alice.workdir.join("large")).expect("a file") == vec![7; LARGE],
        "not the whole file"
    );
    wait_for_end(third);
    wait_until("one generation is left", || states(&gate) == ["3 active 0"]);
    assert_eq!(gate.metrics().sum("forced_closes_total", &[]), 0.0);

    // A policy that cf-promises refuses changes nothing.
    fs::write(place.policy(), "bundle agent broken { broken").expect("the policy");
    let failed = gate.run(["reload"]);
    failed
        .expect_code(1)
        .expect_words(&["syntax error", "generation 3 serves"]);
    assert!(place.bob.is_admitted(gate.public()));
}

/// What the gate is there for: cf-serverd itself puts its new rules off until no connection is open.
#[test]
fn cf_serverd_alone_waits_for_the_last_connection() {
    let (Some(net), true) = (Net::isolated(), installed()) else {
        return;
    };
    let directory = tempfile::tempdir().expect("a directory");
    let place = Place::new(directory.path());
    place.admit(&place.alice);
    let address = net.free_address();
    let workdir = format!("{WORKDIR}={}", place.server.workdir.display());
    let words = ["env", &workdir]
        .map(str::to_owned)
        .into_iter()
        .chain(place.command());
    let server = Outside::command(address, &words.collect::<Vec<_>>(), directory.path());

    let tap = Tap::start(address);
    let transfer = place.alice.start_get(tap.address, "large");
    tap.wait_for_the_middle();
    place.admit(&place.bob);
    server.signal(Signal::SIGHUP);
    assert!(!place.bob.is_admitted(address));
    assert!(place.alice.is_admitted(address));

    tap.open();
    wait_for_end(transfer);
    wait_until("the new rules hold", || place.bob.is_admitted(address));
    assert!(!place.alice.is_admitted(address));
}

fn installed() -> bool {
    let version = Command::new("cf-serverd").arg("--version").output();
    let found = version.is_ok_and(|output| output.status.success());
    if !found {
        skip("cf-serverd isn't installed: apt-get install cfengine3");
    }
    found
}

/// The document's first block in `language`.
fn block(language: &str) -> &'static str {
    let fence = format!("\n```{language}\n");
    let (_, rest) = DOCUMENT.split_once(fence.as_str()).expect("a block");
    rest.split_once("```").expect("an end").0
}

/// The words of the document's gate, before and after the `--`, in the test's own directory.
fn command_line(directory: &Path) -> (Vec<String>, Vec<String>) {
    let start = "\nsyngate run --listen 127.0.0.1:5308 ";
    let (_, rest) = DOCUMENT.split_once(start).expect("a command line");
    let line = rest.lines().next().expect("a line");
    let line = line.replace(DOCUMENTED, &format!("{}/", directory.display()));
    let (options, command) = line.split_once(" -- ").expect("a command");
    let words = |text: &str| shlex::split(text).expect("words");
    (words(options), words(command))
}

fn start(setup: Setup, place: &Place) -> Gate {
    let (options, _) = command_line(&place.directory);
    // The test isn't as long as the default lasts.
    let mut pairs = options.windows(2);
    assert!(
        pairs.any(|pair| pair == ["--drain-timeout", "off"]),
        "{options:?}"
    );
    let workdir = place.server.workdir.to_str().expect("a plain path");
    setup
        .options(options)
        .options(["--min-ready", "100ms", "--max-generations", "2"])
        .environment(WORKDIR, workdir)
        .backend(place.command())
        .start()
}

/// `NUMBER STATE CONNECTIONS` of each generation.
fn states(gate: &Gate) -> Vec<String> {
    let status = gate.status_json();
    let generations = status["services"][0]["generations"].as_array().cloned();
    let line = |generation: serde_json::Value| {
        let state = generation["state"].as_str().expect("a word").to_owned();
        format!(
            "{} {state} {}",
            generation["number"], generation["connections"]
        )
    };
    generations
        .expect("generations")
        .into_iter()
        .map(line)
        .collect()
}

#[track_caller]
fn wait_for_end(mut child: Child) {
    let status = wait_for("it ends", || child.try_wait().expect("wait"));
    assert!(status.success(), "{status}");
}

/// The document's directory: a server, two hosts that it knows, and files.
struct Place {
    directory: PathBuf,
    server: Host,
    alice: Host,
    bob: Host,
}

impl Place {
    fn new(directory: &Path) -> Place {
        let host = |name| Host::new(directory, name);
        let place = Place {
            directory: directory.to_owned(),
            server: host("server"),
            alice: host("alice"),
            bob: host("bob"),
        };
        for host in [&place.alice, &place.bob] {
            let key = format!("127.0.0.1:{}", host.key().display());
            place.server.run("cf-key", &["-t", &key]);
        }
        let files = directory.join("files");
        fs::create_dir(&files).expect("a directory");
        fs::write(files.join("small"), SMALL).expect("a file");
        fs::write(files.join("large"), vec![7; LARGE]).expect("a file");
        place
    }

    /// cf-serverd, as the document's gate starts it.
    fn command(&self) -> Vec<String> {
        command_line(&self.directory).1
    }

    fn policy(&self) -> PathBuf {
        self.server.workdir.join("inputs/promises.cf")
    }

    /// Writes the policy that admits this host alone.
    fn admit(&self, host: &Host) {
        let key = host.key();
        let digest = host.run("cf-key", &["-p", key.to_str().expect("a plain path")]);
        let policy = block("cf").replace("KEY", digest.out.trim());
        let policy = policy.replace(DOCUMENTED, &format!("{}/", self.directory.display()));
        fs::write(self.policy(), policy).expect("the policy");
    }
}

/// A work directory of CFEngine, with a key.
struct Host {
    workdir: PathBuf,
    /// What the server has to give.
    files: PathBuf,
}

impl Host {
    fn new(directory: &Path, name: &str) -> Host {
        let host = Host {
            workdir: directory.join(name),
            files: directory.join("files"),
        };
        for part in ["bin", "inputs", "ppkeys"] {
            let mut builder = DirBuilder::new();
            let path = host.workdir.join(part);
            builder
                .recursive(true)
                .mode(0o700)
                .create(path)
                .expect("a directory");
        }
        let checker = host.workdir.join("bin/cf-promises");
        fs::copy("/usr/bin/cf-promises", checker).expect("cf-promises");
        host.run("cf-key", &[]);
        host
    }

    fn key(&self) -> PathBuf {
        self.workdir.join("ppkeys/localhost.pub")
    }

    fn program(&self, name: &str) -> Command {
        let mut command = Command::new(name);
        command.env(WORKDIR, &self.workdir).stdin(Stdio::null());
        command
    }

    fn run(&self, name: &str, arguments: &[&str]) -> Done {
        let output = self.program(name).args(arguments).output();
        let done = Done::from(output.expect(name));
        done.expect_code(0);
        done
    }

    fn client(&self, server: SocketAddr, name: &str) -> Command {
        let mut command = self.program("cf-net");
        command.args(["-H", &server.to_string(), "get"]);
        command
            .arg(self.files.join(name))
            .arg("-o")
            .arg(self.workdir.join(name));
        command
    }

    /// Whether the server gives this host the small file. The client's status doesn't tell.
    #[track_caller]
    fn is_admitted(&self, server: SocketAddr) -> bool {
        let small = self.workdir.join("small");
        let _ = fs::remove_file(&small); // of an earlier get
        let output = self.client(server, "small").output().expect("cf-net");
        let Ok(received) = fs::read(small) else {
            Done::from(output).expect_words(&["server refusal"]);
            return false;
        };
        assert_eq!(received, SMALL);
        true
    }

    fn start_get(&self, server: SocketAddr, name: &str) -> Child {
        self.client(server, name).spawn().expect("cf-net")
    }
}

/// A relay for one connection that passes on [`MIDDLE`] bytes of what the server sends, and the rest when it is opened.
struct Tap {
    address: SocketAddr,
    middle: Receiver<()>,
    open: Sender<()>,
}

impl Tap {
    fn start(server: SocketAddr) -> Tap {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("bind");
        let address = listener.local_addr().expect("an address");
        let (reached, middle) = mpsc::channel();
        let (open, opened) = mpsc::channel::<()>();
        thread::spawn(move || {
            let (client, _) = listener.accept().expect("the client");
            let server = TcpStream::connect(server).expect("the server");
            thread::scope(|scope| {
                scope.spawn(|| pass(&client, &server));
                let first = io::copy(&mut (&server).take(MIDDLE), &mut &client);
                // Where less came, or the test has failed, nobody waits at the other ends.
                if first.is_ok_and(|length| length == MIDDLE)
                    && reached.send(()).is_ok()
                    && opened.recv().is_ok()
                {
                    pass(&server, &client);
                }
                for end in [&client, &server] {
                    let _ = end.shutdown(Shutdown::Both); // the peer may have gone
                }
            });
        });
        Tap {
            address,
            middle,
            open,
        }
    }

    fn wait_for_the_middle(&self) {
        let limit = Duration::from_secs(30);
        self.middle
            .recv_timeout(limit)
            .expect("the transfer gets on");
    }

    fn open(&self) {
        self.open.send(()).expect("the transfer is still there");
    }
}

/// All that `from` sends, and its end. A connection that breaks shows in what the client has received.
fn pass(mut from: &TcpStream, mut to: &TcpStream) {
    let _ = io::copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Write);
}
