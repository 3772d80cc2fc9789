"""Claims about a program that is being written while agents are to be started from it: their items wait."""

from pathlib import Path

import pytest

from tests.integration.conftest import Launch
from tests.integration.daemon import agent
from tests.integration.puppets import LOCAL

SCRIPT = {"line": "#!/bin/sh\necho OK\nwhile read -r line; do echo OK; done\n", "exec": "#!/bin/sh\n"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", SCRIPT)
@pytest.mark.parametrize("policy", ["wait", "block", "fail"])
def test_a_job_whose_program_is_being_written_waits_and_is_done(
    launch: Launch, tmp_path: Path, kind: str, policy: str
) -> None:
    program = tmp_path / "program"
    program.write_text(SCRIPT[kind])
    program.chmod(0o755)
    daemon = launch(LOCAL + agent("own", [str(program)], kind=kind, on_start_failure=policy))
    with program.open("ab"):
        pk = daemon.insert(jq_type="own")
        daemon.until(lambda: "Text file busy" in daemon.stderr(), what="it is started")
    row = daemon.wait(pk)
    assert (row["jq_state"], row["jq_failures"], row["jq_attempt"]) == ("done", 0, 1)


def test_jobs_of_other_types_are_done_while_a_program_is_being_written(launch: Launch, tmp_path: Path) -> None:
    programs = [tmp_path / "busy", tmp_path / "free"]
    for program in programs:
        program.write_text(SCRIPT["exec"])
        program.chmod(0o755)
    daemon = launch(LOCAL + "".join(agent(each.name, [str(each)], kind="exec") for each in programs))
    with programs[0].open("ab"):
        waiting = daemon.insert(jq_type="busy")
        daemon.until(lambda: "Text file busy" in daemon.stderr(), what="it is started")
        assert daemon.wait(daemon.insert(jq_type="free"))["jq_state"] == "done"
        assert "no more agents are started" not in daemon.stderr()
    assert daemon.wait(waiting)["jq_state"] == "done"
