"""`drover agent-check PROGRAM`: play the scheduler to a program, and say what it does wrong and how to mend it.

Each check starts a process of its own, or uses the one of the check before while that is fine. The texts are for
the author of a first agent. FAIL is what the daemon kills agents for or waits for without success, WARN what works and
will hurt one day.
"""

import os
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from scheduler.cli.agent_process import ENDS, KEPT, NO_ROWS, AgentProcess, Talk, mistakes, shown, talk
from scheduler.cli.output import FAIL, OK, WARN, Finding
from scheduler.drivers.process_spec import ProcessSpec
from scheduler.drivers.system_files import require_temporary_folder
from scheduler.model import protocol
from scheduler.model.wrong_answers import why_no_ok

COLUMN: Final = re.compile(rb'(?:^| )([A-Za-z_]\w*)="')
CANARY: Final = b"$(:>%s) `:>%s`; :>%s"
REFUSAL: Final = b"ERROR drover agent-check refuses each statement once\nOK\n"
SEVERAL: Final = 3  # lines sent at once
FLUSH: Final = (
    "the OK came only when its input had ended: flush standard output after each line "
    "(Python print(flush=True), C setvbuf(stdout, NULL, _IOLBF, BUFSIZ), Perl $| = 1, else stdbuf -oL)"
)
END_IN_MID_ITEM: Final = "end of input and SIGHUP in the middle of an item"
CATCH: Final = (
    "catch what goes wrong with an item, print FAIL and the reason, then OK: six deaths in a row close the slot"
)

VALUES: Final = {  # one of each type of the database, as its text
    b"id": b"7", b"size": b"12345678901", b"ratio": b"0.1", b"ok": b"t", b"at": b"2026-11-24 04:00:00.123456+00",
    b"day": b"infinity", b"data": b"\\x00ff", b"doc": b'{"a": [1, "b c"]}', b"tags": b'{a,"b c"}', b"name": b"O'Hara",
    b"uuid": b"6ecd8c99-4036-403d-bf84-cf8400f67836", b"empty": b"", b"gone": None,
}  # fmt: skip


class Limits(NamedTuple):
    """How long is waited, in seconds."""

    start: float = 10.0  # for the first OK
    ok: float = 10.0  # for each line about an item
    item: float = 60.0  # for an item of which it goes on to say something
    hint: float = 5.0  # until a hint is given
    quiet: float = 0.1  # in which nothing more may come behind an OK
    exit: float = 1.0  # for the exit when the input has ended
    hang_up: float = 3.0  # and when SIGHUP was sent


class Referee:
    """Checks one program. `items` are lines without newline; without any, items of our own are tried."""

    def __init__(self, spec: ProcessSpec, items: Sequence[bytes], limits: Limits, hint: Callable[[str], None]) -> None:
        self._spec, self._given, self._limits, self._hint = spec, items, limits, hint
        self._agent: AgentProcess | None = None
        require_temporary_folder("drover agent-check")
        self._folder = tempfile.TemporaryDirectory(prefix="drover-agent-check-")
        self._is_silent = False
        self.statements: list[bytes] = []  # of its DB lines, each once

    def findings(self) -> Iterator[Finding]:
        """Yield what is found, as it is found."""
        checks = (
            self._start, self._items, self._several_at_once, self._end_of_input, self._hostile_items,
            self._longest_line, self._hang_up, self._cut_line, self._end_in_mid_item, self._refused_statement,
        )  # fmt: skip
        needs_answers = (self._several_at_once, self._hostile_items, self._longest_line, self._refused_statement)
        try:
            for check in checks:
                if self._is_silent and check in needs_answers:
                    continue  # each would take the whole limit again
                for severity, text in check():
                    yield severity, text
                    if severity == FAIL and check == self._start:
                        return
                    if severity == FAIL:
                        self._drop()
        finally:
            self._drop()
            self._folder.cleanup()

    # ---- processes

    def _ready(self) -> AgentProcess:
        """Return an agent that has said its first OK: the one that we have, or a new one."""
        if self._agent is None:
            self._agent = AgentProcess(self._spec)
            any(protocol.parse(line)[0] == protocol.OK for line in self._agent.lines(self._limits.start))
        return self._agent

    def _drop(self) -> None:
        if self._agent is not None:
            self._agent.kill()
            self._agent = None

    def _talk(self, line: bytes, answer: bytes = NO_ROWS) -> Talk:
        """Return what is said about an item; an agent that did not end it by OK is not used again."""
        told = talk(self._ready(), line + b"\n", self._limits.ok, answer=answer, most_s=self._limits.item)
        if told.outcome in ("silent", "died"):
            self._drop()
        return told

    # ---- checks: each yields what it finds

    def _start(self) -> Iterator[Finding]:
        """Wait for the first OK, with a hint meanwhile."""
        agent = self._agent = AgentProcess(self._spec)
        said: list[bytes] = []
        hint_s = min(self._limits.hint, self._limits.start)
        for limit_s, is_hint in ((hint_s, True), (self._limits.start - hint_s, False)):
            for line in agent.lines(limit_s):
                if protocol.parse(line)[0] == protocol.OK:
                    yield from self._started(agent, said)
                    return
                said = [*said[-KEPT:], line]
            if agent.is_over:
                yield FAIL, self._ended_early(agent, said)
                return
            if is_hint and hint_s < self._limits.start:
                self._hint(f"no OK after {limit_s:g} s; {self._what(said, agent)}")
        yield FAIL, self._never_ready(agent, said)

    def _started(self, agent: AgentProcess, said: Sequence[bytes]) -> Iterator[Finding]:
        yield OK, "start: it said OK"
        for text in (text for line in said for text in mistakes(line)):
            yield WARN, f"start: {text}"
        if self._says_more():
            yield FAIL, "start: it said OK twice: say it once when ready, then once after each item, or it is killed"
        elif agent.is_over:
            yield FAIL, f"start: it said OK and ended, {agent.end_in_words(self._limits.exit)}: it must read lines then"

    def _ended_early(self, agent: AgentProcess, said: Sequence[bytes]) -> str:
        end, last = agent.end_in_words(self._limits.exit), self._what(said, agent)
        if end == "exit status 0":
            advice = 'a program that works once and exits is an exec agent: set kind = "exec" for its type'
        else:
            advice = "print OK and a newline, then read lines from standard input until it ends"
        return f"start: it ended before its first OK, {end}; {last}; {advice}"

    def _never_ready(self, agent: AgentProcess, said: list[bytes]) -> str:
        """Return why there was no OK; at the end of its input a program flushes what it has kept back."""
        what = self._what(said, agent)
        agent.close_input()
        status = agent.status_within(self._limits.exit)
        while (line := agent.line(0)) is not None:
            if protocol.parse(line)[0] == protocol.OK:
                return f"start: no OK within {self._limits.start:g} s: {FLUSH}"
            what = self._what([*said, line], agent)
        end = f"at the end of its input {agent.end_in_words(self._limits.exit)}; " if status else ""
        return f"start: no OK within {self._limits.start:g} s; {end}{what}"

    def _what(self, said: Sequence[bytes], agent: AgentProcess) -> str:
        """Return what was said instead of OK, and the mistake that this shows."""
        if not said and not agent.rest:
            return "it said nothing: does it print OK when it is ready, and is standard output flushed after each line?"
        if not said:
            return why_no_ok(agent.rest, is_whole=False)
        return next(mistakes(said[-1]), why_no_ok(said[-1]))

    def _items(self) -> Iterator[Finding]:
        """Try the items that are given, or one parameter and one row."""
        outcomes = []
        for line in self._given or self._own_items():
            told = self._talk(line)
            outcomes.append(told.outcome)
            yield from self._judged(f"item {shown(line)}", told, FAIL)
            self._is_silent |= told.outcome == "silent"
            self.statements += [each for each in dict.fromkeys(told.statements) if each not in self.statements]
            for statement in told.statements[:1]:
                yield OK, f"DB line: {shown(statement)}: answered with no rows; its type needs db and the statement"
        if outcomes and all(outcome in ENDS.values() for outcome in outcomes):
            advice = "nothing that it does well was seen" if self._given else "give yours with --item"
            yield WARN, f"all items failed; {advice}"

    @property
    def _uses_database(self) -> bool:
        """Return whether it has said a DB line."""
        return bool(self.statements)

    def _own_items(self) -> list[bytes]:
        file = Path(self._folder.name, "file")
        file.write_bytes(b"drover\nagent-check\n")
        row = {b"path": os.fsencode(file), **VALUES}
        return [os.fsencode(file), record(row)]

    def _judged(self, what: str, told: Talk, of_death: str) -> Iterator[Finding]:
        """Yield how an item went; `of_death` is the severity if the agent dies of it."""
        for text in dict.fromkeys(told.mistakes):
            yield WARN, f"{what}: {text}"
        if told.outcome == "died":
            severity: Finding = (FAIL if of_death == FAIL else WARN), f"{what}: it died, {told.reason}; {CATCH}"
            yield severity
        elif told.outcome == "silent":
            last = f" after it said: {told.last_words}" if told.said else ""
            text = f"no OK within {self._limits.ok:g} s{last}; print OK when an item is finished, and flush"
            yield FAIL, f"{what}: {text}"
        elif self._agent is not None and self._agent.has_unread:
            text = "it said OK before it had read all of it: read to the newline, however long the line is"
            yield FAIL, f"{what}: {text}"
        elif self._says_more():
            yield FAIL, f"{what}: it said OK twice: say it once for each item, or it is killed"
        else:
            text = f", {told.reason}" if told.reason else f", {told.last_words}" if told.said else ""
            yield OK, f"{what}: {told.outcome} in {told.seconds:.2g} s{text}"

    def _says_more(self) -> bool:
        """Return whether another OK comes when no item is in hand."""
        if self._agent is None:
            return False
        return any(protocol.parse(line)[0] == protocol.OK for line in self._agent.lines(self._limits.quiet))

    def _several_at_once(self) -> Iterator[Finding]:
        """Send lines ahead, as the daemon does to fast agents: a child of the agent may read them in its place.

        Types with DB lines get one line at a time.
        """
        if self._uses_database:
            return
        lines = [(self._given or self._own_items())[0]] * SEVERAL
        agent, count = self._ready(), 0
        agent.send(b"".join(line + b"\n" for line in lines))
        while count < SEVERAL and (line := agent.line(self._limits.ok)) is not None:
            count += protocol.parse(line)[0] == protocol.OK
        if count == SEVERAL:
            yield OK, f"{SEVERAL} lines sent at once: {SEVERAL} OK"
        else:
            advice = "give that </dev/null as standard input, or set window = 1 for its type"
            yield FAIL, f"{SEVERAL} lines sent at once: {count} OK: what it starts reads its lines; {advice}"

    def _end_of_input(self) -> Iterator[Finding]:
        agent = self._ready()
        agent.close_input()
        status = agent.status_within(self._limits.exit)
        if status is None:
            advice = "leave the loop at end of file: each stop would take 20 s, and then SIGKILL"
            problem = f"it had not exited {self._limits.exit:g} s after its standard input ended"
            yield FAIL, f"end of input: {problem}; {advice}"
        elif status:
            yield WARN, f"end of input: {agent.end_in_words(self._limits.exit)}; end of input is no error: exit with 0"
        else:
            yield OK, "end of input: it exits"
        self._drop()

    def _hang_up(self) -> Iterator[Finding]:
        agent = self._ready()
        agent.hang_up()
        if agent.status_within(self._limits.hang_up) is None:
            advice = "do not ignore it, or clean up and exit within 20 s"
            yield WARN, f"SIGHUP: it ignores it; in the middle of an item it is the request to exit: {advice}"
        else:
            yield OK, "SIGHUP: it exits"
        self._drop()

    def _cut_line(self) -> Iterator[Finding]:
        """Send a line without its end, then the end of input: what is cut may mean something else, as a short path."""
        agent = self._ready()
        agent.send((self._given or self._own_items())[0])
        agent.close_input()
        agent.status_within(self._limits.exit)
        said = [protocol.parse(line)[0] for line in iter(lambda: agent.line(0), None)]
        if protocol.OK in said or protocol.RESULT in said or protocol.DB in said:
            yield WARN, "a line cut by the end of input: it works on it; a line without a newline is no item: exit"
        else:
            yield OK, "a line cut by the end of input: not worked on"
        self._drop()

    def _end_in_mid_item(self) -> Iterator[Finding]:
        agent = self._ready()
        agent.send((self._given or self._own_items())[0] + b"\n")
        agent.close_input()
        agent.hang_up()
        if agent.status_within(self._limits.hang_up) is None:
            yield WARN, f"{END_IN_MID_ITEM}: it had not exited; it gets SIGKILL after 20 s"
        else:
            yield OK, f"{END_IN_MID_ITEM}: it exits"
        self._drop()

    def _hostile_items(self) -> Iterator[Finding]:
        """Try values with everything that is quoted, control bytes, and bytes that are not UTF-8."""
        canary = Path(self._folder.name, "canary")
        name = os.fsencode(canary)
        bad = 0
        for what, line in hostile_items(self._given, CANARY % (name, name, name)):
            for severity, text in self._judged(what, self._talk(line), WARN):
                if severity != OK:
                    bad += 1
                    yield severity, text
        if canary.exists():
            yield WARN, "quoting: a shell ran a part of an item; never give data to a shell or to eval, unless meant to"
        elif not bad:
            yield OK, "quoting: quotes, dollars, control bytes, bytes that are not UTF-8: each item got its OK"

    def _longest_line(self) -> Iterator[Finding]:
        what = f"a line of {protocol.LINE_LIMIT} bytes"
        for severity, text in self._judged(what, self._talk(b"x" * protocol.LINE_LIMIT), WARN):
            yield severity, text if severity != OK else f"{what}: one OK"

    def _refused_statement(self) -> Iterator[Finding]:
        """Answer DB lines with ERROR, if it has said any."""
        if not self._uses_database:
            return
        told = self._talk((self._given or self._own_items())[0], REFUSAL)
        yield from self._judged("a DB line answered with ERROR", told, WARN)
        if told.outcome == "done":
            yield WARN, "a DB line answered with ERROR: the item was done all the same; print FAIL if it was not saved"


def record(row: dict[bytes, bytes | None]) -> bytes:
    """Return a row as the line that an agent gets, without its newline."""
    return protocol.line_maker(list(row))(tuple(row.values()))[:-1]


def hostile_items(given: Sequence[bytes], canary: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield what each is and a line: rows with the columns of those that are given, parameters if one is given."""
    values = {
        "shell commands": canary,
        "quotes and shell characters": b'-n "two"  \\ \'one\' * ? #x="1" ${HOME} ',
        "a newline, a tab and control bytes": b"a\nb\tc\rd\x01\x1b\x7f",
        "bytes that are not UTF-8": b"caf\xe9 \xff\xfe " + "ä€𝄞".encode(),
    }
    columns = next((COLUMN.findall(line) for line in given if COLUMN.match(line)), [])
    if columns or not given:
        for what, value in values.items():
            yield f"a row with {what}", record(dict.fromkeys(columns or [b"path", b"id"], value))
    if not given or not all(COLUMN.match(line) for line in given):
        for what, value in values.items():
            yield f"a parameter with {what}", value.replace(b"\n", b" ")
