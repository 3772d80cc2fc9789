"""What the drivers in Python share: `DRIVER.py drain JOBS` or `DRIVER.py serve`; common.mjs tells what they print."""

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

import psycopg

CHUNK = 5000  # jobs of one insert
LOOK_S = 0.005  # between two looks at what is left, after the last handler was called
SETTLE_S = 3.0  # until a worker that has just started is idle

Handle = Callable[[], None]


class Peer(Protocol):
    """A queue whose workers call `handle` for every job; `work` returns when they are stopped, so never."""

    async def prepare(self) -> None: ...
    async def enqueue(self, count: int) -> None: ...
    def work(self, handle: Handle) -> Awaitable[None]: ...
    def remaining(self) -> int: ...


def sql(text: str) -> int:
    """Run a statement on a connection of its own; the one number that it gives, or 0."""
    with psycopg.connect("", autocommit=True) as connection:
        cursor = connection.execute(text.encode())
        row = cursor.fetchone() if cursor.description else None
        return int(row[0]) if row else 0


async def drain(peer: Peer, jobs: int) -> None:
    """Queue the jobs, let the server come to rest, and time the way to an empty queue."""
    for left in range(jobs, 0, -CHUNK):
        await peer.enqueue(min(left, CHUNK))
    for text in ("vacuum analyze", "checkpoint"):
        sql(text)
    print("begin", flush=True)
    instants: list[float] = []
    done = asyncio.Event()

    def handle() -> None:
        instants.append(time.monotonic())
        if len(instants) == jobs:
            done.set()

    worker = asyncio.ensure_future(peer.work(handle))
    await asyncio.wait([worker, asyncio.ensure_future(done.wait())], return_when=asyncio.FIRST_COMPLETED)
    while peer.remaining():
        await asyncio.sleep(LOOK_S)
    print(json.dumps({"jobs": jobs, "seconds": time.monotonic() - instants[0]}), flush=True)
    os._exit(0)  # workers end in good order only after many seconds


async def serve(peer: Peer) -> None:
    """Tell the instant at which each job's handler was called, until killed."""
    worker = asyncio.ensure_future(peer.work(lambda: print(time.monotonic_ns(), flush=True)))
    await asyncio.sleep(SETTLE_S)
    print("ready", flush=True)
    await worker


async def main(peer: Peer) -> None:
    """Do what the command line says."""
    verb, *words = sys.argv[1:]
    await peer.prepare()
    await (drain(peer, int(words[0])) if verb == "drain" else serve(peer))
