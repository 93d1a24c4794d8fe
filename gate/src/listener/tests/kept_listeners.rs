use super::*;

fn serves(kept: &KeptListener) {
    let address = kept.address().address().unwrap();
    let client = Socket::new(address.domain(), Type::STREAM, None).unwrap();
    client.connect(&address).unwrap();
    (&client).write_all(b"kept").unwrap();
    let mut reader = Reader::new();
    let queue = kept.queue(&mut reader).unwrap();
    assert_eq!((queue.len, queue.max > 1), (1, true));
    assert_eq!(reader.undelivered(kept.probe()).unwrap(), Some(1));
    let flags = fcntl(kept, FcntlArg::F_GETFL).unwrap();
    assert_eq!(flags & libc::O_NONBLOCK, 0, "as servers expect it");

    let listener = kept.adopt("l0").unwrap();
    let (connection, _) = accept(&listener);
    let mut bytes = [0; 4];
    assert_eq!((&Socket::from(connection)).read(&mut bytes).unwrap(), 4);
    assert_eq!(&bytes, b"kept");
    assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
}

#[test]
fn tcp() {
    serves(&KeptListener::tcp((V4, 0).into()).unwrap());
}

/// shutdown(2) by any holder is for all, and for good.
#[test]
fn one_that_was_shut_down_is_not_open() {
    let directory = tempfile::tempdir().unwrap();
    for how in [Shutdown::Read, Shutdown::Both] {
        for kept in [
            KeptListener::tcp((V4, 0).into()).unwrap(),
            KeptListener::unix(directory.path()).unwrap(),
        ] {
            assert!(kept.is_open());
            let address = kept.address().address().unwrap();
            let client = Socket::new(address.domain(), Type::STREAM, None).unwrap();
            client.connect(&address).unwrap();
            assert!(kept.is_open(), "with a client that waits");
            let copy = Socket::from(kept.as_fd().try_clone_to_owned().unwrap());
            copy.shutdown(how).unwrap();
            assert!(!kept.is_open(), "{how:?}");
        }
    }
}

#[test]
fn unix_leaves_no_name() {
    let directory = tempfile::tempdir().unwrap();
    let deep = directory.path().join("d".repeat(150));
    fs::create_dir(&deep).unwrap();
    let kept = KeptListener::unix(&deep).unwrap();
    assert_eq!(fs::read_dir(&deep).unwrap().count(), 0);
    assert!(kept.address().is_unix());
    serves(&kept);
    let second = KeptListener::unix(&deep).unwrap();
    drop(kept);
    serves(&second);
}
