#!/bin/sh
# Becomes the first process of a machine. From the environment: TREE, its root directory; CGROUP, a cgroup of its own; STATE, the
# directory where the file `pid` will say which process it is. The terminal that this runs on is the machine's console.
#
# It is called with `outside`, and calls itself again after each step into a namespace. The network is the caller's.
set -eu

case "$1" in
outside)
    exec unshare --mount --pid --uts --ipc --fork --kill-child sh "$0" inside
    ;;
inside)
    # This is still the /proc from outside, which has outside's number for its reader.
    read -r pid _ </proc/self/stat
    echo "$pid" >"$STATE/pid"
    # The namespace of cgroups begins where the process is that makes it.
    echo 0 >"$CGROUP/cgroup.procs"
    exec unshare --cgroup sh "$0" root
    ;;
root)
    console=$(tty)
    mount --bind "$TREE" "$TREE"
    cd "$TREE"

    # What is the kernel's own, such as sysctls, can be looked at and no more.
    mount -t proc proc proc
    mount --bind proc/sys proc/sys
    mount -o remount,bind,ro proc/sys
    mount -t sysfs -o ro sysfs sys
    mount -t cgroup2 cgroup2 sys/fs/cgroup

    mount -t tmpfs -o mode=755 tmpfs dev
    cp --archive /dev/null /dev/zero /dev/full /dev/random /dev/urandom /dev/tty dev
    mkdir dev/pts dev/shm
    mount -t devpts -o newinstance,ptmxmode=666,mode=620 devpts dev/pts
    mount -t tmpfs -o mode=1777 tmpfs dev/shm
    ln -s pts/ptmx dev/ptmx
    ln -s /proc/self/fd dev/fd
    : >dev/console
    mount --bind "$console" dev/console

    mount -t tmpfs -o mode=755 tmpfs run
    mount -t tmpfs -o mode=1777 tmpfs tmp

    # Not chroot(8): in a user namespace below it, which units ask for, the kernel lets nobody.
    pivot_root . mnt
    cd /
    umount --lazy /mnt
    # `container` keeps systemd from what only the first process of a whole computer may do, such as to set the clock.
    exec env -i container=test PATH=/usr/sbin:/usr/bin:/sbin:/bin \
        /lib/systemd/systemd --unit=multi-user.target
    ;;
esac
