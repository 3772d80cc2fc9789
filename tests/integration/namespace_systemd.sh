#!/bin/sh
# Run systemd as the first process of namespaces of its own, with a control group of its own: namespace_systemd.sh GROUP UNITS
# GROUP is a new directory in the unified hierarchy, UNITS a directory of units, of which min.target is started.
set -eu
if [ "${1:-}" != inside ]; then
    mkdir "$1"
    echo $$ >"$1/cgroup.procs"
    exec unshare --pid --mount --uts --ipc --cgroup --fork --kill-child --mount-proc "$0" inside "$2"
fi
mount --make-rprivate /
umount -R /sys/fs/cgroup
mkdir -p /sys/fs/cgroup
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t tmpfs tmpfs /run
mkdir -p /run/systemd/system
cp -r "$2"/* /run/systemd/system
export container=other
exec /lib/systemd/systemd --system --unit=min.target --log-target=console --log-level=info --show-status=no
