//! The options of `run` and `check`. Each is also a variable and a key of the file, so what the command line said is kept as
//! text ([`RunArgs`]): [`crate::config`] lays it over the other two and parses the whole once, with the parsers named here.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};
use nix::sys::signal::Signal;
use syngate_gate::Overflow;
use syngate_gate::listener::Named;
use syngate_gate::proxy_protocol::{Trusted, Version};
use syngate_supervisor::config::{Argv, BackendAddress, Pass, Strategy};
use syngate_supervisor::readiness::Ready;

use crate::config::layer::Layer;
use crate::config::value::{self, Limit, MetricsAddress};

/// What the command line of `run` or `check` said, as text.
#[derive(Clone, Debug)]
pub(crate) struct RunArgs {
    /// `--config`.
    pub(crate) config: Option<PathBuf>,
    /// Everything else.
    pub(crate) flags: Layer,
}

impl Args for RunArgs {
    fn augment_args(command: Command) -> Command {
        let config = Arg::new("config")
            .long("config")
            .value_name("FILE")
            .value_parser(clap::value_parser!(PathBuf))
            .help(
                "Read a TOML file: the gate's own keys at the top, a service's in [services.NAME]",
            );
        ServiceOptions::augment_args(ProcessOptions::augment_args(command.arg(config)))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for RunArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Ok(RunArgs {
            config: matches.get_one("config").cloned(),
            flags: Layer::from_flags(matches)?,
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// What is the process's.
#[derive(Args, Clone, Debug, PartialEq)]
#[command(next_help_heading = "The gate")]
pub(crate) struct ProcessOptions {
    /// Control socket, a unix socket of mode 0600 [default: $XDG_RUNTIME_DIR/syngate.sock, else
    /// /run/syngate/control.sock, else one by uid under the temp dir]
    #[arg(long, value_name = "PATH")]
    pub(crate) control: Option<PathBuf>,
    /// Where generations have their directories [default: the control socket's directory]
    #[arg(long, value_name = "DIR")]
    pub(crate) runtime_dir: Option<PathBuf>,
    /// Serve /metrics, /livez and /readyz here, or off
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:9464", value_parser = value::metrics)]
    pub(crate) metrics: MetricsAddress,
    /// Threads of the data path [default: one a core]
    #[arg(long, value_name = "N", value_parser = value::number(1..=1024_u16))]
    pub(crate) workers: Option<u16>,
    /// Clients in any phase [default: what the descriptor limit allows]
    #[arg(long, value_name = "N", value_parser = value::number(1..=u64::MAX))]
    pub(crate) max_connections: Option<u64>,
    /// Connections that may wait for a backend
    #[arg(long, value_name = "N", default_value = "10000", value_parser = value::number(1..=u64::MAX))]
    pub(crate) pending_max: u64,
    /// After SIGTERM, go on accepting for this long while /readyz says 503
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = value::delay)]
    pub(crate) lame_duck: Duration,
    /// Then drain and end everything within this
    #[arg(long, value_name = "TIME", default_value = "8s", value_parser = value::bound)]
    pub(crate) shutdown_timeout: Duration,
    /// text or json, to stderr
    #[arg(long, value_name = "FORMAT", default_value = "text", value_parser = words(&LOG_FORMATS), hide_possible_values = true)]
    pub(crate) log_format: LogFormat,
    /// error, warn, info, debug, trace, or directives such as info,syngate_gate=debug
    #[arg(long, value_name = "LEVEL", default_value = "info", value_parser = crate::logging::filter)]
    pub(crate) log_level: String,
}

/// How a line of the log looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogFormat {
    /// For people.
    Text,
    /// One object a line.
    Json,
}

/// What is a service's.
#[derive(Args, Clone, Debug, PartialEq)]
#[command(next_help_heading = "A service")]
pub(crate) struct ServiceOptions {
    /// Public address: PORT, IP:PORT, [IP6]:PORT, unix:PATH[,mode=0660] or fd:NAME (repeatable)
    #[arg(long, value_name = "[NAME=]ADDR")]
    pub(crate) listen: Vec<Named>,
    /// HAProxy's configuration, a file or a directory, instead of COMMAND: its public ports become the gate's (repeatable)
    #[arg(long, value_name = "FILE")]
    pub(crate) haproxy: Vec<PathBuf>,
    /// HAProxy's program; without a slash it is looked up in PATH at each start
    #[arg(long, value_name = "PROGRAM", default_value = "haproxy")]
    pub(crate) haproxy_binary: String,
    /// Added to HAProxy's command line, as in "-q -n 4000"
    #[arg(long, value_name = "ARGS", allow_hyphen_values = true, value_parser = value::command)]
    pub(crate) haproxy_args: Option<Argv>,
    /// Where servers listen that somebody else runs, or where COMMAND listens if its address is fixed: HOST:PORT, [IP6]:PORT
    /// or unix:PATH; for one listener, else for all (repeatable)
    #[arg(long, value_name = "[LISTENER=]ADDR")]
    pub(crate) backend: Vec<BackendAddress>,
    /// Make the private listening sockets here and pass them: fd (as {fd}), listen-fds (as systemd does) or none [default:
    /// none, or fd where COMMAND has {fd}]
    #[arg(long, value_name = "HOW", value_parser = words(&PASSES), hide_possible_values = true)]
    pub(crate) pass: Option<Pass>,
    /// overlap: the new generation starts beside the old one; replace: the old one stops first
    #[arg(long, value_name = "STRATEGY", default_value = "overlap", value_parser = words(&STRATEGIES), hide_possible_values = true)]
    pub(crate) strategy: Strategy,
    /// Run it before each start; a status that isn't 0 aborts the reload
    #[arg(long, value_name = "CMD", value_parser = value::command)]
    pub(crate) check: Option<Argv>,
    /// Bound of one check
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = value::bound)]
    pub(crate) check_timeout: Duration,
    /// How a generation proves that it is ready: tcp, http:PATH, notify, fd:N or exec:CMD; HAProxy needs none
    #[arg(long, value_name = "HOW", default_value = "tcp")]
    pub(crate) ready: Ready,
    /// Bound from the start to ready
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = value::bound)]
    pub(crate) ready_timeout: Duration,
    /// Ready and alive for this long before the flip
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = value::delay)]
    pub(crate) ready_settle: Duration,
    /// Alive for this long after the flip, else flip back
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = value::delay)]
    pub(crate) min_ready: Duration,
    /// From the end of min-ready, or of keep-previous, to the drain's first step
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = value::delay)]
    pub(crate) drain_delay: Duration,
    /// Tells the old generation to accept no more, once its accept queue is empty [default: none; HAProxy:
    /// SIGUSR1]
    #[arg(long, value_name = "SIGNAL", value_parser = value::signal)]
    pub(crate) drain_signal: Option<Signal>,
    /// Bound of a drain, anew from the drain signal on; then its connections are reset; or off [default: 30s; replace: 5s]
    #[arg(long, value_name = "TIME", value_parser = value::limit)]
    pub(crate) drain_timeout: Option<Limit>,
    /// Try a failed reload again by itself [default: false; HAProxy: true]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", hide_possible_values = true)]
    pub(crate) retry: Option<bool>,
    /// Ends a drained generation [HAProxy: SIGUSR1]
    #[arg(long, value_name = "SIGNAL", default_value = "SIGTERM", value_parser = value::signal)]
    pub(crate) stop_signal: Signal,
    /// From the stop signal to SIGKILL
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = value::delay)]
    pub(crate) stop_timeout: Duration,
    /// For this long after the flip leave the old generation alone: something to roll back to
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = value::delay)]
    pub(crate) keep_previous: Duration,
    /// Generations that may live at once
    #[arg(long, value_name = "N", default_value = "8", value_parser = value::number(1..=1000_u16))]
    pub(crate) max_generations: u16,
    /// How long a connection may wait for a backend [default: 30s; replace: 40s]
    #[arg(long, value_name = "TIME", value_parser = value::bound)]
    pub(crate) pending_timeout: Option<Duration>,
    /// At the limits, backpressure (stop accepting, the kernel holds the rest) or reset
    #[arg(long, value_name = "WHAT", default_value = "backpressure", value_parser = words(&OVERFLOWS), hide_possible_values = true)]
    pub(crate) pending_overflow: Overflow,
    /// Connections dispatched and not yet accepted by the backend, at most
    #[arg(long, value_name = "N", default_value = "64", value_parser = value::number(1..=u32::MAX))]
    pub(crate) dispatch_concurrency: u32,
    /// Bound of one connect
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = value::bound)]
    pub(crate) connect_timeout: Duration,
    /// Close a connection without a byte either way for this long, or off
    #[arg(long, value_name = "TIME", default_value = "off", value_parser = value::limit)]
    pub(crate) idle_timeout: Limit,
    /// The same once one side has ended, or off
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = value::limit)]
    pub(crate) half_close_timeout: Limit,
    /// TCP keepalive towards clients and remote backends, or off
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = value::limit)]
    pub(crate) keepalive: Limit,
    /// Backlog of public listeners; net.core.somaxconn bounds it
    #[arg(long, value_name = "N", default_value = "4096", value_parser = value::number(1..=i32::MAX as u32))]
    pub(crate) backlog: u32,
    /// Source addresses towards remote backends, separated by commas [default: the system's choice]
    #[arg(long, value_name = "IP,...", value_delimiter = ',', value_parser = value::ip)]
    pub(crate) source: Vec<IpAddr>,
    /// Send a PROXY header to the backend: v1 or v2 [default: none]
    #[arg(long, value_name = "VERSION", value_parser = words(&VERSIONS), hide_possible_values = true)]
    pub(crate) send_proxy: Option<Version>,
    /// Require a PROXY header from these peers, close all others; unix names unix listeners [default: none]
    #[arg(long, value_name = "CIDR,...")]
    pub(crate) accept_proxy: Option<Trusted>,
    /// Bound of the PROXY header's arrival
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = value::bound)]
    pub(crate) accept_proxy_timeout: Duration,
    /// Starts a backend, in the foreground; may have {addr}, {port}, {socket}, {fd}, {generation} and {dir}
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}

static LOG_FORMATS: [(&str, LogFormat); 2] = [("text", LogFormat::Text), ("json", LogFormat::Json)];
static PASSES: [(&str, Pass); 3] = [
    ("fd", Pass::Fd),
    ("listen-fds", Pass::ListenFds),
    ("none", Pass::None),
];
static STRATEGIES: [(&str, Strategy); 2] = [
    ("overlap", Strategy::Overlap),
    ("replace", Strategy::Replace),
];
static OVERFLOWS: [(&str, Overflow); 2] = [
    ("backpressure", Overflow::Backpressure),
    ("reset", Overflow::Reset),
];
static VERSIONS: [(&str, Version); 2] = [("v1", Version::V1), ("v2", Version::V2)];

/// One of a few words, which completions then know.
pub(super) fn words<T>(choices: &'static [(&'static str, T)]) -> impl TypedValueParser<Value = T>
where
    T: Copy + Send + Sync + 'static,
{
    PossibleValuesParser::new(choices.iter().map(|(word, _)| *word)).try_map(move |given| {
        let choice = choices.iter().find(|(word, _)| *word == given);
        choice
            .map(|(_, value)| *value)
            .ok_or_else(|| format!("`{given}` isn't known here"))
    })
}
