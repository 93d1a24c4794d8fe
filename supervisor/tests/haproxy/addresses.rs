//! `bind` lines: every form of an address, and what becomes of the options.

use syngate_gate::listener::Own;

use crate::world::{Given, changes, listeners, planned, refused};

/// What one bind line, the third of its frontend, becomes.
fn bound(bind: &str) -> Vec<String> {
    changes(&format!("frontend f\n{bind}\n"))
}

fn binds(address: &str) -> Vec<String> {
    listeners(&format!("frontend f\n bind {address}\n"))
}

#[test]
fn a_public_bind_moves_to_a_private_listener() {
    assert_eq!(bound("  bind *:80"), ["2:   bind fd@4 accept-proxy"]);
    assert_eq!(
        bound("\tbind  :80   ssl crt /c.pem  # tls"),
        ["2: \tbind  fd@4 accept-proxy   ssl crt /c.pem  # tls"]
    );
    assert_eq!(
        bound("bind *:80#glued"),
        ["2: bind fd@4 accept-proxy#glued"]
    );
    assert_eq!(
        bound("bind '*:80' name 'q x'"),
        ["2: bind fd@4 accept-proxy name 'q x'"]
    );
    assert_eq!(bound("bind *:80\r"), ["2: bind fd@4 accept-proxy"]);
}

#[test]
fn lists_and_ranges_have_a_private_listener_each() {
    let line = " bind 127.0.0.1:80-82,[::1]:80 ssl crt /c.pem";
    assert_eq!(
        bound(line),
        ["2:  bind fd@4,fd@5,fd@6,fd@7 accept-proxy ssl crt /c.pem"]
    );
    assert_eq!(
        binds("127.0.0.1:80-82,[::1]:80"),
        [
            "f 127.0.0.1:80",
            "f_2 127.0.0.1:81",
            "f_3 127.0.0.1:82",
            "f_4 [::1]:80"
        ]
    );
}

#[test]
fn addresses_are_read_as_haproxy_reads_them() {
    for (address, is) in [
        (":80", "0.0.0.0:80"),
        ("*:80", "0.0.0.0:80"),
        (":::80", "[::]:80"),
        ("::1:80", "[::1]:80"),
        ("localhost:80", "127.0.0.1:80"),
        ("ipv6@:80", "[::]:80"),
        ("both:80", "[::1]:80"),
        ("ipv4@both:80", "127.0.0.1:80"),
        ("\"${NOPE-127.0.0.52}:80\"", "127.0.0.52:80"),
        ("\"*:$PORT\"", "0.0.0.0:8080"),
        ("*:$PORT", "0.0.0.0:8080"),
        ("'*:${PORT}'", "0.0.0.0:8080"),
        ("${NOPE}:80", "0.0.0.0:80"),
        (":80,", "0.0.0.0:80"),
        ("/run/x", "unix:/run/x"),
        ("unix@x", "unix:x"),
    ] {
        assert_eq!(binds(address), [format!("f {is}")], "{address}");
    }
}

#[test]
fn without_getaddrinfo_a_name_is_of_ipv4() {
    let text = "global\n nogetaddrinfo\nfrontend f\n bind both:80\n";
    assert_eq!(listeners(text), ["f 127.0.0.1:80"]);
    let six = "global\n nogetaddrinfo\nfrontend f\n bind ipv6@both:80\n";
    assert!(refused(six).starts_with("haproxy.cfg:4: "));
}

#[test]
fn an_address_that_is_none_is_refused_with_its_place() {
    for address in [
        "80",
        "*:http",
        ":85-83",
        ":0",
        "",
        ":80,,:81",
        "nope:80",
        "$HAPROXY_LOCALPEER:80",
    ] {
        let why = refused(&format!("frontend f\n bind {address}\n"));
        assert!(why.starts_with("haproxy.cfg:2: "), "{address}: {why}");
    }
}

#[test]
fn options_of_the_socket_move_to_the_listener() {
    let text = "frontend f\n bind *:80 tfo name pub backlog 512 interface lo defer-accept maxconn 9 mss 1400\n";
    assert_eq!(
        changes(text),
        ["2:  bind fd@4 accept-proxy name pub maxconn 9"]
    );
    let own = Own {
        backlog: Some(512),
        v6only: None,
        interface: Some("lo".to_owned()),
        mss: Some(1400),
        fast_open: true,
        defer_accept: true,
    };
    assert_eq!(planned(text).listeners()[0].own, own);
    let own = |bind: &str| {
        planned(&format!("frontend f\n bind {bind}\n")).listeners()[0]
            .own
            .clone()
    };
    assert_eq!(own(":::80 v6only").v6only, Some(true));
    assert_eq!(own(":::80 v4v6").v6only, Some(false));
    assert_eq!(own(":80 v6only").v6only, None);
}

#[test]
fn what_the_gate_cannot_do_is_said() {
    let plan = planned("frontend f\n bind :80 cc bbr shards 4\n bind /x user www mode 660\n");
    assert_eq!(plan.warnings().len(), 3);
    assert!(
        plan.warnings()
            .iter()
            .all(|it| it.contains(" is left out: "))
    );
    for option in ["transparent", "namespace blue", "tcp-md5sig secret"] {
        assert!(refused(&format!("frontend f\n bind :80 {option}\n")).contains("remove it"));
    }
    assert!(refused("frontend f\n bind :80 mss\n").contains("mss"));
    assert!(refused("frontend f\n bind /x mode 999\n").contains("octal"));
}

#[test]
fn clients_that_send_a_header_pass_as_they_are() {
    let text = "frontend f\n bind :80 accept-proxy ssl crt /c\n bind :81 accept-netscaler-cip 1\n";
    assert_eq!(
        changes(text),
        [
            "2:  bind fd@4 accept-proxy ssl crt /c",
            "3:  bind fd@5 accept-netscaler-cip 1"
        ]
    );
    assert!(planned(text).listeners().iter().all(|it| it.raw));
}

#[test]
fn what_is_not_tcp_stays_or_is_refused() {
    let plan = planned("frontend f\n bind quic4@:443 ssl crt /c\n bind :443 ssl crt /c\n");
    assert_eq!(plan.listeners().len(), 1);
    assert!(plan.warnings()[0].starts_with("haproxy.cfg:2: QUIC"));
    for bind in ["fd@3", "sockpair@3", "quic4@:443,:443", "abns@x,:80"] {
        assert!(
            refused(&format!("frontend f\n bind {bind}\n")).starts_with("haproxy.cfg:2: "),
            "{bind}"
        );
    }
}

#[test]
fn unix_binds_have_the_prefix_and_mode_of_unix_bind() {
    let text = "global\n unix-bind prefix /run/ mode 660\nfrontend f\n bind unix@a\n bind unix@b mode 600\n";
    assert_eq!(
        listeners(text),
        ["f unix:/run/a,mode=0660", "f_2 unix:/run/b,mode=0600"]
    );
    let later = "frontend f\n bind unix@a\nglobal\n unix-bind prefix /run/\n";
    assert_eq!(listeners(later), ["f unix:a"]);
}

#[test]
fn abstract_names_are_a_generations_own_wherever_they_stand() {
    let text = "\
backend b
 server s abns@x send-proxy-v2
 server-template t 3 stream+abns@x
 server other abns@y
frontend f
 bind abns@x accept-proxy ssl crt /c
";
    assert_eq!(
        changes(text),
        [
            "2:  server s abns@x-g7 send-proxy-v2",
            "3:  server-template t 3 abns@x-g7",
            "6:  bind abns@x-g7 accept-proxy ssl crt /c"
        ]
    );
    assert_eq!(planned(text).warnings(), [""; 0]);
    let alone = planned("frontend f\n bind abns@x\n");
    assert!(alone.warnings()[0].contains("no server of this configuration"));
}

#[test]
fn a_shared_address_has_one_listener_and_a_warning() {
    let plan = planned("frontend a\n bind *:80\nfrontend b\n bind *:80\n bind *:81\n");
    assert_eq!(plan.privates().collect::<Vec<_>>(), ["a", "a", "b"]);
    assert!(
        plan.warnings()[0].starts_with("haproxy.cfg:4: 0.0.0.0:80 is bound in haproxy.cfg:2 too")
    );
    assert!(refused("frontend a\n bind *:80\n bind *:80 accept-proxy\n").contains("PROXY header"));
    assert!(refused("frontend a\n bind /x\n bind /x\n").contains("path"));
}

#[test]
fn overlapping_addresses_are_refused_unless_the_kernel_parts_them() {
    assert!(refused("frontend a\n bind *:80\n bind 127.0.0.1:80\n").starts_with("haproxy.cfg:3: "));
    assert!(refused("frontend a\n bind :::80\n bind 127.0.0.1:80\n").contains("v6only"));
    planned("frontend a\n bind :::80 v6only\n bind 127.0.0.1:80\n");
    planned("frontend a\n bind *:80 interface lo\n bind *:80 interface eth0\n");
    let both = planned("frontend a\n bind :::80 v4v6\n bind :80\n");
    assert_eq!(both.listeners()[0].own.v6only, Some(true));
}

#[test]
fn listener_names_are_made_of_the_sections() {
    let text = "frontend A.b-c\n bind :1\nfrontend a_b_c\n bind :2\nfrontend 10_x\n bind :3\nlisten a_b_c_2\n bind :4\n";
    let names: Vec<_> = planned(text)
        .listeners()
        .iter()
        .map(|it| it.name.clone())
        .collect();
    assert_eq!(names, ["a_b_c", "a_b_c_2", "l10_x", "a_b_c_2_2"]);
}

#[test]
fn more_listeners_than_descriptors_are_refused_where_they_begin() {
    let given = Given {
        descriptors: 100,
        ..Given::default()
    };
    let error = given
        .plan_text("frontend f\n bind :1-90\n bind :1000-60000\n")
        .unwrap_err();
    assert_eq!(error.line, 3);
}
