//! What operators and checks have set at run time, carried over from one HAProxy to its successor.
//!
//! The configuration wins, always: HAProxy's own state file once put a server's old port back, long after the configuration had
//! another one. Invariants:
//! - An [`Order`] names a server and a [`Setting`]. There is no setting that holds an address, a port or a name to resolve.
//! - A server gets orders only if both processes have one of its name, once, at the same known address and port, found through
//!   the same name and SRV record. So what an operator had done by `set server ... addr` or `fqdn` is over with its process.
//! - What both configurations say differently isn't set: `disabled`, the weight, where the check goes.
//! - What a server has through another one (`track`) or through its resolver isn't set: the successor finds it itself.
//! - A server is set down only where something will undo it: a check in the new process, or the operator who had done it without
//!   one.
//!
//! An agent's "down" isn't carried over: a server that tracks another one looks the same, and an agent that tells weights only would
//! never undo it. The successor's agent says it again within `agent-inter`; its MAINT, DRAIN and weight are carried over
//! as an operator's.

use std::collections::HashSet;
use std::fmt;
use std::time::{Duration, Instant};

use syngate_gate::Target;

use super::runtime::ask;

mod table;
use table::{STOPPED, STOPPING, Server, Table, admin, check};

/// What is asked of both processes.
const SHOW: &str = "show servers state";

/// Bytes of a line of orders. HAProxy takes a line that fits into a buffer (`tune.bufsize`, by default 16,384).
const LINE: usize = 2000;

/// Something that an operator or a check sets in a running process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Setting {
    /// Maintenance.
    Maint,
    /// No new sessions but those of its own.
    Drain,
    /// Neither, although the configuration says `disabled`.
    Ready,
    /// The weight, 0 to 256.
    Weight(u32),
    /// The health check is off.
    HealthOff,
    /// The agent check is off.
    AgentOff,
    /// Its check has found that it wants no new sessions.
    Stopping,
    /// Its check has found it down.
    Down,
}

impl Setting {
    /// Whether checks set it again by themselves.
    fn is_a_checks(self) -> bool {
        matches!(self, Setting::Stopping | Setting::Down)
    }
}

/// A setting of one server. `Display` is HAProxy's command (management guide, section 9.3).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    /// `BACKEND/SERVER`.
    pub server: String,
    /// What to set.
    pub setting: Setting,
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let server = &self.server;
        match self.setting {
            Setting::Maint => write!(f, "set server {server} state maint"),
            Setting::Drain => write!(f, "set server {server} state drain"),
            Setting::Ready => write!(f, "set server {server} state ready"),
            Setting::Weight(weight) => write!(f, "set server {server} weight {weight}"),
            Setting::HealthOff => write!(f, "disable health {server}"),
            Setting::AgentOff => write!(f, "disable agent {server}"),
            Setting::Stopping => write!(f, "set server {server} health stopping"),
            Setting::Down => write!(f, "set server {server} health down"),
        }
    }
}

/// What [`carry`] finds.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Carried {
    /// In the order of the new configuration, and of a server in the order to be given.
    pub orders: Vec<Order>,
    /// What isn't carried over although an operator may expect it, a sentence each.
    pub warnings: Vec<String>,
}

/// What was set.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct CarriedOver {
    /// How many servers.
    pub servers: usize,
    /// What wasn't, a sentence each.
    pub warnings: Vec<String>,
}

/// Sets in the new process what was set in the old one, within this time. Both must be running.
///
/// # Errors
/// One of them doesn't answer in time. What HAProxy refuses is a warning.
pub async fn carry_over(
    old: &Target,
    new: &Target,
    within: Duration,
) -> Result<CarriedOver, String> {
    let deadline = Instant::now() + within;
    let left = || deadline.saturating_duration_since(Instant::now());
    let states = tokio::try_join!(ask(old, SHOW, left()), ask(new, SHOW, left()))?;
    let Carried {
        orders,
        mut warnings,
    } = carry(&states.0, &states.1);
    let mut set = HashSet::new();
    for line in lines(&orders) {
        let answer = ask(new, &joined(line), left()).await?;
        let replies = replies(&answer);
        if replies.len() != line.len() {
            warnings.push(format!(
                "HAProxy answered {} of {} orders: compare its `{SHOW}` with what you have set",
                replies.len(),
                line.len()
            ));
        }
        for (order, reply) in line.iter().zip(replies) {
            if reply.is_empty() {
                set.insert(&order.server);
            } else if order.setting.is_a_checks() {
                // A server that tracks another one refuses it, and goes down with that one.
                tracing::debug!(%order, reply, "HAProxy keeps a server up");
            } else {
                warnings.push(format!("HAProxy refused `{order}`: {reply}"));
            }
        }
    }
    Ok(CarriedOver {
        servers: set.len(),
        warnings,
    })
}

/// Cuts the orders into as few lines as fit.
fn lines(orders: &[Order]) -> impl Iterator<Item = &[Order]> {
    let mut rest = orders;
    std::iter::from_fn(move || {
        let mut length = 0;
        let fits = rest.iter().take_while(|order| {
            length += order.to_string().len() + 1;
            length <= LINE
        });
        // One that doesn't fit goes alone: HAProxy says so itself.
        let count = fits.count().max(1).min(rest.len());
        let (line, later) = rest.split_at(count);
        rest = later;
        (!line.is_empty()).then_some(line)
    })
}

fn joined(line: &[Order]) -> String {
    let orders: Vec<String> = line.iter().map(Order::to_string).collect();
    orders.join(";")
}

/// The replies to a line of orders: each ends with an empty line, and one that is nothing else is consent.
fn replies(answer: &str) -> Vec<String> {
    let mut replies = Vec::new();
    let mut words = Vec::new();
    for line in answer.lines() {
        match line.trim() {
            "" => replies.push(std::mem::take(&mut words).join(" ")),
            text => words.push(text),
        }
    }
    replies
}

/// Compares what two processes answer to `show servers state`. Pure.
pub fn carry(old: &str, new: &str) -> Carried {
    let mut carried = Carried::default();
    let old = read("old", old, &mut carried.warnings);
    let new = read("new", new, &mut carried.warnings);
    let (Some(old), Some(new)) = (old, new) else {
        return carried;
    };
    let (before, now) = (old.by_name(), new.by_name());
    for server in &new.servers {
        let name = server.name.as_str();
        let Some(Some(was)) = before.get(name) else {
            continue;
        };
        let orders = settings(was, server).into_iter().map(|setting| Order {
            server: server.name.clone(),
            setting,
        });
        let why = if !was.place.is(&server.place) {
            format!("it was at {} and is at {}", was.place, server.place)
        } else if now[name].is_none() {
            "there are two of its name".to_owned()
        } else {
            carried.orders.extend(orders);
            continue;
        };
        let missed = orders.filter(|order| !order.setting.is_a_checks());
        let warnings = missed.map(|order| format!("`{order}` isn't carried over: {why}"));
        carried.warnings.extend(warnings);
    }
    carried
}

fn read(which: &str, text: &str, warnings: &mut Vec<String>) -> Option<Table> {
    let table = Table::parse(text)
        .map_err(|why| {
            warnings.push(format!(
                "no server's state is carried over: that of the {which} HAProxy can't be read, {why}"
            ));
        })
        .ok()?;
    if table.unread > 0 {
        warnings.push(format!(
            "{} servers of the {which} HAProxy are left out: their state isn't understood",
            table.unread
        ));
    }
    Some(table)
}

/// What `was` had and `is` hasn't, if they are one server.
fn settings(was: &Server, is: &Server) -> Vec<Setting> {
    let administration = administration(was, is);
    let available = is.admin & admin::ANY_MAINT == 0
        || matches!(administration, Some(Setting::Ready | Setting::Drain));
    let found = [
        administration,
        weight(was, is),
        switched_off(was.check, is.check).then_some(Setting::HealthOff),
        switched_off(was.agent, is.agent).then_some(Setting::AgentOff),
        health(was, is).filter(|_| available),
    ];
    found.into_iter().flatten().collect()
}

/// MAINT, DRAIN, or neither.
///
/// `SRV_ADMF_CMAINT` says what the configuration has said, whatever came later. Where the two processes differ in it, `disabled`
/// was written or deleted, and that is the operator's last word. Where both have it, the old server may still be ready or
/// draining, by an operator's order; then it stays so. HAProxy's own state file is applied by the same rule.
fn administration(was: &Server, is: &Server) -> Option<Setting> {
    const FORCED: u32 = admin::FORCED_MAINT | admin::FORCED_DRAIN;
    let differ = was.admin ^ is.admin;
    if differ & admin::CONFIGURED_MAINT != 0 || differ & FORCED == 0 {
        return None;
    }
    let disabled = is.admin & admin::CONFIGURED_MAINT != 0;
    let (was, is) = (was.admin & FORCED, is.admin & FORCED);
    if was & admin::FORCED_MAINT != 0 {
        return (is & admin::FORCED_MAINT == 0).then_some(Setting::Maint);
    }
    if was & admin::FORCED_DRAIN != 0 {
        return Some(Setting::Drain);
    }
    // What else the new server has was set since it started, by its agent.
    (disabled && is & admin::FORCED_MAINT != 0).then_some(Setting::Ready)
}

/// The weight, where it was changed and the configuration's wasn't, and the new process has its configuration's still.
fn weight(was: &Server, is: &Server) -> Option<Setting> {
    let changed = was.weight != was.configured_weight;
    let same = was.configured_weight == is.configured_weight;
    let untouched = is.weight == is.configured_weight;
    (changed && same && untouched).then_some(Setting::Weight(was.weight))
}

/// Whether a check that both have was switched off.
fn switched_off(was: u32, is: u32) -> bool {
    was & check::CONFIGURED != 0 && was & check::ENABLED == 0 && is & check::ENABLED != 0
}

/// What the check had found, or down by an operator where nobody checks.
///
/// A check is believed only where the new process checks at the same place and hasn't had a success of its own by now; and not
/// after a first success in the old process. Down sets the counter to 0, so each reload would begin anew with the `rise`
/// successes that are needed: a server that has recovered would stay down for as long as reloads come faster than these.
fn health(was: &Server, is: &Server) -> Option<Setting> {
    if was.admin & admin::ANY_MAINT != 0 || was.operation == is.operation {
        return None;
    }
    let both = was.check & check::CONFIGURED != 0 && is.check & check::ENABLED != 0;
    let believed = both && was.checked_at == is.checked_at && is.found < check::PASSED;
    let unchecked = |server: &Server| (server.check | server.agent) & check::CONFIGURED == 0;
    match was.operation {
        STOPPING if believed => Some(Setting::Stopping),
        STOPPED if believed && was.health == 0 => Some(Setting::Down),
        // One that is down by `track` has a counter above 0 in 2.6. In 3.5 it looks the same, and refuses.
        STOPPED if unchecked(was) && unchecked(is) && was.health == 0 => Some(Setting::Down),
        _ => None,
    }
}

#[cfg(test)]
mod live_tests;
#[cfg(test)]
mod tests;
