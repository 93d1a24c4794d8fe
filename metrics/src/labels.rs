//! The bounded label values: an operator's words, the same in a metric's label and in a log's field.

/// A closed set of label values, usable as an index into [`Cells`](crate::Cells).
pub trait Label: Copy + 'static {
    /// Every value, in the order of [`Label::index`].
    const ALL: &'static [Self];
    /// This value's place in [`Label::ALL`].
    fn index(self) -> usize;
    /// The word in the metric's label and in the log.
    fn as_str(self) -> &'static str;
    /// What it means, as its documentation says: a sentence for the reference.
    fn meaning(self) -> &'static str;
}

macro_rules! labels {
    ($(#[$doc:meta])* $name:ident { $($(#[doc = $vdoc:literal])+ $variant:ident = $word:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[doc = $vdoc])+ $variant,)+ }

        impl Label for $name {
            const ALL: &'static [Self] = &[$($name::$variant,)+];
            fn index(self) -> usize {
                self as usize
            }
            fn as_str(self) -> &'static str {
                match self { $($name::$variant => $word,)+ }
            }
            fn meaning(self) -> &'static str {
                match self { $($name::$variant => concat!($($vdoc),+).trim_start(),)+ }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

labels! {
    /// What an open connection is doing: `connections_open{state}`.
    ConnectionState {
        /// Its PROXY header is awaited.
        Greeting = "greeting",
        /// Accepted, not yet dispatched.
        Pending = "pending",
        /// Dispatched; the connect to the endpoint is under way.
        Connecting = "connecting",
        /// Bytes pass.
        Relaying = "relaying",
    }
}

labels! {
    /// Why a connection ended: `connections_closed_total{reason}`.
    CloseReason {
        /// Both sides had said all they had to say.
        Eof = "eof",
        /// The client reset it.
        ClientReset = "client_reset",
        /// The backend reset it while its generation lived.
        BackendReset = "backend_reset",
        /// No byte either way for `idle_timeout`.
        IdleTimeout = "idle_timeout",
        /// One side had ended, and the other was silent for `half_close_timeout`.
        HalfCloseTimeout = "half_close_timeout",
        /// No backend for `pending_timeout`.
        PendingTimeout = "pending_timeout",
        /// `pending_max` or `max_connections` was reached, and `pending_overflow` is `reset`.
        Overflow = "overflow",
        /// Its generation's `drain_timeout` had passed.
        DrainTimeout = "drain_timeout",
        /// The gate stopped.
        Shutdown = "shutdown",
        /// A PROXY header was required and was bad, late, or from a peer that isn't trusted.
        ProxyHeader = "proxy_header",
        /// Left in a kept listener that no generation took over.
        Unaccepted = "unaccepted",
        /// The backend's process had ended.
        BackendGone = "backend_gone",
    }
}

labels! {
    /// How a wait in the pending queue ended: `pending_outcomes_total{outcome}`.
    PendingOutcome {
        /// An endpoint took it.
        Dispatched = "dispatched",
        /// `pending_timeout` passed.
        Timeout = "timeout",
        /// There was no room.
        Overflow = "overflow",
        /// Its client reset it.
        ClientReset = "client_reset",
        /// The gate stopped.
        Shutdown = "shutdown",
    }
}

labels! {
    /// How one connect to an endpoint ended: `dispatch_attempts_total{result}`.
    DispatchResult {
        /// Connected.
        Ok = "ok",
        /// Nobody listens there.
        Refused = "refused",
        /// No answer within `connect_timeout`.
        Timeout = "timeout",
        /// A unix endpoint's backlog was full.
        Again = "again",
        /// No local port was free towards it.
        NoPort = "no_port",
        /// Reset after the connect, before any byte: dispatched anew.
        Reset = "reset",
        /// Any other error.
        Error = "error",
    }
}

labels! {
    /// Why accept(2) failed: `accept_errors_total{errno}`.
    AcceptErrno {
        /// The client had gone.
        Connaborted = "ECONNABORTED",
        /// The process is out of descriptors.
        Mfile = "EMFILE",
        /// The system is out of descriptors.
        Nfile = "ENFILE",
        /// No socket buffers.
        Nobufs = "ENOBUFS",
        /// No memory.
        Nomem = "ENOMEM",
        /// A protocol error.
        Proto = "EPROTO",
        /// Anything else.
        Other = "other",
    }
}

labels! {
    /// How a reload ended: `reloads_total{outcome}`.
    ReloadOutcome {
        /// The new generation is active and `min_ready` has passed.
        Success = "success",
        /// The check command said no, or hung.
        CheckFailed = "check_failed",
        /// A new public port couldn't be opened.
        ListenFailed = "listen_failed",
        /// The backend couldn't be started, or ended before it was ready.
        StartFailed = "start_failed",
        /// Not ready within `ready_timeout`.
        NotReady = "not_ready",
        /// Ended within `min_ready` after the flip: the old generation is active again.
        FlippedBack = "flipped_back",
        /// An automatic try after a failed reload has begun; how it ends is counted too.
        Retried = "retried",
        /// A newer request took its place.
        Superseded = "superseded",
    }
}

labels! {
    /// A step of the ladder: `reload_duration_seconds{phase}`.
    ReloadPhase {
        /// The check command.
        Check = "check",
        /// From the spawn to the process's existence.
        Start = "start",
        /// From the start to ready and settled.
        Ready = "ready",
        /// From ready to active in every worker.
        Flip = "flip",
        /// From the flip to the old generation's end.
        Drain = "drain",
    }
}

labels! {
    /// What a generation is doing: `generations{state}`.
    GenerationState {
        /// Its process is being started, or isn't ready yet.
        Starting = "starting",
        /// Ready, and about to become active.
        Ready = "ready",
        /// New connections go to it.
        Active = "active",
        /// Another one is active; its own connections go on.
        Draining = "draining",
        /// Ended after another had taken its place, or after it was told to end: all since the start.
        Retired = "retired",
        /// Ended before it was active, or died while it was: all since the start.
        Failed = "failed",
    }
}
