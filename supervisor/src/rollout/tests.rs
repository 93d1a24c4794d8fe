//! The ladder, rule by rule, and its invariants under random sequences of events.

mod ladder;
mod properties;
mod requests;
pub(crate) mod world;
