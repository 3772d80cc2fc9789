// What the drivers in Node share: `node DRIVER.mjs drain JOBS` or `node DRIVER.mjs serve`.
//
// The database is that of PG* in the environment, the packages are those of $PEERS_HOME. `drain` prints "begin" before
// its worker starts, from when on the bench counts CPU time, and then one JSON line, {"jobs": N, "seconds": S}, from the
// first call of a handler to the moment the queue has nothing left; `serve` prints
// "ready" and then, for every job, the instant at which its handler was called, in monotonic nanoseconds.
import { createRequire } from 'node:module'
import { writeSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'

export const require = createRequire(process.env.PEERS_HOME + '/peers.js')
const { Client } = require('pg')
const CHUNK = 5000 // jobs of one insert
const LOOK_MS = 5 // between two looks at what is left, after the last handler was called
const SETTLE_MS = 3000 // until a worker that has just started is idle

const now = () => process.hrtime.bigint()
const say = text => writeSync(1, text + '\n')

export async function sql (text) {
  const client = new Client()
  await client.connect()
  const { rows } = await client.query(text)
  await client.end()
  return rows
}

async function drain ({ enqueue, work, remaining }, jobs) {
  for (let left = jobs; left > 0; left -= CHUNK) await enqueue(Math.min(left, CHUNK))
  for (const text of ['vacuum analyze', 'checkpoint']) await sql(text)
  say('begin')
  let first
  let called = 0
  await new Promise((resolve, reject) => {
    const handle = () => {
      first ??= now()
      if (++called === jobs) resolve()
    }
    work(handle).catch(reject)
  })
  while (await remaining() > 0) await sleep(LOOK_MS)
  say(JSON.stringify({ jobs, seconds: Number(now() - first) / 1e9 }))
}

async function serve ({ work }) {
  work(() => say(String(now())))
  await sleep(SETTLE_MS)
  say('ready')
  await new Promise(() => {})
}

// A peer: prepare() gives it an empty queue, enqueue(n), work(handle) starts the workers, remaining() counts jobs.
export async function main (peer) {
  const [verb, jobs] = process.argv.slice(2)
  await peer.prepare()
  await (verb === 'drain' ? drain(peer, Number(jobs)) : serve(peer))
  process.exit(0)
}
