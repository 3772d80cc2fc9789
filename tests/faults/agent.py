"""The agent of the fault suite: `agent.py RECORD DAEMON [TEXT]` writes each beginning of work into RECORD, appended.

A line of RECORD is `kind token daemon pid job attempt`, with `-` for what a line agent cannot know. RECORD.ended gets
the same line when the work is done and was not refused. With TEXT it is a command that works on this one. The first
word of a text is the token; the others say what to do:

    nap:SECONDS   work for so long     log    say a LOG line     note   ask a registered statement     sql   free SQL
    event         post an event
    blocked:NAME  BLOCKED NAME the first time    stuck:NAME   always
    fail          FAIL the first time  out    print a lot        again:SECONDS   nap, but not the first time
    stop          SIGSTOP the first time

An item of a query has its token in a column of that name.
"""

import os
import re
import signal
import sys
import time

RECORD, DAEMON = sys.argv[1:3]
TOKEN = re.compile(r'token="([^"]*)"')


def main() -> None:
    if len(sys.argv) > 3:
        work(sys.argv[3], "exec", os.environ["DROVER_JOB"], os.environ["DROVER_ATTEMPT"])
        return
    reply("OK")
    for line in sys.stdin:
        work(line.rstrip("\n"), "line", "-", "-")
        reply("OK")


def work(line: str, kind: str, job: str, attempt: str) -> None:
    found = TOKEN.search(line)
    token, *acts = [found[1]] if found else line.split()
    line = f"{'item' if found else kind} {token} {DAEMON} {os.getpid()} {job} {attempt}\n"
    note(RECORD, line)
    is_refused = False
    for act in acts:
        verb, _, rest = act.partition(":")
        is_refused |= bool(ACTS.get(verb, nothing)(token, rest))
    if not is_refused:
        note(f"{RECORD}.ended", line)


def note(path: str, line: str) -> None:
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(file, line.encode())
    os.close(file)


def ask(line: str) -> None:
    reply(line)
    for answer in sys.stdin:
        if answer == "OK\n":
            return
    sys.exit(1)


def fail(token: str, _rest: str) -> bool:
    if is_now := is_first(token):
        reply("FAIL the first time")
    return is_now


def blocked(token: str, name: str) -> bool:
    if is_now := is_first(token):
        reply(f"BLOCKED {name}")
    return is_now


def stuck(_token: str, name: str) -> bool:
    reply(f"BLOCKED {name}")
    return True


def again(token: str, rest: str) -> None:
    if not is_first(token):
        time.sleep(float(rest))


def stop(token: str, _rest: str) -> None:
    if is_first(token):
        os.kill(os.getpid(), signal.SIGSTOP)


def is_first(token: str) -> bool:
    with open(RECORD, encoding="utf-8") as record:
        return sum(line.split()[1] == token for line in record) == 1


def nothing(_token: str, _rest: str) -> None:
    pass


def reply(text: str) -> None:
    print(text, flush=True)


ACTS = {
    "stop": stop,
    "nap": lambda _token, rest: time.sleep(float(rest)),
    "log": lambda token, _rest: reply(f"LOG {token}"),
    "event": lambda token, _rest: reply(f"EVENT {token}"),
    "note": lambda token, _rest: ask(f'DB: note {{"token": "{token}"}}'),
    "sql": lambda token, _rest: ask(f"DB: insert into faults.noted values ('{token}');"),
    "out": lambda token, _rest: reply(token * 100),
    "fail": fail,
    "blocked": blocked,
    "stuck": stuck,
    "again": again,
}

main()
