"""Attacks by exhausted resources, and what the daemon needs of the machine (threats 20 to 24 of the model)."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scheduler.cli.main import main
from tests.integration.conftest import Launch
from tests.integration.daemon import agent, python, rec, start
from tests.needs import need

HOST = "[hosts.alpha]\n"
STRANGER = 54_321  # a user that has no process but those of a test


# ---- limits of agents (23)


HEAD = "[scheduler]\nrespawn_count = 50\n"


def processes_of(user: int) -> int:
    """Return how many processes a user has."""
    return sum(1 for entry in Path("/proc").glob("[0-9]*") if _owner(entry) == user)


def _owner(entry: Path) -> int:
    try:
        return entry.stat().st_uid
    except OSError:
        return -1


def test_fork_bomb_is_bounded_and_killed_with_its_agent(launch: Launch, tmp_path: Path) -> None:
    """As another user: nproc counts processes by user, and fences in everybody but root."""
    need("runuser")
    need("setpriv")
    forks = "i=0; while [ $i -lt 500 ]; do sleep 100 & i=$((i + 1)); done"
    bomb = f"echo OK; read line; {forks}; echo FAIL $i; echo OK; read line"
    command = ["setpriv", f"--reuid={STRANGER}", "--clear-groups", "sh", "-c", bomb]
    bad = agent("bomb", command, limits={"nproc": 20}, cwd="/")
    daemon = launch(HEAD + HOST + bad + agent("good", rec(tmp_path / "record")))
    pk = daemon.insert(jq_type="bomb", jq_args="x")
    daemon.wait(daemon.insert(jq_type="good", jq_args="x"))
    row = daemon.wait(pk, "failed")
    assert "agent terminated prematurely" in row["jq_endtext"]
    assert "fork" in daemon.log_text(pk) + daemon.stderr()
    daemon.until(lambda: processes_of(STRANGER) <= 20)
    daemon.stop()
    assert processes_of(STRANGER) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "limits", "reason"),
    [
        ("x = bytearray(1 << 30)", {"memory": 300_000_000}, "exit status 1"),
        ("while True:\n    pass", {"cpu": 1}, "by SIGKILL|by SIGXCPU"),
        ("open('big', 'wb').write(bytes(10_000_000))", {"fsize": 1_000_000}, "exit status 1|SIGXFSZ"),
        ("[open('/dev/null') for _ in range(100)]", {"nofile": 32}, "exit status 1"),
    ],
)
def test_exceeding_a_resource_limit_ends_only_that_agent(
    launch: Launch, tmp_path: Path, script: str, limits: dict[str, int], reason: str
) -> None:
    bomb = python(
        f"print('OK')\ninput()\ntry:\n  {script}\nexcept (MemoryError, OSError):\n  raise SystemExit(1)\nprint('OK')"
    )
    bad = agent("bomb", bomb, limits=limits, cwd=str(tmp_path))
    daemon = launch(HEAD + HOST + bad + agent("good", rec(tmp_path / "record")))
    pk = daemon.insert(jq_type="bomb", jq_args="x")
    daemon.wait(daemon.insert(jq_type="good", jq_args="x"))
    assert re.search(reason, daemon.wait(pk, "failed")["jq_endtext"])


# ---- who starts it, and what it leaves in the file system (21, 22)


def test_root_is_refused_without_allow_root(drover: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.delenv("DROVER_ALLOW_ROOT", raising=False)
    done = drover("run")
    assert done.status == 2
    assert "refuses to run as root" in done.err


def test_daemon_writes_no_file_of_its_own(
    database_with_roles: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No pid file, no lock file, no socket: nothing for a link to lead astray."""
    places = ("HOME", "TMPDIR", "RUNTIME_DIRECTORY", "STATE_DIRECTORY", "XDG_RUNTIME_DIR")
    for place in places:
        (tmp_path / place).mkdir()
        monkeypatch.setenv(place, str(tmp_path / place))
    with start(HOST + agent("rec", rec("/dev/null")), database_with_roles) as daemon:
        daemon.wait(daemon.insert(jq_type="rec", jq_args="x"))
        assert [str(path) for place in places for path in (tmp_path / place).rglob("*") if path != daemon.folder] == [
            str(path) for path in daemon.folder.rglob("*") if tmp_path in path.parents
        ]
    assert main(["version"]) == 0
