//! The runtime directory: what a gate leaves on disk while it runs, and what a dead gate has left.
//!
//! Invariants:
//! - A directory serves one gate: it holds a lock on `syngate.lock` for its life.
//! - Each generation has a directory of its own in it, `gen-SERVICE-NUMBER`, mode 0700, in which `leader` names its
//!   leader: pid, start time, session, boot and pid namespace.
//!
//! The directory may vanish while the gate runs: what runs goes on, and the next generation makes and locks it anew.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use crate::leftovers::{self, Leader};

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
    /// To be called before the first generation is made, or after the last one has ended.
    ///
    /// # Errors
    /// A directory can't be read or removed, or a process doesn't end within 2 s.
    pub async fn recover(&self) -> Result<usize, RuntimeDirError> {
        let mut ended = 0;
        let entries = match fs::read_dir(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
            entries => entries.map_err(system("read directory", &self.path))?,
        };
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

pub(crate) fn same_file(a: &fs::Metadata, b: &fs::Metadata) -> bool {
    (a.dev(), a.ino()) == (b.dev(), b.ino())
}

/// The directory of one generation. It stays until [`GenerationDir::remove`]: an exec in place keeps it.
#[derive(Debug)]
pub struct GenerationDir {
    path: PathBuf,
}

impl GenerationDir {
    /// One for a check, in `parent`: that of generation 0, which never runs. What an earlier check has left there goes.
    ///
    /// # Errors
    /// The file system refuses.
    pub(crate) async fn for_check(parent: &Path, service: &str) -> Result<Self, RuntimeDirError> {
        let path = parent.join(format!("gen-{service}-0"));
        if path.exists() {
            let cut_short = GenerationDir { path: path.clone() };
            cut_short.end_processes().await?;
            cut_short.remove()?;
        }
        let made = DirBuilder::new().mode(0o700).create(&path);
        made.map_err(system("make directory", &path))?;
        Ok(GenerationDir { path })
    }

    /// Its absolute path: `{dir}`, and the value of [`crate::leftovers::DIR_VARIABLE`].
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
        let path = self.path.join(leftovers::LEADER);
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
        leftovers::end(&self.path)
            .await
            .map_err(|pids| RuntimeDirError::Leftovers {
                path: self.path.clone(),
                pids,
            })
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
}

#[cfg(test)]
#[path = "runtime_dir_tests.rs"]
mod tests;
