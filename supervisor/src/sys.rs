//! The supervisor's only unsafe code: fork and exec, pidfds, waitid, descriptors in epoll.
//!
//! Invariants:
//! - All that the child needs is made before the fork ([`Image`]). Between fork and exec the child makes
//!   async-signal-safe calls only: it neither allocates nor locks, since another thread may have held a lock.
//! - The forking thread blocks every signal around the fork, so no handler of the gate ever runs in the child.
//! - A failure before or at the exec comes back through a close-on-exec pipe, as a step and an errno.

#![allow(unsafe_code)]

use std::ffi::{CStr, CString};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

use nix::fcntl::OFlag;
use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use nix::unistd::{Pid, pipe2};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A program to execute, complete before the fork.
pub(crate) struct Image {
    /// Paths to try in turn, as execvp(3) does.
    pub(crate) programs: Vec<CString>,
    pub(crate) argv: Vec<CString>,
    /// `NAME=VALUE`, without `LISTEN_PID`.
    pub(crate) env: Vec<CString>,
    /// Adds `LISTEN_PID` with the pid that the child has after the fork (sd_listen_fds(3)).
    pub(crate) listen_pid: bool,
    pub(crate) directory: Option<CString>,
    pub(crate) stdin: OwnedFd,
    /// Standard output and standard error.
    pub(crate) output: OwnedFd,
    /// The number that a descriptor gets in the child, at least 3 and no number twice, and the descriptor.
    pub(crate) passed: Vec<(RawFd, OwnedFd)>,
    /// Soft RLIMIT_NOFILE of the child.
    pub(crate) nofile: u64,
}

/// What the child was doing when it failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    Fork,
    Descriptors,
    Directory,
    Exec,
}

/// Why an [`Image`] doesn't run.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) step: Step,
    pub(crate) error: io::Error,
}

impl Failure {
    fn before_fork(error: impl Into<io::Error>) -> Self {
        Failure {
            step: Step::Fork,
            error: error.into(),
        }
    }
}

/// Forks and executes `image` in a process group of its own: its pid and a pidfd. Returns when the exec has happened or
/// failed; a child that failed is reaped.
pub(crate) fn spawn(image: Image) -> Result<(Pid, OwnedFd), Failure> {
    let pointers = |strings: &[CString]| strings.iter().map(|s| s.as_ptr()).collect::<Vec<_>>();
    let (report, status) = pipe2(OFlag::O_CLOEXEC).map_err(Failure::before_fork)?;
    let (_, hard) = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE)
        .map_err(Failure::before_fork)?;
    let mut listen_pid = *b"LISTEN_PID=\0\0\0\0\0\0\0\0\0\0\0\0";
    let listen_pid = listen_pid.as_mut_ptr();
    let mut argv = pointers(&image.argv);
    argv.push(ptr::null());
    let mut envp = pointers(&image.env);
    if image.listen_pid {
        envp.push(listen_pid.cast());
    }
    envp.push(ptr::null());
    let mut plan = Plan {
        parent: nix::unistd::getpid().as_raw(),
        argv: &argv,
        envp: &envp,
        listen_pid: image.listen_pid.then_some(listen_pid),
        stdin: image.stdin.as_raw_fd(),
        output: image.output.as_raw_fd(),
        status: status.as_raw_fd(),
        passed: image
            .passed
            .iter()
            .map(|(number, fd)| (*number, fd.as_raw_fd()))
            .collect(),
        limit: libc::rlimit {
            rlim_cur: image.nofile.min(hard),
            rlim_max: hard,
        },
        image: &image,
    };

    let mask = SigSet::all()
        .thread_swap_mask(SigmaskHow::SIG_SETMASK)
        .map_err(Failure::before_fork)?;
    // SAFETY: the child calls `become_image` alone, which keeps to async-signal-safe calls and never returns.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: this is the child of the fork above, and every pointer of the plan is alive in its copy.
        unsafe { become_image(&mut plan) }
    }
    let forked = if pid < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(Pid::from_raw(pid))
    };
    mask.thread_set_mask().map_err(Failure::before_fork)?;
    let pid = forked.map_err(Failure::before_fork)?;
    drop(status);
    let pidfd = pidfd_open(pid).map_err(|error| {
        // Not reaped yet, so the number is the child's.
        let _ = nix::sys::signal::kill(pid, Signal::SIGKILL);
        reap(pid);
        Failure::before_fork(error)
    })?;

    let mut message = [0; 5];
    match std::fs::File::from(report).read_exact(&mut message) {
        // End of file: the exec closed the pipe.
        Err(_) => Ok((pid, pidfd)),
        Ok(()) => {
            reap(pid);
            let [step, errno @ ..] = message;
            let step = match step {
                b'd' => Step::Directory,
                b'x' => Step::Exec,
                _ => Step::Descriptors,
            };
            Err(Failure {
                step,
                error: io::Error::from_raw_os_error(i32::from_ne_bytes(errno)),
            })
        }
    }
}

/// An [`Image`] as pointers and numbers.
struct Plan<'a> {
    parent: libc::pid_t,
    argv: &'a [*const libc::c_char],
    envp: &'a [*const libc::c_char],
    /// The entry of `envp` that the child completes with its pid.
    listen_pid: Option<*mut u8>,
    stdin: RawFd,
    output: RawFd,
    status: RawFd,
    passed: Vec<(RawFd, RawFd)>,
    limit: libc::rlimit,
    image: &'a Image,
}

/// The child's way from fork to exec.
///
/// # Safety
/// Only in a child that fork(2) has just made, with every signal blocked.
unsafe fn become_image(plan: &mut Plan<'_>) -> ! {
    // SAFETY: async-signal-safe calls on memory that the parent prepared and that nobody shares.
    unsafe {
        libc::setpgid(0, 0);
        // The parent may have died before the call; then nobody would ever end this process.
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM);
        if libc::getppid() != plan.parent {
            libc::_exit(127);
        }
        // The system call itself, since glibc refuses two numbers; a zeroed sigaction is SIG_DFL without flags.
        let default = [0_u64; 4];
        for signal in 1..=libc::SIGRTMAX() {
            libc::syscall(
                libc::SYS_rt_sigaction,
                signal,
                &default,
                ptr::null_mut::<u8>(),
                8,
            );
        }
        if let Err(errno) = place_descriptors(plan) {
            fail(plan.status, b'f', errno);
        }
        // After the descriptors: numbers above the lower limit can't be made any more.
        libc::setrlimit(libc::RLIMIT_NOFILE, &plan.limit);
        if let Some(directory) = &plan.image.directory
            && libc::chdir(directory.as_ptr()) != 0
        {
            fail(plan.status, b'd', errno());
        }
        if let Some(entry) = plan.listen_pid {
            write_decimal(entry.add(b"LISTEN_PID=".len()), libc::getpid());
        }
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &none, ptr::null_mut());

        let mut last = libc::ENOENT;
        for program in &plan.image.programs {
            last = exec(program, plan, last);
            if !matches!(last, libc::ENOENT | libc::ENOTDIR | libc::EACCES) {
                break;
            }
        }
        fail(plan.status, b'x', last);
    }
}

/// Tries one candidate and returns the errno to report: a denied one is remembered over a missing one, as execvp(3)
/// does.
///
/// # Safety
/// As [`become_image`].
unsafe fn exec(program: &CStr, plan: &Plan<'_>, before: i32) -> i32 {
    // SAFETY: both arrays end with a null pointer and their strings with a NUL.
    unsafe { libc::execve(program.as_ptr(), plan.argv.as_ptr(), plan.envp.as_ptr()) };
    match errno() {
        libc::ENOENT | libc::ENOTDIR if before == libc::EACCES => libc::EACCES,
        errno => errno,
    }
}

/// Puts 0 to 2 and the passed descriptors in their places and closes all others but `plan.status`.
///
/// # Safety
/// As [`become_image`].
unsafe fn place_descriptors(plan: &mut Plan<'_>) -> Result<(), i32> {
    let check = |result: i32| if result < 0 { Err(errno()) } else { Ok(result) };
    let floor = plan
        .passed
        .iter()
        .map(|(number, _)| number + 1)
        .fold(3, RawFd::max);
    // First everything out of the way, above the highest place, so that no dup2 hits a source that is still needed.
    // SAFETY: system calls on numbers.
    let lift = |fd: RawFd| check(unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, floor) });
    plan.status = lift(plan.status)?;
    plan.stdin = lift(plan.stdin)?;
    plan.output = lift(plan.output)?;
    for (_, fd) in &mut plan.passed {
        *fd = lift(*fd)?;
    }
    let standard = [(0, plan.stdin), (1, plan.output), (2, plan.output)];
    for (number, fd) in standard.iter().chain(&plan.passed) {
        // SAFETY: as above.
        check(unsafe { libc::dup2(*fd, *number) })?;
    }
    for number in (3..floor).filter(|n| plan.passed.iter().all(|(passed, _)| passed != n)) {
        // SAFETY: as above; the number isn't one of the child's places.
        unsafe { libc::close(number) };
    }
    // SAFETY: as above.
    unsafe {
        close_between(floor, plan.status - 1);
        close_between(plan.status + 1, RawFd::MAX);
    }
    Ok(())
}

/// Closes `first..=last`. Where close_range(2) is refused (a seccomp profile), number by number up to the soft limit.
///
/// # Safety
/// As [`become_image`].
unsafe fn close_between(first: RawFd, last: RawFd) {
    if first > last {
        return;
    }
    // SAFETY: system calls on numbers.
    unsafe {
        if libc::syscall(libc::SYS_close_range, first, last, 0) == 0 {
            return;
        }
        let mut limit: libc::rlimit = std::mem::zeroed();
        libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit);
        for fd in first..=last.min(RawFd::try_from(limit.rlim_cur).unwrap_or(RawFd::MAX)) {
            libc::close(fd);
        }
    }
}

/// Tells the parent what failed and ends the child.
///
/// # Safety
/// As [`become_image`].
unsafe fn fail(status: RawFd, step: u8, errno: i32) -> ! {
    let [a, b, c, d] = errno.to_ne_bytes();
    let message = [step, a, b, c, d];
    // SAFETY: write(2) of a local array, then _exit(2).
    unsafe {
        libc::write(status, message.as_ptr().cast(), message.len());
        libc::_exit(127)
    }
}

/// Writes `number` in decimal, with a NUL, without allocating.
///
/// # Safety
/// `place` has room for 11 bytes.
unsafe fn write_decimal(place: *mut u8, number: libc::pid_t) {
    let mut power = 1;
    while number / power >= 10 {
        power *= 10;
    }
    let mut at = place;
    while power > 0 {
        let digit = u8::try_from(number / power % 10).unwrap_or_default();
        // SAFETY: at most 10 digits and the NUL below.
        unsafe {
            *at = b'0' + digit;
            at = at.add(1);
        }
        power /= 10;
    }
    // SAFETY: as above.
    unsafe { *at = 0 };
}

fn errno() -> i32 {
    // SAFETY: the address of this thread's errno is always valid.
    unsafe { *libc::__errno_location() }
}

/// A descriptor that means this very process, whatever becomes of its number (pidfd_open(2)).
///
/// Race-free for our own children (until they are reaped) only; for others check their start time afterwards.
pub(crate) fn pidfd_open(pid: Pid) -> io::Result<OwnedFd> {
    // SAFETY: a system call on numbers; a non-negative result is a new descriptor that nobody else owns.
    unsafe {
        let fd = libc::syscall(libc::SYS_pidfd_open, pid.as_raw(), 0);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(OwnedFd::from_raw_fd(fd as RawFd))
    }
}

/// Sends `signal` to the process of `pidfd`; one that has ended already is no error.
pub(crate) fn pidfd_send_signal(pidfd: &OwnedFd, signal: Signal) -> io::Result<()> {
    // SAFETY: a system call on numbers, without a siginfo.
    let sent = unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            pidfd.as_raw_fd(),
            signal as i32,
            ptr::null::<libc::siginfo_t>(),
            0,
        )
    };
    match io::Error::last_os_error() {
        _ if sent == 0 => Ok(()),
        error if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
        error => Err(error),
    }
}

/// Makes a descriptor awaitable until it is readable. Needs a tokio runtime.
pub(crate) fn readable(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an OwnedFd is open, has one number, and is closed by its owner alone, which is the result.
    Ok(unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }?)
}

/// The pid of some child that has ended and isn't reaped yet. It stays unreaped.
pub(crate) fn next_ended() -> Option<Pid> {
    // SAFETY: waitid(2) fills the zeroed siginfo; with WNOHANG and nothing to report its pid stays 0.
    let pid = unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
        while libc::waitid(libc::P_ALL, 0, &mut info, flags) != 0 {
            if errno() != libc::EINTR {
                return None;
            }
        }
        info.si_pid()
    };
    (pid != 0).then(|| Pid::from_raw(pid))
}

/// Waits for this child and reaps it: its wait status (wait(2)), or nothing if it isn't a child of ours.
pub(crate) fn reap(pid: Pid) -> Option<i32> {
    let mut status = 0;
    // SAFETY: waitpid(2) writes one integer.
    while unsafe { libc::waitpid(pid.as_raw(), &mut status, 0) } < 0 {
        if errno() != libc::EINTR {
            return None;
        }
    }
    Some(status)
}

/// Lets a process of ours run when others don't need the CPU: ten steps nicer than this one (setpriority(2)).
pub(crate) fn give_way(pid: Pid) -> io::Result<()> {
    const STEPS: libc::c_int = 10;
    const NICEST: libc::c_int = 19;
    // SAFETY: no pointers. -1 is both a priority and an error, which this process can't cause.
    let own = unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
    let nice = (own + STEPS).min(NICEST);
    // SAFETY: no pointers.
    match unsafe { libc::setpriority(libc::PRIO_PROCESS, pid.as_raw() as libc::id_t, nice) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A descriptor that this process was started with, CLOEXEC from now on. To be called once for each number, before anything
/// else has opened one.
pub(crate) fn inherited(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: fcntl(2) on a number; it fails where that isn't open.
    if unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it is open, and by this function's contract nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}
