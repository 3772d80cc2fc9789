"""`drover submit`, `setup` and `resubmit`: new jobs, as rows of drover.jobqueue.

What a variable of `setup` means is decided in the database, by drover.job_setup; a job of that name that exists already
is left as it is, so that a script may repeat a set-up whose end it did not see.

The variables are written as in a shell, `NAME=value` and `NAME=(a b)`, and read as data: nothing is expanded, nothing
is run. Understood is what `printf '%s=%q'`, and people write: bare words, '...', "...", $'...' and backslashes, over
several lines if need be. What a shell would act on must be quoted.
"""

import re
import sys
from argparse import Namespace
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from itertools import islice
from math import inf
from shlex import quote
from typing import Any, BinaryIO, Final

import psycopg
from psycopg import sql
from psycopg.types.json import Jsonb

from scheduler.cli.backlog import estimates, in_words
from scheduler.cli.database_session import Session, connect
from scheduler.cli.jobs import instant, interval
from scheduler.cli.output import as_json, failed, warn
from scheduler.cli.wait import print_ends, print_results
from scheduler.errors import ConfigError, DroverError
from scheduler.model.config import Config
from scheduler.model.states import FAILED
from scheduler.model.trace_context import PARENT, trace_id

ROWS_AT_ONCE: Final = 10_000
SAME_NAME: Final = (
    "type", "runonpfile", "key", "host", "queue", "urgent", "priority", "retries", "name", "delete", "unique_key",
    "not_before", "not_after", "timeout",
)  # fmt: skip
COLUMNS: Final = {"sql": "jq_msq", "manual": "jq_mode"} | {option: f"jq_{option}" for option in SAME_NAME}
INSERT: Final = """
insert into drover.jobqueue ({columns}, jq_args)
select {values}, args from unnest(%s::text[]) with ordinality as u(args, n) order by n
returning jq_pk
"""
SQL_COLUMNS: Final = frozenset(("jq_msq", "jq_runonpfile", "jq_key", "jq_repeat"))
COMMAND, CLEANUP = "command", "cleanup"
MAY_QUEUE: Final = "members of drover_frontend, drover_frontend_sql, drover_tenant and drover_operator"
FORCE: Final = "queue it nevertheless with --force"

Value = str | list[str]  # of a variable

# A piece of a word: '...', "...", $'...', a character behind a backslash, or characters that need no quotes. A dollar
# that a shell would expand is in none of them but '...'.
LONE: Final = r"\$(?![A-Za-z0-9_{(\[@*#?$!-])"
PIECE: Final = re.compile(
    rf"""'[^']*'|"(?:[^"\\$`]|\\.|{LONE})*"|\$'(?:[^'\\]|\\.)*'|\\.|(?:[^\s'"\\$`;&|<>()]|{LONE}(?!['"]))+""", re.DOTALL
)
SKIPPED: Final = r"(?:[ \t\r\n]+|#[^\n]*)"  # between assignments, and between the words of a list
WORD: Final = rf"(?:{PIECE.pattern})"
NAME: Final = "[A-Za-z_][A-Za-z0-9_]*"
LIST: Final = rf'(?<=[\s(])"\${{(?:{NAME})\[@\]}}"(?=[\s)])'  # "${NAME[@]}", the words of a list above
# As much of an assignment as there is; `*+` never looks back. _problem says what stops it.
ASSIGNMENT: Final = re.compile(
    rf"{SKIPPED}*+(?:(?P<name>{NAME})(?P<append>\+?)="
    rf"(?:(?P<open>\()(?P<words>(?:{SKIPPED}|{LIST}|{WORD}++)*+)(?P<close>\))?|(?P<word>{WORD}*+)))?",
    re.DOTALL,
)
LIST_ITEM: Final = re.compile(rf"{SKIPPED}|(?P<list>{LIST})|(?P<word>{WORD}++)", re.DOTALL)
IN_DOUBLE_QUOTES: Final = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
LINE_END: Final = re.compile(r"[ \t\r]*(?:#[^\n]*)?(?:\n|\Z)")
BLANKS: Final = re.compile(r"(?:[ \t]|\\\n)*")
IN_DOUBLE: Final = re.compile(r'\\([\\"$`\n])')
IN_ESCAPED: Final = re.compile(
    rb"\\(x[0-9a-fA-F]{1,2}|u[0-9a-fA-F]{1,4}|U[0-9a-fA-F]{1,8}|[0-7]{1,3}|.)", re.DOTALL
)  # fmt: skip
NAMED: Final = {
    b"n": b"\n", b"t": b"\t", b"r": b"\r", b"a": b"\a", b"b": b"\b", b"e": b"\x1b", b"E": b"\x1b", b"f": b"\f",
    b"v": b"\v", b"\\": b"\\", b"'": b"'", b'"': b'"', b"?": b"?",
}  # fmt: skip


def submit_jobs(options: Namespace, config: Config) -> int:
    """Print the number of each new job; with --wait also how it ended, and 1 if one failed."""
    text = " ".join(options.args)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ConfigError("the arguments are not UTF-8; nothing was queued") from None
    texts = read_lines(sys.stdin.buffer) if text == "-" else [text]
    with connect(config) as session:
        if reason := refusal(session, options.type, options.queue, options.host, force=options.force):
            return failed(reason)
        jobs = _insert(session, options, texts)
        if options.result:
            _say_how_long(session, jobs if options.eta else [])
            return print_results(session, jobs, inf if options.wait is None else options.wait)
        lines = (as_json({"job": job}) if options.json else str(job) for job in jobs)
        print("".join(f"{line}\n" for line in lines), end="", flush=True)
        _say_how_long(session, jobs if options.eta else [])
        return 0 if options.wait is None else print_ends(session, jobs, options.wait, json=options.json)


def _say_how_long(session: Session, jobs: Sequence[int]) -> None:
    """Print on stderr how long it takes until all jobs of this type that could start are done, these among them."""
    for row in estimates(session, jobs[0]) if jobs else ():
        warn(in_words(row))


def _times(session: Session, options: Namespace) -> dict[str, datetime | timedelta | None]:
    """Return the times and lengths that options name, by the attributes that hold their texts. Errors: ConfigError."""
    return {
        "not_before": instant(session, "--not-before", options.not_before, sign=1),
        "not_after": instant(session, "--not-after", options.not_after, sign=1),
        "timeout": interval("--timeout", options.timeout),
    }


def read_lines(file: BinaryIO) -> Iterator[str]:
    """Yield the arguments of a job in each line; ConfigError at the first that no database could hold."""
    for number, line in enumerate(file, start=1):
        try:
            text = line.removesuffix(b"\n").decode()
        except UnicodeDecodeError:
            raise ConfigError(f"stdin:{number}: is not UTF-8; nothing was queued") from None
        if "\0" in text:
            raise ConfigError(f"stdin:{number}: holds a NUL; nothing was queued")
        yield text


def _insert(session: Session, options: Namespace, texts: Iterable[str]) -> list[int]:
    """Queue a job for each text with its dependencies, all or none; return their numbers in the order of the texts.

    Names only the columns that were asked for: the grants of the role need not be wider than that.
    """
    asked = vars(options) | _times(session, options)
    given = {column: asked[name] for name, column in COLUMNS.items() if asked[name] is not None}
    if (parent := options.traceparent) is not None:
        if trace_id(parent) is None:
            raise ConfigError(f"--traceparent {parent}: is no traceparent, as 00-TRACE-PARENT-01; nothing was queued")
        given["jq_variables"] = Jsonb({PARENT: parent})
    query = insert_statement(given)
    remaining, connection = iter(texts), session.connection
    parents = _parents(session, options)
    jobs: list[int] = []
    with right_to_sql(session, given), connection.transaction():
        while batch := list(islice(remaining, ROWS_AT_ONCE)):
            parameters: tuple[Any, ...] = (*given.values(), batch)
            jobs += sorted(pk for (pk,) in connection.execute(query, parameters))
        if parents:
            session.run("add_dependencies", jobs=jobs, parents=parents)
    return jobs


def _parents(session: Session, options: Namespace) -> list[int]:
    """Return the numbers of the parents. Errors: DroverError if one does not exist, or can never succeed."""
    parents = session.job_numbers(options.depends)
    in_vain = session.rows("ended_in_vain", jobs=parents) if parents else []
    if missing := [str(job) for job, state in in_vain if state is None]:
        raise DroverError(f"no job {', '.join(missing)}; nothing was queued; drover ls --all lists all jobs")
    for job, state in in_vain:
        if state == FAILED:
            warn(f"job {job} has failed: what depends on it waits until it is done, after drover retry {job}")
        elif not options.force:
            raise DroverError(
                f"job {job} is {state}, and never succeeds: a job that depends on it waits for ever; {FORCE}"
            )
    return parents


@contextmanager
def right_to_sql(session: Session, columns: Iterable[str]) -> Iterator[None]:
    """Say which role may hand in SQL, if the database refuses to insert these columns for them."""
    try:
        yield
    except psycopg.errors.InsufficientPrivilege as error:
        if not (sql_columns := sorted(SQL_COLUMNS.intersection(columns))):
            with right_to_queue(session):
                raise
        raise psycopg.errors.InsufficientPrivilege(
            f"permission denied: role {session.value('role')} may not give {', '.join(sql_columns)}; "
            "members of drover_frontend_sql may"
        ) from error


@contextmanager
def right_to_queue(session: Session) -> Iterator[None]:
    """Name the roles that may queue jobs, in place of the refusal of one statement, to a role that may queue none."""
    try:
        yield
    except psycopg.errors.InsufficientPrivilege as error:
        if session.records("may_submit")[0]["may_insert"]:
            raise
        text = f"permission denied for role {session.value('role')}, which may not queue jobs; {MAY_QUEUE} may"
        raise psycopg.errors.InsufficientPrivilege(text) from error


def insert_statement(columns: Collection[str]) -> sql.Composed:
    """Return the statement that inserts a job for each text of an array, the last value after those of the columns."""
    return sql.SQL(INSERT).format(
        columns=sql.SQL(", ").join(map(sql.Identifier, columns)),
        values=sql.SQL(", ").join([sql.Placeholder()] * len(columns)),
    )


def set_up_job(options: Namespace, config: Config) -> int:
    """Print the number of the job, and say so if it existed before."""
    settings = assignments(sys.stdin.buffer.read())
    if options.priority is not None:
        settings["jq_priority"] = options.priority
    with connect(config) as session:
        queue, host = (str(settings[key]) if key in settings else None for key in ("jq_queue", "jq_host"))
        reason = refusal(session, options.name.partition(".")[0], queue, host, force=options.force)
        if reason and not session.numbers_by_name([options.name]):
            return failed(reason)
        try:
            with right_to_sql(session, settings):
                ((job, existed),) = session.rows("set_up_job", name=options.name, settings=Jsonb(settings))
        except psycopg.errors.UndefinedParameter as error:
            raise ConfigError(f"{error.diag.message_primary}; nothing was set up") from error
        except psycopg.DataError as error:
            column = _column_of_mistake(session, settings)
            raise ConfigError(f"{column}{error.diag.message_primary}; nothing was set up") from error
    if existed:
        warn(f"{options.name} exists already; it was left as it is")
    print(job)
    return 0


def _column_of_mistake(session: Session, settings: Mapping[str, Value]) -> str:
    """Return the first column that cannot hold its value, which the database does not say."""
    for name in (name for name in settings if name.startswith("jq_")):
        try:
            session.rows("read_columns", settings=Jsonb({name: settings[name]}))
        except psycopg.DataError:
            return f"{name}: "
    return ""


def resubmit_jobs(options: Namespace, config: Config) -> int:
    """Print the number of each new job, all or none; 1 if there is no such job."""
    with connect(config) as session:
        try:
            given = dict.fromkeys(session.job_numbers(options.jobs))  # a job that is given twice is queued once
            jobs = session.rows("resubmit_jobs", jobs=list(given))
        except psycopg.errors.NoDataFound as error:
            raise DroverError(f"{error.diag.message_primary}; drover ls --all lists all jobs") from error
        except psycopg.errors.CheckViolation as error:
            raise DroverError(f"{error.diag.message_primary}; nothing was queued") from error
    for old, new in jobs:
        print(as_json({"job": new, "resubmit_of": old}) if options.json else new)
    return 0


def refusal(session: Session, kind: str, queue: str | None, host: str | None, *, force: bool) -> str:
    """Return why such a job is not queued, and what next; empty if it is.

    A type, queue or host that does not exist is most often misspelt. Clean-ups are queued by Drover alone. A job whose
    attributes no type has is refused by the database too: --force does not change that.
    """
    if kind == CLEANUP:
        return "jobs of type cleanup are created by Drover alone, when a job with --delete is done; see submit --delete"
    if force or kind == COMMAND:
        return ""
    with right_to_queue(session), session.connection.transaction():
        ((agents, served, disabled, has_queue, has_host, chosen, wrong, answering),) = session.rows(
            "known_names", queue=queue, host=host, type=kind
        )
    if not agents:
        begin = f"no scheduler serves type {kind}: none has used this database yet; start one with drover run"
        begin += ", try again in a moment if one is just starting"
        return begin if wrong else f"{begin}, or {FORCE}"
    if wrong:
        return f"{wrong}; drover agent prints those of each"
    if (kind := chosen or kind) not in served:
        return _unserved(kind, served, disabled, answering)
    if not has_queue:
        return f"there is no queue {queue}; correct it, or {FORCE}"
    return "" if has_host else f"there is no host {host}; correct it, or {FORCE}"


def _unserved(kind: str, served: Sequence[str], disabled: Sequence[str], answering: Sequence[str]) -> str:
    """Return why no agent of this type does anything, and what next."""
    if kind in disabled:
        return f"agent type {kind} is disabled; drover agent enable {quote(kind)}, or {FORCE}"
    if answering:
        names = " and ".join(answering)
        return f"{names} answer to {kind} if attributes follow, such as '{kind} name=value'; correct it, or {FORCE}"
    return f"no scheduler serves type {kind} (served: {', '.join(served) or 'none'}); correct it, or {FORCE}"


# ---- variables as a shell writes them


def assignments(data: bytes) -> dict[str, Value]:
    """Return every variable, a text or a list of texts. Errors: ConfigError with `stdin:N: reason`."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise _mistake(data[: error.start].decode(), "is not UTF-8") from None
    if "\0" in text:
        raise _mistake(text[: text.index("\0")], "holds a NUL")
    found: dict[str, Value] = {}
    end = 0
    while part := ASSIGNMENT.match(text, end):
        name, stop = part["name"], part.end()
        if not name and stop == len(text):
            break
        if not name:
            raise _mistake(text[:stop], "expected NAME=value or NAME=(a b)")
        if part["open"] and not part["close"] and stop == len(text):
            raise _mistake(text[: part.start("open")], "the list is not closed")
        line_end = LINE_END.match(text, stop)
        if not line_end:
            raise _problem(text, stop)
        try:
            found[name] = _value(part, found)
        except ValueError as error:
            raise _mistake(text[: part.start("name")], str(error)) from None
        end = line_end.end()
    return found


def _value(part: re.Match[str], found: Mapping[str, Value]) -> Value:
    """Return what the variable holds after this assignment, beside those above. Errors: ValueError with the reason."""
    name, former = part["name"], found.get(part["name"])
    value, used = _words(f"({part['words']})", found) if part["open"] else (PIECE.sub(_meaning, part["word"]), set())
    if former is None or (name in used and not part["append"]):
        return value
    if not part["append"]:
        raise ValueError(f"{name} is given twice")
    if isinstance(former, str) and isinstance(value, str):
        return former + value
    if isinstance(value, str):
        raise ValueError(f"{name} is a list, to which {name}+=(...) appends")
    return ([former] if isinstance(former, str) else former) + value


def _words(text: str, found: Mapping[str, Value]) -> tuple[list[str], set[str]]:
    """Return the words between these brackets, and the names of the lists among them. Errors: ValueError."""
    words: list[str] = []
    names = set()
    for item in LIST_ITEM.finditer(text):
        if item["word"]:
            words.append(PIECE.sub(_meaning, item["word"]))
        elif item["list"]:
            name = item["list"][3:-5]
            if name not in found:
                raise ValueError(f"{name} is not set above")
            value = found[name]
            words += [value] if isinstance(value, str) else value
            names.add(name)
    return words, names


def _mistake(before: str, reason: str) -> ConfigError:
    return ConfigError(f"stdin:{before.count(chr(10)) + 1}: {reason}; nothing was set up")


def _problem(text: str, stop: int) -> ConfigError:
    """Return the error for a place where neither a word nor the end of the line follows."""
    blanks = BLANKS.match(text, stop)
    at = blanks.end() if blanks else stop
    rest = text[at : at + 2]
    if rest in ("", "\\"):
        return _mistake(text[:at], "nothing follows the backslash")
    if PIECE.match(text, at):
        return _mistake(text[:at], "a value with blanks must be quoted")
    if IN_DOUBLE_QUOTES.match(text, at):
        return _mistake(
            text[:at], "a shell would expand $ or ` in double quotes, but nothing is expanded here: use single quotes"
        )
    if rest[0] in "'\"" or rest == "$'":
        return _mistake(text[:at], "the quote is not closed")
    return _mistake(text[:at], f"{rest.strip()!r} must be quoted, since nothing is executed here")


def _meaning(piece: re.Match[str]) -> str:
    """Return what bash reads in a piece; bytes by number, in $'...', are UTF-8."""
    text = piece[0]
    if text.startswith("$'"):
        return IN_ESCAPED.sub(_escape, text[2:-1].encode()).decode(errors="replace")
    match text[0]:
        case "'":
            return text[1:-1]
        case '"':
            return IN_DOUBLE.sub(lambda found: found[1].strip("\n"), text[1:-1])
        case "\\":  # before the end of a line, which goes on then
            return text[1:].strip("\n")
    return text


def _escape(found: re.Match[bytes]) -> bytes:
    kind, digits = found[1][:1], found[1][1:]
    if kind in b"uU" and digits:
        return chr(min(int(digits, 16), 0x10FFFF)).encode(errors="replace")
    if kind == b"x" and digits:
        return bytes([int(digits, 16)])
    if kind in b"01234567":
        return bytes([int(found[1], 8) & 0xFF])
    return NAMED.get(kind, b"\\" + kind)
