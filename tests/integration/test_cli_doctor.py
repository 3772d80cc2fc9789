"""drover doctor: it tries what drover check only looks for, and says what to do next."""

import json
import os
from pathlib import Path

import pytest
from psycopg.conninfo import make_conninfo

from tests.cli_tools import CONFIG, Done, Drover
from tests.connection_tools import member
from tests.needs import need
from tests.pooler_tools import pooler


@pytest.fixture
def own_login(database_with_roles: str, config: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Configure the login of the daemon, and agents that may be root."""
    monkeypatch.setenv("DROVER_ALLOW_ROOT", "1")
    monkeypatch.delenv("DROVER_DATABASE_URL", raising=False)
    conninfo = make_conninfo(database_with_roles, user="drover_scheduler")
    written(config, conninfo)
    return conninfo


def written(config: Path, conninfo: str, *, database: str = "", scheduler: str = "", more: str = "") -> None:
    config.write_text(f'[database]\nurl = "{conninfo}"\n{database}\n[scheduler]\n{scheduler}\n{CONFIG}{more}')


def line(done: Done, about: str) -> str:
    """Return the one line about something."""
    (found,) = [each for each in done.out.splitlines() if each[5:].startswith(about)]
    return found


def test_doctor_of_a_good_installation_tries_all_and_finds_no_fault_t16(drover: Drover, own_login: str) -> None:
    done = drover("doctor")
    assert {each.split()[0] for each in done.out.splitlines()} == {"ok"}
    assert done.status == 0
    found = [line(done, about)[5:] for about in ("agent noop on", "clock", "LISTEN", "open files", "connections")]
    assert found[:3] == [
        "agent noop on local: is READY",
        "clock: as that of the server",
        "LISTEN: a NOTIFY comes through",
    ]
    assert "psycopg 3." in line(done, "versions")


def test_doctor_finds_all_that_check_finds_in_the_same_words(drover: Drover, own_login: str) -> None:
    checked, examined = drover("check").out.splitlines(), drover("doctor").out.splitlines()
    assert [each for each in examined if each in checked] == checked


def test_doctor_and_check_print_json(drover: Drover, own_login: str) -> None:
    for command in ("check", "doctor"):
        done = drover(command, "--json")
        found = [json.loads(each) for each in done.out.splitlines()]
        assert {each["finding"] for each in found} == {"ok"}
        assert found[0]["text"].startswith("configuration ")


def test_agent_that_exists_but_does_not_start_fails_with_what_to_do_t16(
    drover: Drover, own_login: str, config: Path
) -> None:
    written(config, own_login, more='[agents.mute]\ncommand = ["false"]\n')
    assert drover("check").status == 0
    done = drover("doctor")
    assert done.status == 1
    assert line(done, "agent mute on").startswith("FAIL agent mute on local: died before its first OK, exit status 1")
    assert line(done, "agent mute on").endswith("drover agent-check mute says more of its program")


def test_missing_program_is_told_once(drover: Drover, own_login: str, config: Path) -> None:
    written(config, own_login, more='[agents.lost]\ncommand = ["no-such-program"]\n')
    done = drover("doctor")
    assert (done.status, done.out.count("no-such-program")) == (1, 1)


def bare_host(folder: Path) -> str:
    """Return the table of a host b that has one program, `convert`, and no other."""
    folder.mkdir()
    (folder / "convert").write_text("#!/bin/sh\necho OK\nwhile read -r line; do echo OK; done\n")
    (folder / "convert").chmod(0o755)
    return f'[hosts.b]\ntransport = "command"\ncommand = ["env", "PATH={folder}"]\n'


def test_host_that_lacks_programs_is_told_in_one_sentence(
    drover: Drover, own_login: str, config: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "bin"
    types = '[agents.sha256]\ncommand = ["drover-agent-sha256"]\n[agents.convert]\ncommand = ["convert"]\n'
    written(config, own_login, more=bare_host(folder) + types + f'env = {{ PATH = "{folder}:{os.defpath}" }}\n')
    done = drover("doctor")
    assert line(done, "host b") == (
        'WARN host b has none of noop, sha256: give it types = "^convert$", or hosts = ["local"] to those types'
    )
    assert (done.status, "FAIL" in done.out) == (0, False)


def test_doctor_starts_no_agent_as_root_unless_that_is_allowed(
    drover: Drover, own_login: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    need("root")
    monkeypatch.delenv("DROVER_ALLOW_ROOT")
    done = drover("doctor")
    assert (done.status, line(done, "agents: not started")[:4]) == (0, "WARN")
    assert line(drover("doctor", "--allow-root"), "agent noop on")[:4] == "ok  "


@pytest.mark.slow
def test_doctor_finds_a_pooler_that_forwards_no_notification(drover: Drover, own_login: str, config: Path) -> None:
    with pooler(own_login, "transaction") as via:
        written(config, make_conninfo(via, user="drover_scheduler"))
        done = drover("doctor")
    assert line(done, "LISTEN").startswith("WARN LISTEN: a NOTIFY did not come within 3 s")
    assert ", behind a pooler, schema " in line(done, "versions")
    assert done.status == 0


@pytest.mark.slow
def test_log_in_that_is_refused_is_told_and_the_rest_goes_on(
    drover: Drover, own_login: str, config: Path, database_with_roles: str
) -> None:
    with member(database_with_roles, "drover_scheduler", 1) as conninfo:
        written(config, conninfo)
        done = drover("doctor")
    assert (done.status, line(done, "agent noop on")[:4]) == (1, "ok  ")
    assert "connection limit" in line(done, "log-in watch")
    assert line(done, "server") == "FAIL server: not examined further: a log-in of the daemon fails, see above"


def test_log_file_that_cannot_be_written_fails_with_what_to_do(drover: Drover, own_login: str, config: Path) -> None:
    written(config, own_login, scheduler='log_file = "/nonexistent/drover.log"')
    found = line(drover("doctor"), "log_file")
    assert found.startswith("FAIL log_file: /nonexistent/drover.log cannot be written; give this user /nonexistent")


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "found"), [(0o600, "ok  "), (0o644, "WARN")])
def test_private_key_that_others_may_read_is_found(
    drover: Drover, own_login: str, config: Path, tmp_path: Path, mode: int, found: str
) -> None:
    (key := tmp_path / "key").touch(mode)
    far = f'[hosts.far]\nenabled = false\ntransport = "ssh"\naddress = "127.0.0.1:9"\nidentity = "{key}"\n'
    written(config, own_login, more=far)
    assert line(drover("doctor"), "host far: identity")[:4] == found


def test_program_that_others_may_replace_is_found(drover: Drover, own_login: str, config: Path, tmp_path: Path) -> None:
    (program := tmp_path / "open").write_text("#!/bin/sh\necho OK\nread line\n")
    program.chmod(0o777)
    written(config, own_login, more=f'[agents.open]\ncommand = ["{program}"]\n')
    assert f"agent open: others may write to {program} (mode 0777); chmod go-w {program}" in drover("doctor").out


def test_script_or_directory_that_others_may_replace_is_found(
    drover: Drover, own_login: str, config: Path, tmp_path: Path
) -> None:
    (tmp_path / "above/below").mkdir(parents=True)
    (script := tmp_path / "above/below/script").write_text("echo OK; read line\n")
    (tmp_path / "above").chmod(0o775)
    script.chmod(0o646)
    written(config, own_login, more=f'[agents.open]\ncommand = ["sh", "{script}"]\n')
    found = drover("doctor").out
    assert f"WARN agent open: others may write to {script} (mode 0646); chmod go-w {script}" in found
    assert f"WARN agent open: others may write to {tmp_path}/above (mode 0775); chmod go-w {tmp_path}/above" in found


@pytest.mark.parametrize("command", ["check", "doctor"])
@pytest.mark.parametrize("name", ["tasks.sh", "link"])
def test_prelude_that_others_may_write_to_fails_with_what_to_do(
    drover: Drover, own_login: str, config: Path, tmp_path: Path, command: str, name: str
) -> None:
    (tasks := tmp_path / "tasks.sh").touch()
    (tmp_path / "link").symlink_to(tasks)
    tasks.chmod(0o666)
    more = f'[agents.billing]\nkind = "exec"\ncommand = ["true"]\nprelude = "{tmp_path / name}"\n'
    written(config, own_login, more=more)
    done = drover(command)
    assert line(done, "agent billing: o") == (
        f"FAIL agent billing: others may write to {tasks} (mode 0666); chmod go-w {tasks}"
    )
    assert done.status == 1


@pytest.mark.slow
def test_known_hosts_that_others_may_write_to_are_found(
    drover: Drover, own_login: str, config: Path, tmp_path: Path
) -> None:
    (known := tmp_path / "known_hosts").touch()
    known.chmod(0o666)
    far = f'[hosts.far]\nenabled = false\ntransport = "ssh"\naddress = "127.0.0.1:9"\nknown_hosts = "{known}"\n'
    written(config, own_login, more=far)
    assert f"WARN known_hosts: others may write to {known} (mode 0666); chmod go-w {known}" in drover("doctor").out


def test_agents_own_log_in_by_a_service_is_tried(
    drover: Drover, own_login: str, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (services := tmp_path / "services").write_text("[site]\n" + "\n".join(own_login.split()))
    monkeypatch.setenv("PGSERVICEFILE", os.fspath(services))
    agents = "".join(f'[agents.{n}]\ncommand = ["drover-agent-noop"]\ndatabase = "{n}"\n' for n in ("site", "other"))
    written(config, own_login, more=agents)
    done = drover("doctor")
    assert line(done, "log-in of agent site")[:4] == "ok  "
    assert line(done, "log-in of agent other").startswith("FAIL")
    assert "correct pg_service.conf" in line(done, "log-in of agent other")


@pytest.mark.parametrize(("role", "found"), [("drover_operator", "ok  "), ("drover_readonly", "WARN")])
def test_login_of_people_is_tried(drover: Drover, own_login: str, config: Path, role: str, found: str) -> None:
    people = make_conninfo(own_login, user=role)
    written(config, own_login, database=f'people_url = "{people}"')
    assert line(drover("doctor"), "log-in people")[:4] == found
