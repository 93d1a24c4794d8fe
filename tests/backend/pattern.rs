//! The bytes of a download: known to both ends, so that any lost, doubled or moved byte shows.

use std::sync::OnceLock;

/// A prime, so that no power-of-two slip of a buffer falls on equal bytes.
const PERIOD: usize = 1_048_583;

/// `PERIOD` pseudo-random bytes, followed by the first 64 KiB of them again.
fn block() -> &'static [u8] {
    static BLOCK: OnceLock<Vec<u8>> = OnceLock::new();
    BLOCK.get_or_init(|| {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut bytes: Vec<u8> = (0..PERIOD)
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                (state >> 32) as u8
            })
            .collect();
        bytes.extend_from_within(..CHUNK);
        bytes
    })
}

/// The longest slice that [`at`] returns.
pub(crate) const CHUNK: usize = 64 * 1024;

/// The pattern's bytes from `offset` on: `len` of them, at most [`CHUNK`].
pub(crate) fn at(offset: u64, len: usize) -> &'static [u8] {
    let start = (offset % PERIOD as u64) as usize;
    &block()[start..start + len.min(CHUNK)]
}
