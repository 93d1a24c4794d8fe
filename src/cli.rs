//! The command line: verbs, options, their help and defaults. It decides nothing.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;
use syngate_supervisor::config::BackendAddress;

use crate::client::Wait;
use crate::config::value;
use crate::demo::BackendArgs;
use options::{RunArgs, words};

pub(crate) mod options;

/// A front TCP relay that never reloads.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100, after_help = EXAMPLE)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

/// What to begin with.
const EXAMPLE: &str = "\
For example, a server behind port 8080, and a reload of it from another terminal:
  syngate run --listen 8080 -- python3 -m http.server --bind {addr} {port}
  syngate reload";

/// The verbs that take a command to run.
const RUNNERS: [&str; 3] = ["run", "check", "hold"];

impl Cli {
    /// Reads the command line; ends the process where it can't be understood, or asks for help.
    pub(crate) fn read() -> Cli {
        Cli::try_parse().unwrap_or_else(|mut error| {
            let verb = std::env::args().nth(1).unwrap_or_default();
            if let (ErrorKind::UnknownArgument, Some(ContextValue::String(word))) =
                (error.kind(), error.get(ContextKind::InvalidArg))
                && RUNNERS.contains(&verb.as_str())
                && !word.starts_with('-')
            {
                let tip = "a command to run stands after ` -- `".into();
                error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip]));
            }
            error.exit()
        })
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Run the gate, in the foreground
    ///
    /// Each option is also a variable, SYNGATE_ and its name (SYNGATE_DRAIN_TIMEOUT; repeated values are separated by spaces),
    /// and a key of the file (drain_timeout). A flag wins over a variable, a variable over the file. Durations are written
    /// 500ms, 30s, 5m, 1h or off.
    #[command(override_usage = "syngate run [OPTIONS] [-- COMMAND [ARG...]]")]
    Run(RunArgs),
    /// Verify everything that `run` would before it opens a port, and run the backend's own check
    #[command(override_usage = "syngate check [OPTIONS] [-- COMMAND [ARG...]]")]
    Check(RunArgs),
    #[command(flatten)]
    Ask(Ask),
    /// Show the main job on an embedded backend: load, reloads, what can go wrong, and a verdict, in about 15 seconds
    Demo,
    /// The backend of `demo`
    #[command(hide = true)]
    DemoBackend(BackendArgs),
    /// Write shell completions or man pages
    #[command(hide = true)]
    Generate(GenerateArgs),
}

/// What a running gate is asked.
#[derive(Debug, Subcommand)]
pub(crate) enum Ask {
    /// Start the next generation, wait until it is ready, flip, drain the old one
    Reload(ReloadArgs),
    /// Hold new connections; with CMD: hold, run it, wait until the backend is ready, release
    #[command(override_usage = "syngate hold [SERVICE] [OPTIONS] [-- CMD [ARG...]]")]
    Hold(HoldArgs),
    /// End a hold
    Release(ServiceArgs),
    /// Make servers that somebody else runs the next generation
    #[command(override_usage = "syngate activate [SERVICE] [OPTIONS] --backend [LISTENER=]ADDR...")]
    Activate(ActivateArgs),
    /// Flip back to the previous generation while it can still serve
    Rollback(ServiceArgs),
    /// Services, generations, connections, and how the last reload ended
    Status(StatusArgs),
    /// Who is connected, since when, and how many bytes: what keeps a drain waiting
    Connections(ConnectionsArgs),
    /// Each step of every service as it happens, until an interrupt or the gate's end
    Events(EventsArgs),
}

/// How a verb finds the gate.
#[derive(Args, Clone, Debug)]
pub(crate) struct Client {
    /// The gate's control socket (also SYNGATE_CONTROL) [default: the first that answers of
    /// $XDG_RUNTIME_DIR/syngate.sock, /run/syngate/control.sock, and one by uid under the temp dir]
    #[arg(long, value_name = "PATH")]
    pub(crate) control: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub(crate) struct ServiceArgs {
    /// Which service; may be left out where there is one
    #[arg(value_name = "SERVICE")]
    pub(crate) service: Option<String>,
    #[command(flatten)]
    pub(crate) client: Client,
}

#[derive(Args, Debug)]
pub(crate) struct ReloadArgs {
    /// Which service [default: all]
    #[arg(value_name = "SERVICE")]
    pub(crate) service: Option<String>,
    #[command(flatten)]
    pub(crate) patience: Patience,
    #[command(flatten)]
    pub(crate) client: Client,
}

/// How long a verb waits for a new generation.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// Until the new generation is active and min-ready has passed, or the old ones are drained too
    #[arg(long, value_name = "STATE", default_value = "active", value_parser = words(&WAITS))]
    pub(crate) wait: Wait,
    /// Bound of the wait; what was asked for goes on
    #[arg(long, value_name = "TIME", default_value = "90s", value_parser = value::bound)]
    pub(crate) timeout: Duration,
}

static WAITS: [(&str, Wait); 2] = [("active", Wait::Active), ("drained", Wait::Drained)];

#[derive(Args, Debug)]
pub(crate) struct HoldArgs {
    /// Which service; may be left out where there is one
    #[arg(value_name = "SERVICE")]
    pub(crate) service: Option<String>,
    /// Released by itself after this [default: pending_timeout]
    #[arg(long, value_name = "TIME", value_parser = value::bound)]
    pub(crate) timeout: Option<Duration>,
    /// Run it while the service is held; it must return only when the backend has been restarted
    #[arg(last = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
    #[command(flatten)]
    pub(crate) client: Client,
}

#[derive(Args, Debug)]
pub(crate) struct ActivateArgs {
    /// Which service; may be left out where there is one
    #[arg(value_name = "SERVICE")]
    pub(crate) service: Option<String>,
    /// Where it listens: HOST:PORT, [IP6]:PORT or unix:PATH; for one listener, else for all
    #[arg(long, value_name = "[LISTENER=]ADDR", required = true, num_args = 1..)]
    pub(crate) backend: Vec<BackendAddress>,
    #[command(flatten)]
    pub(crate) patience: Patience,
    #[command(flatten)]
    pub(crate) client: Client,
}

#[derive(Args, Debug)]
pub(crate) struct StatusArgs {
    /// Which service [default: all]
    #[arg(value_name = "SERVICE")]
    pub(crate) service: Option<String>,
    /// One JSON document (docs/control.md)
    #[arg(long)]
    pub(crate) json: bool,
    /// Show it again as it changes
    #[arg(long, conflicts_with = "ready")]
    pub(crate) watch: bool,
    /// Say nothing but whether /readyz is 200: exit 0, else 4
    #[arg(long)]
    pub(crate) ready: bool,
    #[command(flatten)]
    pub(crate) client: Client,
}

#[derive(Args, Debug)]
pub(crate) struct ConnectionsArgs {
    /// Which service; may be left out where there is one
    #[arg(value_name = "SERVICE")]
    pub(crate) service: Option<String>,
    /// Only those of generation N
    #[arg(long, value_name = "N")]
    pub(crate) generation: Option<u64>,
    #[command(flatten)]
    pub(crate) client: Client,
}

#[derive(Args, Debug)]
pub(crate) struct EventsArgs {
    /// Which service [default: all]
    #[arg(value_name = "SERVICE")]
    pub(crate) service: Option<String>,
    /// One JSON object a line (docs/control.md)
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) client: Client,
}

#[derive(Args, Debug)]
pub(crate) struct GenerateArgs {
    #[command(subcommand)]
    pub(crate) what: Generate,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Generate {
    /// Write a shell's completions to stdout
    Completions {
        /// Which shell
        shell: Shell,
    },
    /// Write a man page a verb into DIR
    Man {
        /// Made where it is missing
        dir: PathBuf,
    },
    /// Write the pages of docs/reference into DIR
    Reference {
        /// Made where it is missing
        dir: PathBuf,
    },
}
