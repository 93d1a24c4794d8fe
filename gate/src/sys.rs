//! The system calls that no safe wrapper offers as they are needed here: the crate's only unsafe code.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use socket2::SockAddr;

nix::ioctl_read_bad!(siocoutq, libc::TIOCOUTQ, libc::c_int);

/// Bytes that a TCP socket has sent and its peer hasn't acknowledged (SIOCOUTQ, tcp(7)).
pub(crate) fn unacknowledged(socket: BorrowedFd<'_>) -> io::Result<u32> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: SIOCOUTQ writes one int through the pointer, which is valid for the call.
    unsafe { siocoutq(socket.as_raw_fd(), &raw mut bytes) }?;
    Ok(bytes.max(0) as u32)
}

/// Limits the ports that connect(2) chooses from (ip(7), IP_LOCAL_PORT_RANGE). Naming the whole range of the system lifts the
/// split in even and odd ports, which makes connect(2) slow when half of them are taken. ENOPROTOOPT before Linux 6.3.
pub(crate) fn set_local_port_range(socket: BorrowedFd<'_>, low: u16, high: u16) -> io::Result<()> {
    /// `linux/in.h`.
    const IP_LOCAL_PORT_RANGE: libc::c_int = 51;
    let range = (u32::from(high) << 16) | u32::from(low);
    set_number_option(socket, libc::IPPROTO_IP, IP_LOCAL_PORT_RANGE, range)
}

/// setsockopt(2) of an option whose value is one number of 32 bits.
pub(crate) fn set_number_option(
    socket: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
    number: u32,
) -> io::Result<()> {
    // SAFETY: the pointer is to a u32 that outlives the call, and the length is its size.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            (&raw const number).cast(),
            size_of::<u32>() as libc::socklen_t,
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// accept4(2) with SOCK_NONBLOCK and SOCK_CLOEXEC: the connection and its peer's address.
pub(crate) fn accept(listener: BorrowedFd<'_>) -> io::Result<(OwnedFd, SockAddr)> {
    let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: the kernel fills `storage` with an address of its own, no longer than `len`, and sets `len` to its length.
    unsafe {
        SockAddr::try_init(|storage, len| {
            match libc::accept4(listener.as_raw_fd(), storage.cast(), len, flags) {
                -1 => Err(io::Error::last_os_error()),
                // SAFETY: accept4 has just opened it, and nobody else knows of it.
                fd => Ok(OwnedFd::from_raw_fd(fd)),
            }
        })
    }
}

/// getsockopt(2) of an option whose value is, or starts with, `N` numbers of 32 bits; those that an older kernel lacks are 0.
pub(crate) fn numbers_option<const N: usize>(
    socket: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
) -> io::Result<[u32; N]> {
    let mut numbers = [0u32; N];
    let mut len = size_of_val(&numbers) as libc::socklen_t;
    // SAFETY: `numbers` is valid for writes of `len` bytes, and any bytes are valid numbers.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            level,
            name,
            numbers.as_mut_ptr().cast(),
            &mut len,
        )
    };
    match result {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(numbers),
    }
}
