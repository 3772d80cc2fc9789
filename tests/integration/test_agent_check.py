"""`drover run -t` and `drover agent-check`: each agent is started on each of its hosts: here, far, behind words."""

import os
import shutil
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests import warm
from tests.cli_tools import DROVER, Done
from tests.integration.conftest import Launch
from tests.integration.daemon import agent, lines, python, rec
from tests.integration.ssh_tools import table, until_nothing_is_at_work
from tests.integration.test_command_hosts import behind
from tests.needs import need
from tests.ssh.sshd import Server, serving

HERE = "[hosts.here]\n"
POLITE = "echo OK; cat"
BROKEN = ["sh", "-c", 'echo "no licence" >&2; exit 3']
PATIENCE = "[scheduler]\nstart_limit = 1\nkill_grace = 1\n"
WORDS = behind("words", ["env", "REACHED=yes"])

Ask = Callable[..., Done]


@pytest.fixture
def ask(tmp_path: Path) -> Ask:
    """Run a command on a configuration; there is no database."""
    config = tmp_path / "drover.toml"

    def ask(text: str, *words: str) -> Done:
        config.write_text(text)
        environment = os.environ | {"DROVER_CONFIG": str(config), "DROVER_ALLOW_ROOT": "1"}
        root = Path(__file__).parents[2]
        done = warm.run([*DROVER, *words], env=environment, cwd=root)
        return Done(done.returncode, done.stdout, done.stderr)

    return ask


def server(stack: ExitStack, folder: Path, script: str | None = None) -> Server:
    """Return a host, with a program `polite` on its PATH or with none."""
    need("sshd")
    server = stack.enter_context(serving(folder, SetEnv=f"HOME={folder} PATH={folder}:/usr/bin:/bin"))
    if script is not None:
        program = folder / "polite"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
    return server


@pytest.mark.slow
def test_agent_check_tests_each_host_and_leaves_no_process_f146(ask: Ask, tmp_path: Path) -> None:
    with ExitStack() as stack:
        beta = server(stack, tmp_path / "beta")
        types = agent("polite", ["sh", "-c", POLITE]) + agent("lines", ["wc", "-l", "{args}"], kind="exec")
        done = ask(HERE + WORDS + table("beta", beta) + types, "run", "-t")
        until_nothing_is_at_work(beta)
    lines = [f"{name} on {host}: ok" for name in ("polite", "lines") for host in ("here", "words", "beta")]
    assert (done.status, done.out.splitlines(), done.err) == (0, [*lines, "0 of 6 agents failed"], "")


@pytest.mark.parametrize("option", ["-t", "-T"])
def test_agent_check_names_an_agent_that_fails_to_start_with_its_last_output_f146(ask: Ask, option: str) -> None:
    types = agent("polite", ["sh", "-c", POLITE]) + agent("broken", BROKEN) + agent("gone", ["no-such"], kind="exec")
    done = ask(HERE + types, "run", option)
    assert (done.status, done.out.splitlines()) == (1, [
        "polite on here: ok",
        "broken on here: died before its first OK, exit status 3: no licence",
        "gone on here: no-such: not found",
        "2 of 3 agents failed",
    ])  # fmt: skip


def test_a_daemon_that_tests_its_agents_first_serves_if_none_failed_f146(launch: Launch, record: Path) -> None:
    daemon = launch(HERE + agent("rec", rec(record)) + agent("true", ["true"], kind="exec"), options=["-T"], stdin=b"")
    daemon.wait_all([daemon.insert(jq_type=name, jq_args="x") for name in ("rec", "true")])
    assert daemon.process.stdout is not None
    assert daemon.stop() == 0
    said = daemon.process.stdout.read()
    assert said == b"rec on here: ok\ntrue on here: ok\n0 of 2 agents failed\n"


def test_a_daemon_that_tests_its_agents_first_refuses_to_start_if_one_failed_f146(launch: Launch, record: Path) -> None:
    types = agent("rec", rec(record)) + agent("broken", BROKEN)
    daemon = launch(HERE + types, options=["-T"], stdin=b"", wait=False)
    pk = daemon.insert(jq_type="rec", jq_args="x")
    assert daemon.process.stdout is not None
    assert daemon.wait_exit() == 1
    assert daemon.process.stdout.read().endswith(b": no licence\n1 of 2 agents failed\n")
    assert (daemon.row(pk)["jq_state"], lines(record)) == ("queued", [])


@pytest.mark.slow
def test_agent_check_kills_a_silent_agent_at_the_start_limit_f146(ask: Ask) -> None:
    deaf = "import signal, time\nsignal.signal(signal.SIGHUP, signal.SIG_IGN)\nwhile True: time.sleep(9)"
    done = ask(PATIENCE + HERE + WORDS + agent("deaf", python(deaf)), "run", "-t")
    assert (done.status, done.out.splitlines()[:2]) == (
        1,
        [f"deaf on {host}: no OK within 1 s; is stdout flushed?" for host in ("here", "words")],
    )


@pytest.mark.slow
def test_a_host_where_the_program_is_missing_is_named(ask: Ask, tmp_path: Path) -> None:
    with ExitStack() as stack:
        hosts = [table("one", server(stack, tmp_path / "one", POLITE)), table("two", server(stack, tmp_path / "two"))]
        done = ask("".join(hosts) + agent("polite", ["polite"]), "agent-check")
    assert (done.status, done.err) == (1, "")
    missing, there = done.out.splitlines()
    assert missing == "FAIL agent polite on two: host two: polite: not found"
    assert there.startswith("ok   agent polite on one: ")


@pytest.mark.slow
def test_a_host_with_another_version_of_a_program_is_named(ask: Ask, tmp_path: Path) -> None:
    scripts = {"one": POLITE, "two": POLITE, "three": f"{POLITE} -"}
    with ExitStack() as stack:
        hosts = [table(name, server(stack, tmp_path / name, script)) for name, script in scripts.items()]
        done = ask("".join(hosts) + agent("polite", ["polite"]), "agent-check", "polite")
    assert done.status == 0
    said = [line.partition(": ")[0] for line in done.out.splitlines()]
    assert said == ["WARN agent polite on one, two", "WARN agent polite on three"]
    assert all(line.endswith("/polite, another version than elsewhere") for line in done.out.splitlines())


def test_a_script_given_to_an_interpreter_counts_as_the_program(ask: Ask, tmp_path: Path) -> None:
    script = tmp_path / "agent.sh"
    script.write_text(POLITE)
    done = ask(HERE + WORDS + agent("polite", ["sh", str(script)]), "agent-check")
    assert (done.status, done.out.count("\n")) == (0, 1)
    assert done.out.startswith("ok   agent polite on here, words: ")
    assert done.out.endswith(f"; {sum_of(script)}\n")


def sum_of(path: Path) -> str:
    with path.open("rb") as file:
        return (
            f"{subprocess.run(['cksum'], stdin=file, capture_output=True, text=True, check=True).stdout.strip()} {path}"
        )


def test_agent_check_reports_an_unreachable_host_without_delay(ask: Ask) -> None:
    far = '[hosts.far]\ntransport = "ssh"\naddress = "127.0.0.1:1"\n'
    done = ask(HERE + far + agent("polite", ["sh", "-c", POLITE]), "agent-check")
    failed, fine = done.out.splitlines()
    assert (done.status, failed.startswith("FAIL agent polite on far: host far: ")) == (1, True)
    assert "nothing listens there (Connection refused): start sshd" in failed
    assert fine.startswith("ok   agent polite on here: ")


def test_agent_check_of_an_unknown_type_is_an_error(ask: Ask) -> None:
    done = ask(HERE + agent("polite", ["sh", "-c", POLITE]), "agent-check", "rude")
    assert (done.status, done.err) == (
        2,
        "drover agent-check: the configuration has no agent type rude (it has polite)\n",
    )


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (
            "ProxyCommand nc %h %p",
            "ssh_config:2: ProxyCommand of beta cannot be followed: no program is run to reach a",
        ),
        (
            "HostName 127.0.0.1\nMatch Host 127.0.0.1\n Port 1",
            "root@127.0.0.1:1: nothing listens there (Connection refused): start sshd",
        ),
        ("IgnoreUnknown Ha*\n HaNoSuchWord 1\n Port many", "ssh_config line 4: Bad port 'many'"),
    ],
)
def test_check_reads_ssh_config_as_ssh_does_and_names_what_it_cannot_follow(
    ask: Ask, tmp_path: Path, line: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    need("sshd")  # which comes with ssh
    (config := tmp_path / "ssh_config").write_text(f"Host beta\n {line}\n")
    (ssh := tmp_path / "bin" / "ssh").parent.mkdir()  # ssh(1) takes the home of passwd(5), where no test may write
    ssh.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {config} "$@"\n')
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{ssh.parent}:{os.environ['PATH']}")
    done = ask(
        HERE + '[hosts.beta]\ntransport = "ssh"\naddress = "beta"\nuser = "root"\n' + agent("polite", ["true"]), "check"
    )
    assert sentence in done.out
    assert "host beta: reached" not in done.out
