"""Command rows: their words checked, inserted, waited for; what the scheduler answers is printed.

Which verbs there are and what follows them is in scheduler.model.commands, what they do is the scheduler's. Rows go in
through drover.command, so that somebody who is no operator may command what is about jobs of his own.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import psycopg
from psycopg.rows import class_row

from scheduler.cli.complain import failed, warn
from scheduler.cli.database import visible
from scheduler.cli.tables import as_json
from scheduler.cli.text import printable
from scheduler.cli.waiting import ends
from scheduler.errors import ConfigError, DroverError
from scheduler.model.commands import SEE_RESULT, CommandError, parse

INSERT = "select drover.command(words) from unnest(%s::text[]) with ordinality as u(words, n) order by n"
IS_ACTIVE = (
    "select exists (select from drover.scheduler_group where group_owner is not null and group_lease_until > now())"
)
ANSWERS = """
select jq_pk as command, jq_args as words, jq_state = 'done' as ok, coalesce(jq_endtext, '') as text,
       jq_result as result
  from drover.jobqueue where jq_pk = any (%s) and jq_endtime is not null order by jq_pk
"""
NAMED = "select jq_name, jq_pk from drover.jobqueue where jq_name = any (%s)"


@dataclass(frozen=True, slots=True)
class Answer:
    """How a command row ended: whether it was done, in a word, and with what."""

    command: int
    words: str
    ok: bool
    text: str
    result: Any


def carry_out(connection: psycopg.Connection, commands: Sequence[str], limit_s: float, *, json: bool) -> int:
    """Print the answer to each command, refusals on stderr; 1 if one was refused or not answered in time.

    What is said twice is commanded once.
    """
    commands = list(dict.fromkeys(commands))
    answers = answered(connection, commands, limit_s)
    for answer in answers:
        if json:
            print(as_json(asdict(answer)))
        elif answer.ok:
            print(as_json(answer.result) if answer.text == SEE_RESULT else printable(answer.text))
        else:
            warn(answer.text)
    return status(answers, len(commands), limit_s)


def answered(connection: psycopg.Connection, commands: Sequence[str], limit_s: float) -> list[Answer]:
    """Queue the commands, all or none, and give the answers that came in time. Errors: ConfigError if one is none."""
    for words in commands:
        _check(words)
    pks = [pk for (pk,) in connection.execute(INSERT, (list(commands),))]
    if connection.execute(IS_ACTIVE).fetchone() == (False,):
        warn("no scheduler is active: what is commanded waits until one is; start it with drover run")
    for _ in ends(connection, pks, limit_s):
        pass
    return connection.cursor(row_factory=class_row(Answer)).execute(visible(connection, ANSWERS), (pks,)).fetchall()


def status(answers: Sequence[Answer], asked: int, limit_s: float) -> int:
    """Give the exit status, and say so if answers are missing."""
    if len(answers) < asked:
        return failed(
            f"after {limit_s:g} s, {asked - len(answers)} of {asked} commands have no answer; they stay queued"
        )
    return int(not all(answer.ok for answer in answers))


def numbers(connection: psycopg.Connection, jobs: Sequence[int | str]) -> list[int]:
    """Give the number of each job, which may be its name already. Errors: DroverError if there is none."""
    wanted = [job for job in jobs if isinstance(job, str)]
    found = names(connection, wanted) if wanted else {}
    if missing := [name for name in wanted if name not in found]:
        raise DroverError(f"no job {', '.join(missing)}; drover ls --all lists those there are")
    return [job if isinstance(job, int) else found[job] for job in jobs]


def names(connection: psycopg.Connection, words: Sequence[str]) -> dict[str, int]:
    """Give the numbers of the jobs of these names, as far as there are any."""
    return dict(connection.execute(visible(connection, NAMED), (list(words),)).fetchall())


def _check(words: str) -> None:
    try:
        words.encode()
        parse(words)
    except UnicodeEncodeError:
        raise ConfigError("the words are not UTF-8; nothing was commanded") from None
    except CommandError as mistake:
        raise ConfigError(f"{mistake}; nothing was commanded") from None
