"""etc/drover.service: systemd takes it, finds it hard enough, and it says what RELIABILITY 5 asks for."""

import signal
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

import pytest

from scheduler.drivers.os_calls import LEAVE
from scheduler.package_data import etc_dir
from tests.needs import need

UNIT = etc_dir() / "drover.service"
KEEP = etc_dir() / "keep-agents.conf"
EXPOSURE = 2.0  # of 10, at most
WANTED = {
    "Type": "notify",
    "WatchdogSec": "30",
    "WatchdogSignal": "SIGABRT",
    "Restart": "on-failure",
    "KillMode": "mixed",
    "TimeoutStopSec": "40",
    "OOMPolicy": "continue",
    "User": "drover",
    "NoNewPrivileges": "yes",
    "CapabilityBoundingSet": "",
    "ProtectSystem": "strict",
    "PrivateDevices": "yes",
    "LogsDirectory": "drover",
    "StateDirectory": "drover",
}


def service() -> dict[str, str]:
    """Return what the section of the service says; of a key given twice the last."""
    parser = ConfigParser(strict=False, interpolation=None, comment_prefixes=("#",))
    parser.optionxform = str  # type: ignore[method-assign,assignment]
    parser.read(UNIT)
    return dict(parser["Service"])


@pytest.mark.parametrize("key", WANTED)
def test_the_unit_has_the_required_directives_j120_f167(key: str) -> None:
    assert service()[key] == WANTED[key]


def test_the_drop_in_keeps_descriptors_and_tells_a_restart_from_a_stop() -> None:
    lines = KEEP.read_text().splitlines()
    assert [line for line in lines if line and line[0] not in "#["] == [
        "FileDescriptorStoreMax=4096", "RestartKillSignal=SIGRTMIN+1", "KillMode=process",
    ]  # fmt: skip
    assert signal.SIGRTMIN + 1 == LEAVE


def test_the_unit_allows_agents_to_compile_and_to_be_nice() -> None:
    assert "MemoryDenyWriteExecute" not in service()
    assert "@resources" not in UNIT.read_text()


def test_systemd_finds_nothing_wrong_with_the_unit_j120(tmp_path: Path) -> None:
    need("systemd-analyze")
    drop_in = tmp_path / f"{UNIT.name}.d" / KEEP.name
    drop_in.parent.mkdir()
    drop_in.write_text(KEEP.read_text())
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace("/usr/local/bin/drover", str(Path(sys.executable))))
    argv = ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(copy)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_unit_is_hardened_j120() -> None:
    need("systemd-analyze")
    argv = ["systemd-analyze", "security", "--offline=true", "--no-pager", f"--threshold={EXPOSURE * 10:g}", str(UNIT)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-200:] + done.stderr
    assert "Overall exposure level for drover.service" in done.stdout
