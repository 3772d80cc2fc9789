"""The two scripts that run on a host, the commands that start them, and their first line.

What a host prints is text of a stranger: a login shell may print before our scripts and beside them. So each script is
given a random word, and a line counts only if it has that word. The first line also has the pid of the script and when
that process began, which together name one process; nothing is signalled by its number alone:

    added       the control session looks for the word of the shim in the command line of that process
    signalled   the process with that pid is of that time; or none has it, but one of its group has the word in its
                environment: no group is made with a number that another group has

For any POSIX sh, as a host needs nothing but sshd. Where there is no /proc, ps(1) says when a process began; then a
group without its leader cannot be told from others, and is not signalled.
"""

import re
import secrets
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from scheduler.drivers.os_calls import MOST_PID
from scheduler.drivers.ssh_protocol import TOO_LONG
from scheduler.errors import AgentError, WorldError

LEAST_PID: Final = 2  # a signal to 1 or less would reach many
TICKS: Final = 5
COMMAND_BYTES: Final = 131_000  # one word of an argv on Linux, less a few: sshd gives the command as one to a shell
VARIABLE: Final = re.compile(rb"[A-Za-z_][A-Za-z0-9_]*")
WORD_VARIABLE: Final = b"DROVER_WORD"  # in the environment of an agent
TEXT_BYTES: Final = 200  # of what a host printed, in a message

# Traps: `read` leaves out NULs, in dash and bash; the name in a stat file may hold line ends, brackets and blanks. The
# word is in the first line, which is short to read; the checks start no process on Linux: the table may be full.
# To read all of /proc takes a second on a busy host, so it is done only for a group that is still there.
_COMMON: Final = """\
word=WORD
[ $$ -gt 1 ] || { echo "it is process $$ there, whose group is none of its own" >&2; exit 125; }
look() { stat= pgrp= began=
if [ -r "/proc/$$/stat" ]; then
{ while IFS= read -r line || [ -n "$line" ]; do stat="$stat $line"; done <"/proc/$1/stat"; } 2>/dev/null
set -- ${stat##*) }; pgrp=${3-} began=${20-}
else began=$(LC_ALL=C TZ=UTC0 ps -o lstart= -p "$1" 2>/dev/null | tr -cs 0-9A-Za-z:\\\\n _); fi
[ -n "$began" ]; }
look $$ || { echo "neither /proc nor ps -o lstart says when a process began" >&2; exit 125; }
"""

# Traps: dash takes a negative pid only as `kill -s SIG -- -PID`; `read` has a time limit in some shells only, so a
# ticker writes into the same pipe; writing to a dead connection must not kill the script before it has killed the
# agents, so it ignores SIGPIPE. `kill` is the shell's own: it needs no session and no place in a full process table.
_CONTROL: Final = (
    _COMMON
    + """\
trap "" PIPE HUP INT TERM
{ while sleep TICK_S; do echo tick || exit; done & cat; echo over; } | {
groups= missed=0
marked() { while IFS= read -r line || [ -n "$line" ]; do
case $line in *"$2"*) return 0 ;; esac; done <"$1"; return 1; }
is_shim() { if [ -r "/proc/$$/stat" ]; then [ "$pgrp" = "$1" ] && marked "/proc/$1/cmdline" "$2"
else case $(ps -ww -o args= -p "$1") in *"$2"*) ;; *) return 1 ;; esac; fi; }
forget() { others=; for each in $groups; do
case $each in "$1"/*) ;; *) others="$others $each" ;; esac; done; groups=$others; }
find_guarded() { for each in $groups; do
case $each in "$1"/*) mark=${each##*/} start=${each#*/}; start=${start%/*}; return 0 ;; esac; done; return 1; }
is_ours() { find_guarded "$1" || return 1
if look "$1"; then [ "$began" = "$start" ]; return; fi
kill -s 0 -- "-$1" || return 1
for each in /proc/[0-9]*; do
each=${each#/proc/}
look "$each" && [ "$pgrp" = "$1" ] && marked "/proc/$each/environ" "$mark" && return 0
done
kill -s 0 -- "-$1" && is_unknown=1
return 1; }
add() { case $1 in *[!0-9]* | 0* | 1 | ????????*) echo "$word $1 stranger"; return ;; esac
look "$1" || { echo "$word $1 gone"; return; }
[ "$began" = "$2" ] && is_shim "$1" "$3" || { echo "$word $1 stranger"; return; }
forget "$1"; groups="$groups $1/$2/$3"; echo "$word $1 added"; }
send_signal() { is_unknown=
if is_ours "$1" && { kill -s "$2" -- "-$1"; kill -s 0 -- "-$1"; } || [ -n "$is_unknown" ]; then echo "$word $1 alive"
else forget "$1"; echo "$word $1 gone"; fi; }
echo "DROVER $word $$ $began"
while read -r verb pid more mark; do
case $verb in
tick) missed=$((missed + 1)); [ $missed -lt TICKS ] || break ;;
beat) missed=0; echo "$word beat" ;;
add) add "$pid" "$more" "$mark" ;;
kill) send_signal "$pid" "$more" ;;
over) break ;;
esac
done
for one in $groups; do is_ours "${one%%/*}" && kill -s KILL -- "-${one%%/*}"; done
kill -s KILL -- -$$
} 2>/dev/null
"""
)

# sshd has made it the leader of a session and a group of its own, which it checks, since signals go to that group. Its
# reply becomes a function before the variables of the agent, which may have the names of ours.
_SHIM: Final = (
    _COMMON
    + """\
kill -s 0 -- -$$ 2>/dev/null || { echo "sshd gave it no process group of its own" >&2; exit 125; }
eval "reply() { echo 'DROVER $word $$ $began'; }"
cd -- "$1" || exit 125
shift
while [ "$1" != -- ]; do export "$1"; shift; done
shift
command -v -- "$1" >/dev/null || { echo "$1: not found" >&2; exit 127; }
reply
read -r _ || exit 125
exec "$@"
"""
)


@dataclass(frozen=True, slots=True)
class RemotePid:
    """A process of a host: its pid, when it began, as its host says that, and the random word that it was given."""

    pid: int
    began: str
    word: str


def new_word() -> str:
    """Return a random word, which nothing prints by chance and no other session of the host can know."""
    return secrets.token_hex(16)


def control_command(word: str, lease_s: int) -> bytes:
    """Return the command of a control session that kills `lease_s` seconds, at least 2, after the last heartbeat."""
    tick_s = max(lease_s // TICKS, 1)
    script = _CONTROL.replace("TICK_S", str(tick_s)).replace("TICKS", str(max(lease_s // tick_s, 2)))
    return _shell_command(script, word)


def agent_command(word: str, argv: Sequence[bytes], environment: Mapping[bytes, bytes], directory: bytes) -> bytes:
    """Return the command that starts an agent behind the shim. Errors: AgentError when there can be none."""
    if wrong := [name for name in environment if not VARIABLE.fullmatch(name)]:
        raise AgentError(f"{wrong[0]!r} is not the name of an environment variable")
    variables = [name + b"=" + text for name, text in {**environment, WORD_VARIABLE: word.encode()}.items()]
    command = _shell_command(_SHIM, word, directory or b".", *variables, b"--", *argv)
    if len(command) > COMMAND_BYTES:
        raise AgentError(TOO_LONG)
    return command


def read_reply(word: str, output: bytes) -> RemotePid | None:
    """Return the process of the script that was given this word; None while its line is not complete.

    A login shell may print before that, on the same line too. Errors: WorldError, no process can be so.
    """
    _, found, rest = output.rpartition(f"DROVER {word} ".encode())
    line, end, _ = rest.partition(b"\n")
    if not found or not end:
        return None
    pid, _, began = line.decode("ascii", "backslashreplace").partition(" ")
    is_number = pid.isdecimal() and not pid.startswith("0") and len(pid) <= len(str(MOST_PID))
    if is_number and LEAST_PID <= int(pid) <= MOST_PID and re.fullmatch(r"[0-9A-Za-z:_]{1,64}", began):
        return RemotePid(int(pid), began, word)
    raise WorldError(
        f"a session was said to be process {shown(line)}, which cannot be: login scripts or a ForceCommand there must "
        "not change our output"
    )


def shown(output: bytes) -> str:
    """Return the beginning of what a host printed, quoted."""
    return repr(output[:TEXT_BYTES].decode("ascii", "backslashreplace"))


def _shell_command(script: str, word: str, *words: bytes) -> bytes:
    """Return the command that replaces a login shell by /bin/sh with a script and its arguments."""
    quoted = (shlex.quote(each.decode("latin-1")).encode("latin-1") for each in words)
    return b" ".join((b"exec /bin/sh -c", shlex.quote(script.replace("WORD", word, 1)).encode(), b"sh", *quoted))
