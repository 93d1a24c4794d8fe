//! `option idle-close-on-response`: without it a soft stop closes idle keep-alive connections, between two requests of a client.

use super::draft::Draft;
use super::proxies::Proxy;

const OPTION: &str = "option idle-close-on-response";

/// Gives the option to every HTTP proxy that listens and says nothing about it. Not to the defaults: TCP proxies that
/// inherit it are warned about by HAProxy, and with `zero-warning` that is an error.
pub(super) fn inject(draft: &mut Draft<'_>, proxies: &[Proxy<'_>]) {
    let mut first = None;
    let mut inserted = 0;
    let wanting = |it: &&Proxy<'_>| it.is_open() && it.http && !it.says_idle_close;
    for proxy in proxies.iter().filter(wanting) {
        if draft.fill(proxy.lines.clone(), OPTION) {
            continue;
        }
        let header = &draft.document.lines[proxy.lines.start];
        draft.insert_line(header.file, proxy.lines.end, &format!("  {OPTION}"));
        first = first.or(Some(header));
        inserted += 1;
    }
    if let Some(header) = first {
        let what = format!(
            "HAProxy's messages about later lines may name line numbers that are up to {inserted} too high: {inserted} HTTP sections \
             have no empty line for `{OPTION}`"
        );
        draft.note(header, what);
    }
}
