"""The two scripts that run on a host, the commands that start them, and what they print first.

A command goes through the login shell of an account, which may be any: sh, csh, fish. So a command is one line without
anything that a shell reads otherwise than others do, and starts /bin/sh, which prints its pid and then reads the script
from standard input: one line, with all arguments. No login shell reads an argument, and no login script can take the
line away, as it is sent only when /bin/sh reads.

What a host prints is text of a stranger: a login shell may print before our scripts and beside them. So each script is
given a random word, and a line counts only if it has that word. Nothing is signalled by its number alone:

    added       the control session looks for the word of the shim in the command line of that process, and notes when
                it began, which together with its pid names one process
    signalled   the process with that pid is of that time; or none has it, but one of its group has the word in its
                environment: no group is made with a number that another group has
    swept       what an ended agent has left anywhere has its word in the environment, and is of the same time before
                and after that was seen

For any POSIX sh, as a host needs nothing but sshd. Where there is no /proc, ps(1) says when a process began; then a
group without its leader cannot be told from others, and is not signalled, nor is what has left it.
"""

import re
import secrets
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from scheduler.drivers.os_calls import MOST_PID
from scheduler.drivers.ssh_protocol import TOO_LONG, WORD_BYTES
from scheduler.errors import AgentError, WorldError

LEAST_PID: Final = 2  # a signal to 1 or less would reach many
TICKS: Final = 5
SWEEP_ROUNDS: Final = 6  # one a second, for what dies slowly
VARIABLE: Final = re.compile(rb"[A-Za-z_][A-Za-z0-9_]*")
TEXT_BYTES: Final = 200  # of what a host printed, in a message

# What follows `exec /bin/sh -c`, in any login shell. Traps: fish reads a backslash within single quotes, csh an
# exclamation mark and the end of a line, and csh takes no word of 1 KiB. The control session reads it byte by byte, in
# /proc, before it guards an agent: so it is short. bash as sh takes functions and options from the environment, so a
# login script may have changed what our words mean; `unset` and `set` no function can replace there.
_BEGIN: Final = (
    'unset -f read echo; [ $$ -gt 1 ] || { echo "it is process 1 there" >&2; exit 125; }; '
    'echo "DROVER $1 $$"; IFS= read -r DROVER_LINE || exit 125; eval "$DROVER_LINE"'
)
# Then comes one line. The default IFS ends with a newline, which a line cannot have: quoted words find it as $2. dash
# takes a negative pid as in the first kill only; busybox says that this failed, and has sent the signal.
_LINE: Final = 'unset -f kill cd command printf; set +f; unset DROVER_LINE; set -- "$1" "${IFS#??}"; '
_RUN_SCRIPT: Final = _LINE + "word=$1; eval SCRIPT"
# The shim. sshd has made it the leader of a session and a group of its own, which it checks, as signals go to that.
_RUN_AGENT: Final = (
    _LINE
    + """
kill -s 0 -- -$$ 2>/dev/null || kill -0 -$$ 2>/dev/null ||
{ echo "sshd gave it no process group of its own" >&2; exit 125; };
export DROVER_WORD="$1"; set -- WORDS; cd -- "$1" || exit 125; shift;
until [ "$1" = -- ]; do export "$1"; shift; done; shift;
CHECK;
echo "DROVER $DROVER_WORD ready"; read -r _ || exit 125; exec "$@"
""".strip().replace("\n", " ")
)
_CHECK_NAME: Final = 'command -v -- "$1" >/dev/null || { echo "$1: not found" >&2; exit 127; }'
# A program that is named by its path is looked at: not all shells say what is wrong with one, and none in time. That
# starts no process and reads the first line only. On PATH it is mostly a binary, whose first line may be long.
_CHECK_PATH: Final = """
no() { echo "$1: $2" >&2; exit ${3-126}; };
check() {
[ -e "$1" ] || no "$1" "not found" 127;
[ -f "$1" ] || no "$1" "it is a directory or a device; name a program";
[ -x "$1" ] || no "$1" "it is not executable, or is on a noexec mount; chmod a+x it, or move it";
{ IFS= read -r DROVER_LINE <"$1"; } 2>/dev/null; set -- "$1" "${DROVER_LINE-}"; unset DROVER_LINE;
case $2 in
"#!"*"\r") no "$1" "its lines end in CR LF, so that its interpreter is not found; try dos2unix(1)" ;;
"#!"*) set -- "$1" "${2#??}"; set -- "$1" "${2#"${2%%[! \t]*}"}"; set -- "$1" "${2%%[ \t]*}";
[ -z "$2" ] || [ -x "$2" ] ||
no "$1" "its interpreter $2 is not there or not executable; install it or correct the first line" ;;
esac; }; check "$1"
""".strip().replace("\n", " ")

# Traps: `read` leaves out NULs, in dash and bash; the name in a stat file may hold line ends, brackets and blanks. The
# word is in the first line, which is short to read; the checks start no process on Linux: the table may be full.
# To read all of /proc takes a second on a busy host, so it is done only for a group that is still there.
#
# `read` has a time limit in some shells only, so a ticker writes into the same pipe; writing to a dead connection must
# not kill the script before it has killed the agents, so it ignores SIGPIPE. `kill` is the shell's own: it needs no
# session and no place in a full process table.
#
# `kill` fails if there is no such group, and if none of it may be signalled: if its leader, of the same start, is there
# after that. A zombie that was another user's may not be signalled either.
#
# The sweeper is a process of its own: reading environments takes a tenth of a second where there are 2,000 processes,
# hangs with a process that hangs, and needs programs. It gets a line of words (4) and answers to us (3), and we
# ask no more before that, so nothing waits for it. Each word is looked for twice: a process has no environment while it
# is in execve(2). There may be thousands, too many for arguments. The grep of busybox is slow with many, and with -F it
# does not read beyond a NUL.
_CONTROL: Final = """\
unset -f cat sleep grep xargs ps tr
kill_group() { kill -s "$1" -- "-$2"; }
kill -s 0 -- -$$ 2>/dev/null || kill_group() { kill "-$1" "-$2"; }
look() { stat= state= pgrp= began=
if [ -r "/proc/$$/stat" ]; then
{ while IFS= read -r line || [ -n "$line" ]; do stat="$stat $line"; done <"/proc/$1/stat"; } 2>/dev/null
set -- ${stat##*) }; state=${1-} pgrp=${3-} began=${20-}
else began=$(LC_ALL=C TZ=UTC0 ps -o lstart= -p "$1" 2>/dev/null | tr -cs 0-9A-Za-z:\\\\n _); fi
[ -n "$began" ]; }
look $$ || { echo "neither /proc nor ps -o lstart says when a process began" >&2; exit 125; }
for each in cat sleep; do
command -v "$each" >/dev/null || { echo "$each: not found on PATH=${PATH-}" >&2; exit 125; }
done
trap "" PIPE HUP INT TERM
exec 3>&1 2>/dev/null
{ while sleep TICK_S; do echo tick || exit; done & cat; echo over; } 3>&- | {
groups= ended= before= missed=0
marked() { while IFS= read -r line || [ -n "$line" ]; do
case $line in *"$2"*) return 0 ;; esac; done <"$1"; return 1; }
is_shim() { if [ -r "/proc/$$/stat" ]; then [ "$pgrp" = "$1" ] && marked "/proc/$1/cmdline" "$2"
else case $(ps -ww -o args= -p "$1") in *"$2"*) ;; *) return 1 ;; esac; fi; }
forget() { others=; for each in $groups; do
case $each in "$1"/*) ended="$ended ${each##*/}" ;; *) others="$others $each" ;; esac; done; groups=$others; }
find_guarded() { for each in $groups; do
case $each in "$1"/*) mark=${each##*/} start=${each#*/}; start=${start%/*}; return 0 ;; esac; done; return 1; }
is_ours() { find_guarded "$1" || return 1
if look "$1"; then [ "$began" = "$start" ]; return; fi
kill_group 0 "$1" || return 1
for each in /proc/[0-9]*; do
each=${each#/proc/}
look "$each" && [ "$pgrp" = "$1" ] && marked "/proc/$each/environ" "$mark" && return 0
done
kill_group 0 "$1" && is_unknown=1
return 1; }
add() { case $1 in "" | *[!0-9]* | 0* | 1 | ????????*) echo "$word $1 stranger"; return ;; esac
look "$1" || { echo "$word $1 gone"; return; }
is_shim "$1" "$2" || { echo "$word $1 stranger"; return; }
forget "$1"; groups="$groups $1/$began/$2"; echo "$word $1 added"; }
is_there() { find_guarded "$1" && look "$1" && [ "$began" = "$start" ]; }
send_signal() { is_unknown= answer=gone
if is_ours "$1" && { kill_group "$2" "$1"; kill_group 0 "$1"; } || [ -n "$is_unknown" ]; then answer=alive
elif is_there "$1"; then case ${state:-$(ps -o stat= -p "$1")} in [ZX]*) answer=alive ;; *) answer=refused ;; esac; fi
case $answer/$2 in gone/* | refused/KILL) forget "$1" ;; esac
echo "$word $1 $answer"; }
echo "DROVER $word ready"
while read -r verb pid more; do
case $verb in
tick) missed=$((missed + 1)); [ $missed -lt TICKS ] || break ;;
beat) missed=0; echo "$word beat" ;;
add) add "$pid" "$more" ;;
kill) send_signal "$pid" "$more" ;;
sweep) echo "$before $ended" >&4; before=$ended ended= ;;
over) break ;;
esac
done
for one in $groups; do
is_ours "${one%%/*}" && kill_group KILL "${one%%/*}"; ended="$ended ${one##*/}"
done
echo "$before $ended" >&4
} 4>&1 >&3 | {
have_words() { printf 'DROVER_WORD=%s\\n' $words | grep "$@"; }
carriers() { have_words -ls -f - /dev/null $(echo /proc/[0-9]*/environ | xargs grep -ls DROVER_WORD=); }
end_carrier() { case $1 in "" | *[!0-9]* | 0* | 1 | $$) return ;; esac
look "$1" && first=$began || return
have_words -qs -f - "/proc/$1/environ" && look "$1" && [ "$began" = "$first" ] && kill -s KILL "$1"; }
end_carriers() { rounds=0
while left=$(carriers); [ -n "$left" ] && [ $rounds -lt ROUNDS ]; do
rounds=$((rounds + 1)); [ $rounds -lt 3 ] || sleep 1
for each in $left; do each=${each#/proc/}; end_carrier "${each%/environ}"; done
done; }
while read -r words; do
pids= left=
[ -z "$words" ] || end_carriers
for each in $left; do each=${each#/proc/}; pids="$pids ${each%/environ}"; done
echo "$word swept$pids"
done
kill_group KILL $$
} >&3
kill_group KILL $$
"""


@dataclass(frozen=True, slots=True)
class RemoteScript:
    """What is run on a host: a command for any login shell, and the line for the sh that this starts."""

    word: str
    command: bytes
    line: bytes


@dataclass(frozen=True, slots=True)
class RemotePid:
    """A process of a host: its pid, and the random word that it was given."""

    pid: int
    word: str


def new_word() -> str:
    """Return a random word, which nothing prints by chance and no other session of the host can know."""
    return secrets.token_hex(16)


def control_script(word: str, lease_s: int) -> RemoteScript:
    """Return what runs a control session that kills `lease_s` seconds, at least 2, after the last heartbeat."""
    tick_s = max(lease_s // TICKS, 1)
    numbers = {"TICK_S": tick_s, "TICKS": max(lease_s // tick_s, 2), "ROUNDS": SWEEP_ROUNDS}
    script = _CONTROL
    for name, number in numbers.items():
        script = script.replace(name, str(number))
    line = _RUN_SCRIPT.encode().replace(b"SCRIPT", _quoted(script.encode()))
    return _remote_script("control", word, line)


def agent_script(
    word: str, argv: Sequence[bytes], environment: Mapping[bytes, bytes], directory: bytes
) -> RemoteScript:
    """Return what starts an agent behind the shim. Errors: AgentError when there can be none."""
    if wrong := [name for name in environment if not VARIABLE.fullmatch(name)]:
        raise AgentError(f"{wrong[0]!r} is not the name of an environment variable")
    variables = [name + b"=" + text for name, text in environment.items()]
    if any(len(each) > WORD_BYTES for each in (*variables, *argv)):
        raise AgentError(TOO_LONG)
    words = b" ".join(map(_quoted, (directory or b".", *variables, b"--", *argv)))
    script = _RUN_AGENT.replace("CHECK", _CHECK_PATH if b"/" in b"".join(argv[:1]) else _CHECK_NAME)
    return _remote_script("agent", word, script.encode().replace(b"WORDS", words))


def read_reply(word: str, output: bytes) -> RemotePid | None:
    """Return the process of the sh that was given this word; None while its line is not complete.

    A login shell may print before that, on the same line too. Errors: WorldError, no process can be so.
    """
    _, found, rest = output.rpartition(f"DROVER {word} ".encode())
    line, end, _ = rest.partition(b"\n")
    if not found or not end:
        return None
    pid = line.decode("ascii", "backslashreplace")
    is_number = pid.isdecimal() and not pid.startswith("0") and len(pid) <= len(str(MOST_PID))
    if is_number and LEAST_PID <= int(pid) <= MOST_PID:
        return RemotePid(int(pid), word)
    raise WorldError(
        f"a session was said to be process {shown(line)}, which cannot be: login scripts or a ForceCommand there must "
        "not change our output"
    )


def is_ready(word: str, output: bytes) -> bool:
    """Return whether a script has said that it runs."""
    return f"DROVER {word} ready\n".encode() in output


def shown(output: bytes) -> str:
    """Return the beginning of what a host printed, quoted."""
    return repr(output[:TEXT_BYTES].decode("ascii", "backslashreplace"))


def _remote_script(role: str, word: str, line: bytes) -> RemoteScript:
    command = f"exec /bin/sh -c '{_BEGIN}' drover-{role} {word}"
    return RemoteScript(word, command.encode(), line + b"\n")


def _quoted(text: bytes) -> bytes:
    """Return a word for sh, on one line; `shlex.quote` has any newline within single quotes."""
    return shlex.quote(text.decode("latin-1")).replace("\n", "'\"$2\"'").encode("latin-1")
