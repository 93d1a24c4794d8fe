//! What a generation of HAProxy gets beside its kept listeners: one more for a stats socket, and a copy of its configuration.
//!
//! The stats sockets that the configuration has itself are made by HAProxy, with the permissions that stand there. Each generation
//! makes them under a name of its own beside the one that users know, so whoever may reach the one may reach the other, and the
//! known name is led to the active generation's at the flip.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use nix::unistd::{AccessFlags, access};
use syngate_gate::listener::KeptListener;

use super::{Named, Places, Site};
use crate::command::FIRST_DESCRIPTOR;
use crate::config::{Argv, Haproxy};
use crate::haproxy::Place;

/// See the module.
pub(super) struct Front {
    /// Where it answers questions, and takes orders. HAProxy gets it as its last descriptor.
    pub(super) stats: Arc<KeptListener>,
    pub(super) run: Argv,
    pub(super) check: Argv,
    /// The paths of its own stats sockets as the configuration has them, and where they are.
    pub(super) links: Vec<(PathBuf, PathBuf)>,
}

impl Drop for Front {
    /// Takes away what isn't in the generation's directory.
    fn drop(&mut self) {
        for (_, private) in &self.links {
            let _ = std::fs::remove_file(private);
        }
    }
}

impl Site {
    /// Makes what HAProxy needs to start, and writes its copy.
    pub(super) fn front(
        &mut self,
        haproxy: &Haproxy,
        places: &Mutex<Places>,
    ) -> Result<(), String> {
        let Some(plan) = &haproxy.plan else {
            return Err("its configuration hasn't been read".to_owned());
        };
        let unix = Named {
            tcp: false,
            unix: true,
        };
        self.keep(plan.privates(), unix, places)?;
        let directory = self.directory.path();
        let stats = KeptListener::unix(directory)
            .map_err(|error| format!("can't make its stats socket: {error}"))?;
        let last = FIRST_DESCRIPTOR + self.kept.len() as i32;
        let paths = plan.stats_sockets().enumerate();
        let paths = paths.map(|(index, public)| stats_path(directory, index, public));
        let paths: Vec<PathBuf> = paths.collect();
        let copy = plan.copy(&Place {
            directory,
            privates: &(FIRST_DESCRIPTOR..last).collect::<Vec<_>>(),
            stats: last,
            stats_sockets: &paths,
            suffix: &directory.file_name().unwrap_or_default().to_string_lossy(),
        });
        for (path, text) in &copy.files {
            write(path, text).map_err(|error| {
                format!(
                    "the copy of the configuration, {}, can't be written: {error}",
                    path.display()
                )
            })?;
        }
        let line = |mode: &str| {
            let files = copy.configurations.iter();
            let files =
                files.flat_map(|file| ["-f".to_owned(), file.to_string_lossy().into_owned()]);
            let first = [haproxy.program.clone(), mode.to_owned()];
            let all = first.into_iter().chain(haproxy.arguments.clone());
            all.chain(files).collect()
        };
        // In master-worker mode there are two processes a generation, as marathon-lb's zdd.py counts them.
        let (run, check) = (line("-W"), line("-c"));
        let links = plan.stats_sockets().zip(&paths);
        let links = links.filter_map(|(public, own)| Some((public?.to_owned(), own.clone())));
        self.haproxy = Some(Front {
            stats: Arc::new(stats),
            run,
            check,
            links: links.collect(),
        });
        Ok(())
    }
}

fn write(path: &Path, text: &[u8]) -> io::Result<()> {
    if let Some(directory) = path.parent() {
        let mut builder = std::fs::DirBuilder::new();
        builder.recursive(true).mode(0o700).create(directory)?;
    }
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    options.open(path)?.write_all(text)
}

/// Where this generation makes a stats socket whose users look for it at `public`: beside it, or where that can't be, in the
/// generation's directory, where the gate's user alone can reach it.
fn stats_path(directory: &Path, index: usize, public: Option<&Path>) -> PathBuf {
    /// HAProxy adds its pid and a suffix to make the socket, and sun_path has 108 bytes (unix(7)).
    const LONGEST: usize = 90;
    let beside = public.and_then(|public| {
        let mut name = public.as_os_str().to_owned();
        name.push(".");
        name.push(directory.file_name()?);
        let parent = match public.parent()? {
            here if here.as_os_str().is_empty() => Path::new("."),
            parent => parent,
        };
        let writable = access(parent, AccessFlags::W_OK | AccessFlags::X_OK).is_ok();
        (writable && name.len() <= LONGEST).then(|| PathBuf::from(name))
    });
    beside.unwrap_or_else(|| directory.join(format!("stats-{index}.sock")))
}

/// Makes the canonical path of a stats socket that of the socket that is there now, or where it can't have a second name, a
/// symbolic link to it. What stands there is replaced in one step, unless it is neither a socket nor a link.
///
/// # Errors
/// The directory can't be written, or something else stands there.
pub(crate) fn publish(canonical: &Path, private: &Path) -> io::Result<()> {
    use std::os::unix::fs::FileTypeExt;
    match canonical.symlink_metadata() {
        Ok(there) if !there.file_type().is_socket() && !there.file_type().is_symlink() => {
            return Err(io::Error::other("what stands there is no socket"));
        }
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let mut name = canonical.as_os_str().to_owned();
    name.push(format!(".syngate-{}", std::process::id()));
    let temporary = PathBuf::from(name);
    // One of a killed gate that had this pid.
    let _ = std::fs::remove_file(&temporary);
    std::fs::hard_link(private, &temporary)
        .or_else(|_| std::os::unix::fs::symlink(private, &temporary))?;
    let renamed = std::fs::rename(&temporary, canonical);
    // It is still there, too, where both are names of one socket: rename(2) does nothing then.
    let _ = std::fs::remove_file(&temporary);
    renamed
}
