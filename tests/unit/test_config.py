"""The configuration: defaults, every kind of mistake, the shipped file and the manual."""

import re
import subprocess
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.errors import ConfigError
from scheduler.model.config import (
    AgentType,
    Config,
    ConfigMistakes,
    Database,
    Host,
    Limits,
    Queue,
    Scheduler,
)
from scheduler.model.config_text import key_lines, parse
from scheduler.package_data import etc_dir
from tests.needs import need

SHIPPED = (etc_dir() / "drover.toml").read_text()
UNCOMMENTED = re.sub(r"(?m)^#(?! )", "", SHIPPED)
MANUAL = Path(__file__).parents[2] / "man" / "drover.toml.5"
LEAST = '[hosts.alpha]\n[agents.a]\ncommand = ["a"]\n'
TABLES: dict[str, type[Any]] = {
    "database": Database,
    "scheduler": Scheduler,
    "hosts.NAME": Host,
    "agents.NAME": AgentType,
    "agents.NAME.limits": Limits,
    "queues.NAME": Queue,
}
FIELDS = [(table, f.name, f) for table, kind in TABLES.items() for f in attrs.fields(kind)]
FIELD_IDS = [f"{table}.{name}" for table, name, _ in FIELDS]


def mistakes(*texts: str) -> tuple[str, ...]:
    """The mistakes of texts named 1.toml, 2.toml, and so on."""
    with pytest.raises(ConfigMistakes) as caught:
        parse([(f"{number}.toml", text) for number, text in enumerate(texts, 1)])
    return caught.value.mistakes


def good(*texts: str) -> Config:
    return parse([(f"{number}.toml", text) for number, text in enumerate(texts, 1)])


def agent(keys: str, head: str = 'command = ["a"]') -> str:
    """A configuration whose agent has these keys, the first on line 4."""
    return f"[hosts.alpha]\n[agents.a]\n{head}\n{keys}\n"


# Defaults.


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
            hold=0.1,
            hold_max=2000,
            fetch_limit=1000,
            expansions=8,
            expansions_per_type=4,
            expansion_limit=3600,
            fetch_rows=1000,
            fetch_bytes=1_000_000,
            msq_rows=0,
            msq_bytes=0,
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
                window=1,
            )
        },
        queues={},
    )


def test_host_has_no_limit_and_one_urgent_place_by_default_f150() -> None:
    assert (Host().max, Host().urgent) == (-1, 1)


def test_queue_has_no_limit_by_default_j14() -> None:
    assert good(LEAST + "[queues.q]").queues["q"] == Queue(concurrency=None, paused=False, priority=0, filter="")


# What the texts may say.


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


# Mistakes, each told with its line.


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ("slots = 0", "agents.a.slots: must be from 1 to 2147483647 (got 0)"),
        ("slots = true", "agents.a.slots: must be a whole number (got true)"),
        ("slots = 1.5", "agents.a.slots: must be a whole number (got 1.5)"),
        ("slotz = 4", "agents.a.slotz: unknown key; did you mean slots? (got 4)"),
        ("zzz = 4", "agents.a.zzz: unknown key (got 4)"),
        ('kind = "both"', 'agents.a.kind: must be one of "line", "exec" (got "both")'),
        ("cwd = 5", "agents.a.cwd: must be a text in quotes (got 5)"),
        ('cwd = "\\u0000"', 'agents.a.cwd: must not hold a NUL (got "\\x00")'),
        ('enabled = "yes"', 'agents.a.enabled: must be true or false (got "yes")'),
        ('heartbeat = "5 s"', 'agents.a.heartbeat: must be a number (got "5 s")'),
        ("heartbeat = -1", "agents.a.heartbeat: must be from 0 to 31536000 seconds (got -1)"),
        ("heartbeat = nan", "agents.a.heartbeat: must be from 0 to 31536000 seconds (got nan)"),
        (
            'kind = "exec"\nheartbeat = 5',
            "agents.a.heartbeat: must be 0: exec agents have no heartbeat (got 5)",
        ),
        ('hosts = "alpha"', 'agents.a.hosts: must be an array of texts (got "alpha")'),
        ("limits = 5", "agents.a.limits: must be a table (got 5)"),
        ("limits.nofile = -1", "agents.a.limits.nofile: must be from 0 to 9223372036854775807 (got -1)"),
        ("env = []", "agents.a.env: must be a table (got ***)"),
        ("env.X = 5", "agents.a.env.X: must be a text in quotes (got ***)"),
        ('env."A B" = "c"', 'agents.a.env."A B": is not the name of an environment variable (got ***)'),
        ('env.DROVER_JOB = "1"', "agents.a.env.DROVER_JOB: is set by the scheduler itself (got ***)"),
        (
            'pass_env = ["TZ", "PGPASSWORD"]',
            "agents.a.pass_env[1]: is the scheduler's own login; give the agent one of its own, with database or env"
            ' (got "PGPASSWORD")',
        ),
        ('pass_env = ["A="]', 'agents.a.pass_env[0]: is not the name of an environment variable (got "A=")'),
        ("window = 0", "agents.a.window: must be from 1 to 2147483647 (got 0)"),
        ('kind = "exec"\nwindow = 2', "agents.a.window: must be 1: an exec agent gets one item (got 2)"),
        (
            'db = "sql"\nwindow = 2',
            "agents.a.window: must be 1: answers to DB: lines would come behind lines ahead (got 2)",
        ),
        ('statements.s = "select 1"', 'agents.a.statements: are for db = "statements" only (got a table)'),
    ],
)
def test_mistake_in_an_agent_is_reported(keys: str, told: str) -> None:
    line = 4 + keys.count("\n")
    assert mistakes(agent(keys)) == (f"1.toml:{line}: {told}",)


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ("max = 0", "max: must be -1 (no limit) or more than 0 (got 0)"),
        ("max = -2", "max: must be -1 (no limit) or more than 0 (got -2)"),
        ("urgent = -1", "urgent: must be from 0 to 2147483647 (got -1)"),
        ('transport = "pigeon"', 'transport: must be one of "local", "ssh", "command" (got "pigeon")'),
        ('address = "-oProxyCommand=x"', 'address: must be "host" or "host:port" (got "-oProxyCommand=x")'),
        ('user = "-x"', 'user: is not a login name (got "-x")'),
    ],
)
def test_mistake_in_a_host_is_reported_f150(keys: str, told: str) -> None:
    assert mistakes(f"[hosts.alpha]\n{keys}\n[agents.a]\ncommand = 'a'") == (f"1.toml:2: hosts.alpha.{told}",)


@pytest.mark.parametrize(("transport", "key"), [("ssh", "address"), ("command", "command")])
def test_transport_without_its_required_keys_is_refused(transport: str, key: str) -> None:
    told = f'1.toml:1: hosts.alpha.{key}: is needed by transport = "{transport}" (got nothing)'
    assert mistakes(f"[hosts.alpha]\ntransport = '{transport}'\n[agents.a]\ncommand = 'a'") == (told,)


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ("rescan = 0", "rescan: must be more than 0 and at most 31536000 seconds (got 0)"),
        ("rescan = inf", "rescan: must be more than 0 and at most 31536000 seconds (got inf)"),
        ("kill_grace = -1", "kill_grace: must be from 0 to 31536000 seconds (got -1)"),
        ("lease_renewal = 15", "lease_renewal: must be less than half of lease (got 15)"),
        ("max_idle = 5", "max_idle: must not be less than min_idle (got 5)"),
        ("retry_max = 5", "retry_max: must not be less than retry_base (got 5)"),
        ('group = ""', 'group: must not be empty (got "")'),
        ('log_level = "loud"', 'log_level: must be one of "trace", "debug", "info", "warning", "error" (got "loud")'),
    ],
)
def test_mistake_in_a_timer_is_reported(keys: str, told: str) -> None:
    assert mistakes(f"{LEAST}[scheduler]\n{keys}") == (f"1.toml:5: scheduler.{told}",)


@pytest.mark.parametrize("value", ["0", "-1"])
def test_concurrency_must_be_positive_j112(value: str) -> None:
    told = f"1.toml:5: queues.q.concurrency: must be from 1 to 2147483647 (got {value})"
    assert mistakes(f"{LEAST}[queues.q]\nconcurrency = {value}") == (told,)


def test_concurrency_must_be_a_number_j112() -> None:
    (told,) = mistakes(f"{LEAST}[queues.q]\nconcurrency = 'x'")
    assert told.startswith("1.toml:5: queues.q.concurrency: ")


@pytest.mark.parametrize(("name", "is_good"), [("1/low", True), ("x" * 64, True), ("x" * 65, False), ("a b", False)])
def test_name_of_a_queue_has_64_characters_at_most_j12(name: str, is_good: bool) -> None:
    text = f"{LEAST}[queues.'{name}']"
    if is_good:
        assert list(good(text).queues) == [name]
    else:
        assert "64 at most" in mistakes(text)[0]


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ("types = '('", 'types: is not a regular expression (got "(")'),
        ("types = '[[:alpha:]]'", 'types: is not a regular expression (got "[[:alpha:]]")'),
        ("priorities = '^a1'", "priorities: matches no single letter or digit: it is about the first of a priority"),
        ("queues = ['a b']", "queues[0]: a name has letters, digits and _ . / - (not first), 64 at most"),
    ],
)
def test_mistake_in_a_filter_is_reported_r55(keys: str, told: str) -> None:
    (found,) = mistakes(f"{LEAST}[hosts.beta]\n{keys}")
    assert found.startswith(f"1.toml:5: hosts.beta.{told}")


def test_type_that_no_host_takes_is_refused_r55() -> None:
    (told,) = mistakes("[hosts.alpha]\ntypes = '^bill'\n[agents.a]\ncommand = 'a'")
    assert "no host takes it" in told


def test_agent_naming_an_unknown_host_is_refused_f152() -> None:
    told = '1.toml:6: agents.a.hosts[1]: no such host is configured (got "beta")'
    assert mistakes(agent('hosts = [\n  "alpha",\n  "beta",\n]')) == (told,)


def test_configuration_without_agents_is_refused_f152() -> None:
    (told,) = mistakes("[hosts.alpha]")
    assert told.startswith("1.toml:1: agents: no agent is configured;")


def test_configuration_without_hosts_is_refused_f152() -> None:
    (told,) = mistakes("[agents.a]\ncommand = 'a'")
    assert told.startswith("1.toml:1: hosts: no host is configured;")


def test_configuration_without_text_is_refused_f152() -> None:
    with pytest.raises(ConfigError, match="no agent is configured"):
        parse([])


def test_agent_type_called_command_is_refused_f131() -> None:
    (told,) = mistakes(LEAST + "[agents.command]\ncommand = 'a'")
    assert told.startswith("1.toml:4: agents.command: is the type of the scheduler's own commands;")


def test_agent_type_with_a_dot_is_refused_r22() -> None:
    (told,) = mistakes(LEAST + "[agents.'a.b']\ncommand = 'a'")
    assert told.startswith('1.toml:4: agents."a.b": must not have a dot')


@pytest.mark.parametrize("name", ['""', '"a b"', '"-a"', '"é"', f'"{"a" * 65}"'])
@pytest.mark.parametrize("table", ["hosts", "queues"])
def test_name_outside_of_the_alphabet_is_refused(table: str, name: str) -> None:
    (told,) = mistakes(f"{LEAST}[{table}.{name}]")
    assert told.startswith(f"1.toml:4: {table}.")
    assert "64 at most" in told


def test_agent_without_a_command_is_refused() -> None:
    assert mistakes(LEAST + "[agents.b]") == ("1.toml:4: agents.b.command: is missing (got nothing)",)


@pytest.mark.parametrize("command", ['""', "[]"])
def test_empty_command_is_refused(command: str) -> None:
    (told,) = mistakes(agent("", f"command = {command}"))
    assert told.startswith("1.toml:3: agents.a.command: must not be empty")


def test_command_with_an_open_quote_is_refused_j44() -> None:
    (told,) = mistakes(agent("", 'command = "a \'b"'))
    assert told.startswith("1.toml:3: agents.a.command: cannot be split into words: no closing quotation")


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        ("s = ''", "s: must not be empty"),
        ('s = "select \'a"', "s: ' is never closed"),
        ("s = 'select $1'", "s: write :name instead of $1"),
        ("'s t' = 'select 1'", '"s t": the name of a statement is one word'),
    ],
)
def test_mistake_in_a_statement_is_reported(statement: str, told: str) -> None:
    (line,) = mistakes(agent(f'db = "statements"\n[agents.a.statements]\n{statement}'))
    assert line.startswith(f"1.toml:6: agents.a.statements.{told}")


def test_unknown_table_is_refused() -> None:
    assert mistakes(LEAST + "[host.b]") == ("1.toml:4: host: unknown key; did you mean hosts? (got a table)",)


def test_value_where_a_table_is_needed_is_refused() -> None:
    assert mistakes("hosts = 5\n[agents.a]\ncommand = 'a'") == ("1.toml:1: hosts: must be a table (got 5)",)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a = 1\nb = = 2\n", "2: syntax: Invalid value at column 5"),
        ("[a]\n[b]\n[a]\n", "3: syntax: Cannot declare ('a',) twice at column 3"),
        ("a = [1,\n2", "2: syntax: Unclosed array at the end of the file"),
        ("a = " + "[" * 5000, "1: syntax: nested too deep"),
    ],
)
def test_syntax_error_is_reported_with_its_line(text: str, told: str) -> None:
    assert mistakes(LEAST, text) == (f"2.toml:{told}",)


def test_all_mistakes_are_reported_at_once_in_the_order_of_the_files() -> None:
    first = '[hosts.alpha]\nmax = 0\n[agents.a]\nslots = "2"\nhosts = ["beta"]\n[agents.command]\ncommand = 5\n'
    second = "[scheduler]\nlease = 10\nlease_renewal = 5\n[agents.b]\ncommand = 'b'\nwindow = 0\n"
    starts = [" ".join(told.split(" ")[:2]) for told in mistakes(first, second)]
    assert starts == [
        "1.toml:2: hosts.alpha.max:",
        "1.toml:3: agents.a.command:",
        "1.toml:4: agents.a.slots:",
        "1.toml:5: agents.a.hosts[0]:",
        "1.toml:6: agents.command:",
        "1.toml:7: agents.command.command:",
        "2.toml:3: scheduler.lease_renewal:",
        "2.toml:6: agents.b.window:",
    ]


def test_the_text_of_the_error_lists_all_mistakes() -> None:
    with pytest.raises(ConfigError) as caught:
        parse([("x", "")])
    assert len(str(caught.value).splitlines()) == 2


@pytest.mark.parametrize(
    "text",
    [
        '[database]\nurll = "postgresql://me:hush@there/db"',
        '[database]\nurll = "host=there password=hush"',
        "[database]\nurll = \"host=there password='hush hush'\"",
        '[database]\npassword = "hush"',
        'database = "postgresql://me:hush@there/db"',
    ],
)
def test_mistakes_never_show_a_password(text: str) -> None:
    assert "hush" not in "\n".join(mistakes(f"{text}\n{LEAST}"))


# Lines.


@pytest.mark.parametrize(
    ("text", "path", "line"),
    [
        ("[a]\n\nb = 1", ("a", "b"), 3),
        ("[a]\r\n\r\nb = 1", ("a", "b"), 3),
        ('[a."b.c" . \'d\']\n"e\\u0066" = 1', ("a", "b.c", "d", "ef"), 2),
        ("a.b.c = 1\na.b.d = 2", ("a", "b", "d"), 2),
        ("a.b.c = 1\na.b.d = 2", ("a", "b"), 1),
        ("# a = 1\na = 1 # [b]\nc = 2", ("c",), 3),
        ('a = """\nb = 1\n""""\nc = 1.5', ("c",), 4),
        ("a = '''\n[b]\n'''\nc = 1", ("c",), 4),
        ('a = "x#\\"y"\nb = 1', ("b",), 2),
        ("a = [\n 1, # one\n [2,\n 3], {b = 4}]\nc = 5", ("a", 1, 1), 4),
        ("a = [\n 1, # one\n [2,\n 3], {b = 4}]\nc = 5", ("a", 2, "b"), 4),
        ("a = [\n 1, # one\n [2,\n 3], {b = 4}]\nc = 5", ("c",), 5),
        ("a = { b.c = [1,\n2], d = '}' }\ne = 2", ("a", "d"), 2),
        ("a = 1979-05-27 07:32:00\nb = 2", ("b",), 2),
        ("[[a]]\nb = 1\n[[a]]\nb = 2", ("a", "b"), 4),
    ],
)
def test_line_of_a_key_is_found(text: str, path: tuple[str | int, ...], line: int) -> None:
    assert key_lines(text)[path] == line


# The shipped file and the manual.


def test_shipped_file_is_valid_and_runs_four_agents_f122() -> None:
    found = parse([("drover.toml", SHIPPED)])
    assert found.hosts == {"local": Host(max=4)}
    assert [name for name, kind in found.agents.items() if kind.enabled] == [
        "sha256",
        "mimetype",
        "license",
        "noop",
    ]
    assert list(found.agents) == ["sha256", "mimetype", "license", "noop", "shell", "cleanup"]


def test_shipped_settings_are_commented_at_their_defaults_f122() -> None:
    found = parse([("drover.toml", UNCOMMENTED)])
    assert (found.database, found.scheduler) == (Database(), Scheduler())


@pytest.mark.parametrize(("table", "key", "_field"), FIELDS, ids=FIELD_IDS)
def test_shipped_file_shows_every_key_f122(table: str, key: str, _field: Any) -> None:
    shown = {".".join(map(str, path)) for path in key_lines(UNCOMMENTED)}
    pattern = re.compile(rf"{table.replace('NAME', '[^.]+')}\.{key}")
    assert any(pattern.fullmatch(path) for path in shown)


def _as_printed(default: Any) -> str:
    """A default as the manual's source spells it."""
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
    """A factory's product in its place; only tables have one."""
    return getattr(attribute.default, "factory", lambda: attribute.default)()


def _manual_entries() -> dict[tuple[str, str], str]:
    """The printed default of each (table, key) of the manual."""
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


# Anything at all.

SNIPPETS = st.sampled_from(
    [
        "[",
        "]",
        "[[",
        "{",
        "}",
        "=",
        ".",
        ",",
        '"',
        "'",
        '"""',
        "#",
        "\n",
        "\0",
        "nan",
        "-1",
        "0",
        "true",
        "[]",
        "{}",
        "é",
    ]
)
EDITS = st.lists(
    st.tuples(st.floats(0, 1), st.integers(0, 40), st.one_of(SNIPPETS, st.text(max_size=5))),
    min_size=1,
    max_size=6,
)
VALUES = st.recursive(
    st.sampled_from(["1", "-1", "0.5", "true", '"x"', "''", "1979-05-27", "nan", "9" * 5000]),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda parts: "[" + ", ".join(parts) + "]"),
        inner.map(lambda value: f"{{ x = {value} }}"),
    ),
    max_leaves=4,
)
PATHS = [f"{table.replace('NAME', 'x')}.{name}" for table, name, _ in FIELDS]
KEYS = st.sampled_from([*PATHS, "hosts", "hosts.x", "agents", "agents.command", "queues.x", "z", "agents.'.'"])


def _edited(text: str, edits: list[tuple[float, int, str]]) -> str:
    for place, length, inserted in edits:
        at = int(place * len(text))
        text = text[:at] + inserted + text[at + length :]
    return text


def _outcome(text: str) -> str:
    try:
        return type(parse([("x", text)])).__name__
    except ConfigMistakes as error:
        lines = [re.fullmatch(r"x:[1-9]\d*: .+", told, re.DOTALL) for told in error.mistakes]
        return "mistakes" if lines and all(lines) else "untold"


@given(st.sampled_from([SHIPPED, UNCOMMENTED]), EDITS)
def test_damaged_file_is_reported_as_mistakes_only(text: str, edits: list[tuple[float, int, str]]) -> None:
    assert _outcome(_edited(text, edits)) in {"Config", "mistakes"}


@given(st.lists(st.tuples(KEYS, VALUES), max_size=4))
def test_any_value_anywhere_is_accepted_or_reported_as_mistakes(pairs: list[tuple[str, str]]) -> None:
    assert _outcome("\n".join(f"{key} = {value}" for key, value in pairs)) in {"Config", "mistakes"}


def test_user_of_a_type_is_for_local_hosts_only() -> None:
    far = '[hosts.b]\ntransport = "ssh"\naddress = "b"\n'
    assert mistakes(agent('user = "nobody"') + far) == (
        '1.toml:4: agents.a.user: is for local hosts, which b is not; name others in its key hosts (got "nobody")',
    )
    assert good(agent('user = "nobody"\nhosts = ["alpha"]') + far).agents["a"].user == "nobody"
