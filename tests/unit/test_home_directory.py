"""The home of our user is an absolute path, whatever HOME and STATE_DIRECTORY are."""

import os
import pwd
from pathlib import Path

import pytest

from scheduler.database.embedded_place import default_directory
from scheduler.drivers.home_directory import expanded, home_directory
from scheduler.drivers.program_files import copies_folder
from scheduler.errors import ConfigError

OWN = Path(pwd.getpwuid(os.getuid()).pw_dir)


@pytest.mark.parametrize("environment", [{}, {"HOME": ""}], ids=["unset", "empty"])
def test_without_home_it_is_that_of_the_account(environment: dict[str, str]) -> None:
    assert home_directory(environment) == OWN
    assert default_directory(environment) == OWN / ".local/share/drover/pg"
    assert copies_folder(environment) == str(OWN / ".local/share/drover/programs")


@pytest.mark.parametrize("name", ["HOME", "STATE_DIRECTORY"])
def test_relative_place_is_refused(name: str) -> None:
    for place in (default_directory, copies_folder):
        with pytest.raises(ConfigError, match=f"^{name} is 'there', which is no absolute path: "):
            place({name: "there"})


def test_tilde_is_the_same_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "")
    assert expanded("~/.ssh/key") == str(OWN / ".ssh/key")
    assert expanded("~root/key") == os.path.expanduser("~root/key")
