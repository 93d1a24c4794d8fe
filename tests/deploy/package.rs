//! The Debian package: built, installed in a clean Debian that systemd runs, upgraded, removed, purged.

use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use super::{has, run, skip};
use crate::common::load::{Load, Plan};
use crate::common::net::Drops;
use crate::common::wait_until;
use crate::machine::Server;

const PLAIN: &str = "syngate.service";
const ACTIVATED: &str = "syngate-activated.service";
const SOCKET: &str = "syngate-activated.socket";

const VERSIONS: [&str; 2] = ["0.1.0-1", "0.1.0-2"];

/// New connections a second: counts matter here, not the pace.
const PACE: u32 = 200;

/// Where `tests/run` puts what cargo can install.
const TOOLS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/target/tools/bin");

#[test]
fn load_the_package_installs_serves_upgrades_and_goes() {
    if !has("cargo-deb") && !Path::new(TOOLS).join("cargo-deb").exists() {
        return skip("package", "no cargo-deb: cargo install --locked cargo-deb");
    }
    // Before the test is in a network from which nothing can be fetched.
    let built = tempfile::tempdir().expect("a directory");
    let packages = VERSIONS.map(|version| build(&built, version));
    expect_contents(&packages[0]);

    let Some(server) = Server::new("package") else {
        return;
    };
    for (package, version) in packages.iter().zip(VERSIONS) {
        let place = server.machine.path(&place_of(version));
        fs::copy(package, place).expect("a copy");
    }
    install_enables_nothing(&server);
    serves_once_enabled(&server);
    upgrade_keeps_the_sockets(&server);
    removal_stops_and_purge_leaves_nothing(&server);
}

fn build(directory: &TempDir, version: &str) -> PathBuf {
    let package = directory.path().join(format!("{version}.deb"));
    let path = std::env::var("PATH").expect("PATH");
    run(Command::new(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/packaging/debian/build"
    ))
    .args(["--deb-version", version, "--output"])
    .arg(&package)
    .env("PATH", format!("{TOOLS}:{path}")));
    package
}

/// Where a package lies in the machine.
fn place_of(version: &str) -> String {
    format!("/root/{version}.deb")
}

fn expect_contents(package: &Path) {
    let list = run(Command::new("dpkg-deb").arg("--contents").arg(package));
    // The last column is the name.
    let names: Vec<&str> = list
        .lines()
        .filter_map(|line| line.rsplit(' ').next())
        .collect();
    for name in [
        "/usr/bin/syngate",
        "/etc/syngate/syngate.toml",
        "/usr/lib/systemd/system/syngate.service",
        "/usr/lib/systemd/system/syngate@.service",
        "/usr/lib/systemd/system/syngate-activated.service",
        "/usr/lib/systemd/system/syngate-activated.socket",
        "/usr/share/bash-completion/completions/syngate",
        "/usr/share/zsh/vendor-completions/_syngate",
        "/usr/share/fish/vendor_completions.d/syngate.fish",
        "/usr/share/doc/syngate/copyright",
        "/usr/share/doc/syngate/docs/systemd.md",
    ] {
        let packed = format!(".{name}");
        assert!(names.contains(&packed.as_str()), "no {name} in:\n{list}");
    }
    // Man pages and long texts may be compressed.
    for name in [
        "man/man1/syngate.1",
        "man/man1/syngate-run.1",
        "doc/syngate/README.md",
        "doc/syngate/CHANGELOG.md",
        "doc/syngate/LICENSE-APACHE",
    ] {
        let start = format!("./usr/share/{name}");
        assert!(
            names.iter().any(|packed| packed.starts_with(&start)),
            "no {name} in:\n{list}"
        );
    }
}

/// The binary's size is within a tenth of what docs/systemd.md says.
fn expect_documented(bytes: u64) {
    println!("/usr/bin/syngate: {bytes} bytes");
    let page = include_str!("../../docs/systemd.md");
    let (_, rest) = page.split_once("It has the binary (").expect("the size");
    let (number, _) = rest.split_once(" MB)").expect("megabytes");
    let said = number.parse::<f64>().expect("a number") * 1e6;
    let found = bytes as f64 / said;
    assert!(
        (0.9..1.1).contains(&found),
        "{bytes} bytes, not {number} MB"
    );
}

fn install_enables_nothing(server: &Server) {
    let machine = &server.machine;
    machine.run(&["dpkg", "--install", &place_of(VERSIONS[0])]);
    let binary = fs::metadata(machine.path("/usr/bin/syngate")).expect("the binary");
    expect_documented(binary.len());
    assert_eq!(machine.run(&["dpkg", "--verify", "syngate"]), "");
    machine.run(&["syngate", "--version"]);
    for unit in [PLAIN, ACTIVATED, SOCKET] {
        let enabled = machine.done(&["systemctl", "is-enabled", unit]);
        assert_eq!(enabled.out.trim(), "disabled", "{unit}");
        machine.expect_state(unit, "inactive");
    }
}

fn serves_once_enabled(server: &Server) {
    server.configure_socket();
    server.configure_backend("fd:web");
    server.systemctl(&["enable", "--now", ACTIVATED]);
    for unit in [ACTIVATED, SOCKET] {
        let enabled = server.machine.run(&["systemctl", "is-enabled", unit]);
        assert_eq!(enabled.trim(), "enabled", "{unit}");
        server.machine.expect_state(unit, "active");
    }
    assert_eq!(server.answer("/content"), "first");
    // It knows by itself where the control socket is.
    server.machine.run(&["syngate", "status", "--ready"]);
}

fn upgrade_keeps_the_sockets(server: &Server) {
    let machine = &server.machine;
    let gate = machine.process(ACTIVATED, "syngate");
    let before = server.net.drops();
    let load = Load::start(Plan::fresh(server.public, PACE));
    load.wait_flowing();
    let said = machine.run(&["dpkg", "--install", &place_of(VERSIONS[1])]);
    let version = machine.run(&["dpkg-query", "--show", "--showformat=${Version}", "syngate"]);
    assert_eq!(version, VERSIONS[1]);
    assert!(
        said.contains(&format!("{ACTIVATED} still runs the version before")),
        "{said}"
    );
    assert_eq!(machine.process(ACTIVATED, "syngate"), gate);
    assert!(!server.runs_installed(ACTIVATED), "the old one runs on");

    server.systemctl(&["restart", ACTIVATED]);
    assert!(server.runs_installed(ACTIVATED), "the new one runs");
    let served = load.fresh_ok();
    wait_until("the new one serves", || {
        load.fresh_ok() > served + u64::from(PACE)
    });
    let report = load.stop();
    report.print("upgrade of the package");
    report.expect_clean();
    assert_eq!(server.net.drops() - before, Drops::default());
}

fn removal_stops_and_purge_leaves_nothing(server: &Server) {
    let machine = &server.machine;
    machine.run(&["dpkg", "--remove", "syngate"]);
    assert_eq!(machine.processes(ACTIVATED), []);
    TcpStream::connect(server.public).expect_err("the port is closed");
    let file = "/etc/syngate/syngate.toml";
    assert!(machine.path(file).exists(), "the operator's file stays");

    // What the operator has written beside the package is his to remove.
    fs::remove_dir_all(machine.path("/etc/systemd/system/syngate-activated.socket.d"))
        .expect("the drop-in");
    machine.run(&["dpkg", "--purge", "syngate"]);
    let root = machine.path("/");
    let left = run(Command::new("find").arg(&root).args(["-name", "*syngate*"]));
    assert_eq!(left, "", "files are left");
    machine.run(&["test", "!", "-e", "/run/syngate"]);
    let units = machine.done(&["systemctl", "list-unit-files", "--no-legend", "syngate*"]);
    assert_eq!(units.out, "");
}
