use super::*;

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn has_the_mode_that_was_asked_for() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    for (suffix, expected) in [("", 0o600), (",mode=0666", 0o666), (",mode=0640", 0o640)] {
        let listener = bind_text(&format!("unix:{}{suffix}", path.display())).unwrap();
        assert_eq!(mode(&path), expected);
        assert!(listener.is_unix());
        let _client = UnixStream::connect(&path).unwrap();
        let (_connection, peer) = accept(&listener);
        assert_eq!(peer, None);
        assert_eq!(listener.drops().unwrap(), 0);
    }
    assert!(!path.exists(), "removed with its listener");
}

#[test]
fn replaces_a_stale_file_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let text = format!("unix:{}", path.display());

    let live = UnixListener::bind(&path).unwrap();
    let error = bind_text(&text).unwrap_err();
    assert!(matches!(error, BindError::InUse { .. }), "{error}");
    UnixStream::connect(&path).unwrap();
    drop(live);
    assert!(path.exists(), "a file that refuses a connect");
    let listener = bind_text(&text).unwrap();
    UnixStream::connect(&path).unwrap();
    drop(listener);

    fs::write(&path, "precious").unwrap();
    let error = bind_text(&text).unwrap_err();
    assert!(matches!(error, BindError::NotASocket(_)), "{error}");
    assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
}

#[test]
fn removes_its_own_file_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let text = format!("unix:{}", path.display());
    let first = bind_text(&text).unwrap();
    fs::rename(&path, directory.path().join("moved")).unwrap();
    let second = bind_text(&text).unwrap();
    drop(first);
    UnixStream::connect(&path).unwrap();
    second.refuse_new().unwrap();
    assert!(!path.exists());
    accept(&second);
}

#[test]
fn names_a_missing_directory() {
    let error = bind_text("unix:/nonexistent/s").unwrap_err();
    assert!(matches!(error, BindError::NoDirectory(_)), "{error}");
}
