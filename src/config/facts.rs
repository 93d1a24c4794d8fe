//! What the machine allows: asked once at the start, so that each later configuration is judged by the same facts.

use std::ops::RangeInclusive;
use std::path::PathBuf;

use nix::sys::resource::{Resource, getrlimit};
use syngate_supervisor::control::{self, ControlError};

/// The machine, as far as a configuration depends on it.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    /// Finds where the control socket goes if nobody says.
    pub(crate) default_control: fn() -> Result<PathBuf, ControlError>,
    /// Descriptors that this process may have open once the soft limit is the hard one.
    pub(crate) nofile: u64,
    /// Cores that this process may run on.
    pub(crate) cores: u16,
    /// `net.ipv4.ip_local_port_range`.
    pub(crate) ephemeral_ports: RangeInclusive<u16>,
    /// The names of the inherited sockets; `None`: not known here, as in `syngate check`.
    pub(crate) inherited: Option<Vec<String>>,
}

impl Facts {
    /// Asks the machine.
    pub(crate) fn gather(inherited: Option<Vec<String>>) -> Facts {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Facts {
            default_control: control::default_path,
            // getrlimit(2) fails for a resource that doesn't exist, and this one does.
            nofile: getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |(_, hard)| hard),
            cores: u16::try_from(cores).unwrap_or(1024).min(1024),
            ephemeral_ports: std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range")
                .ok()
                .and_then(|text| port_range(&text))
                .unwrap_or(32768..=60999),
            inherited,
        }
    }
}

/// Two numbers, apart by white space.
fn port_range(text: &str) -> Option<RangeInclusive<u16>> {
    let mut ports = text.split_whitespace().map(str::parse);
    match (ports.next()?, ports.next()?) {
        (Ok(first), Ok(last)) => Some(first..=last),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_range_is_read_as_the_kernel_writes_it() {
        assert_eq!(port_range("32768\t60999\n"), Some(32768..=60999));
        assert_eq!(port_range("x y"), None);
        assert_eq!(port_range(""), None);
    }
}
