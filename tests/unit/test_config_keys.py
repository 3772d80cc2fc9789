"""Every key of the configuration: how it is read, its default, and its place in the shipped file and the manual."""

import re
import subprocess
from pathlib import Path
from typing import Any

import attrs
import pytest

from scheduler.model.config import AgentType, Config, Database, Host, Limits, Queue, Scheduler
from scheduler.model.config_reader import key_lines, parse
from tests.config_tools import FIELDS, LEAST, SHIPPED, UNCOMMENTED, agent, good
from tests.needs import need

MANUAL = Path(__file__).parents[2] / "man" / "drover.toml.5"
FIELD_IDS = [f"{table}.{name}" for table, name, _ in FIELDS]


def test_every_default_is_as_documented() -> None:
    assert good(LEAST) == Config(
        database=Database(
            url="embedded",
            msq_url="",
            agentdb_url="",
            password_file="",
            msq_password_file="",
            agentdb_password_file="",
        ),
        scheduler=Scheduler(
            group="default",
            respawn_interval=300,
            respawn_count=5,
            kill_grace=20,
            min_idle=20,
            max_idle=900,
            start_limit=60,
            start_hint=5,
            write_limit=60,
            exit_grace=2,
            lease=30,
            lease_renewal=10,
            rescan=60,
            progress_interval=1,
            status_interval=30,
            retention=0,
            retention_done=-1,
            retention_failed=0,
            retention_cancelled=-1,
            retention_skipped=-1,
            retention_ignored=-1,
            hold=0.1,
            hold_max=2000,
            fetch_limit=1000,
            expansions=8,
            expansions_per_type=4,
            expansion_limit=3600,
            fetch_rows=0,
            fetch_bytes=1_000_000,
            msq_rows=0,
            msq_bytes=0,
            msq_file_bytes=4_000_000_000,
            agentdb_connections=2,
            statement_limit=30,
            lock_limit=0.2,
            retry_base=10,
            retry_max=3600,
            blocked_delay=60,
            line_limit=1_048_576,
            reconnect_max=30,
            hang_limit=10,
            reexec=False,
            ready_file="",
            log_level="info",
            log_format="text",
            log_file="",
            log_also=(),
        ),
        hosts={
            "alpha": Host(
                max=-1,
                urgent=1,
                enabled=True,
                transport="local",
                address="",
                user="",
                identity="",
                known_hosts="",
                command=(),
            )
        },
        agents={
            "a": AgentType(
                command=("a",),
                kind="line",
                hosts=(),
                slots=1,
                submitters=("*",),
                database="",
                db="off",
                statements={},
                heartbeat=0,
                item_timeout=0,
                enabled=True,
                user="",
                cwd="",
                env={},
                pass_env=(),
                limits=Limits(nofile=None, memory=None, cpu=None, nproc=None, fsize=None, core=None),
                output_limit=1_048_576,
                window="auto",
            )
        },
        queues={},
        conditions={},
    )


def test_host_has_no_limit_and_one_urgent_place_by_default_f150() -> None:
    assert (Host().max, Host().urgent) == (-1, 1)


def test_queue_has_no_limit_by_default_j14() -> None:
    assert good(LEAST + "[queues.q]").queues["q"] == Queue(concurrency=None, paused=False, priority=0, filter="")


def test_command_text_is_split_by_shell_rules_j44() -> None:
    assert good(agent("", "command = 'a \"b c\" d'")).agents["a"].command == ("a", "b c", "d")


def test_command_array_is_kept_unchanged_j44() -> None:
    assert good(agent("", "command = ['a', 'b \"c']")).agents["a"].command == ("a", 'b "c')


def test_environment_and_directory_are_read_j42_j43() -> None:
    found = good(agent('cwd = "/srv"\nenv = { LC_ALL = "C" }\npass_env = ["TZ"]')).agents["a"]
    assert (found.cwd, found.env, found.pass_env) == ("/srv", {"LC_ALL": "C"}, ("TZ",))


def test_several_slots_of_one_agent_are_one_number_f151() -> None:
    assert good(agent("slots = 3")).agents["a"].slots == 3


def test_queues_are_read_j14() -> None:
    queues = good(LEAST + "[queues]\na.concurrency = 1\nb.concurrency = 2\nc = { paused = true }").queues
    assert queues == {"a": Queue(concurrency=1), "b": Queue(concurrency=2), "c": Queue(paused=True)}


def test_without_retention_no_job_is_removed_r52() -> None:
    assert Scheduler().days_kept == {}


def test_retention_is_for_all_but_failed_jobs_r52() -> None:
    usual = dict.fromkeys(("done", "cancelled", "skipped", "ignored", "command", "log"), 5)
    assert Scheduler(retention=5).days_kept == usual


def test_retention_of_a_state_goes_before_that_of_all_r52() -> None:
    found = good(LEAST + "[scheduler]\nretention = 5\nretention_failed = 90\nretention_done = 1\n").scheduler.days_kept
    assert (found["done"], found["failed"], found["cancelled"]) == (1, 90, 5)


def test_retention_of_a_state_that_is_0_keeps_its_jobs_r52() -> None:
    assert "skipped" not in Scheduler(retention=5, retention_skipped=0).days_kept


def test_seconds_may_be_whole_numbers() -> None:
    assert good(LEAST + "[scheduler]\nrescan = 7").scheduler.rescan == 7.0


def test_later_file_adds_tables_and_keys_and_wins_f150() -> None:
    found = good("[hosts.alpha]\nmax = 2\nurgent = 3\n", "[hosts.alpha]\nmax = 4\n[agents.a]\ncommand = 'a'\n")
    assert found.hosts == {"alpha": Host(max=4, urgent=3)}
    assert found.agents["a"].command == ("a",)


def test_hundred_hosts_and_five_thousand_slots_are_read_f153() -> None:
    hosts = "".join(f"[hosts.h{number}]\nmax = 50\n" for number in range(100))
    agents = "".join(f"[agents.a{number}]\ncommand = ['a']\nslots = 5\n" for number in range(10))
    found = good(hosts + agents)
    slots = sum(kind.slots * len(found.hosts) for kind in found.agents.values())
    assert (len(found.hosts), slots) == (100, 5000)


def test_shipped_file_is_valid_and_runs_four_agents_f122() -> None:
    found = parse([("drover.toml", SHIPPED)])
    assert found.hosts == {"local": Host(max=4)}
    assert [name for name, kind in found.agents.items() if kind.enabled] == [
        "sha256",
        "mimetype",
        "license",
        "noop",
    ]
    assert list(found.agents) == [
        "sha256", "mimetype", "license", "noop", "shell", "http", "sql", "cleanup", "notify",
    ]  # fmt: skip


def test_shipped_settings_are_commented_at_their_defaults_f122() -> None:
    found = parse([("drover.toml", UNCOMMENTED)])
    assert (found.database, found.scheduler) == (Database(), Scheduler())


@pytest.mark.parametrize(("table", "key", "_field"), FIELDS, ids=FIELD_IDS)
def test_shipped_file_shows_every_key_f122(table: str, key: str, _field: Any) -> None:
    shown = {".".join(map(str, path)) for path in key_lines(UNCOMMENTED)}
    pattern = re.compile(rf"{table.replace('NAME', '[^.]+')}\.{key}")
    assert any(pattern.fullmatch(path) for path in shown)


def _as_printed(default: Any) -> str:
    """Return a default as the manual's source spells it."""
    match default:
        case dict() | Limits():
            return "{}"
        case bool():
            return str(default).lower()
        case None:
            return "none"
        case float():
            return f"{default:g}"
        case str():
            return f"Qq {default}".strip()
        case tuple():
            return f"Bq Qq {default[0]}" if default else "[]"
        case _:
            return "required" if default is attrs.NOTHING else str(default)


def _default(attribute: Any) -> Any:
    """Return a factory's product in its place; only tables have one."""
    return getattr(attribute.default, "factory", lambda: attribute.default)()


def _manual_entries() -> dict[tuple[str, str], str]:
    """Return the printed default of each (table, key) of the manual."""
    parts = re.split(r"(?m)^\.Ss (\S+)\n", MANUAL.read_text())
    entry = re.compile(r"(?m)^\.It Ic (\w+) No = .* Pq (?:default )?(.*)$")
    return {
        (table, key): default
        for table, body in zip(parts[1::2], parts[2::2], strict=True)
        for key, default in entry.findall(body)
    }


def test_manual_documents_every_key_with_its_default_f122() -> None:
    assert _manual_entries() == {(table, key): _as_printed(_default(f)) for table, key, f in FIELDS}


def test_manual_is_valid_mdoc_f122() -> None:
    need("mandoc")
    linted = subprocess.run(
        ["mandoc", "-T", "lint", "-W", "warning", str(MANUAL)], capture_output=True, text=True, check=False
    )
    assert (linted.returncode, linted.stdout) == (0, "")
