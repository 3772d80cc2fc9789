"""Claims about an agent whose children each fork the next one and exit, deaf to SIGHUP: all end with it."""

from scheduler.drivers.os_calls import members
from scheduler.model.events_and_effects import ForceKill, Gone, Kill
from tests.child_tools import Make, python
from tests.loop_tools import turn_until

CHAIN = """
import os, signal, time
signal.signal(signal.SIGHUP, signal.SIG_IGN)
if not os.fork():
    os.write(1, b"up\\n")
    while True:
        time.sleep(0.001)
        if os.fork():
            os._exit(0)
"""
STAYS, LEAVES = "time.sleep(600)", "os._exit(3)"


def test_chain_of_an_agent_that_is_killed_ends_with_it(family: Make) -> None:
    one = family(line=python(CHAIN + STAYS))
    group = one.up()
    one.processes.kill(Kill(0))
    one.processes.force_kill(ForceKill(0))
    assert one.end() == Gone(0, signal="SIGKILL")
    turn_until(one.loop, lambda: not members(group))


def test_chain_of_an_agent_that_exits_ends_with_it(family: Make) -> None:
    one = family(line=python(CHAIN + LEAVES), exit_grace=0.05)
    group = one.up()
    assert one.end() == Gone(0, code=3)
    turn_until(one.loop, lambda: not members(group))
