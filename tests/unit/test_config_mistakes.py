"""Mistakes in the configuration: each is reported with its file, line and key, all at once, and without a password."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.errors import ConfigError
from scheduler.model.config import ConfigMistakes
from scheduler.model.config_reader import key_lines, parse
from scheduler.model.host_filters import QUEUE_RULE
from tests.config_tools import FIELDS, LEAST, SHIPPED, UNCOMMENTED, agent, good, mistakes

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
        ("window = 0", 'agents.a.window: must be "auto", or from 1 to 2147483647 (got 0)'),
        ("window = true", 'agents.a.window: must be "auto", or a whole number (got true)'),
        ('window = "many"', 'agents.a.window: must be "auto", or a whole number (got "many")'),
        ('kind = "exec"\nwindow = 2', "agents.a.window: must be 1: an exec agent gets one item (got 2)"),
        (
            'db = "sql"\nwindow = 2',
            "agents.a.window: must be 1: answers to DB: lines would come behind lines ahead (got 2)",
        ),
        ("detached = true", 'agents.a.detached: is for kind = "exec" only (got true)'),
        (
            'kind = "exec"\nuser = "nobody"\ndetached = true',
            "agents.a.detached: contradicts user: the spool is the daemon's (got true)",
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
def test_transport_without_its_required_keys_is_refused_j102(transport: str, key: str) -> None:
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
def test_mistake_in_a_timer_is_reported_j103(keys: str, told: str) -> None:
    assert mistakes(f"{LEAST}[scheduler]\n{keys}") == (f"1.toml:5: scheduler.{told}",)


@pytest.mark.parametrize("value", ["0", "-1"])
def test_concurrency_must_be_positive_j112(value: str) -> None:
    told = f"1.toml:5: queues.q.concurrency: must be from 1 to 2147483647 (got {value})"
    assert mistakes(f"{LEAST}[queues.q]\nconcurrency = {value}") == (told,)


def test_concurrency_must_be_a_number_j112() -> None:
    (told,) = mistakes(f"{LEAST}[queues.q]\nconcurrency = 'x'")
    assert told.startswith("1.toml:5: queues.q.concurrency: ")


@pytest.mark.parametrize(("name", "is_good"), [("1/low", True), ("x" * 64, True), ("x" * 65, False), ("é b", True)])
def test_name_of_a_queue_has_64_characters_at_most_j12(name: str, is_good: bool) -> None:
    text = f"{LEAST}[queues.'{name}']"
    if is_good:
        assert list(good(text).queues) == [name]
    else:
        assert "64 characters at most" in mistakes(text)[0]


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ("types = '('", 'types: is not a regular expression (got "(")'),
        ("types = '[[:alpha:]]'", 'types: is not a regular expression (got "[[:alpha:]]")'),
        ("priorities = '-'", 'priorities: matches no priority, which has letters and digits (got "-")'),
        ("priorities = '1$|.1$'", "priorities: is decided by no few first characters of a priority; begin it with ^"),
        ("queues = ['a;b']", f"queues[0]: {QUEUE_RULE}"),
    ],
)
def test_mistake_in_a_filter_is_reported_r55(keys: str, told: str) -> None:
    (found,) = mistakes(f"{LEAST}[hosts.beta]\n{keys}")
    assert found.startswith(f"1.toml:5: hosts.beta.{told}")


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ("filter = 'pg_sleep(9) = 1'", "filter: character 1: functions are not allowed; write comparisons like type ="),
        ("filter = 'type = '", "filter: character 6, near '=': no expression; write comparisons like type ="),
        ("zone = 'Mars/Crater'", "zone: no time zone 'Mars/Crater': write a name like Europe/Berlin"),
        ("filter = 'sql'\n[queues.r]\nfilter='urgent'", "priority: is that of queue q too; filters are tried in this"),
    ],
)
def test_mistake_in_a_filter_of_a_queue_is_reported_t53_t56(keys: str, told: str) -> None:
    (found,) = mistakes(f"{LEAST}[queues.q]\n{keys}")
    assert found.split(": queues.")[1].removeprefix("q.").removeprefix("r.").startswith(told)


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


@pytest.mark.parametrize(
    ("table", "name"),
    [
        *(("hosts", name) for name in ('""', '"a b"', '"-a"', '"é"', f'"{"a" * 65}"')),
        *(("queues", name) for name in ('""', '"a  b"', '"-a"', '"a,b"', r'"a\tb"', f'"{"é" * 65}"')),
    ],
)
def test_name_outside_of_the_alphabet_is_refused(table: str, name: str) -> None:
    (told,) = mistakes(f"{LEAST}[{table}.{name}]")
    assert told.startswith(f"1.toml:4: {table}.")
    assert told.partition(" (got")[0].endswith("at most")


def test_agent_without_a_command_is_refused_j102() -> None:
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


def test_user_of_a_type_is_for_local_hosts_only() -> None:
    far = '[hosts.b]\ntransport = "ssh"\naddress = "b"\n'
    assert mistakes(agent('user = "nobody"') + far) == (
        '1.toml:4: agents.a.user: is for local hosts, which b is not; name others in its key hosts (got "nobody")',
    )
    assert good(agent('user = "nobody"\nhosts = ["alpha"]') + far).agents["a"].user == "nobody"


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
        ('a = [1,\n """b\n"""\n]', ("a", 1), 2),
        ("a = 1979-05-27 07:32:00\nb = 2", ("b",), 2),
        ("[[a]]\nb = 1\n[[a]]\nb = 2", ("a", "b"), 4),
    ],
)
def test_line_of_a_key_is_found(text: str, path: tuple[str | int, ...], line: int) -> None:
    assert key_lines(text)[path] == line


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
