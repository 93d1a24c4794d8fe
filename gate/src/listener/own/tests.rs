use std::net::{Ipv4Addr, Ipv6Addr, TcpStream};

use socket2::SockRef;

use super::*;
use crate::accept_queue::{Queue, Reader};
use crate::listener::{Address, BindError, Family, Listener, LocalAddress, bind};

fn options(own: Own) -> Options {
    Options {
        backlog: 100,
        keepalive: None,
        v6only: false,
        own,
    }
}

/// Everything that can be changed on an open socket.
fn much() -> Own {
    Own {
        backlog: Some(7),
        mss: Some(1000),
        fast_open: true,
        defer_accept: true,
        ..Own::default()
    }
}

fn v4() -> Address {
    Address::Tcp((Ipv4Addr::LOCALHOST, 0).into())
}

fn open(own: Own) -> Result<Listener, BindError> {
    bind("l0", &v4(), &options(own))
}

fn tcp_option(listener: &Listener, name: libc::c_int) -> u32 {
    let [value] = sys::numbers_option::<1>(listener.as_fd(), libc::IPPROTO_TCP, name).unwrap();
    value
}

/// The backlog, and the values of `mss`, `fast_open` and `defer_accept`.
fn values(listener: &Listener) -> (u32, [u32; 3]) {
    let names = [libc::TCP_MAXSEG, libc::TCP_FASTOPEN, libc::TCP_DEFER_ACCEPT];
    let Queue { max, .. } = listener.queue(&mut Reader::new()).unwrap();
    (max, names.map(|name| tcp_option(listener, name)))
}

#[test]
fn a_new_socket_has_what_was_asked_for() {
    let listener = open(Own::default()).unwrap();
    let (backlog, [_, queue, silence]) = values(&listener);
    assert_eq!((backlog, queue, silence), (100, 0, 0));
    assert_eq!(SockRef::from(&listener).device().unwrap(), None);

    let interface = Some("lo".to_owned());
    let listener = open(Own {
        interface,
        ..much()
    })
    .unwrap();
    assert_eq!(values(&listener), (7, [1000, 7, 1]));
    let device = SockRef::from(&listener).device().unwrap();
    assert_eq!(device.as_deref(), Some(&b"lo"[..]));
}

#[test]
fn an_open_socket_changes_and_changes_back() {
    let listener = open(Own::default()).unwrap();
    let LocalAddress::Tcp(address) = *listener.address() else {
        unreachable!()
    };
    let (before, after) = (options(Own::default()), options(much()));
    let unchanged = values(&listener);
    let _queued = TcpStream::connect(address).unwrap();
    listener.change(&before, &after).unwrap();
    assert_eq!(values(&listener), (7, [1000, 7, 1]));
    listener.accept().expect("what was queued stays");
    listener.change(&after, &before).unwrap();
    assert_eq!(values(&listener), unchanged);

    let keepalive = Some(std::time::Duration::from_secs(60));
    let alive = Options {
        keepalive,
        ..before.clone()
    };
    listener.change(&before, &alive).unwrap();
    assert!(SockRef::from(&listener).keepalive().unwrap());
}

#[test]
fn the_fast_open_queue_follows_the_backlog() {
    let fast_open = |backlog| {
        options(Own {
            backlog: Some(backlog),
            fast_open: true,
            ..Own::default()
        })
    };
    let listener = bind("l0", &v4(), &fast_open(20)).unwrap();
    listener.change(&fast_open(20), &fast_open(30)).unwrap();
    assert_eq!(tcp_option(&listener, libc::TCP_FASTOPEN), 30);
}

#[test]
fn v6only_is_the_listener_s_own_to_say() {
    let any = Address::Tcp((Ipv6Addr::UNSPECIFIED, 0).into());
    for (service, own, family) in [
        (false, Some(true), Family::V6),
        (true, Some(false), Family::DualStack),
        (true, None, Family::V6),
    ] {
        let v6only = own;
        let options = Options {
            v6only: service,
            ..options(Own {
                v6only,
                ..Own::default()
            })
        };
        assert_eq!(bind("l0", &any, &options).unwrap().family(), family);
    }
}

#[test]
fn what_the_kernel_refuses_is_named() {
    let mss = Some(40);
    let error = open(Own {
        mss,
        ..Own::default()
    })
    .unwrap_err()
    .to_string();
    let start = "cannot listen on 127.0.0.1:0: the kernel refuses mss 40: ";
    assert!(error.starts_with(start), "{error}");

    let interface = Some("nowhere0".to_owned());
    let error = open(Own {
        interface,
        ..Own::default()
    })
    .unwrap_err()
    .to_string();
    assert!(error.contains("refuses interface nowhere0: "), "{error}");

    let listener = open(Own::default()).unwrap();
    let bad = options(Own {
        mss,
        ..Own::default()
    });
    let error = listener.change(&options(Own::default()), &bad).unwrap_err();
    assert!(error.to_string().contains("mss 40"), "{error}");
}

#[test]
fn a_unix_listener_takes_the_backlog_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let address = Address::Unix { path, mode: None };
    let all = Own {
        v6only: Some(true),
        interface: Some("nowhere0".to_owned()),
        ..much()
    };
    let listener = bind("l0", &address, &options(all.clone())).unwrap();
    let backlog = |listener: &Listener| listener.queue(&mut Reader::new()).unwrap().max;
    assert_eq!(backlog(&listener), 7);
    let before = options(all);
    listener.change(&before, &options(Own::default())).unwrap();
    assert_eq!(backlog(&listener), 100);
}

#[test]
fn an_inherited_socket_stays_as_it_was_made() {
    let socket = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let listener = crate::listener::from_inherited("web", socket.into(), &options(much())).unwrap();
    let made = values(&listener);
    assert_ne!(made, (7, [1000, 7, 1]));
    listener
        .change(&options(Own::default()), &options(much()))
        .unwrap();
    assert_eq!(values(&listener), made);
}

#[test]
fn two_interfaces_share_an_address() {
    // A network namespace of this thread alone; it needs the right to make one.
    if nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).is_err() {
        return;
    }
    let ip = |words: &str| {
        let status = std::process::Command::new("ip")
            .args(words.split(' '))
            .status();
        status.unwrap().success()
    };
    assert!(ip("link set lo up") && ip("link add one type veth peer name two"));
    let at = |port, interface: &str| {
        let interface = Some(interface.to_owned());
        let own = Own {
            interface,
            ..Own::default()
        };
        bind(
            "l0",
            &Address::Tcp((Ipv4Addr::UNSPECIFIED, port).into()),
            &options(own),
        )
    };
    let first = at(0, "one").unwrap();
    let LocalAddress::Tcp(address) = *first.address() else {
        unreachable!()
    };
    let _second = at(address.port(), "two").unwrap();
    let error = at(address.port(), "two").unwrap_err();
    assert!(matches!(error, BindError::InUse { .. }), "{error}");
}
