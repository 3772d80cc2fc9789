"""The keeper of a detached job: scripts for any Linux host with a POSIX sh and setsid(1), and their command lines.

The keeper runs in a session of its own, so it outlives the daemon, its guardian and the connection. It keeps the
output of the command in the spool, a directory of the host with an entry `SITE/JOB.ATTEMPT` for each attempt. The
command is the child of the *waiter*, in another session again, which notes its exit status at once: so a keeper that is
killed does not take that along. The process of the slot is the *attach script*, here or over SSH: it starts the keeper
or finds it, prints a line with the pid of the keeper and then the output of the command, passes signals on, and exits
as the command did. Its own death says nothing of the job.

    name in an entry     what it is
    state                symbolic link: pid and start time of the keeper, boot id; or `closed`: no keeper may begin
    pid                  symbolic link: pid and start time of the command, the same of the waiter; or `closed`: the
                         command may not begin
    turn.N               empty; an attach script whose turn is smaller than the greatest N passes no signal on
    in, out, err         standard input, and the first half of the output that is kept
    out.before, out.tail the last part of the output that is kept, in two files; out.passed: bytes that were left out
    out.all, err.all     empty; all of the output was read
    end.new, end         exit status: 64 bytes, reserved at the start, noted by the waiter, renamed when all is kept
    cut                  empty; the keeper was killed, so the output may lack its end

Creating a symbolic link is the fence: it is atomic, has its content at once, and fails where one is already. So either
the keeper creates `state` and begins, or an attach script that adopts the job, or a release, creates it first, and the
keeper never begins. Entries with the state `closed` are kept for a day, for a start that is still on its way.

An attach script that finds no keeper uses the exit status that was noted; if the command still runs, it kills that
first, and what else has DROVER_ENTRY of this attempt in its environment. Then the attempt was interrupted: so it is if
the waiter is killed, and if the command dies of a signal without its keeper, for that may have had the same cause.

The attach script enters the spool once, and then uses names below it: others may not move it. Of its path, no directory
and no symbolic link may be another user's than root's or ours, and no directory one into which others may write, unless
it is sticky. It is checked as it stands after each link was read, and what was checked is entered.
"""

import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from scheduler.drivers.os_calls import signal_name
from scheduler.model.events_and_effects import Event, Gone, Keeper

# Signals by which an attach script dies to say something of its own; any other death of it says nothing of the job.
NOT_BEGUN: Final = "SIGUSR1"  # the command was not started, and never will be
INTERRUPTED: Final = "SIGUSR2"  # keeper and command are dead, and the spool does not say how the command ended
NOT_KEPT: Final = "SIGALRM"  # it could not be started or looked at; why stands on stderr
LEFT: Final = "SIGPROF"  # the command is another user's by now, which refuses to be killed, and lives on
SAYS: Final[Mapping[str, str]] = {NOT_BEGUN: "not begun", INTERRUPTED: "interrupted", NOT_KEPT: "could not keep"}
SIGNAL_BASE: Final = 128  # an attach script exits with this and the signal of which the command died

# Traps: a signal that a shell ignores would be ignored by the command too, so it is trapped by `:`; a background
# process of a script is no group leader, so setsid(1) does not fork; `sync FILE` is not known everywhere; a signal goes
# to all of a process group, so what the attach script starts is deaf; a host over SSH kills what has the DROVER_WORD of
# an agent that has ended, so the keeper has none. The name in a stat file may hold line ends,
# brackets and blanks. What a link says is text: a pid is a number
# from 2 to 2^22, and gets no signal unless its process began when the link says, and leads a session as it did then.
_COMMON: Final = """\
boot=; { read -r boot </proc/sys/kernel/random/boot_id; } 2>/dev/null || boot=${DROVER_BOOT_ID-}
look() { stat=
{ while IFS= read -r line || [ -n "$line" ]; do stat="$stat $line"; done <"/proc/$1/stat"; } 2>/dev/null
set -- ${stat##*) }; seen=${1-} parent=${2-} group=${3-} session=${4-} began=${20-}; [ -n "$began" ]; }
is_count() { case $1 in "" | *[!0-9]* | ????????????????????*) return 1 ;; esac; }
is_pid() { is_count "$1" && [ "$1" -gt 1 ] && [ "$1" -le 4194304 ]; }
is_alive() { is_pid "$1" && look "$1" && [ "$seen" != Z ] && [ "$began" = "$2" ]; }
leads() { is_alive "$1" "$2" && [ "$group" = "$1" ] && [ "$session" = "$1" ]; }
pair() { first= second= third= fourth=; set -f; set -- $(readlink "$1"); set +f
first=${1-} second=${2-} third=${3-} fourth=${4-}; }
send() { pair "$1/pid"; if [ -z "$first" ]; then ln -s closed "$1/pid" 2>/dev/null || pair "$1/pid"; fi
leads "$first" "$second" || return 0
kill -s "$2" -- "-$first" 2>/dev/null || kill -s "$2" "$first" 2>/dev/null; }
is_foreign() { leads "$first" "$second" && ! kill -s 0 "$first" 2>/dev/null && leads "$first" "$second"; }
is_left() { pair "$1/pid"; leads "$first" "$second" || leads "$third" "$fourth"; }
is_noted() { code=; { read -r code <"$1/end.new"; } 2>/dev/null; is_count "$code"; }
store() { sync -- "$@" 2>/dev/null || sync; }
nap() { sleep "$1" 2>/dev/null || sleep 1; }
heeded=--default-signal=INT,QUIT
"""

_KEEPER: Final = (
    _COMMON
    + """\
waiter_script=$1 entry=$2 limit=$3 grace=$4 home=$5 mask=$6; shift 6
unset DROVER_BOOT_ID
trap : HUP INT QUIT TERM USR1 USR2 ALRM PWR PIPE
cd -P "./$entry" || exit
half=$((limit / 2))
take() { dd bs="$1" count=1 2>/dev/null >>"$2" && size=$(wc -c <"$2"); }
keep() {
exec <"$1.pipe"; at=0 size=0 passed=0 old=0
while [ $at -lt $half ]; do
room=$((half - at)); [ $room -lt 65536 ] || room=65536
take $room "$1" || return 1
[ "$size" -gt $at ] || return 0
at=$size
done
at=0
while :; do
take 65536 "$1.tail" || return 1
[ "$size" -gt $at ] || return 0
at=$size
[ $at -ge $half ] || continue
passed=$((passed + old)); old=$at at=0
echo $passed >"$1.passed" && mv "$1.tail" "$1.before" || return 1
done
}
drain() { keep "$1" || { : >"$1.lost"; cat <"$1.pipe" >/dev/null; }; : >"$1.all"; }
look $$
ln -s "$$ $began $boot" state || exit
store .
mkfifo out.pipe err.pipe
drain out & out=$!
drain err & err=$!
setsid /bin/sh -c "$waiter_script" drover-waiter "$home" "$mask" "$@" >out.pipe 2>err.pipe & waiter=$!
while wait $waiter; [ $? -gt 128 ] && look $waiter && [ "$seen" != Z ] && [ "$parent" = $$ ]; do :; done
is_noted . || { while send . KILL; is_left .; do ! is_foreign || nap 5; nap 0.1; done
is_noted . || kill -s KILL -- -$$; }
{ sleep "$grace"; kill -s KILL $out $err; } 2>/dev/null & ticker=$!
wait $out; wait $err
kill $ticker 2>/dev/null
until { store out err end.new && mv end.new end; } || [ -e end ]; do sleep 5; done
store .
kill -s KILL -- -$$
"""
)

# A shell lets what it starts with & ignore SIGINT and SIGQUIT; the command does not, where env(1) is that of coreutils.
# Nothing is executed between the end of the command and the note of it: kill and printf are parts of the shell. What is
# left of its group is killed at once: as long as there is any, no other group has that number.
_WAITER: Final = (
    _COMMON
    + """\
home=$1 mask=$2; shift 2
trap : HUP INT QUIT TERM USR1 USR2 ALRM PWR PIPE
look $$
case $1 in *=*) ;; *) ! env $heeded true 2>/dev/null || set -- env $heeded "$@" ;; esac
setsid /bin/sh -c 'IFS= read -r stat </proc/$$/stat; waiter=$1 home=$2 mask=$3; shift 3
began() { shift 19; echo "$1"; }
ln -s "$$ $(began ${stat##*) }) $waiter" pid || exit 125
cd -P -- "$home" || exit 125
unset OLDPWD; umask "$mask"; exec "$@"' sh "$$ $began" "$home" "$mask" "$@" <in & command=$!
while :; do
wait $command; code=$?
[ $code -gt 128 ] || break
look $command && [ "$seen" != Z ] && [ "$parent" = $$ ] && continue
wait $command; again=$?
[ $again -eq 127 ] || code=$again
break
done
kill -s KILL -- -$command 2>/dev/null
until printf '%-63s\\n' $code 1<>end.new; do nap 5; done
"""
)

_ATTACH: Final = (
    _COMMON
    + """\
keeper_script=$1 waiter_script=$2 verb=$3 spool=$4 site=$5 grace=$6; shift 6
case $spool in "~/"*) spool=$HOME/${spool#"~/"};; esac
die() { trap - "$1"; ulimit -c 0; kill -s "$1" $$; exit 125; }
refuse() { [ "$verb" != check ] || { echo "$1"; exit 1; }; echo "drover: $1" >&2; die ALRM; }
mask=$(umask); umask 077
command -v setsid >/dev/null || refuse "detached jobs need setsid(1) on their host"
[ -n "$boot" ] || refuse "detached jobs need /proc on their host"
trust() { is_bad=$(find "$@" -prune \\( ! -user 0 ! -user "$me" \\
-o ! -type l \\( -perm -0020 -o -perm -0002 \\) ! -perm -1000 \\) -print) \\
|| refuse "the directories above the spool $spool cannot be looked at"
[ -z "$is_bad" ] || refuse "others may replace the spool $spool: $(echo "$is_bad" | head -n 1) must belong to root or \
user $me, and others may not write to it (chmod go-w); or name another spool"; }
made() { [ -d "$1" ] || mkdir -- "$1" 2>/dev/null || [ -d "$1" ] || mkdir -- "$1"; }
reach() {
place= rest=$1 links=0
set --
while [ -n "$rest" ]; do
part=${rest%%/*}
case $rest in */*) rest=${rest#*/} ;; *) rest= ;; esac
case $part in "" | .) continue ;; ..) place=${place%/*}; continue ;; esac
set -- "$@" "$place/"
if [ -L "$place/$part" ]; then
links=$((links + 1)); [ $links -le 40 ] || refuse "the spool $spool: too many symbolic links"
set -- "$@" "$place/$part"
to=$(readlink "$place/$part"); rest=$to/$rest
case $to in /*) place= ;; esac
continue
fi
place=$place/$part
if [ ! -d "$place" ]; then
trust "$@"
[ "$verb" != check ] || [ -e "$place" ] || exit 0
made "$place" || refuse "the spool $spool cannot be written"
fi
done
trust "$@"
}
me=$(id -u) home=$(pwd -P) || refuse "the directory of this agent type cannot be found"
case $spool in /*) ;; *) refuse "the spool $spool must begin with / or ~/" ;; esac
reach "$spool"
cd -P "$place/" || refuse "the spool $spool cannot be entered"
[ -n "$(find . -prune -user "$me" -perm 0700)" ] || refuse "the spool $spool must be ours, and its mode 0700"
[ "$verb" != check ] || exit 0
mkdir -p "./$site" && cd -P "./$site" || refuse "the spool $spool cannot be written"
keeps() { pair "$1/state"; [ "$third" = "$boot" ] && is_alive "$first" "$second"; }
marked() { grep -lszxF "DROVER_ENTRY=$place/$site/$1" $2 2>/dev/null; }
end_marked() {
found=1 times=0
while every=$(marked "$1" "/proc/[0-9]*/environ"); [ -n "$every" ]; do
found=0 times=$((times + 1))
[ $times -le $((grace * 20 + 50)) ] || refuse "what is left of attempt $1 cannot be ended"
for each_pid in $every; do
each_pid=${each_pid#/proc/}; each_pid=${each_pid%/environ}
is_pid "$each_pid" && look "$each_pid" && since=$began || continue
marked "$1" "/proc/$each_pid/environ" >/dev/null && is_alive "$each_pid" "$since" && kill -s KILL "$each_pid"
done
nap 0.1
done
return $found
}
finish() {
if ln -s closed "$1/state" 2>/dev/null; then end_marked "$1"; return 0; fi
pair "$1/state"; [ "$third" = "$boot" ] || return 0
n=0
[ ! -e "$1/end" ] && keeps "$1" && { send "$1" HUP; ! is_foreign || { n=$((grace * 10)); nap 1; }; }
while keeps "$1" && [ ! -e "$1/end" ]; do
n=$((n + 1)); [ $n -le $((grace * 10)) ] || { send "$1" KILL; ! is_foreign || return 1; }
[ $n -le $((grace * 20 + 50)) ] || return 1
nap 0.1
done
[ -e "$1/end" ] || { while send "$1" KILL; is_left "$1"; do
! is_foreign || return 1
n=$((n + 1)); [ $n -le $((grace * 20 + 50)) ] || return 1; nap 0.1; done; end_marked "$1"; }
return 0
}
drop() { [ "$(readlink "$1/state")" != closed ] || return 0; rm -rf -- "./$1"; }

case $verb in release)
find . -mindepth 1 -maxdepth 1 -type d -mtime +1 -name '*.*' | while IFS= read -r each; do
[ "$(readlink "$each/state")" != closed ] || rm -rf -- "$each"
done
failed=0
for name in "$@"; do
made "$name" || { failed=1; continue; }
if finish "$name"; then drop "$name"; else failed=1; fi
done
for each in *.*; do
is_count "${each%%.*}" && is_count "${each#*.}" && [ -d "$each" ] || continue
[ "$(readlink "$each/state")" = closed ] || echo "$each"
done
exit $failed ;;
esac

job=$1 attempt=$2 turn=$3 limit=$4 told=$5; shift 5
entry=$job.$attempt
is_newer() { for each in "$entry"/turn.*; do
is_count "${each##*.}" && [ "${each##*.}" -gt "$turn" ] && return 0; done; return 1; }
pass() { is_newer || [ -e "$entry/end" ] || { send "$entry" "$1"; [ "$1" != KILL ] || ! is_foreign || die PROF; }; }
signals="INT QUIT TERM USR1 USR2 ALRM CONT WINCH"
for name in $signals; do trap "pass $name" $name; done
trap "pass KILL" PWR; trap "pass STOP" TSTP; trap "pass HUP" VTALRM
if [ "$verb" = start ] && mkdir -- "$entry" 2>/dev/null; then
for each in "$job".*; do
other=${each##*.}
is_count "$other" || continue
[ "$other" -le "$attempt" ] || { ln -s closed "$entry/state"; die USR1; }
[ "$other" -lt "$attempt" ] || continue
finish "$each" || { rm -rf -- "$entry"; refuse "attempt $other of this job cannot be ended"; }
drop "$each"
done
: >"$entry/turn.$turn" && cat >"$entry/in" && : >"$entry/out" && : >"$entry/err" \\
&& printf '%-63s\\n' '' >"$entry/end.new" && store "$entry/end.new" "$entry/in" "$entry" \\
|| { rm -rf -- "$entry"; refuse "the spool takes no more"; }
unset DROVER_WORD
DROVER_KEEPER=$entry DROVER_ENTRY=$place/$site/$entry setsid /bin/sh -c "$keeper_script" drover-keeper \\
"$waiter_script" "$entry" "$limit" "$grace" "$home" "$mask" "$@" </dev/null >/dev/null 2>&1 &
keeper=$! n=0
until [ -L "$entry/state" ]; do
kill -s 0 $keeper 2>/dev/null && look $keeper && [ "$seen" != Z ] || [ -L "$entry/state" ] || die USR2
nap 0.02
done
fi
made "$entry" || refuse "the spool takes no more"
: >"$entry/turn.$turn" || refuse "the spool takes no more"
if ln -s closed "$entry/state" 2>/dev/null; then store "$entry" .; fi
pair "$entry/state"
[ "$first" != closed ] || { ! end_marked "$entry" || die USR2; die USR1; }
[ -n "$third" ] || refuse "what the spool holds of the job cannot be read"
keeper=$first its_start=$second its_boot=$third
[ -z "$told" ] || pass "$told"
cd -P "./$entry" || refuse "what the spool holds of the job cannot be read"
name=$entry entry=.
echo "$keeper" || die TERM
is_whole() { [ -e out.all ] && [ -e err.all ]; }
lost() {
[ ! -e end ] || return 0
n=0
if [ "$its_boot" = "$boot" ]; then
is_noted . || while send . KILL; is_left .; do
! is_foreign || nap 5
n=$((n + 1)); [ $n -lt 100 ] || ! leads "$third" "$fourth" || kill -s KILL "$third"
nap 0.1
done
while is_noted . && ! is_whole && [ $n -lt $((grace * 10)) ]; do n=$((n + 1)); nap 0.1; done
fi
pair pid
if [ "$first" != closed ] && is_noted . && [ "$code" -le 128 ] && { [ "$code" -eq 0 ] || is_whole; }; then
is_whole || : >cut
store out err end.new; mv end.new end 2>/dev/null || [ -e end ] || refuse "its exit status cannot be kept"
return 0
fi
end_marked "$name"
die USR2
}
deaf() { trap "" HUP $signals PWR TSTP VTALRM; }
piece() ( deaf; tail -c +$(($2 + 1)) "$1" | head -c $(($3 - $2)) )
out_at=0 err_at=0
emit() {
set -- $(deaf; wc -c out err)
[ "$1" -gt $out_at ] && { piece out $out_at "$1" || die TERM; out_at=$1 quiet=0; }
[ "$3" -gt $err_at ] && { piece err $err_at "$3" >&2 || die TERM; err_at=$3 quiet=0; }
}
rest() (
deaf
[ -e "$1.tail" ] || [ -e "$1.before" ] || return
set -- "$1" "$(cat "$1.before" "$1.tail" 2>/dev/null | wc -c)" "$(cat "$1.passed" 2>/dev/null || echo 0)"
most=$((limit - limit / 2 - 64)); [ $most -gt 0 ] || most=0; left_out=$(($3 + $2 - most))
if [ $left_out -gt 0 ]; then
printf '\\n[... %s bytes left out ...]\\n' $left_out; cat "$1.before" "$1.tail" 2>/dev/null | tail -c $most
else cat "$1.before" "$1.tail" 2>/dev/null; fi
)
quiet=0
while [ ! -e end ]; do
[ "$its_boot" = "$boot" ] && is_alive "$keeper" "$its_start" || lost
quiet=$((quiet + 1)); emit
if [ $quiet -lt 50 ]; then pause=0.1; elif [ $quiet -lt 100 ]; then pause=0.3; else pause=1; fi
{ deaf; nap $pause; } & wait $!
done
emit; rest out; rest err >&2
for name in out err; do
[ ! -e $name.lost ] || echo "drover: the spool was full, the rest of std$name is lost" >&2
done
[ ! -e cut ] || echo "drover: the keeper was killed, the end of the output may be lost" >&2
read -r code <end || refuse "its exit status cannot be read"
exit $code
"""
)


def words_of(keeper: Keeper, job: int, attempt: int, argv: Sequence[bytes]) -> tuple[bytes, ...]:
    """Return the argv that starts a command under a keeper, or adopts one, and attaches to it."""
    which = (job, attempt, keeper.turn, keeper.limit, keeper.told, *(argv if keeper.verb == "start" else ()))
    return _words(keeper.verb, keeper.spool, keeper.site, keeper.grace, *which)


def release_words(spool: str, site: str, entries: Sequence[tuple[int, int]], grace: int) -> tuple[bytes, ...]:
    """Return the argv that ends keepers, removes their entries, and prints the names of those that are left."""
    return _words("release", spool, site, grace, *[f"{job}.{attempt}" for job, attempt in entries])


def check_words(spool: str) -> tuple[bytes, ...]:
    """Return the argv that exits with 0 if jobs may be kept in a spool, else prints why; changes nothing."""
    return _words("check", spool, "", 1)


def _words(verb: str, spool: str, site: str, grace: int, *rest: object) -> tuple[bytes, ...]:
    words = (verb, spool, site, grace, *rest)
    said = [word if isinstance(word, bytes) else os.fsencode(str(word)) for word in words]
    return (b"/bin/sh", b"-c", _ATTACH.encode(), b"drover-attach", _KEEPER.encode(), _WAITER.encode(), *said)


def carried(number: int) -> int:
    """Return the signal by which an attach script is asked to send this one.

    SIGHUP itself comes from a guardian or from sshd(8), when the daemon is gone: the attach script ends, no more.
    """
    carriers: dict[int, int] = {
        signal.SIGKILL: signal.SIGPWR, signal.SIGSTOP: signal.SIGTSTP, signal.SIGHUP: signal.SIGVTALRM,
    }  # fmt: skip
    return carriers.get(number, number)


def read_end(end: Event) -> Event:
    """Return how a command has ended, as the end of its attach script says; else what that says of its own."""
    if not isinstance(end, Gone) or end.lost:
        return end
    if end.signal == LEFT:
        why = "its command runs as another user and could not be ended: it is left"
        return Gone(end.slot, why=why, left=True)
    if end.signal is not None:
        return replace(end, keeper_said=SAYS.get(end.signal, "gone"), why=f"the attached process died of {end.signal}")
    if end.code is not None and end.code > SIGNAL_BASE and end.code - SIGNAL_BASE in signal.valid_signals():
        return Gone(end.slot, signal=signal_name(end.code - SIGNAL_BASE))
    return end
