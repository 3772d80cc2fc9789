"""Claims about drover-agent(7): it is clean mdoc, tells of every keyword, and its examples work."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.agent_tools import LIBRARY, Agent, record
from tests.needs import need
from tests.unit.test_transcripts import KEYWORDS

MANUAL = Path(__file__).parents[2] / "man" / "drover-agent.7"


def example(title: str) -> str:
    """Return the literal block under the line that begins with `title`, as a reader sees it."""
    after = MANUAL.read_text().split(f"\n{title}", 1)[1]
    block = after.split(".Bd -literal -offset indent\n", 1)[1].split(".Ed\n", 1)[0]
    return block.replace(r"\&", "").replace(r"\e", "\\")


def program(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_the_manual_has_no_warning() -> None:
    need("mandoc")
    lint = subprocess.run(["mandoc", "-Tlint", "-Wwarning", MANUAL], capture_output=True, text=True, check=False)
    assert (lint.returncode, lint.stdout) == (0, "")


@pytest.mark.parametrize("keyword", sorted(KEYWORDS - {b"DEBUG"}))
def test_the_manual_documents_each_keyword(keyword: bytes) -> None:
    assert re.search(rf"^\.It Li {re.escape(keyword.decode())}(?!\w)", MANUAL.read_text(), re.MULTILINE)


def test_the_example_in_python_works(tmp_path: Path) -> None:
    (tmp_path / "drover_agent.py").write_bytes((LIBRARY / "drover_agent.py").read_bytes())
    (tmp_path / "data").write_bytes(b"12345")
    script = program(tmp_path / "agent", example("An agent in Python"))
    with Agent([sys.executable, script]) as agent:
        assert agent.hear() == b"OK"
        agent.say(record({"pfile_pk": b"1", "path": bytes(tmp_path / "data")}))
        assert agent.hear() == b'DB: save {"pfile_pk":"1","size":5}'
        assert agent.work(b"OK") == []


def test_the_example_in_shell_works(tmp_path: Path) -> None:
    (tmp_path / "data file").write_bytes(b"12345")
    place = bytes(tmp_path)
    text = example("An agent in shell").replace("/path/to", str(LIBRARY))
    with Agent([program(tmp_path / "agent", text)]) as agent:
        assert agent.hear() == b"OK"
        assert agent.work(record({"path": place + b"/data file"})) == [b"LOG " + place + b"/data file has 5 bytes"]
        assert agent.work(record({"path": place + b"/none"})) == [b"FAIL cannot read " + place + b"/none"]
        assert agent.work(record({"pk": b"1"})) == [b"FAIL cannot read an item without path"]


def test_the_example_in_c_works(tmp_path: Path) -> None:
    need("gcc")
    source = program(tmp_path / "agent.c", example("An agent in C"))
    subprocess.run(["gcc", "-Wall", "-Werror", "-o", tmp_path / "agent", source], check=True)
    with Agent([tmp_path / "agent"]) as agent:
        assert agent.hear() == b"OK"
        assert agent.work(bytes(source)) == []
        assert agent.work(b"/none") == [b"FAIL cannot open /none"]
