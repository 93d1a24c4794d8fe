//! Map files: a generation keeps those that it was planned with, whatever becomes of them meanwhile.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::Refusal;
use super::copy::Piece;
use super::document::{Line, Standing};
use super::draft::Draft;
use super::plan::unique_name;
use super::words::quote;

/// A map file as it was when the plan was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Snapshot {
    /// Below the generation's directory.
    pub(super) name: PathBuf,
    /// All of it.
    pub(super) text: Vec<u8>,
}

/// What a line's word does with a file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    /// A map: `map(FILE)`, `map_beg(FILE)`, `set-map(FILE)` ...
    Map,
    /// A list, which counts if the same file is a map: HAProxy keeps one set of entries for it.
    List,
}

/// Reads the map files that the configuration names and points each reference at its snapshot. A file that can't be read is
/// left for HAProxy to complain about, and so are names that stand for no file (`virt@`, `opt@`).
///
/// Maps come first: whether a list is one is known when all maps are.
pub(super) fn snapshot(
    draft: &mut Draft<'_>,
    taken: &[PathBuf],
    origin: Option<&Path>,
) -> Result<Vec<Snapshot>, Refusal> {
    let document = draft.document;
    let mut taken: HashSet<PathBuf> = taken.iter().cloned().collect();
    taken.insert(super::copy::OWN_FILE.into());
    let mut snapshots = Vec::new();
    let mut known: HashMap<Vec<u8>, Option<usize>> = HashMap::new();
    let mut references = Vec::new();
    for (index, line) in document.lines.iter().enumerate() {
        let counts = matches!(line.standing, Standing::Read | Standing::Doubtful(_));
        if !counts || draft.is_dropped(index) {
            continue;
        }
        for (at, word) in line.words.iter().enumerate() {
            for (file, what) in files(line, at) {
                if what == Use::Map {
                    let path = &word.text[file.clone()];
                    known.entry(path.to_vec()).or_insert_with(|| {
                        let (name, text) = read(draft, path, origin)?;
                        let name = unique_name(&mut taken, &name, snapshots.len());
                        snapshots.push(Snapshot { name, text });
                        Some(snapshots.len() - 1)
                    });
                }
                references.push((line, at, file));
            }
        }
    }
    point(draft, &known, references)?;
    Ok(snapshots)
}

/// Rewrites the words: several references may be in one.
fn point(
    draft: &mut Draft<'_>,
    known: &HashMap<Vec<u8>, Option<usize>>,
    references: Vec<(&Line, usize, Range<usize>)>,
) -> Result<(), Refusal> {
    let of_a_word = |one: &(&Line, usize, _), other: &(&Line, usize, _)| {
        std::ptr::eq(one.0, other.0) && one.1 == other.1
    };
    for group in references.chunk_by(of_a_word) {
        let (line, at, _) = group[0];
        let word = &line.words[at];
        let mut pieces = Vec::new();
        let mut from = 0;
        for (_, _, file) in group {
            let Some(&Some(snapshot)) = known.get(&word.text[file.clone()]) else {
                continue;
            };
            push_text(&mut pieces, &word.text[from..file.start]);
            pieces.push(Piece::Snapshot(snapshot));
            from = file.end;
        }
        if pieces.is_empty() {
            continue;
        }
        push_text(&mut pieces, &word.text[from..]);
        if !word.known {
            let why = "a map's file and a variable that only HAProxy knows are in one word; write the value out";
            return Err(draft.refuse(line, why));
        }
        draft.replace(line, at, pieces)?;
    }
    Ok(())
}

fn push_text(pieces: &mut Vec<Piece>, text: &[u8]) {
    if !text.is_empty() {
        pieces.push(Piece::Text(quote(text)));
    }
}

fn read(draft: &Draft<'_>, file: &[u8], origin: Option<&Path>) -> Option<(PathBuf, Vec<u8>)> {
    let path = Path::new(OsStr::from_bytes(file));
    let name = path.file_name()?.into();
    let from = origin.unwrap_or(Path::new(""));
    let text = (draft.world.read)(&from.join(path)).ok()?;
    Some((name, text))
}

/// The files that a word names, as ranges of its text.
fn files(line: &Line, at: usize) -> Vec<(Range<usize>, Use)> {
    let text = &line.words[at].text;
    if at > 0 && line.words[at - 1].text == b"-f" {
        return vec![(0..text.len(), Use::List)];
    }
    let mut found = Vec::new();
    let mut from = 0;
    while let Some(open) = text[from..].iter().position(|&byte| byte == b'(') {
        let open = from + open;
        let name = text[from..open].rsplit(|&byte| !is_function(byte)).next();
        let what = match name.unwrap_or_default() {
            b"map" | b"set-map" | b"add-map" | b"del-map" => Some(Use::Map),
            b"add-acl" | b"del-acl" => Some(Use::List),
            name if name.starts_with(b"map_") => Some(Use::Map),
            _ => None,
        };
        from = open + 1;
        if let Some(what) = what {
            let length = text[from..]
                .iter()
                .position(|byte| b",)\"'\\".contains(byte));
            // One in quotes of its own is left alone.
            let end = from + length.unwrap_or(0);
            if matches!(text.get(end), Some(b',' | b')')) && end > from {
                found.push((from..end, what));
                from = end;
            }
        }
    }
    found
}

fn is_function(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.')
}
