//! syngate: a front TCP relay that never reloads. See `syngate --help`, and docs/ for what it promises.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use syngate_supervisor::exit;

use crate::cli::{Ask, Cli, Client, Verb};
use crate::client::View;

mod admin;
mod check;
mod cli;
mod client;
mod config;
mod demo;
mod generate;
mod logging;
mod progress;
mod run;
mod status;

fn main() -> ExitCode {
    match Cli::read().verb {
        Verb::Run(args) => run::run(args),
        Verb::Check(args) => check::check(args),
        Verb::Demo => demo::run(),
        Verb::DemoBackend(args) => demo::backend(&args),
        Verb::Generate(args) => match generate::run(&args.what) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => complain(exit::REFUSED, &format!("can't write: {error}")),
        },
        Verb::Ask(what) => ask(what).unwrap_or_else(|error| {
            complain(
                exit::REFUSED,
                &format!("no runtime for the client: {error}"),
            )
        }),
    }
}

/// Says one sentence on stderr.
fn complain(code: u8, what: &str) -> ExitCode {
    eprintln!("syngate: {what}");
    ExitCode::from(code)
}

/// Carries out a verb that asks a running gate.
fn ask(what: Ask) -> io::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    Ok(runtime.block_on(async {
        match what {
            Ask::Reload(args) => {
                let control = control(args.client);
                let service = args.service.as_deref();
                client::reload(control.as_deref(), service, args.patience).await
            }
            Ask::Hold(args) => {
                let control = control(args.client);
                let (control, service) = (control.as_deref(), args.service.as_deref());
                match args.command.as_slice() {
                    [] => client::hold(control, service, args.timeout).await,
                    command => client::hold_while(control, service, args.timeout, command).await,
                }
            }
            Ask::Release(args) => {
                let control = control(args.client);
                client::release(control.as_deref(), args.service.as_deref()).await
            }
            Ask::Activate(args) => {
                let control = control(args.client);
                let service = args.service.as_deref();
                client::activate(control.as_deref(), service, &args.backend, args.patience).await
            }
            Ask::Rollback(args) => {
                let control = control(args.client);
                client::rollback(control.as_deref(), args.service.as_deref()).await
            }
            Ask::Status(args) => {
                let control = control(args.client);
                let view = View::of(args.json);
                if args.ready {
                    client::ready(control.as_deref()).await
                } else {
                    let service = args.service.as_deref();
                    client::status(control.as_deref(), service, view, args.watch).await
                }
            }
            Ask::Connections(args) => {
                let control = control(args.client);
                let service = args.service.as_deref();
                client::connections(control.as_deref(), service, args.generation).await
            }
            Ask::Events(args) => {
                let control = control(args.client);
                let (service, view) = (args.service.as_deref(), View::of(args.json));
                client::events(control.as_deref(), service, view).await
            }
        }
    }))
}

/// `--control`, else `SYNGATE_CONTROL`, as the gate reads it.
fn control(client: Client) -> Option<PathBuf> {
    let variable = || std::env::var_os("SYNGATE_CONTROL").filter(|path| !path.is_empty());
    client.control.or_else(|| variable().map(PathBuf::from))
}
