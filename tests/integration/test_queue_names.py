"""Queues with blanks and letters of any script in their names: jobs, commands, filters, and what is refused."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from scheduler.model.verbs import CommandError, parse
from tests.cli_tools import DROVER, Done, environment
from tests.integration.conftest import Launch
from tests.integration.daemon import agent, lines, rec
from tests.integration.test_commands import HOST, told
from tests.role_tools import Login

BLANKS, CYRILLIC, HINDI, CHINESE = "my queue", "очередь заданий", "कतार", "队列"
NAMES = [BLANKS, CYRILLIC, HINDI, CHINESE]
QUEUES = "".join(f'[queues."{name}"]\n' for name in NAMES)
Run = Callable[..., Done]


@pytest.fixture
def run(database_with_roles: str, config: Path) -> Run:
    """Run the real command as a member of drover_operator, with these words."""
    variables = environment(make_conninfo(database_with_roles, user="drover_operator"), config)

    def run(*words: str) -> Done:
        done = subprocess.run(
            [*DROVER, *words], env=variables, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        return Done(done.returncode, done.stdout, done.stderr)

    return run


@pytest.mark.slow
def test_jobs_of_queues_with_any_name_run(launch: Launch, record: Path, run: Run) -> None:
    daemon = launch(HOST + QUEUES + agent("a", rec(record)))
    for name in NAMES:
        daemon.wait(int(run("submit", "a", name, "--queue", name).out))
    assert lines(record) == NAMES


@pytest.mark.slow
def test_commands_about_a_queue_with_a_blank_in_its_name(launch: Launch, record: Path, run: Run) -> None:
    daemon = launch(HOST + '[queues."my queue"]\n' + agent("a", rec(record)))
    assert run("queue", "add", "late jobs", "2").out == "queue late jobs: concurrency 2\n"
    assert run("queue", "set", "late jobs", "3").status == 0
    assert run("queue", "filter", "late jobs", "urgent = true").status == 0
    assert run("queue", "rate", "late jobs", "rate=1000").status == 0
    assert run("pause", "my queue", "late jobs").out == "paused: late jobs, my queue\n"
    moved, bulk = (int(run("submit", "a", "x", "--queue", "default", "--manual").out) for _ in range(2))
    assert run("move", str(moved), "my queue").status == 0
    assert run("move", "--queue", "default", "--state", "held", "--yes", "late jobs").status == 0
    assert [daemon.row(pk)["jq_queue"] for pk in (moved, bulk)] == ["my queue", "late jobs"]
    routed = daemon.insert(jq_type="a", jq_args="x", jq_urgent=True)
    assert (daemon.row(routed)["jq_queue"], daemon.why(routed)) == ("late jobs", "queue late jobs is paused")
    assert run("continue", "late jobs").out == "running: late jobs\n"
    daemon.wait(routed)
    assert run("poll", "my queue").status == 0
    assert run("queue", "remove", "nosuch queue").err == "drover: no queue nosuch queue\n"


def test_host_takes_jobs_of_queues_with_blanks_in_their_names(launch: Launch, record: Path, run: Run) -> None:
    daemon = launch(HOST + QUEUES + agent("a", rec(record)))
    assert run("host", "filter", "alpha", f"queues={BLANKS},{CHINESE}").status == 0
    assert daemon.execute("select host_queues from drover.host")[0]["host_queues"] == [BLANKS, CHINESE]
    daemon.wait_all([daemon.insert(jq_type="a", jq_args="x", jq_queue=name) for name in (BLANKS, CHINESE)])
    assert told(daemon, f'host-filter alpha "queues={CYRILLIC}"')


@pytest.mark.parametrize("place", ["jq_queue", "jq_host"])
@pytest.mark.parametrize("name", ["my\nqueue", "my\tqueue", "a\x7f"])
@pytest.mark.parametrize("held", ["queued", "held"])
def test_job_whose_queue_or_host_holds_a_control_character_is_refused(
    login: Login, place: str, name: str, held: str
) -> None:
    query = f"insert into drover.jobqueue (jq_type, jq_state, {place}) values ('noop', %s, %s)"
    with pytest.raises(psycopg.errors.CheckViolation, match="holds a control character") as raised:
        login("drover_frontend").execute(query.encode(), (held, name))
    assert raised.value.diag.message_primary
    assert raised.value.diag.message_primary.isprintable()


@pytest.mark.parametrize(
    "words",
    [
        'add-queue "a  b" 1', 'add-queue " a" 1', 'add-queue "a " 1', 'add-queue "a\tb" 1', 'add-queue "a,b" 1',
        'add-queue "" 1', 'add-queue a"b 1', "add-queue a\u00a0b 1", "add-queue a\u202eb 1", "add-queue -a 1",
        "add-queue " + "é" * 65 + " 1", "add-queue my queue 1", 'pause "my queue', "add-queue schedule's 1",
    ],
)  # fmt: skip
def test_name_that_is_none_of_a_queue_is_refused(words: str) -> None:
    with pytest.raises(CommandError):
        parse(words)


@pytest.mark.parametrize(
    ("words", "key", "value"),
    [
        ('pause "my queue" b', "queue", ("my queue", "b")),
        ('move 7 "my queue"', "queue", "my queue"),
        ("add-queue " + "é" * 64 + " 1", "queue", "é" * 64),
        ('set-filter "my queue" name = \'a  "b c"\'', "expression", "name = 'a  \"b c\"'"),
        ('cancel 7 he said  "no way" "', "text", 'he said "no way" "'),
    ],
)
def test_quotes_keep_the_blanks_in_names_and_stay_in_texts(words: str, key: str, value: object) -> None:
    assert parse(words).values[key] == value
