//! Whether HAProxy will have the descriptors that its `maxconn` needs: its own check doesn't look.

use super::Refusal;
use super::arguments::{self, Arguments};
use super::draft::Draft;
use super::global::Global;

/// What HAProxy sets aside for itself (`global.maxsock` before anything is read).
const RESERVE: u64 = 10;
/// Connections to stats sockets, unless `stats maxconn` says otherwise.
const STATS: u64 = 10;
/// An epoll instance and a pipe.
const PER_THREAD: u64 = 3;

/// Refuses limits under which HAProxy doesn't start. It counts what is certain (`compute_ideal_maxsock()` of HAProxy also
/// counts health checks, peers, the pipes of `option splice-*` and the machine's threads), so it never refuses what would start.
pub(super) fn check(
    draft: &Draft<'_>,
    global: &Global,
    arguments: &Arguments,
    listeners: usize,
) -> Result<(), Refusal> {
    if global.lenient {
        return Ok(());
    }
    let limit = draft.world.descriptors;
    if let Some((ulimit, line)) = global.ulimit
        && u64::from(ulimit) > limit
    {
        let why = format!(
            "HAProxy can't have {ulimit} descriptors, its limit is {limit}: {}, or remove the line",
            raise(ulimit.into())
        );
        return Err(draft.refuse(&draft.document.lines[line], why));
    }
    let line = |index: usize| &draft.document.lines[index];
    let (maxconn, what, line) = match (arguments.maxconn, global.maxconn) {
        (Some(maxconn), _) => (maxconn, "-n", None),
        (None, Some((maxconn, index))) => (maxconn, "maxconn", Some(line(index))),
        // Without one it takes what there is.
        (None, None) => return Ok(()),
    };
    let fixed = RESERVE
        + listeners as u64
        + global.stats_maxconn.map_or(STATS, u64::from)
        + 2 * u64::from(global.maxpipes)
        + PER_THREAD * u64::from(global.threads.unwrap_or(1));
    let needed = 2 * u64::from(maxconn) + fixed;
    if needed <= limit {
        return Ok(());
    }
    let why = format!(
        "HAProxy needs at least {needed} descriptors for this many connections, and its limit is {limit}: {}, or set {what} to at \
         most {}",
        raise(needed),
        limit.saturating_sub(fixed) / 2
    );
    Err(match line {
        Some(line) => draft.refuse(line, why),
        None => arguments::refuse(why),
    })
}

fn raise(needed: u64) -> String {
    format!(
        "raise the hard limit (LimitNOFILE={needed} in a unit, --ulimit nofile={needed} with Docker, ulimit -Hn {needed} in a \
         shell)"
    )
}
