//! What a command gets.

use std::collections::HashMap;
use std::net::TcpListener;
use std::path::Path;

use super::*;
use crate::config::{BackendAddress, BackendTarget, ListenerConfig};
use crate::rollout::tests::world;
use crate::runtime_dir::RuntimeDir;
use syngate_gate::Endpoint;
use syngate_gate::accept_queue::Reader;

fn config(words: &[&str], listeners: &[&str], pass: Pass) -> ServiceConfig {
    let listener = |name: &&str| ListenerConfig {
        name: (*name).to_owned(),
        address: syngate_gate::listener::Address::Port(80),
        own: Default::default(),
        raw: false,
    };
    ServiceConfig {
        listeners: listeners.iter().map(listener).collect(),
        backend: Backend::Command {
            argv: words.iter().map(|word| (*word).to_owned()).collect(),
            fixed: Vec::new(),
        },
        pass,
        ..world::config()
    }
}

struct Made {
    site: Site,
    argv: Vec<String>,
    env: HashMap<String, OsString>,
    _directory: tempfile::TempDir,
}

async fn make(config: &ServiceConfig) -> Made {
    let directory = tempfile::tempdir().unwrap();
    let mut runtime = RuntimeDir::open(directory.path()).unwrap();
    let generation = runtime.generation("default", 7).unwrap();
    let places = Mutex::new(Places::new());
    let site = Site::make(config, 7, generation, &places, None)
        .await
        .unwrap();
    let Backend::Command { argv, .. } = &config.backend else {
        panic!("no command")
    };
    let argv = site.fill(argv);
    let env = site.env.iter().cloned().collect();
    Made {
        site,
        argv,
        env,
        _directory: directory,
    }
}

fn addresses(made: &Made, way: usize) -> Vec<(Option<String>, String)> {
    let endpoints = made.site.ways().endpoints(way).unwrap();
    let place = |endpoints: &[Endpoint]| endpoints[0].target.to_string();
    endpoints
        .iter()
        .map(|(name, endpoints)| (name.clone(), place(endpoints)))
        .collect()
}

#[tokio::test]
async fn a_command_on_tcp_gets_an_address_and_a_port() {
    let config = config(
        &["s", "{addr}:{port}", "{generation}", "{dir}"],
        &["l0"],
        Pass::None,
    );
    let made = make(&config).await;
    let [(name, place)] = &addresses(&made, 0)[..] else {
        panic!("one endpoint")
    };
    assert_eq!(name.as_deref(), Some("l0"));
    let directory = made.site.directory.path().to_str().unwrap();
    assert_eq!(made.argv, ["s", place, "7", directory]);
    assert_eq!(made.env["SYNGATE_PORT"].to_str(), place.rsplit(':').next());
    assert_eq!(made.env["SYNGATE_GENERATION"], "7");
    assert_eq!(made.env[DIR_VARIABLE], directory);
    assert!(made.site.refuses().await.is_ok());
}

#[tokio::test]
async fn several_listeners_have_names() {
    let words = ["s", "{socket}", "{socket_http}", "{socket_https}"];
    let made = make(&config(&words, &["http", "https"], Pass::None)).await;
    let directory = made.site.directory.path().to_str().unwrap();
    let http = format!("{directory}/http.sock");
    let https = format!("{directory}/https.sock");
    assert_eq!(made.argv, ["s", &http, &http, &https]);
    assert_eq!(
        made.env["SYNGATE_SOCKET_HTTPS"].to_str(),
        Some(https.as_str())
    );
}

#[tokio::test]
async fn passed_listeners_are_unix_sockets_unless_tcp_is_named() {
    let made = make(&config(&["s", "{fd}", "{fd_b}"], &["a", "b"], Pass::Fd)).await;
    assert_eq!(made.argv, ["s", "3", "4"]);
    assert_eq!(made.env["SYNGATE_FD_B"], "4");
    assert!(
        made.site.ways[0]
            .iter()
            .all(|(_, target)| matches!(target, Target::Nameless(_)))
    );
    let made = make(&config(&["s", "{fd}", "{port}"], &["a"], Pass::Fd)).await;
    let [(_, place)] = &addresses(&made, 0)[..] else {
        panic!("one endpoint")
    };
    assert_eq!(made.argv, ["s", "3", place.rsplit(':').next().unwrap()]);
}

#[tokio::test]
async fn a_command_that_names_nothing_gets_both() {
    let made = make(&config(&["s"], &["l0"], Pass::None)).await;
    for variable in ["SYNGATE_ADDR", "SYNGATE_PORT", "SYNGATE_SOCKET"] {
        assert!(made.env.contains_key(variable), "{variable}");
    }
    let [tcp, unix] = &made.site.ways[..] else {
        panic!("two ways")
    };
    assert!(matches!(&tcp[0].1, Target::Tcp(address) if address.ip().is_loopback()));
    assert!(matches!(&unix[0].1, Target::Unix(path) if path.ends_with("l0.sock")));
}

#[tokio::test]
async fn a_place_that_is_taken_is_refused_with_its_holder() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let address = BackendTarget::Tcp("127.0.0.1".to_owned(), port);
    let mut config = config(&["s"], &["l0"], Pass::None);
    let fixed = vec![BackendAddress {
        listener: None,
        address,
    }];
    config.backend = Backend::Command {
        argv: vec!["s".to_owned()],
        fixed,
    };
    let made = make(&config).await;
    assert_eq!(addresses(&made, 0), [(None, format!("127.0.0.1:{port}"))]);
    let error = made.site.refuses().await.unwrap_err();
    assert!(
        error.contains(&format!("pid {}", std::process::id())),
        "{error}"
    );
}

#[test]
fn a_path_that_can_get_too_long_is_seen_before() {
    let config = config(&["s", "{socket}"], &["l0"], Pass::None);
    assert_eq!(check(&config, Path::new("/run/syngate")), Ok(()));
    let long = format!("/run/{}", "x".repeat(80));
    let error = check(&config, Path::new(&long)).unwrap_err();
    assert!(
        error.ends_with("and 107 are possible: choose a shorter runtime_dir"),
        "{error}"
    );
}

#[tokio::test]
async fn a_check_gets_what_the_generation_would() {
    let (spawner, _lock) = crate::child::tests::spawner().await;
    for (word, pass, looks) in [
        (
            "{fd}",
            Pass::Fd,
            "test -S /proc/self/fd/{fd} && test $SYNGATE_FD = {fd}",
        ),
        (
            "{socket}",
            Pass::None,
            "test -d $(dirname {socket}) && test $SYNGATE_SOCKET = {socket}",
        ),
        (
            "{port}",
            Pass::None,
            "test $SYNGATE_ADDR:$SYNGATE_PORT = {addr}:{port}",
        ),
    ] {
        let mut config = config(&["server", word], &["web"], pass);
        let argv = ["sh", "-c", &format!("test -d $SYNGATE_DIR && {looks}")].map(str::to_owned);
        config.check = Some(argv.to_vec());
        let parent = tempfile::tempdir().unwrap();
        let directory = GenerationDir::for_check(parent.path(), "default")
            .await
            .unwrap();
        let places = Mutex::new(Places::new());
        let site = Site::make(&config, 0, directory, &places, None)
            .await
            .unwrap();
        let outcome = site.check(&config, &spawner).await.unwrap();
        assert!(
            outcome.end.success(),
            "{word}: {} {}",
            outcome.end,
            outcome.output.text()
        );
        assert_eq!(
            std::fs::read_dir(parent.path()).unwrap().count(),
            0,
            "it left something"
        );
    }
}

#[tokio::test]
async fn two_kept_listeners_may_stand_for_one_public_listener() {
    let config = config(&["s"], &["http"], Pass::Fd);
    let directory = tempfile::tempdir().unwrap();
    let mut runtime = RuntimeDir::open(directory.path()).unwrap();
    let generation = runtime.generation("default", 7).unwrap();
    let places = Mutex::new(Places::new());
    let keep = || Arc::new(KeptListener::unix(directory.path()).unwrap());
    let kept = ["http", "https", "http"].map(|name| (name.to_owned(), keep()));
    let site = Site::make(&config, 7, generation, &places, Some(kept.to_vec()))
        .await
        .unwrap();
    let endpoints = site.ways().endpoints(0).unwrap();
    let names: Vec<_> = endpoints
        .iter()
        .map(|(name, all)| (name.as_deref(), all.len()))
        .collect();
    assert_eq!(names, [(Some("http"), 2), (Some("https"), 1)]);
    // A client of each is seen in the queue of that one alone, and in the drain.
    let http = &endpoints[0].1;
    let mut reader = Reader::new();
    let mut connected = Vec::new();
    for (endpoint, second) in [(&http[0], 0), (&http[1], 1)] {
        let socket = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None);
        let socket = socket.unwrap();
        socket.connect(&endpoint.target.address().unwrap()).unwrap();
        connected.push(socket);
        assert_eq!(reader.undelivered(&endpoint.queue).unwrap(), Some(1));
        assert_eq!(reader.undelivered(&http[1].queue).unwrap(), Some(second));
    }
    let generation = syngate_gate::Generation::new(7, 1, endpoints, Vec::new());
    assert_eq!(crate::drain::undelivered(&generation, &mut reader), 2);
}
