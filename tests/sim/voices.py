"""What agents say beside OK, FAIL and BLOCKED: every keyword, what is almost one, and too much of everything."""

from random import Random
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tests.sim.agents import Process

WORDS: Final = (
    b"Heartbeat\n", b"Success\n", b"ItemsProcessed 2\n", b"ItemsProcessed many\n", b"ECHO hello\n", b"DEBUG so\n",
    b"RESULT {\"a\": 1}\n", b"RESULT {\n", b"ERROR a disk\n", b"WARNING hm\n", b"LOG well\n", b"Fail it\n", b"ok\n",
    b"blocked-on tape\n", b"LOG a\r\n", b"FATAL no\n",
)  # fmt: skip
STDERR: Final = (b"warning: x\n", b"half a line", b"\n", b"  \n", b"y" * 9000)
STATEMENTS: Final = (b"DB: select 1\n", b"DB: select 2\nDB: select 3\n", b"DB: " + b"s" * 3000 + b"\n")
ANSWER: Final = b"ANSWER\n"  # to a DB: line
FLOOD: Final = b"LOG " + b"z" * 1900 + b"\n"


def about_item(process: "Process", rng: Random) -> bytes:
    """Return what an agent says before the OK of an item; it prints on stderr at once."""
    if rng.random() < 0.2:
        process.say_error(rng.choice(STDERR))
    words = b"".join(rng.choice(WORDS) for _ in range(rng.choice((0, 0, 1, 3, 25))))
    if process.sends_statements and rng.random() < 0.2:
        words += rng.choice(STATEMENTS)
    if rng.random() < 0.02:
        words += FLOOD * rng.choice((1, 12, 120))
    if rng.random() < 0.1:
        words += b"FAIL once\nFAIL twice\n" if process.has_failed else b"RESULT 7\n"
    return words


def dying(rng: Random) -> bytes:
    """Return what an agent prints last, without the end of a line."""
    return rng.choice((b"", b"", b"LOG I die", b"ItemsProcessed 1", b"FAIL I die", b"BLOCKED tape away"))


def starting(rng: Random) -> bytes:
    """Return what an agent says before its first OK."""
    return rng.choice((b"", b"", b"LOG I start\n", b"Ok\n", b"FAIL at nothing\n", b"DB: select 0\n"))
