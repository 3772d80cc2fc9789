"""Who may change a file: its owner and mode count, and those of each directory and link on the way to it."""

import os
from pathlib import Path

import pytest

from scheduler.drivers.trusted_files import who_may_write
from tests.needs import need

STRANGER = 4711


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return a file that is safe, below a directory that is."""
    (tmp_path / "folder").mkdir(mode=0o755)
    (tmp_path / "folder/file").touch(mode=0o644)
    return tmp_path / "folder/file"


def problems(path: Path, *users: int) -> list[str]:
    return list(who_may_write(str(path), users))


def give(path: Path) -> None:
    """Give a file to another user, or skip the test."""
    need("root")  # only root gives files away
    os.chown(path, STRANGER, -1, follow_symlinks=False)


def test_file_of_ours_below_directories_of_ours_is_trusted(file: Path) -> None:
    assert problems(file) == []


def test_file_that_is_missing_has_no_problem(file: Path) -> None:
    assert problems(file.parent / "none/file") == []


@pytest.mark.parametrize("mode", [0o666, 0o664, 0o646])
def test_file_that_others_may_write_to_is_told(file: Path, mode: int) -> None:
    file.chmod(mode)
    assert problems(file) == [f"others may write to {file} (mode {mode:04o}); chmod go-w {file}"]


def test_directory_above_that_others_may_write_to_is_told(file: Path) -> None:
    folder = file.parent
    folder.chmod(0o775)
    assert problems(file) == [f"others may write to {folder} (mode 0775); chmod go-w {folder}"]


def test_sticky_directory_is_safe_for_what_is_ours(file: Path) -> None:
    file.parent.chmod(0o1777)
    assert problems(file) == []


def test_file_of_another_user_is_told_unless_that_user_is_trusted(file: Path) -> None:
    give(file)
    assert problems(file) == [f"{file} belongs to user {STRANGER}; give it to root, or name another file"]
    assert problems(file, STRANGER) == []


def test_link_is_followed_and_its_target_looked_at(file: Path) -> None:
    link = file.parent.parent / "link"
    link.symlink_to("folder/../folder/file")
    assert problems(link) == []
    file.parent.chmod(0o777)
    assert problems(link) == [f"others may write to {file.parent} (mode 0777); chmod go-w {file.parent}"]


def test_link_to_a_directory_is_followed(file: Path) -> None:
    link = file.parent.parent / "link"
    link.symlink_to(file.parent)
    file.chmod(0o666)
    assert problems(link / "file") == [f"others may write to {file} (mode 0666); chmod go-w {file}"]


def test_link_of_another_user_is_told(file: Path) -> None:
    link = file.parent.parent / "link"
    link.symlink_to(file)
    give(link)
    assert problems(link) == [f"{link} belongs to user {STRANGER}; give it to root, or name another file"]


def test_links_in_a_circle_have_an_end(file: Path) -> None:
    (file.parent / "a").symlink_to("b")
    (file.parent / "b").symlink_to("a")
    assert problems(file.parent / "a") == []


def test_what_stands_above_a_link_is_looked_for_where_it_leads(file: Path, tmp_path: Path) -> None:
    (tmp_path / "open/inner").mkdir(parents=True)
    (tmp_path / "open/file").touch()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "link").symlink_to("open/inner")
    named = tmp_path / "link/../file"
    assert problems(named) == [f"others may write to {tmp_path}/open (mode 0777); chmod go-w {tmp_path}/open"]
