"""The shipped files are found, installed or not, and their version says how."""

from collections.abc import Callable
from pathlib import Path

import pytest

from scheduler.package_data import agents_dir, etc_dir, schema_dir, version
from tests.builds import IS_COMPILED


@pytest.mark.parametrize("directory", [schema_dir, etc_dir, agents_dir])
def test_shipped_directory_is_there(directory: Callable[[], Path]) -> None:
    assert directory().is_dir()
    assert any(directory().iterdir())


def test_version_says_whether_the_core_is_compiled() -> None:
    assert version().endswith(" (compiled)") == IS_COMPILED
