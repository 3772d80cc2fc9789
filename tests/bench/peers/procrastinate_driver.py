"""procrastinate in its best configuration: 30 jobs at once, a pool of 20 connections."""

import asyncio
import logging

import procrastinate
from common import Handle, main, sql

CONCURRENCY, CONNECTIONS = 30, 20


class ProcrastinatePeer:
    """An App on the database of PG*."""

    async def prepare(self) -> None:
        logging.getLogger("procrastinate").setLevel(logging.ERROR)
        self.app = procrastinate.App(connector=procrastinate.PsycopgConnector(min_size=1, max_size=CONNECTIONS))
        self.handle: Handle = lambda: None
        self.noop = self.app.task(name="noop")(self._noop)
        await self.app.open_async()
        if not sql("select count(*) from pg_class where relname = 'procrastinate_jobs'"):
            await self.app.schema_manager.apply_schema_async()
        sql("truncate procrastinate_jobs, procrastinate_events cascade")

    async def enqueue(self, count: int) -> None:
        await self.noop.batch_defer_async(*[{"seq": 0}] * count)

    async def work(self, handle: Handle) -> None:
        self.handle = handle
        await self.app.run_worker_async(concurrency=CONCURRENCY, install_signal_handlers=False)

    def remaining(self) -> int:
        return sql("select count(*) from procrastinate_jobs where status in ('todo', 'doing')")

    async def _noop(self, seq: int) -> None:
        self.handle()


asyncio.run(main(ProcrastinatePeer()))
