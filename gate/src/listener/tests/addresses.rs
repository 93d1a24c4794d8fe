use super::*;

#[test]
fn are_read_and_written_alike() {
    let unix = |path: &str, mode| Address::Unix {
        path: path.into(),
        mode,
    };
    for (text, address) in [
        ("8080", Address::Port(8080)),
        ("0", Address::Port(0)),
        ("127.0.0.1:80", Address::Tcp(([127, 0, 0, 1], 80).into())),
        (
            "[::]:443",
            Address::Tcp((Ipv6Addr::UNSPECIFIED, 443).into()),
        ),
        ("unix:/run/x.sock", unix("/run/x.sock", None)),
        ("unix:x,y=1,mode=0660", unix("x,y=1", Some(0o660))),
        ("fd:web", Address::Inherited("web".into())),
    ] {
        assert_eq!(text.parse(), Ok(address.clone()), "{text}");
        assert_eq!(address.to_string(), text);
    }
}

#[test]
fn say_what_is_wrong() {
    let long = format!("unix:/{}", "x".repeat(107));
    for (text, part) in [
        ("", "no address to listen on"),
        ("65536", "up to 65535"),
        ("127.0.0.1", "write 127.0.0.1:PORT"),
        ("127.0.0.1:x", "bad port"),
        ("127.0.0.1:70000", "bad port"),
        ("[::1]", "write [::1]:PORT"),
        ("::1:80", "in brackets"),
        ("localhost:80", "names a host"),
        ("*:80", "no address to listen on"),
        ("unix:", "no path"),
        ("unix:,mode=600", "no path"),
        ("unix:/x,mode=0999", "in octal"),
        ("unix:/x,mode=+600", "in octal"),
        ("unix:/x,mode=4755", "in octal"),
        (&long, "has 108 bytes"),
        ("fd:", "no name"),
    ] {
        let error = text.parse::<Address>().unwrap_err().to_string();
        assert!(error.contains(part), "{text}: {error}");
        assert!(error.contains(text));
    }
}

#[test]
fn may_have_a_name() {
    for (text, name, address) in [
        ("web=8080", Some("web"), "8080"),
        (
            "h2_alt=unix:/x,mode=0600",
            Some("h2_alt"),
            "unix:/x,mode=0600",
        ),
        ("8080", None, "8080"),
        ("unix:/x,mode=0600", None, "unix:/x,mode=0600"),
        ("unix:/a=b", None, "unix:/a=b"),
    ] {
        let named: Named = text.parse().unwrap();
        assert_eq!(named.name.as_deref(), name);
        assert_eq!(named.address.to_string(), address);
        assert_eq!(named.to_string(), text);
    }
    assert!("Web=8080".parse::<Named>().is_err());
    assert!("=8080".parse::<Named>().is_err());
}
