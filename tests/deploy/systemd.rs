//! The units of packaging/systemd, under a real systemd.
