"""One host behind sshd in a pid namespace of its own, beside a process that is not ours: what is left of that one.

Run as `python -m tests.ssh.strangers FOLDER JSON`, as the first process of a namespace: whatever is signalled there
reaches nothing outside. Prints the reports of one agent, which is started and killed, and whether the stranger lives.
"""

import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from scheduler.drivers.ssh_protocol import LinkDown, Started
from tests.patience import LONG_PATIENCE_S, PATIENCE_S
from tests.ssh.host import Host
from tests.ssh.sshd import serving

NAMESPACE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable, "-m", "tests.ssh.strangers")
SSHRC = "/etc/ssh/sshrc"  # sshd runs it before each command; in the namespace it is ours alone
PID_OF_STRANGER = "PID"  # in the text of a file: becomes the pid of the process that is not ours


def seen(folder: Path, **given: Any) -> dict[str, Any]:
    """Return what `main` prints for files of the login, options of sshd, and settings of the host."""
    argv = [*NAMESPACE, str(folder), json.dumps(given)]
    run = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=2 * LONG_PATIENCE_S)
    assert run.returncode == 0, run.stderr
    found: dict[str, Any] = json.loads(run.stdout)
    return found


def ended(process: "subprocess.Popen[bytes]") -> bool:
    """Return whether a process has ended, or does so in a moment."""
    with suppress(subprocess.TimeoutExpired):
        process.wait(0.2)
    return process.poll() is not None


def main() -> None:
    """Start and kill an agent, and print what came of it."""
    assert os.getpid() == 1, "only in a pid namespace: a wrong pid would be signalled"
    folder, given = Path(sys.argv[1]), json.loads(sys.argv[2])
    stranger = subprocess.Popen(["sleep", "600"], start_new_session=True)
    if SSHRC in given.get("files", {}):
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", os.path.dirname(SSHRC)], check=True)
    for name, text in given.get("files", {}).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace(PID_OF_STRANGER, str(stranger.pid)))
    with serving(folder / "server", **given.get("options", {})) as server:
        host = Host(server.settings(**given.get("settings", {})))
        host.sh("echo up; exec cat")
        with suppress(AssertionError):  # nothing was reported
            host.until(lambda: b"up\n" in host.said[0] or host.over() or host.all(LinkDown), PATIENCE_S)
            host.process.signal(0, "KILL")
            host.until(host.over, PATIENCE_S)
        print(json.dumps({
            "end": repr(host.over()),
            "said": host.said[0].decode(errors="replace"),
            "pid": [report.pid for report in host.all(Started)],
            "down": [report.why for report in host.all(LinkDown)],
            "lives": not ended(stranger),
        }))  # fmt: skip
        host.close()


if __name__ == "__main__":
    main()
