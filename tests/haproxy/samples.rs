//! What marathon-lb writes, unchanged but for a `maxconn` that asks for more descriptors than most machines allow: with a gate,
//! HAProxy listens where it listens without one, and answers the same.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};

use crate::common::done::Done;
use crate::common::gate::Setup;
use crate::common::net::Net;
use crate::fixture::{
    Alone, Reply, add_address, certificate, curl, echo, in_front_of, listening, own_root,
};

/// Where the samples are.
const SAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/supervisor/tests/haproxy");

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

/// A sample's text, with a `maxconn` for which 10,000 descriptors are enough.
pub(crate) fn text(name: &str) -> String {
    let text = untouched(name);
    assert!(text.contains("maxconn 50000"), "{name}");
    text.replace("maxconn 50000", "maxconn 4000")
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

/// A request, as curl's arguments, and how it is answered.
struct Question {
    arguments: &'static str,
    status: u16,
    /// The answer has this.
    says: &'static str,
    /// Another answer is as good: it comes from either of two frontends.
    varies: bool,
}

const fn ask(arguments: &'static str, status: u16, says: &'static str) -> Question {
    Question {
        arguments,
        status,
        says,
        varies: false,
    }
}

/// What every sample answers.
const STATS: [Question; 4] = [
    ask("http://127.0.0.1:9090/_haproxy_health_check", 200, "200 OK"),
    ask("http://127.0.0.1:9090/_haproxy_getpids", 200, "getpids"),
    ask("http://127.0.0.1:9090/_haproxy_getappmap", 200, "getappmap"),
    ask(
        "http://127.0.0.1:9090/_mlb_signal/usr1",
        200,
        "signalmlbusr1",
    ),
];

const MIXED: [Question; 17] = [
    ask("-H host:web.test http://127.0.0.1/api/x", 301, ""),
    ask("-H host:web.test http://127.0.0.1/", 301, ""),
    ask("-H host:sec.test http://127.0.0.1/", 401, ""),
    ask("-H host:no.test http://127.0.0.1/", 503, ""),
    ask(
        "-H x-marathon-app-id:/multi http://127.0.0.1:9091/",
        200,
        "x-forwarded-for: 127.0.0.1",
    ),
    ask(
        "-H x-marathon-app-id:/api/v1 http://127.0.0.1:9091/",
        200,
        "x-forwarded-port: 9091",
    ),
    ask(
        "--connect-to ::127.0.0.1: https://web.test/",
        200,
        "x-forwarded-proto: https",
    ),
    ask(
        "--connect-to ::127.0.0.1: https://www.web.test/",
        200,
        "x-forwarded-proto: https",
    ),
    ask(
        "--connect-to ::127.0.0.1: https://web.test/api/",
        200,
        "x-forwarded-for: 127.0.0.1",
    ),
    ask("--connect-to ::127.0.0.1: https://sec.test/", 401, ""),
    ask("http://127.0.0.1:10101/", 200, "x-forwarded-for: 127.0.0.1"),
    ask("http://127.0.0.1:10102/", 200, "x-forwarded-port: 10102"),
    ask("http://127.0.0.1:10103/", 200, "x-forwarded-for: 127.0.0.1"),
    ask("http://127.0.0.1:10104/", 200, "host: 127.0.0.1:10104"),
    ask("http://127.0.0.1:10105/", 200, "x-forwarded-for: 127.0.0.1"),
    ask("http://127.0.0.1:10106/", 200, "host: 127.0.0.1:10106"),
    ask("http://127.0.0.1:10107/", 200, "host: 127.0.0.1:10107"),
];

/// The redis of the mixed ones lets 10.1.55.43 and 127/8 in.
const ALLOWED: [Question; 2] = [
    ask(
        "--interface 10.1.55.43 http://10.1.55.1:10104/",
        200,
        "host: 10.1.55.1:10104",
    ),
    ask("--interface 10.1.55.44 http://10.1.55.1:10104/", 0, ""),
];

const FIRST: [Question; 4] = [
    ask(
        "-H host:myvhost.com http://127.0.0.1/",
        200,
        "x-forwarded-port: 80",
    ),
    ask(
        "-H x-marathon-app-id:/pywebserver http://127.0.0.1:9091/",
        200,
        "get /",
    ),
    ask(
        "--connect-to ::127.0.0.1: https://myvhost.com/",
        200,
        "x-forwarded-proto: https",
    ),
    ask("http://127.0.0.1:10101/", 200, "x-forwarded-for: 127.0.0.1"),
];

const BINDS: [Question; 20] = [
    ask("http://127.0.0.1/", 503, ""),
    ask(
        "-H x-marathon-app-id:/bssl http://127.0.0.1:9091/",
        200,
        "get /",
    ),
    ask("https://127.0.0.1/", 503, ""),
    ask("http://127.0.0.42:10201/", 200, "get /"),
    ask("http://127.0.0.1:10202/", 200, "get /"),
    ask("http://[::1]:10202/", 200, "get /"),
    ask("http://[::1]:10203/", 200, "get /"),
    ask("http://localhost:10204/", 200, "get /"),
    ask("http://127.0.0.1:10205/", 200, "get /"),
    ask("--haproxy-protocol http://127.0.0.1:10206/", 200, "get /"),
    ask("http://127.0.0.1:10206/", 0, ""),
    ask(
        "--http2 https://127.0.0.1:10207/",
        200,
        "x-forwarded-port: 10207",
    ),
    ask(
        "--http1.1 https://127.0.0.1:10207/",
        200,
        "x-forwarded-for: 127.0.0.1",
    ),
    ask("https://127.0.0.1:10208/", 200, "get /"),
    ask("http://127.0.0.44:10209/", 200, "get /"),
    ask("http://127.0.0.43:10210/", 200, "get /"),
    ask("http://127.0.0.45:10211/", 200, "get /"),
    ask("http://127.0.0.1:10212/", 200, "get /"),
    ask("http://127.0.0.1:18888/", 200, "get /"),
    ask("http://127.0.0.43:10209/", 0, ""),
];

const TWICE: [Question; 4] = [
    Question {
        varies: true,
        ..ask("http://127.0.0.1:9090/_haproxy_health_check", 200, "")
    },
    ask("http://127.0.0.1/", 503, ""),
    ask("https://127.0.0.1/", 503, ""),
    ask("http://127.0.0.1:10400/", 200, "get /"),
];

/// Beside what the mixed ones answer.
const CUSTOM: [Question; 6] = [
    ask("-H host:sec.test http://[::1]/", 401, ""),
    ask(
        "--connect-to ::[::1]: https://web.test/",
        200,
        "x-forwarded-for: ::1",
    ),
    ask(
        "--http2 --connect-to ::127.0.0.1: https://web.test/",
        200,
        "x-forwarded-for: 127.0.0.1",
    ),
    ask("--connect-to ::127.0.0.1: https://strict.test/", 0, ""),
    ask(
        "--connect-to ::127.0.0.60:8443 https://web.test/",
        200,
        "x-forwarded-proto: https",
    ),
    ask(
        "--unix-socket /run/mlb/http.sock --haproxy-protocol -H host:sec.test http://x/",
        401,
        "",
    ),
];

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
    let setup = Setup::bare(&net);
    let file = setup.dir().join("haproxy.cfg");
    fs::write(&file, text(name)).expect("the sample");

    let alone = Alone::start(&file).expect("HAProxy starts");
    let (alone_listens, alone_answers) = (listening(), answers(questions));
    drop(alone);
    assert_eq!(listening(), before, "HAProxy alone has ended");

    let gate = in_front_of(setup, &file).start();
    let mut listens = listening();
    let metrics = gate.metrics_address();
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

/// Two servers of each application.
const APPLICATIONS: [&str; 14] = [
    "127.0.0.1:31100",
    "127.0.0.1:31110",
    "127.0.0.1:31200",
    "127.0.0.1:31210",
    "127.0.0.1:31300",
    "127.0.0.1:31310",
    "127.0.0.1:31400",
    "127.0.0.1:31410",
    "127.0.0.1:31500",
    "127.0.0.1:31510",
    "127.0.0.1:31501",
    "127.0.0.1:31511",
    "127.0.0.1:31502",
    "127.0.0.1:31512",
];

const ONE: [&str; 2] = ["127.0.0.1:31000", "127.0.0.1:31010"];

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
