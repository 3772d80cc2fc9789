"""pgqueuer in its best configuration: batches of 1,000, a pool of asyncpg's connections, uvloop."""

import asyncpg
import uvloop
from common import Handle, main, sql
from pgqueuer import PgQueuer
from pgqueuer.queries import Queries

BATCH = 1000


class PgqueuerPeer:
    """A PgQueuer on the database of PG*."""

    async def prepare(self) -> None:
        self.pool = await asyncpg.create_pool(min_size=2, max_size=5)
        self.queries = Queries.from_asyncpg_pool(self.pool)
        if not sql("select count(*) from pg_class where relname = 'pgqueuer'"):
            await self.queries.install()
        sql("truncate pgqueuer, pgqueuer_log, pgqueuer_statistics")

    async def enqueue(self, count: int) -> None:
        await self.queries.enqueue(["noop"] * count, [b"0"] * count, [0] * count)

    async def work(self, handle: Handle) -> None:
        worker = PgQueuer.from_asyncpg_pool(self.pool)

        @worker.entrypoint("noop")
        async def noop(_job: object) -> None:
            handle()

        await worker.run(batch_size=BATCH)

    def remaining(self) -> int:
        return sql("select count(*) from pgqueuer")


uvloop.run(main(PgqueuerPeer()))
