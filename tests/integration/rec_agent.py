"""An agent that does what it is told and writes down all it was given: `rec_agent.py RECORD` (standard library only).

A line of RECORD is a JSON object: pid, time (monotonic seconds), host, agent, slot, event ("up", "line", "end"), line.
What to do stands in the line: one argument, or the value of column `act`, is `verb` or `verb:rest`:

    gate:PATH       wait until PATH exists           nap:SECONDS     work for so long
    say:TEXT        print TEXT before the OK         die:STATUS      exit at once
    kill:NUMBER     die of that signal               mute            never answer

Several are joined by `;`. Anything else is done at once.

Tests start thousands of these, so it imports what an interpreter has in it; json and re take longer than all the rest.
"""

import os
import sys
import time
from _json import encode_basestring_ascii as quoted

POLL_S = 0.005


def main() -> None:
    note("up")
    reply("OK")
    for line in open(0, encoding="utf-8", errors="surrogateescape", newline="\n"):  # noqa: SIM115
        work(line.rstrip("\n"))
    note("end")


def work(line: str) -> None:
    note("line", line)
    for step in (act(line) if 'act="' in line else line).split(";"):
        verb, _, rest = step.partition(":")
        ACTS.get(verb, nothing)(rest)
    reply("OK")


def act(line: str) -> str:
    """Return the value of column `act` of a row, or the line if it has none."""
    import re

    found = re.search(r'(?:^| )act="((?:[^"\\]|\\.)*)"', line)
    return re.sub(r"\\(.)", r"\1", found[1]) if found else line


def gate(path: str) -> None:
    while not os.path.exists(path):
        time.sleep(POLL_S)


def nap(seconds: str) -> None:
    time.sleep(float(seconds))


def die(status: str) -> None:
    os._exit(int(status))


def kill(number: str) -> None:
    os.kill(os.getpid(), int(number))


def mute(_rest: str) -> None:
    while True:
        time.sleep(60)


def nothing(_rest: str) -> None:
    pass


def reply(text: str) -> None:
    print(text, flush=True)


ACTS = {"gate": gate, "nap": nap, "say": reply, "die": die, "kill": kill, "mute": mute}


def note(event: str, line: str | None = None) -> None:
    given = os.environ.get
    texts = {
        "host": given("DROVER_HOST"), "agent": given("DROVER_AGENT"), "slot": given("THREAD_UNIQUE"),
        "event": event, "line": line,
    }  # fmt: skip
    pairs = ", ".join(f'"{name}": {"null" if text is None else quoted(text)}' for name, text in texts.items())
    entry = f'{{"pid": {os.getpid()}, "time": {time.monotonic()!r}, {pairs}}}\n'
    file = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(file, entry.encode())
    os.close(file)


main()
