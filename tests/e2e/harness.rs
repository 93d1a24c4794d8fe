//! The harness itself: without a gate nothing fails, and what fails is seen.

use std::path::Path;

use nix::sys::signal::Signal;

use crate::common::backend::{self, Hop, Outside};
use crate::common::load::{Failure, Load, Plan, pace};
use crate::common::net::{Drops, Net};
use crate::common::wait_until;
use crate::common::wire::{End, connect, read_all, send};

#[test]
fn load_direct_is_clean() {
    let Some(net) = Net::isolated() else { return };
    let address = net.free_address();
    let _server = Outside::start(address, &[]);
    let load = Load::start(Plan::standing(address));
    load.wait_flowing();
    wait_until("ten seconds of load", || load.fresh_ok() >= 10_000);
    let report = load.stop();
    report.print("direct");
    report.expect_clean();
    assert!(
        report.kept.ok > 500 && report.downloads.ok >= 8,
        "{report:?}"
    );
    assert_eq!(net.drops(), Drops::default());
}

/// Five seconds of the standing load straight at a server of `words`.
fn direct(net: &Net, directory: &Path, words: &[String]) {
    let address = net.free_address();
    let _server = Outside::command(address, words, directory);
    let per_second = pace(address);
    let load = Load::start(Plan {
        fresh_per_second: per_second,
        ..Plan::standing(address)
    });
    load.wait_flowing();
    wait_until("five seconds of load", || {
        load.fresh_ok() >= u64::from(5 * per_second)
    });
    let report = load.stop();
    report.print(&words.join(" "));
    report.expect_clean();
}

#[test]
fn load_direct_at_real_servers_is_clean() {
    let Some(net) = Net::isolated() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let app = directory.path().join("app.sock");
    let _app = Outside::start_unix(&app, &[]);
    for words in [
        backend::haproxy(directory.path(), Hop::Address, &app),
        backend::nginx(directory.path(), Hop::Address, 10_000_000),
        backend::python(directory.path()),
    ] {
        direct(&net, directory.path(), &words);
    }
    assert_eq!(net.drops(), Drops::default());
}

#[test]
fn resets_short_and_wrong_answers_are_seen() {
    let Some(net) = Net::isolated() else { return };
    let address = net.free_address();
    let _server = Outside::start(
        address,
        &["reset-every=7", "cut-every=11", "garble-every=13"],
    );
    let load = Load::start(Plan {
        kept: 5,
        ..Plan::fresh(address, 500)
    });
    load.wait_flowing();
    let report = load.stop();
    for failure in [Failure::Reset, Failure::Short, Failure::WrongBytes] {
        assert!(report.failed(failure) > 0, "{failure:?}: {report:?}");
    }
}

#[test]
fn refused_connects_are_seen() {
    let Some(net) = Net::isolated() else { return };
    let address = net.free_address();
    let mut server = Outside::start(address, &[]);
    let load = Load::start(Plan {
        kept: 5,
        downloads: 1,
        ..Plan::fresh(address, 500)
    });
    load.wait_flowing();
    server.signal(Signal::SIGKILL);
    server.wait();
    load.wait_failing();
    let report = load.stop();
    assert!(report.fresh.failed[&Failure::Refused] > 0, "{report:?}");
    assert!(
        report.kept.failures() > 0 && report.downloads.failures() > 0,
        "{report:?}"
    );
}

#[test]
fn overflows_are_seen() {
    let Some(net) = Net::isolated() else { return };
    let address = net.free_address();
    let before = net.drops();
    let _server = Outside::start(address, &["backlog=8", "accept-every=5"]);
    let load = Load::start(Plan::fresh(address, 1000));
    wait_until("an overflow", || {
        (net.drops() - before).listen_overflows > 0
    });
    wait_until("a resent SYN", || (net.drops() - before).syn_retrans > 0);
    drop(load);
}

/// The two ends that a server can come to, without a gate: one loses what its listener has queued.
#[test]
fn abrupt_and_graceful_ends_differ() {
    let Some(net) = Net::isolated() else { return };
    for (options, abrupt) in [
        (&["accept-every=5", "abrupt=yes"][..], true),
        (&["accept-every=5"], false),
    ] {
        let address = net.free_address();
        let mut server = Outside::start(address, options);
        let burst: Vec<_> = (0..60).map(|_| connect(address)).collect();
        for socket in &burst {
            send(socket, b"GET /burst HTTP/1.1\r\nConnection: close\r\n\r\n");
        }
        server.signal(Signal::SIGTERM);
        server.wait();
        let ends: Vec<_> = burst.iter().map(read_all).collect();
        let whole = |(bytes, end): &&(Vec<u8>, End)| bytes.ends_with(b"/burst") && *end == End::Eof;
        let served = ends.iter().filter(whole).count();
        assert_eq!(served < 40, abrupt, "{served} of 60 were served");
        assert!(abrupt || served == 60, "{served} of 60 were served");
    }
}
