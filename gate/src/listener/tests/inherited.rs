use super::*;

#[test]
fn tcp_is_made_fit() {
    let socket = std::net::TcpListener::bind((V4, 0)).unwrap();
    let address = socket.local_addr().unwrap();
    let listener = from_inherited("web", socket.into(), &options()).unwrap();
    assert_eq!(listener.name(), "web");
    assert_eq!(*listener.address(), LocalAddress::Tcp(address));
    assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
    let _client = TcpStream::connect(address).unwrap();
    let (connection, _) = accept(&listener);
    assert!(SockRef::from(&connection).tcp_nodelay().unwrap());
}

#[test]
fn tcp_stays_of_use_to_whoever_passed_it() {
    let socket = std::net::TcpListener::bind((V4, 0)).unwrap();
    let passed = socket.try_clone().unwrap();
    let listener = from_inherited("web", passed.into(), &options()).unwrap();
    listener.refuse_new().unwrap();
    drop(listener);
    TcpStream::connect(socket.local_addr().unwrap()).unwrap();
}

#[test]
fn a_unix_file_stays_its_makers() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let socket = UnixListener::bind(&path).unwrap();
    let listener = from_inherited("web", socket.into(), &options()).unwrap();
    assert_eq!(*listener.address(), LocalAddress::Unix(path.clone()));
    drop(listener);
    assert!(path.exists());
}

#[test]
fn anything_else_is_refused() {
    let unbound = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let datagrams = UdpSocket::bind((V4, 0)).unwrap();
    let (connected, _peer) = UnixStream::pair().unwrap();
    let file = tempfile::tempfile().unwrap();
    for fd in [
        OwnedFd::from(unbound),
        datagrams.into(),
        connected.into(),
        file.into(),
    ] {
        let error = from_inherited("web", fd, &options()).unwrap_err();
        assert!(matches!(error, BindError::NotListening(_)), "{error}");
    }
}
