"""Every example of the manuals and of README is run, loaded or parsed; what is not is listed with the reason.

Examples are the literal displays of the manuals and the blocks of README. That those of drover-tutorial(7) and of
README's tour do what they say is shown by tests/integration/test_tutorial.py and test_readme_tour.py.
"""

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psycopg
import pytest

from scheduler.cli.command_table import COMMANDS
from scheduler.cli.parser import parse
from scheduler.model.queue_filters import parse_filter
from tests.config_tools import good
from tests.database.test_jobqueue_manual import PFILE
from tests.fossology_tools import build_views
from tests.needs import need
from tests.state_diagrams import MARK
from tests.walk_pages import steps

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "man").glob("drover*.[1-8]"))
LITERAL = re.compile(
    r'(?P<mark>^\.\\".*\n)?(?:^\.Bd -literal.*\n(?P<block>(?:.*\n)*?)\.Ed$|(?P<lines>(?:^\.Dl .*\n)+))', re.MULTILINE
)
FENCED = re.compile(r"^```(?P<kind>\w*)\n(?P<block>.*?)^```$", re.MULTILINE | re.DOTALL)

# How an example begins that is none of the kinds below, and why it is not run.
NOT_RUN = {
    'column="value" column="value"': "the form of a line",
    "number result code": "the form of a line",
    "number type state text": "the form of a line",
    "type | args": "the form of a line; test_stdin_jobs",
    "file:line: key: message (got value)": "the form of a line; test_config_mistakes",
    "group default is served by": "a line of the program; test_service",
    "[... 4194304 bytes left out ...]": "a line of kept output; test_capture",
    "critical: agents failed:": "a line of the program; test_cli_health",
    "cannot PREPARE a transaction": "a line of PostgreSQL; test_prepared_transactions",
    "begin;\nset local drover.notify = off;": "it needs a server that prepares; test_prepared_transactions",
    "mkdir -p /etc/systemd/system/drover.service.d": "it changes this machine; test_real_unit does it in its own",
    "hosts: +beta; agents:": "a line of the log; test_reload",
    "Match User drover": "lines of sshd_config(5) on another machine",
    "standing by: group default": "a line of the log; test_standby",
    "the lease has run out": "a line of the log; test_clock",
    "serving group default as": "a line of the log; test_service",
    "pid=14113 state=S": "a line of the log; test_guardian",
    "the loop was held up": "a line of the log; test_lasting",
    "lease connection: WHY": "a line of the log; test_lease_beside_work",
    "past the lease:": "a line of the log; test_database_outages",
    "33 MiB of results": "a line of the log; test_database_outages",
    "the database refuses": "a line of the log; test_refused_statements, test_full_notify",
    "embedded database: started again": "a line of the log; test_replaced_server",
    "LISTEN gets nothing": "a line of the log; test_pooler",
    "LISTEN is heard": "a line of the log; test_pooler",
    "expansion connection as": "a line of the log; test_logins",
    "drover_db save id": "lines of an agent; test_agent_libraries",
    "exit status 7: connection": "a reason; unit/test_last_words",
    "interrupted: its scheduler": "a line of the log; test_tracking",
    "rescued: its scheduler": "a line of the log; test_tracking",
    "lines of the log that could not": "a line of the log; test_lasting",
    "2026-11-20 18:01:33,027 INFO": "a line of the log; test_session",
    "DB: save": "a line of an agent; test_database_lines",
    'sh -c \'wc -l -- "$1"': "a template; test_shell_template",
    "#!/usr/bin/env python3": "an agent; test_agent_manual",
    "#!/bin/sh": "an agent; test_agent_manual",
    "#include <stdio.h>": "an agent; test_agent_manual",
    "$ drover-agent-sha256": "what is typed to an agent; test_bundled_agents",
    "import json": "a front-end; test_tracking",
    "userid=simpsons": "input of setup; test_shell_assignments",
    "PGOPTIONS=": "has an ellipsis; test_full_notify",
    "make demo": "the two commands; CI runs the second, test_install what the first runs",
    "AmbientCapabilities=": "of systemd; needs a unit of the machine",
    "SystemCallFilter=": "of systemd; needs a unit of the machine",
    "host=db1,db2": "servers of other machines; test_database_failover",
    "rule_files: [": "of Prometheus; its rules are tried by tests of etc/prometheus",
    "systemd-run --pipe --wait": "needs systemd; test_cli_doctor runs the command",
    "make install PYTHON=/usr/bin/python3": "changes the machine; test_install installs it elsewhere",
    "make deb": "changes the machine; test_debian_package does it on a copy",
    "local drover all peer": "a line of pg_hba.conf; test_people_login",
    "drop schema drover cascade": "changes the whole server; test_removal runs it on one of its own",
    "/var/log/drover/drover.log {": "of logrotate(8); its command is parsed below",
    " clients": "a drawing",
    "    sha256": "what make demo prints",
}
# What mandoc says of style that is no fault: of the machine, and a guess at a name.
NO_FAULT = ("referenced manual not found", "outdated mandoc.db", "possible typo in section name")
SQL = ("select ", "insert ", "update ", "delete ", "alter ", "create ", "set ", "with ", "listen ")
SCENE = (
    PFILE
    + """
create role anna; create role bert; create role web; create role mine; create role billing;
insert into drover.queue (queue_name, queue_group) values ('heavy', 'default'), ('lab', 'default');
insert into drover.jobqueue (jq_type, jq_name, jq_state) values ('shipping', 'shipping.1', 'held');
insert into drover.jobqueue (jq_pk, jq_type, jq_state) overriding system value
  select pk, 'sha256', 'held' from unnest(array[7, 17, 18, 19]) pk;
"""
)
LAB = "create role lab; insert into drover.tenant values ('lab');"  # which an example makes and another wants
BASE = '[hosts.base]\n[agents.base]\ncommand = ["true"]\n'
# What stands above a fragment of a configuration, by how the fragment begins.
ABOVE = {
    "command = [": BASE + '[hosts.other]\ntransport = "command"\n',
    "[agents.sha256.statements]": BASE + '[agents.sha256]\ncommand = ["true"]\ndb = "statements"\n',
    "[agents.": "[hosts.base]\n",
    "[hosts.node1]": '[agents.base]\ncommand = ["true"]\n',
    "[hosts.": "",
    "[database]": BASE,
    "people_url": BASE + "[database]\n",
}


class Example(NamedTuple):
    page: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    def begins_with(self, *beginnings: str) -> bool:
        return self.text.startswith(beginnings)


def _of_manual(path: Path) -> Iterator[Example]:
    source = path.read_text()
    for found in LITERAL.finditer(source):
        if MARK not in (found["mark"] or ""):
            lines = re.sub(r"^\.Dl ", "", found["block"] or found["lines"], flags=re.MULTILINE)
            text = (
                lines.replace(r"\&", "")
                .replace(r"\-", "-")
                .replace(r"\(dq", '"')
                .replace(r"\(aq", "'")
                .replace(r"\e", "\\")
            )
            yield Example(path.name, source[: found.start()].count("\n") + 1, text)


def _of_readme() -> Iterator[Example]:
    source = (ROOT / "README.md").read_text()
    for found in FENCED.finditer(source):
        yield Example("README.md", source[: found.start()].count("\n") + 1, found["block"])


EXAMPLES = [*(example for page in PAGES for example in _of_manual(page)), *_of_readme()]
SQL_EXAMPLES = [example for example in EXAMPLES if example.begins_with(*SQL)]
SQL_BELOW = [example for example in EXAMPLES if example.begins_with("$ drover init --roles --compat")]
TOML = [example for example in EXAMPLES if example.begins_with(*ABOVE)]
WALKED = [example for example in EXAMPLES if example.page in ("README.md", "drover-tutorial.7")]
WALKED = [example for example in WALKED if not example.begins_with(*ABOVE, *NOT_RUN)]  # typed into a shell
FILTERS = [example for example in EXAMPLES if example.begins_with("type in (")]


def commands(text: str) -> Iterator[list[str]]:
    """Yield the words of each `drover` command in a text that a shell reads."""
    for line in _shell_lines(text):
        lexer = shlex.shlex(line.removeprefix("* * * * * "), posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words: list[str] = []
        for token in [*lexer, ";"]:
            if set(token) <= set("();<>|&"):
                yield from _own(words)
                words = []
            else:
                words.append(token)


def _shell_lines(text: str) -> Iterator[str]:
    """Yield commands without what they read or print; a block without prompts has commands only."""
    typed = [step.command for step in steps(text)] or text.replace("\\\n", "").splitlines()
    lines = (re.sub(r"\\?\n", " ", command.partition("<<")[0]) for command in typed)
    return (line for line in lines if re.search(r"(^|[ /(])drover ", line))


def _own(words: list[str]) -> Iterator[list[str]]:
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words = words[1:]
    if words and words[0].rpartition("/")[2] == "drover" and words[-1] != "...":
        yield words[1:]


SHELL = [example for example in EXAMPLES if not example.begins_with(*SQL, *ABOVE) and "drover " in example.text]
SHELL = [example for example in SHELL if not example.begins_with(*NOT_RUN) or example.begins_with("/var/log/")]
COMMAND_LINES = [(example, words) for example in SHELL for words in commands(example.text)]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_mandoc_has_no_complaint_about_the_manual(page: Path) -> None:
    need("mandoc")
    argv = ["mandoc", "-Tlint", "-Wstyle", str(page)]
    lint = subprocess.run(argv, capture_output=True, text=True, check=False).stdout.splitlines()
    assert [line for line in lint if not any(words in line for words in NO_FAULT)] == []


@pytest.mark.parametrize("example", EXAMPLES, ids=str)
def test_every_example_is_of_a_kind_that_is_tried_or_is_listed_with_a_reason(example: Example) -> None:
    tried = [*SQL_EXAMPLES, *TOML, *FILTERS, *WALKED, *(shown for shown, _ in COMMAND_LINES)]
    assert example in tried or example.begins_with(*NOT_RUN), example.text


@pytest.mark.parametrize("beginning", NOT_RUN)
def test_no_reason_is_kept_for_an_example_that_is_gone(beginning: str) -> None:
    assert any(example.begins_with(beginning) for example in EXAMPLES)


@pytest.mark.parametrize(("example", "words"), COMMAND_LINES, ids=lambda value: str(value)[:60])
def test_every_command_of_an_example_can_be_parsed(example: Example, words: list[str]) -> None:
    command = next(word for word in words if word in COMMANDS)
    assert parse(words).command.split()[0] == command


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_every_command_named_in_the_text_exists(page: Path) -> None:
    named = re.findall(r"^\.(?:Ql|Ic|Nm) drover ([a-z][a-z-]*)", page.read_text(), re.MULTILINE)
    assert set(named) <= set(COMMANDS)


@pytest.mark.parametrize("example", TOML, ids=str)
def test_every_example_of_a_configuration_is_read(example: Example) -> None:
    (above,) = [text for beginning, text in ABOVE.items() if example.begins_with(beginning)][:1]
    text = example.text
    if text.startswith("command = ["):
        text = " ".join(text.split())  # on one line, as the page says
    assert good(above + text)


@pytest.mark.parametrize("example", FILTERS, ids=str)
def test_every_example_of_a_filter_is_parsed(example: Example) -> None:
    for line in example.text.splitlines():
        assert parse_filter(line)


@pytest.mark.parametrize("example", SQL_EXAMPLES, ids=str)
def test_every_statement_runs_f23_f26(database_with_roles: str, example: Example) -> None:
    with psycopg.connect(database_with_roles) as admin:
        admin.execute(SCENE.encode())
        if "'lab'" in example.text and "create role lab" not in example.text:
            admin.execute(LAB.encode())
        admin.execute(example.text.encode())
        admin.rollback()  # roles are of the whole server


@pytest.mark.parametrize("example", SQL_BELOW, ids=str)
def test_statements_for_an_old_front_end_run_f27(database_with_roles: str, example: Example) -> None:
    build_views(database_with_roles)
    (statements,) = [step.printed for step in steps(example.text)]
    with psycopg.connect(database_with_roles) as admin:
        admin.execute((SCENE + statements).encode())
        admin.rollback()
