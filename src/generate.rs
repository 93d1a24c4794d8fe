//! Completions, man pages and the reference, from the definitions that the code runs on.

mod reference;

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;

use crate::cli::{Cli, Generate};

/// Carries out the hidden verb.
pub(crate) fn run(what: &Generate) -> io::Result<()> {
    match what {
        Generate::Completions { shell } => completions(*shell, &mut io::stdout().lock()),
        Generate::Man { dir } => man(dir),
        Generate::Reference { dir } => reference::write(dir),
    }
}

fn completions(shell: Shell, output: &mut dyn Write) -> io::Result<()> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut visible(), "syngate", &mut text);
    output.write_all(&text)
}

/// `syngate.1`, and `syngate-VERB.1` for each verb.
fn man(dir: &Path) -> io::Result<()> {
    make(dir)?;
    let mut root = visible();
    root.build();
    let page = |command: Command, name: &str| {
        let mut file = File::create(dir.join(format!("{name}.1")))?;
        Man::new(command)
            .title(name.to_uppercase())
            .render(&mut file)
    };
    for verb in root.get_subcommands() {
        let name = format!("syngate-{}", verb.get_name());
        page(verb.clone().name(name.clone()), &name)?;
    }
    page(root, "syngate")
}

fn make(dir: &Path) -> io::Result<()> {
    fs::create_dir_all(dir)
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", dir.display())))
}

/// The command line without its hidden verbs, which some shells would complete.
fn visible() -> Command {
    let all = Cli::command();
    let verbs = all.get_subcommands().filter(|verb| !verb.is_hide_set());
    Command::new("syngate")
        .about(all.get_about().cloned().unwrap_or_default())
        .after_help(all.get_after_help().cloned().unwrap_or_default())
        .version(env!("CARGO_PKG_VERSION"))
        .disable_help_subcommand(true)
        .subcommands(verbs.cloned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_a_page_for_each_visible_verb() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("share/man1"); // made where it is missing
        man(&dir).unwrap();
        for name in ["syngate", "syngate-run", "syngate-hold", "syngate-status"] {
            let page = fs::read_to_string(dir.join(format!("{name}.1"))).unwrap();
            assert!(page.contains(".SH NAME"), "{name}: {page}");
        }
        assert!(!dir.join("syngate-generate.1").exists());
        let error = man(Path::new("/dev/null/man1")).unwrap_err();
        assert!(error.to_string().starts_with("/dev/null/man1: "), "{error}");
    }

    #[test]
    fn completions_know_verbs_and_options() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let mut text = Vec::new();
            completions(shell, &mut text).unwrap();
            let text = String::from_utf8(text).unwrap();
            assert!(text.contains("drain-timeout") && text.contains("rollback"));
            assert!(!text.contains("demo-backend"), "{shell}");
        }
    }
}
