//! The proxies: `defaults`, `frontend`, `listen` and `backend` sections with what they inherit (configuration manual, section 4).

use std::collections::HashMap;
use std::ops::Range;

use super::Refusal;
use super::document::{Kind, Line, Modifier, Standing};
use super::draft::Draft;

/// One proxy section. What it doesn't say itself is what its defaults say.
pub(super) struct Proxy<'a> {
    pub(super) kind: Kind,
    pub(super) name: &'a [u8],
    /// Indices of its lines, header first.
    pub(super) lines: Range<usize>,
    /// The defaults section that it inherits from, as an index.
    pub(super) defaults: Option<usize>,
    pub(super) http: bool,
    pub(super) backlog: Option<u32>,
    pub(super) disabled: bool,
    /// Whether it, or its defaults, say something about `option idle-close-on-response`.
    pub(super) says_idle_close: bool,
    /// Its own `bind` lines.
    pub(super) binds: Vec<&'a Line>,
    /// Its own `tcp-request connection` rules.
    pub(super) connection_rules: Vec<&'a Line>,
    /// Its own `tcp-request session` rules.
    pub(super) session_rules: Vec<&'a Line>,
}

impl Proxy<'_> {
    /// Whether it listens.
    pub(super) fn is_open(&self) -> bool {
        self.kind.is_front() && !self.disabled && !self.binds.is_empty()
    }
}

/// Reads all proxies, in order.
pub(super) fn read<'a>(draft: &mut Draft<'a>) -> Result<Vec<Proxy<'a>>, Refusal> {
    let document = draft.document;
    let mut proxies: Vec<Proxy<'a>> = Vec::new();
    let mut last_defaults = None;
    let mut named: HashMap<&[u8], usize> = HashMap::new();
    for section in document.sections.iter().filter(|it| it.kind.is_proxy()) {
        let defaults = match &section.from {
            Some(name) => named.get(name.as_slice()).copied(),
            None if section.kind == Kind::Defaults => None,
            None => last_defaults,
        };
        let inherited = defaults.map(|at: usize| &proxies[at]);
        let mut proxy = Proxy {
            kind: section.kind,
            name: &section.name,
            lines: section.lines.clone(),
            defaults,
            http: inherited.is_some_and(|it| it.http),
            backlog: inherited.and_then(|it| it.backlog),
            disabled: inherited.is_some_and(|it| it.disabled),
            says_idle_close: inherited.is_some_and(|it| it.says_idle_close),
            binds: Vec::new(),
            connection_rules: Vec::new(),
            session_rules: Vec::new(),
        };
        for index in section.lines.clone().skip(1) {
            let line = &document.lines[index];
            if matches!(line.standing, Standing::Read | Standing::Doubtful(_)) {
                proxy.line(draft, index, line)?;
            }
        }
        if section.kind == Kind::Defaults {
            last_defaults = Some(proxies.len());
            named.insert(proxy.name, proxies.len());
        }
        proxies.push(proxy);
    }
    Ok(proxies)
}

impl<'a> Proxy<'a> {
    /// Warns about rules of which the gate keeps the effect from the client.
    fn actions(&self, draft: &mut Draft<'a>, line: &Line) {
        let action = match line.keyword() {
            b"http-request" | b"http-response" | b"http-after-response" => line.text(1),
            b"tcp-request" | b"tcp-response" => line.text(2),
            _ => return,
        };
        if let Some(what) = lost_action(action) {
            let action = String::from_utf8_lossy(action);
            draft.warn(
                line,
                format!("{action} acts on the gate's connection: {what}"),
            );
        }
    }

    fn line(&mut self, draft: &mut Draft<'a>, index: usize, line: &'a Line) -> Result<(), Refusal> {
        self.actions(draft, line);
        match (line.keyword(), line.text(1)) {
            (b"option", b"idle-close-on-response") => {
                self.says_idle_close = true;
                return Ok(());
            }
            // The interface that sets servers anew can't carry an address; a file can, and an old one wins over a new configuration.
            (b"load-server-state-from-file", b"global" | b"local" | b"none") => {
                draft.drop_line(index);
                return Ok(());
            }
            (b"bind" | b"mode" | b"backlog" | b"disabled" | b"enabled", _)
            | (b"tcp-request", b"connection" | b"session")
                if line.modifier == Modifier::None => {}
            (b"monitor-net", _) => {
                let why = "the addresses of monitor-net are compared with the gate's; use http-request return status 200 if { src NETWORK }";
                return Err(draft.refuse(line, why));
            }
            _ => return Ok(()),
        }
        draft.settled(line)?;
        match line.keyword() {
            b"mode" => {
                draft.known(line)?;
                self.http = line.text(1) == b"http";
            }
            b"backlog" => {
                draft.known(line)?;
                self.backlog = number(line.text(1)).filter(|&backlog| backlog > 0);
            }
            b"disabled" => self.disabled = true,
            b"enabled" => self.disabled = false,
            b"bind" if self.kind == Kind::Backend => {
                let why = "a backend takes no clients, though HAProxy opens the port; move the bind into a frontend or listen section";
                return Err(draft.refuse(line, why));
            }
            b"bind" => self.binds.push(line),
            _ if line.text(1) == b"connection" => self.connection_rules.push(line),
            _ => self.session_rules.push(line),
        }
        Ok(())
    }
}

/// What actions do to a client's own connection that a relay doesn't pass on.
fn lost_action(action: &[u8]) -> Option<&'static str> {
    Some(match action {
        b"silent-drop" => "the client sees the connection end",
        b"set-mark" | b"set-fc-mark" => "packets to the client aren't marked",
        b"set-tos" | b"set-fc-tos" => "packets to the client have no other TOS",
        _ => return None,
    })
}

/// As atol(3) where it is written as digits.
pub(super) fn number(text: &[u8]) -> Option<u32> {
    std::str::from_utf8(text).ok()?.parse().ok()
}
