"""Clean-ups that a trigger queues at the end of a job, and the lists of files that it refuses."""

import json
from typing import Any

import pytest
from psycopg.errors import CheckViolation

from tests.schema_tools import (
    ENDED,
    Connection,
    add_job,
    claim_job,
    end_job,
    fetch_all,
    fetch_one,
    read_column,
    set_columns,
)


def _clean_up(queue: Connection, job: int) -> list[Any]:
    return fetch_all(queue, "select * from drover.cleanup where jq_pk = %s", job)[0][1:]


def _files(queue: Connection, job: int) -> Any:
    return json.loads(fetch_one(queue, "select jq_args from drover.jobqueue where jq_name = %s", f"cleanup.{job}"))


@pytest.mark.parametrize("state", ["failed", "cancelled"])
def test_job_without_success_is_followed_by_no_clean_up_r44(queue: Connection, state: str) -> None:
    job = add_job(queue, jq_delete=["/a"])
    end_job(queue, job, state, 2)
    assert _clean_up(queue, job) == (None, "none", None, None)


def test_job_that_was_skipped_is_followed_by_no_clean_up_r44(queue: Connection) -> None:
    job = add_job(queue, jq_delete=["/a"], jq_state="held")
    set_columns(queue, job, f"jq_state = 'skipped', {ENDED}, jq_end_bits = 1")
    assert fetch_all(queue, "select count(*) from drover.jobqueue") == [(1,)]


@pytest.mark.parametrize("files", [None, []])
def test_job_without_files_is_followed_by_no_clean_up_r43(queue: Connection, files: list[str] | None) -> None:
    job = add_job(queue, jq_delete=files)
    end_job(queue, job)
    assert fetch_all(queue, "select count(*) from drover.jobqueue") == [(1,)]


def test_clean_up_keeps_file_names_unchanged_r43(queue: Connection) -> None:
    names = ["/a b", '/q"', "/back\\slash", "/new\nline", "/é", "/$(id)", "/,{}"]
    job = add_job(queue, jq_delete=names)
    end_job(queue, job)
    assert _files(queue, job) == {"folder": "", "names": names}
    assert "\n" not in fetch_one(queue, "select jq_args from drover.jobqueue where jq_type = 'cleanup'")


def test_relative_names_are_below_the_directory_of_the_agent_type_r45(queue: Connection) -> None:
    queue.execute("insert into drover.agent (agent_group, agent_type, agent_cwd) values ('default', 'here', '/srv')")
    queue.execute("insert into drover.agent (agent_group, agent_type) values ('default', 'anywhere')")
    here, anywhere = (add_job(queue, jq_type=kind, jq_delete=["a", "/b"]) for kind in ("here", "anywhere"))
    end_job(queue, here)
    end_job(queue, anywhere)
    assert _files(queue, here) == {"folder": "/srv", "names": ["a", "/b"]}
    assert _files(queue, anywhere) == {"folder": "", "names": ["a", "/b"]}


def test_clean_up_is_for_the_host_of_the_attempt_that_succeeded_r47(queue: Connection) -> None:
    job = add_job(queue, jq_delete=["/a"])
    attempt = """insert into drover.attempt_kept (att_jq_fk, att_attempt, att_host, att_start, att_outcome)
                 values (%s, %s, %s, now(), %s)"""
    queue.execute(attempt.encode(), (job, 0, "alpha", "done"))
    queue.execute(attempt.encode(), (job, 7, "beta", "failed"))
    end_job(queue, job)
    assert _clean_up(queue, job)[2] == "alpha"


def test_state_of_a_clean_up_is_shown_with_its_job_r75(queue: Connection) -> None:
    job = add_job(queue, jq_delete=["/a"])
    told = [_clean_up(queue, job)[1]]
    end_job(queue, job)
    pk = _clean_up(queue, job)[0]
    told.append(_clean_up(queue, job)[1])
    claim_job(queue, pk)
    told.append(_clean_up(queue, job)[1])
    set_columns(queue, pk, f"jq_state = 'done', {ENDED}, jq_end_bits = 1")
    assert [*told, _clean_up(queue, job)[1]] == ["none", "pending", "removing", "removed"]


def test_failed_or_cancelled_clean_up_is_shown_r75(queue: Connection) -> None:
    for state in ("failed", "cancelled"):
        job = add_job(queue, jq_delete=["/a"])
        end_job(queue, job)
        end_job(queue, _clean_up(queue, job)[0], state, 2)
        assert _clean_up(queue, job)[1] == "failed"


@pytest.mark.parametrize(("state", "bits"), [("cancelled", 2), ("skipped", 1), ("skipped", 2), ("ignored", 2)])
def test_clean_up_that_was_not_queued_says_why_r75(queue: Connection, state: str, bits: int) -> None:
    job = add_job(queue, jq_delete=["/a"])
    end_job(queue, job)
    clean_up = _clean_up(queue, job)[0]
    set_columns(queue, clean_up, "jq_state = 'held'")
    set_columns(queue, clean_up, f"jq_state = '{state}', {ENDED}, jq_end_bits = {bits}, jq_endtext = 'so'")
    assert _clean_up(queue, job)[1:] == ("failed", None, "so")


def test_clean_up_that_exists_already_is_no_error_r46(queue: Connection) -> None:
    job = add_job(queue, jq_delete=["/a"])
    other = add_job(queue, jq_type="cleanup", jq_name=f"cleanup.{job}")
    end_job(queue, job)
    assert _clean_up(queue, job)[0] == other


@pytest.mark.parametrize("names", ["{null}", "{/a,null}", '{""}', "{{a,b},{c,d}}"])
def test_malformed_list_of_files_is_refused(queue: Connection, names: str) -> None:
    with pytest.raises(CheckViolation, match="jq_delete is a list of names"):
        add_job(queue, jq_delete=names)


def test_list_of_files_too_long_for_a_line_is_refused(queue: Connection) -> None:
    with pytest.raises(CheckViolation, match="too long"):
        add_job(queue, jq_delete=["\x01" * 100_000])


@pytest.mark.parametrize("columns", [{"jq_msq": True}, {"jq_runonpfile": "host"}])
def test_query_with_files_needs_a_host_r47(queue: Connection, columns: dict[str, Any]) -> None:
    with pytest.raises(CheckViolation, match="needs jq_host"):
        add_job(queue, jq_delete=["/a"], **columns)
    assert add_job(queue, jq_delete=["/a"], jq_host="alpha", **columns)


def test_files_of_a_job_never_change_r71(queue: Connection) -> None:
    job = add_job(queue, jq_delete=["/a"])
    with pytest.raises(CheckViolation, match="never changes"):
        set_columns(queue, job, "jq_delete = '{/b}'")


def test_command_removes_no_files(queue: Connection) -> None:
    assert read_column(queue, add_job(queue, jq_type="command", jq_args="poll", jq_delete=["/a"]), "jq_delete") is None
