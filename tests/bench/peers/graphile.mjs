// graphile-worker in its best configuration: 24 jobs at once, a local queue of 500, completions in batches.
import { main, require, sql } from './common.mjs'

const { Logger, makeWorkerUtils, run, runMigrations } = require('graphile-worker')
const { Pool } = require('pg')
const pgPool = new Pool({ max: 10 })
pgPool.on('error', () => {})
pgPool.on('connect', client => client.on('error', () => {}))
const logger = new Logger(() => () => {})
const worker = {
  concurrentJobs: 24, pollInterval: 2000, localQueue: { size: 500 }, completeJobBatchDelay: 0, failJobBatchDelay: 0
}
let utils

await main({
  async prepare () {
    await runMigrations({ pgPool, logger })
    await sql('truncate graphile_worker._private_jobs')
    utils = await makeWorkerUtils({ pgPool, logger })
  },
  enqueue: count => utils.addJobs(Array.from({ length: count }, () => ({ identifier: 'noop', payload: { seq: 0 } }))),
  work: async handle => {
    await run({ pgPool, logger, taskList: { noop: () => { handle() } }, parsedCronItems: [], preset: { worker } })
  },
  remaining: async () => Number((await sql('select count(*) n from graphile_worker._private_jobs'))[0].n)
})
