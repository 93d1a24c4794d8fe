#!/bin/sh
# marathon-lb's reload command (its --command), in place of /marathon-lb/reload_haproxy.sh. See docs/marathon-lb.md.
#
# It returns when the reload has ended, and at the latest after --timeout (90s); 0 only when a new HAProxy is active. Arguments go
# to `syngate reload`. Its exit code is passed on: 1 (failed, the last good configuration serves, and the reload is tried again
# without another call), 4 (failed, and nothing serves yet), 5 (time-out, the reload goes on). While no gate answers (3: runsv is
# just starting it) it asks again, for ten seconds.
set -u
SYNGATE_CONTROL="${SYNGATE_CONTROL:-/var/run/haproxy/syngate/control.sock}"
export SYNGATE_CONTROL
tries=10
while :; do
    syngate reload "$@"
    status=$?
    if [ "$status" -ne 3 ] || [ "$tries" -eq 0 ]; then
        exit "$status"
    fi
    tries=$((tries - 1))
    sleep 1
done
