//! Exit codes, all that there are: docs/exit-codes.md says when, and a test compares.

/// Done.
pub const DONE: u8 = 0;

/// Failed, and an older generation serves.
pub const FAILED: u8 = 1;

/// What was asked can't be understood or isn't there; clap's too.
pub const NOT_UNDERSTOOD: u8 = 2;

/// No gate answers.
pub const NO_GATE: u8 = 3;

/// Failed, and nothing serves.
pub const NOTHING_SERVES: u8 = 4;

/// A time-out.
pub const TIMED_OUT: u8 = 5;

/// The system refused (sysexits(3), EX_OSERR).
pub const REFUSED: u8 = 71;

/// A bad configuration (sysexits(3), EX_CONFIG).
pub const BAD_CONFIGURATION: u8 = 78;

/// `hold -- CMD` failed itself.
pub const HOLD_FAILED: u8 = 125;

/// CMD can't be executed, as a shell says it.
pub const NOT_EXECUTABLE: u8 = 126;

/// CMD isn't there, as a shell says it.
pub const NOT_FOUND: u8 = 127;

/// Added to a signal's number, as a shell does.
pub const BY_SIGNAL: u8 = 128;
