//! What happens to the gate while the load runs: what users and operators do, and a crash.
//!
//! A reload is slow on a busy machine, and may be too slow for `ready_timeout`: such a one is told, counted and done again.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use syngate_supervisor::protocol::ServiceStatus;
use tokio::time::{sleep, timeout};

use super::gate::Gate;
use super::load::Clients;
use super::table::Table;

/// The demo reloads at least this long.
const LENGTH: Duration = Duration::from_secs(15);

/// Between two steps.
const PAUSE: Duration = Duration::from_millis(150);

/// How long the operator's hold is.
const HOLD: Duration = Duration::from_millis(500);

/// From the kill to the successor.
const RESTART: Duration = Duration::from_secs(60);

/// So many reloads of one step may fail before it is given up.
const TOO_SLOW: u32 = 10;

/// Between two looks for the successor.
const AGAIN: Duration = Duration::from_millis(20);

/// What happens to the gate. Each step returns when it is over.
pub(super) struct Story<'a> {
    gate: &'a Gate,
    table: &'a Table,
    web: &'a Clients,
    jobs: &'a Clients,
    /// The last one that was written to a configuration.
    version: Cell<u64>,
    reloads: RefCell<BTreeMap<String, u64>>,
    unexpected: RefCell<Vec<String>>,
}

impl<'a> Story<'a> {
    pub(super) fn new(
        gate: &'a Gate,
        table: &'a Table,
        web: &'a Clients,
        jobs: &'a Clients,
    ) -> Story<'a> {
        Story {
            gate,
            table,
            web,
            jobs,
            version: Cell::new(1),
            reloads: RefCell::default(),
            unexpected: RefCell::default(),
        }
    }

    /// How many reloads had which outcome.
    pub(super) fn reloads(&self) -> BTreeMap<String, u64> {
        self.reloads.borrow().clone()
    }

    /// What went otherwise than it should.
    pub(super) fn unexpected(&self) -> Vec<String> {
        self.unexpected.borrow().clone()
    }

    /// An error ends it early.
    pub(super) async fn tell(&self) -> Result<(), String> {
        self.reload_well("web", 6).await?;
        self.slip().await?;
        self.reload_well("web", 5).await?;
        self.never_ready().await?;
        self.reload_well("web", 5).await?;
        self.hold().await?;
        self.kill().await?;
        self.reload_well("jobs", 1).await?;
        self.reload_well("web", 4).await?;
        while self.table.elapsed() < LENGTH {
            self.reload_well("web", 1).await?;
        }
        Ok(())
    }

    /// Reloads until so many have succeeded.
    async fn reload_well(&self, service: &str, count: u32) -> Result<(), String> {
        let mut too_slow = 0;
        let mut good = 0;
        while good < count {
            let version = self.next_version();
            let outcome = self
                .reload(service, &format!("version {version}\n"))
                .await?;
            if outcome == "success" {
                good += 1;
                self.clients(service).expect(version);
            } else {
                too_slow += 1;
                if too_slow == TOO_SLOW {
                    return Err(format!(
                        "{TOO_SLOW} reloads of {service} failed: the last was {outcome}"
                    ));
                }
            }
        }
        Ok(())
    }

    /// A word is misspelt: the backend's check must say so.
    async fn slip(&self) -> Result<(), String> {
        let config = format!("verison {}\n", self.next_version());
        let outcome = self.reload("web", &config).await?;
        self.must_be("check_failed", "a configuration with a slip", &outcome);
        Ok(())
    }

    /// The check can't see that this one never gets ready.
    async fn never_ready(&self) -> Result<(), String> {
        let config = format!("version {}\nready never\n", self.next_version());
        let outcome = self.reload("web", &config).await?;
        self.must_be("not_ready", "a generation that never gets ready", &outcome);
        Ok(())
    }

    async fn hold(&self) -> Result<(), String> {
        let held = self.gate.ask("web", "hold").await?;
        self.table.event("web", &held.message);
        sleep(HOLD).await;
        let released = self.gate.ask("web", "release").await?;
        self.table.event("web", &released.message);
        for (what, exit) in [("hold", held.exit), ("release", released.exit)] {
            if exit != 0 {
                self.surprise(format!("{what} ended with {exit}"));
            }
        }
        sleep(PAUSE).await;
        Ok(())
    }

    /// Kills the active generation. What it had accepted is lost; what waits in its listener isn't.
    async fn kill(&self) -> Result<(), String> {
        let (generation, pid) = active(&self.gate.service("web").await?)
            .ok_or("web has no active generation to kill")?;
        self.web.killing(generation);
        kill(pid, Signal::SIGKILL)
            .map_err(|error| format!("generation {generation} can't be killed: {error}"))?;
        self.table
            .event("web", &format!("kill -9 of generation {generation}"));
        let successor = async {
            loop {
                match active(&self.gate.service("web").await?) {
                    Some((number, _)) if number != generation => return Ok(number),
                    _ => sleep(AGAIN).await,
                }
            }
        };
        let number = timeout(RESTART, successor).await.unwrap_or_else(|_| {
            Err(format!(
                "no successor of generation {generation} after {RESTART:?}"
            ))
        })?;
        self.web.succeeded();
        self.table
            .event("web", &format!("generation {number} is its successor"));
        sleep(PAUSE).await;
        Ok(())
    }

    /// One reload, and its outcome in the word of the metrics.
    async fn reload(&self, service: &str, config: &str) -> Result<String, String> {
        self.gate.configure(service, config)?;
        let done = self.gate.ask(service, "reload").await?;
        let last = self.gate.service(service).await?.last_reload;
        let outcome = match (done.exit, last) {
            (0, _) => "success".to_owned(),
            (_, Some(last)) => last.outcome,
            (exit, None) => format!("exit {exit}"),
        };
        *self
            .reloads
            .borrow_mut()
            .entry(outcome.clone())
            .or_default() += 1;
        self.table.event(service, &done.message);
        sleep(PAUSE).await;
        Ok(outcome)
    }

    fn must_be(&self, expected: &str, what: &str, outcome: &str) {
        if outcome != expected {
            self.surprise(format!("the reload with {what} was {outcome}"));
        }
    }

    fn surprise(&self, what: String) {
        self.unexpected.borrow_mut().push(what);
    }

    fn next_version(&self) -> u64 {
        self.version.update(|version| version + 1);
        self.version.get()
    }

    fn clients(&self, service: &str) -> &Clients {
        match service {
            "jobs" => self.jobs,
            _ => self.web,
        }
    }
}

/// The active generation and its process.
fn active(service: &ServiceStatus) -> Option<(u64, Pid)> {
    let number = service.active?;
    let mut generations = service.generations.iter();
    let generation = generations.find(|generation| generation.number == number)?;
    Some((number, Pid::from_raw(generation.pid?.cast_signed())))
}
