"""What runs on the host itself: two small scripts for any POSIX sh, so that a host needs nothing but sshd.

The shim is the beginning of each agent. sshd has made it the leader of a session and a process group of its own, which
it proves, for signals go to that group. It tells its pid and waits for a line before it becomes the agent: by then the
warden knows the pid, so no agent ever runs unguarded, and if the connection ends first the shim ends too.

The warden is the control session of a connection. It sends signals with the kill of the shell, so neither a full
process table nor MaxSessions can keep it from that, and it holds a lease: each beat renews it, and when it runs out,
or the connection ends, every group that the warden guards is killed. Traps: dash takes a negative pid only as
`kill -s SIG -- -PID`; `read` knows no time limit everywhere, so a ticker writes into the same pipe; writing to a dead
connection must not kill the warden before it has killed the others, so it ignores SIGPIPE.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Final

from scheduler.errors import AgentError
from scheduler.model.ssh_protocol import TOO_LONG

MARK: Final = re.compile(rb"DROVER (\d+)\n")  # a login shell may say something before it
GO: Final = b"\n"
COMMAND_BYTES: Final = 131_000  # one word of an argv on Linux, less a few: sshd gives the command as one to a shell
NOISE_BYTES: Final = 8192  # what may come before the mark
VARIABLE: Final = re.compile(rb"[A-Za-z_][A-Za-z0-9_]*")

SHIM: Final = """\
kill -s 0 -- -$$ 2>/dev/null || { echo "sshd gave it no process group of its own" >&2; exit 125; }
cd -- "$1" || exit 125
shift
while [ "$1" != -- ]; do export "$1"; shift; done
shift
command -v -- "$1" >/dev/null || { echo "$1: not found" >&2; exit 127; }
echo "DROVER $$"
read -r go || exit 125
exec "$@"
"""
TICKS: Final = 5
CONTROL: Final = """\
trap "" PIPE HUP INT TERM
{ while sleep TICK_S; do echo tick || exit; done & cat; echo over; } | {
guarded= missed=0
strike() { kill -s "$2" -- "-$1"; if kill -s 0 -- "-$1"; then echo "$1 alive"; else echo "$1 gone"; fi; }
echo "DROVER $$"
while read -r verb pid name; do
case $verb in
tick) missed=$((missed + 1)); [ $missed -lt TICKS ] || break ;;
beat) missed=0; echo beat ;;
add) guarded="$guarded $pid"; echo "$pid added" ;;
kill) strike "$pid" "$name" ;;
end) strike "$pid" KILL; rest=; for one in $guarded; do [ "$one" = "$pid" ] || rest="$rest $one"; done; guarded=$rest ;;
over) break ;;
esac
done
for pid in $guarded; do kill -s KILL -- "-$pid"; done
kill -s KILL -- -$$
} 2>/dev/null
"""


def agent_command(argv: Sequence[bytes], environment: Mapping[bytes, bytes], directory: bytes) -> bytes:
    """Give the command that starts an agent behind the shim. Errors: AgentError when it cannot be given so."""
    for name in environment:
        if not VARIABLE.fullmatch(name):
            raise AgentError(f"{name!r} is not the name of an environment variable")
    variables = [name + b"=" + text for name, text in environment.items()]
    command = _sh(SHIM, directory or b".", *variables, b"--", *argv)
    if len(command) > COMMAND_BYTES:
        raise AgentError(TOO_LONG)
    return command


def control_command(lease_s: int) -> bytes:
    """Give the command that starts the warden; it kills at most `lease_s` seconds, at least 2, after the last beat."""
    tick_s = max(lease_s // TICKS, 1)
    return _sh(CONTROL.replace("TICK_S", str(tick_s)).replace("TICKS", str(max(lease_s // tick_s, 2))))


def _sh(script: str, *words: bytes) -> bytes:
    quoted = (shlex.quote(word.decode("latin-1")).encode("latin-1") for word in words)
    return b" ".join((b"exec /bin/sh -c", shlex.quote(script).encode(), b"sh", *quoted))
