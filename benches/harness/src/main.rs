//! Measures syngate beside its peers; started by `benches/run`, whose head says how.
//!
//! The measure is what a relay does with a second of CPU time, never what it does in a second: load and backend share a core, and
//! whatever else runs on the machine slows a relay down but costs it no CPU time. All relays of a workload run side by side and
//! are loaded in turn, in slices of a few tenths of a second, so that a change of the weather meets them all; what is compared are
//! two slices of the same round, and what is quoted is the median of these ratios, with their quartiles.
//!
//! `workloads` is the table of what is measured, `relays` says how each relay is set up, `measure` how a workload becomes
//! numbers, `load` and `backend` are the two ends of the wire, `report`, `chart` and `page` what is written.

use std::process::ExitCode;

mod arguments;
mod backend;
mod chart;
mod load;
mod machine;
mod measure;
mod namespace;
mod page;
mod process;
mod relays;
mod report;
mod statistics;
mod wire;
mod workloads;

use arguments::{Arguments, HELP};
use measure::Bench;
use relays::{Program, Programs};
use report::Report;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let done = match arguments.split_first() {
        Some((verb, rest)) if verb == "backend" => backend::serve(rest),
        _ => measure(&arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("benches/run: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(words: &[String]) -> std::io::Result<()> {
    let arguments = Arguments::parse(words).map_err(std::io::Error::other)?;
    if arguments.help {
        print!("{HELP}");
        return Ok(());
    }
    if arguments.redraw {
        return page::redraw(&arguments.place());
    }
    let chosen = workloads::chosen(&arguments.only).map_err(std::io::Error::other)?;
    if arguments.list {
        for workload in chosen {
            println!("{:14} {}", workload.name, workload.title);
        }
        return Ok(());
    }
    let bench = Bench::new(Programs::find(), &arguments)?;
    let private = bench.programs.has(Program::SyngateBefore);
    let command = format!("benches/run {}", words.join(" "))
        .trim_end()
        .to_owned();
    for workload in chosen {
        eprintln!("== {}: {}", workload.name, workload.title);
        let rows = measure::run(&bench, &workload)?;
        let report = Report::new(&workload, rows, &bench, &command)?;
        println!("{}", page::section(&report));
        if let Some(output) = arguments.output(private) {
            report.write(&output)?;
            page::write(&output)?;
        }
    }
    Ok(())
}
