//! `global` sections, stats sockets, conditions, variables, limits, and several files.

use std::path::Path;

use crate::world::{Given, changes, copied, copy, file, listeners, planned, refused};

#[test]
fn what_a_supervised_process_cannot_have_becomes_a_comment() {
    let text = "global\n daemon\n pidfile /run/p\n master-worker no-exit-on-failure\n user x\n";
    assert_eq!(
        changes(text),
        [
            "2: #  daemon",
            "3: #  pidfile /run/p",
            "4: #  master-worker no-exit-on-failure"
        ]
    );
    assert!(refused("global\n nbproc 4\n").contains("nbthread"));
}

#[test]
fn without_privilege_users_and_chroot_go_and_lua_may_fork() {
    let given = Given {
        unprivileged: true,
        ..Given::default()
    };
    let plan = given
        .plan_text(
            "global\n user x\n group y\n chroot /z\n lua-load /a.lua\nfrontend f\n bind :80\n",
        )
        .unwrap();
    let copy = copy(&plan);
    assert_eq!(
        copy.files[0].1,
        b"global\n#  user x\n#  group y\n#  chroot /z\n lua-load /a.lua\nfrontend f\n bind fd@4 accept-proxy\n"
    );
    assert!(
        copy.files[1]
            .1
            .ends_with(b"\n  stats socket fd@3 level admin\n  insecure-fork-wanted\n")
    );
    assert_eq!(plan.warnings().len(), 3);
    let asked = given
        .plan_text("global\n lua-load /a.lua\n no insecure-fork-wanted\n")
        .unwrap();
    assert!(!String::from_utf8_lossy(&super::world::copy(&asked).files[1].1).contains("fork"));
}

#[test]
fn stats_sockets_are_private_and_linked() {
    let text = "global\n stats socket /run/s expose-fd listeners\n stats socket 127.0.0.1:99 level operator\n stats socket unix@/run/t,/run/u\n";
    assert_eq!(
        changes(text),
        [
            "2:  stats socket unix@/gen/7/stats-0.sock expose-fd listeners",
            "3:  stats socket fd@4 level operator",
            "4:  stats socket unix@/gen/7/stats-1.sock,unix@/gen/7/stats-2.sock"
        ]
    );
    let plan = planned(text);
    let paths: Vec<_> = plan.stats_sockets().flatten().collect();
    assert_eq!(paths, ["/run/s", "/run/t", "/run/u"].map(Path::new));
    assert_eq!(listeners(text), ["stats_socket 127.0.0.1:99"]);
    assert!(planned(text).listeners()[0].raw);
    assert!(refused("global\n stats socket fd@9\n").starts_with("haproxy.cfg:2: "));
    let options =
        "global\n stats socket *:99 interface lo level admin\n stats socket :::98 v6only\n";
    assert_eq!(
        changes(options),
        ["2:  stats socket fd@4 level admin", "3:  stats socket fd@5"]
    );
    let plan = planned(options);
    assert_eq!(plan.listeners()[0].own.interface.as_deref(), Some("lo"));
    assert_eq!(plan.listeners()[1].own.v6only, Some(true));
    for odd in [
        "*:99 namespace x",
        "/run/s,:99 interface lo",
        "/run/s,:99 mode 600",
    ] {
        let why = refused(&format!("global\n stats socket {odd}\n"));
        assert!(why.starts_with("haproxy.cfg:2: "), "{why}");
    }
}

#[test]
fn without_privilege_a_stats_socket_is_of_the_gates_user() {
    let given = Given {
        unprivileged: true,
        ..Given::default()
    };
    let text = "global\n stats socket /run/s user x group www mode 660\n stats socket /run/t gid 7 level admin\nfrontend f\n bind :80\n";
    let plan = given.plan_text(text).unwrap();
    assert_eq!(
        copied(&plan),
        "global\n stats socket unix@/gen/7/stats-0.sock group www mode 660\n stats socket unix@/gen/7/stats-1.sock level admin\nfrontend f\n bind fd@4 accept-proxy\n"
    );
    assert_eq!(plan.warnings().len(), 2);
    assert!(plan.warnings()[0].starts_with("haproxy.cfg:2: its user is left out"));
    assert_eq!(planned(text).warnings(), [""; 0]);
}

#[test]
fn variables_count_as_of_their_line() {
    let text = "global\n setenv P 81\nfrontend f\n bind \":$P\"\nglobal\n setenv P 82\nfrontend g\n bind :$P\n";
    assert_eq!(listeners(text), ["f 0.0.0.0:81", "g 0.0.0.0:82"]);
    let text = "global\n presetenv PORT 81\n unsetenv PORT\n presetenv PORT 82\nfrontend f\n bind :$PORT\n";
    assert_eq!(listeners(text), ["f 0.0.0.0:82"]);
    let several = "global\n setenv L \":80 tfo\"\nfrontend f\n bind \"${L[*]}\"\n";
    assert!(refused(several).contains("write the words out"));
}

#[test]
fn masked_blocks_do_not_count() {
    let text = "\
frontend f
.if version_atleast(3.0)
 bind :80
.elif streq(a,a)
 bind :81
.else
 bind :82
.endif
.if 0
.if 1
 bind :83
.endif
.else
 bind :84
.endif
";
    assert_eq!(listeners(text), ["f 0.0.0.0:81", "f_2 0.0.0.0:84"]);
}

#[test]
fn a_condition_that_cannot_be_evaluated_matters_only_where_the_plan_hangs_on_it() {
    let block = |line: &str| {
        format!("frontend f\n bind :80\n.if openssl_version_atleast(3.0)\n {line}\n.endif\n")
    };
    assert_eq!(listeners(&block("log global")), ["f 0.0.0.0:80"]);
    for line in [
        "bind :81",
        "disabled",
        "mode http",
        "frontend g",
        "tcp-request connection reject",
    ] {
        let why = refused(&block(line));
        assert!(
            why.starts_with("haproxy.cfg:4: ") && why.contains("line 3"),
            "{line}: {why}"
        );
    }
    let global = "global\n.if enabled(FAST-FORWARD)\n setenv P 80\n.endif\n";
    assert!(refused(global).starts_with("haproxy.cfg:3: "));
}

#[test]
fn what_is_enabled_is_known_unless_a_line_changes_it() {
    let text = |keyword: &str| {
        format!(
            "global\n {keyword}\nfrontend f\n.if enabled(EPOLL)\n bind :80\n.else\n bind :81\n.endif\n"
        )
    };
    assert_eq!(listeners(&text("quiet")), ["f 0.0.0.0:80"]);
    assert!(refused(&text("noepoll")).starts_with("haproxy.cfg:5: "));
    let given = Given {
        arguments: vec!["-de".to_owned()],
        ..Given::default()
    };
    let plan = given.plan_text(&text("noepoll")).unwrap();
    assert_eq!(plan.listeners()[0].address.to_string(), "0.0.0.0:81");
}

#[test]
fn lines_that_cannot_be_split_are_named() {
    assert_eq!(
        refused("global\n log 'x\n"),
        "haproxy.cfg:2: a quote isn't closed; close it, or write \\\" or \\'"
    );
    assert!(refused("global\n log \0\n").starts_with("haproxy.cfg:2: "));
}

#[test]
fn limits_are_checked_before_the_start() {
    let given = |descriptors| Given {
        descriptors,
        ..Given::default()
    };
    let text = "global\n maxconn 50000\nfrontend f\n bind :80\n";
    let why = given(20_000).plan_text(text).unwrap_err().to_string();
    assert!(
        why.starts_with("haproxy.cfg:2: HAProxy needs at least 100025 descriptors"),
        "{why}"
    );
    assert!(
        why.contains("its limit is 20000")
            && why.contains("LimitNOFILE=100025")
            && why.contains("at most 9987"),
        "{why}"
    );
    given(100_025).plan_text(text).unwrap();
    given(20_000)
        .plan_text(&format!("{text}global\n no strict-limits\n"))
        .unwrap();
    let why = given(20_000)
        .plan_text("global\n ulimit-n 30000\n")
        .unwrap_err()
        .why;
    assert!(why.contains("remove the line"), "{why}");
    let first =
        "global\n maxconn 0\n maxconn 100\n maxconn 50000\n ulimit-n 1000\n ulimit-n 30000\n";
    given(20_000).plan_text(first).unwrap();
    given(20_000).plan_text("frontend f\n bind :80\n").unwrap();
}

#[test]
fn the_command_line_counts_before_the_file() {
    let given = |arguments: &str| Given {
        descriptors: 20_000,
        arguments: arguments.split(' ').map(str::to_owned).collect(),
        ..Given::default()
    };
    let text = "global\n maxconn 50000\nfrontend f\n bind :80\n";
    given("-q -n 4000").plan_text(text).unwrap();
    let why = given("-n 50000").plan_text("").unwrap_err().to_string();
    assert!(
        why.starts_with("--haproxy-args: HAProxy needs at least") && why.contains("set -n to"),
        "{why}"
    );
    let why = given("-D").plan_text(text).unwrap_err().to_string();
    assert!(
        why.starts_with("--haproxy-args: -D can't be there"),
        "{why}"
    );
    let plan = given("-n 9 -S /run/m")
        .plan_text("frontend f\n bind :80\n")
        .unwrap();
    assert!(plan.warnings()[0].contains("takes /run/m over"));
}

#[test]
fn several_files_are_read_one_after_the_other() {
    let files = vec![
        file(
            "/etc/a/x.cfg",
            "global\n setenv P 81\ndefaults\n backlog 7\n",
        ),
        file("/etc/b/x.cfg", "frontend f\n bind :$P\n"),
    ];
    let plan = Given::default().plan(files).unwrap();
    assert_eq!(plan.listeners()[0].own.backlog, Some(7));
    let paths: Vec<_> = copy(&plan)
        .configurations
        .iter()
        .map(|it| it.display().to_string())
        .collect();
    assert_eq!(
        paths,
        ["/gen/7/x.cfg", "/gen/7/2-x.cfg", "/gen/7/syngate.cfg"]
    );
}

#[test]
fn relative_paths_begin_where_they_did() {
    let given = Given::default();
    let text = "global\n default-path config\nfrontend f\n use_backend %[path,map(x.map)]\n";
    let plan = given.plan(vec![file("/maps/haproxy.cfg", text)]).unwrap();
    let copy = copy(&plan);
    let text = String::from_utf8_lossy(&copy.files[0].1);
    assert!(text.contains(" default-path origin /maps\n"), "{text}");
    assert!(text.contains("map(/gen/7/x.map)"), "{text}");
}

#[test]
fn what_stays_with_haproxy_is_looked_at() {
    planned("peers p\n bind 127.0.0.1:1024\n server local\n");
    planned("log-forward l\n dgram-bind :514\n bind :514\n");
    assert!(refused("peers p\n bind abns@x\n").starts_with("haproxy.cfg:2: "));
    let plan =
        planned("log-forward l\n bind /run/l\nprogram p\n command x\nfrontend f\n bind :80\n");
    assert_eq!(plan.warnings().len(), 2);
}
