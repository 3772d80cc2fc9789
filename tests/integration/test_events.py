"""Events from the real daemon to a real receiver: in order, signed, across crashes; and bad receivers."""

import base64
import hashlib
import hmac
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from signal import SIGKILL
from subprocess import PIPE, Popen
from threading import Event, Thread
from typing import Any, Final

import pytest

from tests.integration.conftest import Ask, Launch
from tests.integration.daemon import Daemon, agent
from tests.patience import PATIENCE_S

HOST: Final = "[hosts.alpha]\n"
NOOP: Final = agent("a", ["drover-agent-noop"], empty="send")
OFTEN: Final = '[conditions.notify]\nsteps = ["0.2"]\nmax_tries = 4\n'
SECRET: Final = "a secret of some length"
STATES: Final = "select del_state, count(*)::integer as n from drover.delivery group by 1 order by 1"
LETTERS: Final = "select dead_reason from drover.dead_letter order by dead_pk"
POST: Final = "select drover.job_event(%s, %s)"


def notify(*options: str) -> str:
    return agent("notify", ["drover-agent-notify", *options], submitters=["drover_scheduler"], slots=2)


LOCAL: Final = HOST + NOOP + OFTEN + notify("--allow", "127.0.0.0/8", "--timeout", "30")
IMPATIENT: Final = LOCAL.replace('"30"', '"1"')  # where the receiver does not answer


class Receiver:
    """A web server that keeps what it got. `answer` returns the status for the n-th delivery, 0 for none at all."""

    def __init__(self, answer: Callable[[int], int] = lambda _: 200, location: str = "") -> None:
        self.got: list[dict[str, Any]] = []
        self.released = Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.got.append({"headers": dict(self.headers), "body": body, **json.loads(body)["data"]})
                status = answer(len(outer.got))
                if not status:
                    outer.released.wait(PATIENCE_S)
                    return
                self.send_response(status)
                if location:
                    self.send_header("Location", location)
                self.end_headers()

            def log_message(self, *_words: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook"
        self._thread = Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()

    def texts(self, job: int) -> list[str]:
        return [each["text"] for each in self.got if each["job"] == job]

    def close(self) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with closing(Receiver()) as one:
        yield one


def subscribe(daemon: Daemon, url: str, **values: Any) -> int:
    given = {"targets": [url], "secret": SECRET, **values}
    names = ", ".join(f"{name} => %s" for name in given)
    query = f"select subscription from drover.subscribe({names})"
    return int(daemon.execute(query, *given.values(), role="drover_frontend_sql")[0]["subscription"])


@contextmanager
def receiving(port: int, log: Path) -> Iterator[tuple[Popen[str], int]]:
    """Yield a receiver that can be killed, and its port."""
    words = [sys.executable, str(Path(__file__).parent / "webhook_receiver.py"), str(port), str(log), SECRET]
    with Popen(words, stdout=PIPE, text=True) as process:
        try:
            assert process.stdout
            yield process, int(process.stdout.readline())
        finally:
            process.kill()


def held(daemon: Daemon) -> int:
    return daemon.insert(jq_type="a", jq_state="held")


def post(daemon: Daemon, job: int, *texts: str) -> None:
    for text in texts:
        daemon.execute(POST, job, text, role="drover_frontend_sql")


def states(daemon: Daemon) -> dict[str, int]:
    return {row["del_state"]: row["n"] for row in daemon.execute(STATES)}


@pytest.mark.slow
def test_life_of_a_job_is_told_in_order_signed_and_with_its_end_t64_t93_t98_t100(
    launch: Launch, receiver: Receiver
) -> None:
    daemon = launch(LOCAL)
    subscribe(daemon, receiver.url)
    job = held(daemon)
    post(daemon, job, "first")
    daemon.execute("insert into drover.jobqueue (jq_type, jq_args) values ('command', %s)", f"release {job}",
                   role="drover_operator")  # fmt: skip
    daemon.until(lambda: states(daemon) == {"done": 3})
    assert [(each["kind"], each["new"], each["final"]) for each in receiver.got] == [
        ("user", None, False), ("status", "queued", False), ("status", "done", True),
    ]  # fmt: skip
    for each in receiver.got:
        headers = {name.lower(): value for name, value in each["headers"].items()}
        signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + each["body"]
        made = base64.b64encode(hmac.digest(SECRET.encode(), signed, hashlib.sha256)).decode()
        assert headers["webhook-signature"] == f"v1,{made}"
    assert daemon.value("select count(*) from drover.jobqueue where jq_type = 'notify'") == 0


@pytest.mark.slow
def test_a_crash_of_the_daemon_loses_no_event_and_keeps_their_order_t93_t98_t40(
    launch: Launch, receiver: Receiver
) -> None:
    daemon = launch(LOCAL)
    subscribe(daemon, receiver.url, kind="user")
    jobs = [held(daemon) for _ in range(3)]
    for n in range(6):
        for job in jobs:
            post(daemon, job, str(n))
    daemon.until(lambda: len(receiver.got) >= 4)
    daemon.signal(SIGKILL)
    daemon.until(lambda: daemon.process.poll() is not None)
    second = launch(LOCAL)
    second.until(lambda: states(second) == {"done": 18})
    for job in jobs:
        firsts = list(dict.fromkeys(receiver.texts(job)))
        assert firsts == [str(n) for n in range(6)]
        assert receiver.texts(job) == sorted(receiver.texts(job))


@pytest.mark.slow
def test_a_crash_of_the_receiver_and_of_the_daemon_lose_no_event_and_keep_their_order_t98(
    launch: Launch, tmp_path: Path
) -> None:
    text = LOCAL.replace("max_tries = 4", "max_tries = 0")
    log = tmp_path / "receiver.log"
    with receiving(0, log) as (receiver, port):
        daemon = launch(text)
        subscribe(daemon, f"http://127.0.0.1:{port}/hook", kind="user")
        jobs = [held(daemon) for _ in range(2)]
        post(daemon, jobs[0], "1", "crash", "3", "4")
        receiver.wait(PATIENCE_S)
    post(daemon, jobs[1], "1", "2", "3", "4")
    daemon.until(lambda: daemon.value("select max(del_tries) from drover.delivery where del_jq_fk = %s", jobs[1]) > 0)
    daemon.signal(SIGKILL)
    daemon.until(lambda: daemon.process.poll() is not None)
    with receiving(port, log):
        second = launch(text)
        second.until(lambda: states(second) == {"done": 8})
    lines = [line.split() for line in log.read_text().splitlines()]
    assert "forged" not in {line[2] for line in lines}
    told = {job: [line[5] for line in lines if line[2] == "got" and line[4] == f"job={job}"] for job in jobs}
    assert list(dict.fromkeys(told[jobs[0]])) == ["1", "crash", "3", "4"]
    assert list(dict.fromkeys(told[jobs[1]])) == ["1", "2", "3", "4"]
    assert told[jobs[0]].count("crash") >= 2


@pytest.mark.slow
def test_a_receiver_that_fails_twice_gets_the_event_by_the_third_try_t98(launch: Launch) -> None:
    with closing(Receiver(lambda n: 500 if n < 3 else 200)) as receiver:
        daemon = launch(LOCAL)
        subscribe(daemon, receiver.url, kind="user")
        post(daemon, held(daemon), "x")
        daemon.until(lambda: states(daemon) == {"done": 1})
        assert len(receiver.got) == 3
        assert daemon.value("select del_tries from drover.delivery") == 3


@pytest.mark.slow
def test_a_receiver_that_answers_500_for_ever_ends_as_a_dead_letter_t98_t102(launch: Launch) -> None:
    with closing(Receiver(lambda _: 500)) as receiver:
        daemon = launch(LOCAL)
        subscribe(daemon, receiver.url, kind="user")
        post(daemon, held(daemon), "x", "y")
        daemon.until(lambda: states(daemon) == {"dead": 2})
        assert [each["text"] for each in receiver.got] == ["x"] * 5 + ["y"] * 5
        assert daemon.value("select count(*) from drover.dead_letter where dead_reason = 'not delivered'") == 2


@pytest.mark.slow
def test_a_receiver_that_hangs_delays_no_job_t99(launch: Launch) -> None:
    with closing(Receiver(lambda _: 0)) as receiver:
        daemon = launch(IMPATIENT)
        subscribe(daemon, receiver.url, kind="user")
        post(daemon, held(daemon), "x")
        daemon.until(lambda: len(receiver.got) == 1)
        assert daemon.wait(daemon.insert(jq_type="a"))["jq_state"] == "done"
        daemon.until(lambda: daemon.value("select del_tries from drover.delivery") > 0)
        assert daemon.value("select del_text from drover.delivery").endswith("no answer within 1 s")


@pytest.mark.slow
def test_no_redirect_is_followed_t98(launch: Launch, receiver: Receiver) -> None:
    with closing(Receiver(lambda _: 302, receiver.url)) as first:
        daemon = launch(LOCAL)
        subscribe(daemon, first.url, kind="user")
        post(daemon, held(daemon), "x")
        daemon.until(lambda: states(daemon) == {"dead": 1})
        assert daemon.value("select del_text from drover.delivery").endswith("redirects are not followed")
    assert receiver.got == []


@pytest.mark.slow
def test_private_address_is_refused_unless_permitted_t98(launch: Launch, receiver: Receiver) -> None:
    daemon = launch(HOST + NOOP + OFTEN + notify())
    subscribe(daemon, receiver.url.replace("127.0.0.1", "localhost"), kind="user")
    post(daemon, held(daemon), "x")
    daemon.until(lambda: states(daemon) == {"dead": 1})
    assert "is no public address" in daemon.value("select del_text from drover.delivery")
    assert receiver.got == []


def test_front_end_cannot_have_the_agent_send_what_it_likes_t113(launch: Launch, receiver: Receiver) -> None:
    daemon = launch(LOCAL)
    args = json.dumps({"to": receiver.url, "body": "{}", "headers": {}})
    row = daemon.wait(daemon.insert(jq_type="notify", jq_args=args), "failed")
    assert row["jq_endtext"] == "role drover_frontend_sql may not queue agent type notify"
    assert receiver.got == []


def test_state_list_of_its_condition_and_event_are_one_transaction_t76_t93(launch: Launch) -> None:
    says = agent("b", ["sh", "-c", "echo OK; while read -r line; do echo BLOCKED tape; echo OK; done"])
    daemon = launch(HOST + says + "[conditions.tape]\nwait = 600\n")
    subscribe(daemon, "", kind="status", targets=[])
    pk = daemon.insert(jq_type="b", jq_args="x")
    daemon.wait(pk, "blocked")
    (row,) = daemon.execute(
        "select j.xmin = b.xmin as with_list, j.xmin = e.xmin as with_event from drover.jobqueue j"
        " join drover.blocked b on blocked_jq_fk = jq_pk join drover.event e on ev_jq_fk = jq_pk"
        " where jq_pk = %s and ev_new = 'blocked'",
        pk,
    )
    assert row == {"with_list": True, "with_event": True}


@pytest.mark.slow
def test_what_has_no_room_or_no_time_left_is_a_dead_letter_t102_t103(launch: Launch) -> None:
    with closing(Receiver(lambda _: 0)) as receiver:
        daemon = launch(IMPATIENT)
        subscribe(daemon, receiver.url, kind="user", most=2)
        job = held(daemon)
        post(daemon, job, "1", "2", "3")
        daemon.until(lambda: receiver.got)
        assert [row["dead_reason"] for row in daemon.execute(LETTERS)] == ["overflow"]
        daemon.execute("update drover.subscription set sub_expires = now()")
        daemon.until(lambda: states(daemon) == {"dead": 3})
        assert sorted(row["dead_reason"] for row in daemon.execute(LETTERS)) == ["expired", "expired", "overflow"]


@pytest.mark.slow
def test_a_dead_letter_goes_to_the_log_and_to_two_receivers_at_once_c52_t32(launch: Launch, receiver: Receiver) -> None:
    with closing(Receiver()) as second:
        daemon = launch(LOCAL)
        subscription = "select drover.subscribe(kind => 'dead', is_site => true, targets => %s)"
        daemon.execute(subscription, [receiver.url, second.url], role="drover_operator")
        job = daemon.insert(jq_type="a", jq_not_after="2001-01-01")
        daemon.wait(job, "failed")
        daemon.until(lambda: states(daemon) == {"done": 2})
        said = f"job {job}: expired"
        assert [each["text"][: len(said)] for each in receiver.got + second.got] == [said] * 2
        assert [row["log_message"][: len(said)] for row in daemon.log_rows() if row["log_type"] == "DEAD"] == [said]


# ---- commands


@pytest.mark.slow
def test_commands_subscribe_show_post_and_unsubscribe_t95_t96_t97(launch: Launch, receiver: Receiver, ask: Ask) -> None:
    daemon = launch(LOCAL)
    job = held(daemon)
    made = ask(f"subscribe {job} --kind user --to {receiver.url} --ttl 90m --json")
    number = json.loads(made.out)["subscription"]
    assert json.loads(made.out)["secret"].startswith("whsec_")
    assert ask(f"events {job} --post half").status == 0
    daemon.until(lambda: states(daemon) == {"done": 1})
    (row,) = [json.loads(line) for line in ask("subscriptions --json").out.splitlines()]
    assert (row["subscription"], row["scope"], row["of"], row["done"]) == (number, "job", str(job), 1)
    assert ask(f"subscriptions disable {number}").out == f"subscription {number}: disabled\n"
    for text in ("b", "c"):
        ask(f"events {job} --post {text}")
    told = [json.loads(line)["text"] for line in ask(f"events {job} -n 2 --offset 1 --json").out.splitlines()]
    assert told == ["half", "b"]
    assert json.loads(ask(f"events {job} --deliveries --json").out)["state"] == "done"
    assert ask(f"unsubscribe {number}").out == f"subscription {number}: removed\n"
    assert ask(f"unsubscribe {number}").status == 1


@pytest.mark.parametrize(
    ("line", "status", "told"),
    [
        ("subscribe 9999", 2, "may not subscribe to job 9999"),
        ("subscribe --to ftp://x/", 2, "a target is http"),
        ("subscribe --owner a --site", 2, "at most"),
        ("subscribe --ttl soon", 2, "--ttl"),
        ("subscribe --kind dead", 2, "are of the site"),
        ("subscribe --secret-file /nowhere", 2, "No such file"),
        ("events --post x", 2, "--post is about a job"),
        ("events --dead --deliveries", 2, "at most"),
        ("subscriptions disable 7", 1, "no subscription 7"),
    ],
)
def test_commands_refuse_what_makes_no_sense_t96(ask: Ask, line: str, status: int, told: str) -> None:
    done = ask(line)
    assert (done.status, told in done.err) == (status, True), done
