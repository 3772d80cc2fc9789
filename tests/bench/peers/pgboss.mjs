// pg-boss in its best configuration: batches of 1,000, fetched again at once while they are full, by two workers.
import { main, require, sql } from './common.mjs'

const { PgBoss } = require('pg-boss')
const boss = new PgBoss({ max: 10, schedule: false, useListenNotify: true })
boss.on('error', error => console.error(error))
const options = { batchSize: 1000, pollingIntervalSeconds: 0.5, burstWhenBatchFull: true, localConcurrency: 2 }

await main({
  async prepare () {
    await boss.start()
    if (await boss.getQueue('noop') === null) await boss.createQueue('noop', { notify: true })
    await sql('delete from pgboss.job')
  },
  enqueue: count => boss.insert('noop', Array.from({ length: count }, () => ({ data: { seq: 0 } }))),
  work: handle => boss.work('noop', options, async jobs => jobs.forEach(handle)),
  remaining: async () =>
    Number((await sql("select count(*) n from pgboss.job where name = 'noop' and state < 'completed'"))[0].n)
})
