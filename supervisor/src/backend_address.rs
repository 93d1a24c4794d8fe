//! How a backend's address is written: `[LISTENER=]ADDR`, with ADDR `HOST:PORT`, `[IP6]:PORT` or `unix:PATH`. The command
//! line, the file and the control socket read it here. A name isn't resolved: that is done when a generation is made.

use std::fmt::{self, Display, Formatter};
use std::net::SocketAddr;
use std::str::FromStr;

use syngate_gate::listener::is_listener_name;

use crate::config::{BackendAddress, BackendTarget};

/// Longest path of a unix socket, in bytes (unix(7)).
const UNIX_PATH_MAX: usize = 107;

impl FromStr for BackendAddress {
    type Err = String;

    /// The error is a sentence.
    fn from_str(text: &str) -> Result<Self, String> {
        let (listener, address) = match text.split_once('=') {
            Some((name, address)) if is_listener_name(name) => (Some(name.to_owned()), address),
            _ => (None, text),
        };
        Ok(Self {
            listener,
            address: address.parse()?,
        })
    }
}

impl FromStr for BackendTarget {
    type Err = String;

    /// The error is a sentence.
    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            return match path.len() {
                0 => Err("`unix:` has no path: write unix:/run/app.sock".into()),
                1..=UNIX_PATH_MAX => Ok(Self::Unix(path.into())),
                _ => Err(format!(
                    "`{path}` is longer than the {UNIX_PATH_MAX} bytes that a unix socket's path may have: use a shorter one"
                )),
            };
        }
        let bad = |why| {
            Err(format!(
                "`{text}` {why}: write HOST:PORT, [IP6]:PORT or unix:PATH"
            ))
        };
        if let Ok(address) = text.parse::<SocketAddr>() {
            return match address.port() {
                0 => bad("has port 0"),
                port => Ok(Self::Tcp(address.ip().to_string(), port)),
            };
        }
        let Some((host, port)) = text.rsplit_once(':') else {
            return bad("has no port or no host");
        };
        if host.contains(':') {
            return bad("has an IPv6 address without brackets");
        }
        let in_name = |each: char| each.is_ascii_alphanumeric() || "-._".contains(each);
        if host.is_empty() || !host.chars().all(in_name) {
            return bad("has no host");
        }
        match port.parse() {
            Ok(0) | Err(_) => bad("has a bad port"),
            Ok(port) => Ok(Self::Tcp(host.to_owned(), port)),
        }
    }
}

impl Display for BackendAddress {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if let Some(listener) = &self.listener {
            write!(f, "{listener}=")?;
        }
        self.address.fmt(f)
    }
}

impl Display for BackendTarget {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(host, port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp(host, port) => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_it_writes() {
        for text in [
            "localhost:80",
            "l0=10.0.0.1:80",
            "[::1]:80",
            "http=unix:/run/a b.sock",
        ] {
            assert_eq!(text.parse::<BackendAddress>().unwrap().to_string(), text);
        }
        // `unix:/a` is no listener's name.
        let address: BackendAddress = "unix:/a=b".parse().unwrap();
        assert_eq!(address.listener, None);
        assert_eq!(address.address, BackendTarget::Unix("/a=b".into()));
    }

    #[test]
    fn refuses_with_a_sentence() {
        for (text, why) in [
            ("", "`` has no port or no host"),
            (":80", "`:80` has no host"),
            ("::1:80", "`::1:80` has an IPv6 address without brackets"),
            ("[::1]:0", "`[::1]:0` has port 0"),
            ("a:65536", "`a:65536` has a bad port"),
            ("l0=80", "`80` has no port or no host"),
        ] {
            let error = text.parse::<BackendAddress>().unwrap_err();
            assert_eq!(
                error,
                format!("{why}: write HOST:PORT, [IP6]:PORT or unix:PATH")
            );
        }
        assert!(
            "unix:"
                .parse::<BackendAddress>()
                .unwrap_err()
                .starts_with("`unix:` has no path")
        );
        let long = format!("unix:/{}", "a".repeat(107));
        assert!(
            long.parse::<BackendAddress>()
                .unwrap_err()
                .contains("107 bytes")
        );
    }
}
