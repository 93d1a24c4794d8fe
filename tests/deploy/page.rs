//! The status page in a real browser: what it says of a gate that has been through something, how it looks on wide and narrow screens
//! in both colour schemes, and what it does when the gate is gone.
//!
//! With `SYNGATE_SCREENSHOTS=DIRECTORY` it leaves pictures there, to be looked at.

mod browser;

use std::fs;
use std::path::PathBuf;

use nix::sys::signal::Signal;
use serde_json::Value;

use super::{has, skip};
use crate::common::backend::{self, Hop};
use crate::common::gate::{Gate, Setup};
use crate::common::net::Net;
use crate::common::wait_until;
use crate::common::wire::{connect, expect, send};
use browser::Browser;

/// Has no place where a line could be broken.
const LONG: &str = "a_service_whose_name_is_longer_than_a_narrow_line";

/// What a failing check says.
const MARKUP: &str = r#"line 7: <img src=x onerror="window.hurt = 1"> & no 'such' thing"#;

const SCREENS: [(u32, u32); 2] = [(1280, 800), (390, 844)];

#[test]
fn the_status_page_in_a_browser() {
    if !has("chromium") {
        return skip("page", "no `chromium` in PATH");
    }
    let Some(net) = Net::isolated() else { return };
    let gate = gate(&net);
    let open = hold_open(&gate);
    for _ in 0..2 {
        gate.run(["reload", LONG]).expect_code(0);
    }
    gate.run(["reload", "mail", "--wait", "drained"])
        .expect_code(0);
    fs::write(gate.dir().join("bad"), MARKUP).expect("a file");
    gate.run(["reload", LONG]).expect_code(1);
    wait_until(
        "the second generation has ended, and the first waits",
        || {
            let service = service(&gate, 0);
            let live = service["generations"].as_array().expect("generations");
            live.len() == 2 && live[0]["waits_for"] == "1 connection"
        },
    );
    let pending = hold_back(&gate);

    let mut browser = Browser::start();
    let url = format!("http://{}/", gate.metrics_address());
    for (width, height) in SCREENS {
        for scheme in ["light", "dark"] {
            browser.set_screen(width, height, scheme);
            browser.go(&url);
            browser.wait_until("document.querySelectorAll('section').length === 2");
            expect_facts(&mut browser, &gate);
            expect_fits(&mut browser, width);
            expect_legible(&mut browser, scheme);
            if let Some(directory) = std::env::var_os("SYNGATE_SCREENSHOTS") {
                let directory = PathBuf::from(directory);
                fs::create_dir_all(&directory).expect("a directory");
                browser.picture(&directory.join(format!("status-{width}-{scheme}.png")));
            }
        }
    }
    assert!(browser.errors().is_empty(), "{:#?}", browser.errors());

    expect_selection_stays(&mut browser);
    gate.run(["release", "mail"]).expect_code(0);
    expect(&pending, b"HTTP/1.1 200 ");
    browser.wait_until("!document.body.innerText.includes('1 pending')");
    drop(open);
    browser.wait_until("!document.body.innerText.includes('waits for: 1 connection')");
    expect_gate_gone(&mut browser, &gate);
}

/// Two services: one with a check that fails with the words of the file `bad` while there is one, and one that can't run twice.
fn gate(net: &Net) -> Gate {
    let setup = Setup::bare(net).options(["--config", "syngate.toml"]);
    let check = "test -e bad || exit 0; cat bad >&2; exit 1";
    fs::write(setup.dir().join("check.sh"), check).expect("a script");
    let command = |words: Vec<String>| serde_json::to_string(&words).expect("strings");
    let text = format!(
        "[services.{LONG}]
listen = '{}'
command = {}
check = 'sh check.sh'
min_ready = '100ms'
drain_timeout = 'off'

[services.mail]
listen = '{}'
command = {}
strategy = 'replace'
min_ready = '100ms'
pending_timeout = '10m'
",
        setup.public(),
        command(backend::own(Hop::Address, &[])),
        net.free_address(),
        command(backend::own(Hop::Address, &[])),
    );
    fs::write(setup.dir().join("syngate.toml"), text).expect("the file");
    setup.start()
}

/// A connection of the first generation, for as long as it isn't dropped.
fn hold_open(gate: &Gate) -> socket2::Socket {
    let client = connect(gate.public());
    send(&client, b"GET /open HTTP/1.1\r\n\r\n");
    expect(&client, b"HTTP/1.1 200 ");
    client
}

/// A client of the other service that waits, since an operator holds it.
fn hold_back(gate: &Gate) -> socket2::Socket {
    gate.run(["hold", "mail"]).expect_code(0);
    let mail = service(gate, 1);
    let address = mail["listeners"][0]["address"].as_str();
    let address = address.expect("an address").parse();
    let client = connect(address.expect("an address"));
    send(&client, b"GET /held HTTP/1.1\r\n\r\n");
    wait_until("it is pending", || service(gate, 1)["pending"] == 1);
    client
}

fn service(gate: &Gate, place: usize) -> Value {
    gate.status_json()["services"][place].take()
}

/// What the status document says stands there, for people.
fn expect_facts(browser: &mut Browser, gate: &Gate) {
    let text = words(browser, "document.body.innerText");
    let service = service(gate, 0);
    let reloads = service["reloads"].as_array().expect("reloads");
    let failed = reloads.last().expect("a reload");
    let message = failed["message"].as_str().expect("a message");
    assert!(message.contains(MARKUP), "{message}");
    for expected in [
        LONG,
        "generation 3 is active",
        "generation 3 active 0 connections",
        "generation 1 draining 1 connection",
        "waits for: 1 connection",
        "generation 2 ended",
        "check failed",
        "success, generation 2",
        message,
        // Of the other.
        "generation 2 is active held 1 pending",
        // Of the whole gate.
        "1 of 10,000 pending",
    ] {
        let expected = expected.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains(&expected), "`{expected}` isn't in: {text}");
    }
    let title = words(browser, "document.title");
    assert_eq!(title, format!("syngate {}", gate.metrics_address()));
    assert_eq!(
        words(browser, "document.getElementById('notice').textContent"),
        ""
    );

    // Markup in the backend's words is text.
    assert_eq!(browser.evaluate("document.images.length"), 0);
    assert_eq!(browser.evaluate("typeof window.hurt"), "undefined");

    // The phases of each run, newest first. The first generation still drains, so the run that replaced it has no drain yet.
    let runs = browser.evaluate(
        "[...document.querySelectorAll('section')].map(section =>
           [...section.querySelectorAll('[role=img]')].map(run =>
             run.getAttribute('aria-label').split(', ').map(part => part.split(' ')[0]).join()))",
    );
    let run = |service: usize, place: usize| runs[service][place].as_str().expect("a run");
    assert!(run(0, 0).starts_with("check"), "{runs}");
    assert_eq!(run(0, 1), "check,start,ready,flip,rest,drain", "{runs}");
    assert_eq!(run(0, 2), "check,start,ready,flip,rest", "{runs}");
    assert!(run(0, 3).contains("start,ready,flip"), "{runs}");
    // What can't run twice is drained before the next one starts.
    let place = |phase: &str| run(1, 0).split(',').position(|one| one == phase);
    assert!(place("drain").is_some(), "{runs}");
    assert!(place("drain") < place("start"), "{runs}");
}

/// No part of it is beyond the right edge.
fn expect_fits(browser: &mut Browser, width: u32) {
    let width = f64::from(width);
    let page = browser.evaluate("document.documentElement.scrollWidth");
    assert!(
        page.as_f64().expect("a width") <= width,
        "{page} of {width}"
    );
    let beyond = browser.evaluate(
        "[...document.querySelectorAll('main *')]
           .filter(one => one.getBoundingClientRect().right > innerWidth + 0.5).map(one => one.outerHTML)",
    );
    assert_eq!(beyond, serde_json::json!([]), "beyond {width}");
}

/// Each word can be told from what is behind it (WCAG 2.2, 1.4.3: a contrast of 4.5), in a scheme that is the user's.
fn expect_legible(browser: &mut Browser, scheme: &str) {
    const PALE: &str = "(() => {
      const linear = part => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4
      const luminance = colour => {
        const [red, green, blue] = colour.match(/[0-9.]+/g).map(part => linear(part / 255))
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue
      }
      const behind = one => {
        const colour = getComputedStyle(one).backgroundColor
        return colour === 'rgba(0, 0, 0, 0)' ? behind(one.parentElement) : colour
      }
      const contrast = one => {
        const both = [getComputedStyle(one).color, behind(one)].map(luminance)
        return (Math.max(...both) + 0.05) / (Math.min(...both) + 0.05)
      }
      const texts = [...document.querySelectorAll('main *')]
        .filter(one => [...one.childNodes].some(node => node.nodeType === Node.TEXT_NODE && node.data.trim()))
      return texts.map(one => [one.textContent, contrast(one)]).filter(([, contrast]) => contrast < 4.5)
    })()";
    assert_eq!(browser.evaluate(PALE), serde_json::json!([]), "{scheme}");
    let back = words(browser, "getComputedStyle(document.body).backgroundColor");
    let expected = match scheme {
        "dark" => "rgb(21, 24, 28)",
        _ => "rgb(246, 247, 249)",
    };
    assert_eq!(back, expected, "{scheme}");
}

/// Somebody copies what a backend has said: nothing is drawn anew until that is done.
fn expect_selection_stays(browser: &mut Browser) {
    browser.evaluate("getSelection().selectAllChildren(document.querySelector('h2'))");
    browser.wait_until(
        "document.getElementById('notice').textContent.includes('while text is selected')",
    );
    assert_eq!(words(browser, "getSelection().toString()"), LONG);
    browser.evaluate("getSelection().removeAllRanges()");
    browser.wait_until("document.getElementById('notice').textContent === ''");
}

/// It says so, and keeps what it had.
fn expect_gate_gone(browser: &mut Browser, gate: &Gate) {
    gate.signal(Signal::SIGKILL);
    browser.wait_until(
        "document.getElementById('notice').textContent.includes('No answer from the gate')",
    );
    assert!(words(browser, "document.title").starts_with("no answer"));
    assert!(words(browser, "document.body.innerText").contains("generation 3 is active"));
}

/// A string of the page, with single spaces.
fn words(browser: &mut Browser, expression: &str) -> String {
    let text = browser.evaluate(expression);
    let text = text
        .as_str()
        .unwrap_or_else(|| panic!("{expression}: {text}"));
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
