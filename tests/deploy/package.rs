//! The Debian package, in a clean Debian.
