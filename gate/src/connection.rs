//! One connection's life, as phases. It decides and does its own I/O; the worker keeps it, queues it and closes it.
//!
//! Invariants:
//!
//! - A pending connection has been read from by nobody: its client's bytes stay in the kernel. The exception is what was read for
//!   a backend that was reset before it took the first byte (`unsent`).
//! - Nothing is dispatched again once a byte of the client's was written or one of the backend's was read.
//! - What a connection holds (sockets, lease, attempt) ends by its drop, whatever way it ends.

mod report;
mod resets;
mod timeouts;

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::{Epoll, EpollFlags};
use syngate_metrics::{
    CloseReason, ConnectionState, DispatchResult, ListenerBlock, PendingOutcome, ServiceBlock,
};

use crate::deadlines::Tick;
use crate::dialer::Attempt;
use crate::gate::ServiceSettings;
use crate::generation::{Lease, Local};
use crate::proxy_protocol::Addresses;
use crate::relay::{Relay, Scratch, Side, Turn};
use crate::socket::Socket;

/// Remote connections of this age get TCP keepalive: short ones are spared the system call.
const KEEPALIVE_AGE: Duration = Duration::from_secs(30);

/// What the worker lends for one look at a connection.
pub(crate) struct Context<'a> {
    pub(crate) now: Tick,
    pub(crate) epoll: &'a Epoll,
    pub(crate) scratch: &'a mut Scratch,
    pub(crate) settings: &'a ServiceSettings,
    pub(crate) service: &'a ServiceBlock,
    pub(crate) listener: &'a ListenerBlock,
    /// The generation to which its listener's connections go now.
    pub(crate) local: Option<&'a Local>,
    /// Its listener is raw.
    pub(crate) raw: bool,
}

impl Context<'_> {
    /// Whether what goes back to the queue would come to the same generation again.
    pub(crate) fn is_current(&self, lease: &Lease) -> bool {
        self.local
            .is_some_and(|local| std::ptr::eq(local, &**lease))
    }
}

/// What the worker does next with a connection.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Nothing, until an edge comes or its deadline.
    Wait,
    /// Another turn soon: its budget was used up.
    Again,
    /// It is pending (again): dispatch it when its turn has come.
    Queue,
    /// Close it.
    Close(CloseReason),
}

#[derive(Debug)]
pub(crate) enum Phase {
    /// Its PROXY header is awaited.
    Greeting,
    /// Nothing is active, or the service is held, or its turn hasn't come.
    Pending { unsent: Option<Box<[u8]>> },
    /// A connect is under way.
    Connecting {
        lease: Lease,
        attempt: Attempt,
        backend: Socket,
        unsent: Option<Box<[u8]>>,
    },
    /// Bytes pass.
    Relaying {
        lease: Lease,
        backend: Socket,
        relay: Relay,
        keepalive: Tick,
    },
    /// One side was reset; the other gets the reset once it has what came before.
    Resetting {
        lease: Lease,
        backend: Socket,
        relay: Relay,
        by: Side,
        /// When the other side last acknowledged something, and how many bytes it had not.
        since: Tick,
        left: u32,
    },
}

#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) client: Socket,
    pub(crate) phase: Phase,
    /// The client, as accept(2) or its PROXY header says; `None` for a unix socket.
    pub(crate) peer: Option<SocketAddr>,
    /// Both addresses, where a PROXY header said them.
    pub(crate) proxied: Option<Box<Addresses>>,
    /// The worker's number of its listener.
    pub(crate) listener: u32,
    /// A PROXY header is in the stream already: it comes from a kept listener. Of a raw listener see [`Context::raw`].
    pub(crate) raw: bool,
    pub(crate) accepted: Tick,
    /// When a byte last passed, a side ended, or the phase began.
    touched: Tick,
    /// The deadline that the worker's heap has; never later than [`Connection::deadline`].
    pub(crate) armed: Tick,
    /// How its wait ended has been counted: what comes after a reset that it survived isn't another wait.
    waited: bool,
    /// Its backend's side had ended when its process died, and its client had not been content: it was cut off.
    gone: bool,
    /// It is on the worker's run list: edges are noted, and looked at when its turn comes.
    pub(crate) running: bool,
}

impl Connection {
    pub(crate) fn new(
        client: Socket,
        peer: Option<SocketAddr>,
        listener: u32,
        raw: bool,
        phase: Phase,
        now: Tick,
    ) -> Connection {
        Connection {
            client,
            phase,
            peer,
            proxied: None,
            listener,
            raw,
            accepted: now,
            touched: now,
            armed: Tick::NEVER,
            waited: false,
            gone: false,
            running: false,
        }
    }

    pub(crate) fn enter(&mut self, phase: Phase, context: &Context<'_>) {
        context.listener.open[self.state()].dec();
        self.phase = phase;
        self.touched = context.now;
        context.listener.open[self.state()].inc();
    }

    /// An edge came.
    pub(crate) fn event(
        &mut self,
        side: Side,
        events: EpollFlags,
        context: &mut Context<'_>,
    ) -> Next {
        match (side, &mut self.phase) {
            (Side::Client, _) => self.client.note(events),
            (
                Side::Backend,
                Phase::Connecting { backend, .. }
                | Phase::Relaying { backend, .. }
                | Phase::Resetting { backend, .. },
            ) => backend.note(events),
            (Side::Backend, _) => {}
        }
        if self.running {
            Next::Wait
        } else {
            self.advance(context)
        }
    }

    /// Does what can be done now.
    pub(crate) fn advance(&mut self, context: &mut Context<'_>) -> Next {
        match self.phase {
            Phase::Greeting => self.greet(context),
            Phase::Pending { .. } if self.client_has_gone() => {
                Next::Close(CloseReason::ClientReset)
            }
            Phase::Pending { .. } => Next::Wait,
            Phase::Connecting { .. } => self.connecting(context),
            Phase::Relaying { .. } => self.relay(context),
            Phase::Resetting { .. } => self.resetting(context),
        }
    }

    /// Whether the client was reset. One that has only ended its side (a request with SHUT_WR) is there.
    fn client_has_gone(&self) -> bool {
        self.client.has_failed()
    }

    /// Looks, before a client that has waited is dispatched, for a reset whose edge is still on its way.
    pub(crate) fn look_for_reset(&mut self) {
        let mut fds = [PollFd::new(self.client.as_fd(), PollFlags::empty())];
        if poll(&mut fds, PollTimeout::ZERO).is_ok_and(|n| n > 0)
            && fds[0]
                .revents()
                .is_some_and(|events| events.contains(PollFlags::POLLERR))
        {
            self.client.note(EpollFlags::EPOLLERR);
        }
    }

    /// A connect towards `lease`'s generation has begun.
    pub(crate) fn dispatched(
        &mut self,
        lease: Lease,
        attempt: Attempt,
        backend: Socket,
        context: &mut Context<'_>,
    ) -> Next {
        let unsent = self.take_unsent();
        self.enter(
            Phase::Connecting {
                lease,
                attempt,
                backend,
                unsent,
            },
            context,
        );
        self.advance(context)
    }

    fn take_unsent(&mut self) -> Option<Box<[u8]>> {
        match &mut self.phase {
            Phase::Pending { unsent } | Phase::Connecting { unsent, .. } => unsent.take(),
            Phase::Resetting { relay, .. } => relay.take_unsent(),
            Phase::Greeting | Phase::Relaying { .. } => None,
        }
    }

    fn connecting(&mut self, context: &mut Context<'_>) -> Next {
        let Phase::Connecting {
            attempt, backend, ..
        } = &self.phase
        else {
            return Next::Wait;
        };
        if backend.has_failed() {
            let error = backend.take_error();
            let connected = error.as_ref().is_none_or(|error| {
                // It was connected, and reset since: no failure of the connect.
                matches!(
                    error.kind(),
                    std::io::ErrorKind::ConnectionReset | std::io::ErrorKind::BrokenPipe
                )
            });
            if let Some(error) = error.filter(|_| !connected) {
                return self.connect_failed(error, context);
            }
        } else if !backend.is_writable() {
            let waited = context.now.since(attempt.started);
            if waited < context.settings.connect_timeout {
                return Next::Wait;
            }
            return self.connect_failed(Errno::ETIMEDOUT.into(), context);
        }
        if attempt.met_itself(backend) {
            return self.connect_failed(Errno::ECONNREFUSED.into(), context);
        }
        self.connected(context)
    }

    fn connect_failed(&mut self, error: std::io::Error, context: &mut Context<'_>) -> Next {
        let Phase::Connecting { attempt, .. } = &self.phase else {
            return Next::Wait;
        };
        let failure = attempt.failed(context.now, error);
        context.service.dispatch_attempts[failure.result].inc();
        tracing::debug!(peer = ?self.peer, result = %failure.result, "connect failed: {}", failure.error);
        self.withdraw(context)
    }

    /// Takes the connection back from its generation: it is pending again.
    pub(crate) fn withdraw(&mut self, context: &mut Context<'_>) -> Next {
        if let Phase::Connecting { backend, .. } | Phase::Resetting { backend, .. } = &self.phase {
            // Its token will name the next backend too, and a child between fork and exec may keep this one's edges coming.
            let _ = context.epoll.delete(backend);
        }
        let unsent = self.take_unsent();
        context.service.redispatches.inc();
        self.enter(Phase::Pending { unsent }, context);
        Next::Queue
    }

    fn connected(&mut self, context: &mut Context<'_>) -> Next {
        let unsent = self.take_unsent();
        let header = self.header(context);
        let phase = std::mem::replace(&mut self.phase, Phase::Pending { unsent: None });
        let Phase::Connecting {
            lease,
            attempt,
            backend,
            ..
        } = phase
        else {
            return Next::Wait;
        };
        attempt.succeeded();
        let remote = attempt.is_remote() && context.settings.keepalive.is_some();
        let keepalive = if remote {
            context.now + KEEPALIVE_AGE
        } else {
            Tick::NEVER
        };
        context.service.dispatch_attempts[DispatchResult::Ok].inc();
        context
            .service
            .connect_duration
            .observe(context.now.since(attempt.started));
        if !std::mem::replace(&mut self.waited, true) {
            context.service.pending_outcomes[PendingOutcome::Dispatched].inc();
            let wait = context.now.since(self.accepted);
            context.service.pending_wait.observe(wait);
        }
        drop(attempt);
        let relay = Relay::new(header.as_deref().unwrap_or_default(), unsent);
        self.phase = Phase::Relaying {
            lease,
            backend,
            relay,
            keepalive,
        };
        self.touched = context.now;
        context.listener.open[ConnectionState::Connecting].dec();
        context.listener.open[ConnectionState::Relaying].inc();
        self.relay(context)
    }

    fn relay(&mut self, context: &mut Context<'_>) -> Next {
        let Phase::Relaying { backend, relay, .. } = &mut self.phase else {
            return Next::Wait;
        };
        let (before, was_half_closed) = (relay.bytes(), relay.is_half_closed());
        let turn = relay.turn(&mut self.client, backend, context.scratch);
        let after = relay.bytes();
        if after != before || relay.is_half_closed() != was_half_closed {
            self.touched = context.now;
            context.listener.bytes_in.add(after.0 - before.0);
            context.listener.bytes_out.add(after.1 - before.1);
        }
        match turn {
            Turn::Waits => Next::Wait,
            Turn::More => Next::Again,
            Turn::Ended if self.gone => Next::Close(CloseReason::BackendGone),
            Turn::Ended => Next::Close(CloseReason::Eof),
            Turn::Reset(by) => {
                let phase = std::mem::replace(&mut self.phase, Phase::Greeting);
                if let Phase::Relaying {
                    lease,
                    backend,
                    relay,
                    ..
                } = phase
                {
                    let since = context.now;
                    self.phase = Phase::Resetting {
                        lease,
                        backend,
                        relay,
                        by,
                        since,
                        left: u32::MAX,
                    };
                }
                self.resetting(context)
            }
        }
    }

    /// Ends it; what it borrowed from the worker goes back.
    pub(crate) fn close(self, scratch: &mut Scratch) {
        if let Phase::Relaying { relay, .. } | Phase::Resetting { relay, .. } = self.phase {
            relay.release(&mut scratch.pipes);
        }
    }
}

#[cfg(test)]
mod tests;
