use super::*;

fn step(word: &str, message: &str) -> Step {
    Step {
        at: 0.0,
        elapsed_seconds: 1.234,
        service: "web".into(),
        generation: Some(3),
        step: word.into(),
        message: message.into(),
    }
}

fn shown(terminal: bool, steps: &[Step]) -> String {
    let mut progress = Progress::on(Output::None, terminal);
    steps.iter().map(|step| progress.step(step)).collect()
}

/// What follows the steps.
fn closed(steps: &[Step], exit: u8, message: &str) -> String {
    let mut progress = Progress::on(Output::None, false);
    for step in steps {
        progress.step(step);
    }
    let message = message.to_owned();
    progress.end(&Done { exit, message })
}

#[test]
fn one_plain_line_a_step() {
    let steps = [
        step("draining", "12 connections"),
        step("draining", "3 connections"),
    ];
    assert_eq!(
        shown(false, &steps),
        "   1.23 s  web  draining    12 connections\n   1.23 s  web  draining    3 connections\n"
    );
}

#[test]
fn a_terminal_shows_a_count_in_place() {
    let steps = [
        step("draining", "12"),
        step("draining", "3"),
        step("drained", ""),
    ];
    assert_eq!(
        shown(true, &steps),
        "   1.23 s  web  draining    12\n\x1b[1A\x1b[2K   1.23 s  web  draining    3\n   1.23 s  web  drained\n"
    );
}

#[test]
fn a_long_line_is_whole_and_none_takes_its_place() {
    let long = "x".repeat(200);
    let steps = [
        step("check", &long),
        step("check", "short"),
        step("check", "again"),
    ];
    assert_eq!(
        shown(true, &steps),
        format!(
            "   1.23 s  web  check       {long}\n   1.23 s  web  check       short\n\
             \x1b[1A\x1b[2K   1.23 s  web  check       again\n"
        )
    );
}

#[test]
fn what_a_check_has_printed_stays_in_lines() {
    let steps = [
        step("check", "the configuration is checked"),
        step("check", "one\ntwo\n"),
    ];
    assert_eq!(
        shown(true, &steps),
        "   1.23 s  web  check       the configuration is checked\n   1.23 s  web  check       one\n   1.23 s  web  check       two\n"
    );
}

#[test]
fn a_terminal_obeys_no_backend() {
    assert!(!shown(true, &[step("check", "\x1b[2J")]).contains('\x1b'));
}

#[test]
fn the_last_word_of_a_success_is_said_once() {
    let steps = [
        step("success", "generation 2 is active"),
        step("drained", ""),
    ];
    for said in ["generation 2 is active", "web: generation 2 is active"] {
        assert_eq!(closed(&steps, 0, said), "");
    }
    assert_eq!(
        closed(
            &steps,
            0,
            "web: generation 2 is active\nmail: nothing to do"
        ),
        "mail: nothing to do\n"
    );
}

#[test]
fn a_failure_is_said_once_and_by_its_last_word() {
    let steps = [step("check", ""), step("failed", "reload failed: no")];
    assert_eq!(shown(false, &steps), "   1.23 s  web  check\n");
    for said in ["reload failed: no", "mail: fine\nweb: reload failed: no"] {
        assert_eq!(closed(&steps, 1, said), "");
    }
    let line = "   1.23 s  web  failed      reload failed: no\n";
    assert_eq!(closed(&steps, 0, "held"), format!("{line}held\n"));
    let steps = [step("failed", "reload failed: no"), step("check", "")];
    assert_eq!(
        shown(false, &steps),
        format!("{line}   1.23 s  web  check\n")
    );
}
