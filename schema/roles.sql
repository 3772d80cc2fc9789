-- The roles and what each may do. It must be run after every migration, and may be run again at any time.
-- A person or a program gets a login of its own that is a member of one of these (`create role billing login in role
-- drover_frontend`), or logs in as one of them. pg_hba.conf says who may log in, and how.

-- ---------------------------------------------------------------- the roles

do $$
declare
  missing text;
begin
  foreach missing in array array['drover_owner nologin', 'drover_scheduler login', 'drover_frontend login',
    'drover_frontend_sql login', 'drover_tenant login', 'drover_operator login', 'drover_readonly login',
    'drover_msq login', 'drover_agentdb login']
  loop
    continue when to_regrole(split_part(missing, ' ', 1)) is not null;
    begin
      execute 'create role ' || missing;
    exception when duplicate_object or unique_violation then
      null;  -- roles belong to the cluster: `drover init` of another database has just created it
    end;
  end loop;
end $$;

-- What the daemon sets for its connections itself, but not behind a pooler.
alter role drover_scheduler set jit = off;
alter role drover_scheduler set enable_seqscan = off;
alter role drover_scheduler set enable_bitmapscan = off;
alter role drover_scheduler set enable_sort = off;
alter role drover_scheduler set enable_hashjoin = off;
alter role drover_scheduler set enable_mergejoin = off;
alter role drover_scheduler set lock_timeout = '5s';
alter role drover_scheduler set search_path = pg_catalog, pg_temp;
alter role drover_scheduler set client_connection_check_interval = '5s';
alter role drover_scheduler set idle_session_timeout = 0;
alter role drover_scheduler set statement_timeout = 0;
alter role drover_scheduler set array_nulls = on;
alter role drover_scheduler set standard_conforming_strings = on;
alter role drover_scheduler set default_transaction_isolation = 'read committed';
alter role drover_scheduler set extra_float_digits = 1;
alter role drover_agentdb set client_connection_check_interval = '5s';

-- A view of all jobs looks so dear to the server that it would compile its query for longer than it takes to read it.
alter role drover_frontend set jit = off;
alter role drover_frontend_sql set jit = off;
alter role drover_tenant set jit = off;
alter role drover_operator set jit = off;
alter role drover_readonly set jit = off;
alter role drover_agentdb set idle_session_timeout = 0;

-- A session that listens and stays in a transaction keeps all notifications since then in the server's queue, which has
-- 8 GB and is shared by all databases; and any transaction that stays open keeps dead rows. These settings are for the
-- role itself: a login that is only a member of it needs its own, and a session may reset them.
alter role drover_frontend set idle_in_transaction_session_timeout = '5min';
alter role drover_frontend_sql set idle_in_transaction_session_timeout = '5min';
alter role drover_tenant set idle_in_transaction_session_timeout = '5min';
alter role drover_readonly set idle_in_transaction_session_timeout = '5min';

-- Limits for the SQL of jobs. The scheduler enforces the time limit, since a session could reset one that the role has.
alter role drover_msq connection limit 10;
alter role drover_msq set default_transaction_read_only = on;
alter role drover_msq set lock_timeout = '5s';
alter role drover_msq set client_connection_check_interval = '5s';
alter role drover_msq set idle_in_transaction_session_timeout = '60s';
alter role drover_msq set idle_session_timeout = 0;

do $$ begin
  alter role drover_msq set temp_file_limit = '10GB';
exception when insufficient_privilege then
  raise notice 'drover_msq has no temp_file_limit: only a superuser may set it';
end $$;

-- ---------------------------------------------------------------- the owner

-- Functions with `security definer` run as drover_owner, which cannot log in.
do $$
declare
  command text;
begin
  if not pg_has_role(current_user, 'drover_owner', 'usage') then
    execute format('grant drover_owner to %I', current_user);
  end if;
  for command in
    select format('alter schema drover owner to drover_owner') from pg_namespace
     where nspname = 'drover' and nspowner <> 'drover_owner'::regrole
    union all
    select format('alter %s %s owner to drover_owner',
                  case relkind when 'v' then 'view' else 'table' end, oid::regclass)
      from pg_class
     where relnamespace = 'drover'::regnamespace and relkind in ('r', 'v') and relowner <> 'drover_owner'::regrole
    union all
    select format('alter type %s owner to drover_owner', oid::regtype) from pg_type
     where typnamespace = 'drover'::regnamespace and typtype = 'e' and typowner <> 'drover_owner'::regrole
    union all
    select format('alter function %s owner to drover_owner', oid::regprocedure) from pg_proc
     where pronamespace = 'drover'::regnamespace and proowner <> 'drover_owner'::regrole
  loop
    execute command;
  end loop;
exception when insufficient_privilege then
  raise notice 'the schema drover still belongs to %, who may not give it to drover_owner', current_user;
end $$;

-- ---------------------------------------------------------------- what each may do

-- These also revoke what an earlier version granted and this one does not.
revoke all on schema drover from public, drover_scheduler, drover_frontend, drover_frontend_sql,
  drover_tenant, drover_operator, drover_readonly, drover_msq, drover_agentdb;
revoke all on all tables in schema drover from public, drover_scheduler, drover_frontend, drover_frontend_sql,
  drover_tenant, drover_operator, drover_readonly, drover_msq, drover_agentdb;
revoke all on all sequences in schema drover from public, drover_scheduler, drover_frontend, drover_frontend_sql,
  drover_tenant, drover_operator, drover_readonly, drover_msq, drover_agentdb;
revoke all on all functions in schema drover from public, drover_scheduler, drover_frontend, drover_frontend_sql,
  drover_tenant, drover_operator, drover_readonly, drover_msq, drover_agentdb;

grant usage on schema drover
  to drover_scheduler, drover_frontend, drover_frontend_sql, drover_tenant, drover_operator, drover_readonly;

-- Triggers call it with the rights of the role that inserts; it does nothing that any role may not do.
grant execute on function drover.notify(text, text)
  to drover_scheduler, drover_frontend, drover_frontend_sql, drover_tenant, drover_operator, drover_readonly;

-- It tells a number, of one's own jobs to those who see no others.
grant execute on function drover.first_of_kind(bigint[], text, text, text, text, text)
  to drover_scheduler, drover_frontend, drover_frontend_sql, drover_tenant, drover_operator, drover_readonly;

-- A view calls these with the rights of the role that reads the view.
grant execute on function drover.about(float8), drover.items(drover.jobqueue), drover.rests(drover.agent),
  drover.progress(bigint, bigint, bigint, interval, timestamptz),
  drover.end_code(drover.job_state, text, integer, text, integer, text), drover.shown_code(drover.jobqueue),
  drover.word(text, integer), drover.has_token(drover.jobqueue), drover.takes_priority(text, text),
  drover.time_bin(double precision), drover.time_run(boolean, interval, timestamptz, timestamptz), drover.lockers(),
  drover.why_later(text)
  to drover_scheduler, drover_frontend, drover_frontend_sql, drover_tenant, drover_operator, drover_readonly;

-- drover_frontend inserts jobs of one parameter and reads its own. It cannot set their submitter, nor what the
-- scheduler writes.
grant insert (jq_job_fk, jq_name, jq_type, jq_args, jq_variables, jq_resubmit_of, jq_host, jq_tolerate, jq_queue,
              jq_urgent, jq_priority, jq_not_before, jq_not_after, jq_max_interruptions, jq_retries, jq_timeout,
              jq_unique_key, jq_delete, jq_mode, jq_state)
  on drover.jobqueue to drover_frontend, drover_frontend_sql, drover_tenant;
grant insert (job_name, job_priority, job_queued, job_tenant, job_data, job_hidden)
  on drover.job to drover_frontend, drover_frontend_sql, drover_tenant;
grant insert (jdep_jq_fk, jdep_jq_depends_fk, jdep_depends_bits, jdep_on_unmet)
  on drover.jobdepends to drover_frontend, drover_frontend_sql, drover_tenant;
-- drover.command allows it commands about its own jobs only.
grant execute on function drover.command(text), drover.command(text, jsonb, interval),
  drover.withdraw_commands(bigint[], text), drover.command_waits(bigint[], text[], text[], text[])
  to drover_frontend, drover_frontend_sql, drover_tenant, drover_operator;
-- Which type a job goes to that asks for attributes: a front-end may ask before it inserts it.
grant execute on function drover.agent_type_for(text, text), drover.find_agent_type(text, text, text, name)
  to drover_frontend, drover_frontend_sql, drover_tenant, drover_operator, drover_scheduler;
-- To set a job up, or to resubmit it, needs no more rights than an insert.
grant execute on function drover.job_setup(text, jsonb), drover.job_named(text), drover.names(jsonb),
  drover.ended_in_vain(bigint[]),
  drover.line(jsonb), drover.escape(text), drover.job_resubmit(bigint), drover.job_hide(bigint, boolean),
  drover.hide(bigint, boolean)
  to drover_frontend, drover_frontend_sql, drover_tenant, drover_operator;
grant execute on function drover.may_command(name)
  to drover_frontend, drover_frontend_sql, drover_tenant, drover_operator, drover_scheduler;
-- Where lists of jobs begin.
grant execute on function drover.newest_zone()
  to drover_scheduler, drover_frontend, drover_frontend_sql, drover_tenant, drover_operator, drover_readonly;
-- Each looks itself whose job or subscription it is about.
grant execute on function
  drover.subscribe(text, bigint, name, text, boolean, text[], interval, integer, text), drover.unsubscribe(bigint),
  drover.subscription_enable(bigint, boolean), drover.job_event(bigint, text)
  to drover_frontend, drover_frontend_sql, drover_tenant, drover_operator;
grant select (jq_pk, jq_name) on drover.jobqueue to drover_frontend, drover_frontend_sql;
grant select (job_pk, job_name, job_hidden) on drover.job to drover_frontend, drover_frontend_sql;
grant select on drover.hidden to drover_frontend, drover_frontend_sql, drover_tenant, drover_readonly;
-- drover_tenant is as drover_frontend, and does not know the names of what belongs to others.
grant select (jq_pk) on drover.jobqueue to drover_tenant;
grant select (job_pk, job_hidden) on drover.job to drover_tenant;
grant select on drover.my_jobs, drover.my_why, drover.my_log, drover.my_output, drover.my_attempt, drover.my_cleanup,
  drover.my_item_failure, drover.my_graph, drover.my_jobd, drover.my_job_groups, drover.my_jobdepends,
  drover.my_blocked, drover.my_stages, drover.my_phases, drover.my_event, drover.my_subscription, drover.my_delivery,
  drover.our_jobs, drover.our_log, drover.our_output, drover.our_why, drover.our_detached, drover.our_tally,
  drover.my_job_counts,
  drover.my_job_zones, drover.my_job_states, drover.our_job_counts, drover.our_job_zones, drover.our_job_states,
  drover.my_backlog, drover.my_jobs_in_hand, drover.my_zone_parts, drover.our_zone_parts,
  drover.my_beside_zones, drover.our_beside_zones
  to drover_frontend, drover_frontend_sql, drover_tenant;
grant execute on function drover.fellows(), drover.shared_jobs(), drover.job_share(bigint, name, boolean)
  to drover_frontend, drover_frontend_sql, drover_tenant, drover_operator;
-- Which schedulers, queues and hosts there are: a front-end may read it before it inserts a job.
grant select on drover.migration, drover.later_migration, drover.queue, drover.host, drover.scheduler,
  drover.scheduler_group, drover.size_limit, drover.condition
  to drover_frontend, drover_frontend_sql, drover_tenant;
-- Not agent_revision: it is a command line, which may contain a password.
grant select (agent_group, agent_type, agent_enabled, agent_enabled_file, agent_kind, agent_submitters, agent_cwd,
              agent_fair, agent_fair_file, agent_present, agent_blocked_since, agent_blocked_until, agent_reason,
              agent_queries_wait, agent_registered, agent_trial, agent_item_next,
              agent_attributes)
  on drover.agent to drover_frontend, drover_frontend_sql, drover_tenant, drover_readonly;

-- drover_frontend_sql also inserts jobs with SQL, which may read all that drover_msq may.
grant insert (jq_msq, jq_runonpfile, jq_key, jq_repeat) on drover.jobqueue to drover_frontend_sql;

-- drover_operator reads everything and inserts any job. It changes things by commands; placements it writes itself.
grant select on all tables in schema drover to drover_operator;
revoke select on drover.subscription_key from drover_operator;
grant insert on drover.job to drover_operator;
grant insert (jdep_jq_fk, jdep_jq_depends_fk, jdep_depends_bits, jdep_on_unmet) on drover.jobdepends to drover_operator;
-- Not the columns that the scheduler writes, since it relies on them.
grant insert (jq_job_fk, jq_name, jq_type, jq_args, jq_variables, jq_resubmit_of, jq_host, jq_tolerate, jq_queue,
              jq_urgent, jq_priority, jq_not_before, jq_not_after, jq_max_interruptions, jq_retries, jq_timeout,
              jq_unique_key, jq_delete, jq_mode, jq_state, jq_msq, jq_runonpfile, jq_key, jq_repeat)
  on drover.jobqueue to drover_operator;
grant insert, update, delete
  on drover.placement, drover.quota, drover.tenant, drover.tenant_queue, drover.variable
  to drover_operator;
grant update (limit_bytes) on drover.size_limit to drover_operator;
grant execute on function drover.flush_jobs(bigint[]), drover.flush_chosen(bigint[]),
  drover.rename_owner(name, name), drover.recount(bigint, integer) to drover_operator;
grant execute on function drover.is_route_stale() to drover_operator, drover_readonly;
-- What a schedule queues is inserted by the scheduler, in the name of the role that added it.
grant insert (schedule_name, schedule_at, schedule_every, schedule_cron, schedule_zone, schedule_catch_up,
              schedule_jitter, schedule_overlap, schedule_enabled, schedule_job, schedule_next),
      update (schedule_at, schedule_every, schedule_cron, schedule_zone, schedule_catch_up, schedule_jitter,
              schedule_overlap, schedule_enabled, schedule_job),
      delete
  on drover.schedule to drover_operator;

-- drover_readonly reads the states of things, but neither the data of jobs nor the output of agents.
grant select on drover.jobs_masked, drover.why_masked, drover.phases, drover.blocked_jobs, drover.detached_jobs,
  drover.impossible, drover.suspect_walk, drover.graph,
  drover.jobdepends,
  drover.queue, drover.host, drover.placement, drover.scheduler, drover.scheduler_group, drover.migration,
  drover.later_migration, drover.condition, drover.counters, drover.depth, drover.vitals,
  drover.job_counts, drover.job_zones, drover.job_states, drover.backlog,
  drover.jobs_in_hand, drover.tally, drover.zone_parts, drover.beside_zones to drover_readonly;
grant select (att_jq_fk, att_attempt, att_scheduler, att_host, att_agent, att_pid, att_start, att_end, att_outcome,
              att_exitcode, att_signal)
  on drover.attempt to drover_readonly;
grant select (jq_pk, cleanup_jq_pk, cleanup_state, cleanup_host) on drover.cleanup to drover_readonly;
grant select (job_pk, job_name, job_priority, job_queued, job_tenant, job_user, job_hidden)
  on drover.job to drover_readonly;
grant select (schedule_name, schedule_type, schedule_enabled, schedule_at, schedule_every, schedule_cron, schedule_zone,
              schedule_next, schedule_last, schedule_catch_up, schedule_overlap, schedule_jitter, schedule_submitter,
              schedule_reason)
  on drover.schedule to drover_readonly;
grant select (status_scheduler, status_slot, status_host, status_agent, status_state, status_state_name, status_since,
              status_pid, status_jq_fk, status_spawns, status_items, status_reason, status_updated,
              status_program)
  on drover.scheduler_status to drover_readonly;

-- drover.backlog calls it with the rights of the role that reads.
grant execute on function drover.oldest_claimable(text, text) to drover_scheduler, drover_operator, drover_readonly;

-- drover_scheduler changes the states and priorities of jobs. It cannot change what they ask for, nor insert any but
-- those of `drover run -I` and the testers of conditions.
grant select on all tables in schema drover to drover_scheduler;
revoke select on drover.subscription_key from drover_scheduler;
grant insert (jq_pk, jq_type, jq_args, jq_urgent, jq_queue, jq_timeout, jq_unique_key)
  on drover.jobqueue to drover_scheduler;
grant usage on sequence drover.jobqueue_jq_pk_seq to drover_scheduler;
grant update (jq_state, jq_attempt, jq_owner, jq_schedinfo, jq_interruptions, jq_failures, jq_rescued, jq_retry_at,
              jq_wait_until, jq_expires_at, jq_wanted, jq_queued, jq_starttime, jq_endtime, jq_endtext, jq_end_bits,
              jq_exitcode, jq_signal, jq_result, jq_itemsprocessed, jq_itemsfailed, jq_itemstotal, jq_checkpoint,
              jq_elapsedtime, jq_processedtime, jq_expected_end, jq_done_by, jq_done_host, jq_done_pid,
              jq_first_start, jq_attempt_start, jq_has_children, jq_priority)
  on drover.jobqueue to drover_scheduler;
grant insert, update on drover.host, drover.queue, drover.agent to drover_scheduler;
grant delete on drover.queue to drover_scheduler;
grant insert, update, delete on drover.queue_start to drover_scheduler;
grant insert, update, delete on drover.recovery_policy, drover.recovery to drover_scheduler;
grant delete on drover.blocked to drover_scheduler;
grant insert, update, delete on drover.scheduler, drover.scheduler_group, drover.scheduler_status to drover_scheduler;
grant update on drover.claimable to drover_scheduler;  -- to lock the rows that it claims: none is ever changed
grant insert, update on drover.counter to drover_scheduler;
grant insert, update, delete on drover.counter_new to drover_scheduler;  -- update: to lock the rows that it adds up
grant insert on drover.tally to drover_scheduler;
grant insert on drover.job_change to drover_scheduler;
grant insert, update, delete on drover.detached to drover_scheduler;
grant insert, delete on drover.claimable, drover.in_hand, drover.attempt_kept, drover.log, drover.output,
  drover.item_failure, drover.command_ack to drover_scheduler;
grant execute on function drover.settle(bigint[], bigint, integer, boolean), drover.announce(bigint[], text[]),
  drover.json_bytes(jsonb), drover.is_over(text), drover.texts(jsonb), drover.roles_of(name),
  drover.block_of(bigint), drover.zone_of(bigint), drover.rank(boolean, text), drover.wards(name) to drover_scheduler;
-- Adds up what was counted of jobs.
grant execute on function drover.add_up_changes(integer), drover.recount_next(integer) to drover_scheduler;
-- Removes jobs that ended long ago; drover_scheduler may remove none by itself.
grant execute on function drover.flush(timestamptz, boolean, integer, text, bigint),
  drover.prune(jsonb, integer, text, bigint), drover.prune_piece(jsonb, integer, text, bigint) to drover_scheduler;
-- Carries out a batch of a command about many jobs.
grant execute on function drover.change_jobs(bigint, uuid, integer), drover.put_in_queue(bigint, text)
  to drover_scheduler;
-- Records events, queues their deliveries, and removes them when nobody needs them.
grant execute on function
  drover.has_subscriptions(), drover.record(bigint[], text[]), drover.record_ends(text),
  drover.agent_event(bigint, text), drover.bury(bigint[], text[]), drover.queue_deliveries(text, integer),
  drover.find_alternates(text, integer), drover.find_unserved(text, integer, integer, text, text),
  drover.find_alerts(integer), drover.find_suspects(integer), drover.forget_events(bigint, integer),
  drover.forget_ended_subscriptions(bigint, integer)
  to drover_scheduler;
-- Counts the ends that it announces, for drover metrics and drover stats.
grant execute on function drover.count_ends(bigint[], text[]), drover.fold_tally(integer) to drover_scheduler;
-- Queues what schedules ask for, once for each of their times.
grant execute on function
  drover.start_schedule(text, timestamptz, timestamptz, timestamptz, text, timestamptz[]),
  drover.run_schedule(text), drover.schedule_mistake(jsonb) to drover_scheduler;
-- Makes the function of the filters from what is in drover.queue, none of which becomes SQL unquoted.
grant execute on function drover.install_routes(), drover.is_route_stale() to drover_scheduler;
-- Those of its configuration.
grant insert (schedule_name, schedule_at, schedule_every, schedule_cron, schedule_zone, schedule_catch_up,
              schedule_jitter, schedule_overlap, schedule_enabled, schedule_job, schedule_group, schedule_file),
      update (schedule_at, schedule_every, schedule_cron, schedule_zone, schedule_catch_up, schedule_jitter,
              schedule_overlap, schedule_enabled, schedule_job, schedule_group, schedule_file),
      delete
  on drover.schedule to drover_scheduler;

-- drover_operator gets warnings about sessions that slow the queue, so it must see their age and their statements.
do $$ begin
  if not pg_has_role('drover_operator', 'pg_read_all_stats', 'usage') then
    grant pg_read_all_stats to drover_operator;
  end if;
exception when insufficient_privilege then
  raise notice 'drover_operator sees little of the sessions of others: only a superuser may grant it pg_read_all_stats';
end $$;

-- drover_msq and drover_agentdb get nothing here: the site grants them its own tables.
