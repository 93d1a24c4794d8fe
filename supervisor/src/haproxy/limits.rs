//! Whether HAProxy will have the descriptors that its `maxconn` needs: its own check doesn't look.

use super::Refusal;
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
pub(super) fn check(draft: &Draft<'_>, global: &Global, listeners: usize) -> Result<(), Refusal> {
    if global.lenient {
        return Ok(());
    }
    let asked = match (global.maxconn, global.ulimit) {
        (Some((maxconn, line)), _) => Some((maxconn, line)),
        (None, Some((_, line))) => Some((0, line)),
        (None, None) => None,
    };
    let Some((maxconn, line)) = asked else {
        // HAProxy takes what there is.
        return Ok(());
    };
    let stats = global.stats_maxconn.map_or(STATS, u64::from);
    let fixed = RESERVE
        + listeners as u64
        + stats
        + 2 * u64::from(global.maxpipes)
        + PER_THREAD * u64::from(global.threads.unwrap_or(1));
    let needed = 2 * u64::from(maxconn) + fixed;
    let needed = needed.max(global.ulimit.map_or(0, |(ulimit, _)| ulimit.into()));
    let limit = draft.world.descriptors;
    if needed <= limit {
        return Ok(());
    }
    let line = &draft.document.lines[line];
    let fits = limit.saturating_sub(fixed) / 2;
    let why = format!(
        "HAProxy needs at least {needed} descriptors for this, and its limit is {limit}: raise the hard limit (LimitNOFILE={needed} in \
         a unit, --ulimit nofile={needed} in Docker, ulimit -Hn), or set maxconn to at most {fits}"
    );
    Err(draft.refuse(line, why))
}
