//! `syngate run`: the composition root. Only here are sockets bound, signals trapped and parts put together.
//!
//! What can fail comes before what others see: configuration, limits, runtime directory, control socket, metrics address and the
//! backends' own checks are done before a public port opens; and what a thread inherits is set before the first thread.

use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::sync::Arc;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigSet, Signal};
use syngate_gate::{Gate, Settings};
use syngate_metrics::Metrics;
use syngate_supervisor::child::Spawner;
use syngate_supervisor::config::ProcessConfig;
use syngate_supervisor::control::{self, ControlError};
use syngate_supervisor::exit;
use syngate_supervisor::handle::Handle;
use syngate_supervisor::inherited;
use syngate_supervisor::notify::Manager;
use syngate_supervisor::reaper::Reaper;
use syngate_supervisor::runtime_dir::{RuntimeDir, RuntimeDirError};
use syngate_supervisor::supervisor::{self, Load, Parts, Supervisor};
use tokio::signal::unix::{Signal as Arrivals, SignalKind, signal};
use tokio::sync::oneshot;
use tracing::{error, info, warn};

use crate::admin::{self, Admin, Health};
use crate::cli::options::RunArgs;
use crate::config::facts::Facts;
use crate::config::{Loaded, Loader, StartError};
use crate::logging::Log;
use crate::{check, complain};

/// Signals that the main thread takes; all other threads have them blocked.
const SIGNALS: [Signal; 5] = [
    Signal::SIGHUP,
    Signal::SIGTERM,
    Signal::SIGINT,
    Signal::SIGUSR2,
    Signal::SIGCHLD,
];

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Inherited sockets by their names.
type Inherited = HashMap<String, Vec<OwnedFd>>;

/// Carries out the verb: returns when the gate has stopped.
pub(crate) fn run(args: RunArgs) -> ExitCode {
    match try_run(args) {
        Ok(code) => code,
        Err(error) => complain(error.exit_code(), &error.to_string()),
    }
}

fn try_run(args: RunArgs) -> Result<ExitCode, StartError> {
    // First of all: until now nothing but what was passed can have its descriptors' numbers.
    let inherited = take_inherited()?;
    let names = inherited.keys().cloned().collect();
    let environment = |name: &str| std::env::var_os(name);
    let loader = Loader::new(args, &environment, Facts::gather(Some(names)))?;
    let loaded = loader.load()?;
    check::commands_are_there(&loaded.config)?;
    let soft_limit =
        raise_descriptors().map_err(refused("the descriptor limit can't be raised"))?;
    signals_of_main_thread()
        .thread_block()
        .map_err(|error| refused("signals can't be blocked")(error.into()))?;
    let _log = Log::start(loaded.log_format, &loaded.log_level)
        .map_err(refused("the log can't be started"))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(refused("no runtime for the supervisor"))?;
    let served = runtime.block_on(serve(loader, loaded, inherited, soft_limit));
    // There is a log now, in the form that was asked for.
    Ok(served.unwrap_or_else(|refusal| {
        error!("{refusal}");
        ExitCode::from(refusal.exit_code())
    }))
}

/// Takes the sockets that this process was started with.
fn take_inherited() -> Result<Inherited, StartError> {
    let environment = |name: &str| std::env::var_os(name);
    let taken = inherited::take(std::process::id(), &environment)
        .map_err(|error| StartError::Invalid(error.to_string()))?;
    let mut all = Inherited::new();
    for (name, socket) in taken {
        all.entry(name).or_default().push(socket);
    }
    Ok(all)
}

/// Raises the soft limit of open descriptors to the hard one, and returns the soft one as it was: children get it back.
fn raise_descriptors() -> io::Result<u64> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if soft < hard {
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    }
    Ok(soft)
}

fn signals_of_main_thread() -> SigSet {
    SIGNALS.into_iter().collect()
}

fn refused(what: &str) -> impl FnOnce(io::Error) -> StartError {
    move |error| StartError::Refused(format!("{what}: {error}"))
}

async fn serve(
    loader: Loader,
    loaded: Loaded,
    inherited: Inherited,
    soft_limit: u64,
) -> Result<ExitCode, StartError> {
    let config = loaded.config.clone();
    let process = &config.process;
    // The directory's lock comes before the socket: of two gates that start at once, one gets both.
    let runtime_dir = RuntimeDir::open(&process.runtime_dir)
        .map_err(|error| directory_refused(process, &error))?;
    let control = control::bind(&process.control).map_err(control_refused)?;
    let metrics_listener = process.metrics.map(bind_metrics).transpose()?;
    let metrics_address = metrics_listener
        .as_ref()
        .map(TcpListener::local_addr)
        .transpose()
        .map_err(refused("the metrics' address is unknown"))?;
    announce(process, metrics_address);
    for warning in &loaded.warnings {
        warn!("{warning}");
    }

    let signals = Signals::watch().map_err(refused("signals can't be watched"))?;
    let reaper = Reaper::start().map_err(refused("children can't be reaped"))?;
    let spawner =
        Spawner::new(reaper, soft_limit).map_err(refused("no thread for children's output"))?;
    let metrics = Metrics::new(VERSION, process.workers);
    let settings = Settings {
        workers: process.workers,
        max_connections: process.max_connections,
        pending_max: process.pending_max,
    };
    let (gate, gate_events) =
        Gate::start(&settings, &metrics).map_err(refused("the workers can't be started"))?;
    let (supervisor, handle) = Supervisor::new(Parts {
        gate,
        gate_events,
        metrics: Arc::clone(&metrics),
        metrics_address,
        config: config.clone(),
        load: reload(loader, loaded),
        runtime_dir,
        spawner,
        manager: Manager::from_environment(),
        inherited,
        version: VERSION,
    });
    let admin = metrics_listener
        .map(|listener| serve_metrics(listener, metrics, &handle))
        .transpose()?;
    // Every thread of ours runs now, with these blocked: from here on they reach the main thread.
    signals_of_main_thread()
        .thread_unblock()
        .map_err(|error| refused("signals can't be unblocked")(error.into()))?;

    let (stop_control, stopped) = oneshot::channel::<()>();
    let shutdown = async {
        // Either way the gate ends.
        let _ = stopped.await;
    };
    let control = tokio::spawn(control::serve(control, handle.clone(), shutdown));
    let signals = tokio::spawn(signals.pass_on(handle));
    let ended = supervisor.run().await;
    signals.abort();
    drop(stop_control);
    if let Ok(Err(error)) = control.await {
        warn!(%error, "the control socket failed");
    }
    if let Some(admin) = admin {
        admin.stop();
    }
    match ended {
        Ok(()) => info!("the gate has stopped"),
        Err(supervisor::StartError::System(what)) => return Err(StartError::Refused(what)),
        // With its service on each line of what the check has printed.
        Err(supervisor::StartError::Check { service, why }) => {
            error!(service, step = "check", "{why}");
            return Ok(ExitCode::from(exit::BAD_CONFIGURATION));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The configuration of each reload.
fn reload(loader: Loader, start: Loaded) -> Load {
    Box::new(move || {
        let next = loader.load().map_err(|error| error.to_string())?;
        next.refuse_changes(&start)
            .map_err(|error| error.to_string())?;
        // The others were said at the start.
        for warning in next
            .warnings
            .iter()
            .filter(|new| !start.warnings.contains(new))
        {
            warn!("{warning}");
        }
        Ok(next.config)
    })
}

/// The first lines of the log.
fn announce(process: &ProcessConfig, metrics: Option<SocketAddr>) {
    info!(
        version = VERSION,
        pid = std::process::id(),
        workers = process.workers,
        "the gate starts"
    );
    info!(
        max_connections = process.max_connections,
        pending_max = process.pending_max,
        "limits"
    );
    info!(
        control = %process.control.display(),
        runtime_dir = %process.runtime_dir.display(),
        "places"
    );
    match metrics {
        Some(address) => info!("metrics are at http://{address}/metrics"),
        None => info!("metrics are off"),
    }
}

fn bind_metrics(address: SocketAddr) -> Result<TcpListener, StartError> {
    TcpListener::bind(address).map_err(|error| {
        StartError::Refused(format!(
            "the metrics can't be served at {address} ({error}): give another address with --metrics, or off"
        ))
    })
}

fn serve_metrics(
    listener: TcpListener,
    metrics: Arc<Metrics>,
    handle: &Handle,
) -> Result<Admin, StartError> {
    let (live, ready, sample, status) = (
        handle.clone(),
        handle.clone(),
        handle.clone(),
        handle.clone(),
    );
    let health = Health {
        live: Box::new(move || live.live()),
        ready: Box::new(move || ready.ready()),
        sample: Box::new(move || sample.sample()),
        status: Box::new(move || {
            let handle = status.clone();
            Box::pin(async move { handle.status().await.ok() })
        }),
    };
    admin::serve(listener, metrics, health).map_err(refused("the metrics can't be served"))
}

/// The runtime directory is the control socket's where none is given: then the user has named that one alone.
fn directory_refused(process: &ProcessConfig, error: &RuntimeDirError) -> StartError {
    let unfit = match error {
        RuntimeDirError::NotADirectory(_) => true,
        RuntimeDirError::System { source, .. } => matches!(
            source.kind(),
            io::ErrorKind::NotFound
                | io::ErrorKind::PermissionDenied
                | io::ErrorKind::ReadOnlyFilesystem
        ),
        _ => false,
    };
    let same = process.control.parent() == Some(&process.runtime_dir);
    StartError::Refused(match unfit && same {
        true => format!(
            "--control {}: no socket can be made there, nor generations have their directories beside it: give a path in a \
             directory where uid {} may write",
            process.control.display(),
            nix::unistd::geteuid()
        ),
        false => error.to_string(),
    })
}

fn control_refused(error: ControlError) -> StartError {
    match error {
        // The path is the user's own.
        ControlError::TooLong { .. } => StartError::Invalid(error.to_string()),
        _ => StartError::Refused(error.to_string()),
    }
}

/// The signals that mean something to the gate. SIGPIPE is ignored since before main.
struct Signals {
    hangup: Arrivals,
    terminate: Arrivals,
    interrupt: Arrivals,
    user2: Arrivals,
}

impl Signals {
    fn watch() -> io::Result<Signals> {
        Ok(Signals {
            hangup: signal(SignalKind::hangup())?,
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            user2: signal(SignalKind::user_defined2())?,
        })
    }

    /// Tells the supervisor what arrives.
    async fn pass_on(mut self, handle: Handle) {
        loop {
            tokio::select! {
                _ = self.hangup.recv() => {
                    info!("SIGHUP: all services are reloaded");
                    handle.reload_all();
                }
                _ = self.terminate.recv() => {
                    info!("SIGTERM: the gate stops");
                    handle.shutdown();
                }
                _ = self.interrupt.recv() => {
                    info!("SIGINT: the gate stops");
                    handle.shutdown();
                }
                _ = self.user2.recv() => {
                    info!("SIGUSR2: this version can't replace its binary in place; restart the gate to upgrade");
                }
            }
        }
    }
}
