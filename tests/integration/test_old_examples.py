"""The worked examples of the systems that came before, as they would be set up here.

A shop's bills with jobs set up by name from a shell; queues that keep kinds of work apart; an upload that is unpacked
and looked at, step by step, where its files are.
"""

import json
from pathlib import Path

import pytest

from tests.integration.conftest import Ask, Launch
from tests.integration.daemon import Daemon, Row, agent, lines, python, rec, records

NONCE = "simpsons-8761230871234"
PRINT = python("import os; print(os.environ['DROVER_VAR_userid'], os.environ['DROVER_VAR_invoice'])")
PAYS = "import os, sys; sys.exit(0 if os.path.exists(os.environ['DROVER_VAR_paid']) else 7)"

# ---- bills: shipping and notify wait for billing


@pytest.fixture
def shop(tmp_path: Path) -> str:
    kinds = {"billing": PRINT, "shipping": PRINT, "notify": PRINT, "paying": python(PAYS)}
    return "[hosts.alpha]\nmax = 4\n" + "".join(agent(name, argv, kind="exec") for name, argv in kinds.items())


def set_up(ask: Ask, name: str, *lines_: str, options: str = "") -> int:
    done = ask(f"setup {options} {name}", "\n".join(lines_))
    assert (done.status, done.err) == (0, "")
    return int(done.out)


@pytest.mark.slow
def test_shipping_and_notify_run_when_billing_is_done_r23_r24_r25_r27_r28_r36_r39_r40(
    launch: Launch, shop: str, ask: Ask
) -> None:
    daemon = launch(shop)
    variables = ("userid=simpsons", "invoice='a \"b\" $c'")
    leaves = [set_up(ask, f"{kind}.{NONCE}", *variables) for kind in ("shipping", "notify")]
    blocks = f"rjm_blocks=(shipping.{NONCE} notify.{NONCE})"
    billing = set_up(ask, f"billing.{NONCE}", *variables, blocks, options="-p a")
    daemon.wait(int(ask("submit notify x").out), "failed")  # whatever is not held runs: it has no variables
    assert [daemon.row(pk)["jq_state"] for pk in (billing, *leaves)] == ["held"] * 3
    assert ask(f"release billing.{NONCE}").status == 0
    bill, *others = daemon.wait_all([billing, *leaves])
    assert bill["jq_priority"] == "a"
    assert all(row["jq_starttime"] >= bill["jq_endtime"] for row in others)
    assert {ask(f"out {kind}.{NONCE}").out for kind in ("billing", "shipping", "notify")} == {'simpsons a "b" $c\n'}


@pytest.mark.slow
def test_children_of_a_failed_bill_run_when_it_is_retried_and_paid_r6_r7_r63(
    launch: Launch, shop: str, ask: Ask, tmp_path: Path
) -> None:
    daemon = launch(shop)
    paid = tmp_path / "paid"
    leaf = set_up(ask, "shipping.1", "userid=simpsons", "invoice=1")
    bill = set_up(ask, "paying.1", f"paid='{paid}'", "rjm_blocks=(shipping.1)")
    assert ask("release paying.1").status == 0
    assert daemon.wait(bill, "failed")["jq_exitcode"] == 7
    assert ask("exit paying.1").out == "7\n"
    assert daemon.row(leaf)["jq_state"] == "queued"
    in_vain = f"job {bill} has failed: retry it, or cancel or ice this one"
    assert ask("why shipping.1").out == f"waits for 1 dependency: job {bill} (paying.1); {in_vain}\n"
    paid.touch()
    assert ask("retry paying.1").status == 0
    daemon.wait_all([bill, leaf])
    assert daemon.row(bill)["jq_attempt"] == 2


@pytest.mark.slow
def test_jobs_of_a_slot_run_in_order_of_their_letters_r29(launch: Launch, ask: Ask, record: Path) -> None:
    daemon = launch("[hosts.alpha]\nmax = 1\nurgent = 0\n" + agent("a", rec(record)))
    names = ("z", "n", "a", "b", "a1")
    jobs = [set_up(ask, f"a.{name}", f"x={name}", options=f"-p {name}") for name in names]
    for line in ("pause", "release a.z a.n a.a a.b a.a1", "continue"):
        assert ask(line).status == 0
    daemon.wait_all(jobs)
    assert lines(record) == [f'x="{name}"' for name in sorted(names)]


# ---- queues: low, normal and high; heavy and quick


def queues(**concurrency: int) -> str:
    return "".join(f"[queues.{name}]\nconcurrency = {number}\n" for name, number in concurrency.items())


def in_hand(ask: Ask) -> dict[str, int]:
    listed = [json.loads(line) for line in ask("queue --json").out.splitlines()]
    return {queue["queue"]: queue["in_hand"] for queue in listed}


def insert_into(daemon: Daemon, queue: str, count: int, args: str) -> list[int]:
    return daemon.insert_all([{"jq_type": "a", "jq_queue": queue, "jq_args": args} for _ in range(count)])


def test_queues_low_normal_and_high_run_five_jobs_each_at_once_j13_j14_j16(
    launch: Launch, ask: Ask, record: Path, gate: Path
) -> None:
    daemon = launch("[hosts.alpha]\n" + agent("a", rec(record), slots=18) + queues(low=5, normal=5, high=5))
    jobs = [pk for queue in ("low", "normal", "high") for pk in insert_into(daemon, queue, 6, f"gate:{gate}")]
    daemon.until(lambda: len(lines(record)) == 15)
    assert in_hand(ask) == {"default": 0, "low": 5, "normal": 5, "high": 5}
    gate.touch()
    daemon.wait_all(jobs)


@pytest.mark.slow
def test_quick_jobs_run_while_heavy_ones_fill_their_queue_j17_j18(
    launch: Launch, ask: Ask, record: Path, gate: Path
) -> None:
    daemon = launch("[hosts.alpha]\n" + agent("a", rec(record), slots=23) + queues(heavy=3, quick=20))
    heavy = insert_into(daemon, "heavy", 5, f"gate:{gate}")
    daemon.until(lambda: len(lines(record)) == 3)
    daemon.wait_all(insert_into(daemon, "quick", 40, "quick"))
    assert in_hand(ask)["heavy"] == 3
    assert sorted(daemon.row(pk)["jq_state"] for pk in heavy)[:2] == ["queued", "queued"]
    assert len(lines(record)) == 43
    gate.touch()
    daemon.wait_all(heavy)


# ---- an upload: unpacked, put in order, scanned


@pytest.fixture
def repository(record: Path) -> str:
    kinds = ("wget", "unpack", "adj2nest", "scan", "license", "filter_license")
    return "[hosts.h1]\nmax = 4\n[hosts.h2]\nmax = 4\n" + "".join(agent(name, rec(record)) for name in kinds)


@pytest.fixture
def files(launch: Launch, repository: str) -> Daemon:
    """Start a daemon with a table of ten files of which each lies on one of two hosts."""
    daemon = launch(repository)
    daemon.execute("create table pfile (pfile int primary key, ufile int, host text, uploaded bool default true)")
    daemon.execute("insert into pfile select n, n + 100, 'h' || n % 2 + 1 from generate_series(1, 10) n")
    daemon.execute("grant select on pfile to drover_msq")
    return daemon


def worked(record: Path, kind: str) -> list[Row]:
    return [note for note in records(record) if note["event"] == "line" and note["agent"] == kind]


def test_wget_gets_one_url_on_any_host_f23(files: Daemon, ask: Ask, record: Path) -> None:
    url = "http://example.org/a%20b.tar.gz?x=1&y='2'"
    done = ask(f"submit --wait wget {url}")
    assert (done.status, done.out.splitlines()[1].split()[1:3]) == (0, ["wget", "done"])
    assert [note["line"] for note in worked(record, "wget")] == [url]


@pytest.mark.parametrize("kind", ["license", "filter_license"])
def test_licences_are_scanned_on_the_host_of_the_files_f24(files: Daemon, ask: Ask, record: Path, kind: str) -> None:
    job = int(ask(f"submit {kind} --runonpfile host select pfile, host from pfile order by pfile").out)
    assert files.wait(job)["jq_itemsprocessed"] == 10
    seen = {note["line"]: note["host"] for note in worked(record, kind)}
    assert seen == {f'pfile="{n}" host="h{n % 2 + 1}"': f"h{n % 2 + 1}" for n in range(1, 11)}


def test_unpack_gets_one_file_by_a_parameter_or_by_a_query_f25(files: Daemon, ask: Ask, record: Path) -> None:
    line = 'pfile="4" ufile="104" host="h1"'
    query = "select pfile, ufile, host from pfile where pfile = 4"
    for words in (f"--host h1 unpack {line}", f"--runonpfile host unpack {query}"):
        assert ask(f"submit --wait {words}").status == 0
    assert [(note["line"], note["host"]) for note in worked(record, "unpack")] == [(line, "h1")] * 2


CHAIN = """
with upload as (insert into drover.job (job_name) values ('upload 4') returning job_pk),
unpack as (
  insert into drover.jobqueue (jq_job_fk, jq_type, jq_args, jq_host)
  select job_pk, 'unpack', %s, 'h1' from upload returning jq_pk),
nest as (
  insert into drover.jobqueue (jq_job_fk, jq_type, jq_args) select job_pk, 'adj2nest', '4' from upload returning jq_pk),
scan as (
  insert into drover.jobqueue (jq_job_fk, jq_type, jq_args, jq_runonpfile)
  select job_pk, 'scan', 'select pfile, host from pfile where uploaded', 'host' from upload returning jq_pk)
select unpack.jq_pk as unpack, nest.jq_pk as nest, scan.jq_pk as scan from unpack, nest, scan
"""
EDGES = "insert into drover.jobdepends (jdep_jq_fk, jdep_jq_depends_fk) values (%s, %s), (%s, %s)"


def queue_chain(daemon: Daemon, act: str) -> tuple[int, int, int]:
    """Queue the three steps as a front-end does, in one transaction."""
    connection = daemon.login("drover_frontend_sql")
    with connection.transaction():
        row = connection.execute(CHAIN, (act,)).fetchone()
        assert row is not None
        unpack, nest, scan = row["unpack"], row["nest"], row["scan"]
        connection.execute(EDGES, (nest, unpack, scan, nest))
    return unpack, nest, scan


def test_unpack_adj2nest_and_scan_run_in_order_on_their_hosts_f27_f44(
    files: Daemon, ask: Ask, record: Path, gate: Path
) -> None:
    unpack, nest, scan = queue_chain(files, f"gate:{gate}")
    files.wait(unpack, "running")
    assert ask(f"why {scan}").out == f"waits for 1 dependency: job {nest}\n"
    gate.touch()
    first, second, third = files.wait_all([unpack, nest, scan])
    assert first["jq_endtime"] <= second["jq_starttime"] <= second["jq_endtime"] <= third["jq_starttime"]
    assert [note["agent"] for note in records(record) if note["event"] == "line"] == [
        "unpack",
        "adj2nest",
        *["scan"] * 10,
    ]
    assert worked(record, "unpack")[0]["host"] == "h1"
    assert {note["host"] for note in worked(record, "scan")} == {"h1", "h2"}


def test_a_file_that_cannot_be_unpacked_is_not_scanned_f44_r6(files: Daemon, ask: Ask, record: Path) -> None:
    unpack, nest, scan = queue_chain(files, "die:3")
    files.wait(unpack, "failed")
    assert ask("ls --json -t adj2nest -t scan -S queued").out.count("\n") == 2
    assert ask(f"cancel {nest} {scan} --reason unreadable").status == 0
    files.wait_all([nest, scan], "cancelled")
    assert worked(record, "scan") == []


# ---- the same upload by the statements of the original front-end


OLD_UPLOAD = """
INSERT INTO job (job_queued, job_priority, job_name, job_upload_fk, job_user_fk)
 VALUES (now(), '0', 'upload', '4', '2');
INSERT INTO jobqueue (jq_job_fk, jq_type, jq_args, jq_repeat, jq_runonpfile, jq_starttime, jq_endtime, jq_end_bits)
 SELECT job_pk, 'unpack', '4', 'no', NULL, NULL, NULL, '0' FROM job WHERE job_name = 'upload' AND job_upload_fk = '4';
INSERT INTO jobqueue (jq_job_fk, jq_type, jq_args, jq_repeat, jq_runonpfile, jq_starttime, jq_endtime, jq_end_bits)
 SELECT job_pk, 'scan', 'SELECT pfile, host FROM pfile;', 'no', 'host', NULL, NULL, '0' FROM job;
INSERT INTO jobdepends (jdep_jq_fk, jdep_jq_depends_fk)
 SELECT s.jq_pk, u.jq_pk FROM jobqueue s, jobqueue u WHERE s.jq_type = 'scan' AND u.jq_type = 'unpack';
"""
OLD_RESET = "UPDATE jobqueue SET jq_starttime=NULL, jq_endtime=NULL, jq_end_bits=0 WHERE jq_type = 'unpack';"
OLD_STATE = "SELECT jq_type, jq_end_bits, jq_itemsprocessed, jq_endtext FROM jobqueue ORDER BY jq_type DESC;"


class OldFrontEnd:
    """The statements of a front-end that knows only the original tables, each a transaction of its own."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon, self._connection = daemon, daemon.login("drover_frontend_sql")
        self.run("SET search_path = fossology_compat")

    def run(self, statements: str) -> None:
        for statement in filter(str.strip, statements.split(";\n")):
            self._connection.execute(statement.encode())

    def states(self) -> list[tuple[object, ...]]:
        return [tuple(row.values()) for row in self._connection.execute(OLD_STATE.encode())]

    def until(self, *bits: int) -> None:
        self._daemon.until(lambda: [row[1] for row in self.states()] == list(bits))


@pytest.mark.slow
def test_original_front_end_runs_an_upload_resets_skips_fails_and_deletes_it_f1_f4_f14_t22(
    files: Daemon, ask: Ask, record: Path
) -> None:
    owner = {"DROVER_DATABASE_URL": files.database}
    assert ask("init --compat fossology", **owner).out.endswith("\nnothing to do\napplied compat/fossology.sql\n")
    ui = OldFrontEnd(files)
    ui.run(OLD_UPLOAD)
    ui.until(1, 1)
    assert [(row[0], row[2]) for row in ui.states()] == [("unpack", 1), ("scan", 10)]
    assert [note["agent"] for note in records(record) if note["event"] == "line"] == ["unpack", *["scan"] * 10]
    ui.run(OLD_RESET)
    files.until(lambda: len(worked(record, "scan")) == 20, what="it did not run again")
    assert len(worked(record, "unpack")) == 2
    ui.until(1, 1)

    assert ask("pause").status == 0
    ui.run(OLD_RESET)
    ui.run("UPDATE jobqueue SET jq_end_bits='2', jq_endtext='Killed by user' WHERE jq_type = 'unpack';")
    ui.until(2, 0)
    assert ui.states()[0][3] == "Killed by user"
    ui.run("UPDATE job SET job_priority = job_priority + 1;")
    files.until(lambda: "m" in ask("ls --json -S queued").out)
    ui.run("UPDATE jobqueue SET jq_end_bits='1' WHERE jq_type = 'unpack';")
    ui.until(1, 0)
    assert ask("continue").status == 0
    ui.until(1, 1)
    ui.run("DELETE FROM job WHERE job_name = 'upload';")
    assert ui.states() == []
    assert files.value("select count(*) from drover.jobqueue where jq_type <> 'command'") == 0
