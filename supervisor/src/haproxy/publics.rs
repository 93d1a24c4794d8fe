//! The public listeners, as the binds ask for them: one an address, with a name of its own.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use syngate_gate::listener::{self, Own};

use super::Refusal;
use super::document::Line;
use super::draft::Draft;
use crate::config::ListenerConfig;

/// The listeners so far, and the private ones behind each.
pub(super) struct Publics<'a> {
    listeners: Vec<ListenerConfig>,
    /// The line that asked for each first.
    lines: Vec<&'a Line>,
    privates: Vec<usize>,
    known: HashMap<Key, usize>,
    names: HashSet<String>,
    /// The last number that made a name unlike others, by what stands in front of it.
    numbers: HashMap<String, usize>,
    most: u64,
}

/// What makes two binds share a socket.
#[derive(PartialEq, Eq, Hash)]
enum Key {
    Tcp(SocketAddr, Option<String>),
    Unix(PathBuf),
}

impl<'a> Publics<'a> {
    /// None yet; never more than `most` private ones.
    pub(super) fn new(most: u64) -> Self {
        Publics {
            listeners: Vec::new(),
            lines: Vec::new(),
            privates: Vec::new(),
            known: HashMap::new(),
            names: HashSet::new(),
            numbers: HashMap::new(),
            most,
        }
    }

    /// A private listener for this public address; its index. `section` names a new one.
    pub(super) fn private(
        &mut self,
        draft: &mut Draft<'_>,
        line: &'a Line,
        section: &[u8],
        wanted: ListenerConfig,
    ) -> Result<usize, Refusal> {
        if self.privates.len() as u64 >= self.most {
            let why = format!(
                "with it there are more than {} listeners, and a process may have {} descriptors: raise the hard limit (ulimit -n, \
                 LimitNOFILE=), or bind fewer ports",
                self.privates.len(),
                self.most
            );
            return Err(draft.refuse(line, why));
        }
        let key = match &wanted.address {
            listener::Address::Tcp(address) => Key::Tcp(*address, wanted.own.interface.clone()),
            listener::Address::Unix { path, .. } => Key::Unix(path.clone()),
            // A bind asks for nothing else.
            listener::Address::Port(_) | listener::Address::Inherited(_) => {
                return Err(draft.refuse(line, "it is no address of a bind"));
            }
        };
        let public = match self.known.get(&key) {
            Some(&public) => {
                self.share(draft, line, public, &wanted)?;
                public
            }
            None => {
                let public = self.listeners.len();
                let name = self.name(section);
                self.listeners.push(ListenerConfig { name, ..wanted });
                self.lines.push(line);
                self.known.insert(key, public);
                public
            }
        };
        self.privates.push(public);
        Ok(self.privates.len() - 1)
    }

    /// A second bind on the address of a listener.
    fn share(
        &mut self,
        draft: &mut Draft<'_>,
        line: &Line,
        public: usize,
        wanted: &ListenerConfig,
    ) -> Result<(), Refusal> {
        let first = &mut self.listeners[public];
        let place = draft.document.place(self.lines[public]);
        let address = &first.address;
        if matches!(address, listener::Address::Unix { .. }) {
            let why = format!(
                "{address} is bound in {place} too, and a path leads to one socket; give it another path"
            );
            return Err(draft.refuse(line, why));
        }
        if first.raw != wanted.raw {
            let why = format!(
                "{address} is bound in {place} too, but only one of the two takes a PROXY header from its clients; bind \
                 another port, or write accept-proxy in both"
            );
            return Err(draft.refuse(line, why));
        }
        draft.warn(
            line,
            format!("{address} is bound in {place} too: its connections are spread over both"),
        );
        first.own.backlog = first.own.backlog.max(wanted.own.backlog);
        let own = Own {
            backlog: first.own.backlog,
            ..wanted.own.clone()
        };
        if first.own != own {
            draft.warn(
                line,
                format!("its socket options differ from those in {place}, which count"),
            );
        }
        Ok(())
    }

    /// A section's name as a listener's, with a number where it has several.
    fn name(&mut self, section: &[u8]) -> String {
        let base: String = section
            .iter()
            .map(|&byte| match byte.to_ascii_lowercase() {
                byte @ (b'a'..=b'z' | b'0'..=b'9') => char::from(byte),
                _ => '_',
            })
            .collect();
        let base = match base.starts_with(|it: char| it.is_ascii_lowercase()) {
            true => base,
            false => format!("l{base}"),
        };
        let number = self.numbers.entry(base.clone()).or_insert(1);
        let mut name = base.clone();
        while !self.names.insert(name.clone()) {
            *number += 1;
            name = format!("{base}_{number}");
        }
        name
    }

    /// Finds addresses of which one lies within another: HAProxy's sockets share a port, the gate's don't.
    pub(super) fn check(&mut self, draft: &mut Draft<'_>) -> Result<(), Refusal> {
        let mut wide: HashMap<(bool, u16), Vec<usize>> = HashMap::new();
        for (index, config) in self.listeners.iter().enumerate() {
            if let listener::Address::Tcp(address) = config.address
                && address.ip().is_unspecified()
            {
                let of_port = wide.entry((address.is_ipv6(), address.port()));
                of_port.or_default().push(index);
            }
        }
        for index in 0..self.listeners.len() {
            let listener::Address::Tcp(address) = self.listeners[index].address else {
                continue;
            };
            let same = wide.get(&(address.is_ipv6(), address.port()));
            for &other in same.into_iter().flatten() {
                if other != index && meet(&self.listeners[index].own, &self.listeners[other].own) {
                    return Err(self.overlap(draft, index, other));
                }
            }
            let both = wide.get(&(true, address.port()));
            for &other in both.into_iter().flatten().filter(|_| address.is_ipv4()) {
                let own = &self.listeners[other].own;
                if own.v6only == Some(true) || !meet(&self.listeners[index].own, own) {
                    continue;
                }
                if address.ip() != IpAddr::V4(Ipv4Addr::UNSPECIFIED) {
                    return Err(self.overlap(draft, index, other));
                }
                // The kernel gives IPv4 clients to the IPv4 socket.
                self.listeners[other].own.v6only = Some(true);
            }
        }
        Ok(())
    }

    fn overlap(&self, draft: &Draft<'_>, index: usize, wide: usize) -> Refusal {
        let (first, second) = (index.min(wide), index.max(wide));
        let why = format!(
            "{} and the {} of {} overlap, and the gate has one socket an address; bind the wider one alone, or make it v6only \
             if it is {} and the other one is IPv4",
            self.listeners[second].address,
            self.listeners[first].address,
            draft.document.place(self.lines[first]),
            Ipv6Addr::UNSPECIFIED,
        );
        draft.refuse(self.lines[second], why)
    }

    /// Private listeners so far.
    pub(super) fn count(&self) -> usize {
        self.privates.len()
    }

    pub(super) fn finish(self) -> (Vec<ListenerConfig>, Vec<usize>) {
        (self.listeners, self.privates)
    }
}

/// Whether the same client may come to both.
fn meet(one: &Own, other: &Own) -> bool {
    one.interface.is_none() || other.interface.is_none() || one.interface == other.interface
}
