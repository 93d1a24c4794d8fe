//! The HAProxy adapter's reader, from text to plan and copy: rules one by one, the configurations that marathon-lb writes, and
//! whatever random changes make of them.

mod addresses;
mod mutations;
mod proxies;
mod round_trip;
mod samples;
mod settings;
mod world;
