//! Proxies: inheritance, rules on connections, keep-alive, server state and maps.

use crate::world::{Given, changes, copied, copy, listeners, planned, refused};

#[test]
fn the_backlog_is_inherited() {
    let text = "\
defaults one
 backlog 1
defaults
 backlog 2
frontend a
 bind :1
frontend b from one
 bind :2
defaults three from one
 backlog 0
frontend c
 bind :3
frontend d
 backlog 4
 bind :4
 bind :5 backlog 5
";
    let plan = planned(text);
    let backlogs: Vec<_> = plan.listeners().iter().map(|it| it.own.backlog).collect();
    assert_eq!(backlogs, [Some(2), Some(1), None, Some(4), Some(5)]);
}

#[test]
fn disabled_proxies_open_nothing() {
    let text = "defaults\n disabled\nfrontend a\n bind :1\nfrontend b\n enabled\n bind :2\nfrontend c\n bind :3\n disabled\n";
    assert_eq!(listeners(text), ["b 0.0.0.0:2"]);
}

#[test]
fn a_bind_in_a_backend_is_refused() {
    assert!(
        refused("backend b\n bind :80\n").starts_with("haproxy.cfg:2: a backend takes no clients")
    );
}

#[test]
fn connection_rules_become_session_rules() {
    let text = "frontend f\n bind :80\n tcp-request  connection reject if { src 1.2.3.4 } # bad\n tcp-request content accept\n";
    assert_eq!(
        changes(text),
        [
            "2:  bind fd@4 accept-proxy",
            "3:  tcp-request  session reject if { src 1.2.3.4 } # bad"
        ]
    );
    let inherited = "defaults d\n tcp-request connection track-sc0 src\nfrontend f from d\n bind :80\nfrontend g from d\n bind :81\n";
    assert_eq!(
        changes(inherited)[0],
        "2:  tcp-request session track-sc0 src"
    );
}

#[test]
fn actions_that_do_not_reach_the_client_are_said() {
    let text = "frontend f\n bind :80\n tcp-request connection silent-drop if { src 1.1.1.1 }\n http-request set-tos 2\n";
    let plan = planned(text);
    assert_eq!(plan.warnings().len(), 2);
    assert!(
        plan.warnings()[0].starts_with("haproxy.cfg:3: silent-drop acts on the gate's connection")
    );
}

#[test]
fn samples_of_the_clients_own_connection_are_said() {
    let text = "\
frontend f
 bind :80
 acl a fc_src 10.0.0.0/8
 acl b fc_src 11.0.0.0/8 # fc_rtt
 http-request set-header x %[fc_rtt(us)]
 http-request set-var(txn.fc_dst) src
 http-request set-header y %[var(txn.fc_dst)]
 http-request set-header z %[ssl_fc_sni]
";
    let plan = planned(text);
    assert_eq!(
        plan.warnings(),
        [
            "haproxy.cfg:3: fc_src is of the gate's connection, not of the client's: use src",
            "haproxy.cfg:5: fc_rtt is of the gate's connection, not of the client's: it finds nothing"
        ]
    );
}

#[test]
fn a_configuration_that_opens_nothing_is_said() {
    for text in ["", "frontend f\n", "frontend f\n bind :80\n disabled\n"] {
        assert!(
            planned(text).warnings()[0].contains("opens no port"),
            "{text}"
        );
    }
}

#[test]
fn connection_rules_without_a_counterpart_are_refused() {
    let with = |rules: &str| refused(&format!("frontend f\n bind :80\n{rules}"));
    assert!(with(" tcp-request connection set-mark 1\n").contains("no action `set-mark`"));
    assert!(
        with(" tcp-request session reject\n tcp-request connection reject\n")
            .starts_with("haproxy.cfg:4: ")
    );
    assert!(
        with(" tcp-request connection accept if { src 1.1.1.1 }\n tcp-request session reject\n")
            .contains("session rule")
    );
    assert!(with(" bind :81 accept-proxy\n tcp-request connection reject\n").contains("line 3"));
    assert!(
        with(" tcp-request connection expect-proxy layer4 if { src 1.1.1.1 }\n")
            .contains("accept-proxy")
    );
    let apart = "defaults d\n tcp-request connection reject\nfrontend f from d\n bind :80\nfrontend g from d\n bind abns@x\n";
    assert!(refused(apart).starts_with("haproxy.cfg:2: "));
}

#[test]
fn a_rule_that_expects_a_header_makes_the_bind_raw() {
    let text = "frontend f\n bind :80\n tcp-request connection expect-proxy layer4\n";
    assert_eq!(changes(text), ["2:  bind fd@4"]);
    assert!(planned(text).listeners()[0].raw);
}

#[test]
fn idle_connections_are_closed_by_an_answer() {
    let text = "\
defaults
 mode http
frontend a
 bind :1
 # a comment

frontend b
 bind :2
 # a comment
listen t
 mode tcp
 bind :3

frontend c
 no option idle-close-on-response
 bind :4

backend d

";
    assert_eq!(
        changes(text),
        [
            "4:  bind fd@4 accept-proxy",
            "6:   option idle-close-on-response",
            "8:  bind fd@5 accept-proxy",
            "9:   option idle-close-on-response  # a comment",
            "12:  bind fd@6 accept-proxy",
            "16:  bind fd@7 accept-proxy"
        ]
    );
    let old = Given {
        binary: syngate_supervisor::haproxy::Binary {
            idle_close: false,
            ..Given::default().binary
        },
        ..Given::default()
    };
    assert!(!copied(&old.plan_text(text).unwrap()).contains("  option idle"));
}

#[test]
fn where_no_line_is_free_one_is_added_and_said() {
    let text = "frontend a\n mode http\n bind :1\nfrontend b\n bind :2\n";
    let plan = planned(text);
    assert_eq!(
        copied(&plan),
        "frontend a\n mode http\n bind fd@4 accept-proxy\n  option idle-close-on-response\nfrontend b\n bind fd@5 accept-proxy\n"
    );
    assert_eq!(plan.warnings(), [""; 0]);
    assert!(plan.notes()[0].starts_with("haproxy.cfg:1: HAProxy's messages"));
    let open = planned("frontend a\n mode http\n bind :1");
    assert_eq!(
        copied(&open),
        "frontend a\n mode http\n bind fd@4 accept-proxy\n  option idle-close-on-response"
    );
}

#[test]
fn no_state_is_loaded_from_files() {
    let text = "defaults\n load-server-state-from-file global\nbackend b\n\tload-server-state-from-file local\n";
    assert_eq!(
        changes(text),
        [
            "2: #  load-server-state-from-file global",
            "4: # \tload-server-state-from-file local"
        ]
    );
}

#[test]
fn maps_are_snapshots() {
    let text = "\
frontend f
 use_backend %[req.hdr(host),lower,map(/maps/a.map,b)]
 http-request set-map(/maps/a.map) %[src] \"x y\" if { path,map_beg(/other/a.map) -m found }
 http-request add-acl(/maps/list) %[src]
 acl a src -f /maps/a.map
 acl b src -f /maps/list
 http-request deny if { path,map_str(/maps/sub/a.map) -m str a } { path,map(/nope) x }
 http-request set-header x \"%[path,map(/maps/a.map)] $PORT\"
 http-request set-header y %[path,map(virt@a)]
";
    let plan = planned(text);
    assert_eq!(
        changes(text),
        [
            "2:  use_backend %[req.hdr(host),lower,map(/gen/7/a.map,b)]",
            "3:  http-request set-map(/gen/7/a.map) %[src] \"x y\" if { path,map_beg(/other/a.map) -m found }",
            "5:  acl a src -f /gen/7/a.map",
            "7:  http-request deny if { path,map_str(/gen/7/2-a.map) -m str a } { path,map(/nope) x }",
            "8:  http-request set-header x %[path,map(/gen/7/a.map)]\\ 8080"
        ]
    );
    let files = copy(&plan).files;
    let names: Vec<_> = files.iter().map(|it| it.0.display().to_string()).collect();
    assert_eq!(
        names,
        [
            "/gen/7/haproxy.cfg",
            "/gen/7/syngate.cfg",
            "/gen/7/a.map",
            "/gen/7/2-a.map"
        ]
    );
    assert_eq!(files[2].1, b"snapshot of a.map\n");
}
