//! A network namespace for each measurement: nobody else's TIME_WAIT, sysctls or ports, and none left behind.

use std::fs;
use std::io;
use std::process::Command;
use std::thread;

use nix::sched::{CloneFlags, unshare};

/// Sysctls below `/proc/sys/net/ipv4/` that every measurement sets. Congestion control: without loss reno is what cubic is,
/// and every kernel has it. The bound of TIME_WAIT: beyond it the kernel forgets one at once, which would hide what they cost.
const SYSCTLS: [(&str, &str); 2] = [
    ("tcp_congestion_control", "reno"),
    ("tcp_max_tw_buckets", "1000000"),
];

/// Runs `work` on a thread in a network namespace that ends with it. Threads and processes that `work` starts are in it too.
/// It has the loopback device and `addresses` on it; `sysctls` are set as well as those of every measurement.
///
/// # Errors
///
/// Those of `work`, and what the kernel says where a namespace can't be had.
pub(crate) fn within<T: Send>(
    sysctls: &[(&str, &str)],
    addresses: &[&str],
    work: impl FnOnce() -> io::Result<T> + Send,
) -> io::Result<T> {
    let inside = || {
        unshare(CloneFlags::CLONE_NEWNET)?;
        ip(&["link", "set", "lo", "up"])?;
        for address in addresses {
            ip(&["address", "add", address, "dev", "lo"])?;
        }
        for (name, value) in SYSCTLS.iter().chain(sysctls) {
            fs::write(format!("/proc/sys/net/ipv4/{name}"), value)
                .map_err(|error| io::Error::other(format!("sysctl {name}={value}: {error}")))?;
        }
        work()
    };
    thread::scope(|scope| scope.spawn(inside).join())
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

fn ip(arguments: &[&str]) -> io::Result<()> {
    let status = Command::new("ip").args(arguments).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(io::Error::other(format!(
            "ip {}: {status}",
            arguments.join(" ")
        ))),
        Err(error) => Err(io::Error::other(format!(
            "iproute2's `ip` can't be started: {error}"
        ))),
    }
}
