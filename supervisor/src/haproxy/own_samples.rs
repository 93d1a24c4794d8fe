//! Samples of a client's own connection (configuration manual, section 7.3.3): a PROXY header sets the session's addresses, which
//! `src` and `dst` find, and leaves the connection's as they are. Behind the gate that is the gate's connection.

use std::collections::HashSet;

use super::document::Standing;
use super::draft::Draft;

/// What stands for the client's socket, and what to do about it.
const OWN: [(&[u8], &str); 16] = [
    (b"fc_dst", "use dst"),
    (b"fc_dst_is_local", "use dst_is_local"),
    (b"fc_dst_port", "use dst_port"),
    (b"fc_fackets", NO_TCP),
    (b"fc_lost", NO_TCP),
    (b"fc_rcvd_proxy", "it is always true"),
    (b"fc_reordering", NO_TCP),
    (b"fc_retrans", NO_TCP),
    (b"fc_rtt", NO_TCP),
    (b"fc_rttvar", NO_TCP),
    (b"fc_sacked", NO_TCP),
    (b"fc_saved_syn", NO_TCP),
    (b"fc_src", "use src"),
    (b"fc_src_is_local", "use src_is_local"),
    (b"fc_src_port", "use src_port"),
    (b"fc_unacked", NO_TCP),
];

const NO_TCP: &str = "it finds nothing";

/// Warns where each of them is used first.
pub(super) fn warn(draft: &mut Draft<'_>) {
    let document = draft.document;
    let mut told = HashSet::new();
    for line in &document.lines {
        if !matches!(line.standing, Standing::Read | Standing::Doubtful(_)) {
            continue;
        }
        let words = line.words.iter().skip(1);
        let names = words.flat_map(|word| word.text.split(|&byte| !is_of_a_name(byte)));
        for name in names {
            let Some((name, what)) = OWN.iter().find(|(own, _)| *own == name) else {
                continue;
            };
            if told.insert(*name) {
                let name = String::from_utf8_lossy(name);
                let what =
                    format!("{name} is of the gate's connection, not of the client's: {what}");
                draft.warn(line, what);
            }
        }
    }
}

/// What a name of a sample or a variable is made of.
fn is_of_a_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-')
}
