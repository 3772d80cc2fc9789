"""awa in its best configuration here: queue storage, jobs enqueued by COPY, 1,024 jobs at once, uvloop."""

import asyncio
import os
from dataclasses import dataclass
from urllib.parse import quote

import uvloop
from awa import AsyncClient, Client
from common import Handle, main

QUEUE = "noop"
WORKERS, CONNECTIONS = 1024, 20


@dataclass
class Noop:
    """The arguments of a job."""

    seq: int


class AwaPeer:
    """An AsyncClient on the database of PG*."""

    async def prepare(self) -> None:
        self.client = AsyncClient(_url(), max_connections=CONNECTIONS)
        await self.client.migrate()
        await self.client.install_queue_storage(reset=True)

    async def enqueue(self, count: int) -> None:
        await self.client.enqueue_many_copy([Noop(0)] * count, queue=QUEUE)

    async def work(self, handle: Handle) -> None:
        @self.client.task(Noop, queue=QUEUE)
        async def noop(_job: object) -> None:
            handle()

        await self.client.start([{"name": QUEUE, "max_workers": WORKERS}])
        await asyncio.Event().wait()  # start() returns at once

    def remaining(self) -> int:
        stats = Client(_url(), max_connections=1).queue_stats()
        return sum(each.total_queued + each.running for each in stats)


def _url() -> str:
    user, host, port, name = (os.environ[f"PG{word}"] for word in ("USER", "HOST", "PORT", "DATABASE"))
    return f"postgres://{user}@localhost:{port}/{name}?host={quote(host)}"


uvloop.run(main(AwaPeer()))
