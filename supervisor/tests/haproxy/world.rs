//! A world in which every answer is known, and a copy in a place that is.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};

use syngate_supervisor::haproxy::{Binary, Copy, File, Place, Plan, Refusal, World, plan};

/// Where copies stand in these tests.
pub(crate) const DIRECTORY: &str = "/gen/7";

/// What a test may want otherwise.
pub(crate) struct Given {
    pub(crate) binary: Binary,
    pub(crate) unprivileged: bool,
    pub(crate) descriptors: u64,
    pub(crate) arguments: Vec<String>,
}

impl Default for Given {
    fn default() -> Self {
        Given {
            binary: Binary {
                program: "/usr/sbin/haproxy".into(),
                release: "2.6.12-1+deb12u4".to_owned(),
                version: (2, 6, 12),
                features: ["EPOLL", "GETADDRINFO", "LUA", "OPENSSL"]
                    .map(str::to_owned)
                    .to_vec(),
                idle_close: true,
            },
            unprivileged: false,
            descriptors: 200_000,
            arguments: Vec::new(),
        }
    }
}

impl Given {
    pub(crate) fn plan(&self, files: Vec<File>) -> Result<Plan, Refusal> {
        let world = World {
            binary: &self.binary,
            unprivileged: self.unprivileged,
            descriptors: self.descriptors,
            environment: &environment,
            arguments: &self.arguments,
            resolve: &resolve,
            joined: &|group| group == b"www",
            read: &read,
        };
        plan(files, &world)
    }

    pub(crate) fn plan_text(&self, text: &str) -> Result<Plan, Refusal> {
        self.plan(vec![file("haproxy.cfg", text)])
    }
}

pub(crate) fn file(path: &str, text: impl AsRef<[u8]>) -> File {
    File {
        path: path.into(),
        text: text.as_ref().to_vec(),
    }
}

fn environment(name: &[u8]) -> Option<Vec<u8>> {
    (name == b"PORT").then(|| b"8080".to_vec())
}

fn resolve(name: &str) -> io::Result<Vec<IpAddr>> {
    match name {
        "localhost" => Ok(vec![Ipv4Addr::LOCALHOST.into()]),
        "both" => Ok(vec![Ipv6Addr::LOCALHOST.into(), Ipv4Addr::LOCALHOST.into()]),
        _ => Err(io::Error::other("no such host")),
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let name = path.file_name().and_then(|it| it.to_str());
    match (
        path.starts_with("/maps") || path.starts_with("/run/mlb"),
        name,
    ) {
        (true, Some(name)) => Ok(format!("snapshot of {name}\n").into_bytes()),
        _ => Err(io::ErrorKind::NotFound.into()),
    }
}

/// The plan of a configuration that is fine.
pub(crate) fn planned(text: &str) -> Plan {
    Given::default().plan_text(text).unwrap()
}

/// Why a configuration is refused: `haproxy.cfg:LINE: reason`.
pub(crate) fn refused(text: &str) -> String {
    Given::default().plan_text(text).unwrap_err().to_string()
}

/// A generation's copy: the stats listener is 3, private listeners follow.
pub(crate) fn copy(plan: &Plan) -> Copy {
    let privates: Vec<i32> = (4..).take(plan.privates().count()).collect();
    let stats = plan.stats_sockets().enumerate();
    let stats: Vec<PathBuf> = stats
        .map(|(index, _)| Path::new(DIRECTORY).join(format!("stats-{index}.sock")))
        .collect();
    plan.copy(&Place {
        directory: Path::new(DIRECTORY),
        privates: &privates,
        stats: 3,
        stats_sockets: &stats,
        suffix: "-g7",
    })
}

/// The copy of the first file.
pub(crate) fn copied(plan: &Plan) -> String {
    let copy = copy(plan);
    String::from_utf8(copy.files[0].1.clone()).unwrap()
}

/// What a copy says otherwise than its configuration, `LINE: text` each; the lines must be as many.
pub(crate) fn changes(text: &str) -> Vec<String> {
    let copy = copied(&planned(text));
    assert_eq!(copy.lines().count(), text.lines().count(), "{copy}");
    let lines = text.lines().zip(copy.lines()).enumerate();
    let changed = lines.filter(|(_, (old, new))| old != new);
    changed
        .map(|(at, (_, new))| format!("{}: {new}", at + 1))
        .collect()
}

/// The listeners, `NAME ADDRESS` each.
pub(crate) fn listeners(text: &str) -> Vec<String> {
    let plan = planned(text);
    let shown = plan
        .listeners()
        .iter()
        .map(|it| format!("{} {}", it.name, it.address));
    shown.collect()
}
