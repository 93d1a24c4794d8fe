//! What the samples are asked, how they answer, and the servers that they expect.

/// A request, as curl's arguments, and how it is answered.
pub(crate) struct Question {
    pub(crate) arguments: &'static str,
    pub(crate) status: u16,
    /// The answer has this.
    pub(crate) says: &'static str,
    /// Another answer is as good: it comes from either of two frontends.
    pub(crate) varies: bool,
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
pub(crate) const STATS: [Question; 4] = [
    ask("http://127.0.0.1:9090/_haproxy_health_check", 200, "200 OK"),
    ask("http://127.0.0.1:9090/_haproxy_getpids", 200, "getpids"),
    ask("http://127.0.0.1:9090/_haproxy_getappmap", 200, "getappmap"),
    ask(
        "http://127.0.0.1:9090/_mlb_signal/usr1",
        200,
        "signalmlbusr1",
    ),
];

pub(crate) const MIXED: [Question; 17] = [
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
pub(crate) const ALLOWED: [Question; 2] = [
    ask(
        "--interface 10.1.55.43 http://10.1.55.1:10104/",
        200,
        "host: 10.1.55.1:10104",
    ),
    ask("--interface 10.1.55.44 http://10.1.55.1:10104/", 0, ""),
];

pub(crate) const FIRST: [Question; 4] = [
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

pub(crate) const BINDS: [Question; 20] = [
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

pub(crate) const TWICE: [Question; 4] = [
    Question {
        varies: true,
        ..ask("http://127.0.0.1:9090/_haproxy_health_check", 200, "")
    },
    ask("http://127.0.0.1/", 503, ""),
    ask("https://127.0.0.1/", 503, ""),
    ask("http://127.0.0.1:10400/", 200, "get /"),
];

/// Beside what the mixed ones answer.
pub(crate) const CUSTOM: [Question; 6] = [
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

/// Two servers of each application.
pub(crate) const APPLICATIONS: [&str; 14] = [
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

pub(crate) const ONE: [&str; 2] = ["127.0.0.1:31000", "127.0.0.1:31010"];
