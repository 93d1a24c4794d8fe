mod admin;

fn main() {}
