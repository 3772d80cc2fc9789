#!/usr/bin/env bash
# Queue a job by psql, show how far it is until it ends, and cancel it at Ctrl-C: follow.sh [--sql] TYPE ARGUMENT
#
# With --sql the argument is a query, each of whose rows is a work item. The database is that of PGSERVICE, PGHOST,
# PGDATABASE, PGUSER and the like; the user is a member of drover_frontend, or of drover_frontend_sql. The exit status
# is 0 if the job is done. See drover-jobqueue(7).
#
# psql prints notifications when it has run a statement, so this runs an empty one five times a second. It looks at the
# job when that was announced, or after a second: progress is no event, but saved about once a second.
set -euo pipefail

columns='jq_type, jq_args' values=":'type', :'argument'"
if [ "$1" = --sql ]; then
  columns+=', jq_msq' values+=', true'
  shift
fi

# psql has a session of its own, so that Ctrl-C reaches this shell alone.
coproc PSQL { LC_ALL=C exec setsid psql -XAtq -v ON_ERROR_STOP=1 -v type="$1" -v argument="$2"; }
trap '' PIPE # psql ends at the first error, maybe before it has read all: then printf fails, which is no signal

# Run a statement: its last row is in $row then, and $is_announced says whether a notification named the job.
job=none is_announced=
run() {
  local line
  printf '%s;\n\\echo .\n' "$1" >&"${PSQL[1]}"
  while IFS= read -r line <&"${PSQL[0]}" || exit 1; [ "$line" != . ]; do
    case $line in
      Asynchronous*\"jq_pk\"*) if [[ $line =~ \"jq_pk\"\ *:\ *$job[,}] ]]; then is_announced=yes; fi ;;
      *) row=$line ;;
    esac
  done
}

run 'listen drover_event' # before the insert, or the end of a short job is missed
run "insert into drover.jobqueue ($columns) values ($values) returning jq_pk"
job=$row
echo "job $job queued"

is_interrupted='' shown=''
trap 'is_interrupted=yes' INT
while true; do
  run "select jq_state, jq_itemsprocessed, jq_itemstotal, jq_endtext from drover.my_jobs where jq_pk = $job"
  IFS='|' read -r state items total text <<<"$row"
  if [ "$state" = running ] && [ "${total:-0}" -gt 0 ]; then text="$items of $total items"; fi
  line="job $job $state${text:+: $text}"
  if [ "$line" != "$shown" ] && [ "$state" != queued ]; then echo "$line"; fi
  shown=$line
  case $state in
    done) exit 0 ;;
    failed | cancelled | ignored | skipped) exit 1 ;;
  esac
  if [ -n "$is_interrupted" ]; then run "select drover.command('cancel $job')"; fi
  is_interrupted='' is_announced=''
  for _ in 1 2 3 4 5; do
    sleep 0.2 || true # Ctrl-C ends it
    run ''
    if [ -n "$is_announced$is_interrupted" ]; then break; fi
  done
done
