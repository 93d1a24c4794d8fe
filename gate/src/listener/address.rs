//! The addresses that a listener may be asked to have, as they are written.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

/// What can be listened on: `8080`, `IP:PORT`, `[IP6]:PORT`, `unix:PATH[,mode=0660]`, `fd:NAME`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// A port of all addresses: dual stack where IPv6 exists, else IPv4.
    Port(u16),
    /// One address. `[::]` takes IPv4 too, unless [`super::Options::v6only`] says otherwise.
    Tcp(SocketAddr),
    /// A unix socket.
    Unix {
        /// Where its file is made.
        path: PathBuf,
        /// The file's permissions; who may write to it may connect. Without one: 0600, the gate's own user alone.
        mode: Option<u32>,
    },
    /// The sockets of that name which the gate was started with (LISTEN_FDNAMES, sd_listen_fds(3)).
    Inherited(String),
}

/// Why a text is no address to listen on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadAddress {
    /// None of the forms.
    #[error(
        "`{0}` is no address to listen on: write PORT, IP:PORT, [IP6]:PORT, unix:PATH or fd:NAME"
    )]
    Form(String),
    /// An address without a port.
    #[error("`{0}` has no port: write {1}")]
    NoPort(String, String),
    /// An IPv6 address and a port without brackets.
    #[error("`{0}` can be read in two ways: write an IPv6 address in brackets, as in [::1]:80")]
    NoBrackets(String),
    /// Not a number up to 65535.
    #[error("`{0}` has a bad port: a port is a number up to 65535")]
    Port(String),
    /// A name instead of an address.
    #[error(
        "`{0}` names a host: a listener needs one of this machine's addresses, as in 0.0.0.0:80"
    )]
    Name(String),
    /// `unix:` alone.
    #[error("`{0}` has no path: write unix:PATH")]
    NoPath(String),
    /// More than fits into a socket address (unix(7)).
    #[error(
        "the path in `{0}` has {1} bytes, and a unix socket's has at most 107: use a shorter one"
    )]
    PathTooLong(String, usize),
    /// A mode that isn't octal, or has more than permissions.
    #[error("`{0}` has a bad mode: write it in octal, as in mode=0660")]
    Mode(String),
    /// `fd:` alone.
    #[error("`{0}` has no name: write fd:NAME, with a name out of LISTEN_FDNAMES")]
    NoFdName(String),
}

/// The longest path of a unix socket (unix(7)), without its final zero.
const PATH_MAX: usize = 107;

impl FromStr for Address {
    type Err = BadAddress;

    fn from_str(text: &str) -> Result<Address, BadAddress> {
        if let Some(rest) = text.strip_prefix("unix:") {
            return unix(text, rest);
        }
        if let Some(name) = text.strip_prefix("fd:") {
            return match name {
                "" => Err(BadAddress::NoFdName(text.to_owned())),
                _ => Ok(Address::Inherited(name.to_owned())),
            };
        }
        if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
            let port = text.parse();
            return port
                .map(Address::Port)
                .map_err(|_| BadAddress::Port(text.to_owned()));
        }
        text.parse().map(Address::Tcp).map_err(|_| no_address(text))
    }
}

fn unix(text: &str, rest: &str) -> Result<Address, BadAddress> {
    let (path, mode) = match rest.rsplit_once(",mode=") {
        None => (rest, None),
        Some((path, mode)) => {
            let octal = !mode.is_empty() && mode.bytes().all(|b| matches!(b, b'0'..=b'7'));
            let mode = u32::from_str_radix(mode, 8)
                .ok()
                .filter(|&mode| octal && mode <= 0o777)
                .ok_or_else(|| BadAddress::Mode(text.to_owned()))?;
            (path, Some(mode))
        }
    };
    match path.len() {
        0 => Err(BadAddress::NoPath(text.to_owned())),
        len if len > PATH_MAX => Err(BadAddress::PathTooLong(text.to_owned(), len)),
        _ => Ok(Address::Unix {
            path: path.into(),
            mode,
        }),
    }
}

/// The most telling reason why a text is no socket address.
fn no_address(text: &str) -> BadAddress {
    let bare = text.strip_prefix('[').and_then(|t| t.strip_suffix(']'));
    match bare.unwrap_or(text).parse() {
        Ok(IpAddr::V4(v4)) => return BadAddress::NoPort(text.to_owned(), format!("{v4}:PORT")),
        Ok(IpAddr::V6(v6)) if bare.is_some() => {
            return BadAddress::NoPort(text.to_owned(), format!("[{v6}]:PORT"));
        }
        Ok(IpAddr::V6(_)) => return BadAddress::NoBrackets(text.to_owned()),
        Err(_) => {}
    }
    let Some((host, port)) = text.rsplit_once(':') else {
        return BadAddress::Form(text.to_owned());
    };
    let is_address = host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    if is_address && port.parse::<u16>().is_err() {
        BadAddress::Port(text.to_owned())
    } else if is_address {
        BadAddress::NoBrackets(text.to_owned())
    } else if !host.is_empty() && host.bytes().all(is_name) && port.parse::<u16>().is_ok() {
        BadAddress::Name(text.to_owned())
    } else {
        BadAddress::Form(text.to_owned())
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Port(port) => write!(f, "{port}"),
            Address::Tcp(address) => write!(f, "{address}"),
            Address::Unix { path, mode: None } => write!(f, "unix:{}", path.display()),
            Address::Unix {
                path,
                mode: Some(mode),
            } => write!(f, "unix:{},mode={mode:04o}", path.display()),
            Address::Inherited(name) => write!(f, "fd:{name}"),
        }
    }
}

/// A listener as it is asked for: `[NAME=]ADDR`. NAME is `[a-z][a-z0-9_]*`; what stands before another `=` is part of ADDR.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named {
    /// The listener's name, if it was given one.
    pub name: Option<String>,
    /// Where it listens.
    pub address: Address,
}

impl FromStr for Named {
    type Err = BadAddress;

    fn from_str(text: &str) -> Result<Named, BadAddress> {
        let (name, address) = match text.split_once('=') {
            Some((name, address)) if is_listener_name(name) => (Some(name.to_owned()), address),
            _ => (None, text),
        };
        let address = address.parse()?;
        Ok(Named { name, address })
    }
}

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(name) = &self.name {
            write!(f, "{name}=")?;
        }
        self.address.fmt(f)
    }
}

/// Whether a text may name a listener: `[a-z][a-z0-9_]*`.
pub fn is_listener_name(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_lowercase())
        && text
            .bytes()
            .all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_'))
}
