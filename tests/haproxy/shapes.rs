//! Shapes of a configuration that are legal and seldom tried: the gate opens the addresses on which HAProxy listens by itself.

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;

use crate::common::done::Done;
use crate::common::gate::Setup;
use crate::common::net::Net;
use crate::fixture::{Alone, in_front_of, listening};

const DEFAULTS: &str = "defaults
  mode http
  timeout client 1s
  timeout server 1s
  timeout connect 1s
";

/// What stands after [`DEFAULTS`], and how many TCP addresses that are.
const SHAPES: [(&str, usize); 20] = [
    // Lines and words.
    (
        "frontend f\r\n  bind :8101  \r\n  bind :8102 interface lo\r\n\r\n",
        2,
    ),
    (
        "frontend\tf # x\n\tbind\t:8101\t\tname\ta\\ b\n#frontend g\n # bind :8102\n",
        1,
    ),
    (
        "\"frontend\" 'f'\n \"bind\" :8101\n b\\x69nd :81\"02\"\n bind ':8103'#x\n",
        3,
    ),
    (
        "frontend f\n\x0c bind\x0b:8101\x0c\n[scope]\n bind :8102 name \"a#b\"\n",
        2,
    ),
    (
        "frontend f.1:2-_\n bind :8101\nlisten global\n bind :8102\nlisten bind\n bind :8103\n",
        3,
    ),
    // Addresses.
    (
        "frontend f\n bind 127.0.0.1:8101-8104,[::1]:8101,:8105,\n",
        6,
    ),
    (
        "frontend f\n bind ipv4@localhost:8101,stream+ipv4@*:8102,ip@::1:8103,tcp6@:8104\n",
        4,
    ),
    (
        "frontend f\n bind :::8101 v4v6\n bind :::8102 v6only\n bind :8102\n bind [127.0.0.1]:8103\n",
        4,
    ),
    // Variables.
    (
        "global\n setenv A 1\n presetenv A 2\n setenv P 810${A}\nfrontend f\n bind \":81${A}2\"\n bind \":810$A\"\n bind ${A}27.0.0.1:8103\n",
        3,
    ),
    (
        "frontend f\n bind \"${X-127.0.0.1}:8101\"\nglobal\n setenv X 127.0.0.2\nfrontend g\n bind \"${X-127.0.0.1}:8102\"\n",
        2,
    ),
    (
        "global\n setenv A 8101\n setenv O \"name x maxconn 9\"\n resetenv PATH O NOTIFY_SOCKET\n setenv B 8102\nfrontend f\n bind \":${A-8103}\"\n bind \":${B-8104}\" \"${O[*]}\"\n",
        2,
    ),
    // Conditions.
    (
        "frontend f\n bind :8100\n.if 0\n.if 1\n bind :8101\n.elif 1\n bind :8102\n.endif\n.elif 1\n bind :8103\n.if 0\n bind :8104\n.else\n bind :8105\n.endif\n.else\n bind :8106\n.endif\n",
        3,
    ),
    (
        "frontend f\n bind :8100\n.if feature(OPENSSL) && !feature(NONE)\n bind :8101\n.endif\n.if version_before(2.0) || streq(\\\"a b\\\",'a b')\n bind :8102\n.endif\n",
        3,
    ),
    (
        "frontend f\n bind :8100\n.if version_before(3.0)\n bind :8101\n.elif enabled(EPOLL) && enabled(POLL) && enabled(SPLICE) && enabled(GETADDRINFO) && enabled(REUSEPORT)\n bind :8101\n.endif\n.if version_atleast(3.0)\n.if enabled(KQUEUE)\n bind :8102\n.endif\n.endif\n",
        2,
    ),
    // Sections.
    (
        "frontend f\n disabled\n bind :8101\nfrontend g\n bind :8102\n disabled\n enabled\n",
        1,
    ),
    (
        "defaults a\n mode http\n timeout client 1s\n timeout server 1s\n timeout connect 1s\n disabled\ndefaults b from a\n enabled\nfrontend f from a\n bind :8101\nfrontend g from b\n bind :8102\n",
        1,
    ),
    (
        "userlist u\n user a insecure-password b\n group bind users a\nresolvers r\n nameserver n 127.0.0.1:53\nmailers m\n mailer a 127.0.0.1:25\ncache c\n total-max-size 1\nhttp-errors e\n errorfile 404 /dev/null\nring r1\n size 32768\nfcgi-app a\n docroot /tmp\nfrontend f\n bind :8101\n",
        1,
    ),
    (
        "global\n stats socket ipv4@127.0.0.1:8110 level admin\n stats socket :::8111 v6only\nlisten s\n bind :8101\n stats enable\n",
        3,
    ),
    (
        "frontend f\n bind :8101\n bind :8101\nfrontend g\n bind :8101\n bind *:8102\n",
        2,
    ),
    (
        "frontend f\n bind :8101\n tcp-request connection reject if { src 1.2.3.4 }\n tcp-request connection track-sc0 src\n stick-table type ip size 1k store conn_cur\n",
        1,
    ),
];

#[test]
fn the_gate_opens_what_haproxy_opens() {
    let Some(net) = Net::isolated() else { return };
    for (shape, count) in SHAPES {
        let setup = Setup::bare(&net);
        let file = setup.dir().join("haproxy.cfg");
        fs::write(&file, format!("{DEFAULTS}{shape}")).expect("haproxy.cfg");
        let before = listening();
        let alone = Alone::start(&file).unwrap_or_else(|| panic!("HAProxy refuses {shape}"));
        let without: BTreeSet<SocketAddr> = &listening() - &before;
        drop(alone);
        let setup = in_front_of(setup, &file);
        let done = Done::from(setup.command_of("check").output().expect("syngate runs"));
        done.expect_code(0);
        let words = done.out.split_whitespace();
        let with = words.filter_map(|word| word.split_once('=')?.1.parse().ok());
        assert_eq!(with.collect::<BTreeSet<SocketAddr>>(), without, "{shape}");
        assert_eq!(without.len(), count, "{shape}");
    }
}
