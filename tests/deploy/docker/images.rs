//! Base images from this machine's own Debian, compiler and crates, and those that the Dockerfile makes of them. The builder's
//! containers have no network.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::json;
use tempfile::TempDir;

use super::engine::Engine;
use crate::common::done::Done;
use crate::run;
use crate::tree::Tree;

/// The image with HAProxy.
pub(super) const FRONT: &str = "syngate-haproxy";
/// The image with the gate alone.
pub(super) const GATE: &str = "syngate";

pub(super) const DEBIAN: &str = "base-debian";
const RUST: &str = "base-rust";
const LABELS: [(&str, &str); 2] = [("version", "1.2.3-test"), ("revision", "0123abc")];

/// The step of the Dockerfile that builds the dependencies, as it begins, the first one after it, and the one that builds the rest.
const DEPENDENCIES: &str = "RUN for source in";
const SOURCES: &str = "COPY metrics/src";
const REST: &str = "RUN find metrics";

/// Imports the base images.
pub(super) fn import_bases(engine: &Engine, tree: &Tree) {
    import(engine, tree.path(), DEBIAN, &[]);
    add_compiler(tree.path());
    add_rust(tree.path());
    let offline = ["ENV CARGO_HOME=/cargo", "ENV CARGO_NET_OFFLINE=true"];
    import(engine, tree.path(), RUST, &offline);
}

fn import(engine: &Engine, tree: &Path, name: &str, changes: &[&str]) {
    let mut tar = Command::new("tar")
        .args(["--create", "--numeric-owner", "--directory"])
        .arg(tree)
        .arg(".")
        .stdout(Stdio::piped())
        .spawn()
        .expect("tar");
    let mut import = engine.docker(["import"]);
    for change in changes {
        import.args(["--change", change]);
    }
    let stream = tar.stdout.take().expect("a pipe");
    run(import.args(["-", name]).stdin(stream));
    assert!(tar.wait().expect("wait").success(), "tar of {name}");
}

/// The files of this machine's C compiler and of all that it needs: the tree is of the same release.
fn add_compiler(tree: &Path) {
    let listed = run(Command::new("apt-cache")
        .args(["depends", "--recurse", "--installed"])
        .args(["--no-recommends", "--no-suggests", "--no-enhances"])
        .args(["--no-conflicts", "--no-breaks", "--no-replaces"])
        .args(["gcc", "libc6-dev"]));
    // The dependencies of each package stand below it, indented. A virtual one is in angle brackets.
    let packages = listed
        .lines()
        .filter(|line| !line.starts_with([' ', '|', '<']));
    let files = run(Command::new("dpkg-query").arg("--listfiles").args(packages));
    let installed = |path: &&str| {
        path.rfind('/').is_some_and(|slash| slash > 0) // /lib and the like are links in the tree too
            && fs::symlink_metadata(path).is_ok_and(|found| !found.is_dir())
    };
    run(Command::new("cp")
        .args(["--archive", "--parents", "--remove-destination"])
        .args(files.lines().filter(installed))
        .arg(tree)
        // Where else cp would look for the parents.
        .current_dir("/"));
    // It is an alternative, which no package lists.
    symlink("gcc", tree.join("usr/bin/cc")).expect("a link");
}

/// This machine's toolchain in /usr/local, and the crates that it has fetched in /cargo.
fn add_rust(tree: &Path) {
    let sysroot = run(Command::new("rustc").args(["--print", "sysroot"]));
    let sysroot = Path::new(sysroot.trim_end());
    let copy = |from: PathBuf, to: &str| {
        let to = tree.join(to);
        fs::create_dir_all(&to).expect("a directory");
        run(Command::new("cp").arg("--archive").arg(from).arg(to));
    };
    copy(sysroot.join("bin/cargo"), "usr/local/bin");
    copy(sysroot.join("bin/rustc"), "usr/local/bin");
    copy(sysroot.join("lib"), "usr/local");

    let home = std::env::var_os("CARGO_HOME").map_or_else(
        || Path::new(&std::env::var_os("HOME").expect("a home")).join(".cargo"),
        PathBuf::from,
    );
    copy(home.join("registry/cache"), "cargo/registry");
    copy(home.join("registry/index"), "cargo/registry");
    // It may name another source for crates.io, and with it the place of the cache.
    let settings = home.join("config.toml");
    if settings.exists() {
        copy(settings, "cargo");
    }
}

/// What git knows of this repository, as it is now.
pub(super) fn context() -> TempDir {
    let context = tempfile::tempdir().expect("a directory");
    let root = env!("CARGO_MANIFEST_DIR");
    let files = run(Command::new("git").args(["-C", root, "ls-files"]));
    run(Command::new("cp")
        .args(["--archive", "--parents"])
        .args(files.lines())
        .arg(context.path())
        .current_dir(root));
    context
}

/// The build arguments that name the base images.
pub(super) fn bases() -> [String; 2] {
    [
        format!("BUILD_IMAGE={RUST}"),
        format!("HAPROXY_IMAGE={DEBIAN}"),
    ]
}

/// `docker build` of one target.
fn build(engine: &Engine, context: &Path, target: &str, image: &str) -> Done {
    let mut build = engine.docker([
        "build",
        "--network=none",
        "--target",
        target,
        "--tag",
        image,
    ]);
    let labels = LABELS.map(|(label, value)| format!("{}={value}", label.to_uppercase()));
    for argument in bases().iter().chain(&labels) {
        build.args(["--build-arg", argument]);
    }
    let mut done = Done::from(build.arg(context).output().expect("docker"));
    done.out = uncoloured(&done.out);
    done
}

/// The builder shows in red what a step writes to stderr, even if nobody sees it.
fn uncoloured(output: &str) -> String {
    let mut pieces = output.split('\x1b');
    let first = pieces.next().unwrap_or_default();
    let after = |piece: &str| {
        piece
            .split_once('m')
            .map_or("", |(_, rest)| rest)
            .to_owned()
    };
    first.to_owned() + &pieces.map(after).collect::<String>()
}

/// Both images. The second one has the stage that compiles from the builder's cache.
pub(super) fn build_both(engine: &Engine, context: &Path) {
    build(engine, context, "haproxy", FRONT).expect_code(0);
    let again = build(engine, context, "gate", GATE);
    again.expect_code(0);
    expect_compiled_nothing(&again.out);
}

/// After a change of what the binary isn't made of.
pub(super) fn change_elsewhere_builds_nothing(engine: &Engine, context: &Path) {
    let page = context.join("README.md");
    let text = fs::read_to_string(&page).expect("a page");
    fs::write(&page, text + "\nA change.\n").expect("a page");
    let changed = build(engine, context, "gate", GATE);
    changed.expect_code(0);
    expect_compiled_nothing(&changed.out);
}

/// The builder had all that is compiled in its cache.
#[track_caller]
pub(super) fn expect_compiled_nothing(output: &str) {
    for step in [DEPENDENCIES, SOURCES, REST] {
        assert!(cached(output, step), "{output}");
    }
}

/// After a change of the code the dependencies aren't built again. The change is one that doesn't compile, in the first package:
/// so the build ends early. It is taken back.
pub(super) fn change_reuses_dependencies(engine: &Engine, context: &Path) {
    let file = context.join("metrics/src/lib.rs");
    let text = fs::read_to_string(&file).expect("a source");
    let broken = format!("{text}\ncompile_error!(\"a change of the code\");\n");
    fs::write(&file, broken).expect("a source");
    let changed = build(engine, context, "gate", "changed");
    fs::write(&file, text).expect("a source");
    assert_ne!(changed.code, Some(0));
    changed.expect_words(&["a change of the code", "Compiling syngate-metrics"]);
    assert!(cached(&changed.out, DEPENDENCIES), "{}", changed.out);
    assert!(!cached(&changed.out, SOURCES), "{}", changed.out);
    let foreign: Vec<&str> = changed
        .out
        .lines()
        .filter(|line| line.contains("Compiling ") && !line.contains("Compiling syngate"))
        .collect();
    assert_eq!(foreign, [""; 0], "dependencies are built again");
}

/// Whether the builder had the step with this instruction in its cache.
#[track_caller]
fn cached(output: &str, instruction: &str) -> bool {
    let mut lines = output.lines();
    let found = lines.any(|line| line.starts_with("Step ") && line.contains(instruction));
    assert!(found, "no step `{instruction}` in:\n{output}");
    lines
        .next()
        .is_some_and(|line| line.contains("Using cache"))
}

/// What an image says about itself.
pub(super) fn expect_metadata(engine: &Engine, image: &str, title: &str) {
    let config = engine.inspect(image, "{{json .Config}}");
    let config: serde_json::Value = serde_json::from_str(&config).expect("JSON");
    assert_eq!(config["User"], "65532:65532", "{image}");
    assert_eq!(config["StopSignal"], "SIGTERM", "{image}");
    let probe = json!(["CMD", "/usr/local/bin/syngate", "status", "--ready"]);
    assert_eq!(config["Healthcheck"]["Test"], probe, "{image}");
    let volumes = config["Volumes"].as_object().expect("volumes");
    assert_eq!(volumes.keys().collect::<Vec<_>>(), ["/run/syngate"]);
    let label = |name: &str| &config["Labels"][format!("org.opencontainers.image.{name}")];
    assert_eq!(*label("title"), title);
    assert_eq!(*label("licenses"), "Apache-2.0 OR MIT", "{image}");
    assert!(label("description").is_string(), "{image}");
    for (name, value) in LABELS {
        assert_eq!(*label(name), value, "{image}");
    }
    let bytes: f64 = engine
        .inspect(image, "{{.Size}}")
        .parse()
        .expect("a number");
    println!("{image}: {:.1} MB with its base", bytes / 1e6);
    if image == GATE {
        assert!(bytes < 13e6, "docs/container.md says 12 MB");
    }
}
