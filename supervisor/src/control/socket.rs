//! Where the control socket is, and that it is ours: the same search for the gate and for its clients.
//!
//! The file has mode 0600 from its first moment, since fchmod(2) on a socket sets the mode that bind(2) gives to its file.
//! Only a socket that refuses a connect is replaced, and only the inode made here is removed at the end.
//! Two gates that find the same stale socket in the same instant are told apart by the lock of their runtime directory, which
//! is taken before.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs::{self, DirBuilder, Metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use nix::fcntl::{AT_FDCWD, AtFlags};
use nix::sys::socket::{UnixCredentials, getsockopt, sockopt::PeerCredentials};
use nix::sys::stat::{Mode, fchmod};
use nix::unistd::{AccessFlags, Uid, faccessat, geteuid};
use socket2::{Domain, SockAddr, Socket, Type};

use crate::reserve::Reserve;

/// Longest path of a unix socket, in bytes: sun_path less its NUL (unix(7)).
const PATH_MAX: usize = 107;

/// Descriptors for the day when there are no others: one for the client, two that an answer may open for a moment.
const RESERVE: usize = 3;

/// Clients that wait for their accept.
const BACKLOG: i32 = 128;

/// Why there is no control socket, or nobody at it.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// Another gate has it.
    #[error("another gate answers at {}{}: stop it, or give --control another path", path.display(), by(pid))]
    Taken {
        /// The socket.
        path: PathBuf,
        /// The other gate's process, where the kernel tells.
        pid: Option<i32>,
    },
    /// Something else is there.
    #[error("{} is not a socket and was left alone: give --control another path, or remove what is there", path.display())]
    NotASocket {
        /// What is there.
        path: PathBuf,
    },
    /// The kernel can't name it.
    #[error("the control socket's path {} is longer than {PATH_MAX} bytes: give --control a shorter one", path.display())]
    TooLong {
        /// The path.
        path: PathBuf,
    },
    /// No default place can be written.
    #[error("no place for the control socket can be written ({tried}): give --control PATH")]
    NoPlace {
        /// Each place and why not.
        tried: String,
    },
    /// The system refused.
    #[error("the control socket {} can't be made ({source}): give --control a path in a directory where uid {} may make one", path.display(), geteuid())]
    Refused {
        /// The socket.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A client isn't the gate's user.
    #[error(
        "uid {} may not use the control socket {}, which is uid {owner}'s: ask as that user or as root, as with sudo",
        geteuid(),
        path.display()
    )]
    Denied {
        /// The socket.
        path: PathBuf,
        /// Whose it is, or the first directory on the way that keeps this user out.
        owner: u32,
    },
    /// A client found no gate.
    #[error(
        "no gate answers ({tried}): start one with `syngate run`, or give --control the path of the one that runs"
    )]
    Nobody {
        /// Each place and why not.
        tried: String,
    },
}

fn by(pid: &Option<i32>) -> String {
    pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default()
}

/// A bound, listening control socket.
#[derive(Debug)]
pub struct ControlSocket {
    /// Dropped before the listener: while that is open, nothing else can have its inode's number.
    pub(super) name: Name,
    pub(super) listener: UnixListener,
    pub(super) reserve: Reserve,
    /// Whose clients are answered: the gate's user and root.
    pub(super) admitted: [Uid; 2],
}

impl ControlSocket {
    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.name.path
    }
}

/// The socket's file; removed when dropped, if it is still the one that was made here.
#[derive(Debug)]
pub(super) struct Name {
    path: PathBuf,
    inode: (u64, u64),
}

impl Drop for Name {
    fn drop(&mut self) {
        if fs::symlink_metadata(&self.path).is_ok_and(|found| inode(&found) == self.inode) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn inode(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

/// Binds the control socket, replacing one whose gate has died. Makes its directory where that is missing, for this user alone.
pub fn bind(path: &Path) -> Result<ControlSocket, ControlError> {
    let address = address(path)?;
    remove_stale(path)?;
    let make = || -> io::Result<ControlSocket> {
        if let Some(parent) = path.parent()
            && !parent.as_os_str().is_empty()
            && !parent.try_exists()?
        {
            DirBuilder::new().mode(0o700).create(parent)?;
        }
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        fchmod(&socket, Mode::S_IRUSR | Mode::S_IWUSR)?;
        socket.bind(&address)?;
        let name = Name {
            path: path.to_owned(),
            inode: inode(&fs::symlink_metadata(path)?),
        };
        socket.listen(BACKLOG)?;
        socket.set_nonblocking(true)?;
        Ok(ControlSocket {
            name,
            reserve: Reserve::new(RESERVE, &socket)?,
            listener: socket.into(),
            admitted: [geteuid(), Uid::from_raw(0)],
        })
    };
    make().map_err(|source| ControlError::Refused {
        path: path.to_owned(),
        source,
    })
}

/// Removes a socket that refuses a connect. Everything else is an error, but for nothing.
fn remove_stale(path: &Path) -> Result<(), ControlError> {
    let refused = |source| ControlError::Refused {
        path: path.to_owned(),
        source,
    };
    let found = match fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(refused(error)),
    };
    if !found.file_type().is_socket() {
        return Err(ControlError::NotASocket {
            path: path.to_owned(),
        });
    }
    match dial(path) {
        Ok(stream) => {
            let pid = credentials(&stream).ok().map(|peer| peer.pid());
            Err(ControlError::Taken {
                path: path.to_owned(),
                pid,
            })
        }
        // Its queue is full, so somebody has it.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(ControlError::Taken {
            path: path.to_owned(),
            pid: None,
        }),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(refused)
        }
        Err(error) => Err(refused(error)),
    }
}

/// Connects to the gate at `path`, or at the first default place where one answers. The stream is non-blocking.
///
/// # Errors
/// [`ControlError::Denied`] names a socket of somebody else, [`ControlError::Nobody`] every place that was tried.
pub fn connect(path: Option<&Path>) -> Result<(UnixStream, PathBuf), ControlError> {
    let places = match path {
        Some(path) => vec![Place::given(path)],
        None => places(
            std::env::var_os("XDG_RUNTIME_DIR").as_deref(),
            &std::env::temp_dir(),
        ),
    };
    let mut tried = Tried::default();
    let mut denied = None;
    for place in places {
        match place.trusted().and_then(|()| dial(&place.path)) {
            Ok(stream) => return Ok((stream, place.path)),
            Err(error) => {
                tried.add(&place, &error);
                if error.kind() == io::ErrorKind::PermissionDenied {
                    denied = denied.or(owned(place.path));
                }
            }
        }
    }
    Err(denied.unwrap_or(ControlError::Nobody { tried: tried.0 }))
}

/// Whose it is that keeps this user out: the socket's owner, or the owner of the directory behind which nothing can be seen.
fn owned(path: PathBuf) -> Option<ControlError> {
    let visible = path
        .ancestors()
        .find_map(|way| fs::symlink_metadata(way).ok());
    visible.map(|found| ControlError::Denied {
        owner: found.uid(),
        path,
    })
}

/// The first default place where [`bind`] can make the socket. Changes nothing.
///
/// # Errors
/// [`ControlError::NoPlace`] names every place that was tried.
pub fn default_path() -> Result<PathBuf, ControlError> {
    first_writable(places(
        std::env::var_os("XDG_RUNTIME_DIR").as_deref(),
        &std::env::temp_dir(),
    ))
}

fn first_writable(places: Vec<Place>) -> Result<PathBuf, ControlError> {
    let mut tried = Tried::default();
    for place in places {
        match place.writable() {
            Ok(()) => return Ok(place.path),
            Err(error) => tried.add(&place, &error),
        }
    }
    Err(ControlError::NoPlace { tried: tried.0 })
}

/// A place where a control socket may be.
struct Place {
    path: PathBuf,
    directory: Directory,
}

/// What the directory of a place is.
#[derive(PartialEq)]
enum Directory {
    /// It must be there already.
    Given,
    /// syngate's own: may be missing.
    Own,
    /// The same, in a directory that everybody can write: it must be ours, or its socket could be anybody's.
    Shared,
}

/// The default places, best first.
fn places(xdg_runtime_dir: Option<&OsStr>, temp: &Path) -> Vec<Place> {
    let mut places = Vec::new();
    if let Some(directory) = xdg_runtime_dir
        .map(Path::new)
        .filter(|path| path.is_absolute())
    {
        places.push(Place::given(&directory.join("syngate.sock")));
    }
    places.push(Place {
        path: "/run/syngate/control.sock".into(),
        directory: Directory::Own,
    });
    let shared = temp
        .join(format!("syngate-{}", geteuid()))
        .join("control.sock");
    places.push(Place {
        path: shared,
        directory: Directory::Shared,
    });
    places
}

impl Place {
    fn given(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            directory: Directory::Given,
        }
    }

    /// Every default place has a parent.
    fn parent(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new("/"))
    }

    /// Whether [`bind`] can make the socket here. Changes nothing.
    fn writable(&self) -> io::Result<()> {
        let parent = self.parent();
        let directory = match parent.parent() {
            // Made by `bind`.
            Some(above) if self.directory != Directory::Given && !parent.try_exists()? => above,
            _ => {
                self.trusted()?;
                parent
            }
        };
        let flags = AccessFlags::W_OK | AccessFlags::X_OK;
        Ok(faccessat(AT_FDCWD, directory, flags, AtFlags::AT_EACCESS)?)
    }

    fn trusted(&self) -> io::Result<()> {
        if self.directory != Directory::Shared {
            return Ok(());
        }
        let found = fs::symlink_metadata(self.parent())?;
        if !found.is_dir() || found.uid() != geteuid().as_raw() || found.mode() & 0o022 != 0 {
            return Err(io::Error::other("its directory isn't this user's alone"));
        }
        Ok(())
    }
}

/// What was tried and why it failed, as one text.
#[derive(Default)]
struct Tried(String);

impl Tried {
    fn add(&mut self, place: &Place, error: &io::Error) {
        let separator = if self.0.is_empty() { "" } else { "; " };
        // Writing to a String can't fail.
        let _ = write!(self.0, "{separator}{}: {error}", place.path.display());
    }
}

fn address(path: &Path) -> Result<SockAddr, ControlError> {
    if path.as_os_str().len() > PATH_MAX {
        return Err(ControlError::TooLong {
            path: path.to_owned(),
        });
    }
    SockAddr::unix(path).map_err(|source| ControlError::Refused {
        path: path.to_owned(),
        source,
    })
}

/// A non-blocking connect: to a unix socket it succeeds or fails at once, with EAGAIN where the queue is full (connect(2)).
fn dial(path: &Path) -> io::Result<UnixStream> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.connect(&SockAddr::unix(path)?)?;
    Ok(socket.into())
}

/// Who listens at the other end, as of its listen(2) (unix(7), SO_PEERCRED).
fn credentials(stream: &UnixStream) -> nix::Result<UnixCredentials> {
    getsockopt(stream, PeerCredentials)
}

#[cfg(test)]
#[path = "socket_tests.rs"]
mod tests;
