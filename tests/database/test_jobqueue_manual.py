"""Claims about drover-jobqueue(7): it is clean mdoc, leaves nothing of the queue out, and its examples run."""

import re
import subprocess
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from scheduler.model.states import INSERTABLE, JOB_MOVES, JOB_STATES
from scheduler.package_data import schema_dir
from tests.needs import need

MANUAL = Path(__file__).parents[2] / "man" / "drover-jobqueue.7"
TEXT = MANUAL.read_text()
SCHEMA = (schema_dir() / "schema.sql").read_text()
EXAMPLES = re.findall(r"\.Bd -literal -offset indent\n(.*?)\.Ed\n", TEXT, re.DOTALL)
PFILE = """
create table pfile (pfile_pk bigint primary key, path text, host text, sha256 text, license text);
insert into pfile values (17, '/a', 'alpha', null, null);
grant select on pfile to drover_msq;
"""
EDGES = """
select c.jq_type, p.jq_type, jdep_on_unmet from drover.jobdepends
  join drover.jobqueue c on c.jq_pk = jdep_jq_fk join drover.jobqueue p on p.jq_pk = jdep_jq_depends_fk
"""
QUERIES_OF_JOBS = "select jq_args from drover.jobqueue where jq_msq"


def _columns(table: str) -> list[str]:
    body = re.search(rf"CREATE TABLE drover\.{table} \((.*?)\n\)", SCHEMA, re.DOTALL)
    assert body
    return re.findall(r"^    (j[a-z]+_\w+) ", body[1], re.MULTILINE)


def _moves() -> list[tuple[str, set[str]]]:
    table = TEXT.split(".It Em from Ta Em to\n", 1)[1].split(".El\n", 1)[0]
    return [(start, set(ends.split(", "))) for start, ends in re.findall(r"\.It (\w+) Ta (.*)\n", table)]


def test_the_manual_has_no_warning() -> None:
    need("mandoc")
    lint = subprocess.run(["mandoc", "-Tlint", "-Wwarning", MANUAL], capture_output=True, text=True, check=False)
    assert (lint.returncode, lint.stdout) == (0, "")


@pytest.mark.parametrize("column", [*_columns("jobqueue"), *_columns("jobdepends")])
def test_the_manual_explains_each_column(column: str) -> None:
    assert re.search(rf"^\.It Li .*\b{column}\b", TEXT, re.MULTILINE)


@pytest.mark.parametrize("column", _columns("job"))
def test_the_manual_names_each_column_of_a_group(column: str) -> None:
    assert re.search(rf"\b{column}\b", TEXT)


@pytest.mark.parametrize("state", JOB_STATES)
def test_the_manual_explains_each_state(state: str) -> None:
    assert f"\n.It Li {state}\n" in TEXT


def test_job_transitions_in_the_jobqueue_manual_match_the_code_t6() -> None:
    moves = {start: set(ends) for start, ends in JOB_MOVES.items() if ends}
    assert dict(_moves()) == {"insert": set(INSERTABLE)} | moves


def test_the_examples_of_the_manual_run_in_order_f23_f26(database_with_roles: str) -> None:
    with psycopg.connect(database_with_roles) as admin:
        admin.execute(PFILE)
    with psycopg.connect(make_conninfo(database_with_roles, user="drover_frontend_sql")) as ui:
        ui.execute("".join(EXAMPLES).encode())
    with psycopg.connect(database_with_roles) as admin:
        edges = admin.execute(EDGES).fetchall()
        queries = [sql for (sql,) in admin.execute(QUERIES_OF_JOBS)]
    assert edges == [("filter_license", "license", "skip")]
    assert len(queries) == 7
    _run(database_with_roles, queries)


def _run(conninfo: str, queries: list[str]) -> None:
    """Run each query as the scheduler would."""
    with psycopg.connect(make_conninfo(conninfo, user="drover_msq")) as reader:
        for query in queries:
            reader.execute(f"select * from ({query.removesuffix(';')}\n) q".encode())


def test_both_ways_to_unpack_give_the_agent_the_same_line_f25(database_with_roles: str) -> None:
    with psycopg.connect(database_with_roles) as admin:
        admin.execute(PFILE)
        admin.execute("".join(EXAMPLES).encode())
        jobs = "select jq_args, jq_host from drover.jobqueue where jq_type = 'unpack' order by jq_msq"
        (line, host), (query, same_host) = admin.execute(jobs).fetchall()
        cursor = admin.execute(query.encode())
        names = [column.name for column in cursor.description or ()]
        values = cursor.fetchall()[0]
    assert line == " ".join(f'{name}="{value}"' for name, value in zip(names, values, strict=True))
    assert host == same_host == "alpha"
