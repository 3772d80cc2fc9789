-- Every statement of the daemon, by name. Parameters are `:name`. A fragment is a text that queries share: it is
-- defined above its uses, and drivers/statements.py inserts it where a query has its name in double braces.
--
-- Time is that of the database. Each statement is a transaction of its own, at isolation level read committed.
-- Lock order: scheduler_group, then rows of jobqueue.
-- Fencing: an update of a job in hand names pk, attempt and owner, and the state it expects. A daemon that has lost the
-- row changes nothing (0 rows). A statement that claims rows also inserts them into drover.in_hand.
-- Rows are matched by `between x and x` where `=` would let the planner merge with the whole index: that looks cheap
-- while a table is small, and plans are kept.
-- Names in all queries: `lease` is the row of our group, locked; `command` the row of the command that is carried out,
-- locked; `changed` what the command changed; `announced` the notifications. A row that another session has locked is
-- skipped, because the connection that would wait for it also renews the lease.

-- fragment: owns_group
-- The daemon is the owner of the group and its lease has not run out.
group_name = :group::text and group_owner = :owner::uuid and group_lease_until > now()

-- fragment: lease
-- The row of the group if we own it, locked until the end of the statement: no other daemon can take over meanwhile.
-- Our lease can be renewed: that is no update of a key. Who changes the owner locks the row for update, by a trigger.
lease as materialized (
  select 1 from drover.scheduler_group
   where {{owns_group}}
     for key share)

-- fragment: ownership
-- The same, but our lease may have run out: as long as no other daemon has taken over, what we have in hand is ours.
ownership as materialized (
  select group_lease_until > now() as is_valid from drover.scheduler_group
   where group_name = :group::text and group_owner = :owner::uuid
     for key share)

-- fragment: may_be_in_hand
-- The row of job `j` does not say whether it is in hand: it is if it has no token.
(j.jq_state = 'queued' and j.jq_unmet = 0 and j.jq_wait_until is null and j.jq_type <> 'command')

-- fragment: is_free
-- Job `j` is not in hand. One with neither token nor record is not either, as after an insert without triggers: no
-- claim finds it until it was held and released. A claim that comes in between is found by drover.withdraw.
(j.jq_state not in ('claimed', 'running')
 and (not {{may_be_in_hand}} or drover.has_token(j)
      or not exists (select from drover.in_hand where j.jq_pk = any (hand_jobs))))

-- fragment: is_in_hand
-- We have job `j` in hand as `u.attempt`: its row says so, or it was claimed by record and we own the group.
(j.jq_state = 'queued' and j.jq_attempt = u.attempt - 1 and j.jq_type <> 'command' and exists (select from ownership)
 or j.jq_owner = :owner::uuid and j.jq_attempt = u.attempt and (j.jq_state = 'claimed' or j.jq_state = 'running'))

-- fragment: holds_lease
-- The same without a lock, for a command: what it changes is guarded by the state of the job, and the command is marked
-- in the same statement, so that a daemon that takes over does not carry it out again.
exists (select from drover.scheduler_group where {{owns_group}})

-- fragment: command
-- The row of the command, if it has not ended and we hold the lease.
command as materialized (
  select jq_pk from drover.jobqueue
   where jq_pk = :command::bigint and jq_state = 'queued' and {{holds_lease}}
     for no key update skip locked)

-- fragment: took_effect
-- Mark the command in the statement that carries it out: the daemon that ends the command may be another one.
took_effect as (
  update drover.jobqueue j set jq_endtext = 'took effect' from command
   where j.jq_pk between command.jq_pk and command.jq_pk and exists (select from changed))

-- fragment: argument
-- The parameter or the SQL of a job. Of one that is too long only the beginning, one byte more than is allowed.
case when octet_length(jq_args) <= 1048577 then jq_args
     else left(jq_args, case when jq_msq then 16777217 else 1048577 end) end

-- fragment: variables_json
-- The variables of a job as JSON. None if they are longer than 16 MiB.
case when drover.json_bytes(jq_variables) <= 16777216 then jq_variables::text end

-- fragment: has_details
-- The job is more than one parameter: `claimed` must return the details.
jq_msq or jq_timeout is not null or jq_retries <> 0 or jq_failures > 0 or jq_rescued >= least(:unread::integer, 1)
or jq_variables is not null or jq_type = any (:guarded::text[])

-- fragment: details
-- All that the daemon needs of a job beside its parameter. Submitters are compared with roles for `guarded` types only.
json_build_object(
  'msq', jq_msq, 'runonpfile', jq_runonpfile, 'key', jq_key, 'tolerate', jq_tolerate, 'repeat', jq_repeat,
  'timeout', extract(epoch from jq_timeout), 'retries', jq_retries, 'failures', jq_failures,
  'rescued', jq_rescued, 'interruptions', jq_interruptions, 'max_interruptions', jq_max_interruptions,
  'itemsfailed', jq_itemsfailed, 'itemsprocessed', case when jq_msq then jq_itemsprocessed end,
  'elapsed', case when jq_msq then extract(epoch from jq_elapsedtime) end,
  'busy', case when jq_msq then extract(epoch from jq_processedtime) end,
  'variables', case when jq_rescued < :unread::integer then drover.texts(jq_variables) end,
  'variables_json', case when jq_rescued < :unread::integer then {{variables_json}} end,
  'is_oversized', jq_rescued < :unread::integer and drover.json_bytes(jq_variables) > 16777216,
  'checkpoint', case when jq_rescued < :unread::integer then jq_checkpoint end,
  'unread', jq_rescued >= :unread::integer,
  'submitter', jq_submitter,
  'roles', case when jq_type = any (:guarded::text[]) then drover.roles_of(jq_submitter) end)

-- fragment: ended
-- End the plain successes of the last batch: one for each of `pks`, and of `ages`, microseconds since the claim, and
-- `micros`, of agent time. The other arrays may be shorter: their last element holds for all that follow. `places` says
-- which of `hosts` it was. To take elements of arrays costs half of what `unnest` costs, which stores every column.
ended as (
  update drover.jobqueue j
     set jq_state = 'done', jq_attempt = u.attempt,
         jq_starttime = coalesce(j.jq_starttime, now() - u.age * interval '1 microsecond'),
         jq_endtime = now(), jq_end_bits = 1, jq_endtext = 'all data processed',
         jq_exitcode = u.code, jq_signal = null, jq_owner = null, jq_schedinfo = null, jq_itemsprocessed = 1,
         jq_itemstotal = 1,
         jq_elapsedtime = coalesce(now() - jq_starttime, u.age * interval '1 microsecond'),
         jq_processedtime = u.micros * interval '1 microsecond',
         jq_done_by = :owner::uuid, jq_done_host = (:hosts::text[])[u.place], jq_done_pid = u.pid
    from (select n, (:pks::bigint[])[n] as pk, (:ages::bigint[])[n] as age, (:micros::bigint[])[n] as micros,
                 (:attempts::integer[])[least(n, cardinality(:attempts::integer[]))] as attempt,
                 (:places::integer[])[least(n, cardinality(:places::integer[]))] as place,
                 (:pids::integer[])[least(n, cardinality(:pids::integer[]))] as pid,
                 (:codes::integer[])[least(n, cardinality(:codes::integer[]))] as code
            from generate_series(1, cardinality(:pks::bigint[])) as n) u
   where j.jq_pk between u.pk and u.pk and {{is_in_hand}}
  returning j.jq_pk, j.jq_has_children, j.jq_job_fk, u.n, jq_type, jq_queue, jq_host, jq_submitter, jq_queued,
            jq_starttime, jq_urgent, jq_priority),
counted as (  -- which the trigger `moved` leaves to this statement
  insert into drover.job_change
  select drover.zone_of(jq_pk), jq_type, coalesce(jq_queue, ''), coalesce(jq_host, ''), jq_submitter, 'queued', 'done',
         count(*), min(jq_queued), now(), max(extract(epoch from jq_starttime - jq_queued)),
         max(extract(epoch from now() - jq_starttime)), min(drover.rank(jq_urgent, jq_priority))
    from ended group by 1, 2, 3, 4, 5)

-- fragment: announced
-- Tell who listens of these ends, and record them for those who subscribed.
announced as materialized (
  -- not by drover.announce, which would look up the job groups that are known here
  select drover.notify('drover_event', '[' || string_agg(events, ',') || ']'),
         case when drover.has_subscriptions() then drover.record_ends('[' || string_agg(events, ',') || ']') end
    from (
    select chunk, '{"jq_pk":' || string_agg(jq_pk::text, ',"state":"done","job_pk":' || job || '},{"jq_pk":')
                  || ',"state":"done","job_pk":' || job || '}' as events
      from (select jq_pk, n / 100 as chunk, coalesce(jq_job_fk::text, 'null') as job from ended) e
     group by chunk, job) c
   group by chunk)

-- fragment: summary_of_ends
-- In the columns of a claim `attempt`: how many jobs ended; `args`: those that have children; `more`: the jobs that
-- ended, if not all did.
(select s.*
   from (select count(*) from announced) as all_of_them,
        (select count(*)::integer as attempt, string_agg(case when jq_has_children then jq_pk::text end, ',') as args,
                case when count(*) < cardinality(:pks::bigint[])
                     then coalesce(array_to_string(array_agg(jq_pk), ','), '') end as more
           from ended) s)

-- fragment: claimed
-- Claim rows. Each claim request is a row of the `want_` arrays: type, queue and host ('' for any), the rank it stays
-- below, the place in the order it begins after, and how many rows. A row that was rescued `unread` times is claimed
-- without its contents: if reading them fails, or kills the daemon, reading them with every claim would do so for ever.
picked as materialized (  -- the jobs to take, their tokens locked; rows too that the claim writes, or that were locked
  select w.n, c.*
    from ownership,
         unnest(:want_types::text[], :want_queues::text[], :want_hosts::text[], :want_below::text[],
                :want_ranks::text[], :want_queued::timestamptz[], :want_pks::bigint[], :want_counts::integer[])
           with ordinality as w(type, queue, host, below, rank, queued, pk, most, n),
         lateral (
           select t.ctid as place, cardinality(claim_jobs) as size, claim_rank, claim_queued, claim_line,
                  claim_by_record, s.*, locked_at
             from drover.claimable t
            cross join lateral (select unnest(coalesce(claim_jobs, array[claim_first])) as pk) u
            cross join lateral (
               select jq_pk as pk, claim_by_record and xmax = '0' as is_untouched, jq_attempt + 1 as attempt,
                      case when claim_by_record and :unread::integer > 0 then {{argument}} else '' end as args,
                      case when not claim_by_record then null
                           when {{has_details}} then {{details}}::text
                           when claim_line is not null then to_json(jq_submitter)::text end as details
                 from drover.jobqueue where jq_pk between u.pk and u.pk and jq_state = 'queued') s
             left join lateral (
               select ctid as locked_at from drover.jobqueue
                where not is_untouched and jq_pk between u.pk and u.pk and jq_state = 'queued'
                  and (jq_expires_at is null or jq_expires_at > now())
                  for no key update skip locked) l on true
            where claim_type = w.type and claim_queue = w.queue and claim_host = w.host and claim_rank < w.below
              and (claim_rank, claim_queued, claim_first) >= (w.rank, w.queued, drover.block_of(w.pk))
              and (claim_rank, claim_queued, u.pk) > (w.rank, w.queued, w.pk)
              and (is_untouched or locked_at is not null)
            order by claim_rank, claim_queued, claim_first
            limit w.most
              for update of t skip locked) c
   where ownership.is_valid),
marked as (
  update drover.jobqueue j
     set jq_state = 'claimed', jq_attempt = jq_attempt + 1, jq_owner = :owner::uuid, jq_schedinfo = :schedinfo::text,
         jq_starttime = coalesce(jq_first_start, now()),
         jq_attempt_start = case when jq_first_start is not null then now() end,
         jq_endtext = 'in progress'
    from picked p
   where j.ctid = p.locked_at and not p.claim_by_record
  returning p.place, p.size, j.jq_pk, jq_attempt, p.n, p.claim_rank, p.claim_queued,
            case when jq_rescued < :unread::integer then {{argument}} else '' end as jq_args,
            case when {{has_details}} then {{details}}::text
                 when p.claim_line is not null then to_json(jq_submitter)::text end as more),
claimed as (  -- the rows of jobs that are claimed by record are left as they are
  select place, size, pk as jq_pk, attempt as jq_attempt, n, claim_rank, claim_queued, args as jq_args,
         details as more, false as is_marked
    from picked where claim_by_record
   union all
  select *, true from marked),
taken as (delete from drover.claimable where ctid = any (array(select place from claimed))),
cut as materialized (  -- the tokens of which jobs are left
  select place, array_agg(jq_pk) as jobs from claimed where size > 0 group by place having count(*) < max(size)),
put_back as (
  insert into drover.claimable (claim_first, claim_jobs, claim_queued, claim_type, claim_queue, claim_host, claim_rank,
                                claim_by_record)
  select rest[1], rest, claim_queued, claim_type, claim_queue, claim_host, claim_rank, claim_by_record
    from cut join drover.claimable t on t.ctid = cut.place cross join lateral (
      select array(select pk from unnest(claim_jobs) as pk where pk <> all (cut.jobs)) as rest) r),
noted as (insert into drover.in_hand select :owner::uuid, array_agg(jq_pk) from claimed having count(*) > 0)

-- fragment: lapsed
-- In column `rank` of the summary 'lapsed' if we do not hold the lease, so that nothing could be claimed.
case when cardinality(:want_types::text[]) > 0 and not exists (select from ownership where is_valid) then 'lapsed' end

-- name: end_and_claim
-- End the plain successes of the last batch, and claim rows.
--
-- The first row of the answer is the summary, in the columns of a claim, with the time of the statement in `queued`.
-- Then follows a row for each claim, with the number of its request in `want`, in the order to run them: how far a
-- request got says the last of its rows.
-- The claim does not see what `ended` changes: both read the same snapshot.
with {{ownership}},
{{ended}},
{{announced}},
{{claimed}},
answer as (
  select null::bigint as jq_pk, attempt, null as want, args, {{lapsed}} as rank, more, null::boolean as is_marked,
         now() as queued
    from {{summary_of_ends}} e
   union all
  select jq_pk, jq_attempt, n::text, jq_args, claim_rank, more, is_marked, claim_queued from claimed)
select jq_pk, attempt, want, args, rank, more, is_marked, queued
  from answer
 order by jq_pk is not null, rank collate "C", queued, jq_pk

-- name: only_end
-- The same when nothing is to be claimed. To prepare a statement costs more than a lone job does: what is not needed is
-- left out.
with {{ownership}},
{{ended}},
{{announced}}
select null, attempt, null, args, null, more, null, null from {{summary_of_ends}} e

-- name: only_claim
-- The same when nothing has ended.
with {{ownership}},
{{claimed}},
answer as (
  select null::bigint as jq_pk, null::integer as attempt, null as want, null as args, {{lapsed}} as rank, null as more,
         null::boolean as is_marked, now() as queued
   union all
  select jq_pk, jq_attempt, n::text, jq_args, claim_rank, more, is_marked, claim_queued from claimed)
select jq_pk, attempt, want, args, rank, more, is_marked, queued
  from answer
 order by jq_pk is not null, rank collate "C", queued, jq_pk

-- name: read_claimed
-- Return the contents of rows in hand that were claimed without them, as query `end_and_claim` does.
with {{ownership}}
select j.jq_pk, {{argument}},
       json_build_object(
         'variables', drover.texts(jq_variables),
         'variables_json', {{variables_json}},
         'is_oversized', drover.json_bytes(jq_variables) > 16777216,
         'checkpoint', jq_checkpoint)::text
  from unnest(:pks::bigint[], :attempts::integer[]) as u(pk, attempt)
  join drover.jobqueue j on j.jq_pk between u.pk and u.pk
 where {{is_in_hand}}

-- name: save
-- Save what is not a plain success: other ends, rows that go back to the queue, and progress of rows still in hand,
-- together with the items that failed. `retry_in` is seconds from now, times a random half to one if `jitter`. `took`
-- is of this attempt; `elapsed` and `busy` of an SQL job are of all its attempts, and it keeps its first start.
with {{ownership}},
u as materialized (
  select * from jsonb_to_recordset(:rows::jsonb) as u(
    pk bigint, attempt integer, state text, bits integer, text text, outcome text, code integer, signal text,
    result jsonb, processed bigint, failed bigint, total bigint, elapsed float8, busy float8, took float8,
    remaining float8, failures integer, interruptions integer, retry_in float8, jitter boolean, checkpoint jsonb,
    back boolean, host text, agent text, pid integer)),
saved as (
  update drover.jobqueue j
     set jq_state = u.state::drover.job_state, jq_attempt = u.attempt,
         jq_starttime = case when u.state not in ('queued', 'blocked')
                             then coalesce(j.jq_starttime, now() - make_interval(secs => coalesce(u.elapsed, 0))) end,
         jq_first_start = case when u.state in ('queued', 'blocked') and j.jq_msq and u.busy > 0 then j.jq_starttime
                               else j.jq_first_start end,
         jq_endtime = case when u.state in ('done', 'failed', 'cancelled') then now() end,
         jq_end_bits = coalesce(u.bits, 0), jq_endtext = coalesce(u.text, j.jq_endtext),
         jq_owner = case when u.state in ('claimed', 'running') then :owner::uuid end,
         jq_wanted = case when u.state in ('claimed', 'running') then j.jq_wanted end,
         jq_schedinfo = case when u.state in ('claimed', 'running') then j.jq_schedinfo end,
         jq_exitcode = u.code, jq_signal = u.signal, jq_result = coalesce(u.result, j.jq_result),
         jq_itemsprocessed = coalesce(u.processed, j.jq_itemsprocessed),
         jq_itemsfailed = coalesce(u.failed, j.jq_itemsfailed),
         jq_itemstotal = coalesce(u.total, j.jq_itemstotal),
         jq_elapsedtime = coalesce(make_interval(secs => u.elapsed), j.jq_elapsedtime),
         jq_processedtime = coalesce(make_interval(secs => u.busy), j.jq_processedtime),
         jq_expected_end = now() + make_interval(secs => u.remaining),
         jq_failures = coalesce(u.failures, j.jq_failures),
         jq_interruptions = coalesce(u.interruptions, j.jq_interruptions),
         jq_checkpoint = coalesce(u.checkpoint, j.jq_checkpoint),
         jq_retry_at = now() + make_interval(secs => r.delay),
         jq_wait_until = now() + make_interval(secs => r.delay),
         jq_queued = case when u.back then now() else j.jq_queued end,
         jq_done_host = case when u.state not in ('queued', 'blocked') and not j.jq_msq then u.host end,
         jq_done_pid = case when u.state not in ('queued', 'blocked') and not j.jq_msq then u.pid end
    from u, lateral (select u.retry_in * case when u.jitter then 0.5 + random() / 2 else 1 end as delay) r
   where j.jq_pk between u.pk and u.pk and {{is_in_hand}}
  returning j.jq_pk, j.jq_attempt, j.jq_has_children, u.state, u.outcome, u.code, u.signal, u.text, u.host, u.agent,
            u.pid, u.took),
history as (
  insert into drover.attempt_kept
    (att_jq_fk, att_attempt, att_scheduler, att_host, att_agent, att_pid, att_start, att_outcome, att_exitcode,
     att_signal, att_reason)
  select jq_pk, jq_attempt, :owner::uuid, host, agent, pid, now() - make_interval(secs => coalesce(took, 0)),
         outcome, code, signal, text
    from saved where outcome <> 'not begun'),  -- nor null, which is progress
failed as (
  insert into drover.item_failure
    (item_jq_fk, item_attempt, item_key, item_line, item_host, item_agent, item_pid, item_reason)
  select f.pk, f.attempt, f.key, f.line, f.host, f.agent, f.pid, f.reason
    from jsonb_to_recordset(:failures::jsonb) as f(
      pk bigint, attempt integer, key text, line text, host text, agent text, pid integer, reason text)
   where ((f.pk, f.attempt) in (select jq_pk, jq_attempt from saved)) is true),  -- a hashed subplan: a join need not be
announced as materialized (
  select drover.announce(array_agg(jq_pk), array_agg(state)) from saved
   where outcome is not null or state = 'running' having count(*) > 0)
select jq_pk, jq_has_children and outcome is not null from saved left join announced on true

-- name: mark
-- Show in their rows that jobs are in hand, `claimed` or `running`, and where; `ages` are microseconds since the claim.
-- A job that was rescued before is marked `running` before the first byte goes to an agent, so that a job that kills
-- the machine uses up its allowance; it is marked once more when an agent has it.
with {{ownership}},
marked as (
  update drover.jobqueue j
     set jq_state = u.state::drover.job_state, jq_attempt = u.attempt, jq_owner = :owner::uuid,
         jq_schedinfo = coalesce(j.jq_schedinfo, :schedinfo::text),
         jq_starttime = coalesce(j.jq_starttime, now() - u.age * interval '1 microsecond'),
         jq_endtext = case when j.jq_state = 'queued' then 'in progress' else j.jq_endtext end,
         jq_done_host = u.host, jq_done_pid = u.pid
    from unnest(:pks::bigint[], :attempts::integer[], :states::text[], :ages::bigint[], :hosts::text[],
                :pids::integer[]) as u(pk, attempt, state, age, host, pid)
   where j.jq_pk between u.pk and u.pk and {{is_in_hand}}
  returning j.jq_pk, j.jq_state),
announced as materialized (
  select drover.announce(array_agg(jq_pk), array_agg('running'::text)) from marked
   where jq_state = 'running' having count(*) > 0)
select jq_pk from marked left join announced on true

-- name: mark_detached
-- The same, where jobs among them are about to begin under a keeper: the next owner of the group finds them there.
with {{ownership}},
marked as (
  update drover.jobqueue j
     set jq_state = u.state::drover.job_state, jq_attempt = u.attempt, jq_owner = :owner::uuid,
         jq_schedinfo = coalesce(j.jq_schedinfo, :schedinfo::text),
         jq_starttime = coalesce(j.jq_starttime, now() - u.age * interval '1 microsecond'),
         jq_endtext = case when j.jq_state = 'queued' then 'in progress' else j.jq_endtext end,
         jq_done_host = u.host, jq_done_pid = u.pid
    from unnest(:pks::bigint[], :attempts::integer[], :states::text[], :ages::bigint[], :hosts::text[],
                :pids::integer[], :spools::text[]) as u(pk, attempt, state, age, host, pid, spool)
   where j.jq_pk between u.pk and u.pk and {{is_in_hand}}
  returning j.jq_pk, j.jq_attempt, j.jq_state, u.host, u.spool),
kept as (
  insert into drover.detached (det_jq_fk, det_attempt, det_group, det_host, det_spool)
  select jq_pk, jq_attempt, :group::text, host, spool from marked where spool is not null
  on conflict (det_jq_fk, det_attempt) do update set det_host = excluded.det_host, det_spool = excluded.det_spool),
announced as materialized (
  select drover.announce(array_agg(jq_pk), array_agg('running'::text)) from marked
   where jq_state = 'running' having count(*) > 0)
select jq_pk from marked left join announced on true

-- name: adopt
-- Take over the detached jobs of our types that run and that we do not have in hand: they go on as they are. `live` was
-- read after `before`, a time of the database, so one of ours that began earlier and is not in it was lost.
-- Their output is read anew from its beginning, so what is stored of this attempt is removed. In the columns of
-- `claimed`, then where each is kept.
with {{ownership}},
lost as materialized (
  select j.jq_pk, d.det_attempt
    from drover.detached d cross join ownership cross join lateral (
      select * from drover.jobqueue
       where jq_pk between d.det_jq_fk and d.det_jq_fk and jq_state = 'running' and jq_attempt = d.det_attempt
         and jq_type = any (:types::text[]) and not jq_pk = any (:live::bigint[])
         and (jq_owner <> :owner::uuid or d.det_since < :before::timestamptz)
         and jq_queue in (select queue_name from drover.queue where queue_group = :group::text)
         for no key update skip locked) j
   where d.det_group = :group::text),
turned as (
  update drover.detached d set det_turn = d.det_turn + 1 from lost
   where d.det_jq_fk = lost.jq_pk and d.det_attempt = lost.det_attempt
  returning d.det_jq_fk, d.det_host, d.det_spool, d.det_turn),
cleared as (
  delete from drover.output using lost where out_jq_fk = lost.jq_pk and out_attempt = lost.det_attempt),
adopted as (
  update drover.jobqueue j set jq_owner = :owner::uuid, jq_schedinfo = :schedinfo::text
    from turned where j.jq_pk between turned.det_jq_fk and turned.det_jq_fk
  returning j.jq_pk, j.jq_attempt, {{argument}} as args,
            case when j.jq_urgent then '0' else '1' end || j.jq_priority as rank,
            {{details}}::text as more, j.jq_type, j.jq_queue, coalesce(j.jq_host, '') as place, turned.det_host,
            turned.det_spool, turned.det_turn, coalesce(j.jq_wanted, '') as wanted,
            extract(epoch from now() - coalesce(j.jq_attempt_start, j.jq_starttime)) as age),
told as (
  insert into drover.log (log_jq_fk, log_type, log_host, log_agent, log_message)
  select jq_pk, 'LOG', det_host, jq_type, 'adopted by ' || :schedinfo::text from adopted)
select jq_pk, jq_attempt, args, rank, more, jq_type, jq_queue, place, det_host, det_spool, det_turn, wanted, age
  from adopted order by jq_pk

-- name: read_site
-- Return what tells this database apart from others, and its time.
select site_uuid, now() from drover.site

-- name: read_kept
-- Return what hosts of the group may still keep of jobs that do not run any more, 100 at most.
select det_host, det_spool, det_jq_fk, det_attempt from drover.detached
 where det_group = :group::text
   and not exists (select from drover.jobqueue where jq_pk between det_jq_fk and det_jq_fk
                      and jq_attempt = det_attempt and jq_state = 'running')
 order by det_host, det_spool, det_jq_fk limit 100

-- name: forget_kept
-- Forget what a host does not keep any more. Return which of these entries, as `job.attempt`, no job is known for.
with gone as (
  delete from drover.detached d using unnest(:pks::bigint[], :attempts::integer[]) as u(pk, attempt)
   where d.det_jq_fk = u.pk and d.det_attempt = u.attempt)
select u.pk, u.attempt from unnest(:left_pks::bigint[], :left_attempts::integer[]) as u(pk, attempt)
 where not exists (select from drover.detached where det_jq_fk = u.pk and det_attempt = u.attempt)

-- name: find_locked
-- Return which of these rows another session has locked.
with free as materialized (
  select jq_pk from drover.jobqueue where jq_pk = any (:pks::bigint[]) for no key update skip locked)
select string_agg(jq_pk::text, ',') from drover.jobqueue
 where jq_pk = any (:pks::bigint[]) and jq_pk not in (select jq_pk from free)

-- name: record_in_hand
-- Replace all records of what we have in hand by one. Where another daemon has taken over they stay as they are: it
-- finds in them what it gives back, maybe after we have forgotten that.
with {{ownership}},
before as (delete from drover.in_hand where hand_owner = :owner::uuid and exists (select from ownership))
insert into drover.in_hand
select :owner::uuid, :pks::bigint[] from ownership where cardinality(:pks::bigint[]) > 0

-- name: settle
-- Settle up to 1,000 edges below ended parents, of the first parent from child `beyond` on. It is a statement of its
-- own after the one that ended the parents, whose snapshot misses new edges. Return how many children are nearer to
-- their start; which parents are left, and from which child on; and which parents have children that another session
-- has locked: these were left out.
select released, array_to_string(unsettled, ','), place, array_to_string(locked, ',')
  from drover.settle(:parents::bigint[], :beyond::bigint, 1000, waits => false)

-- name: write_log
-- Insert lines of the logs of jobs.
insert into drover.log (log_jq_fk, log_type, log_host, log_agent, log_pid, log_message)
select * from unnest(:jobs::bigint[], :types::text[], :hosts::text[], :agents::text[], :pids::integer[],
                     :messages::text[])

-- name: write_events
-- The same, where agents have posted events: each about its job, unless that has ended.
with written as (
  insert into drover.log (log_jq_fk, log_type, log_host, log_agent, log_pid, log_message)
  select * from unnest(:jobs::bigint[], :types::text[], :hosts::text[], :agents::text[], :pids::integer[],
                       :messages::text[])
  returning log_pk, log_jq_fk, log_type, log_message)
select count(drover.agent_event(log_jq_fk, log_message))
  from (select * from written where log_type = 'EVENT' order by log_pk) posted

-- name: write_output
-- Insert pieces of the output of jobs. A piece that is there already was sent before the connection was lost. Notify
-- channel drover_output of the jobs whose output is followed, 300 in an array.
with written as (
  insert into drover.output (out_jq_fk, out_attempt, out_part, out_stream, out_data)
  select * from unnest(:jobs::bigint[], :attempts::integer[], :parts::integer[], :streams::text[], :texts::text[])
  on conflict do nothing),
announced as materialized (
  select drover.notify('drover_output', json_agg(job)::text)
    from unnest(:followed::bigint[]) with ordinality as u(job, n) group by (n - 1) / 300)
select count(*) from announced

-- name: due
-- Make rows claimable whose jq_wait_until has come, and fail those whose jq_not_after has passed; at most 5,000 of each
-- at a time, from the queue that is late longest. Return how many are claimable now, the parents among the failed ones,
-- and the seconds to the next such instant: negative if one has come already whose row is locked by another session or
-- beyond the 5,000.
-- Of each queue of the group the first row in the order of each index is read, and no row of other queues. A held row
-- fails when it is released too late; until then its instant is removed, so that it is not read again.
with ours as materialized (
  select queue_name as queue, ready, expiry
    from drover.queue
    left join lateral (
      select jq_wait_until as ready from drover.jobqueue
       where jq_queue = queue_name and jq_wait_until is not null order by jq_wait_until limit 1) w on true
    left join lateral (
      select jq_expires_at as expiry from drover.jobqueue
       where jq_queue = queue_name and jq_expires_at is not null order by jq_expires_at limit 1) e on true
   where queue_group = :group::text),
ready as materialized (
  select j.jq_pk
    from (select queue from ours where ready <= now() order by ready) o cross join lateral (
      select jq_pk from drover.jobqueue
       where jq_queue = o.queue and jq_wait_until <= now()
         and (jq_state = 'queued' and (jq_expires_at is null or jq_expires_at > now()) or jq_state = 'held')
       order by jq_wait_until
       limit 5000
         for no key update skip locked) j
   limit 5000),
late as materialized (
  select j.jq_pk, j.jq_state
    from (select queue from ours where expiry <= now() order by expiry) o cross join lateral (
      select jq_pk, jq_state from drover.jobqueue
       where jq_queue = o.queue and jq_expires_at <= now() and jq_state in ('held', 'queued')
       order by jq_expires_at
       limit 5000
         for no key update skip locked) j
   limit 5000),
due as (
  update drover.jobqueue
     set jq_wait_until = null, jq_expires_at = case when jq_expires_at > now() then jq_expires_at end
   where jq_pk = any (array(select jq_pk from ready)) returning jq_pk),
shelved as (
  update drover.jobqueue set jq_expires_at = null
   where jq_pk = any (array(
     select jq_pk from late where jq_state = 'held' and jq_pk not in (select jq_pk from ready)))),
expired as (
  update drover.jobqueue
     set jq_state = 'failed', jq_starttime = now(), jq_endtime = now(), jq_end_bits = 2,
         jq_endtext = 'not started by ' || jq_not_after, jq_wait_until = null
   where jq_pk = any (array(select jq_pk from late where jq_state = 'queued'))
  returning jq_pk, jq_has_children),
announced as materialized (
  select drover.announce(array_agg(jq_pk), array_agg('failed'::text)) from expired having count(*) > 0),
upcoming as materialized (
  select least(
           case when ready > now() then ready
                when ready is not null then (
                  select jq_wait_until from drover.jobqueue
                   where jq_queue = queue and jq_wait_until is not null and jq_state in ('held', 'queued')
                     and jq_pk not in (select jq_pk from ready) and jq_pk not in (select jq_pk from late)
                   order by jq_wait_until limit 1) end,
           case when expiry > now() then expiry
                when expiry is not null then (
                  select jq_expires_at from drover.jobqueue
                   where jq_queue = queue and jq_expires_at is not null and jq_state in ('held', 'queued')
                     and jq_pk not in (select jq_pk from late)
                   order by jq_expires_at limit 1) end) as at
    from ours)
select (select count(*) from due), (select string_agg(jq_pk::text, ',') from expired where jq_has_children),
       extract(epoch from (select min(at) from upcoming where isfinite(at)) - now())
  from (select count(*) from announced) t

-- name: register
-- Register this daemon and what its configuration names; also for a reload. A value that changed in the configuration
-- wins, else the current one stays. A daemon that lost the group, and registers under another uuid, keeps its answers
-- to commands, and still owes the others that came before. Return a sentence for every queue or host that another
-- group has: if there is one, nothing is registered.
with given as materialized (select :config::jsonb as j),
clashes as materialized (
  select 'host ' || t.host_name || ' belongs to group ' || t.host_group as clash
    from given, jsonb_to_recordset(j -> 'hosts') as h(name text) join drover.host t on t.host_name = h.name
   where t.host_group <> :group::text
  union all
  select 'queue ' || t.queue_name || ' belongs to group ' || t.queue_group
    from given, jsonb_to_recordset(j -> 'queues') as q(name text) join drover.queue t on t.queue_name = q.name
   where t.queue_group <> :group::text
  union all
  select 'schedule ' || t.schedule_name || ' belongs to group ' || t.schedule_group
    from given, jsonb_to_recordset(j -> 'schedules') as s(name text)
    join drover.schedule t on t.schedule_name = s.name
   where t.schedule_group <> :group::text
  union all
  select 'schedule ' || s.name || ': ' || mistake
    from given, jsonb_to_recordset(j -> 'schedules') as s(name text, job jsonb),
         lateral drover.schedule_mistake(s.job) as mistake
   where mistake is not null),
c as materialized (select j from given where not exists (select from clashes)),
former as (  -- what this process was before it lost the group
  delete from drover.scheduler using c
   where scheduler_group = :group::text and scheduler_uuid <> :owner::uuid
     and (scheduler_host, scheduler_pid, scheduler_boot_id, scheduler_pid_space, scheduler_pid_start)
         = (j ->> 'host', (j ->> 'pid')::integer, j ->> 'boot_id', j ->> 'pid_space', (j ->> 'pid_start')::bigint)
  returning scheduler_uuid, scheduler_number),
acks as (
  insert into drover.command_ack (ack_jq_fk, ack_scheduler, ack_name, ack_ok, ack_text)
  select distinct on (ack_jq_fk) ack_jq_fk, :owner::uuid, ack_name, ack_ok, ack_text
    from drover.claimable join drover.command_ack on ack_jq_fk = claim_jq_fk
   where claim_type = 'command' and exists (select from former)
     and ack_scheduler in (select scheduler_uuid from former)),
me as (
  insert into drover.scheduler (scheduler_uuid, scheduler_group, scheduler_host, scheduler_pid, scheduler_boot_id,
                                scheduler_pid_space, scheduler_pid_start, scheduler_version, scheduler_lease,
                                scheduler_takes_shared, scheduler_counts, scheduler_verbs, scheduler_number)
  select :owner::uuid, :group::text, j ->> 'host', (j ->> 'pid')::integer, j ->> 'boot_id', j ->> 'pid_space',
         (j ->> 'pid_start')::bigint, j ->> 'version', (j ->> 'lease')::float8, true, true,
         array(select jsonb_array_elements_text(j -> 'verbs')),
         coalesce((select min(scheduler_number) from former), pg_sequence_last_value('drover.jobqueue_jq_pk_seq'), 0)
    from c
  on conflict (scheduler_uuid) do update
    set scheduler_seen = now(), scheduler_version = excluded.scheduler_version,
        scheduler_host = excluded.scheduler_host, scheduler_pid = excluded.scheduler_pid,
        scheduler_boot_id = excluded.scheduler_boot_id, scheduler_pid_space = excluded.scheduler_pid_space,
        scheduler_pid_start = excluded.scheduler_pid_start, scheduler_counts = excluded.scheduler_counts,
        scheduler_verbs = excluded.scheduler_verbs),
g as (insert into drover.scheduler_group (group_name) select :group::text from c on conflict do nothing),
h as (
  insert into drover.host as t
    (host_name, host_group, host_max, host_max_file, host_urgent, host_urgent_file, host_enabled, host_enabled_file,
     host_transport, host_types, host_types_file, host_queues, host_queues_file, host_priorities, host_priorities_file,
     host_letters)
  select h.name, :group::text, h.max, h.max, h.urgent, h.urgent, h.enabled, h.enabled, h.transport, h.types, h.types,
         nullif(h.queues, '{}'), nullif(h.queues, '{}'), h.priorities, h.priorities, h.letters
    from c, jsonb_to_recordset(j -> 'hosts') as h(
           name text, max integer, urgent integer, enabled boolean, transport text, types text, queues text[],
           priorities text, letters text)
  on conflict (host_name) do update
    set host_max = case when t.host_max_file is distinct from excluded.host_max_file
                        then excluded.host_max else t.host_max end,
        host_urgent = case when t.host_urgent_file is distinct from excluded.host_urgent_file
                           then excluded.host_urgent else t.host_urgent end,
        host_enabled = case when t.host_enabled_file is distinct from excluded.host_enabled_file
                            then excluded.host_enabled else t.host_enabled end,
        host_max_file = excluded.host_max_file, host_urgent_file = excluded.host_urgent_file,
        host_types = case when t.host_types_file is distinct from excluded.host_types_file
                          then excluded.host_types else t.host_types end,
        host_queues = case when t.host_queues_file is distinct from excluded.host_queues_file
                           then excluded.host_queues else t.host_queues end,
        host_priorities = case when t.host_priorities_file is distinct from excluded.host_priorities_file
                               then excluded.host_priorities else t.host_priorities end,
        host_letters = case when t.host_priorities_file is distinct from excluded.host_priorities_file
                            then excluded.host_letters else t.host_letters end,
        host_enabled_file = excluded.host_enabled_file,
        host_transport = excluded.host_transport, host_present = true,
        host_types_file = excluded.host_types_file, host_queues_file = excluded.host_queues_file,
        host_priorities_file = excluded.host_priorities_file
    where t.host_group = :group::text
  returning host_name),
q as (
  insert into drover.queue as t
    (queue_name, queue_group, queue_concurrency, queue_concurrency_file, queue_paused, queue_paused_file,
     queue_reserved, queue_reserved_file, queue_priority, queue_priority_file, queue_filter, queue_route,
     queue_route_file, queue_rate, queue_rate_file, queue_zone, queue_max_length, queue_max_length_file)
  select q.name, :group::text, q.concurrency, q.concurrency, q.paused, q.paused, q.reserved, q.reserved, q.priority,
         q.priority, q.filter, nullif(q.route, 'null'), nullif(q.route, 'null'), nullif(q.limits, 'null'),
         nullif(q.limits, 'null'), coalesce(q.zone, 'UTC'), nullif(q.max_length, 0), nullif(q.max_length, 0)
    from c, jsonb_to_recordset(j -> 'queues') as q(
           name text, concurrency integer, paused boolean, reserved integer, priority integer, filter text, route jsonb,
           limits jsonb, zone text, max_length integer)
  on conflict (queue_name) do update
    set queue_concurrency = case when t.queue_concurrency_file is distinct from excluded.queue_concurrency_file
                                 then excluded.queue_concurrency else t.queue_concurrency end,
        queue_paused = case when t.queue_paused_file is distinct from excluded.queue_paused_file
                            then excluded.queue_paused else t.queue_paused end,
        queue_reserved = case when t.queue_reserved_file is distinct from excluded.queue_reserved_file
                              then excluded.queue_reserved else t.queue_reserved end,
        queue_concurrency_file = excluded.queue_concurrency_file, queue_paused_file = excluded.queue_paused_file,
        queue_reserved_file = excluded.queue_reserved_file,
        queue_priority = case when t.queue_priority_file is distinct from excluded.queue_priority_file
                              then excluded.queue_priority else t.queue_priority end,
        queue_priority_file = excluded.queue_priority_file,
        queue_filter = case when t.queue_route_file is distinct from excluded.queue_route_file
                            then excluded.queue_filter else t.queue_filter end,
        queue_route = case when t.queue_route_file is distinct from excluded.queue_route_file
                           then excluded.queue_route else t.queue_route end,
        queue_route_file = excluded.queue_route_file,
        queue_rate = case when t.queue_rate_file is distinct from excluded.queue_rate_file
                          then excluded.queue_rate else t.queue_rate end,
        queue_rate_file = excluded.queue_rate_file,
        queue_max_length = case when t.queue_max_length_file is distinct from excluded.queue_max_length_file
                                then excluded.queue_max_length else t.queue_max_length end,
        queue_max_length_file = excluded.queue_max_length_file, queue_zone = excluded.queue_zone, queue_present = true
    where t.queue_group = :group::text
  returning queue_name),
a as (
  insert into drover.agent as t
    (agent_group, agent_type, agent_enabled, agent_enabled_file, agent_kind, agent_submitters, agent_cwd, agent_fair,
     agent_fair_file, agent_revision, agent_attributes)
  select :group::text, a.type, a.enabled, a.enabled, a.kind, a.submitters, a.cwd, a.fair, a.fair, a.revision,
         coalesce(a.attributes, '{}')
    from c, jsonb_to_recordset(j -> 'agents') as a(
           type text, enabled boolean, kind text, submitters text[], cwd text, fair boolean, revision text,
           attributes jsonb)
  on conflict (agent_group, agent_type) do update
    set agent_enabled = case when t.agent_enabled_file is distinct from excluded.agent_enabled_file
                             then excluded.agent_enabled else t.agent_enabled end,
        agent_enabled_file = excluded.agent_enabled_file, agent_kind = excluded.agent_kind,
        agent_submitters = excluded.agent_submitters, agent_cwd = excluded.agent_cwd,
        agent_fair = t.agent_fair or excluded.agent_fair, agent_fair_file = excluded.agent_fair_file,
        agent_attributes = excluded.agent_attributes, agent_revision = excluded.agent_revision, agent_present = true),
gone_agents as (
  update drover.agent set agent_present = false
   where agent_group = :group::text and agent_present and exists (select from c)
     and agent_type not in (select a.type from c, jsonb_to_recordset(j -> 'agents') as a(type text))),
p as (
  insert into drover.recovery_policy (policy_group, policy_name, policy_condition, policy_types, policy_rules)
  select :group::text, p.name, p.condition, p.types, p.rules
    from c, jsonb_to_recordset(j -> 'policies') as p(name text, condition text, types text[], rules jsonb)
  on conflict (policy_group, policy_name) do update
    set policy_condition = excluded.policy_condition, policy_types = excluded.policy_types,
        policy_rules = excluded.policy_rules),
gone_policies as (
  delete from drover.recovery_policy
   where policy_group = :group::text and exists (select from c where j ? 'policies')  -- which older daemons do not know
     and policy_name not in (select p.name from c, jsonb_to_recordset(j -> 'policies') as p(name text))),
s as (
  insert into drover.schedule as t
    (schedule_name, schedule_at, schedule_every, schedule_cron, schedule_zone, schedule_catch_up, schedule_jitter,
     schedule_overlap, schedule_enabled, schedule_job, schedule_group, schedule_file)
  select s.f ->> 'name', (s.f ->> 'at')::timestamptz, make_interval(secs => (s.f ->> 'every')::float8), s.f ->> 'cron',
         s.f ->> 'zone', s.f ->> 'catch_up', make_interval(secs => (s.f ->> 'jitter')::float8), s.f ->> 'overlap',
         (s.f ->> 'enabled')::boolean, s.f -> 'job', :group::text, s.f
    from c, jsonb_array_elements(j -> 'schedules') as s(f)
  on conflict (schedule_name) do update
    set schedule_at = excluded.schedule_at, schedule_every = excluded.schedule_every,
        schedule_cron = excluded.schedule_cron, schedule_zone = excluded.schedule_zone,
        schedule_catch_up = excluded.schedule_catch_up, schedule_jitter = excluded.schedule_jitter,
        schedule_overlap = excluded.schedule_overlap, schedule_enabled = excluded.schedule_enabled,
        schedule_job = excluded.schedule_job, schedule_group = excluded.schedule_group,
        schedule_file = excluded.schedule_file
    where (t.schedule_group is null or t.schedule_group = :group::text)
      and t.schedule_file is distinct from excluded.schedule_file),
gone_schedules as (
  delete from drover.schedule
   where schedule_group = :group::text and exists (select from c where j ? 'schedules')
     and schedule_name not in (select s.name from c, jsonb_to_recordset(j -> 'schedules') as s(name text))),
gone_filters as (
  update drover.queue
     set queue_filter = case when queue_route_file is null then queue_filter end,
         queue_route = case when queue_route_file is null then queue_route end,
         queue_rate = case when queue_rate_file is null then queue_rate end,
         queue_route_file = null, queue_rate_file = null
   where queue_group = :group::text and (queue_route_file is not null or queue_rate_file is not null)
     and exists (select from c)
     and queue_name not in (select q.name from c, jsonb_to_recordset(j -> 'queues') as q(name text))),
gone_hosts as (
  update drover.host set host_present = false
   where host_group = :group::text and host_present and exists (select from c)
     and host_name not in (select h.name from c, jsonb_to_recordset(j -> 'hosts') as h(name text)))
select clash from clashes

-- name: read_owner
-- Return the owner of the group, whether its lease has run out, and when the group was taken over last; note that this
-- standby is alive. No row: this daemon is not registered, or not any more.
with seen as (
  update drover.scheduler set scheduler_seen = now() where scheduler_uuid = :owner::uuid returning scheduler_uuid)
select g.group_owner, coalesce(g.group_lease_until <= now(), true) as lapsed, s.scheduler_host, s.scheduler_pid,
       s.scheduler_boot_id, s.scheduler_pid_space, s.scheduler_pid_start, g.group_taken_at
  from drover.scheduler_group g cross join seen left join drover.scheduler s on s.scheduler_uuid = g.group_owner
 where g.group_name = :group::text

-- name: take_lease
-- Become the owner of the group if it has none, if its lease has run out (and we are `patient`), if its owner is known
-- to be dead, or if we are it. Return the instant.
update drover.scheduler_group
   set group_owner = :owner::uuid, group_lease_until = now() + make_interval(secs => :lease::float8),
       group_taken_at = now(), group_number = coalesce(pg_sequence_last_value('drover.jobqueue_jq_pk_seq'), 0)
 where group_name = :group::text
   and (group_owner is null or group_owner = :owner::uuid or group_owner = :dead::uuid
        or (:patient::boolean and group_lease_until <= now()))
returning group_taken_at

-- name: end_holder
-- End the session that has the row of the group locked though the lease has run out: its daemon was stopped before it
-- read the answer to a claim, and the server cannot commit while the answer is not read.
select pg_terminate_backend(a.pid)
  from pg_stat_activity a
 where a.application_name = 'drover queue' and a.usename = current_user and a.datname = current_database()
   and a.wait_event = 'ClientWrite' and a.query_start < now() - make_interval(secs => :lease::float8)
   and a.pid in (
     select pid from pg_locks
      where relation = 'drover.scheduler_group'::regclass and mode = 'RowShareLock' and granted)
   and exists (select from drover.scheduler_group where group_name = :group::text and group_lease_until <= now())

-- name: renew_lease
-- Extend our lease. No row: the group is not ours any more. It waits for no statement of ours, and not for the disk: if
-- the server crashes and forgets it, another daemon takes over only when it was connected for one whole lease. Where
-- commits wait for a replica it waits too: else a daemon would go on beside the owner on a replica that was promoted.
with seen as (
  update drover.scheduler set scheduler_seen = now()
   where scheduler_uuid = any (array(
     select scheduler_uuid from drover.scheduler where scheduler_uuid = :owner::uuid for no key update skip locked)))
update drover.scheduler_group set group_lease_until = now() + make_interval(secs => :lease::float8)
 where group_name = :group::text and group_owner = :owner::uuid
   and (current_setting('synchronous_standby_names') <> '' or set_config('synchronous_commit', 'off', true) = 'off')
returning group_owner

-- name: rescue
-- Give back the rows of the group that are in hand elsewhere, and those of ours that we do not know (`live` are those
-- we do). It runs after the owner has changed; in the same statement as the take-over it would miss claims in flight. A
-- claimed row costs one rescue, a running one also an interruption. A running row fails when it has used up its
-- interruptions, or was tried alone. A row that was to be killed fails, one that was to be cancelled is cancelled. A
-- row that we claimed meanwhile is younger than `age`, and left alone, and a detached job that runs: see query `adopt`.
-- A row that another session has locked waits for the next rescue, noted in drover.in_hand for owner 0, so that
-- replacing a daemon's records does not lose it. Rows are given back in the order of their numbers, in which those of
-- one submitter stand in a fair line. The log of each job gets a line. Return how many rows were given back, the
-- parents among those that ended, and whether any locked row is left.
with {{ownership}},
others as materialized (  -- active daemons of other groups, whose records are none of our business
  select group_owner from drover.scheduler_group
   where group_name <> :group::text and group_owner is not null and group_lease_until > now()),
recorded as materialized (
  select pk, max(hand_since) as since, bool_or(hand_owner = :owner::uuid) as is_ours,
         (array_agg(hand_owner order by hand_since desc))[1] as holder
    from drover.in_hand, unnest(hand_jobs) as pk
   where hand_owner not in (select group_owner from others) group by pk),
lost as materialized (
  select jq_pk, since, holder
    from recorded r join drover.jobqueue j on jq_pk between r.pk and r.pk
   where case when jq_state in ('claimed', 'running')
              then jq_owner <> :owner::uuid
                   or not jq_pk = any (:live::bigint[])
                      and coalesce(jq_attempt_start, jq_starttime) < now() - make_interval(secs => :age::float8)
              when {{may_be_in_hand}}
              then not drover.has_token(j) and not jq_pk = any (:live::bigint[])
                   and (not is_ours or since < now() - make_interval(secs => :age::float8)) end
     and jq_queue in (select queue_name from drover.queue where queue_group = :group::text)
     and not (jq_state = 'running' and exists (
       select from drover.detached where det_jq_fk = jq_pk and det_attempt = jq_attempt))),
over as materialized (
  select j.jq_pk, jq_attempt + (jq_state = 'queued')::integer as attempt, coalesce(jq_owner, holder) as was_owner,
         coalesce(jq_attempt_start, jq_starttime, since) as began,
         jq_state = 'running' as was_running, jq_schedinfo as schedinfo,
         case when jq_state = 'running' then jq_done_host end as host,
         case when jq_state = 'running' then jq_done_pid end as pid,
         case when jq_state = 'running' and jq_done_host is not null then jq_type end as agent,
         case when jq_wanted = 'kill' or (jq_state = 'running' and jq_endtext = 'tried alone') then 'failed'
              when jq_wanted like 'cancel %' then 'cancelled'
              when jq_state = 'running' and jq_interruptions >= jq_max_interruptions then 'failed' end as ends,
         case when jq_wanted = 'kill' then 'killed' when jq_wanted like 'cancel %' then substr(jq_wanted, 8)
              when jq_state = 'running' and jq_endtext = 'tried alone'
              then 'its scheduler died ' || jq_rescued + 1
                   || ' times with this job in hand, the last time as it was tried alone'
              when jq_state = 'running' and jq_interruptions >= jq_max_interruptions
              then 'interrupted more than ' || jq_max_interruptions || ' times' else 'released for restart' end as text
    from (select * from lost order by jq_pk) lost cross join lateral (
      select * from drover.jobqueue j
       where j.jq_pk between lost.jq_pk and lost.jq_pk
         and ({{may_be_in_hand}} or jq_state in ('claimed', 'running')
              and (jq_owner <> :owner::uuid
                   or coalesce(jq_attempt_start, jq_starttime) < now() - make_interval(secs => :age::float8)))
         for no key update skip locked) j),
rescued as (
  update drover.jobqueue j
     set jq_state = coalesce(over.ends, 'queued')::drover.job_state, jq_attempt = over.attempt,
         jq_starttime = case when over.ends is not null then j.jq_starttime end,
         jq_first_start = case when j.jq_msq and j.jq_state = 'running' then j.jq_starttime else j.jq_first_start end,
         jq_endtime = case when over.ends is not null then now() end,
         jq_end_bits = case when over.ends is not null then 2 else 0 end, jq_endtext = over.text,
         jq_owner = null, jq_wanted = null, jq_schedinfo = null, jq_expected_end = null,
         jq_done_host = case when over.ends is not null then over.host end,
         jq_done_pid = case when over.ends is not null then over.pid end,
         jq_exitcode = null, jq_signal = null,  -- of an earlier attempt; how this one ended is not known
         jq_rescued = j.jq_rescued + 1,
         jq_interruptions = j.jq_interruptions + (j.jq_state = 'running')::integer
    from over
   where j.jq_pk between over.jq_pk and over.jq_pk and exists (select from ownership)
  returning j.jq_pk, j.jq_attempt, j.jq_state::text as state, j.jq_has_children, j.jq_interruptions,
            j.jq_max_interruptions, over.was_owner, over.began, over.was_running, over.schedinfo, over.host, over.pid,
            over.agent, over.text),
removed_records as (
  delete from drover.in_hand
   where hand_owner <> :owner::uuid and hand_owner not in (select group_owner from others)
     and not exists (select from unnest(hand_jobs) as pk join drover.jobqueue j on j.jq_pk between pk and pk
                      where j.jq_state in ('claimed', 'running') or ({{may_be_in_hand}} and not drover.has_token(j)))),
skipped as (
  insert into drover.in_hand
  select '00000000-0000-0000-0000-000000000000', array_agg(jq_pk) from lost
   where jq_pk not in (select jq_pk from over)
     and not exists (
       select from drover.in_hand
        where hand_owner = '00000000-0000-0000-0000-000000000000' and jq_pk = any (hand_jobs))
  having count(*) > 0),
history as (
  insert into drover.attempt_kept (att_jq_fk, att_attempt, att_scheduler, att_host, att_agent, att_pid, att_start,
                                   att_outcome, att_reason)
  select jq_pk, jq_attempt, was_owner, host, agent, pid, began, 'rescued', 'its scheduler is gone' from rescued
  on conflict do nothing),
told as (
  insert into drover.log (log_jq_fk, log_type, log_host, log_agent, log_pid, log_message)
  select jq_pk, 'WARNING', host, agent, pid,
         case when was_running then 'interrupted' else 'rescued' end || ': its scheduler '
         || coalesce(schedinfo, (select scheduler_host || '.' || scheduler_pid from drover.scheduler
                                  where scheduler_uuid = was_owner), was_owner::text)
         || case when was_owner = :owner::uuid then ' had lost it; ' else ' is gone; ' end
         || case when state <> 'queued' then state || ': ' || text
                 when was_running then 'queued again, interruption ' || jq_interruptions || ' of '
                   || jq_max_interruptions
                 else 'queued again' end
    from rescued),
announced as materialized (
  select drover.announce(array_agg(jq_pk), array_agg(state)) from rescued having count(*) > 0)
select (select count(*) from rescued),
       (select string_agg(jq_pk::text, ',') from rescued where jq_has_children and state <> 'queued'),
       exists (select from lost where jq_pk not in (select jq_pk from over)), (select count(*) from announced)

-- name: read_commands
-- Return up to 100 commands that this daemon must carry out, each with the job it names by number or name, the job's
-- state, the text of a job that it ends, and whether we have it in hand; whether the command took effect already but
-- could not be ended; and whether an operator gave it. Commands of operators come first, oldest first, then those of
-- others in the order of drover.offer_command, where submitters take turns. Of a command that is too long to be valid
-- only the beginning is returned.
--
-- A command for `every` scheduler is ours if it came after we registered and we have not acknowledged it. Any other is
-- ours if we are active and what it names belongs to our group, or to a group that has no active scheduler. If it names
-- nothing that belongs to a group, it is for the first group that has an active scheduler.
-- The commands are read in the order of the index, those with a host separately, and no more than are returned, so that
-- a flood of them costs no more. `passed` are those to be tried later.
with me as materialized (
  select scheduler_number as since, scheduler_host as host, scheduler_host || '.' || scheduler_pid as name
    from drover.scheduler where scheduler_uuid = :owner::uuid),
active as materialized (
  select group_name, group_owner from drover.scheduler_group
   where group_owner is not null and group_lease_until > now())
select f.jq_pk, f.args, f.job, f.jq_state, f.ending, f.is_ours, f.is_command, f.took_effect, f.of_operator
  from me cross join (values (''), (E'\x01')) as least_host(name) cross join lateral (
select w.claim_jq_fk as jq_pk, c.args, t.jq_pk as job, coalesce(r.state, t.jq_state::text) as jq_state,
       coalesce(r.owner, t.jq_owner) = :owner::uuid as is_ours,
       t.jq_type = 'command' as is_command, c.took_effect, w.claim_rank < '2' as of_operator, w.claim_rank as rank,
       drover.ended_by(c.args, c.submitter) as ending
  from drover.claimable w
 cross join lateral (
    select jq_host, left(jq_args, 1001) as args, jq_submitter as submitter,
           coalesce(jq_endtext = 'took effect', false) as took_effect
      from drover.jobqueue
     where jq_pk between w.claim_jq_fk and w.claim_jq_fk and jq_state = 'queued' limit 1) c
 cross join lateral (select drover.word(c.args, 1) as verb, drover.word(c.args, 2) as word offset 0) v
 cross join lateral (
    select case when v.word ~ '^[0-9]{1,18}$' and v.verb = any (:about_jobs::text[]) then v.word::bigint end as pk,
           case when v.word like '%.%' and v.verb = any (:about_jobs::text[]) then v.word end as name) n
  left join lateral (
    (select * from drover.jobqueue where jq_pk between n.pk and n.pk limit 1)
     union all
    (select * from drover.jobqueue where jq_name between n.name and n.name limit 1)) t on true
  left join lateral (  -- it is in hand by a record
    select 'claimed' as state, hand_owner as owner from drover.recorded
     where t.jq_state = 'queued' and jq_pk = t.jq_pk limit 1) r on true
  left join drover.queue q on q.queue_name = t.jq_queue
  left join drover.host h on v.verb = any (:about_hosts::text[]) and h.host_name = v.word
  left join lateral (
    select agent_group from drover.agent where v.verb = any (:about_types::text[]) and agent_type = v.word
     order by agent_group <> :group::text limit 1) a on true
 cross join lateral (
    select coalesce(q.queue_group, h.host_group, a.agent_group,
                    case when v.verb = any (:about_groups::text[]) then v.word end,
                    (select group_name from active order by group_name <> 'default', group_name limit 1)) as name) g
 where w.claim_type = 'command' and w.claim_queue = '' and w.claim_host >= least_host.name
   and (w.claim_host = '' or least_host.name > '') and not w.claim_jq_fk = any (:passed::bigint[])
   and case
   when v.verb = any (:every::text[])
     then w.claim_jq_fk > me.since and coalesce(c.jq_host in (me.host, me.name), true)
          and not exists (
            select from drover.command_ack where ack_jq_fk = w.claim_jq_fk and ack_scheduler = :owner::uuid)
   else :owner::uuid in (select group_owner from active)
        and (g.name = :group::text or (q.queue_name is null and g.name not in (select group_name from active)))
   end
 order by w.claim_host, w.claim_rank, w.claim_queued, w.claim_first limit 100) f
order by case when f.of_operator then '' else f.rank end, f.jq_pk

-- name: begin_command
-- Note in a command that we have taken it: from then on nobody withdraws it. Return whether it came too late, since it
-- has not taken effect by its latest start, and for how many seconds it may be tried. No row: another session has it
-- locked, or it has ended.
with free as materialized (
  select jq_pk, extract(epoch from jq_not_after - jq_queued) as seconds,
         coalesce(jq_not_after < now() and jq_endtext is null, false)
           and not exists (select from drover.command_ack where ack_jq_fk = jq_pk) as is_late
    from drover.jobqueue
   where jq_pk = :command::bigint and jq_state = 'queued' for no key update skip locked),
begun as (
  update drover.jobqueue j
     set jq_attempt_start = now(),
         jq_schedinfo = (select scheduler_host || '.' || scheduler_pid from drover.scheduler
                          where scheduler_uuid = :owner::uuid)
    from free where j.jq_pk between free.jq_pk and free.jq_pk and not free.is_late)
select is_late, seconds from free

-- name: end_command
-- End a command. Return its row, and whether it has children. No row: another session has it locked, or it is gone.
with ended as (
  update drover.jobqueue j
     set jq_state = case when :ok::boolean then 'done' else 'failed' end::drover.job_state, jq_attempt = jq_attempt + 1,
         jq_starttime = now(), jq_endtime = now(), jq_end_bits = case when :ok::boolean then 1 else 2 end,
         jq_endtext = :text::text, jq_result = :result::jsonb
    from (select jq_pk from drover.jobqueue
           where jq_pk = :command::bigint and jq_state = 'queued' for no key update skip locked) free
   where j.jq_pk between free.jq_pk and free.jq_pk
  returning j.jq_pk, j.jq_has_children),
announced as materialized (
  select drover.announce(array_agg(jq_pk), array_agg(case when :ok::boolean then 'done' else 'failed' end))
    from ended having count(*) > 0)
select jq_pk, jq_has_children from ended left join announced on true

-- name: set_wanted
-- Note in a row that we have in hand what a command wants of the job, so that a scheduler that takes over knows it too.
-- A job that we have in hand by a record becomes claimed. No row: we do not have the job in hand, or another session
-- has the job or the command locked.
with {{ownership}},
command as materialized (
  select jq_pk from drover.jobqueue
   where jq_pk = :command::bigint and jq_state = 'queued' for no key update skip locked),
changed as (
  update drover.jobqueue j
     set jq_wanted = :wanted::text, jq_state = case jq_state when 'queued' then 'claimed' else jq_state end,
         jq_attempt = jq_attempt + (jq_state = 'queued')::integer, jq_owner = :owner::uuid,
         jq_starttime = coalesce(jq_starttime, free.since),
         jq_endtext = case jq_state when 'queued' then 'in progress' else jq_endtext end
    from (select j.jq_pk, r.hand_since as since
            from drover.jobqueue j left join drover.recorded r on r.jq_pk = :job::bigint and r.hand_owner = :owner::uuid
           where j.jq_pk = :job::bigint and exists (select from command)
             and (jq_owner = :owner::uuid and jq_state in ('claimed', 'running')
                  or jq_state = 'queued' and j.jq_attempt = r.jq_attempt and exists (select from ownership))
             for no key update of j skip locked) free
   where j.jq_pk between free.jq_pk and free.jq_pk
  returning j.jq_pk),
{{took_effect}}
select jq_pk from changed

-- name: cancel_job
-- Cancel a job that no daemon has in hand. No row: the job is in another state, another session has the job or the
-- command locked, or the group is not ours any more.
with {{command}},
changed as (
  update drover.jobqueue j
     set jq_state = 'cancelled', jq_starttime = coalesce(jq_first_start, now()), jq_endtime = now(), jq_end_bits = 2,
         jq_endtext = :text::text, jq_wait_until = null
    from (select jq_pk from drover.jobqueue j
           where jq_pk = :job::bigint and jq_state in ('held', 'queued', 'blocked') and jq_type <> 'command'
             and {{is_free}} and exists (select from command)
             for no key update skip locked) free
   where j.jq_pk between free.jq_pk and free.jq_pk
  returning j.jq_pk, j.jq_has_children),
{{took_effect}},
announced as materialized (
  select drover.announce(array_agg(jq_pk), array_agg('cancelled'::text)) from changed having count(*) > 0)
select jq_pk, jq_has_children from changed left join announced on true

-- name: hold_job
-- Hold a job that is queued or blocked. No row: it is in another state, another session has it locked, or the group is
-- not ours any more.
with changed as (
  update drover.jobqueue j set jq_state = 'held'
    from (select jq_pk from drover.jobqueue j
           where jq_pk = :job::bigint and {{is_free}} and jq_state in ('queued', 'blocked') and {{holds_lease}}
             for no key update skip locked) free
   where j.jq_pk between free.jq_pk and free.jq_pk
  returning j.jq_pk),
announced as materialized (
  select drover.announce(array_agg(jq_pk), array_agg('held'::text)) from changed having count(*) > 0)
select jq_pk, false from changed left join announced on true

-- name: ice_job
-- Skip a job that is held or queued, as if it had been done. No row: as for cancel_job.
with {{command}},
changed as (
  update drover.jobqueue j
     set jq_state = 'skipped', jq_starttime = coalesce(jq_first_start, now()), jq_endtime = now(), jq_end_bits = 1,
         jq_endtext = 'on ice', jq_wait_until = null
    from (select jq_pk from drover.jobqueue j
           where jq_pk = :job::bigint and {{is_free}} and jq_state in ('held', 'queued')
             and exists (select from command)
             for no key update skip locked) free
   where j.jq_pk between free.jq_pk and free.jq_pk
  returning j.jq_pk, j.jq_has_children),
{{took_effect}},
announced as materialized (
  select drover.announce(array_agg(jq_pk), array_agg('skipped'::text)) from changed having count(*) > 0)
select jq_pk, jq_has_children from changed left join announced on true

-- name: release_job
-- Queue a held job and all held jobs below it, but no manual ones; if the submitter of the command is not an operator,
-- only that submitter's jobs. All or none of them are queued. Return how many, and whether the job itself is manual; 0
-- if another session has one of them locked, or the state of one has changed.
with recursive below(pk) as (
  select jq_pk from drover.jobqueue where jq_pk = :job::bigint and jq_state = 'held' and jq_mode = 'background'
   union
  select d.jdep_jq_fk from below b join drover.jobdepends d on d.jdep_jq_depends_fk between b.pk and b.pk),
whose as materialized (
  select drover.wards(jq_submitter) as wards, drover.may_command(jq_submitter) as is_operator
    from drover.jobqueue where jq_pk = :command::bigint),
wanted as materialized (
  select j.jq_pk from below b join drover.jobqueue j on j.jq_pk between b.pk and b.pk cross join whose
   where j.jq_state = 'held' and j.jq_mode = 'background'
     and (whose.is_operator or j.jq_submitter = any (whose.wards))),
free as materialized (
  select jq_pk from drover.jobqueue
   where jq_pk = any (array(select jq_pk from wanted)) and jq_state = 'held' and {{holds_lease}}
   order by jq_pk for no key update skip locked),
released as (
  update drover.jobqueue j set jq_state = 'queued' from free
   where j.jq_pk between free.jq_pk and free.jq_pk and (select count(*) from free) = (select count(*) from wanted)
  returning j.jq_pk),
announced as materialized (
  select drover.announce(array_agg(jq_pk), array_agg('queued'::text)), drover.notify('drover_due', '')
    from released having count(*) > 0)
select count(released.jq_pk), (select jq_mode = 'manual' from drover.jobqueue where jq_pk = :job::bigint)
  from released left join announced on true

-- name: retry_job
-- Queue a failed job again, with all its allowances. Return a row with the reason why not, or null; no row if another
-- session has the job or the command locked, or the group is not ours any more.
-- Its output and its attempts stay in drover.output and drover.attempt. A job with a key repeats the latest items that
-- failed, as many as it counts; all items if these are too many for a checkpoint, or if it works in slices.
-- A transaction that is about to use its jq_unique_key is waited for, but for less time than the lease lasts.
with {{command}},
asked as materialized (
  select * from drover.jobqueue
   where jq_pk = :job::bigint and jq_state = 'failed' and set_config('lock_timeout', '200ms', true) is not null
     and exists (select from command)
     for no key update skip locked),
refused as materialized (
  select case when a.jq_type = 'command' then 'it is a command'
              when a.jq_attempt = 0 and a.jq_not_after <= now() then 'it was to be started by ' || a.jq_not_after
                   || '; drover resubmit ' || a.jq_pk || ' queues it once more, without that'
              when exists (select from drover.jobqueue o where o.jq_live_key = a.jq_unique_key)
              then 'another job with its jq_unique_key has not ended' end as why
    from asked a),
failures as materialized (
  select coalesce(jsonb_agg(distinct f.item_key), '[]') as keys
    from asked a cross join lateral (
      select item_key from drover.item_failure
       where item_jq_fk = a.jq_pk order by item_pk desc limit a.jq_itemsfailed) f
   where a.jq_key is not null and not a.jq_repeat),
plan as materialized (
  select a.jq_key is not null and not a.jq_repeat and a.jq_itemsfailed <= 10000 as is_rest,
         keys || coalesce(a.jq_checkpoint -> 'again', '[]') as keys
    from asked a, failures),
changed as (
  update drover.jobqueue j
     set jq_state = 'queued', jq_starttime = null, jq_endtime = null, jq_end_bits = 0,
         jq_endtext = 'to be tried again',
         jq_first_start = case when a.jq_msq and j.jq_processedtime > interval '0' then j.jq_starttime end,
         jq_failures = 0, jq_interruptions = 0, jq_rescued = 0, jq_retry_at = null,
         jq_wait_until = case when a.jq_not_before > now() then a.jq_not_before end,
         jq_exitcode = null, jq_signal = null, jq_result = null, jq_itemsfailed = 0, jq_itemstotal = null,
         jq_expected_end = null, jq_done_host = null, jq_done_pid = null,
         jq_itemsprocessed = case
           when a.jq_msq and a.jq_key is null then coalesce((a.jq_checkpoint ->> 'itemsprocessed')::bigint, 0)
           when plan.is_rest or a.jq_repeat
           then coalesce((a.jq_checkpoint ->> 'itemsprocessed')::bigint, a.jq_itemsprocessed)
           else 0 end,
         jq_checkpoint = case
           when a.jq_msq and a.jq_key is null then a.jq_checkpoint || '{"itemsfailed": 0}'
           when plan.is_rest then coalesce(a.jq_checkpoint, '{}') || jsonb_build_object('again', plan.keys) end
    from asked a, refused, plan
   where j.jq_pk between a.jq_pk and a.jq_pk and refused.why is null
  returning j.jq_pk),
{{took_effect}},
announced as materialized (
  select drover.announce(array_agg(jq_pk), array_agg('queued'::text)), drover.notify('drover_due', '')
    from changed having count(*) > 0)
select why from refused left join announced on true

-- name: set_priority
-- Let a job that waits come sooner or later. No row: as for hold_job.
with changed as (
  update drover.jobqueue j set jq_priority = :letters::text
    from (select jq_pk from drover.jobqueue j
           where jq_pk = :job::bigint and {{is_free}} and jq_state in ('held', 'queued', 'blocked') and {{holds_lease}}
             for no key update skip locked) free
   where j.jq_pk between free.jq_pk and free.jq_pk
  returning j.jq_pk)
select jq_pk from changed

-- name: change_jobs
-- Carry out a batch of a command about many jobs; see drover.change_jobs. Return whether it was the last, whether it
-- did something, how many jobs were changed and refused so far, some of the reasons, the changed jobs that ended and
-- have children, those that we have in hand and are to end, how many such jobs there were so far, how many were given
-- to which other groups, and what is wrong with the command. No row: it has ended, another session has it locked, or
-- the group is not ours any more.
select f.is_over, f.has_moved, f.done, f.refused, f.reasons, array_to_string(f.parents, ','),
       array_to_string(f.ours, ','),
       coalesce((select (jq_result ->> 'told')::bigint from drover.jobqueue where jq_pk = :command::bigint), 0)
         + coalesce(cardinality(f.ours), 0), f.given, f.said
  from (select where {{holds_lease}}) is_ours,
       lateral drover.change_jobs(:command::bigint, :owner::uuid, :most::integer) f

-- name: move_job
-- Put a job that waits into another queue. Return whether there is that queue, and the job if it was moved. No row: as
-- for hold_job.
with target as materialized (select queue_name from drover.queue where queue_name = :queue::text and queue_present),
free as materialized (
  select jq_pk from drover.jobqueue j
   where jq_pk = :job::bigint and {{is_free}} and jq_state in ('held', 'queued', 'blocked') and {{holds_lease}}
     for no key update skip locked)
select exists (select from target), (select drover.put_in_queue(jq_pk, queue_name) from free, target)
 where exists (select from free) or not exists (select from target)

-- name: unblock
-- Make a job, or all jobs that are blocked on a condition, claimable now. Return how many they are, and how many of
-- them were not locked.
with {{command}},
wanted as materialized (
  select jq_pk from drover.jobqueue
   where jq_pk = :job::bigint
     and (jq_state = 'blocked'
          or jq_state = 'queued' and jq_wait_until is not null and starts_with(jq_endtext, 'blocked: '))
   union
  select blocked_jq_fk from drover.recovery join drover.blocked on blocked_recovery = recovery_pk
   where recovery_condition = :condition::text
   union
  select jq_pk from drover.jobqueue  -- as the version before leaves them
   where jq_state = 'queued' and jq_wait_until is not null
     and (jq_endtext = 'blocked: ' || :condition::text
          or starts_with(jq_endtext, 'blocked: ' || :condition::text || ' '))),
free as materialized (
  select jq_pk from drover.jobqueue
   where jq_pk = any (array(select jq_pk from wanted)) and jq_state in ('blocked', 'queued')
     and exists (select from command)
   order by jq_pk for no key update skip locked),
changed as (
  update drover.jobqueue j
     set jq_state = 'queued', jq_retry_at = null,
         jq_wait_until = case when j.jq_not_before > now() then j.jq_not_before end
    from free where j.jq_pk between free.jq_pk and free.jq_pk
  returning j.jq_pk),
{{took_effect}}
select (select count(*) from wanted), (select count(*) from changed)

-- name: read_recovery
-- Return the condition whose tester has answered, or else whose check is due longest: with the seconds since it began,
-- the rules of its policy, whether it has jobs, its tester and the state and the end text of that, and whether what its
-- policy waits for is over. Also the seconds to the next check. No row: there is no condition.
with next as materialized (
  select extract(epoch from recovery_next - now()) as seconds from drover.recovery
   where recovery_group = :group::text order by recovery_next, recovery_pk limit 1),
answered as materialized (
  select recovery_pk as pk from drover.recovery r
    join drover.jobqueue j on j.jq_pk between r.recovery_tester and r.recovery_tester
   where recovery_group = :group::text and recovery_tester is not null
     and jq_endtime is not null
   order by recovery_next, recovery_pk limit 1),
due as materialized (
  select recovery_pk as pk from drover.recovery
   where recovery_group = :group::text and recovery_next <= now() order by recovery_next, recovery_pk limit 1),
r as materialized (
  select * from drover.recovery
   where recovery_pk = coalesce((select pk from answered), (select pk from due)))
select r.recovery_pk, recovery_condition, recovery_tries, recovery_came,
       extract(epoch from now() - recovery_since) as elapsed,
       coalesce(p.policy_rules, usual.policy_rules, '{}')::text as rules,
       exists (
         select from drover.blocked join drover.jobqueue j on j.jq_pk between blocked_jq_fk and blocked_jq_fk
          where blocked_recovery = recovery_pk and jq_state = 'blocked') as has_jobs,
       recovery_tester, t.jq_state, t.jq_endtext, drover.is_over(p.policy_rules ->> 'until') as is_over, next.seconds
  from next left join r on true
  left join drover.recovery_policy p on (p.policy_group, p.policy_name) = (recovery_group, recovery_policy)
  left join drover.recovery_policy usual on (usual.policy_group, usual.policy_name) = (recovery_group, '')
  left join drover.jobqueue t on t.jq_pk between recovery_tester and recovery_tester

-- name: check_now
-- Let these conditions be checked now; a name that ends with a colon is the beginning of several.
update drover.recovery set recovery_next = now()
 where recovery_group = :group::text and recovery_next > now()
   and exists (
     select from unnest(:names::text[]) as name
      where recovery_condition = name or (name like '%:' and starts_with(recovery_condition, name)))
   and exists (select from drover.scheduler_group where {{owns_group}})

-- name: read_start_conditions
-- Return the conditions of hosts and agent types that jobs of the group are blocked on since their starts failed.
select recovery_condition from drover.recovery
 where recovery_group = :group::text and recovery_condition ~ '^(host|agent):[^:]+$'

-- name: stop_unstartable
-- Block or fail jobs of a type in the queue that ask for a host, '' is none, up to `most`: they cannot start. Return
-- how many, and the parents among those that failed. No row: none.
with picked as materialized (
  select j.jq_pk from drover.jobqueue j
   where j.jq_pk = any (array(
           select pk from drover.queue cross join lateral (
               select coalesce(claim_jobs, array[claim_first]) as pks from drover.claimable
                where claim_type = :type::text and claim_queue = queue_name and claim_host = :host::text
                limit :most::integer) c
            cross join lateral unnest(pks) as pk
            where queue_group = :group::text
            limit :most::integer))
     and jq_state = 'queued' and {{is_free}} and {{holds_lease}}
   order by j.jq_pk
     for no key update skip locked),
stopped as (
  update drover.jobqueue j
     set jq_state = :state::drover.job_state, jq_endtext = :text::text, jq_wait_until = null,
         jq_starttime = case when :state::text = 'failed' then coalesce(jq_first_start, now()) else jq_starttime end,
         jq_endtime = case when :state::text = 'failed' then now() end,
         jq_end_bits = case when :state::text = 'failed' then 2 else jq_end_bits end
    from picked where j.jq_pk between picked.jq_pk and picked.jq_pk
  returning j.jq_pk, j.jq_has_children),
told as (
  insert into drover.log (log_jq_fk, log_type, log_message)
  select jq_pk, case when :state::text = 'failed' then 'ERROR' else 'WARNING' end, :text::text from stopped),
announced as materialized (
  select drover.announce(array_agg(jq_pk), array_agg(:state::text)) from stopped having count(*) > 0)
select count(*), string_agg(jq_pk::text, ',') filter (where jq_has_children and :state::text = 'failed')
  from stopped left join announced on true having count(*) > 0

-- fragment: recovery
-- The condition whose check is carried out, locked, as it was read, if we hold the lease.
recovery as materialized (
  select * from drover.recovery
   where recovery_pk = :recovery::bigint and recovery_tries = :tries::integer and {{holds_lease}}
     for no key update)

-- fragment: blocked_jobs
-- The first jobs of that condition, by their old places, that no other session has locked.
picked as materialized (
  select j.jq_pk
    from recovery join drover.blocked on blocked_recovery = recovery_pk
   cross join lateral (
     select jq_pk from drover.jobqueue
      where jq_pk between blocked_jq_fk and blocked_jq_fk and jq_state = 'blocked'
        for no key update skip locked) j
   order by blocked_rank, blocked_queued, blocked_jq_fk
   limit :most::integer),
left_over as materialized (
  select exists (
    select from recovery join drover.blocked on blocked_recovery = recovery_pk
      join drover.jobqueue j on j.jq_pk between blocked_jq_fk and blocked_jq_fk
     where jq_state = 'blocked' and jq_pk not in (select jq_pk from picked)) as is_so)

-- name: release_blocked
-- Queue blocked jobs, back in their old places, up to `most`; those whose queue is gone fail. It is the next step of
-- their condition if those were all, or as many as the policy allows (`is_limited`); else it is due still. Return how
-- many jobs are queued, whether the check is over, and the parents among those that failed. No row: the group is not
-- ours any more, or the condition was checked meanwhile.
with {{recovery}},
{{blocked_jobs}},
released as (
  update drover.jobqueue j
     set jq_state = 'queued', jq_retry_at = null,
         jq_wait_until = case when j.jq_not_before > now() then j.jq_not_before end
    from picked
   where j.jq_pk between picked.jq_pk and picked.jq_pk
     and exists (select from drover.queue where queue_name = j.jq_queue)
  returning j.jq_pk),
ended as (
  update drover.jobqueue j
     set jq_state = 'failed', jq_starttime = coalesce(jq_first_start, now()), jq_endtime = now(), jq_end_bits = 2,
         jq_endtext = 'recovery_failure: its queue is gone: ' || j.jq_queue, jq_wait_until = null, jq_retry_at = null
    from picked
   where j.jq_pk between picked.jq_pk and picked.jq_pk
     and not exists (select from drover.queue where queue_name = j.jq_queue)
  returning j.jq_pk, j.jq_has_children, j.jq_endtext),
told as (
  insert into drover.log (log_jq_fk, log_type, log_message) select jq_pk, 'ERROR', jq_endtext from ended),
checked as (
  update drover.recovery r
     set recovery_tries = :after::integer, recovery_came = r.recovery_came - :came::integer, recovery_tester = null,
         recovery_since = case when :is_new::boolean then now() else r.recovery_since end,
         recovery_next = now() + make_interval(secs => :wait::float8)
    from recovery
   where r.recovery_pk = recovery.recovery_pk and (:is_limited::boolean or not (select is_so from left_over))
  returning r.recovery_pk),
announced as materialized (
  select drover.announce(array_agg(jq_pk), array_agg(state))
    from (select jq_pk, 'queued'::text as state from released union all select jq_pk, 'failed' from ended) m
  having count(*) > 0)
select (select count(*) from released), exists (select from checked),
       (select string_agg(jq_pk::text, ',') from ended where jq_has_children)
  from recovery left join announced on true

-- name: fail_blocked
-- Fail blocked jobs, up to `most`. Return how many, the parents among them, and whether none is left. No row: as above.
with {{recovery}},
{{blocked_jobs}},
ended as (
  update drover.jobqueue j
     set jq_state = 'failed', jq_starttime = coalesce(jq_first_start, now()), jq_endtime = now(), jq_end_bits = 2,
         jq_endtext = :text::text || coalesce(': ' || j.jq_endtext, ''), jq_wait_until = null, jq_retry_at = null
    from picked where j.jq_pk between picked.jq_pk and picked.jq_pk
  returning j.jq_pk, j.jq_has_children, j.jq_endtext),
told as (
  insert into drover.log (log_jq_fk, log_type, log_message) select jq_pk, 'ERROR', jq_endtext from ended),
announced as materialized (
  select drover.announce(array_agg(jq_pk), array_agg('failed'::text)) from ended having count(*) > 0)
select (select count(*) from ended), (select string_agg(jq_pk::text, ',') from ended where jq_has_children),
       not (select is_so from left_over)
  from recovery left join announced on true

-- fragment: withdrawn_tester
-- Cancel the tester of that condition if it still waits.
tester as (
  update drover.jobqueue j
     set jq_state = 'cancelled', jq_starttime = coalesce(jq_first_start, now()), jq_endtime = now(), jq_end_bits = 2,
         jq_endtext = 'its answer is not waited for any more', jq_wait_until = null
    from (select j.jq_pk from recovery join drover.jobqueue j on j.jq_pk between recovery_tester and recovery_tester
           where jq_state in ('held', 'queued') and {{is_free}}
             for no key update of j skip locked) free
   where j.jq_pk between free.jq_pk and free.jq_pk)

-- name: postpone_recovery
-- Leave the jobs of a condition blocked until its next check. A tester that waits is not waited for any more.
with {{recovery}},
{{withdrawn_tester}}
update drover.recovery r
   set recovery_tries = :after::integer, recovery_tester = null,
       recovery_next = now() + make_interval(secs => :wait::float8)
  from recovery where r.recovery_pk = recovery.recovery_pk
returning r.recovery_pk

-- name: ask_tester
-- Queue the job of a tester in the queue of our group. Its answer is waited for `wait` seconds.
with {{recovery}},
tester as (
  insert into drover.jobqueue (jq_type, jq_args, jq_queue, jq_urgent, jq_timeout, jq_unique_key)
  select :type::text, :args::text, :group::text, true, make_interval(secs => :timeout::float8),
         'drover.tester.' || gen_random_uuid()
    from recovery
  returning jq_pk)
update drover.recovery r
   set recovery_tester = tester.jq_pk, recovery_next = now() + make_interval(secs => :wait::float8)
  from recovery, tester where r.recovery_pk = recovery.recovery_pk
returning r.recovery_tester

-- name: forget_recovery
-- Remove a condition that no job is blocked on, unless one was blocked on it since it was read (`came`).
with {{recovery}},
{{withdrawn_tester}},
vain as (
  delete from drover.blocked
   where blocked_recovery = (select recovery_pk from recovery)
     and not exists (select from drover.jobqueue where jq_pk between blocked_jq_fk and blocked_jq_fk))
delete from drover.recovery
 where recovery_pk = (select recovery_pk from recovery) and recovery_came = :came::integer

-- name: begin_run
-- Queue held jobs for a command `run`, which ends when they have ended (query `close_runs`). Until then the command
-- waits for the year 9999, so that nothing reads it as new, and its result has the jobs and the errors so far. A job in
-- a queue that no scheduler serves becomes ignored. Return how many were queued, the errors, and the jobs that have
-- ended and have children. No row: the command has begun already, or another session has it or one of the jobs locked.
with command as materialized (
  select jq_pk from drover.jobqueue
   where jq_pk = :command::bigint and jq_state = 'queued' and jq_wait_until is null and {{holds_lease}}
     for no key update skip locked),
asked as materialized (
  select distinct u.pk, t.jq_state, t.jq_type, t.jq_queue, case
           when t.jq_pk is null then 'job ' || u.pk || ' not found'
           when t.jq_type = 'command' then 'job ' || u.pk || ' is a command'
           when t.jq_state = 'ignored' then 'job ' || u.pk || ' is ignored: ' || coalesce(t.jq_endtext, '')
           when t.jq_state <> 'held' then 'job ' || u.pk || ' is ' || t.jq_state || ', not held'
         end as wrong,
         not exists (
           select from drover.queue q join drover.scheduler s on s.scheduler_group = q.queue_group
            where q.queue_name = t.jq_queue
              and s.scheduler_seen > now() - make_interval(secs => 2 * s.scheduler_lease)) as is_unserved
    from unnest(:jobs::bigint[]) as u(pk) left join drover.jobs t on t.jq_pk between u.pk and u.pk),
free as materialized (
  select jq_pk from drover.jobqueue
   where jq_pk = any (array(select pk from asked where wrong is null)) and jq_state = 'held'
     and exists (select from command)
   order by jq_pk for no key update skip locked),
ready as materialized (
  select from command where (select count(*) from free) = (select count(*) from asked where wrong is null)),
queued as (
  update drover.jobqueue j set jq_state = 'queued', jq_has_children = true
    from asked a, ready where j.jq_pk between a.pk and a.pk and a.wrong is null and not a.is_unserved
  returning j.jq_pk),
ignored as (
  update drover.jobqueue j
     set jq_state = 'ignored', jq_starttime = coalesce(jq_first_start, now()), jq_endtime = now(), jq_end_bits = 2,
         jq_wait_until = null, jq_endtext = 'queue ' || coalesce(j.jq_queue, '') || ' is served by no scheduler'
    from asked a, ready where j.jq_pk between a.pk and a.pk and a.wrong is null and a.is_unserved
  returning j.jq_pk, j.jq_endtext, j.jq_has_children),
errors as materialized (
  select coalesce(jsonb_object_agg(pk, text), '{}') as found
    from (select pk, wrong as text from asked where wrong is not null
           union all select jq_pk, 'job ' || jq_pk || ' is ignored: ' || jq_endtext from ignored) e),
begun as (
  update drover.jobqueue j
     set jq_wait_until = '9999-01-01', jq_endtext = 'in progress',
         jq_result = jsonb_build_object(
           'jobs', (select jsonb_object_agg(jq_pk, null) from queued), 'errors', errors.found)
    from command, errors
   where j.jq_pk between command.jq_pk and command.jq_pk and exists (select from queued)),
changed as (
  select jq_pk, 'queued' as state from queued union all select jq_pk, 'ignored' from ignored),
announced as materialized (
  select drover.announce(array_agg(jq_pk), array_agg(state)), drover.notify('drover_due', '')
    from changed having count(*) > 0)
select (select count(*) from queued), errors.found::text,
       (select string_agg(jq_pk::text, ',') from ignored where jq_has_children)
  from ready cross join errors left join announced on true

-- name: close_runs
-- End the commands `run` all of whose jobs have ended or were removed, with the outcome of each job. Long output is
-- cut, so that one command returns 8 Mi characters at most of each stream. Return the commands that ended, and whether
-- they have children. A command that another session has locked is skipped.
with over as materialized (
  select c.jq_pk, c.jq_result, (select count(*) from jsonb_object_keys(c.jq_result -> 'jobs')) as jobs
    from drover.jobqueue c
   where c.jq_type = 'command' and c.jq_wait_until is not null and c.jq_state = 'queued'
     and exists (select from drover.scheduler_group where group_owner = :owner::uuid)
     and not exists (
       select from jsonb_object_keys(c.jq_result -> 'jobs') as u(pk), drover.jobqueue j
        where j.jq_pk between u.pk::bigint and u.pk::bigint and j.jq_endtime is null)
     for no key update skip locked),
answers as materialized (
  select over.jq_pk, jsonb_object_agg(u.pk, a.answer) as jobs
    from over cross join jsonb_object_keys(over.jq_result -> 'jobs') as u(pk)
    left join lateral (
      select jsonb_build_object(
               'result', case when j.jq_end_bits & 1 = 1 then 'ok' else 'fail' end, 'code', j.jq_exitcode,
               'signal', j.jq_signal, 'stdout', o.out, 'stderr', o.err) as answer
        from drover.jobqueue j,
             lateral (
               select left(coalesce(string_agg(out_data, '' order by out_part) filter (where out_stream = 'out'), ''),
                           8388608 / over.jobs::integer) as out,
                      left(coalesce(string_agg(out_data, '' order by out_part) filter (where out_stream = 'err'), ''),
                           8388608 / over.jobs::integer) as err
                 from drover.output where out_jq_fk = j.jq_pk and out_attempt = j.jq_attempt) o
       where j.jq_pk between u.pk::bigint and u.pk::bigint) a on true
   group by over.jq_pk),
ended as (
  update drover.jobqueue j
     set jq_state = 'done', jq_attempt = jq_attempt + 1, jq_starttime = now(), jq_endtime = now(), jq_end_bits = 1,
         jq_wait_until = null,
         jq_endtext = over.jobs || case over.jobs when 1 then ' job has ended' else ' jobs have ended' end
           || coalesce('; ' || (select string_agg(value, '; ' order by key::bigint)
                                  from jsonb_each_text(over.jq_result -> 'errors')), ''),
         jq_result = jsonb_build_object('jobs', a.jobs, 'errors', over.jq_result -> 'errors')
    from over join answers a using (jq_pk) where j.jq_pk between over.jq_pk and over.jq_pk
  returning j.jq_pk, j.jq_has_children),
announced as materialized (
  select drover.announce(array_agg(jq_pk), array_agg('done'::text)) from ended having count(*) > 0)
select jq_pk, jq_has_children from ended left join announced on true

-- name: acknowledge
-- Record the answer of this daemon to a command for every scheduler.
insert into drover.command_ack (ack_jq_fk, ack_scheduler, ack_name, ack_ok, ack_text)
select :command::bigint, scheduler_uuid, scheduler_host || '.' || scheduler_pid, :ok::boolean, :text::text
  from drover.scheduler where scheduler_uuid = :owner::uuid
on conflict do nothing

-- fragment: is_missing
-- Command `w` waits for the answer of scheduler `s`, which was registered before it and knows the verb. A dead one is
-- not waited for: its process is known to be `gone`, or it was not seen for two of its leases.
(s.scheduler_number < w.jq_pk and w.verb = any (s.scheduler_verbs) and not s.scheduler_uuid = any (:gone::uuid[])
 and s.scheduler_seen > now() - make_interval(secs => 2 * s.scheduler_lease)
 and coalesce(w.jq_host in (s.scheduler_host, s.scheduler_host || '.' || s.scheduler_pid), true)
 and not exists (select from drover.command_ack where ack_jq_fk = w.jq_pk and ack_scheduler = s.scheduler_uuid))

-- name: close_commands
-- End the commands for every scheduler that all schedulers before them have acknowledged; see fragment `is_missing`.
-- The query runs after each acknowledgement as a statement of its own, so that the last of two at the same time sees
-- both. Return the commands that ended, and whether they have children; then, for the others, whether one of them is a
-- shutdown, and a scheduler that they wait for. A command that another session has locked is skipped, and waits for
-- none.
with waiting as materialized (
  select c.jq_pk, c.jq_host, v.verb
    from drover.claimable w,
         lateral (
           select * from drover.jobqueue
            where jq_pk between w.claim_jq_fk and w.claim_jq_fk and jq_state = 'queued' limit 1) c,
         lateral (select drover.word(left(c.jq_args, 1001), 1) as verb offset 0) v
   where w.claim_type = 'command' and w.claim_queue = '' and w.claim_rank < '2'  -- operators' commands
     and v.verb = any (:every::text[])),
over as materialized (
  select w.jq_pk, coalesce(bool_and(ack_ok), false) as ok,
         coalesce(string_agg(distinct ack_name || ': ' || ack_text, '; '),
                  'no scheduler was running that knows it') as text,
         jsonb_object_agg(ack_name, ack_text) filter (where ack_name is not null) as result
    from waiting w left join drover.command_ack on ack_jq_fk = w.jq_pk
   where not exists (select from drover.scheduler s where {{is_missing}})
   group by w.jq_pk),
free as materialized (
  select jq_pk from drover.jobqueue
   where jq_pk = any (array(select jq_pk from over)) and jq_state = 'queued' for no key update skip locked),
ended as (
  update drover.jobqueue j
     set jq_state = case when over.ok then 'done' else 'failed' end::drover.job_state, jq_attempt = jq_attempt + 1,
         jq_starttime = now(), jq_endtime = now(), jq_end_bits = case when over.ok then 1 else 2 end,
         jq_endtext = over.text, jq_result = over.result
    from over join free using (jq_pk) where j.jq_pk between over.jq_pk and over.jq_pk
  returning j.jq_pk, j.jq_state::text as state, j.jq_has_children),
announced as materialized (
  select drover.announce(array_agg(jq_pk), array_agg(state)) from ended having count(*) > 0)
select jq_pk, jq_has_children, false as is_shutdown, null::uuid as scheduler_uuid, null::text as scheduler_host,
       null::integer as scheduler_pid, null::text as scheduler_boot_id, null::text as scheduler_pid_space,
       null::bigint as scheduler_pid_start
  from ended left join announced on true
 union all
select null, null, bool_or(w.verb = 'shutdown'), m.scheduler_uuid, m.scheduler_host, m.scheduler_pid,
       m.scheduler_boot_id, m.scheduler_pid_space, m.scheduler_pid_start
  from waiting w left join lateral (select s.* from drover.scheduler s where {{is_missing}}) m on true
 where w.jq_pk not in (select jq_pk from ended)
 group by m.scheduler_uuid, m.scheduler_host, m.scheduler_pid, m.scheduler_boot_id, m.scheduler_pid_space,
          m.scheduler_pid_start

-- name: set_host
-- Change the limits and filters of a host; null leaves a value as it is. The scheduler that serves the host is
-- notified. Return the new values, or null if there is no such host; and the queues that do not exist: if there is one,
-- nothing is changed. No row: the group is not ours any more.
with {{lease}},
missing as materialized (
  select string_agg(name, ', ' order by name) as names from unnest(:queues::text[]) as name
   where not exists (select from drover.queue where queue_name = name and queue_present)),
changed as (
  update drover.host
     set host_enabled = coalesce(:enabled::boolean, host_enabled), host_max = coalesce(:most::integer, host_max),
         host_urgent = coalesce(:urgent::integer, host_urgent), host_types = coalesce(:types::text, host_types),
         host_queues = nullif(coalesce(:queues::text[], host_queues), '{}'),
         host_priorities = coalesce(:priorities::text, host_priorities),
         host_letters = case when :priorities::text is null then host_letters else :letters::text end
   where host_name = :name::text and exists (select from lease) and (select names is null from missing)
  returning case when host_enabled then 'enabled' else 'disabled' end
            || ', max ' || host_max || ', urgent ' || host_urgent
            || coalesce(', types=' || nullif(host_types, ''), '')
            || coalesce(', queues=' || array_to_string(host_queues, ','), '')
            || coalesce(', priorities=' || nullif(host_priorities, ''), '') as new_values)
select new_values, names from lease cross join missing left join changed on true limit 1

-- name: set_type
-- Enable or disable a type of agents in every group that has it. Return its new state, or null if there is no such
-- type. No row: the group is not ours any more.
with {{lease}},
changed as (
  update drover.agent set agent_enabled = :enabled::boolean
   where agent_type = :name::text and exists (select from lease)
  returning case when agent_enabled then 'enabled' else 'disabled' end as new_values)
select new_values from lease left join changed on true limit 1

-- name: flush
-- Remove one piece of what ended so many `days`, by state, before the command was queued, or before now; see
-- drover.prune_piece. Return how many rows were removed, and where to go on: no stage if nothing is left; how many the
-- database refuses to remove, the first of them, and why. No row: another group, the first of those that have an active
-- scheduler, carries the command out.
select f.removed, f.stage, f.place, cardinality(f.kept), array_to_string(f.kept[:10], ', '), f.why
  from (select where :command::bigint is null or :group::text = (
          select min(group_name) from drover.scheduler_group
           where group_owner is not null and group_lease_until > now())) is_first,
       lateral drover.prune_piece(
         (select jsonb_object_agg(
                   key, coalesce((select jq_queued from drover.jobqueue where jq_pk = :command::bigint), now())
                        - make_interval(days => value::integer))
            from jsonb_each_text(:days::jsonb)),
         :most::integer, :stage::text, :place::bigint) f

-- name: pause_queues
-- Pause or resume queues; no name means all. Return the queues that do not exist: if there is one, nothing is changed;
-- the queues that changed; and those that were so already. No row: the group is not ours any more.
with {{lease}},
missing as materialized (
  select string_agg(name, ', ') as names from unnest(:names::text[]) as name
   where name not in (select queue_name from drover.queue)),
changed as (
  update drover.queue set queue_paused = :paused::boolean
   where queue_paused <> :paused::boolean and (queue_name = any (:names::text[]) or :names::text[] = '{}')
     and exists (select from lease) and (select names is null from missing)
  returning queue_name)
select missing.names, (select string_agg(queue_name, ', ' order by queue_name) from changed),
       (select string_agg(queue_name, ', ' order by queue_name) from drover.queue
         where (queue_name = any (:names::text[]) or :names::text[] = '{}')
           and queue_name not in (select queue_name from changed))
  from lease cross join missing

-- name: unknown_queues
-- Return which of these queues do not exist.
select string_agg(name, ', ') from unnest(:names::text[]) as name
 where name not in (select queue_name from drover.queue)

-- name: add_queue
-- Add a queue to our group. Return whether there was none of this name. No row: the group is not ours any more, or
-- another session has the command locked.
with {{lease}},
command as materialized (
  select jq_pk from drover.jobqueue
   where jq_pk = :command::bigint and jq_state = 'queued' and exists (select from lease)
     for no key update skip locked),
changed as (
  insert into drover.queue (queue_name, queue_group, queue_concurrency)
  select :name::text, :group::text, :concurrency::integer from command
  on conflict do nothing returning queue_name),
{{took_effect}}
select exists (select from changed) from command

-- name: remove_queue
-- Remove a queue that is neither `default` nor the queue of a group, and that no job waits in or is worked from. To
-- find out, all jobs are read. Return `removed`, or why not. No row: as for add_queue.
with {{lease}},
command as materialized (
  select jq_pk from drover.jobqueue
   where jq_pk = :command::bigint and jq_state = 'queued' and exists (select from lease)
     for no key update skip locked),
verdict as materialized (
  select case when not exists (select from drover.queue where queue_name = :name::text) then 'unknown'
              when :name::text = 'default'
                   or exists (select from drover.scheduler_group where group_name = :name::text) then 'own'
              when exists (select from drover.jobqueue where jq_queue = :name::text and jq_endtime is null) then 'used'
              else 'removed' end as word
    from command),
changed as (
  delete from drover.queue where queue_name = :name::text and (select word = 'removed' from verdict)
  returning queue_name),
{{took_effect}}
select word from verdict

-- name: set_queue
-- Change a queue, of any group; null leaves a value as it is. Return whether there is one of this name, and the answer
-- to the command. No row: the group is not ours any more.
with {{lease}},
clash as (
  select min(o.queue_name) as other
    from drover.queue q join drover.queue o on o.queue_group = q.queue_group and o.queue_name <> q.queue_name
   where q.queue_name = :queue::text and q.queue_filter <> '' and o.queue_filter <> '' and o.queue_present
     and o.queue_priority = :priority::integer having count(*) > 0),
changed as (
  update drover.queue
     set queue_concurrency = coalesce(:concurrency::integer, queue_concurrency),
         queue_priority = coalesce(:priority::integer, queue_priority),
         queue_max_length = nullif(coalesce(:length::integer, queue_max_length), 0)
   where queue_name = :queue::text and exists (select from lease) and not exists (select from clash)
  returning 'concurrency ' || coalesce(queue_concurrency::text, 'unlimited')
            || ', priority ' || queue_priority || coalesce(', at most ' || queue_max_length || ' waiting', '')
            as new_values)
select new_values is not null,
       coalesce('queue ' || :queue::text || ': ' || new_values,
                (select 'queue ' || :queue::text || ': ' || :priority::integer || ' is the priority of queue ' || other
                        || ', which has a filter too' from clash),
                'no queue ' || :queue::text)
  from lease left join changed on true

-- name: set_filter
-- Give a queue, of any group, a filter, or none if it is empty. Return whether that was done, and the answer to the
-- command. No row: the group is not ours any more.
with {{lease}},
clash as (
  select format('queue %s: its priority %s is that of queue %s, which has a filter too; set-queue-priority gives it '
                'another', q.queue_name, q.queue_priority, min(o.queue_name)) as says
    from drover.queue q join drover.queue o on o.queue_group = q.queue_group and o.queue_name <> q.queue_name
   where q.queue_name = :name::text and :filter::text <> '' and o.queue_filter <> '' and o.queue_present
     and o.queue_priority = q.queue_priority group by q.queue_name, q.queue_priority),
changed as (
  update drover.queue
     set queue_filter = :filter::text,
         queue_route = case when :filter::text <> '' then jsonb_build_object(
           'text', :filter::text, 'zone', queue_zone, 'tree', :tree::jsonb) end
   where queue_name = :name::text and exists (select from lease) and not exists (select from clash)
  returning 'queue ' || queue_name || case when queue_filter = '' then ': no filter' else ': the filter is set, for '
            || 'jobs that are inserted from now on, with times of ' || queue_zone end as says)
select changed.says is not null,
       coalesce(changed.says, (select says from clash), 'no queue ' || :name::text)
  from lease left join changed on true

-- name: set_rate
-- Give a queue, of any group, rate limits, or none. Return whether there is one of this name. No row: the group is not
-- ours any more.
with {{lease}},
changed as (
  update drover.queue set queue_rate = :rate::jsonb
   where queue_name = :name::text and exists (select from lease)
  returning queue_name)
select queue_name is not null from lease left join changed on true

-- name: free_put_off
-- Let jobs of a queue be claimed that a rate limit put off and whose text does not begin with `current`: of the next
-- `most` rows that wait for an instant, after an instant. Return how many are free, how many were to be, and the last
-- instant that was read; null if there are no more rows.
with page as materialized (
  select jq_pk, jq_wait_until,
         jq_state = 'queued' and jq_retry_at is not null and starts_with(jq_endtext, 'rate limit of queue ')
         and not coalesce(starts_with(jq_endtext, :current::text), false) as is_put_off
    from drover.jobqueue
   where jq_queue = :queue::text and jq_wait_until > :after::timestamptz
   order by jq_wait_until fetch first (:most::integer) rows with ties),
free as materialized (
  select j.jq_pk from drover.jobqueue j
   where j.jq_pk = any (array(select jq_pk from page where is_put_off)) and j.jq_state = 'queued'
     and starts_with(j.jq_endtext, 'rate limit of queue ') and {{holds_lease}}
   order by j.jq_pk for no key update skip locked),
freed as (
  update drover.jobqueue j
     set jq_wait_until = case when j.jq_not_before > now() then j.jq_not_before end, jq_retry_at = null,
         jq_endtext = 'the rate limit has changed'
    from free where j.jq_pk between free.jq_pk and free.jq_pk
  returning j.jq_pk)
select (select count(*) from freed), count(*) filter (where is_put_off),
       case when count(*) >= :most::integer then max(jq_wait_until) end
  from page

-- name: put_off_is_free
-- Note that no job of a queue waits any more for a rate limit of before this change of it.
update drover.queue set queue_rate_changed = null
 where queue_name = :queue::text and queue_rate_changed = :changed::timestamptz and {{holds_lease}}

-- name: set_schedule
-- Switch a schedule on or off. Return whether there is one of this name. No row: the group is not ours any more.
with {{lease}},
changed as (
  update drover.schedule set schedule_enabled = :enabled::boolean
   where schedule_name = :name::text and exists (select from lease)
  returning schedule_name)
select exists (select from changed) from lease

-- name: run_schedule
-- Start a schedule now; see drover.run_schedule. No row: as for add_queue, or the schedule is locked.
with {{lease}},
command as materialized (
  select jq_pk from drover.jobqueue
   where jq_pk = :command::bigint and jq_state = 'queued' and exists (select from lease)
     for no key update skip locked),
run as materialized (select r.* from command, lateral drover.run_schedule(:name::text) r),
changed as materialized (select from run where started),
{{took_effect}}
select started, said from run where said is not null

-- name: may_step_down
-- Return why a command to give up our group cannot be obeyed, or null; and our name. The reasons: it names an unknown
-- group or another one than ours; the group was taken over after the command; it names none and several groups have a
-- scheduler; no other scheduler of the group was seen within half a lease. No row: the group is not ours any more.
select case when :name::text not in (select group_name from drover.scheduler_group) then 'unknown'
            when :name::text <> g.group_name then 'elsewhere'
            when g.group_number >= c.jq_pk then 'past'
            when :name::text is null
                 and (select count(*) from drover.scheduler_group where group_lease_until > now()) > 1 then 'several'
            when not exists (
              select from drover.scheduler s
               where s.scheduler_group = g.group_name
                 and s.scheduler_seen > now() - make_interval(secs => s.scheduler_lease / 2)
                 and (s.scheduler_host, s.scheduler_pid, s.scheduler_pid_start)
                     <> (me.scheduler_host, me.scheduler_pid, me.scheduler_pid_start))
            then 'alone' end,
       me.scheduler_host || '.' || me.scheduler_pid
  from drover.scheduler_group g
  join drover.scheduler me on me.scheduler_uuid = g.group_owner
  join drover.jobqueue c on c.jq_pk between :command::bigint and :command::bigint
 where g.group_name = :group::text and g.group_owner = :owner::uuid

-- name: rescan
-- Return the ended parents with edges that were not settled, in case a notification was lost, and where to go on, null
-- at the end: looked at are up to `most` parents after the one given. Also: a type that is not configured as fair any
-- more stays fair until none of its jobs waits in a line of its submitter, since a job without a round always goes
-- before one that has a round. The queues in which jobs of a type wait in lines are read, one row of each.
with recursive line as (
  (select agent_type as type, n.claim_queue as queue
     from drover.agent cross join lateral (
       select claim_queue from drover.claimable
        where claim_type = agent_type and claim_line is not null order by claim_queue limit 1) n
    where agent_group = :group::text)
   union all
  select type, n.claim_queue from line cross join lateral (
    select claim_queue from drover.claimable
     where claim_type = type and claim_line is not null and claim_queue > queue order by claim_queue limit 1) n),
fair as (
  update drover.agent a set agent_fair = w.is_fair
    from (select agent_type, agent_present and agent_fair_file or agent_type in (
                   select type from line join drover.queue on queue_name = queue
                    where queue_group = :group::text) as is_fair
            from drover.agent where agent_group = :group::text) w
   where a.agent_group = :group::text and a.agent_type = w.agent_type and a.agent_fair <> w.is_fair),
parent(top, n) as (
  (select jdep_jq_depends_fk, 1 from drover.jobdepends
    where coalesce(jdep_met_at, '-infinity') = '-infinity' and jdep_jq_depends_fk > :beyond::bigint
    order by jdep_jq_depends_fk limit 1)
   union all
  select o.jdep_jq_depends_fk, n + 1 from parent cross join lateral (
    select jdep_jq_depends_fk from drover.jobdepends
     where coalesce(jdep_met_at, '-infinity') = '-infinity' and jdep_jq_depends_fk > top
     order by jdep_jq_depends_fk limit 1) o
   where n < :most::integer)
select (select string_agg(jq_pk::text, ',')
          from parent cross join lateral (
            select jq_pk, jq_end_bits from drover.jobqueue where jq_pk = top and jq_endtime is not null offset 0) p
         where exists (
           select from drover.jobdepends d join drover.jobqueue c on c.jq_pk = d.jdep_jq_fk
            where d.jdep_jq_depends_fk = p.jq_pk and d.jdep_met_at is null
              and c.jq_state in ('held', 'queued', 'blocked')
              and (p.jq_end_bits & d.jdep_depends_bits <> 0 or d.jdep_on_unmet = 'skip') offset 0)),
       case when (select count(*) from parent) >= :most::integer then (select max(top) from parent) end

-- name: read_shared_settings
-- Return the settings that commands and operators may have changed: queues, hosts and agent types of the group,
-- placements, and quotas of the group, as a JSON value each; then the seconds until a schedule is to be looked at, null
-- if none is.
select (select coalesce(json_agg(json_build_object(
                 'name', queue_name, 'concurrency', queue_concurrency, 'paused', queue_paused,
                 'reserved', queue_reserved, 'rate', queue_rate,
                 'rate_changed', queue_rate_changed, 'starts', case when queue_rate is not null then (
                   select json_object_agg(start_value, array(
                            select extract(epoch from now() - at) from unnest(start_times) as at))
                     from drover.queue_start where start_queue = queue_name) end)), '[]')
          from drover.queue where queue_group = :group::text),
       (select coalesce(json_agg(json_build_object(
                 'name', host_name, 'max', host_max, 'urgent', host_urgent, 'enabled', host_enabled,
                 'types', host_types, 'queues', host_queues, 'priorities', host_priorities)), '[]')
          from drover.host where host_group = :group::text and host_present),
       (select coalesce(json_agg(json_build_object(
                 'type', agent_type, 'enabled', agent_enabled, 'trial', agent_trial)), '[]')
          from drover.agent where agent_group = :group::text and agent_present),
       (select coalesce(json_agg(json_build_object(
                 'type', placement_type, 'from', placement_from, 'to', placement_to, 'host', placement_host)
                 order by placement_pk), '[]') from drover.placement),
       (select coalesce(json_agg(json_build_object(
                 'name', quota_name, 'most', quota_most, 'tenant', quota_tenant, 'user', quota_user,
                 'queue', quota_queue, 'host', quota_host) order by quota_name), '[]')
          from drover.quota where quota_group = :group::text),
       case when exists (select from drover.schedule
                          where schedule_enabled and schedule_due is not null
                            and schedule_computed > now() + interval '1 hour') then 0
            else (select extract(epoch from greatest(schedule_due, now()) - now()) from drover.schedule
                   where schedule_enabled and schedule_due is not null order by schedule_due limit 1) end

-- name: show_starts
-- Write down what was started of queues with a rate limit: ages are seconds.
with given as materialized (
  select * from jsonb_to_recordset(:rows::jsonb) as u(queue text, value text, ages float8[], next float8)),
gone as (
  delete from drover.queue_start s using given
   where start_queue = queue and start_value = value and ages = '{}')
insert into drover.queue_start (start_queue, start_value, start_times, start_next)
select queue, value, array(select now() - make_interval(secs => age) from unnest(ages) as age),
       now() + make_interval(secs => next)
  from given where ages <> '{}'
on conflict (start_queue, start_value) do update
  set start_times = excluded.start_times, start_next = excluded.start_next

-- name: install_routes
-- Let inserts go by the filters of queues as they are now. Return what went wrong, null if nothing did; no row: they do
-- already.
select drover.install_routes() where drover.is_route_stale()

-- name: due_schedules
-- Return now; since when what was not started in time was missed, for no scheduler of the group was there; the seconds
-- until another schedule is due; and `most` schedules at most that are due, or that were computed when the clock was
-- ahead by more than an hour. Times are microseconds since 1970.
with due as materialized (
  (select * from drover.schedule where schedule_enabled and schedule_due <= now() order by schedule_due
    limit :most::integer)
  union all
  (select * from drover.schedule
    where schedule_enabled and schedule_due is not null and schedule_computed > now() + interval '1 hour'
      and schedule_due > now()
    order by schedule_computed limit :most::integer)),
us as materialized (
  select schedule_name as name, schedule_cron as cron, schedule_zone as zone, schedule_catch_up as catch_up,
         (extract(epoch from schedule_at) * 1000000)::bigint as at,
         (extract(epoch from schedule_every) * 1000000)::bigint as every,
         (extract(epoch from schedule_jitter) * 1000000)::bigint as jitter,
         (extract(epoch from schedule_from) * 1000000)::bigint as from,
         (extract(epoch from schedule_next) * 1000000)::bigint as next
    from due)
select (extract(epoch from now()) * 1000000)::bigint,
       (select (extract(epoch from greatest(group_taken_at, now() - make_interval(secs => :late::float8)))
                * 1000000)::bigint
          from drover.scheduler_group where group_name = :group::text),
       (select extract(epoch from schedule_due - now()) from drover.schedule
         where schedule_enabled and schedule_due > now() order by schedule_due limit 1),
       coalesce((select json_agg(us) from us), '[]')

-- name: start_schedules
-- Start schedules and move each on to its next start; see drover.start_schedule. Return for each whether it was, how
-- many starts queued jobs, and what is wrong. No row: the group is not ours any more.
with {{lease}}
select u.name, s.is_moved, s.started, s.said
  from lease cross join jsonb_to_recordset(:rows::jsonb) as u(
         name text, was bigint, next bigint, due bigint, reason text, starts bigint[]),
       lateral drover.start_schedule(
         u.name, 'epoch'::timestamptz + u.was * interval '1 us', 'epoch'::timestamptz + u.next * interval '1 us',
         'epoch'::timestamptz + u.due * interval '1 us', u.reason,
         array(select 'epoch'::timestamptz + at * interval '1 us' from unnest(u.starts) as at order by at)) s

-- name: queue_deliveries
-- Go on with the deliveries of events, `most` of each kind at most. Return how many are dead, how many were queued, and
-- the seconds until this is to be done again, if that is known.
select dead, queued, seconds from drover.queue_deliveries(:group::text, :most::integer) where {{holds_lease}}

-- name: find_unserved
-- Look at up to `places` places in which jobs wait, after the one given: see drover.find_unserved. Return how many jobs
-- of our group are new among the dead letters, as alternates; the queues that do not exist in which jobs of our types
-- wait, with how many, as JSON; and the place to go on after, null at the end.
select entered, unknown, f.type, f.queue
  from drover.find_unserved(:group::text, :places::integer, :most::integer, :type::text, :queue::text) f
 where {{holds_lease}}

-- name: find_alerts
-- Tell subscriptions of the site what drover.impossible shows for half a minute, once each. Return how many were told.
select drover.find_alerts(:most::integer) where {{holds_lease}}

-- name: find_suspects
-- Make a step of the walk that looks for jobs that cannot be as they are, see drover.impossible; it looks at about
-- that many rows. Return whether that was the last step of the walk.
select drover.find_suspects(:most::integer) where {{holds_lease}}

-- name: forget_events
-- Remove a piece of the events that are not needed any more; return where to go on, null at the end.
select drover.forget_events(:beyond::bigint, :most::integer)

-- name: forget_subscriptions
-- The same for subscriptions.
select drover.forget_ended_subscriptions(:beyond::bigint, :most::integer)

-- name: show_agents
-- Write what drover.why shows of agent types: since and until when all their slots have failed, and why they wait; and
-- what is known of their new programs, where something is.
update drover.agent a
   set agent_blocked_since = now() - make_interval(secs => u.since),
       agent_blocked_until = now() + make_interval(secs => u.seconds),
       agent_reason = u.reason, agent_queries_wait = u.queries_wait,
       agent_item_next = now() + make_interval(secs => u.item_wait),
       agent_trial = case when u.knows then nullif(u.trial, 'null') else agent_trial end
  from jsonb_to_recordset(:rows::jsonb) as u(
         type text, since float8, seconds float8, reason text, queries_wait boolean, knows boolean, trial jsonb,
         item_wait float8)
 where a.agent_group = :group::text and a.agent_type = u.type
   and (a.agent_reason is distinct from u.reason or a.agent_queries_wait <> u.queries_wait
        or u.seconds is not null or a.agent_blocked_until is not null
        or (u.item_wait is null) <> (a.agent_item_next is null)
        or abs(extract(epoch from a.agent_item_next - now()) - u.item_wait) > 1
        or u.knows and nullif(u.trial, 'null') is distinct from a.agent_trial)

-- name: show_status
-- Write one row for each slot, and row -1 for the scheduler; remove the rows of slots that are gone.
with gone as (
  delete from drover.scheduler_status where status_scheduler = :owner::uuid and status_slot = any (:gone::integer[]))
insert into drover.scheduler_status as t
  (status_scheduler, status_slot, status_host, status_agent, status_state, status_state_name, status_since, status_pid,
   status_jq_fk, status_parameter, status_spawns, status_items, status_reason, status_program)
select :owner::uuid, u.slot, u.host, u.agent, u.state, u.name, now() - make_interval(secs => u.age), u.pid, u.job,
       u.parameter, u.spawns, u.items, u.reason, u.program
  from jsonb_to_recordset(:rows::jsonb) as u(
         slot integer, host text, agent text, state integer, name text, age float8, pid integer, job bigint,
         parameter text, spawns integer, items bigint, reason text, program text)
on conflict (status_scheduler, status_slot) do update
  set status_host = excluded.status_host, status_agent = excluded.status_agent,
      status_state = excluded.status_state, status_state_name = excluded.status_state_name,
      status_since = excluded.status_since, status_pid = excluded.status_pid,
      status_jq_fk = excluded.status_jq_fk, status_parameter = excluded.status_parameter,
      status_spawns = excluded.status_spawns, status_items = excluded.status_items,
      status_reason = excluded.status_reason, status_program = excluded.status_program, status_updated = now()

-- name: count
-- Add to the counters what the daemon has counted, and what was counted beside it. Rows are locked in one order, since
-- daemons of other groups add to the same counters. Plain ends and starts by bins of time are rows of drover.tally.
with given as materialized (
  select * from jsonb_to_recordset(:rows::jsonb) as u(name text, labels text[], value float8)),
beside as (
  delete from drover.counter_new
   where ctid = any (array(select ctid from drover.counter_new for update skip locked))
  returning counter_name, counter_labels, counter_value),
tallied as (
  insert into drover.tally (tally_type, tally_host, tally_state, tally_code, tally_jobs, tally_items, tally_bins,
                            tally_counts)
  select labels[1], coalesce(nullif(labels[2], ''), '-'), case name when 'started' then name else 'done' end,
         case name when 'started' then '' else 'normal' end, sum(value),
         case name when 'started' then 0 else sum(value) end, array_agg(labels[3]::integer), array_agg(value::bigint)
    from given where name in ('started', 'ended_plainly') group by name, labels[1], labels[2])
insert into drover.counter as c (counter_name, counter_labels, counter_value)
select name, labels, sum(value)
  from (select * from given where name not in ('started', 'ended_plainly') union all select * from beside) u
 group by name, labels order by name, labels
on conflict (counter_name, counter_labels) do update set counter_value = c.counter_value + excluded.counter_value

-- name: fold_tally
-- Fold what was counted in spans of time that are over; return how many rows that were, `most` of each span.
select drover.fold_tally(:most::integer)

-- name: add_up_changes
-- Add up what was counted of jobs, `most` rows at most, and count `zones` zones anew if the counts may be wrong. Return
-- how many rows were added up, and how many zones are left.
select drover.add_up_changes(:most::integer), drover.recount_next(:zones::integer)

-- name: show_hosts
-- Write since when hosts of the group cannot be reached, when the next attempt is, and why; null if they can.
with {{lease}}
update drover.host
   set host_down_since = case when u.seconds is null then null
                              when host_down_until is null then now()
                              else coalesce(host_down_since, now()) end,
       host_down_until = now() + make_interval(secs => u.seconds), host_reason = u.reason
  from jsonb_to_recordset(:rows::jsonb) as u(name text, seconds float8, reason text)
 where host_name = u.name and host_group = :group::text and exists (select from lease)

-- name: remove_dead
-- Remove the status of earlier daemons of the group, after another has taken over.
with dead as (
  delete from drover.scheduler where scheduler_group = :group::text and scheduler_uuid <> :owner::uuid
     and scheduler_seen < now() - make_interval(secs => :age::float8) returning scheduler_uuid)
delete from drover.scheduler_status
 where status_scheduler in (select scheduler_uuid from dead)
    or status_scheduler not in (select scheduler_uuid from drover.scheduler)

-- name: unregister
-- Unregister this daemon, which exits, or `stays` and lets another one serve: the group has no owner, and its standbys
-- are notified. One that stays is replaced by its next registration.
with me as (delete from drover.scheduler where scheduler_uuid = :owner::uuid and not :stays::boolean),
status as (delete from drover.scheduler_status where status_scheduler = :owner::uuid)
update drover.scheduler_group set group_owner = null, group_lease_until = null
 where group_name = :group::text and group_owner = :owner::uuid
returning drover.notify('drover_change', '')

-- name: next_job_number
-- Return the jq_pk for the next line of `drover run -I`.
select nextval('drover.jobqueue_jq_pk_seq')

-- name: insert_stdin_job
-- Insert the job for a line of `drover run -I` under a number that was chosen before, so that it can be sent again. A
-- transaction that inserts into a queue of limited length is waited for, but for less time than the lease lasts.
insert into drover.jobqueue (jq_pk, jq_type, jq_args, jq_urgent) overriding system value
select :pk::bigint, :type::text, :args::text, :urgent::boolean
 where set_config('lock_timeout', '200ms', true) is not null
    on conflict (jq_pk) do nothing

-- name: read_stdin_ends
-- Return which of these jobs have ended or were removed, their state and end text, and whether they succeeded.
select pk, coalesce(jq_state::text, 'removed'),
       case when jq_pk is null then 'its row was removed' else jq_endtext end,
       coalesce(jq_end_bits & 1 = 1, false)
  from unnest(:pks::bigint[]) as pk left join drover.jobqueue on jq_pk between pk and pk
 where jq_pk is null or jq_endtime is not null

-- name: find_lost
-- Return which rows we have in hand are not ours in this database: it is another server now, a replica that had not
-- received the claim when it was promoted.
with {{ownership}}
select pk from unnest(:pks::bigint[], :attempts::integer[]) as u(pk, attempt)
 where not exists (
   select from drover.jobqueue j
    where j.jq_pk between u.pk and u.pk and {{is_in_hand}} and (j.jq_state <> 'queued' or not drover.has_token(j)))

-- name: probe_listen
-- Notify our own channel: if the connection that listens receives this, it receives all notifications. Return whether
-- the queue of notifications has space left; that is read even while no notifications are sent.
select set_config('drover.notify', 'on', true), drover.notify(:channel::text, ''), pg_notification_queue_usage() < 0.9

-- name: end_backend
-- After a lost connection, end the session that may still run a statement of ours, and wait until it is gone. A session
-- with this pid that began at another time is not ours: a server that is started again reuses pids.
select pg_terminate_backend(pid, 5000) from pg_stat_get_activity(:pid::integer)
 where extract(epoch from backend_start) = :start::numeric
