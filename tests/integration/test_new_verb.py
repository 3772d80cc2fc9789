"""What a new command takes: its entry in the registry, its SQL and its text in the manual, and nothing else."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from psycopg.conninfo import make_conninfo

from tests.integration.conftest import Launch
from tests.integration.daemon import RUN, agent, rec

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
# The registry and the queries with an entry more, before anything reads them.
NEW = """
import sys
from scheduler.model import verbs
verbs.VERBS["tell-args"] = verbs.Verb(
    "tell-args", verbs.JOB, "JOB TEXT", "say what a job works on", "tell_args", "args", True
)
from scheduler.daemon import wiring
text = (wiring.schema_dir() / "queries.sql").read_text() + '''
-- name: tell_args
-- Return what a job works on, after a text.
select true, :text::text || ' ' || jq_args from drover.jobqueue where jq_pk = :job::bigint
'''
class Schema:
    def __truediv__(self, name): return self
    def read_text(self): return text
wiring.schema_dir = Schema
"""
MAIN = [sys.executable, "-c", NEW + "from scheduler.cli.main import main; sys.exit(main())"]
MANUAL = "import pytest; sys.exit(pytest.main(['-p', 'no:xdist', *sys.argv[1:]]))"
Extended = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def extended(database_with_roles: str, monkeypatch: pytest.MonkeyPatch) -> Extended:
    """Run `drover` with the new verb: `extended(words, role)`."""

    def run(*words: str, role: str = "postgres") -> "subprocess.CompletedProcess[str]":
        monkeypatch.setenv("DROVER_DATABASE_URL", make_conninfo(database_with_roles, user=role))
        return subprocess.run([*MAIN, *words], capture_output=True, text=True, cwd=ROOT)

    return run


def test_new_verb_is_in_help_and_completion(extended: Extended) -> None:
    assert re.search(r"^  args +say what a job works on$", extended("--help").stdout, re.MULTILINE)
    assert "usage: drover args" in (usage := extended("args", "--help").stdout)
    assert "JOB" in usage
    assert "TEXT" in usage
    assert "        args) COMPREPLY=" in extended("completion", "bash").stdout


def test_new_verb_may_be_given_by_the_roles_in_its_entry_and_is_carried_out(
    extended: Extended, launch: Launch, record: Path
) -> None:
    assert extended("init").stdout.endswith("\napplied commands\n")
    text = "[hosts.alpha]\n" + agent("rec", rec(record), enabled=False)
    daemon = launch(text, program=[*MAIN, *RUN[3:]])
    ours = daemon.insert(role="drover_frontend", jq_type="rec", jq_args="mine", jq_state="held")
    other = daemon.insert(role="drover_operator", jq_type="rec", jq_args="theirs", jq_state="held")
    done = extended("args", str(ours), "works-on", role="drover_frontend")
    assert (done.returncode, done.stdout) == (0, "works-on mine\n")
    assert f"job {other} is not yours" in extended("args", str(other), "x", role="drover_frontend").stderr
    assert extended("args", str(other), "x", role="drover_operator").stdout == "x theirs\n"


def test_new_verb_fails_the_tests_of_the_manuals_until_documented() -> None:
    tests = ["tests/unit/test_cli_manual.py", "tests/unit/test_commands.py"]
    argv = [sys.executable, "-c", NEW + MANUAL, *tests, "-k", "manual"]
    done = subprocess.run(argv, capture_output=True, text=True, cwd=ROOT)
    failed = set(re.findall(r"^FAILED tests/unit/(\S+)", done.stdout, re.MULTILINE))
    assert failed == {
        "test_cli_manual.py::test_the_manual_documents_every_command",
        "test_cli_manual.py::test_the_manual_documents_every_option[args]",
        "test_commands.py::test_every_verb_is_read_as_its_usage_says_and_is_in_the_manual[tell-args]",
    }
