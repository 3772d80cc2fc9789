"""Claims about the referee of `drover agent-check PROGRAM`: what it says of programs that break the protocol."""

import sys
from pathlib import Path

import pytest

from scheduler.cli.agent_process import AgentProcess, config_of, process_spec
from scheduler.cli.output import Finding
from scheduler.cli.protocol_check import Limits, Referee, hostile_items
from scheduler.errors import ConfigError

LONG = 60.0  # nothing that a test waits for takes so long
PATIENT = Limits(start=LONG, ok=LONG, item=LONG, hint=LONG, quiet=0.1, exit=LONG, hang_up=LONG)
GOOD = "while read -r line; do echo OK; done"


def referee(folder: Path, script: str, *items: bytes, limits: Limits = PATIENT) -> Referee:
    """Return a referee of a script, which is run by sh unless its first line names another."""
    program = folder / "agent"
    program.write_text(script if script.startswith("#!") else f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    spec = process_spec(config_of("agent", [str(program)]), "agent")
    return Referee(spec, items, limits, lambda text: None)


def findings(folder: Path, script: str, *items: bytes, limits: Limits = PATIENT) -> list[Finding]:
    """Return all that the referee finds about a script."""
    return list(referee(folder, script, *items, limits=limits).findings())


@pytest.mark.slow
def test_an_agent_that_keeps_to_the_protocol_gets_no_complaint(tmp_path: Path) -> None:
    good = """#!{python}
import sys
print("OK", flush=True)
for line in sys.stdin.buffer:
    if line.endswith(b"\\n"):
        print("OK", flush=True)
"""
    found = findings(tmp_path, good.format(python=sys.executable))
    assert {severity for severity, _ in found} == {"ok"}
    assert len(found) == 10


FLUSHES_AT_ITS_END = """#!{python}
import sys
sys.stdout = open(1, "w", 65536, closefd=False)
print("OK")
sys.stdin.read()
"""
AT_START = {
    "nothing": ("cat", "it said nothing: does it print OK when it is ready, and is standard output flushed"),
    "lower case": ("echo ok; cat", "it said 'ok': the keyword is OK, spelt so"),
    "indented": ("echo ' OK'; cat", "it said ' OK': that begins with a blank"),
    "OKAY": ("echo OKAY; cat", "it said 'OKAY': the keyword is OK, spelt so"),
    "other words": ("echo ready to go; cat", "it said 'ready to go': the first OK is a line of its own"),
    "no newline": ("printf OK; cat", "it said 'OK' without a newline; print OK and a newline"),
    "binary": (r"printf '\377\000\033\n'; cat", r"it said '\xff\x00\x1b': the first OK is"),
    "byte order mark": (r"printf '\357\273\277OK\n'; cat", r"it said '\ufeffOK': that begins with a byte order mark"),
    "colour": (r"printf '\033[32mOK\033[0m\n'; cat", "that begins with a colour or another sequence for terminals"),
    "colour behind it": (r"printf 'OK\033[0m\n'; cat", "that ends in a colour or another sequence for terminals"),
    "carriage return": (r"printf '\rOK\n'; cat", r"it said '\rOK': that begins with a carriage return"),
    "UTF-16": (r"printf '\377\376O\000K\000\n'; cat", "that is UTF-16: print UTF-8"),
    "UTF-16 without a mark": (r"printf '\000O\000K\000\n'; cat", "that is UTF-16: print UTF-8"),
    "prompt": (r"printf 'sql> OK\n'; cat", "it said 'sql> OK': OK is not at the start of the line; print no prompt"),
    "prompt alone": (r"printf 'sql> '; cat", "it said 'sql> ': the first OK is a line of its own"),
    "exits": ("echo 3 files", 'the first OK is a line of its own; a program that works once and exits '
              'is an exec agent: set kind = "exec"'),
    "dies": ("echo no licence >&2; exit 3", "it ended before its first OK, exit status 3: no licence; it said nothing"),
    "killed": ("kill -9 $$", "it ended before its first OK, killed by SIGKILL"),
    "imports": (f"#!{sys.executable}\nimport nosuch", "exit status 1: ModuleNotFoundError: No module named 'nosuch'"),
    "kept back": (FLUSHES_AT_ITS_END.format(python=sys.executable), "the OK came only when its input had ended: flush"),
}  # fmt: skip


AT_END = ("exits", "dies", "killed", "imports")  # these are told when the program has ended


@pytest.mark.parametrize("name", AT_START)
def test_a_program_that_does_not_become_ready_is_told_why_t16(name: str, tmp_path: Path) -> None:
    script, told = AT_START[name]
    limits = PATIENT if name in AT_END else PATIENT._replace(start=0.2, hint=0.2)
    ((severity, text),) = findings(tmp_path, script, limits=limits)
    assert (severity, told in text) == ("FAIL", True), text


def test_a_hint_is_given_before_the_limit_t16(tmp_path: Path) -> None:
    go = tmp_path / "go"
    script = tmp_path / "agent"
    script.write_text(f"#!/bin/sh\necho ok\nuntil [ -e {go} ]; do sleep 0.05; done\necho OK\n{GOOD}\n")
    script.chmod(0o755)
    hints: list[str] = []

    def hint(text: str) -> None:
        hints.append(text)
        go.touch()

    spec = process_spec(config_of("agent", [str(script)]), "agent")
    found = Referee(spec, [b"x"], PATIENT._replace(hint=0.5), hint).findings()
    assert next(found) == ("ok", "start: it said OK")
    assert [text.partition(";")[0] for text in hints] == ["no OK after 0.5 s"]


def worker(work: str) -> str:
    """Return a script that gets ready and does this for each item."""
    return f"echo OK\nwhile read -r line; do {work}; done"


READS_BLOCKS = f"""#!{sys.executable}
import os
os.write(1, b"OK\\n")
while data := os.read(0, 4096):
    os.write(1, b"OK\\n" * max(1, data.count(b"\\n")))
"""
READS_ANSWER = 'until [ "$line" = OK ]; do read -r line; done'
AT_WORK = {
    "OK twice at the start": (r"printf 'OK\nOK\n'; cat", "FAIL", "start: it said OK twice"),
    "OK twice": (worker(r"printf 'OK\nOK\n'"), "FAIL", "item x: it said OK twice: say it once"),
    "no OK": ("echo OK; cat >/dev/null", "FAIL", "item x: no OK within 0.5 s; print OK when an item is finished"),
    "other words": (worker("echo LOG at it"), "FAIL", "no OK within 0.5 s"),
    "lower case": (worker("echo ok; echo OK"), "WARN", "item x: it said 'ok': the keyword is OK"),
    "dies": ("echo OK; read -r line; echo no path >&2; exit 5", "FAIL", "it died, exit status 5: no path; catch what"),
    "ends after OK": ("echo OK", "FAIL", "exit status 0"),
    "failed": (worker("echo FAIL no file; echo OK"), "ok", "item x: failed in "),
    "no JSON": (worker("echo RESULT 3 files; echo OK"), "WARN", "what follows RESULT is not JSON"),
    "no number": (worker("echo ItemsProcessed many; echo OK"), "WARN", "what follows ItemsProcessed is no number"),
    "no condition": (worker("echo BLOCKED; echo OK"), "WARN", "BLOCKED condition text"),
    "DB line": (worker(f"echo 'DB: save {{}}'; {READS_ANSWER}; echo OK"), "ok", "DB line: save {}: answered with no"),
    "no JSON for DB": (worker(f"echo 'DB: save {{1}}'; {READS_ANSWER}; echo OK"), "WARN", "name is not JSON"),
    "ignores ERROR": (worker(f"echo 'DB: save {{}}'; {READS_ANSWER}; echo OK"), "WARN", "all the same; print FAIL"),
    "child reads lines": (worker("timeout 0.2 cat >/dev/null; echo OK"), "FAIL", "3 lines sent at once: "),
    "ignores EOF": (worker("echo OK") + "; exec sleep 600", "FAIL", "end of input: it had not exited"),
    "complains at EOF": (worker("echo OK") + "; exit 4", "WARN", "end of input: exit status 4; end of input is no"),
    "ignores HUP": ("trap '' HUP; " + worker("echo OK"), "WARN", "SIGHUP: it ignores it"),
    "works on cut lines": ('echo OK; while read -r line || [ "$line" ]; do echo OK; line=; done', "WARN",
                           "a line cut by the end of input: it works on it"),
    "a shell runs data": (worker('eval "echo $line" >/dev/null 2>&1; echo OK'), "WARN", "a shell ran a part of an"),
    "reads in blocks": (READS_BLOCKS, "FAIL", "it said OK before it had read all of it"),
}  # fmt: skip
IN_VAIN = {  # what is waited for in vain
    "no OK": {"ok": 0.5},
    "other words": {"ok": 0.5},
    "child reads lines": {"ok": 2.0},
    "ignores EOF": {"exit": 0.2},
    "ignores HUP": {"hang_up": 0.2},
}


@pytest.mark.parametrize("name", AT_WORK)
def test_a_breach_of_the_protocol_is_told_with_its_remedy_t16(name: str, tmp_path: Path) -> None:
    script, severity, told = AT_WORK[name]
    limits = PATIENT._replace(quiet=0.02, **IN_VAIN.get(name, {}))
    found = referee(tmp_path, script, b"x", limits=limits).findings()
    assert [text for level, text in found if level == severity and told in text]


@pytest.mark.slow
def test_a_program_that_prints_without_end_is_left(tmp_path: Path) -> None:
    found = findings(tmp_path, "exec yes LOG", limits=PATIENT._replace(start=0.2, hint=0.2, exit=0.1))
    assert [severity for severity, _ in found] == ["FAIL"]
    found = findings(
        tmp_path, "echo OK; exec yes LOG", b"x", limits=PATIENT._replace(quiet=0.1, item=0.2, ok=0.2, exit=0.1)
    )
    assert ("FAIL", True) in [(severity, "no OK within" in text) for severity, text in found]


def start(program: str) -> None:
    AgentProcess(process_spec(config_of("x", [program]), "x")).kill()


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("./nosuch", "there is no program ./nosuch; look at its name and at the directory you are in"),
        ("nosuch", "there is no program nosuch; it is not on PATH"),
        ("{folder}/plain", "{folder}/plain is not executable; chmod +x {folder}/plain"),
        (
            "{folder}/odd",
            "{folder}/odd: its interpreter /no/such is not there or not executable; install it or correct",
        ),
        (
            "{folder}/data",
            "{folder}/data: it is no program of this machine; a script needs a first line with its interpreter",
        ),
    ],
)
def test_a_program_that_cannot_be_started_is_told_why_t16(command: str, told: str, tmp_path: Path) -> None:
    for name, text, mode in (("plain", "x", 0o644), ("odd", "#!/no/such\n", 0o755), ("data", "\0\1\2", 0o755)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(mode)
    with pytest.raises(ConfigError) as refused:
        start(command.format(folder=tmp_path))
    assert str(refused.value).startswith(told.format(folder=tmp_path))


def test_hostile_rows_have_the_columns_of_the_item() -> None:
    lines = [line for _, line in hostile_items([b'path="a" host="b"'], b"")]
    assert len(lines) == 4
    assert all(line.startswith(b'path="') and b'" host="' in line for line in lines)
    assert all(b'="' not in line[:1] and b"\n" not in line for _, line in hostile_items([b"bare"], b""))
