"""Claims about the skeletons of `drover agent new`: each passes the referee, and does the same in every language."""

import subprocess
from argparse import Namespace
from pathlib import Path

import pytest

from scheduler.cli.agent_kit import LANGUAGES, new_agent
from scheduler.cli.agent_process import config_of, process_spec
from scheduler.cli.command_table import LANGUAGES as IN_OPTIONS
from scheduler.cli.protocol_check import Referee
from scheduler.errors import ConfigError
from scheduler.model.config import Config
from tests.agent_tools import Agent, record
from tests.agents.test_referee import PATIENT
from tests.needs import need

NEEDED = {"bash": "bash", "c": "gcc", "node": "node", "perl": "perl"}
NAMES = [b"file", b"with blank", b'quote"d', b"new\nline", b"caf\xe9", "ä".encode(), b"$(id)", b"tab\t\\", b'path="x"']
languages = pytest.mark.parametrize("language", LANGUAGES)


def skeleton(folder: Path, language: str, monkeypatch: pytest.MonkeyPatch, name: str = "lines") -> Path:
    """Return the program that `drover agent new` makes, compiled where that is needed."""
    need(NEEDED.get(language, "python"))
    monkeypatch.chdir(folder)
    assert new_agent(Namespace(name=name, lang=language), Config()) == 0
    program = folder / name / f"drover-agent-{name}"
    if language == "c":
        flags = ["-O2", "-Wall", "-Wextra", "-Werror"]
        subprocess.run(["gcc", *flags, "-o", program, program.with_suffix(".c")], check=True)
    return program


def test_the_languages_are_those_of_the_option() -> None:
    assert tuple(LANGUAGES) == IN_OPTIONS


@pytest.mark.slow
@languages
def test_every_skeleton_passes_the_referee(language: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = skeleton(tmp_path, language, monkeypatch)
    spec = process_spec(config_of("lines", [str(program)]), "lines")
    found = list(Referee(spec, [], PATIENT, lambda text: None).findings())
    assert [each for each in found if each[0] != "ok"] == []
    assert [text.rpartition(", ")[2] for _, text in found if text.startswith("item ")] == ['RESULT {"lines":2}'] * 2


@languages
def test_every_skeleton_opens_files_of_any_name_f86(
    language: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = skeleton(tmp_path, language, monkeypatch)
    paths = [bytes(tmp_path) + b"/" + name for name in NAMES]
    for path in paths:
        Path(path.decode("utf-8", "surrogateescape")).write_bytes(b"one\ntwo\nthree\n")
    with Agent([program]) as agent:
        assert agent.hear() == b"OK"
        rows = [record({"id": b"1", "host": None, "path": path}) for path in paths]
        parameters = [path for path in paths if b"\n" not in path and b'="' not in path]
        said = [agent.work(line) for line in [*rows, *parameters]]
    assert said == [[b'RESULT {"lines":3}']] * len(said)


@languages
def test_every_skeleton_fails_an_item_and_goes_on(
    language: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = skeleton(tmp_path, language, monkeypatch)
    (tmp_path / "empty").touch()
    with Agent([program]) as agent:
        assert agent.hear() == b"OK"
        for bad in (b"/no/such", bytes(tmp_path), record({"path": b"/no/such"}), record({"other": b"1"})):
            (said,) = agent.work(bad)
            assert said.startswith((b"FAIL ", b"FAIL! ")), (bad, said)
        assert agent.work(bytes(tmp_path / "empty")) == [b'RESULT {"lines":0}']


@languages
def test_every_skeleton_says_which_failures_are_final(
    language: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hopeless = {"path": b""} if language == "c" else {"other": b"1"}
    with Agent([skeleton(tmp_path, language, monkeypatch)]) as agent:
        assert agent.hear() == b"OK"
        assert agent.work(record(hopeless))[0].startswith(b"FAIL! ")
        assert agent.work(b"/no/such")[0].startswith(b"FAIL ")


@pytest.mark.parametrize("name", ["", "1st", "a b", "../up", "a.b", "ä"])
def test_a_name_that_no_agent_type_can_have_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"is no name for an agent type; write letters, digits"):
        new_agent(Namespace(name=name, lang="python"), Config())


def test_a_directory_that_exists_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "words").mkdir()
    with pytest.raises(ConfigError, match="words exists already; remove it, or choose another name"):
        new_agent(Namespace(name="words", lang="bash"), Config())
    assert list((tmp_path / "words").iterdir()) == []
