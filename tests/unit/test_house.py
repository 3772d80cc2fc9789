"""The house as drawn: what stands where, what depends on what, and what is nowhere."""

import ast
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "scheduler").rglob("*.py"))
OTHERS = {"embedded_server.py", "bridge"}  # the database's guardian and the bridge of an SSH host are other processes
DAEMON = [path for path in SOURCES if not OTHERS & {path.name, path.parent.name}]


def _imports(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    plain = {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    return plain | {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}


def _project() -> dict[str, list[str]]:
    project: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return project


@pytest.mark.parametrize(
    "module",
    [
        "loop.py",  # read and select
        "drivers/children.py",  # spawn
        "drivers/signals.py",
        "drivers/queue.py",  # the queue
        "drivers/postgres.py",
        "policy/pools.py",  # hosts
        "daemon.py",  # configuration and loop
    ],
)
def test_each_concern_has_a_module_of_its_own_f140(module: str) -> None:
    assert (ROOT / "scheduler" / module).is_file()


@pytest.mark.parametrize("page", ["drover.1", "drover.8", "drover.toml.5", "drover-agent.7", "drover-jobqueue.7"])
def test_each_reader_has_a_page_of_his_own_f11(page: str) -> None:
    assert (ROOT / "man" / page).read_text().startswith(".")


def test_the_daemon_depends_on_drivers_of_the_database_and_ssh_only_t18_t33() -> None:
    names = {line.split(">")[0].split("[")[0] for line in _project()["dependencies"]}
    assert names == {"psycopg", "paramiko", "rich", "attrs", "cattrs"}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_http_in_the_scheduler_t8(path: Path) -> None:
    served = {"http.server", "http.client", "urllib.request", "aiohttp", "socketserver", "wsgiref"}
    assert not _imports(path) & served


def test_the_process_has_one_thread_f6() -> None:
    used = {path.name for path in DAEMON if _imports(path) & {"threading", "concurrent.futures", "asyncio"}}
    assert used == set()


def test_select_is_nowhere_since_it_stops_at_1024_descriptors_f153() -> None:
    users = [path.name for path in DAEMON if "select.select(" in path.read_text()]
    assert users == []
