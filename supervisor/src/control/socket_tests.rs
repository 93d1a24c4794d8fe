//! What may lie at the socket's path, on the real file system.

use std::os::unix::fs::PermissionsExt;

use super::*;

fn directory() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

#[test]
fn is_private_from_birth_and_gone_at_the_end() {
    let directory = directory();
    let path = directory.path().join("s");
    let socket = bind(&path).unwrap();
    assert_eq!(
        fs::metadata(&path).unwrap().permissions().mode() & 0o777,
        0o600
    );
    let (_stream, found) = connect(Some(&path)).unwrap();
    assert_eq!(found, path);
    drop(socket);
    assert!(!path.exists());
}

#[test]
fn replaces_a_stale_socket() {
    let directory = directory();
    let path = directory.path().join("s");
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let _socket = bind(&path).unwrap();
    connect(Some(&path)).unwrap();
}

#[test]
fn leaves_a_live_socket_and_names_its_process() {
    let directory = directory();
    let path = directory.path().join("s");
    let _first = bind(&path).unwrap();
    let error = bind(&path).unwrap_err().to_string();
    let pid = std::process::id();
    let expected = format!(
        "another gate answers at {} (pid {pid}): stop it, or give --control another path",
        path.display()
    );
    assert_eq!(error, expected);
    connect(Some(&path)).unwrap();
}

#[test]
fn leaves_what_is_no_socket() {
    let directory = directory();
    let path = directory.path().join("s");
    fs::write(&path, "precious").unwrap();
    assert!(matches!(
        bind(&path).unwrap_err(),
        ControlError::NotASocket { .. }
    ));
    assert_eq!(fs::read(&path).unwrap(), b"precious");

    let link = directory.path().join("link");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    assert!(matches!(
        bind(&link).unwrap_err(),
        ControlError::NotASocket { .. }
    ));
}

#[test]
fn removes_only_what_it_made() {
    let directory = directory();
    let path = directory.path().join("s");
    let socket = bind(&path).unwrap();
    fs::remove_file(&path).unwrap();
    let other = bind(&path).unwrap();
    drop(socket);
    connect(Some(&path)).unwrap();
    drop(other);
    assert!(!path.exists());
}

#[test]
fn says_that_a_path_is_too_long_or_its_directory_missing() {
    let directory = directory();
    let error = bind(&directory.path().join("x".repeat(120))).unwrap_err();
    assert!(matches!(error, ControlError::TooLong { .. }), "{error}");
    let error = bind(&directory.path().join("missing/too/s"))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("No such file or directory") && error.contains("give --control a path"),
        "{error}"
    );
}

#[test]
fn says_whose_socket_it_is_that_may_not_be_used() {
    let directory = directory();
    let path = directory.path().join("s");
    let uid = geteuid();
    for path in [path.clone(), path.join("beneath")] {
        let error = owned(path.clone()).unwrap().to_string();
        let says = format!(
            "uid {uid} may not use the control socket {}, which is uid {uid}'s: ask as that user or as root, as with sudo",
            path.display()
        );
        assert_eq!(error, says);
    }
}

#[test]
fn the_search_takes_the_first_place_that_can_be_written() {
    let directory = directory();
    let xdg = directory.path().join("run");
    let first = |places: Vec<Place>| first_writable(places).unwrap();
    let mut found = places(Some(xdg.as_os_str()), directory.path());
    assert_eq!(found[0].path, xdg.join("syngate.sock"));
    assert_eq!(found[1].path, Path::new("/run/syngate/control.sock"));
    found.remove(1); // the machine's own: not the test's to touch
    let shared = directory.path().join(format!("syngate-{}", geteuid()));
    let found = first(found);
    assert_eq!(found, shared.join("control.sock"));
    assert!(!shared.exists(), "looking makes nothing");
    let _socket = bind(&found).unwrap();
    assert_eq!(fs::metadata(&shared).unwrap().mode() & 0o777, 0o700);

    fs::create_dir(&xdg).unwrap();
    let found = places(Some(xdg.as_os_str()), directory.path());
    assert_eq!(first(found), xdg.join("syngate.sock"));
    // The specification wants an absolute path; another is as if unset.
    assert_eq!(
        places(Some(OsStr::new("relative")), directory.path()).len(),
        2
    );
}

#[test]
fn a_directory_that_others_can_write_is_no_place() {
    let directory = directory();
    let shared = directory.path().join(format!("syngate-{}", geteuid()));
    fs::create_dir(&shared).unwrap();
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o777)).unwrap();
    let place = places(None, directory.path()).pop().unwrap();
    let error = first_writable(vec![place]).unwrap_err().to_string();
    assert_eq!(
        error,
        format!(
            "no place for the control socket can be written ({}/control.sock: its directory isn't this user's alone): \
             give --control PATH",
            shared.display()
        )
    );
}

#[test]
fn a_client_hears_every_place_that_was_tried() {
    let directory = directory();
    let path = directory.path().join("s");
    let error = connect(Some(&path)).unwrap_err().to_string();
    assert!(
        error.starts_with(&format!(
            "no gate answers ({}: No such file",
            path.display()
        )),
        "{error}"
    );
    drop(UnixListener::bind(&path).unwrap());
    let error = connect(Some(&path)).unwrap_err().to_string();
    assert!(error.contains("Connection refused"), "{error}");
}
