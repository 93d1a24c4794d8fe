//! The table of what is measured: a workload is an entry here, and so are the relays that take part in it.

use std::time::Duration;

use crate::load::{Direction, Habit, Kind};
use crate::relays::{Demands, Relay, SYNGATE, SYNGATE_UNIX};
use crate::report::{Goal, Measure};

mod goals;
mod measures;
mod rows;

use rows::{BULK, OUT_OF_PORTS, RELAYS, RELOADS, SCRAPED, TCP, TCP_AND_UNIX};

/// One thing that is measured.
pub(crate) struct Workload {
    /// For the command line, and of its files.
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    pub(crate) about: &'static str,
    pub(crate) measures: &'static [Measure],
    pub(crate) relays: &'static [Relay],
    pub(crate) demands: Demands,
    pub(crate) method: Method,
    pub(crate) goals: &'static [Goal],
    /// Whether ratios of the relays' numbers say something.
    pub(crate) compared: bool,
}

/// How it is measured; a module of `measure` each.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Method {
    /// Slices of a load, in turn.
    Steady(Kind),
    /// Memory of idle connections.
    Idle,
    /// Requests at a fixed pace.
    Latency,
    /// A relay runs out of ports.
    Ports,
    /// Connections that wait for a backend.
    Pending,
    /// Reloads under load.
    Reloads,
}

const SHORT: Kind = Kind::Exchange {
    connections: 32,
    habit: Habit::Closes,
    pace: None,
};

const fn steady(
    name: &'static str,
    title: &'static str,
    about: &'static str,
    load: Kind,
) -> Workload {
    Workload {
        name,
        title,
        about,
        measures: measures::CONNECTIONS,
        relays: TCP,
        demands: Demands::PLAIN,
        method: Method::Steady(load),
        goals: &[],
        compared: true,
    }
}

const fn ping_pong(
    name: &'static str,
    title: &'static str,
    connections: usize,
    goals: &'static [Goal],
) -> Workload {
    let load = Kind::Exchange {
        connections,
        habit: Habit::Repeats,
        pace: None,
    };
    Workload {
        measures: measures::ANSWERS,
        goals,
        ..steady(
            name,
            title,
            "Each connection asks with 100 bytes as soon as it has its answer of 200 bytes.",
            load,
        )
    }
}

const fn bulk(
    name: &'static str,
    title: &'static str,
    streams: usize,
    direction: Direction,
    goals: &'static [Goal],
) -> Workload {
    let about = "As much as goes through. Source and sink share a core and are often the limit, so the rate says little about relays.";
    Workload {
        measures: measures::BYTES,
        relays: BULK,
        goals,
        ..steady(name, title, about, Kind::Bulk { streams, direction })
    }
}

/// In the order of the page.
pub(crate) fn all() -> Vec<Workload> {
    vec![
        Workload {
            relays: TCP_AND_UNIX,
            goals: goals::SHORT_GOALS,
            ..steady(
                "short",
                "Short connections, the client closes first",
                "32 at a time: connect, 100 bytes, 200 bytes back, close. The backend listens on TCP, or on a unix socket.",
                SHORT,
            )
        },
        Workload {
            relays: TCP_AND_UNIX,
            ..steady(
                "short-backend",
                "Short connections, the backend closes first",
                "The same, but the backend closes after its answer.",
                Kind::Exchange {
                    connections: 32,
                    habit: Habit::IsClosed,
                    pace: None,
                },
            )
        },
        Workload {
            relays: TCP_AND_UNIX,
            ..steady(
                "short-paced",
                "Short connections, 3,000 a second",
                "The first workload, at a rate that all relays bear. In the first one a relay that is faster than the load's core waits \
                 more often, for less at a time, and that costs; here all wait alike.",
                Kind::Exchange {
                    connections: 32,
                    habit: Habit::Closes,
                    pace: Some(Duration::from_nanos(1_000_000_000 / 3000)),
                },
            )
        },
        ping_pong(
            "pingpong-64",
            "Requests on 64 kept connections",
            64,
            goals::PING_PONG_64,
        ),
        ping_pong(
            "pingpong-512",
            "Requests on 512 kept connections",
            512,
            goals::PING_PONG_512,
        ),
        bulk(
            "bulk-down-1",
            "Bulk, one stream to the client",
            1,
            Direction::Down,
            goals::ONE_STREAM,
        ),
        bulk(
            "bulk-down-16",
            "Bulk, 16 streams to the client",
            16,
            Direction::Down,
            goals::SIXTEEN_STREAMS,
        ),
        bulk(
            "bulk-up-1",
            "Bulk, one stream to the backend",
            1,
            Direction::Up,
            goals::ONE_STREAM,
        ),
        bulk(
            "bulk-up-16",
            "Bulk, 16 streams to the backend",
            16,
            Direction::Up,
            goals::SIXTEEN_STREAMS,
        ),
        Workload {
            relays: RELAYS,
            demands: Demands {
                proxy: true,
                ..Demands::PLAIN
            },
            ..steady(
                "proxy",
                "Short connections with a PROXY header",
                "As the first workload, and the backend is told the client's address: PROXY v2; nginx writes only v1.",
                SHORT,
            )
        },
        Workload {
            relays: RELAYS,
            demands: Demands {
                listeners: 1000,
                ..Demands::PLAIN
            },
            ..steady(
                "listeners",
                "Short connections to 1,000 listeners",
                "As the first workload, to one port after the other.",
                SHORT,
            )
        },
        Workload {
            demands: Demands {
                workers: 2,
                ..Demands::PLAIN
            },
            relays: RELAYS,
            ..steady(
                "workers",
                "Short connections, two workers",
                "As the first workload, with two workers on two cores. Where there are only two, load and backend share one of them.",
                SHORT,
            )
        },
        Workload {
            relays: &[SCRAPED, SYNGATE],
            goals: goals::SCRAPE_GOAL,
            ..steady(
                "scrape",
                "Short connections while metrics are read",
                "As the first workload, with `/metrics` read every 100 ms, and not read at all.",
                SHORT,
            )
        },
        Workload {
            name: "idle",
            title: "Memory of idle connections",
            about: "Resident memory of the relay's processes, which up to 9,000 connections add after a request each. The kernel's own is the same for all.",
            measures: measures::MEMORY,
            relays: RELAYS,
            demands: Demands::PLAIN,
            method: Method::Idle,
            goals: goals::IDLE_GOALS,
            compared: true,
        },
        Workload {
            name: "latency",
            title: "Latency on one connection",
            about: "500 requests a second on one connection, and nothing else. Most of what a relay adds is the wake-up of an idle core.",
            measures: measures::DELAYS,
            relays: TCP,
            demands: Demands::PLAIN,
            method: Method::Latency,
            goals: goals::LATENCY_GOALS,
            compared: true,
        },
        Workload {
            name: "ports",
            title: "More connections than ports",
            about: "100,000 short connections with `tcp_tw_reuse=0`, where the relay closes first towards the backend and one pair of addresses has 28,232 ports. \
                    A relay is given up when a tenth takes more than 10 s. Remote: the endpoint isn't a loopback address; with one source \
                    address 28,000 connections, and then a look at what the relay does when no port is left. HAProxy has a `server` line for each \
                    source, nginx `split_clients` and `proxy_bind`.",
            measures: measures::SLOPE,
            relays: OUT_OF_PORTS,
            demands: Demands::PLAIN,
            method: Method::Ports,
            goals: goals::PORTS_GOALS,
            compared: false,
        },
        Workload {
            name: "pending",
            title: "Connections that wait for a backend",
            about: "5,000 connections during a hold, and its release. No peer holds connections.",
            measures: measures::WAITING,
            relays: &[SYNGATE, SYNGATE_UNIX],
            demands: Demands::PLAIN,
            method: Method::Pending,
            goals: goals::PENDING_GOALS,
            compared: false,
        },
        Workload {
            name: "reloads",
            title: "Reloads under load",
            about: "90,000 short connections, 3,000 a second whatever happens, with 22 reloads, one each 1.3 s, and without, in turn: two reloads, \
                    and as long without. A connection's time runs from when it was due; one that failed counts as 10 s. The same backend is \
                    behind all; before HAProxy, syngate has the distribution's one as its backend.",
            measures: measures::RELOADED,
            relays: RELOADS,
            demands: Demands::PLAIN,
            method: Method::Reloads,
            goals: goals::RELOAD_GOALS,
            compared: true,
        },
    ]
}

/// Those with one of these names, or whose names begin so where no workload has it; all where `names` is empty.
///
/// # Errors
///
/// A name that fits none.
pub(crate) fn chosen(names: &[String]) -> Result<Vec<Workload>, String> {
    let is_one = |name: &str| all().iter().any(|workload| workload.name == name);
    let fits = |workload: &Workload, name: &String| match is_one(name) {
        true => workload.name == name,
        false => workload.name.starts_with(name.as_str()),
    };
    for name in names {
        if !all().iter().any(|workload| fits(workload, name)) {
            return Err(format!(
                "no workload begins with `{name}`; --list names them"
            ));
        }
    }
    let mut chosen = all();
    chosen.retain(|workload| names.is_empty() || names.iter().any(|name| fits(workload, name)));
    Ok(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_goals_are_about_relays_that_take_part() {
        let workloads = all();
        for (number, workload) in workloads.iter().enumerate() {
            assert!(
                workloads[..number]
                    .iter()
                    .all(|other| other.name != workload.name)
            );
            for goal in workload.goals {
                for relay in [Some(goal.gate), goal.peer].into_iter().flatten() {
                    assert!(
                        workload.relays.iter().any(|other| other.name == relay),
                        "{}: {relay}",
                        workload.name
                    );
                }
            }
        }
    }

    #[test]
    fn the_beginning_of_a_name_chooses() {
        let names = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            chosen(&words).map(|chosen| chosen.len())
        };
        assert_eq!(names(&[]), Ok(all().len()));
        assert_eq!(names(&["pingpong"]), Ok(2));
        assert_eq!(names(&["short"]), Ok(1));
        assert_eq!(names(&["short-", "scrape"]), Ok(3));
        assert!(names(&["shorter"]).is_err());
    }
}
