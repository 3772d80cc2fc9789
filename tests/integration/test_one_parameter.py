"""Jobs of one parameter from INSERT to end, on local hosts, with the real daemon."""

import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from tests.integration.conftest import Launch
from tests.integration.daemon import Daemon, agent, await_lines, lines, python, rec, records, start

ONE_HOST = "[hosts.alpha]\nmax = 4\n"
TWO_HOSTS = "[hosts.alpha]\nmax = 4\n[hosts.beta]\nmax = 4\n"

# ---- one daemon that many tests share


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("agents") / "record"


@pytest.fixture(scope="module")
def shared(module_database: str, record: Path) -> Iterator[Daemon]:
    text = (
        "[hosts.alpha]\n[hosts.beta]\n"
        + agent("rec", rec(record), slots=4)
        + agent("one", rec(record), hosts=["alpha"])
        + agent("echo", ["echo", "{id} {id}"], kind="exec")
        + agent("launcher", [*python("import sys; print('launched', sys.argv[1])"), "{id}"], kind="exec")
        + agent("here", ["pwd"], kind="exec")
        + agent("there", ["pwd"], kind="exec", cwd="/usr")
        + agent("quoted", "\"printf %s| 'one word' two\"", kind="exec")
        + agent("exits", ["sh", "-c", "exit {args}"], kind="exec")
        + agent("literal", ["printf", "%s", "{args}"], kind="exec")
        + agent("missing", ["/nowhere/launcher", "{id}"], kind="exec")
    )
    with start(text, module_database) as daemon:
        yield daemon


@pytest.fixture
def daemon(shared: Daemon, record: Path) -> Daemon:
    """Return the shared daemon, with an empty record."""
    record.write_text("")
    return shared


def output(daemon: Daemon, pk: int, stream: str = "out") -> str:
    rows = daemon.execute(
        "select out_data from drover.output where out_jq_fk = %s and out_stream = %s order by out_pk", pk, stream
    )
    return "".join(row["out_data"] for row in rows)


# ---- the parameter


@pytest.mark.parametrize(
    "parameter",
    [
        "http://x",
        "  blanks on both ends  ",
        "tab\there",
        "quotes \" ' and \\ backslash `date`",
        "$(touch x)",
        "%s %% {id} {args}",
        "Zürich 東京 🐂",
        "\x01\x1b[31m\x7f",
        "OK",
        "x" * 60_000,
    ],
)
def test_a_parameter_reaches_the_agent_byte_for_byte_f16_f19_f23_f84_r20(
    daemon: Daemon, record: Path, parameter: str
) -> None:
    daemon.wait(daemon.insert(jq_type="rec", jq_args=parameter))
    assert lines(record) == [parameter]


@pytest.mark.parametrize("character", ["\n", "\r\n"])
def test_a_newline_in_a_parameter_fails_the_job_before_any_agent_sees_it(
    daemon: Daemon, record: Path, character: str
) -> None:
    row = daemon.wait(daemon.insert(jq_type="rec", jq_args=f"a{character}b"), "failed")
    assert "newline" in row["jq_endtext"]
    assert lines(record) == []


def test_an_empty_parameter_fails_the_job_before_a_line_agent_sees_it(daemon: Daemon, record: Path) -> None:
    row = daemon.wait(daemon.insert(jq_type="rec", jq_args=""), "failed")
    assert row["jq_endtext"].startswith("the parameter is empty")
    assert lines(record) == []


def test_any_kind_of_row_is_accepted_and_delays_no_other_f28(daemon: Daemon, record: Path) -> None:
    unknown = daemon.insert(jq_type="nosuch", jq_args="x")
    empty = daemon.insert(jq_type="rec", jq_args="")
    broken = daemon.insert(jq_type="rec", jq_args="selekt", jq_msq=True)
    binary = daemon.insert(jq_type="rec", jq_args="\x02\x7f\x80\u202e")
    last = daemon.insert(jq_type="rec", jq_args="last")
    daemon.wait_all([binary, last])
    daemon.wait_all([empty, broken], "failed")
    assert daemon.row(unknown)["jq_state"] == "queued"


def test_the_row_shows_its_owner_and_times_f31_f161_f162_r73(daemon: Daemon, record: Path, tmp_path: Path) -> None:
    pk = daemon.insert(jq_type="rec", jq_args=f"gate:{tmp_path / 'gate'}")
    row = daemon.wait(pk, "running")
    assert (row["jq_endtime"], row["jq_endtext"], row["jq_attempt"]) == (None, "in progress", 1)
    assert row["jq_starttime"] >= row["jq_queued"]
    assert row["jq_schedinfo"] == f"{os.uname().nodename}.{daemon.pid}"
    assert row["jq_owner"] == daemon.value("select group_owner from drover.scheduler_group")
    (tmp_path / "gate").touch()
    row = daemon.wait(pk)
    assert (row["jq_owner"], row["jq_schedinfo"], row["jq_endtext"]) == (None, None, "all data processed")


def test_a_row_without_start_runs_and_one_with_an_end_never_again_f30_f32(daemon: Daemon, record: Path) -> None:
    pk = daemon.insert(jq_type="rec", jq_args="first")
    assert daemon.wait(pk)["jq_endtime"] >= daemon.row(pk)["jq_starttime"]
    daemon.wait_all([daemon.insert(jq_type="rec", jq_args="later") for _ in range(10)])
    assert Counter(lines(record))["first"] == 1
    assert daemon.row(pk)["jq_attempt"] == 1


def test_one_connection_sees_at_once_what_another_did_r70(daemon: Daemon) -> None:
    pk = daemon.insert(jq_type="rec", jq_args="x")
    row = daemon.wait(pk)
    seen = daemon.execute(
        "select jq_state, jq_endtext from drover.my_jobs where jq_pk = %s", pk, role="drover_frontend_sql"
    )
    assert seen == [{"jq_state": "done", "jq_endtext": row["jq_endtext"]}]


def test_the_queue_is_the_only_way_in_the_daemon_listens_nowhere_f12_j90(daemon: Daemon) -> None:
    daemon.wait(daemon.insert(jq_type="rec", jq_args="x", role="drover_frontend"))
    assert _sockets(daemon.pid)
    assert not _sockets(daemon.pid) & _listening()


def _sockets(pid: int) -> set[str]:
    """Inodes of the sockets that a process has open."""
    links = [os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir()]
    return {link[8:-1] for link in links if link.startswith("socket:[")}


def _listening() -> set[str]:
    """Inodes of the sockets of this machine that accept connections, see proc(5)."""
    tcp = [line.split() for name in ("tcp", "tcp6") for line in Path("/proc/net", name).read_text().splitlines()[1:]]
    unix = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    return {words[9] for words in tcp if words[3] == "0A"} | {words[6] for words in unix if words[3] == "00010000"}


# ---- names and what never changes


@pytest.mark.parametrize("name", ["rec.b", "rec.simpsons-8761230871234"])
def test_a_job_may_have_a_name_of_type_and_nonce_r22_r23(daemon: Daemon, name: str) -> None:
    assert daemon.wait(daemon.insert(jq_type="rec", jq_args="x", jq_name=name))["jq_name"] == name


@pytest.mark.parametrize("name", ["rec.b.c", "rec", "rec.", "other.b", "rec.b c"])
def test_a_name_that_is_not_type_dot_nonce_is_refused_r22(daemon: Daemon, name: str) -> None:
    with pytest.raises(psycopg.errors.CheckViolation, match="jobqueue_name_is_type_dot_nonce"):
        daemon.insert(jq_type="rec", jq_name=name)


@pytest.mark.parametrize("column", ["jq_type", "jq_name", "jq_args"])
def test_what_a_job_asks_for_never_changes_r71(daemon: Daemon, column: str) -> None:
    pk = daemon.insert(jq_type="rec", jq_args="x")
    with pytest.raises(psycopg.errors.CheckViolation, match="never changes"):
        daemon.execute(f"update drover.jobqueue set {column} = 'rec.other' where jq_pk = {pk}")
    daemon.wait(pk)


def test_a_held_job_waits_until_it_is_released_r72(daemon: Daemon, record: Path) -> None:
    held = daemon.insert(jq_type="rec", jq_args="held", jq_state="held")
    daemon.wait(daemon.insert(jq_type="rec", jq_args="other"))
    assert daemon.row(held)["jq_state"] == "held"
    daemon.execute("update drover.jobqueue set jq_state = 'queued' where jq_pk = %s", held)
    daemon.execute("notify drover_queue")
    daemon.wait(held)
    assert lines(record) == ["other", "held"]


def test_the_priority_of_a_job_can_be_read_r76(daemon: Daemon) -> None:
    pk = daemon.insert(jq_type="rec", jq_args="x", jq_priority="a1")
    row = daemon.wait(pk)
    seen = daemon.execute("select jq_priority from drover.jobs_masked where jq_pk = %s", pk, role="drover_operator")
    assert (row["jq_priority"], seen) == ("a1", [{"jq_priority": "a1"}])


# ---- commands (exec agents)


def test_every_id_macro_in_the_command_becomes_the_job_number_j40(daemon: Daemon) -> None:
    pk = daemon.insert(jq_type="echo")
    daemon.wait(pk)
    assert output(daemon, pk) == f"{pk} {pk}\n"


def test_a_launcher_of_another_language_gets_the_id_j41(daemon: Daemon) -> None:
    pk = daemon.insert(jq_type="launcher")
    daemon.wait(pk)
    assert output(daemon, pk) == f"launched {pk}\n"


@pytest.mark.parametrize(("kind", "directory"), [("here", "/tmp"), ("there", "/usr")])
def test_a_command_runs_in_its_directory_j42_r19(daemon: Daemon, kind: str, directory: str) -> None:
    pk = daemon.insert(jq_type=kind)
    daemon.wait(pk)
    assert output(daemon, pk) == f"{directory}\n"


def test_a_command_written_as_text_is_split_by_shell_rules_j44(daemon: Daemon) -> None:
    pk = daemon.insert(jq_type="quoted")
    daemon.wait(pk)
    assert output(daemon, pk) == "one word|two|"


def test_an_argument_reaches_a_command_as_one_word_without_a_shell_r20(daemon: Daemon) -> None:
    pk = daemon.insert(jq_type="literal", jq_args="$(touch x) `y` \"z\" 'q' \\ a\nb")
    daemon.wait(pk)
    assert output(daemon, pk) == "$(touch x) `y` \"z\" 'q' \\ a\nb"


def test_a_command_that_cannot_be_started_fails_and_names_file_and_errno_j45(daemon: Daemon) -> None:
    pk = daemon.insert(jq_type="missing")
    row = daemon.wait(pk, "failed")
    assert "/nowhere/launcher" in row["jq_endtext"]
    assert "errno 2" in row["jq_endtext"]
    daemon.until(lambda: "/nowhere/launcher" in daemon.log_text(pk))


@pytest.mark.parametrize(
    ("status", "state", "bits"), [("0", "done", 1), ("7", "failed", 2), ("1", "failed", 2), ("255", "failed", 2)]
)
def test_the_exit_status_of_a_command_decides_and_is_stored_r21_r74(
    daemon: Daemon, status: str, state: str, bits: int
) -> None:
    pk = daemon.insert(jq_type="exits", jq_args=status)
    row = daemon.wait(pk, state)
    assert (row["jq_exitcode"], row["jq_end_bits"], row["jq_signal"]) == (int(status), bits, None)
    assert [(a["att_outcome"], a["att_exitcode"]) for a in daemon.attempts(pk)] == [(state, int(status))]


def test_a_command_has_its_own_variables_and_those_passed_on_j43(
    launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PASSED_ON", "by name")
    monkeypatch.setenv("NOT_PASSED", "secret")
    show = python("import os; print(*(os.environ.get(n) for n in ('LC_ALL', 'PASSED_ON', 'NOT_PASSED')), sep='|')")
    daemon = launch(ONE_HOST + agent("env", show, kind="exec", env={"LC_ALL": "C.UTF-8"}, pass_env=["PASSED_ON"]))
    pk = daemon.insert(jq_type="env")
    daemon.wait(pk)
    assert output(daemon, pk) == "C.UTF-8|by name|None\n"


# ---- hosts


def test_a_row_for_any_host_runs_on_either_one_that_is_bound_only_there_f13_f21(
    daemon: Daemon, record: Path, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    free = daemon.insert_all([{"jq_type": "rec", "jq_args": f"free;gate:{gate}"} for _ in range(8)])  # all agents
    await_lines(daemon, record, 8)
    gate.touch()
    bound = [{"jq_type": "rec", "jq_args": "bound;nap:0.02", "jq_host": "beta"} for _ in range(20)]
    daemon.wait_all(free + daemon.insert_all(bound))
    assert hosts_of(record, "free") == {"alpha", "beta"}
    assert hosts_of(record, "bound") == {"beta"}


def hosts_of(record: Path, word: str) -> set[str]:
    notes = records(record)
    return {note["host"] for note in notes if note["event"] == "line" and note["line"].startswith(word)}


def test_a_row_bound_to_a_host_without_such_agents_waits_there_f13(daemon: Daemon, record: Path) -> None:
    pk = daemon.insert(jq_type="one", jq_args="x", jq_host="beta")
    daemon.wait(daemon.insert(jq_type="one", jq_args="y"))
    assert daemon.row(pk)["jq_state"] == "queued"
    assert hosts_of(record, "") == {"alpha"}


# ---- processes


def test_every_agent_is_a_child_of_the_daemon_f1(launch: Launch, tmp_path: Path) -> None:
    record = tmp_path / "record"
    daemon = launch(ONE_HOST + "".join(agent(name, rec(record)) for name in ("a", "b", "c")))
    daemon.wait_all([daemon.insert(jq_type=name, jq_args="x") for name in ("a", "b", "c")])
    pids = {note["pid"] for note in records(record)}
    assert len(pids) == 3
    assert pids == set(daemon.agent_pids())


def test_free_slots_serve_another_type_while_one_works_f3(launch: Launch, tmp_path: Path) -> None:
    record, gate = tmp_path / "record", tmp_path / "gate"
    daemon = launch(ONE_HOST + agent("a", rec(record), slots=4) + agent("b", rec(record), slots=4))
    daemon.insert(jq_type="a", jq_args=f"gate:{gate}")
    daemon.until(lambda: lines(record, "a"))
    daemon.insert_all([{"jq_type": "b", "jq_args": f"gate:{gate}"}] * 3)
    daemon.until(lambda: len(lines(record, "b")) == 3)
    assert len({note["pid"] for note in records(record)}) == 4


def test_an_idle_agent_is_used_before_a_new_one_is_started_f4(launch: Launch, tmp_path: Path) -> None:
    record = tmp_path / "record"
    daemon = launch(ONE_HOST + agent("a", rec(record), slots=4))
    daemon.wait(daemon.insert(jq_type="a", jq_args="first"))
    daemon.wait(daemon.insert(jq_type="a", jq_args="second"))
    assert [note["event"] for note in records(record)] == ["up", "line", "line"]
    assert len({note["pid"] for note in records(record)}) == 1


@pytest.mark.slow
def test_agents_of_a_host_never_exceed_its_maximum_f5(launch: Launch, tmp_path: Path) -> None:
    record = tmp_path / "record"
    daemon = launch(ONE_HOST + "".join(agent(f"t{n}", rec(record), slots=4) for n in range(5)))
    pks = daemon.insert_all([{"jq_type": f"t{n % 5}", "jq_args": "nap:0.02"} for n in range(50)])
    counts: list[int] = []
    daemon.until(sampling(daemon, counts, pks))
    assert max(counts) == 4


def sampling(daemon: Daemon, counts: list[int], pks: list[int]) -> Callable[[], bool]:
    """Return a function that says whether all jobs have ended, and counts the agents each time."""

    def look() -> bool:
        counts.append(len(daemon.agent_pids()))
        left = daemon.value("select count(*) from drover.jobqueue where jq_pk = any(%s) and jq_endtime is null", pks)
        return bool(left == 0)

    return look


def test_an_urgent_job_gets_one_extra_agent_and_not_two_f5(launch: Launch, tmp_path: Path) -> None:
    record, gate = tmp_path / "record", tmp_path / "gate"
    daemon = launch("[hosts.alpha]\nmax = 2\nurgent = 1\n" + agent("a", rec(record), slots=9))
    plain = daemon.insert_all([{"jq_type": "a", "jq_args": f"gate:{gate}"}] * 3)
    daemon.until(lambda: len(lines(record)) == 2)
    urgent = daemon.insert_all([{"jq_type": "a", "jq_args": f"gate:{gate};urgent", "jq_urgent": True}] * 2)
    daemon.until(lambda: len(lines(record)) == 3)
    daemon.wait(urgent[0], "running")
    assert len(daemon.agent_pids()) == 3
    gate.touch()
    daemon.wait_all(plain + urgent)
    assert daemon.most_agents("agent=a ") == 3  # more in all if one had to go before the second urgent job was claimed


def test_children_work_at_the_same_time_f7(launch: Launch, tmp_path: Path) -> None:
    record, gate = tmp_path / "record", tmp_path / "gate"
    daemon = launch(ONE_HOST + agent("a", rec(record), slots=4))
    pks = daemon.insert_all([{"jq_type": "a", "jq_args": f"gate:{gate}"}] * 4)
    daemon.until(lambda: len(lines(record)) == 4)
    gate.touch()
    daemon.wait_all(pks)
    assert len({note["pid"] for note in records(record)}) == 4


# ---- the order


@pytest.mark.slow
def test_urgent_work_kills_no_running_agent_f37(launch: Launch, tmp_path: Path) -> None:
    record, gate = tmp_path / "record", tmp_path / "gate"
    text = "[hosts.alpha]\nmax = 2\nurgent = 0\n" + agent("a", rec(record), slots=2) + agent("b", rec(record), slots=2)
    daemon = launch(text)
    running = daemon.insert_all([{"jq_type": "a", "jq_args": f"gate:{gate}"}] * 2)
    daemon.wait_all(running, "running")
    pids = daemon.agent_pids()
    kinds = ["a", "b"]
    urgent = daemon.insert_all([{"jq_type": kind, "jq_args": "urgent", "jq_urgent": True} for kind in kinds])
    daemon.wait(urgent[0], "claimed")
    assert daemon.agent_pids() == pids
    gate.touch()
    daemon.wait_all(running + urgent)
    assert lines(record)[:2] == [f"gate:{gate}"] * 2
    assert [row["jq_attempt"] for row in map(daemon.row, running)] == [1, 1]


@pytest.mark.slow
def test_jobs_for_an_idle_agent_go_before_jobs_that_need_a_new_one_f39(launch: Launch, tmp_path: Path) -> None:
    record = tmp_path / "record"
    text = "[hosts.alpha]\nmax = 1\n" + agent("a", rec(record)) + agent("b", rec(record))
    daemon = launch("[scheduler]\nmin_idle = 6\n" + text)
    daemon.wait(daemon.insert(jq_type="a", jq_args="warm"))
    pks = daemon.insert_all([{"jq_type": "b", "jq_args": "older"}, {"jq_type": "a", "jq_args": "younger"}])
    daemon.wait_all(pks)
    assert lines(record) == ["warm", "younger", "older"]


@pytest.mark.slow
def test_an_idle_agent_is_evicted_for_another_type_f40(launch: Launch, tmp_path: Path) -> None:
    record = tmp_path / "record"
    daemon = launch("[hosts.alpha]\nmax = 1\n" + agent("a", rec(record)) + agent("b", rec(record)))
    daemon.wait(daemon.insert(jq_type="a", jq_args="x"))
    daemon.wait(daemon.insert(jq_type="b", jq_args="x"))
    story = [(note["agent"], note["event"]) for note in records(record)]
    assert [step for step in story if step != ("a", "end")] == [("a", "up"), ("a", "line"), ("b", "up"), ("b", "line")]
    assert "room for b" in daemon.stderr()


@pytest.mark.parametrize(
    ("waiting", "order"),
    [
        (["1", "2", "3"], ["1", "2", "3"]),  # F42
        (["1", "2 urgent", "3"], ["2 urgent", "1", "3"]),  # F41
        (["1 z", "2 n", "3 a"], ["3 a", "2 n", "1 z"]),  # R29
        (["1 b", "2 a1", "3 a"], ["3 a", "2 a1", "1 b"]),
        (["1 a", "2 z urgent"], ["2 z urgent", "1 a"]),
        (["1 a", "2 Z", "3 B10", "4 B2"], ["3 B10", "4 B2", "2 Z", "1 a"]),  # as C orders
    ],
)
def test_jobs_run_urgent_first_then_by_letter_then_in_the_order_they_came_f41_f42_r8_r29(
    launch: Launch, tmp_path: Path, waiting: list[str], order: list[str]
) -> None:
    record = tmp_path / "record"
    daemon = launch(ONE_HOST + agent("a", rec(record)))
    daemon.wait_all(daemon.insert_all(list(map(described, waiting))))
    assert lines(record) == order


def described(text: str) -> dict[str, object]:
    """Return the row of a job from `NUMBER [LETTER] [urgent]`."""
    words = text.split()[1:]
    letter = next((word for word in words if word != "urgent"), "n")
    return {"jq_type": "a", "jq_args": text, "jq_priority": letter, "jq_urgent": "urgent" in words}


def test_queued_jobs_are_claimed_in_order_while_an_agent_works_f41_f42(launch: Launch, tmp_path: Path) -> None:
    record, gate = tmp_path / "record", tmp_path / "gate"
    daemon = launch("[hosts.alpha]\nurgent = 0\n" + agent("a", rec(record)))
    daemon.insert(jq_type="a", jq_args=f"gate:{gate}")
    ahead = daemon.insert(jq_type="a", jq_args="in hand")
    daemon.wait(ahead, "claimed")
    pks = [daemon.insert(jq_type="a", jq_args=f"job {n}") for n in range(10)]
    urgent = daemon.insert(jq_type="a", jq_args="urgent", jq_urgent=True)
    gate.touch()
    daemon.wait_all([*pks, urgent])
    assert lines(record) == [f"gate:{gate}", "in hand", "urgent", *(f"job {n}" for n in range(10))]


def test_claimed_jobs_go_before_older_queued_ones_f38(launch: Launch, tmp_path: Path) -> None:
    record, gate = tmp_path / "record", tmp_path / "gate"
    daemon = launch(ONE_HOST + agent("a", rec(record)))
    daemon.insert(jq_type="a", jq_args=f"gate:{gate}")
    ahead = daemon.insert(jq_type="a", jq_args="in hand")
    daemon.wait(ahead, "claimed")
    older = "insert into drover.jobqueue (jq_type, jq_args, jq_queued) values ('a', 'older', now() - interval '1 hour')"
    pk = daemon.value(f"{older} returning jq_pk")
    gate.touch()
    daemon.wait(pk)
    assert lines(record) == [f"gate:{gate}", "in hand", "older"]


# ---- fetching


@pytest.mark.parametrize("limit", [100, 0, 1])
def test_all_jobs_are_fetched_whatever_the_limit_of_one_fetch_j3_j47_j48_j108(
    launch: Launch, tmp_path: Path, limit: int
) -> None:
    record = tmp_path / "record"
    daemon = launch(f"[scheduler]\nfetch_limit = {limit}\n" + ONE_HOST + agent("a", rec(record), slots=2))
    args = [f"job {n}" for n in range(250)]
    daemon.wait_all(daemon.insert_all([{"jq_type": "a", "jq_args": text} for text in args]))
    assert Counter(lines(record)) == Counter(args)
    assert daemon.value("select count(*) from drover.jobqueue") == len(args)


@pytest.mark.slow
def test_no_claim_is_made_while_every_slot_and_buffer_is_full_j49(launch: Launch, tmp_path: Path) -> None:
    record, gate = tmp_path / "record", tmp_path / "gate"
    daemon = launch(ONE_HOST + agent("a", rec(record), slots=2))
    pks = daemon.insert_all([{"jq_type": "a", "jq_args": f"gate:{gate}"}] * 6)
    daemon.wait_all(pks[:2], "running")
    daemon.until(lambda: len(claimed(daemon)) == 3)
    daemon.until(lambda: has_taken_stock(daemon))  # the last thing asked after a claim
    renewals(daemon, 2)  # and there may have been two claims
    before = last_query(daemon)
    more = daemon.insert_all([{"jq_type": "a", "jq_args": f"gate:{gate}"}] * 20)
    renewals(daemon, 2)
    assert last_query(daemon) == before or is_listen_probe(daemon)
    gate.touch()
    daemon.wait_all(pks + more)


def claimed(daemon: Daemon) -> list[dict[str, object]]:
    return daemon.execute("select jq_pk from drover.jobs where jq_state in ('claimed', 'running')")


def has_taken_stock(daemon: Daemon) -> object:
    return daemon.value(
        "select query ~ 'delete from drover.in_hand' from pg_stat_activity"
        " where datname = current_database() and application_name = 'drover queue'"
    )


def is_listen_probe(daemon: Daemon) -> object:
    """Return whether the daemon asked last whether its LISTEN is heard, which it does now and then."""
    return daemon.value(
        "select query ~ 'pg_notification_queue_usage' from pg_stat_activity"
        " where datname = current_database() and application_name = 'drover queue'"
    )


def last_query(daemon: Daemon, name: str = "queue") -> object:
    """Return when the daemon's connection of that name was last asked something."""
    query = "select query_start from pg_stat_activity where datname = current_database() and application_name = %s"
    return daemon.value(query, f"drover {name}")


def renewals(daemon: Daemon, count: int) -> None:
    """Wait for so many renewals of the lease: a while in which the daemon has had turns."""
    seen: set[object] = set()

    def look() -> bool:
        seen.add(daemon.value("select group_lease_until from drover.scheduler_group"))
        return len(seen) > count

    daemon.until(look)


@pytest.mark.slow
def test_jobs_that_come_while_others_are_fetched_are_not_lost_j46_j50(launch: Launch, tmp_path: Path) -> None:
    record = tmp_path / "record"
    daemon = launch(ONE_HOST + agent("a", rec(record), slots=2))
    roles = ("drover_frontend", "drover_frontend_sql")
    pks = [daemon.insert(role=role, jq_type="a", jq_args=f"{role} {n}") for n in range(100) for role in roles]
    daemon.wait_all(pks)
    assert len(set(lines(record))) == 200


@pytest.mark.slow
def test_a_locked_row_is_skipped_by_claims_j51_c22(launch: Launch, database_with_roles: str, tmp_path: Path) -> None:
    record = tmp_path / "record"
    with psycopg.connect(database_with_roles) as other:
        other.execute("insert into drover.jobqueue (jq_type, jq_args) values ('a', 'locked')")
        other.commit()
        other.execute("select from drover.jobqueue for update")
        daemon = launch(ONE_HOST + agent("a", rec(record)))
        daemon.wait_all([daemon.insert(jq_type="a", jq_args=f"free {n}") for n in range(5)])
        assert lines(record) == [f"free {n}" for n in range(5)]
    daemon.until(lambda: lines(record)[5:] == ["locked"])


@pytest.mark.slow
def test_a_lock_on_a_due_row_does_not_lose_the_lease_j51(launch: Launch, tmp_path: Path) -> None:
    daemon = launch("[scheduler]\nlease = 2\nlease_renewal = 0.5\n" + ONE_HOST + agent("a", rec(tmp_path / "record")))
    soon = daemon.value("select now() + interval '4 s'")
    pk = daemon.insert(jq_type="a", jq_args="due", jq_not_before=soon)
    with psycopg.connect(daemon.database) as other:
        other.execute("select from drover.jobqueue for update")
        daemon.until(lambda: daemon.value("select now() > %s", soon))
        renewals(daemon, 5)
        daemon.wait(daemon.insert(jq_type="a", jq_args="free"))
        assert daemon.row(pk)["jq_state"] == "queued"
    daemon.wait(pk)


@pytest.mark.slow
def test_more_due_rows_than_one_statement_takes_all_run_j51(launch: Launch, tmp_path: Path) -> None:
    daemon = launch(ONE_HOST + agent("a", rec(tmp_path / "record"), slots=2))
    daemon.execute(
        "insert into drover.jobqueue (jq_type, jq_args, jq_not_before) "
        "select 'a', 'x', now() + interval '5 s' from generate_series(1, 6000)"
    )
    left = "select count(*) from drover.jobqueue where jq_state <> 'done'"
    assert daemon.value(left) == 6000
    daemon.until(lambda: daemon.value(left) == 0)
