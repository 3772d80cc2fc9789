"""Claims about the agents we ship, as processes between pipes."""

import hashlib
import json
import os
import signal
from pathlib import Path

import pytest

from tests.agent_tools import AGENTS, Agent, bundled, is_gone, record, watch
from tests.needs import need

NAMES = sorted(path.parent.name for path in AGENTS.glob("*/drover-agent-*"))
NEEDED = {"cleanup": ["--root", "/srv"], "map": ["/srv/none", "0", "0", "0"]}
FILE_AGENTS = ["sha256", "mimetype", "license"]
EMPTY = hashlib.sha256().hexdigest()
SLEEP = b"echo $$; sleep 600 & echo $!; wait"


def result(said: list[bytes]) -> object:
    (line,) = said
    return json.loads(line.removeprefix(b"RESULT "))


def said_pids(agent: Agent) -> list[int]:
    """Descriptors of the two processes that SLEEP tells us of."""
    return [watch(int(agent.hear().removeprefix(b"LOG "))) for _ in range(2)]


@pytest.fixture
def huge(tmp_path: Path) -> Path:
    """Return a file that takes minutes to read, and no room on the disk."""
    path = tmp_path / "huge"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    return path


def test_every_agent_that_is_shipped_is_tested() -> None:
    folders = {path.name for path in AGENTS.iterdir() if path.is_dir() and not path.name.startswith("_")} - {"lib"}
    assert set(NAMES) == folders
    assert set(NAMES) >= {"sha256", "mimetype", "license", "noop", "shell", "cleanup", "notify", "http", "sql", "map"}


@pytest.mark.parametrize("name", NAMES)
def test_an_idle_agent_exits_at_once_when_stdin_closes_f83(name: str) -> None:
    with bundled(name, *NEEDED.get(name, [])) as agent:
        agent.hang_up()
        assert agent.end() == 0


@pytest.mark.parametrize("name", NAMES)
def test_an_idle_agent_exits_at_once_at_sighup_f111(name: str) -> None:
    with bundled(name, *NEEDED.get(name, [])) as agent:
        agent.process.send_signal(signal.SIGHUP)
        assert agent.end() == -signal.SIGHUP


@pytest.mark.parametrize("name", NAMES)
def test_a_line_cut_by_the_end_of_input_is_not_worked_f83(name: str) -> None:
    with bundled(name, *NEEDED.get(name, [])) as agent:
        os.write(agent.process.stdin.fileno(), b"echo /etc/pas")  # type: ignore[union-attr]
        agent.hang_up()
        assert agent.hear() == b""


def test_a_long_file_is_left_at_once_when_stdin_closes_f83(huge: Path) -> None:
    with bundled("sha256") as agent:
        agent.say(bytes(huge))
        assert agent.hear() == b"Heartbeat"
        agent.hang_up()
        assert agent.end() == 0


def test_a_long_file_is_left_at_once_at_sighup_f111(huge: Path) -> None:
    with bundled("sha256") as agent:
        agent.say(bytes(huge))
        assert agent.hear() == b"Heartbeat"
        os.killpg(agent.process.pid, signal.SIGHUP)
        assert agent.end() == -signal.SIGHUP


MANY_NAMES = json.dumps({"folder": "/srv/none", "names": ["x"] * 200_000}).encode()  # about the longest line


def test_a_long_clean_up_is_left_at_once_when_stdin_closes_f83() -> None:
    with bundled("cleanup", "--root", "/srv") as agent:
        agent.say(MANY_NAMES)
        assert agent.hear() == b"Heartbeat"
        agent.hang_up()
        assert agent.end() == 0


def test_a_long_clean_up_is_left_at_once_at_sighup_f111() -> None:
    with bundled("cleanup", "--root", "/srv") as agent:
        agent.say(MANY_NAMES)
        assert agent.hear() == b"Heartbeat"
        os.killpg(agent.process.pid, signal.SIGHUP)
        assert agent.end() == -signal.SIGHUP


@pytest.mark.parametrize("name", FILE_AGENTS)
def test_an_agent_killed_at_work_gives_the_same_result_when_repeated_f116(name: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"SPDX-License-Identifier: MIT\n")
    with bundled(name) as undisturbed:
        expected = undisturbed.work(bytes(path))
    with bundled(name, "--save", "save") as killed:
        killed.say(record({"path": bytes(path)}))
        killed.hear()
        killed.process.kill()
    with bundled(name) as again:
        assert again.work(bytes(path)) == expected


@pytest.mark.parametrize("name", ["file", "with blank", 'quote"d', "new\nline", "caf\udce9", "ä", "$(id)", 'path="x"'])
def test_a_path_with_any_bytes_is_opened_f86(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(b"data")
    with bundled("sha256") as agent:
        found = result(agent.work(record({"path": bytes(path)})))
    assert found == {"sha256": hashlib.sha256(b"data").hexdigest(), "size": 4}


def test_a_bare_line_is_a_path_f84(tmp_path: Path) -> None:
    path = tmp_path / 'a "bare" = line'
    path.touch()
    with bundled("sha256") as agent:
        assert result(agent.work(bytes(path))) == {"sha256": EMPTY, "size": 0}


@pytest.mark.parametrize("name", FILE_AGENTS)
def test_a_file_that_cannot_be_read_fails_its_item_only(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    place = bytes(tmp_path)
    with bundled(name) as agent:
        assert agent.work(place + b"/none") == [b"FAIL " + place + b"/none: No such file or directory"]
        assert agent.work(place) == [b"FAIL " + place + b": not a regular file"]
        assert agent.work(place + b"/fifo") == [b"FAIL " + place + b"/fifo: not a regular file"]
        assert agent.work(place + b"/a\0b") == [b"FAIL! embedded null byte"]
        assert agent.work(record({"pk": b"1", "path": None})) == [b"FAIL! the item has no column path, or it is NULL"]
        assert agent.work(record({"path": place + b"/none"}))[0].startswith(b"FAIL ")


def test_results_are_saved_with_the_columns_of_the_item(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with bundled("sha256", "--save", "save") as agent:
        agent.say(record({"pfile_pk": b"12", "path": bytes(tmp_path / "file"), "host": None}))
        head, _, values = agent.hear().partition(b"{")
        assert head == b"DB: save "
        assert json.loads(b"{" + values) == {"pfile_pk": "12", "sha256": EMPTY, "size": 0}
        assert agent.work(b"OK") == []


def test_an_answer_with_rows_is_read_to_its_end(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with bundled("sha256", "--save", "save") as agent:
        agent.say(record({"path": bytes(tmp_path / "file")}))
        assert agent.hear().startswith(b"DB: save {")
        assert agent.work(b'pfile_pk="12"\n\npfile_pk="13"\nOK') == []


def test_a_statement_that_fails_fails_the_item(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with bundled("sha256", "--save", "save") as agent:
        agent.say(record({"path": bytes(tmp_path / "file")}))
        assert agent.hear().startswith(b"DB: save {")
        assert agent.work(b'ERROR no column "pk"\nOK') == [b'FAIL not saved: no column "pk"']


def test_an_agent_that_waits_for_an_answer_exits_when_stdin_closes_f83(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with bundled("sha256", "--save", "save") as agent:
        agent.say(record({"path": bytes(tmp_path / "file")}))
        assert agent.hear().startswith(b"DB: save {")
        agent.hang_up()
        assert agent.end() == 0


@pytest.mark.parametrize(
    ("name", "data", "expected"),
    [
        ("empty.py", b"", "inode/x-empty"),
        ("a.png", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "image/png"),
        ("misnamed.txt", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "image/png"),
        ("a.pdf", b"%PDF-1.7\n%%EOF", "application/pdf"),
        ("a.py", b"import os\n", "text/x-python"),
        ("a.html", b"hello", "text/html"),
        ("a.json", b"[1]", "application/json"),
        ("README", b"BM is how a bitmap begins", "text/plain"),
        ("README", "ä".encode() * 40000, "text/plain"),
        ("unknown", b"\x01\x02\xff\xfe\0\0", "application/octet-stream"),
        ("program", b"\x7fELF\x02\x01\x01\0", "application/x-elf"),
    ],
)
def test_a_file_type_is_found_by_content_then_by_name(name: str, data: bytes, expected: str, tmp_path: Path) -> None:
    need("puremagic")
    (tmp_path / name).write_bytes(data)
    with bundled("mimetype") as agent:
        assert result(agent.work(bytes(tmp_path / name))) == {"mimetype": expected}


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", "none"),
        (b"# SPDX-License-Identifier: MIT OR Apache-2.0\n", "Apache-2.0 MIT"),
        (b"Licensed to PSF under a Contributor Agreement.", "PSF-2.0"),
        (b" " * (1 << 20) + b"MIT License", "none"),
    ],
    ids=["empty", "tag", "phrase", "past the first MiB"],
)
def test_licences_of_a_file_are_reported(data: bytes, expected: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(data)
    with bundled("license") as agent:
        assert result(agent.work(bytes(tmp_path / "file"))) == {"license": expected}


@pytest.mark.parametrize("line", [b"", b"anything", b"\xff\xfe", b'a="1"', b"x" * 1_000_000])
def test_noop_says_ok_to_everything(line: bytes) -> None:
    with bundled("noop") as agent:
        assert agent.work(line) == []


def test_shell_fills_in_slot_agent_and_pid_f170() -> None:
    with bundled("shell", "echo %{U} %{A} %{P}", THREAD_UNIQUE="3", DROVER_AGENT="shell") as agent:
        assert agent.work(b"") == [b"LOG 3 shell %d" % agent.process.pid, b"Success"]


def test_shell_takes_words_and_columns_as_arguments_f170() -> None:
    with bundled("shell", "echo '[%{2}]' %{1} %{b}") as agent:
        assert agent.work(b"one 'two  words'") == [b"LOG [two  words] one %{b}", b"Success"]
        assert agent.work(record({"a": b"$HOME", "b": b"it's"})) == [b"LOG [b=it's] a=$HOME it's", b"Success"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"true", [b"Success"]),
        (b"exit 3", [b"ERROR exit status 3", b"FAIL exit status 3"]),
        (b"kill -9 $$", [b"ERROR killed by signal 9 (SIGKILL)", b"FAIL killed by signal 9 (SIGKILL)"]),
        (b"kill -40 $$", [b"ERROR killed by signal 40", b"FAIL killed by signal 40"]),
        (b"printf 'a\\nb'", [b"LOG a", b"LOG b", b"Success"]),
        (b"echo trouble >&2", [b"LOG stderr: trouble", b"Success"]),
        (b"echo OK; echo FAIL", [b"LOG OK", b"LOG FAIL", b"Success"]),
        (b"cat; echo end", [b"LOG end", b"Success"]),
        (b"printf '\\351'", [b"LOG \xe9", b"Success"]),
    ],
)
def test_shell_reports_how_its_command_ended_f170(line: bytes, expected: list[bytes]) -> None:
    with bundled("shell") as agent:
        assert agent.work(line) == expected


def test_shell_bounds_what_it_logs_f170() -> None:
    with bundled("shell") as agent:
        said = agent.work(b"seq 1000")
    assert said[:200] == [b"LOG %d" % n for n in range(1, 201)]
    assert said[200:] == [b"LOG (800 more lines left out)", b"Success"]


def test_shell_cuts_a_long_line_into_several_f170() -> None:
    with bundled("shell") as agent:
        said = agent.work(b"head -c 20000 /dev/zero | tr '\\0' x")
    assert b"".join(line.removeprefix(b"LOG ") for line in said[:-1]) == b"x" * 20000


@pytest.mark.slow
def test_shell_fails_what_cannot_be_started_f170() -> None:
    with bundled("shell", "echo %{1}") as agent:
        assert agent.work(b"it's")[-1] == b"FAIL not started: No closing quotation"
        assert agent.work(b"x" * 200_000)[-1].startswith(b"FAIL not started: ")
        assert agent.work(b"well")[-1] == b"Success"


def test_shell_prints_heartbeats_while_its_command_runs_f170() -> None:
    with bundled("shell", "--heartbeat", "0.01") as agent:
        agent.say(SLEEP)
        heard = [agent.hear() for _ in range(8)]
    assert b"Heartbeat" in heard


def test_shell_does_not_wait_for_background_processes_of_its_command_f170() -> None:
    with bundled("shell") as agent:
        pid, success = agent.work(b"sleep 600 & echo $!")
        assert success == b"Success"
        left_behind = watch(int(pid.removeprefix(b"LOG ")))
        agent.hang_up()
        assert agent.end() == 0
        assert is_gone(left_behind)


def test_shell_ends_its_command_when_stdin_closes_f83() -> None:
    with bundled("shell") as agent:
        agent.say(SLEEP)
        children = said_pids(agent)
        agent.hang_up()
        agent.end()
        assert all(is_gone(child) for child in children)


def test_shell_and_its_command_end_at_sighup_to_the_group_f111() -> None:
    with bundled("shell") as agent:
        agent.say(SLEEP)
        children = said_pids(agent)
        os.killpg(agent.process.pid, signal.SIGHUP)
        agent.end()
        assert all(is_gone(child) for child in children)


def files(*names: str, folder: str = "") -> bytes:
    """Return the item of a clean-up."""
    return json.dumps({"folder": folder, "names": names}).encode()


def test_cleanup_removes_the_named_files_and_reports_missing_ones_r43_r46(tmp_path: Path) -> None:
    for name in ("a", 'b "c"\n', "kept"):
        (tmp_path / name).touch()
    names = [str(tmp_path / name) for name in ("a", 'b "c"\n', "gone")]
    with bundled("cleanup", "--root", str(tmp_path)) as agent:
        assert result(agent.work(files(*names))) == {"removed": 2, "gone": 1}
        assert result(agent.work(files(*names))) == {"removed": 0, "gone": 3}
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_cleanup_finds_relative_names_in_the_folder_r45(tmp_path: Path) -> None:
    folder, other = tmp_path / "folder", tmp_path / "other"
    for path in (folder, other):
        path.mkdir()
        (path / "a").touch()
    with bundled("cleanup", "--root", str(tmp_path)) as agent:
        assert result(agent.work(files("a", "./b", f"{other}/a", folder=str(folder)))) == {"removed": 2, "gone": 1}
        (refused,) = agent.work(files("../other", folder=str(folder)))[-1:]
    assert refused.endswith(b"/folder/../other: has .. in it")
    assert list(folder.iterdir()) == list(other.iterdir()) == []


def test_cleanup_removes_a_file_whose_name_is_not_text_r43(tmp_path: Path) -> None:
    path = tmp_path / "caf\udce9"
    path.touch()
    with bundled("cleanup", "--root", str(tmp_path)) as agent:
        assert result(agent.work(b'{"folder": "", "names": ["%s"]}' % bytes(path))) == {"removed": 1, "gone": 0}


def test_cleanup_removes_allowed_files_logs_refusals_and_fails_r50(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    for path in (root / "a", root / "b", outside):
        path.touch()
    names = [str(root / "a"), str(outside), f"{root}/../outside", str(root / "b")]
    with bundled("cleanup", "--root", str(root)) as agent:
        said = agent.work(files(*names))
    assert said == [
        b"ERROR not removed: %s: not below a permitted root" % bytes(outside),
        b"ERROR not removed: %s/../outside: has .. in it" % bytes(root),
        b"FAIL 2 of 4 files not removed: %s: not below a permitted root" % bytes(outside),
    ]
    assert outside.exists()
    assert list(root.iterdir()) == []


def test_cleanup_bounds_what_it_logs(tmp_path: Path) -> None:
    with bundled("cleanup", "--root", str(tmp_path)) as agent:
        said = agent.work(files(*["x"] * 500))
    told = [line for line in said if line != b"Heartbeat"]
    assert len(told) == 101
    assert told[-1].startswith(b"FAIL 500 of 500 files not removed: x: ")


NO_FILES = [
    b"", b"/srv/data/x", b"{}", b'["a"]', b'{"names": ["a"]}', b'{"folder": null, "names": ["a"]}',
    b'{"folder": "", "names": "a"}', b'{"folder": "", "names": [1]}', b'{"folder": "", "names": [["a"]]}',
    b'{"folder": "", "names": ["a"', b'{"folder": "", "names": ["\\ud800"]}',
]  # fmt: skip


@pytest.mark.parametrize("line", NO_FILES)
def test_cleanup_fails_an_item_that_is_not_a_list_of_names(line: bytes) -> None:
    with bundled("cleanup", "--root", "/srv") as agent:
        (said,) = agent.work(line)
        assert said.startswith(b"FAIL not a folder and a list of names in JSON: ")


@pytest.mark.parametrize("options", [[], ["--root", "here"], ["--root", "/srv/../etc"]])
def test_cleanup_without_a_root_does_not_start_r50(options: list[str]) -> None:
    with Agent([AGENTS / "cleanup/drover-agent-cleanup", *options]) as agent:
        assert agent.hear() == b""
        assert agent.end() == 2
