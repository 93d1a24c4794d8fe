//! `global` sections: what a supervised process can't have, the stats sockets, and the facts that other parts need.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use syngate_gate::listener::{self, Own};

use super::Refusal;
use super::address::Address;
use super::copy::Piece;
use super::document::{Kind, Line, Modifier, Standing};
use super::draft::Draft;
use super::front::{Bind, wanted};
use super::proxies::number;
use super::publics::Publics;
use super::socket_options::{check_options, keep_owner, octal, take_over};
use super::words::quote;

/// The first version that refuses to start when limits are too low (`strict-limits` is on).
const STRICT: (u32, u32, u32) = (2, 3, 0);
/// The first version that forbids processes to be started, unless `insecure-fork-wanted`.
const NO_FORK: (u32, u32, u32) = (2, 2, 0);

/// A `unix-bind` line.
struct UnixBind {
    /// File and line.
    place: (usize, usize),
    prefix: Option<Vec<u8>>,
    mode: Option<u32>,
}

/// What the `global` sections say.
#[derive(Default)]
pub(super) struct Global {
    /// What the copy says beside the user's files.
    pub(super) own_lines: Vec<Piece>,
    /// The stats sockets with a path of their own: where users look for each, if it isn't an abstract one.
    pub(super) stats_sockets: Vec<Option<PathBuf>>,
    /// Where relative paths begin, if not in the process's directory.
    pub(super) origin: Option<PathBuf>,
    /// `maxconn`, and its line.
    pub(super) maxconn: Option<(u32, usize)>,
    /// Pipes asked for.
    pub(super) maxpipes: u32,
    /// `ulimit-n`, and its line.
    pub(super) ulimit: Option<(u32, usize)>,
    /// Threads asked for.
    pub(super) threads: Option<u32>,
    /// Connections to stats sockets.
    pub(super) stats_maxconn: Option<u32>,
    /// HAProxy goes on when limits are too low.
    pub(super) lenient: bool,
    /// In order.
    unix_binds: Vec<UnixBind>,
    lua: bool,
    says_fork: bool,
}

impl Global {
    /// What `unix-bind` puts in front of paths, as of this line. The first one counts.
    pub(super) fn unix_prefix_before(&self, line: &Line) -> &[u8] {
        let mut prefixes = self.before(line).filter_map(|it| it.prefix.as_deref());
        prefixes.next().unwrap_or_default()
    }

    /// The permissions that `unix-bind` gives, as of this line. The last ones count.
    pub(super) fn unix_mode_before(&self, line: &Line) -> Option<u32> {
        self.before(line).filter_map(|it| it.mode).last()
    }

    fn before(&self, line: &Line) -> impl Iterator<Item = &UnixBind> {
        let place = (line.file, line.number);
        self.unix_binds
            .iter()
            .take_while(move |it| it.place < place)
    }
}

/// Reads all `global` sections.
pub(super) fn read<'a>(
    draft: &mut Draft<'a>,
    publics: &mut Publics<'a>,
) -> Result<Global, Refusal> {
    let document = draft.document;
    let version = draft.world.binary.version;
    let mut global = Global {
        lenient: version < STRICT,
        ..Global::default()
    };
    for section in document
        .sections
        .iter()
        .filter(|it| it.kind == Kind::Global)
    {
        for index in section.lines.clone().skip(1) {
            let line = &document.lines[index];
            if matches!(line.standing, Standing::Read | Standing::Doubtful(_)) {
                global.line(draft, publics, index, line)?;
            }
        }
    }
    let mut own = vec![
        Piece::text(
            "# What syngate needs of a generation, beside the configuration.\nglobal\n  stats socket ",
        ),
        Piece::Stats,
        Piece::text(" level admin\n"),
    ];
    if global.lua && !global.says_fork && draft.world.unprivileged && version >= NO_FORK {
        own.push(Piece::text("  insecure-fork-wanted\n"));
    }
    global.own_lines = own;
    Ok(global)
}

fn more_than_none(line: &Line) -> Option<u32> {
    number(line.text(1)).filter(|&it| it > 0)
}

impl Global {
    fn line<'a>(
        &mut self,
        draft: &mut Draft<'a>,
        publics: &mut Publics<'a>,
        index: usize,
        line: &'a Line,
    ) -> Result<(), Refusal> {
        if line.modifier != Modifier::None {
            match line.keyword() {
                b"strict-limits" => {
                    draft.settled(line)?;
                    self.lenient = line.modifier == Modifier::No;
                }
                b"insecure-fork-wanted" => self.says_fork = true,
                _ => {}
            }
            return Ok(());
        }
        match (line.keyword(), line.words.len()) {
            // The supervisor holds the process, and decides what a killed worker means.
            (b"daemon" | b"master-worker", 1) => draft.drop_line(index),
            (b"master-worker", 2) if line.text(1) == b"no-exit-on-failure" => {
                draft.drop_line(index);
            }
            (b"pidfile", 2) => {
                draft.warn(
                    line,
                    "no pidfile is written: the supervisor knows its processes; see syngate status",
                );
                draft.drop_line(index);
            }
            (b"user" | b"group" | b"uid" | b"gid" | b"chroot", 2..) if draft.world.unprivileged => {
                let keyword = String::from_utf8_lossy(line.keyword());
                draft.warn(
                    line,
                    format!(
                        "{keyword} is left out: the gate isn't root, so HAProxy runs as it does"
                    ),
                );
                draft.drop_line(index);
            }
            (b"nbproc", 2..) if line.text(1) != b"1" => {
                let why = "several processes can't be told apart by the supervisor; use nbthread";
                return Err(draft.refuse(line, why));
            }
            (b"stats", 3..) if line.text(1) == b"socket" => {
                self.stats_socket(draft, publics, line)?;
            }
            (b"stats", 3..) if line.text(1) == b"maxconn" => {
                self.stats_maxconn = number(line.text(2));
            }
            // Of both the first one counts that isn't 0.
            (b"maxconn", 2..) if self.maxconn.is_none() => {
                draft.settled(line)?;
                self.maxconn = more_than_none(line).map(|it| (it, index));
            }
            (b"ulimit-n", 2..) if self.ulimit.is_none() => {
                draft.settled(line)?;
                self.ulimit = more_than_none(line).map(|it| (it, index));
            }
            (b"maxpipes", 2..) => self.maxpipes = number(line.text(1)).unwrap_or(0),
            (b"nbthread", 2..) => self.threads = number(line.text(1)),
            (b"strict-limits", 1) => self.lenient = false,
            (b"insecure-fork-wanted", _) => self.says_fork = true,
            (b"lua-load" | b"lua-load-per-thread", 2..) => self.lua = true,
            (b"unix-bind", 3..) => self.unix_bind(draft, line)?,
            (b"default-path", 2..) => self.default_path(draft, line)?,
            _ => {}
        }
        Ok(())
    }

    /// Moves a stats socket to where a start that fails can't harm the running generation: one with a path into the
    /// generation's directory, one with a TCP address behind the gate.
    fn stats_socket<'a>(
        &mut self,
        draft: &mut Draft<'a>,
        publics: &mut Publics<'a>,
        line: &'a Line,
    ) -> Result<(), Refusal> {
        const ADDRESS: usize = 2;
        draft.settled(line)?;
        let bind = Bind::read(draft, line, ADDRESS)?;
        let of_tcp = |member: &Address| matches!(member, Address::Tcp { .. });
        let own = match bind.members.iter().filter(|it| of_tcp(it)).count() {
            0 => {
                if draft.world.unprivileged {
                    keep_owner(draft, &bind)?;
                }
                Own::default()
            }
            count if count == bind.members.len() => {
                check_options(draft, &bind)?;
                take_over(draft, &bind, None)?
            }
            _ if bind.has_own_options() => {
                let why = "its options belong to sockets of two kinds, of which the gate makes one; write a stats socket for each";
                return Err(draft.refuse(line, why));
            }
            _ => Own::default(),
        };
        let mut pieces = Vec::new();
        for member in &bind.members {
            match member {
                Address::Unix(path) => {
                    let path = OsString::from_vec(path.clone()).into();
                    pieces.extend(self.own_path(Some(path)));
                }
                Address::Abstract { .. } => {
                    let what = "its abstract name is left out: two generations can't have it at once; use a path";
                    draft.warn(line, what);
                    pieces.extend(self.own_path(None));
                }
                Address::Tcp { ip, ports, .. } => {
                    for port in ports.clone() {
                        let address = listener::Address::Tcp((*ip, port).into());
                        let wanted = wanted(address, &own, true);
                        let private = publics.private(draft, line, b"stats_socket", wanted)?;
                        pieces.extend([Piece::Private(private), Piece::text(",")]);
                    }
                }
                Address::Inherited | Address::Foreign(_) => {
                    let why =
                        "this stats socket can't be had by two generations at once; use a path";
                    return Err(draft.refuse(line, why));
                }
            }
        }
        // The last comma.
        pieces.pop();
        draft.replace(line, ADDRESS, pieces)
    }

    /// A path that each generation has for itself, instead of this one.
    fn own_path(&mut self, public: Option<PathBuf>) -> [Piece; 3] {
        self.stats_sockets.push(public);
        let index = self.stats_sockets.len() - 1;
        [
            Piece::text("unix@"),
            Piece::StatsPath(index),
            Piece::text(","),
        ]
    }

    fn unix_bind(&mut self, draft: &mut Draft<'_>, line: &Line) -> Result<(), Refusal> {
        draft.settled(line)?;
        draft.known(line)?;
        let (mut prefix, mut mode) = (None, None);
        for pair in line.words[1..].chunks(2) {
            let value = pair.get(1).map_or(&b""[..], |it| &it.text);
            match pair[0].text.as_slice() {
                b"prefix" => prefix = Some(value.to_vec()),
                b"mode" => {
                    let why = "the value of mode is no permissions in octal; write it as 660";
                    let given = octal(value).ok_or_else(|| draft.refuse(line, why))?;
                    mode = Some(given).filter(|&it| it != 0);
                }
                name => {
                    let name = String::from_utf8_lossy(name).into_owned();
                    let what = format!(
                        "its {name} has no effect on sockets that the gate makes: their files are the gate's own"
                    );
                    draft.warn(line, what);
                }
            }
        }
        self.unix_binds.push(UnixBind {
            place: (line.file, line.number),
            prefix,
            mode,
        });
        Ok(())
    }

    /// Relative paths go on beginning where they do in the user's file.
    fn default_path(&mut self, draft: &mut Draft<'_>, line: &Line) -> Result<(), Refusal> {
        draft.settled(line)?;
        draft.known(line)?;
        let directory_of = |path: &Path| match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent.to_path_buf(),
            _ => PathBuf::from("."),
        };
        let files = &draft.document.files;
        let directory = directory_of(&files[line.file].path);
        let origin = match line.text(1) {
            b"config" => directory.clone(),
            b"parent" => directory.join(".."),
            b"origin" => {
                self.origin = Some(OsString::from_vec(line.text(2).to_vec()).into());
                return Ok(());
            }
            _ => {
                self.origin = None;
                return Ok(());
            }
        };
        if files
            .iter()
            .any(|file| directory_of(&file.path) != directory)
        {
            let why = "the configurations are in several directories, and their copies in one; write default-path origin DIRECTORY";
            return Err(draft.refuse(line, why));
        }
        let directory = quote(origin.as_os_str().as_bytes());
        draft.replace(
            line,
            1,
            vec![Piece::text("origin "), Piece::Text(directory)],
        )?;
        self.origin = Some(origin);
        Ok(())
    }
}
