use std::os::unix::fs::{PermissionsExt, symlink};

use nix::sys::signal::Signal;
use nix::unistd::Pid;

use super::*;
use crate::child::tests::{eventually, image, printed_pid, runs, shell, spawner};
use crate::child::{Child, Spawner};
use crate::command::Command;
use crate::leftovers::{DIR_VARIABLE, LEADER};
use crate::{procfs, sys};

fn runtime_dir() -> (tempfile::TempDir, RuntimeDir) {
    let outer = tempfile::tempdir().expect("a directory");
    let dir = RuntimeDir::open(&outer.path().join("a/b")).expect("made and locked");
    (outer, dir)
}

fn start(spawner: &Spawner, dir: &GenerationDir, script: &str) -> Child {
    let mut command = shell(script);
    command.env.push((DIR_VARIABLE.into(), dir.path().into()));
    spawner.spawn(command, None).expect("sh starts")
}

#[test]
fn it_is_made_for_this_user_alone_and_for_one_gate() {
    let (_outer, mut dir) = runtime_dir();
    let mode = |path: &Path| fs::metadata(path).expect("metadata").permissions().mode() & 0o7777;
    assert_eq!(mode(dir.path()), 0o700);
    let generation = dir.generation("web", 1).expect("made");
    assert_eq!(generation.path(), dir.path().join("gen-web-1"));
    assert_eq!(mode(generation.path()), 0o700);

    let second = RuntimeDir::open(dir.path())
        .err()
        .expect("refused")
        .to_string();
    assert!(
        second.contains(&format!(
            "in use by another gate (pid {})",
            std::process::id()
        )),
        "{second}"
    );
    let path = dir.path().to_owned();
    drop(dir);
    RuntimeDir::open(&path).expect("free again");
}

#[test]
fn a_refusal_is_one_sentence_with_a_cure() {
    let outer = tempfile::tempdir().expect("a directory");
    let file = outer.path().join("file");
    fs::write(&file, "").expect("write");
    let words = |path: &Path| RuntimeDir::open(path).err().expect("refused").to_string();
    assert!(
        words(&file)
            .ends_with("file isn't a directory: remove it, or choose another `runtime_dir`")
    );
    assert!(words(&file.join("below")).contains("isn't a directory"));
    assert!(words(Path::new("/proc/none")).contains("can't make directory /proc/none: "));
    let full = RuntimeDirError::System {
        action: "write",
        path: "/run/x".into(),
        source: Errno::ENOSPC.into(),
    };
    assert_eq!(
        full.to_string(),
        "can't write /run/x: No space left on device (os error 28); make room on that file system"
    );
}

#[test]
fn it_works_again_when_it_is_back() {
    let (outer, mut dir) = runtime_dir();
    fs::remove_dir_all(outer.path().join("a")).expect("removed");
    let generation = dir.generation("web", 2).expect("made anew");
    assert!(generation.path().is_dir());
    RuntimeDir::open(dir.path()).err().expect("and locked anew");

    let path = dir.path().to_owned();
    fs::remove_dir_all(&path).expect("removed");
    fs::write(&path, "in the way").expect("write");
    assert!(matches!(
        dir.generation("web", 3),
        Err(RuntimeDirError::NotADirectory(_))
    ));
    fs::remove_file(&path).expect("removed");
    dir.generation("web", 3).expect("and works again");
}

#[test]
fn names_of_generations_are_told_from_others() {
    for name in ["gen-web-1", "gen-a-b-20"] {
        assert!(is_generation(name), "{name}");
    }
    for name in [
        "gen-web",
        "gen--1",
        "gen-web-x",
        "web-1",
        "control.sock",
        "gen-web-",
    ] {
        assert!(!is_generation(name), "{name}");
    }
}

#[test]
fn a_leader_is_read_as_it_was_written() {
    let leader = Leader {
        pid: 7,
        start: u64::MAX,
        session: 3,
        space: "b-1 pid:[4]".into(),
    };
    let text = leader.to_text();
    for at in 0..text.len() - 1 {
        assert_ne!(
            Leader::from_text(&text[..at]).as_ref(),
            Some(&leader),
            "cut at {at}"
        );
    }
    assert_eq!(Leader::from_text(&text), Some(leader));
}

#[tokio::test]
async fn leftovers_are_ended_and_removed_and_nothing_else_is() {
    let (spawner, _right) = spawner().await;
    let (_outer, mut dir) = runtime_dir();
    let generation = dir.generation("web", 1).expect("made");
    let deaf = "trap '' TERM; echo $$; while :; do sleep 1000; done";
    let leader = start(&spawner, &generation, deaf);
    generation.record_leader(leader.pid()).expect("written");
    assert_eq!(printed_pid(&leader).await, leader.pid());
    let elsewhere = tempfile::tempdir().expect("a directory");
    fs::write(elsewhere.path().join("kept"), "").expect("write");
    symlink(elsewhere.path(), dir.path().join("gen-web-9")).expect("a link");
    let bystander = spawner
        .spawn(Command::new(["sleep", "1000"]), None)
        .expect("starts");

    // sh is deaf to SIGTERM; its sleep isn't.
    assert_eq!(dir.recover().await.expect("recovered"), 2);
    assert_eq!(leader.exited().await.to_string(), "was killed by SIGKILL");
    assert!(!generation.path().exists());
    assert!(runs(bystander.pid()));
    assert!(elsewhere.path().join("kept").exists());
}

#[tokio::test]
async fn workers_of_a_dead_leader_are_found_in_its_group() {
    let (_spawner, _right) = spawner().await;
    let (_outer, mut dir) = runtime_dir();
    let generation = dir.generation("web", 1).expect("made");
    // A master that no reaper knows, so that nothing ends the group with it. Its worker doesn't carry the variable, as
    // one that has overwritten its environment.
    let (master, _pidfd) =
        sys::spawn(image(&["/bin/sh", "-c", "sleep 1000 & wait"])).expect("starts");
    let master = master.as_raw();
    let workers = || {
        let all = procfs::processes().into_iter();
        all.filter(|process| process.parent == master || process.group == master && !process.zombie)
            .count()
    };
    eventually("the worker starts", || workers() == 2).await;
    generation.record_leader(master).expect("written");
    nix::sys::signal::kill(Pid::from_raw(master), Signal::SIGKILL).expect("killed");
    eventually("the master ends", || !runs(master)).await;
    assert_eq!(workers(), 1);
    assert_eq!(generation.end_processes().await.expect("ended"), 1);
    assert_eq!(workers(), 0);
}

#[tokio::test]
async fn a_worker_in_a_session_of_its_own_is_found_by_its_environment() {
    let (spawner, _right) = spawner().await;
    let (_outer, mut dir) = runtime_dir();
    let generation = dir.generation("web", 1).expect("made");
    let leader = start(&spawner, &generation, "setsid sleep 1000 & echo $!; wait");
    let stray = printed_pid(&leader).await;
    eventually("setsid has happened", || {
        procfs::process(stray).is_some_and(|process| process.session == stray)
    })
    .await;
    let ended = leader.exited();
    drop(leader);
    ended.await;
    assert_eq!(generation.end_processes().await.expect("ended"), 1);
    assert!(!runs(stray));
}

#[tokio::test]
async fn a_pid_that_is_somebody_elses_by_now_is_left_alone() {
    let (spawner, _right) = spawner().await;
    let (_outer, mut dir) = runtime_dir();
    let bystander = spawner
        .spawn(Command::new(["sleep", "1000"]), None)
        .expect("starts");
    let real = Leader::of(bystander.pid()).expect("the process");
    let lies = [
        Leader {
            start: real.start - 1,
            space: real.space.clone(),
            ..real
        },
        Leader {
            space: "another boot".into(),
            ..real
        },
        Leader {
            session: real.session + 1,
            space: real.space.clone(),
            ..real
        },
    ];
    for (number, lie) in (1..).zip(lies) {
        let generation = dir.generation("web", number).expect("made");
        fs::write(generation.path().join(LEADER), lie.to_text()).expect("written");
        assert_eq!(dir.recover().await.expect("recovered"), 0, "{lie:?}");
        assert!(runs(bystander.pid()) && !generation.path().exists());
    }
    // A variable that names another directory by the same beginning.
    let generation = dir.generation("web", 1).expect("made");
    let longer = GenerationDir {
        path: generation.path().join("1"),
    };
    let other = start(&spawner, &longer, "exec sleep 1000");
    assert_eq!(dir.recover().await.expect("recovered"), 0);
    assert!(runs(other.pid()));
}
