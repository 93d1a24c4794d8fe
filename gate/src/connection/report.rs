//! What a connection says of itself, to whoever counts, lists or closes it.

use syngate_metrics::{CloseReason, ConnectionState, PendingOutcome};

use super::{Connection, Phase};
use crate::gate::ServiceId;
use crate::generation::{Lease, Local};
use crate::relay::Side;
use crate::shared::Which;

impl Connection {
    /// The label of `connections_open`.
    pub(crate) fn state(&self) -> ConnectionState {
        match self.phase {
            Phase::Greeting => ConnectionState::Greeting,
            Phase::Pending { .. } => ConnectionState::Pending,
            Phase::Connecting { .. } => ConnectionState::Connecting,
            Phase::Relaying { .. } | Phase::Resetting { .. } => ConnectionState::Relaying,
        }
    }

    /// Whether it comes from a kept listener.
    pub(crate) fn is_raw(&self) -> bool {
        self.raw
    }

    pub(crate) fn lease(&self) -> Option<&Lease> {
        match &self.phase {
            Phase::Greeting | Phase::Pending { .. } => None,
            Phase::Connecting { lease, .. }
            | Phase::Relaying { lease, .. }
            | Phase::Resetting { lease, .. } => Some(lease),
        }
    }

    /// Whether its backend's kernel may have its handshake half done: see [`Gate::unproven`](crate::Gate::unproven).
    pub(crate) fn is_unproven(&self) -> bool {
        match &self.phase {
            Phase::Greeting | Phase::Pending { .. } => false,
            Phase::Connecting { .. } => true,
            Phase::Relaying { backend, relay, .. } | Phase::Resetting { backend, relay, .. } => {
                !relay.is_known_to(backend)
            }
        }
    }

    /// Whether its client is still owed something by its backend: see [`Gate::owed`](crate::Gate::owed).
    pub(crate) fn is_owed(&self) -> bool {
        match &self.phase {
            Phase::Greeting | Phase::Pending { .. } | Phase::Connecting { .. } => false,
            Phase::Relaying { relay, .. } => relay.owes(&self.client),
            // What comes before a backend's reset; see `resets` for how long at most.
            Phase::Resetting { by, .. } => *by == Side::Backend,
        }
    }

    /// Whether it is one of these.
    pub(crate) fn is(&self, service: ServiceId, which: Which) -> bool {
        self.lease().is_some_and(|lease| match which {
            Which::Of(generation) => lease.is_of(service, generation),
            Which::Unproven(generation) => lease.is_of(service, generation) && self.is_unproven(),
            Which::Owed => lease.is_in(service) && self.is_owed(),
        })
    }

    /// The generation whose death may be what ends it, if it is closed for this reason: the backend has ended while the client
    /// waited for it.
    pub(crate) fn suspect(&self, reason: CloseReason) -> Option<&Local> {
        let (Phase::Relaying { lease, relay, .. } | Phase::Resetting { lease, relay, .. }) =
            &self.phase
        else {
            return None;
        };
        let may_be = matches!(
            reason,
            CloseReason::Eof | CloseReason::BackendReset | CloseReason::ClientReset
        );
        (may_be && relay.is_cut_off() && lease.generation.is_process()).then_some(lease)
    }

    /// How its wait ended, if it is closed in it.
    pub(crate) fn wait_outcome(&self, reason: CloseReason) -> Option<PendingOutcome> {
        match self.phase {
            _ if self.waited => None,
            Phase::Pending { .. } | Phase::Connecting { .. } => Some(match reason {
                CloseReason::ClientReset => PendingOutcome::ClientReset,
                CloseReason::PendingTimeout => PendingOutcome::Timeout,
                CloseReason::Overflow => PendingOutcome::Overflow,
                _ => PendingOutcome::Shutdown,
            }),
            Phase::Greeting | Phase::Relaying { .. } | Phase::Resetting { .. } => None,
        }
    }

    /// Bytes from and to the client.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        match &self.phase {
            Phase::Relaying { relay, .. } | Phase::Resetting { relay, .. } => relay.bytes(),
            _ => (0, 0),
        }
    }
}
