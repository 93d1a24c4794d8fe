//! `bind` lines: which of their addresses move behind the gate, and what becomes of the line.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use syngate_gate::listener::{self, Own};

use super::Refusal;
use super::address::{self, Address};
use super::bind::{Fate, Opt, options};
use super::copy::Piece;
use super::document::{Line, Section, Standing};
use super::draft::Draft;
use super::global::Global;
use super::proxies::Proxy;
use super::publics::Publics;
use super::socket_options::{check_options, mode, take_over};
use crate::config::ListenerConfig;

/// A proxy that listens, and its binds.
pub(super) struct Front<'a> {
    pub(super) proxy: &'a Proxy<'a>,
    pub(super) binds: Vec<Bind<'a>>,
}

/// A `bind` line.
pub(super) struct Bind<'a> {
    pub(super) line: &'a Line,
    pub(super) members: Vec<Address>,
    pub(super) options: Vec<Opt<'a>>,
}

/// The abstract sockets that the binds make: by name, in order, with the line of each.
pub(super) struct AbstractNames<'a> {
    index: HashMap<(&'static str, Vec<u8>), usize>,
    lines: Vec<&'a Line>,
}

impl<'a> Front<'a> {
    /// Reads the binds of a proxy.
    pub(super) fn read(draft: &Draft<'_>, proxy: &'a Proxy<'a>) -> Result<Front<'a>, Refusal> {
        let binds = proxy.binds.iter().map(|line| Bind::read(draft, line, 1));
        let binds = binds.collect::<Result<_, _>>()?;
        Ok(Front { proxy, binds })
    }

    /// Whether some of its clients come through the gate.
    pub(super) fn is_fronted(&self) -> bool {
        self.binds.iter().any(Bind::is_fronted)
    }
}

impl<'a> Bind<'a> {
    /// Reads a line whose address is the word `at`, and whose options follow.
    pub(super) fn read(draft: &Draft<'_>, line: &'a Line, at: usize) -> Result<Bind<'a>, Refusal> {
        draft.known(line)?;
        let bad = |text: &[u8], why: &str| {
            let text = String::from_utf8_lossy(text).into_owned();
            draft.refuse(line, format!("`{text}` is no address to listen on: {why}"))
        };
        if line.words.len() <= at {
            return Err(draft.refuse(line, "it has no address; write ADDRESS:PORT or a path"));
        }
        let Some(expanded) = line.address(at) else {
            return Err(bad(
                line.text(at),
                "its variable's value isn't known here; write it out",
            ));
        };
        let commas = |text: &[u8]| text.iter().filter(|&&byte| byte == b',').count();
        if commas(expanded) != commas(line.text(at)) {
            return Err(bad(
                expanded,
                "a variable has a list in it; put it in weak quotes",
            ));
        }
        let expanded = expanded.strip_suffix(b",").unwrap_or(expanded);
        let members = expanded.split(|&byte| byte == b',').map(|member| {
            let read = address::parse(member, &|name| draft.resolve(name));
            read.map_err(|error| bad(member, &error.to_string()))
        });
        Ok(Bind {
            line,
            members: members.collect::<Result<_, _>>()?,
            options: options(&line.words, at + 1),
        })
    }

    pub(super) fn is_fronted(&self) -> bool {
        let fronted = |member: &Address| matches!(member, Address::Tcp { .. } | Address::Unix(_));
        self.members.iter().any(fronted)
    }

    pub(super) fn has_abstract(&self) -> bool {
        let is_abstract = |member: &Address| matches!(member, Address::Abstract { .. });
        self.members.iter().any(is_abstract)
    }

    /// Whether it has options that only a socket of its own can have.
    pub(super) fn has_own_options(&self) -> bool {
        self.options.iter().any(|it| it.fate != Fate::Stays)
    }

    pub(super) fn has(&self, option: &[u8]) -> bool {
        self.options.iter().any(|it| it.name == option)
    }

    /// Whether its clients send a header that says where they come from: they pass as they are.
    pub(super) fn is_raw(&self) -> bool {
        self.has(b"accept-proxy") || self.has(b"accept-netscaler-cip")
    }

    pub(super) fn value(&self, option: &[u8]) -> Option<&'a [u8]> {
        // The last one counts.
        let of_name = self.options.iter().rev().find(|it| it.name == option);
        of_name.map(|it| it.value)
    }
}

impl<'a> AbstractNames<'a> {
    /// Those of all binds.
    pub(super) fn of(fronts: &[Front<'a>]) -> AbstractNames<'a> {
        let mut names = AbstractNames {
            index: HashMap::new(),
            lines: Vec::new(),
        };
        for bind in fronts.iter().flat_map(|front| &front.binds) {
            for member in &bind.members {
                if let Address::Abstract { prefix, name } = member {
                    names
                        .index
                        .entry((*prefix, name.clone()))
                        .or_insert_with(|| {
                            names.lines.push(bind.line);
                            names.lines.len() - 1
                        });
                }
            }
        }
        names
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.lines.len()
    }

    pub(super) fn index(&self, prefix: &'static str, name: &[u8]) -> Option<usize> {
        self.index.get(&(prefix, name.to_vec())).copied()
    }

    /// The first bind of each.
    pub(super) fn lines(&self) -> impl Iterator<Item = (usize, &'a Line)> {
        self.lines.iter().copied().enumerate()
    }
}

/// Moves a proxy's binds behind the gate. With `expects_header` its clients send a PROXY header, though the binds don't say so.
pub(super) fn open<'a>(
    draft: &mut Draft<'_>,
    publics: &mut Publics<'a>,
    names: &AbstractNames<'_>,
    global: &Global,
    front: &Front<'a>,
    expects_header: bool,
) -> Result<(), Refusal> {
    for bind in &front.binds {
        check(draft, bind, expects_header)?;
        let line = bind.line;
        let foreign = bind.members.iter().find_map(|member| match member {
            Address::Foreign(what) => Some(*what),
            _ => None,
        });
        if let Some(what) = foreign {
            let what = format!(
                "{what} can't pass through the gate: HAProxy listens itself, and while two generations run, either may get a client"
            );
            draft.warn(line, what);
            continue;
        }
        let raw = bind.is_raw() || expects_header;
        let own = match bind.is_fronted() {
            true => take_over(draft, bind, front.proxy.backlog)?,
            false => Own::default(),
        };
        let mut pieces = Vec::new();
        for member in &bind.members {
            for address in members(draft, bind, global, names, member, &mut pieces)? {
                let wanted = wanted(address, &own, raw);
                let private = publics.private(draft, line, front.proxy.name, wanted)?;
                separate(&mut pieces);
                pieces.push(Piece::Private(private));
            }
        }
        draft.replace(line, 1, pieces)?;
        if bind.is_fronted() && !raw {
            draft.append(line, 1, "accept-proxy");
        }
    }
    Ok(())
}

/// A public listener, still without a name.
pub(super) fn wanted(address: listener::Address, own: &Own, raw: bool) -> ListenerConfig {
    let mut own = own.clone();
    if matches!(address, listener::Address::Tcp(SocketAddr::V4(_))) {
        own.v6only = None;
    }
    ListenerConfig {
        name: String::new(),
        address,
        own,
        raw,
    }
}

fn separate(pieces: &mut Vec<Piece>) {
    if !pieces.is_empty() {
        pieces.push(Piece::text(","));
    }
}

/// The public addresses of a list's member. One that isn't public goes into `pieces` at once.
fn members(
    draft: &mut Draft<'_>,
    bind: &Bind<'_>,
    global: &Global,
    names: &AbstractNames<'_>,
    member: &Address,
    pieces: &mut Vec<Piece>,
) -> Result<Vec<listener::Address>, Refusal> {
    let line = bind.line;
    match member {
        Address::Tcp {
            ip,
            ports,
            multipath,
        } => {
            if *multipath {
                draft.warn(
                    line,
                    "the gate takes its clients by plain TCP, without MPTCP",
                );
            }
            let address = |port| listener::Address::Tcp(SocketAddr::new(*ip, port));
            Ok(ports.clone().map(address).collect())
        }
        Address::Unix(path) => {
            let path = [global.unix_prefix_before(line), path].concat();
            let path = PathBuf::from(std::ffi::OsString::from_vec(path));
            let mode = mode(draft, bind)?.or(global.unix_mode_before(line));
            Ok(vec![listener::Address::Unix { path, mode }])
        }
        Address::Abstract { prefix, name } => {
            separate(pieces);
            pieces.push(Piece::text(prefix));
            // Each bind's names are there.
            let index = names.index(prefix, name).unwrap_or_default();
            let name = name.clone();
            pieces.push(Piece::Abstract { name, index });
            Ok(Vec::new())
        }
        Address::Inherited | Address::Foreign(_) => Ok(Vec::new()),
    }
}

/// Refuses what can't be moved, or not together.
fn check(draft: &Draft<'_>, bind: &Bind<'_>, expects_header: bool) -> Result<(), Refusal> {
    let line = bind.line;
    if bind.members.contains(&Address::Inherited) {
        let why = "a generation inherits no descriptors but the gate's; bind the address itself";
        return Err(draft.refuse(line, why));
    }
    let foreign = |it: &&Address| matches!(it, Address::Foreign(_));
    let foreign = bind.members.iter().filter(foreign).count();
    if foreign > 0 && foreign < bind.members.len() {
        let why =
            "one of its addresses can't pass through the gate, others can; write a bind for each";
        return Err(draft.refuse(line, why));
    }
    if bind.has_abstract() && bind.is_fronted() && (!bind.has(b"accept-proxy") || expects_header) {
        let why = "an abstract socket and others in one bind can't both get what they need; write a bind for each";
        return Err(draft.refuse(line, why));
    }
    match bind.is_fronted() {
        true => check_options(draft, bind),
        false => Ok(()),
    }
}

/// Looks at what stays with HAProxy: peers, log-forward and program sections.
pub(super) fn leave(draft: &mut Draft<'_>, section: &Section) -> Result<(), Refusal> {
    let document = draft.document;
    for index in section.lines.clone() {
        let line = &document.lines[index];
        let counts = matches!(line.standing, Standing::Read | Standing::Doubtful(_));
        match (counts, line.keyword()) {
            (true, b"program") => draft.warn(
                line,
                "each generation runs this program, so two may run at once",
            ),
            (true, b"bind" | b"dgram-bind") => {
                let bind = Bind::read(draft, line, 1)?;
                if bind.has_abstract() || bind.members.contains(&Address::Inherited) {
                    let why = "two generations can't have this socket at once, and the gate can't stand before it; bind an address";
                    return Err(draft.refuse(line, why));
                }
                if bind.members.iter().any(|it| matches!(it, Address::Unix(_))) {
                    draft.warn(
                        line,
                        "each generation takes this path over from the one before when it starts",
                    );
                }
            }
            _ => {}
        }
    }
    Ok(())
}
