"""The house as drawn: what stands where, what depends on what, and what is nowhere."""

import ast
import re
import tomllib
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted(path for path in (ROOT / "scheduler").rglob("*.py") if "_data" not in path.parts)  # what is shipped
OTHERS = {"embedded_guardian.py", "ssh", "web", "metrics"}  # guardian of the database, SSH host, dashboard, exporter
DAEMON = [path for path in SOURCES if not OTHERS & {path.name, path.parent.name}]


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def _imports(path: Path) -> set[str]:
    tree = _tree(path)
    plain = {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    return plain | {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}


def test_needs_of_tests_are_checked_in_one_place() -> None:
    words = ("pytest.skip", "importorskip", "skipif", "mark.skip", "xfail")
    tests = [path for path in (ROOT / "tests").rglob("*.py") if path.name not in ("needs.py", Path(__file__).name)]
    assert [path for path in tests if any(word in path.read_text() for word in words)] == []


@pytest.mark.slow
def test_names_that_tests_import_from_the_product_exist() -> None:
    """Without this a name that was changed is noticed by the slow tests alone."""
    missing = []
    for path in sorted((ROOT / "tests").rglob("*.py")):
        for node in ast.walk(_tree(path)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("scheduler"):
                module = import_module(node.module or "")
                there = {*dir(module), *(each.name for each in iter_modules(getattr(module, "__path__", ())))}
                missing += [f"{path}: {node.module}.{each.name}" for each in node.names if each.name not in there]
    assert not missing, "\n".join(missing)


def _project() -> dict[str, list[str]]:
    project: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return project


@pytest.mark.slow
def test_compiled_modules_have_no_constant_tuple_of_floats_alone() -> None:
    """mypyc takes such a constant for one that was not set, unless it is annotated: importing the wheel fails."""
    hook = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}: annotate it, as Final[tuple[float, ...]]"
        for pattern in hook["custom"]["modules"]
        for path in sorted(ROOT.glob(pattern))
        for node in _tree(path).body
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.annotation) == "Final"
        if isinstance(node.value, ast.Tuple)
        and all(isinstance(part, ast.Constant) and isinstance(part.value, float) for part in node.value.elts)
    ]
    assert not found, "\n".join(found)


# Every variable of our environment that is read by name. None of them makes a daemon fail: that is done by tests, with
# functions that they replace (tests/faults/failpoints.py).
VARIABLES = {
    "CREDENTIALS_DIRECTORY", "DROVER_ALLOW_ROOT", "DROVER_BOOT_ID", "DROVER_CONFIG",
    "DROVER_DATABASE_URL", "DROVER_GUARDIAN", "DROVER_HANDOVER", "HOME", "JOURNAL_STREAM", "LISTEN_FDNAMES",
    "LISTEN_FDS", "LISTEN_PID", "NOTIFY_SOCKET", "PGHOST", "PGHOSTADDR", "PGUSER", "RUNTIME_DIRECTORY",
    "STATE_DIRECTORY", "SSH_AUTH_SOCK", "SYSTEMD_EXEC_PID", "TMPDIR", "WATCHDOG_PID", "WATCHDOG_USEC",
}  # fmt: skip

# What only the module of a concern may do, as it is spelled: a second place that does it has no module of its own.
# Modules of other processes, see OTHERS, and cli/, which runs before the daemon or instead of it, are left out.
CONCERNS = {
    r"psycopg(?!\.conninfo)": ("drivers/libpq.py", "drivers/postgres.py", "drivers/statements.py"),
    r"select\.epoll\(": ("drivers/loop.py",),  # read and select
    r"\bsocket\.socket\(": (
        "daemon/cgroup_warden.py", "daemon/fd_store_recovery.py",  # the lifeline of a warden
        "daemon/log.py",  # systemd's, which are written only
        "drivers/fd_store.py", "drivers/service_manager.py",
        "drivers/ssh_supervisor.py",  # that of a process which a program before us started
    ),
    r"\bsubprocess\.Popen\(": ("daemon/cgroup_warden.py", "daemon/upgrade.py", "drivers/libpq.py"),
    r"\bos\.posix_spawn\(": ("drivers/os_calls.py",),
    r"\bsignal\.set_wakeup_fd\(": ("drivers/os_calls.py",),
    r"\btomllib\.loads\(": ("model/config_reader.py",),  # configuration
    r"\bProcesses\(": ("daemon/wiring.py",),  # main: what puts the others together
}  # fmt: skip
BEFORE_OR_BESIDE = ("cli/", "database/")


@pytest.mark.parametrize("what", CONCERNS)
def test_each_concern_has_a_module_of_its_own_f140(what: str) -> None:
    names = {path: path.relative_to(ROOT / "scheduler").as_posix() for path in DAEMON}
    users = [name for path, name in names.items() if re.search(what, "\n".join(_code(path)))]
    assert tuple(name for name in users if not name.startswith(BEFORE_OR_BESIDE)) == CONCERNS[what]


# What only the module of a machine may set: see the tables of model/states.py.
WRITERS = {
    "slot.state": None,
    "slot.deadline": None,
    "slot.wanted": None,
    "self.wanted": "policy/slots.py",
    "lease.state": None,
    "lease.until": None,
    "query.state": None,
}


@pytest.mark.parametrize("what", WRITERS)
def test_each_state_machine_has_one_writer(what: str) -> None:
    writers = [path.relative_to(ROOT / "scheduler").as_posix() for path in SOURCES if what in _assigned(path)]
    assert writers == ([] if WRITERS[what] is None else [WRITERS[what]])


@cache
def _assigned(path: Path) -> set[str]:
    """Return all attributes that a file assigns to, as they are written."""
    nodes = [node for node in ast.walk(_tree(path)) if isinstance(node, ast.Attribute)]
    return {ast.unparse(node) for node in nodes if isinstance(node.ctx, ast.Store)}


def test_only_known_variables_of_the_environment_are_read() -> None:
    assert {name for path in SOURCES for name in _variables(path)} == VARIABLES


def test_product_does_not_mention_planted_faults() -> None:
    words = re.compile("fail_?points?|FAULTS_", re.IGNORECASE)
    assert [path.name for path in SOURCES if words.search(path.read_text())] == []


def _variables(path: Path) -> set[str]:
    """Return the names that are looked up in the environment, as texts or as constants of the file."""
    tree = _tree(path)
    constants = {
        ast.unparse(target): node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Constant)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    }
    keys = [key for node in ast.walk(tree) if (key := _key_of_environment(node)) is not None]
    found = {key.value if isinstance(key, ast.Constant) else constants.get(ast.unparse(key)) for key in keys}
    return {name for name in found if isinstance(name, str)}


def _key_of_environment(node: ast.AST) -> ast.expr | None:
    """Return the key in `environment[key]`, `environment.get(key)` and `environment.pop(key)`."""
    match node:
        case ast.Subscript(value=owner, slice=key) if not isinstance(key, ast.Slice):
            pass
        case ast.Call(func=ast.Attribute(value=owner, attr="get" | "pop"), args=[key, *_]):
            pass
        case _:
            return None
    return key if re.search(r"\benviron", ast.unparse(owner)) else None


@cache
def _code(path: Path) -> list[str]:
    """Return each statement of a file as one line of code, without comments, texts of annotations and docstrings."""
    tree = _tree(path)
    return [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Call | ast.Import | ast.ImportFrom)]


@pytest.mark.parametrize(
    "page", ["drover.1", "drover.8", "drover.toml.5", "drover-agent.7", "drover-jobqueue.7", "drover-tutorial.7"]
)
def test_each_audience_has_a_manual_page_f11(page: str) -> None:
    assert (ROOT / "man" / page).read_text().startswith(".")


def test_the_manual_says_what_a_firewall_lets_through_and_who_needs_no_password_j98_j99() -> None:
    security = (ROOT / "man/drover.8").read_text().partition(".Sh SECURITY CONSIDERATIONS")[2]
    assert [word for word in ("A firewall", "5432", "local drover all peer") if word not in security] == []


def test_the_daemon_depends_on_drivers_of_the_database_and_ssh_only_t18_t33() -> None:
    names = {line.split(">")[0].split("[")[0] for line in _project()["dependencies"]}
    assert names == {"psycopg", "paramiko", "rich", "attrs", "cronsim", "sqlglot"}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_http_in_the_scheduler_t8(path: Path) -> None:
    served = {"http.server", "http.client", "urllib.request", "aiohttp", "socketserver", "wsgiref"}
    assert not _imports(path) & served


def test_no_module_of_the_daemon_starts_a_thread_f6() -> None:
    used = {path.name for path in DAEMON if _imports(path) & {"threading", "concurrent.futures", "asyncio"}}
    assert used == set()


def test_select_is_not_used_since_it_stops_at_1024_descriptors_f153() -> None:
    users = [path.name for path in DAEMON if "select.select(" in path.read_text()]
    assert users == []
