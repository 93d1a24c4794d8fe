//! The plan: what the gate listens on, and how each generation's copy is made from the files.

use std::collections::HashSet;
use std::path::PathBuf;

use super::copy::{Edit, OWN_FILE, Piece};
use super::document::{self, Kind};
use super::draft::Draft;
use super::front::{AbstractNames, Front};
use super::maps::Snapshot;
use super::publics::Publics;
use super::rules::Rules;
use super::{File, Refusal, World, front, global, idle_close, limits, maps, proxies, servers};
use crate::config::ListenerConfig;

/// What a configuration asks for, and how a generation's copy of it is made. Equal plans make equal copies for private
/// listeners of the same kind.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    listeners: Vec<ListenerConfig>,
    /// For each private listener: its public one.
    privates: Vec<usize>,
    warnings: Vec<String>,
    pub(super) sources: Vec<Source>,
    /// What the copy says beside the user's files.
    pub(super) own_lines: Vec<Piece>,
    pub(super) snapshots: Vec<Snapshot>,
    /// The paths at which users look for a stats socket, and which private one that is.
    pub(super) links: Vec<(PathBuf, usize)>,
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

    /// A listener whose address is open keeps the name that it has there, whatever its section is called by now: the gate's
    /// socket, its connections and its counts stay what they are. Others give way.
    pub(super) fn keep_names(&mut self, open: &[ListenerConfig]) {
        let known = |wanted: &ListenerConfig| open.iter().find(|it| it.address == wanted.address);
        let mut taken: HashSet<String> = HashSet::new();
        for listener in &mut self.listeners {
            if let Some(open) = known(listener) {
                listener.name.clone_from(&open.name);
                taken.insert(open.name.clone());
            }
        }
        for listener in &mut self.listeners {
            if known(listener).is_none() {
                let base = listener.name.clone();
                let mut count = 1;
                while !taken.insert(listener.name.clone()) {
                    count += 1;
                    listener.name = format!("{base}_{count}");
                }
            }
        }
    }

    /// What a user should know, one sentence each, with FILE:LINE.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }
}

/// Reads the files as HAProxy would, and plans.
///
/// # Errors
/// What can't be fronted: the sentence says what to do.
pub fn plan(files: Vec<File>, world: &World<'_>) -> Result<Plan, Refusal> {
    let document = document::read(files, world)?;
    let mut draft = Draft::new(&document, world);
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
    if world.binary.idle_close {
        idle_close::inject(&mut draft, &proxies);
    }
    limits::check(&draft, &global, publics.count())?;

    let file_names = copy_names(&document.files);
    let base = global.origin.as_deref();
    let snapshots = maps::snapshot(&mut draft, &file_names, base)?;
    let (listeners, privates) = publics.finish();
    let (edits, warnings) = draft.finish();
    let sources = document.files.into_iter().zip(file_names).zip(edits);
    let sources = sources.map(|((file, name), edits)| Source { file, name, edits });
    Ok(Plan {
        listeners,
        privates,
        warnings,
        sources: sources.collect(),
        own_lines: global.own_lines,
        snapshots,
        links: global.links,
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
pub(super) fn unique_name(
    taken: &mut HashSet<PathBuf>,
    name: &std::path::Path,
    mut number: usize,
) -> PathBuf {
    let mut candidate = name.to_path_buf();
    while !taken.insert(candidate.clone()) {
        number += 1;
        candidate = PathBuf::from(format!("{number}-{}", name.display()));
    }
    candidate
}
