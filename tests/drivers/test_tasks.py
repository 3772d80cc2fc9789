"""Steps: they wait for what they say, in their order, and can be stopped at any wait."""

import os
from collections.abc import Callable, Iterator
from select import EPOLLIN
from typing import Any

import pytest

from scheduler.drivers.loop import ConnectionLostError, Loop, Steps, Stop, Task, Until, ready
from tests.loop_tools import turn_until

Pipe = tuple[int, int]


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    ends = os.pipe()
    yield ends
    for fd in ends:
        os.close(fd)


class Come:
    """A wait that is over at once."""

    def __init__(self, value: object) -> None:
        self.value = value

    def begin(self, loop: Loop, resume: Callable[[Any], None]) -> Stop:
        resume(self.value)
        return lambda: None


def read(loop: Loop, fd: int, limit: float = 20.0) -> Steps[bytes]:
    yield from ready(fd, EPOLLIN, loop.now + limit)
    return os.read(fd, 100)


def test_steps_return_what_came_over_a_descriptor(loop: Loop, pipe: Pipe) -> None:
    results: list[bytes] = []
    Task(loop, read(loop, pipe[0]), results.append).start()
    os.write(pipe[1], b"x")
    turn_until(loop, lambda: results)
    assert results == [b"x"]


def test_descriptor_is_registered_only_while_it_is_waited_for(loop: Loop, pipe: Pipe) -> None:
    results: list[bytes] = []
    os.write(pipe[1], b"x")
    Task(loop, read(loop, pipe[0]), results.append).start()
    assert list(loop._callbacks) == [pipe[0]]
    turn_until(loop, lambda: results)
    assert loop._callbacks == {}


def test_descriptor_that_is_not_ready_at_the_deadline_raises(loop: Loop, pipe: Pipe) -> None:
    def steps() -> Steps[str]:
        try:
            yield from read(loop, pipe[0], limit=0.01)
        except TimeoutError:
            return "late"
        return ""

    results: list[str] = []
    Task(loop, steps(), results.append).start()
    turn_until(loop, lambda: results)
    assert (results, loop._callbacks) == (["late"], {})


def test_steps_wait_for_an_instant(loop: Loop) -> None:
    def steps() -> Steps[float]:
        yield Until(begin + 0.05)
        return loop.now

    begin = loop.now
    results: list[float] = []
    Task(loop, steps(), results.append).start()
    turn_until(loop, lambda: results)
    assert results[0] >= begin + 0.05


def test_value_available_at_once_resumes_the_steps_at_once(loop: Loop) -> None:
    def steps() -> Steps[list[int]]:
        return [(yield Come(1)), (yield Come(2))]

    results: list[list[int]] = []
    Task(loop, steps(), results.append).start()
    assert results == [[1, 2]]


def test_stopped_steps_clean_up_and_do_not_go_on(loop: Loop, pipe: Pipe) -> None:
    def steps() -> Steps[None]:
        try:
            yield from read(loop, pipe[0])
            story.append("read")
        finally:
            story.append("cleaned up")

    story: list[str] = []
    task = Task(loop, steps(), lambda _: story.append("done")).start()
    task.stop()
    task.stop()
    assert (story, loop._callbacks) == (["cleaned up"], {})


def test_steps_that_stop_their_own_task_go_no_further_than_to_their_next_wait(loop: Loop) -> None:
    def steps() -> Steps[None]:
        try:
            yield Come(1)
            task.stop()
            story.append("goes on")
            yield Come(2)
            story.append("too far")
        finally:
            story.append("cleaned up")

    story: list[str] = []
    task = Task(loop, steps(), lambda _: story.append("done"))
    task.start()
    assert story == ["goes on", "cleaned up"]


def test_value_that_comes_after_the_stop_is_ignored(loop: Loop) -> None:
    class Late(Come):
        def begin(self, loop: Loop, resume: Callable[[Any], None]) -> Stop:
            self.resume = resume
            return lambda: None

    def steps() -> Steps[None]:
        yield late

    late, results = Late(1), []
    task = Task(loop, steps(), results.append).start()
    task.stop()
    late.resume(1)
    assert results == []


def test_lost_connection_ends_steps_without_a_result(loop: Loop) -> None:
    def steps() -> Steps[None]:
        yield Come(1)
        raise ConnectionLostError

    results: list[None] = []
    Task(loop, steps(), results.append).start()
    assert results == []


def test_other_errors_propagate_out_of_the_loop(loop: Loop) -> None:
    def steps() -> Steps[None]:
        yield Until(loop.now)
        raise ValueError("bug")

    Task(loop, steps()).start()
    with pytest.raises(ValueError, match="bug"):
        loop.turn(loop.now + 20.0)
