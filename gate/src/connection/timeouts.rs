//! When a connection is looked at without an edge, and what its time-outs do.

use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use syngate_metrics::CloseReason;

use super::resets::DOUBT;
use super::{Connection, Context, Next, Phase};
use crate::deadlines::Tick;
use crate::gate::ServiceSettings;
use crate::relay::Side;

/// The least time between two looks at whether they are; no event tells it. A wait that lasts is looked at less often.
const LINGER_POLL: Duration = Duration::from_millis(5);

impl Connection {
    /// When the worker must look at it at the latest, even if no edge comes.
    pub(crate) fn deadline(&self, settings: &ServiceSettings) -> Tick {
        let after = |timeout: Option<Duration>| {
            timeout.map_or(Tick::NEVER, |timeout| self.touched + timeout)
        };
        match &self.phase {
            Phase::Greeting => self.accepted + settings.accept_proxy_timeout,
            Phase::Pending { .. } => self.accepted + settings.pending_timeout,
            Phase::Connecting { attempt, .. } => attempt.started + settings.connect_timeout,
            Phase::Relaying {
                backend,
                relay,
                keepalive,
                ..
            } => {
                // A client that was reset may leave bytes that a stuck backend never takes: that, too, must end.
                let ended =
                    relay.is_half_closed() || self.client.has_failed() || backend.has_failed();
                let half = settings.half_close_timeout.filter(|_| ended);
                after(settings.idle_timeout)
                    .min(after(half))
                    .min(*keepalive)
            }
            Phase::Resetting {
                relay, by, since, ..
            } => {
                let doubt = *by == Side::Backend && relay.is_untouched();
                // From the last look: `touched` is when the worker armed it.
                if doubt {
                    *since + DOUBT
                } else {
                    self.touched + LINGER_POLL.max(self.touched.since(*since) / 4)
                }
            }
        }
    }

    /// Its deadline has come.
    pub(crate) fn expired(&mut self, context: &mut Context<'_>) -> Next {
        if context.now < self.deadline(context.settings) {
            return Next::Wait;
        }
        match &mut self.phase {
            Phase::Greeting => Next::Close(CloseReason::ProxyHeader),
            Phase::Pending { .. } => Next::Close(CloseReason::PendingTimeout),
            Phase::Connecting { .. } => self.connecting(context),
            Phase::Relaying {
                backend, keepalive, ..
            } => {
                if *keepalive <= context.now {
                    *keepalive = Tick::NEVER;
                    if let Some(idle) = context.settings.keepalive {
                        let keepalive = TcpKeepalive::new().with_time(idle).with_interval(idle);
                        // Without it a dead peer is noticed later; nothing else is lost.
                        let _ = SockRef::from(&*backend).set_tcp_keepalive(&keepalive);
                    }
                }
                let idle = context.settings.idle_timeout;
                let is_idle = idle.is_some_and(|idle| self.touched + idle <= context.now);
                match context.now < self.deadline(context.settings) {
                    true => Next::Wait,
                    false if is_idle => Next::Close(CloseReason::IdleTimeout),
                    false => Next::Close(CloseReason::HalfCloseTimeout),
                }
            }
            Phase::Resetting { .. } => {
                self.touched = context.now;
                self.resetting(context)
            }
        }
    }
}
