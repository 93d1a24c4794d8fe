//! Which relays take part in which workloads, in the order of the tables' rows.

use crate::relays::{
    BEFORE, BEFORE_UNIX, DIRECT, HAPROXY, HAPROXY_NEW, HAPROXY_NEW_SPLICE, HAPROXY_NEW_UNIX,
    HAPROXY_SPLICE, HAPROXY_UNIX, NGINX, NGINX_64K, NGINX_UNIX, Relay, Reload, SYNGATE,
    SYNGATE_UNIX,
};

pub(super) const TCP_AND_UNIX: &[Relay] = &[
    SYNGATE,
    SYNGATE_UNIX,
    BEFORE,
    BEFORE_UNIX,
    HAPROXY_NEW,
    HAPROXY_NEW_UNIX,
    HAPROXY,
    HAPROXY_UNIX,
    NGINX,
    NGINX_UNIX,
    DIRECT,
];
pub(super) const TCP: &[Relay] = &[SYNGATE, BEFORE, HAPROXY_NEW, HAPROXY, NGINX, DIRECT];
pub(super) const RELAYS: &[Relay] = &[SYNGATE, BEFORE, HAPROXY_NEW, HAPROXY, NGINX];
pub(super) const BULK: &[Relay] = &[
    SYNGATE,
    BEFORE,
    HAPROXY_NEW,
    HAPROXY_NEW_SPLICE,
    HAPROXY,
    HAPROXY_SPLICE,
    NGINX,
    NGINX_64K,
    DIRECT,
];
pub(super) const SCRAPED: Relay = SYNGATE.scraped("syngate, scraped");

pub(super) const SYNGATE_REMOTE: Relay = SYNGATE.remote("syngate, remote", 1);
pub(super) const SYNGATE_SOURCES: Relay = SYNGATE.remote("syngate, remote, 4 sources", 4);
pub(super) const OUT_OF_PORTS: &[Relay] = &[
    SYNGATE,
    SYNGATE_UNIX,
    HAPROXY_NEW,
    HAPROXY,
    NGINX,
    SYNGATE_SOURCES,
    HAPROXY_NEW.remote("HAProxy new, remote, 4 sources", 4),
    NGINX.remote("nginx, remote, 4 sources", 4),
    SYNGATE_REMOTE,
    HAPROXY_NEW.remote("HAProxy new, remote", 1),
    NGINX.remote("nginx, remote", 1),
];
pub(super) const GATE_HAPROXY: Relay =
    SYNGATE.reloaded("syngate before HAProxy", Reload::GateHaproxy);
pub(super) const GATE_COMMAND: Relay =
    SYNGATE.reloaded("syngate before the backend", Reload::GateCommand);
pub(super) const USR2_NEW: Relay = HAPROXY_NEW.reloaded("HAProxy new -W, USR2", Reload::Usr2);
pub(super) const SUCCESSOR_NEW: Relay = HAPROXY_NEW.reloaded("HAProxy new -sf", Reload::Successor);
pub(super) const USR2: Relay = HAPROXY.reloaded("HAProxy -W, USR2", Reload::Usr2);
pub(super) const SUCCESSOR: Relay = HAPROXY.reloaded("HAProxy -sf", Reload::Successor);
pub(super) const SYN_DROP: Relay = HAPROXY.reloaded("HAProxy -sf, SYNs dropped", Reload::SynDrop);
pub(super) const HUP: Relay = NGINX.reloaded("nginx, HUP", Reload::Hup);
pub(super) const RELOADS: &[Relay] = &[
    GATE_HAPROXY,
    GATE_COMMAND,
    USR2_NEW,
    SUCCESSOR_NEW,
    USR2,
    SUCCESSOR,
    SYN_DROP,
    HUP,
];
