//! What becomes of a bind's options where the gate, or a user who isn't root, makes the socket.

use syngate_gate::listener::Own;

use super::Refusal;
use super::address::Address;
use super::bind::Fate;
use super::draft::Draft;
use super::front::Bind;
use super::proxies::number;

/// Refuses options without which the bind would do something else.
pub(super) fn check_options(draft: &Draft<'_>, bind: &Bind<'_>) -> Result<(), Refusal> {
    for option in &bind.options {
        if let Fate::Refused(why) = option.fate {
            let name = String::from_utf8_lossy(option.name);
            return Err(draft.refuse(bind.line, format!("it has {name}, but {why}; remove it")));
        }
    }
    Ok(())
}

/// Takes the options that belong to the public socket off the line.
pub(super) fn take_over(
    draft: &mut Draft<'_>,
    bind: &Bind<'_>,
    backlog: Option<u32>,
) -> Result<Own, Refusal> {
    let line = bind.line;
    let is_unix = bind.members.iter().any(|it| matches!(it, Address::Unix(_)));
    let mut own = Own {
        backlog,
        ..Own::default()
    };
    for option in &bind.options {
        let unusable = || {
            let name = String::from_utf8_lossy(option.name);
            draft.refuse(
                line,
                format!("the value of {name} is missing or out of range; correct it"),
            )
        };
        match option.name {
            b"backlog" => {
                let given = number(option.value).ok_or_else(unusable)?;
                own.backlog = Some(given).filter(|&it| it > 0).or(backlog);
            }
            b"interface" => {
                let given = std::str::from_utf8(option.value).ok();
                let given = given.filter(|it| !it.is_empty()).ok_or_else(unusable)?;
                own.interface = Some(given.to_owned());
            }
            b"mss" => {
                let given = number(option.value).and_then(|it| it.try_into().ok());
                own.mss = Some(given.ok_or_else(unusable)?);
            }
            b"v4v6" => own.v6only = Some(false),
            b"v6only" => own.v6only = Some(true),
            b"tfo" => own.fast_open = true,
            b"defer-accept" => own.defer_accept = true,
            // They are of no effect on TCP.
            b"gid" | b"group" | b"uid" | b"user" if is_unix => {
                let name = String::from_utf8_lossy(option.name);
                let what = format!(
                    "its {name} is left out: the socket's file is the gate's own; let its mode say who may connect"
                );
                draft.warn(line, what);
            }
            b"mode" if is_unix => {}
            name => match option.fate {
                Fate::Lost(what) => {
                    let name = String::from_utf8_lossy(name);
                    draft.warn(line, format!("its {name} is left out: {what}"));
                }
                _ => continue,
            },
        }
        draft.remove(line, option.at, option.at + option.values)?;
    }
    Ok(own)
}

/// The permissions that a unix bind asks for; none where it doesn't, or says 0.
pub(super) fn mode(draft: &Draft<'_>, bind: &Bind<'_>) -> Result<Option<u32>, Refusal> {
    let Some(text) = bind.value(b"mode") else {
        return Ok(None);
    };
    octal(text)
        .map(|mode| Some(mode).filter(|&it| it != 0))
        .ok_or_else(|| {
            let why = "the value of mode is no permissions in octal; write it as 660";
            draft.refuse(bind.line, why)
        })
}

/// Permissions in octal.
pub(super) fn octal(text: &[u8]) -> Option<u32> {
    let text = std::str::from_utf8(text).ok()?;
    let mode = u32::from_str_radix(text, 8).ok();
    mode.filter(|&mode| mode <= 0o777)
}

/// Takes off a stats socket's line what only root could do with its file.
pub(super) fn keep_owner(draft: &mut Draft<'_>, bind: &Bind<'_>) -> Result<(), Refusal> {
    for option in &bind.options {
        let possible = match option.name {
            b"user" | b"uid" => false,
            b"group" | b"gid" => (draft.world.joined)(option.value),
            _ => true,
        };
        if possible {
            continue;
        }
        let name = String::from_utf8_lossy(option.name);
        let what = format!(
            "its {name} is left out: the gate isn't root, so the socket's file is of its own user and groups"
        );
        draft.warn(bind.line, what);
        draft.remove(bind.line, option.at, option.at + option.values)?;
    }
    Ok(())
}
