//! What is known of an haproxy program.

use std::path::PathBuf;

/// What an haproxy program says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binary {
    /// Where it was found.
    pub program: PathBuf,
    /// Its version as it writes it: `2.6.12-1+deb12u1`, `3.5-dev5-1234`.
    pub release: String,
    /// The numbers of its version; of a development version the last one is 0.
    pub version: (u32, u32, u32),
    /// What it was built with, in its own words: `OPENSSL`, `LUA`.
    pub features: Vec<String>,
    /// Whether it knows `option idle-close-on-response`.
    pub idle_close: bool,
}

impl Binary {
    /// Whether it was built with this feature.
    pub fn has(&self, feature: &str) -> bool {
        self.features.iter().any(|it| it == feature)
    }
}
