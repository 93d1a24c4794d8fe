//! The plan: what the gate listens on, and how each generation's copy is made from the files.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use super::arguments::{self, Arguments};
use super::copy::{Edit, OWN_FILE, Piece};
use super::document::{self, Kind};
use super::draft::Draft;
use super::front::{AbstractNames, Front};
use super::maps::Snapshot;
use super::publics::Publics;
use super::rules::Rules;
use super::switches::Switches;
use super::{
    File, Refusal, World, front, global, idle_close, limits, maps, own_samples, proxies, servers,
};
use crate::config::ListenerConfig;

/// What a configuration asks for, and how a generation's copy of it is made. Equal plans make equal copies for private
/// listeners of the same kind.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    listeners: Vec<ListenerConfig>,
    /// For each private listener: its public one.
    privates: Vec<usize>,
    warnings: Vec<String>,
    notes: Vec<String>,
    pub(super) sources: Vec<Source>,
    /// What the copy says beside the user's files.
    pub(super) own_lines: Vec<Piece>,
    pub(super) snapshots: Vec<Snapshot>,
    /// See [`Plan::stats_sockets`].
    stats_sockets: Vec<Option<PathBuf>>,
}

/// A file, and what its copy changes of it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Source {
    pub(super) file: File,
    /// The copy's, below the generation's directory.
    pub(super) name: PathBuf,
    /// In order, none overlapping.
    pub(super) edits: Vec<Edit>,
}

impl Plan {
    /// What the gate opens: one a public address, in the order of the files.
    pub fn listeners(&self) -> &[ListenerConfig] {
        &self.listeners
    }

    /// For each private listener, in the order in which [`super::Place::privates`] has their numbers: the name of its public
    /// one. Twice the same where two frontends share an address.
    pub fn privates(&self) -> impl Iterator<Item = &str> {
        self.privates
            .iter()
            .map(|&public| self.listeners[public].name.as_str())
    }

    /// The stats sockets that each generation has at a path of its own, in the order in which [`super::Place::stats_sockets`] has
    /// these: where their users look for them. `None` where there is no such path.
    pub fn stats_sockets(&self) -> impl Iterator<Item = Option<&Path>> {
        self.stats_sockets.iter().map(Option::as_deref)
    }

    /// What a user should know, one sentence each, with FILE:LINE.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// What helps only a user who looks for something, one sentence each, with FILE:LINE.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }
}

/// Reads the files as HAProxy would, and plans.
///
/// # Errors
/// What can't be fronted: the sentence says what to do.
pub fn plan(files: Vec<File>, world: &World<'_>) -> Result<Plan, Refusal> {
    let arguments = Arguments::read(world.arguments)?;
    let switches = Switches::of(world.binary, &arguments, &files);
    let document = document::read(files, world, &switches)?;
    let mut draft = Draft::new(&document, world, &switches);
    let mut publics = Publics::new(world.descriptors);

    let global = global::read(&mut draft, &mut publics)?;
    let proxies = proxies::read(&mut draft)?;
    let open = proxies.iter().filter(|proxy| proxy.is_open());
    let fronts = open.map(|proxy| Front::read(&draft, proxy));
    let fronts = fronts.collect::<Result<Vec<_>, _>>()?;
    let names = AbstractNames::of(&fronts);
    let mut rules = Rules::default();
    for front in &fronts {
        let expects_header = rules.convert(&mut draft, &proxies, front)?;
        front::open(
            &mut draft,
            &mut publics,
            &names,
            &global,
            front,
            expects_header,
        )?;
    }
    publics.check(&mut draft)?;
    servers::rename(&mut draft, &names)?;
    for section in &document.sections {
        if matches!(section.kind, Kind::Peers | Kind::LogForward | Kind::Program) {
            front::leave(&mut draft, section)?;
        }
    }
    if !fronts.is_empty() {
        own_samples::warn(&mut draft);
    } else if let Some(file) = document.files.first() {
        let place = file.path.display();
        let what = "no frontend or listen section is open in it: the gate opens no port";
        draft.warnings.push(format!("{place}: {what}"));
    }
    if world.binary.idle_close {
        idle_close::inject(&mut draft, &proxies);
    }
    let listeners = publics.count() + global.stats_sockets.len() + 1;
    limits::check(&draft, &global, &arguments, listeners)?;
    for socket in &arguments.master_sockets {
        draft.warnings.push(format!(
            "{}: each generation takes {socket} over from the one before when it starts, even one that fails",
            arguments::PLACE
        ));
    }

    let file_names = copy_names(&document.files);
    let base = global.origin.as_deref();
    let snapshots = maps::snapshot(&mut draft, &file_names, base)?;
    let (listeners, privates) = publics.finish();
    let finished = draft.finish();
    let sources = document.files.into_iter().zip(file_names);
    let sources = sources.zip(finished.edits);
    let sources = sources.map(|((file, name), edits)| Source { file, name, edits });
    Ok(Plan {
        listeners,
        privates,
        warnings: finished.warnings,
        notes: finished.notes,
        sources: sources.collect(),
        own_lines: global.own_lines,
        snapshots,
        stats_sockets: global.stats_sockets,
    })
}

/// A file name for each copy: the file's own where it can be.
fn copy_names(files: &[File]) -> Vec<PathBuf> {
    let mut taken = HashSet::from([PathBuf::from(OWN_FILE)]);
    let names = files.iter().enumerate().map(|(index, file)| {
        let own = file.path.file_name().unwrap_or("haproxy.cfg".as_ref());
        unique_name(&mut taken, own.as_ref(), index)
    });
    names.collect()
}

/// `name`, or with a number in front.
pub(super) fn unique_name(taken: &mut HashSet<PathBuf>, name: &Path, mut number: usize) -> PathBuf {
    let mut candidate = name.to_path_buf();
    while !taken.insert(candidate.clone()) {
        number += 1;
        candidate = PathBuf::from(format!("{number}-{}", name.display()));
    }
    candidate
}
