"""`drover config`: each setting, its value and its origin (T19)."""

import json
import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from scheduler.cli.main import main
from tests.config_tools import FIELDS, LEAST, UNCOMMENTED

OTHER_URL = "host=/run/other dbname=q"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a configuration in a directory of its own; the environment names neither it nor a database."""
    for name in ("DROVER_CONFIG", "DROVER_DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    folder = tmp_path / "own"
    folder.mkdir(mode=0o755)
    return written(folder / "drover.toml", LEAST)


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o600)
    return path


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, tuple[str, str]]:
    """Return value and origin of each setting that the command prints."""
    assert main(["config", "--json", *words]) == 0
    return settings_of(capsys.readouterr().out)


def settings_of(lines: str) -> dict[str, tuple[str, str]]:
    """Return value and origin of each setting in the lines of the command."""
    rows = map(json.loads, lines.splitlines())
    return {row["setting"]: (row["value"], row["origin"]) for row in rows}


@pytest.fixture(scope="module")
def all_printed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, str]]:
    """Return what the command prints of a configuration that has every key; to print it takes 20 ms."""
    file = written(tmp_path_factory.mktemp("all") / "drover.toml", UNCOMMENTED)
    with redirect_stdout(StringIO()) as told:
        assert main(["config", "--json", "-c", str(file)]) == 0
    return settings_of(told.getvalue())


def test_database_comes_from_option_environment_file_or_default_t19(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def url(*words: str) -> tuple[str, str]:
        return printed(capsys, "-c", str(file), *words)["database.url"]

    found = [url()]
    written(file, f'{LEAST}[database]\nurl = "dbname=q"\n')
    found.append(url())
    monkeypatch.setenv("DROVER_DATABASE_URL", OTHER_URL)
    found.append(url())
    found.append(url("-d", "dbname=option"))
    assert found == [
        ('"embedded"', "default"),
        ('"dbname=q"', f"{file}:5"),
        (f'"{OTHER_URL}"', "DROVER_DATABASE_URL"),
        ('"dbname=option"', "-d"),
    ]


@pytest.mark.parametrize(("table", "key", "_field"), FIELDS, ids=[f"{table}.{key}" for table, key, _ in FIELDS])
def test_each_setting_of_a_file_has_its_line_t19(
    table: str, key: str, _field: Any, all_printed: dict[str, tuple[str, str]]
) -> None:
    pattern = re.compile(rf"{table.replace('NAME', '[^.]+')}\.{key}\b.*")
    origins = [origin for name, (_, origin) in all_printed.items() if pattern.fullmatch(name)]
    lines = [UNCOMMENTED.splitlines()[int(origin.partition(":")[2]) - 1] for origin in origins if origin != "default"]
    assert [line for line in lines if key in line]


def test_setting_that_no_file_gives_has_its_default_t19(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = printed(capsys, "-c", str(file), "scheduler", "agents.a.limits.nofile", "agents.a.kind")
    assert {origin for _, origin in found.values()} == {"default"}
    assert (found["scheduler.lease"][0], found["agents.a.limits.nofile"][0]) == ("30", "none")


def test_file_that_is_read_is_named_with_the_reason_t19(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = [printed(capsys, "-c", str(file), "file")["file"]]
    monkeypatch.setenv("DROVER_CONFIG", str(file))
    found.append(printed(capsys, "file")["file"])
    monkeypatch.delenv("DROVER_CONFIG")
    own = tmp_path / "home/.config/drover"
    own.mkdir(parents=True, mode=0o755)
    written(own / "drover.toml", LEAST)
    found.append(printed(capsys, "file")["file"])
    assert found == [
        (str(file), "-c"), (str(file), "DROVER_CONFIG"), (str(own / "drover.toml"), "~/.config/drover/drover.toml"),
    ]  # fmt: skip


def test_later_file_wins_and_is_named_t19(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(file, f"{LEAST}slots = 2\n")
    (file.parent / "conf.d").mkdir(mode=0o755)
    more = written(file.parent / "conf.d/more.toml", "[agents.a]\nslots = 3\n")
    found = printed(capsys, "-c", str(file), "agents.a.slots", "agents.a.command")
    assert found == {"agents.a.slots": ("3", f"{more}:2"), "agents.a.command": ('["a"]', f"{file}:3")}


@pytest.mark.parametrize(
    "text",
    [
        '[database]\nurl = "host=there password=hush"\n',
        '[database]\nurl = "postgresql://me:hush@there/q"\n',
        'env = { NAME = "hush" }\n',
        'args_token = "hush"\n',
    ],
)
def test_secrets_are_masked_t19(text: str, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(file, LEAST.replace('["a"]', '["a", "--api-token", "hush"]') + text.replace("args_token", "#args_token"))
    assert main(["config", "-c", str(file)]) == 0
    shown = capsys.readouterr().out
    assert ("hush" in shown, "***" in shown) == (False, True)


def test_only_settings_that_are_given_are_printed_on_request_t19(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert list(printed(capsys, "-c", str(file), "--given")) == ["file", "agents.a.command"]


def test_unknown_setting_is_refused_t19(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "-c", str(file), "agents.b"]) == 1
    assert capsys.readouterr().err == "drover: no setting agents.b; drover config lists all\n"
