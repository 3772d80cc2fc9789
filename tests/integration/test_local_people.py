"""What the manual says of people on the machine of the server, and of a firewall, holds."""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from getpass import getuser
from pathlib import Path
from socket import create_server

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from scheduler.database import migrate
from tests.cli_tools import DROVER, environment
from tests.integration.conftest import Launch
from tests.integration.daemon import agent, rec
from tests.integration.test_commands import HOST
from tests.needs import need
from tests.role_tools import grant_roles
from tests.warm import run
from tests.web.asking_server import AskingServer, asking_server

LISTENING = "0A"  # the state in /proc/net/tcp


@pytest.fixture
def server() -> Iterator[AskingServer]:
    """Yield a server that asks for passwords, but lets people into database drover under their own names."""
    need("postgres account")
    need("openssl")
    with asking_server() as made:
        yield made


def test_people_on_the_machine_of_the_server_need_no_password_j98(server: AskingServer, config: Path) -> None:
    admin, person = make_conninfo(server.by_socket, dbname="drover"), getuser()
    migrate.apply(admin)
    grant_roles(admin)
    with psycopg.connect(admin, autocommit=True) as owner:
        owner.execute(f'create role "{person}" login in role drover_operator'.encode())
        owner.execute("create role another login in role drover_operator")
        mine, others = (make_conninfo(admin, user=name) for name in (person, "another"))
        asked = [*DROVER, "submit", "noop", "--force", "x"]
        done, refused = (run(asked, env=environment(login, config)) for login in (mine, others))
        assert (done.returncode, done.stderr) == (0, "")
        assert "Peer authentication failed" in refused.stderr
        assert owner.execute("select jq_submitter from drover.jobqueue").fetchall() == [(person,)]


def open_files(folder: Path) -> Iterator[str]:
    for link in (folder / "fd").iterdir():
        with suppress(FileNotFoundError):  # it was closed meanwhile
            yield str(link.readlink())


def listening(pid: int) -> list[str]:
    """Return the TCP sockets on which a process waits for connections."""
    folder = Path(f"/proc/{pid}")
    sockets = set(open_files(folder))
    rows = [line.split() for name in ("tcp", "tcp6") for line in (folder / "net" / name).read_text().splitlines()[1:]]
    return [row[1] for row in rows if row[3] == LISTENING and f"socket:[{row[9]}]" in sockets]


def test_daemon_listens_on_no_port_j99(launch: Launch, record: Path) -> None:
    with create_server(("127.0.0.1", 0)):
        assert len(listening(os.getpid())) > 0
    daemon = launch(HOST + agent("a", rec(record)))
    daemon.wait(daemon.insert(jq_type="a", jq_args="x"))
    guardian = int(re.findall(r"^PPid:\s*(\d+)$", Path(f"/proc/{daemon.pid}/status").read_text(), re.MULTILINE)[0])
    assert [listening(pid) for pid in (daemon.pid, guardian)] == [[], []]
