//! What a generation of HAProxy gets beside its kept listeners: one more for its stats socket, and a copy of its configuration.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

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
        let copy = plan.copy(&Place {
            directory,
            privates: &(FIRST_DESCRIPTOR..last).collect::<Vec<_>>(),
            stats: last,
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
        self.haproxy = Some(Front {
            stats: Arc::new(stats),
            run,
            check,
            links: copy.links,
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

/// Makes the canonical path of a stats socket lead to where it is now. What stands there is replaced in one step, unless it is
/// neither a socket nor a link.
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
    std::os::unix::fs::symlink(private, &temporary)?;
    std::fs::rename(&temporary, canonical).inspect_err(|_| {
        let _ = std::fs::remove_file(&temporary);
    })
}
