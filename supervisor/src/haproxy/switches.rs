//! What `enabled(NAME)` says of the program's options (configuration manual, section 2.4): each is as the program was built, until
//! its command line or a line of the configuration changes that.

use super::File;
use super::arguments::Arguments;
use super::binary::Binary;

/// An option that is on unless something turns it off.
struct Switch {
    name: &'static [u8],
    /// What the program must have been built with.
    feature: Option<&'static str>,
    /// The letter after `-d` that turns it off.
    letter: char,
    /// The keyword of `global` that turns it off.
    keyword: &'static [u8],
}

const SWITCHES: [Switch; 7] = [
    switch(b"EPOLL", Some("EPOLL"), 'e', b"noepoll"),
    switch(b"EVPORTS", Some("EVPORTS"), 'v', b"noevports"),
    switch(b"GETADDRINFO", Some("GETADDRINFO"), 'G', b"nogetaddrinfo"),
    switch(b"KQUEUE", Some("KQUEUE"), 'k', b"nokqueue"),
    switch(b"POLL", Some("POLL"), 'p', b"nopoll"),
    // Any Linux that the gate runs on has it.
    switch(b"REUSEPORT", None, 'R', b"noreuseport"),
    switch(b"SPLICE", Some("LINUX_SPLICE"), 'S', b"nosplice"),
];

const fn switch(
    name: &'static [u8],
    feature: Option<&'static str>,
    letter: char,
    keyword: &'static [u8],
) -> Switch {
    Switch {
        name,
        feature,
        letter,
        keyword,
    }
}

/// Which options are on, for as long as a configuration is read.
pub(super) struct Switches {
    known: Vec<(&'static [u8], Option<bool>)>,
}

impl Switches {
    /// Of this program with these arguments, when it reads these files.
    pub(super) fn of(binary: &Binary, arguments: &Arguments, files: &[File]) -> Switches {
        // Versions differ in when a keyword takes effect: where it stands anywhere, nothing is said.
        let stands = |keyword: &[u8]| {
            let mut texts = files.iter().map(|file| &file.text);
            texts.any(|text| text.windows(keyword.len()).any(|part| part == keyword))
        };
        let state = |it: &Switch| {
            let built = it.feature.is_none_or(|feature| binary.has(feature));
            match built && !arguments.debugs(it.letter) {
                false => Some(false),
                true => (!stands(it.keyword)).then_some(true),
            }
        };
        let known = SWITCHES.iter().map(|it| (it.name, state(it)));
        Switches {
            known: known.collect(),
        }
    }

    /// Whether an option is on; `None` where that can't be said.
    pub(super) fn is_on(&self, name: &[u8]) -> Option<bool> {
        let (_, state) = self.known.iter().find(|(known, _)| *known == name)?;
        *state
    }
}
