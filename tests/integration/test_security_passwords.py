"""Attacks of an agent on the passwords of the daemon, each tried for real (threats 10 and 11 of the model)."""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from tests.integration.daemon import RUN, agent, lines, python, rec, start
from tests.integration.puppets import ASKING
from tests.needs import need

HOST = "[hosts.alpha]\n"
PASSWORD = "swordfish"
# The daemon as a user without privileges would run it: nothing but the user id says what it may do.
UNPRIVILEGED = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.geteuid() == 0 else []
# Tells, of each process above it, what it could read; it spells the word so that it finds no copy of its own.
SPY = python(f"""
import ctypes, os, re
WORD = {PASSWORD[:5]!r}.encode() + {PASSWORD[5:]!r}.encode()

def parent(pid):
    return int(open(f"/proc/{{pid}}/stat").read().rpartition(")")[2].split()[1])

def tried(what, look):
    try:
        return what + ("=PASSWORD" if WORD in look() else "=open")
    except OSError:
        return what + "=refused"

def memory(pid):
    found = b""
    with open(f"/proc/{{pid}}/maps") as maps, open(f"/proc/{{pid}}/mem", "rb", 0) as mem:
        for line in maps:
            if "rw-p" in line:
                first, last = (int(end, 16) for end in line.split()[0].split("-"))
                mem.seek(first)
                found += mem.read(last - first)
    return found

def traced(pid):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ptrace(16, pid, None, None):  # PTRACE_ATTACH
        raise OSError(ctypes.get_errno(), "ptrace")
    os.waitpid(pid, 0)
    libc.ptrace(17, pid, None, None)
    return b""

def descriptors(pid):
    for name in os.listdir(f"/proc/{{pid}}/fd"):
        os.readlink(f"/proc/{{pid}}/fd/{{name}}")
    return b""

def told(pid):
    looks = {{
        "environment": lambda: open(f"/proc/{{pid}}/environ", "rb").read(),
        "words": lambda: open(f"/proc/{{pid}}/cmdline", "rb").read(),
        "memory": lambda: memory(pid),
        "descriptors": lambda: descriptors(pid),
        "trace": lambda: traced(pid),
    }}
    return ",".join(tried(what, look) for what, look in looks.items())

print("OK")
for line in iter(input, ""):
    daemon = os.getppid()
    own = tried("environment", lambda: open("/proc/self/environ", "rb").read())
    print("FAIL daemon:", told(daemon), "guardian:", told(parent(daemon)), "own:", own)
    print("OK")
""")


def spied(database: str) -> str:
    need("setpriv")
    login = make_conninfo(database, password=PASSWORD)
    with start(HOST + agent("spy", SPY), database, via=login, program=[*UNPRIVILEGED, *RUN]) as daemon:
        return str(daemon.wait(daemon.insert(jq_type="spy", jq_args="x"), "failed")["jq_endtext"])


@pytest.mark.slow
def test_agent_can_read_nothing_of_the_daemon_but_its_command_line(database_with_roles: str) -> None:
    found = re.search(r"daemon: (\S+)", spied(database_with_roles))
    assert found is not None
    assert found[1] == "environment=refused,words=open,memory=refused,descriptors=refused,trace=refused"


@pytest.mark.slow
def test_agent_finds_no_password_in_the_guardian_nor_in_itself(database_with_roles: str) -> None:
    told = spied(database_with_roles)
    assert re.search(r"guardian: environment=open,words=open,memory=open", told)  # it could look
    assert "PASSWORD" not in told


@pytest.mark.slow
def test_the_spy_agent_finds_a_password_in_its_environment(database_with_roles: str) -> None:
    spy = agent("spy", SPY, env={"GIVEN": PASSWORD})
    with start(HOST + spy, database_with_roles) as daemon:
        told = daemon.wait(daemon.insert(jq_type="spy", jq_args="x"), "failed")["jq_endtext"]
    assert "own: environment=PASSWORD" in told


WITHOUT_URL = ["env", "-u", "DROVER_DATABASE_URL", *RUN]
LOGINS = {"": "drover_scheduler", "msq_": "drover_msq", "agentdb_": "drover_agentdb"}


def with_passwords(conninfo: str, folder: Path, password: str = PASSWORD) -> str:
    """Return the configuration of a database whose passwords are credentials, written beside it."""
    (folder / "db").write_text(f"{password}\n")
    (folder / "db").chmod(0o400)
    url = make_conninfo(conninfo, user="drover_scheduler")
    return f"[database]\nurl = {json.dumps(url)}\n" + "".join(f'{login}password_file = "db"\n' for login in LOGINS)


@pytest.fixture
def asking_for_passwords(database_with_roles: str) -> Iterator[str]:
    """Yield a database whose server asks the daemon's three logins for their passwords."""
    with psycopg.connect(database_with_roles, autocommit=True) as admin:
        before = admin.execute("select pg_read_file(current_setting('hba_file'))").fetchone()
        assert before is not None
        rules = [f"local {admin.info.dbname} {role} scram-sha-256\n" for role in LOGINS.values()]
        _write_rules(admin, "".join(rules) + before[0])
        for role in LOGINS.values():
            admin.execute(f"alter role {role} password '{PASSWORD}'".encode())
        while not _asks(make_conninfo(database_with_roles, user="drover_scheduler")):
            pass  # the server reads its rules when it gets round to it
        yield database_with_roles
        for role in LOGINS.values():
            admin.execute(f"alter role {role} password null".encode())
        _write_rules(admin, before[0])


def _asks(conninfo: str) -> bool:
    try:
        psycopg.connect(conninfo).close()
    except psycopg.OperationalError as error:
        return "no password supplied" in str(error)
    return False


def _write_rules(admin: "psycopg.Connection[Any]", text: str) -> None:
    path = admin.execute("show hba_file").fetchone()
    assert path is not None
    rules = sql.SQL("select line from regexp_split_to_table({}, E'\\n') line where line ~ '^[a-z]'").format(text)
    admin.execute(sql.SQL("copy ({}) to {} delimiter E'\\x01'").format(rules, path[0]))
    admin.execute("select pg_reload_conf()")


@pytest.mark.slow
def test_daemon_logs_in_with_a_credential_that_no_agent_gets(
    asking_for_passwords: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record: Path
) -> None:
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    shown = python("import os\nprint('OK')\ninput()\nprint('FAIL', dict(os.environ))\nprint('OK')\ninput()")
    types = agent("shown", shown) + agent("rec", rec(record)) + agent("asking", ASKING, db="sql")
    text = with_passwords(asking_for_passwords, tmp_path) + HOST + types
    with start(text, asking_for_passwords, program=WITHOUT_URL) as daemon:
        daemon.wait(daemon.insert(jq_type="rec", jq_args="select current_user as who", jq_msq=True))
        asked = daemon.wait(daemon.insert(jq_type="asking", jq_args="select current_user as who"), "failed")
        told = daemon.wait(daemon.insert(jq_type="shown", jq_args="x"), "failed")["jq_endtext"]
        assert PASSWORD not in daemon.stderr()
    assert lines(record) == ['who="drover_msq"']
    assert asked["jq_endtext"] == 'who="drover_agentdb"'
    assert "THREAD_UNIQUE" in told
    assert PASSWORD not in told
    assert "CREDENTIALS" not in told


@pytest.mark.slow
def test_wrong_password_is_refused_and_not_shown_j97(
    asking_for_passwords: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    text = with_passwords(asking_for_passwords, tmp_path, "octopus") + HOST + agent("rec", rec("/dev/null"))
    with start(text, asking_for_passwords, program=WITHOUT_URL, wait=False) as daemon:
        daemon.until(lambda: "password authentication failed" in daemon.stderr())
        assert "octopus" not in daemon.stderr()
