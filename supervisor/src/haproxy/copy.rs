//! A generation's copy: the files' bytes with the plan's edits in them, and what stands beside them.

use std::ops::Range;
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::plan::Plan;
use super::words::quote;

/// The longest abstract name: sun_path without its leading zero (unix(7)).
const ABSTRACT_MAX: usize = 107;

/// Where a generation's copy stands, and what it gets passed.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// The generation's own directory, absolute.
    pub directory: &'a Path,
    /// The number of each private listener in the process, as [`Plan::privates`] has them.
    pub privates: &'a [RawFd],
    /// The number of the stats listener that is passed.
    pub stats: RawFd,
    /// Where its other stats sockets are made, as [`Plan::stats_sockets`] has them.
    pub stats_sockets: &'a [PathBuf],
    /// What makes an abstract name this generation's own: short, of letters, digits, `-`, `_` and `.`.
    pub suffix: &'a str,
}

/// What is to be written before a generation starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copy {
    /// Configurations and snapshots of map files: absolute, in the generation's directory.
    pub files: Vec<(PathBuf, Vec<u8>)>,
    /// The arguments of `-f`, in order. The first one is the copy of the first file.
    pub configurations: Vec<PathBuf>,
}

/// A change of a file's bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Edit {
    /// What goes.
    pub(super) range: Range<usize>,
    /// What comes instead.
    pub(super) pieces: Vec<Piece>,
}

/// Text that may depend on the place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// It doesn't.
    Text(Vec<u8>),
    /// `fd@N` of a private listener.
    Private(usize),
    /// `fd@N` of the stats listener.
    Stats,
    /// The path of a private stats socket.
    StatsPath(usize),
    /// The path of a snapshot.
    Snapshot(usize),
    /// An abstract name made this generation's own.
    Abstract { name: Vec<u8>, index: usize },
}

impl Piece {
    pub(super) fn text(text: impl AsRef<[u8]>) -> Piece {
        Piece::Text(text.as_ref().to_vec())
    }
}

/// The copy's file name of the lines that no user's file has.
pub(super) const OWN_FILE: &str = "syngate.cfg";

impl Plan {
    /// The copy for one generation. A private listener without a number in `place` gets one that isn't open, and a stats socket
    /// without a path an empty one, which HAProxy's check refuses.
    pub fn copy(&self, place: &Place<'_>) -> Copy {
        let path = |name: &Path| place.directory.join(name);
        let mut copy = Copy {
            files: Vec::new(),
            configurations: Vec::new(),
        };
        for source in &self.sources {
            let text = edited(&source.file.text, &source.edits, self, place);
            copy.configurations.push(path(&source.name));
            copy.files.push((path(&source.name), text));
        }
        let mut own = Vec::new();
        for piece in &self.own_lines {
            render(piece, self, place, &mut own);
        }
        copy.configurations.push(path(OWN_FILE.as_ref()));
        copy.files.push((path(OWN_FILE.as_ref()), own));
        let snapshots = self.snapshots.iter();
        copy.files
            .extend(snapshots.map(|it| (path(&it.name), it.text.clone())));
        copy
    }
}

fn edited(text: &[u8], edits: &[Edit], plan: &Plan, place: &Place<'_>) -> Vec<u8> {
    let mut copy = Vec::with_capacity(text.len() + 64 * edits.len());
    let mut at = 0;
    for edit in edits {
        copy.extend_from_slice(&text[at..edit.range.start]);
        for piece in &edit.pieces {
            render(piece, plan, place, &mut copy);
        }
        at = edit.range.end;
    }
    copy.extend_from_slice(&text[at..]);
    copy
}

fn render(piece: &Piece, plan: &Plan, place: &Place<'_>, out: &mut Vec<u8>) {
    match piece {
        Piece::Text(text) => out.extend_from_slice(text),
        Piece::Private(index) => {
            let number = place.privates.get(*index).copied().unwrap_or(RawFd::MAX);
            out.extend(format!("fd@{number}").bytes());
        }
        Piece::Stats => out.extend(format!("fd@{}", place.stats).bytes()),
        Piece::StatsPath(index) => {
            let path = place.stats_sockets.get(*index);
            out.extend(path.map(|it| path_word(it)).unwrap_or_default());
        }
        Piece::Snapshot(index) => {
            out.extend(path_word(
                &place.directory.join(&plan.snapshots[*index].name),
            ));
        }
        Piece::Abstract { name, index } => {
            let full = [name, place.suffix.as_bytes()].concat();
            match full.len() <= ABSTRACT_MAX {
                true => out.extend(quote(&full)),
                false => out.extend(format!("{index}{}", place.suffix).bytes()),
            }
        }
    }
}

fn path_word(path: &Path) -> Vec<u8> {
    quote(path.as_os_str().as_bytes())
}
