//! A Debian tree, of this machine's own release and from its own mirror: made once by debootstrap, copied for each test.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use super::{has, run};

/// What a server has on which somebody installs the gate: systemd as its first process, HAProxy, and something to look with.
const PACKAGES: &str = "systemd,systemd-sysv,dbus,haproxy,python3,curl,procps,iproute2";

/// A copy of the tree, removed at the end of the test. What is mounted below it has to be unmounted before.
pub(crate) struct Tree(TempDir);

impl Tree {
    /// `Err` says why there is none.
    pub(crate) fn new() -> Result<Tree, String> {
        if !nix::unistd::geteuid().is_root() {
            return Err("not root".to_owned());
        }
        if !has("debootstrap") {
            return Err("no debootstrap".to_owned());
        }
        let directory = directory();
        fs::create_dir_all(&directory).expect("a directory");
        let pristine = pristine(&directory);
        let copy = tempfile::Builder::new()
            .prefix("tree-")
            .tempdir_in(&directory)
            .expect("a directory");
        run(Command::new("cp")
            .args(["--archive", "--reflink=auto"])
            .arg(pristine.join("."))
            .arg(copy.path()));
        // A user who isn't root goes through it too.
        let everybody = fs::Permissions::from_mode(0o755);
        fs::set_permissions(copy.path(), everybody).expect("a mode");
        Ok(Tree(copy))
    }

    /// Its root directory.
    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }
}

/// Beside what cargo builds: /tmp may be small, or forbid devices.
fn directory() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("debian")
}

/// The tree that nobody changes, made where it is missing.
fn pristine(directory: &Path) -> PathBuf {
    let done = directory.join("pristine");
    if done.exists() {
        return done;
    }
    let making = tempfile::Builder::new()
        .prefix("making-")
        .tempdir_in(directory)
        .expect("a directory");
    let release = fs::read_to_string("/etc/os-release").expect("os-release");
    let suite = release
        .lines()
        .find_map(|line| line.strip_prefix("VERSION_CODENAME="))
        .expect("a codename");
    // Where apt has its packages from.
    let mirrors = run(Command::new("apt-get").args([
        "indextargets",
        "--format",
        "$(REPO_URI)",
        "Created-By: Packages",
    ]));
    let mirror = mirrors.lines().next().expect("apt has a source");
    run(Command::new("debootstrap")
        .args(["--variant=minbase", &format!("--include={PACKAGES}"), suite])
        .arg(making.path())
        .arg(mirror)
        .env("RUNLEVEL", "1"));
    fs::rename(making.keep(), &done).expect("a name");
    done
}
