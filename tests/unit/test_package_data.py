"""The shipped files are found, installed or not."""

from collections.abc import Callable
from pathlib import Path

import pytest

from scheduler.package_data import agents_dir, etc_dir, schema_dir


@pytest.mark.parametrize("directory", [schema_dir, etc_dir, agents_dir])
def test_shipped_directory_is_there(directory: Callable[[], Path]) -> None:
    assert directory().is_dir()
    assert any(directory().iterdir())
