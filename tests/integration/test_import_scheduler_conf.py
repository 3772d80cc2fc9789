"""A user of the original scheduler moves in: the files are imported, checked, and a job is done by an old agent."""

import json
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli_tools import Done, Drover
from tests.integration.conftest import Ask, Launch

AGENT = """\
#!/bin/sh
# an agent as those of the original: it reads a line, works, and says OK; it knows none of our extensions
echo OK
while read -r line; do
    echo "LOG $1 on $DROVER_HOST got $line" && echo OK
done
"""
HOSTS_CONF = "alpha * 00 7f\nbeta files 80 ff\n"


@pytest.fixture
def old_conf(tmp_path: Path) -> Path:
    agent = tmp_path / "old-agent"
    agent.write_text(AGENT)
    agent.chmod(0o755)
    path = tmp_path / "Scheduler.conf"
    path.write_text(
        "# the machines\n%Host alpha 4 1\n%Host beta 2 1\n\n"
        + f"agent=license host=alpha | {agent} first\n" * 2
        + f"agent=license host=beta | /usr/bin/env {agent} 'the second'\n" * 2
        + f"agent=wget | {agent} $((40 + 2))\n"
    )
    (tmp_path / "Hosts.conf").write_text(HOSTS_CONF)
    return path


Import = Callable[..., Done]


@pytest.fixture
def imports(drover: Drover, old_conf: Path) -> Import:
    return lambda *words: drover("import-scheduler-conf", str(old_conf), *words)


def test_an_imported_configuration_works_with_old_agents_f122_f149_f151_f155(
    launch: Launch, ask: Ask, imports: Import, old_conf: Path
) -> None:
    done = imports(str(old_conf.with_name("Hosts.conf")), "--placements", str(old_conf.with_name("places.sql")))
    assert (done.status, len(done.err.splitlines())) == (0, 1)
    daemon = launch(done.out)
    daemon.execute(old_conf.with_name("places.sql").read_text())
    daemon.execute("create table pfile (pfile text, note text)")
    daemon.execute(
        "insert into pfile values ('7FAA.1', null), ('80aa.2', ''), ('FFAA.3', 'a b'), ('ffaa.4', E'tab\\there')"
    )
    daemon.execute("grant select on pfile to drover_msq")
    job = int(ask("submit license --runonpfile pfile select * from pfile").out)
    daemon.wait(job)
    said = sorted(json.loads(line)["message"] for line in ask(f"log --json {job}").out.splitlines())
    assert said == [
        'first on alpha got pfile="7FAA.1" note=""',
        'the second on beta got pfile="80aa.2" note=""',
        'the second on beta got pfile="FFAA.3" note="a b"',
        'the second on beta got pfile="ffaa.4" note="tab\there"',
    ]
    assert ask("submit --wait wget http://example.org/").status == 0
    assert "42 on alpha got http://example.org/" in ask("log").out


def test_check_accepts_what_was_imported(imports: Import, drover: Drover, old_conf: Path) -> None:
    out = old_conf.with_name("new.toml")
    assert imports("-o", str(out)).status == 0
    done = drover("check", "-c", str(out))
    assert [line.split(":")[0] for line in done.out.splitlines()][:3] == [
        f"ok   configuration {out}",
        "ok   agent license",
        "ok   agent wget",
    ]


def test_a_file_that_exists_is_replaced_with_force_alone(imports: Import, tmp_path: Path) -> None:
    out = tmp_path / "drover.toml"
    out.write_text("mine")
    done = imports("-o", str(out))
    assert (done.status, done.err, out.read_text()) == (2, f"{out}: exists already; --force replaces it\n", "mine")
    assert imports("-o", str(tmp_path / "new.toml"), "--placements", str(out)).status == 2
    assert not (tmp_path / "new.toml").exists()
    assert imports("-o", str(out), "--force").status == 0
    assert out.read_text().startswith("# Written by drover import-scheduler-conf")


def test_written_configuration_is_not_writable_by_others(imports: Import, tmp_path: Path) -> None:
    out = tmp_path / "new.toml"
    imports("-o", str(out))
    assert not stat.S_IMODE(out.stat().st_mode) & (stat.S_IWGRP | stat.S_IWOTH)


def test_lines_left_out_are_named_and_end_with_1(imports: Import, old_conf: Path) -> None:
    old_conf.write_text(old_conf.read_text() + "agent=lost host=gamma | /bin/true\n%Color red\n")
    done = imports()
    assert (done.status, "[agents.license]" in done.out) == (1, True)
    assert [line.split(": ")[0] for line in done.err.splitlines()] == [f"{old_conf}:10", f"{old_conf}:11"]


def test_placements_are_comments_where_no_file_is_named(imports: Import, old_conf: Path) -> None:
    done = imports(str(old_conf.with_name("Hosts.conf")))
    assert (
        "# insert into drover.placement (placement_from, placement_to, placement_host) values ('0', '7~', 'alpha');"
        in done.out
    )


def test_a_file_for_placements_that_are_not_there_is_not_written(imports: Import, tmp_path: Path) -> None:
    done = imports("--placements", str(tmp_path / "places.sql"))
    assert (done.status, "not written: there is no range" in done.err) == (0, True)
    assert not (tmp_path / "places.sql").exists()


@pytest.mark.parametrize("content", [b"", b"# nothing\n", b"\x7fELF\x00\x01", b"x" * 17_000_000])
def test_a_file_that_is_no_scheduler_conf_ends_with_2_f152(imports: Import, old_conf: Path, content: bytes) -> None:
    old_conf.write_bytes(content)
    done = imports()
    assert (done.status, done.out) == (2, "")
    assert done.err.startswith(f"{old_conf}: ")


def test_a_scheduler_conf_given_as_our_configuration_is_answered_with_the_import(
    drover: Drover, old_conf: Path
) -> None:
    done = drover("check", "-c", str(old_conf))
    assert (done.status, f"drover import-scheduler-conf {old_conf} -o" in done.err) == (2, True)


def test_a_missing_file_ends_with_2_f152(imports: Import, old_conf: Path) -> None:
    old_conf.unlink()
    assert imports() == Done(2, "", f"{old_conf}: cannot be read: No such file or directory\n")
