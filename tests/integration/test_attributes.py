"""Jobs that ask for attributes of their agent, under the real daemon (F154)."""

from pathlib import Path

import psycopg
import pytest

from tests.integration.conftest import Launch
from tests.integration.daemon import agent, lines, rec
from tests.integration.puppets import LOCAL
from tests.integration.test_reload import reload


@pytest.fixture
def text(tmp_path: Path) -> str:
    """Return a configuration with two versions of agent a."""
    two = agent("a-2", rec(tmp_path / "2")) + 'attributes = { agent = "a", version = "2" }\n'
    return LOCAL + agent("a", rec(tmp_path / "1")) + 'attributes = { version = "1" }\n' + two


def test_job_that_asks_for_a_version_matches_only_that_slot_f154(launch: Launch, text: str, tmp_path: Path) -> None:
    daemon = launch(text)
    kinds = ["a version=2", "a version=1", "a"]
    daemon.wait_all([daemon.insert(jq_type=kind, jq_args=kind) for kind in kinds])
    assert (lines(tmp_path / "2"), sorted(lines(tmp_path / "1"))) == (["a version=2"], ["a", "a version=1"])


def test_attributes_of_a_reloaded_configuration_are_those_that_count_f154(
    launch: Launch, text: str, tmp_path: Path
) -> None:
    daemon = launch(text)
    reload(daemon, text.replace('version = "2"', 'version = "3"'))
    daemon.wait(daemon.insert(jq_type="a version=3", jq_args="new"))
    assert lines(tmp_path / "2") == ["new"]


SCHEDULE = '[schedules.s]\nevery = 1\njobs.m = { type = "a version=2", args = "m" }\n'


@pytest.mark.slow
def test_a_schedule_may_ask_for_a_type_that_its_configuration_brings_f154(
    launch: Launch, text: str, tmp_path: Path
) -> None:
    daemon = launch(text + SCHEDULE)
    daemon.until(lambda: "m" in lines(tmp_path / "2"), what="the schedule does not start")
    both = (text + SCHEDULE).replace('version = "2"', 'version = "3"').replace("version=2", "version=3")
    reload(daemon, both.replace('args = "m"', 'args = "n"'))
    assert daemon.until(lambda: "n" in lines(tmp_path / "2"), what="the changed schedule does not start")


def test_a_job_gets_no_type_of_another_group_f154(launch: Launch, text: str) -> None:
    daemon = launch(text)
    daemon.execute("insert into drover.queue (queue_name, queue_group) values ('far', 'far')")
    with pytest.raises(psycopg.errors.CheckViolation, match="group far has no a"):
        daemon.insert(jq_type="a version=2", jq_args="x", jq_queue="far")


@pytest.mark.parametrize("kind", ["a=b", "a\tversion=2"])
def test_a_type_with_an_equals_sign_alone_is_refused_on_standard_input_f168(
    launch: Launch, text: str, kind: str
) -> None:
    daemon = launch(text, options=["-I"], stdin=f"{kind} | x\n".encode(), wait=False)
    assert daemon.wait_exit() == 1
    assert f"stdin:1: no agent type {kind!r} is configured and enabled" in daemon.stderr()


def test_line_of_standard_input_may_name_attributes_f154_f168(launch: Launch, text: str, tmp_path: Path) -> None:
    daemon = launch(text, options=["-I"], stdin=b"a version=2 | one\na version=9 | two\n", wait=False)
    assert daemon.process.stdout is not None
    told = daemon.process.stdout.read().decode()
    assert daemon.wait_exit() == 1
    assert (told, lines(tmp_path / "2")) == ("1 a version=2 done all data processed\n", ["one"])
    assert "stdin:2: " in daemon.stderr()
    assert "no agent type has the attributes of a version=9" in daemon.stderr()
