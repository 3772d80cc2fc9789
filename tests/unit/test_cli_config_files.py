"""Finding, reading and refusing configuration files."""

import json
import os
import sys
from pathlib import Path

import pytest

from scheduler.cli.config_files import load, locate, read, shipped, system_files
from scheduler.errors import ConfigError
from tests.cli_tools import DROVER
from tests.needs import need
from tests.package_tools import machine

LEAST = '[hosts.alpha]\n[agents.a]\ncommand = ["a"]\n'
SECRET = LEAST + '[database]\nurl = "host=there password=hush"\n'


def written(path: Path, text: str = LEAST, mode: int = 0o644) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
    path.write_text(text)
    path.chmod(mode)
    return path


def refusal(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        load(str(path), {})
    return str(caught.value)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return written(tmp_path / "home/.config/drover/drover.toml")


@pytest.fixture
def system(tmp_path: Path) -> Path:
    return written(tmp_path / "etc/drover.toml")


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """Return a file in a directory of its own."""
    return written(tmp_path / "own/drover.toml")


# Which file.


def test_option_wins_over_the_environment_f125(home: Path, system: Path) -> None:
    environ = {"DROVER_CONFIG": "/other", "HOME": str(home.parents[2])}
    assert locate("/given", environ, [system]) == Path("/given")


def test_environment_wins_over_the_users_file_r15_t19(home: Path, system: Path) -> None:
    environ = {"DROVER_CONFIG": "/other", "HOME": str(home.parents[2])}
    assert locate(None, environ, [system]) == Path("/other")


def test_users_file_wins_over_the_machines_r13(home: Path, system: Path) -> None:
    assert locate(None, {"HOME": str(home.parents[2])}, [system]) == home


@pytest.mark.parametrize("environ", [{}, {"HOME": "/nowhere"}, {"DROVER_CONFIG": ""}])
def test_machines_file_wins_over_the_shipped_one_r15_t19(environ: dict[str, str], system: Path) -> None:
    assert locate(None, environ, [system]) == system


@pytest.mark.parametrize(
    ("environment", "first"),
    [
        ("/opt/d/lib/drover", "/opt/d/etc"),  # of make install PREFIX=/opt/d
        ("/usr/local/lib/drover", "/usr/local/etc"),
        ("/usr/lib/drover", "/usr/etc"),
        ("/srv/venv", "/srv/venv/etc"),
        ("/usr", "/usr/etc"),
    ],
)
def test_machines_files_are_below_the_prefix_and_three_directories_r15(environment: str, first: str) -> None:
    usual = [each for each in ("/usr/local/etc", "/usr/etc", "/etc") if each != first]
    assert system_files(Path(environment)) == tuple(Path(each, "drover/drover.toml") for each in (first, *usual))


@pytest.mark.slow
def test_the_first_of_four_directories_of_the_machine_that_has_a_file_is_read_r15(tmp_path: Path) -> None:
    need("overlay")
    places = system_files(Path(sys.prefix))
    words = ("env", f"PYTHONPATH={Path(__file__).parents[2]}", *DROVER, "config", "file", "scheduler.group", "--json")
    with machine(tmp_path) as copy:
        for place in reversed(places):
            text = f'[scheduler]\ngroup = "g{places.index(place)}"\n{LEAST}'
            copy.run("install", "-D", "-m", "644", "/dev/stdin", str(place), told=text)
            file, group = map(json.loads, copy.run(*words).stdout.splitlines())
            assert file == {"setting": "file", "value": str(place), "origin": "the machine's"}
            assert group["value"] == f'"g{places.index(place)}"'
    assert len(places) == 4


def test_shipped_file_is_used_if_there_is_no_other_j101_t19() -> None:
    assert locate(None, {}, [Path("/nowhere")]) == shipped()


def test_shipped_file_loads_f122() -> None:
    assert load(None, {}, [Path("/nowhere")]).database.url == "embedded"


def test_missing_file_is_reported_f152() -> None:
    assert refusal(Path("/nowhere/x.toml")).startswith("/nowhere/x.toml: cannot be read: No such file")


def test_directory_in_place_of_a_file_is_reported(tmp_path: Path) -> None:
    assert "cannot be read: Is a directory" in refusal(tmp_path)


# What is read.


def test_parts_are_read_after_the_main_file_in_order(own: Path) -> None:
    second = written(own.parent / "conf.d/20.toml", "[hosts.alpha]\nmax = 2\n")
    first = written(own.parent / "conf.d/10.toml", "[hosts.alpha]\nmax = 1\n")
    assert [name for name, _ in read(own)] == [str(own), str(first), str(second)]
    assert load(str(own), {}).hosts["alpha"].max == 2


@pytest.mark.parametrize("name", ["README", "10.toml.disabled", ".10.toml"])
def test_other_files_in_conf_d_are_not_read(own: Path, name: str) -> None:
    written(own.parent / "conf.d" / name, "rubbish")
    assert len(read(own)) == 1


def test_mistake_names_the_part_it_is_in(own: Path) -> None:
    part = written(own.parent / "conf.d/10.toml", "\n[hosts.alpha]\nmax = 0\n")
    assert refusal(own).startswith(f"{part}:3: hosts.alpha.max: ")


def test_database_url_of_the_environment_wins(own: Path) -> None:
    assert load(str(own), {"DROVER_DATABASE_URL": "host=here"}).database.url == "host=here"


def test_text_that_is_not_utf8_is_reported_with_its_line(own: Path) -> None:
    own.write_bytes(b"# one\n# \xff\n")
    assert refusal(own) == f"{own}:2: syntax: is not UTF-8 (got byte 0xff)"


# Who may write and read it (threat 20).


@pytest.mark.parametrize("mode", [0o660, 0o602, 0o666])
def test_file_that_others_may_write_is_refused(own: Path, mode: int) -> None:
    own.chmod(mode)
    assert refusal(own) == f"{own}: others may write to this file (mode {mode:04o}); chmod go-w {own}"


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o777])
def test_directory_that_others_may_write_is_refused(own: Path, mode: int) -> None:
    own.parent.chmod(mode)
    folder = own.parent
    assert refusal(own) == f"{folder}: others may write to this directory (mode {mode:04o}); chmod go-w {folder}"


def test_conf_d_that_others_may_write_is_refused(own: Path) -> None:
    part = written(own.parent / "conf.d/10.toml", "")
    part.parent.chmod(0o777)
    assert refusal(own).startswith(f"{part.parent}: others may write to this directory")


def test_sticky_directory_is_accepted_for_files_of_ours(own: Path) -> None:
    own.parent.chmod(0o1777)
    assert len(read(own)) == 1


@pytest.mark.parametrize("entry", ["drover.toml", "conf.d"])
def test_sticky_directory_is_refused_for_files_of_strangers(own: Path, entry: str) -> None:
    need("root")  # who else gives files away
    written(own.parent / "conf.d/10.toml", "")
    own.parent.chmod(0o1777)
    os.chown(own.parent / entry, 12345, -1)
    assert f"{own.parent / entry}: belongs to another user" in refusal(own)


def test_password_that_others_may_read_is_refused(own: Path) -> None:
    written(own, SECRET, 0o604)
    assert refusal(own) == f"{own}: holds a password and others may read it (mode 0604); chmod 600 {own}"


@pytest.mark.parametrize(
    "url",
    ["postgresql://me:hush@there/db", "postgresql://there/db?password=hush", "host=there password = 'hush'"],
)
def test_password_is_recognised_in_every_form(own: Path, url: str) -> None:
    written(own, f'{LEAST}[database]\nurl = "{url}"', 0o604)
    assert "holds a password" in refusal(own)


@pytest.mark.parametrize(
    "text",
    [
        "# password=hush",
        '[database]\nurl = "postgresql://there:5432/db"',
        '[database]\nurl = "host=a user=password"',
    ],
)
def test_file_without_a_password_may_be_read_by_all(own: Path, text: str) -> None:
    written(own, f"{LEAST}{text}")
    assert len(read(own)) == 1


@pytest.mark.parametrize("name", ["API_TOKEN", "client_secret", "aws_credentials", "DB_PASSWORD", "api-key", "apikey"])
def test_secret_in_the_environment_of_an_agent_is_recognised(own: Path, name: str) -> None:
    written(own, f'{LEAST}env = {{ "{name}" = "hush" }}', 0o644)
    assert "holds a password" in refusal(own)


@pytest.mark.parametrize("text", ['password_file = "db"', 'msq_password_file = "db"'])
def test_file_name_of_a_password_file_is_not_a_secret(own: Path, text: str) -> None:
    written(own, f'[database]\nurl = "host=there"\n{text}\n{LEAST}', 0o644)
    assert len(read(own)) == 1


def test_password_in_conf_d_is_recognised(own: Path) -> None:
    part = written(own.parent / "conf.d/10.toml", SECRET.removeprefix(LEAST), 0o644)
    assert refusal(own) == f"{part}: holds a password and others may read it (mode 0644); chmod 600 {part}"


def test_link_to_where_others_may_write_is_refused(own: Path, tmp_path: Path) -> None:
    target = written(tmp_path / "shared/10.toml", "")
    target.parent.chmod(0o777)
    (own.parent / "conf.d").mkdir()
    (own.parent / "conf.d/10.toml").symlink_to(target)
    assert refusal(own).startswith(f"{target.parent}: others may write to this directory")


def test_password_in_a_private_file_is_accepted(own: Path) -> None:
    written(own, SECRET, 0o600)
    assert load(str(own), {}).database.url == "host=there password=hush"


def test_group_may_read_a_password_in_a_file_of_root(own: Path) -> None:
    need("root")
    written(own, SECRET, 0o640)
    assert len(read(own)) == 1


def test_group_may_not_read_a_password_in_a_file_of_a_user(own: Path) -> None:
    need("root")
    written(own, SECRET, 0o640)
    os.chown(own, 12345, -1)
    assert "holds a password" in refusal(own)


def test_all_untrusted_files_are_reported_at_once(own: Path) -> None:
    written(own.parent / "conf.d/10.toml", "", 0o666)
    own.chmod(0o666)
    assert len(refusal(own).splitlines()) == 2


# Templates of the shell agent.


@pytest.mark.parametrize(
    "command",
    [
        '["drover-agent-shell", "--heartbeat", "2", "trap \'rm %{path}\' EXIT"]',
        '["/opt/drover/agents/drover-agent-shell", "--", "trap \'rm %{path}\' EXIT"]',
        '"drover-agent-shell --heartbeat=2 \'trap \\"rm %{path}\\" EXIT\'"',
    ],
)
def test_template_that_would_run_an_item_is_refused_with_its_line(own: Path, command: str) -> None:
    own.write_text(f"{LEAST}[agents.clean]\ncommand = {command}\n")
    told = refusal(own)
    assert told.startswith(f"{own}:5: agents.clean.command: is not a safe template: %{{path}} is a word of trap")


def test_safe_template_is_accepted(own: Path) -> None:
    safe = 'v="$(wc -l -- "%{path}")"; echo "$v"'
    own.write_text(f"{LEAST}[agents.b]\ncommand = ['drover-agent-shell', '{safe}']\n")
    assert "b" in load(str(own), {}).agents


# Prelude.


@pytest.mark.parametrize(("name", "place"), [("tasks.sh", "own/tasks.sh"), ("/srv/tasks.sh", "/srv/tasks.sh")])
def test_prelude_is_beside_the_configuration_unless_it_names_another_place_r16(
    own: Path, tmp_path: Path, name: str, place: str
) -> None:
    written(own, f'{LEAST}kind = "exec"\nprelude = "{name}"\n')
    agent = load(str(own), {}).agents["a"]
    assert (agent.prelude, agent.command[3:]) == (str(tmp_path / place), (str(tmp_path / place), "a"))


def test_line_agent_has_no_prelude_r16(own: Path) -> None:
    written(own, f'{LEAST}prelude = "tasks.sh"\n')
    assert "agents.a.prelude: is for exec agents" in refusal(own)


def test_exec_types_have_a_slot_for_each_processor_unless_they_say_how_many(tmp_path: Path) -> None:
    types = {"run": 'kind = "exec"', "few": 'kind = "exec"\nslots = 3', "line": ""}
    tables = "".join(f'[agents.{name}]\ncommand = ["true"]\n{keys}\n' for name, keys in types.items())
    file = tmp_path / "drover.toml"
    file.write_text(f"[hosts.local]\n{tables}")
    slots = {name: agent.slots for name, agent in load(str(file), {}).agents.items()}
    assert slots == {"run": len(os.sched_getaffinity(0)), "few": 3, "line": 1}
