//! What marathon-lb writes, unchanged but for a `maxconn` that asks for more descriptors than most machines allow: with a gate,
//! HAProxy listens where it listens without one, and answers the same.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::done::Done;
use crate::common::gate::Setup;
use crate::common::net::{Net, add_address};
use crate::fixture::{
    Alone, Reply, certificate, curl, echo, in_front_of, listening, own_root, program,
};
use crate::questions::{
    ALLOWED, APPLICATIONS, BINDS, CUSTOM, FIRST, MIXED, ONE, Question, STATS, TWICE,
};

/// Where the samples are.
const SAMPLES: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/supervisor/tests/haproxy/samples"
);

/// The names of all samples.
pub(crate) const ALL: [&str; 7] = [
    "01-marathon15-default",
    "03-mixed",
    "04-mixed-map",
    "05-mixed-group-https-by-vhost",
    "07-binds",
    "10-dup-port",
    "11-custom-templates",
];

/// The services that the samples use: each answers with its own name.
const SERVICES: [(&str, &[&str]); 4] = [
    ("getpids", &["getpids"]),
    ("getconfig", &["getconfig"]),
    ("getmaps", &["getvhostmap", "getappmap"]),
    ("signalmlb", &["signalmlbhup", "signalmlbusr1"]),
];

/// A sample's text, with a `maxconn` for which 10,000 descriptors are enough, and without what the program under test has given
/// up.
pub(crate) fn text(name: &str) -> String {
    let text = untouched(name);
    assert!(text.contains("maxconn 50000"), "{name}");
    let mut text = text.replace("maxconn 50000", "maxconn 4000");
    let about = Command::new(program())
        .arg("-vv")
        .output()
        .expect("haproxy runs");
    let about = String::from_utf8_lossy(&about.stdout);
    if !about.contains("+PROMEX") {
        text = text.replace("  http-request use-service prometheus-exporter", "  #");
    }
    // The newest refuse a backend that is called as a frontend is.
    if !about.starts_with("HAProxy version 2.") {
        for name in untouched(name)
            .lines()
            .filter_map(|line| line.strip_prefix("backend "))
        {
            text = text.replace(
                &format!("\nfrontend {name}\n"),
                &format!("\nfrontend {name}_in\n"),
            );
        }
    }
    text
}

fn untouched(name: &str) -> String {
    let path = Path::new(SAMPLES).join(format!("{name}.cfg"));
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// What marathon-lb's container has: directories, a certificate, Lua services, maps.
pub(crate) fn furnish() {
    let maps = "/run/mlb/04-mixed-map/cfg";
    for directory in ["/run/haproxy", "/var/state/haproxy", "/marathon-lb", maps] {
        fs::create_dir_all(directory).expect("a directory");
    }
    certificate(
        Path::new("/etc/ssl/cert.pem"),
        &["myvhost.com", "web.test", "www.web.test", "sec.test"],
    );
    for (file, names) in SERVICES {
        let service = |name: &&str| {
            format!(
                "core.register_service(\"{name}\", \"http\", function(applet)
    local body = \"{name}\"
    applet:set_status(200)
    applet:add_header(\"content-length\", string.len(body))
    applet:start_response()
    applet:send(body)
end)
"
            )
        };
        let text: String = names.iter().map(service).collect();
        fs::write(format!("/marathon-lb/{file}.lua"), text).expect("a script");
    }
    for map in ["app2backend", "domain2backend"] {
        let from = Path::new(SAMPLES).join(format!("04-mixed-map.{map}.map"));
        fs::copy(from, format!("{maps}/{map}.map")).expect("a map");
    }
}

fn answers(questions: &[&[Question]]) -> Vec<Reply> {
    let all = questions.iter().copied().flatten();
    all.map(|question| {
        let reply = curl(question.arguments.split(' '));
        let Question {
            arguments,
            status,
            says,
            ..
        } = question;
        assert_eq!(reply.status, *status, "{arguments}: {reply:?}");
        assert!(
            reply.body.contains(says),
            "{arguments}: no `{says}` in {}",
            reply.body
        );
        reply
    })
    .collect()
}

/// Asks HAProxy alone, then through the gate. `servers` are where the sample expects them.
fn compare(name: &str, servers: &[&str], questions: &[&[Question]], own: &[SocketAddr]) {
    let Some(net) = Net::isolated() else { return };
    own_root();
    furnish();
    for address in [
        "10.0.2.148/32",
        "10.1.55.1/32",
        "10.1.55.43/32",
        "10.1.55.44/32",
    ] {
        add_address(address);
    }
    servers.iter().copied().for_each(echo);
    let before = listening();
    let metrics = net.free_address();
    let setup = Setup::bare(&net).replace_metrics(metrics);
    let file = setup.dir().join("haproxy.cfg");
    fs::write(&file, text(name)).expect("the sample");

    let alone = Alone::start(&file).expect("HAProxy starts");
    let (alone_listens, alone_answers) = (listening(), answers(questions));
    drop(alone);
    assert_eq!(listening(), before, "HAProxy alone has ended");

    let gate = in_front_of(setup, &file).start();
    let mut listens = listening();
    assert!(listens.remove(&metrics));
    assert_eq!(listens, alone_listens);
    let public = public_addresses(&gate.status_json());
    for address in &alone_listens - &before {
        assert_eq!(
            public.contains(&address),
            !own.contains(&address),
            "{address}: {public:?}"
        );
    }
    let answered = answers(questions);
    let questions = questions.iter().copied().flatten();
    for ((question, with), without) in questions.zip(&answered).zip(&alone_answers) {
        if !question.varies {
            assert_eq!(with.body, without.body, "{}", question.arguments);
        }
    }
    gate.reload();
    let again = answered.len();
    println!("{name}: {} addresses, {again} questions", public.len());
}

fn public_addresses(status: &serde_json::Value) -> Vec<SocketAddr> {
    let listeners = status["services"][0]["listeners"]
        .as_array()
        .expect("listeners");
    let address = |listener: &serde_json::Value| listener["address"].as_str()?.parse().ok();
    listeners.iter().filter_map(address).collect()
}

#[test]
fn the_default_of_marathon() {
    compare(ALL[0], &["10.0.2.148:1565"], &[&STATS, &FIRST], &[]);
}

#[test]
fn a_mix_of_applications() {
    compare(ALL[1], &APPLICATIONS, &[&STATS, &MIXED, &ALLOWED], &[]);
}

#[test]
fn applications_looked_up_in_maps() {
    compare(ALL[2], &APPLICATIONS, &[&STATS, &MIXED, &ALLOWED], &[]);
}

#[test]
fn abstract_sockets_between_frontends() {
    compare(ALL[3], &APPLICATIONS, &[&STATS, &MIXED, &ALLOWED], &[]);
}

#[test]
fn all_kinds_of_binds() {
    compare(ALL[4], &ONE, &[&STATS, &BINDS], &[]);
}

#[test]
fn two_applications_on_one_port() {
    compare(ALL[5], &ONE, &[&TWICE], &[]);
}

#[test]
fn templates_of_a_users_own() {
    let peers = "127.0.0.61:1024".parse().expect("an address");
    compare(
        ALL[6],
        &APPLICATIONS,
        &[&STATS, &MIXED, &ALLOWED, &CUSTOM],
        &[peers],
    );
}

/// A stats socket on a TCP address answers at it.
#[test]
fn a_stats_socket_with_a_tcp_address() {
    let Some(net) = Net::isolated() else { return };
    own_root();
    furnish();
    let setup = Setup::bare(&net);
    let file = setup.dir().join("haproxy.cfg");
    fs::write(&file, text(ALL[6])).expect("the sample");
    let gate = in_front_of(setup, &file).start();
    let mut stream = TcpStream::connect("127.0.0.62:9999").expect("connect");
    stream.write_all(b"show info\n").expect("write");
    stream.shutdown(Shutdown::Write).expect("shutdown");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    assert!(answer.contains("Pid:"), "{answer}");
    drop(gate);
}

/// HAProxy's own check takes it, and its start fails; the gate says so before.
#[test]
fn more_connections_than_the_machine_allows() {
    let Some(net) = Net::isolated() else { return };
    own_root();
    furnish();
    for name in ALL {
        let setup = Setup::bare(&net).under(["prlimit", "--nofile=20000:20000"]);
        let file: PathBuf = setup.dir().join("haproxy.cfg");
        fs::write(&file, untouched(name)).expect("the sample");
        let line = 1 + untouched(name)
            .lines()
            .position(|line| line.contains("maxconn 50000"))
            .expect("its line");
        let setup = in_front_of(setup, &file);
        let done = Done::from(setup.command_of("check").output().expect("syngate runs"));
        let place = format!("{}:{line}: ", file.display());
        done.expect_code(78).expect_words(&[
            &place,
            "needs at least 1000", // 2 x 50,000 and some
            "its limit is 20000",
            "raise the hard limit",
            "set maxconn to at most 99",
        ]);
        assert_eq!(
            done.err
                .lines()
                .filter(|line| line.contains(&place))
                .count(),
            1,
            "{}",
            done.err
        );
    }
}
