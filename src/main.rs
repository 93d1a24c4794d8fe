mod admin;
mod client;
mod progress;
mod status;

fn main() {}
