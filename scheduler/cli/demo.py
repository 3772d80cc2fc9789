"""`drover demo [DIR]`: a scheduler at work on real files, with a database of its own that is removed afterwards.

It does what a site would do: a table of its own, a configuration, one multi-SQL-query per agent type, queued with plain
SQL; agents write their results through registered statements. The daemon is a child, as under systemd; this process
only reads and writes rows.
"""

import json
import os
import re
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from argparse import Namespace
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import psycopg
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from scheduler.cli.output import printable, warn
from scheduler.database import embedded, migrate
from scheduler.drivers.system_files import require_temporary_folder
from scheduler.errors import ConfigError, WorldError
from scheduler.model.config import Config
from scheduler.model.states import DONE, TERMINAL

SAVES: Final = {
    "sha256": "update pfile set sha256 = :sha256, size = :size where pfile_pk = :pfile_pk",
    "mimetype": "update pfile set mimetype = :mimetype where pfile_pk = :pfile_pk",
    "license": "update pfile set license = :license where pfile_pk = :pfile_pk",
}
TABLE: Final = """
    create table if not exists pfile (
      pfile_pk bigint generated always as identity primary key,
      path text not null, sha256 text, size bigint, mimetype text, license text
    );
    grant select on pfile to drover_msq;
    grant select, update on pfile to drover_agentdb
"""
QUEUE: Final = """
    insert into drover.jobqueue (jq_type, jq_args, jq_msq, jq_key)
    values (%s, format('select pfile_pk, path from pfile where %%I is null', %s::text), true, 'pfile_pk')
    returning jq_pk
"""
PROGRESS: Final = """
    select jq_pk, jq_itemsprocessed + jq_itemsfailed, jq_itemstotal, jq_state::text, jq_endtext
      from drover.jobqueue where jq_pk = any(%s)
"""
TOTALS: Final = "select count(*), coalesce(sum(size), 0), count(sha256) + count(mimetype) + count(license) from pfile"
FAILURES: Final = "select item_jq_fk, item_reason, item_line from drover.item_failure limit 5"
SURROGATE: Final = re.compile("[\ud800-\udfff]")  # of a name that is not UTF-8
INSTALLED: Final = ("site-packages", "dist-packages")
ENOUGH: Final = 5000  # files worth a demo
END_S: Final = 30.0  # for the daemon to end after SIGTERM
POLL_S: Final = 0.5  # nothing announces progress


def run_demo(options: Namespace, config: Config) -> int:
    """Run the demo; return the exit status."""
    require_temporary_folder("drover demo")
    paths, where = _files_and_folder(options.directory)
    paths = paths[: options.limit]
    console = Console(highlight=False)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with ExitStack() as stack:
        if options.keep:
            home = Path(tempfile.mkdtemp(prefix="drover-demo."))
            conninfo = stack.enter_context(embedded.join(home / "pg", durable=True, say=warn))
            console.print(f"created an empty database in {home / 'pg'}", soft_wrap=True)
        else:
            home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="drover-demo.")))
            conninfo = stack.enter_context(embedded.temporary(say=warn))
            console.print("created a temporary database, which is removed at the end")
        url = f"embedded:{home / 'pg'}" if options.keep else conninfo
        config_file = _write_config(home, url, options.agents or os.cpu_count() or 1)
        connection = stack.enter_context(psycopg.connect(conninfo, autocommit=True))
        _prepare(conninfo, connection, paths)
        console.print(f"{len(paths)} files below {where}, agents: {', '.join(SAVES)}")
        with _daemon(config_file, home / "drover.log"):
            seconds, failed = _run_jobs(connection, console)
        _print_summary(connection, console, seconds)
        if options.keep:
            console.print(f"To use this database: export DROVER_CONFIG={config_file}", soft_wrap=True)
    return 1 if failed else 0


def _files_and_folder(directory: str | None) -> tuple[list[str], str]:
    """Return the files to work on and where they are: of a directory, or of the running Python's own library."""
    if directory is None:
        standard, installed = Path(sysconfig.get_path("stdlib")), Path(sysconfig.get_path("purelib"))
        paths = sorted(_files(standard, INSTALLED))
        if len(paths) >= ENOUGH:
            return paths, str(standard)
        return paths + sorted(_files(installed)), f"{standard} and {installed}"
    where = Path(directory).resolve()
    if not where.is_dir():
        raise ConfigError(f"demo: {where} is not a directory: name one with files in it")
    if not (paths := sorted(_files(where))):
        raise ConfigError(f"demo: {where} has no files: name a directory that has some")
    return paths, str(where)


def _files(directory: Path, left_out: Collection[str] = ()) -> Iterator[str]:
    """Yield the regular files below a directory, but for folders of these names, and names that no text can hold."""
    for folder, folders, names in os.walk(directory):
        folders[:] = [name for name in folders if name not in left_out]
        for path in (os.path.join(folder, name) for name in names):
            if os.path.isfile(path) and not SURROGATE.search(path):
                yield path


def _write_config(home: Path, url: str, agents: int) -> Path:
    """Write the configuration that a site would have written; a string of JSON is one of TOML too."""
    lines = [f"[database]\nurl = {json.dumps(url, ensure_ascii=False)}\n\n[hosts.local]\nmax = {agents * len(SAVES)}\n"]
    for name, save in SAVES.items():
        lines.append(
            f'[agents.{name}]\ncommand = ["drover-agent-{name}", "--save", "save"]\nslots = {agents}\n'
            f'db = "statements"\n\n'
            f"[agents.{name}.statements]\nsave = {json.dumps(save)}\n"
        )
    path = home / "drover.toml"
    path.write_text("\n".join(lines))
    path.chmod(0o600)
    return path


def _prepare(conninfo: str, connection: psycopg.Connection, paths: list[str]) -> None:
    migrate.update(conninfo)
    connection.execute(TABLE)
    with connection.cursor() as cursor, cursor.copy("copy pfile (path) from stdin") as copy:
        for path in paths:
            copy.write_row((path,))
    connection.execute("analyze pfile")


@contextmanager
def _daemon(config: Path, log: Path) -> Iterator[None]:
    """Run a daemon for as long as the block lasts; its log goes to a file, shown when it ends badly."""
    command = [sys.executable, "-P", "-m", "scheduler.cli.main", "run", "--allow-root", "-c", str(config)]
    with log.open("wb") as output:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, process_group=0)
    try:
        yield
    except WorldError as error:
        raise WorldError(f"{error}; the end of the log of the scheduler: {log.read_text()[-2000:]}") from error
    finally:
        child.terminate()
        try:
            child.wait(END_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def _run_jobs(connection: psycopg.Connection, console: Console) -> tuple[float, bool]:
    """Queue the jobs and show a bar for each until all have ended; return the seconds, and whether one failed."""
    connection.execute("listen drover_event")
    began = time.monotonic()
    columns = (
        TextColumn("{task.description:>10}"), BarColumn(), MofNCompleteColumn(),
        TextColumn("{task.fields[rate]:>9}"), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=console) as bars:
        jobs = {_row(connection, QUEUE, name, name)[0]: bars.add_task(name, total=None, rate="") for name in SAVES}
        while True:
            rows = connection.execute(PROGRESS, [list(jobs)]).fetchall()
            for pk, done, total, _, _ in rows:
                if done and not bars.tasks[jobs[pk]].finished:
                    bars.update(jobs[pk], rate=f"{done / (time.monotonic() - began):.0f}/s")
                bars.update(jobs[pk], completed=done, total=total)
            if all(state in TERMINAL for _, _, _, state, _ in rows):
                break
            for _ in connection.notifies(timeout=POLL_S, stop_after=1):
                pass
    bad = [(pk, state, text) for pk, _, _, state, text in rows if state != DONE]
    for pk, state, text in bad:
        console.print(printable(f"job {pk} {state}: {text}"), markup=False)
    return time.monotonic() - began, bool(bad)


def _print_summary(connection: psycopg.Connection, console: Console, seconds: float) -> None:
    """Print what the agents found, and how fast."""
    files, size, items = _row(connection, TOTALS)
    table = Table(title="What was found")
    for heading in ("of", "is", "files"):
        table.add_column(heading, justify="right" if heading == "files" else "left")
    for column in ("license", "mimetype"):
        query = f"select {column}, count(*) from pfile group by 1 order by 2 desc, 1 limit 8"
        for value, count in connection.execute(query.encode()):
            table.add_row(column, value or "-", f"{count:,}")
        table.add_section()
    (distinct,) = _row(connection, "select count(distinct sha256) from pfile")
    table.add_row("sha256", "distinct contents", f"{distinct:,}")
    console.print(table)
    rate = f"{items:,} items in {seconds:.1f} s: {items / seconds:,.0f} items/s"
    console.print(f"{files:,} files, {size / 1e6:,.1f} MB; {rate}")
    for pk, reason, line in connection.execute(FAILURES):
        console.print(printable(f"job {pk}: item failed: {reason}: {line}"), markup=False)


def _row(connection: psycopg.Connection, query: str, *parameters: str) -> tuple[int, ...]:
    row = connection.execute(query.encode(), parameters).fetchone()
    assert row is not None
    return tuple(map(int, row))
