#!/usr/bin/env node
// Queue a job, show how far it is until it ends, and cancel it at Ctrl-C: node follow.js [--sql] TYPE ARGUMENT
//
// With --sql the argument is a query, each of whose rows is a work item. The database is that of PGHOST, PGDATABASE,
// PGUSER and the like; the user is a member of drover_frontend, or of drover_frontend_sql. The exit status is 0 if the
// job is done. Needs `npm install pg`. See drover-jobqueue(7).
'use strict';
const { Client } = require('pg');

const QUEUE = 'insert into drover.jobqueue (jq_type, jq_args) values ($1, $2) returning jq_pk';
const QUEUE_SQL = 'insert into drover.jobqueue (jq_type, jq_args, jq_msq) values ($1, $2, true) returning jq_pk';
const LOOK = `
select jq_state, jq_itemsprocessed, jq_itemstotal, jq_endtext from drover.my_jobs where jq_pk = $1`;
const ENDS = ['done', 'failed', 'cancelled', 'ignored', 'skipped'];

async function main() {
  const isSql = process.argv[2] === '--sql';
  const [type, argument] = process.argv.slice(isSql ? 3 : 2);
  const queue = new Client();
  await queue.connect();
  await queue.query('listen drover_event'); // before the insert, or the end of a short job is missed
  const job = (await queue.query(isSql ? QUEUE_SQL : QUEUE, [type, argument])).rows[0].jq_pk;
  console.log(`job ${job} queued`);
  process.on('SIGINT', () => queue.query('select drover.command($1)', [`cancel ${job}`]));
  const state = await follow(queue, job);
  await queue.end();
  process.exitCode = state === 'done' ? 0 : 1;
}

async function follow(queue, job) {
  let wake = () => {};
  queue.on('notification', (note) => {
    // In a row jq_pk is a string, since a bigint may be more than a Number holds; in an event it is a Number.
    if (JSON.parse(note.payload).some((event) => String(event.jq_pk) === job)) wake();
  });
  for (let shown = ''; ; ) {
    // A second at most: progress is no event, but saved about once a second.
    const changed = new Promise((resolve) => { wake = resolve; });
    const row = (await queue.query(LOOK, [job])).rows[0];
    const line = `job ${job} ${row.jq_state}${told(row)}`;
    if (line !== shown && row.jq_state !== 'queued') console.log(line);
    shown = line;
    if (ENDS.includes(row.jq_state)) return row.jq_state;
    await Promise.race([changed, new Promise((resolve) => setTimeout(resolve, 1000))]);
  }
}

function told(row) {
  if (row.jq_state === 'running' && row.jq_itemstotal > 0) return `: ${row.jq_itemsprocessed} of ${row.jq_itemstotal} items`;
  return row.jq_endtext ? `: ${row.jq_endtext}` : '';
}

main().catch((error) => {
  console.error(error.message);
  process.exit(1); // the connection is open, and would keep the program alive
});
