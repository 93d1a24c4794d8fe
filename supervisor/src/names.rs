//! Names in a sentence.

use std::fmt::Display;

/// `there is none`, `there is web`, `there are web, mail`: what a message goes on with about something that isn't there.
pub fn there_are(names: &[impl Display]) -> String {
    match names {
        [] => "there is none".to_owned(),
        [only] => format!("there is {only}"),
        _ => {
            let names: Vec<String> = names.iter().map(ToString::to_string).collect();
            format!("there are {}", names.join(", "))
        }
    }
}
