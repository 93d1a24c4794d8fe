//! Request lines, good and bad.

use proptest::prelude::*;

use super::*;
use crate::config::BackendTarget;

fn get(target: &str) -> Result<Route, Refusal> {
    read(Method::GET, target)
}

fn post(target: &str) -> Result<Route, Refusal> {
    read(Method::POST, target)
}

fn read(method: Method, target: &str) -> Result<Route, Refusal> {
    let (path, query) = match target.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (target, None),
    };
    route(&method, path, query)
}

fn refusal(answer: Result<Route, Refusal>) -> (u16, String) {
    let refusal = answer.unwrap_err();
    (refusal.status.as_u16(), refusal.message)
}

fn web() -> Option<String> {
    Some("web".into())
}

#[test]
fn reads_what_is_asked_for() {
    assert_eq!(get("/v1/status"), Ok(Route::Status));
    assert_eq!(get("/v1/ready"), Ok(Route::Ready));
    assert_eq!(get("/v1/events"), Ok(Route::Events));
    let connections = Route::Connections {
        service: "web".into(),
        generation: Some(3),
    };
    assert_eq!(
        get("/v1/services/web/connections?generation=3"),
        Ok(connections)
    );
}

#[test]
fn reads_verbs_with_their_parameters() {
    let verb = |target| match post(target) {
        Ok(Route::Verb(request)) => request,
        other => panic!("{target}: {other:?}"),
    };
    assert_eq!(
        verb("/v1/reload"),
        Request::Reload {
            service: None,
            drained: false
        }
    );
    assert_eq!(
        verb("/v1/services/web/reload?wait=drained"),
        Request::Reload {
            service: web(),
            drained: true
        }
    );
    assert_eq!(
        verb("/v1/services/web/hold?timeout=1500ms&owned=1"),
        Request::Hold {
            service: web(),
            timeout: Some(Duration::from_millis(1500)),
            owned: true
        }
    );
    assert_eq!(
        verb("/v1/services/-/release?when_ready=1"),
        Request::Release {
            service: Some("-".into()),
            when_ready: true
        }
    );
    assert_eq!(
        verb("/v1/services/web/rollback"),
        Request::Rollback { service: web() }
    );
    assert_eq!(
        verb("/v1/services/web/activate?backend=l0=10.0.0.1:80&backend=unix%3A/run/a%20b.sock"),
        Request::Activate {
            service: web(),
            backends: vec![
                BackendAddress {
                    listener: Some("l0".into()),
                    address: BackendTarget::Tcp("10.0.0.1".into(), 80)
                },
                BackendAddress {
                    listener: None,
                    address: BackendTarget::Unix("/run/a b.sock".into())
                },
            ],
            drained: false
        }
    );
}

#[test]
fn refuses_with_a_sentence() {
    let (status, message) = refusal(get("/v2/status"));
    assert_eq!(status, 404);
    assert!(
        message.starts_with("/v2/status is unknown: there are /v1/status"),
        "{message}"
    );
    assert_eq!(
        refusal(get("/v1/reload")),
        (405, "/v1/reload takes POST, not GET".into())
    );
    for (target, message) in [
        (
            "/v1/reload?wait=ever",
            "wait=ever can't be read: it is active or drained",
        ),
        (
            "/v1/reload?wait=active&wait=active",
            "the parameter wait may be given once",
        ),
        (
            "/v1/reload?timeout=1s",
            "the parameter \"timeout\" means nothing here",
        ),
        (
            "/v1/services/web/hold?owned=yes",
            "owned=yes can't be read: it is 0 or 1",
        ),
        (
            "/v1/services/web/activate",
            "give at least one backend=[LISTENER=]ADDR",
        ),
        (
            "/v1/services/web/activate?backend=80",
            "backend=80: `80` has no port or no host: write HOST:PORT, [IP6]:PORT or unix:PATH",
        ),
    ] {
        assert_eq!(refusal(post(target)), (400, message.to_owned()), "{target}");
    }
    let (status, message) = refusal(post("/v1/services/web/hold?timeout=30"));
    assert_eq!(status, 400);
    assert!(message.contains("30s, 5m"), "{message}");
}

#[test]
fn resolves_a_service_or_lists_them() {
    assert_eq!(resolve("-", &["default"]).unwrap(), "default");
    assert_eq!(resolve("b", &["a", "b"]).unwrap(), "b");
    let message = |name| resolve(name, &["a", "b"]).unwrap_err().message;
    assert_eq!(message("-"), "name a service: there are a, b");
    assert_eq!(message("c"), "there is no service \"c\": there are a, b");
}

proptest! {
    /// Whatever comes, the answer is a route or one line of text.
    #[test]
    fn never_panics(path in "[/a-z0-9%?=&._-]{0,60}", query in proptest::option::of("\\PC{0,60}")) {
        if let Err(refusal) = route(&Method::POST, &path, query.as_deref()) {
            prop_assert!(!refusal.message.is_empty());
        }
    }
}
