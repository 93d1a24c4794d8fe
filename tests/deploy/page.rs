//! The status page, in a real browser.
