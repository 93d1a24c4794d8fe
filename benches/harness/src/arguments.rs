//! The command line.

use std::path::PathBuf;

pub(crate) const HELP: &str = "\
benches/run [OPTIONS]

  --only A,B      these workloads (where no name fits, all that begin so); otherwise all
  --rounds N      rounds of each workload; 11 by default, but at most 5 of `reloads`
  --quick         short slices, 3 rounds unless said otherwise: to see that all works
  --out DIR       write results and page into DIR, whatever the number of rounds
  --redraw        measure nothing: make page and charts anew from the results that are there
  --list          name the workloads
  --help          this

With 11 rounds or more, and neither --quick nor SYNGATE_BEFORE, benches/results/ and BENCHMARKS.md are written.
HAPROXY, HAPROXY_NEW, NGINX, SYNGATE and SYNGATE_BEFORE name the programs.
";

/// From this number of rounds on a result is worth keeping.
const ENOUGH: usize = 11;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Arguments {
    pub(crate) only: Vec<String>,
    pub(crate) rounds: usize,
    pub(crate) quick: bool,
    pub(crate) redraw: bool,
    pub(crate) list: bool,
    pub(crate) help: bool,
    out: Option<PathBuf>,
}

/// Where results go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Output {
    /// A JSON document and a chart a workload.
    pub(crate) results: PathBuf,
    pub(crate) page: PathBuf,
}

impl Arguments {
    /// # Errors
    ///
    /// A sentence about the word that can't be understood.
    pub(crate) fn parse(words: &[String]) -> Result<Arguments, String> {
        let mut arguments = Arguments::default();
        let mut rounds = None;
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or(format!("{word} needs a value"));
            match word.as_str() {
                "--only" => arguments
                    .only
                    .extend(value()?.split(',').map(str::to_owned)),
                "--rounds" => {
                    let number = value()?;
                    let parsed = number.parse().ok().filter(|number| *number > 0);
                    rounds = Some(parsed.ok_or(format!("`{number}` isn't a number of rounds"))?);
                }
                "--quick" => arguments.quick = true,
                "--redraw" => arguments.redraw = true,
                "--list" => arguments.list = true,
                "--help" | "-h" => arguments.help = true,
                "--out" => arguments.out = Some(value()?.into()),
                _ => return Err(format!("`{word}` isn't an option; --help names them")),
            }
        }
        arguments.rounds = rounds.unwrap_or(if arguments.quick { 3 } else { ENOUGH });
        Ok(arguments)
    }

    /// Where to write; `None` for results that aren't worth it, and for those with rows that only their author has (`private`).
    pub(crate) fn output(&self, private: bool) -> Option<Output> {
        let worth = self.rounds >= ENOUGH && !self.quick && !private;
        (worth || self.out.is_some()).then(|| self.place())
    }

    /// Where results are.
    pub(crate) fn place(&self) -> Output {
        match &self.out {
            Some(directory) => Output {
                results: directory.clone(),
                page: directory.join("BENCHMARKS.md"),
            },
            None => Output {
                results: "benches/results".into(),
                page: "BENCHMARKS.md".into(),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Arguments, String> {
        let words: Vec<String> = line.split_ascii_whitespace().map(str::to_owned).collect();
        Arguments::parse(&words)
    }

    #[test]
    fn rounds_are_eleven_unless_it_is_quick() {
        assert_eq!(parse("").expect("fine").rounds, 11);
        assert_eq!(parse("--quick").expect("fine").rounds, 3);
        assert_eq!(parse("--rounds 5 --quick").expect("fine").rounds, 5);
    }

    #[test]
    fn only_results_of_enough_rounds_are_kept() {
        assert!(parse("--only short").expect("fine").output(false).is_some());
        assert!(parse("--rounds 10").expect("fine").output(false).is_none());
        assert!(parse("").expect("fine").output(true).is_none());
        assert!(
            parse("--quick --rounds 11")
                .expect("fine")
                .output(false)
                .is_none()
        );
        let output = parse("--quick --out /tmp/x").expect("fine").output(false);
        assert_eq!(
            output.expect("a place").page,
            PathBuf::from("/tmp/x/BENCHMARKS.md")
        );
    }

    #[test]
    fn what_can_t_be_understood_is_named() {
        for line in ["--fast", "--rounds", "--rounds none", "--rounds 0"] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
