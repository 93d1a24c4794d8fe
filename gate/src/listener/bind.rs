//! Making public listeners, and saying what stands in the way.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::stat::Mode;
use socket2::{Domain, SockAddr, Socket, TcpKeepalive, Type};

use super::{Address, Listener, OptionRefused, Options, Origin, canonical, own};

/// Permissions of a unix listener's file that was given none.
const DEFAULT_MODE: u32 = 0o600;

/// Probes of a silent client before it is given up.
const KEEPALIVE_PROBES: u32 = 6;

/// What the kernel takes (tcp(7)).
const KEEPALIVE_LEAST: Duration = Duration::from_secs(1);
const KEEPALIVE_MOST: Duration = Duration::from_secs(32_767);

/// Why there is no listener.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Somebody else has the address.
    #[error("{address} is in use: `{find}` names who has it; stop it or listen elsewhere")]
    InUse {
        /// What was asked for.
        address: Address,
        /// A command that shows the holder.
        find: String,
    },
    /// A port that this process may not have.
    #[error(
        "permission denied on port {port}: ports below {first_free} need the capability \
         CAP_NET_BIND_SERVICE, or the sysctl net.ipv4.ip_unprivileged_port_start at {port} or less"
    )]
    PrivilegedPort {
        /// The port.
        port: u16,
        /// The sysctl's value now.
        first_free: u16,
    },
    /// No interface has the address.
    #[error("{0} is no address of this machine: `ip address` shows those it has")]
    NotOurs(Address),
    /// An IPv6 address where the system has no IPv6.
    #[error("{0} needs IPv6, which this system has switched off: listen on an IPv4 address")]
    NoIpv6(Address),
    /// The file at a unix listener's path is no socket.
    #[error("{} exists and is no socket: remove it or choose another path", .0.display())]
    NotASocket(PathBuf),
    /// A unix listener's directory is missing.
    #[error("{} has no directory to stand in: create it first", .0.display())]
    NoDirectory(PathBuf),
    /// A unix listener's directory isn't ours to write to.
    #[error("permission denied on {}: the gate's user must be able to write to its directory", .0.display())]
    Directory(PathBuf),
    /// No such socket was inherited.
    #[error("fd:{0} was not passed: no socket of that name is in LISTEN_FDNAMES")]
    NotPassed(String),
    /// What was inherited is no listening stream socket.
    #[error(
        "fd:{0} is no listening TCP or unix stream socket: pass one on which listen was called"
    )]
    NotListening(String),
    /// The socket can't have what the listener asks for.
    #[error("cannot listen on {address}: {refused}")]
    Option {
        /// What was asked for.
        address: Address,
        /// What it can't have.
        refused: OptionRefused,
    },
    /// Anything else.
    #[error("cannot listen on {address}: {error}")]
    Other {
        /// What was asked for.
        address: Address,
        /// The system's reason.
        error: io::Error,
    },
}

/// Why there is no TCP listener.
#[derive(Debug)]
enum Failed {
    System(io::Error),
    Option(OptionRefused),
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Failed {
        Failed::System(error)
    }
}

impl From<OptionRefused> for Failed {
    fn from(refused: OptionRefused) -> Failed {
        Failed::Option(refused)
    }
}

/// Opens a listener. Inherited ones exist already: see [`from_inherited`].
///
/// A bare port becomes one dual-stack socket, or one of IPv4 where the system has no IPv6 or has switched it off
/// (`net.ipv6.conf.all.disable_ipv6`). Port 0 takes a free one.
pub fn bind(name: &str, address: &Address, options: &Options) -> Result<Listener, BindError> {
    let listener = match address {
        Address::Port(port) => bind_port(name, *port, options),
        Address::Tcp(tcp) => bind_tcp(name, *tcp, options),
        Address::Unix { path, mode } => {
            return bind_unix(name, address, path, *mode, options);
        }
        Address::Inherited(passed) => return Err(BindError::NotPassed(passed.clone())),
    };
    listener.map_err(|failed| match failed {
        Failed::System(error) => tcp_error(address, error),
        Failed::Option(refused) => BindError::Option {
            address: address.clone(),
            refused,
        },
    })
}

/// Makes a listener of a socket that the gate was started with; it keeps the backlog and the file that it has.
pub fn from_inherited(name: &str, fd: OwnedFd, options: &Options) -> Result<Listener, BindError> {
    let socket = Socket::from(fd);
    // What isn't a socket has no such options.
    if !is_listening_stream(&socket).unwrap_or(false) {
        return Err(BindError::NotListening(name.to_owned()));
    }
    adopt(name, socket, options).map_err(|error| BindError::Other {
        address: Address::Inherited(name.to_owned()),
        error,
    })
}

fn is_listening_stream(socket: &Socket) -> io::Result<bool> {
    let domains = [Domain::IPV4, Domain::IPV6, Domain::UNIX];
    Ok(socket.is_listener()?
        && socket.r#type()? == Type::STREAM
        && domains.contains(&socket.domain()?))
}

fn adopt(name: &str, socket: Socket, options: &Options) -> io::Result<Listener> {
    socket.set_nonblocking(true)?;
    socket.set_cloexec(true)?;
    if socket.domain()? != Domain::UNIX {
        set_inheritable(&socket, options)?;
    }
    Listener::of(name, socket, Origin::Inherited)
}

fn bind_port(name: &str, port: u16, options: &Options) -> Result<Listener, Failed> {
    let v4 = || bind_tcp(name, (Ipv4Addr::UNSPECIFIED, port).into(), options);
    if ipv6_is_off() {
        return v4();
    }
    let dual_stack = Options {
        v6only: false,
        ..options.clone()
    };
    match bind_tcp(name, (Ipv6Addr::UNSPECIFIED, port).into(), &dual_stack) {
        Err(Failed::System(error)) if is_no_ipv6(&error) => v4(),
        result => result,
    }
}

/// The switch that an administrator has: the wildcard could still be bound, but no IPv6 client can come.
fn ipv6_is_off() -> bool {
    fs::read_to_string("/proc/sys/net/ipv6/conf/all/disable_ipv6").is_ok_and(|on| on.trim() == "1")
}

fn is_no_ipv6(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EAFNOSUPPORT)
}

fn bind_tcp(name: &str, address: SocketAddr, options: &Options) -> Result<Listener, Failed> {
    let address = canonical(address);
    let socket = Socket::new(Domain::for_address(address), non_blocking(), None)?;
    if address.is_ipv6() {
        socket.set_only_v6(options.own.v6only.unwrap_or(options.v6only))?;
    }
    socket.set_reuse_address(true)?;
    set_inheritable(&socket, options)?;
    options.own.bind_to_interface(&socket)?;
    own::change(&socket, None, options)?;
    socket.bind(&address.into())?;
    socket.listen(options.backlog())?;
    Ok(Listener::of(name, socket, Origin::Ours)?)
}

fn non_blocking() -> Type {
    Type::STREAM.cloexec().nonblocking()
}

/// What accepted connections take over from their listener.
pub(super) fn set_inheritable(socket: &Socket, options: &Options) -> io::Result<()> {
    socket.set_tcp_nodelay(true)?;
    socket.set_out_of_band_inline(true)?;
    match options.keepalive {
        None => socket.set_keepalive(false),
        Some(idle) => {
            let idle = idle.clamp(KEEPALIVE_LEAST, KEEPALIVE_MOST);
            let interval = (idle / KEEPALIVE_PROBES).max(KEEPALIVE_LEAST);
            socket.set_tcp_keepalive(
                &TcpKeepalive::new()
                    .with_time(idle)
                    .with_interval(interval)
                    .with_retries(KEEPALIVE_PROBES),
            )
        }
    }
}

pub(super) fn tcp_error(address: &Address, error: io::Error) -> BindError {
    let port = match address {
        Address::Port(port) => *port,
        Address::Tcp(tcp) => tcp.port(),
        Address::Unix { .. } | Address::Inherited(_) => 0,
    };
    match error.raw_os_error() {
        Some(libc::EADDRINUSE) => BindError::InUse {
            address: address.clone(),
            find: format!("ss -lntp 'sport = :{port}'"),
        },
        Some(libc::EACCES) => BindError::PrivilegedPort {
            port,
            first_free: first_unprivileged_port(),
        },
        Some(libc::EADDRNOTAVAIL) => BindError::NotOurs(address.clone()),
        Some(libc::EAFNOSUPPORT) => BindError::NoIpv6(address.clone()),
        _ => BindError::Other {
            address: address.clone(),
            error,
        },
    }
}

fn first_unprivileged_port() -> u16 {
    fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start")
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(1024)
}

/// The file of a unix listener, removed with it if it is still the same file.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl SocketFile {
    fn at(path: &Path) -> io::Result<SocketFile> {
        let file = fs::symlink_metadata(path)?;
        Ok(SocketFile {
            path: path.to_owned(),
            device: file.dev(),
            inode: file.ino(),
        })
    }

    /// Does nothing if the file is gone, or another's by now.
    pub(super) fn remove_if_same(&self) -> io::Result<()> {
        match fs::symlink_metadata(&self.path) {
            Ok(file) if (file.dev(), file.ino()) == (self.device, self.inode) => {
                fs::remove_file(&self.path)
            }
            _ => Ok(()),
        }
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // A file that is left behind is replaced by the next start; there is nobody to tell.
        let _ = self.remove_if_same();
    }
}

fn bind_unix(
    name: &str,
    address: &Address,
    path: &Path,
    mode: Option<u32>,
    options: &Options,
) -> Result<Listener, BindError> {
    let other = |error: io::Error| match error.raw_os_error() {
        Some(libc::EADDRINUSE) => in_use(address, path),
        Some(libc::ENOENT) => BindError::NoDirectory(path.to_owned()),
        Some(libc::EACCES | libc::EPERM | libc::EROFS) => BindError::Directory(path.to_owned()),
        _ => BindError::Other {
            address: address.clone(),
            error,
        },
    };
    let socket_address = SockAddr::unix(path).map_err(other)?;
    remove_stale(address, path, &socket_address)?;
    let open = || -> io::Result<Listener> {
        let socket = Socket::new(Domain::UNIX, non_blocking(), None)?;
        // The file is born with these permissions less the umask, and widened before anybody can connect: that takes listen.
        let less = Mode::from_bits_truncate(mode.unwrap_or(DEFAULT_MODE));
        nix::sys::stat::fchmod(&socket, less)?;
        socket.bind(&socket_address)?;
        let file = SocketFile::at(path)?;
        set_mode(path, mode)?;
        socket.listen(options.backlog())?;
        Listener::of(name, socket, Origin::OursWithFile(file))
    };
    open().map_err(other)
}

/// Gives the file of a unix listener these permissions; `None` stands for 0600.
pub fn set_mode(path: &Path, mode: Option<u32>) -> io::Result<()> {
    let mode = mode.unwrap_or(DEFAULT_MODE);
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

fn in_use(address: &Address, path: &Path) -> BindError {
    BindError::InUse {
        address: address.clone(),
        find: format!("ss -lxp src {}", path.display()),
    }
}

/// Removes a socket file that refuses a connect; whatever else is there is left alone.
fn remove_stale(
    address: &Address,
    path: &Path,
    socket_address: &SockAddr,
) -> Result<(), BindError> {
    let Ok(file) = fs::symlink_metadata(path) else {
        return Ok(()); // bind says what is wrong with a path that can't be looked at
    };
    if !file.file_type().is_socket() {
        return Err(BindError::NotASocket(path.to_owned()));
    }
    let other = |error| BindError::Other {
        address: address.clone(),
        error,
    };
    let probe = Socket::new(Domain::UNIX, non_blocking(), None).map_err(other)?;
    match probe.connect(socket_address) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(|_| BindError::Directory(path.to_owned()))
        }
        // Accepted, queue full, or not ours to ask.
        _ => Err(in_use(address, path)),
    }
}
