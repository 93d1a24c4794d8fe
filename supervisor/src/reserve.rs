//! Descriptors kept for the day when there are no others: so that an operator still gets an answer then.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// A few spare descriptors. They are given up for one connection, and taken back when it has ended.
///
/// Made early, they have low numbers: after the limit of a running process was lowered, only those help (setrlimit(2) refuses new
/// descriptors from the limit up, whatever is open).
#[derive(Debug)]
pub struct Reserve {
    spare: Vec<OwnedFd>,
    size: usize,
}

impl Reserve {
    /// `size` copies of `any` descriptor.
    ///
    /// # Errors
    /// There are none to be had.
    pub fn new(size: usize, any: impl AsFd) -> io::Result<Reserve> {
        let mut reserve = Reserve {
            spare: Vec::new(),
            size,
        };
        reserve.try_refill(&any)?;
        Ok(reserve)
    }

    /// Whether nothing is given up.
    pub fn is_full(&self) -> bool {
        self.spare.len() == self.size
    }

    /// Takes back what is lacking, as far as the system lets it.
    pub fn refill(&mut self, any: impl AsFd) {
        // A refusal is no news: `is_full` tells.
        let _ = self.try_refill(&any);
    }

    fn try_refill(&mut self, any: &impl AsFd) -> io::Result<()> {
        while !self.is_full() {
            self.spare.push(any.as_fd().try_clone_to_owned()?);
        }
        Ok(())
    }

    /// Gives all up, if that may help against the error.
    pub fn give_up_for(&mut self, error: &io::Error) -> bool {
        let out = matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE));
        let helps = out && !self.spare.is_empty();
        if helps {
            self.spare.clear();
        }
        helps
    }
}
