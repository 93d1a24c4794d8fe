//! The demo's clients, and what they saw.
//!
//! Every answer is verified to the byte, up to the end of the connection, and so is who gave it: a connection that begins after
//! a reload has succeeded must be served by that version or a later one. Whatever else happens is a failure. There is one
//! exception: a connection that the generation had accepted which the demo killed with -9 is counted as cut.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

/// New connections a second, if the machine can.
const RATE: f64 = 1200.0;
const TICK: Duration = Duration::from_millis(5);

/// What wasn't begun for so long isn't caught up with: a busy machine gets fewer, not a burst.
const CATCH_UP: Duration = Duration::from_millis(50);

/// New connections at once, at most. So many wait in a hold; with a descriptor limit of 1,024 the gate can take them.
const AT_ONCE: usize = 256;

/// No step may take longer: over anything that a hold or a busy machine makes of it.
const PATIENCE: Duration = Duration::from_secs(60);

/// After a failure, so that a gate that is gone isn't asked all the time.
const AFTER_FAILURE: Duration = Duration::from_millis(100);

/// So many failures are told in words.
const REASONS: usize = 5;

/// How a connection spends its life.
#[derive(Clone, Copy, Debug)]
pub(super) struct Habit {
    /// It asks for a last answer when it is older.
    pub(super) life: Duration,
    /// The longest pause before a request; each is a random part of it.
    pub(super) pause: Duration,
}

impl Habit {
    /// One request, at once.
    pub(super) const ONE_REQUEST: Habit = Habit {
        life: Duration::ZERO,
        pause: Duration::ZERO,
    };

    fn is_kept(self) -> bool {
        !self.life.is_zero()
    }
}

/// What the clients of a service saw.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    /// Connections with one request, which ended well.
    pub(super) new: u64,
    /// Kept connections that ended well.
    pub(super) kept: u64,
    /// Requests on kept connections.
    pub(super) requests: u64,
    /// Connections that were cut by the kill.
    pub(super) cut: u64,
    pub(super) failed: u64,
    /// Of the first failures.
    pub(super) reasons: Vec<String>,
    /// From the beginning of the connect to its end.
    pub(super) connect: Vec<Duration>,
    /// From the beginning of the connect to the first byte.
    pub(super) first_byte: Vec<Duration>,
}

impl Tally {
    pub(super) fn add(&mut self, other: Tally) {
        self.new += other.new;
        self.kept += other.kept;
        self.requests += other.requests;
        self.cut += other.cut;
        self.failed += other.failed;
        self.reasons.extend(other.reasons);
        self.connect.extend(other.connect);
        self.first_byte.extend(other.first_byte);
    }
}

/// A generation that was killed, and whose connections may be cut.
#[derive(Debug)]
struct Killed {
    generation: u64,
    /// It had accepted one that it hadn't greeted. The backend's invariant: there can be only one.
    ungreeted: bool,
    /// When its successor was active.
    succeeded: Option<Instant>,
}

impl Killed {
    /// Whether a connection may have been cut by the kill.
    fn explains(&mut self, dialled: Instant, greeted_by: Option<u64>) -> bool {
        if let Some(generation) = greeted_by {
            return generation == self.generation;
        }
        let in_time = self.succeeded.is_none_or(|at| dialled < at);
        in_time && !std::mem::replace(&mut self.ungreeted, true)
    }
}

/// The clients of one service.
pub(super) struct Clients {
    address: SocketAddr,
    /// What a new connection must be served by, at least.
    version: AtomicU64,
    stop: AtomicBool,
    tally: Mutex<Tally>,
    killed: Mutex<Option<Killed>>,
}

impl Clients {
    pub(super) fn new(address: SocketAddr) -> Arc<Clients> {
        Arc::new(Clients {
            address,
            version: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            tally: Mutex::default(),
            killed: Mutex::default(),
        })
    }

    /// From now on nothing older may serve a new connection.
    pub(super) fn expect(&self, version: u64) {
        self.version.store(version, Ordering::Relaxed);
    }

    /// This generation is killed now.
    pub(super) fn killing(&self, generation: u64) {
        *locked(&self.killed) = Some(Killed {
            generation,
            ungreeted: false,
            succeeded: None,
        });
    }

    /// The killed one has a successor now.
    pub(super) fn succeeded(&self) {
        if let Some(killed) = locked(&self.killed).as_mut() {
            killed.succeeded = Some(Instant::now());
        }
    }

    /// Begins no more; who is connected asks for a last answer.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Connections so far, and requests on kept ones.
    pub(super) fn counts(&self) -> (u64, u64) {
        let tally = locked(&self.tally);
        (tally.new + tally.kept, tally.requests)
    }

    pub(super) fn tally(&self) -> Tally {
        locked(&self.tally).clone()
    }

    fn stopping(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// New connections, all the time, until `stop`; returns when all have ended.
    pub(super) async fn always_new(self: Arc<Self>) {
        let slots = Arc::new(Semaphore::new(AT_ONCE));
        let mut connections = JoinSet::new();
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut due = 0.0;
        let mut last = Instant::now();
        while !self.stopping() {
            ticks.tick().await;
            due += RATE * last.elapsed().min(CATCH_UP).as_secs_f64();
            last = Instant::now();
            while due >= 1.0 {
                due -= 1.0;
                let clients = Arc::clone(&self);
                let slot = Arc::clone(&slots).acquire_owned().await;
                connections.spawn(async move {
                    clients.connection(Habit::ONE_REQUEST).await;
                    drop(slot);
                });
            }
            while connections.try_join_next().is_some() {}
        }
        while connections.join_next().await.is_some() {}
    }

    /// One connection after the other, each kept, until `stop`.
    pub(super) async fn always_kept(self: Arc<Self>, habit: Habit) {
        while !self.stopping() {
            self.connection(habit).await;
        }
    }

    async fn connection(&self, habit: Habit) {
        let dialled = Instant::now();
        let mut greeted_by = None;
        let Err(error) = self.converse(habit, &mut greeted_by).await else {
            let mut tally = locked(&self.tally);
            *if habit.is_kept() {
                &mut tally.kept
            } else {
                &mut tally.new
            } += 1;
            return;
        };
        let cut = locked(&self.killed)
            .as_mut()
            .is_some_and(|killed| killed.explains(dialled, greeted_by));
        {
            let mut tally = locked(&self.tally);
            if cut {
                tally.cut += 1;
            } else {
                tally.failed += 1;
                if tally.reasons.len() < REASONS {
                    let by = greeted_by.map_or("not greeted".to_owned(), |generation| {
                        format!("greeted by generation {generation}")
                    });
                    tally
                        .reasons
                        .push(format!("{}, {by}: {error}", self.address));
                }
            }
        }
        sleep(AFTER_FAILURE).await;
    }

    async fn converse(&self, habit: Habit, greeted_by: &mut Option<u64>) -> io::Result<()> {
        let expected = self.version.load(Ordering::Relaxed);
        let began = Instant::now();
        let stream = patient(TcpStream::connect(self.address)).await?;
        let connected = began.elapsed();
        let mut stream = BufReader::new(stream);
        patient(stream.fill_buf()).await?;
        let answered = began.elapsed();

        let greeting = line(&mut stream).await?;
        let (generation, version) = parse_greeting(&greeting)
            .ok_or_else(|| unexpected(format!("`{greeting}` is no greeting")))?;
        *greeted_by = Some(generation);
        {
            let mut tally = locked(&self.tally);
            tally.connect.push(connected);
            tally.first_byte.push(answered);
        }
        if version < expected {
            return Err(unexpected(format!(
                "served by version {version}, when {expected} was active"
            )));
        }
        for number in 1_u64.. {
            if !habit.pause.is_zero() {
                sleep(random(habit.pause)).await;
            }
            let done = self.stopping() || began.elapsed() >= habit.life;
            let request = format!("{} {number}\n", if done { "last" } else { "ping" });
            patient(stream.write_all(request.as_bytes())).await?;
            let answer = line(&mut stream).await?;
            if habit.is_kept() {
                locked(&self.tally).requests += 1;
            }
            if answer == format!("last {number}") {
                break;
            }
            if done || answer != format!("pong {number}") {
                let request = request.trim_end();
                return Err(unexpected(format!("`{answer}` answers `{request}`")));
            }
        }
        match patient(stream.read(&mut [0])).await? {
            0 => Ok(()),
            _ => Err(unexpected("bytes after the last answer".to_owned())),
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics while it holds one, and counts are whole at any moment.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A line without its end.
async fn line(stream: &mut BufReader<TcpStream>) -> io::Result<String> {
    let mut line = String::new();
    patient(stream.read_line(&mut line)).await?;
    match line.pop() {
        Some('\n') => Ok(line),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// `generation N version M`.
fn parse_greeting(line: &str) -> Option<(u64, u64)> {
    let (generation, version) = line.strip_prefix("generation ")?.split_once(" version ")?;
    Some((generation.parse().ok()?, version.parse().ok()?))
}

async fn patient<T>(step: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    timeout(PATIENCE, step)
        .await
        .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

fn unexpected(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// A random part of a time. Good enough to spread requests.
fn random(most: Duration) -> Duration {
    let part = RandomState::new().hash_one(()) >> 32;
    most.mul_f64(part as f64 / f64::from(u32::MAX))
}
