"""What the files of the original scheduler become: a configuration, placements, and a reason for each line left out."""

import re
import tomllib
from bisect import bisect_right
from collections.abc import Callable

import pytest

from scheduler.cli.import_scheduler_conf import convert
from scheduler.model.config import AgentType, Config, Host
from scheduler.model.config_reader import parse
from scheduler.policy.run_queue import Placement

AGENT = "agent=a | /bin/a\n"
RULE = re.compile(r"^insert .* values \('(\w+)', '(\w+~)', '(\w+)'\);$", re.MULTILINE)


def imported(text: str | bytes) -> tuple[Config, list[str]]:
    """Return the configuration as the daemon loads it, and the problems."""
    found = convert([("old", text.encode() if isinstance(text, str) else text)])
    return parse([("new", found.toml)]), found.problems


def config_of(text: str) -> Config:
    config, problems = imported(text)
    assert problems == []
    return config


def agent_of(line: str) -> AgentType:
    return config_of(line + "\n").agents["a"]


def problems_of(text: str | bytes) -> list[str]:
    return convert([("old", text.encode() if isinstance(text, str) else text)]).problems


def test_hosts_verbosity_comments_and_blank_lines_f149() -> None:
    config = config_of("# one\n; two\n\n  \r\n%Host alpha 4 2\r\n%Host b.example.org 3\n%Host c\n%Verbose 1\n" + AGENT)
    hosts = {"alpha": Host(max=4, urgent=2), "b.example.org": Host(max=3, urgent=1), "c": Host(max=-1, urgent=1)}
    assert (config.hosts, config.scheduler.log_level) == (hosts, "debug")


@pytest.mark.parametrize(
    ("lines", "level"), [("", "info"), ("%Verbose 0\n", "info"), ("%Verbose 2\n%Verbose 1\n", "trace")]
)
def test_the_greatest_verbosity_counts(lines: str, level: str) -> None:
    assert config_of(lines + AGENT).scheduler.log_level == level


def test_the_last_declaration_of_a_host_counts_f150() -> None:
    config, problems = imported("%Host alpha 1 0\n%Host alpha 4 2\n%Host alpha 4 2\n" + AGENT)
    assert config.hosts == {"alpha": Host(max=4, urgent=2)}
    assert problems == ["old:1: host alpha is declared again in line 2, which counts"]


def test_a_host_without_places_is_disabled_f150() -> None:
    config, problems = imported("%Host alpha 0 0\n" + AGENT)
    assert not config.hosts["alpha"].enabled
    assert len(problems) == 1


def test_equal_lines_are_slots_f151() -> None:
    config = config_of(
        "%Host alpha 9\n%Host beta 9\n" + "agent=a host=alpha | /bin/a -x\nagent=a host=beta | /bin/a -x\n" * 3
    )
    assert (config.agents["a"].slots, config.agents["a"].hosts) == (3, ("alpha", "beta"))
    assert config.agents["a"].command == ("/bin/a", "-x")


def test_an_agent_without_a_host_runs_on_the_first_one() -> None:
    assert config_of(f"%Host alpha\n%Host beta\n{AGENT}").agents["a"].hosts == ("alpha",)


def test_a_file_without_hosts_has_one() -> None:
    assert config_of(AGENT).hosts == {"localhost": Host()}


def test_agents_get_lines_as_the_original_sent_them() -> None:
    agent = agent_of("agent=a | /bin/a")
    assert (agent.kind, agent.escape, agent.nulls, agent.window) == ("line", "shell", "empty", 1)


@pytest.mark.parametrize(
    ("command", "argv"),
    [
        ("/o/engine-shell unpack '/o/u -d /srv/%{U} -q'  ", ("/o/engine-shell", "unpack", "/o/u -d /srv/%{U} -q")),
        ('/usr/bin/ssh beta "/opt/x/e u \'a b\'"', ("/usr/bin/ssh", "beta", "/opt/x/e u 'a b'")),
        ("/bin/a '$x;|' \"a;b\" \\$c *.c", ("/bin/a", "$x;|", "a;b", "$c", "*.c")),
        ('/bin/a "\\\\\\$x"', ("sh", "-c", '/bin/a "\\\\\\$x"')),
        ("/bin/a $x", ("sh", "-c", "/bin/a $x")),
        ('/bin/a "it\'s $x"', ("sh", "-c", '/bin/a "it\'s $x"')),
        ("X=1 /bin/a", ("sh", "-c", "X=1 /bin/a")),
        ("/bin/a 2>>/var/log/a | cat", ("sh", "-c", "/bin/a 2>>/var/log/a | cat")),
        ("/bin/\u00e9\t\\\\ \"\"", ("/bin/\u00e9", "\\", "")),
    ],
)  # fmt: skip
def test_a_command_is_its_words_or_a_shell_with_it(command: str, argv: tuple[str, ...]) -> None:
    assert agent_of(f"agent=a | {command}").command == argv


def test_commands_that_differ_among_hosts_are_chosen_by_the_host_f155() -> None:
    lines = "agent=a host=alpha | /bin/a '\"x\"'\nagent=a host=beta | /usr/bin/ssh beta \"/bin/a 'x y'\"\n"
    agent = config_of("%Host alpha\n%Host beta\n" + lines).agents["a"]
    assert agent.command[:2] == ("sh", "-c")
    assert agent.command[2].splitlines() == [
        "case $DROVER_HOST in",
        "alpha) exec /bin/a '\"x\"' ;;",
        "beta) exec /usr/bin/ssh beta '/bin/a '\"'\"'x y'\"'\"'' ;;",
        "esac",
    ]


def test_a_word_with_a_line_separator_of_unicode_stays_one_line() -> None:
    lines = "agent=a host=alpha | /bin/a\nagent=a host=beta | /bin/a x\u2028y\x85z\n"
    agent = config_of("%Host alpha\n%Host beta\n" + lines).agents["a"]
    assert "beta) exec /bin/a 'x\u2028y\x85z' ;;\n" in agent.command[2]


def test_a_host_that_is_reached_by_ssh_gets_a_hint() -> None:
    toml = convert(
        [("old", b"%Host alpha\n%Host beta\nagent=a host=alpha | /a\nagent=b host=beta | /usr/bin/ssh beta b\n")]
    ).toml
    assert re.findall(r"\[hosts\.(\w+)\]|#(address = .*)", toml) == [
        ("alpha", ""),
        ("beta", ""),
        ("", 'address = "beta"'),
    ]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("%Host", "%Host '': a name has letters"),
        ("%Host -x 1 1", "%Host '-x': a name has letters"),
        ("%Host a four", "max must be a number (got 'four')"),
        ("%Host a -2", "max must be -1 (no limit) or more"),
        ("%Host a 2 -1", "max must be -1 (no limit) or more, urgent 0 or more (got 2 and -1)"),
        ("%Host a 2 1 0", "what follows the numbers is left out: '0'"),
        ("%Host a 99999999999", "max must be -1 (no limit) or more"),
        ("%Verbose", "%Verbose must be a number (got '')"),
        ("%host a 1 1", "unknown directive '%host'; there are %Host and %Verbose"),
        ("agent=b", "has no command: agent=NAME | COMMAND"),
        ("host=alpha agent=b /bin/b", "has no command: agent=NAME | COMMAND"),
        ("agent=b |  ", "agent b has no command behind the |"),
        ("| /bin/b", "must have agent=NAME once before the |"),
        ("agent=b agent=c | /bin/b", "must have agent=NAME once before the |"),
        ("agent=b host=x host=y | /bin/b", "host=NAME at most once"),
        ("agent=b.1 | /bin/b", "agent 'b.1': must not have a dot: job names are type.nonce"),
        ("agent=command | /bin/b", "agent 'command': is the type of the scheduler's own commands"),
        ("agent=b!c | /bin/b", "agent 'b!c': a name has letters"),
        ("agent= | /bin/b", "agent '': a name has letters"),
        ("agent=b host=nowhere | /bin/b", "agent b: no %Host line that was carried over declares 'nowhere'"),
        ("agent=b | /bin/b 'x", "agent b: a quote of the command has no end"),
        ("agent=b fast | /bin/b", "agent b is written without 'fast': attributes are KEY=VALUE"),
        ("agent=a | /bin/a -v", "agent a has another command in line 1, which is written"),
        ("hello", "is neither %Host, %Verbose nor agent=NAME | COMMAND, nor a range HOST TYPE FROM TO"),
        ("agent=b | /bin/\x1b[2J", "holds a control character (got 0x1b)"),
        ("agent=b | " + "x" * 65_536, "is longer than 65536 bytes"),
        ("nowhere * 00 ff", "no %Host line declares 'nowhere'; give Scheduler.conf and Hosts.conf together"),
        ("alpha * 00 fg", "a range is two series of hexadecimal digits (got '00 fg')"),
        ("alpha * 80 7f", "the range ends before it begins (got 80 7f)"),
        ("alpha gold 00 ff", "type 'gold': the original placed jobs by the ranges of files and * alone"),
    ],
)  # fmt: skip
def test_a_line_that_cannot_be_carried_over_is_named_and_the_rest_is_written_f149_f152(line: str, reason: str) -> None:
    config, problems = imported(f"{AGENT}%Host alpha 4 1\n{line}\n")
    assert [problem.startswith("old:3: ") and reason in problem for problem in problems] == [True]
    assert config.agents["a"].command == ("/bin/a",)


def test_lines_with_other_attributes_are_types_of_their_own_f154() -> None:
    agents = config_of(f"agent=a version=2.0 | /bin/two\n{AGENT}agent=a-2_0 | /bin/x\nagent=b os=bsd | /bin/b\n").agents
    assert {name: (agent.command[0], agent.attributes) for name, agent in agents.items()} == {
        "a-2_0x": ("/bin/two", {"agent": "a", "version": "2.0"}),
        "a": ("/bin/a", {}),
        "a-2_0": ("/bin/x", {}),
        "b": ("/bin/b", {"os": "bsd"}),
    }


def test_bytes_that_are_not_utf8_are_read_in_comments_alone() -> None:
    config, problems = imported(b"# caf\xe9\nagent=b | /bin/caf\xe9\n" + AGENT.encode())
    assert problems == ["old:2: is not UTF-8 (got byte 0xe9)"]
    assert list(config.agents) == ["a"]


def test_fewer_slots_on_one_host_are_told_unless_its_maximum_says_so_already() -> None:
    lines = "agent=a host=alpha | /a\n" * 3 + "agent=a host=beta | /a\n" + "agent=a host=gamma | /a\n"
    config, problems = imported("%Host alpha 4\n%Host beta 2\n%Host gamma 1\n" + lines)
    assert config.agents["a"].slots == 3
    assert problems == ["old:7: agent a gets 3 slots on host beta too, not 1: slots is the same on each host"]


def test_without_agents_there_is_no_configuration_f152() -> None:
    assert convert([("old", b"%Host a 1 1\n")]).toml == ""


def test_problems_of_two_files_are_named_in_their_order() -> None:
    found = convert([("a", b"x\n" + AGENT.encode() + b"agent=a host=b | /a\n"), ("b", b"y z\n")])
    assert [problem.split(": ")[0] for problem in found.problems] == ["a:1", "a:3", "b:1"]


def test_many_hosts_and_agents_are_read_f153() -> None:
    text = "".join(f"%Host h{n} 99 1\n" for n in range(100)) + "".join(
        f"agent=a host=h{n % 100} | /a\n" for n in range(5000)
    )
    config = config_of(text)
    assert (len(config.hosts), config.agents["a"].slots) == (100, 50)


# ---- host ranges

HOSTS = "%Host h1\n%Host h2\n%Host h3\n" + AGENT


def rules_of(ranges: str) -> list[tuple[str, str, str]]:
    found = convert([("old", HOSTS.encode()), ("hosts", ranges.encode())])
    assert found.problems == []
    assert tomllib.loads(found.toml)["hosts"].keys() == {"h1", "h2", "h3"}
    return RULE.findall(found.sql)


def place(rules: list[tuple[str, str, str]], value: str) -> str | None:
    rows = [{"type": None, "from": first, "to": last, "host": host} for first, last, host in rules]
    return Placement(["h1", "h2", "h3"], rows).host_of("license", value.encode())


def test_a_range_includes_what_begins_with_its_end_f14_f15() -> None:
    rules = rules_of("h1 * 00 7f\nh2 * 80 ff\n")
    assert rules == [("0", "7~", "h1"), ("8", "9~", "h2"), ("a", "f~", "h2"), ("A", "F~", "h2")]
    values = {
        "00": "h1",
        "7fffff.1.2": "h1",
        "7FFFFF.1.2": "h1",
        "8000": "h2",
        "ff": "h2",
        "ffe1cd.73.42": "h2",
        "FFE1": "h2",
    }
    assert {value: place(rules, value) for value in values} == values


def test_without_ranges_there_are_no_placements() -> None:
    assert convert([("old", HOSTS.encode())]).sql == ""


def test_the_first_of_two_ranges_counts_and_a_gap_is_any_host() -> None:
    rules = rules_of("h1 files 85 86\nh2 80 af\nh3 * c0 c000\n")
    assert [place(rules, value) for value in ("8512", "87", "AF1", "b0", "c0001", "c001")] == [
        "h1",
        "h2",
        "h2",
        None,
        "h3",
        None,
    ]


@pytest.mark.parametrize(
    "ends", [("2a", "54", "7f"), ("0f", "a0", "fe"), ("00", "09", "0a"), ("2aaa", "2aab", "f"), ("a", "bb", "ccc")]
)
@pytest.mark.parametrize("case", [str.lower, str.upper])
def test_every_value_goes_to_the_host_of_its_range(ends: tuple[str, ...], case: Callable[[str], str]) -> None:
    """Four ranges, each of which begins behind the end of the one before, as hexadecimal numbers."""
    lasts = [int(end.ljust(4, "f"), 16) for end in ends]
    firsts = [0, *(last + 1 for last in lasts)]
    hosts = ["h1", "h2", "h3", "h1"]
    text = "".join(
        f"{host} {first:04x} {last:04x}\n" for host, first, last in zip(hosts, firsts, [*lasts, 0xFFFF], strict=True)
    )
    rules = rules_of(text)
    numbers = sorted({n for start in firsts for n in range(start - 300, start + 300)} & set(range(0x10000)))
    wrong = [n for n in numbers if place(rules, case(f"{n:04x}.1")) != hosts[bisect_right(firsts, n) - 1]]
    assert wrong == []
