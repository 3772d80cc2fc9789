#!/usr/bin/env php
<?php
// Queue a job, show how far it is until it ends, and cancel it at Ctrl-C: php follow.php [--sql] TYPE ARGUMENT
//
// With --sql the argument is a query, each of whose rows is a work item. The database is that of PGSERVICE, PGHOST,
// PGDATABASE, PGUSER and the like; the user is a member of drover_frontend, or of drover_frontend_sql. The exit status
// is 0 if the job is done. Needs the extension pgsql; with PDO, pgsqlGetNotify() waits for an event. See
// drover-jobqueue(7).

const QUEUE = 'insert into drover.jobqueue (jq_type, jq_args) values ($1, $2) returning jq_pk';
const QUEUE_SQL = 'insert into drover.jobqueue (jq_type, jq_args, jq_msq) values ($1, $2, true) returning jq_pk';
const LOOK = 'select jq_state, jq_itemsprocessed, jq_itemstotal, jq_endtext from drover.my_jobs where jq_pk = $1';
const ENDS = ['done', 'failed', 'cancelled', 'ignored', 'skipped'];

function row($queue, string $statement, array $values): array
{
    $result = pg_query_params($queue, $statement, $values) or exit(1); // the reason is printed as a warning
    return pg_fetch_assoc($result);
}

function follow($queue, string $job): int
{
    $interrupted = false;
    pcntl_async_signals(true);
    pcntl_signal(SIGINT, function () use (&$interrupted) { $interrupted = true; });
    for ($shown = ''; ; wait($queue, $job)) {
        $row = row($queue, LOOK, [$job]);
        $line = "job $job {$row['jq_state']}" . told($row);
        if ($line !== $shown && $row['jq_state'] !== 'queued') {
            print "$line\n";
        }
        $shown = $line;
        if (in_array($row['jq_state'], ENDS)) {
            return $row['jq_state'] === 'done' ? 0 : 1;
        }
        if ($interrupted) {
            row($queue, 'select drover.command($1)', ["cancel $job"]);
            $interrupted = false;
        }
    }
}

function told(array $row): string
{
    if ($row['jq_state'] === 'running' && $row['jq_itemstotal'] > 0) {
        return ": {$row['jq_itemsprocessed']} of {$row['jq_itemstotal']} items";
    }
    return $row['jq_endtext'] ? ": {$row['jq_endtext']}" : '';
}

// Wait for a new state of the job, or for a second: progress is no event, but saved about once a second.
function wait($queue, string $job): void
{
    $deadline = microtime(true) + 1;
    while (($left = $deadline - microtime(true)) > 0) {
        while ($note = pg_get_notify($queue)) {
            foreach (json_decode($note['payload']) as $event) {
                if ((string) $event->jq_pk === $job) { // a string in a row, an integer in an event
                    return;
                }
            }
        }
        $read = [pg_socket($queue)];
        $none = null;
        if (@stream_select($read, $none, $none, 0, (int) ($left * 1e6)) === false) {
            return; // a signal
        }
    }
}

$words = array_slice($argv, 1);
$isSql = $words[0] === '--sql' && array_shift($words);
$queue = pg_connect('') or exit(1);
pg_query($queue, 'listen drover_event'); // before the insert, or the end of a short job is missed
$job = row($queue, $isSql ? QUEUE_SQL : QUEUE, $words)['jq_pk'];
print "job $job queued\n";
exit(follow($queue, $job));
