"""The first process of a pid namespace: has an agent's pid given to a process that is not ours, and the agent killed.

Run as `python -m tests.ssh.recycled SHELL SECONDS`. The stranger with that pid leads a session and lives so many
seconds; if that is 0 another process in its group does. Prints what the control session answers, and whether the
stranger, or its group, is there after that and after the end of the control session.
"""

import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from scheduler.drivers.os_calls import start_of
from scheduler.ssh.remote_scripts import control_script
from tests.ssh.test_remote_scripts import SHELLS, WORD, Agent, Session, add

TICKS_S = os.sysconf("SC_CLK_TCK")
LAST_PID = Path("/proc/sys/kernel/ns_last_pid")


def main() -> None:
    """Print it."""
    assert os.getpid() == 1, "only in a pid namespace: another process's pid is signalled"
    shell = next(each for each in SHELLS if each[0] == sys.argv[1])
    control, agent = Session(shell, control_script(WORD, 20)), Agent(shell)
    control.hear()
    add(control, agent)
    began = start_of(agent.pid) or 0
    os.killpg(agent.pid, 9)
    agent.wait()
    while int(time.clock_gettime(time.CLOCK_BOOTTIME) * TICKS_S) <= began:
        pass  # no pid is given again within the tick in which a process began, but by us
    LAST_PID.write_text(str(agent.pid - 1))
    # What it starts comes first, and out of the way of its pid: it has to be there before the leader ends.
    script = f"sleep 600 & echo $!; exec sleep {sys.argv[2]}"
    stranger = subprocess.Popen(["sh", "-c", script], start_new_session=True, stdout=subprocess.PIPE)
    assert stranger.pid == agent.pid
    assert stranger.stdout is not None
    below = int(stranger.stdout.readline())
    if sys.argv[2] == "0":
        stranger.wait()
    answer = control.ask(f"kill {agent.pid} KILL").split()[-1]
    before = lives(below)
    control.end_input()
    control.process.wait()
    print(answer, before, lives(below))


def lives(pid: int) -> str:
    """Return whether a process of the group lives; a zombie is dead."""
    with suppress(OSError):
        return "dead" if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX" else "alive"
    return "dead"


if __name__ == "__main__":
    main()
