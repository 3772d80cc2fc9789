"""Run the tests of each mutant in a child of a process that has imported them, on a server of its own."""

import gc
import inspect
import os
import pickle
import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest

from scheduler.drivers.statements import Query, load
from scheduler.package_data import schema_dir
from tests.mutation.sql import objects
from tests.mutation.sql.mutants import Mutant
from tests.mutation.sql.reach import Recorder, Uses
from tests.mutation.sql.servers import Server
from tests.mutation.warm import TIME_OUT, Warm, child

REFUSED: Final = "(the server refuses it)"  # no mutant
# The tests of a mutant may take this many times as long as they did without it.
TIMES: Final = 5
LEAST_S: Final = 60
Work = tuple[Mutant, Sequence[str], float]  # with its tests, and how long they take


def measure(warm: Warm, tests: Sequence[str], servers: Sequence[Server], place: Path) -> dict[str, Uses]:
    """Run tests, a share of them on each server, and return what each uses; those that fail are left out."""
    files = [place / f"part-{number}" for number in range(len(servers))]
    pids = [
        child(partial(_record, warm, tests[number :: len(servers)], server, file))
        for number, (server, file) in enumerate(zip(servers, files, strict=True))
    ]
    found: dict[str, Uses] = {}
    for pid, file in zip(pids, files, strict=True):
        if os.waitpid(pid, 0)[1]:
            raise SystemExit("what tests use could not be measured")
        part, failed = pickle.loads(file.read_bytes())
        found |= part
        for test, report in failed.items():
            print(f"{test} fails without a mutant, so it is left out:\n{report[-1500:]}", flush=True)
    return found


def _record(warm: Warm, share: Sequence[str], server: Server, file: Path) -> int:
    server.take()
    recorder = Recorder(server.conninfo)
    found, failed = dict[str, Uses](), dict[str, str]()
    for test in share:
        recorder.begin()
        began = time.monotonic()
        report = warm.failed(test)
        took_s = time.monotonic() - began
        if report:
            failed[test] = report
        else:
            found[test] = recorder.uses(took_s)
    file.write_bytes(pickle.dumps((found, failed)))
    server.run("alter system reset all", "select pg_reload_conf()")
    return 0


def sources(warm: Warm, tests: Iterable[str]) -> dict[str, str]:
    """Return the text of each test, with its parameters."""
    found: dict[str, str] = {}
    for test in tests:
        item = warm.items.get(test)
        if isinstance(item, pytest.Function):
            found[test] = f"{inspect.getsource(item.function)} {item.name}"
    return found


def run(warm: Warm, work: Iterator[Work], servers: Sequence[Server]) -> Iterator[tuple[Mutant, str]]:
    """Run the tests of each mutant, one mutant on each server at once; yield which test failed."""
    free, children = list(servers), dict[int, tuple[Mutant, int, Server]]()
    for mutant, tests, took_s in work:
        read, write = os.pipe()
        server = free.pop()
        pid = child(partial(_try, warm, mutant, tests, int(LEAST_S + TIMES * took_s), server, write))
        os.close(write)
        children[pid] = (mutant, read, server)
        if not free:
            yield _end(children, free)
    while children:
        yield _end(children, free)


def _end(children: dict[int, tuple[Mutant, int, Server]], free: list[Server]) -> tuple[Mutant, str]:
    pid, status = os.waitpid(-1, 0)
    while pid not in children:  # a process that a test left
        pid, status = os.waitpid(-1, 0)
    mutant, read, server = children.pop(pid)
    free.append(server)
    said = os.read(read, 4096).decode()
    os.close(read)
    return mutant, said or (TIME_OUT if status else "")


def _try(warm: Warm, mutant: Mutant, tests: Sequence[str], limit_s: int, server: Server, write: int) -> int:
    """Run the tests until one fails, and write its name."""
    signal.alarm(limit_s)
    if not _put(mutant, server):
        os.write(write, REFUSED.encode())
        return 0
    for test in tests:
        if warm.failed(test):
            os.write(write, test.encode())
            break
    return 0


def _put(mutant: Mutant, server: Server) -> bool:
    """Make the fault; return False if that is no SQL."""
    with suppress(psycopg.Error):
        if mutant.kind == "query":
            server.take()
            server.parse(put_statement(mutant))
        else:
            server.put(mutant)
        return True
    return False


def put_statement(mutant: Mutant) -> list[str]:
    """Give every module that holds the statement of a mutant its text; return the statements that are changed."""
    text = (schema_dir() / objects.QUERIES).read_text()
    (old_block,) = [each.text for each in objects.of_queries() if each.name == mutant.object]
    before, after = load(text), load(text.replace(old_block, mutant.text))
    changed = {name: query for name, query in after.items() if query.sql != before[name].sql}
    gc.unfreeze()  # what is frozen is not found
    for each in gc.get_objects():
        if isinstance(each, dict):
            _replace(each, before, changed)
    return [query.sql for query in changed.values()]


def _replace(mapping: dict[Any, Any], before: dict[str, Query], changed: dict[str, Query]) -> None:
    for name, query in changed.items():
        held = mapping.get(name)
        if mapping is not before and isinstance(held, Query) and held == before[name]:
            mapping[name] = query
