-- Statements of the dashboard (scheduler/web) that no command has; it uses those of cli.sql too, and the same rules
-- hold: parameters are `:name`, and tables that a role may not read are replaced by views of them.

-- Sessions

-- name: limit_session
-- A page must not hold up the queue, nor change it: a command is inserted in a transaction that says so.
select set_config('statement_timeout', :limit_ms, false), set_config('default_transaction_read_only', 'on', false),
       set_config('lock_timeout', '2s', false), set_config('idle_session_timeout', '0', false),
       set_config('jit', 'off', false)

-- name: be_visitor
-- See only what drover_readonly may see, if the role can.
select set_config('role', 'drover_readonly', false)
 where to_regrole('drover_readonly') is not null and pg_has_role(current_user, 'drover_readonly', 'member')

-- name: may_command
-- Return whether the role may give commands: whether it may call the function is looked at before it calls any.
select has_function_privilege('drover.command(text)', 'execute')

-- name: is_operator
select drover.may_command()

-- name: may_submit
-- Return whether the role may insert jobs, and such whose parameter is a query.
select has_any_column_privilege('drover.jobqueue', 'insert') as may_insert,
       has_column_privilege('drover.jobqueue', 'jq_msq', 'insert') as may_query

-- Jobs

-- fragment: found
-- Keep the jobs that a filter of the list finds; see scheduler/web/job_filter.py. Commands are listed while they wait.
(:states::drover.job_state[] is null or jq_state = any (:states))
   and (case when :type::text is null then jq_type <> 'command' or jq_endtime is null else jq_type = :type end)
   and (:queue::text is null or jq_queue = :queue) and (:host::text is null or jq_host = :host)
   and (:by::text is null or jq_submitter = :by) and (:group::bigint is null or jq_job_fk = :group)
   and (:since::interval is null or jq_queued > now() - :since)
   and (:text::text is null or jq_pk::text = :text
        or position(lower(:text) in lower(concat_ws(' ', jq_name, left(jq_args, 2000), left(jq_endtext, 2000)))) > 0)
   and not (exists (select from drover.job where job_pk = jq_job_fk and job_hidden)
            or exists (select from drover.hidden where hidden_jq_fk = jq_pk))

-- name: page_of_jobs
-- Return these jobs, the newest first; see scheduler/cli/job_lists.py. How far an SQL job is, is said as in cli.sql.
select jq_pk as job, jq_name as name, jq_type as type, jq_state::text as state, jq_urgent as urgent,
       jq_priority as priority, jq_queue as queue, jq_host as host, jq_done_host as run_host,
       jq_submitter as submitter, jq_job_fk as group, jq_queued as queued, jq_starttime as start, jq_endtime as end,
       jq_itemsprocessed as processed,
       case when jq_msq and (jq_itemsprocessed + jq_itemsfailed > 0 or jq_state = 'running')
            then drover.progress(jq_itemsprocessed, jq_itemsfailed, jq_itemstotal, jq_elapsedtime,
                                 case when jq_state = 'running' then jq_expected_end end) end as progress,
       left(jq_args, 200) as args, nullif(left(jq_endtext, 200), 'in progress') as text
  from drover.our_jobs j
 where jq_pk = any (:jobs::bigint[])
 order by jq_pk desc

-- name: count_jobs
-- Return how many jobs a filter finds in each state. Kinds of jobs are counted as they change; jobs in hand are told
-- from queued ones, and hidden ones left out, by their numbers.
select * from (
  with kinds as (select :group::bigint is null and :since::interval is null and :text::text is null as are_all),
  hidden as (
    select hidden_jq_fk as pk from drover.hidden
     union
    select jq_pk from drover.our_jobs where jq_job_fk = any (array(select job_pk from drover.job where job_hidden))),
  counted as (
    select case when state in ('early', 'unmet') then 'queued' else state end::drover.job_state as state, jobs, type,
           queue, host, submitter
      from drover.our_job_counts where (select are_all from kinds)
     union all
    select s.state, s.jobs, jq_type, coalesce(jq_queue, ''), coalesce(jq_host, ''), jq_submitter::text
      from drover.our_jobs
     cross join lateral (values (jq_state, 1), ('queued', -1)) as s(state, jobs)
     where (select are_all from kinds) and jq_pk = any (array(select jq_pk from drover.our_beside_zones))
       and jq_state in ('claimed', 'running')
     union all
    select jq_state, -1, jq_type, coalesce(jq_queue, ''), coalesce(jq_host, ''), jq_submitter::text
      from drover.our_jobs where (select are_all from kinds) and jq_pk = any (array(select pk from hidden)))
  select state::text, sum(jobs)::bigint as jobs
    from (
      select state, jobs
        from counted
       where (:states::drover.job_state[] is null or state = any (:states))
         and (case when :type::text is null then type <> 'command' or state < 'done' else type = :type end)
         and (:queue::text is null or queue = :queue) and (:host::text is null or host = :host)
         and (:by::text is null or submitter = :by)
       union all
      select jq_state, 1 from drover.our_jobs j where not (select are_all from kinds) and {{found}}) c
   group by state having sum(jobs) > 0) of_filter

-- name: family
-- Return a job with those that it depends on and those that depend on it, directly or not, as far as `deep` and `most`
-- allow: what each is, and which of the others it depends on. All are looked up by number, one by one (`offset 0`).
select jq_pk as job, jq_name as name, jq_type as type, jq_state::text as state, parents
  from (
    with recursive up (pk, depth) as (
        select :job::bigint, 0
        union
        select jdep_jq_depends_fk, depth + 1
          from up cross join lateral (
            select jdep_jq_depends_fk from drover.jobdepends e where jdep_jq_fk = pk offset 0) e
         where depth < :deep::integer),
      down (pk, depth) as (
        select :job::bigint, 0
        union
        select jdep_jq_fk, depth + 1
          from down cross join lateral (
            select jdep_jq_fk from drover.jobdepends e where jdep_jq_depends_fk = pk offset 0) e
         where depth < :deep)
    select pk from (select pk from up limit :most::bigint) u
    union
    select pk from (select pk from down limit :most) d) f
  cross join lateral (select * from drover.our_jobs where jq_pk = pk offset 0) j,
  lateral (select array(select jdep_jq_depends_fk from drover.jobdepends e where jdep_jq_fk = pk) as parents) p
 order by jq_pk

-- name: known_values
-- Return what filters offer: agent types, queues and hosts.
select coalesce((select array_agg(distinct agent_type order by agent_type) from drover.agent), '{}') as types,
       coalesce((select array_agg(queue_name order by queue_name) from drover.queue where queue_present), '{}')
         as queues,
       coalesce((select array_agg(host_name order by host_name) from drover.host where host_present), '{}') as hosts

-- Plots

-- name: history
-- Return for each minute of the last hour how many jobs started and ended, by state: of each bin of time, and in all.
select date_trunc('minute', tally_at) as minute, tally_state as state, bin, sum(jobs)::bigint as jobs
  from drover.our_tally
 cross join lateral (select null::integer as bin, tally_jobs as jobs
                      union all select * from unnest(tally_bins, tally_counts)) b
 where tally_span = any ('{0, 1 minute}'::interval[]) and tally_at > date_trunc('minute', now()) - interval '1 hour'
 group by 1, 2, 3 order by 1

-- name: backlog
-- Return for each queue how long its oldest job has waited that could be claimed, and how many there are.
select queue, sum(jobs)::bigint as jobs, now() - min(oldest) as oldest
  from drover.backlog b group by queue order by oldest desc

-- Logs and output

-- name: page_of_log
-- Return log lines below a number, the newest first. The sum keeps the index of the job in use.
select log_pk as pk, log_date as date, log_type as type, log_jq_fk as job, log_host as host, log_agent as agent,
       log_pid as pid, left(log_message, 2000) as message
  from drover.our_log l
 where (:before::bigint is null or log_pk < :before) and (:job::bigint is null or log_jq_fk = :job)
   and (:kind::text is null or log_type = :kind)
   and (:text::text is null or position(lower(:text) in lower(log_message)) > 0)
 order by case when :job is null then log_pk else log_pk + 0 end desc limit :limit::bigint

-- name: end_of_output
-- Return the end of what the latest attempt printed on a stream.
select coalesce(right(string_agg(out_data, '' order by out_part), :most::integer), '')
  from drover.our_output o
 where out_jq_fk = :job and out_stream = :stream
   and out_attempt = (select max(out_attempt) from drover.our_output where out_jq_fk = :job)
