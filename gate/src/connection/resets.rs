//! How a reset passes from one side to the other, and what the death of a backend means for a connection.

use std::time::Duration;

use syngate_metrics::{CloseReason, DispatchResult};

use super::{Connection, Context, Next, Phase};
use crate::relay::Side;

/// A reset waits for the bytes before it as long as some are acknowledged within this time: three retransmissions at the least
/// time-out (RFC 6298) come within it, and a peer that takes nothing holds its place no longer.
pub(super) const LINGER: Duration = Duration::from_secs(3);

/// A backend that resets a connection before any byte, while its generation is active, may be dying: its sockets close before its
/// end is known. So long is waited for the news before the reset passes to the client.
pub(super) const DOUBT: Duration = Duration::from_millis(20);

impl Connection {
    /// Its generation's process has died. What the process had accepted has ended with it; what a kept listener has queued hasn't,
    /// and is served by its successor.
    pub(crate) fn backend_gone(&mut self, context: &mut Context<'_>) -> Next {
        if let Phase::Relaying { backend, relay, .. } | Phase::Resetting { backend, relay, .. } =
            &self.phase
        {
            let ended = backend.has_failed() || backend.peer_has_ended();
            self.gone = ended && !relay.is_answered();
        }
        match self.phase {
            Phase::Resetting { .. } => self.resetting(context),
            _ => Next::Wait,
        }
    }

    /// Passes a reset on, or takes the connection back where nothing has passed and the backend was dying.
    pub(crate) fn resetting(&mut self, context: &mut Context<'_>) -> Next {
        let Phase::Resetting {
            lease,
            backend,
            relay,
            by,
            since,
            left,
        } = &mut self.phase
        else {
            return Next::Wait;
        };
        if *by == Side::Backend && relay.is_untouched() {
            if lease.generation.ended() || !context.is_current(lease) {
                context.service.dispatch_attempts[DispatchResult::Reset].inc();
                return self.withdraw(context);
            }
            if context.now.since(*since) < DOUBT {
                return Next::Wait;
            }
        }
        let (other, reason) = match by {
            Side::Client => (backend, CloseReason::ClientReset),
            Side::Backend if self.gone => (&mut self.client, CloseReason::BackendGone),
            Side::Backend => (&mut self.client, CloseReason::BackendReset),
        };
        other.discard(&mut context.scratch.buffer);
        let undelivered = other.undelivered();
        if undelivered < *left {
            (*left, *since) = (undelivered, context.now);
        }
        if undelivered > 0 && context.now.since(*since) < LINGER {
            return Next::Wait;
        }
        other.reset_on_close();
        Next::Close(reason)
    }

    /// Makes the close that follows a reset on both sides. A client that has everything, the end too, sees none: what it hasn't read
    /// yet could go with it. Returns whether the client sees one.
    pub(crate) fn reset_on_close(&self) -> bool {
        let told =
            matches!(&self.phase, Phase::Relaying { relay, .. } if !relay.owes(&self.client));
        if !told {
            self.client.reset_on_close();
        }
        if let Phase::Connecting { backend, .. }
        | Phase::Relaying { backend, .. }
        | Phase::Resetting { backend, .. } = &self.phase
        {
            backend.reset_on_close();
        }
        !told
    }
}
