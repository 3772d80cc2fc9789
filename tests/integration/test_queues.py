"""Queues under the real daemon: their limits, what is reserved for them, and that none is in the way of another."""

from collections import Counter
from pathlib import Path

import pytest

from tests.integration.conftest import Launch
from tests.integration.daemon import Daemon, Row, agent, await_lines, lines, rec, records
from tests.integration.puppets import LOCAL, Meeting, puppet, said, settings
from tests.integration.test_commands import command, told
from tests.patience import LONG_PATIENCE_S

TWO_HOSTS = "[hosts.alpha]\n[hosts.beta]\n"
NAPS = 40


def limited(name: str, concurrency: int | None = None, **keys: int) -> str:
    """Return the table of a queue."""
    values = ({"concurrency": concurrency} if concurrency is not None else {}) | keys
    return f'[queues."{name}"]\n' + "".join(f"{key} = {value}\n" for key, value in values.items())


def busy(meeting: Meeting, queue: str = "default", **columns: object) -> Row:
    """Return a job that tells its queue when it has begun, and waits."""
    return {"jq_type": "puppet", "jq_queue": queue, "jq_args": f"{meeting.tell(queue)}; {meeting.wait}"} | columns


def in_hand(daemon: Daemon, queue: str) -> int:
    """Count the jobs of a queue that are being worked or about to be."""
    query = "select count(*) from drover.jobs where jq_queue = %s and jq_state in ('claimed', 'running')"
    return int(daemon.value(query, queue))


def most_at_once(daemon: Daemon, queue: str) -> int:
    """Return how many jobs of a queue were in hand at once at most; one that ends makes room for one that begins."""
    query = """
        select max(at_once) from (
          select sum(step) over (order by at, step) as at_once
            from drover.jobqueue, unnest(array[jq_starttime, jq_endtime], array[1, -1]) as u(at, step)
           where jq_queue = %s) steps
    """
    return int(daemon.value(query, queue))


# ---- limits


def test_a_queue_of_three_on_two_hosts_works_three_jobs_at_once_on_both_t30_j13(
    launch: Launch, meeting: Meeting
) -> None:
    daemon = launch(TWO_HOSTS + puppet(slots=4) + limited("q", 3))
    pks = daemon.insert_all([busy(meeting, "q")] * 10)
    assert meeting.hear_all(3) == ["q"] * 3
    working = "select distinct status_host from drover.scheduler_status where status_state_name = 'ST_RUNNING'"
    daemon.until(lambda: len(daemon.execute(working)) == 2, what="one host does all the work")
    assert in_hand(daemon, "q") == 3
    meeting.let_go(10)
    daemon.wait_all(pks)
    assert most_at_once(daemon, "q") == 3


@pytest.mark.parametrize("limit", [1, 10])
def test_a_queue_runs_at_most_its_concurrency_at_once_t46_t47(launch: Launch, meeting: Meeting, limit: int) -> None:
    daemon = launch(LOCAL + puppet(slots=12) + limited("q", limit))
    pks = daemon.insert_all([busy(meeting, "q")] * 12)
    meeting.hear_all(limit)
    assert in_hand(daemon, "q") == limit
    meeting.let_go(12)
    daemon.wait_all(pks)
    assert most_at_once(daemon, "q") == limit


def test_a_changed_limit_applies_at_once_and_after_a_restart_t47(launch: Launch, meeting: Meeting) -> None:
    text = LOCAL + puppet(slots=4) + limited("q", 1)
    daemon = launch(text)
    pks = daemon.insert_all([busy(meeting, "q")] * 4)
    assert meeting.hear_all(1) == ["q"]
    daemon.execute("update drover.queue set queue_concurrency = 2 where queue_name = 'q'")
    assert meeting.hear_all(1) == ["q"]
    meeting.let_go(4)
    assert meeting.hear_all(2) == ["q"] * 2
    daemon.wait_all(pks)
    daemon.stop()
    again = launch(text)
    pks = again.insert_all([busy(meeting, "q")] * 4)
    meeting.hear_all(2)
    assert in_hand(again, "q") == 2
    meeting.let_go(4)
    again.wait_all(pks)
    assert most_at_once(again, "q") == 2


def test_manual_jobs_run_in_parallel_within_the_limit_of_their_queue_j53(launch: Launch, meeting: Meeting) -> None:
    daemon = launch(LOCAL + puppet(slots=4) + limited("q", 3))
    pks = daemon.insert_all([busy(meeting, "q", jq_mode="manual")] * 3)
    daemon.execute("update drover.jobqueue set jq_state = 'queued' where jq_pk = any (%s)", pks)
    assert meeting.hear_all(3) == ["q"] * 3
    meeting.let_go(3)
    daemon.wait_all(pks)


def test_a_full_slow_queue_never_delays_another_j18(launch: Launch, meeting: Meeting) -> None:
    daemon = launch(LOCAL + puppet(slots=3) + limited("slow", 2))
    slow = daemon.insert_all([busy(meeting, "slow")] * 20)
    assert meeting.hear_all(2) == ["slow"] * 2
    daemon.wait(daemon.insert(jq_type="puppet", jq_args=":"))
    assert [row["jq_state"] for row in map(daemon.row, slow)].count("done") == 0
    meeting.let_go(20)
    daemon.wait_all(slow)


@pytest.mark.slow
def test_few_jobs_in_one_queue_do_not_wait_for_many_in_another_j18(launch: Launch, record: Path) -> None:
    daemon = launch(LOCAL + agent("rec", rec(record), slots=2) + limited("alice") + limited("bob"))
    daemon.insert_all([{"jq_type": "rec", "jq_queue": "alice", "jq_args": "nap:0.01"}] * 1000)
    daemon.wait_all(daemon.insert_all([{"jq_type": "rec", "jq_queue": "bob"}] * 10))
    left = "select count(*) from drover.jobqueue where jq_queue = 'alice' and jq_state = 'queued'"
    assert daemon.value(left) > 100


@pytest.mark.slow
def test_a_thousand_queues_load_and_work_j6(launch: Launch, record: Path) -> None:
    names = [f"q{n}" for n in range(1000)]
    daemon = launch(LOCAL + agent("rec", rec(record), slots=4) + "".join(limited(name, 1) for name in names))
    rows = daemon.wait_all(
        daemon.insert_all([{"jq_type": "rec", "jq_queue": name} for name in names]), timeout=LONG_PATIENCE_S
    )
    assert {row["jq_attempt"] for row in rows} == {1}


@pytest.mark.parametrize("name", ["1/low", "x" * 64])
def test_a_queue_may_have_any_name_of_64_characters_j12(launch: Launch, record: Path, name: str) -> None:
    daemon = launch(LOCAL + agent("rec", rec(record)) + limited(name, 1))
    assert daemon.wait(daemon.insert(jq_type="rec", jq_queue=name))["jq_queue"] == name


def test_jobs_for_a_busy_host_do_not_delay_jobs_for_other_hosts_j18(launch: Launch, meeting: Meeting) -> None:
    daemon = launch(TWO_HOSTS + puppet())
    bound = daemon.insert_all([busy(meeting, jq_host="alpha")] * 20)
    assert meeting.hear() == "default"
    free = [daemon.insert(jq_type="puppet", jq_args=":") for _ in range(5)]
    daemon.wait_all(free)
    meeting.let_go(20)
    daemon.wait_all(bound)


# ---- several daemons


def grouped(name: str, *queues: str) -> str:
    """Return the configuration of a daemon that is active for a group of its own, with queues of 2 and 1 jobs."""
    tables = "".join(limited(queue, 2 - number) for number, queue in enumerate(queues))
    return settings(group=name) + f"[hosts.{name}]\n" + puppet(slots=4) + tables


def test_daemons_of_two_groups_serve_their_own_queues_side_by_side_j5_j7_j11_r84(
    launch: Launch, meeting: Meeting
) -> None:
    one = launch(grouped("one", "one/a", "one/b"))
    two = launch(grouped("two", "two/a", "two/b"))
    queues = ["one/a", "one/b", "two/a", "two/b"]
    pks = one.insert_all([busy(meeting, queue) for queue in queues for _ in range(4)])
    assert meeting.hear_all(6) == ["one/a", "one/a", "one/b", "two/a", "two/a", "two/b"]
    meeting.let_go(16)
    owners = {row["jq_queue"][:3]: row["jq_done_host"] for row in one.wait_all(pks)}
    assert owners == {"one": "one", "two": "two"}
    assert [most_at_once(two, queue) for queue in queues] == [2, 1, 2, 1]


def test_jobs_of_two_groups_that_name_no_queue_are_kept_apart_each_within_its_limit_j11(
    launch: Launch, meeting: Meeting
) -> None:
    limits = {"one": 3, "two": 1}
    one, _ = (
        launch(settings(group=name) + f"[hosts.{name}]\n" + puppet(slots=4) + limited(name, limit))
        for name, limit in limits.items()
    )
    begin = {name: f"{meeting.tell(name)}; {meeting.wait}" for name in limits}
    pks = one.insert_all(
        [{"jq_type": "puppet", "jq_host": name, "jq_args": begin[name]} for name in limits for _ in range(4)]
    )
    assert meeting.hear_all(4) == ["one"] * 3 + ["two"]
    assert {name: in_hand(one, name) for name in limits} == limits
    meeting.let_go(8)
    assert [row["jq_queue"] for row in one.wait_all(pks)] == ["one"] * 4 + ["two"] * 4
    assert {name: most_at_once(one, name) for name in limits} == limits


@pytest.mark.slow
def test_a_queue_of_another_group_is_not_taken_over_and_keeps_its_limit_j11(launch: Launch, meeting: Meeting) -> None:
    one = launch(settings(group="one") + "[hosts.one]\n" + puppet(slots=4) + limited("same", 2))
    other = settings(group="two") + "[hosts.two]\n" + puppet(slots=4)
    two = launch(other + limited("same", 1), wait=False)
    assert two.wait_exit() == 2
    assert "queue same belongs to group one: another group has it; rename it here" in two.stderr()
    two = launch(other)
    assert told(two, "add-queue same 1", "failed") == "there is a queue same already"
    pks = one.insert_all([busy(meeting, "same")] * 3)
    assert meeting.hear_all(2) == ["same"] * 2
    assert in_hand(one, "same") == 2
    meeting.let_go(3)
    assert {row["jq_done_host"] for row in one.wait_all(pks)} == {"one"}
    assert most_at_once(one, "same") == 2


def test_a_change_through_one_daemon_applies_to_the_daemon_that_serves_the_queue_j8(
    launch: Launch, meeting: Meeting
) -> None:
    one, _ = launch(grouped("one", "one/a")), launch(grouped("two", "two/a"))
    one.execute("update drover.queue set queue_paused = true where queue_name = 'two/a'")
    one.until(lambda: one.wait(command(one, "status two"))["jq_result"]["queues"]["two/a"]["paused"])
    paused = one.insert(**busy(meeting, "two/a"))
    other = one.insert(**busy(meeting, "one/a"))
    assert meeting.hear() == "one/a"
    one.until(lambda: one.why(paused) == "queue two/a is paused")
    meeting.let_go(2)
    one.wait(other)
    assert one.row(paused)["jq_state"] == "queued"
    one.execute("update drover.queue set queue_paused = false where queue_name = 'two/a'")
    assert meeting.hear() == "two/a"
    one.wait(paused)


@pytest.mark.slow
def test_status_shows_the_named_group_j80(launch: Launch) -> None:
    one, two = launch(grouped("one", "one/a")), launch(grouped("two", "two/a"))
    for group, daemon in ("one", two), ("two", one):
        assert f"{group}/a" in daemon.wait(command(daemon, f"status {group}"))["jq_result"]["queues"]
    assert told(one, "status nobody", "failed") == "no scheduler serves group nobody"


# ---- reserved


def test_a_job_gets_the_agent_reserved_for_its_queue_during_a_flood_t45(launch: Launch, meeting: Meeting) -> None:
    daemon = launch(LOCAL + puppet(slots=4) + limited("new", reserved=1))
    flood = daemon.insert_all([busy(meeting)] * 40)
    assert meeting.hear_all(3) == ["default"] * 3
    assert in_hand(daemon, "default") == 3
    for _ in range(3):
        daemon.wait(daemon.insert(jq_type="puppet", jq_queue="new", jq_args=":"))
    meeting.let_go(40)
    daemon.wait_all(flood)
    assert most_at_once(daemon, "default") == 3


def test_host_capacity_is_kept_for_the_reserved_agent_of_another_type_t45(launch: Launch, meeting: Meeting) -> None:
    daemon = launch("[hosts.local]\nmax = 2\n" + puppet(slots=4) + puppet("late") + limited("new", reserved=1))
    flood = daemon.insert_all([busy(meeting)] * 20)
    assert meeting.hear() == "default"
    new = daemon.insert(**busy(meeting, "new", jq_type="late"))
    assert meeting.hear() == "new"
    meeting.let_go(21)
    daemon.wait_all([new, *flood])


def test_an_urgent_job_has_its_place_on_a_host_beside_a_reserved_one_t45(launch: Launch, meeting: Meeting) -> None:
    daemon = launch("[hosts.local]\nmax = 3\nurgent = 1\n" + puppet(slots=40) + limited("high", reserved=1))
    flood = daemon.insert_all([busy(meeting)] * 5)
    assert meeting.hear_all(2) == ["default"] * 2
    urgent = daemon.insert(jq_type="puppet", jq_urgent=True, jq_args=":")
    daemon.wait(urgent)
    assert in_hand(daemon, "default") == 2
    meeting.let_go(5)
    daemon.wait_all(flood)


def test_reserved_changes_at_run_time_and_does_not_apply_to_a_type_with_one_slot_t45(
    launch: Launch, meeting: Meeting
) -> None:
    daemon = launch(LOCAL + puppet(slots=2) + puppet("single") + limited("new", reserved=1))
    single = daemon.insert(**busy(meeting, jq_type="single"))
    assert meeting.hear() == "default"
    flood = daemon.insert_all([busy(meeting)] * 4)
    assert meeting.hear() == "default"
    assert in_hand(daemon, "default") == 2
    daemon.execute("update drover.queue set queue_reserved = 0 where queue_name = 'new'")
    assert meeting.hear() == "default"
    meeting.let_go(5)
    daemon.wait_all([single, *flood])


# ---- filters


def filtered(record: Path, **keys: int) -> str:
    """Return two agent types, one of which is about bills, that write down what they were given."""
    return agent("bill-print", rec(record), **keys) + agent("report", rec(record), **keys)


def hosts_of(record: Path) -> dict[str, set[str]]:
    """Return the hosts on which each line was worked."""
    hosts: dict[str, set[str]] = {}
    for note in records(record):
        if note["event"] == "line":
            hosts.setdefault(note["line"], set()).add(note["host"])
    return hosts


def test_a_host_takes_only_the_types_and_priorities_that_its_filters_match_r9_r55(launch: Launch, record: Path) -> None:
    hosts = '[hosts.choosy]\ntypes = "^bill"\npriorities = "^[a-f]"\n[hosts.other]\ntypes = "^rep"\n'
    daemon = launch(hosts + filtered(record))
    taken = [("bill-print", letter) for letter in ("a", "b2", "f")] + [("report", letter) for letter in ("a", "n")]
    left = daemon.insert_all([{"jq_type": "bill-print", "jq_priority": letter} for letter in ("g", "n", "Z", "1")])
    pks = [daemon.insert(jq_type=kind, jq_priority=letter, jq_args=f"{kind} {letter}") for kind, letter in taken]
    urgent = daemon.insert(jq_type="bill-print", jq_priority="c", jq_args="urgent", jq_urgent=True)
    daemon.wait_all([*pks, urgent])
    bills = {f"bill-print {letter}": {"choosy"} for letter in ("a", "b2", "f")} | {"urgent": {"choosy"}}
    assert hosts_of(record) == bills | {f"report {letter}": {"other"} for letter in ("a", "n")}
    assert {daemon.row(pk)["jq_state"] for pk in left} == {"queued"}


def test_a_filter_of_priorities_is_about_the_whole_priority_r55(launch: Launch, record: Path) -> None:
    hosts = '[hosts.some]\npriorities = "^(a1|b$)"\n[hosts.rest]\npriorities = "^(a$|a[2-9]|n)"\n'
    daemon = launch(hosts + agent("rec", rec(record), slots=2) + agent("fair", rec(record), fair=True))
    taken = {"a1": "some", "a12": "some", "b": "some", "a": "rest", "a2": "rest", "n": "rest", "nz": "rest"}
    pks = [
        daemon.insert(jq_type=kind, jq_priority=priority, jq_args=f"{kind} {priority}", jq_urgent=is_urgent)
        for kind in ("rec", "fair")
        for priority in taken
        for is_urgent in (False, True)
    ]
    left = [daemon.insert(jq_type="rec", jq_priority=priority) for priority in ("b1", "a0", "z")]
    daemon.wait_all(pks)
    assert hosts_of(record) == {f"{kind} {each}": {host} for kind in ("rec", "fair") for each, host in taken.items()}
    assert [daemon.why(pk) for pk in left] == [
        f"no host takes jobs of queue default with priority {priority}" for priority in ("b1", "a0", "z")
    ]
    daemon.wait(order(daemon, "host-filter rest priorities=^(b1|[az])"))
    daemon.wait_all(left)
    assert [daemon.row(pk)["jq_done_host"] for pk in left] == ["rest"] * 3


@pytest.mark.slow
def test_a_slot_of_one_queue_never_takes_a_job_of_another_t44(launch: Launch, record: Path) -> None:
    hosts = '[hosts.first]\nqueues = ["q1"]\n[hosts.second]\nqueues = ["q2"]\n[hosts.shared]\n'
    daemon = launch(hosts + agent("rec", rec(record)) + limited("q1") + limited("q2"))
    jobs = [{"jq_type": "rec", "jq_queue": queue, "jq_args": f"nap:0.1;{queue}"} for queue in ("q1", "q2", "default")]
    daemon.wait_all(daemon.insert_all(jobs * 20))
    found = hosts_of(record)
    assert found["nap:0.1;default"] == {"shared"}
    assert {"first"} <= found["nap:0.1;q1"] <= {"first", "shared"}
    assert {"second"} <= found["nap:0.1;q2"] <= {"second", "shared"}


def test_jobs_for_a_busy_host_do_not_delay_jobs_of_other_hosts_t44_j18(launch: Launch, meeting: Meeting) -> None:
    hosts = '[hosts.first]\nqueues = ["q1"]\n[hosts.second]\nqueues = ["q2"]\n'
    daemon = launch(hosts + puppet() + limited("q1") + limited("q2"))
    flood = daemon.insert_all([busy(meeting, "q2")] * 200)
    assert meeting.hear() == "q2"
    quick = daemon.insert(**busy(meeting, "q1"))
    assert meeting.hear() == "q1"
    meeting.let_go(201)
    daemon.wait_all([quick, *flood])


def test_rows_of_a_query_respect_host_filters_r55(launch: Launch, record: Path) -> None:
    hosts = '[hosts.choosy]\npriorities = "^[a-f]"\n[hosts.other]\n'
    daemon = launch(hosts + agent("rec", rec(record), slots=2))
    sql = "select n, case n % 2 when 0 then 'choosy' end as place from generate_series(1, 100) n"
    pk = daemon.insert(jq_type="rec", jq_args=sql, jq_runonpfile="place", jq_priority="n")
    daemon.wait(pk)
    assert {note["host"] for note in records(record) if note["event"] == "line"} == {"other"}


def test_jobs_run_on_the_server_of_their_queue_and_those_of_queue_any_on_all_j62_j65(
    launch: Launch, record: Path
) -> None:
    servers = ["s1", "s2", "s3"]
    own = {server: [f"{server}/{speed}" for speed in ("low", "normal", "high")] for server in servers}
    hosts = "".join(f"[hosts.{server}]\nqueues = {['any', *own[server]]}\n" for server in servers).replace("'", '"')
    limits = "".join(limited(queue, 1 + number) for queues in own.values() for number, queue in enumerate(queues))
    daemon = launch(hosts + agent("rec", rec(record), slots=3) + limits + limited("any", 30))
    queues = [queue for queues in own.values() for queue in queues]
    jobs = [{"jq_type": "rec", "jq_queue": queue, "jq_args": f"nap:0.01;{queue}"} for queue in [*queues, *["any"] * 9]]
    daemon.wait_all(daemon.insert_all(jobs * 3))
    found = hosts_of(record)
    assert {queue: found[f"nap:0.01;{queue}"] for queue in queues} == {queue: {queue[:2]} for queue in queues}
    assert found["nap:0.01;any"] == set(servers)
    assert Counter(lines(record)) == dict.fromkeys((f"nap:0.01;{queue}" for queue in queues), 3) | {"nap:0.01;any": 27}
    assert [most_at_once(daemon, queue) <= 1 + n % 3 for n, queue in enumerate(queues)] == [True] * 9


def test_filters_change_at_a_reload_r55(launch: Launch, meeting: Meeting) -> None:
    daemon = launch('[hosts.local]\nqueues = ["q"]\n' + puppet(slots=2) + limited("q"))
    other = daemon.insert(**busy(meeting))
    first = daemon.insert(**busy(meeting, "q"))
    assert meeting.hear() == "q"
    assert daemon.why(other) == "no host takes jobs of queue default with priority n"
    path = daemon.folder / "conf.d" / "test.toml"
    path.write_text(path.read_text().replace('queues = ["q"]', ""))
    daemon.execute("insert into drover.jobqueue (jq_type, jq_args) values ('command', 'reload')")
    said(daemon, "hosts: local(queues)")
    assert meeting.hear() == "default"
    meeting.let_go(2)
    daemon.wait_all([first, other])


def refused(daemon: Daemon, words: str) -> str:
    return str(daemon.wait(order(daemon, words), "failed")["jq_endtext"])


def order(daemon: Daemon, words: str) -> int:
    return daemon.insert(role="drover_operator", jq_type="command", jq_args=words)


@pytest.mark.slow
def test_a_host_filter_set_by_command_stays_until_the_file_changes_it_r9_r55(
    launch: Launch, meeting: Meeting, record: Path
) -> None:
    text = LOCAL + puppet(slots=3) + agent("rec", rec(record)) + limited("q")
    daemon = launch(text)
    working = daemon.insert(**busy(meeting))
    assert meeting.hear() == "default"
    told = daemon.wait(order(daemon, "host-filter local queues=q priorities=^[a-f] types=^p"), {"done", "failed"})
    assert told["jq_endtext"] == "no host would take agents of type rec"
    told = daemon.wait(order(daemon, "host-filter local queues=q priorities=^[a-f]"))
    assert told["jq_endtext"] == "host local: enabled, max -1, urgent 1, queues=q, priorities=^[a-f]"
    other, low = daemon.insert(**busy(meeting)), daemon.insert(**busy(meeting, "q"))
    high = daemon.insert(**busy(meeting, "q", jq_priority="a"))
    assert meeting.hear() == "q"
    assert daemon.why(other) == "no host takes jobs of queue default with priority n"
    daemon.wait(working, "running")
    assert [daemon.row(pk)["jq_state"] for pk in (other, low)] == ["queued", "queued"]
    meeting.let_go(2)
    daemon.wait_all([working, high])  # one that the stop interrupts would begin again
    daemon.stop()
    again = launch(text)
    again.wait(order(again, "host-filter local priorities="))
    assert meeting.hear() == "q"
    assert again.row(other)["jq_state"] == "queued"
    again.stop()
    last = launch(text.replace(LOCAL, '[hosts.local]\nqueues = ["default"]\n'))
    assert meeting.hear() == "default"
    meeting.let_go(2)
    last.wait(other)


@pytest.mark.slow
def test_why_names_a_type_that_a_stored_filter_leaves_without_a_host_r55(launch: Launch, record: Path) -> None:
    first = launch(LOCAL + puppet())
    first.wait(order(first, "host-filter local types=^pup"))
    first.stop()
    daemon = launch(LOCAL + puppet() + agent("rec", rec(record)))
    pk = daemon.insert(jq_type="rec")
    daemon.until(lambda: daemon.why(pk) == "agent type rec has no slots on any host")
    daemon.wait(order(daemon, "host-filter local types="))
    assert daemon.wait(pk)["jq_done_host"] == "local"


def test_an_invalid_filter_in_the_table_is_logged_and_does_not_stop_the_daemon_r55(launch: Launch) -> None:
    daemon = launch(LOCAL + puppet())
    daemon.execute("update drover.host set host_types = '('")
    daemon.execute("notify drover_change")
    daemon.until(lambda: "a filter in drover.host is not a regular expression" in daemon.stderr())
    daemon.stop()
    again = launch(LOCAL + puppet())
    again.wait(order(again, "host-filter local types=^pup"))
    assert again.wait(again.insert(jq_type="puppet", jq_args=":"))["jq_attempt"] == 1


def test_an_invalid_filter_is_refused_with_the_reason_r55(launch: Launch) -> None:
    daemon = launch(LOCAL + puppet())
    usage = "host-filter NAME FILTER..."
    assert refused(daemon, "host-filter local") == f"too few words: {usage}"
    assert refused(daemon, "host-filter local max=3").startswith(
        "types=, queues= or priorities= is required (got 'max=3')"
    )
    assert refused(daemon, "host-filter local types=[").startswith("types: is not a regular expression (got '[')")
    assert refused(daemon, "host-filter local priorities=-").startswith("priorities: matches no priority")
    assert refused(daemon, "host-filter local priorities=.*1$").startswith("priorities: is decided by no few")
    assert refused(daemon, "host-filter local queues=-x").startswith("queues: the name of a queue has letters")
    assert refused(daemon, "host-filter nosuch types=") == "no host nosuch"
    unchanged = "select host_types, host_queues, host_priorities, host_letters from drover.host"
    assert list(daemon.execute(unchanged)[0].values()) == ["", None, "", None]


# ---- order and spread


@pytest.mark.slow
@pytest.mark.parametrize("hosts", ["[hosts.local]\n", TWO_HOSTS])
@pytest.mark.parametrize("is_trickle", [False, True])
def test_equal_jobs_are_spread_evenly_over_idle_agents_t48(
    launch: Launch, record: Path, gate: Path, hosts: str, is_trickle: bool
) -> None:
    daemon = launch(hosts + agent("rec", rec(record), slots=4 // hosts.count("hosts")))
    first = daemon.insert_all([{"jq_type": "rec", "jq_args": f"gate:{gate}"}] * 4)
    await_lines(daemon, record, 4)  # all are there
    gate.touch()
    daemon.wait_all(first)
    if is_trickle:
        for _ in range(NAPS):
            daemon.wait(daemon.insert(jq_type="rec", jq_args="one"))
    else:
        daemon.wait_all(daemon.insert_all([{"jq_type": "rec", "jq_args": "nap:0.3"}] * NAPS))
    given = Counter(note["pid"] for note in records(record) if note["line"] not in (None, f"gate:{gate}"))
    assert len(given) == 4
    if is_trickle:  # else one that the machine lets wait gets fewer
        assert all(NAPS // 4 - 2 <= count <= NAPS // 4 + 2 for count in given.values())


def test_idle_agents_are_used_before_another_is_started_f4_t48(launch: Launch, record: Path) -> None:
    daemon = launch(TWO_HOSTS + agent("rec", rec(record), slots=2))
    for _ in range(10):
        daemon.wait(daemon.insert(jq_type="rec"))
    assert len({note["pid"] for note in records(record)}) == 1


@pytest.mark.parametrize("slots", [1, 3])
def test_the_configuration_decides_the_number_and_hosts_of_agents_t112_r54(
    launch: Launch, meeting: Meeting, slots: int
) -> None:
    daemon = launch(TWO_HOSTS + puppet(slots=slots, hosts=["beta"]) + puppet("both", slots=slots))
    jobs = [busy(meeting, jq_type=kind) for kind in ("puppet", "both") for _ in range(2 * slots)]
    pks = daemon.insert_all(jobs)
    meeting.hear_all(3 * slots)
    query = "select status_host, status_slot, status_agent from drover.scheduler_status where status_slot >= 0"
    shown = daemon.until(lambda: len(rows := daemon.execute(query)) >= 3 * slots and rows)
    agents = Counter((row["status_host"], row["status_agent"]) for row in shown)
    assert agents == {("beta", "puppet"): slots, ("alpha", "both"): slots, ("beta", "both"): slots}
    assert len({(row["status_host"], row["status_slot"]) for row in shown}) == len(shown)
    meeting.let_go(4 * slots)
    daemon.wait_all(pks)
