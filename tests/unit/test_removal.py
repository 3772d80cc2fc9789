"""Claims about what the clean-up agent removes: files below its roots, whatever their names and the directories are."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.agent_tools import module

removal = module("cleanup/removal.py")

STEPS = [
    "",
    ".",
    "..",
    "root",
    "outside",
    "dir",
    "link",
    "up",
    "file",
    "chain",
    "gone",
    "rootless",
    "a\nb",
    "é",
    "\udce9",
]
ODD = ["a b", 'quote"d', "new\nline", "caf\udce9", "ä", "$(id)", "-rf", "*", "\x01", "x" * 255]


@contextmanager
def tree() -> Iterator[Path]:
    """Yield a directory with a root, an outside, and links from the one to the other wherever there may be some."""
    with TemporaryDirectory(prefix="drover-removal-") as folder:
        top = Path(folder)
        for place in ("root", "root/dir", "outside", "outside/dir", "rootless"):
            (top / place).mkdir()
            (top / place / "file").write_text(place)
        for place in ("root", "root/dir"):
            (top / place / "link").symlink_to(top / "outside")
            (top / place / "up").symlink_to("../..")
            (top / place / "chain").symlink_to("link")
        yield top


@pytest.fixture
def top() -> Iterator[Path]:
    with tree() as folder:
        yield folder


def remove(path: Path | str, *roots: Path) -> bool:
    """Remove a file below these roots."""
    removed: bool = removal.remove(os.fsencode(path), [removal.Root(bytes(root)) for root in roots])
    return removed


def refused(path: Path | str, *roots: Path) -> str:
    with pytest.raises(removal.RefusedError) as caught:
        remove(path, *roots)
    return str(caught.value)


def files(folder: Path) -> set[str]:
    """Return all that is there, not through links."""
    return {os.path.join(where, name) for where, dirs, names in os.walk(folder) for name in dirs + names}


# ---- what is removed


@pytest.mark.parametrize("name", ODD)
def test_file_of_any_name_is_removed_r43(top: Path, name: str) -> None:
    (top / "root" / name).touch()
    assert remove(top / "root" / name, top / "root")
    assert not (top / "root" / name).exists()


def test_file_that_is_gone_is_no_error_r46(top: Path) -> None:
    assert not remove(top / "root/gone", top / "root")
    assert not remove(top / "root/gone/deeper/file", top / "root")


def test_the_target_of_a_removed_link_is_kept_r50(top: Path) -> None:
    (top / "root/alias").symlink_to(top / "outside/file")
    assert remove(top / "root/alias", top / "root")
    assert not (top / "root/alias").is_symlink()
    assert (top / "outside/file").exists()


def test_other_hard_link_of_a_file_is_kept_r48(top: Path) -> None:
    os.link(top / "root/file", top / "root/other")
    assert remove(top / "root/file", top / "root")
    assert (top / "root/other").read_text() == "root"


def test_innermost_root_counts_r50(top: Path) -> None:
    """What leads to it is the site's own."""
    assert refused(top / "root/link/file", top / "root") == "link is a symbolic link, or no directory"
    assert remove(top / "root/link/file", top / "root", top / "root/link")


def test_empty_path_components_are_ignored(top: Path) -> None:
    assert remove(f"{top}/root/./dir//file", top / "root")


# ---- what is not


@pytest.mark.parametrize("path", ["outside/file", "rootless/file", "root", "file", ""])
def test_file_outside_the_roots_is_refused_r50(top: Path, path: str) -> None:
    assert refused(top / path, top / "root") == "not below a permitted root"


@pytest.mark.parametrize("path", ["root/../outside/file", "root/dir/../file", "root/link/../outside/file"])
def test_dot_dot_is_refused_even_if_the_path_returns_r50(top: Path, path: str) -> None:
    assert refused(f"{top}/{path}", top / "root") == "has .. in it"


@pytest.mark.parametrize("path", ["root/link/file", "root/dir/link/file", "root/up/outside/file", "root/chain/file"])
def test_path_through_a_link_is_refused_r50(top: Path, path: str) -> None:
    assert "is a symbolic link" in refused(top / path, top / "root")


@pytest.mark.parametrize("path", ["root/dir", "root/dir/"])
def test_directory_is_refused(top: Path, path: str) -> None:
    assert refused(f"{top}/{path}", top / "root") == "is a directory"


@pytest.mark.parametrize("path", ["file", "./file", "root/file", "~/file"])
def test_relative_name_is_refused_r45(top: Path, path: str) -> None:
    assert "is relative" in refused(path, top / "root")


def test_name_with_a_nul_is_refused(top: Path) -> None:
    assert refused(f"{top}/root/file\0", top / "root") == "has a NUL in it"


def test_a_missing_root_is_an_error_r46(top: Path) -> None:
    assert refused(top / "none/file", top / "none") == f"its root {top}/none: No such file or directory"


@pytest.mark.parametrize("root", ["root", "", "/srv/../etc"])
def test_root_must_be_a_plain_absolute_path(root: str) -> None:
    with pytest.raises(removal.RefusedError):
        removal.Root(root.encode())


@pytest.mark.slow
@given(st.lists(st.sampled_from(STEPS), min_size=1, max_size=8), st.booleans())
def test_no_path_names_a_file_outside_a_root_r50(steps: list[str], is_below: bool) -> None:
    with tree() as top:
        before = files(top)
        with suppress(removal.RefusedError, OSError):
            remove("/".join([str(top), *["root"] * is_below, *steps]), top / "root")
        lost = before - files(top)
        assert len(lost) <= 1
        assert all(path.startswith(f"{top}/root/") for path in lost)


@given(st.binary(max_size=40))
def test_no_bytes_name_a_file_outside_a_root_r50(tail: bytes) -> None:
    with tree() as top:
        before = files(top / "outside")
        with suppress(removal.RefusedError, OSError):
            removal.remove(b"/".join([bytes(top), b"root", tail]), [removal.Root(bytes(top / "root"))])
        assert files(top / "outside") == before


def test_directory_replaced_by_a_link_meanwhile_is_not_followed_r50(top: Path) -> None:
    here, aside, over = top / "root/dir", top / "root/aside", threading.Event()

    def swap() -> None:
        while not over.is_set():
            here.rename(aside)
            here.symlink_to(top / "outside/dir")
            here.unlink()
            aside.rename(here)

    swapper = threading.Thread(target=swap)
    swapper.start()
    try:
        for _ in range(2000):
            with suppress(removal.RefusedError):
                remove(here / "file", top / "root")
    finally:
        over.set()
        swapper.join()
    assert (top / "outside/dir/file").exists()
    remove(here / "file", top / "root")  # it may have been a link, or nothing, each time before
    assert not (here / "file").exists()
