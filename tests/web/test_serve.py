"""`drover web` as a process, and what it says when it cannot begin."""

import re
import signal
import socket
import subprocess
import urllib.request
from pathlib import Path

import pytest

from scheduler.cli import web_and_metrics
from scheduler.cli.main import main
from scheduler.web.server import WITHOUT_KEY
from tests.cli_tools import DROVER, environment


@pytest.mark.slow
def test_web_serves_until_ctrl_c_and_prints_where(web_database: str, tmp_path: Path) -> None:
    variables = environment(web_database, tmp_path / "none")
    with subprocess.Popen([*DROVER, "web", "--port", "0"], env=variables, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        said = process.stdout.readline()
        address = re.search(r"http://127.0.0.1:\d+/", said)
        assert address, said
        with urllib.request.urlopen(address[0]) as answer, urllib.request.urlopen(address[0] + "changes") as stream:
            assert b"Overview" in answer.read()
            assert stream.readline() == b"retry: 2000\n"
            process.send_signal(signal.SIGINT)  # while a browser waits for changes
            said = process.stdout.read()
            assert "#" not in said  # no key where nobody sees it
            assert said == WITHOUT_KEY + "\n"
            assert process.wait() == 0


def test_missing_packages_are_named_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], web_database: str
) -> None:
    monkeypatch.setattr(web_and_metrics, "WEB_PACKAGES", ("starlette", "nosuch_package"))
    monkeypatch.setenv("DROVER_DATABASE_URL", web_database)
    assert main(["web"]) == 2
    said = capsys.readouterr().err
    assert said.endswith("not installed: nosuch_package; install them with pip install 'drover-scheduler[web]'\n")


def test_address_in_use_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], web_database: str
) -> None:
    monkeypatch.setenv("DROVER_DATABASE_URL", web_database)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["web", "--port", str(port)]) == 2
    said = capsys.readouterr().err
    assert said == f"drover web: cannot listen on 127.0.0.1 port {port}: Address already in use; see --port\n"


@pytest.mark.parametrize("host", ["no such host", "192.0.2.1"])
def test_address_of_another_machine_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], web_database: str, host: str
) -> None:
    monkeypatch.setenv("DROVER_DATABASE_URL", web_database)
    assert main(["web", "--host", host]) == 2
    assert capsys.readouterr().err.startswith(f"drover web: cannot listen on {host} port 8300: ")
