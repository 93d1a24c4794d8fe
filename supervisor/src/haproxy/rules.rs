//! `tcp-request connection` rules: HAProxy evaluates them before it has read a PROXY header, so behind the gate they would see
//! the gate. `tcp-request session` rules are evaluated right after it, and see the client.

use std::collections::HashMap;

use super::Refusal;
use super::copy::Piece;
use super::document::Line;
use super::draft::Draft;
use super::front::{Bind, Front};
use super::proxies::Proxy;

/// Actions that both kinds of rules know (configuration manual, "Actions").
const BOTH: [&[u8]; 12] = [
    b"accept",
    b"attach-srv",
    b"reject",
    b"sc-add-gpc",
    b"sc-inc-gpc",
    b"sc-set-gpt",
    b"set-dst",
    b"set-src",
    b"set-var",
    b"silent-drop",
    b"track-sc",
    b"unset-var",
];

/// What has been decided of each rule so far: those of a defaults section have several proxies.
#[derive(Default)]
pub(super) struct Rules {
    /// By file and line: whether it becomes a session rule.
    moved: HashMap<(usize, usize), bool>,
}

impl Rules {
    /// Makes the connection rules of this proxy, its own and its defaults', session rules. Says whether its clients send a
    /// PROXY header though the binds don't say so.
    pub(super) fn convert(
        &mut self,
        draft: &mut Draft<'_>,
        proxies: &[Proxy<'_>],
        front: &Front<'_>,
    ) -> Result<bool, Refusal> {
        let inherited = front.proxy.defaults.map(|at| &proxies[at]);
        let sources = || inherited.into_iter().chain([front.proxy]);
        let connection: Vec<&Line> = sources()
            .flat_map(|it| it.connection_rules.iter().copied())
            .collect();
        let session: Vec<&Line> = sources()
            .flat_map(|it| it.session_rules.iter().copied())
            .collect();
        let Some(&first) = connection.first() else {
            return Ok(false);
        };
        let expects = |line: &&Line| line.text(2).starts_with(b"expect-");
        if let Some(line) = connection.iter().copied().find(expects) {
            if !front.is_fronted() || line.words.len() == 4 && connection.len() == 1 {
                self.decide(draft, line, false)?;
                return Ok(front.is_fronted());
            }
            let why = "whether a client sends a PROXY header depends on a rule; write accept-proxy in the bind, and a bind of its \
                       own for other clients";
            return Err(draft.refuse(line, why));
        }
        if front.is_fronted() {
            check(draft, front, first)?;
            check_order(draft, &connection, &session)?;
        }
        for line in connection {
            self.decide(draft, line, front.is_fronted())?;
        }
        Ok(false)
    }

    fn decide(&mut self, draft: &mut Draft<'_>, line: &Line, moves: bool) -> Result<(), Refusal> {
        match self.moved.insert((line.file, line.number), moves) {
            None if moves => rule(draft, line),
            Some(before) if before != moves => {
                let why = "of the sections that inherit this rule some are behind the gate, where it has to be a tcp-request session \
                           rule, and some aren't; write it in each";
                Err(draft.refuse(line, why))
            }
            _ => Ok(()),
        }
    }
}

/// Refuses rules on connections that no session rule can judge.
fn check(draft: &Draft<'_>, front: &Front<'_>, first: &Line) -> Result<(), Refusal> {
    let other = |bind: &&Bind<'_>| bind.is_raw() || bind.has_abstract();
    let Some(bind) = front.binds.iter().find(other) else {
        return Ok(());
    };
    let why = format!(
        "it looks at who connects to the bind in line {}, whose clients send a header of their own: behind the gate nobody can; \
         let a firewall limit them, or write a tcp-request session rule on the client's own address",
        bind.line.number
    );
    Err(draft.refuse(first, why))
}

/// Refuses rules that would be evaluated in another order: all connection rules come before all session rules, and an accept
/// ends the rules of its kind.
fn check_order(draft: &Draft<'_>, connection: &[&Line], session: &[&Line]) -> Result<(), Refusal> {
    let Some(&early) = session.first() else {
        return Ok(());
    };
    let place = |line: &Line| (line.file, line.number);
    let wrong = |line: &&&Line| place(line) > place(early) || line.text(2) == b"accept";
    match connection.iter().find(wrong) {
        None => Ok(()),
        Some(line) => {
            let why = format!(
                "behind the gate it has to be a tcp-request session rule, and with the one in line {} the outcome may be another; \
                 write it as a session rule where you want it",
                early.number
            );
            Err(draft.refuse(line, why))
        }
    }
}

fn rule(draft: &mut Draft<'_>, line: &Line) -> Result<(), Refusal> {
    let action = line.text(2);
    if !BOTH.iter().any(|known| action.starts_with(known)) {
        let why = format!(
            "behind the gate it has to be a tcp-request session rule, which has no action `{}`; remove it, or use another",
            String::from_utf8_lossy(action)
        );
        return Err(draft.refuse(line, why));
    }
    draft.replace(line, 1, vec![Piece::text("session")])
}
