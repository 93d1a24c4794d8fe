//! Abstract sockets: a second process can't have the same name, so each generation gets its own, and so do those that connect
//! to it.

use super::Refusal;
use super::address::{self, Address};
use super::copy::Piece;
use super::document::Standing;
use super::draft::Draft;
use super::front::AbstractNames;

/// Renames what refers to the abstract sockets of this configuration: servers, and whatever else connects to one.
pub(super) fn rename(draft: &mut Draft<'_>, names: &AbstractNames<'_>) -> Result<(), Refusal> {
    if names.is_empty() {
        return Ok(());
    }
    let document = draft.document;
    let mut used = vec![false; names.len()];
    for line in &document.lines {
        let counts = matches!(line.standing, Standing::Read | Standing::Doubtful(_));
        if !counts || line.keyword() == b"bind" {
            continue;
        }
        for at in 1..line.words.len() {
            let Some(text) = line.address(at) else {
                continue;
            };
            let text = text.strip_prefix(b"stream+").unwrap_or(text);
            if !text.starts_with(b"abns") {
                continue;
            }
            let no_host = |_: &str| Err(std::io::ErrorKind::Unsupported.into());
            let Ok(Address::Abstract { prefix, name }) = address::parse(text, &no_host) else {
                continue;
            };
            if let Some(index) = names.index(prefix, &name) {
                used[index] = true;
                draft.replace(
                    line,
                    at,
                    vec![Piece::text(prefix), Piece::Abstract { name, index }],
                )?;
            }
        }
    }
    for (index, line) in names.lines() {
        if !used[index] {
            let what = "no server of this configuration connects to its abstract socket, which has another name in each \
                        generation: programs that connect to it find none; use a path";
            draft.warn(line, what);
        }
    }
    Ok(())
}
