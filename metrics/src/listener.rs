//! One listener's counters, and what becomes of them when it goes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::block::ListenerBlock;

/// The label under which removed listeners live on.
const REMOVED: &str = "removed";

/// What is counted for one listener: a block a worker, and what the kernel says about its socket.
#[derive(Debug)]
pub struct Listener {
    name: String,
    blocks: Box<[ListenerBlock]>,
    backlog: AtomicU64,
    drops: AtomicU64,
}

impl Listener {
    fn new(name: &str, workers: usize) -> Listener {
        Listener {
            name: name.to_owned(),
            blocks: (0..workers).map(|_| ListenerBlock::default()).collect(),
            backlog: AtomicU64::new(0),
            drops: AtomicU64::new(0),
        }
    }

    /// The name in its label.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The block that this worker's thread alone may write.
    ///
    /// # Panics
    ///
    /// If `worker` isn't below the number of workers that [`Metrics::new`](crate::Metrics::new) was told.
    pub fn block(&self, worker: usize) -> &ListenerBlock {
        &self.blocks[worker]
    }

    /// What the kernel says now: connections in the accept queue (tcpi_unacked of TCP_INFO), of all sockets of this name.
    pub fn set_backlog(&self, backlog: u64) {
        self.backlog.store(backlog, Relaxed);
    }

    /// SYNs and connections that the kernel has dropped at one of its sockets since the last call (SK_MEMINFO_DROPS of
    /// SO_MEMINFO counts them since the socket was made).
    pub fn add_drops(&self, drops: u64) {
        self.drops.fetch_add(drops, Relaxed);
    }

    fn totals(&self) -> ListenerTotals {
        ListenerTotals {
            backlog: Some(self.backlog.load(Relaxed)),
            ..self.lasting()
        }
    }

    /// What outlives the socket: everything but its backlog.
    fn lasting(&self) -> ListenerTotals {
        let totals = ListenerTotals {
            drops: self.drops.load(Relaxed),
            ..ListenerTotals::default()
        };
        for block in &self.blocks {
            totals.block.absorb(block);
        }
        totals
    }
}

/// The sum of a listener's blocks, or of several listeners'.
#[derive(Debug, Default)]
pub(crate) struct ListenerTotals {
    pub(crate) block: ListenerBlock,
    pub(crate) drops: u64,
    /// None for removed listeners: they have no socket.
    pub(crate) backlog: Option<u64>,
}

impl ListenerTotals {
    fn absorb(&mut self, other: &ListenerTotals) {
        self.block.absorb(&other.block);
        self.drops += other.drops;
        if let Some(backlog) = other.backlog {
            *self.backlog.get_or_insert(0) += backlog;
        }
    }
}

/// A service's listeners. One that is removed is still counted in by connections that came through it, so it is kept until
/// nobody else holds it, and folded into one sum then.
#[derive(Debug, Default)]
pub(crate) struct Listeners {
    live: BTreeMap<String, Arc<Listener>>,
    leaving: Vec<Arc<Listener>>,
    /// What the listeners counted that are in neither of the above; none while no listener was ever removed.
    removed: Option<ListenerTotals>,
}

impl Listeners {
    pub(crate) fn add(&mut self, name: &str, workers: usize) -> Arc<Listener> {
        let listener = self
            .live
            .entry(name.to_owned())
            .or_insert_with(|| Arc::new(Listener::new(name, workers)));
        Arc::clone(listener)
    }

    pub(crate) fn remove(&mut self, name: &str) {
        if let Some(listener) = self.live.remove(name) {
            self.removed.get_or_insert_default();
            self.leaving.push(listener);
        }
        self.fold();
    }

    /// The sums of every listener by its name, those of the removed ones together. A live listener that bears their name is added
    /// to them, since two series with the same labels would make the scrape invalid.
    pub(crate) fn totals(&mut self) -> BTreeMap<String, ListenerTotals> {
        self.fold();
        let mut all: BTreeMap<_, _> = self
            .live
            .iter()
            .map(|(name, listener)| (name.clone(), listener.totals()))
            .collect();
        if let Some(removed) = &self.removed {
            let sum = all.entry(REMOVED.to_owned()).or_default();
            sum.absorb(removed);
            for listener in &self.leaving {
                sum.absorb(&listener.lasting());
            }
        }
        all
    }

    /// Folds the leaving listeners that nobody else holds any more.
    fn fold(&mut self) {
        for listener in std::mem::take(&mut self.leaving) {
            match Arc::try_unwrap(listener) {
                Ok(listener) => self
                    .removed
                    .get_or_insert_default()
                    .absorb(&listener.lasting()),
                Err(held) => self.leaving.push(held),
            }
        }
    }
}
