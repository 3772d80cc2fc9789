"""Command `reload` under the real daemon: what changes at once, what waits for work to end, what changes nothing."""

import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Final

import pytest

from tests.integration.conftest import Launch
from tests.integration.daemon import Daemon, Row, agent, python, start
from tests.integration.puppets import LOCAL, Meeting, each, puppet, said, settings, slots

OTHER: Final = "insert into drover.host (host_name, host_group) select 'theirs', 'other' from g"
GROUP: Final = f"with g as (insert into drover.scheduler_group (group_name) values ('other') returning 1) {OTHER}"
DYING: Final = "raise SystemExit(1)"


def write(daemon: Daemon, text: str) -> None:
    """Change the configuration of a daemon that runs."""
    (daemon.folder / "conf.d" / "test.toml").write_text(text)


def reload(daemon: Daemon, text: str | None = None, state: str = "done") -> str:
    """Change the configuration and let it be read; what the command says."""
    if text is not None:
        write(daemon, text)
    pk = daemon.insert(role="drover_operator", jq_type="command", jq_args="reload")
    return str(daemon.wait(pk, state)["jq_endtext"])


def shown(daemon: Daemon) -> list[Row]:
    """Return the slots that are shown, by number."""
    columns = "status_slot, status_host, status_agent"
    return daemon.execute(f"select {columns} from drover.scheduler_status where status_slot >= 0 order by 1")


def tables(daemon: Daemon) -> list[list[Row]]:
    """Return all that a reload may change in the database."""
    names = ("host order by host_name", "queue order by queue_name", "agent order by agent_type")
    return [daemon.execute(f"select * from drover.{name}") for name in names]


def pids(daemon: Daemon, name: str) -> list[int]:
    """Return the processes of a type as they are shown."""
    query = "select status_pid from drover.scheduler_status where status_agent = %s order by 1"
    return [row["status_pid"] for row in daemon.execute(query, name) if row["status_pid"] is not None]


# ---- hosts


@pytest.mark.slow
def test_an_added_host_doubles_the_number_of_running_jobs_t10(launch: Launch, meeting: Meeting) -> None:
    one = "[hosts.one]\nmax = 4\n" + puppet(slots=4)
    daemon = launch(one)
    act = f"{meeting.tell('$DROVER_HOST')}; {meeting.wait}"
    pks = daemon.insert_all([{"jq_type": "puppet", "jq_args": act}] * 16)
    assert meeting.hear_all(4) == ["one"] * 4
    slots(daemon, "ST_RUNNING", count=4)
    reload(daemon, one + "[hosts.two]\nmax = 4\n")
    assert meeting.hear_all(4) == ["two"] * 4
    slots(daemon, "ST_RUNNING", count=8)  # twice as many sleep at once: twice the jobs in the same time
    meeting.let_go(16)
    daemon.wait_all(pks)
    assert daemon.value("select count(distinct jq_done_host) from drover.jobqueue where jq_type = 'puppet'") == 2


# ---- types


def test_an_added_type_takes_its_waiting_jobs_f43(launch: Launch) -> None:
    daemon = launch(LOCAL + puppet("a"))
    pk = daemon.insert(jq_type="b", jq_args=":")
    assert "agents: +b" in reload(daemon, LOCAL + puppet("a") + puppet("b"))
    daemon.wait(pk)


@pytest.mark.slow
def test_a_removed_type_finishes_its_work_and_takes_no_more(launch: Launch, meeting: Meeting) -> None:
    daemon = launch(LOCAL + puppet("a", slots=2) + puppet("b"))
    first = daemon.insert(jq_type="a", jq_args=f"{meeting.tell('begun')}; {meeting.wait}")
    meeting.hear()
    daemon.wait(daemon.insert(jq_type="a", jq_args=":"))  # by the other slot, whose agent is idle then
    assert "agents: -a" in reload(daemon, LOCAL + puppet("b"))
    second = daemon.insert(jq_type="a", jq_args=":")
    said(daemon, "reason='agent type not configured any more'", 1)
    assert daemon.row(first)["jq_state"] in ("claimed", "running")
    meeting.let_go()
    assert daemon.wait(first)["jq_end_bits"] == 1
    said(daemon, "reason='agent type not configured any more'", 2)
    daemon.wait(daemon.insert(jq_type="b", jq_args=":"))
    assert daemon.row(second)["jq_state"] == "queued"
    daemon.until(lambda: {row["status_agent"] for row in shown(daemon)} == {"b"})


def test_a_query_of_a_removed_type_goes_on_when_the_type_is_back(launch: Launch, meeting: Meeting) -> None:
    here = rows_puppet(meeting)
    daemon = launch(LOCAL + here + puppet("b"))
    query = "select i as id from generate_series(1, 3) i"
    pk = daemon.insert(jq_type="a", jq_args=query, jq_msq=True, jq_key="id")
    assert meeting.hear() == "1"
    reload(daemon, LOCAL + puppet("b"))
    meeting.let_go()
    daemon.until(lambda: daemon.row(pk)["jq_state"] == "queued")
    reload(daemon, LOCAL + here + puppet("b"))
    meeting.let_go(2)
    assert daemon.wait(pk)["jq_itemsprocessed"] == 3
    assert meeting.hear_all(2) == ["2", "3"]


def rows_puppet(meeting: Meeting) -> str:
    """Return the table of an agent type that tells the id of each row and waits."""
    return agent("a", each(f'eval "$line"; {meeting.tell("$id")}; {meeting.wait}'))


def test_a_new_program_is_used_after_the_item_in_hand(launch: Launch, meeting: Meeting, tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    daemon = launch(LOCAL + agent("a", each(f'echo "$line" >>{old}; eval "$line"')))
    first = daemon.insert(jq_type="a", jq_args=f"{meeting.tell('begun')}; {meeting.wait}")
    meeting.hear()
    second = daemon.insert(jq_type="a", jq_args="true")
    assert "a(command)" in reload(daemon, LOCAL + agent("a", each(f'echo "$line" >>{new}; eval "$line"')))
    meeting.let_go()
    daemon.wait_all([first, second])
    assert (len(old.read_text().splitlines()), new.read_text()) == (1, "true\n")


def test_an_idle_agent_is_restarted_with_its_new_environment(launch: Launch, tmp_path: Path) -> None:
    told = tmp_path / "told"
    daemon = launch(LOCAL + puppet("a", env={"WORD": "old"}))
    daemon.wait(daemon.insert(jq_type="a", jq_args=f'echo "$WORD" >>{told}'))
    reload(daemon, LOCAL + puppet("a", env={"WORD": "new"}))
    daemon.wait(daemon.insert(jq_type="a", jq_args=f'echo "$WORD" >>{told}'))
    assert told.read_text() == "old\nnew\n"


def test_a_type_of_changed_kind_replaces_the_one_of_the_same_name(launch: Launch, meeting: Meeting) -> None:
    daemon = launch(LOCAL + puppet("a"))
    first = daemon.insert(jq_type="a", jq_args=f"{meeting.tell('begun')}; {meeting.wait}")
    meeting.hear()
    assert "a(command, kind)" in reload(daemon, LOCAL + agent("a", ["sh", "-c", "{args}"], kind="exec"))
    second = daemon.wait(daemon.insert(jq_type="a", jq_args="exit 3"), "failed")
    assert second["jq_exitcode"] == 3
    meeting.let_go()
    assert daemon.wait(first)["jq_exitcode"] is None


def test_registered_statements_are_those_of_the_new_file(launch: Launch) -> None:
    def table(sql: str) -> str:
        return LOCAL + agent("a", asker, db="statements", statements={"one": sql})

    asker = each('echo "DB: one {}"; IFS= read -r row; IFS= read -r ok; echo "LOG $row"')
    daemon = launch(table("select 1 as x"))
    first = daemon.insert(jq_type="a", jq_args="x")
    daemon.wait(first)
    reload(daemon, table("select 2 as x"))
    second = daemon.insert(jq_type="a", jq_args="x")
    daemon.wait(second)
    daemon.until(lambda: daemon.log_text(second))
    assert ('x="1"' in daemon.log_text(first), 'x="2"' in daemon.log_text(second)) == (True, True)


def test_slots_that_have_failed_are_tried_again_at_once_f71(launch: Launch) -> None:
    text = settings(respawn_interval=1000, respawn_count=0) + LOCAL
    daemon = launch(text + agent("a", python(DYING)))
    pk = daemon.insert(jq_type="a", jq_args=":")
    said(daemon, "ST_FREE -> ST_FAIL")
    reload(daemon, text + puppet("a"))
    assert daemon.wait(pk)["jq_attempt"] == 2


# ---- slots and hosts


@pytest.mark.slow
def test_slots_grow_and_shrink_and_those_that_work_finish(launch: Launch, meeting: Meeting) -> None:
    daemon = launch(LOCAL + puppet("a"))
    jobs = [daemon.insert(jq_type="a", jq_args=f"{meeting.tell('begun')}; {meeting.wait}") for _ in range(3)]
    meeting.hear()
    reload(daemon, LOCAL + puppet("a", slots=3))
    meeting.hear_all(2)
    slots(daemon, "ST_RUNNING", count=3)
    reload(daemon, LOCAL + puppet("a"))
    assert len(daemon.agent_pids()) == 3
    meeting.let_go(3)
    daemon.wait_all(jobs)
    daemon.until(lambda: len(shown(daemon)) == 1 and len(daemon.agent_pids()) == 1)


def test_the_number_of_a_removed_slot_is_reused(launch: Launch) -> None:
    daemon = launch(LOCAL + puppet("a", slots=2) + puppet("b"))
    daemon.until(lambda: len(shown(daemon)) == 3)
    reload(daemon, LOCAL + puppet("c", slots=4))
    names = [(row["status_slot"], row["status_agent"]) for row in daemon.until(lambda: all_of(daemon, "c", 4))]
    assert names == [(n, "c") for n in range(4)]


def all_of(daemon: Daemon, name: str, count: int) -> list[Row] | None:
    """Return the slots that are shown, once they are so many and all of one type."""
    found = shown(daemon)
    return found if [row["status_agent"] for row in found] == [name] * count else None


def test_a_host_that_is_added_is_used_and_one_that_is_removed_is_left(launch: Launch, meeting: Meeting) -> None:
    two, one = "[hosts.alpha]\n[hosts.beta]\n", "[hosts.alpha]\n"
    daemon = launch(one + puppet("a"))
    bound = daemon.insert(jq_type="a", jq_args=f"{meeting.tell('$DROVER_HOST')}; {meeting.wait}", jq_host="beta")
    assert "hosts: +beta" in reload(daemon, two + puppet("a"))
    assert meeting.hear() == "beta"
    assert "hosts: -beta" in reload(daemon, one + puppet("a"))
    meeting.let_go()
    assert daemon.wait(bound)["jq_end_bits"] == 1
    assert not daemon.value("select host_present from drover.host where host_name = 'beta'")
    last = daemon.insert(jq_type="a", jq_args=":", jq_host="beta")
    daemon.wait(daemon.insert(jq_type="a", jq_args=":"))
    assert daemon.row(last)["jq_state"] == "queued"


def test_rows_placed_on_a_host_that_is_removed_go_anywhere(launch: Launch, meeting: Meeting) -> None:
    daemon = launch("[hosts.alpha]\n[hosts.beta]\n" + rows_puppet(meeting))
    query = "select i as id, 'beta' as host from generate_series(1, 3) i"
    pk = daemon.insert(jq_type="a", jq_args=query, jq_runonpfile="host")
    meeting.hear()
    reload(daemon, "[hosts.alpha]\n" + rows_puppet(meeting))
    assert meeting.hear() == "2"  # on the other host, while the first is still in hand
    meeting.let_go(3)
    assert daemon.wait(pk)["jq_itemsprocessed"] == 3
    assert daemon.row(pk)["jq_attempt"] == 1


def test_changed_keys_of_the_file_win_and_others_set_by_command_stay(launch: Launch) -> None:
    def values() -> Row:
        (row,) = daemon.execute("select host_max, host_urgent, host_enabled from drover.host")
        return row

    text = "[hosts.local]\nmax = {}\n[queues.heavy]\nconcurrency = {}\n" + puppet("a")
    daemon = launch(text.format(4, 3))
    daemon.execute("update drover.host set host_max = 2, host_urgent = 7")
    daemon.execute("update drover.queue set queue_concurrency = 9 where queue_name = 'heavy'")
    reload(daemon, text.format(4, 5))
    assert values() == {"host_max": 2, "host_urgent": 7, "host_enabled": True}
    assert daemon.value("select queue_concurrency from drover.queue where queue_name = 'heavy'") == 5
    reload(daemon, text.format(6, 5))
    assert values() == {"host_max": 6, "host_urgent": 7, "host_enabled": True}


# ---- settings


def test_a_changed_time_limit_applies_at_once(launch: Launch, meeting: Meeting) -> None:
    daemon = launch(LOCAL + puppet("a"))
    pk = daemon.insert(jq_type="a", jq_args=f"{meeting.tell('begun')}; {meeting.wait}")
    meeting.hear()
    reload(daemon, LOCAL + puppet("a", item_timeout=0.1))
    assert "item took longer than 0.1 s" in daemon.wait(pk, "failed")["jq_endtext"]


def test_a_changed_idle_time_applies_to_idle_agents(launch: Launch) -> None:
    daemon = launch(LOCAL + puppet("a"))
    daemon.wait(daemon.insert(jq_type="a", jq_args=":"))
    assert "scheduler(max_idle)" in reload(daemon, settings(max_idle=0.2) + LOCAL + puppet("a"))
    said(daemon, "reason='idle'")


def test_the_answer_names_settings_that_need_a_restart_and_those_stay(launch: Launch) -> None:
    daemon = launch(LOCAL + puppet("a"))
    text = reload(daemon, settings(group="another", lock_limit=9) + LOCAL + puppet("a"))
    assert text.endswith("nothing has changed; not before a restart: scheduler.group, scheduler.lock_limit")
    assert reload(daemon) == text
    daemon.wait(daemon.insert(jq_type="a", jq_args=":"))
    assert daemon.execute("select group_name from drover.scheduler_group") == [{"group_name": "default"}]


def test_command_line_options_survive_a_reload_f86(launch: Launch) -> None:
    far = '[hosts.far]\ntransport = "command"\ncommand = ["false"]\n'
    daemon = launch(LOCAL + puppet("a"), options=["-H"])
    assert "hosts: +far" in reload(daemon, LOCAL + far + puppet("a"))
    daemon.wait(daemon.insert(jq_type="a", jq_args=":", jq_host="far"))


@pytest.mark.slow
def test_every_daemon_of_the_group_reads_its_own_file(launch: Launch) -> None:
    lasting = settings(lease=30, lease_renewal=0.3) + LOCAL
    first = launch(lasting + puppet("a"))
    second = launch(lasting + puppet("a"), wait=False)
    said(second, "standing by")
    write(second, lasting + puppet("b"))
    text = reload(first, lasting + puppet("b"))
    assert text.count("agents: +b -a") == 2
    first.kill()
    second.wait(second.insert(jq_type="b", jq_args=":"))


# ---- mistakes


def test_a_host_of_another_group_is_refused_and_the_daemon_goes_on(launch: Launch) -> None:
    daemon = launch(LOCAL + puppet("a"))
    daemon.execute(GROUP)
    before = tables(daemon)
    text = reload(daemon, LOCAL + "[hosts.theirs]\n" + puppet("b"), "failed")
    assert text.endswith("host theirs belongs to group other: another group has it; rename it here")
    assert tables(daemon) == before
    daemon.wait(daemon.insert(jq_type="a", jq_args=":"))
    assert "agents: +b -a" in reload(daemon, LOCAL + puppet("b"))


GOOD: Final = (
    settings(max_idle=100_000) + "[hosts.alpha]\nmax = 2\n[hosts.beta]\n[queues.heavy]\nconcurrency = 3\n"
    + agent("a", each(":"), slots=2, hosts=["alpha"]) + agent("b", each(":"), kind="line", heartbeat=5)
)  # fmt: skip
UNKNOWN: Final = ("", "scheduler.", "hosts.alpha.", "agents.a.", "agents.a.limits.", "queues.heavy.", "database.")
WRONG: Final = (
    "scheduler.max_idle = -1", "scheduler.respawn_count = 1.5", "scheduler.lease = 'long'", "scheduler.lease = 1",
    "hosts.alpha.max = 0", "hosts.alpha.transport = 'pigeon'", "hosts.alpha.transport = 'ssh'", "hosts.'a b'.max = 1",
    "agents.c.slots = 1", "agents.a.slots = 0", "agents.a.slots = 99999999999", "agents.a.kind = 'round'",
    "agents.a.hosts = ['nowhere']", "agents.a.heartbeat = nan", "agents.a.statements = {x = 'select 1'}",
    "agents.a.env = {THREAD_UNIQUE = '1'}", "agents.'x.y'.command = 'true'", "agents.command.command = 'true'",
    "agents.a.window = 0", "agents.a.limits.nofile = 'many'", "queues.heavy.concurrency = 0", "queues = 3",
    "database.msq_url = 1", "agents.a = []",
)  # fmt: skip


def unknown_key(rng: Random) -> bytes:
    """Return a setting with an unknown key, in some table."""
    name = "".join(rng.choices("abcdefghijklmnopqrstuvwxyz_", k=rng.randrange(9, 30)))
    return f"{rng.choice(UNKNOWN)}{name} = {rng.choice(('1', '[]', '{}', 'true'))}\n".encode()


def wrong_value(rng: Random) -> bytes:
    """Return settings that are wrong by themselves or together, one or several."""
    return "\n".join(rng.sample(WRONG, rng.choice((1, 1, 2)))).encode()


def torn(rng: Random) -> bytes:
    """Return what is no TOML: a quote that does not end, where another ended."""
    places = [at for at, letter in enumerate(GOOD) if letter == '"']
    at = places[2 * rng.randrange(len(places) // 2)]
    return (GOOD[: at + 1] + "\n" * rng.randrange(3)).encode()


def no_text(rng: Random) -> bytes:
    """Bytes that are no UTF-8, or that TOML has no place for."""
    at = rng.randrange(len(GOOD))
    return GOOD[:at].encode() + rng.choice((b"\xff\xfe", b"\0", b"\xc3\x28")) + GOOD[at:].encode()


BREAK: Final[tuple[Callable[[Random], bytes], ...]] = (unknown_key, wrong_value, torn, no_text)


@pytest.fixture(scope="module")
def shared(module_database: str) -> Iterator[Daemon]:
    with start(GOOD, module_database) as daemon:
        daemon.wait(daemon.insert(jq_type="a", jq_args="x"))
        yield daemon


@pytest.mark.parametrize("seed", range(10))
def test_a_broken_configuration_changes_nothing_r84(shared: Daemon, seed: int) -> None:
    """Twenty of each seed, 200 in all; what is broken stands in a file that is read last."""
    rng, path = Random(seed), shared.folder / "conf.d" / "z.toml"
    shared.until(lambda: pids(shared, "a"))
    before = tables(shared), shown(shared), pids(shared, "a")
    for number in range(20):
        path.write_bytes(BREAK[number % len(BREAK)](rng))
        assert ".toml:" in reload(shared, None, "failed")
    path.unlink()
    assert (tables(shared), shown(shared), pids(shared, "a")) == before
    assert "nothing has changed" in reload(shared)


def test_a_file_that_others_may_write_is_not_read(shared: Daemon) -> None:
    path = shared.folder / "conf.d" / "test.toml"
    path.chmod(path.stat().st_mode | stat.S_IWOTH)
    assert "others may write to this file" in reload(shared, None, "failed")
    path.chmod(path.stat().st_mode & ~stat.S_IWOTH)
    assert "nothing has changed" in reload(shared)
