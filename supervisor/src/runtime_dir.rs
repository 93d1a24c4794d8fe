//! The runtime directory: what a gate leaves on disk while it runs, and what a dead gate has left.
//!
//! Invariants:
//! - A directory serves one gate: it holds a lock on `syngate.lock` for its life.
//! - Each generation has a directory of its own in it, `gen-SERVICE-NUMBER`, mode 0700, in which `leader` names its
//!   leader: pid, start time, session and boot.
//! - A process is ended as a leftover only if it is proven to belong to a dead generation, in one of three ways:
//!   it is the leader (pid, start time and boot match); it was started with `SYNGATE_DIR` naming this very directory,
//!   as seen from its own root; or it is in the leader's group and session, while the pid of the leader, which the
//!   group keeps from being used again, is nobody else's.
//! - It is signalled through a pidfd whose process was looked at again after the pidfd was made.
//!
//! The directory may vanish while the gate runs: what runs goes on, and the next generation makes and locks it anew.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::Signal;
use nix::unistd::Pid;

use crate::procfs::{self, Process};
use crate::sys;

/// The variable in which each child finds its generation's directory. It also proves whose child it was, so it has to
/// be exactly [`GenerationDir::path`].
pub const DIR_VARIABLE: &str = "SYNGATE_DIR";

/// How long a leftover has to end after SIGTERM, and again after SIGKILL.
const GRACE: Duration = Duration::from_secs(1);

/// Why the runtime directory can't be used.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeDirError {
    /// Another gate runs on it.
    #[error("runtime directory {} is in use by another gate ({holder}): stop that one, or choose another `runtime_dir`", path.display())]
    InUse {
        /// The directory.
        path: PathBuf,
        /// `pid N`, as that gate wrote it.
        holder: String,
    },
    /// There is something else of this name.
    #[error("runtime directory {} isn't a directory: remove it, or choose another `runtime_dir`", .0.display())]
    NotADirectory(PathBuf),
    /// The file system refuses.
    #[error("can't {action} {}: {source}; {}", path.display(), cure(source))]
    System {
        /// What was to be done.
        action: &'static str,
        /// With what.
        path: PathBuf,
        /// The kernel's reason.
        source: io::Error,
    },
    /// Processes of a dead gate don't end.
    #[error("processes {pids:?} of a dead gate's {} don't end: end them, then start again", path.display())]
    Leftovers {
        /// The dead generation's directory.
        path: PathBuf,
        /// Those that are still there.
        pids: Vec<i32>,
    },
}

fn cure(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "make room on that file system"
        }
        io::ErrorKind::ReadOnlyFilesystem => {
            "it is mounted read-only: choose a writable `runtime_dir`"
        }
        io::ErrorKind::PermissionDenied => {
            "give this user the directory, or choose another `runtime_dir`"
        }
        io::ErrorKind::NotFound => "its parent directory is missing: make it again",
        _ => "check the directory, or choose another `runtime_dir`",
    }
}

fn system<'a>(
    action: &'static str,
    path: &'a Path,
) -> impl FnOnce(io::Error) -> RuntimeDirError + 'a {
    move |source| RuntimeDirError::System {
        action,
        path: path.into(),
        source,
    }
}

/// The locked runtime directory of this gate.
pub struct RuntimeDir {
    path: PathBuf,
    lock: Flock<File>,
}

impl RuntimeDir {
    /// Makes the directory, mode 0700, if it isn't there, and locks it.
    ///
    /// # Errors
    /// Another gate holds it, or the file system refuses.
    pub fn open(path: &Path) -> Result<Self, RuntimeDirError> {
        let path = &std::path::absolute(path).map_err(system("find", path))?;
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)
            .map_err(|source| match source.kind() {
                io::ErrorKind::AlreadyExists | io::ErrorKind::NotADirectory => {
                    RuntimeDirError::NotADirectory(path.clone())
                }
                _ => system("make directory", path)(source),
            })?;
        // Children name their directories by this path, so it is the one without symbolic links.
        let path = path.canonicalize().map_err(system("find", path))?;
        let lock = lock(&path)?;
        Ok(RuntimeDir { path, lock })
    }

    /// Its absolute path, without symbolic links.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Ends what a dead gate has left here and removes its directories. Says how many processes it had to end.
    ///
    /// To be called before the first generation is made.
    ///
    /// # Errors
    /// A directory can't be read or removed, or a process doesn't end within 2 s.
    pub async fn recover(&self) -> Result<usize, RuntimeDirError> {
        let mut ended = 0;
        let entries = fs::read_dir(&self.path).map_err(system("read directory", &self.path))?;
        for entry in entries.flatten() {
            let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if is_directory && is_generation(&entry.file_name().to_string_lossy()) {
                let leftover = GenerationDir { path: entry.path() };
                ended += leftover.end_processes().await?;
                leftover.remove()?;
            }
        }
        Ok(ended)
    }

    /// Makes the directory of a generation. Where the runtime directory has vanished it is made and locked again.
    ///
    /// # Errors
    /// The file system refuses, or another gate has taken the place.
    pub fn generation(
        &mut self,
        service: &str,
        number: u64,
    ) -> Result<GenerationDir, RuntimeDirError> {
        let ours = self
            .lock
            .metadata()
            .map_err(system("look at", &self.path))?;
        let there = fs::metadata(self.path.join(LOCK));
        if there.is_err() || there.is_ok_and(|there| !same_file(&there, &ours)) {
            *self = RuntimeDir::open(&self.path)?;
        }
        let path = self.path.join(format!("gen-{service}-{number}"));
        let made = DirBuilder::new().mode(0o700).create(&path);
        made.map_err(system("make directory", &path))?;
        Ok(GenerationDir { path })
    }
}

/// Whether a name is that of a generation's directory.
fn is_generation(name: &str) -> bool {
    let number = name
        .strip_prefix("gen-")
        .and_then(|rest| rest.rsplit_once('-'));
    number.is_some_and(|(service, number)| !service.is_empty() && number.parse::<u64>().is_ok())
}

/// Name of the file that is locked; it holds the pid of the gate, for people.
const LOCK: &str = "syngate.lock";

fn lock(directory: &Path) -> Result<Flock<File>, RuntimeDirError> {
    let path = directory.join(LOCK);
    let mut options = File::options();
    options
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW);
    let file = options.open(&path).map_err(system("open", &path))?;
    let mut lock =
        Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| match errno {
            Errno::EWOULDBLOCK => {
                let holder = fs::read_to_string(&path).unwrap_or_default();
                let holder = if holder.trim().is_empty() {
                    "pid unknown"
                } else {
                    holder.trim()
                };
                RuntimeDirError::InUse {
                    path: directory.into(),
                    holder: holder.into(),
                }
            }
            errno => system("lock", &path)(errno.into()),
        })?;
    let holder = format!("pid {}\n", std::process::id());
    lock.set_len(0)
        .and_then(|()| lock.write_all(holder.as_bytes()))
        .map_err(system("write", &path))?;
    Ok(lock)
}

fn same_file(a: &fs::Metadata, b: &fs::Metadata) -> bool {
    (a.dev(), a.ino()) == (b.dev(), b.ino())
}

/// The directory of one generation. It stays until [`GenerationDir::remove`]: an exec in place keeps it.
#[derive(Debug)]
pub struct GenerationDir {
    path: PathBuf,
}

impl GenerationDir {
    /// Its absolute path: `{dir}`, and the value of [`DIR_VARIABLE`].
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes down who leads this generation; to be called right after the spawn.
    ///
    /// # Errors
    /// The file can't be written whole.
    pub fn record_leader(&self, pid: i32) -> Result<(), RuntimeDirError> {
        // A leader that is gone already leaves nothing to find.
        let Some(leader) = Leader::of(pid) else {
            return Ok(());
        };
        let path = self.path.join(LEADER);
        let new = self.path.join("leader.new");
        let written = fs::write(&new, leader.to_text()).and_then(|()| fs::rename(&new, &path));
        written.map_err(system("write", &path))
    }

    /// Ends every process of this generation: SIGTERM, 1 s, SIGKILL. Says how many there were.
    ///
    /// For leftovers of a dead gate, and for what a backend whose leader has ended has left outside its group.
    ///
    /// # Errors
    /// Some don't end.
    pub async fn end_processes(&self) -> Result<usize, RuntimeDirError> {
        let mut count = 0;
        // A process may fork between the look and the signal, so SIGKILL gets several rounds.
        for signal in [
            Signal::SIGTERM,
            Signal::SIGKILL,
            Signal::SIGKILL,
            Signal::SIGKILL,
        ] {
            let found = self.processes();
            if found.is_empty() {
                return Ok(count);
            }
            count = count.max(found.len());
            let pids: Vec<i32> = found.iter().map(|process| process.pid).collect();
            tracing::warn!(directory = %self.path.display(), ?pids, %signal, "ending leftovers");
            let pidfds = found.iter().filter_map(|process| send(process, signal));
            let pidfds: Vec<OwnedFd> = pidfds.collect();
            // Either all have ended or the next round looks again.
            let _ = tokio::time::timeout(GRACE, all_end(pidfds)).await;
        }
        match self.processes() {
            left if left.is_empty() => Ok(count),
            left => {
                let pids = left.iter().map(|process| process.pid).collect();
                Err(RuntimeDirError::Leftovers {
                    path: self.path.clone(),
                    pids,
                })
            }
        }
    }

    /// Removes the directory and all in it; one that is gone already is no error.
    ///
    /// # Errors
    /// The file system refuses.
    pub fn remove(self) -> Result<(), RuntimeDirError> {
        match fs::remove_dir_all(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed.map_err(system("remove directory", &self.path)),
        }
    }

    /// The living processes that belong to this generation.
    fn processes(&self) -> Vec<Process> {
        let own = std::process::id().cast_signed();
        let leader = fs::read_to_string(self.path.join(LEADER)).ok();
        let leader = leader.as_deref().and_then(Leader::from_text);
        // A name of another boot names nobody.
        let leader = leader.filter(|leader| Some(&leader.boot) == procfs::boot_id().as_ref());
        let mut all = procfs::processes();
        let number_taken = leader.as_ref().is_some_and(|leader| {
            all.iter()
                .any(|process| process.pid == leader.pid && process.start != leader.start)
        });
        let in_group = |process: &Process| {
            !number_taken && leader.as_ref().is_some_and(|leader| leader.leads(process))
        };
        all.retain(|process| {
            process.pid != own
                && !process.zombie
                && (in_group(process) || self.is_named_by(process.pid))
        });
        all
    }

    /// Whether a process was started with [`DIR_VARIABLE`] naming this directory: by the same path, and the same
    /// directory from where that process sees it (a container may use the same path for another one).
    fn is_named_by(&self, pid: i32) -> bool {
        let variable = [
            DIR_VARIABLE.as_bytes(),
            b"=",
            self.path.as_os_str().as_bytes(),
        ]
        .concat();
        if !procfs::has_variable(pid, &variable) {
            return false;
        }
        let root = Path::new("/proc").join(pid.to_string()).join("root");
        let below = self.path.strip_prefix("/").unwrap_or(&self.path);
        match (fs::metadata(root.join(below)), fs::metadata(&self.path)) {
            (Ok(theirs), Ok(ours)) => same_file(&theirs, &ours),
            _ => false,
        }
    }
}

/// Signals this very process; its pidfd if it is still there.
fn send(process: &Process, signal: Signal) -> Option<OwnedFd> {
    let pidfd = sys::pidfd_open(Pid::from_raw(process.pid)).ok()?;
    // The pid may have been used again before the pidfd was made; the start time tells.
    let again = procfs::process(process.pid)?;
    if again.start != process.start {
        return None;
    }
    sys::pidfd_send_signal(&pidfd, signal).ok()?;
    Some(pidfd)
}

/// Waits until each of these processes has ended: then its pidfd is readable.
async fn all_end(pidfds: Vec<OwnedFd>) {
    for pidfd in pidfds {
        if let Ok(pidfd) = sys::readable(pidfd) {
            // An error ends the wait early, and the caller looks again.
            let _ = pidfd.readable().await;
        }
    }
}

/// Name of the file that says who leads a generation.
const LEADER: &str = "leader";

/// The identity of a leader, and what its group has in common.
#[derive(Debug, PartialEq, Eq)]
struct Leader {
    pid: i32,
    start: u64,
    session: i32,
    boot: String,
}

impl Leader {
    fn of(pid: i32) -> Option<Self> {
        let Process { start, session, .. } = procfs::process(pid)?;
        Some(Leader {
            pid,
            start,
            session,
            boot: procfs::boot_id()?,
        })
    }

    /// Whether a process is in the group, provided that the leader's pid is nobody else's.
    fn leads(&self, process: &Process) -> bool {
        process.group == self.pid && process.session == self.session && process.start >= self.start
    }

    fn to_text(&self) -> String {
        let Leader {
            pid,
            start,
            session,
            boot,
        } = self;
        format!("pid {pid}\nstart {start}\nsession {session}\nboot {boot}\n")
    }

    fn from_text(text: &str) -> Option<Self> {
        let field = |name| {
            text.lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))
        };
        Some(Leader {
            pid: field("pid")?.parse().ok()?,
            start: field("start")?.parse().ok()?,
            session: field("session")?.parse().ok()?,
            boot: field("boot")?.to_owned(),
        })
    }
}

#[cfg(test)]
#[path = "runtime_dir_tests.rs"]
mod tests;
