//! How a command ended, and what it said.

use std::process::Output;

/// How a command ended.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl From<Output> for Done {
    fn from(output: Output) -> Done {
        Done {
            code: output.status.code(),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

impl Done {
    #[track_caller]
    pub(crate) fn expect_code(&self, code: i32) -> &Done {
        assert_eq!(
            self.code,
            Some(code),
            "stdout:\n{}\nstderr:\n{}",
            self.out,
            self.err
        );
        self
    }

    /// Each of `words` stands in its output, which has no trace of a panic.
    #[track_caller]
    pub(crate) fn expect_words(&self, words: &[&str]) -> &Done {
        let all = format!("{}{}", self.out, self.err);
        for word in words {
            assert!(all.contains(word), "`{word}` is missing in:\n{all}");
        }
        assert!(!all.contains("panicked"), "{all}");
        self
    }
}
