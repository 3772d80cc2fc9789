-- Every statement of the commands of people (scheduler/cli), by name; those of the daemon are in queries.sql.
-- Parameters are `:name`. Names of columns are the headings of tables and the keys of --json.
-- Blocks that are named TABLE.ACCESS stand for a table: for a role that may read only a view of it, and for one that
-- may read all, so that a job that is in hand by a record is shown as claimed.

-- The role and the server

-- name: access
-- Return how much the role may read of each table: all, all rows without the data of jobs (masked), its own rows, or
-- nothing.
select name, case when has_table_privilege('drover.' || name, 'select') then 'all'
                  when has_any_column_privilege('drover.' || masked, 'select') then 'masked'
                  when has_table_privilege('drover.' || own, 'select') then 'own'
                  else 'nothing' end
  from (values ('jobqueue', 'jobs_masked', 'my_jobs'), ('scheduler_status', 'scheduler_status', null),
               ('output', null, 'my_output'), ('why', 'why_masked', 'my_why'), ('log', null, 'my_log'),
               ('blocked_jobs', 'blocked_jobs', 'my_blocked'), ('impossible', null, null),
               ('event', null, 'my_event'), ('subscription', null, 'my_subscription'),
               ('delivery', null, 'my_delivery'), ('attempt', 'attempt', 'my_attempt'),
               ('item_failure', null, 'my_item_failure'), ('jobdepends', null, 'my_jobdepends'),
               ('job_states', null, 'my_job_states'), ('job_zones', null, 'my_job_zones'),
               ('backlog', null, 'my_backlog'), ('jobs_in_hand', null, 'my_jobs_in_hand'),
               ('tally', null, 'my_jobs'),
               ('job_counts', 'job_counts', 'my_job_counts'), ('zone_parts', 'zone_parts', 'my_zone_parts'),
               ('beside_zones', 'beside_zones', 'my_beside_zones'))
         as t(name, masked, own)

-- name: role
-- Return whose rights this session has: those of the login, or of the role that it became.
select current_user::text

-- name: jobqueue.all
select * from drover.jobs

-- name: jobqueue.masked
select *, null::text as jq_args, null::text as jq_endtext, null::jsonb as jq_result from drover.jobs_masked

-- name: jobqueue.own
select * from drover.my_jobs

-- name: scheduler_status.masked
select status_scheduler, status_slot, status_host, status_agent, status_state_name, status_since, status_pid,
       status_jq_fk, status_spawns, status_items, status_reason, status_updated, status_program,
       null::text as status_parameter
  from drover.scheduler_status

-- name: scheduler_status.nothing
select (s).* from (select null::drover.scheduler_status as s) nobody where false

-- name: output.own
select * from drover.my_output

-- name: why.masked
select * from drover.why_masked

-- name: why.own
select * from drover.my_why

-- name: log.own
select * from drover.my_log

-- name: blocked_jobs.own
select * from drover.my_blocked

-- name: event.own
select * from drover.my_event

-- name: subscription.own
select * from drover.my_subscription

-- name: delivery.own
select * from drover.my_delivery

-- name: attempt.masked
select att_jq_fk, att_attempt, att_scheduler, att_host, att_agent, att_pid, att_start, att_end, att_outcome,
       att_exitcode, att_signal, null::text as att_reason
  from drover.attempt

-- name: attempt.own
select * from drover.my_attempt

-- name: item_failure.own
select * from drover.my_item_failure

-- name: jobdepends.own
select * from drover.my_jobdepends

-- name: tally.own
-- The rows of jobs, each as if it had been counted alone. The daemon that counts does not know whose a job is.
select jq_endtime as tally_at, interval '0' as tally_span, jq_type as tally_type,
       coalesce(jq_done_host, '-') as tally_host, jq_state::text as tally_state, jq_end_code as tally_code,
       1::bigint as tally_jobs, jq_itemsprocessed as tally_items, jq_pk as tally_newest,
       case when jq_state in ('done', 'failed')
            then array[drover.time_bin(drover.time_run(jq_msq, jq_processedtime, jq_starttime, jq_endtime))]
            else '{}' end as tally_bins,
       case when jq_state in ('done', 'failed') then array[1::bigint] else '{}' end as tally_counts
  from drover.my_jobs where jq_endtime is not null and jq_type <> 'command'
 union all
select jq_starttime, interval '0', jq_type, '-', 'started', '', 1, 0, jq_pk,
       array[drover.time_bin(date_part('epoch', jq_starttime) - date_part('epoch', jq_queued))], array[1]
  from drover.my_jobs where jq_starttime is not null and jq_attempt > 0 and jq_type <> 'command'

-- name: job_states.own
select * from drover.my_job_states

-- name: job_zones.own
select * from drover.my_job_zones

-- name: backlog.own
select * from drover.my_backlog

-- name: jobs_in_hand.own
select * from drover.my_jobs_in_hand

-- name: job_counts.own
select * from drover.my_job_counts

-- name: zone_parts.own
select * from drover.my_zone_parts

-- name: beside_zones.own
select * from drover.my_beside_zones

-- What a member of a tenant sees of its fellows too; other roles see of it what they see of the table.

-- name: our_jobs.all
select * from drover.jobs

-- name: our_jobs.masked
select *, null::text as jq_args, null::text as jq_endtext, null::jsonb as jq_result, null::jsonb as jq_variables,
       null::text as jq_unique_key, null::text[] as jq_delete, null::bigint as jq_resubmit_of
  from drover.jobs_masked

-- name: our_job_counts.all
select * from drover.job_counts

-- name: our_job_counts.masked
select * from drover.job_counts

-- name: our_beside_zones.all
select * from drover.beside_zones

-- name: our_beside_zones.masked
select * from drover.beside_zones

-- name: our_why.all
select * from drover.why

-- name: our_why.masked
select * from drover.why_masked

-- name: our_detached.all
select * from drover.detached_jobs

-- name: our_detached.masked
select * from drover.detached_jobs

-- name: our_log.all
select * from drover.log

-- name: our_output.all
select * from drover.output

-- name: our_tally.all
select * from drover.tally

-- name: my_job_groups.all
select * from drover.job

-- name: my_job_groups.masked
select job_pk, job_name from drover.job

-- What lists of the dashboard show to a member of a tenant.

-- name: jobqueue.ours
select * from drover.our_jobs

-- name: job_counts.ours
select * from drover.our_job_counts

-- name: zone_parts.ours
select * from drover.our_zone_parts

-- name: beside_zones.ours
select * from drover.our_beside_zones

-- name: allow_idle
-- Switch idle_session_timeout off; return whether the server sends notifications: a replica does not.
select not pg_is_in_recovery() from set_config('idle_session_timeout', '0', false)

-- name: name_session
select set_config('application_name', :name, false)

-- name: read_only
-- Return whether the session can write nothing, and whether the server is a replica.
select current_setting('transaction_read_only')::boolean, pg_is_in_recovery()

-- Jobs

-- name: expect_many_jobs
-- A nested loop compares each job with all that are in hand, which is quick for one job only: 18 s for 60,000. It is
-- off until the transaction ends.
select set_config('enable_nestloop', 'off', true)

-- name: jobs_by_name
select jq_name, jq_pk from drover.jobqueue where jq_name = any (:names)

-- fragment: chosen
-- Keep the jobs that filters choose; see scheduler/cli/jobs.py. Views have the codes of ends, a table has none.
(:types::text[] is null or jq_type = any (:types)) and (:queues::text[] is null or jq_queue = any (:queues))
   and (:submitters::text[] is null or jq_submitter = any (:submitters))
   and (:groups::bigint[] is null or jq_job_fk = any (:groups))
   and (:since::timestamptz is null or greatest(jq_queued, jq_starttime, jq_endtime) >= :since)
   and (:until::timestamptz is null or greatest(jq_queued, jq_starttime, jq_endtime) < :until)
   and (:hosts::text[] is null or jq_host = any (:hosts)) and (:ran_on::text[] is null or jq_done_host = any (:ran_on))
   and (:codes::text[] is null or jq_exitcode::text = any (:codes)
        or (select code from (select null::text as jq_end_code) as of_a_table,
                             lateral (select jq_end_code as code from (select j.*) one) c) = any (:codes))

-- fragment: progress
-- How far an SQL job is; one that waits for its first item has not begun.
case when jq_msq and (jq_itemsprocessed + jq_itemsfailed > 0 or jq_state = 'running')
            then drover.progress(jq_itemsprocessed, jq_itemsfailed, jq_itemstotal, jq_elapsedtime,
                                 case when jq_state = 'running' then jq_expected_end end) end

-- fragment: listed
-- Return a job as lists show it. Columns are named, since a site may add its own.
jq_pk as job, jq_name as name, jq_job_fk as group, jq_type as type, jq_state::text as state,
       jq_urgent as urgent, jq_priority as priority, jq_queue as queue, jq_host as host, jq_submitter as submitter,
       jq_attempt as attempt, jq_done_host as run_host, jq_done_pid as run_pid,
       jq_queued as queued, jq_starttime as start, jq_endtime as end,
       jq_itemsprocessed as processed, jq_itemsfailed as failed, jq_itemstotal as total, {{progress}} as progress,
       case when jq_state = 'queued' and jq_wait_until > now() then jq_retry_at end as next_try,
       b.condition, b.blocked_since, b.next_check, b.tries as checks, code, jq_args as args, jq_endtext as text
  from (select null::text as jq_end_code) as of_a_table,  -- which has no codes: the views in its place have them
       lateral (select j.*, jq_end_code as code from drover.jobqueue j) j
  left join lateral (
    select condition, blocked_since, next_check, tries
      from drover.blocked_jobs b where b.jq_pk = j.jq_pk and jq_state = 'blocked' offset 0) b
         on true

-- Lists of jobs (scheduler/cli/job_lists.py) find numbers first, zone by zone, then read these jobs.

-- fragment: place
-- What jobs sort by that are sorted by a time or a length of time, in seconds.
extract(epoch from coalesce(
              case :sort::text when 'waited' then coalesce(jq_starttime, jq_endtime, now()) - jq_queued
                               when 'ran' then make_interval(secs => drover.time_run(
                                                 jq_msq, jq_processedtime, jq_starttime, jq_endtime)) end,
              case :sort when 'queued' then jq_queued when 'start' then jq_starttime when 'end' then jq_endtime end
                - 'epoch'::timestamptz))::float8

-- fragment: word
-- What jobs sort by that are sorted by a word.
case :sort when 'type' then jq_type when 'state' then jq_state::text when 'queue' then jq_queue
                when 'by' then jq_submitter::text end collate "C"

-- fragment: urgency
-- What jobs sort by that are sorted by priority: the first to run has the least.
case when :sort = 'priority' then case when jq_urgent then '0' else '1' end || jq_priority end collate "C"

-- fragment: order
-- Return those first that are sorted last: by default the newest. A sort that was not asked for is a constant.
{{place}} desc nulls last,
          {{word}} desc nulls last,
          {{urgency}}, jq_pk desc

-- fragment: asked_for
-- Keep the jobs that a list shows.
jq_state = any (:states::drover.job_state[]) and {{chosen}}
   and (:queued_within::interval is null or jq_queued > now() - :queued_within)
   and (:before::bigint is null or jq_pk < :before)
   and (:with_ended_commands or jq_type <> 'command' or jq_endtime is null)
   and (:text::text is null or jq_pk::text = :text
        or position(lower(:text) in lower(concat_ws(' ', jq_name, left(jq_args, 2000), left(jq_endtext, 2000)))) > 0)
   and (:with_hidden or not (exists (select from drover.job where job_pk = jq_job_fk and job_hidden)
                             or exists (select from drover.hidden where hidden_jq_fk = jq_pk)))

-- fragment: parts
-- Return the parts of zones in which such jobs may be, and what these sort by at most. The bounds of lengths of time
-- are rounded.
select zone, type, state, jobs, rank,
               case :sort::text when 'type' then type when 'queue' then queue when 'by' then submitter
                 when 'state' then case when state in ('early', 'unmet') then 'queued' else state end end collate "C"
                 as word,
               case when :sort = 'queued' or is_over and :sort in ('start', 'end') then extract(epoch from latest)
                    when :sort = 'waited' and not is_over then extract(epoch from now() - oldest)
                    when :sort = 'waited' then waited * 1.000001 + 0.001
                    when :sort = 'ran' and is_over then ran * 1.000001 + 0.001 end::float8 as place
          from drover.zone_parts
         cross join lateral (select state <> all ('{held,early,unmet,queued,blocked}') as is_over) o
         where state = any (:counted::text[]) and (:types::text[] is null or type = any (:types))
           and (:queues::text[] is null or queue = any (:queues)) and (:hosts::text[] is null or host = any (:hosts))
           and (:submitters::text[] is null or submitter = any (:submitters))
           and (:with_ended_commands or type <> 'command' or not is_over)
           and (:since::timestamptz is null or latest >= :since)
           and (:queued_within::interval is null or latest >= now() - :queued_within)

-- name: newest_zone
select drover.newest_zone()

-- name: words_of_jobs
-- Return what jobs sort by if it is a word, the last first, and how many there are of each, by what is counted.
select case :sort::text when 'type' then type when 'queue' then queue when 'by' then submitter
                        when 'state' then case when state in ('early', 'unmet') then 'queued' else state end
       end collate "C" as word,
       sum(jobs)::bigint as jobs
  from drover.job_counts
 where state = any (:counted::text[]) and (:types::text[] is null or type = any (:types))
   and (:queues::text[] is null or queue = any (:queues)) and (:hosts::text[] is null or host = any (:hosts))
   and (:submitters::text[] is null or submitter = any (:submitters))
 group by word order by word desc

-- name: zones_of_jobs
-- Return the zones that have such jobs, those first whose jobs may come first: number, what they sort by at most, and
-- how many they are.
select zone, word, max(place) as place, case when :sort = 'priority' then min(rank) end as urgency,
       sum(jobs)::bigint as jobs
  from (
    {{parts}}
           and zone between :first::bigint and :last::bigint) p
 where :words::text[] is null or word = any (:words)
 group by zone, word having sum(jobs) > 0
 order by word desc, max(place) desc nulls last, case when :sort = 'priority' then min(rank) end, zone desc

-- name: jobs_in_zones
-- Return what a list may show of some zones, as many of each as it shows in all. Their limits are given: computed here,
-- a view of own rows would not let them in, and read all jobs for each zone.
select jq_pk, place, urgency
  from unnest(:first_jobs::bigint[], :last_jobs::bigint[], :words::text[]) as u(first_job, last_job, word)
 cross join lateral (
   select jq_pk, {{place}} as place, {{urgency}} as urgency
     from drover.jobqueue j
    where jq_pk between u.first_job and u.last_job and (u.word is null or coalesce({{word}}, '') = u.word)
      and {{asked_for}}
    order by {{order}} limit :limit::bigint) j

-- name: jobs_among
-- Return what a list may show of these jobs.
select jq_pk, {{place}} as place, {{urgency}} as urgency
  from drover.jobqueue j
 where jq_pk = any (:jobs::bigint[]) and {{asked_for}}
 order by {{order}} limit :limit::bigint

-- name: numbers_beside_zones
select jq_pk from drover.beside_zones b

-- name: numbers_in_groups
-- Return the jobs of groups, or so many that there are more.
select jq_pk from drover.jobqueue j where jq_job_fk = any (:groups::bigint[]) limit :limit::bigint

-- name: list_jobs
-- Return these jobs, those first that are sorted last.
select {{listed}}
 where jq_pk = any (:jobs::bigint[])
 order by {{order}} limit :limit

-- name: jobs_by_number
select {{listed}}
 where jq_pk = any (:jobs::bigint[]) order by jq_pk

-- fragment: meant
-- Keep the jobs that a command is about, in one of these states, or those among `jobs`.
jq_state = any (:states::drover.job_state[]) and {{chosen}}
   and (:with_commands or jq_type <> 'command') and (:with_manual or jq_mode = 'background')
   and (:jobs::bigint[] is null or jq_pk = any (:jobs))
   and (:before::timestamptz is null or jq_endtime < :before)

-- name: choose_jobs
-- Return these jobs, with their states.
select jq_pk, jq_state::text from drover.jobqueue j where {{meant}} order by jq_pk

-- name: count_chosen
-- Return how many they are, by state.
select jq_state::text, count(*) from drover.jobqueue j where {{meant}} group by 1

-- name: count_by_kind
-- The same for what the counts of jobs know, without a look at each job.
select state::text, sum(jobs)::bigint from drover.job_states
 where type <> 'command' and state = any (:states::drover.job_state[])
   and (:types::text[] is null or type = any (:types)) and (:queues::text[] is null or queue = any (:queues))
   and (:hosts::text[] is null or host = any (:hosts))
   and (:submitters::text[] is null or submitter = any (:submitters))
 group by state

-- name: flush_jobs
-- Remove jobs; return how many, which the database refuses to remove, and why the first of these.
select removed, kept, why from drover.flush_chosen(:jobs::bigint[])

-- name: job_reason
select reason from drover.our_why where jq_pk = :job

-- name: job_facts
-- Return what is known of one job itself. One of one parameter that has ended ran as long as an agent had it: while the
-- agent was still starting, the job was in hand and waited.
select jq_pk as job, jq_name as name, jq_type as type, jq_state::text as state, jq_end_code as code,
       jq_endtext as text, jq_args as args, jq_variables as variables, jq_msq as query, jq_runonpfile as runonpfile,
       jq_key as key, jq_repeat as repeat, jq_tolerate as tolerate, jq_mode::text as mode, jq_queue as queue,
       jq_urgent as urgent, jq_priority as priority, jq_host as host, jq_done_host as run_host, jq_done_pid as run_pid,
       jq_job_fk as group, (select job_name from drover.my_job_groups where job_pk = jq_job_fk) as group_name,
       jq_submitter as submitter, jq_resubmit_of as resubmit_of, jq_unique_key as unique_key, jq_delete as delete,
       jq_not_before as not_before, jq_not_after as not_after, jq_timeout as timeout, jq_retries as retries,
       jq_failures as failures, jq_max_interruptions as max_interruptions, jq_interruptions as interruptions,
       jq_rescued as rescued, jq_attempt as attempt, jq_queued as queued, jq_starttime as start, jq_endtime as end,
       jq_wait_until as wait_until, jq_expected_end as expected_end,
       case when not jq_msq or jq_starttime is null or jq_starttime >= jq_queued  -- else queued again after a slice
            then coalesce(jq_starttime, jq_endtime, now()) - jq_queued end as waited,
       coalesce(worked, coalesce(jq_endtime, now()) - jq_starttime) as ran, jq_processedtime as agent_time,
       jq_endtime - jq_starttime - worked as waited_for_agent,
       jq_itemsprocessed as processed, jq_itemsfailed as failed, jq_itemstotal as total,
       {{progress}} as progress,
       jq_exitcode as exit_code, jq_signal as signal, jq_result as result,
       condition, blocked_since, next_check, tries as checks
  from drover.our_jobs left join drover.blocked_jobs using (jq_pk)
 cross join lateral (
  select case when jq_endtime is not null and not jq_msq then nullif(jq_processedtime, interval '0') end as worked) w
 where jq_pk = :job

-- name: job_attempts
-- Return the newest attempts of a job, in order.
select * from (
  select att_attempt as attempt, att_host as host, att_agent as agent, att_pid as pid, att_start as start,
         att_end as end, att_outcome as outcome, att_exitcode as code, att_signal as signal, att_reason as reason
    from drover.attempt a where att_jq_fk = :job
   order by att_attempt desc limit :limit::bigint) newest
 order by attempt

-- name: job_keepers
-- Return where hosts keep something of a detached job: of the attempt that runs, and of others until it is removed.
select attempt, host, pid as keeper, since, attached, waits_for, entry
  from drover.our_detached where jq_pk = :job order by attempt limit :limit

-- name: job_parents
-- Return the jobs that a job depends on, those that it still waits for first. Each is looked up by its number (`offset
-- 0`): a plan for an unknown number of edges may read all jobs.
select jdep_jq_depends_fk as job, jq_name as name, jq_type as type, jq_state::text as state,
       case jdep_depends_bits & 3 when 1 then 'success' when 2 then 'failure' when 3 then 'end' else 'errors' end
         as needed,
       jdep_on_unmet as on_unmet, jdep_met_at as met
  from (
    select * from drover.jobdepends e
     where jdep_jq_fk = :job order by jdep_met_at nulls first, jdep_jq_depends_fk limit :limit::bigint) e
  left join lateral (select * from drover.our_jobs where jq_pk = jdep_jq_depends_fk offset 0) j on true
 order by jdep_met_at nulls first, jdep_jq_depends_fk

-- name: job_children
-- Return the jobs that depend on a job, those that still wait for it first.
select jdep_jq_fk as job, jq_name as name, jq_type as type, jq_state::text as state,
       case jdep_depends_bits & 3 when 1 then 'success' when 2 then 'failure' when 3 then 'end' else 'errors' end
         as needed,
       jdep_on_unmet as on_unmet, jdep_met_at as met
  from (
    select * from drover.jobdepends e
     where jdep_jq_depends_fk = :job order by jdep_met_at nulls first, jdep_jq_fk limit :limit::bigint) e
  left join lateral (select * from drover.our_jobs where jq_pk = jdep_jq_fk offset 0) j on true
 order by jdep_met_at nulls first, jdep_jq_fk

-- name: failed_items
-- Return the items of a job that failed, the newest first: those that it counts now, which drover retry would work, or
-- with `every` also those of earlier attempts. The sum keeps the index of the job in use.
select item_attempt as attempt, item_key as key, item_line as line, item_date as date, item_host as host,
       item_agent as agent, item_pid as pid, item_reason as reason
  from drover.item_failure f
 where item_jq_fk = :job order by item_pk + 0 desc
 limit least(:limit::bigint,
             (select jq_itemsfailed from drover.our_jobs where jq_pk = :job and not :every::boolean))

-- name: failure_reasons
-- Return how many of these items failed for each reason, with one of them. Reasons are alike if they differ in numbers
-- and paths only.
select count(*) as items, (array_agg(item_reason order by item_pk))[1] as reason,
       (array_agg(item_line order by item_pk))[1] as example
  from (select * from drover.item_failure
         where item_jq_fk = :job order by item_pk + 0 desc
         limit (select jq_itemsfailed from drover.our_jobs where jq_pk = :job and not :every::boolean)) f
 group by regexp_replace(regexp_replace(left(item_reason, 300), '/[^[:space:]:;,]*', '/', 'g'), '[0-9]+', '0', 'g')
 order by items desc, reason limit :most

-- name: job_log
-- Return the newest log lines of a job, in order. The sum keeps the index of the job in use.
select * from (
  select log_pk as pk, log_date as date, log_type as type, log_host as host, log_agent as agent, log_pid as pid,
         log_message as message
    from drover.our_log l where log_jq_fk = :job
   order by log_pk + 0 desc limit :limit::bigint) newest
 order by pk

-- name: reasons
-- Return the reasons why jobs have not ended, each with the number of jobs, one of them, ten of their types and since
-- when that one is queued. Jobs of one type, queue, host and state are asked about once, by the first of them: `most`
-- kinds that wait and `most` that are in hand, those with the most jobs. The others are one row.
select reason, sum(jobs)::bigint as jobs, count(distinct type) as kinds,
       array_to_string((array_agg(distinct type order by type))[1:10], ', ')
         || coalesce(' and ' || nullif(greatest(count(distinct type) - 10, 0), 0) || ' more', '') as types,
       string_agg(distinct state, ', ' order by state) as states, min(example) as example, min(oldest) as oldest
  from (
    select k.jobs, k.type, k.state, k.example, e.jq_queued as oldest,
           case when k.state = 'running' then 'running'
                when waits_for = 'jobs' then 'waits for other jobs'
                when k.place > :most::bigint then 'not looked at: kinds with fewer jobs; drover why JOB tells of one'
                when waits_for = 'time' and e.jq_retry_at is not null then drover.why_later(e.jq_endtext)
                when waits_for = 'time' then 'waits until the time that it asks for'
                when condition is not null then 'blocked on the condition ' || condition
                else (select case when k.jobs > 1 and w like '%its row is locked by %' then 'the first of them: '
                                  else '' end || w
                        from coalesce((select reason from drover.why where jq_pk = k.example), k.state) as w) end
             as reason
      from (
        select s.type, s.state::text as state, s.waits_for, null as condition, s.jobs, s.place,
               case when s.place <= :most::bigint
                    then drover.first_of_kind(z.zones, s.type, s.queue, s.host, z.submitter, z.state) end as example
          from (select type, queue, host, state, waits_for, sum(jobs) as jobs,
                       row_number() over (order by sum(jobs) desc) as place
                  from drover.job_states where type <> 'command' and state in ('held', 'queued')
                 group by 1, 2, 3, 4, 5) s
          join (select distinct on (type, queue, host, state) type, queue, host, state, submitter, zones
                  from (select type, queue, host, submitter, state, array_agg(zone order by zone) as zones
                          from drover.job_zones where state in ('held', 'early', 'unmet', 'queued')
                         group by 1, 2, 3, 4, 5) of_submitter
                 order by type, queue, host, state, zones) z
            on (z.type, z.queue, z.host) = (s.type, s.queue, s.host)
               and z.state = case s.waits_for when 'time' then 'early' when 'jobs' then 'unmet'
                             else s.state::text end
         union all
        select jq_type, jq_state::text, null, null, count(*),
               row_number() over (partition by jq_state order by count(*) desc), min(jq_pk)
          from drover.jobs_in_hand h where jq_type <> 'command' group by jq_type, jq_queue, jq_host, jq_state
         union all
        select jq_type, 'blocked', null, condition, count(*), 0, min(b.jq_pk)
          from drover.blocked_jobs b join drover.our_jobs j on j.jq_pk = b.jq_pk group by jq_type, condition) k
      left join lateral (
        select jq_queued, jq_retry_at, jq_endtext
          from drover.jobqueue where jq_pk = k.example offset 0) e on true) asked
 group by reason order by jobs desc, example

-- name: job_exit
select jq_endtime is not null, jq_state::text, jq_end_bits & :failure <> 0, jq_exitcode, jq_signal
  from drover.jobqueue where jq_pk = :job

-- name: job_attempt
-- Return the attempt of a job, whether it has ended, and whether a scheduler has it in hand.
select jq_attempt, jq_endtime is not null, jq_owner is not null from drover.jobqueue where jq_pk = :job

-- name: job_output
-- Return the output of one stream after a position (attempt, part), up to an attempt.
select out_attempt, out_part, out_data from drover.output o
 where out_jq_fk = :job and (out_attempt, out_part) > (:attempt, :part) and out_attempt <= :until_attempt
   and out_stream = :stream
 order by out_attempt, out_part

-- name: job_has_ended
select jq_endtime is not null from drover.jobqueue where jq_pk = :job

-- name: log_rows
-- Return log lines after a number. Numbers are assigned before the commit: if a transaction commits after one with
-- higher numbers was read, its lines are not followed. The sum keeps the index of the job in use.
select * from (
  select log_pk as pk, log_date as date, log_type as type, log_jq_fk as job, log_host as host, log_agent as agent,
         log_pid as pid, log_message as message
    from drover.log l
   where log_pk > :after and (:job::bigint is null or log_jq_fk = :job)
   order by case when :job is null then log_pk else log_pk + 0 end desc limit :limit) newest
 order by pk

-- name: ended_or_blocked_jobs
-- Return the outcome of those of the jobs that have ended, or do not exist; and why others are blocked.
select pk as job, coalesce(jq_type, '-') as type, coalesce(jq_state::text, 'gone') as state,
       case when jq_pk is null then 'there is no such job' else coalesce(jq_endtext, '') end as text,
       coalesce(jq_end_bits, 2) as bits
  from unnest(:jobs::bigint[]) as pk
  left join (select * from drover.jobqueue where jq_pk = any (:jobs)) j on jq_pk = pk
 where jq_pk is null or jq_endtime is not null or jq_state = 'blocked' order by jq_endtime, pk

-- name: job_outcome
-- Return the outcome of a job, with its output.
select jq_pk as job, jq_name as name, jq_type as type, jq_state::text as state, jq_endtext as text,
       case when jq_end_bits & 2 = 0 then 'ok' else 'fail' end as result, jq_exitcode as code, jq_signal as signal,
       stdout, stderr, jq_result as value
  from drover.jobqueue j,
       lateral (
         select coalesce(string_agg(out_data, '' order by out_part) filter (where out_stream = 'out'), '') as stdout,
                coalesce(string_agg(out_data, '' order by out_part) filter (where out_stream = 'err'), '') as stderr
           from drover.output where out_jq_fk = jq_pk and out_attempt = jq_attempt) o
 where jq_pk = :job

-- name: inactive_groups
-- Return the groups of these jobs that have no active scheduler.
select distinct q.queue_group
  from drover.jobqueue j join drover.queue q on q.queue_name = j.jq_queue
  left join drover.scheduler_group g on g.group_name = q.queue_group
 where j.jq_pk = any (:jobs) and j.jq_endtime is null and (g.group_owner is null or g.group_lease_until < now())

-- New jobs

-- name: known_names
-- Return the number of agent types, those that are served, those that are disabled, whether queue and host are known,
-- which type has the attributes that are asked for, why none has them, and the types that have this one as `agent`.
select (select count(*) from drover.agent),
       (select coalesce(array_agg(distinct agent_type order by agent_type), '{}')
          from drover.agent where agent_present and agent_enabled),
       (select coalesce(array_agg(distinct agent_type), '{}')
          from drover.agent where agent_present and not agent_enabled),
       :queue::text is null or exists (select from drover.queue where queue_name = :queue and queue_present),
       :host::text is null or exists (select from drover.host where host_name = :host and host_present),
       chosen, wrong,
       (select coalesce(array_agg(distinct agent_type order by agent_type), '{}')
          from drover.agent where agent_present and agent_attributes ->> 'agent' = :type)
  from (select) one
  left join drover.find_agent_type(:type, :queue, :host, session_user) on :type::text like '% %=%'

-- name: add_dependencies
-- Let each of the jobs wait for each of the others.
insert into drover.jobdepends (jdep_jq_fk, jdep_jq_depends_fk)
select child, parent from unnest(:jobs::bigint[]) as child, unnest(:parents::bigint[]) as parent

-- name: ended_in_vain
-- Return those of the jobs that ended without success, with their states, and those that are not there.
select job, state from drover.ended_in_vain(:jobs)

-- name: set_up_job
select jq_pk, existed from drover.job_setup(:name, :settings)

-- name: read_columns
-- Fail on a value that its column cannot hold.
select jsonb_populate_record(null::drover.jobqueue, :settings)

-- name: resubmit_jobs
select job, drover.job_resubmit(job) from unnest(:jobs::bigint[]) with ordinality as u(job, n) order by n

-- Commands, and what they change

-- name: insert_commands
-- Insert commands, about the jobs that a filter finds, if there is one; no scheduler takes them later than `within` the
-- next seconds.
select drover.command(words, :filter::jsonb, make_interval(secs => :within::float8))
  from unnest(:commands::text[]) with ordinality as u(words, n) order by n

-- name: command_waits
-- Return what commands that have not ended wait for.
select * from drover.command_waits(:commands::bigint[], :about_jobs::text[], :about_hosts::text[], :about_types::text[])

-- name: withdraw_commands
select drover.withdraw_commands(:commands::bigint[], :said::text)

-- name: is_any_scheduler_active
select exists (select from drover.scheduler_group where group_owner is not null and group_lease_until > now())

-- name: answers
select jq_pk as command, jq_args as words, jq_state = 'done' as ok, coalesce(jq_endtext, '') as text,
       jq_result as result
  from drover.jobqueue where jq_pk = any (:commands) and jq_endtime is not null order by jq_pk

-- fragment: jobs_in_queues
-- Count for each queue the jobs that are queued, those of them that could start, and those that a scheduler has in
-- hand.
select queue, coalesce(sum(jobs) filter (where state = 'queued'), 0)::bigint as queued,
       coalesce(sum(jobs) filter (where state = 'queued' and waits_for is null), 0)::bigint as could_start,
       coalesce(sum(jobs) filter (where state in ('claimed', 'running')), 0)::bigint as in_hand
  from drover.job_states where state in ('queued', 'claimed', 'running') group by queue

-- name: list_queue
-- The scheduler of a queue, host or agent type is the owner of its group, if the lease has not run out.
select queue_name as queue, queue_group as group, scheduler_host || '.' || scheduler_pid as scheduler,
       queue_concurrency as concurrency, queue_reserved as reserved, queue_priority as priority, queue_paused as paused,
       queue_max_length as max_length,
       coalesce(n.queued, 0) as queued, coalesce(n.could_start, 0) as could_start, coalesce(n.in_hand, 0) as in_hand,
       nullif(queue_filter, '') as filter,
       concat_ws(', ', nullif(queue_rate ->> 'rate', '0'),
                 nullif(queue_rate ->> 'each', '0') || ' for each ' || (queue_rate ->> 'by'))
         || ' in ' || (queue_rate ->> 'interval')::float8 || ' s' as rate
  from drover.queue
  left join drover.scheduler_group on group_name = queue_group and group_lease_until > now()
  left join drover.scheduler on scheduler_uuid = group_owner
  left join ({{jobs_in_queues}}) n on n.queue = queue_name
 where queue_present order by queue_group, queue_name

-- name: list_quota
-- Return each quota, and how many jobs wait for room in it.
select quota_name as quota, quota_group as group, quota_most as most, quota_tenant as tenant, quota_user as user,
       quota_queue as queue, quota_host as host, coalesce(b.waiting, 0) as waiting
  from drover.quota
  left join (
    select split_part(condition, ':', 2) as name, count(*) as waiting
      from drover.blocked_jobs where starts_with(condition, 'quota:') group by 1) b on b.name = quota_name
 order by quota_group, quota_name

-- name: unknown_of_quota
-- Return a sentence for each thing that a quota is to name and that does not exist.
select 'no ' || what || ' ' || name
  from (values ('scheduler group', :group::text,
                exists (select from drover.scheduler_group where group_name = :group::text)),
               ('tenant', :tenant::text, exists (select from drover.tenant where tenant_name = :tenant::text)),
               ('role', nullif(:user::text, '*'), exists (select from pg_roles where rolname = :user::text)),
               ('queue', :queue::text, exists (select from drover.queue where queue_name = :queue::text)),
               ('host', :host::text, exists (select from drover.host where host_name = :host::text)))
       as named(what, name, is_known)
 where name is not null and not is_known

-- name: set_quota
-- Make a quota, or replace the one of this name.
insert into drover.quota (quota_name, quota_group, quota_most, quota_tenant, quota_user, quota_queue, quota_host)
values (:name, coalesce(:group, 'default'), :most, :tenant, :user, :queue, :host)
on conflict (quota_name) do update
  set quota_group = excluded.quota_group, quota_most = excluded.quota_most, quota_tenant = excluded.quota_tenant,
      quota_user = excluded.quota_user, quota_queue = excluded.quota_queue, quota_host = excluded.quota_host
returning quota_name

-- name: set_quota_most
-- Change how many jobs a quota lets be in hand. No row: there is none of this name.
update drover.quota set quota_most = :most where quota_name = :name returning quota_name

-- name: remove_quota
delete from drover.quota where quota_name = :name returning quota_name

-- name: list_host
select host_name as host, host_group as group, scheduler_host || '.' || scheduler_pid as scheduler,
       host_transport as transport, host_max as max, host_urgent as urgent, host_enabled as enabled,
       nullif(concat_ws(' ', 'types=' || nullif(host_types, ''), 'queues=' || array_to_string(host_queues, ','),
                        'priorities=' || nullif(host_priorities, '')), '') as filter,
       count(status_pid) as agents, host_down_since as down_since, host_down_until as down_until, host_reason as reason
  from drover.host
  left join drover.scheduler_group on group_name = host_group and group_lease_until > now()
  left join drover.scheduler on scheduler_uuid = group_owner
  left join drover.scheduler_status
         on status_scheduler = scheduler_uuid and status_host = host_name and status_slot >= 0
 where host_present
 group by host_name, scheduler_uuid order by host_group, host_name

-- name: list_agent
select agent_type as type, agent_group as group, scheduler_host || '.' || scheduler_pid as scheduler,
       agent_kind as kind, agent_enabled as enabled, count(status_slot) as slots, count(status_pid) as agents,
       agent_blocked_until as blocked_until, agent_reason as reason, agent_trial ->> 'text' as trial,
       (select string_agg(key || '=' || value, ' ' order by key) from jsonb_each_text(agent_attributes)) as attributes
  from drover.agent
  left join drover.scheduler_group on group_name = agent_group and group_lease_until > now()
  left join drover.scheduler on scheduler_uuid = group_owner
  left join drover.scheduler_status
         on status_scheduler = scheduler_uuid and status_agent = agent_type and status_slot >= 0
 where agent_present
 group by agent_group, agent_type, scheduler_uuid order by agent_group, agent_type

-- drover status

-- Schedules

-- name: list_schedule
select schedule_name as schedule, schedule_type as type, schedule_enabled as enabled,
       coalesce('at ' || schedule_at, 'every ' || schedule_every, schedule_cron) as times, schedule_zone as zone,
       schedule_next as next, schedule_last as last, schedule_catch_up as catch_up, schedule_overlap as overlap,
       schedule_jitter as jitter, schedule_submitter as submitter, schedule_reason as reason
  from drover.schedule order by schedule_name

-- name: next_schedules
-- Return the schedules that start next, `most` at most, or the one of a name.
select schedule_name as name, schedule_at as at, schedule_every as every, schedule_cron as cron, schedule_zone as zone,
       schedule_from as since, schedule_enabled as enabled, now() as now
  from drover.schedule
 where :name::text is null and schedule_enabled and schedule_due is not null or schedule_name = :name
 order by schedule_due limit :most

-- name: now
select now()

-- name: add_schedule
insert into drover.schedule (schedule_name, schedule_at, schedule_every, schedule_cron, schedule_zone,
                             schedule_catch_up, schedule_jitter, schedule_overlap, schedule_enabled, schedule_job,
                             schedule_next)
values (:name, :at::timestamptz, :every::interval, :cron::text, :zone, :catch_up, :jitter::interval, :overlap, :enabled,
        :job::jsonb, :next::timestamptz)

-- name: remove_schedule
delete from drover.schedule where schedule_name = :name returning schedule_name

-- name: hide_job
select drover.hide(:job::bigint, :is_hidden::boolean)

-- Events

-- name: subscribe
select subscription, made_secret
  from drover.subscribe(kind => :kind, job => :job::bigint, owner => :owner::name, tenant => :tenant::text,
                        is_site => :is_site::boolean, targets => :targets::text[], ttl => :ttl::interval,
                        most => :most::integer, secret => :secret::text)

-- name: is_notify_served
select exists (select from drover.agent where agent_type = 'notify' and agent_enabled and agent_present)

-- name: unsubscribe
select drover.unsubscribe(:subscription::bigint)

-- name: enable_subscription
select drover.subscription_enable(:subscription::bigint, true)

-- name: disable_subscription
select drover.subscription_enable(:subscription::bigint, false)

-- name: list_subscriptions
select sub_pk as subscription, sub_owner as by, sub_scope as scope, sub_of as of, sub_kind as kind,
       sub_enabled and (sub_expires is null or sub_expires > now()) as active, sub_expires as expires,
       count(del_pk) filter (where del_state in ('waiting', 'sent')) as waiting,
       count(del_pk) filter (where del_state = 'done') as done, count(del_pk) filter (where del_state = 'dead') as dead,
       array_to_string(sub_targets, ' ') as targets
  from drover.subscription left join drover.delivery on del_sub = sub_pk
 group by sub_pk, sub_owner, sub_scope, sub_of, sub_kind, sub_enabled, sub_expires, sub_targets
 order by sub_pk

-- name: list_events
select * from (
  select ev_pk as event, ev_date as date, ev_jq_fk as job, ev_kind as kind, ev_old as old, ev_new as new,
         ev_is_final as final, ev_text as text
    from drover.event e
   where :job::bigint is null or ev_jq_fk = :job
   order by ev_pk desc limit :limit::bigint offset :offset::bigint) newest
 order by event

-- name: list_deliveries
select * from (
  select del_pk as delivery, del_sub as subscription, del_event as event, nullif(del_jq_fk, 0) as job,
         del_state as state, del_tries as tries, del_next as next, del_ended as ended, del_text as text
    from drover.delivery d
   where :job::bigint is null or del_jq_fk = :job
   order by del_pk desc limit :limit::bigint offset :offset::bigint) newest
 order by delivery

-- name: list_dead_letters
select * from (
  select dead_pk as letter, dead_date as date, dead_kind as kind, dead_reason as reason, dead_jq_fk as job,
         dead_delivery as delivery, dead_text as text
    from drover.dead_letter
   where :job::bigint is null or dead_jq_fk = :job
   order by dead_pk desc limit :limit::bigint offset :offset::bigint) newest
 order by letter

-- name: post_event
select drover.job_event(:job::bigint, :text::text)

-- Schedulers

-- name: group_names
select group_name from drover.scheduler_group order by group_name

-- name: group
-- A group that never had an owner is not active.
select g.group_name as name, g.group_owner as owner, s.scheduler_host as host, s.scheduler_pid as pid,
       coalesce(g.group_lease_until > now(), false) and g.group_owner is not null as active,
       g.group_taken_at as since, g.group_lease_until as lease_until, g.group_lease_until - now() as lease_left,
       (select count(*) from drover.scheduler o
         where o.scheduler_group = g.group_name and o.scheduler_uuid <> g.group_owner
           and o.scheduler_seen > now() - make_interval(secs => o.scheduler_lease)) as standbys
  from (select :group::text as name) asked
  left join drover.scheduler_group g on g.group_name = asked.name
  left join drover.scheduler s on s.scheduler_uuid = g.group_owner

-- name: active_daemon
-- Return the daemon that serves a group.
select scheduler_host || '.' || scheduler_pid
  from drover.scheduler_group join drover.scheduler on scheduler_uuid = group_owner
 where group_name = :group and group_lease_until > now()

-- name: schedulers
select scheduler_host as host, scheduler_pid as pid,
       case when group_lease_until > now() then case status_state_name when 'draining' then 'draining' else 'owner' end
            when scheduler_seen < now() - make_interval(secs => scheduler_lease) then 'gone?'
            else 'standby' end as role,
       scheduler_version as version, scheduler_started as started, now() - scheduler_seen as unseen_for,
       (status_parameter::jsonb ->> 'slow_turns')::bigint as slow_turns,
       (status_parameter::jsonb ->> 'longest_turn_ms')::float8 as longest_turn_ms,
       (status_parameter::jsonb ->> 'memory_mb')::float8 as memory_mb,
       (status_parameter::jsonb ->> 'successes')::bigint as successes
  from drover.scheduler
  left join drover.scheduler_status on status_scheduler = scheduler_uuid and status_slot = -1
  left join drover.scheduler_group on group_owner = scheduler_uuid and group_name = scheduler_group
 where scheduler_group = :group and scheduler_seen > now() - make_interval(secs => 2 * scheduler_lease)
 order by group_owner is null, scheduler_started

-- name: slots
select status_slot as slot, status_host as host, status_agent as agent, status_state_name as state,
       now() - status_since as since, status_pid as pid, status_jq_fk as job, status_items as items,
       status_spawns as spawns, status_program as program, status_reason as reason,
       coalesce(agent_enabled, true) and coalesce(host_enabled, true) as enabled
  from drover.scheduler_status join drover.scheduler_group on group_owner = status_scheduler
  left join drover.agent on agent_group = group_name and agent_type = status_agent
  left join drover.host on host_name = status_host
 where group_name = :group and status_slot >= 0 and group_lease_until > now() order by status_host, status_slot

-- name: jobs_in_hand
-- Count the jobs that a scheduler has in hand, of some queues or of all; not commands, whose number says nothing.
select coalesce(sum(jobs), 0)::bigint from drover.job_states
 where state in ('claimed', 'running') and type <> 'command'
   and (:queues::text[] is null or queue = any (:queues))

-- name: work_in_hand
-- Count what schedulers have in hand by what a restart does to it: how many jobs, for how many seconds the one that was
-- started first has run, and its number. A detached job goes on; one that was just claimed goes back to the queue.
select what, count(*) as jobs, extract(epoch from max(now() - began))::float8 as seconds,
       (array_agg(jq_pk order by began, jq_pk))[1] as longest
  from (
    select h.jq_pk, coalesce(got.since, a.att_start, now()) as began,
           case when exists (select from drover.our_detached d where d.jq_pk = h.jq_pk and d.attempt = j.jq_attempt)
                then 'detached'
                when h.jq_state = 'claimed' then 'claimed'
                when j.jq_key is not null then 'sql_key'
                when j.jq_repeat then 'sql_repeat'
                when j.jq_msq then 'sql'
                when agent_kind = 'exec' then 'command'
                else 'job' end as what
      from drover.jobs_in_hand h
     cross join lateral (select * from drover.jobqueue where jq_pk = h.jq_pk offset 0) j
      left join lateral (
        select att_start from drover.attempt where att_jq_fk = h.jq_pk and att_attempt = j.jq_attempt limit 1) a on true
      left join (  -- since when an agent has its line; before that it waited for the agent
        select status_jq_fk as job, min(status_since) as since
          from drover.scheduler_status where status_state_name = 'ST_RUNNING' group by 1) got
             on got.job = h.jq_pk and not j.jq_msq
      left join drover.queue on queue_name = h.jq_queue
      left join drover.agent on agent_group = queue_group and agent_type = h.jq_type
     where h.jq_type <> 'command') in_hand
 group by what order by seconds desc, what

-- name: queue_in_short
select coalesce(sum(jobs) filter (where state < 'done'), 0)::bigint,
       coalesce(sum(jobs) filter (where state >= 'done'), 0)::bigint
  from drover.job_states where type <> 'command'

-- name: top_jobs
-- Return jobs that are in hand, those that began first, then blocked ones.
select jq_pk as job, jq_type as type, jq_state::text as state, now() - jq_starttime as since, jq_done_host as host,
       {{progress}} as progress, left(jq_args, 200) as args
  from (select jq_pk as pk from drover.jobs_in_hand h where jq_type <> 'command'
         union all
        (select jq_pk from drover.blocked_jobs b order by jq_pk limit :limit::bigint)) shown
 cross join lateral (select * from drover.jobqueue j where jq_pk = pk offset 0) j
 where jq_state in ('claimed', 'running', 'blocked')
 order by jq_state = 'blocked', jq_starttime, jq_pk limit :limit

-- name: waiting_counts
-- Count the jobs of each type by state; of those that are queued, some could start, others wait for a time or for jobs.
select type, case when waits_for is not null then 'for_' || waits_for when state = 'queued' then 'could_start'
                  else state::text end as state, sum(jobs)::bigint
  from drover.job_states where type <> 'command' group by 1, 2 order by 1, 2

-- name: detached_jobs
-- Return the detached jobs that run, those that no scheduler is attached to first.
select jq_pk as job, jq_type as type, host, pid as keeper, since, attached, waits_for
  from drover.our_detached where runs order by attached, since, jq_pk

-- name: unserved_types
-- Return the types that a group does not serve: how many jobs wait in its queues, and how many in others or in none.
select w.type, queue_group as group, jobs, of_type - jobs as elsewhere,
       case when a.agent_type is null then 'not configured'
            when not a.agent_present then 'no longer configured'
            else 'disabled' end as reason
  from (
    select j.type, q.queue_group, sum(jobs)::bigint as jobs,
           (sum(sum(jobs)) over (partition by j.type))::bigint as of_type
      from drover.job_states j left join drover.queue q on q.queue_name = j.queue
     where j.state in ('held', 'queued', 'blocked') and j.type <> 'command' group by 1, 2) w
  left join drover.agent a on a.agent_group = queue_group and a.agent_type = w.type
 where queue_group is not null and jobs > 0
   and (:group::text is null or queue_group = :group) and not coalesce(a.agent_present and a.agent_enabled, false)
 order by jobs desc, 1, 2, 5

-- name: conditions
-- Return the conditions that jobs are blocked on.
select condition, count(*) as jobs, policy, condition_since as since, tries as checks, next_check, tester
  from drover.blocked_jobs b
 group by condition, policy, condition_since, tries, next_check, tester order by 2 desc, condition, policy

-- name: unknown_queues
-- Return the queues that jobs name and that do not exist.
select j.queue, sum(jobs)::bigint as jobs,
       array_to_string((array_agg(distinct j.type order by j.type))[1:10], ', ')
         || case when count(distinct j.type) > 10 then ' and ' || count(distinct j.type) - 10 || ' more' else '' end
         as types
  from drover.job_states j
 where j.state in ('held', 'queued', 'blocked') and j.type <> 'command'
   and not exists (select from drover.queue where queue_name = j.queue)
 group by 1 order by 2 desc, 1

-- name: queues
select queue_name as queue, queue_concurrency as concurrency, queue_paused as paused,
       coalesce(n.in_hand, 0) as in_hand, coalesce(n.queued, 0) as queued, coalesce(n.could_start, 0) as could_start
  from drover.queue left join ({{jobs_in_queues}}) n on n.queue = queue_name
 where queue_group = :group and queue_present order by queue_name

-- name: statements
select t.key as statement, (t.value ->> 'count')::bigint as count, (t.value ->> 'mean_ms')::float8 as mean_ms,
       (t.value ->> 'max_ms')::float8 as max_ms,
       round((t.value ->> 'count')::numeric * (t.value ->> 'mean_ms')::numeric / 1000, 3)::float8 as total_s
  from drover.scheduler_status join drover.scheduler on scheduler_uuid = status_scheduler,
       jsonb_each(status_parameter::jsonb -> 'statements') t
 where scheduler_group = :group and status_slot = -1 order by total_s desc, t.key

-- name: waiting_clients
-- Count the `drover` commands that wait for an end, on this server; other clients that wait may use the same name.
select count(*) from pg_stat_activity where application_name = :name and datname = current_database()

-- drover stats: what was counted as jobs ended, so that no row of an ended job is read for it.

-- fragment: tallied
-- Keep what was counted since a time, or in a span of time that it is in: a minute, an hour or a day. The list is for
-- the index.
tally_span = any ('{0, 1 minute, 1 hour, 1 day}'::interval[]) and tally_at > :since::timestamptz - interval '1 day'
   and tally_at + tally_span > :since

-- fragment: binned
-- Return how many jobs of a row of the tally are in each bin of time, after how many they are in all: without a bin.
(select null::integer as bin, tally_jobs as jobs union all select * from unnest(tally_bins, tally_counts))

-- name: ended_stats
-- Return how many jobs of each type on each host started and ended since a time, and since when that is counted: of
-- each bin of time, and in all.
select tally_type as type, tally_host as host, tally_state as state, bin, sum(jobs)::bigint as jobs,
       sum(tally_items) filter (where bin is null)::bigint as items, min(tally_at) as first
  from drover.tally cross join lateral {{binned}} b
 where {{tallied}} group by 1, 2, 3, 4

-- name: recent_rates
-- Return how many jobs of each type ended a minute since a time, counted from the first of them that did.
select tally_type as type,
       sum(tally_jobs)::float8 * 60 / greatest(extract(epoch from now() - greatest(min(tally_at), :since)), 5)::float8
         as per_minute
  from drover.tally
 where {{tallied}} and tally_state in ('done', 'failed') group by 1

-- name: jobs_that_could_start
-- Count them by type: of all types, or of that of a job.
select type, sum(jobs)::bigint as jobs
  from drover.job_states
 where state = 'queued' and waits_for is null and type <> 'command'
   and (:job::bigint is null or type = (select jq_type from drover.jobqueue where jq_pk = :job))
 group by type order by jobs desc, type

-- name: failure_stats
-- Return how jobs failed since a time: of each type and code the number, the newest job and the text of its end, if it
-- is failed still: it may have been retried or removed. And the most frequent texts among the 500 numbers up to that
-- job, with their counts. Texts are alike if they differ in numbers and paths only.
select type, code, jobs, newest,
       (select left(jq_endtext, 200) from drover.jobqueue j where jq_pk = newest and jq_state = 'failed') as text,
       (select coalesce(jsonb_agg(jsonb_build_object('jobs', jobs, 'text', text) order by jobs desc, text), '[]')
          from (
            select count(*) as jobs, (array_agg(left(jq_endtext, 200) order by jq_pk desc))[1] as text
              from drover.jobqueue j
             where jq_pk between newest - 499 and newest and jq_state = 'failed' and jq_type = f.type
               and jq_endtext is not null
               and (select code from (select null::text as jq_end_code) as of_a_table,
                                     lateral (select jq_end_code as code from (select j.*) one) c) = f.code
             group by regexp_replace(
               regexp_replace(left(jq_endtext, 300), '/[^[:space:]:;,]*', '/', 'g'), '[0-9]+', '0', 'g')
             order by jobs desc, text limit 3) t) as texts
  from (
    select tally_type as type, tally_code as code, sum(tally_jobs)::bigint as jobs, max(tally_newest) as newest
      from drover.tally where {{tallied}} and tally_state = 'failed'
     group by 1, 2 order by jobs desc, newest desc limit :limit::bigint) f

-- name: error_stats
-- Return the agents that logged errors since a time, of the newest log lines: how many, and the newest.
select host, agent, errors, newest, left(n.log_message, 200) as message
  from (
    select host, agent, count(*) as errors, max(pk) as newest_pk, max(date) as newest
      from (
        select log_pk as pk, log_date as date, log_type as type, log_host as host, log_agent as agent
          from drover.log l order by log_pk desc limit :most::bigint) lines
     where type = 'ERROR' and date >= :since::timestamptz
     group by host, agent) e
  join drover.log n on n.log_pk = e.newest_pk
 order by errors desc, host, agent limit :limit::bigint

-- Warnings of drover status: why the work of a group waits. Each returns (who, age, what).

-- name: no_scheduler
select 'group ' || name, now() - group_lease_until, 'no scheduler is active; jobs that wait: ' || jobs
  from (select :group::text as name) asked
  left join drover.scheduler_group on group_name = name,
       lateral (select sum(jobs)::bigint as jobs from drover.job_states join drover.queue on queue_name = queue
                 where queue_group = name and state in ('queued', 'claimed', 'running')) w
 where jobs > 0 and (group_owner is null or group_lease_until < now())

-- name: agents_failed
select 'type ' || a.agent_type, now() - a.agent_blocked_since,
       'agent type ' || a.agent_type || ' failed, next try ' || date_trunc('second', a.agent_blocked_until)
         || coalesce(', resting since ' || date_trunc('second', a.agent_blocked_since), '')
         || ': ' || coalesce(a.agent_reason, '?') || '; jobs that wait: ' || jobs
  from drover.agent a
  join (select type, sum(jobs)::bigint as jobs from drover.job_states join drover.queue on queue_name = queue
         where queue_group = :group and state in ('queued', 'claimed', 'running') group by type) w
    on w.type = a.agent_type
 where a.agent_group = :group and a.agent_present and a.agent_enabled and a.agent_blocked_until > now() and jobs > 0
   and not starts_with(coalesce(a.agent_reason, ''), 'no connection')  -- of which connections_failed warns
 order by a.agent_type

-- name: programs_held_back
select 'type ' || agent_type, null::interval, agent_trial ->> 'text'
  from drover.agent
 where agent_group = :group and agent_present and agent_trial ->> 'state' = 'HELD_BACK'
 order by agent_type

-- name: hosts_down
-- Return the hosts that cannot be reached, whether jobs wait for them or not. That one is being reached for the first
-- time is no warning for as long as an attempt may take.
select 'host ' || h.host_name, now() - h.host_down_since,
       'host ' || h.host_name || ' cannot be reached, '
         || case when h.host_down_until > now() then 'next attempt ' || date_trunc('second', h.host_down_until)
                 else 'an attempt is being made' end
         || ': ' || h.host_reason || coalesce('; jobs that wait for it: ' || jobs, '')
  from drover.host h
  left join (select host, sum(jobs)::bigint as jobs from drover.job_states
              where state in ('queued', 'claimed', 'running', 'blocked') group by host) w on w.host = h.host_name
 where h.host_group = :group and h.host_present and h.host_enabled and h.host_transport = 'ssh'
   and h.host_down_until is not null
   and (h.host_reason <> 'it is being reached' or h.host_down_since < now() - interval '1 minute')
   and exists (select from drover.scheduler_group where group_name = :group and group_lease_until > now())
 order by h.host_name

-- name: no_more_agents
select 'scheduler', null::interval, shortage
  from drover.scheduler_group join drover.scheduler_status on status_scheduler = group_owner and status_slot = -1,
       jsonb_array_elements_text(coalesce(status_parameter::jsonb -> 'shortages', '[]')) as shortage
 where group_name = :group and group_lease_until > now()

-- name: statements_refused
select scheduler_host || '.' || scheduler_pid, null::interval, status_reason
  from drover.scheduler_status join drover.scheduler on scheduler_uuid = status_scheduler
 where scheduler_group = :group and status_slot = -1 and status_reason is not null
   and scheduler_seen > now() - make_interval(secs => 2 * scheduler_lease)
 order by 1

-- fragment: troubles
select t.value ->> 'what',
       now() - status_updated + make_interval(secs => (t.value ->> 'seconds')::float8), t.value ->> 'reason'
  from drover.scheduler_status join drover.scheduler_group on group_owner = status_scheduler,
       jsonb_array_elements(status_parameter::jsonb -> 'troubles') t
 where group_name = :group and status_slot = -1 and group_lease_until > now()

-- name: connections_failed
-- Return the connections that the active scheduler cannot make.
{{troubles}} and t.value ->> 'what' <> 'embedded database' and t.value -> 'left' is null
 order by 2 desc

-- name: processes_left
-- Return the processes of agents that the active scheduler could not end.
{{troubles}} and t.value -> 'left' is not null
 order by 2 desc

-- name: server_replaced
-- Return what is wrong with the files of the embedded server, as the active scheduler sees it.
{{troubles}} and t.value ->> 'what' = 'embedded database'

-- name: use_plpgsql
-- Have the session load the library of PL/pgSQL, as most triggers do: a server whose files were replaced may not.
do 'begin end'

-- Warnings of drover status: what slows or endangers the database. Each returns (who, age, what); parameters are those
-- of health.Limits.

-- name: impossible_rows
-- Return what contradicts what the scheduler keeps true, one row for each kind, with what to do.
select coalesce('job ' || min(jq_pk), 'schedules'), now() - min(since),
       (array_agg(what order by jq_pk))[1] || case count(*) when 1 then '' else '; such jobs: ' || count(*) end,
       replace((array_agg(next order by jq_pk))[1], 'JOB', coalesce(min(jq_pk)::text, ''))
  from drover.impossible group by rule order by rule

-- name: impossible_not_looked_for
-- Return since when no scheduler has looked for impossible rows, if that is long: they are found by a walk of the
-- active one, which makes steps and rests for a minute. No walk is needed where nothing waits or is worked.
select now() - walk_at, walk_at is null
  from drover.suspect_walk
 where coalesce(walk_at, '-infinity') < now() - interval '5 minutes'
   and not exists (select from drover.scheduler_group
                    where group_lease_until > now()
                      and coalesce(group_taken_at, now()) > now() - interval '5 minutes')
   and exists (select from drover.job_counts where state in ('held', 'early', 'unmet', 'queued', 'blocked'))

-- name: one_moment
-- Have all statements of a transaction read the same moment.
set transaction isolation level repeatable read, read only

-- name: limit_statement
-- Have a check change nothing and end in time, also where it waits for a lock.
select set_config('transaction_read_only', 'on', true), set_config('statement_timeout', :timeout_ms::text, true),
       set_config('lock_timeout', :lock_ms::text, true)

-- name: statistics_hidden
-- Without pg_read_all_stats a role sees only pid, user, application and xmin of the sessions of other users.
select 'role ' || current_user, null::interval,
       'sees little of the sessions of others: warnings are missing'
 where not pg_has_role(current_user, 'pg_read_all_stats', 'usage')

-- name: settings_off
select 'setting ' || name, null::interval, effect
  from pg_settings join (values
    ('fsync', 'a crash of the machine may destroy the database'),
    ('full_page_writes', 'a crash of the machine may destroy pages of the database'),
    ('synchronous_commit', 'jobs that were just handed in may be lost at a crash'),
    ('autovacuum', 'dead rows are not removed: tables grow, and every statement becomes slower'),
    ('track_counts', 'autovacuum does not know where dead rows are, and removes none')) as s(name, effect) using (name)
 where setting = 'off' and source not in ('user', 'database user', 'client', 'session')
 order by name

-- name: tables_without_autovacuum
select 'table ' || c.oid::regclass, null::interval, 'autovacuum is switched off for it: dead rows stay'
  from pg_class c, pg_options_to_table(c.reloptions) o
 where c.relnamespace = 'drover'::regnamespace and o.option_name = 'autovacuum_enabled' and not o.option_value::boolean
 order by 1

-- name: old_transactions
-- An idle transaction has a snapshot only if it is repeatable read; one that has written keeps dead rows as well, also
-- from another database.
select format('pid %s, user %s, application %s%s', pid, usename, coalesce(nullif(application_name, ''), '?'),
              ', from ' || host(client_addr)),
       now() - xact_start,
       'dead rows stay and slow claims; ' || greatest(age(backend_xid), age(backend_xmin)) || ' transactions behind, '
         || state || coalesce(': ' || left(query, 60), '')
  from pg_stat_activity
 where (backend_xid is not null or backend_xmin is not null and datname = current_database())
   and now() - xact_start > :transaction and pid <> pg_backend_pid()
   and backend_type in ('client backend', 'background worker') and query !~* '^\s*vacuum'
 order by xact_start

-- name: prepared_transactions
select format('prepared transaction %L, user %s, database %s', gid, owner, database), now() - prepared,
       'dead rows stay and slow claims, its locks stay too, until it is ended; no restart does that'
  from pg_prepared_xacts where now() - prepared > :transaction order by prepared

-- name: replicas_behind
-- Slots and replicas show no time, and a replica may be a little behind: they are reported only if there are dead rows.
select who, null::interval, 'dead rows stay and slow claims; ' || age(xmin) || ' transactions behind'
  from (select 'replication slot ' || slot_name || case when active then '' else ', unused' end, xmin
          from pg_replication_slots
        union all
        select format('replica %s, pid %s, user %s', application_name, pid, usename), backend_xmin
          from pg_stat_replication) as r(who, xmin)
 where age(xmin) > :behind
   and exists (select from pg_stat_user_tables where schemaname = 'drover' and n_dead_tup > :dead_rows)
 order by age(xmin) desc

-- name: dead_rows
select 'table ' || relid::regclass, now() - vacuumed,
       n_dead_tup || ' dead rows beside ' || n_live_tup || ' live ones, not vacuumed since: they slow claims'
  from pg_stat_user_tables,
       lateral (select greatest(last_vacuum, last_autovacuum, pg_postmaster_start_time()) as vacuumed) v
 where schemaname = 'drover' and n_dead_tup > :dead_rows and n_dead_tup > n_live_tup / 5
   and now() - vacuumed > :vacuum and relid not in (select relid from pg_stat_progress_vacuum)
 order by relid::regclass::text

-- name: queue_scans
-- Scans are counted since the statistics were reset or, at the earliest, the schema was created. A parallel scan counts
-- several times, and the rows read divided by those of today may be too many: the lesser count is right.
select 'unknown', now() - since,
       'reads all ' || n_live_tup || ' rows of drover.jobqueue ' || round(scans / hours)
         || ' times an hour, on the average: no index serves its query'
  from pg_stat_user_tables t,
       lateral (select greatest((select stats_reset from pg_stat_database where datname = current_database()),
                                (select min(applied_at) from drover.migration)) as since) s,
       lateral (select greatest(extract(epoch from now() - since) / 3600, 1) as hours,
                       least(seq_scan, seq_tup_read / greatest(n_live_tup, 1)) as scans) c
 where relid = 'drover.jobqueue'::regclass and n_live_tup >= :scanned_rows and scans / hours > :scans_per_hour

-- name: slow_queries
-- Return sessions that only read the queue, as their lock shows, for too long; a dump is left out.
select format('pid %s, user %s, application %s', pid, usename, coalesce(nullif(application_name, ''), '?')),
       now() - query_start, 'still reads the queue: ' || left(query, 120)
  from pg_stat_activity
 where state = 'active' and now() - query_start > :query and pid <> pg_backend_pid()
   and backend_type = 'client backend' and application_name !~ '^(drover|pg_dump)'
   and (select array_agg(mode) from pg_locks l
         where l.pid = pg_stat_activity.pid and l.relation = 'drover.jobqueue'::regclass) = '{AccessShareLock}'
 order by query_start

-- name: blocking_locks
select format('pid %s, user %s, application %s', pid, usename, coalesce(nullif(application_name, ''), '?')),
       now() - coalesce(state_change, xact_start),
       case when pid = any (blockers) then 'others wait for its locks on the queue'
            else 'leaves rows of the queue locked' end || coalesce('; ' || state || ': ' || left(query, 60), '')
  from pg_stat_activity,
       lateral (select array(select unnest(pg_blocking_pids(w.pid)) from pg_locks w
                              where not w.granted and now() - w.waitstart > :blocked) as blockers) b
 where pid in (select pid from pg_locks
                where relation = 'drover.jobqueue'::regclass and granted and mode <> 'AccessShareLock')
   and pid <> pg_backend_pid() and application_name !~ '^drover '
   and (pid = any (blockers) or state like 'idle in transaction%' and now() - state_change > :lock)
 order by 2 desc

-- name: notify_queue_filling
-- A session that listens and stays in a transaction keeps all notifications since then; no view shows which one it is.
select 'NOTIFY queue', (select max(now() - xact_start) from pg_stat_activity where state like 'idle in transaction%'),
       round((100 * usage)::numeric) || ' % full: when it is full, commits with a notification fail'
  from pg_notification_queue_usage() as usage where usage > :notifications

-- Objects of the site: what others have put on our tables, or set for them. drover(8), OBJECTS OF A SITE, has the same
-- list. Each returns (who, age, what, next). Catalogs only. `tables` and `ours` are the names of our tables, and of our
-- columns, indexes, constraints and triggers; `switched` are triggers that are off until something needs them; `newest`
-- is our last migration: what later ones made we do not know.

-- fragment: our_tables
select c.relname::text as name, c.* from pg_catalog.pg_class c
 where c.relnamespace = 'drover'::regnamespace and c.relkind in ('r', 'p') and c.relname = any (:tables::text[])

-- fragment: published
-- Return each of our tables with a publication that sends its updates or deletes; how its rows are told apart; and what
-- the publication needs for that: a filter of rows may look at these columns alone, a list of columns must have them.
-- Catalogs of PostgreSQL 14 have neither: the rows are read as JSON.
select p.pubname, t.oid::regclass::text as place, t.relreplident = 'n' or key is null as has_no_identity,
       listed is not null and not key <@ listed
       or p.rowfilter and listed is null and not looked_at <@ key as is_narrow
  from our_tables t
  join (select p.oid, p.pubname, v.schemaname, v.tablename, coalesce(to_jsonb(v) ->> 'rowfilter', '') <> '' as rowfilter
          from pg_catalog.pg_publication p join pg_catalog.pg_publication_tables v using (pubname)
         where p.pubupdate or p.pubdelete) p on p.schemaname = 'drover' and p.tablename = t.name
  left join pg_catalog.pg_publication_rel r on r.prpubid = p.oid and r.prrelid = t.oid,
       lateral (select case t.relreplident
                  when 'f' then (select array_agg(attnum::int) from pg_catalog.pg_attribute
                                  where attrelid = t.oid and attnum > 0 and not attisdropped)
                  else (select indkey::int[] from pg_catalog.pg_index
                         where indrelid = t.oid and case t.relreplident when 'd' then indisprimary
                                                                        else indisreplident end) end as key) k,
       lateral (select case jsonb_typeof(to_jsonb(r) -> 'prattrs') when 'array' then array(
                  select value::int from jsonb_array_elements_text(to_jsonb(r) -> 'prattrs')) end as listed) l,
       lateral (select coalesce(array_agg(refobjsubid), '{}') as looked_at from pg_catalog.pg_depend
                 where classid = 'pg_publication_rel'::regclass and objid = r.oid and refobjid = t.oid
                   and refobjsubid > 0) d

-- name: site_stops
-- Return what stops claims or ends, or loses jobs.
with our_tables as ({{our_tables}}),
published as ({{published}}),
found (who, what, place, next) as (
  select 'publication ' || quote_ident(pubname), 'the server refuses changes of a table that it sends: its rows have '
         'no key', place, format('alter table %s replica identity full', place)
    from published where has_no_identity
  union all
  select 'publication ' || quote_ident(pubname), 'the server refuses changes of a table of which it sends some rows or '
         'columns alone, by others than the key', place,
         format('alter publication %1$I drop table %2$s; alter publication %1$I add table %2$s', pubname, place)
    from published where is_narrow
  union all
  select 'triggers', 'they are switched off: jobs are not offered, guarded or announced',
         tgname || ' of ' || t.oid::regclass, format('alter table %s enable trigger %I', t.oid::regclass, tgname)
    from our_tables t join pg_catalog.pg_trigger on tgrelid = t.oid
   where not tgisinternal and tgname = any (:ours::text[]) and tgenabled not in ('O', 'A')
     and tgname <> all (:switched::text[])
  union all
  select 'row security', 'it is on, and hides rows from the scheduler and from front-ends', t.oid::regclass::text,
         format('alter table %s disable row level security', t.oid::regclass)
    from our_tables t where relrowsecurity
  union all
  select 'rule ' || rulename, 'statements of the scheduler are refused, or do something else', t.oid::regclass::text,
         format('drop rule %I on %s', rulename, t.oid::regclass)
    from our_tables t join pg_catalog.pg_rewrite on ev_class = t.oid where ev_enabled <> 'D'
  union all
  select 'unlogged table', 'it is empty after a crash of the server', t.oid::regclass::text,
         format('alter table %s set logged', t.oid::regclass)
    from our_tables t where relpersistence = 'u'
  union all
  select 'subscription ' || subname, 'it writes into a table, and no trigger runs: no claim finds such jobs',
         t.oid::regclass::text,
         format('let the publication leave the table out, then alter subscription %I refresh publication', subname)
    from our_tables t join pg_catalog.pg_subscription_rel on srrelid = t.oid
    join pg_catalog.pg_subscription s on s.oid = srsubid
  union all
  select 'table ' || inhrelid::regclass, 'it inherits: its rows are seen as ours, and have no key',
         t.oid::regclass::text, format('alter table %s no inherit %s', inhrelid::regclass, inhparent::regclass)
    from our_tables t join pg_catalog.pg_inherits on inhparent = t.oid
  union all
  select 'owner of a table', 'it is ' || pg_get_userbyid(t.relowner) || ': functions of the schema may not use it',
         t.oid::regclass::text, format('alter table %s owner to %I', t.oid::regclass, pg_get_userbyid(q.relowner))
    from our_tables t, our_tables q where q.name = 'jobqueue' and t.relowner <> q.relowner
  union all
  select 'setting ' || setting, coalesce('of role ' || r.rolname, 'of the database')
         || case when setting ~* '^role=' then ': sessions have the rights of another role than that which logged in'
                 else ': no trigger runs, and no claim finds what is queued' end, null,
         format('alter %s reset %s', concat_ws(' ',
           'role ' || quote_ident(r.rolname), case when r.rolname is not null and setdatabase <> 0 then 'in' end,
           case when setdatabase <> 0 then 'database ' || quote_ident(current_database()) end),
           split_part(setting, '=', 1))
    from pg_catalog.pg_db_role_setting left join pg_catalog.pg_roles r on r.oid = setrole, unnest(setconfig) as setting
   where setdatabase in (0, (select oid from pg_catalog.pg_database where datname = current_database()))
     and (setting ~* '^session_replication_role=(replica|local)' or setting ~* '^role=' and setrole = 0))
select who, null::interval,
       what || coalesce(': ' || min(place), '')
         || case count(*) when 1 then '' else ', and ' || count(*) - 1 || ' more' end,
       array_to_string((array_agg(next order by place))[:3], '; ') || case when count(*) > 3 then '; ...' else '' end
  from found group by who, what order by who, what limit 10

-- name: site_objects
-- Return what is the site's and in the way: it costs each job, or refuses what the scheduler does.
with our_tables as ({{our_tables}}),
found (who, what, next) as (
  select 'trigger ' || tgname, 'of ' || t.oid::regclass || case when tgtype & 2 <> 0 then ': it may change or keep rows'
         else ': an error in it stops the scheduler' end,
         format('use one after insert or update of drover.jobqueue, and drop trigger %I on %s', tgname, t.oid::regclass)
    from our_tables t join pg_catalog.pg_trigger on tgrelid = t.oid
   where not tgisinternal and tgname <> all (:ours::text[]) and tgenabled <> 'D'
     and (tgtype & 2 <> 0 or t.name <> 'jobqueue')
  union all
  select 'constraint ' || conname, 'of ' || t.oid::regclass || ': the end of a job that breaks it is not saved',
         format('alter table %s drop constraint %I', t.oid::regclass, conname)
    from our_tables t join pg_catalog.pg_constraint on conrelid = t.oid
   where conname <> all (:ours::text[]) and contype in ('c', 'f', 'p', 'u', 'x')
  union all
  select 'column ' || attname, 'of ' || t.oid::regclass || ': rows that do not name it are refused',
         format('alter table %s alter %I drop not null', t.oid::regclass, attname)
    from our_tables t join pg_catalog.pg_attribute on attrelid = t.oid
   where attname <> all (:ours::text[]) and attnum > 0 and not attisdropped and attnotnull and not atthasdef
     and attidentity = ''
  union all
  select 'index ' || i.oid::regclass, 'on ' || t.oid::regclass || case when indisunique then ': jobs that are alike in '
         'it are refused' else ': each claim and each end of a job writes to it' end,
         format('drop index %s', i.oid::regclass)
    from our_tables t join pg_catalog.pg_index on indrelid = t.oid join pg_catalog.pg_class i on i.oid = indexrelid
   where i.relname <> all (:ours::text[])
     and (indisunique or t.name in ('claimable', 'in_hand')
          or t.name = 'jobqueue' and exists (
            select from pg_catalog.pg_depend
              join pg_catalog.pg_attribute on attrelid = refobjid and attnum = refobjsubid
             where classid = 'pg_class'::regclass and objid = i.oid and refobjid = t.oid
               and attname in ('jq_state', 'jq_owner', 'jq_attempt', 'jq_starttime', 'jq_endtime', 'jq_end_bits',
                               'jq_endtext', 'jq_done_host', 'jq_done_pid', 'jq_itemsprocessed', 'jq_processedtime')))
     and not exists (select from pg_catalog.pg_constraint where conindid = i.oid and conrelid = t.oid)
  union all
  select 'function ' || max(oid)::regprocedure, 'has the name of one of ours, and a call may mean it',
         format('drop function %s', max(oid)::regprocedure)
    from pg_catalog.pg_proc where pronamespace = 'drover'::regnamespace and proname = any (:functions::text[])
   group by proname having count(*) > cardinality(array_positions(:functions::text[], proname::text)))
select left(who, 200), null::interval, what, next from found
 where not exists (select from drover.later_migration where number > :newest::integer)
 order by who limit 10

-- name: lost_roles
-- Return the roles that have schedules or subscriptions and are not there: a role that is renamed loses them.
select 'role ' || quote_ident(role), null::interval,
       'is not there, and has ' || string_agg(of, ' and ' order by of) || ': was it renamed?',
       format('select drover.rename_owner(%L, NEW NAME)', role)
  from (select schedule_submitter::text as role, 'schedules' as of from drover.schedule
        union select sub_owner::text, 'subscriptions' from drover.subscription) o
 where role not in (select rolname from pg_catalog.pg_roles)
 group by role order by role limit 10

-- name: filters_refused
-- Return the event triggers, while the filters of queues cannot be installed.
select 'event trigger ' || string_agg(quote_ident(evtname), ', ' order by evtname), null::interval,
       'filters and lengths of queues have changed, and the scheduler cannot make a function of them',
       'have it pass what ' || pg_get_userbyid((select relowner from pg_catalog.pg_class
                                                 where oid = 'drover.jobqueue'::regclass))
         || ' does in schema drover, or ' || string_agg(format('alter event trigger %I disable', evtname), '; ')
  from pg_catalog.pg_event_trigger where evtenabled <> 'D'
having count(*) > 0 and drover.is_route_stale()

-- name: site_additions
-- Return what a site may add, and what follows from it: drover check alone shows it.
with our_tables as ({{our_tables}})
select 'trigger ' || tgname, null::interval,
       'of ' || t.oid::regclass || ': an error in it refuses what the scheduler and front-ends do',
       'let its function be security definer, with a search_path of its own'
  from our_tables t join pg_catalog.pg_trigger on tgrelid = t.oid
  join pg_catalog.pg_proc p on p.oid = tgfoid
 where not tgisinternal and tgname <> all (:ours::text[]) and tgenabled <> 'D'
   and tgtype & 2 = 0 and t.name = 'jobqueue' and (not prosecdef or proconfig is null)
   and not exists (select from drover.later_migration where number > :newest::integer)
union all
select 'foreign key ' || conname, null, 'of ' || conrelid::regclass || ' keeps rows of ' || confrelid::regclass
       || case when is_slow then ' and has no index: each row that is removed reads all of it'
          else ': what it refers to is passed over, when old rows are removed' end,
       case when is_slow then format('create an index on %s (%s)', conrelid::regclass, columns)
            else 'unless that is wanted, say on delete cascade or on delete set null' end
  from our_tables t join pg_catalog.pg_constraint c on confrelid = t.oid,
       lateral (select string_agg(quote_ident(attname), ', ') as columns from pg_catalog.pg_attribute
                 where attrelid = conrelid and attnum = any (conkey)) k,
       lateral (select not exists (select from pg_catalog.pg_index
                                    where indrelid = conrelid and indkey[0] = any (conkey)) as is_slow) s
 where conrelid not in (select oid from our_tables) and (is_slow or confdeltype in ('a', 'r'))
union all
select 'event trigger ' || evtname, null, 'runs at ' || evtevent || ': it may refuse drover init and filters of queues',
       format('have it pass what is done in schema drover, or for drover init: alter event trigger %I disable', evtname)
  from pg_catalog.pg_event_trigger
 where evtenabled <> 'D' and evtevent in ('ddl_command_start', 'ddl_command_end', 'sql_drop')

-- drover check

-- name: missing_roles
select name from unnest(:roles::text[]) as name where name not in (select rolname from pg_roles) order by name

-- name: public_is_open
-- Return whether every role may create objects in schema public.
select exists (select from pg_namespace, aclexplode(coalesce(nspacl, acldefault('n', nspowner)))
                where nspname = 'public' and grantee = 0 and privilege_type = 'CREATE')

-- name: stuck_clean_ups
-- Return the number of clean-ups that no agent can do, one of them, and the reason.
select coalesce(sum(jobs), 0)::bigint as jobs, min(pk) as pk, (select reason from drover.why where jq_pk = min(pk))
  from (select jobs, drover.first_of_kind(array[zone], type, j.queue, j.host, submitter, state) as pk
          from drover.job_zones j
          left join drover.queue q on q.queue_name = j.queue
          left join drover.agent a on a.agent_group = q.queue_group and a.agent_type = j.type
          left join drover.host h on h.host_name = j.host
         where j.type = 'cleanup' and j.state in ('held', 'early', 'unmet', 'queued', 'blocked')
           and not (coalesce(a.agent_present and a.agent_enabled, false)
                    and (j.host = '' or coalesce(h.host_present and h.host_enabled, false)))
         order by zone) stuck

-- name: failed_clean_ups
select coalesce(sum(jobs), 0)::bigint from drover.job_states where type = 'cleanup' and state = 'failed'

-- name: may_register
select has_table_privilege('drover.scheduler', 'insert')

-- name: role_connection_limit
select rolconnlimit from pg_roles where rolname = session_user

-- drover doctor

-- name: server_facts
-- Return its version, its clock in seconds, the number of the schema, the process that serves this session, how many
-- sessions a role that is no superuser may open in all, and how many there are.
select current_setting('server_version') as version, extract(epoch from clock_timestamp())::float8 as clock,
       (select max(number) from (table drover.migration union all table drover.later_migration) m) as schema,
       pg_backend_pid() as backend,
       current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
         - coalesce(current_setting('reserved_connections', true)::int, 0) as most,
       (select count(*) from pg_stat_activity where datid is not null)::int as used

-- name: notify_doctor
select pg_notify(:channel, '')

-- name: is_operator
select pg_has_role(current_user, 'drover_operator', 'usage')
