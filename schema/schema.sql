-- What the migrations build. Written by `make schema`, not by hand.
SET check_function_bodies = false;

CREATE SCHEMA drover;

CREATE TYPE drover.batch_move AS (
	pk bigint,
	at tid,
	was text,
	state text,
	was_queue text,
	queue text
);

CREATE TYPE drover.job_mode AS ENUM (
    'background',
    'manual'
);

CREATE TYPE drover.job_state AS ENUM (
    'held',
    'queued',
    'claimed',
    'running',
    'blocked',
    'done',
    'failed',
    'cancelled',
    'ignored',
    'skipped'
);

CREATE FUNCTION drover.about(seconds double precision) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN CASE WHEN (seconds < (100)::double precision) THEN (GREATEST(round(seconds), (1)::double precision) || ' s'::text) WHEN (seconds < (6000)::double precision) THEN (round((seconds / (60)::double precision)) || ' min'::text) WHEN (seconds < (172800)::double precision) THEN (round((seconds / (3600)::double precision)) || ' h'::text) ELSE (round((seconds / (86400)::double precision)) || ' days'::text) END;

CREATE FUNCTION drover.add_edges() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'drover', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    AS $$
declare
  is_free boolean := drover.may_command() or drover.is_scheduler();
  parents bigint[] := array(select distinct jdep_jq_depends_fk from added);
  limits  text := current_setting('lock_timeout');
  wrong   record;
  cycle   bigint[];
  open    bigint[];
  vain    bigint[];
  tops    bigint[];
  todo    bigint[];
  next    bigint;
begin
  if not is_free then
    select jdep_jq_fk as child, jdep_jq_depends_fk as parent into wrong from added
     where exists (select from jobqueue where jq_pk in (jdep_jq_fk, jdep_jq_depends_fk) and jq_submitter <> session_user offset 0) limit 1;
    if found then
      raise exception 'job % or % is not yours: a dependency needs both', wrong.child, wrong.parent using errcode = 'insufficient_privilege';
    end if;
  end if;
  if limits = '0' or limits::interval > '2 s' then
    perform set_config('lock_timeout', '2s', true);  -- not by the function's own settings: these would lengthen a shorter one
  end if;
  perform drover.lock_jobs(parents || array(select jdep_jq_fk from added), shared => false);
  select c.jq_pk as child, p.jq_pk as parent, c.jq_type, c.jq_state,
         c.jq_submitter = session_user and p.jq_submitter = session_user as is_mine
    into wrong from added
   cross join lateral (select * from jobqueue where jq_pk = jdep_jq_fk offset 0) c
   cross join lateral (select * from jobqueue where jq_pk = jdep_jq_depends_fk offset 0) p
   where not is_free and (c.jq_submitter <> session_user or p.jq_submitter <> session_user) or c.jq_type = 'command'
      or c.jq_state not in ('held', 'queued') and not (c.jq_state = 'skipped' and c.jq_endtime = now())
   limit 1;
  if found and not (is_free or wrong.is_mine) then
    raise exception 'job % or % is not yours: a dependency needs both', wrong.child, wrong.parent using errcode = 'insufficient_privilege';
  elsif wrong.jq_type = 'command' then
    raise exception 'job % is a command: it waits for nothing', wrong.child using errcode = 'check_violation';
  elsif found then
    raise exception 'job % is % already: it takes no new dependency', wrong.child, wrong.jq_state using errcode = 'check_violation';
  end if;
  cycle := drover.cycle_for_sure(array(
    select distinct jdep_jq_fk from added  -- whoever has none below, or whose parent none above, is on no cycle
     where exists (select from jobdepends d where d.jdep_jq_depends_fk = added.jdep_jq_fk and d.jdep_met_at is null offset 0)
       and exists (select from jobdepends d where d.jdep_jq_fk = added.jdep_jq_depends_fk and d.jdep_met_at is null offset 0)));
  if cycle is not null then
    select jdep_jq_fk as child, jdep_jq_depends_fk as parent into wrong
      from unnest(cycle, cycle[2:] || cycle[1]) as u(child, parent) join added on (jdep_jq_fk, jdep_jq_depends_fk) = (child, parent) limit 1;
    raise exception 'job % may not depend on %: that would be a cycle', wrong.child, wrong.parent using errcode = 'check_violation';
  end if;
  perform set_config('drover.has_edges', 'true', true);
  perform drover.notify('drover_queue', ''), drover.notify('drover_command', '')  -- while these are locked claims pass them over
    where exists (select from jobqueue where jq_pk = any (parents || array(select jdep_jq_fk from added)) and jq_state = 'queued');
  update jobqueue set jq_has_children = true where jq_pk = any (parents) and not jq_has_children;
  with looked as materialized (  -- edges whose parents have ended
    select place, jdep_jq_fk as kid, jdep_jq_depends_fk as top, jq_end_bits & jdep_depends_bits <> 0 as is_met, jdep_on_unmet
      from added a
     cross join lateral (select jq_end_bits from jobqueue where jq_pk = a.jdep_jq_depends_fk and jq_endtime is not null offset 0) p
     cross join lateral (
       select ctid as place from jobdepends d
        where (d.jdep_jq_fk, d.jdep_jq_depends_fk) = (a.jdep_jq_fk, a.jdep_jq_depends_fk) offset 0) d),
  met as (update jobdepends set jdep_met_at = now() where ctid = any (array(select place from looked where is_met)))
  select array(select jdep_jq_fk from added where (jdep_jq_fk, jdep_jq_depends_fk) not in (select kid, top from looked where is_met)),
         array(select kid from looked where not is_met and jdep_on_unmet = 'skip' order by kid, top),
         array(select top from looked where not is_met and jdep_on_unmet = 'skip' order by kid, top)
    into open, vain, tops;
  perform drover.count_unmet(open, 1);
  todo := drover.skip(vain, tops);
  while cardinality(todo) > 0 loop
    select s.unsettled, s.place into todo, next from drover.settle(todo, coalesce(next, 0), 10000, waits => true) s;
  end loop;
  perform set_config('lock_timeout', limits, true);
  return null;
end $$;

CREATE FUNCTION drover.add_up_changes(most integer) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'drover', 'pg_temp'
    AS $$
declare
  taken integer;
begin
  if not drover.try_to_enter('job_change') then
    return 0;  -- bounds need one session at a time, which takes all rows that it sees, or removes no kind
  end if;
  with taken as (
    delete from job_change where ctid = any (array(select ctid from job_change limit most for update skip locked))
    returning *),
  moved as materialized (
    select change_zone, change_type, change_queue, change_host, change_submitter, s.*
      from taken
     cross join lateral (
       values (change_state, change_jobs, change_oldest, change_latest, change_waited, change_ran, change_rank),
              (change_was, -change_jobs, null, null, null, null, null))
           as s(state, jobs, oldest, latest, waited, ran, rank)
     where s.state is not null),
  totals as (
    insert into job_total as t
    select change_type, change_queue, change_host, change_submitter, state, sum(jobs)
      from moved group by 1, 2, 3, 4, 5 order by 1, 2, 3, 4, 5
    on conflict (total_type, total_queue, total_host, total_submitter, total_state)
    do update set total_jobs = t.total_jobs + excluded.total_jobs where excluded.total_jobs <> 0),
  zones as (
    insert into job_zone as z
    select change_zone, change_type, change_queue, change_host, change_submitter, state, sum(jobs), min(oldest),
           max(latest), max(waited), max(ran), min(rank)
      from moved group by 1, 2, 3, 4, 5, 6 order by 1, 2, 3, 4, 5, 6
    on conflict (zone_number, zone_type, zone_queue, zone_host, zone_submitter, zone_state)
    do update set zone_jobs = z.zone_jobs + excluded.zone_jobs,
                  zone_oldest = least(z.zone_oldest, excluded.zone_oldest),
                  zone_latest = greatest(z.zone_latest, excluded.zone_latest),
                  zone_waited = greatest(z.zone_waited, excluded.zone_waited),
                  zone_ran = greatest(z.zone_ran, excluded.zone_ran),
                  zone_rank = least(z.zone_rank, excluded.zone_rank))
  select count(*) into taken from taken;
  if taken < most then
    delete from job_total where total_jobs = 0;
    delete from job_zone where zone_jobs = 0;
  end if;
  return taken;
end $$;

CREATE FUNCTION drover.agent_event(job bigint, said text) RETURNS bigint
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'drover', 'pg_temp'
    AS $$
  select drover.record_one('user', jq_pk, jq_submitter, job_tenant, said)
    from jobqueue left join drover.job on job_pk = jq_job_fk
   where jq_pk = agent_event.job and jq_endtime is null and said <> ''
$$;

CREATE FUNCTION drover.agent_type_for(asked text, in_group text DEFAULT 'default'::text) RETURNS text
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'drover', 'pg_temp'
    AS $$
  select drover.agent_type_for(asked, in_group, null, session_user)
$$;

CREATE FUNCTION drover.agent_type_for(asked text, in_group text, on_host text, who name) RETURNS text
    LANGUAGE sql STABLE
    SET search_path TO 'drover', 'pg_temp'
    AS $$
  select agent_type from drover.agent_types_of(asked, in_group)
   where not exists (select from drover.attributes_of(asked) where agent_attributes ->> key is distinct from value)
   order by not drover.may_queue(who, agent_submitters),
            on_host is not null and not exists (
              select from scheduler_status where status_host = on_host and status_agent = agent_type),
            not agent_enabled, agent_type <> (regexp_split_to_array(btrim(asked), '\s+'))[1],
            (select count(*) from jsonb_object_keys(agent_attributes)), agent_type
   limit 1
$$;

CREATE TABLE drover.agent (
    agent_group text NOT NULL,
    agent_type text NOT NULL,
    agent_enabled boolean DEFAULT true NOT NULL,
    agent_enabled_file boolean,
    agent_kind text DEFAULT 'line'::text NOT NULL,
    agent_submitters text[] DEFAULT '{*}'::text[] NOT NULL,
    agent_cwd text DEFAULT ''::text NOT NULL,
    agent_fair boolean DEFAULT false NOT NULL,
    agent_fair_file boolean DEFAULT false NOT NULL,
    agent_revision text,
    agent_present boolean DEFAULT true NOT NULL,
    agent_blocked_until timestamp with time zone,
    agent_reason text,
    agent_queries_wait boolean DEFAULT false NOT NULL,
    agent_registered timestamp with time zone DEFAULT now() NOT NULL,
    agent_blocked_since timestamp with time zone,
    agent_trial jsonb,
    agent_attributes jsonb DEFAULT '{}'::jsonb NOT NULL,
    agent_item_next timestamp with time zone,
    CONSTRAINT agent_agent_kind_check CHECK ((agent_kind = ANY (ARRAY['line'::text, 'exec'::text]))),
    CONSTRAINT agent_agent_type_check CHECK ((agent_type <> 'command'::text))
);

COMMENT ON COLUMN drover.agent.agent_item_next IS 'when its item_rate lets the next item begin, if that is more than a second away';

CREATE FUNCTION drover.agent_types_of(asked text, in_group text) RETURNS SETOF drover.agent
    LANGUAGE sql STABLE
    SET search_path TO 'drover', 'pg_temp'
    AS $$
  select * from agent
   where agent_present and agent_group = in_group
     and (regexp_split_to_array(btrim(asked), '\s+'))[1] in (agent_type, agent_attributes ->> 'agent')
$$;

CREATE FUNCTION drover.announce(pks bigint[], states text[]) RETURNS bigint
    LANGUAGE plpgsql
    AS $$
declare
  chunks bigint;
begin
  select count(drover.notify('drover_event', chunk)) into chunks from (
    select json_agg(json_build_object('jq_pk', u.pk, 'state', u.state, 'job_pk', j.jq_job_fk))::text as chunk
      from unnest(pks, states) with ordinality as u(pk, state, n)
      left join drover.jobqueue j on j.jq_pk = u.pk
     group by (u.n - 1) / 80) c;
  if drover.has_subscriptions() then
    perform drover.record(pks, states);
  end if;
  if states && '{failed,ignored}' then
    perform drover.bury(pks, states);
  end if;
  if states && '{done,failed,cancelled,ignored,skipped}' then
    perform drover.count_ends(pks, states);
  end if;
  return chunks;
end $$;

CREATE FUNCTION drover.as_tried(job jsonb, trial text) RETURNS jsonb
    LANGUAGE sql IMMUTABLE
    SET search_path TO 'drover', 'pg_temp'
    AS $$
  select drover.without_attributes(job)
         || case when job ->> 'jq_unique_key' is null then '{}' else jsonb_build_object(
              'jq_unique_key', trial || md5(job ->> 'jq_unique_key') || substr(job ->> 'jq_unique_key', 69)) end
$$;

CREATE FUNCTION drover.attributes_of(asked text, OUT key text, OUT value text, OUT n bigint) RETURNS SETOF record
    LANGUAGE sql IMMUTABLE
    SET search_path TO 'drover', 'pg_temp'
    AS $$
  select split_part(w, '=', 1), substr(w, strpos(w, '=') + 1), n
    from regexp_split_to_table(btrim(asked), '\s+') with ordinality as t(w, n) where n > 1
$$;

CREATE TABLE drover.jobqueue (
    jq_pk bigint NOT NULL,
    jq_job_fk bigint,
    jq_name text,
    jq_type text NOT NULL,
    jq_args text DEFAULT ''::text NOT NULL,
    jq_variables jsonb,
    jq_msq boolean DEFAULT false NOT NULL,
    jq_runonpfile text,
    jq_host text,
    jq_key text,
    jq_tolerate bigint DEFAULT 0 NOT NULL,
    jq_repeat boolean DEFAULT false NOT NULL,
    jq_queue text DEFAULT 'default'::text,
    jq_urgent boolean DEFAULT false NOT NULL,
    jq_priority text DEFAULT 'n'::text NOT NULL COLLATE pg_catalog."C",
    jq_not_before timestamp with time zone,
    jq_not_after timestamp with time zone,
    jq_wait_until timestamp with time zone,
    jq_expires_at timestamp with time zone,
    jq_live_key text,
    jq_max_interruptions integer DEFAULT 3 NOT NULL,
    jq_retries integer DEFAULT 0 NOT NULL,
    jq_timeout interval,
    jq_unique_key text,
    jq_delete text[],
    jq_mode drover.job_mode DEFAULT 'background'::drover.job_mode NOT NULL,
    jq_state drover.job_state DEFAULT 'queued'::drover.job_state NOT NULL,
    jq_attempt integer DEFAULT 0 NOT NULL,
    jq_owner uuid,
    jq_schedinfo text,
    jq_interruptions integer DEFAULT 0 NOT NULL,
    jq_failures integer DEFAULT 0 NOT NULL,
    jq_rescued integer DEFAULT 0 NOT NULL,
    jq_retry_at timestamp with time zone,
    jq_unmet integer DEFAULT 0 NOT NULL,
    jq_has_children boolean DEFAULT false NOT NULL,
    jq_wanted text,
    jq_queued timestamp with time zone DEFAULT now() NOT NULL,
    jq_starttime timestamp with time zone,
    jq_endtime timestamp with time zone,
    jq_endtext text,
    jq_end_bits integer DEFAULT 0 NOT NULL,
    jq_exitcode integer,
    jq_signal text,
    jq_result jsonb,
    jq_itemsprocessed bigint DEFAULT 0 NOT NULL,
    jq_itemsfailed bigint DEFAULT 0 NOT NULL,
    jq_itemstotal bigint,
    jq_checkpoint jsonb,
    jq_elapsedtime interval,
    jq_processedtime interval,
    jq_expected_end timestamp with time zone,
    jq_done_by uuid,
    jq_done_host text,
    jq_done_pid integer,
    jq_submitter name DEFAULT SESSION_USER NOT NULL,
    jq_resubmit_of bigint,
    jq_first_start timestamp with time zone,
    jq_attempt_start timestamp with time zone,
    jq_blocked_count integer,
    jq_batch xid8,
    CONSTRAINT jobqueue_jq_max_interruptions_check CHECK ((jq_max_interruptions >= 0)),
    CONSTRAINT jobqueue_jq_priority_check CHECK (((jq_priority = 'n'::text) OR (jq_priority ~ '^[A-Za-z0-9]{1,16}$'::text))),
    CONSTRAINT jobqueue_jq_retries_check CHECK ((jq_retries >= '-1'::integer)),
    CONSTRAINT jobqueue_jq_timeout_check CHECK (((jq_timeout > '00:00:00'::interval) AND (jq_timeout <= '100 years'::interval))),
    CONSTRAINT jobqueue_jq_tolerate_check CHECK ((jq_tolerate >= 0)),
    CONSTRAINT jobqueue_jq_unmet_check CHECK ((jq_unmet >= 0)),
    CONSTRAINT jobqueue_jq_variables_check CHECK ((jsonb_typeof(jq_variables) = 'object'::text)),
    CONSTRAINT jobqueue_key_needs_sql CHECK (((jq_key IS NULL) OR jq_msq)),
    CONSTRAINT jobqueue_name_is_type_dot_nonce CHECK (((jq_name ~ '^[^.[:space:]]+[.][^.[:space:]]+$'::text) AND (split_part(jq_name, '.'::text, 1) = jq_type))),
    CONSTRAINT jobqueue_repeat_needs_sql CHECK (((NOT jq_repeat) OR jq_msq)),
    CONSTRAINT jobqueue_start_window_is_of_dates CHECK ((((LEAST(jq_not_before, jq_not_after) AT TIME ZONE 'UTC'::text) >= '0001-01-02 00:00:00'::timestamp without time zone) AND ((GREATEST(jq_not_before, jq_not_after) AT TIME ZONE 'UTC'::text) <= '9999-12-31 09:59:59'::timestamp without time zone))),
    CONSTRAINT jobqueue_state_says_who_and_when CHECK (
CASE
    WHEN (jq_state < 'done'::drover.job_state) THEN ((jq_endtime IS NULL) AND (jq_end_bits = 0) AND ((jq_starttime IS NULL) = (jq_owner IS NULL)) AND ((jq_owner IS NOT NULL) = ((jq_state = 'claimed'::drover.job_state) OR (jq_state = 'running'::drover.job_state))))
    ELSE ((jq_owner IS NULL) AND (jq_starttime IS NOT NULL) AND (jq_endtime IS NOT NULL) AND
    CASE jq_state
        WHEN 'done'::drover.job_state THEN (jq_end_bits = ANY ('{1,5}'::integer[]))
        WHEN 'skipped'::drover.job_state THEN (jq_end_bits = ANY ('{1,2}'::integer[]))
        ELSE (jq_end_bits = ANY ('{2,6}'::integer[]))
    END)
END)
)
WITH (fillfactor='40', autovacuum_vacuum_scale_factor='0.05', autovacuum_vacuum_cost_delay='0');

CREATE FUNCTION drover.batch_of(job drover.jobqueue) RETURNS xid8
    LANGUAGE sql STABLE PARALLEL SAFE
    AS $$
  select case when job.jq_unique_key is null and job.jq_not_after is null and job.jq_state <> 'blocked'
              then pg_catalog.pg_current_xact_id() else job.jq_batch end
$$;

CREATE FUNCTION drover.block_of(pk bigint) RETURNS bigint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN (pk - (pk % (32)::bigint));

CREATE FUNCTION drover.bulk_word_mistake(verb text, words text) RETURNS text
    LANGUAGE sql IMMUTABLE
    SET search_path TO 'drover', 'pg_temp'
    AS $_$
  select case
           when length(words) > 990 then 'a command for many jobs has at most 990 characters'
           when verb = 'cancel' then null
           when verb = 'priority' then case
             when rest ~ '^[A-Za-z0-9]{1,16}$' then null
             else 'priority needs letters, and nothing more: one to 16 letters or digits' end
           when verb = 'move' then case
             when rest ~ '^([^" \t\n\r]{1,64}|"[^"]{1,64}")$' then null
             else 'move needs the name of one queue, and nothing more' end
           when rest <> '' then verb || ' takes no words: the filter chooses the jobs' end
    from (select coalesce(substring(btrim(words, E' \t\n\r') from '^\S+\s+(.*)$'), '') as rest) w
$_$;

CREATE FUNCTION drover.bury(pks bigint[], states text[]) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'drover', 'pg_temp'
    AS $$
declare
  one record;
begin
  for one in
    insert into dead_letter (dead_kind, dead_reason, dead_jq_fk, dead_text)
    select 'dead', reason, jq_pk, jq_endtext
      from unnest(pks, states) with ordinality as u(pk, state, n)
     cross join lateral (
       select jq_pk, jq_endtext,
              case when u.state = 'ignored' then 'no consumer'
                   when u.state <> 'failed' or jq_type in ('command', 'notify') then null
                   when starts_with(jq_endtext, 'not started by ') then 'expired'
                   when starts_with(jq_endtext, 'recovery_timeout: ') or jq_failures > 0 and jq_retries > 0
                     or jq_interruptions > jq_max_interruptions then 'attempts exhausted' end as reason
         from jobqueue where jq_pk = u.pk offset 0) j
     where reason is not null
     order by n
    returning *
  loop
    perform drover.tell_site(one.dead_kind, 'job ' || one.dead_jq_fk || ': ' || one.dead_reason
                                            || coalesce(': ' || one.dead_text, ''));
  end loop;
end $$;

CREATE FUNCTION drover.bury_deliveries(dead bigint[], reason text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'drover', 'pg_temp'
    AS $$
declare
  one record;
begin
  for one in
    insert into dead_letter (dead_kind, dead_reason, dead_jq_fk, dead_delivery, dead_text)
    select 'dead', reason, nullif(del_jq_fk, 0), del_pk, del_text from delivery
     where del_pk = any (dead) order by del_pk
    returning *, (select ev_kind in ('alternate', 'dead') from delivery join event on ev_pk = del_event
                   where del_pk = dead_delivery) as is_of_one
  loop
    continue when one.is_of_one;
    perform drover.tell_site(one.dead_kind, 'delivery ' || one.dead_delivery || ': ' || one.dead_reason
                                            || coalesce(': ' || one.dead_text, ''));
  end loop;
end $$;

CREATE FUNCTION drover.change_jobs(command bigint, owner uuid, most integer, OUT is_over boolean, OUT has_moved boolean, OUT done bigint, OUT refused bigint, OUT reasons jsonb, OUT parents bigint[], OUT ours bigint[], OUT given jsonb, OUT said text) RETURNS SETOF record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'drover', 'pg_temp'
    SET lock_timeout TO '200ms'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_sort TO 'on'
    SET enable_hashjoin TO 'on'
    SET enable_bitmapscan TO 'on'
    SET jit TO 'off'
    AS $_$  -- the daemon's session has these off
declare
  c        jobqueue;
  entry    verb;
  filter   jsonb;
  words    text;
  states   job_state[];  -- in which the command takes a job
  stored   job_state[];  -- and those that a row of such a job has: one in hand by a record is queued
  types    text[];
  queues   text[];
  hosts    text[];
  job_groups bigint[];
  submitters text[];
  whose    name[];
  since    timestamptz;
  after    timestamptz;
  till     timestamptz;
  late     bigint[];  -- jobs in hand that were claimed after that
  codes    text[];
  ran_on   text[];
  sought   text;
  place bigint;  -- null: all were looked at
  waiting  bigint[];
  fresh    bigint[] := '{}';
  tries    bigint[];
  taken    bigint[];
  told     integer := 0;  -- jobs in hand that are ended by the daemon by now
  before   bigint;  -- and those of the batches before
  hand     bigint[] := '{}';  -- jobs in hand, of which zones do not know when they were started
  begun    bigint[] := '{}';  -- those of them that were claimed since
  is_again boolean;  -- it looks where it has looked before
  back     bigint;  -- null: no locked job was left out of `waiting`
  step     record;
  rest     record;
  counted  text[];  -- and those under which it is counted
  zone     bigint;
  zones    integer := 0;  -- that this batch has looked into
begin
  select * into c from jobqueue
   where jq_pk = command and jq_type = 'command' and jq_state = 'queued' for no key update skip locked;
  if not found then
    return;
  end if;
  select * into entry from verb where verb_name = drover.word(c.jq_args, 1);
  filter := c.jq_variables;
  words := substring(btrim(c.jq_args, E' \t\n\r') from '^\S+\s+\S+\s+(.*)$');
  if entry.verb_name = 'move' then  -- quotes keep the blanks in a name of a queue
    words := coalesce(substring(words from '^"([^"]*)"$'), words);
  end if;
  said := drover.filter_mistake(filter);
  if said is null and entry.verb_in_bulk is not distinct from '{}' then
    said := entry.verb_name || ' is not given about many jobs';
  elsif said is null and entry.verb_name = 'move'
        and not exists (select from queue where queue_name = words and queue_present) then
    said := 'no queue ' || words;
  end if;
  if said is not null then
    is_over := true;
    return next;
    return;
  end if;
  states := array(select s::job_state from unnest(entry.verb_in_bulk) as s
                   where not filter ? 'state' or s = any (names(filter -> 'state')));
  stored := states || case when 'claimed' = any (states) then '{queued}' else '{}' end::job_state[];
  counted := stored::text[];
  if stored && '{queued,claimed,running}' then
    counted := counted || '{queued,early,unmet}'::text[];
  end if;
  types := case when filter ? 'type' then names(filter -> 'type') end;
  queues := case when filter ? 'queue' then names(filter -> 'queue') end;
  hosts := case when filter ? 'host' then names(filter -> 'host') end;
  job_groups := case when filter ? 'group' then names(filter -> 'group') end;
  submitters := case when filter ? 'by' then names(filter -> 'by') end;
  whose := case when not may_command(c.jq_submitter) then wards(c.jq_submitter) end;
  since := filter ->> 'since';
  after := filter ->> 'queued_since';
  till := filter ->> 'until';
  late := case when till is not null
               then array(select pk from in_hand cross join lateral unnest(hand_jobs) as pk where hand_since >= till)
          end;
  codes := case when filter ? 'code' then names(filter -> 'code') end;
  ran_on := case when filter ? 'ran_on' then names(filter -> 'ran_on') end;
  sought := lower(filter ->> 'text');
  place := case when c.jq_result is null then 0 else (c.jq_result ->> 'place')::bigint end;
  waiting := array(select value::bigint from jsonb_array_elements_text(c.jq_result -> 'left'));
  back := (c.jq_result ->> 'back')::bigint;
  is_again := coalesce((c.jq_result ->> 'again')::boolean, false);
  if place is null and back is not null and cardinality(waiting) < 500 then
    place := least(back, (select min(pk) from unnest(waiting) as pk)) - 1;
    back := null;
    waiting := '{}';
    is_again := true;
  end if;
  if since is not null and counted && '{queued}' then
    select coalesce(array_agg(pk), '{}'), coalesce(array_agg(pk) filter (where hand_since >= since), '{}')
      into hand, begun from in_hand cross join lateral unnest(hand_jobs) as pk;
  end if;
  given := coalesce(c.jq_result -> 'given', '{}');
  reasons := coalesce(c.jq_result -> 'reasons', '{}');
  refused := c.jq_itemsfailed;
  before := coalesce((c.jq_result ->> 'told')::bigint, 0);
  has_moved := false;
  done := c.jq_itemsprocessed;

  while place is not null and cardinality(fresh) < most and zones < 10 loop
    zones := zones + 1;
    has_moved := true;
    zone := least(
      (select zone_number from job_zone
        where zone_number >= zone_of(place + 1) and zone_jobs <> 0 and zone_state = any (counted)
          and (types is null or zone_type = any (types)) and (queues is null or zone_queue = any (queues))
          and (hosts is null or zone_host = any (hosts))
          and (submitters is null or zone_submitter = any (submitters))
          and (whose is null or zone_submitter = any (whose::text[]))
          and (since is null or coalesce(zone_latest >= since, true))
        order by zone_number limit 1),
      (select min(change_zone) from job_change
        where change_zone >= zone_of(place + 1) and change_state = any (counted)
          and (types is null or change_type = any (types)) and (queues is null or change_queue = any (queues))
          and (hosts is null or change_host = any (hosts))
          and (submitters is null or change_submitter = any (submitters))),
      (select min(zone_of(pk)) from unnest(hand) as pk where pk > place));
    place := case when zone <= zone_of(command) then greatest(place, zone * 4096 - 1) end;
    exit when place is null;
    tries := array(
      select jq_pk from jobqueue
       where jq_pk > place and jq_pk < least(command, (zone + 1) * 4096)
         and jq_state = any (stored) and jq_type <> 'command' and (types is null or jq_type = any (types))
         and (queues is null or jq_queue = any (queues)) and (hosts is null or jq_host = any (hosts))
         and (job_groups is null or jq_job_fk = any (job_groups))
         and (submitters is null or jq_submitter = any (submitters))
         and (whose is null or jq_submitter = any (whose))
         and (since is null or greatest(jq_queued, jq_starttime, jq_endtime) >= since or jq_pk = any (begun))
         and (after is null or jq_queued > after)
         and (till is null or greatest(jq_queued, jq_starttime, jq_endtime) < till and jq_pk <> all (late))
         and (ran_on is null or jq_done_host = any (ran_on))
         and (codes is null or jq_exitcode::text = any (codes)
              or end_code(jq_state, jq_type, jq_end_bits, jq_endtext, jq_exitcode, jq_signal) = any (codes))
         and (sought is null or jq_pk::text = sought or position(sought in lower(
                concat_ws(' ', jq_name, left(jq_args, 2000), left(jq_endtext, 2000)))) > 0)
         and (filter ->> 'hidden' is distinct from 'false'
              or not (exists (select from job where job_pk = jq_job_fk and job_hidden)
                      or exists (select from hidden where hidden_jq_fk = jq_pk)))
         and (entry.verb_name <> 'release' or jq_mode = 'background')
         and (entry.verb_name <> 'retry' or jq_endtime <= c.jq_queued)
         and (entry.verb_name <> 'priority' or jq_priority <> words or not is_again)
         and (entry.verb_name <> 'move' or jq_queue is distinct from words or not is_again)
       order by jq_pk limit most - cardinality(fresh));
    fresh := fresh || tries;
    place := case when cardinality(fresh) = most then fresh[most] else (zone + 1) * 4096 - 1 end;
  end loop;
  tries := fresh || waiting[1:most - cardinality(fresh)];
  waiting := waiting[most - cardinality(fresh) + 1:];

  begin
    taken := case when entry.verb_name = 'killjob' then '{}' else take_jobs(tries, states) end;
    select * into step from change_taken(
        entry.verb_name, case entry.verb_name when 'cancel' then ended_by(c.jq_args, c.jq_submitter) else words end,
        taken);
  exception when others then
    if most > 1 or sqlstate !~ '^(21|22|23|42|44|54|P0)' then
      raise;
    end if;
    select '{}'::bigint[] as changed, null::bigint[] as parents, jsonb_build_object(tries[1], sqlerrm) as refused
      into step;
    taken := tries;
  end;
  if cardinality(taken) < cardinality(tries) then
    select * into rest
      from look_at_rest(array(select unnest(tries) except select unnest(taken)), states, owner,
                        entry.verb_name in ('cancel', 'killjob'));
    ours := want_jobs(rest.ours, owner,
                      case entry.verb_name when 'killjob' then 'kill' else 'cancel ' || ended_by(c.jq_args, c.jq_submitter) end);
    insert into jobqueue (jq_type, jq_args, jq_submitter, jq_not_after)
    select 'command', concat_ws(' ', entry.verb_name, pk, words), c.jq_submitter,
           now() + (c.jq_not_after - c.jq_queued)
      from unnest(rest.theirs) as pk;
    given := given || coalesce((
      select jsonb_object_agg(name, coalesce((given ->> name)::bigint, 0) + jobs)
        from (select coalesce(queue_group, 'default') as name, count(*) as jobs
                from unnest(rest.theirs) as pk join jobqueue on jq_pk = pk left join queue on queue_name = jq_queue
               group by 1) g), '{}');
    waiting := waiting || rest.locked || array(select unnest(rest.ours) except select unnest(ours));
    told := cardinality(ours);
    has_moved := has_moved or cardinality(rest.theirs) > 0;
    if cardinality(waiting) > 1000 then
      back := least(back, (select min(pk) from unnest(waiting[1001:]) as pk));
      waiting := waiting[:1000];
    end if;
  end if;
  done := done + cardinality(step.changed);
  refused := refused + (select count(*) from jsonb_object_keys(step.refused));
  reasons := coalesce((select jsonb_object_agg(key, value)
                         from (select * from jsonb_each(reasons || step.refused) limit 20) e), '{}');
  has_moved := has_moved or cardinality(taken) + told > 0;
  is_over := place is null and back is null and waiting = '{}';
  parents := step.parents;
  update jobqueue
     set jq_itemsprocessed = done, jq_itemsfailed = refused, jq_endtext = done + before + told || ' jobs so far',
         jq_result = jsonb_build_object('place', place, 'left', waiting, 'back', back, 'again', is_again,
                                        'given', given, 'reasons', reasons, 'told', before + told)
   where jq_pk = command;
  return next;
end $_$;

CREATE FUNCTION drover.change_taken(verb text, words text, jobs bigint[], OUT changed bigint[], OUT parents bigint[], OUT refused jsonb) RETURNS record
    LANGUAGE plpgsql
    SET search_path TO 'drover', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET jit TO 'off'
    AS $$
declare
  target job_state := case when verb = 'cancel' then 'cancelled' when verb = 'ice' then 'skipped'
                           when verb = 'hold' then 'held'
                           when verb in ('release', 'unblock', 'retry') then 'queued' end;
  ends   boolean := coalesce(target in ('cancelled', 'skipped'), false);
  moves  batch_move[];
  kept   bigint[];
begin
  refused := '{}';
  changed := '{}';
  if jobs = '{}' then
    return;
  elsif verb = 'retry' then
    select * into changed, refused, moves from drover.retry_taken(jobs);
  elsif target is null and verb not in ('priority', 'move') then
    raise exception 'no verb for many jobs: %', verb;
  else
    with was as materialized (
      select jq_pk as pk, jq_queue as queue, jq_batch as batch,
             counted_state(jq_state, jq_unmet, jq_wait_until) as state
        from jobqueue where jq_pk = any (jobs)),
    done as (
      update jobqueue j
         set jq_state = coalesce(target, jq_state), jq_batch = batch_of(j),
             jq_starttime = case when ends then coalesce(jq_first_start, now()) else jq_starttime end,
             jq_endtime = case when ends then now() else jq_endtime end,
             jq_end_bits = case when verb = 'ice' then 1 when ends then 2 else jq_end_bits end,
             jq_endtext = case when verb = 'ice' then 'on ice'
                               when ends then coalesce(nullif(words, ''), 'cancelled') else jq_endtext end,
             jq_wait_until = case when ends then null
                                  when verb <> 'unblock' then jq_wait_until
                                  when jq_not_before > now() then jq_not_before end,
             jq_retry_at = case when verb <> 'unblock' then jq_retry_at end,
             jq_priority = case when verb = 'priority' then words else jq_priority end,
             jq_queue = case when verb = 'move' then words else jq_queue end
        from was where jq_pk = was.pk
      returning jq_pk, ends and jq_has_children as is_parent, is_of_batch(was.batch, j) as is_ours,
                row(jq_pk, j.ctid, was.state, counted_state(jq_state, jq_unmet, jq_wait_until), was.queue,
                    jq_queue)::batch_move as move)
    select array_agg(jq_pk), array_agg(jq_pk) filter (where is_parent), array_agg(move) filter (where is_ours)
      into changed, parents, moves from done;
  end if;
  if moves <> '{}' then
    perform settle_batch(moves, target);
  end if;
  changed := coalesce(changed, '{}');
  kept := array(select unnest(jobs) except select unnest(changed));
  if kept <> '{}' then
    refused := (select jsonb_object_agg(pk, 'a trigger of the database keeps it as it is') from unnest(kept) as pk)
      || refused;
    perform drover.offer_all(lost) from (select array(
      select jq_pk from jobqueue j where jq_pk = any (kept) and is_claimable(j) and not has_token(j)) as lost) l
      where lost <> '{}';
  end if;
  perform drover.announce(changed, array(select jq_state::text from unnest(changed) with ordinality as u(pk, n)
                                           join jobqueue on jq_pk = pk order by n))
    where changed <> '{}' and verb not in ('priority', 'move');
  perform drover.notify('drover_due', '') where changed <> '{}' and verb in ('release', 'retry', 'unblock');
end $$;

CREATE FUNCTION drover.check_at_once() RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'drover', 'pg_temp'
    AS $$
declare
  late text;
begin
  select string_agg(format('%I.%I', nspname, conname), ', ') into late
    from pg_catalog.pg_constraint join pg_catalog.pg_namespace n on n.oid = connamespace
   where condeferrable and (conrelid in ('jobqueue'::regclass, 'job'::regclass, 'log'::regclass)
                            or confrelid in ('jobqueue'::regclass, 'job'::regclass, 'log'::regclass));
  if late is not null then
    execute 'set constraints ' || late || ' immediate';
  end if;
end $$;

CREATE FUNCTION drover.check_by_new_policy() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'drover', 'pg_temp'
    AS $$
begin
  update recovery set recovery_next = now()
   where recovery_group = old.policy_group and recovery_policy = old.policy_name and recovery_next > now();
  perform notify('drover_recovery', '');
  return null;
end $$;

CREATE FUNCTION drover.check_targets() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'drover', 'pg_temp'
    AS $$
declare
  wrong text;
  why   text;
begin
  select target, drover.target_mistake(target) into wrong, why from unnest(new.sub_targets) as target
   where drover.target_mistake(target) is not null limit 1;
  if found then
    raise exception 'a target is http://... or https://... without a password, or mailto:NAME@HOST (got %): %',
      quote_nullable(left(wrong, 100)), why using errcode = 'invalid_parameter_value';
  end if;
  return new;
end $$;

CREATE FUNCTION drover.choose_agent() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'drover', 'pg_temp'
    AS $$
declare
  found record;
begin
  found := drover.find_agent_type(new.jq_type, new.jq_queue, new.jq_host, new.jq_submitter);
  if found.chosen is null then
    raise exception '%', found.wrong
      using errcode = 'check_violation', hint = 'drover agent prints the attributes of all types.';
  elsif new.jq_name is not null then
    raise exception 'a job that asks for attributes has no jq_name, which begins with its type: give jq_unique_key'
      using errcode = 'check_violation', hint = format('Or queue it for the agent type %s itself.', found.chosen);
  end if;
  new.jq_type := found.chosen;
  return new;
end $$;

CREATE FUNCTION drover.clean_up() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'drover', 'pg_temp'
    AS $$
begin
  insert into drover.jobqueue (jq_type, jq_name, jq_args, jq_host, jq_retries, jq_max_interruptions, jq_submitter)
  select 'cleanup', 'cleanup.' || new.jq_pk,
         json_build_object(
           'folder', coalesce((select agent_cwd from drover.agent join drover.queue on queue_group = agent_group
                                where queue_name = new.jq_queue and agent_type = new.jq_type), ''),
           'names', new.jq_delete)::text,
         coalesce(case when new.jq_done_by is not null then new.jq_done_host end,
                  (select att_host from drover.attempt_kept
                    where att_jq_fk = new.jq_pk and att_attempt = new.jq_attempt),
                  new.jq_host),
         3, 2147483647, new.jq_submitter
   where new.jq_delete <> '{}'
  on conflict (jq_name) do nothing;
  return null;
end $$;

CREATE FUNCTION drover.command(words text) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'drover', 'pg_temp'
    AS $_$
declare
  is_free boolean := drover.may_command();
  given   text := drover.word(words, 1);
  rest    text[] := (regexp_split_to_array(btrim(words, E' \t\n\r'), E'[ \t\n\r]+'))[2:];
  entry   drover.verb;
  wards   name[];
  wrong   text;
  pk      bigint;
begin
  select * into entry from verb where verb_name = given;
  if not found then
    raise exception 'no such command: %; there are %', coalesce(quote_literal(left(nullif(given, ''), 64)), 'nothing'),
      (select string_agg(verb_name, ', ' order by verb_number) from verb where is_free or verb_for_owners)
      using errcode = 'invalid_parameter_value';
  elsif not is_free and not entry.verb_for_owners then
    raise exception 'only drover_operator may command %', given using errcode = 'insufficient_privilege';
  elsif not is_free and cardinality(rest) = 0 then
    raise exception '% of which job: a number or a jq_name is missing', given using errcode = 'invalid_parameter_value';
  elsif not is_free then
    wards := drover.wards();
    select w into wrong from unnest(rest) with ordinality as u(w, n)
     where (n = 1 or (n - 1) % nullif(entry.verb_job_every, 0) = 0)
       and not exists (select from jobqueue where jq_submitter = any (wards)
                          and (jq_pk = case when w ~ '^[0-9]{1,18}$' then w::bigint end or jq_name = w))
     order by n limit 1;
    if found then
      raise exception 'job % is not yours', wrong using errcode = 'insufficient_privilege';
    end if;
    select w into wrong from unnest(rest) with ordinality as u(w, n)
     where given = 'signal' and n % 2 = 0
       and regexp_replace(upper(w), '^SIG', '') <> all ('{INT,TERM,HUP,USR1,USR2,2,15,1,10,12}')
     order by n limit 1;
    if found then
      raise exception 'only drover_operator may send signal %: owners send INT, TERM, HUP, USR1 or USR2',
        left(wrong, 64)
        using errcode = 'insufficient_privilege', hint = 'killjob ends a job with its agents.';
    end if;
  end if;
  insert into jobqueue (jq_type, jq_args) values ('command', words) returning jq_pk into pk;
  return pk;
end $_$;

CREATE FUNCTION drover.command(words text, filter jsonb, within interval DEFAULT NULL::interval) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'drover', 'pg_temp'
    AS $$
declare
  is_free boolean := drover.may_command();
  given   text := drover.word(words, 1);
  entry   verb;
  wrong   text;
  pk      bigint;
begin
  if filter is null then
    pk := drover.command(words);
  else
    select * into entry from verb where verb_name = given;
    if not found or entry.verb_in_bulk = '{}' then
      raise exception 'no command for many jobs: %; there are %', coalesce(quote_literal(left(given, 64)), 'nothing'),
        (select string_agg(verb_name, ', ' order by verb_number) from verb
          where verb_in_bulk <> '{}' and (is_free or verb_for_owners))
        using errcode = 'invalid_parameter_value';
    elsif not is_free and not entry.verb_for_owners then
      raise exception 'only drover_operator may command %', given using errcode = 'insufficient_privilege';
    end if;
    wrong := coalesce(drover.bulk_word_mistake(given, words), drover.filter_mistake(filter));
    if wrong is not null then
      raise exception '%', wrong using errcode = 'invalid_parameter_value';
    end if;
    insert into jobqueue (jq_type, jq_args, jq_variables)
    values ('command', regexp_replace(btrim(words, E' \t\n\r'), '^(\S+)', '\1 all'),
            filter || coalesce((select jsonb_object_agg(key, (value #>> '{}')::timestamptz) from jsonb_each(filter)
                                 where key in ('since', 'until', 'queued_since')), '{}'))
    returning jq_pk into pk;
  end if;
  update jobqueue set jq_not_after = now() + within where jq_pk = pk and within is not null;
  return pk;
end $$;

CREATE FUNCTION drover.command_waits(commands bigint[], about_jobs text[], about_hosts text[], about_types text[], OUT command bigint, OUT taken_by text, OUT since timestamp with time zone, OUT in_group text, OUT scheduler text, OUT job bigint, OUT locked_by text, OUT refused text, OUT done bigint) RETURNS SETOF record
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'drover', 'pg_temp'
    AS $_$
  with active as (
    select group_name, scheduler_host || '.' || scheduler_pid as name, status_reason
      from scheduler_group join scheduler on scheduler_uuid = group_owner
      left join scheduler_status on status_scheduler = scheduler_uuid and status_slot = -1
     where group_lease_until > now())
  select c.jq_pk, c.jq_schedinfo, c.jq_attempt_start, g.name, a.name, t.jq_pk,
         (select format('session %s (%s%s%s)', pid, usename, ', ' || nullif(application_name, ''), ', ' || state)
            from pg_locks l join pg_stat_activity using (pid)
           where locktype = 'transactionid' and transactionid in (t.xmax, c.xmax) and granted
           limit 1),
         (select string_agg(status_reason, '; ') from active where name = coalesce(c.jq_schedinfo, a.name)),
         c.jq_itemsprocessed
    from jobqueue c
   cross join lateral (select drover.word(c.jq_args, 1) as verb, drover.word(c.jq_args, 2) as word) v
    left join lateral (
      select jq_pk, jq_queue, xmax from jobqueue
       where v.verb = any (about_jobs)
         and (jq_pk = case when v.word ~ '^[0-9]{1,18}$' then v.word::bigint end
              or jq_name = case when v.word like '%.%' then v.word end) limit 1) t on true
    left join queue q on q.queue_name = t.jq_queue
    left join host h on v.verb = any (about_hosts) and h.host_name = v.word
    left join lateral (
      select agent_group from agent where v.verb = any (about_types) and agent_type = v.word limit 1) k on true
   cross join lateral (
      select coalesce(q.queue_group, h.host_group, k.agent_group,
                      (select group_name from active order by group_name <> 'default', group_name limit 1),
                      'default') as name) g
    left join active a on a.group_name = g.name
   where c.jq_pk = any (commands) and c.jq_type = 'command' and c.jq_state = 'queued'
     and (c.jq_submitter = session_user or drover.may_command())
$_$;

CREATE FUNCTION drover.condition_of(said text) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$
  select case when said is null or said in ('', 'blocked: the agent said BLOCKED') then 'unnamed'
              else left(
                drover.word(case when starts_with(said, 'blocked: ') then substr(said, 10) else said end, 1), 100)
         end
$$;

CREATE FUNCTION drover.count_edges() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'drover', 'pg_temp'
    AS $$
declare
  counted drover.jobqueue;
begin
  update jobqueue j
     set jq_unmet = (select count(*) from jobdepends where jdep_jq_fk = new.jq_pk and jdep_met_at is null)
   where jq_pk = new.jq_pk and jq_unmet = 2147483647 returning * into counted;
  if found then
    perform drover.count_move(new, counted);
    perform drover.offer_all(array[new.jq_pk]) where drover.is_claimable(counted);
  end if;
  return null;
end $$;

CREATE FUNCTION drover.count_ends(pks bigint[], states text[]) RETURNS void
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'drover', 'pg_temp'
    AS $$
  with ended as materialized (
    select type, host, state, code, bin, count(*) as jobs, sum(items) as items, max(pk) as newest
      from unnest(pks, states) as u(pk, state)
     cross join lateral (
       select case when exists (select from agent where agent_type = jq_type) then jq_type else '(unknown)' end as type,
              coalesce(jq_done_host, '-') as host, jq_itemsprocessed as items,
              case when u.state in ('done', 'failed') then
                drover.time_bin(drover.time_run(jq_msq, jq_processedtime, jq_starttime, jq_endtime)) end as bin,
              drover.end_code(u.state::drover.job_state, jq_type, jq_end_bits, jq_endtext, jq_exitcode, jq_signal)
                as code
         from jobqueue where jq_pk = u.pk and jq_type <> 'command' offset 0) j
     where state in ('done', 'failed', 'cancelled', 'ignored', 'skipped')
     group by type, host, state, code, bin),
  tallied as (
    insert into tally (tally_type, tally_host, tally_state, tally_code, tally_jobs, tally_items, tally_newest,
                       tally_bins, tally_counts)
    select type, host, state, code, jobs, items, case when state = 'failed' then newest end,
           array_remove(array[bin], null), case when bin is null then '{}' else array[jobs] end
      from ended)
  insert into counter_new (counter_name, counter_labels, counter_value)
  select 'ended', array[type, state, code], sum(jobs) from ended group by type, state, code
$$;

CREATE FUNCTION drover.count_move(old drover.jobqueue, new drover.jobqueue) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'drover', 'pg_temp'
    AS $$
declare
  was   text := drover.counted_state(old.jq_state, old.jq_unmet, old.jq_wait_until);
  state text := drover.counted_state(new.jq_state, new.jq_unmet, new.jq_wait_until);
  moves boolean := (old.jq_queue, old.jq_host) is distinct from (new.jq_queue, new.jq_host);
begin
  if not moves and was = state and (old.jq_queued, old.jq_urgent, old.jq_priority, old.jq_endtime)
     is not distinct from (new.jq_queued, new.jq_urgent, new.jq_priority, new.jq_endtime) then
    return;
  elsif moves then
    insert into job_change
    values (zone_of(old.jq_pk), old.jq_type, coalesce(old.jq_queue, ''), coalesce(old.jq_host, ''), old.jq_submitter,
            was, null, 1);
  end if;
  insert into job_change
  values (zone_of(new.jq_pk), new.jq_type, coalesce(new.jq_queue, ''), coalesce(new.jq_host, ''), new.jq_submitter,
          case when not moves then was end, state, 1, new.jq_queued, greatest(new.jq_queued, new.jq_endtime),
          case when new.jq_endtime is not null then extract(epoch from new.jq_starttime - new.jq_queued) end,
          extract(epoch from new.jq_endtime - new.jq_starttime), rank(new.jq_urgent, new.jq_priority));
end $$;

CREATE FUNCTION drover.count_moves(moves drover.batch_move[]) RETURNS void
    LANGUAGE sql
    SET search_path TO 'drover', 'pg_temp'
    AS $$
  insert into job_change
  select zone_of(jq_pk), jq_type, coalesce(was_queue, ''), coalesce(jq_host, ''), jq_submitter, was, null, count(*),
         null, null, null, null, null
    from unnest(moves) join jobqueue on jq_pk = pk group by 1, 2, 3, 4, 5, 6
  union all
  select zone_of(jq_pk), jq_type, coalesce(queue, ''), coalesce(jq_host, ''), jq_submitter, null, state, count(*),
         min(jq_queued), max(greatest(jq_queued, jq_endtime)),
         max(case when jq_endtime is not null then extract(epoch from jq_starttime - jq_queued) end),
         max(extract(epoch from jq_endtime - jq_starttime)), min(rank(jq_urgent, jq_priority))
    from unnest(moves) join jobqueue on jq_pk = pk group by 1, 2, 3, 4, 5, 7
$$;

CREATE FUNCTION drover.count_removed() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'drover', 'pg_temp'
    AS $$
begin
  insert into job_change
  select zone_of(jq_pk), jq_type, coalesce(jq_queue, ''), coalesce(jq_host, ''), jq_submitter,
         counted_state(jq_state, jq_unmet, jq_wait_until) as state, null, count(*)
    from removed group by 1, 2, 3, 4, 5, 6;
  return null;
end $$;

CREATE FUNCTION drover.count_truncated() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'drover', 'pg_temp'
    AS $$
begin
  truncate job_change, job_total, job_zone;
  return null;
end $$;

CREATE FUNCTION drover.count_unmet(jobs bigint[], more integer) RETURNS integer
    LANGUAGE plpgsql
    SET search_path TO 'drover', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
declare
  counted integer := 0;
  moved   bigint[];
  step    record;
begin
  for step in
    select n, array_agg(pk) as pks
      from (select pk, count(*)::integer * more as n from unnest(jobs) as pk group by pk) c group by n
  loop
    with changed as (
      update jobqueue j set jq_unmet = drover.unmet(jq_unmet, step.n, j.xmin)
       where jq_pk = any (step.pks) and jq_unmet < 2147483647
         and case when more < 0 then jq_unmet > 0 else jq_state in ('held', 'queued') end
      returning jq_pk, jq_state = 'queued' and jq_unmet = greatest(step.n, 0) as is_counted, jq_wait_until,
                jq_type, jq_queue, jq_host, jq_submitter, jq_queued, jq_urgent, jq_priority),
    recounted as (
      insert into job_change
      select zone_of(jq_pk), jq_type, coalesce(jq_queue, ''), coalesce(jq_host, ''), jq_submitter,
             case when more < 0 then 'unmet' when is_early then 'early' else 'queued' end,
             case when more > 0 then 'unmet' when is_early then 'early' else 'queued' end,
             count(*), min(jq_queued), max(jq_queued), null, null, min(rank(jq_urgent, jq_priority))
        from changed cross join lateral (select jq_wait_until is not null as is_early) e
       where is_counted group by 1, 2, 3, 4, 5, is_early)
    select counted + count(*), array_agg(jq_pk) filter (where is_counted and jq_wait_until is null)
      into counted, moved from changed;
    if moved is not null and more < 0 then
      perform drover.offer_all(moved);
    elsif moved is not null then
      perform drover.withdraw_all(moved);
    end if;
  end loop;
  return counted;
end $$;

CREATE FUNCTION drover.counted_state(state drover.job_state, unmet integer, wait_until timestamp with time zone) RETURNS text
    LANGUAGE sql STABLE PARALLEL SAFE
    AS $$
  select case when state > 'running' or state = 'held' then state::text
              when unmet > 0 then 'unmet' when wait_until is not null then 'early' else 'queued' end
$$;

CREATE FUNCTION drover.cycle_below(tops bigint[], OUT jobs bigint[], OUT cycle bigint[]) RETURNS record
    LANGUAGE plpgsql STABLE
    SET search_path TO 'drover', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET jit TO 'off'
    AS $$
declare                -- by their numbers here, which count from 1, as in `jobs`
  parents integer[];  -- of the edges, in this order
  kids    integer[];
  first   integer[];  -- edge of a parent
  above   integer[];  -- how many parents of a job are left
  ready   integer[];  -- jobs that have none
  job     integer;
  edge    integer;
begin
  with recursive below(pk) as (
    select unnest(tops)
    union
    select d.pk from below b cross join lateral (
      select jdep_jq_fk from jobdepends where jdep_jq_depends_fk = b.pk and jdep_met_at is null offset 0) d(pk)),
  edges as materialized (
    select b.pk as parent, d.pk as kid, row_number() over () as no from below b cross join lateral (
      select jdep_jq_fk from jobdepends where jdep_jq_depends_fk = b.pk and jdep_met_at is null offset 0) d(pk)),
  ends as (
    select no, v.pk, is_kid, dense_rank() over (order by v.pk) as n from edges, lateral (values (parent, false), (kid, true)) v(pk, is_kid)),
  numbered as (
    select max(n) filter (where not is_kid) as parent, max(n) filter (where is_kid) as kid from ends group by no)
  select (select array_agg(pk order by pk) from (select distinct pk from ends) e),
         array_agg(parent order by parent), array_agg(kid order by parent)
    into jobs, parents, kids from numbered;
  if jobs is null then
    return;
  end if;
  above := array_fill(0, array[cardinality(jobs)]);
  first := above;
  for edge in reverse cardinality(kids) .. 1 loop
    above[kids[edge]] := above[kids[edge]] + 1;
    first[parents[edge]] := edge;
  end loop;
  for job in 1 .. cardinality(jobs) loop
    if above[job] = 0 then
      ready := ready || job;
    end if;
  end loop;
  for n in 1 .. cardinality(jobs) loop
    exit when n > coalesce(cardinality(ready), 0);
    edge := first[ready[n]];
    while edge > 0 and parents[edge] = ready[n] loop
      above[kids[edge]] := above[kids[edge]] - 1;
      if above[kids[edge]] = 0 then
        ready := ready || kids[edge];
      end if;
      edge := edge + 1;
    end loop;
  end loop;
  if cardinality(ready) = cardinality(jobs) then
    return;
  end if;
  for edge in 1 .. cardinality(kids) loop  -- now: one of its parents that are left
    if above[parents[edge]] > 0 then
      first[kids[edge]] := parents[edge];
      job := kids[edge];
    end if;
  end loop;
  for n in 1 .. cardinality(jobs) loop  -- upwards, into the cycle for sure
    job := first[job];
  end loop;
  edge := job;
  loop
    cycle := cycle || jobs[job];
    job := first[job];
    exit when job = edge;
  end loop;
end $$;

CREATE FUNCTION drover.cycle_for_sure(tops bigint[]) RETURNS bigint[]
    LANGUAGE plpgsql
    SET search_path TO 'drover', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
declare
  cycle bigint[];
  jobs  bigint[];
  seen  bigint[];
begin
  if tops <> '{}' and current_setting('transaction_isolation') not in ('read committed', 'read uncommitted') then
    raise exception 'a dependency between jobs that have others wants a transaction that is read committed' using errcode = 'invalid_transaction_state';
  end if;
  loop
    select c.cycle, c.jobs into cycle, jobs from drover.cycle_below(tops) c;
    exit when cycle is not null or jobs is not distinct from seen;
    perform drover.lock_jobs(jobs, shared => true);
    seen := jobs;
  end loop;
  return cycle;
end $$;

CREATE FUNCTION drover.datum(variables jsonb, data jsonb, key text) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN COALESCE((variables ->> key), (data ->> key));

CREATE FUNCTION drover.deliver(events bigint[]) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'drover', 'pg_temp'
    AS $$
declare
  over bigint[];
begin
  with told as materialized (
    select ev_pk, coalesce(ev_jq_fk, 0) as job, s.*
      from event cross join drover.subscribers(ev_kind, ev_jq_fk, ev_owner, ev_tenant) s
     where ev_pk = any (events)),
  room as materialized (  -- what waits is counted once, and no further than it matters
    select sub, most - (select count(*) from (
             select from delivery where del_sub = sub and del_state in ('waiting', 'sent') limit most) d) as left_over
      from (select distinct sub_pk as sub, sub_most as most from told where sub_most is not null) s),
  entered as (
    insert into delivery (del_sub, del_owner, del_target, del_event, del_jq_fk, del_state, del_next, del_ended,
                          del_text)
    select sub_pk, sub_owner, target, ev_pk, job, case when is_over then 'dead' else 'waiting' end,
           case when not is_over then now() end, case when is_over then now() end,
           case when is_over then 'too many wait' end
      from (select told.*, target,
                   coalesce(row_number() over (partition by sub_pk order by ev_pk, target) > left_over, false)
                     as is_over
              from told left join room on sub = sub_pk
             cross join generate_series(1, cardinality(sub_targets)) as target) t
     order by ev_pk, sub_pk, target
    returning del_pk, del_state)
  select coalesce(array_agg(del_pk) filter (where del_state = 'dead'), '{}') into over from entered
  having count(*) > 0;
  if found then
    perform drover.notify('drover_delivery', '');
    perform drover.bury_deliveries(over, 'overflow') where over <> '{}';
  end if;
end $$;

CREATE FUNCTION drover.delivery_wait(of_group text, tries integer) RETURNS double precision
    LANGUAGE plpgsql STABLE
    AS $$
declare
  rules jsonb := (select policy_rules from drover.recovery_policy
                   where policy_group = of_group and policy_name = 'notify');
  step  jsonb;
  left_over integer := tries - 1;
begin
  if tries > coalesce(nullif((rules ->> 'max_tries')::integer, 0), case when rules is null then 152 end) then
    return null;
  end if;
  for step in select jsonb_array_elements(coalesce(rules -> 'steps', '[[2, 20], [0, 600]]')) loop
    if left_over < (step ->> 0)::integer or (step ->> 0)::integer = 0 then
      return step ->> 1;
    end if;
    left_over := left_over - (step ->> 0)::integer;
  end loop;
  return step ->> 1;
end $$;

CREATE FUNCTION drover.drop_edge() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'drover', 'pg_temp'
    AS $$
begin
  perform drover.count_unmet(array[old.jdep_jq_fk], -1)
    where exists (select from jobqueue where jq_pk = old.jdep_jq_fk and (jq_endtime is null or jq_state = 'failed'));
  return null;
end $$;

CREATE FUNCTION drover.end_code(state drover.job_state, type text, bits integer, said text, status integer, signal text) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $_$
  select case state
    when 'done' then case when bits & 4 = 0 then 'normal' else 'nonfatal_errors' end
    when 'cancelled' then 'cancelled'
    when 'skipped' then case when bits & 1 = 1 then 'on_ice' else 'dependency_not_met' end
    when 'ignored' then 'unserved'
    when 'failed' then case
      when type = 'command' then 'command_refused'
      when said ~ '^killed( by command of ("([^"]|"")*"|[a-z_][a-z0-9_$]*))?(; its (process \d+|command) runs as .+ and could not be ended: it is left)?$' then 'killed'
      when said ~ '^recovery_(timeout|failure): ' then split_part(said, ':', 1)
      when said ~ '^not started by ' then 'expired'
      when said ~ '^(timeout: ran|item took|the query ran) longer than ' then 'timeout'
      when said ~ '^(no heartbeat for |does not read its line($|; its (process|command) ))' then 'no_heartbeat'
      when said ~ '^(interrupted more than \d+ times|its scheduler died \d+ times)' then 'interrupted'
      when said ~ '^\d+ items failed, \d+ tolerated$' then 'items_failed'
      when said ~ '^no progress: ' then 'no_progress'
      when said ~ '^role .+ may not queue agent type ' then 'not_permitted'
      when said ~ '^the database refuses (a |to save )' then 'not_saved'
      when said !~ '^(exit status |killed by |agent terminated prematurely)' and said ~ '\(SQLSTATE [0-9A-Z]{5}(, at character \d+)?\)$' then 'query_failed'
      when said ~ '^its (parameter or variables|variables or its SQL) '
           or said ~ '^the (parameter (is|holds|has)|query gives|key column|command names|rows of the query) '
           or said ~ '^(\d+ rows of the query|key ''|column name|jq_key names|jq_runonpfile names)'
      then 'invalid_definition'
      when said ~ '^agent ''.+'': cannot start ''' or status in (126, 127) then 'launch_failure'
      when signal is not null or said ~ '^(killed by |protocol violation: |agent terminated prematurely, by )'
      then 'agent_died'
      when said ~ '^(exit status |agent terminated prematurely)' then 'exit_status'
      else 'agent_error' end
    end
$_$;

CREATE FUNCTION drover.end_in_words(state drover.job_state, said text, at timestamp with time zone) RETURNS text
    LANGUAGE sql STABLE PARALLEL SAFE
    AS $_$
  select case
    when state = 'cancelled' and said ~ '^cancelled($|;| by )'
    then regexp_replace(said, '^(cancelled( by ("([^"]|"")*"|[a-z_][a-z0-9_$]*))?)', '\1' || w.at)
    when state = 'cancelled' then 'cancelled' || w.at || coalesce(': ' || nullif(said, ''), '')
    when state = 'failed' and said ~ '^killed($|;| by command of )'
    then regexp_replace(said, '^(killed( by command of ("([^"]|"")*"|[a-z_][a-z0-9_$]*))?)', '\1' || w.at) end
    from (select to_char(at, case when at::date = current_date then '" at" ' else '" at" YYYY-MM-DD ' end || 'HH24:MI')
                   as at) w
$_$;

CREATE FUNCTION drover.end_tries(of_group text, most integer, OUT jobs bigint[], OUT over bigint[]) RETURNS record
    LANGUAGE plpgsql
    SET search_path TO 'drover', 'pg_temp'
    AS $$
declare
  d    record;
  wait float8;
begin
  jobs := '{}';
  over := '{}';
  for d in
    select del_pk, del_tries, jq_pk, jq_state, jq_endtext from delivery left join jobqueue on jq_pk = del_notify
     where del_state = 'sent' and (jq_pk is null or jq_endtime is not null)
     limit most
  loop
    jobs := jobs || d.jq_pk;
    wait := case when d.jq_state = 'done' then null
                 when starts_with(d.jq_endtext, 'agent said: gone: ') then null
                 else drover.delivery_wait(of_group, d.del_tries + 1) end;
    update delivery
       set del_tries = d.del_tries + 1, del_notify = null, del_text = drover.message(d.jq_endtext),
           del_state = case when d.jq_state = 'done' then 'done' when wait is null then 'dead' else 'waiting' end,
           del_ended = case when wait is null then now() end,
           del_next = now() + make_interval(secs => wait)
     where del_pk = d.del_pk;
    if wait is null then
      perform drover.let_next_go(d.del_pk);
      over := over || case when d.jq_state is distinct from 'done' then d.del_pk end;
    end if;
  end loop;
  over := array_remove(over, null);
end $$;

CREATE FUNCTION drover.ended_by(command text, who name) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $_$
  select case drover.word(command, 1)
    when 'killjob' then 'killed by command of ' || quote_ident(who)
    else 'cancelled by ' || quote_ident(who)
           || coalesce(': ' || nullif(substring(btrim(command, E' \t\n\r') from '^\S+\s+\S+\s+(.*)$'), ''), '') end
$_$;

CREATE FUNCTION drover.ended_in_vain(jobs bigint[]) RETURNS TABLE(job bigint, state text)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'drover', 'pg_temp'
    AS $$
  select pk, jq_state::text from unnest(jobs) as pk left join jobqueue on jq_pk = pk
   where jq_pk is null
      or jq_endtime is not null and jq_end_bits & 1 = 0 and (jq_submitter = session_user or drover.may_command())
   order by pk
$$;

CREATE FUNCTION drover.enter(name text) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'drover', 'pg_temp'
    AS $$
begin
  perform from gate where gate_name = name for update;
  if not found then
    insert into gate values (name) on conflict do nothing;
    perform from gate where gate_name = name for update;
  end if;
end $$;

CREATE FUNCTION drover.enter_queue(name text) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'drover', 'pg_temp'
    AS $$
declare
  limits text;
begin
  perform from gate where gate_name = 'queue ' || name for update skip locked;
  if found then
    return;
  end if;
  limits := drover.wait_at_most('2s');
  begin
    perform drover.enter('queue ' || name);
  exception when lock_not_available then
    raise exception 'queue %: another transaction that inserts into it has not ended', name
      using errcode = 'lock_not_available', constraint = 'queue_max_length',
            hint = 'Its length is limited, so one transaction inserts at a time: try again when that one has ended.';
  end;
  perform set_config('lock_timeout', limits, true);
end $$;

CREATE FUNCTION drover.enter_recovery(job drover.jobqueue) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'drover', 'pg_temp'
    AS $$
declare
  named    text := drover.condition_of(job.jq_endtext);
  in_group text := coalesce((select queue_group from queue where queue_name = job.jq_queue), 'default');
  policy   recovery_policy;
  tenant   text := case when not starts_with(named, 'quota:') then drover.tenant_of(job.jq_submitter) end;
  entered  bigint;
begin
  select * into policy from recovery_policy
   where policy_group = in_group and policy_condition in (named, '*')
     and (policy_types = '{}' or job.jq_type = any (policy_types))
   order by policy_condition = '*', policy_types = '{}', policy_name = '', policy_name limit 1;
  insert into recovery as r (recovery_group, recovery_tenant, recovery_condition, recovery_policy, recovery_text,
                             recovery_next)
  values (in_group, tenant, named, coalesce(policy.policy_name, ''), job.jq_endtext,
          now() + make_interval(secs => coalesce((policy.policy_rules #>> '{steps,0,1}')::float8, 60)))
  on conflict (recovery_group, coalesce(recovery_tenant, ''), recovery_condition, recovery_policy) do update
    set recovery_text = excluded.recovery_text, recovery_came = r.recovery_came + 1
  returning recovery_pk into entered;
  insert into blocked (blocked_jq_fk, blocked_recovery, blocked_queue, blocked_rank, blocked_queued)
  values (job.jq_pk, entered, coalesce(job.jq_queue, ''), drover.rank(job.jq_urgent, job.jq_priority), job.jq_queued)
  on conflict (blocked_jq_fk) do update
    set blocked_recovery = excluded.blocked_recovery, blocked_since = now(), blocked_queue = excluded.blocked_queue,
        blocked_rank = excluded.blocked_rank, blocked_queued = excluded.blocked_queued;
  update jobqueue set jq_blocked_count = coalesce(jq_blocked_count, 0) + 1 where jq_pk = job.jq_pk;
  perform drover.notify('drover_recovery', '');
end $$;

CREATE FUNCTION drover.escape(value text) RETURNS text
    LANGUAGE sql IMMUTABLE
    AS $_$
  select coalesce(string_agg(
           case when c in ('"', E'\\', '''', '$', '`') then E'\\' || c  -- so, whatever standard_conforming_strings says
                when c = E'\n' then E'\\n' when c = E'\r' then E'\\r' when c = E'\t' then E'\\t'
                when ascii(c) < 32 or ascii(c) = 127 then E'\\x' || lpad(to_hex(ascii(c)), 2, '0')
                else c end, '' order by n), '')
    from string_to_table(value, null) with ordinality as t(c, n)
$_$;

CREATE FUNCTION drover.expect_tenants() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'drover', 'pg_temp'
    SET lock_timeout TO '1500ms'
    AS $$
declare
  is_wanted boolean;
  is_on     boolean;
begin
  perform drover.enter('expect_tenants');
  is_wanted := exists (select from tenant);  -- as it is when the one before has ended
  select tgenabled <> 'D' into is_on from pg_catalog.pg_trigger
   where tgrelid = 'drover.jobqueue'::regclass and tgname = 'jobqueue_tenant';
  if is_wanted and not is_on then
    alter table drover.jobqueue enable trigger jobqueue_tenant;
  elsif is_on and not is_wanted then
    alter table drover.jobqueue disable trigger jobqueue_tenant;
  end if;
  return null;
end $$;

CREATE FUNCTION drover.expect_variables() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'drover', 'pg_temp'
    SET lock_timeout TO '1500ms'
    AS $$
declare
  is_wanted boolean;
  is_on     boolean;
begin
  perform drover.enter('expect_variables');
  is_wanted := exists (select from variable);  -- as it is when the one before has ended
  select tgenabled <> 'D' into is_on from pg_catalog.pg_trigger
   where tgrelid = 'drover.jobqueue'::regclass and tgname = 'jobqueue_give_variables';
  if is_wanted and not is_on then
    alter table drover.jobqueue enable trigger jobqueue_give_variables;
  elsif is_on and not is_wanted then
    alter table drover.jobqueue disable trigger jobqueue_give_variables;
  end if;
  return null;
end $$;

CREATE FUNCTION drover.fellows() RETURNS name[]
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'drover', 'pg_temp'
    AS $$
  select drover.members_of(
    session_user, array(select tenant_name from tenant where drover.is_member(session_user, tenant_name::name)))
$$;

CREATE FUNCTION drover.filter_mistake(filter jsonb) RETURNS text
    LANGUAGE plpgsql STABLE
    SET search_path TO 'drover', 'pg_temp'
    AS $$
declare
  known text[] := '{type,queue,host,by,group,state,since,until,queued_since,ran_on,code,text,hidden}';
  wrong text;
begin
  if jsonb_typeof(filter) is distinct from 'object' or filter in ('{}', '{"hidden": true}') then
    return 'a filter is a JSON object with one or more of ' || array_to_string(known, ', ');
  end if;
  select key into wrong from jsonb_object_keys(filter) as key where key <> all (known) order by key limit 1;
  if found then
    return format('a filter has no %s: it has %s', quote_literal(left(wrong, 64)), array_to_string(known, ', '));
  end if;
  select key into wrong from jsonb_each(filter) as e(key, value)
   where case when key in ('since', 'until', 'queued_since', 'text')
              then jsonb_typeof(value) <> 'string' or value = '""'
              when key = 'hidden' then jsonb_typeof(value) <> 'boolean'
              when jsonb_typeof(value) = 'array'
              then value = '[]' or exists (
                select from jsonb_array_elements(value) as each
                 where jsonb_typeof(each) <> case key when 'group' then 'number' else 'string' end)
              else jsonb_typeof(value) <> case key when 'group' then 'number' else 'string' end end
   order by key limit 1;
  if found then
    return format('%s of a filter is %s', wrong, case
      when wrong in ('since', 'until', 'queued_since') then 'a time, as a string'
      when wrong = 'text' then 'a string, not an empty one'
      when wrong = 'hidden' then 'true or false' when wrong = 'group' then 'a number, or a list of numbers'
      else 'a string, or a list of strings' end);
  end if;
  select state into wrong from unnest(names(filter -> 'state')) as state
   where state not in (select unnest(enum_range(null::job_state))::text) limit 1;
  if found then
    return format('there is no state %s', quote_literal(left(wrong, 64)));
  end if;
  perform (filter ->> 'since')::timestamptz, (filter ->> 'until')::timestamptz, (filter ->> 'queued_since')::timestamptz,
          names(filter -> 'group')::bigint[];
  return null;
exception when data_exception then
  return 'a time or a number in the filter cannot be read: ' || sqlerrm;
end $$;

CREATE FUNCTION drover.filter_sql(tree jsonb, zone text) RETURNS text
    LANGUAGE plpgsql IMMUTABLE
    SET search_path TO 'drover', 'pg_temp'
    AS $_$
declare
  word  text := tree ->> 0;
  value text := tree ->> 1;
  clock text := format('(now() at time zone %L)', zone);
  parts text[];
  made  text;
begin
  if jsonb_typeof(tree) is distinct from 'array' or word is null then
    raise exception 'no tree of a filter: %', left(tree::text, 100) using errcode = 'invalid_parameter_value';
  elsif word = any ('{and,or,not,=,<>,<,<=,>,>=,like,in,between,is_null}') then
    select array_agg(drover.filter_sql(part, zone) order by n) into parts
      from jsonb_array_elements(tree) with ordinality as t(part, n) where n > 1;
  end if;
  made := case
    when word in ('and', 'or') then '(' || array_to_string(parts, ' ' || word || ' ') || ')'
    when word = 'not' then '(not ' || parts[1] || ')'
    when word = 'is_null' then '(' || parts[1] || ' is null)'
    when word = 'in' then '(' || parts[1] || ' in (' || array_to_string(parts[2:], ', ') || '))'
    when word = 'between' then '(' || parts[1] || ' between ' || parts[2] || ' and ' || parts[3] || ')'
    when parts is not null then '(' || parts[1] || ' ' || word || ' ' || parts[2] || ')'
    when value is null then null
    when word = 'text' then format('%L::text', value)
    when word = 'number' and drover.number_of(value) is not null then format('%L::numeric', value)
    when word = 'boolean' and value in ('true', 'false') then value
    when word = 'data' and tree ->> 2 = 'text'
      then format('(drover.datum(job.jq_variables, above.job_data, %L) collate "C")', value)
    when word = 'data' and tree ->> 2 = 'number'
      then format('drover.number_of(drover.datum(job.jq_variables, above.job_data, %L))', value)
    when word = 'column' then case value
      when 'type' then '(job.jq_type collate "C")'
      when 'name' then '(job.jq_name collate "C")'
      when 'submitter' then '(job.jq_submitter::text collate "C")'
      when 'host' then '(job.jq_host collate "C")'
      when 'priority' then '(job.jq_priority collate "C")'
      when 'mode' then '(job.jq_mode::text collate "C")'
      when 'urgent' then 'job.jq_urgent'
      when 'sql' then 'job.jq_msq'
      when 'minutes' then '(extract(epoch from job.jq_timeout) / 60)'
      when 'tenant' then '(above.job_tenant collate "C")'
      when 'group_name' then '(above.job_name collate "C")'
      when 'group_priority' then 'above.job_priority::numeric'
      when 'hour' then 'extract(hour from ' || clock || ')'
      when 'weekday' then 'extract(isodow from ' || clock || ')'
      when 'time' then '(to_char(' || clock || $f$, 'HH24:MI') collate "C")$f$
      when 'date' then '(to_char(' || clock || $f$, 'YYYY-MM-DD') collate "C")$f$ end end;
  if made is null then
    raise exception 'no tree of a filter: %', left(tree::text, 100) using errcode = 'invalid_parameter_value';
  end if;
  return made;
end $_$;

CREATE FUNCTION drover.find_agent_type(asked text, queue text, host text, who name, OUT chosen text, OUT wrong text) RETURNS record
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'drover', 'pg_temp'
    AS $$
declare
  in_group text := coalesce(
    case when queue is null or queue = 'default' then (select host_group from host h where h.host_name = host) end,
    (select queue_group from queue q where q.queue_name = queue), 'default');
begin
  chosen := drover.agent_type_for(asked, in_group, host, who);
  if chosen is null then
    wrong := drover.no_agent_type(asked, in_group);
  end if;
end $$;

CREATE FUNCTION drover.find_alerts(most integer) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'drover', 'pg_temp'
    AS $$
declare
  one  record;
  made integer := 0;
begin
  if not exists (select from drover.subscribers('alert', null, null, null)) then
    delete from alert;
    return 0;
  end if;
  for one in
    with found as materialized (
      select rule, coalesce(jq_pk, 0) as job, min(what) as what, min(next) as next
        from impossible group by 1, 2 order by 1, 2 limit most),
    over as (delete from alert where (alert_rule, alert_jq_fk) not in (select rule, job from found)),
    seen as (
      insert into alert as a (alert_rule, alert_jq_fk) select rule, job from found
      on conflict (alert_rule, alert_jq_fk) do update set alert_is_told = true
        where not a.alert_is_told and a.alert_since <= now() - interval '30 seconds'
      returning *)
    select job, what, next from seen join found on rule = alert_rule and job = alert_jq_fk
     where alert_is_told order by rule, job
  loop
    perform drover.tell_site('alert', coalesce('job ' || nullif(one.job, 0), 'schedules') || ' ' || one.what
                                      || ': ' || replace(one.next, 'JOB', one.job::text));
    made := made + 1;
  end loop;
  return made;
end $$;

CREATE FUNCTION drover.find_alternates(of_group text, most integer) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'drover', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    AS $$
declare
  one   record;
  made  integer := 0;
begin
  for one in
    with recursive place as (
      (select claim_type as type, claim_queue as queue from claimable order by claim_type, claim_queue limit 1)
       union all
      select n.claim_type, n.claim_queue from place cross join lateral (
        select claim_type, claim_queue from claimable
         where (claim_type, claim_queue) > (type, queue) order by claim_type, claim_queue limit 1) n),
    stranded as (
      select type, queue, queue_name is null as has_no_queue from (select * from place limit 10000) p
        left join queue on queue_name = queue
       where type <> 'command'
         and (queue_name is null and of_group = 'default'
              or queue_group = of_group
                 and not exists (select from agent
                                  where agent_group = of_group and agent_type = type and agent_present)))
    select type, queue, has_no_queue, j.jq_pk
      from stranded cross join lateral (
        select unnest(coalesce(claim_jobs, array[claim_first])) as pk, claim_queued from claimable
         where claim_type = type and claim_queue = queue
         order by claim_type, claim_queue limit most) t
     cross join lateral (select jq_pk from jobqueue where jq_pk = t.pk and jq_state = 'queued' offset 0) j
     where claim_queued < now() - interval '1 minute'
       and not exists (select from dead_letter where dead_jq_fk = j.jq_pk and dead_kind = 'alternate')
     limit most
  loop
    insert into dead_letter (dead_kind, dead_reason, dead_jq_fk, dead_text)
    values ('alternate', 'no consumer', one.jq_pk,
            case when one.has_no_queue then 'no queue ' || quote_literal(left(one.queue, 100))
                 else 'no scheduler serves type ' || quote_literal(left(one.type, 100)) end);
    perform drover.tell_site('alternate', 'job ' || one.jq_pk || ': '
      || case when one.has_no_queue then 'no queue ' || quote_literal(left(one.queue, 100))
              else 'no scheduler serves type ' || quote_literal(left(one.type, 100)) end);
    made := made + 1;
  end loop;
  return made;
end $$;

CREATE FUNCTION drover.find_suspects(most integer) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'drover', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    AS $$
declare
  stages constant text[] := '{jobs,tokens,entries}';
  walk   suspect_walk;
  enough text[];
  rows   integer := 0;
  more   integer;
  stage  integer;
begin
  select * into walk from suspect_walk for update skip locked;
  if not found then
    return true;
  end if;
  delete from suspect where (suspect_jq_fk, suspect_rule) not in (select jq_pk, rule from suspected);
  enough := array(select suspect_rule from suspect group by suspect_rule having count(*) >= 1000);
  stage := array_position(stages, walk.walk_stage);
  while stage <= 3 and rows < most loop
    if stage = 1 then
      select place, looked into walk.walk_place, more from suspect_jobs(walk.walk_place, most - rows, enough);
    elsif stage = 2 then
      select place, looked into walk.walk_place, more from suspect_tokens(walk.walk_place, enough);
    else
      select place, looked into walk.walk_place, more from suspect_entries(walk.walk_place, most - rows, enough);
    end if;
    rows := rows + more;
    if walk.walk_place is null then
      stage := stage + 1;
      walk.walk_place := -1;
    end if;
  end loop;
  update suspect_walk
     set walk_stage = coalesce(stages[stage], 'jobs'), walk_place = walk.walk_place, walk_at = now(),
         walk_ended = case when stage > 3 then now() else walk_ended end;
  return stage > 3;
end $$;

CREATE FUNCTION drover.find_unserved(of_group text, places integer, most integer, INOUT type text, INOUT queue text, OUT entered integer, OUT unknown jsonb) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'drover', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    AS $$
declare
  served_by text;
  is_ours   boolean;
  looked    integer := 0;
  one       record;
  why       text;
begin
  entered := 0;
  unknown := '{}';
  for place in 1 .. places loop
    select claim_type, claim_queue into type, queue from claimable c
     where (claim_type, claim_queue) > (find_unserved.type, find_unserved.queue)
     order by claim_type, claim_queue limit 1;
    exit when type is null;
    continue when type = 'command';
    served_by := (select queue_group from drover.queue where queue_name = find_unserved.queue);
    continue when served_by <> of_group;
    is_ours := (select agent_present from agent where agent_group = of_group and agent_type = type);
    if served_by is null and is_ours is not null then
      unknown := unknown || jsonb_build_object(queue, coalesce((unknown ->> queue)::bigint, 0) + (
        select sum(size) from (
          select coalesce(cardinality(claim_jobs), 1) as size from claimable
           where claim_type = type and claim_queue = find_unserved.queue
           order by claim_type, claim_queue limit 100) tokens));
    end if;
    continue when case when served_by is null then of_group <> 'default' else coalesce(is_ours, false) end;
    why := case when served_by is null then 'no queue ' || quote_literal(left(queue, 100))
                else 'no scheduler serves type ' || quote_literal(left(type, 100)) end;
    for one in
      select j.jq_pk,
             not exists (select from dead_letter where dead_jq_fk = j.jq_pk and dead_kind = 'alternate') as is_new
        from (select unnest(coalesce(claim_jobs, array[claim_first])) as pk, claim_queued from claimable
               where claim_type = type and claim_queue = find_unserved.queue
               order by claim_type, claim_queue limit most) t
       cross join lateral (select jq_pk from jobqueue where jq_pk = t.pk and jq_state = 'queued' offset 0) j
       where claim_queued < now() - interval '1 minute'
    loop
      looked := looked + 1;
      if one.is_new then
        insert into dead_letter (dead_kind, dead_reason, dead_jq_fk, dead_text)
        values ('alternate', 'no consumer', one.jq_pk, why);
        perform drover.tell_site('alternate', 'job ' || one.jq_pk || ': ' || why);
        entered := entered + 1;
      end if;
    end loop;
    exit when looked >= most;
  end loop;
end $$;

CREATE FUNCTION drover.first_of_kind(zones bigint[], type text, queue text, host text, submitter text, state text) RETURNS bigint
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'drover', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    AS $$
declare
  zone  bigint;
  found bigint;
begin
  if submitter <> session_user and not has_table_privilege(session_user, 'drover.job_counts', 'select') then
    return null;  -- whoever does not see the jobs of others may not ask about them either
  end if;
  foreach zone in array zones[1:10] loop
    select jq_pk into found from jobqueue j
     where jq_pk between zone * 4096 and zone * 4096 + 4095 and jq_type = type and coalesce(jq_queue, '') = queue
       and coalesce(jq_host, '') = host and jq_submitter = submitter
       and counted_state(jq_state, jq_unmet, jq_wait_until) = state
       and (state <> 'queued' or jq_state = 'queued' and (jq_type = 'command' or has_token(j)))
     order by jq_pk limit 1;
    exit when found is not null;
  end loop;
  return found;
end $$;

CREATE FUNCTION drover.flush(before timestamp with time zone, failed_too boolean, most integer, INOUT stage text, INOUT place bigint, OUT removed bigint) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'drover', 'pg_temp'
    AS $$
begin
  select p.* into stage, place, removed
    from drover.prune(
           (select jsonb_object_agg(what, before) from unnest('{done,cancelled,ignored,skipped,command,log}'::text[]
              || case when failed_too then '{failed}'::text[] end) as what), most, stage, place) p;
end $$;

CREATE FUNCTION drover.flush_chosen(jobs bigint[], OUT removed bigint, OUT kept bigint[], OUT why text) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'drover', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    AS $$
declare
  old bigint[];
begin
  old := array(
    select jq_pk from jobqueue where jq_pk = any (jobs) and jq_endtime is not null order by jq_pk
       for update skip locked);
  old := array(  -- by another statement: it sees the edges that came before the lock
    select pk from unnest(old) as pk
     where not exists (
             select from jobdepends join jobqueue on jq_pk = jdep_jq_fk
              where jdep_jq_depends_fk = pk and jdep_met_at is null and (jq_endtime is null or jq_state = 'failed'))
       and not exists (
             select from jobdepends join jobqueue on jq_pk = jdep_jq_depends_fk
              where jdep_jq_fk = pk and jdep_met_at is null and jq_endtime is null));
  perform drover.check_at_once();
  select t.* into removed, kept, why from drover.try_to_remove('jobs', old) t;
end $$;

CREATE FUNCTION drover.flush_jobs(jobs bigint[]) RETURNS bigint
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'drover', 'pg_temp'
    AS $$
  select removed from drover.flush_chosen(jobs)
$$;

CREATE FUNCTION drover.fold_tally(most integer) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'drover', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    AS $$
declare
  origin constant timestamptz := '2000-01-01 00:00:00+00';
  folded bigint := 0;
  taken  bigint;
  step   record;
begin
  for step in
    select * from (values (interval '0', interval '1 minute', interval '0'), ('1 minute', '1 hour', '2 hours'),
                          ('1 hour', '1 day', '8 days')) as t(finer, span, age)
  loop
    with taken as materialized (
      delete from tally where ctid = any (array(
        select ctid from tally
         where tally_span = step.finer and tally_at < date_bin(step.span, now() - step.age, origin)
         order by tally_at limit most for update skip locked))
      returning date_bin(step.span, tally_at, origin) as at, tally.*),
    binned as (  -- what all jobs of a row are, then how many are in each bin
      select at, tally_type, tally_host, tally_state, tally_code, bin, sum(jobs)::bigint as jobs,
             sum(items)::bigint as items, max(newest) as newest
        from taken cross join lateral (
          select null::integer as bin, tally_jobs as jobs, tally_items as items, tally_newest as newest
           union all
          select *, 0, null from unnest(tally_bins, tally_counts)) u
       group by 1, 2, 3, 4, 5, 6),
    written as (
      insert into tally (tally_at, tally_span, tally_type, tally_host, tally_state, tally_code, tally_jobs, tally_items,
                         tally_newest, tally_bins, tally_counts)
      select at, step.span, tally_type, tally_host, tally_state, tally_code, sum(jobs) filter (where bin is null),
             sum(items), max(newest),
             coalesce(array_agg(bin order by bin) filter (where bin is not null), '{}'),
             coalesce(array_agg(jobs order by bin) filter (where bin is not null), '{}')
        from binned group by 1, 3, 4, 5, 6)
    select count(*) into taken from taken;
    folded := folded + taken;
  end loop;
  delete from tally where tally_span = '1 day' and tally_at < now() - interval '400 days';
  return folded;
end $$;

CREATE FUNCTION drover.forget_ended_subscriptions(beyond bigint, most integer) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'drover', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    AS $$
declare
  until bigint;
begin
  select max(sub_pk) into until from (
    select sub_pk from subscription where sub_pk > beyond order by sub_pk limit most) s
  having count(*) = most;
  delete from subscription
   where sub_pk = any (array(
     select sub_pk from subscription
      where sub_pk > beyond and sub_pk <= coalesce(until, 9223372036854775807)
        and (sub_expires < now() - interval '1 day'
             or sub_scope = 'job' and not exists (select from jobqueue where jq_pk = sub_of::bigint)
                and not exists (select from delivery where del_sub = sub_pk and del_state in ('waiting', 'sent')))
        for update skip locked));
  return until;
end $$;

CREATE FUNCTION drover.forget_events(beyond bigint, most integer) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'drover', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    AS $$
declare
  until bigint;
  dead  bigint;
begin
  select max(ev_pk) into until from (select ev_pk from event where ev_pk > beyond order by ev_pk limit most) e
  having count(*) = most;
  dead := (select max(del_event) from (
    select del_event from delivery
     where del_event > beyond and del_event <= coalesce(until, 9223372036854775807)
     order by del_event limit most) d having count(*) = most);
  until := least(until, dead);  -- several deliveries have one event, or none
  delete from event
   where ev_pk > beyond and ev_pk <= coalesce(until, 9223372036854775807)
     and not exists (select from delivery where del_event = ev_pk and del_state in ('waiting', 'sent'))
     and case when ev_jq_fk is null then ev_date < now() - interval '30 days'
              else not exists (select from jobqueue where jq_pk = ev_jq_fk) end;
  delete from delivery
   where del_event > beyond and del_event <= coalesce(until, 9223372036854775807)
     and (not exists (select from event where ev_pk = del_event)
          or del_state = 'waiting' and not exists (select from subscription where sub_pk = del_sub));
  delete from dead_letter where dead_pk = any (array(
    select dead_pk from (select dead_pk, dead_date from dead_letter order by dead_pk limit most) d
     where dead_date < now() - interval '30 days'));
  perform drover.forget_subscriptions() where drover.has_subscriptions();  -- at the end: it locks out who ends jobs
  return until;
end $$;

CREATE FUNCTION drover.forget_subscriptions() RETURNS void
    LANGUAGE plpgsql
    AS $$
begin
  if not exists (select from drover.subscription) then
    lock table drover.subscription, drover.subscription_key in access exclusive mode nowait;
    if not exists (select from drover.subscription) then
      truncate drover.subscription, drover.subscription_key;
    end if;
  end if;
exception when lock_not_available then
  return;  -- the next look is in a minute
end $$;

CREATE FUNCTION drover.give_variables() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'drover', 'pg_temp'
    AS $$
begin
  if exists (select from agent where agent_type = new.jq_type and agent_kind = 'exec') then
    select nullif(coalesce(jsonb_object_agg(variable_name, variable_value order by variable_type), '{}')
                  || coalesce(new.jq_variables, '{}'), '{}')
      into new.jq_variables from variable where variable_type in ('', new.jq_type);
  end if;
  return new;
end $$;

CREATE FUNCTION drover.gone() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'drover', 'pg_temp'
    AS $$
begin
  perform drover.withdraw(old);
  return null;
end $$;

CREATE FUNCTION drover.has_all_subscriptions(about text) RETURNS boolean
    LANGUAGE plpgsql
    SET search_path TO 'drover', 'pg_temp'
    AS $$
begin
  for n in 1..2 loop
    if (select count(*) from subscription where sub_owner = session_user) < 10000
       and (select count(*) from subscription where sub_key = about and sub_owner = session_user) < 10 then
      return false;
    end if;
    delete from subscription where sub_pk = any (array(
      select sub_pk from subscription
       where sub_owner = session_user and sub_expires <= now()
         and not exists (select from delivery where del_sub = sub_pk and del_state in ('waiting', 'sent'))
         for update skip locked));
  end loop;
  return true;
end $$;

CREATE FUNCTION drover.has_subscriptions() RETURNS boolean
    LANGUAGE sql PARALLEL SAFE
    AS $$select pg_catalog.pg_relation_size('drover.subscription'::pg_catalog.regclass) > 0$$;

CREATE FUNCTION drover.has_token(job drover.jobqueue) RETURNS boolean
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'drover', 'pg_temp'
    AS $$
  select exists (
    select from claimable
     where claim_type = job.jq_type and claim_queue = coalesce(job.jq_queue, '')
       and claim_host = coalesce(job.jq_host, '')
       and claim_rank = rank(job.jq_urgent, job.jq_priority) and claim_queued = job.jq_queued
         and claim_first = job.jq_pk)
    or exists (
      select from claimable
       where claim_first between block_of(job.jq_pk) and job.jq_pk and claim_jobs is not null
         and job.jq_pk = any (claim_jobs))
    or exists (select from claimable where claim_first = job.jq_pk and claim_line is not null)
$$;

CREATE FUNCTION drover.hide(job bigint, is_hidden boolean DEFAULT true) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'drover', 'pg_temp'
    AS $$
begin
  perform from jobqueue where jq_pk = job and jq_type <> 'command'
    and (jq_submitter = any (drover.wards()) or drover.may_command());
  if not found then
    return false;
  elsif is_hidden then
    insert into hidden values (job) on conflict do nothing;
  else
    delete from hidden where hidden_jq_fk = job;
  end if;
  return true;
end $$;

CREATE FUNCTION drover.hmac_block(key bytea, pad integer) RETURNS bytea
    LANGUAGE plpgsql IMMUTABLE
    AS $$
declare
  block bytea := decode(repeat('00', 64), 'hex');
begin
  key := case when length(key) > 64 then sha256(key) else key end;
  for i in 0..63 loop
    block := set_byte(block, i, (case when i < length(key) then get_byte(key, i) else 0 end) # pad);
  end loop;
  return block;
end $$;

CREATE FUNCTION drover.install_routes() RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'drover', 'pg_temp'
    SET lock_timeout TO '500ms'
    AS $$
declare
  body text;
  one  record;
begin
  perform drover.enter('install_routes');
  body := drover.routes();
  execute format('create or replace function drover.route(job drover.jobqueue, above drover.job, home text) '
                 'returns text language sql stable as %L', coalesce(body, 'select null::text'));
  perform drover.route(null, null, null);
  for one in
    select tgname as name, tgenabled <> 'D' as is_on, is_wanted
      from pg_catalog.pg_trigger
      join (values ('jobqueue_route', body is not null),
                   ('jobqueue_queue_limit', exists (select from queue where queue_max_length is not null)))
           as w(name, is_wanted) on w.name = tgname
     where tgrelid = 'drover.jobqueue'::regclass
  loop
    if one.is_wanted <> one.is_on then
      execute format('alter table drover.jobqueue %s trigger %I',
                     case when one.is_wanted then 'enable' else 'disable' end, one.name);
    end if;
  end loop;
  return null;
exception when others then
  return sqlerrm;
end $$;

CREATE FUNCTION drover.is_claimable(job drover.jobqueue) RETURNS boolean
    LANGUAGE sql IMMUTABLE
    AS $$
  select job.jq_state = 'queued' and job.jq_unmet = 0 and job.jq_wait_until is null
$$;

CREATE FUNCTION drover.is_claimed_by_record(job drover.jobqueue) RETURNS boolean
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$
  select not job.jq_msq and job.jq_rescued = 0 and job.jq_unique_key is null and job.jq_not_after is null
$$;

CREATE FUNCTION drover.is_member(who name, of_role name) RETURNS boolean
    LANGUAGE sql STABLE
    SET search_path TO 'drover', 'pg_temp'
    AS $$
  select exists (
    select from pg_catalog.pg_roles m join pg_catalog.pg_roles r on r.rolname = of_role
     where m.rolname = who and (m.oid = r.oid or not m.rolsuper and pg_has_role(m.oid, r.oid, 'member')))
$$;

CREATE FUNCTION drover.is_of_batch(was xid8, job drover.jobqueue) RETURNS boolean
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$
  select was is distinct from job.jq_batch and job.jq_unique_key is null and job.jq_not_after is null
$$;

CREATE FUNCTION drover.is_of_scheduler(submitter name) RETURNS boolean
    LANGUAGE sql STABLE
    SET search_path TO 'drover', 'pg_temp'
    AS $$
  select coalesce(bool_or(pg_has_role(w.oid, r.oid, 'member')), false)
    from pg_catalog.pg_roles w, pg_catalog.pg_roles r
   where w.rolname = submitter
     and (r.rolname = 'drover_scheduler'
          or r.oid = (select relowner from pg_catalog.pg_class where oid = 'drover.jobqueue'::regclass))
$$;

CREATE FUNCTION drover.is_over(what text) RETURNS boolean
    LANGUAGE sql STABLE
    AS $$
  select case drover.word(what, 1)
    when 'host' then exists (
      select from drover.host where host_name = drover.word(what, 2) and host_present and host_enabled
         and coalesce(host_down_until <= now(), true))
    when 'agent' then exists (
      select from drover.agent where agent_type = drover.word(what, 2) and agent_present and agent_enabled
         and coalesce(agent_blocked_until <= now(), true))
    when 'queue' then exists (
      select from drover.queue where queue_name = substr(what, 7) and queue_present and not queue_paused
         and coalesce(queue_concurrency > (
           select count(distinct jq_pk) from drover.in_hand cross join lateral unnest(hand_jobs) as u(pk)
             join drover.jobqueue j on j.jq_pk = u.pk
            where jq_queue = queue_name and (jq_state in ('claimed', 'running')
                  or jq_pk in (select r.jq_pk from drover.recorded r))), true))
    else false end
$$;

CREATE FUNCTION drover.is_route_stale() RETURNS boolean
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'drover', 'pg_temp'
    AS $$
declare
  body text;
begin
  body := drover.routes();
  return (select prosrc is distinct from coalesce(body, 'select null::text') from pg_catalog.pg_proc
           where oid = 'drover.route(drover.jobqueue, drover.job, text)'::regprocedure)
      or (select bool_or((tgenabled = 'D') = case tgname when 'jobqueue_route' then body is not null
                           else exists (select from queue where queue_max_length is not null) end)
            from pg_catalog.pg_trigger
           where tgrelid = 'drover.jobqueue'::regclass and tgname in ('jobqueue_route', 'jobqueue_queue_limit'));
exception when others then
  return true;
end $$;

CREATE FUNCTION drover.is_scheduler() RETURNS boolean
    LANGUAGE sql STABLE
    SET search_path TO 'drover', 'pg_temp'
    AS $$
  select coalesce(bool_or(pg_has_role(session_user, oid, 'member')), false)
    from pg_catalog.pg_roles where rolname = 'drover_scheduler'
$$;

CREATE FUNCTION drover.items(job drover.jobqueue) RETURNS text
    LANGUAGE sql STABLE PARALLEL SAFE
    AS $$
  select drover.progress(job.jq_itemsprocessed, job.jq_itemsfailed, job.jq_itemstotal, job.jq_elapsedtime, null)
$$;

CREATE FUNCTION drover.job_event(job bigint, said text) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'drover', 'pg_temp'
    AS $$
declare
  j record;
begin
  select jq_pk, jq_submitter, jq_endtime, job_tenant into j
    from jobqueue left join drover.job g on g.job_pk = jq_job_fk
   where jq_pk = job and jq_type <> 'command' and (jq_submitter = session_user or drover.may_command());
  if not found then
    raise exception 'no job % of yours', job using errcode = 'insufficient_privilege';
  elsif j.jq_endtime is not null then
    raise exception 'job % has ended: its last event was recorded', job
      using errcode = 'object_not_in_prerequisite_state';
  elsif coalesce(said, '') = '' then
    raise exception 'an event needs a text' using errcode = 'invalid_parameter_value';
  end if;
  return drover.record_one('user', job, j.jq_submitter, j.job_tenant, said);
end $$;

CREATE FUNCTION drover.job_hide(pk bigint, hidden boolean DEFAULT true) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'drover', 'pg_temp'
    AS $$
begin
  update drover.job set job_hidden = hidden where job_pk = pk and (job_user = session_user or drover.may_command());
  if not found then
    raise exception 'no job group % of yours', coalesce(pk::text, '?') using errcode = 'no_data_found';
  end if;
end $$;

CREATE FUNCTION drover.job_named(name text) RETURNS bigint
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'drover', 'pg_temp'
    AS $_$
declare
  sees_all boolean := has_column_privilege(session_user, 'drover.jobqueue', 'jq_name', 'select');
  pk bigint;
begin
  if name ~ '^[0-9]{1,18}$' then
    select jq_pk into pk from drover.jobqueue where jq_pk = name::bigint and (sees_all or jq_submitter = session_user);
  else
    select jq_pk into pk from drover.jobqueue where jq_name = name and (sees_all or jq_submitter = session_user);
  end if;
  if pk is null then
    raise exception 'no job %', quote_literal(name) using errcode = 'foreign_key_violation';
  end if;
  return pk;
end $_$;

CREATE FUNCTION drover.job_resubmit(pk bigint) RETURNS bigint
    LANGUAGE plpgsql
    SET search_path TO 'drover', 'pg_temp'
    AS $_$
declare
  old     record;
  columns jsonb;
  again   bigint;
begin
  if drover.may_command() then
    select * into old from drover.jobqueue where jq_pk = pk;
  else
    select * into old from drover.my_jobs where jq_pk = pk;
  end if;
  if old.jq_pk is null then
    raise exception 'no job % of yours', coalesce(pk::text, '?') using errcode = 'no_data_found';
  elsif old.jq_endtime is null then
    raise exception 'job % has not ended: it is %', pk, old.jq_state using errcode = 'check_violation';
  end if;
  select jsonb_object_agg(key, value) || jsonb_build_object('jq_resubmit_of', pk) into columns
    from jsonb_each(to_jsonb(old))
   where value not in ('null', 'false')
     and key = any ('{jq_job_fk,jq_type,jq_args,jq_variables,jq_msq,jq_runonpfile,jq_host,jq_key,jq_tolerate,jq_repeat,
           jq_queue,jq_urgent,jq_priority,jq_max_interruptions,jq_retries,jq_timeout,jq_unique_key,jq_delete,
           jq_mode}'::text[]);
  execute format('insert into drover.jobqueue (%1$s) select %1$s '
                 'from jsonb_populate_record(null::drover.jobqueue, $1) returning jq_pk',
                 (select string_agg(quote_ident(key), ', ') from jsonb_object_keys(columns) as key))
    into again using columns;
  return again;
end $_$;

CREATE FUNCTION drover.job_setup(name text, settings jsonb DEFAULT '{}'::jsonb, OUT jq_pk bigint, OUT existed boolean) RETURNS record
    LANGUAGE plpgsql
    SET search_path TO 'drover', 'pg_temp'
    AS $_$
#variable_conflict use_column
declare
  columns   jsonb;
  variables jsonb;
  wrong     text;
  -- who may not read the names of all jobs, for whom `on conflict` may not name the column
  conflict  text := case when has_column_privilege('drover.jobqueue', 'jq_name', 'select') then '(jq_name)' else '' end;
begin
  if (name ~ '^[^.[:space:]]+[.][^.[:space:]]+$') is not true then
    raise exception 'job name %: it is the type, a dot, and something without a dot or a blank', quote_nullable(name)
      using errcode = 'check_violation';
  elsif split_part(name, '.', 1) = 'command' then
    raise exception 'a command is not set up: insert it' using errcode = 'check_violation';
  elsif jsonb_typeof(settings) is distinct from 'object' then
    raise exception 'the settings of a job are one JSON object' using errcode = 'invalid_parameter_value';
  end if;
  select key into wrong from jsonb_object_keys(settings) as key
   where key ~ '^(jq|rjm)_' and key <> all ('{jq_job_fk,jq_args,jq_msq,jq_runonpfile,jq_host,jq_key,jq_tolerate,
           jq_repeat,jq_queue,jq_urgent,jq_priority,jq_not_before,jq_not_after,jq_max_interruptions,jq_retries,
           jq_timeout,
           jq_unique_key,jq_delete,jq_mode,
           rjm_delete,rjm_blocks}'::text[])
      or key !~ '^[A-Za-z_][A-Za-z0-9_]*$' limit 1;
  if wrong ~ '^(jq|rjm)_' then
    raise exception '% is no setting: names that begin with jq_ or rjm_ are reserved', wrong
      using errcode = 'undefined_parameter';
  elsif wrong is not null then
    raise exception 'variable %: a name is of letters, digits and _, and begins with no digit', quote_literal(wrong)
      using errcode = 'invalid_name';
  end if;
  select coalesce(jsonb_object_agg(key, value) filter (where key ~ '^jq_'), '{}'),
         coalesce(jsonb_object_agg(key, value) filter (where key !~ '^(jq|rjm)_' and key <> 'depends'), '{}')
    into columns, variables from jsonb_each(settings);
  columns := jsonb_build_object('jq_args', drover.line(variables)) || columns
             || jsonb_build_object('jq_name', name, 'jq_type', split_part(name, '.', 1), 'jq_state', 'held');
  if variables <> '{}' then
    columns := columns || jsonb_build_object('jq_variables', variables);
  end if;
  if settings ? 'rjm_delete' then
    columns := columns || jsonb_build_object('jq_delete', drover.names(settings -> 'rjm_delete'));
  end if;
  execute format('insert into drover.jobqueue (%1$s) select %1$s from jsonb_populate_record(null::drover.jobqueue, $1)
                  on conflict %2$s do nothing returning jq_pk',
                 (select string_agg(quote_ident(key), ', ') from jsonb_object_keys(columns) as key), conflict)
    into jq_pk using columns;
  existed := jq_pk is null;
  if existed then
    begin
      jq_pk := drover.job_named(name);
    exception when foreign_key_violation then
      raise exception 'job name % is taken, or its jq_unique_key is', name using errcode = 'unique_violation';
    end;
    return;
  end if;
  select format('job %s is %s', job, state) into wrong
    from drover.ended_in_vain(array(
           select drover.job_named(parent) from unnest(drover.names(settings -> 'depends')) as parent))
   where state <> 'failed' limit 1;
  if found then
    raise exception '%, and never succeeds: a job that depends on it would wait for ever', wrong
      using errcode = 'check_violation';
  end if;
  insert into drover.jobdepends (jdep_jq_fk, jdep_jq_depends_fk)
  select jq_pk, drover.job_named(parent) from unnest(drover.names(settings -> 'depends')) as parent
   union
  select drover.job_named(child), jq_pk from unnest(drover.names(settings -> 'rjm_blocks')) as child;
end $_$;

CREATE FUNCTION drover.job_share(pk bigint, role name, shared boolean DEFAULT true) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'drover', 'pg_temp'
    AS $$
declare
  j record;
begin
  select jq_submitter, jq_endtime, job_tenant into j from jobqueue left join drover.job on job_pk = jq_job_fk
   where jq_pk = pk and jq_type <> 'command' and (jq_submitter = session_user or drover.may_command());
  if not found then
    raise exception 'job % is not yours', coalesce(pk::text, '?') using errcode = 'insufficient_privilege';
  elsif not exists (select from pg_catalog.pg_roles where rolname = role) then
    raise exception 'no role %', quote_nullable(role) using errcode = 'undefined_object';
  elsif shared then
    insert into share values (pk, role) on conflict do nothing;
  else
    delete from share where share_jq_fk = pk and share_with = role;
  end if;
  perform drover.record_one('share', pk, j.jq_submitter, j.job_tenant,
                            case when shared then 'shared with ' else 'not shared any more with ' end || role)
    where found and j.jq_endtime is null;
end $$;

CREATE FUNCTION drover.json_bytes(value jsonb) RETURNS integer
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$
  select case when pg_column_size(value) > 134217728 then pg_column_size(value) else octet_length(value::text) end
$$;

CREATE FUNCTION drover.keep_group() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'drover', 'pg_temp'
    AS $$
begin
  if current_setting('transaction_isolation') in ('repeatable read', 'serializable') then
    raise exception 'a job group is deleted in a transaction that is read committed'
      using errcode = 'feature_not_supported';
  elsif exists (select from jobqueue where jq_job_fk = old.job_pk) then
    raise exception 'job group % has jobs: remove them first', old.job_pk
      using errcode = 'foreign_key_violation', constraint = 'jobqueue_jq_job_fk_fkey';
  end if;
  return null;
end $$;

CREATE FUNCTION drover.leave_shared(jobs bigint[]) RETURNS bigint[]
    LANGUAGE plpgsql
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET jit TO 'off'
    AS $$
declare
  tokens tid[];
  gone   bigint[];
  found  bigint[] := '{}';
begin
  loop
    select array_agg(t.ctid) into tokens
      from unnest(jobs) as pk cross join lateral (
        select ctid, claim_jobs from drover.claimable
         where claim_first between drover.block_of(pk) and pk and claim_jobs is not null
        offset 0) as t  -- not to be reordered
     where pk = any (claim_jobs);
    exit when tokens is null;
    with deleted as (delete from drover.claimable where ctid = any (tokens) returning *),
    job as (
      select claim_first, pk, pk in (select unnest(jobs)) as leaves from deleted, unnest(claim_jobs) as pk),
    run as (
      select *, count(*) filter (where leaves) over (partition by claim_first order by pk) as n from job),
    put_back as (
      insert into drover.claimable (claim_first, claim_jobs, claim_queued, claim_type, claim_queue, claim_host,
                                    claim_rank, claim_by_record)
      select min(pk), array_agg(pk order by pk), claim_queued, claim_type, claim_queue, claim_host, claim_rank, true
        from run join deleted using (claim_first) where not leaves
       group by n, claim_first, claim_queued, claim_type, claim_queue, claim_host, claim_rank)
    select array_agg(pk) into gone from job where leaves;
    found := found || gone;
  end loop;
  perform drover.notify('drover_queue', '') where found <> '{}';  -- claims skip tokens that are locked
  return found;
end $$;

CREATE FUNCTION drover.let_next_go(number bigint) RETURNS void
    LANGUAGE sql
    SET search_path TO 'drover', 'pg_temp'
    AS $$
  update delivery set del_next = now()
   where del_state = 'waiting' and del_next is null
     and del_pk = (select w.del_pk from delivery d
                     join delivery w on w.del_sub = d.del_sub and w.del_target = d.del_target
                      and w.del_jq_fk = d.del_jq_fk and w.del_state in ('waiting', 'sent')
                    where d.del_pk = number order by w.del_pk limit 1)
$$;

CREATE FUNCTION drover.limit_group() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'drover', 'pg_temp'
    AS $$
begin
  perform drover.refuse_long('{job_name,job_tenant,job_data}',
                             array[octet_length(new.job_name), octet_length(new.job_tenant), drover.json_bytes(new.job_data)]);
  perform drover.refuse_json('job_data', new.job_data);
  return new;
end $$;

CREATE FUNCTION drover.limit_group_tenant() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'drover', 'pg_temp'
    AS $$
begin
  if exists (select from pg_catalog.pg_roles where rolname = new.job_tenant)
     and not (drover.is_member(session_user, new.job_tenant::name) or drover.may_command()
              or drover.is_scheduler()) then
    raise exception '% is no member of tenant %', session_user, quote_literal(new.job_tenant)
      using errcode = 'insufficient_privilege';
  end if;
  return new;
end $$;

CREATE FUNCTION drover.limit_job() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'drover', 'pg_temp'
    AS $$
begin
  perform drover.refuse_long(
    '{jq_args,jq_variables,jq_name,jq_unique_key,jq_runonpfile,jq_key}',
    array[octet_length(new.jq_args), drover.json_bytes(new.jq_variables), octet_length(new.jq_name), octet_length(new.jq_unique_key),
          octet_length(new.jq_runonpfile), octet_length(new.jq_key)])
    where new.jq_type <> 'cleanup';
  perform drover.refuse_json('jq_variables', new.jq_variables);
  return new;
end $$;

CREATE FUNCTION drover.limit_queues() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'drover', 'pg_temp'
    AS $$
declare
  one     record;
  waiting bigint;
begin
  for one in
    select distinct queue_name as name, queue_max_length as most
      from queue join arrived on jq_queue = queue_name
     where queue_max_length is not null and jq_type not in ('command', 'cleanup')
       and case when jq_type = 'notify' or jq_unique_key like 'drover.tester.%'
                then not drover.is_of_scheduler(jq_submitter) else true end
     order by queue_name
  loop
    perform drover.enter_queue(one.name);
    waiting := drover.waiting_in(one.name, one.most + 1);
    if waiting > one.most then
      raise exception 'queue % is full: at most % jobs may wait in it', one.name, one.most
        using errcode = 'check_violation', constraint = 'queue_max_length',
              hint = 'Try again when some have started, or have an operator raise it: drover queue length.';
    end if;
  end loop;
  return null;
end $$;

CREATE FUNCTION drover.limit_tenant() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'drover', 'pg_temp'
    AS $$
declare
  usual text;
  owner text;
begin
  if new.jq_queue = 'default' and new.jq_host is null then
    select tenant_queue into usual from tenant
      join pg_catalog.pg_roles r on r.rolname = tenant_name and pg_has_role(session_user, r.oid, 'member')
     where tenant_queue <> 'default'
       and not exists (select from pg_catalog.pg_roles s  -- it queues what operators asked for
                        where s.rolname = 'drover_scheduler' and pg_has_role(session_user, s.oid, 'member'))
     order by tenant_name limit 1;
    new.jq_queue := coalesce(usual, 'default');
  end if;
  select tq_tenant into owner from tenant_queue where tq_queue = new.jq_queue;
  if owner is not null and not exists (
       select from pg_catalog.pg_roles where rolname = owner and pg_has_role(session_user, oid, 'member'))
     and not (drover.may_command() or drover.is_scheduler()) then
    raise exception 'queue % belongs to a tenant, and % is no member of it', new.jq_queue, session_user
      using errcode = 'insufficient_privilege';
  end if;
  return new;
end $$;

CREATE FUNCTION drover.line(variables jsonb) RETURNS text
    LANGUAGE sql IMMUTABLE
    SET search_path TO 'drover', 'pg_temp'
    AS $$
  select coalesce(string_agg(key || '="' || escape(value) || '"', ' ' order by n), '')
    from jsonb_each_text(variables) with ordinality as v(key, value, n) where value is not null
$$;

CREATE FUNCTION drover.line_of(submitter name, is_back boolean) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN ((submitter)::text || CASE WHEN is_back THEN '/back'::text ELSE ''::text END);

CREATE FUNCTION drover.line_up(jobs bigint[]) RETURNS void
    LANGUAGE plpgsql
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET jit TO 'off'
    AS $$
begin
  insert into drover.claimable (claim_jq_fk, claim_first, claim_queued, claim_type, claim_queue, claim_host, claim_rank,
                                claim_line, claim_by_record)
  with came as materialized (
    select jq_pk as pk, jq_queued as queued, jq_type as type, coalesce(jq_queue, '') as queue, coalesce(jq_host,
      '') as host,
           drover.rank(jq_urgent, jq_priority) as rank, drover.line_of(jq_submitter, jq_attempt > 0) as line,
           drover.is_claimed_by_record(j) as by_record,
           exists (select from drover.fair where fair_type = jq_type and fair_queue = jq_queue) as is_fair
      from drover.jobqueue j where jq_pk = any (jobs)),
  numbered as (
    select *, row_number() over (partition by type, queue, host, rank, line order by queued, pk) as n from came
      where is_fair),
  begun as (
    select *, case n when 1 then drover.next_round(type, queue, host, rank, line) end as first from numbered)
  select pk, pk, queued, type, queue, host, rank, null, by_record from came where not is_fair
  union all
  select pk, pk, queued, type, queue, host,
         drover.rank_in_round(rank, n - 1 + max(first) over (partition by type, queue, host, rank, line)), line,
           by_record
    from begun;
end $$;

CREATE FUNCTION drover.lock_in_order(jobs bigint[], shared boolean) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'drover', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
begin
  if shared then
    perform from jobqueue where jq_pk = any (jobs) order by jq_pk for share;
  else
    perform from jobqueue where jq_pk = any (jobs) order by jq_pk for no key update;
  end if;
end $$;

CREATE FUNCTION drover.lock_jobs(jobs bigint[], shared boolean) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'drover', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
declare
  own      text := (pg_current_xact_id()::text::bigint & 4294967295)::text;
  stuck    bigint;
begin
  if not exists (select from jobqueue where jq_pk = any (jobs) and xmax <> '0' and xmax::text <> own) then
    perform drover.lock_in_order(jobs, shared);
    return;
  end if;
  begin
    perform drover.lock_in_order(jobs, shared);
  exception when lock_not_available then
    select min(pk) into stuck from unnest(jobs) as pk
     where pk not in (select jq_pk from jobqueue where jq_pk = any (jobs) for no key update skip locked);
    raise exception 'job % is kept locked by another transaction: end that one, then add the dependency again', coalesce(stuck, jobs[1])
      using errcode = 'lock_not_available';
  end;
end $$;

CREATE FUNCTION drover.lockers(OUT locker xid, OUT says text) RETURNS SETOF record
    LANGUAGE sql STABLE ROWS 10
    SET search_path TO 'drover', 'pg_temp'
    AS $$
  select transactionid,
         'its row is locked by '
           || coalesce('pid ' || pid || ', user ' || usename
                         || coalesce(', application ' || nullif(application_name, ''), '')
                         || coalesce(', for ' || drover.about(date_part('epoch', clock_timestamp() - xact_start)), '')
                         || '; next: end that transaction, as with select pg_terminate_backend(' || pid || ')',
                       'a prepared transaction; next: commit it or roll it back, see pg_prepared_xacts')
    from pg_catalog.pg_locks left join pg_catalog.pg_stat_activity using (pid)
   where locktype = 'transactionid' and mode = 'ExclusiveLock' and granted
     and coalesce(xact_start < clock_timestamp() - interval '1 second',
                  application_name not like 'drover%', true)
$$;

COMMENT ON FUNCTION drover.lockers(OUT locker xid, OUT says text) IS 'sessions that have had a transaction open for more than a second, for drover.why';

CREATE FUNCTION drover.look_at_rest(jobs bigint[], states drover.job_state[], owner uuid, may_be_ended boolean, OUT locked bigint[], OUT ours bigint[], OUT theirs bigint[]) RETURNS record
    LANGUAGE sql STABLE
    SET search_path TO 'drover', 'pg_temp'
    AS $$
  with rest as materialized (
    select jq_pk, case
             when is_recorded then case when 'claimed' = any (states) and may_be_ended then 'in hand' end
             when not jq_state = any (states) then null
             when jq_state in ('claimed', 'running')
             then case when may_be_ended and jq_wanted is null then 'in hand' end
             else 'locked' end as is_so,
           coalesce(jq_owner, (select hand_owner from in_hand where jq_pk = any (hand_jobs)
                                order by hand_since desc limit 1)) as has
      from unnest(jobs) as pk cross join lateral (
        select j.jq_pk, j.jq_state, j.jq_wanted, j.jq_owner,
               j.jq_state = 'queued' and j.jq_unmet = 0 and j.jq_wait_until is null and not has_token(j) as is_recorded
          from jobqueue j where j.jq_pk = pk offset 0) j)
  select array(select jq_pk from rest where is_so = 'locked' or is_so = 'in hand' and has is null),
         array(select jq_pk from rest where is_so = 'in hand' and has = owner),
         array(select jq_pk from rest where is_so = 'in hand' and has <> owner)
$$;

CREATE FUNCTION drover.may_be_told(who name, scope text, what text, submitter name) RETURNS boolean
    LANGUAGE sql STABLE
    AS $$
  select case scope when 'job'    then who = submitter
                    when 'owner'  then who::text = what
                    when 'tenant' then drover.is_member(who, what::name)
                    else false end or drover.may_command(who)
$$;

CREATE FUNCTION drover.may_command(who name DEFAULT SESSION_USER) RETURNS boolean
    LANGUAGE sql STABLE
    SET search_path TO 'drover', 'pg_temp'
    AS $$
  select coalesce(bool_or(pg_has_role(w.oid, r.oid, 'member')), false)
    from pg_catalog.pg_roles w, pg_catalog.pg_roles r
   where w.rolname = who
     and (r.rolname = 'drover_operator' or r.oid = (select relowner from pg_catalog.pg_class where oid = 'drover.jobqueue'::regclass))
$$;

CREATE FUNCTION drover.may_queue(who name, submitters text[]) RETURNS boolean
    LANGUAGE sql STABLE
    SET search_path TO 'drover', 'pg_temp'
    AS $$
  select '*' = any (submitters) or exists (
    select from pg_catalog.pg_roles s join pg_catalog.pg_roles r on pg_catalog.pg_has_role(s.oid, r.oid, 'member')
     where s.rolname = who and r.rolname = any (submitters))
$$;

CREATE FUNCTION drover.may_share() RETURNS boolean
    LANGUAGE sql STABLE
    AS $$
  select not exists (
    select from drover.scheduler_group join drover.scheduler on scheduler_uuid = group_owner
     where not scheduler_takes_shared)
$$;

CREATE FUNCTION drover.members_of(who name, tenants text[]) RETURNS name[]
    LANGUAGE sql STABLE
    SET search_path TO 'drover', 'pg_temp'
    AS $$
  select array(
    select who union
    select m.rolname from pg_catalog.pg_roles r
      join pg_catalog.pg_roles m on m.oid = r.oid or not m.rolsuper and pg_has_role(m.oid, r.oid, 'member')
     where r.rolname = any (tenants))
$$;

CREATE FUNCTION drover.message(said text) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN CASE WHEN (length(said) > 16384) THEN ((("left"(said, 16300) || ' [cut: '::text) || length(said)) || ' characters]'::text) ELSE said END;

CREATE FUNCTION drover.move_start_window() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'drover', 'pg_temp'
    AS $$
begin
  update jobqueue j  -- but for a job in hand
     set jq_wait_until = nullif(greatest(jq_not_before, jq_retry_at, now()), now()),
         jq_expires_at = case when jq_attempt = 0 then jq_not_after end
   where jq_pk = new.jq_pk
     and (jq_state = 'held' or jq_state = 'queued' and (jq_unmet > 0 or jq_wait_until is not null or has_token(j)));
  perform notify('drover_due', '');
  return null;
end $$;

CREATE FUNCTION drover.moved() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'drover', 'pg_temp'
    AS $$
declare
  by_record boolean := old.jq_state = 'queued' and new.jq_attempt > old.jq_attempt and new.jq_type <> 'command';
  was       boolean := drover.is_claimable(old) and not by_record;
  is_so     boolean := drover.is_claimable(new);
  is_tester boolean := case when new.jq_unique_key like 'drover.tester.%'
                            then drover.is_of_scheduler(new.jq_submitter) else false end;
begin
  if old.jq_state <> new.jq_state then
    if not (case old.jq_state
      when 'held'    then new.jq_state in ('queued', 'skipped', 'cancelled', 'ignored')
      when 'queued'  then new.jq_state in ('claimed', 'held', 'blocked', 'cancelled', 'skipped', 'failed')
                          or (new.jq_state = 'done' and new.jq_type = 'command')
                          or (new.jq_state in ('running', 'done') and by_record)
      when 'claimed' then new.jq_state in ('running', 'queued', 'done', 'failed', 'blocked', 'cancelled')
      when 'running' then new.jq_state in ('done', 'queued', 'failed', 'blocked', 'cancelled')
      when 'blocked' then new.jq_state in ('queued', 'held', 'failed', 'cancelled')
      when 'failed'  then new.jq_state = 'queued'
      else false end) then
      raise exception 'job % may not move from % to %', old.jq_pk, old.jq_state,
        new.jq_state using errcode = 'check_violation';
    end if;
    if new.jq_not_after is not null or new.jq_unique_key is not null then
    update drover.jobqueue
       set jq_expires_at = case when jq_state in ('held', 'queued') and jq_attempt = 0 then jq_not_after end,
           jq_live_key = case when jq_state in ('held', 'queued', 'claimed', 'running', 'blocked')
             then jq_unique_key end
     where jq_pk = new.jq_pk and (jq_not_after is not null or jq_unique_key is not null);
    end if;
    if old.jq_state = 'blocked' then
      delete from drover.blocked where blocked_jq_fk = old.jq_pk;
    elsif new.jq_state = 'blocked' and is_tester then
      update drover.jobqueue  -- its answer is that the condition is still there: it does not wait for one itself
         set jq_state = 'cancelled', jq_starttime = coalesce(jq_first_start, now()), jq_endtime = now(),
             jq_end_bits = 2, jq_wait_until = null
       where jq_pk = new.jq_pk;
    elsif new.jq_state = 'blocked' then
      perform drover.enter_recovery(new);
    end if;
    perform drover.notify('drover_recovery', '') where is_tester and new.jq_endtime is not null;  -- it has an answer
  elsif new.jq_wait_until is distinct from old.jq_wait_until
        and new.jq_attempt = old.jq_attempt and new.jq_type <> 'command' then
    perform drover.notify('drover_due', '') where new.jq_wait_until is not null;
  end if;
  if was and (not is_so or (old.jq_queue, coalesce(old.jq_host, ''), old.jq_urgent, old.jq_priority, old.jq_queued)
                           <> (new.jq_queue, coalesce(new.jq_host, ''), new.jq_urgent, new.jq_priority,
                             new.jq_queued)) then
    perform drover.withdraw(old);
    was := false;
  end if;
  if is_so and not was then
    perform drover.offer(new, new.jq_attempt > 0 and new.jq_queued = old.jq_queued);
  end if;
  if new.jq_state <> 'done' or new.jq_done_by is null then  -- others are counted by the statement that ends them
    perform drover.count_move(old, new);
  end if;
  return null;
end $$;

CREATE FUNCTION drover.names(list jsonb) RETURNS text[]
    LANGUAGE sql IMMUTABLE
    AS $$
  select case jsonb_typeof(list) when 'array' then array(select jsonb_array_elements_text(list)) else array_remove(array[list #>> '{}'], null) end
$$;

CREATE FUNCTION drover.need_group() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'drover', 'pg_temp'
    AS $$
declare
  owner name;
begin
  select job_user into owner from job where job_pk = new.jq_job_fk for key share;
  if not found then
    raise exception 'no job group has job_pk %', new.jq_job_fk
      using errcode = 'foreign_key_violation', constraint = 'jobqueue_jq_job_fk_fkey';
  elsif owner <> session_user and not (owner = any (drover.fellows()) or drover.may_command()
                                       or drover.is_scheduler()) then
    raise exception 'job group % is not yours', new.jq_job_fk using errcode = 'insufficient_privilege';
  end if;
  return null;
end $$;

CREATE FUNCTION drover.newest_zone() RETURNS bigint
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'drover', 'pg_temp'
    AS $$
  select zone_of(max(jq_pk)) from jobqueue
$$;

CREATE FUNCTION drover.next_round(type text, queue text, host text, rank text, line text) RETURNS bigint
    LANGUAGE plpgsql STABLE
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_sort TO 'off'
    AS $$
begin
  return greatest(
    (select right(claim_rank, 15)::bigint + 1 from drover.claimable
      where claim_type = type and claim_queue = queue and claim_host = host and claim_line = line
        and claim_rank > rank || '.' and claim_rank < rank || '/'
      order by claim_rank desc limit 1),
    (select right(claim_rank, 15)::bigint from drover.claimable
      where claim_type = type and claim_queue = queue and claim_host = host and claim_rank > rank || '.'
        and claim_rank < rank || '/'
      order by claim_rank, claim_queued, claim_first limit 1),
    0);
end $$;

CREATE FUNCTION drover.no_agent_type(asked text, in_group text) RETURNS text
    LANGUAGE sql STABLE
    SET search_path TO 'drover', 'pg_temp'
    AS $$
  with type as (select * from drover.agent_types_of(asked, in_group)),
  called as (select (regexp_split_to_array(btrim(asked), '\s+'))[1] as name),
  missing as (
    select key from drover.attributes_of(asked)
     where not exists (select from type where agent_attributes ->> key = value) order by n limit 1)
  select format('no agent type has the attributes of %s: ', asked) || case
           when not exists (select from type) then format('group %s has no %s', in_group, name)
           when not exists (select from missing) then format('no %s has all of them', name)
           else coalesce((select format('%s has %s %s', name, key, string_agg(distinct agent_attributes ->> key, ', '))
                            from type, missing where agent_attributes ? key group by key),
                         (select format('no %s has %s', name, key) from missing)) end
    from called
$$;

CREATE FUNCTION drover.note_rate_change() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'drover', 'pg_temp'
    AS $$
begin
  new.queue_rate_changed := now();
  return new;
end $$;

CREATE FUNCTION drover.notification(number bigint) RETURNS text
    LANGUAGE plpgsql
    AS $$
declare
  d    record;
  body text;
  at   text := extract(epoch from now())::bigint;
begin
  select * into strict d from drover.delivery join drover.subscription on sub_pk = del_sub
    join drover.subscription_key on key_sub = sub_pk join drover.event on ev_pk = del_event where del_pk = number;
  body := json_build_object(
    'type', 'job.' || d.ev_kind,
    'timestamp', to_char(d.ev_date at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
    'data', json_build_object(
      'event', d.ev_pk, 'subscription', d.sub_pk, 'job', d.ev_jq_fk, 'job_group', d.ev_job_fk, 'kind', d.ev_kind,
      'old', d.ev_old, 'new', d.ev_new, 'text', d.ev_text, 'owner', d.ev_owner, 'tenant', d.ev_tenant,
      'final', d.ev_is_final));
  return json_build_object(
    'delivery', number, 'to', d.sub_targets[d.del_target], 'body', body,
    'headers', json_build_object(
      'webhook-id', 'evt_' || d.ev_pk, 'webhook-timestamp', at,
      'webhook-signature', 'v1,' || encode(sha256(d.key_outer || sha256(
        d.key_inner || convert_to('evt_' || d.ev_pk || '.' || at || '.' || body, 'UTF8'))), 'base64')));
end $$;

CREATE FUNCTION drover.notify(channel text, payload text) RETURNS void
    LANGUAGE sql
    AS $$
  select case when coalesce(current_setting('drover.notify', true), '') <> 'off' then pg_catalog.pg_notify(channel, payload) end;
$$;

CREATE FUNCTION drover.number_of(value text) RETURNS numeric
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN CASE WHEN (value ~ '^-?[0-9]{1,15}([.][0-9]{1,15})?$'::text) THEN (value)::numeric ELSE NULL::numeric END;

CREATE FUNCTION drover.offer(job drover.jobqueue, is_back boolean) RETURNS void
    LANGUAGE plpgsql
    AS $$
declare
  rank text := drover.rank(job.jq_urgent, job.jq_priority);
  line text;
begin
  if exists (select from drover.fair where fair_type = job.jq_type and fair_queue = job.jq_queue) then
    line := drover.line_of(job.jq_submitter, is_back);
    rank := drover.rank_in_round(rank, drover.next_round(job.jq_type, job.jq_queue, coalesce(job.jq_host, ''), rank,
      line));
  end if;
  insert into drover.claimable (claim_jq_fk, claim_first, claim_queued, claim_type, claim_queue, claim_host, claim_rank,
                                claim_line, claim_by_record)
  values (job.jq_pk, job.jq_pk, job.jq_queued, job.jq_type, coalesce(job.jq_queue, ''), coalesce(job.jq_host, ''),
          rank, line, drover.is_claimed_by_record(job));
  perform drover.notify('drover_queue', '');
end $$;

CREATE FUNCTION drover.offer_all(jobs bigint[]) RETURNS void
    LANGUAGE plpgsql
    AS $$
begin
  if exists (select from drover.agent where agent_fair) then
    perform drover.line_up(jobs);
  else
    insert into drover.claimable (claim_jq_fk, claim_first, claim_jobs, claim_queued, claim_type, claim_queue,
                                  claim_host, claim_rank, claim_by_record)
    select case when count(*) = 1 then min(jq_pk) end, min(jq_pk),
           case when count(*) > 1 then array_agg(jq_pk order by jq_pk) end,
           jq_queued, jq_type, coalesce(jq_queue, ''), coalesce(jq_host, ''), drover.rank(jq_urgent, jq_priority),
           by_record
      from (select *, drover.is_claimed_by_record(j) as by_record from drover.jobqueue j where jq_pk = any (jobs)) j
     group by case when by_record and (select drover.may_share()) then drover.block_of(jq_pk) else jq_pk end,
              jq_type, jq_queue, jq_host, jq_urgent, jq_priority, jq_queued, by_record;
  end if;
  perform drover.notify('drover_queue', '') where cardinality(jobs) > 0;
end $$;

CREATE FUNCTION drover.offer_command() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'drover', 'pg_temp'
    AS $$
declare
  host text := coalesce(new.jq_host, '');
  rank text := drover.rank(new.jq_urgent, new.jq_priority);
  line text;
begin
  if not drover.may_command(new.jq_submitter) then
    line := new.jq_submitter;
    rank := '2' || new.jq_priority;
    rank := drover.rank_in_round(rank, drover.next_round('command', '', host, rank, line));
  end if;
  insert into drover.claimable (claim_jq_fk, claim_first, claim_queued, claim_type, claim_queue, claim_host, claim_rank,
                                claim_line)
  values (new.jq_pk, new.jq_pk, new.jq_queued, 'command', '', host, rank, line);
  return null;
end $$;

CREATE FUNCTION drover.offer_new() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'drover', 'pg_temp'
    SET enable_sort TO 'off'
    SET work_mem TO '64MB'
    AS $$
declare
  has_fair boolean;
  has_many boolean;
begin
  select exists (select from drover.agent where agent_fair), exists (select from arrived offset 31)
    into has_fair, has_many;
  if has_fair then
    has_fair := exists (select from arrived join drover.fair on fair_type = jq_type and fair_queue = jq_queue);
  end if;
  if has_many and not has_fair and coalesce(current_setting('drover.has_edges', true), '') = '' then
    with alike as materialized (
      select zone_of(min(jq_pk)) as zone, min(jq_pk) as pk, count(*) as jobs,
             case when count(*) > 1 then array_agg(jq_pk) end as pks, jq_queued, jq_type,
             coalesce(jq_queue, '') as queue, coalesce(jq_host, '') as host, rank(jq_urgent, jq_priority) as rank,
             by_record, jq_submitter, state
        from (select *, not jq_msq and jq_rescued = 0 and jq_unique_key is null and jq_not_after is null as by_record,
                     case when jq_state <> 'queued' then jq_state::text when jq_unmet > 0 then 'unmet'
                          when jq_wait_until is not null then 'early' else 'queued' end as state
                from arrived) a
       group by case when by_record and (select drover.may_share()) or state <> 'queued'
                  then drover.block_of(jq_pk) else jq_pk end,
                jq_type, jq_queue, jq_host, jq_urgent, jq_priority, jq_queued, by_record, jq_submitter, state),
    offered as (
      insert into drover.claimable (claim_jq_fk, claim_first, claim_jobs, claim_queued, claim_type, claim_queue,
                                    claim_host, claim_rank, claim_by_record)
      select case when jobs = 1 then pk end, pk, pks, jq_queued, jq_type, queue, host, rank, by_record
        from alike where state = 'queued' and jq_type <> 'command')
    insert into drover.job_change
    select zone, jq_type, queue, host, jq_submitter, null, state, sum(jobs), min(jq_queued), max(jq_queued), null,
           null, min(rank)
      from alike group by zone, jq_type, queue, host, jq_submitter, state;
    perform drover.notify('drover_queue', '');
    return null;
  end if;
  insert into drover.job_change
  select zone_of(jq_pk), jq_type, coalesce(jq_queue, ''), coalesce(jq_host, ''), jq_submitter, null,
         drover.counted_state(jq_state, jq_unmet, jq_wait_until), 1, jq_queued, jq_queued, null, null,
         rank(jq_urgent, jq_priority)
    from arrived;
  if current_setting('drover.has_edges', true) <> '' then
    perform drover.offer_all(array(
      select j.jq_pk from drover.jobqueue j where j.jq_pk = any (array(select jq_pk from arrived))
        and j.jq_type <> 'command' and drover.is_claimable(j)));
  elsif has_fair then
    perform drover.line_up(array(
      select jq_pk from arrived where jq_state = 'queued' and jq_unmet = 0 and jq_wait_until is null
        and jq_type <> 'command'));
  else
    insert into drover.claimable (claim_jq_fk, claim_first, claim_queued, claim_type, claim_queue, claim_host,
                                  claim_rank, claim_by_record)
    select jq_pk, jq_pk, jq_queued, jq_type, coalesce(jq_queue, ''), coalesce(jq_host, ''),
           drover.rank(jq_urgent, jq_priority),
           not jq_msq and jq_rescued = 0 and jq_unique_key is null and jq_not_after is null
      from arrived
     where jq_state = 'queued' and jq_unmet = 0 and jq_wait_until is null and jq_type <> 'command';
  end if;
  perform drover.notify('drover_queue', '');
  return null;
end $$;

CREATE FUNCTION drover.oldest_claimable(type text, queue text) RETURNS timestamp with time zone
    LANGUAGE sql STABLE SECURITY DEFINER PARALLEL SAFE
    SET search_path TO 'drover', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    AS $$
  with recursive first as (
    (select claim_host, claim_rank, claim_queued from claimable
      where claim_type = oldest_claimable.type and claim_queue = oldest_claimable.queue
      order by claim_type, claim_queue, claim_host, claim_rank, claim_queued limit 1)
     union all
    select n.* from first cross join lateral (
      select claim_host, claim_rank, claim_queued from claimable
       where claim_type = oldest_claimable.type and claim_queue = oldest_claimable.queue
         and (claim_host, claim_rank) > (first.claim_host, first.claim_rank)
       order by claim_type, claim_queue, claim_host, claim_rank, claim_queued limit 1) n)
  select min(claim_queued) from (select claim_queued from first limit 1000) f
$$;

CREATE FUNCTION drover.prepare_cleanup() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'drover', 'pg_temp'
    AS $$
begin
  if new.jq_type = 'cleanup'
     and not pg_has_role(current_user, (select relowner from pg_catalog.pg_class where oid = tg_relid), 'member') then
    raise exception 'a clean-up comes from the jq_delete of a job that was done: it is not inserted' using errcode = 'insufficient_privilege';
  end if;
  if array_ndims(new.jq_delete) > 1 or exists (select from unnest(new.jq_delete) as name where name is null or name = '') then
    raise exception 'jq_delete is a list of names: none of them NULL or empty' using errcode = 'check_violation';
  elsif octet_length(to_json(new.jq_delete)::text) > 500000 then
    raise exception 'jq_delete is too long: 500,000 bytes at most' using errcode = 'check_violation';
  elsif new.jq_delete <> '{}' and new.jq_msq and new.jq_host is null then
    raise exception 'jq_delete of an SQL job needs jq_host: else its rows may be worked on several hosts' using errcode = 'check_violation';
  end if;
  return new;
end $$;

CREATE FUNCTION drover.prepare_command() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'drover', 'pg_temp'
    AS $$
begin
  if not (drover.may_command()
          or pg_has_role(current_user, (select relowner from pg_catalog.pg_class where oid = tg_relid), 'member')) then
    raise exception 'only drover_operator may insert commands' using errcode = 'insufficient_privilege';
  end if;
  new.jq_queue := null;
  new.jq_state := 'queued';
  new.jq_mode := 'background';
  new.jq_msq := false;
  new.jq_runonpfile := null;
  new.jq_not_before := null;
  new.jq_delete := null;
  new.jq_live_key := new.jq_unique_key;
  perform drover.notify('drover_command', '');
  return new;
end $$;

CREATE FUNCTION drover.prepare_job() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'drover', 'pg_temp'
    AS $$
begin
  if new.jq_state not in ('held', 'queued') then
    raise exception 'a job is inserted held or queued, not %', new.jq_state using errcode = 'check_violation';
  elsif octet_length(concat(new.jq_type, new.jq_queue, new.jq_host)) > 2000 then  -- the index of claims would refuse it too late
    raise exception 'jq_type, jq_queue and jq_host are too long: 2,000 bytes at most, together' using errcode = 'check_violation';
  elsif concat(new.jq_queue, new.jq_host) ~ '[\x01-\x1f\x7f]' then
    raise exception 'jq_queue or jq_host holds a control character: no queue and no host has such a name (got %)',
      quote_literal(regexp_replace(
        left(concat_ws(' and ', new.jq_queue, new.jq_host), 64), '[\x01-\x1f\x7f]', '?', 'g'))
      using errcode = 'check_violation';
  end if;
  if new.jq_mode = 'manual' then new.jq_state := 'held'; end if;
  new.jq_runonpfile := nullif(new.jq_runonpfile, '');
  if new.jq_runonpfile is not null then new.jq_msq := true; end if;
  if new.jq_queue is null or (new.jq_queue = 'default' and new.jq_host is not null) then
    new.jq_queue := coalesce(
      (select q.queue_name from drover.host h join drover.queue q on q.queue_name = h.host_group where h.host_name = new.jq_host),
      'default');
  end if;
  if new.jq_job_fk is not null then
    new.jq_urgent := new.jq_urgent or coalesce((select job_priority >= 100 from drover.job where job_pk = new.jq_job_fk), false);
  end if;
  new.jq_wait_until := case when new.jq_not_before > now() then new.jq_not_before end;
  new.jq_expires_at := new.jq_not_after;
  new.jq_live_key := new.jq_unique_key;
  return new;
end $$;

CREATE FUNCTION drover.prepare_schedule() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'drover', 'pg_temp'
    AS $_$
declare
  mistake text;
  is_new  boolean := tg_op = 'INSERT';
begin
  if new.schedule_zone !~ '^[A-Za-z]+[A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+)*$' then
    raise exception 'no time zone %: write a name like Europe/Berlin', quote_literal(left(new.schedule_zone, 64))
      using errcode = 'invalid_parameter_value';
  end if;
  perform now() at time zone new.schedule_zone;  -- an unknown one is refused
  if is_new or new.schedule_job is distinct from old.schedule_job then
    perform drover.refuse_json('schedule_job', new.schedule_job);
    mistake := drover.schedule_mistake(new.schedule_job);
    if mistake is not null then
      raise exception 'schedule %: %', new.schedule_name, mistake using errcode = 'check_violation';
    end if;
  end if;
  if is_new and new.schedule_next is not null then
    new.schedule_due := new.schedule_next;
    new.schedule_computed := now();
    new.schedule_from := coalesce(new.schedule_next - new.schedule_every, now());
  elsif is_new or (new.schedule_at, new.schedule_every, new.schedule_cron, new.schedule_zone, new.schedule_jitter,
                   new.schedule_enabled)
       is distinct from (old.schedule_at, old.schedule_every, old.schedule_cron, old.schedule_zone, old.schedule_jitter,
                         old.schedule_enabled) then
    new.schedule_next := null;
    new.schedule_due := '-infinity';
    new.schedule_computed := null;
    new.schedule_reason := null;
    if not is_new and new.schedule_every is distinct from old.schedule_every then
      new.schedule_from := now();
    end if;
  end if;
  return new;
end $_$;

CREATE FUNCTION drover.prepare_tenant() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'drover', 'pg_temp'
    AS $$
begin
  if not exists (select from pg_catalog.pg_roles where rolname = new.tenant_name) then
    raise exception 'no role %: create it, and grant it to the members', quote_nullable(left(new.tenant_name, 64))
      using errcode = 'undefined_object';
  elsif not exists (select from queue where queue_name = new.tenant_queue and queue_present) then
    raise exception 'no queue %: add it first', quote_literal(left(new.tenant_queue, 64))
      using errcode = 'undefined_object';
  elsif exists (select from tenant_queue where tq_queue = new.tenant_queue and tq_tenant <> new.tenant_name) then
    raise exception 'queue % belongs to another tenant', new.tenant_queue using errcode = 'check_violation';
  end if;
  return new;
end $$;

CREATE FUNCTION drover.prepare_tenant_queue() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'drover', 'pg_temp'
    AS $$
begin
  if not exists (select from queue where queue_name = new.tq_queue and queue_present) then
    raise exception 'no queue %: add it first', quote_literal(left(new.tq_queue, 64))
      using errcode = 'undefined_object';
  elsif new.tq_queue = 'default' then
    raise exception 'queue default is for all tenants' using errcode = 'check_violation';
  elsif exists (select from tenant where tenant_queue = new.tq_queue and tenant_name <> new.tq_tenant) then
    raise exception 'queue % is the usual one of another tenant', new.tq_queue using errcode = 'check_violation';
  end if;
  return new;
end $$;

CREATE FUNCTION drover.progress(processed bigint, failed bigint, total bigint, elapsed interval, expected_end timestamp with time zone) RETURNS text
    LANGUAGE sql STABLE PARALLEL SAFE
    AS $$
  select concat_ws(', ',
    to_char(processed + failed, 'FM999,999,999,999,990') || ' of ' || to_char(total, 'FM999,999,999,999,990')
      || ' items',
    case when failed > 0 then to_char(failed, 'FM999,999,999,999,990') || ' failed' end,
    case when r.per_s >= 1 then to_char(r.per_s, 'FM999,999,999,990') || '/s'
         when r.per_s > 0 then to_char(r.per_s * 60, 'FM90.0') || ' a minute' end,
    'about ' || drover.about(extract(epoch from expected_end - now())::float8) || ' left')
    from (select (processed + failed) / nullif(extract(epoch from elapsed), 0)::float8 as per_s) r
   where total is not null
$$;

CREATE FUNCTION drover.prune(before jsonb, most integer, INOUT stage text, INOUT place bigint, OUT removed bigint) RETURNS record
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'drover', 'pg_temp'
    AS $$
  select p.stage, p.place, p.removed from drover.prune_piece(before, most, stage, place) p
$$;

CREATE FUNCTION drover.prune_piece(before jsonb, most integer, INOUT stage text, INOUT place bigint, OUT removed bigint, OUT kept bigint[], OUT why text) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'drover', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    AS $$
declare
  old      bigint[];
  looked   integer;
  is_young boolean;  -- rows from here on are: one was queued after the instant, and was never put back to the end
  first    bigint := place;
  latest   timestamptz := (select max(value::timestamptz) from jsonb_each_text(before));
begin
  if stage = 'jobs' then
    select count(*), max(jq_pk),
           coalesce(bool_or(jq_queued >= latest and jq_attempt <= (jq_endtime is not null)::integer), false),
           array_agg(jq_pk) filter (where jq_endtime < latest)
      into looked, place, is_young, old
      from (select jq_pk, jq_queued, jq_attempt, jq_endtime from jobqueue
             where jq_pk > first order by jq_pk limit most) w;
    old := array(
      select jq_pk from jobqueue
       where jq_pk = any (old)
         and jq_endtime < (before ->> case jq_type when 'command' then jq_type else jq_state::text end)::timestamptz
       order by jq_pk for update skip locked);
    old := array(  -- by another statement: it sees the edges that came before the lock
      select pk from unnest(old) as pk
       where not exists (
               select from jobdepends join jobqueue on jq_pk = jdep_jq_fk
                where jdep_jq_depends_fk = pk and jdep_met_at is null and (jq_endtime is null or jq_state = 'failed'))
         and not exists (
               select from jobdepends join jobqueue on jq_pk = jdep_jq_depends_fk
                where jdep_jq_fk = pk and jdep_met_at is null and jq_endtime is null));
  elsif stage = 'groups' then
    select count(*), max(job_pk), coalesce(bool_or(job_queued >= latest), false) into looked, place, is_young
      from (select job_pk, job_queued from job where job_pk > first order by job_pk limit most) w;
    old := array(
      select job_pk from job
       where job_pk > first and job_pk <= place and job_queued < latest
         and not exists (select from jobqueue where jq_job_fk = job_pk) for update skip locked);
  else
    select count(*), max(log_pk),
           coalesce(array_agg(log_pk) filter (where log_date < (before ->> 'log')::timestamptz), '{}')
      into looked, place, old
      from (select log_pk, log_date from log where log_jq_fk is null and log_pk > first order by log_pk limit most) w;
    is_young := cardinality(old) < looked;
  end if;
  perform drover.check_at_once();
  select t.* into removed, kept, why from drover.try_to_remove(stage, old) t;
  if is_young or looked < most then
    stage := case stage when 'jobs' then 'groups' when 'groups' then 'log' end;
    place := 0;
  end if;
end $$;

CREATE FUNCTION drover.put_in_queue(job bigint, queue text) RETURNS bigint
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'drover', 'pg_temp'
    AS $$
  update jobqueue set jq_queue = queue where jq_pk = job and jq_state in ('held', 'queued', 'blocked') returning jq_pk
$$;

CREATE FUNCTION drover.queue_columns(columns jsonb, submitter name, job_group bigint) RETURNS bigint
    LANGUAGE plpgsql
    SET search_path TO 'drover', 'pg_temp'
    AS $_$
declare
  known text[] := '{jq_type,jq_args,jq_variables,jq_msq,jq_runonpfile,jq_host,jq_key,jq_tolerate,jq_repeat,jq_queue,
    jq_urgent,jq_priority,jq_max_interruptions,jq_retries,jq_timeout,jq_unique_key,jq_delete}';
  wrong text;
  pk    bigint;
begin
  select key into wrong from jsonb_object_keys(columns) as key where key <> all (known) limit 1;
  if found then
    raise exception 'the job of a schedule has no %: there are %', quote_literal(left(wrong, 64)),
      array_to_string(known, ', ') using errcode = 'undefined_parameter';
  elsif coalesce(columns ->> 'jq_type', '') = '' then
    raise exception 'the job of a schedule needs a jq_type' using errcode = 'not_null_violation';
  elsif columns ->> 'jq_type' = 'cleanup' then
    raise exception 'a clean-up comes from the jq_delete of a job that was done: it is not scheduled'
      using errcode = 'check_violation';
  elsif columns ->> 'jq_type' = 'command'
        and not exists (select from verb where verb_name = drover.word(columns ->> 'jq_args', 1)) then
    raise exception 'no such command: %', quote_nullable(left(drover.word(columns ->> 'jq_args', 1), 64))
      using errcode = 'invalid_parameter_value';
  elsif columns ->> 'jq_type' = 'command' and job_group is not null then
    raise exception 'a command waits for nothing: give it a schedule of its own' using errcode = 'check_violation';
  end if;
  columns := columns || jsonb_build_object('jq_submitter', submitter);
  if job_group is not null then
    columns := columns || jsonb_build_object('jq_job_fk', job_group);
  end if;
  execute format('insert into drover.jobqueue (%1$s) select %1$s from jsonb_populate_record(null::drover.jobqueue, $1)
                  returning jq_pk',
                 (select string_agg(quote_ident(key), ', ') from jsonb_object_keys(columns) as key))
    into pk using columns;
  return pk;
end $_$;

CREATE FUNCTION drover.queue_deliveries(of_group text, most integer, OUT dead integer, OUT queued integer, OUT seconds double precision) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'drover', 'pg_temp'
    AS $$
declare
  each     record;
  over     bigint[];
  late     bigint[];
  gone     bigint[];
  owner    name := '';
  has_more boolean := false;
begin
  dead := 0;
  queued := 0;
  if not exists (select from subscription) and not exists (select from delivery where del_state = 'sent') then
    return;
  elsif not drover.try_to_enter('queue_deliveries') then
    seconds := 1;
    return;
  end if;
  select jobs, e.over into gone, over from drover.end_tries(of_group, most) e;
  perform drover.bury_deliveries(over, 'not delivered') where over <> '{}';
  dead := cardinality(over);
  with given_up as (
    update delivery set del_state = 'dead', del_ended = now(), del_next = null,
           del_text = 'expired: its subscription has ended'
     where del_pk in (select del_pk from subscription join delivery on del_sub = sub_pk and del_state = 'waiting'
                       where sub_expires <= now() limit most)
    returning del_pk)
  select coalesce(array_agg(del_pk), '{}') into late from given_up;
  perform drover.bury_deliveries(late, 'expired') where late <> '{}';
  dead := dead + cardinality(late);
  if gone <> '{}' then
    perform drover.check_at_once();
    perform drover.try_to_remove('jobs', array_remove(gone, null));
  end if;
  if exists (select from agent where agent_group = of_group and agent_type = 'notify' and agent_enabled
                and agent_present) then
    while queued < most loop
      select del_owner into owner from delivery
       where del_state = 'waiting' and del_next is not null and del_owner > owner order by del_owner limit 1;
      exit when not found;
      select * into each from drover.queue_deliveries_of(of_group, owner, least(50, most - queued));
      queued := queued + each.queued;
      has_more := has_more or each.has_more;
    end loop;
    seconds := (select extract(epoch from del_next - now()) from delivery
                 where del_state = 'waiting' and del_next > now() order by del_next limit 1);
  end if;
  seconds := case when has_more or queued >= most or cardinality(gone) >= most or cardinality(late) >= most then 0
                  else seconds end;
end $$;

CREATE FUNCTION drover.queue_deliveries_of(of_group text, owner name, most integer, OUT queued integer, OUT has_more boolean) RETURNS record
    LANGUAGE plpgsql
    SET search_path TO 'drover', 'pg_temp'
    AS $$
declare
  place  record;
  d      record;
  has    bigint := (select count(*) from delivery where del_owner = owner and del_state = 'sent');
  room   bigint;
  first  bigint;
  sub    bigint;
  target integer := 0;
  looked integer := 0;
  behind integer := 0;
  is_2nd boolean := false;  -- from the lowest again
begin
  queued := 0;
  has_more := false;
  if has >= 100 then
    return;
  end if;
  select low + floor(random() * (high - low + 1))::bigint into first
    from (select min(del_sub) as low, max(del_sub) as high from delivery
           where del_owner = owner and del_state = 'waiting' and del_next is not null) s;
  sub := first;
  loop
    select del_sub, del_target into place from delivery
     where del_owner = owner and del_state = 'waiting' and del_next is not null
       and (del_sub, del_target) > (sub, target)
     order by del_sub, del_target limit 1;
    if not found and not is_2nd then
      is_2nd := true;
      sub := 0;
      target := 0;
      continue;
    end if;
    exit when not found or is_2nd and place.del_sub >= first;
    has_more := looked >= 500 or behind >= 500 or queued >= least(most, 100 - has);
    exit when has_more;
    sub := place.del_sub;
    target := place.del_target;
    looked := looked + 1;
    room := 20 - (select count(*) from delivery
                   where del_owner = owner and del_sub = sub and del_target = target and del_state = 'sent');
    continue when room <= 0 or not exists (
      select from subscription where sub_pk = sub and sub_enabled and (sub_expires is null or sub_expires > now()));
    for d in
      select del_pk, del_jq_fk from delivery
       where del_owner = owner and del_sub = sub and del_target = target and del_state = 'waiting' and del_next <= now()
       order by del_next, del_pk limit 100
    loop
      update delivery set del_next = null
       where del_pk = d.del_pk and exists (
               select from delivery where del_sub = sub and del_target = target and del_jq_fk = d.del_jq_fk
                  and del_state in ('waiting', 'sent') and del_pk < d.del_pk);
      if found then
        behind := behind + 1;
      elsif drover.queue_delivery(of_group, owner, d.del_pk) then
        queued := queued + 1;
        room := room - 1;
      end if;
      exit when room <= 0 or queued >= least(most, 100 - has);
    end loop;
  end loop;
  has_more := has_more or behind > 0;
end $$;

CREATE FUNCTION drover.queue_delivery(of_group text, owner name, number bigint) RETURNS boolean
    LANGUAGE plpgsql
    SET search_path TO 'drover', 'pg_temp'
    AS $$
declare
  turn bigint := 1 + greatest(
    (select max(del_turn) from delivery where del_owner = owner and del_state = 'sent'),
    (select min(del_turn) from delivery where del_state = 'sent'), 0);
  pk   bigint;
begin
  insert into jobqueue (jq_type, jq_args, jq_queue, jq_timeout, jq_retries, jq_max_interruptions, jq_priority)
  values ('notify', drover.notification(number), of_group, '2 min', -1, 2147483647, 'n' || lpad(turn::text, 15, '0'))
  returning jq_pk into pk;
  update delivery set del_state = 'sent', del_notify = pk, del_next = null, del_turn = turn where del_pk = number;
  return true;
exception
  when no_data_found then
    return false;  -- its subscription has just been removed
  when others then
    if sqlstate !~ '^(22|23|42|P0)' then
      raise;
    end if;
    update delivery set del_state = 'dead', del_ended = now(), del_next = null, del_text = drover.message(sqlerrm)
     where del_pk = number;
    perform drover.let_next_go(number);
    perform drover.bury_deliveries(array[number], 'not delivered');
    return false;
end $$;

CREATE FUNCTION drover.queue_scheduled(job jsonb, submitter name, behind bigint[]) RETURNS bigint[]
    LANGUAGE plpgsql
    SET search_path TO 'drover', 'pg_temp'
    AS $$
declare
  jobs  bigint[] := '{}';
  tops  bigint[] := '{}';
  named jsonb := '{}';
  own   bigint;
  pk    bigint;
  one   jsonb;
  wrong text;
begin
  if jsonb_typeof(job) is distinct from 'object' then
    raise exception 'the job of a schedule is one JSON object' using errcode = 'invalid_parameter_value';
  elsif not job ? 'jobs' then
    jobs := array[drover.queue_columns(job, submitter, null)];
    tops := case when job ->> 'jq_type' = 'command' then '{}'::bigint[] else jobs end;
  elsif jsonb_typeof(job -> 'jobs') <> 'array' or jsonb_array_length(job -> 'jobs') not between 1 and 1000 then
    raise exception '"jobs" is a list of 1 to 1,000 jobs' using errcode = 'invalid_parameter_value';
  elsif job - '{jobs,group}'::text[] <> '{}' or jsonb_typeof(coalesce(job -> 'group', '{}')) <> 'object'
        or (job -> 'group') - '{job_name,job_priority,job_data,job_tenant}'::text[] <> '{}' then
    raise exception 'a group of jobs has "jobs", and "group" with job_name, job_priority, job_data and job_tenant'
      using errcode = 'undefined_parameter';
  else
    insert into job (job_name, job_priority, job_data, job_tenant, job_user)
    select g.job_name, coalesce(g.job_priority, 0), g.job_data, g.job_tenant, submitter
      from jsonb_populate_record(null::drover.job, coalesce(job -> 'group', '{}')) g
    returning job_pk into own;
    for one in select value from jsonb_array_elements(job -> 'jobs') loop
      if jsonb_typeof(one) <> 'object' or jsonb_typeof(coalesce(one -> 'after', '[]')) <> 'array' then
        raise exception 'a job of a group is an object, and its "after" a list of names'
          using errcode = 'invalid_parameter_value';
      elsif named ? (one ->> 'name') then
        raise exception 'two jobs of the group are called %', quote_literal(left(one ->> 'name', 64))
          using errcode = 'unique_violation';
      end if;
      pk := drover.queue_columns(one - '{name,after}'::text[], submitter, own);
      jobs := jobs || pk;
      tops := tops || case when coalesce(one -> 'after', '[]') = '[]' then pk end;
      named := named || case when one ? 'name' then jsonb_build_object(one ->> 'name', pk) else '{}' end;
    end loop;
    select name into wrong from jsonb_array_elements(job -> 'jobs') as j(one),
           jsonb_array_elements_text(coalesce(j.one -> 'after', '[]')) as name where not named ? name limit 1;
    if found then
      raise exception 'no job of the group is called %', quote_literal(left(wrong, 64))
          using errcode = 'invalid_parameter_value';
    end if;
    insert into jobdepends (jdep_jq_fk, jdep_jq_depends_fk)
    select distinct jobs[n], (named ->> name)::bigint
      from jsonb_array_elements(job -> 'jobs') with ordinality as j(one, n),
           jsonb_array_elements_text(coalesce(j.one -> 'after', '[]')) as name;
  end if;
  insert into jobdepends (jdep_jq_fk, jdep_jq_depends_fk, jdep_depends_bits)
  select child, parent, 3 from unnest(tops) as child, unnest(behind) as parent where child is not null;
  return jobs;
end $$;

CREATE FUNCTION drover.rank(urgent boolean, priority text) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN (CASE WHEN urgent THEN '0'::text ELSE '1'::text END || priority);

CREATE FUNCTION drover.rank_in_round(rank text, round bigint) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN ((rank || '.'::text) || lpad((round)::text, 15, '0'::text));

CREATE FUNCTION drover.record(pks bigint[], states text[]) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'drover', 'pg_temp'
    AS $$
declare
  made    bigint[];
  has_try boolean;
begin
  with change as materialized (
    select n, j.*, u.state, coalesce(job_tenant, drover.tenant_of(jq_submitter)) as tenant
      from unnest(pks, states) with ordinality as u(pk, state, n)
     cross join lateral (
       select jq_pk, jq_job_fk, jq_type, jq_submitter, jq_endtext, jq_endtime from jobqueue
        where jq_pk = u.pk and jq_type <> 'command' offset 0) j
      left join job on job_pk = jq_job_fk),
  recorded as (
    insert into event (ev_jq_fk, ev_job_fk, ev_kind, ev_old, ev_new, ev_text, ev_owner, ev_tenant, ev_is_final)
    select jq_pk, jq_job_fk, kind,
           coalesce((select ev_new from event where ev_jq_fk = jq_pk and ev_kind = 'status'
                      order by ev_pk desc limit 1), 'queued'),
           state, drover.message(jq_endtext), jq_submitter, tenant,
           kind = 'status' and state in ('done', 'failed', 'cancelled', 'ignored', 'skipped')
      from change cross join (values (1, 'error'), (2, 'status')) as k(place, kind)
     where jq_type <> 'notify' and (kind = 'status' or state = 'failed')
       and exists (select from drover.subscribers(kind, jq_pk, jq_submitter, tenant))
     order by n, place
    returning ev_pk)
  select array_agg(ev_pk order by ev_pk), (select bool_or(jq_type = 'notify' and jq_endtime is not null) from change)
    into made, has_try from recorded;
  perform drover.deliver(made) where made is not null;
  perform drover.notify('drover_delivery', '') where has_try;
end $$;

CREATE FUNCTION drover.record_ends(told text) RETURNS void
    LANGUAGE sql
    AS $$
  select drover.record(array_agg(jq_pk order by n), array_agg(state order by n))
    from rows from (json_to_recordset(told::json) as (jq_pk bigint, state text)) with ordinality as e(jq_pk, state, n)
$$;

CREATE FUNCTION drover.record_one(kind text, job bigint, owner name, tenant text, said text) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'drover', 'pg_temp'
    AS $$
declare
  made bigint;
begin
  tenant := coalesce(tenant, drover.tenant_of(owner));
  insert into event (ev_jq_fk, ev_job_fk, ev_kind, ev_text, ev_owner, ev_tenant)
  select job, (select jq_job_fk from jobqueue where jq_pk = job), kind, drover.message(said), owner, tenant
   where kind = 'user' or exists (select from drover.subscribers(kind, job, owner, tenant))
  returning ev_pk into made;
  perform drover.deliver(array[made]) where made is not null;
  return made;
end $$;

CREATE FUNCTION drover.record_subscription(sub bigint, what text) RETURNS void
    LANGUAGE plpgsql
    AS $$
begin
  perform drover.record_one('subscription', jq_pk, jq_submitter, job_tenant,
                            session_user || ' ' || what || ': subscription ' || sub_pk || ' to ' || sub_kind)
     from drover.subscription join drover.jobqueue on jq_pk = sub_of::bigint
     left join drover.job on job_pk = jq_job_fk
    where sub_pk = sub and sub_scope = 'job' and jq_endtime is null;
end $$;

CREATE FUNCTION drover.recount(first bigint, zones integer) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'drover', 'pg_temp'
    AS $$
declare
  mended integer;
begin
  perform drover.enter('recount');
  insert into job_change
  select zone, type, queue, host, submitter, null, state, sum(jobs), min(oldest), max(latest), max(waited), max(ran),
         min(rank)
    from (select zone_of(jq_pk) as zone, jq_type as type, coalesce(jq_queue, '') as queue,
                 coalesce(jq_host, '') as host, jq_submitter::text as submitter,
                 counted_state(jq_state, jq_unmet, jq_wait_until) as state, count(*) as jobs,
                 min(jq_queued) as oldest, max(greatest(jq_queued, jq_endtime)) as latest,
                 max(extract(epoch from jq_starttime - jq_queued)::real) filter (where jq_endtime is not null)
                   as waited,
                 max(extract(epoch from jq_endtime - jq_starttime)::real) as ran,
                 min(rank(jq_urgent, jq_priority)) as rank
            from jobqueue where jq_pk between first * 4096 and (first + zones) * 4096 - 1
           group by 1, 2, 3, 4, 5, 6
           union all
          select zone, type, queue, host, submitter, state, -jobs, null, null, null, null, null
            from job_zones where zone between first and first + zones - 1) c
   group by zone, type, queue, host, submitter, state having sum(jobs) <> 0;
  get diagnostics mended = row_count;
  return mended;
end $$;

CREATE FUNCTION drover.recount_ends() RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'drover', 'pg_temp'
    AS $$
declare
  origin constant timestamptz := '2000-01-01 00:00:00+00';
begin
  delete from tally;
  insert into tally (tally_at, tally_type, tally_host, tally_state, tally_code, tally_jobs, tally_items, tally_newest,
                     tally_bins, tally_counts)
  select date_bin(case when date < now() - interval '9 days' then interval '1 day'
                       when date < now() - interval '3 hours' then '1 hour' else '1 minute' end, date, origin),
         coalesce(agent_type, '(unknown)'), host, state, code, count(*), sum(items),
         case when state = 'failed' then max(pk) end,
         array_remove(array[bin], null), case when bin is null then '{}' else array[count(*)] end
    from (
      select jq_endtime as date, jq_type as type, coalesce(jq_done_host, '-') as host, jq_state::text as state,
             drover.end_code(jq_state, jq_type, jq_end_bits, jq_endtext, jq_exitcode, jq_signal) as code,
             jq_itemsprocessed as items, jq_pk as pk,
             case when jq_state in ('done', 'failed') then
               drover.time_bin(drover.time_run(jq_msq, jq_processedtime, jq_starttime, jq_endtime)) end as bin
        from jobqueue where jq_endtime is not null
       union all
      select jq_starttime, jq_type, '-', 'started', '', 0, null,
             drover.time_bin(date_part('epoch', jq_starttime) - date_part('epoch', jq_queued))
        from jobqueue where jq_starttime is not null and jq_attempt > 0) j
    left join (select distinct agent_type from agent) a on agent_type = type
   where date > now() - interval '400 days' and date < 'infinity' and type <> 'command'
   group by 1, 2, 3, 4, 5, bin;
  perform fold_tally(2147483647);
end $$;

CREATE FUNCTION drover.recount_next(zones integer) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'drover', 'pg_temp'
    AS $$
declare
  first bigint;
  beyond bigint;
begin
  select place_zone into first from recount_place
   where not exists (select from scheduler where not scheduler_counts
                        and scheduler_seen > now() - make_interval(secs => scheduler_lease))
     for update skip locked;
  if not found then
    return 0;
  end if;
  perform drover.recount(first, zones);
  select greatest(zone_of((select max(jq_pk) from jobqueue)), (select max(zone_number) from job_zone)) + 1 into beyond;
  if first + zones < beyond then
    update recount_place set place_zone = first + zones;
  else
    delete from recount_place;
  end if;
  return greatest(beyond - first - zones, 0);
end $$;

CREATE FUNCTION drover.refuse() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
begin
  raise exception '%', format(tg_argv[0], old.jq_pk, old.jq_state, new.jq_state) using errcode = 'check_violation';
end $$;

CREATE FUNCTION drover.refuse_json(columns text, value jsonb) RETURNS void
    LANGUAGE plpgsql IMMUTABLE
    SET search_path TO 'drover', 'pg_temp'
    AS $_$
begin
  if jsonb_path_exists(value, 'strict $.**{101}') then
    raise exception '% is nested too deep: 100 levels are let in; put the inner part into a string', columns
      using errcode = 'check_violation';
  elsif jsonb_path_exists(value, 'strict $.** ? (@ >= 1e309 || @ <= -1e309)') then
    raise exception '% has a number that no double holds: write it as a string', columns
      using errcode = 'check_violation';
  end if;
end $_$;

CREATE FUNCTION drover.refuse_long(columns text[], bytes integer[]) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'drover', 'pg_temp'
    AS $$
declare
  wrong record;
begin
  select name, size, coalesce(limit_bytes, 2000) as most, coalesce(limit_bytes, 2000) > 2000 as is_data into wrong
    from unnest(columns, bytes) as u(name, size) left join size_limit on limit_column = name
   where size > coalesce(limit_bytes, 2000) limit 1;
  if wrong.is_data then
    raise exception '% has % bytes, and % are let in: %', wrong.name, wrong.size, wrong.most,
      'put them in a file or a table and name that, or ask an operator to raise drover.size_limit'
      using errcode = 'check_violation';
  elsif found then
    raise exception '% has % bytes, and % are let in: choose a shorter one', wrong.name, wrong.size, wrong.most
      using errcode = 'check_violation';
  end if;
end $$;

CREATE FUNCTION drover.remove(what text, numbers bigint[]) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'drover', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    AS $$
declare
  removed bigint;
begin
  case what
    when 'jobs' then
      removed := drover.remove_jobs(numbers);
    when 'groups' then
      delete from job where job_pk = any (numbers);
      get diagnostics removed = row_count;
    when 'log' then
      delete from log where log_pk = any (numbers);
      get diagnostics removed = row_count;
  end case;
  if removed < cardinality(numbers) then
    raise exception 'a trigger or rule of the site keeps it' using errcode = 'triggered_action_exception';
  end if;
end $$;

CREATE FUNCTION drover.remove_jobs(jobs bigint[]) RETURNS bigint
    LANGUAGE plpgsql
    SET search_path TO 'drover', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    AS $$
declare
  removed bigint;
begin
  delete from jobdepends where jdep_jq_depends_fk = any (jobs);
  delete from attempt_kept where att_jq_fk = any (jobs);
  delete from log where log_jq_fk = any (jobs);
  delete from output where out_jq_fk = any (jobs);
  delete from item_failure where item_jq_fk = any (jobs);
  delete from share where share_jq_fk = any (jobs);
  delete from hidden where hidden_jq_fk = any (jobs);
  delete from command_ack where ack_jq_fk = any (jobs);
  delete from jobqueue where jq_pk = any (jobs);
  get diagnostics removed = row_count;
  return removed;
end $$;

CREATE FUNCTION drover.rename_owner(was name, is_now name) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'drover', 'pg_temp'
    AS $$
declare
  schedules     bigint;
  subscriptions bigint;
begin
  if to_regrole(quote_ident(is_now)) is null then
    raise exception 'there is no role %', quote_ident(is_now) using errcode = 'undefined_object';
  elsif to_regrole(quote_ident(was)) is not null then
    raise exception 'role % is still there, and keeps what it has', quote_ident(was) using errcode = 'duplicate_object';
  end if;
  update schedule set schedule_submitter = is_now where schedule_submitter = was;
  get diagnostics schedules = row_count;
  update subscription set sub_owner = is_now where sub_owner = was;
  get diagnostics subscriptions = row_count;
  update delivery set del_owner = is_now where del_owner = was;
  insert into share (share_jq_fk, share_with) select share_jq_fk, is_now from share where share_with = was
    on conflict do nothing;
  delete from share where share_with = was;
  return schedules + subscriptions;
end $$;

CREATE FUNCTION drover.rests(agent drover.agent) RETURNS text
    LANGUAGE sql STABLE PARALLEL SAFE
    AS $$
  select case when agent.agent_blocked_until > now()
              then 'agent type ' || agent.agent_type
                   || case when starts_with(agent.agent_reason, 'no connection') then ' waits' else ' failed' end
                   || ', next try ' || date_trunc('second', agent.agent_blocked_until)
                   || coalesce(', resting since ' || date_trunc('second', agent.agent_blocked_since), '')
                   || ': ' || coalesce(agent.agent_reason, '?') end
$$;

CREATE FUNCTION drover.retry_taken(jobs bigint[], OUT changed bigint[], OUT refused jsonb, OUT moves drover.batch_move[]) RETURNS record
    LANGUAGE plpgsql
    SET search_path TO 'drover', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET jit TO 'off'
    AS $$
begin
  with asked as materialized (
    select *, row_number() over (partition by jq_unique_key order by jq_pk) as n
      from jobqueue where jq_pk = any (jobs)),
  verdict as materialized (
    select a.jq_pk, case
             when a.jq_attempt = 0 and a.jq_not_after <= now() then 'it was to be started by ' || a.jq_not_after
                  || '; drover resubmit ' || a.jq_pk || ' queues it once more, without that'
             when a.jq_unique_key is not null
                  and (n > 1 or exists (select from jobqueue o where o.jq_live_key = a.jq_unique_key))
             then 'another job with its jq_unique_key has not ended' end as why
      from asked a),
  plan as materialized (
    select a.jq_pk, a.jq_key is not null and not a.jq_repeat and a.jq_itemsfailed <= 10000 as is_rest,
           f.keys || coalesce(a.jq_checkpoint -> 'again', '[]') as keys
      from asked a cross join lateral (
        select coalesce(jsonb_agg(distinct l.item_key), '[]') as keys
          from (select item_key from item_failure
                 where a.jq_key is not null and not a.jq_repeat and item_jq_fk = a.jq_pk
                 order by item_pk desc limit a.jq_itemsfailed) l) f),
  done as (
    update jobqueue j
       set jq_state = 'queued', jq_starttime = null, jq_endtime = null, jq_end_bits = 0,
           jq_endtext = 'to be tried again',
           jq_first_start = case when j.jq_msq and j.jq_processedtime > interval '0' then j.jq_starttime end,
           jq_failures = 0, jq_interruptions = 0, jq_rescued = 0, jq_retry_at = null,
           jq_wait_until = case when j.jq_not_before > now() then j.jq_not_before end,
           jq_exitcode = null, jq_signal = null, jq_result = null, jq_itemsfailed = 0, jq_itemstotal = null,
           jq_expected_end = null, jq_done_host = null, jq_done_pid = null,
           jq_itemsprocessed = case
             when j.jq_msq and j.jq_key is null then coalesce((j.jq_checkpoint ->> 'itemsprocessed')::bigint, 0)
             when plan.is_rest or j.jq_repeat
             then coalesce((j.jq_checkpoint ->> 'itemsprocessed')::bigint, j.jq_itemsprocessed)
             else 0 end,
           jq_checkpoint = case
             when j.jq_msq and j.jq_key is null then j.jq_checkpoint || '{"itemsfailed": 0}'
             when plan.is_rest then coalesce(j.jq_checkpoint, '{}') || jsonb_build_object('again', plan.keys) end,
           jq_batch = drover.batch_of(j)
      from plan join verdict using (jq_pk) join asked using (jq_pk)
     where j.jq_pk = plan.jq_pk and verdict.why is null
    returning j.jq_pk, drover.is_of_batch(asked.jq_batch, j) as is_ours,
              row(j.jq_pk, j.ctid, drover.counted_state(asked.jq_state, asked.jq_unmet, asked.jq_wait_until),
                  drover.counted_state(j.jq_state, j.jq_unmet, j.jq_wait_until), asked.jq_queue,
                  j.jq_queue)::drover.batch_move as move)
  select (select array_agg(jq_pk) from done), (select array_agg(move) filter (where is_ours) from done),
         (select coalesce(jsonb_object_agg(jq_pk, why), '{}') from verdict where why is not null)
    into changed, moves, refused;
end $$;

CREATE FUNCTION drover.roles_of(role name) RETURNS json
    LANGUAGE sql STABLE STRICT
    AS $$
  select json_agg(r.rolname) from pg_catalog.pg_roles s
    join pg_catalog.pg_roles r on pg_catalog.pg_has_role(s.oid, r.oid, 'member')
   where s.rolname = role
$$;

CREATE TABLE drover.job (
    job_pk bigint NOT NULL,
    job_name text,
    job_priority integer DEFAULT 0 NOT NULL,
    job_queued timestamp with time zone DEFAULT now() NOT NULL,
    job_tenant text,
    job_user name DEFAULT SESSION_USER NOT NULL,
    job_data jsonb,
    job_hidden boolean DEFAULT false NOT NULL,
    CONSTRAINT job_queued_is_a_date CHECK ((((job_queued AT TIME ZONE 'UTC'::text) >= '0001-01-02 00:00:00'::timestamp without time zone) AND ((job_queued AT TIME ZONE 'UTC'::text) <= '9999-12-31 09:59:59'::timestamp without time zone)))
);

CREATE FUNCTION drover.route(job drover.jobqueue, above drover.job, home text) RETURNS text
    LANGUAGE sql STABLE
    AS $$select null::text$$;

CREATE FUNCTION drover.route_job() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'drover', 'pg_temp'
    AS $$
declare
  above drover.job;
  home  text;
  found text;
  said  text := 'no filter of a queue holds for it: queue ';
begin
  if new.jq_host is not null then
    select host_group into home from host where host_name = new.jq_host;
    if new.jq_queue not in ('default', coalesce(home, 'default')) then
      return new;
    end if;
  end if;
  if new.jq_job_fk is not null then
    select * into above from job where job_pk = new.jq_job_fk;
  end if;
  begin
    found := drover.route(new, above, home);
  exception when others then
    said := 'the filters of queues fail: ' || sqlerrm || '; queue ';
  end;
  if found is null then
    insert into log (log_jq_fk, log_type, log_message) values (new.jq_pk, 'INFO', said || new.jq_queue);
  else
    new.jq_queue := found;
  end if;
  return new;
end $$;

CREATE FUNCTION drover.route_tenants() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'drover', 'pg_temp'
    AS $$
begin
  perform drover.install_routes() where drover.is_route_stale();
  return null;
end $$;

CREATE FUNCTION drover.routes() RETURNS text
    LANGUAGE plpgsql STABLE
    SET search_path TO 'drover', 'pg_temp'
    AS $_$
declare
  each  record;
  lines text := '';
begin
  for each in
    select queue_name, queue_group, queue_route, tq_tenant from queue left join tenant_queue on tq_queue = queue_name
     where queue_present and queue_route ->> 'text' = queue_filter
     order by queue_priority desc, queue_group, queue_name loop
    perform now() at time zone (each.queue_route ->> 'zone');  -- refused here if there is none, not in an insert
    lines := lines || format(E'\n  when (home = %1$L) is not false and %4$s%2$s then %3$L', each.queue_group,
                             filter_sql(each.queue_route -> 'tree', each.queue_route ->> 'zone'), each.queue_name,
                             'drover.is_member(job.jq_submitter, ' || quote_literal(each.tq_tenant) || ') and ');
  end loop;
  return 'select case' || nullif(lines, '') || E'\n  end';
end $_$;

CREATE FUNCTION drover.run_schedule(name text, OUT started boolean, OUT said text) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'drover', 'pg_temp'
    AS $$
declare
  s    drover.schedule;
  busy bigint[];
  made bigint[];
begin
  perform drover.wait_at_most('200ms');
  select * into s from schedule where schedule_name = name for no key update skip locked;
  started := false;
  if not found then
    said := (select 'no schedule ' || name where not exists (select from schedule where schedule_name = name));
    return;
  end if;
  busy := array(select jq_pk from jobqueue where jq_pk = any (s.schedule_jobs) and jq_endtime is null);
  if busy <> '{}' and s.schedule_overlap = 'skip' then
    said := 'schedule ' || name || ': skipped: job ' || busy[1] || ' of the start before has not ended';
    return;
  end if;
  made := drover.queue_scheduled(s.schedule_job, s.schedule_submitter, busy);
  insert into schedule_start (start_schedule, start_due_at, start_jobs) values (name, now(), made);
  update schedule set schedule_jobs = made, schedule_reason = null, schedule_last = now() where schedule_name = name;
  started := true;
  said := 'schedule ' || name || ': queued ' || array_to_string(made, ', ');
exception when others then
  if sqlstate !~ '^(22|23|42|P0)' then
    raise;
  end if;
  started := false;
  said := 'schedule ' || name || ': not queued: ' || sqlerrm;
end $$;

CREATE FUNCTION drover.schedule_mistake(job jsonb) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'drover', 'pg_temp'
    AS $$
declare
  trial text := gen_random_uuid();
  what  text;
begin
  if job ->> 'jq_type' = 'command' and drover.word(job ->> 'jq_args', 1) = 'schedule-run' then
    return 'a schedule runs no other one: give it the job of that one, or the same times';
  elsif job - 'jq_args' = '{"jq_type": "command"}'
     and exists (select from verb where verb_name = drover.word(job ->> 'jq_args', 1)) then
    return null;  -- it takes no number of a job to know that
  end if;
  if jsonb_typeof(job -> 'jobs') = 'array' then
    job := jsonb_set(job, '{jobs}', (
      select coalesce(jsonb_agg(case when jsonb_typeof(one) = 'object' then drover.as_tried(one, trial) else one end
                                order by n), '[]')
        from jsonb_array_elements(job -> 'jobs') with ordinality as t(one, n)));
  elsif jsonb_typeof(job) = 'object' then
    job := drover.as_tried(job, trial);
  end if;
  perform drover.wait_at_most('10ms');
  perform drover.queue_scheduled(job, session_user, '{}');
  raise exception using errcode = 'DR000';
exception
  when sqlstate 'DR000' or lock_not_available then return null;
  when others then
    get stacked diagnostics what = constraint_name;
    if what = 'queue_max_length' then
      return null;
    elsif sqlstate ~ '^(22|23|42|P0)' then
      return sqlerrm;
    end if;
    raise;
end $$;

CREATE FUNCTION drover.settle(parents bigint[], beyond bigint, most integer, waits boolean, OUT released integer, OUT unsettled bigint[], OUT place bigint, OUT locked bigint[]) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'drover', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_sort TO 'on'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    AS $$
declare
  looked_at record;
  skipped   bigint[];
begin
  perform drover.notify('drover_command', '')  -- a command may wait for them too
    where exists (select from jobqueue where jq_type = 'command' and jq_wait_until is not null);
  released := 0;
  unsettled := parents;
  place := beyond;
  locked := '{}';
  while most > 0 and cardinality(unsettled) > 0 loop
    with looked as materialized (  -- in the order of the array, as nested loops give them
      select d.*, top, n, row_number() over () as no, jq_end_bits & bits <> 0 as is_met
        from unnest(unsettled) with ordinality as p(top, n)
       cross join lateral (select jq_end_bits from jobqueue where jq_pk = top and jq_endtime is not null offset 0) j
       cross join lateral (
         select ctid, jdep_jq_fk, jdep_depends_bits, jdep_on_unmet = 'skip' from jobdepends
          where jdep_jq_depends_fk = top and jdep_jq_fk > case n when 1 then place else 0 end and jdep_met_at is null
          order by jdep_jq_fk limit most) d(row_at, kid, bits, skips)
       limit most),
    held as materialized (
      select jq_pk from jobqueue where not waits and jq_pk = any (array(select kid from looked)) for no key update skip locked),
    free as materialized (
      select * from looked where waits or kid in (select jq_pk from held)),
    met as (
      update jobdepends set jdep_met_at = now()
       where ctid = any (array(select row_at from free where is_met)) and jdep_met_at is null
      returning jdep_jq_fk)
    select array(select jdep_jq_fk from met) as met, array(select kid from free where skips and not is_met) as vain,
           array(select top from free where skips and not is_met) as tops, (select count(*) from looked) as count,
           array(select distinct top from looked where no not in (select no from free)) as locked, (select kid from looked order by no desc limit 1) as last_kid, (select max(n) from looked) as last
      into looked_at;
    released := released + drover.count_unmet(looked_at.met, -1);
    skipped := drover.skip(looked_at.vain, looked_at.tops);
    locked := array(select unnest(locked) union select unnest(looked_at.locked));
    if looked_at.count = most then
      unsettled := unsettled[looked_at.last:] || skipped;
      place := looked_at.last_kid;
    else
      unsettled := skipped;
      place := 0;
    end if;
    most := most - looked_at.count - 10;  -- a step costs as much as some edges
  end loop;
end $$;

CREATE FUNCTION drover.settle_batch(moves drover.batch_move[], target drover.job_state) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'drover', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET jit TO 'off'
    AS $$
declare
  odd   batch_move;
  ready bigint[];
begin
  select * into odd from unnest(moves) as m
   where m.state <> all (case when target is null then array[m.was] when target = 'queued' then '{queued,early,unmet}'
                              else array[target::text] end) limit 1;
  if found then
    raise exception 'job % may not move from % to %', odd.pk, odd.was, odd.state using errcode = 'check_violation';
  end if;
  perform count_moves(moves);
  ready := array(
    select jq_pk from unnest(moves) as m join jobqueue j on jq_pk = m.pk
     where is_claimable(j) and (j.ctid = m.at or not has_token(j)));
  if ready <> '{}' then
    perform offer_all(ready);
  end if;
end $$;

CREATE FUNCTION drover.shared_jobs() RETURNS bigint[]
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'drover', 'pg_temp'
    AS $$
  select array(select share_jq_fk from share
                where share_with = any (array(select rolname from pg_catalog.pg_roles
                                               where drover.is_member(session_user, rolname))))
$$;

CREATE FUNCTION drover.show_all_in_hand() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'drover', 'pg_temp'
    AS $$
begin
  if exists (select from scheduler where scheduler_uuid = new.group_owner and not scheduler_counts) then
    insert into recount_place values (0) on conflict ((true)) do update set place_zone = 0;
  end if;
  if exists (select from scheduler where scheduler_uuid = new.group_owner and not scheduler_takes_shared) then
    update jobqueue j
       set jq_state = 'claimed', jq_attempt = j.jq_attempt + 1, jq_owner = r.hand_owner,
           jq_starttime = coalesce(j.jq_starttime, r.hand_since), jq_endtext = 'in progress'
      from recorded r where j.jq_pk = r.jq_pk;
    with shared as (delete from claimable where claim_jobs is not null returning *)
    insert into claimable (claim_jq_fk, claim_first, claim_queued, claim_type, claim_queue, claim_host, claim_rank,
                           claim_by_record)
    select pk, pk, claim_queued, claim_type, claim_queue, claim_host, claim_rank, claim_by_record
      from shared, unnest(claim_jobs) as pk;
  end if;
  return null;
end $$;

CREATE FUNCTION drover.shown_code(job drover.jobqueue) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$
  select ' (' || nullif(nullif(code, 'normal'), job.jq_state::text) || ')'
    from drover.end_code(job.jq_state, job.jq_type, job.jq_end_bits, job.jq_endtext, job.jq_exitcode,
                         job.jq_signal) as code
$$;

CREATE FUNCTION drover.skip(jobs bigint[], tops bigint[]) RETURNS bigint[]
    LANGUAGE plpgsql
    SET search_path TO 'drover', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
declare
  ended   bigint[];
  parents bigint[];
  skipped bigint[] := '{}';
  step    record;
begin
  for step in select top, array_agg(pk) as pks from unnest(jobs, tops) as u(pk, top) group by top order by top loop
    with gone as (
      update jobqueue
         set jq_state = 'skipped', jq_starttime = coalesce(jq_first_start, now()), jq_endtime = now(), jq_end_bits = 2,
             jq_endtext = 'dependency on job ' || step.top || ' not met', jq_wait_until = null
       where jq_pk = any (step.pks) and jq_state in ('held', 'queued')
      returning jq_pk, jq_has_children)
    select array_agg(jq_pk), array_agg(jq_pk) filter (where jq_has_children) into ended, parents from gone;
    perform drover.announce(ended, array_fill('skipped'::text, array[cardinality(ended)])) where ended is not null;
    skipped := skipped || parents;
  end loop;
  return skipped;
end $$;

CREATE FUNCTION drover.start_schedule(name text, was timestamp with time zone, next timestamp with time zone, due timestamp with time zone, reason text, starts timestamp with time zone[], OUT is_moved boolean, OUT started integer, OUT said text) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'drover', 'pg_temp'
    AS $$
declare
  s     drover.schedule;
  busy  bigint[];
  made  bigint[];
  at    timestamptz;
  wrong text;
begin
  is_moved := false;
  started := 0;
  select * into s from schedule
   where schedule_name = name and schedule_enabled and schedule_next is not distinct from was
     for no key update skip locked;
  if not found then
    return;
  end if;
  perform drover.wait_at_most('200ms');
  begin
    foreach at in array starts loop
      insert into schedule_start (start_schedule, start_due_at) values (name, at) on conflict do nothing;
      continue when not found;
      wrong := null;
      made := '{}';
      busy := array(select jq_pk from jobqueue where jq_pk = any (s.schedule_jobs) and jq_endtime is null);
      if busy <> '{}' and s.schedule_overlap = 'skip' then
        wrong := 'skipped: job ' || busy[1] || ' of the start before has not ended';
      else
        begin
          made := drover.queue_scheduled(s.schedule_job, s.schedule_submitter, busy);
          s.schedule_jobs := made;
          started := started + 1;
        exception when others then
          if sqlstate !~ '^(22|23|42|P0)' then
            raise;  -- no fault of the job: a lock, a full disk
          end if;
          wrong := 'not queued: ' || sqlerrm;
        end;
      end if;
      update schedule_start set start_jobs = made, start_text = wrong
       where start_schedule = name and start_due_at = at;
      said := coalesce(wrong, said);
      s.schedule_last := at;
    end loop;
    delete from schedule_start
     where start_schedule = name and start_due_at < s.schedule_last and start_due_at < now() - interval '1 day'
       and start_at < now() - interval '1 day';
    update schedule
       set schedule_next = next, schedule_due = due, schedule_computed = now(), schedule_last = s.schedule_last,
           schedule_jobs = s.schedule_jobs, schedule_reason = coalesce(said, start_schedule.reason)
     where schedule_name = name;
    is_moved := true;
  exception
    when lock_not_available then
      get stacked diagnostics wrong = constraint_name;
      said := 'tried again later: ' || case when wrong = '' then
        'a transaction that has not ended has a lock on what it queues: its jq_unique_key, or a job that it waits for'
        else sqlerrm end;
    when others then
      said := 'tried again later: ' || sqlerrm;
  end;
  if not is_moved then
    started := 0;
    perform drover.wait_at_most('1ms');
    update schedule set schedule_due = now() + interval '1 second', schedule_reason = said where schedule_name = name;
    said := nullif(said, s.schedule_reason);
  end if;
end $$;

CREATE FUNCTION drover.subscribe(kind text DEFAULT 'all'::text, job bigint DEFAULT NULL::bigint, owner name DEFAULT NULL::name, tenant text DEFAULT NULL::text, is_site boolean DEFAULT false, targets text[] DEFAULT '{}'::text[], ttl interval DEFAULT NULL::interval, most integer DEFAULT NULL::integer, secret text DEFAULT NULL::text, OUT subscription bigint, OUT made_secret text) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'drover', 'pg_temp'
    AS $_$
#variable_conflict use_variable
declare
  is_free boolean := drover.may_command();
  scope   text := case when job is not null then 'job' when tenant is not null then 'tenant' when is_site then 'site'
                       else 'owner' end;
  wrong   text;
  key     bytea;
begin
  if num_nonnulls(job, owner, tenant, nullif(is_site, false)) > 1 then
    raise exception 'a subscription is for one of a job, an owner, a tenant and the site'
      using errcode = 'invalid_parameter_value';
  elsif not (case scope
      when 'job'    then exists (select from jobqueue where jq_pk = job and jq_type not in ('command', 'notify')
                                   and (is_free or jq_submitter = session_user))
      when 'owner'  then is_free or coalesce(owner, session_user) = session_user
      when 'tenant' then is_free or exists (select from pg_roles where rolname = tenant
                                              and pg_has_role(session_user, oid, 'member'))
      else is_free end) then
    raise exception '% may not subscribe to %', session_user,
      case scope when 'job' then 'job ' || job else scope || coalesce(' ' || coalesce(owner::text, tenant), '') end
      using errcode = 'insufficient_privilege';
  elsif kind is null or kind <> all ('{all,status,error,subscription,share,user,alternate,dead,alert}') then
    raise exception 'no kind of events: %; there are %',
      quote_nullable(left(kind, 64)), 'all, status, error, subscription, share, user, alternate, dead, alert'
      using errcode = 'invalid_parameter_value';
  elsif kind in ('alternate', 'dead', 'alert') and scope <> 'site' then
    raise exception 'events of kind % are of the site', kind using errcode = 'invalid_parameter_value';
  elsif most not between 1 and 10000 then
    raise exception 'from 1 to 10,000 deliveries may wait, or any number if none is given (got %)', most
      using errcode = 'invalid_parameter_value';
  elsif cardinality(targets) > 10 then
    raise exception 'a subscription has 10 targets at most (got %)', cardinality(targets)
      using errcode = 'invalid_parameter_value';
  elsif not is_free
        and drover.has_all_subscriptions(scope || ':' || coalesce(job::text, tenant, session_user)) then
    raise exception '% has 10,000 subscriptions, or 10 about the same: remove some', session_user
      using errcode = 'configuration_limit_exceeded';
  elsif ttl <= interval '0' or ttl > interval '100 years' then
    raise exception 'the time to live of a subscription is longer than 0, and 100 years at most'
      using errcode = 'invalid_parameter_value';
  end if;
  targets := array(select unnest(targets));  -- numbered from 1, whatever the bounds of what was given
  select target into wrong from unnest(targets) as target
   where (target ~ '^https?://[^\s/?#@\\]+([/?#][^\s\\]*)?$'
          or target ~ '^mailto:[^\s@:,<>]+@[^\s@:,<>/?]+$') is not true
      or length(target) > 2000 limit 1;
  if found then
    raise exception 'a target is http://... or https://... without a password, or mailto:NAME@HOST (got %)',
      quote_nullable(left(wrong, 100)) using errcode = 'invalid_parameter_value';
  elsif secret is null then
    key := decode(replace(gen_random_uuid()::text || gen_random_uuid(), '-', ''), 'hex');
    made_secret := 'whsec_' || encode(key, 'base64');
  elsif length(secret) not between 16 and 200 then
    raise exception 'a secret has 16 to 200 characters' using errcode = 'invalid_parameter_value';
  else
    key := case when starts_with(secret, 'whsec_') then decode(substr(secret, 7), 'base64')
                else convert_to(secret, 'UTF8') end;
  end if;
  insert into drover.subscription (sub_scope, sub_of, sub_kind, sub_targets, sub_most, sub_expires)
  values (scope, coalesce(job::text, tenant, case when is_site then '' else coalesce(owner, session_user)::text end),
          kind, targets, most, now() + ttl)
  returning sub_pk into subscription;
  insert into subscription_key values (subscription, drover.hmac_block(key, 54), drover.hmac_block(key, 92));
  perform drover.record_subscription(subscription, 'subscribed');
end $_$;

CREATE TABLE drover.subscription (
    sub_pk bigint NOT NULL,
    sub_owner name DEFAULT SESSION_USER NOT NULL,
    sub_scope text NOT NULL,
    sub_of text NOT NULL,
    sub_key text GENERATED ALWAYS AS (((sub_scope || ':'::text) || sub_of)) STORED NOT NULL,
    sub_kind text DEFAULT 'all'::text NOT NULL,
    sub_targets text[] DEFAULT '{}'::text[] NOT NULL,
    sub_enabled boolean DEFAULT true NOT NULL,
    sub_most integer,
    sub_created timestamp with time zone DEFAULT now() NOT NULL,
    sub_expires timestamp with time zone,
    CONSTRAINT alerts_are_of_the_site CHECK (((sub_kind <> 'alert'::text) OR (sub_scope = 'site'::text))),
    CONSTRAINT subscription_sub_kind_check CHECK ((sub_kind = ANY (ARRAY['all'::text, 'status'::text, 'error'::text, 'subscription'::text, 'share'::text, 'user'::text, 'alternate'::text, 'dead'::text, 'alert'::text]))),
    CONSTRAINT subscription_sub_most_check CHECK (((sub_most >= 1) AND (sub_most <= 10000))),
    CONSTRAINT subscription_sub_of_check CHECK ((length(sub_of) <= 2000)),
    CONSTRAINT subscription_sub_scope_check CHECK ((sub_scope = ANY (ARRAY['job'::text, 'owner'::text, 'tenant'::text, 'site'::text]))),
    CONSTRAINT subscription_sub_targets_check CHECK ((cardinality(sub_targets) <= 10))
);

CREATE FUNCTION drover.subscribers(kind text, job bigint, owner name, tenant text) RETURNS SETOF drover.subscription
    LANGUAGE sql STABLE
    AS $$
  select * from drover.subscription
   where sub_key = any (
           (case when kind in ('alternate', 'dead', 'alert') then array['site:']
                 else array['job:' || job, 'owner:' || owner, 'tenant:' || tenant, 'site:'] end) collate "default")
     and sub_kind in ('all', kind) and sub_enabled and (sub_expires is null or sub_expires > now())
     and drover.may_be_told(sub_owner, sub_scope, sub_of, owner)
$$;

CREATE FUNCTION drover.subscription_enable(sub bigint, is_on boolean) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'drover', 'pg_temp'
    AS $$
begin
  update drover.subscription set sub_enabled = is_on
   where sub_pk = sub and (sub_owner = session_user or drover.may_command());
  if found then
    perform drover.record_subscription(sub, case when is_on then 'enabled' else 'disabled' end);
    perform drover.notify('drover_delivery', '');
    return true;
  end if;
  return false;
end $$;

CREATE FUNCTION drover.suspect_entries(INOUT place bigint, most integer, enough text[], OUT looked integer) RETURNS record
    LANGUAGE plpgsql
    SET search_path TO 'drover', 'pg_temp'
    AS $$
declare
  first bigint := place;
begin
  select count(*), max(blocked_jq_fk) into looked, place
    from (select blocked_jq_fk from blocked where blocked_jq_fk > first order by blocked_jq_fk limit most) w;
  insert into suspect (suspect_jq_fk, suspect_rule)
  select blocked_jq_fk, 'not blocked' from blocked left join jobqueue on jq_pk = blocked_jq_fk
   where blocked_jq_fk > first and blocked_jq_fk <= place and (jq_pk is null or jq_state <> 'blocked')
     and 'not blocked' <> all (enough)
  on conflict do nothing;
  if looked < most then
    place := null;
  end if;
end $$;

CREATE FUNCTION drover.suspect_jobs(INOUT place bigint, most integer, enough text[], OUT looked integer) RETURNS record
    LANGUAGE plpgsql
    SET search_path TO 'drover', 'pg_temp'
    AS $$
declare
  first  bigint := place;
  zone   bigint := zone_of(place + 1);
  kinds  integer;
  opened bigint;
  last   bigint;
begin
  select count(*), max(zone_number),
         min(zone_number) filter (where zone_jobs > 0 and zone_state in ('held', 'early', 'unmet', 'queued', 'blocked'))
    into kinds, last, opened
    from (select * from job_zone where zone_number >= zone order by zone_number limit most) z;
  looked := 1 + kinds / 10;
  opened := coalesce(opened, case when kinds = most and last = zone then zone end);  -- more kinds than are looked at
  if opened is null then
    place := case when kinds = most then last * 4096 - 1 end;
    return;
  end if;
  first := greatest(first, opened * 4096 - 1);
  select looked + count(*), case when count(*) = most then max(jq_pk) else opened * 4096 + 4095 end into looked, place
    from (select jq_pk from jobqueue where jq_pk > first and jq_pk < (opened + 1) * 4096 order by jq_pk limit most) w;
  insert into suspect (suspect_jq_fk, suspect_rule)
  select jq_pk, rule from contradiction where jq_pk > first and jq_pk <= place and rule <> all (enough)
  on conflict do nothing;
end $$;

CREATE FUNCTION drover.suspect_tokens(INOUT place bigint, enough text[], OUT looked integer) RETURNS record
    LANGUAGE plpgsql
    SET search_path TO 'drover', 'pg_temp'
    AS $$
declare
  first tid := format('(%s,0)', place + 1)::tid;
  beyond tid := format('(%s,0)', place + 2)::tid;
begin
  with token as materialized (
    select t.ctid as token, unnest(coalesce(claim_jobs, array[claim_first])) as pk from claimable t
     where t.ctid >= first and t.ctid < beyond),
  found as (
    insert into suspect (suspect_jq_fk, suspect_rule, suspect_token)
    select distinct on (pk) pk, 'token of an ended job', token from token left join jobqueue on jq_pk = pk
     where (jq_pk is null or jq_state <> 'queued' or jq_unmet > 0 or jq_wait_until is not null)
       and 'token of an ended job' <> all (enough)
    on conflict (suspect_jq_fk, suspect_rule) do update set suspect_token = excluded.suspect_token)
  select 20 + count(*) into looked from token;
  place := place + 1;
  if place * current_setting('block_size')::bigint >= pg_relation_size('drover.claimable') then
    place := null;
  end if;
end $$;

CREATE FUNCTION drover.take_jobs(jobs bigint[], states drover.job_state[]) RETURNS bigint[]
    LANGUAGE plpgsql
    SET search_path TO 'drover', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_nestloop TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    AS $$  -- where nothing else does, it still nests
declare
  taken bigint[];
begin
  with shared as materialized (
    select t.ctid as at, u.pk
      from (select distinct block_of(pk) as first from unnest(jobs) as pk) b cross join lateral (
        select ctid, claim_jobs from claimable
         where claim_first between b.first and b.first + 31 and claim_jobs is not null offset 0) t
     cross join lateral unnest(t.claim_jobs) as u(pk)
     where u.pk in (select unnest(jobs))),
  own as materialized (
    select t.ctid as at
      from (select pk from unnest(jobs) as pk where pk not in (select pk from shared)) o cross join lateral (
        select * from jobqueue where jq_pk = pk and jq_state = 'queued' and jq_unmet = 0 and jq_wait_until is null
        offset 0) j cross join lateral (
        select ctid from claimable
         where claim_type = j.jq_type and claim_queue = coalesce(j.jq_queue, '')
           and claim_host = coalesce(j.jq_host, '') and claim_rank = rank(j.jq_urgent, j.jq_priority)
           and claim_queued = j.jq_queued and claim_first = j.jq_pk and claim_jq_fk is not null
        offset 0) t),
  in_line as materialized (
    select t.ctid as at
      from unnest(jobs) as pk cross join lateral (
        select ctid from claimable where claim_first = pk and claim_line is not null offset 0) t
     where exists (select from claimable where claim_line is not null)),
  token as materialized (
    select ctid as at, * from claimable
     where ctid = any (array(select at from shared union select at from own union select at from in_line))
       for update skip locked),
  held as materialized (
    select t.*, u.pk from token t cross join lateral unnest(coalesce(t.claim_jobs, array[t.claim_first])) as u(pk)),
  claimable_job as materialized (
    select jq_pk from jobqueue
     where jq_pk = any (array(select pk from held where pk in (select unnest(jobs))))
       and jq_state = 'queued' and 'queued' = any (states)
       for no key update skip locked),
  other_job as materialized (
    select jq_pk from jobqueue
     where jq_pk = any (jobs) and jq_state = any (states) and jq_state not in ('claimed', 'running')
       and not (jq_state = 'queued' and jq_unmet = 0 and jq_wait_until is null)
       for no key update skip locked),
  job as materialized (select *, pk in (select jq_pk from claimable_job) as leaves from held),
  gone as (delete from claimable where ctid = any (array(select at from job where leaves))),
  run as (  -- a job that comes back is between the others again
    select *, count(*) filter (where leaves) over (partition by at order by pk) as n
      from job where claim_jobs is not null and at in (select at from job where leaves)),
  put_back as (
    insert into claimable (claim_first, claim_jobs, claim_queued, claim_type, claim_queue, claim_host, claim_rank,
                           claim_by_record)
    select min(pk), array_agg(pk order by pk), claim_queued, claim_type, claim_queue, claim_host, claim_rank, true
      from run where not leaves
     group by at, n, claim_queued, claim_type, claim_queue, claim_host, claim_rank)
  select array(select jq_pk from claimable_job union all select jq_pk from other_job) into taken;
  perform notify('drover_queue', '') where taken <> '{}';  -- claims skipped the tokens while they were locked
  return taken;
end $$;

CREATE FUNCTION drover.takes_priority(letters text, priority text) RETURNS boolean
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN CASE WHEN (letters IS NULL) THEN true WHEN (strpos(letters, '-'::text) = 0) THEN (strpos(letters, "left"(priority, 1)) > 0) ELSE (EXISTS (SELECT FROM unnest(string_to_array(takes_priority.letters, ','::text)) each(each) WHERE (((takes_priority.priority COLLATE "C") >= split_part(each.each, '-'::text, 1)) AND ((takes_priority.priority COLLATE "C") < split_part(each.each, '-'::text, 2))))) END;

CREATE FUNCTION drover.target_mistake(target text) RETURNS text
    LANGUAGE plpgsql IMMUTABLE
    SET search_path TO 'drover', 'pg_temp'
    AS $_$
declare
  atom  constant text := '[A-Za-z0-9!#$%&''*+/=^_`{|}~-]+';
  label constant text := '[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?';
  part  text[];
begin
  if target is null or length(target) > 2000 then
    return 'it has 1 to 2,000 characters';
  elsif target ~ '[^!-~]' or strpos(target, '\') > 0 then
    return 'blanks, backslashes and what is not ASCII are written as %20, a host as xn--...';
  elsif starts_with(target, 'mailto:') then
    part := regexp_match(target, '^mailto:([^@]*)@([^@]*)$');
    if part is null or length(target) > 261 then
      return 'one @ is between NAME and HOST, which have 254 characters at most';
    elsif length(part[1]) > 64 or part[1] !~ ('^' || atom || '([.]' || atom || ')*$') then
      return 'NAME has 1 to 64 letters, digits and !#$%&''*+/=^_`{|}~-, with single dots in between';
    elsif part[2] !~ ('^' || label || '([.]' || label || ')*$') then
      return 'HOST has labels of 1 to 63 letters, digits and hyphens, with single dots in between';
    end if;
    return null;
  end if;
  part := regexp_match(target, '^https?://([[][0-9A-Fa-f:]+[]]|[^][/?#@:]+)(:[0-9]{1,5})?([/?#].*)?$');
  if part is null then
    return 'behind // are a host, an IPv4 address, or an IPv6 address in brackets, and perhaps a colon and a port';
  elsif substr(part[2], 2)::integer not between 1 and 65535 then
    return 'a port is a number from 1 to 65535';
  elsif starts_with(part[1], '[') then
    begin
      perform trim(part[1], '[]')::inet;
    exception when invalid_text_representation then
      return 'in the brackets is no IPv6 address';
    end;
  elsif part[1] !~ '^([A-Za-z0-9_-]{1,63}[.])*[A-Za-z0-9_-]{1,63}[.]?$' or length(part[1]) > 253 then
    return 'a host has labels of 1 to 63 letters, digits, hyphens and underscores, with single dots in between';
  end if;
  return null;
end $_$;

CREATE FUNCTION drover.tell_site(kind text, said text) RETURNS void
    LANGUAGE plpgsql
    AS $$
begin
  insert into drover.log (log_type, log_message) values (upper(kind), drover.message(said));
  perform drover.record_one(kind, null, null, null, said);
end $$;

CREATE FUNCTION drover.tenant_of(who name) RETURNS text
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'drover', 'pg_temp'
    AS $$
  select min(tenant_name) from tenant where drover.is_member(who, tenant_name::name)
$$;

CREATE FUNCTION drover.texts(variables jsonb) RETURNS json
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    AS $$
  select case when drover.json_bytes(variables) <= 16777216
              then (select json_object_agg(key, value) from jsonb_each_text(variables)) end
$$;

CREATE FUNCTION drover.time_bin(seconds double precision) RETURNS integer
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$
  select case when seconds <= 0.0001 then 0 else least(ceil(8 * ln(seconds / 0.0001) / ln(2)), 281)::integer end
$$;

CREATE FUNCTION drover.time_run(is_query boolean, worked interval, started timestamp with time zone, ended timestamp with time zone) RETURNS double precision
    LANGUAGE sql STABLE PARALLEL SAFE
    AS $$
  select case when not is_query and ended is not null and worked > interval '0' then date_part('epoch', worked)
              else date_part('epoch', coalesce(ended, now())) - date_part('epoch', started) end
$$;

CREATE FUNCTION drover.trial_failed() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'drover', 'pg_temp'
    AS $$
begin
  perform drover.tell_site('alert', 'agent type ' || new.agent_type || ': ' || (new.agent_trial ->> 'text'));
  return null;
end $$;

CREATE FUNCTION drover.try_to_enter(name text) RETURNS boolean
    LANGUAGE plpgsql
    SET search_path TO 'drover', 'pg_temp'
    AS $$
begin
  insert into gate select name where not exists (select from gate where gate_name = name) on conflict do nothing;
  perform from gate where gate_name = name for update skip locked;
  return found;
end $$;

CREATE FUNCTION drover.try_to_remove(what text, numbers bigint[], OUT removed bigint, OUT kept bigint[], OUT why text) RETURNS record
    LANGUAGE plpgsql
    SET search_path TO 'drover', 'pg_temp'
    AS $$
declare
  half integer := cardinality(numbers) / 2;
  rest record;
begin
  removed := cardinality(numbers);
  kept := '{}';
  if removed = 0 then
    return;
  end if;
  begin
    perform drover.remove(what, numbers);
    return;
  exception when others then
    if left(sqlstate, 2) in ('40', '53', '54', '55', '57', '58', 'XX') then
      raise;
    end if;
    why := sqlerrm;
  end;
  if half = 0 then
    removed := 0;
    kept := numbers;
    return;
  end if;
  select * into removed, kept, why from drover.try_to_remove(what, numbers[:half]);
  select * into rest from drover.try_to_remove(what, numbers[half + 1:]);
  removed := removed + rest.removed;
  kept := kept || rest.kept;
  why := coalesce(why, rest.why);
end $$;

CREATE FUNCTION drover.unmet(was integer, more integer, writer xid) RETURNS integer
    LANGUAGE sql
    AS $$
  select case when was >= 100 and age(writer) <= 0 then 2147483647 else greatest(was + more, 0) end
$$;

CREATE FUNCTION drover.unsubscribe(sub bigint) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'drover', 'pg_temp'
    AS $$
begin
  perform from drover.subscription
    where sub_pk = sub and (sub_owner = session_user or drover.may_command()) for update;
  if found then
    perform drover.record_subscription(sub, 'unsubscribed');
    delete from drover.subscription where sub_pk = sub;
    return true;
  end if;
  return false;
end $$;

CREATE FUNCTION drover.wait_at_most(most text) RETURNS text
    LANGUAGE plpgsql
    SET search_path TO 'drover', 'pg_temp'
    AS $$
declare
  limits text := current_setting('lock_timeout');
begin
  if limits = '0' or limits::interval > most::interval then
    perform set_config('lock_timeout', most, true);
  end if;
  return limits;
end $$;

CREATE FUNCTION drover.wait_for_owner() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'drover', 'pg_temp'
    AS $$
begin
  perform from scheduler_group where group_name = old.group_name for update;
  return new;
end $$;

CREATE FUNCTION drover.waiting_in(queue_name text, most integer) RETURNS bigint
    LANGUAGE sql STABLE
    SET search_path TO 'drover', 'pg_temp'
    AS $$
  with recursive place as (  -- each type that has waiting jobs
    (select claim_type as type from claimable order by claim_type limit 1)
     union all
    select n.claim_type from place cross join lateral (
      select claim_type from claimable where claim_type > type order by claim_type limit 1) n)
  select coalesce(sum(size), 0)
    from (select coalesce(cardinality(claim_jobs), 1) as size
            from place join claimable on claim_type = type and claim_queue = queue_name limit most) tokens
$$;

CREATE FUNCTION drover.wake() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
begin
  perform drover.notify(tg_argv[0], '');
  return null;
end $$;

CREATE FUNCTION drover.want_jobs(jobs bigint[], owner uuid, wanted text) RETURNS bigint[]
    LANGUAGE plpgsql
    SET search_path TO 'drover', 'pg_temp'
    AS $$
declare
  noted bigint[];
begin
  if jobs = '{}' then
    return jobs;
  end if;
  perform from scheduler_group where group_owner = owner for key share;  -- no other daemon takes over meanwhile
  if not found then
    return '{}';
  end if;
  with free as materialized (
    select j.jq_pk, (select min(hand_since) from in_hand where j.jq_pk = any (hand_jobs)) as since
      from jobqueue j
     where j.jq_pk = any (jobs)
       and (jq_owner = owner and jq_state in ('claimed', 'running')
            or jq_state = 'queued' and jq_unmet = 0 and jq_wait_until is null and not has_token(j))
       for no key update skip locked),
  done as (
    update jobqueue j
       set jq_wanted = wanted, jq_state = case jq_state when 'queued' then 'claimed' else jq_state end,
           jq_attempt = jq_attempt + (jq_state = 'queued')::integer, jq_owner = owner,
           jq_starttime = coalesce(jq_starttime, free.since),
           jq_endtext = case jq_state when 'queued' then 'in progress' else jq_endtext end
      from free where j.jq_pk = free.jq_pk
    returning j.jq_pk)
  select coalesce(array_agg(jq_pk), '{}') into noted from done;
  return noted;
end $$;

CREATE FUNCTION drover.wards(who name DEFAULT SESSION_USER) RETURNS name[]
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'drover', 'pg_temp'
    AS $$
  select drover.members_of(who, array(
    select tenant_name from tenant
      join pg_catalog.pg_roles t on t.rolname = tenant_name join pg_catalog.pg_roles w on w.rolname = who
     where t.oid = w.oid or not w.rolsuper and pg_has_role(w.oid, t.oid, 'member with admin option')))
$$;

CREATE FUNCTION drover.why_later(said text) RETURNS text
    LANGUAGE sql IMMUTABLE
    SET search_path TO 'drover', 'pg_temp'
    AS $$
  select case when starts_with(said, 'rate limit of queue ') then 'waits for the ' || split_part(said, ': ', 1)
              when starts_with(said, 'no connection as ') then 'waits for a connection of the scheduler'
              else 'waits for its next try, after a failure' end
$$;

CREATE FUNCTION drover.withdraw(job drover.jobqueue) RETURNS void
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    SET jit TO 'off'
    AS $$
begin
  delete from drover.claimable
   where claim_type = job.jq_type and claim_queue = coalesce(job.jq_queue, '')
     and claim_host = coalesce(job.jq_host, '')
     and claim_rank = drover.rank(job.jq_urgent, job.jq_priority) and claim_queued = job.jq_queued
       and claim_first = job.jq_pk and claim_jq_fk is not null;
  if found then
    return;
  end if;
  delete from drover.claimable where claim_first = job.jq_pk and claim_line is not null;
  if found or drover.leave_shared(array[job.jq_pk]) <> '{}' then
    return;
  end if;
  -- in a statement of its own: the others may have waited
  if exists (select from drover.in_hand where job.jq_pk = any (hand_jobs)) then
    raise exception 'job % has just been claimed: try again', job.jq_pk using errcode = 'lock_not_available';
  end if;
end $$;

CREATE FUNCTION drover.withdraw_all(jobs bigint[]) RETURNS void
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    SET jit TO 'off'
    AS $$
declare
  withdrawn bigint[];
  claimed   bigint;
begin
  with plain as (
    delete from drover.claimable using drover.jobqueue j
     where j.jq_pk = any (jobs) and claim_type = j.jq_type and claim_queue = coalesce(j.jq_queue, '')
       and claim_host = coalesce(j.jq_host, '')
       and claim_rank = drover.rank(j.jq_urgent, j.jq_priority) and claim_queued = j.jq_queued and claim_first = j.jq_pk
       and claim_jq_fk is not null
    returning claim_jq_fk),
  in_line as (
    delete from drover.claimable where claim_first = any (jobs) and claim_line is not null returning claim_jq_fk)
  select coalesce(array_agg(claim_jq_fk), '{}') into withdrawn from (table plain union all table in_line) t;
  if cardinality(jobs) > cardinality(withdrawn) then
    withdrawn := withdrawn || drover.leave_shared(jobs);
  end if;
  if cardinality(jobs) > cardinality(withdrawn) then  -- in a statement of its own: the deletes may have waited
    select min(pk) into claimed from unnest(jobs) as pk
     where pk <> all (withdrawn) and pk in (select unnest(hand_jobs) from drover.in_hand);
    if claimed is not null then
      raise exception 'job % is claimed already: it takes no new dependency', claimed using errcode = 'check_violation';
    end if;
  end if;
end $$;

CREATE FUNCTION drover.withdraw_commands(commands bigint[], said text) RETURNS bigint[]
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'drover', 'pg_temp'
    AS $$
declare
  withdrawn bigint[];
begin
  with free as materialized (
    select jq_pk from jobqueue
     where jq_pk = any (commands) and jq_type = 'command' and jq_state = 'queued' and jq_attempt_start is null
       and jq_endtext is null and jq_wait_until is null and (jq_submitter = session_user or drover.may_command())
       and not exists (select from command_ack where ack_jq_fk = jq_pk)
     order by jq_pk for no key update skip locked),
  ended as (
    update jobqueue j
       set jq_state = 'failed', jq_attempt = jq_attempt + 1, jq_starttime = now(), jq_endtime = now(), jq_end_bits = 2,
           jq_endtext = drover.message(said)
      from free where j.jq_pk = free.jq_pk
    returning j.jq_pk)
  select coalesce(array_agg(jq_pk), '{}') into withdrawn from ended;
  perform drover.announce(withdrawn, array_fill('failed'::text, array[cardinality(withdrawn)]))
    where withdrawn <> '{}';
  return withdrawn;
end $$;

CREATE FUNCTION drover.without_attributes(job jsonb) RETURNS jsonb
    LANGUAGE sql IMMUTABLE
    SET search_path TO 'drover', 'pg_temp'
    AS $$
  select case when job ->> 'jq_type' like '% %=%'
              then jsonb_set(job, '{jq_type}', to_jsonb((regexp_split_to_array(btrim(job ->> 'jq_type'), '\s+'))[1]))
              else job end
$$;

CREATE FUNCTION drover.word(words text, n integer) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN (regexp_split_to_array(btrim(words, ' 	

'::text), '[ 	

]+'::text))[n];

CREATE FUNCTION drover.zone_of(pk bigint) RETURNS bigint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN (pk / 4096);

CREATE TABLE drover.alert (
    alert_rule text NOT NULL,
    alert_jq_fk bigint NOT NULL,
    alert_since timestamp with time zone DEFAULT now() NOT NULL,
    alert_is_told boolean DEFAULT false NOT NULL
);

CREATE TABLE drover.attempt_kept (
    att_jq_fk bigint NOT NULL,
    att_attempt integer NOT NULL,
    att_scheduler uuid,
    att_host text,
    att_agent text,
    att_pid integer,
    att_start timestamp with time zone NOT NULL,
    att_end timestamp with time zone DEFAULT now() NOT NULL,
    att_outcome text NOT NULL,
    att_exitcode integer,
    att_signal text,
    att_reason text,
    CONSTRAINT attempt_kept_att_outcome_check CHECK ((att_outcome = ANY (ARRAY['done'::text, 'failed'::text, 'slice'::text, 'retry'::text, 'given back'::text, 'blocked'::text, 'interrupted'::text, 'rescued'::text, 'cancelled'::text])))
);

CREATE VIEW drover.attempt AS
 SELECT attempt_kept.att_jq_fk,
    attempt_kept.att_attempt,
    attempt_kept.att_scheduler,
    attempt_kept.att_host,
    attempt_kept.att_agent,
    attempt_kept.att_pid,
    attempt_kept.att_start,
    attempt_kept.att_end,
    attempt_kept.att_outcome,
    attempt_kept.att_exitcode,
    attempt_kept.att_signal,
    attempt_kept.att_reason
   FROM drover.attempt_kept
UNION ALL
 SELECT jobqueue.jq_pk AS att_jq_fk,
    jobqueue.jq_attempt AS att_attempt,
    jobqueue.jq_done_by AS att_scheduler,
    jobqueue.jq_done_host AS att_host,
    jobqueue.jq_type AS att_agent,
    jobqueue.jq_done_pid AS att_pid,
    (jobqueue.jq_endtime - jobqueue.jq_processedtime) AS att_start,
    jobqueue.jq_endtime AS att_end,
    'done'::text AS att_outcome,
    jobqueue.jq_exitcode AS att_exitcode,
    NULL::text AS att_signal,
    NULL::text AS att_reason
   FROM drover.jobqueue
  WHERE (jobqueue.jq_done_by IS NOT NULL)
UNION ALL
 SELECT jobqueue.jq_pk AS att_jq_fk,
    jobqueue.jq_attempt AS att_attempt,
    jobqueue.jq_owner AS att_scheduler,
    jobqueue.jq_done_host AS att_host,
    jobqueue.jq_type AS att_agent,
    jobqueue.jq_done_pid AS att_pid,
    COALESCE(jobqueue.jq_attempt_start, jobqueue.jq_starttime) AS att_start,
    NULL::timestamp with time zone AS att_end,
    NULL::text AS att_outcome,
    NULL::integer AS att_exitcode,
    NULL::text AS att_signal,
    NULL::text AS att_reason
   FROM drover.jobqueue
  WHERE (jobqueue.jq_state = 'running'::drover.job_state);

CREATE TABLE drover.blocked (
    blocked_jq_fk bigint NOT NULL,
    blocked_recovery bigint NOT NULL,
    blocked_since timestamp with time zone DEFAULT now() NOT NULL,
    blocked_queue text NOT NULL,
    blocked_rank text NOT NULL COLLATE pg_catalog."C",
    blocked_queued timestamp with time zone NOT NULL
);

CREATE TABLE drover.recovery (
    recovery_pk bigint NOT NULL,
    recovery_group text NOT NULL,
    recovery_tenant text,
    recovery_condition text NOT NULL,
    recovery_policy text NOT NULL,
    recovery_text text,
    recovery_since timestamp with time zone DEFAULT now() NOT NULL,
    recovery_tries integer DEFAULT 0 NOT NULL,
    recovery_came integer DEFAULT 1 NOT NULL,
    recovery_next timestamp with time zone NOT NULL,
    recovery_tester bigint
);

CREATE VIEW drover.awaited AS
 SELECT blocked.blocked_jq_fk AS jq_pk,
    (((('waits for the end of a condition since '::text || date_trunc('second'::text, blocked.blocked_since)) || ', next check '::text) || date_trunc('second'::text, recovery.recovery_next)) ||
        CASE recovery.recovery_tries
            WHEN 0 THEN ''::text
            ELSE (', checks in vain: '::text || recovery.recovery_tries)
        END) AS says
   FROM (drover.blocked
     JOIN drover.recovery ON ((recovery.recovery_pk = blocked.blocked_recovery)));

CREATE TABLE drover.in_hand (
    hand_owner uuid NOT NULL,
    hand_jobs bigint[] NOT NULL,
    hand_since timestamp with time zone DEFAULT now() NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0.05', autovacuum_vacuum_cost_delay='0');
ALTER TABLE ONLY drover.in_hand ALTER COLUMN hand_jobs SET STORAGE EXTERNAL;

ALTER TABLE ONLY drover.in_hand REPLICA IDENTITY FULL;

CREATE TABLE drover.job_change (
    change_zone bigint NOT NULL,
    change_type text NOT NULL,
    change_queue text NOT NULL,
    change_host text NOT NULL,
    change_submitter text NOT NULL,
    change_was text,
    change_state text,
    change_jobs integer NOT NULL,
    change_oldest timestamp with time zone,
    change_latest timestamp with time zone,
    change_waited real,
    change_ran real,
    change_rank text COLLATE pg_catalog."C"
)
WITH (autovacuum_vacuum_scale_factor='0.05', autovacuum_vacuum_cost_delay='0');

ALTER TABLE ONLY drover.job_change REPLICA IDENTITY FULL;

CREATE TABLE drover.job_total (
    total_type text NOT NULL,
    total_queue text NOT NULL,
    total_host text NOT NULL,
    total_submitter text NOT NULL,
    total_state text NOT NULL,
    total_jobs bigint NOT NULL
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0.05', autovacuum_vacuum_cost_delay='0');

CREATE VIEW drover.job_counts AS
 SELECT c.type,
    c.queue,
    c.host,
    c.submitter,
    c.state,
    (sum(c.jobs))::bigint AS jobs
   FROM ( SELECT job_total.total_type AS type,
            job_total.total_queue AS queue,
            job_total.total_host AS host,
            job_total.total_submitter AS submitter,
            job_total.total_state AS state,
            job_total.total_jobs AS jobs
           FROM drover.job_total
        UNION ALL
         SELECT job_change.change_type,
            job_change.change_queue,
            job_change.change_host,
            job_change.change_submitter,
            s.state,
            s.jobs
           FROM (drover.job_change
             CROSS JOIN LATERAL ( VALUES (job_change.change_state,job_change.change_jobs), (job_change.change_was,(- job_change.change_jobs))) s(state, jobs))
          WHERE (s.state IS NOT NULL)) c
  GROUP BY c.type, c.queue, c.host, c.submitter, c.state
 HAVING (sum(c.jobs) <> (0)::numeric);

CREATE VIEW drover.jobs_in_hand AS
 SELECT j.jq_pk,
    j.jq_type,
    COALESCE(j.jq_queue, ''::text) AS jq_queue,
    COALESCE(j.jq_host, ''::text) AS jq_host,
    (j.jq_submitter)::text AS jq_submitter,
    j.jq_queued,
        CASE j.jq_state
            WHEN 'queued'::drover.job_state THEN 'claimed'::drover.job_state
            ELSE j.jq_state
        END AS jq_state
   FROM (( SELECT DISTINCT unnest(in_hand.hand_jobs) AS pk
           FROM drover.in_hand) h
     CROSS JOIN LATERAL ( SELECT j_1.jq_pk,
            j_1.jq_job_fk,
            j_1.jq_name,
            j_1.jq_type,
            j_1.jq_args,
            j_1.jq_variables,
            j_1.jq_msq,
            j_1.jq_runonpfile,
            j_1.jq_host,
            j_1.jq_key,
            j_1.jq_tolerate,
            j_1.jq_repeat,
            j_1.jq_queue,
            j_1.jq_urgent,
            j_1.jq_priority,
            j_1.jq_not_before,
            j_1.jq_not_after,
            j_1.jq_wait_until,
            j_1.jq_expires_at,
            j_1.jq_live_key,
            j_1.jq_max_interruptions,
            j_1.jq_retries,
            j_1.jq_timeout,
            j_1.jq_unique_key,
            j_1.jq_delete,
            j_1.jq_mode,
            j_1.jq_state,
            j_1.jq_attempt,
            j_1.jq_owner,
            j_1.jq_schedinfo,
            j_1.jq_interruptions,
            j_1.jq_failures,
            j_1.jq_rescued,
            j_1.jq_retry_at,
            j_1.jq_unmet,
            j_1.jq_has_children,
            j_1.jq_wanted,
            j_1.jq_queued,
            j_1.jq_starttime,
            j_1.jq_endtime,
            j_1.jq_endtext,
            j_1.jq_end_bits,
            j_1.jq_exitcode,
            j_1.jq_signal,
            j_1.jq_result,
            j_1.jq_itemsprocessed,
            j_1.jq_itemsfailed,
            j_1.jq_itemstotal,
            j_1.jq_checkpoint,
            j_1.jq_elapsedtime,
            j_1.jq_processedtime,
            j_1.jq_expected_end,
            j_1.jq_done_by,
            j_1.jq_done_host,
            j_1.jq_done_pid,
            j_1.jq_submitter,
            j_1.jq_resubmit_of,
            j_1.jq_first_start,
            j_1.jq_attempt_start,
            j_1.jq_blocked_count
           FROM drover.jobqueue j_1
          WHERE ((j_1.jq_pk = h.pk) AND ((j_1.jq_state = ANY (ARRAY['claimed'::drover.job_state, 'running'::drover.job_state])) OR ((j_1.jq_state = 'queued'::drover.job_state) AND (j_1.jq_unmet = 0) AND (j_1.jq_wait_until IS NULL) AND (j_1.jq_type <> 'command'::text) AND (NOT drover.has_token(j_1.*)))))
         OFFSET 0) j);

CREATE VIEW drover.job_states AS
 SELECT u.type,
    u.queue,
    u.host,
    u.submitter,
    u.state,
    u.waits_for,
    (sum(u.jobs))::bigint AS jobs
   FROM ( SELECT job_counts.type,
            job_counts.queue,
            job_counts.host,
            job_counts.submitter,
            (
                CASE
                    WHEN (job_counts.state = ANY (ARRAY['early'::text, 'unmet'::text])) THEN 'queued'::text
                    ELSE job_counts.state
                END)::drover.job_state AS state,
                CASE job_counts.state
                    WHEN 'early'::text THEN 'time'::text
                    WHEN 'unmet'::text THEN 'jobs'::text
                    ELSE NULL::text
                END AS waits_for,
            job_counts.jobs
           FROM drover.job_counts
        UNION ALL
         SELECT jobs_in_hand.jq_type,
            jobs_in_hand.jq_queue,
            jobs_in_hand.jq_host,
            jobs_in_hand.jq_submitter,
            s.state,
            s.waits_for,
            s.jobs
           FROM (drover.jobs_in_hand
             CROSS JOIN LATERAL ( VALUES (jobs_in_hand.jq_state,NULL::text,1), ('queued'::drover.job_state,NULL::text,'-1'::integer)) s(state, waits_for, jobs))) u
  GROUP BY u.type, u.queue, u.host, u.submitter, u.state, u.waits_for
 HAVING (sum(u.jobs) > (0)::numeric);

CREATE VIEW drover.backlog AS
 WITH ready AS MATERIALIZED (
         SELECT job_states.type,
            job_states.queue,
            (sum(job_states.jobs))::bigint AS jobs,
            row_number() OVER (ORDER BY (sum(job_states.jobs)) DESC) AS place
           FROM drover.job_states
          WHERE ((job_states.state = 'queued'::drover.job_state) AND (job_states.waits_for IS NULL) AND (job_states.type <> 'command'::text))
          GROUP BY job_states.type, job_states.queue
        )
 SELECT ready.type,
    ready.queue,
    ready.jobs,
        CASE
            WHEN (ready.place <= 1000) THEN drover.oldest_claimable(ready.type, ready.queue)
            ELSE NULL::timestamp with time zone
        END AS oldest
   FROM ready;

CREATE VIEW drover.beside_zones AS
 SELECT DISTINCT pk.pk AS jq_pk
   FROM (drover.in_hand
     CROSS JOIN LATERAL unnest(in_hand.hand_jobs) pk(pk));

CREATE VIEW drover.blocked_jobs AS
 SELECT blocked.blocked_jq_fk AS jq_pk,
    recovery.recovery_condition AS condition,
    recovery.recovery_policy AS policy,
    blocked.blocked_since,
    recovery.recovery_since AS condition_since,
    recovery.recovery_tries AS tries,
    recovery.recovery_next AS next_check,
    recovery.recovery_tester AS tester,
    blocked.blocked_queue,
    blocked.blocked_rank,
    blocked.blocked_queued
   FROM (drover.blocked
     JOIN drover.recovery ON ((recovery.recovery_pk = blocked.blocked_recovery)));

CREATE TABLE drover.claimable (
    claim_jq_fk bigint,
    claim_queued timestamp with time zone NOT NULL,
    claim_type text NOT NULL COLLATE pg_catalog."C",
    claim_queue text NOT NULL COLLATE pg_catalog."C",
    claim_host text NOT NULL COLLATE pg_catalog."C",
    claim_rank text NOT NULL COLLATE pg_catalog."C",
    claim_line text COLLATE pg_catalog."C",
    claim_by_record boolean DEFAULT false NOT NULL,
    claim_first bigint NOT NULL,
    claim_jobs bigint[]
)
WITH (autovacuum_vacuum_scale_factor='0.05', autovacuum_vacuum_cost_delay='0');

ALTER TABLE ONLY drover.claimable REPLICA IDENTITY FULL;

CREATE VIEW drover.recorded AS
 SELECT DISTINCT ON (pk.pk) pk.pk AS jq_pk,
    in_hand.hand_owner,
    in_hand.hand_since,
    j.jq_attempt
   FROM ((drover.in_hand
     CROSS JOIN LATERAL unnest(in_hand.hand_jobs) pk(pk))
     CROSS JOIN LATERAL ( SELECT j_1.jq_attempt
           FROM drover.jobqueue j_1
          WHERE ((j_1.jq_pk = pk.pk) AND (j_1.jq_state = 'queued'::drover.job_state) AND (j_1.jq_unmet = 0) AND (j_1.jq_wait_until IS NULL) AND (j_1.jq_type <> 'command'::text) AND (NOT drover.has_token(j_1.*)))
         LIMIT 1) j)
  ORDER BY pk.pk, in_hand.hand_since DESC;

CREATE VIEW drover.jobs AS
 SELECT j.jq_pk,
    j.jq_job_fk,
    j.jq_name,
    j.jq_type,
    j.jq_args,
    j.jq_variables,
    j.jq_msq,
    j.jq_runonpfile,
    j.jq_host,
    j.jq_key,
    j.jq_tolerate,
    j.jq_repeat,
    j.jq_queue,
    j.jq_urgent,
    j.jq_priority,
    j.jq_not_before,
    j.jq_not_after,
    j.jq_wait_until,
    j.jq_expires_at,
    j.jq_live_key,
    j.jq_max_interruptions,
    j.jq_retries,
    j.jq_timeout,
    j.jq_unique_key,
    j.jq_delete,
    j.jq_mode,
        CASE
            WHEN (r.jq_pk IS NULL) THEN j.jq_state
            ELSE 'claimed'::drover.job_state
        END AS jq_state,
        CASE
            WHEN (r.jq_pk IS NULL) THEN j.jq_attempt
            ELSE (j.jq_attempt + 1)
        END AS jq_attempt,
    COALESCE(j.jq_owner, r.hand_owner) AS jq_owner,
    j.jq_schedinfo,
    j.jq_interruptions,
    j.jq_failures,
    j.jq_rescued,
    j.jq_retry_at,
    j.jq_unmet,
    j.jq_has_children,
    j.jq_wanted,
    j.jq_queued,
    COALESCE(j.jq_starttime, r.hand_since) AS jq_starttime,
    j.jq_endtime,
        CASE
            WHEN (r.jq_pk IS NULL) THEN j.jq_endtext
            ELSE 'in progress'::text
        END AS jq_endtext,
    j.jq_end_bits,
    j.jq_exitcode,
    j.jq_signal,
    j.jq_result,
    j.jq_itemsprocessed,
    j.jq_itemsfailed,
    j.jq_itemstotal,
    j.jq_checkpoint,
    j.jq_elapsedtime,
    j.jq_processedtime,
    j.jq_expected_end,
    j.jq_done_by,
    j.jq_done_host,
    j.jq_done_pid,
    j.jq_submitter,
    j.jq_resubmit_of,
    j.jq_first_start,
    j.jq_attempt_start,
    drover.end_code(j.jq_state, j.jq_type, j.jq_end_bits, j.jq_endtext, j.jq_exitcode, j.jq_signal) AS jq_end_code,
    COALESCE(j.jq_blocked_count, 0) AS jq_blocked_count
   FROM (drover.jobqueue j
     LEFT JOIN drover.recorded r ON ((r.jq_pk = j.jq_pk)));

CREATE VIEW drover.cleanup AS
 SELECT j.jq_pk,
    c.jq_pk AS cleanup_jq_pk,
        CASE
            WHEN (c.jq_pk IS NULL) THEN 'none'::text
            WHEN (c.jq_state = ANY (ARRAY['claimed'::drover.job_state, 'running'::drover.job_state])) THEN 'removing'::text
            WHEN (c.jq_endtime IS NULL) THEN 'pending'::text
            WHEN (c.jq_state = 'done'::drover.job_state) THEN 'removed'::text
            ELSE 'failed'::text
        END AS cleanup_state,
    c.jq_host AS cleanup_host,
        CASE
            WHEN (c.jq_state <> ALL (ARRAY['claimed'::drover.job_state, 'running'::drover.job_state, 'done'::drover.job_state])) THEN c.jq_endtext
            ELSE NULL::text
        END AS cleanup_text
   FROM (drover.jobqueue j
     LEFT JOIN drover.jobs c ON ((c.jq_name = ('cleanup.'::text || j.jq_pk))));

CREATE TABLE drover.command_ack (
    ack_jq_fk bigint NOT NULL,
    ack_scheduler uuid NOT NULL,
    ack_name text NOT NULL,
    ack_ok boolean NOT NULL,
    ack_text text NOT NULL,
    ack_date timestamp with time zone DEFAULT now() NOT NULL
);

CREATE VIEW drover.condition AS
 SELECT c.condition_code,
    c.condition_state,
    c.condition_text
   FROM ( VALUES ('normal'::text,'done'::text,'all data processed, or there were none'::text), ('nonfatal_errors'::text,'done'::text,'done, with items that failed and were tolerated, or ERROR lines'::text), ('cancelled'::text,'cancelled'::text,'cancelled by its submitter or an operator'::text), ('on_ice'::text,'skipped'::text,'skipped by the command ice, as if it had been done'::text), ('dependency_not_met'::text,'skipped'::text,'skipped: a job that it depends on ended otherwise than it asked'::text), ('unserved'::text,'ignored'::text,'run by hand, and no scheduler serves its queue'::text), ('killed'::text,'failed'::text,'killed by its submitter or an operator'::text), ('expired'::text,'failed'::text,'not started before jq_not_after'::text), ('timeout'::text,'failed'::text,'it, one of its items, or its query took longer than it may'::text), ('no_heartbeat'::text,'failed'::text,'its agent was silent for longer than it may'::text), ('recovery_timeout'::text,'failed'::text,'the condition that it was blocked on lasted too long'::text), ('recovery_failure'::text,'failed'::text,'the tester of the condition that it was blocked on failed'::text), ('interrupted'::text,'failed'::text,'interrupted more often than jq_max_interruptions allows'::text), ('launch_failure'::text,'failed'::text,'its command could not be started'::text), ('exit_status'::text,'failed'::text,'its agent exited with a status other than 0'::text), ('agent_died'::text,'failed'::text,'its agent was ended by a signal, or left the protocol'::text), ('items_failed'::text,'failed'::text,'more of its items failed than jq_tolerate allows'::text), ('no_progress'::text,'failed'::text,'not one item of a slice was done'::text), ('query_failed'::text,'failed'::text,'the database refused its query'::text), ('not_permitted'::text,'failed'::text,'its submitter may not queue its agent type'::text), ('invalid_definition'::text,'failed'::text,'what it asks for cannot be done; the text says why'::text), ('not_saved'::text,'failed'::text,'the database refused to store its outcome'::text), ('command_refused'::text,'failed'::text,'a command that was refused; the text says why'::text), ('agent_error'::text,'failed'::text,'its agent said FAIL; the text is what it said'::text)) c(condition_code, condition_state, condition_text);

CREATE VIEW drover.conditions AS
 SELECT recovery.recovery_pk,
    recovery.recovery_group AS condition_group,
    recovery.recovery_condition AS condition,
    recovery.recovery_policy AS policy,
    recovery.recovery_since AS since,
    recovery.recovery_tries AS tries,
    recovery.recovery_next AS next_check,
    recovery.recovery_tester AS tester,
    b.jobs,
    b.oldest,
    recovery.recovery_text AS text
   FROM (drover.recovery
     CROSS JOIN LATERAL ( SELECT count(*) AS jobs,
            min(blocked.blocked_since) AS oldest
           FROM drover.blocked
          WHERE (blocked.blocked_recovery = recovery.recovery_pk)) b)
  WHERE (b.jobs > 0);

CREATE TABLE drover.jobdepends (
    jdep_jq_fk bigint NOT NULL,
    jdep_jq_depends_fk bigint NOT NULL,
    jdep_depends_bits integer DEFAULT 1 NOT NULL,
    jdep_on_unmet text DEFAULT 'wait'::text NOT NULL,
    jdep_met_at timestamp with time zone,
    CONSTRAINT jobdepends_jdep_depends_bits_check CHECK (((jdep_depends_bits >= 1) AND (jdep_depends_bits <= 7))),
    CONSTRAINT jobdepends_jdep_on_unmet_check CHECK ((jdep_on_unmet = ANY (ARRAY['wait'::text, 'skip'::text]))),
    CONSTRAINT jobdepends_not_on_itself CHECK ((jdep_jq_fk <> jdep_jq_depends_fk))
)
WITH (fillfactor='50');

CREATE TABLE drover.queue (
    queue_name text NOT NULL,
    queue_group text NOT NULL,
    queue_concurrency integer,
    queue_concurrency_file integer,
    queue_paused boolean DEFAULT false NOT NULL,
    queue_paused_file boolean,
    queue_reserved integer DEFAULT 0 NOT NULL,
    queue_reserved_file integer,
    queue_priority integer DEFAULT 0 NOT NULL,
    queue_priority_file integer,
    queue_filter text,
    queue_present boolean DEFAULT true NOT NULL,
    queue_route jsonb,
    queue_rate jsonb,
    queue_zone text DEFAULT 'UTC'::text NOT NULL,
    queue_route_file jsonb,
    queue_rate_file jsonb,
    queue_max_length integer,
    queue_max_length_file integer,
    queue_rate_changed timestamp with time zone,
    CONSTRAINT queue_queue_concurrency_check CHECK ((queue_concurrency > 0)),
    CONSTRAINT queue_queue_max_length_check CHECK ((queue_max_length > 0)),
    CONSTRAINT queue_queue_name_check CHECK (((length(queue_name) >= 1) AND (length(queue_name) <= 64))),
    CONSTRAINT queue_queue_reserved_check CHECK ((queue_reserved >= 0))
);

COMMENT ON COLUMN drover.queue.queue_rate_changed IS 'since when the scheduler is to free the jobs that another rate limit put off; null: there are none';

CREATE TABLE drover.scheduler_group (
    group_name text NOT NULL,
    group_owner uuid,
    group_lease_until timestamp with time zone,
    group_taken_at timestamp with time zone,
    group_number bigint
);

CREATE VIEW drover.contradiction AS
 SELECT seen.rule,
    seen.jq_pk,
    seen.since,
    seen.jq_state,
    seen.jq_owner
   FROM ( SELECT j.jq_pk,
            COALESCE(j.jq_attempt_start, j.jq_starttime, j.jq_queued) AS since,
            j.jq_state,
            j.jq_owner,
                CASE
                    WHEN ((j.jq_state = ANY (ARRAY['claimed'::drover.job_state, 'running'::drover.job_state])) AND (q.queue_name IS NULL) AND (j.jq_type <> 'command'::text)) THEN 'no queue'::text
                    WHEN ((j.jq_state = ANY (ARRAY['claimed'::drover.job_state, 'running'::drover.job_state])) AND (j.jq_owner <> a.group_owner)) THEN 'wrong owner'::text
                    WHEN ((j.jq_state = 'blocked'::drover.job_state) AND (( SELECT blocked.blocked_jq_fk
                       FROM drover.blocked
                      WHERE (blocked.blocked_jq_fk = j.jq_pk)) IS NULL)) THEN 'no condition'::text
                    WHEN ((j.jq_state = 'queued'::drover.job_state) AND (j.jq_unmet = 0) AND (j.jq_wait_until IS NULL) AND (j.jq_type <> 'command'::text) AND (NOT drover.has_token(j.*)) AND (NOT (j.jq_pk IN ( SELECT unnest(in_hand.hand_jobs) AS unnest
                       FROM drover.in_hand)))) THEN 'no token'::text
                    WHEN ((j.jq_unmet > 0) AND (( SELECT jobdepends.jdep_jq_fk
                       FROM drover.jobdepends
                      WHERE ((jobdepends.jdep_jq_fk = j.jq_pk) AND (jobdepends.jdep_met_at IS NULL))
                     LIMIT 1) IS NULL)) THEN 'no dependency'::text
                    WHEN ((j.jq_state = 'queued'::drover.job_state) AND (j.jq_type <> 'command'::text) AND (j.jq_unmet = 0) AND (a.group_name IS NOT NULL) AND (LEAST(j.jq_wait_until, j.jq_expires_at) < (now() - '00:02:00'::interval))) THEN 'overdue'::text
                    ELSE NULL::text
                END AS rule
           FROM ((drover.jobqueue j
             LEFT JOIN drover.queue q ON ((q.queue_name = j.jq_queue)))
             LEFT JOIN drover.scheduler_group a ON (((a.group_name = q.queue_group) AND (a.group_lease_until > now()) AND (a.group_taken_at < (now() - '00:02:00'::interval)))))
          WHERE (j.jq_endtime IS NULL)) seen
  WHERE (seen.rule IS NOT NULL);

CREATE TABLE drover.counter (
    counter_name text NOT NULL,
    counter_labels text[] NOT NULL,
    counter_value double precision NOT NULL
)
WITH (fillfactor='50');

CREATE TABLE drover.counter_new (
    counter_name text NOT NULL,
    counter_labels text[] NOT NULL,
    counter_value double precision NOT NULL
);

ALTER TABLE ONLY drover.counter_new REPLICA IDENTITY FULL;

CREATE VIEW drover.counters AS
 SELECT c.counter_name,
    c.counter_labels,
    sum(c.counter_value) AS counter_value
   FROM ( SELECT counter.counter_name,
            counter.counter_labels,
            counter.counter_value
           FROM drover.counter
        UNION ALL
         SELECT counter_new.counter_name,
            counter_new.counter_labels,
            counter_new.counter_value
           FROM drover.counter_new) c
  GROUP BY c.counter_name, c.counter_labels;

CREATE TABLE drover.dead_letter (
    dead_pk bigint NOT NULL,
    dead_date timestamp with time zone DEFAULT now() NOT NULL,
    dead_kind text NOT NULL,
    dead_reason text NOT NULL,
    dead_jq_fk bigint,
    dead_delivery bigint,
    dead_text text,
    CONSTRAINT dead_letter_dead_kind_check CHECK ((dead_kind = ANY (ARRAY['alternate'::text, 'dead'::text])))
);

ALTER TABLE drover.dead_letter ALTER COLUMN dead_pk ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME drover.dead_letter_dead_pk_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE drover.delivery (
    del_pk bigint NOT NULL,
    del_sub bigint NOT NULL,
    del_target integer NOT NULL,
    del_event bigint NOT NULL,
    del_jq_fk bigint NOT NULL,
    del_state text DEFAULT 'waiting'::text NOT NULL,
    del_tries integer DEFAULT 0 NOT NULL,
    del_next timestamp with time zone,
    del_notify bigint,
    del_text text,
    del_ended timestamp with time zone,
    del_owner name DEFAULT ''::name NOT NULL,
    del_turn bigint,
    CONSTRAINT delivery_del_state_check CHECK ((del_state = ANY (ARRAY['waiting'::text, 'sent'::text, 'done'::text, 'dead'::text]))),
    CONSTRAINT delivery_ends_once CHECK (((del_state = ANY (ARRAY['done'::text, 'dead'::text])) = (del_ended IS NOT NULL))),
    CONSTRAINT delivery_is_sent_by_a_job CHECK (((del_state = 'sent'::text) = (del_notify IS NOT NULL)))
);

ALTER TABLE drover.delivery ALTER COLUMN del_pk ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME drover.delivery_del_pk_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE drover.job_zone (
    zone_number bigint NOT NULL,
    zone_type text NOT NULL,
    zone_queue text NOT NULL,
    zone_host text NOT NULL,
    zone_submitter text NOT NULL,
    zone_state text NOT NULL,
    zone_jobs bigint NOT NULL,
    zone_oldest timestamp with time zone,
    zone_latest timestamp with time zone,
    zone_waited real,
    zone_ran real,
    zone_rank text COLLATE pg_catalog."C"
)
WITH (fillfactor='80', autovacuum_vacuum_scale_factor='0.05', autovacuum_vacuum_cost_delay='0');

CREATE VIEW drover.zone_parts AS
 SELECT job_zone.zone_number AS zone,
    job_zone.zone_type AS type,
    job_zone.zone_queue AS queue,
    job_zone.zone_host AS host,
    job_zone.zone_submitter AS submitter,
    job_zone.zone_state AS state,
    job_zone.zone_jobs AS jobs,
    job_zone.zone_oldest AS oldest,
    job_zone.zone_latest AS latest,
    job_zone.zone_waited AS waited,
    job_zone.zone_ran AS ran,
    job_zone.zone_rank AS rank
   FROM drover.job_zone
UNION ALL
 SELECT job_change.change_zone AS zone,
    job_change.change_type AS type,
    job_change.change_queue AS queue,
    job_change.change_host AS host,
    job_change.change_submitter AS submitter,
    s.state,
    s.jobs,
    s.oldest,
    s.latest,
    s.waited,
    s.ran,
    s.rank
   FROM (drover.job_change
     CROSS JOIN LATERAL ( VALUES (job_change.change_state,job_change.change_jobs,job_change.change_oldest,job_change.change_latest,job_change.change_waited,job_change.change_ran,job_change.change_rank), (job_change.change_was,(- job_change.change_jobs),NULL::timestamp with time zone,NULL::timestamp with time zone,NULL::real,NULL::real,NULL::text)) s(state, jobs, oldest, latest, waited, ran, rank))
  WHERE (s.state IS NOT NULL);

CREATE VIEW drover.job_zones AS
 SELECT zone_parts.zone,
    zone_parts.type,
    zone_parts.queue,
    zone_parts.host,
    zone_parts.submitter,
    zone_parts.state,
    (sum(zone_parts.jobs))::bigint AS jobs,
    min(zone_parts.oldest) AS oldest,
    max(zone_parts.latest) AS latest,
    max(zone_parts.waited) AS waited,
    max(zone_parts.ran) AS ran,
    min(zone_parts.rank) AS rank
   FROM drover.zone_parts
  GROUP BY zone_parts.zone, zone_parts.type, zone_parts.queue, zone_parts.host, zone_parts.submitter, zone_parts.state
 HAVING (sum(zone_parts.jobs) <> (0)::numeric);

CREATE VIEW drover.depth AS
 WITH waiting AS MATERIALIZED (
         SELECT job_states.type,
            job_states.queue,
                CASE job_states.state
                    WHEN 'queued'::drover.job_state THEN 'waiting'::text
                    ELSE 'blocked'::text
                END AS state,
            sum(job_states.jobs) AS jobs
           FROM drover.job_states
          WHERE ((job_states.type <> 'command'::text) AND ((job_states.state = 'blocked'::drover.job_state) OR ((job_states.state = 'queued'::drover.job_state) AND (job_states.waits_for = 'time'::text))))
          GROUP BY job_states.type, job_states.queue,
                CASE job_states.state
                    WHEN 'queued'::drover.job_state THEN 'waiting'::text
                    ELSE 'blocked'::text
                END
        ), bound AS MATERIALIZED (
         SELECT job_zones.type,
            job_zones.queue,
                CASE job_zones.state
                    WHEN 'early'::text THEN 'waiting'::text
                    ELSE job_zones.state
                END AS state,
            min(job_zones.oldest) AS oldest
           FROM drover.job_zones
          WHERE (job_zones.state = ANY (ARRAY['early'::text, 'blocked'::text]))
          GROUP BY job_zones.type, job_zones.queue,
                CASE job_zones.state
                    WHEN 'early'::text THEN 'waiting'::text
                    ELSE job_zones.state
                END
        ), kind AS (
         SELECT backlog.type,
            backlog.queue,
            'ready'::text AS state,
            backlog.jobs,
            backlog.oldest
           FROM drover.backlog
        UNION ALL
         SELECT w.type,
            w.queue,
            w.state,
            w.jobs,
            b.oldest
           FROM (waiting w
             LEFT JOIN bound b USING (type, queue, state))
        UNION ALL
         SELECT jobs_in_hand.jq_type,
            jobs_in_hand.jq_queue,
            'in hand'::text,
            count(*) AS count,
            min(jobs_in_hand.jq_queued) AS min
           FROM drover.jobs_in_hand
          WHERE (jobs_in_hand.jq_type <> 'command'::text)
          GROUP BY jobs_in_hand.jq_type, jobs_in_hand.jq_queue
        )
 SELECT COALESCE(a.agent_type, '(unknown)'::text) AS type,
    COALESCE(queue.queue_name, '(unknown)'::text) AS queue,
    k.state,
    (sum(k.jobs))::bigint AS jobs,
    min(k.oldest) AS oldest
   FROM ((kind k
     LEFT JOIN ( SELECT DISTINCT agent.agent_type
           FROM drover.agent) a ON ((a.agent_type = k.type)))
     LEFT JOIN drover.queue ON ((queue.queue_name = k.queue)))
  GROUP BY COALESCE(a.agent_type, '(unknown)'::text), COALESCE(queue.queue_name, '(unknown)'::text), k.state;

CREATE TABLE drover.detached (
    det_jq_fk bigint NOT NULL,
    det_attempt integer NOT NULL,
    det_group text NOT NULL,
    det_host text NOT NULL,
    det_spool text NOT NULL,
    det_turn integer DEFAULT 0 NOT NULL,
    det_since timestamp with time zone DEFAULT now() NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0.05');

CREATE TABLE drover.host (
    host_name text NOT NULL,
    host_group text NOT NULL,
    host_max integer DEFAULT '-1'::integer NOT NULL,
    host_max_file integer,
    host_urgent integer DEFAULT 1 NOT NULL,
    host_urgent_file integer,
    host_enabled boolean DEFAULT true NOT NULL,
    host_enabled_file boolean,
    host_transport text DEFAULT 'local'::text NOT NULL,
    host_types text DEFAULT ''::text NOT NULL,
    host_types_file text,
    host_queues text[],
    host_queues_file text[],
    host_priorities text DEFAULT ''::text NOT NULL,
    host_priorities_file text,
    host_letters text,
    host_present boolean DEFAULT true NOT NULL,
    host_down_until timestamp with time zone,
    host_reason text,
    host_down_since timestamp with time zone,
    CONSTRAINT host_host_name_check CHECK (((length(host_name) >= 1) AND (length(host_name) <= 64)))
);

CREATE TABLE drover.scheduler_status (
    status_scheduler uuid NOT NULL,
    status_slot integer NOT NULL,
    status_host text,
    status_agent text,
    status_state integer NOT NULL,
    status_state_name text NOT NULL,
    status_since timestamp with time zone NOT NULL,
    status_pid integer,
    status_jq_fk bigint,
    status_parameter text,
    status_spawns integer DEFAULT 0 NOT NULL,
    status_items bigint DEFAULT 0 NOT NULL,
    status_reason text,
    status_updated timestamp with time zone DEFAULT now() NOT NULL,
    status_program text
)
WITH (fillfactor='50');

CREATE TABLE drover.site (
    site_uuid uuid DEFAULT gen_random_uuid() NOT NULL
);

ALTER TABLE ONLY drover.site REPLICA IDENTITY FULL;

CREATE VIEW drover.detached_jobs AS
 SELECT d.det_jq_fk AS jq_pk,
    j.jq_type,
    j.jq_state,
    d.det_attempt AS attempt,
    d.det_host AS host,
    ((((((d.det_spool || '/'::text) || ( SELECT site.site_uuid
           FROM drover.site)) || '/'::text) || d.det_jq_fk) || '.'::text) || d.det_attempt) AS entry,
    d.det_since AS since,
    t.runs,
        CASE
            WHEN t.runs THEN j.jq_done_pid
            ELSE NULL::integer
        END AS pid,
    (slot.is_attached IS NOT NULL) AS attached,
        CASE
            WHEN (NOT t.runs) THEN ('its entry is to be removed'::text || COALESCE((((': host '::text || h.host_name) || ' is down: '::text) || t.down), ''::text))
            WHEN slot.is_attached THEN NULL::text
            WHEN ((g.group_owner IS NULL) OR (g.group_lease_until < now())) THEN ('no scheduler is active for group '::text || q.queue_group)
            WHEN (NOT COALESCE(a.agent_present, false)) THEN (('agent type '::text || j.jq_type) || ' is not configured'::text)
            WHEN (NOT COALESCE(h.host_present, false)) THEN (('host '::text || d.det_host) || ' is not configured'::text)
            WHEN (t.down IS NOT NULL) THEN ((('host '::text || h.host_name) || ' is down: '::text) || t.down)
            WHEN (j.jq_owner <> g.group_owner) THEN (('the scheduler that owns group '::text || q.queue_group) || ' adopts it next'::text)
            WHEN (NOT (EXISTS ( SELECT
               FROM drover.scheduler_status
              WHERE ((scheduler_status.status_scheduler = g.group_owner) AND (scheduler_status.status_host = d.det_host) AND (scheduler_status.status_agent = j.jq_type) AND (scheduler_status.status_state = 1))))) THEN ((('agent type '::text || j.jq_type) || ' has no free slot on host '::text) || d.det_host)
            ELSE 'it is adopted within seconds'::text
        END AS waits_for
   FROM (((((((drover.detached d
     CROSS JOIN LATERAL ( SELECT jobqueue.jq_type,
            jobqueue.jq_state,
            jobqueue.jq_queue,
            jobqueue.jq_attempt,
            jobqueue.jq_owner,
            jobqueue.jq_done_pid
           FROM drover.jobqueue
          WHERE (jobqueue.jq_pk = d.det_jq_fk)
         OFFSET 0) j)
     LEFT JOIN drover.queue q ON ((q.queue_name = j.jq_queue)))
     LEFT JOIN drover.scheduler_group g ON ((g.group_name = q.queue_group)))
     LEFT JOIN drover.agent a ON (((a.agent_group = q.queue_group) AND (a.agent_type = j.jq_type))))
     LEFT JOIN drover.host h ON ((h.host_name = d.det_host)))
     CROSS JOIN LATERAL ( SELECT ((j.jq_state = 'running'::drover.job_state) AND (j.jq_attempt = d.det_attempt)) AS runs,
                CASE
                    WHEN (h.host_down_until > (now() - '00:01:00'::interval)) THEN COALESCE(h.host_reason, '?'::text)
                    ELSE NULL::text
                END AS down) t)
     LEFT JOIN LATERAL ( SELECT true AS is_attached
           FROM drover.scheduler_status
          WHERE (t.runs AND (scheduler_status.status_scheduler = g.group_owner) AND (scheduler_status.status_slot >= 0) AND (scheduler_status.status_jq_fk = d.det_jq_fk))
         LIMIT 1) slot ON (true));

CREATE TABLE drover.event (
    ev_pk bigint NOT NULL,
    ev_date timestamp with time zone DEFAULT now() NOT NULL,
    ev_jq_fk bigint,
    ev_job_fk bigint,
    ev_kind text NOT NULL,
    ev_old text,
    ev_new text,
    ev_text text,
    ev_owner name,
    ev_tenant text,
    ev_is_final boolean DEFAULT false NOT NULL,
    CONSTRAINT event_ev_kind_check CHECK ((ev_kind = ANY (ARRAY['status'::text, 'error'::text, 'subscription'::text, 'share'::text, 'user'::text, 'alternate'::text, 'dead'::text, 'alert'::text]))),
    CONSTRAINT event_ev_text_check CHECK ((length(ev_text) <= 16384))
);

ALTER TABLE drover.event ALTER COLUMN ev_pk ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME drover.event_ev_pk_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE VIEW drover.fair AS
 SELECT agent.agent_type AS fair_type,
    queue.queue_name AS fair_queue
   FROM (drover.agent
     JOIN drover.queue ON ((queue.queue_group = agent.agent_group)))
  WHERE agent.agent_fair;

CREATE TABLE drover.gate (
    gate_name text NOT NULL
);

CREATE VIEW drover.graph AS
 SELECT jobs.jq_pk,
    jobs.jq_name,
    jobs.jq_type,
    jobs.jq_state,
    e.parents,
    e.children,
    (e.parents = '{}'::bigint[]) AS is_root,
    (e.children = '{}'::bigint[]) AS is_leaf
   FROM drover.jobs,
    LATERAL ( SELECT ARRAY( SELECT jobdepends.jdep_jq_depends_fk
                   FROM drover.jobdepends
                  WHERE (jobdepends.jdep_jq_fk = jobs.jq_pk)
                  ORDER BY jobdepends.jdep_jq_depends_fk) AS parents,
            ARRAY( SELECT jobdepends.jdep_jq_fk
                   FROM drover.jobdepends
                  WHERE (jobdepends.jdep_jq_depends_fk = jobs.jq_pk)
                  ORDER BY jobdepends.jdep_jq_fk) AS children
         OFFSET 0) e;

CREATE TABLE drover.hidden (
    hidden_jq_fk bigint NOT NULL
);

CREATE TABLE drover.schedule (
    schedule_name text NOT NULL,
    schedule_at timestamp with time zone,
    schedule_every interval,
    schedule_cron text,
    schedule_zone text DEFAULT 'UTC'::text NOT NULL,
    schedule_catch_up text DEFAULT 'one'::text NOT NULL,
    schedule_jitter interval DEFAULT '00:00:00'::interval NOT NULL,
    schedule_overlap text DEFAULT 'queue'::text NOT NULL,
    schedule_enabled boolean DEFAULT true NOT NULL,
    schedule_job jsonb NOT NULL,
    schedule_type text GENERATED ALWAYS AS (COALESCE((schedule_job ->> 'jq_type'::text), 'job group'::text)) STORED,
    schedule_submitter name DEFAULT SESSION_USER NOT NULL,
    schedule_group text,
    schedule_file jsonb,
    schedule_from timestamp with time zone DEFAULT now() NOT NULL,
    schedule_next timestamp with time zone,
    schedule_due timestamp with time zone DEFAULT '-infinity'::timestamp with time zone,
    schedule_computed timestamp with time zone,
    schedule_last timestamp with time zone,
    schedule_jobs bigint[] DEFAULT '{}'::bigint[] NOT NULL,
    schedule_reason text,
    CONSTRAINT schedule_is_at_every_or_cron CHECK ((num_nonnulls(schedule_at, schedule_every, schedule_cron) = 1)),
    CONSTRAINT schedule_jitter_is_less_than_every CHECK (((schedule_jitter = '00:00:00'::interval) OR ((schedule_jitter < schedule_every) IS NOT FALSE))),
    CONSTRAINT schedule_schedule_catch_up_check CHECK ((schedule_catch_up = ANY (ARRAY['one'::text, 'all'::text, 'none'::text]))),
    CONSTRAINT schedule_schedule_cron_check CHECK (((schedule_cron ~ '^(@[a-z]+|[0-9A-Za-z*,/#-]+( +[0-9A-Za-z*,/#-]+){4})$'::text) AND (length(schedule_cron) <= 200))),
    CONSTRAINT schedule_schedule_every_check CHECK (((schedule_every >= '00:00:01'::interval) AND (schedule_every <= '100 years'::interval))),
    CONSTRAINT schedule_schedule_jitter_check CHECK (((schedule_jitter >= '00:00:00'::interval) AND (schedule_jitter <= '1 day'::interval))),
    CONSTRAINT schedule_schedule_name_check CHECK ((schedule_name ~ '^[A-Za-z0-9_][A-Za-z0-9_./-]{0,63}$'::text)),
    CONSTRAINT schedule_schedule_overlap_check CHECK ((schedule_overlap = ANY (ARRAY['queue'::text, 'skip'::text]))),
    CONSTRAINT schedule_starts_are_dates CHECK (((LEAST(schedule_at, schedule_next) >= '1900-01-01 00:00:00+00'::timestamp with time zone) AND (GREATEST(schedule_at, schedule_next) < '9000-01-01 00:00:00+00'::timestamp with time zone)))
);

CREATE TABLE drover.suspect (
    suspect_jq_fk bigint NOT NULL,
    suspect_rule text NOT NULL,
    suspect_token tid
);

CREATE VIEW drover.suspected AS
 SELECT s.suspect_rule AS rule,
    s.suspect_jq_fk AS jq_pk,
    c.since,
        CASE s.suspect_rule
            WHEN 'no queue'::text THEN (('is '::text || c.jq_state) || ' and its queue does not exist: no scheduler owns it'::text)
            WHEN 'wrong owner'::text THEN ((('is '::text || c.jq_state) || ' by a scheduler that is not the active one: '::text) || c.jq_owner)
            WHEN 'no condition'::text THEN 'is blocked, and on no condition: no check lets it go'::text
            WHEN 'no token'::text THEN 'is queued, and no claim can find it'::text
            WHEN 'no dependency'::text THEN 'waits for dependencies, and there is none that is open'::text
            ELSE 'is due, and nothing was done about it'::text
        END AS what,
        CASE s.suspect_rule
            WHEN 'no queue'::text THEN 'add the queue again: drover queue add'::text
            WHEN 'wrong owner'::text THEN 'the next rescan gives it back; if not, drover command step-down'::text
            WHEN 'no condition'::text THEN 'drover unblock JOB'::text
            WHEN 'no token'::text THEN 'drover hold JOB, then drover release JOB'::text
            WHEN 'no dependency'::text THEN 'the next rescan counts again; if not, drover cancel JOB'::text
            ELSE 'look at refused statements and drover log; drover command step-down'::text
        END AS next
   FROM (drover.suspect s
     CROSS JOIN LATERAL ( SELECT contradiction.rule,
            contradiction.jq_pk,
            contradiction.since,
            contradiction.jq_state,
            contradiction.jq_owner
           FROM drover.contradiction
          WHERE ((contradiction.jq_pk = s.suspect_jq_fk) AND (contradiction.rule = s.suspect_rule))
         OFFSET 0) c)
UNION ALL
 SELECT s.suspect_rule AS rule,
    s.suspect_jq_fk AS jq_pk,
    j.jq_endtime AS since,
    ('can be claimed, and is '::text || COALESCE((j.jq_state)::text, 'removed'::text)) AS what,
    'no claim takes it; report it with drover log JOB'::text AS next
   FROM ((drover.suspect s
     CROSS JOIN LATERAL ( SELECT COALESCE(claimable.claim_jobs, ARRAY[claimable.claim_first]) AS jobs
           FROM drover.claimable
          WHERE (claimable.ctid = s.suspect_token)
         OFFSET 0) t)
     LEFT JOIN LATERAL ( SELECT jobqueue.jq_pk,
            jobqueue.jq_job_fk,
            jobqueue.jq_name,
            jobqueue.jq_type,
            jobqueue.jq_args,
            jobqueue.jq_variables,
            jobqueue.jq_msq,
            jobqueue.jq_runonpfile,
            jobqueue.jq_host,
            jobqueue.jq_key,
            jobqueue.jq_tolerate,
            jobqueue.jq_repeat,
            jobqueue.jq_queue,
            jobqueue.jq_urgent,
            jobqueue.jq_priority,
            jobqueue.jq_not_before,
            jobqueue.jq_not_after,
            jobqueue.jq_wait_until,
            jobqueue.jq_expires_at,
            jobqueue.jq_live_key,
            jobqueue.jq_max_interruptions,
            jobqueue.jq_retries,
            jobqueue.jq_timeout,
            jobqueue.jq_unique_key,
            jobqueue.jq_delete,
            jobqueue.jq_mode,
            jobqueue.jq_state,
            jobqueue.jq_attempt,
            jobqueue.jq_owner,
            jobqueue.jq_schedinfo,
            jobqueue.jq_interruptions,
            jobqueue.jq_failures,
            jobqueue.jq_rescued,
            jobqueue.jq_retry_at,
            jobqueue.jq_unmet,
            jobqueue.jq_has_children,
            jobqueue.jq_wanted,
            jobqueue.jq_queued,
            jobqueue.jq_starttime,
            jobqueue.jq_endtime,
            jobqueue.jq_endtext,
            jobqueue.jq_end_bits,
            jobqueue.jq_exitcode,
            jobqueue.jq_signal,
            jobqueue.jq_result,
            jobqueue.jq_itemsprocessed,
            jobqueue.jq_itemsfailed,
            jobqueue.jq_itemstotal,
            jobqueue.jq_checkpoint,
            jobqueue.jq_elapsedtime,
            jobqueue.jq_processedtime,
            jobqueue.jq_expected_end,
            jobqueue.jq_done_by,
            jobqueue.jq_done_host,
            jobqueue.jq_done_pid,
            jobqueue.jq_submitter,
            jobqueue.jq_resubmit_of,
            jobqueue.jq_first_start,
            jobqueue.jq_attempt_start,
            jobqueue.jq_blocked_count
           FROM drover.jobqueue
          WHERE (jobqueue.jq_pk = s.suspect_jq_fk)
         OFFSET 0) j ON (true))
  WHERE ((s.suspect_rule = 'token of an ended job'::text) AND (s.suspect_jq_fk = ANY (t.jobs)) AND ((j.jq_pk IS NULL) OR (j.jq_state <> 'queued'::drover.job_state) OR (j.jq_unmet > 0) OR (j.jq_wait_until IS NOT NULL)))
UNION ALL
 SELECT s.suspect_rule AS rule,
    s.suspect_jq_fk AS jq_pk,
    b.blocked_since AS since,
    ('is in the list of a condition, and is '::text || COALESCE((j.jq_state)::text, 'removed'::text)) AS what,
    'drover unblock of the condition clears the list'::text AS next
   FROM ((drover.suspect s
     CROSS JOIN LATERAL ( SELECT blocked.blocked_since
           FROM drover.blocked
          WHERE (blocked.blocked_jq_fk = s.suspect_jq_fk)
         OFFSET 0) b)
     LEFT JOIN LATERAL ( SELECT jobqueue.jq_pk,
            jobqueue.jq_job_fk,
            jobqueue.jq_name,
            jobqueue.jq_type,
            jobqueue.jq_args,
            jobqueue.jq_variables,
            jobqueue.jq_msq,
            jobqueue.jq_runonpfile,
            jobqueue.jq_host,
            jobqueue.jq_key,
            jobqueue.jq_tolerate,
            jobqueue.jq_repeat,
            jobqueue.jq_queue,
            jobqueue.jq_urgent,
            jobqueue.jq_priority,
            jobqueue.jq_not_before,
            jobqueue.jq_not_after,
            jobqueue.jq_wait_until,
            jobqueue.jq_expires_at,
            jobqueue.jq_live_key,
            jobqueue.jq_max_interruptions,
            jobqueue.jq_retries,
            jobqueue.jq_timeout,
            jobqueue.jq_unique_key,
            jobqueue.jq_delete,
            jobqueue.jq_mode,
            jobqueue.jq_state,
            jobqueue.jq_attempt,
            jobqueue.jq_owner,
            jobqueue.jq_schedinfo,
            jobqueue.jq_interruptions,
            jobqueue.jq_failures,
            jobqueue.jq_rescued,
            jobqueue.jq_retry_at,
            jobqueue.jq_unmet,
            jobqueue.jq_has_children,
            jobqueue.jq_wanted,
            jobqueue.jq_queued,
            jobqueue.jq_starttime,
            jobqueue.jq_endtime,
            jobqueue.jq_endtext,
            jobqueue.jq_end_bits,
            jobqueue.jq_exitcode,
            jobqueue.jq_signal,
            jobqueue.jq_result,
            jobqueue.jq_itemsprocessed,
            jobqueue.jq_itemsfailed,
            jobqueue.jq_itemstotal,
            jobqueue.jq_checkpoint,
            jobqueue.jq_elapsedtime,
            jobqueue.jq_processedtime,
            jobqueue.jq_expected_end,
            jobqueue.jq_done_by,
            jobqueue.jq_done_host,
            jobqueue.jq_done_pid,
            jobqueue.jq_submitter,
            jobqueue.jq_resubmit_of,
            jobqueue.jq_first_start,
            jobqueue.jq_attempt_start,
            jobqueue.jq_blocked_count
           FROM drover.jobqueue
          WHERE (jobqueue.jq_pk = s.suspect_jq_fk)
         OFFSET 0) j ON (true))
  WHERE ((s.suspect_rule = 'not blocked'::text) AND ((j.jq_pk IS NULL) OR (j.jq_state <> 'blocked'::drover.job_state)));

CREATE VIEW drover.impossible AS
 WITH active AS MATERIALIZED (
         SELECT scheduler_group.group_name,
            scheduler_group.group_owner
           FROM drover.scheduler_group
          WHERE ((scheduler_group.group_lease_until > now()) AND (scheduler_group.group_taken_at < (now() - '00:02:00'::interval)))
        )
 SELECT suspected.rule,
    suspected.jq_pk,
    suspected.since,
    suspected.what,
    suspected.next
   FROM drover.suspected
UNION ALL
 SELECT 'dead owner'::text AS rule,
    min(r.pk) AS jq_pk,
    min(r.hand_since) AS since,
    ((('and '::text || (count(*) - 1)) || ' more are in hand of a scheduler that is gone: '::text) || r.hand_owner) AS what,
    'the next rescan gives them back; if not, drover command step-down'::text AS next
   FROM (((( SELECT in_hand.hand_owner,
            in_hand.hand_since,
            unnest(in_hand.hand_jobs) AS pk
           FROM drover.in_hand
          WHERE (in_hand.hand_since < (now() - '00:02:00'::interval))) r
     CROSS JOIN LATERAL ( SELECT j_1.jq_queue
           FROM drover.jobqueue j_1
          WHERE ((j_1.jq_pk = r.pk) AND (j_1.jq_state = 'queued'::drover.job_state) AND (j_1.jq_unmet = 0) AND (j_1.jq_wait_until IS NULL) AND (NOT drover.has_token(j_1.*)))
         OFFSET 0) j)
     JOIN drover.queue q ON ((q.queue_name = j.jq_queue)))
     JOIN active a ON ((a.group_name = q.queue_group)))
  WHERE (r.hand_owner <> a.group_owner)
  GROUP BY r.hand_owner
UNION ALL
 SELECT 'unchecked condition'::text AS rule,
    ( SELECT blocked.blocked_jq_fk
           FROM drover.blocked
          WHERE (blocked.blocked_recovery = recovery.recovery_pk)
          ORDER BY blocked.blocked_rank, blocked.blocked_queued, blocked.blocked_jq_fk
         LIMIT 1) AS jq_pk,
    recovery.recovery_next AS since,
    (('is blocked on '::text || recovery.recovery_condition) || ', whose check is overdue'::text) AS what,
    ('look at refused statements; drover unblock '::text || recovery.recovery_condition) AS next
   FROM (drover.recovery
     JOIN active ON ((active.group_name = recovery.recovery_group)))
  WHERE ((recovery.recovery_next < (now() - '00:02:00'::interval)) AND (EXISTS ( SELECT
           FROM drover.blocked
          WHERE (blocked.blocked_recovery = recovery.recovery_pk))))
UNION ALL
 SELECT 'missed schedule'::text AS rule,
    NULL::bigint AS jq_pk,
    schedule.schedule_due AS since,
    (('schedule '::text || schedule.schedule_name) || ' is due, and was not started'::text) AS what,
    ('look at refused statements; drover schedule run '::text || schedule.schedule_name) AS next
   FROM drover.schedule
  WHERE (schedule.schedule_enabled AND isfinite(schedule.schedule_due) AND (schedule.schedule_due < (now() - '00:02:00'::interval)) AND (EXISTS ( SELECT
           FROM active)));

CREATE TABLE drover.item_failure (
    item_pk bigint NOT NULL,
    item_jq_fk bigint NOT NULL,
    item_attempt integer NOT NULL,
    item_key text,
    item_line text NOT NULL,
    item_date timestamp with time zone DEFAULT now() NOT NULL,
    item_host text,
    item_agent text,
    item_pid integer,
    item_reason text NOT NULL
);

ALTER TABLE drover.item_failure ALTER COLUMN item_pk ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME drover.item_failure_item_pk_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

ALTER TABLE drover.job ALTER COLUMN job_pk ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME drover.job_job_pk_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE drover.output (
    out_pk bigint NOT NULL,
    out_jq_fk bigint NOT NULL,
    out_attempt integer NOT NULL,
    out_part integer NOT NULL,
    out_date timestamp with time zone DEFAULT now() NOT NULL,
    out_stream text NOT NULL,
    out_data text NOT NULL,
    CONSTRAINT output_out_stream_check CHECK ((out_stream = ANY (ARRAY['out'::text, 'err'::text])))
);

CREATE VIEW drover.jobd AS
 SELECT jobs.jq_pk AS id,
    jobs.jq_queue AS target,
    (EXTRACT(epoch FROM COALESCE(( SELECT job.job_queued
           FROM drover.job
          WHERE (job.job_pk = jobs.jq_job_fk)), jobs.jq_queued)))::bigint AS time_created,
        CASE
            WHEN ((jobs.jq_endtime IS NOT NULL) AND (jobs.jq_attempt = 0)) THEN (0)::bigint
            ELSE (COALESCE(EXTRACT(epoch FROM jobs.jq_starttime), (0)::numeric))::bigint
        END AS time_started,
    (COALESCE(EXTRACT(epoch FROM jobs.jq_endtime), (0)::numeric))::bigint AS time_finished,
        CASE
            WHEN (jobs.jq_state = 'held'::drover.job_state) THEN 'manual'::text
            WHEN (jobs.jq_state = ANY (ARRAY['queued'::drover.job_state, 'blocked'::drover.job_state])) THEN 'waiting'::text
            WHEN (jobs.jq_state = 'claimed'::drover.job_state) THEN 'accepted'::text
            WHEN (jobs.jq_state = 'running'::drover.job_state) THEN 'running'::text
            WHEN (jobs.jq_state = ANY (ARRAY['ignored'::drover.job_state, 'skipped'::drover.job_state])) THEN 'ignored'::text
            ELSE 'done'::text
        END AS status,
        CASE
            WHEN (jobs.jq_endtime IS NOT NULL) THEN
            CASE
                WHEN ((jobs.jq_end_bits & 1) = 1) THEN 'ok'::text
                ELSE 'fail'::text
            END
            ELSE NULL::text
        END AS result,
        CASE
            WHEN ((jobs.jq_endtime IS NULL) OR (jobs.jq_attempt = 0) OR (jobs.jq_signal IS NOT NULL)) THEN NULL::integer
            WHEN ((jobs.jq_end_bits & 1) = 1) THEN COALESCE(jobs.jq_exitcode, 0)
            ELSE COALESCE(NULLIF(jobs.jq_exitcode, 0), 1)
        END AS return_code,
    jobs.jq_signal AS signal,
    ( SELECT string_agg(output.out_data, ''::text ORDER BY output.out_pk) AS string_agg
           FROM drover.output
          WHERE ((output.out_jq_fk = jobs.jq_pk) AND (output.out_attempt = jobs.jq_attempt) AND (output.out_stream = 'out'::text))) AS stdout,
    ( SELECT string_agg(output.out_data, ''::text ORDER BY output.out_pk) AS string_agg
           FROM drover.output
          WHERE ((output.out_jq_fk = jobs.jq_pk) AND (output.out_attempt = jobs.jq_attempt) AND (output.out_stream = 'err'::text))) AS stderr,
    jobs.jq_signal AS sig
   FROM drover.jobs
  WHERE (jobs.jq_type <> 'command'::text);

ALTER TABLE drover.jobqueue ALTER COLUMN jq_pk ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME drover.jobqueue_jq_pk_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE VIEW drover.jobs_masked AS
 SELECT jobs.jq_pk,
    jobs.jq_job_fk,
    jobs.jq_name,
    jobs.jq_type,
    length(jobs.jq_args) AS jq_args_length,
    jobs.jq_msq,
    jobs.jq_runonpfile,
    jobs.jq_host,
    jobs.jq_key,
    jobs.jq_tolerate,
    jobs.jq_repeat,
    jobs.jq_queue,
    jobs.jq_urgent,
    jobs.jq_priority,
    jobs.jq_not_before,
    jobs.jq_not_after,
    jobs.jq_wait_until,
    jobs.jq_max_interruptions,
    jobs.jq_retries,
    jobs.jq_timeout,
    jobs.jq_mode,
    jobs.jq_state,
    jobs.jq_attempt,
    jobs.jq_owner,
    jobs.jq_schedinfo,
    jobs.jq_interruptions,
    jobs.jq_failures,
    jobs.jq_rescued,
    jobs.jq_retry_at,
    jobs.jq_unmet,
    drover.word(jobs.jq_wanted, 1) AS jq_wanted,
    jobs.jq_queued,
    jobs.jq_starttime,
    jobs.jq_endtime,
    jobs.jq_end_bits,
    jobs.jq_exitcode,
    jobs.jq_signal,
    jobs.jq_itemsprocessed,
    jobs.jq_itemsfailed,
    jobs.jq_itemstotal,
    jobs.jq_elapsedtime,
    jobs.jq_processedtime,
    jobs.jq_expected_end,
    jobs.jq_submitter,
    jobs.jq_done_host,
    jobs.jq_done_pid,
    jobs.jq_end_code,
    jobs.jq_blocked_count
   FROM drover.jobs;

CREATE TABLE drover.later_migration (
    number integer NOT NULL,
    name text NOT NULL,
    checksum text NOT NULL,
    applied_at timestamp with time zone DEFAULT now() NOT NULL
);

CREATE TABLE drover.log (
    log_pk bigint NOT NULL,
    log_date timestamp with time zone DEFAULT now() NOT NULL,
    log_jq_fk bigint,
    log_type text NOT NULL,
    log_host text,
    log_agent text,
    log_pid integer,
    log_message text NOT NULL
);

ALTER TABLE drover.log ALTER COLUMN log_pk ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME drover.log_log_pk_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE drover.migration (
    number integer NOT NULL,
    name text NOT NULL,
    checksum text NOT NULL,
    applied_at timestamp with time zone DEFAULT now() NOT NULL
);

CREATE VIEW drover.my_attempt WITH (security_barrier='true') AS
 SELECT a.att_jq_fk,
    a.att_attempt,
    a.att_scheduler,
    a.att_host,
    a.att_agent,
    a.att_pid,
    a.att_start,
    a.att_end,
    a.att_outcome,
    a.att_exitcode,
    a.att_signal,
    a.att_reason
   FROM (drover.attempt a
     JOIN drover.jobqueue j ON ((j.jq_pk = a.att_jq_fk)))
  WHERE (j.jq_submitter = SESSION_USER);

CREATE VIEW drover.my_job_states WITH (security_barrier='true') AS
 SELECT job_states.type,
    job_states.queue,
    job_states.host,
    job_states.submitter,
    job_states.state,
    job_states.waits_for,
    job_states.jobs
   FROM drover.job_states
  WHERE (job_states.submitter = (SESSION_USER)::text);

CREATE VIEW drover.my_job_zones WITH (security_barrier='true') AS
 SELECT job_zones.zone,
    job_zones.type,
    job_zones.queue,
    job_zones.host,
    job_zones.submitter,
    job_zones.state,
    job_zones.jobs,
    job_zones.oldest,
    job_zones.latest,
    job_zones.waited,
    job_zones.ran,
    job_zones.rank
   FROM drover.job_zones
  WHERE (job_zones.submitter = (SESSION_USER)::text);

CREATE VIEW drover.my_backlog WITH (security_barrier='true') AS
 SELECT j.type,
    j.queue,
    j.jobs,
    z.oldest
   FROM (( SELECT my_job_states.type,
            my_job_states.queue,
            (sum(my_job_states.jobs))::bigint AS jobs
           FROM drover.my_job_states
          WHERE ((my_job_states.state = 'queued'::drover.job_state) AND (my_job_states.waits_for IS NULL) AND (my_job_states.type <> 'command'::text))
          GROUP BY my_job_states.type, my_job_states.queue) j
     LEFT JOIN ( SELECT my_job_zones.type,
            my_job_zones.queue,
            min(my_job_zones.oldest) AS oldest
           FROM drover.my_job_zones
          WHERE (my_job_zones.state = 'queued'::text)
          GROUP BY my_job_zones.type, my_job_zones.queue) z USING (type, queue));

CREATE VIEW drover.my_beside_zones WITH (security_barrier='true') AS
 SELECT b.jq_pk
   FROM (drover.beside_zones b
     CROSS JOIN LATERAL ( SELECT j_1.jq_submitter
           FROM drover.jobqueue j_1
          WHERE (j_1.jq_pk = b.jq_pk)
         LIMIT 1) j)
  WHERE (j.jq_submitter = SESSION_USER);

CREATE VIEW drover.my_blocked WITH (security_barrier='true') AS
 SELECT b.jq_pk,
    b.condition,
    b.policy,
    b.blocked_since,
    b.condition_since,
    b.tries,
    b.next_check,
    b.tester,
    b.blocked_queue,
    b.blocked_rank,
    b.blocked_queued
   FROM (drover.blocked_jobs b
     JOIN drover.jobqueue j ON ((j.jq_pk = b.jq_pk)))
  WHERE (j.jq_submitter = SESSION_USER);

CREATE VIEW drover.my_cleanup WITH (security_barrier='true') AS
 SELECT c.jq_pk,
    c.cleanup_jq_pk,
    c.cleanup_state,
    c.cleanup_host,
    c.cleanup_text
   FROM (drover.cleanup c
     JOIN drover.jobqueue j ON ((j.jq_pk = c.jq_pk)))
  WHERE (j.jq_submitter = SESSION_USER);

CREATE VIEW drover.my_delivery WITH (security_barrier='true') AS
 SELECT d.del_pk,
    d.del_sub,
    d.del_target,
    d.del_event,
    d.del_jq_fk,
    d.del_state,
    d.del_tries,
    d.del_next,
    d.del_notify,
    d.del_text,
    d.del_ended
   FROM (drover.delivery d
     JOIN drover.subscription ON ((subscription.sub_pk = d.del_sub)))
  WHERE (subscription.sub_owner = SESSION_USER);

CREATE VIEW drover.my_event WITH (security_barrier='true') AS
 SELECT event.ev_pk,
    event.ev_date,
    event.ev_jq_fk,
    event.ev_job_fk,
    event.ev_kind,
    event.ev_old,
    event.ev_new,
    event.ev_text,
    event.ev_owner,
    event.ev_tenant,
    event.ev_is_final
   FROM drover.event
  WHERE (event.ev_owner = SESSION_USER);

CREATE VIEW drover.my_graph WITH (security_barrier='true') AS
 SELECT g.jq_pk,
    g.jq_name,
    g.jq_type,
    g.jq_state,
    g.parents,
    g.children,
    g.is_root,
    g.is_leaf
   FROM (drover.graph g
     JOIN drover.jobqueue j ON ((j.jq_pk = g.jq_pk)))
  WHERE (j.jq_submitter = SESSION_USER);

CREATE VIEW drover.my_item_failure WITH (security_barrier='true') AS
 SELECT f.item_pk,
    f.item_jq_fk,
    f.item_attempt,
    f.item_key,
    f.item_line,
    f.item_date,
    f.item_host,
    f.item_agent,
    f.item_pid,
    f.item_reason
   FROM (drover.item_failure f
     JOIN drover.jobqueue j ON ((j.jq_pk = f.item_jq_fk)))
  WHERE (j.jq_submitter = SESSION_USER);

CREATE VIEW drover.my_job_counts WITH (security_barrier='true') AS
 SELECT job_counts.type,
    job_counts.queue,
    job_counts.host,
    job_counts.submitter,
    job_counts.state,
    job_counts.jobs
   FROM drover.job_counts
  WHERE (job_counts.submitter = (SESSION_USER)::text);

CREATE VIEW drover.my_job_groups WITH (security_barrier='true') AS
 SELECT job.job_pk,
    job.job_name,
    job.job_priority,
    job.job_queued,
    job.job_tenant,
    job.job_user,
    job.job_data,
    job.job_hidden
   FROM drover.job
  WHERE (job.job_user = SESSION_USER);

CREATE VIEW drover.my_jobd WITH (security_barrier='true') AS
 SELECT d.id,
    d.target,
    d.time_created,
    d.time_started,
    d.time_finished,
    d.status,
    d.result,
    d.return_code,
    d.signal,
    d.stdout,
    d.stderr,
    d.sig
   FROM (drover.jobd d
     JOIN drover.jobqueue j ON ((j.jq_pk = d.id)))
  WHERE (j.jq_submitter = SESSION_USER);

CREATE VIEW drover.my_jobdepends WITH (security_barrier='true') AS
 SELECT d.jdep_jq_fk,
    d.jdep_jq_depends_fk,
    d.jdep_depends_bits,
    d.jdep_on_unmet,
    d.jdep_met_at
   FROM (drover.jobdepends d
     JOIN drover.jobqueue j ON ((j.jq_pk = d.jdep_jq_fk)))
  WHERE (j.jq_submitter = SESSION_USER);

CREATE VIEW drover.my_jobs WITH (security_barrier='true') AS
 SELECT jobs.jq_pk,
    jobs.jq_job_fk,
    jobs.jq_name,
    jobs.jq_type,
    jobs.jq_args,
    jobs.jq_variables,
    jobs.jq_msq,
    jobs.jq_runonpfile,
    jobs.jq_host,
    jobs.jq_key,
    jobs.jq_tolerate,
    jobs.jq_repeat,
    jobs.jq_queue,
    jobs.jq_urgent,
    jobs.jq_priority,
    jobs.jq_not_before,
    jobs.jq_not_after,
    jobs.jq_wait_until,
    jobs.jq_expires_at,
    jobs.jq_live_key,
    jobs.jq_max_interruptions,
    jobs.jq_retries,
    jobs.jq_timeout,
    jobs.jq_unique_key,
    jobs.jq_delete,
    jobs.jq_mode,
    jobs.jq_state,
    jobs.jq_attempt,
    jobs.jq_owner,
    jobs.jq_schedinfo,
    jobs.jq_interruptions,
    jobs.jq_failures,
    jobs.jq_rescued,
    jobs.jq_retry_at,
    jobs.jq_unmet,
    jobs.jq_has_children,
    jobs.jq_wanted,
    jobs.jq_queued,
    jobs.jq_starttime,
    jobs.jq_endtime,
    jobs.jq_endtext,
    jobs.jq_end_bits,
    jobs.jq_exitcode,
    jobs.jq_signal,
    jobs.jq_result,
    jobs.jq_itemsprocessed,
    jobs.jq_itemsfailed,
    jobs.jq_itemstotal,
    jobs.jq_checkpoint,
    jobs.jq_elapsedtime,
    jobs.jq_processedtime,
    jobs.jq_expected_end,
    jobs.jq_done_by,
    jobs.jq_done_host,
    jobs.jq_done_pid,
    jobs.jq_submitter,
    jobs.jq_resubmit_of,
    jobs.jq_first_start,
    jobs.jq_attempt_start,
    jobs.jq_end_code,
    jobs.jq_blocked_count
   FROM drover.jobs
  WHERE (jobs.jq_submitter = SESSION_USER)
  ORDER BY jobs.jq_pk DESC;

CREATE VIEW drover.my_jobs_in_hand WITH (security_barrier='true') AS
 SELECT jobs_in_hand.jq_pk,
    jobs_in_hand.jq_type,
    jobs_in_hand.jq_queue,
    jobs_in_hand.jq_host,
    jobs_in_hand.jq_submitter,
    jobs_in_hand.jq_queued,
    jobs_in_hand.jq_state
   FROM drover.jobs_in_hand
  WHERE (jobs_in_hand.jq_submitter = (SESSION_USER)::text);

CREATE VIEW drover.my_log WITH (security_barrier='true') AS
 SELECT l.log_pk,
    l.log_date,
    l.log_jq_fk,
    l.log_type,
    l.log_host,
    l.log_agent,
    l.log_pid,
    l.log_message
   FROM (drover.log l
     JOIN drover.jobqueue j ON ((j.jq_pk = l.log_jq_fk)))
  WHERE (j.jq_submitter = SESSION_USER);

CREATE VIEW drover.my_output WITH (security_barrier='true') AS
 SELECT o.out_pk,
    o.out_jq_fk,
    o.out_attempt,
    o.out_part,
    o.out_date,
    o.out_stream,
    o.out_data
   FROM (drover.output o
     JOIN drover.jobqueue j ON ((j.jq_pk = o.out_jq_fk)))
  WHERE (j.jq_submitter = SESSION_USER);

CREATE VIEW drover.phases AS
 SELECT jobs.jq_pk,
    jobs.jq_job_fk,
    jobs.jq_name,
    jobs.jq_type,
    jobs.jq_submitter,
    jobs.jq_state,
        CASE jobs.jq_state
            WHEN 'held'::drover.job_state THEN 'queued'::text
            WHEN 'queued'::drover.job_state THEN
            CASE
                WHEN ((jobs.jq_unmet > 0) OR (jobs.jq_wait_until > now())) THEN 'queued'::text
                ELSE 'ready'::text
            END
            WHEN 'claimed'::drover.job_state THEN 'running'::text
            WHEN 'running'::drover.job_state THEN 'running'::text
            WHEN 'blocked'::drover.job_state THEN 'blocked'::text
            WHEN 'done'::drover.job_state THEN 'finished'::text
            WHEN 'skipped'::drover.job_state THEN 'finished'::text
            ELSE 'failed'::text
        END AS phase
   FROM drover.jobs;

CREATE VIEW drover.my_phases WITH (security_barrier='true') AS
 SELECT phases.jq_pk,
    phases.jq_job_fk,
    phases.jq_name,
    phases.jq_type,
    phases.jq_submitter,
    phases.jq_state,
    phases.phase
   FROM drover.phases
  WHERE (phases.jq_submitter = SESSION_USER)
  ORDER BY phases.jq_pk DESC;

CREATE VIEW drover.my_stages WITH (security_barrier='true') AS
 SELECT my_jobs.jq_pk,
    my_jobs.jq_job_fk,
    my_jobs.jq_name,
    my_jobs.jq_type,
    my_jobs.jq_state,
        CASE my_jobs.jq_state
            WHEN 'held'::drover.job_state THEN 'PAUSED'::text
            WHEN 'queued'::drover.job_state THEN
            CASE
                WHEN ((my_jobs.jq_unmet > 0) OR (my_jobs.jq_wait_until > now())) THEN 'PENDING'::text
                ELSE 'QUEUED'::text
            END
            WHEN 'claimed'::drover.job_state THEN 'SUBMITTING_JOB'::text
            WHEN 'running'::drover.job_state THEN COALESCE(NULLIF("left"((my_jobs.jq_variables ->> 'stage'::text), 64), ''::text), 'RUNNING'::text)
            WHEN 'blocked'::drover.job_state THEN 'BLOCKED'::text
            WHEN 'done'::drover.job_state THEN 'FINISHED'::text
            WHEN 'skipped'::drover.job_state THEN 'FINISHED'::text
            WHEN 'cancelled'::drover.job_state THEN 'CANCELLED'::text
            ELSE 'FAILED'::text
        END AS stage
   FROM drover.my_jobs;

CREATE VIEW drover.my_subscription WITH (security_barrier='true') AS
 SELECT subscription.sub_pk,
    subscription.sub_owner,
    subscription.sub_scope,
    subscription.sub_of,
    subscription.sub_key,
    subscription.sub_kind,
    subscription.sub_targets,
    subscription.sub_enabled,
    subscription.sub_most,
    subscription.sub_created,
    subscription.sub_expires
   FROM drover.subscription
  WHERE (subscription.sub_owner = SESSION_USER);

CREATE TABLE drover.queue_start (
    start_queue text NOT NULL,
    start_value text NOT NULL,
    start_times timestamp with time zone[] NOT NULL,
    start_next timestamp with time zone
);

CREATE VIEW drover.rate_limited AS
 SELECT jobqueue.jq_pk,
    ((((((((('rate limit of queue '::text || queue.queue_name) || ': '::text) ||
        CASE
            WHEN (((queue.queue_rate ->> 'rate'::text))::integer > 0) THEN (queue.queue_rate ->> 'rate'::text)
            ELSE (queue.queue_rate ->> 'each'::text)
        END) || ' starts in '::text) || ((queue.queue_rate ->> 'interval'::text))::double precision) || ' s'::text) ||
        CASE
            WHEN (((queue.queue_rate ->> 'rate'::text))::integer > 0) THEN ''::text
            ELSE (' with one '::text || (queue.queue_rate ->> 'by'::text))
        END) || ', next at '::text) || date_trunc('second'::text, (queue_start.start_next + '00:00:00.999'::interval))) AS says
   FROM ((drover.jobqueue
     JOIN drover.queue ON (((queue.queue_name = jobqueue.jq_queue) AND (queue.queue_rate IS NOT NULL))))
     JOIN drover.queue_start ON (((queue_start.start_queue = queue.queue_name) AND (queue_start.start_value = ''::text) AND (queue_start.start_next > now()))))
  WHERE (jobqueue.jq_state = 'queued'::drover.job_state);

CREATE VIEW drover.room AS
 WITH used AS (
         SELECT scheduler_status.status_scheduler,
            scheduler_status.status_host,
            count(*) AS used
           FROM drover.scheduler_status
          WHERE ((scheduler_status.status_slot >= 0) AND (scheduler_status.status_state > 1))
          GROUP BY scheduler_status.status_scheduler, scheduler_status.status_host
        ), place AS (
         SELECT s.status_scheduler,
            s.status_agent,
            s.status_host,
            count(*) FILTER (WHERE (s.status_state = 1)) AS free,
            count(*) FILTER (WHERE (s.status_state = 5)) AS ready,
            count(*) FILTER (WHERE (s.status_state = ANY (ARRAY[3, 4]))) AS starting,
            (count(*) FILTER (WHERE (s.status_state = 0)) = count(*)) AS is_failed,
            max(s.status_reason) FILTER (WHERE (s.status_state = 0)) AS failure
           FROM drover.scheduler_status s
          WHERE (s.status_slot >= 0)
          GROUP BY s.status_scheduler, s.status_agent, s.status_host
        ), host AS (
         SELECT p.status_scheduler,
            p.status_agent,
            p.status_host,
            p.free,
            p.ready,
            p.starting,
            p.is_failed,
            p.failure,
            h.host_max,
            h.host_enabled,
            h.host_reason,
            COALESCE(u.used, (0)::bigint) AS used,
            ((h.host_max >= 0) AND (COALESCE(u.used, (0)::bigint) >= h.host_max)) AS is_full,
            (h.host_enabled AND COALESCE((h.host_down_until <= (now() - '00:01:00'::interval)), true)) AS is_open
           FROM ((place p
             JOIN drover.host h ON ((h.host_name = p.status_host)))
             LEFT JOIN used u ON (((u.status_scheduler = p.status_scheduler) AND (u.status_host = p.status_host))))
        )
 SELECT host.status_scheduler AS room_scheduler,
    host.status_agent AS room_agent,
    host.status_host AS room_host,
        CASE
            WHEN bool_or(host.is_open) THEN NULL::text
            WHEN (count(*) > 3) THEN (('all '::text || count(*)) || ' hosts with slots are disabled or down'::text)
            ELSE string_agg((('host '::text || host.status_host) ||
            CASE
                WHEN host.host_enabled THEN (' is down: '::text || COALESCE(host.host_reason, '?'::text))
                ELSE ' is disabled'::text
            END), '; '::text ORDER BY host.status_host)
        END AS room_closed,
        CASE
            WHEN (bool_or((host.is_open AND ((host.ready > 0) OR ((host.free > 0) AND (NOT host.is_full))))) OR (NOT bool_or((host.is_open AND (host.free > 0))))) THEN NULL::text
            WHEN (count(*) FILTER (WHERE (host.is_open AND (host.free > 0))) > 3) THEN (('all '::text || count(*) FILTER (WHERE (host.is_open AND (host.free > 0)))) || ' hosts with slots to spare are full'::text)
            ELSE string_agg((((((('host '::text || host.status_host) || ' is full: '::text) || host.used) || ' of '::text) || host.host_max) || ' agents'::text), '; '::text ORDER BY host.status_host) FILTER (WHERE (host.is_open AND (host.free > 0)))
        END AS room_full,
    (
        CASE
            WHEN bool_or((host.is_open AND ((host.ready > 0) OR (host.free > 0)))) THEN NULL::text
            WHEN bool_and(host.is_failed) THEN COALESCE(max(host.failure), 'its agents failed'::text)
            WHEN bool_or((host.starting > 0)) THEN 'its agents are starting'::text
            ELSE 'every agent of the type is busy'::text
        END || COALESCE((' on host '::text || host.status_host), ''::text)) AS room_busy
   FROM host
  GROUP BY GROUPING SETS ((host.status_scheduler, host.status_agent, host.status_host), (host.status_scheduler, host.status_agent));

CREATE VIEW drover.reason AS
 SELECT j.jq_pk,
    j.jq_type,
    s.state AS jq_state,
        CASE
            WHEN ((s.state = 'blocked'::drover.job_state) OR ((s.state = 'claimed'::drover.job_state) AND j.jq_msq AND (j.jq_endtext <> 'in progress'::text))) THEN j.jq_endtext
            WHEN ((s.state = 'queued'::drover.job_state) AND (j.jq_type <> 'command'::text) AND (j.jq_unmet = 0) AND (j.jq_wait_until > now()) AND (j.jq_retry_at IS NOT NULL)) THEN COALESCE(j.jq_endtext, 'back-off'::text)
            WHEN (j.jq_endtime IS NOT NULL) THEN (COALESCE(j.jq_endtext, ''::text) ||
            CASE
                WHEN (j.jq_msq AND (j.jq_itemsfailed > 0)) THEN ('; the reason of each: drover items '::text || j.jq_pk)
                ELSE ''::text
            END)
            ELSE NULL::text
        END AS text,
    said.says
   FROM ((((((((drover.jobqueue j
     LEFT JOIN drover.recorded c ON ((c.jq_pk = j.jq_pk)))
     CROSS JOIN LATERAL ( SELECT
                CASE
                    WHEN (c.jq_pk IS NULL) THEN j.jq_state
                    ELSE 'claimed'::drover.job_state
                END AS state) s)
     LEFT JOIN drover.queue q ON ((q.queue_name = j.jq_queue)))
     LEFT JOIN drover.scheduler_group g ON ((g.group_name = q.queue_group)))
     LEFT JOIN drover.agent a ON (((a.agent_group = q.queue_group) AND (a.agent_type = j.jq_type))))
     LEFT JOIN drover.host h ON ((h.host_name = j.jq_host)))
     LEFT JOIN drover.room r ON (((r.room_scheduler = g.group_owner) AND (r.room_agent = j.jq_type) AND (COALESCE(r.room_host, ''::text) = COALESCE(j.jq_host, ''::text)))))
     CROSS JOIN LATERAL ( SELECT
                CASE
                    WHEN (s.state = 'held'::drover.job_state) THEN
                    CASE j.jq_mode
                        WHEN 'manual'::drover.job_mode THEN 'manual: waits for run'::text
                        ELSE 'held: waits for release'::text
                    END
                    WHEN (s.state = 'blocked'::drover.job_state) THEN 'blocked'::text
                    WHEN (s.state = ANY (ARRAY['claimed'::drover.job_state, 'running'::drover.job_state])) THEN
                    CASE
                        WHEN ((s.state = 'running'::drover.job_state) AND j.jq_msq AND ((NOT a.agent_enabled) OR (r.room_closed IS NOT NULL))) THEN ((('running'::text || COALESCE((': '::text || drover.items(j.*)), ''::text)) || ', and no more is begun: '::text) ||
                        CASE
                            WHEN a.agent_enabled THEN r.room_closed
                            ELSE (('agent type '::text || a.agent_type) || ' is disabled'::text)
                        END)
                        WHEN ((s.state = 'running'::drover.job_state) AND j.jq_msq AND (a.agent_blocked_until > now())) THEN ((('running'::text || COALESCE((': '::text || drover.items(j.*)), ''::text)) || ', and no more is begun: '::text) || drover.rests(a.*))
                        WHEN ((s.state = 'running'::drover.job_state) AND (j.jq_expected_end IS NOT NULL)) THEN ((((('running: '::text || drover.items(j.*)) || ', about '::text) || drover.about((EXTRACT(epoch FROM (j.jq_expected_end - now())))::double precision)) || ' left'::text) ||
                        CASE
                            WHEN j.jq_repeat THEN ' of this slice'::text
                            ELSE ''::text
                        END)
                        WHEN (s.state = 'running'::drover.job_state) THEN (((('running'::text || COALESCE(((' on host '::text || j.jq_done_host) || COALESCE((', pid '::text || j.jq_done_pid), ''::text)), ''::text)) || ', in hand since '::text) || date_trunc('second'::text, COALESCE(j.jq_attempt_start, j.jq_starttime))) ||
                        CASE
                            WHEN j.jq_msq THEN COALESCE((': '::text || drover.items(j.*)), ''::text)
                            ELSE ''::text
                        END)
                        WHEN (j.jq_msq AND (j.jq_endtext <> 'in progress'::text)) THEN 'in hand'::text
                        WHEN (NOT h.host_enabled) THEN (('in hand, waits for an agent: host '::text || h.host_name) || ' is disabled'::text)
                        WHEN (h.host_down_until > (now() - '00:01:00'::interval)) THEN ((('in hand, waits for an agent: host '::text || h.host_name) || ' is down: '::text) || COALESCE(h.host_reason, '?'::text))
                        ELSE COALESCE(('in hand, waits for an agent: '::text || COALESCE(a.agent_reason, r.room_closed, r.room_full, r.room_busy)), 'in hand, waits for an agent'::text)
                    END
                    WHEN ((s.state = 'queued'::drover.job_state) AND (j.jq_type = 'command'::text)) THEN
                    CASE
                        WHEN (j.jq_wait_until IS NULL) THEN 'waits for an active scheduler'::text
                        ELSE 'waits for the jobs that it runs'::text
                    END
                    WHEN (s.state = 'queued'::drover.job_state) THEN
                    CASE
                        WHEN (j.jq_unmet > 0) THEN (((('waits for '::text || j.jq_unmet) ||
                        CASE j.jq_unmet
                            WHEN 1 THEN ' dependency: job '::text
                            ELSE ' dependencies: jobs '::text
                        END) || COALESCE(( SELECT string_agg((d.pk || COALESCE(((' ('::text || d.name) || ')'::text), ''::text)), ', '::text ORDER BY d.pk) AS string_agg
                           FROM ( SELECT p.jq_pk AS pk,
                                    p.jq_name AS name
                                   FROM (drover.jobdepends
                                     JOIN drover.jobqueue p ON ((p.jq_pk = jobdepends.jdep_jq_depends_fk)))
                                  WHERE ((jobdepends.jdep_jq_fk = j.jq_pk) AND (jobdepends.jdep_met_at IS NULL))
                                 LIMIT 10) d), '?'::text)) || COALESCE(( SELECT (('; job '::text || p.jq_pk) ||
                                CASE p.jq_state
                                    WHEN 'failed'::drover.job_state THEN ' has failed: retry it, or cancel or ice this one'::text
                                    ELSE ((' is '::text || p.jq_state) || ' for good: cancel or ice this one'::text)
                                END)
                           FROM (drover.jobdepends
                             JOIN drover.jobqueue p ON ((p.jq_pk = jobdepends.jdep_jq_depends_fk)))
                          WHERE ((jobdepends.jdep_jq_fk = j.jq_pk) AND (jobdepends.jdep_met_at IS NULL) AND (jobdepends.jdep_on_unmet = 'wait'::text) AND (p.jq_endtime IS NOT NULL) AND ((p.jq_end_bits & jobdepends.jdep_depends_bits) = 0))
                          ORDER BY (p.jq_state = 'failed'::drover.job_state), p.jq_pk
                         LIMIT 1), ''::text))
                        WHEN (j.jq_wait_until > now()) THEN ('waits until '::text || date_trunc('second'::text, j.jq_wait_until))
                        WHEN (q.queue_name IS NULL) THEN ('no queue '::text || quote_literal(j.jq_queue))
                        WHEN q.queue_paused THEN (('queue '::text || q.queue_name) || ' is paused'::text)
                        WHEN (a.agent_type IS NULL) THEN ((('no agent type '::text || quote_literal(j.jq_type)) || ' is configured in group '::text) || q.queue_group)
                        WHEN (NOT a.agent_present) THEN (('agent type '::text || a.agent_type) || ' is no longer configured'::text)
                        WHEN (NOT a.agent_enabled) THEN (('agent type '::text || a.agent_type) || ' is disabled'::text)
                        WHEN ((h.host_name IS NULL) AND (j.jq_host IS NOT NULL)) THEN ('no host '::text || quote_literal(j.jq_host))
                        WHEN (h.host_group <> q.queue_group) THEN ((((((('host '::text || h.host_name) || ' belongs to group '::text) || h.host_group) || ', queue '::text) || q.queue_name) || ' to '::text) || q.queue_group)
                        WHEN (NOT h.host_present) THEN (('host '::text || h.host_name) || ' is no longer configured'::text)
                        WHEN ((r.room_agent IS NULL) AND (EXISTS ( SELECT
                           FROM drover.scheduler_status
                          WHERE ((scheduler_status.status_scheduler = g.group_owner) AND (scheduler_status.status_slot = '-1'::integer) AND (scheduler_status.status_updated > a.agent_registered))))) THEN ((('agent type '::text || a.agent_type) || ' has no slots on '::text) || COALESCE(('host '::text || h.host_name), 'any host'::text))
                        WHEN (NOT h.host_enabled) THEN (('host '::text || h.host_name) || ' is disabled'::text)
                        WHEN (h.host_down_until > (now() - '00:01:00'::interval)) THEN ((('host '::text || h.host_name) || ' is down: '::text) || COALESCE(h.host_reason, '?'::text))
                        WHEN (NOT (EXISTS ( SELECT
                           FROM drover.host t
                          WHERE ((t.host_group = q.queue_group) AND t.host_present AND (t.host_name = COALESCE(j.jq_host, t.host_name)) AND COALESCE((j.jq_queue = ANY (t.host_queues)), true) AND drover.takes_priority(t.host_letters, j.jq_priority))))) THEN ((((COALESCE((('host '::text || j.jq_host) || ' does not take'::text), 'no host takes'::text) || ' jobs of queue '::text) || q.queue_name) || ' with priority '::text) || j.jq_priority)
                        WHEN ((g.group_owner IS NULL) OR (g.group_lease_until < now())) THEN ('no scheduler is active for group '::text || q.queue_group)
                        WHEN (a.agent_blocked_until > now()) THEN drover.rests(a.*)
                        WHEN (q.queue_concurrency <= ( SELECT
                                CASE
                                    WHEN (q.queue_concurrency IS NOT NULL) THEN ( SELECT count(*) AS count
                                       FROM ( SELECT
    FROM drover.jobqueue t
   WHERE ((t.jq_pk = ANY (ARRAY( SELECT unnest(in_hand.hand_jobs) AS unnest
      FROM drover.in_hand))) AND (t.jq_queue = q.queue_name) AND ((t.jq_state = ANY (ARRAY['claimed'::drover.job_state, 'running'::drover.job_state])) OR ((t.jq_state = 'queued'::drover.job_state) AND (t.jq_unmet = 0) AND (t.jq_wait_until IS NULL) AND (t.jq_type <> 'command'::text) AND (NOT drover.has_token(t.*)))))
  LIMIT q.queue_concurrency) held)
                                    ELSE NULL::bigint
                                END AS "case")) THEN (('queue '::text || q.queue_name) || ' is full'::text)
                        WHEN (a.agent_reason IS NOT NULL) THEN ('waits its turn: '::text || a.agent_reason)
                        WHEN (COALESCE(r.room_closed, r.room_full) IS NOT NULL) THEN COALESCE(r.room_closed, r.room_full)
                        WHEN (j.jq_msq AND a.agent_queries_wait) THEN 'waits its turn: others of its type wait for an expansion connection'::text
                        ELSE ('waits its turn'::text || COALESCE((': '::text || r.room_busy), ( SELECT ('; agents are reserved for queue '::text || string_agg(o.queue_name, ', '::text ORDER BY o.queue_name))
                           FROM drover.queue o
                          WHERE ((o.queue_group = q.queue_group) AND (o.queue_name <> q.queue_name) AND o.queue_present AND (o.queue_reserved > 0))), ''::text))
                    END
                    ELSE (s.state)::text
                END AS says
         OFFSET 0) said);

CREATE VIEW drover.runs_detached AS
 SELECT detached_jobs.jq_pk,
    ((((('running detached on host '::text || detached_jobs.host) || COALESCE((', keeper pid '::text || detached_jobs.pid), ''::text)) || ', since '::text) || date_trunc('second'::text, detached_jobs.since)) ||
        CASE
            WHEN detached_jobs.attached THEN ', attached'::text
            ELSE (', not attached: '::text || detached_jobs.waits_for)
        END) AS says
   FROM drover.detached_jobs
  WHERE detached_jobs.runs;

CREATE VIEW drover.why AS
 SELECT r.jq_pk,
    r.jq_type,
    r.jq_state,
        CASE
            WHEN (r.jq_state = 'cancelled'::drover.job_state) THEN drover.end_in_words(r.jq_state, r.text, j.jq_endtime)
            ELSE ((COALESCE(d.says, a.says, k.says, l.says, (regexp_replace(r.says, '^in hand'::text, 'claimed'::text) || COALESCE(n.says, ''::text))) || COALESCE(drover.shown_code(j.*), ''::text)) || COALESCE((': '::text || COALESCE(drover.end_in_words(r.jq_state, r.text, j.jq_endtime), r.text)), ''::text))
        END AS reason
   FROM ((((((drover.reason r
     JOIN drover.jobqueue j ON ((j.jq_pk = r.jq_pk)))
     LEFT JOIN drover.awaited a ON (((a.jq_pk = r.jq_pk) AND (r.jq_state = 'blocked'::drover.job_state))))
     LEFT JOIN LATERAL ( SELECT rate_limited.says
           FROM drover.rate_limited
          WHERE ((rate_limited.jq_pk = r.jq_pk) AND (r.says ~~ 'waits its turn%'::text))
         OFFSET 0) l ON (true))
     LEFT JOIN LATERAL ( SELECT runs_detached.says
           FROM drover.runs_detached
          WHERE ((runs_detached.jq_pk = r.jq_pk) AND (r.jq_state = 'running'::drover.job_state))
         OFFSET 0) d ON (true))
     LEFT JOIN LATERAL ( SELECT (
                CASE
                    WHEN (r.jq_state = 'queued'::drover.job_state) THEN ''::text
                    WHEN (r.jq_state = 'claimed'::drover.job_state) THEN 'claimed; '::text
                    ELSE (r.says || '; '::text)
                END || w.says) AS says
           FROM drover.lockers() w(locker, says)
          WHERE ((w.locker = j.xmax) AND (r.jq_state = ANY (ARRAY['queued'::drover.job_state, 'claimed'::drover.job_state, 'running'::drover.job_state])) AND (r.says ~ '^(waits its turn|in hand|running)'::text))
         LIMIT 1) k ON (true))
     LEFT JOIN LATERAL ( SELECT (', the next at '::text || date_trunc('second'::text, agent.agent_item_next)) AS says
           FROM (drover.agent
             JOIN drover.queue ON ((agent.agent_group = queue.queue_group)))
          WHERE ((queue.queue_name = j.jq_queue) AND (agent.agent_type = j.jq_type) AND (agent.agent_item_next > now()) AND (r.says ~~ '%item_rate%'::text))
         OFFSET 0) n ON (true));

CREATE VIEW drover.my_why WITH (security_barrier='true') AS
 SELECT w.jq_pk,
    w.jq_type,
    w.jq_state,
    w.reason
   FROM (drover.why w
     JOIN drover.jobqueue j ON ((j.jq_pk = w.jq_pk)))
  WHERE (j.jq_submitter = SESSION_USER);

CREATE VIEW drover.my_zone_parts WITH (security_barrier='true') AS
 SELECT zone_parts.zone,
    zone_parts.type,
    zone_parts.queue,
    zone_parts.host,
    zone_parts.submitter,
    zone_parts.state,
    zone_parts.jobs,
    zone_parts.oldest,
    zone_parts.latest,
    zone_parts.waited,
    zone_parts.ran,
    zone_parts.rank
   FROM drover.zone_parts
  WHERE (zone_parts.submitter = (SESSION_USER)::text);

CREATE VIEW drover.our_beside_zones WITH (security_barrier='true') AS
 SELECT b.jq_pk
   FROM (drover.beside_zones b
     CROSS JOIN LATERAL ( SELECT j_1.jq_submitter
           FROM drover.jobqueue j_1
          WHERE (j_1.jq_pk = b.jq_pk)
         LIMIT 1) j)
  WHERE (j.jq_submitter = ANY (( SELECT drover.fellows() AS fellows)::name[]))
UNION
 SELECT pk.pk AS jq_pk
   FROM unnest(drover.shared_jobs()) pk(pk);

CREATE VIEW drover.our_detached WITH (security_barrier='true') AS
 SELECT d.jq_pk,
    d.jq_type,
    d.jq_state,
    d.attempt,
    d.host,
    d.entry,
    d.since,
    d.runs,
    d.pid,
    d.attached,
    d.waits_for
   FROM (drover.detached_jobs d
     CROSS JOIN LATERAL ( SELECT
           FROM drover.jobqueue j_1
          WHERE ((j_1.jq_pk = d.jq_pk) AND ((j_1.jq_submitter = ANY (( SELECT drover.fellows() AS fellows)::name[])) OR (j_1.jq_pk = ANY (( SELECT drover.shared_jobs() AS shared_jobs)::bigint[]))))
         OFFSET 0) j);

CREATE VIEW drover.our_job_counts WITH (security_barrier='true') AS
 SELECT job_counts.type,
    job_counts.queue,
    job_counts.host,
    job_counts.submitter,
    job_counts.state,
    job_counts.jobs
   FROM drover.job_counts
  WHERE (job_counts.submitter = ANY ((( SELECT drover.fellows() AS fellows))::text[]));

CREATE VIEW drover.our_job_states WITH (security_barrier='true') AS
 SELECT job_states.type,
    job_states.queue,
    job_states.host,
    job_states.submitter,
    job_states.state,
    job_states.waits_for,
    job_states.jobs
   FROM drover.job_states
  WHERE (job_states.submitter = ANY ((( SELECT drover.fellows() AS fellows))::text[]));

CREATE VIEW drover.our_job_zones WITH (security_barrier='true') AS
 SELECT job_zones.zone,
    job_zones.type,
    job_zones.queue,
    job_zones.host,
    job_zones.submitter,
    job_zones.state,
    job_zones.jobs,
    job_zones.oldest,
    job_zones.latest,
    job_zones.waited,
    job_zones.ran,
    job_zones.rank
   FROM drover.job_zones
  WHERE (job_zones.submitter = ANY ((( SELECT drover.fellows() AS fellows))::text[]));

CREATE VIEW drover.our_jobs WITH (security_barrier='true') AS
 SELECT jobs.jq_pk,
    jobs.jq_job_fk,
    jobs.jq_name,
    jobs.jq_type,
    jobs.jq_args,
    jobs.jq_variables,
    jobs.jq_msq,
    jobs.jq_runonpfile,
    jobs.jq_host,
    jobs.jq_key,
    jobs.jq_tolerate,
    jobs.jq_repeat,
    jobs.jq_queue,
    jobs.jq_urgent,
    jobs.jq_priority,
    jobs.jq_not_before,
    jobs.jq_not_after,
    jobs.jq_wait_until,
    jobs.jq_expires_at,
    jobs.jq_live_key,
    jobs.jq_max_interruptions,
    jobs.jq_retries,
    jobs.jq_timeout,
    jobs.jq_unique_key,
    jobs.jq_delete,
    jobs.jq_mode,
    jobs.jq_state,
    jobs.jq_attempt,
    jobs.jq_owner,
    jobs.jq_schedinfo,
    jobs.jq_interruptions,
    jobs.jq_failures,
    jobs.jq_rescued,
    jobs.jq_retry_at,
    jobs.jq_unmet,
    jobs.jq_has_children,
    jobs.jq_wanted,
    jobs.jq_queued,
    jobs.jq_starttime,
    jobs.jq_endtime,
    jobs.jq_endtext,
    jobs.jq_end_bits,
    jobs.jq_exitcode,
    jobs.jq_signal,
    jobs.jq_result,
    jobs.jq_itemsprocessed,
    jobs.jq_itemsfailed,
    jobs.jq_itemstotal,
    jobs.jq_checkpoint,
    jobs.jq_elapsedtime,
    jobs.jq_processedtime,
    jobs.jq_expected_end,
    jobs.jq_done_by,
    jobs.jq_done_host,
    jobs.jq_done_pid,
    jobs.jq_submitter,
    jobs.jq_resubmit_of,
    jobs.jq_first_start,
    jobs.jq_attempt_start,
    jobs.jq_end_code,
    jobs.jq_blocked_count
   FROM drover.jobs
  WHERE ((jobs.jq_submitter = ANY (( SELECT drover.fellows() AS fellows)::name[])) OR (jobs.jq_pk = ANY (( SELECT drover.shared_jobs() AS shared_jobs)::bigint[])))
  ORDER BY jobs.jq_pk DESC;

CREATE VIEW drover.our_log WITH (security_barrier='true') AS
 SELECT l.log_pk,
    l.log_date,
    l.log_jq_fk,
    l.log_type,
    l.log_host,
    l.log_agent,
    l.log_pid,
    l.log_message
   FROM (drover.log l
     JOIN drover.jobqueue ON ((jobqueue.jq_pk = l.log_jq_fk)))
  WHERE ((jobqueue.jq_submitter = ANY (( SELECT drover.fellows() AS fellows)::name[])) OR (jobqueue.jq_pk = ANY (( SELECT drover.shared_jobs() AS shared_jobs)::bigint[])));

CREATE VIEW drover.our_output WITH (security_barrier='true') AS
 SELECT o.out_pk,
    o.out_jq_fk,
    o.out_attempt,
    o.out_part,
    o.out_date,
    o.out_stream,
    o.out_data
   FROM (drover.output o
     JOIN drover.jobqueue ON ((jobqueue.jq_pk = o.out_jq_fk)))
  WHERE ((jobqueue.jq_submitter = ANY (( SELECT drover.fellows() AS fellows)::name[])) OR (jobqueue.jq_pk = ANY (( SELECT drover.shared_jobs() AS shared_jobs)::bigint[])));

CREATE VIEW drover.our_zone_parts WITH (security_barrier='true') AS
 SELECT zone_parts.zone,
    zone_parts.type,
    zone_parts.queue,
    zone_parts.host,
    zone_parts.submitter,
    zone_parts.state,
    zone_parts.jobs,
    zone_parts.oldest,
    zone_parts.latest,
    zone_parts.waited,
    zone_parts.ran,
    zone_parts.rank
   FROM drover.zone_parts
  WHERE (zone_parts.submitter = ANY ((( SELECT drover.fellows() AS fellows))::text[]));

CREATE VIEW drover.our_tally WITH (security_barrier='true') AS
 WITH ended AS MATERIALIZED (
         SELECT our_zone_parts.zone,
            max(our_zone_parts.latest) AS latest,
            row_number() OVER (ORDER BY (max(our_zone_parts.latest)) DESC) AS place
           FROM drover.our_zone_parts
          WHERE ((our_zone_parts.state <> ALL (ARRAY['held'::text, 'queued'::text, 'early'::text, 'unmet'::text, 'blocked'::text])) AND (our_zone_parts.latest > (now() - '01:00:00'::interval)))
          GROUP BY our_zone_parts.zone
        ), beginning AS MATERIALIZED (
         SELECT COALESCE((date_trunc('minute'::text, max(ended.latest)) + '00:01:00'::interval), (now() - '01:00:00'::interval)) AS at
           FROM ended
          WHERE (ended.place > 100)
        ), jobs AS MATERIALIZED (
         SELECT z.jq_type,
            z.jq_state,
            z.jq_queued,
            z.jq_attempt,
            z.jq_starttime,
            z.jq_endtime,
            z.jq_msq,
            z.jq_processedtime
           FROM (ended
             CROSS JOIN LATERAL ( SELECT jobqueue.jq_pk,
                    jobqueue.jq_job_fk,
                    jobqueue.jq_name,
                    jobqueue.jq_type,
                    jobqueue.jq_args,
                    jobqueue.jq_variables,
                    jobqueue.jq_msq,
                    jobqueue.jq_runonpfile,
                    jobqueue.jq_host,
                    jobqueue.jq_key,
                    jobqueue.jq_tolerate,
                    jobqueue.jq_repeat,
                    jobqueue.jq_queue,
                    jobqueue.jq_urgent,
                    jobqueue.jq_priority,
                    jobqueue.jq_not_before,
                    jobqueue.jq_not_after,
                    jobqueue.jq_wait_until,
                    jobqueue.jq_expires_at,
                    jobqueue.jq_live_key,
                    jobqueue.jq_max_interruptions,
                    jobqueue.jq_retries,
                    jobqueue.jq_timeout,
                    jobqueue.jq_unique_key,
                    jobqueue.jq_delete,
                    jobqueue.jq_mode,
                    jobqueue.jq_state,
                    jobqueue.jq_attempt,
                    jobqueue.jq_owner,
                    jobqueue.jq_schedinfo,
                    jobqueue.jq_interruptions,
                    jobqueue.jq_failures,
                    jobqueue.jq_rescued,
                    jobqueue.jq_retry_at,
                    jobqueue.jq_unmet,
                    jobqueue.jq_has_children,
                    jobqueue.jq_wanted,
                    jobqueue.jq_queued,
                    jobqueue.jq_starttime,
                    jobqueue.jq_endtime,
                    jobqueue.jq_endtext,
                    jobqueue.jq_end_bits,
                    jobqueue.jq_exitcode,
                    jobqueue.jq_signal,
                    jobqueue.jq_result,
                    jobqueue.jq_itemsprocessed,
                    jobqueue.jq_itemsfailed,
                    jobqueue.jq_itemstotal,
                    jobqueue.jq_checkpoint,
                    jobqueue.jq_elapsedtime,
                    jobqueue.jq_processedtime,
                    jobqueue.jq_expected_end,
                    jobqueue.jq_done_by,
                    jobqueue.jq_done_host,
                    jobqueue.jq_done_pid,
                    jobqueue.jq_submitter,
                    jobqueue.jq_resubmit_of,
                    jobqueue.jq_first_start,
                    jobqueue.jq_attempt_start,
                    jobqueue.jq_blocked_count,
                    jobqueue.jq_batch
                   FROM drover.jobqueue
                  WHERE (((jobqueue.jq_pk >= (ended.zone * 4096)) AND (jobqueue.jq_pk <= ((ended.zone * 4096) + 4095))) AND (jobqueue.jq_endtime >= ( SELECT beginning.at
                           FROM beginning)))
                 OFFSET 0) z)
          WHERE ((ended.place <= 100) AND (z.jq_type <> 'command'::text) AND (z.jq_submitter = ANY (( SELECT drover.fellows() AS fellows)::name[])))
        UNION ALL
         SELECT h.jq_type,
            h.jq_state,
            h.jq_queued,
            h.jq_attempt,
            h.jq_starttime,
            NULL::timestamp with time zone,
            h.jq_msq,
            h.jq_processedtime
           FROM (drover.our_beside_zones b
             CROSS JOIN LATERAL ( SELECT j.jq_pk,
                    j.jq_job_fk,
                    j.jq_name,
                    j.jq_type,
                    j.jq_args,
                    j.jq_variables,
                    j.jq_msq,
                    j.jq_runonpfile,
                    j.jq_host,
                    j.jq_key,
                    j.jq_tolerate,
                    j.jq_repeat,
                    j.jq_queue,
                    j.jq_urgent,
                    j.jq_priority,
                    j.jq_not_before,
                    j.jq_not_after,
                    j.jq_wait_until,
                    j.jq_expires_at,
                    j.jq_live_key,
                    j.jq_max_interruptions,
                    j.jq_retries,
                    j.jq_timeout,
                    j.jq_unique_key,
                    j.jq_delete,
                    j.jq_mode,
                    j.jq_state,
                    j.jq_attempt,
                    j.jq_owner,
                    j.jq_schedinfo,
                    j.jq_interruptions,
                    j.jq_failures,
                    j.jq_rescued,
                    j.jq_retry_at,
                    j.jq_unmet,
                    j.jq_has_children,
                    j.jq_wanted,
                    j.jq_queued,
                    j.jq_starttime,
                    j.jq_endtime,
                    j.jq_endtext,
                    j.jq_end_bits,
                    j.jq_exitcode,
                    j.jq_signal,
                    j.jq_result,
                    j.jq_itemsprocessed,
                    j.jq_itemsfailed,
                    j.jq_itemstotal,
                    j.jq_checkpoint,
                    j.jq_elapsedtime,
                    j.jq_processedtime,
                    j.jq_expected_end,
                    j.jq_done_by,
                    j.jq_done_host,
                    j.jq_done_pid,
                    j.jq_submitter,
                    j.jq_resubmit_of,
                    j.jq_first_start,
                    j.jq_attempt_start,
                    j.jq_blocked_count,
                    j.jq_batch
                   FROM drover.jobqueue j
                  WHERE (j.jq_pk = b.jq_pk)
                 LIMIT 1) h)
          WHERE ((h.jq_endtime IS NULL) AND (h.jq_type <> 'command'::text))
        )
 SELECT jobs.jq_endtime AS tally_at,
    '00:00:00'::interval AS tally_span,
    jobs.jq_type AS tally_type,
    (jobs.jq_state)::text AS tally_state,
    (1)::bigint AS tally_jobs,
        CASE
            WHEN (jobs.jq_state = ANY (ARRAY['done'::drover.job_state, 'failed'::drover.job_state])) THEN ARRAY[drover.time_bin(drover.time_run(jobs.jq_msq, jobs.jq_processedtime, jobs.jq_starttime, jobs.jq_endtime))]
            ELSE '{}'::integer[]
        END AS tally_bins,
        CASE
            WHEN (jobs.jq_state = ANY (ARRAY['done'::drover.job_state, 'failed'::drover.job_state])) THEN ARRAY[(1)::bigint]
            ELSE '{}'::bigint[]
        END AS tally_counts
   FROM jobs
  WHERE (jobs.jq_endtime IS NOT NULL)
UNION ALL
 SELECT jobs.jq_starttime AS tally_at,
    '00:00:00'::interval AS tally_span,
    jobs.jq_type AS tally_type,
    'started'::text AS tally_state,
    1 AS tally_jobs,
    ARRAY[drover.time_bin((date_part('epoch'::text, jobs.jq_starttime) - date_part('epoch'::text, jobs.jq_queued)))] AS tally_bins,
    ARRAY[1] AS tally_counts
   FROM jobs
  WHERE ((jobs.jq_starttime >= ( SELECT beginning.at
           FROM beginning)) AND (jobs.jq_attempt > 0));

CREATE VIEW drover.our_why WITH (security_barrier='true') AS
 SELECT w.jq_pk,
    w.jq_type,
    w.jq_state,
    w.reason
   FROM (drover.why w
     JOIN drover.jobqueue j ON ((j.jq_pk = w.jq_pk)))
  WHERE ((j.jq_submitter = ANY (( SELECT drover.fellows() AS fellows)::name[])) OR (j.jq_pk = ANY (( SELECT drover.shared_jobs() AS shared_jobs)::bigint[])));

ALTER TABLE drover.output ALTER COLUMN out_pk ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME drover.output_out_pk_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE drover.placement (
    placement_pk bigint NOT NULL,
    placement_type text,
    placement_from text NOT NULL,
    placement_to text,
    placement_host text NOT NULL
);

ALTER TABLE drover.placement ALTER COLUMN placement_pk ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME drover.placement_placement_pk_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE drover.quota (
    quota_name text NOT NULL,
    quota_group text DEFAULT 'default'::text NOT NULL,
    quota_most integer NOT NULL,
    quota_tenant text,
    quota_user text,
    quota_queue text,
    quota_host text,
    CONSTRAINT quota_counts_something CHECK ((num_nonnulls(quota_tenant, quota_user, quota_queue, quota_host) > 0)),
    CONSTRAINT quota_quota_host_check CHECK ((quota_host <> ''::text)),
    CONSTRAINT quota_quota_most_check CHECK ((quota_most >= 0)),
    CONSTRAINT quota_quota_name_check CHECK ((quota_name ~ '^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}$'::text)),
    CONSTRAINT quota_quota_queue_check CHECK ((quota_queue <> ''::text)),
    CONSTRAINT quota_quota_tenant_check CHECK ((quota_tenant <> ''::text)),
    CONSTRAINT quota_quota_user_check CHECK ((quota_user <> ''::text))
);

CREATE TABLE drover.recount_place (
    place_zone bigint NOT NULL
);

ALTER TABLE ONLY drover.recount_place REPLICA IDENTITY FULL;

CREATE TABLE drover.recovery_policy (
    policy_group text NOT NULL,
    policy_name text NOT NULL,
    policy_condition text NOT NULL,
    policy_types text[] NOT NULL,
    policy_rules jsonb NOT NULL
);

ALTER TABLE drover.recovery ALTER COLUMN recovery_pk ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME drover.recovery_recovery_pk_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE drover.schedule_start (
    start_schedule text NOT NULL,
    start_due_at timestamp with time zone NOT NULL,
    start_at timestamp with time zone DEFAULT now() NOT NULL,
    start_jobs bigint[] DEFAULT '{}'::bigint[] NOT NULL,
    start_text text
);

CREATE TABLE drover.scheduler (
    scheduler_uuid uuid NOT NULL,
    scheduler_group text NOT NULL,
    scheduler_host text NOT NULL,
    scheduler_pid integer NOT NULL,
    scheduler_boot_id text NOT NULL,
    scheduler_pid_space text NOT NULL,
    scheduler_pid_start bigint NOT NULL,
    scheduler_version text NOT NULL,
    scheduler_lease double precision DEFAULT 30 NOT NULL,
    scheduler_started timestamp with time zone DEFAULT now() NOT NULL,
    scheduler_seen timestamp with time zone DEFAULT now() NOT NULL,
    scheduler_number bigint DEFAULT COALESCE(pg_sequence_last_value('drover.jobqueue_jq_pk_seq'::regclass), (0)::bigint) NOT NULL,
    scheduler_takes_shared boolean DEFAULT false NOT NULL,
    scheduler_verbs text[] DEFAULT ARRAY['shutdown'::text, 'reload'::text, 'reopen-log'::text, 'verbose'::text, 'reset'::text, 'poll'::text] NOT NULL,
    scheduler_counts boolean DEFAULT false NOT NULL
);

CREATE TABLE drover.share (
    share_jq_fk bigint NOT NULL,
    share_with name NOT NULL
);

CREATE TABLE drover.size_limit (
    limit_column text NOT NULL,
    limit_bytes integer NOT NULL,
    CONSTRAINT size_limit_limit_bytes_check CHECK (
CASE
    WHEN (limit_column = ANY (ARRAY['jq_args'::text, 'jq_variables'::text, 'job_data'::text])) THEN ((limit_bytes >= 65536) AND (limit_bytes <= 16777216))
    ELSE ((limit_bytes >= 64) AND (limit_bytes <= 2000))
END)
);

CREATE TABLE drover.subscription_key (
    key_sub bigint NOT NULL,
    key_inner bytea NOT NULL,
    key_outer bytea NOT NULL
);

ALTER TABLE drover.subscription ALTER COLUMN sub_pk ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME drover.subscription_sub_pk_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE drover.suspect_walk (
    walk_only boolean DEFAULT true NOT NULL,
    walk_stage text DEFAULT 'jobs'::text NOT NULL,
    walk_place bigint DEFAULT '-1'::integer NOT NULL,
    walk_at timestamp with time zone,
    walk_ended timestamp with time zone,
    CONSTRAINT suspect_walk_walk_only_check CHECK (walk_only),
    CONSTRAINT suspect_walk_walk_stage_check CHECK ((walk_stage = ANY (ARRAY['jobs'::text, 'tokens'::text, 'entries'::text])))
);

CREATE TABLE drover.tally (
    tally_at timestamp with time zone DEFAULT now() NOT NULL,
    tally_span interval DEFAULT '00:00:00'::interval NOT NULL,
    tally_type text NOT NULL,
    tally_host text NOT NULL,
    tally_state text NOT NULL,
    tally_code text NOT NULL,
    tally_jobs bigint NOT NULL,
    tally_items bigint NOT NULL,
    tally_newest bigint,
    tally_bins integer[] NOT NULL,
    tally_counts bigint[] NOT NULL
);

ALTER TABLE ONLY drover.tally REPLICA IDENTITY FULL;

CREATE TABLE drover.tenant (
    tenant_name text NOT NULL,
    tenant_queue text DEFAULT 'default'::text NOT NULL
);

CREATE TABLE drover.tenant_queue (
    tq_queue text NOT NULL,
    tq_tenant text NOT NULL
);

CREATE TABLE drover.variable (
    variable_type text DEFAULT ''::text NOT NULL,
    variable_name text NOT NULL,
    variable_value text NOT NULL,
    CONSTRAINT variable_variable_name_check CHECK ((variable_name ~ '^[A-Za-z_][A-Za-z0-9_]{0,63}$'::text)),
    CONSTRAINT variable_variable_value_check CHECK ((octet_length(variable_value) <= 16384))
);

CREATE TABLE drover.verb (
    verb_name text NOT NULL,
    verb_number integer NOT NULL,
    verb_for_owners boolean NOT NULL,
    verb_job_every integer NOT NULL,
    verb_in_bulk text[] DEFAULT '{}'::text[] NOT NULL,
    CONSTRAINT verb_verb_job_every_check CHECK ((verb_job_every >= 0))
);

CREATE VIEW drover.vitals AS
 SELECT scheduler.scheduler_uuid,
    scheduler.scheduler_group,
    scheduler.scheduler_host,
    scheduler.scheduler_pid,
    scheduler.scheduler_version,
    scheduler.scheduler_started,
    (scheduler.scheduler_seen > (now() - make_interval(secs => ((2)::double precision * scheduler.scheduler_lease)))) AS is_alive,
    scheduler_status.status_updated,
    ((v.vital ->> 'jobs'::text))::bigint AS jobs,
    ((v.vital ->> 'expansions'::text))::bigint AS expansions,
    ((v.vital ->> 'memory_mb'::text))::double precision AS memory_mb,
    ((v.vital ->> 'cpu_s'::text))::double precision AS cpu_s,
    ((v.vital ->> 'slow_turns'::text))::bigint AS slow_turns,
    ((v.vital ->> 'longest_turn_ms'::text))::double precision AS longest_turn_ms,
    ((v.vital ->> 'recent_turn_ms'::text))::double precision AS recent_turn_ms,
    jsonb_array_length((v.vital -> 'troubles'::text)) AS troubles,
    (scheduler_status.status_reason IS NOT NULL) AS is_refused,
    (v.vital -> 'statements'::text) AS statements
   FROM ((drover.scheduler
     JOIN drover.scheduler_status ON (((scheduler_status.status_scheduler = scheduler.scheduler_uuid) AND (scheduler_status.status_slot = '-1'::integer))))
     CROSS JOIN LATERAL ( SELECT (scheduler_status.status_parameter)::jsonb AS vital
         OFFSET 0) v);

CREATE VIEW drover.why_masked AS
 SELECT r.jq_pk,
    r.jq_type,
    r.jq_state,
        CASE
            WHEN (r.jq_state = 'cancelled'::drover.job_state) THEN drover.end_in_words(r.jq_state, NULL::text, j.jq_endtime)
            ELSE (COALESCE(d.says, a.says, k.says, l.says, (regexp_replace(r.says, '^in hand'::text, 'claimed'::text) || COALESCE(n.says, ''::text))) || COALESCE(drover.shown_code(j.*), ''::text))
        END AS reason
   FROM ((((((drover.reason r
     JOIN drover.jobqueue j ON ((j.jq_pk = r.jq_pk)))
     LEFT JOIN drover.awaited a ON (((a.jq_pk = r.jq_pk) AND (r.jq_state = 'blocked'::drover.job_state))))
     LEFT JOIN LATERAL ( SELECT rate_limited.says
           FROM drover.rate_limited
          WHERE ((rate_limited.jq_pk = r.jq_pk) AND (r.says ~~ 'waits its turn%'::text))
         OFFSET 0) l ON (true))
     LEFT JOIN LATERAL ( SELECT runs_detached.says
           FROM drover.runs_detached
          WHERE ((runs_detached.jq_pk = r.jq_pk) AND (r.jq_state = 'running'::drover.job_state))
         OFFSET 0) d ON (true))
     LEFT JOIN LATERAL ( SELECT (
                CASE
                    WHEN (r.jq_state = 'queued'::drover.job_state) THEN ''::text
                    WHEN (r.jq_state = 'claimed'::drover.job_state) THEN 'claimed; '::text
                    ELSE (r.says || '; '::text)
                END || w.says) AS says
           FROM drover.lockers() w(locker, says)
          WHERE ((w.locker = j.xmax) AND (r.jq_state = ANY (ARRAY['queued'::drover.job_state, 'claimed'::drover.job_state, 'running'::drover.job_state])) AND (r.says ~ '^(waits its turn|in hand|running)'::text))
         LIMIT 1) k ON (true))
     LEFT JOIN LATERAL ( SELECT (', the next at '::text || date_trunc('second'::text, agent.agent_item_next)) AS says
           FROM (drover.agent
             JOIN drover.queue ON ((agent.agent_group = queue.queue_group)))
          WHERE ((queue.queue_name = j.jq_queue) AND (agent.agent_type = j.jq_type) AND (agent.agent_item_next > now()) AND (r.says ~~ '%item_rate%'::text))
         OFFSET 0) n ON (true));

ALTER TABLE ONLY drover.agent
    ADD CONSTRAINT agent_pkey PRIMARY KEY (agent_group, agent_type);

ALTER TABLE ONLY drover.alert
    ADD CONSTRAINT alert_pkey PRIMARY KEY (alert_rule, alert_jq_fk);

ALTER TABLE ONLY drover.attempt_kept
    ADD CONSTRAINT attempt_kept_pkey PRIMARY KEY (att_jq_fk, att_attempt);

ALTER TABLE ONLY drover.blocked
    ADD CONSTRAINT blocked_pkey PRIMARY KEY (blocked_jq_fk);

ALTER TABLE ONLY drover.command_ack
    ADD CONSTRAINT command_ack_pkey PRIMARY KEY (ack_jq_fk, ack_scheduler);

ALTER TABLE ONLY drover.counter
    ADD CONSTRAINT counter_pkey PRIMARY KEY (counter_name, counter_labels);

ALTER TABLE ONLY drover.dead_letter
    ADD CONSTRAINT dead_letter_pkey PRIMARY KEY (dead_pk);

ALTER TABLE ONLY drover.delivery
    ADD CONSTRAINT delivery_pkey PRIMARY KEY (del_pk);

ALTER TABLE ONLY drover.detached
    ADD CONSTRAINT detached_pkey PRIMARY KEY (det_jq_fk, det_attempt);

ALTER TABLE ONLY drover.event
    ADD CONSTRAINT event_pkey PRIMARY KEY (ev_pk);

ALTER TABLE ONLY drover.gate
    ADD CONSTRAINT gate_pkey PRIMARY KEY (gate_name);

ALTER TABLE ONLY drover.hidden
    ADD CONSTRAINT hidden_pkey PRIMARY KEY (hidden_jq_fk);

ALTER TABLE ONLY drover.host
    ADD CONSTRAINT host_pkey PRIMARY KEY (host_name);

ALTER TABLE ONLY drover.item_failure
    ADD CONSTRAINT item_failure_pkey PRIMARY KEY (item_pk);

ALTER TABLE ONLY drover.job
    ADD CONSTRAINT job_pkey PRIMARY KEY (job_pk);

ALTER TABLE ONLY drover.job_total
    ADD CONSTRAINT job_total_pkey PRIMARY KEY (total_type, total_queue, total_host, total_submitter, total_state);

ALTER TABLE ONLY drover.job_zone
    ADD CONSTRAINT job_zone_pkey PRIMARY KEY (zone_number, zone_type, zone_queue, zone_host, zone_submitter, zone_state);

ALTER TABLE ONLY drover.jobdepends
    ADD CONSTRAINT jobdepends_pkey PRIMARY KEY (jdep_jq_fk, jdep_jq_depends_fk);

ALTER TABLE ONLY drover.jobqueue
    ADD CONSTRAINT jobqueue_jq_name_key UNIQUE (jq_name);

ALTER TABLE ONLY drover.jobqueue
    ADD CONSTRAINT jobqueue_pkey PRIMARY KEY (jq_pk);

ALTER TABLE ONLY drover.later_migration
    ADD CONSTRAINT later_migration_pkey PRIMARY KEY (number);

ALTER TABLE ONLY drover.log
    ADD CONSTRAINT log_pkey PRIMARY KEY (log_pk);

ALTER TABLE ONLY drover.migration
    ADD CONSTRAINT migration_pkey PRIMARY KEY (number);

ALTER TABLE ONLY drover.output
    ADD CONSTRAINT output_pkey PRIMARY KEY (out_pk);

ALTER TABLE ONLY drover.placement
    ADD CONSTRAINT placement_pkey PRIMARY KEY (placement_pk);

ALTER TABLE ONLY drover.queue
    ADD CONSTRAINT queue_pkey PRIMARY KEY (queue_name);

ALTER TABLE ONLY drover.queue_start
    ADD CONSTRAINT queue_start_pkey PRIMARY KEY (start_queue, start_value);

ALTER TABLE ONLY drover.quota
    ADD CONSTRAINT quota_pkey PRIMARY KEY (quota_name);

ALTER TABLE ONLY drover.recovery
    ADD CONSTRAINT recovery_pkey PRIMARY KEY (recovery_pk);

ALTER TABLE ONLY drover.recovery_policy
    ADD CONSTRAINT recovery_policy_pkey PRIMARY KEY (policy_group, policy_name);

ALTER TABLE ONLY drover.schedule
    ADD CONSTRAINT schedule_pkey PRIMARY KEY (schedule_name);

ALTER TABLE ONLY drover.schedule_start
    ADD CONSTRAINT schedule_start_pkey PRIMARY KEY (start_schedule, start_due_at);

ALTER TABLE ONLY drover.scheduler_group
    ADD CONSTRAINT scheduler_group_pkey PRIMARY KEY (group_name);

ALTER TABLE ONLY drover.scheduler
    ADD CONSTRAINT scheduler_pkey PRIMARY KEY (scheduler_uuid);

ALTER TABLE ONLY drover.scheduler_status
    ADD CONSTRAINT scheduler_status_pkey PRIMARY KEY (status_scheduler, status_slot);

ALTER TABLE ONLY drover.share
    ADD CONSTRAINT share_pkey PRIMARY KEY (share_jq_fk, share_with);

ALTER TABLE ONLY drover.size_limit
    ADD CONSTRAINT size_limit_pkey PRIMARY KEY (limit_column);

ALTER TABLE ONLY drover.subscription_key
    ADD CONSTRAINT subscription_key_pkey PRIMARY KEY (key_sub);

ALTER TABLE ONLY drover.subscription
    ADD CONSTRAINT subscription_pkey PRIMARY KEY (sub_pk);

ALTER TABLE ONLY drover.suspect
    ADD CONSTRAINT suspect_pkey PRIMARY KEY (suspect_jq_fk, suspect_rule);

ALTER TABLE ONLY drover.suspect_walk
    ADD CONSTRAINT suspect_walk_pkey PRIMARY KEY (walk_only);

ALTER TABLE ONLY drover.tenant
    ADD CONSTRAINT tenant_pkey PRIMARY KEY (tenant_name);

ALTER TABLE ONLY drover.tenant_queue
    ADD CONSTRAINT tenant_queue_pkey PRIMARY KEY (tq_queue);

ALTER TABLE ONLY drover.variable
    ADD CONSTRAINT variable_pkey PRIMARY KEY (variable_type, variable_name);

ALTER TABLE ONLY drover.verb
    ADD CONSTRAINT verb_pkey PRIMARY KEY (verb_name);

CREATE INDEX blocked_order ON drover.blocked USING btree (blocked_recovery, blocked_rank, blocked_queued, blocked_jq_fk);

CREATE INDEX claimable_by_number ON drover.claimable USING btree (claim_first) WHERE ((claim_jobs IS NOT NULL) OR (claim_line IS NOT NULL));

CREATE INDEX claimable_lines ON drover.claimable USING btree (claim_type, claim_queue, claim_host, claim_line, claim_rank) WHERE (claim_line IS NOT NULL);

CREATE INDEX claimable_order ON drover.claimable USING btree (claim_type, claim_queue, claim_host, claim_rank, claim_queued, claim_first);

CREATE INDEX dead_letter_of_job ON drover.dead_letter USING btree (dead_jq_fk);

CREATE INDEX delivery_again ON drover.delivery USING btree (del_next) WHERE ((del_state = 'waiting'::text) AND (del_next IS NOT NULL));

CREATE INDEX delivery_in_order ON drover.delivery USING btree (del_sub, del_target, del_jq_fk, del_pk) WHERE (del_state = ANY (ARRAY['waiting'::text, 'sent'::text]));

CREATE INDEX delivery_in_turn ON drover.delivery USING btree (del_owner, del_turn) WHERE (del_state = 'sent'::text);

CREATE INDEX delivery_of_event ON drover.delivery USING btree (del_event);

CREATE INDEX delivery_sent ON drover.delivery USING btree (del_owner, del_sub, del_target) WHERE (del_state = 'sent'::text);

CREATE INDEX delivery_waiting ON drover.delivery USING btree (del_owner, del_sub, del_target, del_next, del_pk) WHERE ((del_state = 'waiting'::text) AND (del_next IS NOT NULL));

CREATE INDEX detached_of_group ON drover.detached USING btree (det_group);

CREATE INDEX event_of_job ON drover.event USING btree (ev_jq_fk, ev_pk);

CREATE INDEX event_of_state ON drover.event USING btree (ev_jq_fk, ev_pk) WHERE (ev_kind = 'status'::text);

CREATE INDEX host_of_group ON drover.host USING btree (host_group);

CREATE INDEX item_failure_of_job ON drover.item_failure USING btree (item_jq_fk);

CREATE INDEX job_total_empty ON drover.job_total USING btree (total_jobs) WHERE (total_jobs = 0);

CREATE INDEX job_zone_empty ON drover.job_zone USING btree (zone_jobs) WHERE (zone_jobs = 0);

CREATE INDEX job_zone_open ON drover.job_zone USING btree (zone_state, zone_type) WHERE (zone_state = ANY (ARRAY['held'::text, 'early'::text, 'unmet'::text, 'queued'::text, 'blocked'::text]));

CREATE INDEX jobdepends_of_parent ON drover.jobdepends USING btree (jdep_jq_depends_fk, jdep_jq_fk);

CREATE INDEX jobdepends_open ON drover.jobdepends USING btree (jdep_jq_depends_fk) WHERE (COALESCE(jdep_met_at, '-infinity'::timestamp with time zone) = '-infinity'::timestamp with time zone);

CREATE INDEX jobqueue_due ON drover.jobqueue USING btree (jq_queue, jq_wait_until) WHERE (jq_wait_until IS NOT NULL);

CREATE INDEX jobqueue_expiring ON drover.jobqueue USING btree (jq_queue, jq_expires_at) WHERE (jq_expires_at IS NOT NULL);

CREATE INDEX jobqueue_of_job ON drover.jobqueue USING btree (jq_job_fk) WHERE (jq_job_fk IS NOT NULL);

CREATE UNIQUE INDEX jobqueue_one_live_row_per_key ON drover.jobqueue USING btree (jq_live_key) WHERE (jq_live_key IS NOT NULL);

CREATE INDEX jobqueue_resubmitted ON drover.jobqueue USING btree (jq_resubmit_of) WHERE (jq_resubmit_of IS NOT NULL);

CREATE INDEX jobqueue_runs ON drover.jobqueue USING btree (jq_pk) WHERE ((jq_type = 'command'::text) AND (jq_wait_until IS NOT NULL));

CREATE INDEX log_of_job ON drover.log USING btree (log_jq_fk) WHERE (log_jq_fk IS NOT NULL);

CREATE INDEX log_of_no_job ON drover.log USING btree (log_pk) WHERE (log_jq_fk IS NULL);

CREATE UNIQUE INDEX output_of_job ON drover.output USING btree (out_jq_fk, out_attempt, out_part);

CREATE INDEX queue_of_group ON drover.queue USING btree (queue_group);

CREATE INDEX queue_with_filter ON drover.queue USING btree (queue_priority) WHERE (queue_present AND (queue_route IS NOT NULL));

CREATE INDEX queue_with_limit ON drover.queue USING btree (queue_max_length) WHERE (queue_max_length IS NOT NULL);

CREATE UNIQUE INDEX recount_place_once ON drover.recount_place USING btree ((true));

CREATE UNIQUE INDEX recovery_of_condition ON drover.recovery USING btree (recovery_group, COALESCE(recovery_tenant, ''::text), recovery_condition, recovery_policy);

CREATE INDEX recovery_order ON drover.recovery USING btree (recovery_group, recovery_next, recovery_pk);

CREATE INDEX recovery_tested ON drover.recovery USING btree (recovery_group) WHERE (recovery_tester IS NOT NULL);

CREATE INDEX schedule_computed ON drover.schedule USING btree (schedule_computed) WHERE (schedule_enabled AND (schedule_due IS NOT NULL));

CREATE INDEX schedule_due ON drover.schedule USING btree (schedule_due) WHERE schedule_enabled;

CREATE INDEX share_by_role ON drover.share USING btree (share_with);

CREATE UNIQUE INDEX site_once ON drover.site USING btree ((true));

CREATE INDEX subscription_about ON drover.subscription USING btree (sub_key);

CREATE INDEX subscription_expiring ON drover.subscription USING btree (sub_expires) WHERE (sub_expires IS NOT NULL);

CREATE INDEX subscription_of_owner ON drover.subscription USING btree (sub_owner);

CREATE INDEX tally_in_time ON drover.tally USING btree (tally_span, tally_at);

CREATE TRIGGER agent_wake AFTER UPDATE OF agent_group, agent_present, agent_enabled ON drover.agent FOR EACH STATEMENT EXECUTE FUNCTION drover.wake('drover_change');

CREATE TRIGGER host_wake AFTER UPDATE OF host_group, host_present, host_max, host_urgent, host_enabled, host_types, host_queues, host_priorities ON drover.host FOR EACH STATEMENT EXECUTE FUNCTION drover.wake('drover_change');

CREATE TRIGGER job_keep_group AFTER DELETE ON drover.job FOR EACH ROW EXECUTE FUNCTION drover.keep_group();

CREATE TRIGGER job_limit BEFORE INSERT ON drover.job FOR EACH ROW WHEN (((octet_length(new.job_name) > 64) OR (octet_length(new.job_tenant) > 64) OR (new.job_data IS NOT NULL))) EXECUTE FUNCTION drover.limit_group();

CREATE TRIGGER job_tenant_is_own BEFORE INSERT ON drover.job FOR EACH ROW WHEN (((new.job_tenant IS NOT NULL) AND (octet_length(new.job_tenant) < 64))) EXECUTE FUNCTION drover.limit_group_tenant();

CREATE TRIGGER jobdepends_add AFTER INSERT ON drover.jobdepends REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION drover.add_edges();

CREATE TRIGGER jobdepends_drop AFTER DELETE ON drover.jobdepends FOR EACH ROW WHEN ((old.jdep_met_at IS NULL)) EXECUTE FUNCTION drover.drop_edge();

CREATE TRIGGER jobqueue_choose_agent BEFORE INSERT ON drover.jobqueue FOR EACH ROW WHEN (((new.jq_type ~~ '% %=%'::text) AND (octet_length(new.jq_type) <= 2000))) EXECUTE FUNCTION drover.choose_agent();

CREATE TRIGGER jobqueue_clean_up AFTER UPDATE OF jq_state ON drover.jobqueue FOR EACH ROW WHEN (((new.jq_delete IS NOT NULL) AND (new.jq_state = 'done'::drover.job_state) AND (old.jq_state <> 'done'::drover.job_state))) EXECUTE FUNCTION drover.clean_up();

CREATE CONSTRAINT TRIGGER jobqueue_count_edges AFTER UPDATE OF jq_unmet ON drover.jobqueue DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN ((new.jq_unmet = 2147483647)) EXECUTE FUNCTION drover.count_edges();

CREATE TRIGGER jobqueue_count_removed AFTER DELETE ON drover.jobqueue REFERENCING OLD TABLE AS removed FOR EACH STATEMENT EXECUTE FUNCTION drover.count_removed();

CREATE TRIGGER jobqueue_count_truncated AFTER TRUNCATE ON drover.jobqueue FOR EACH STATEMENT EXECUTE FUNCTION drover.count_truncated();

CREATE TRIGGER jobqueue_fixed AFTER UPDATE OF jq_type, jq_args, jq_variables, jq_name, jq_msq, jq_runonpfile, jq_key, jq_delete, jq_submitter ON drover.jobqueue FOR EACH ROW WHEN ((((((((((old.jq_type IS DISTINCT FROM new.jq_type) OR (old.jq_args IS DISTINCT FROM new.jq_args)) OR (old.jq_variables IS DISTINCT FROM new.jq_variables)) OR (old.jq_name IS DISTINCT FROM new.jq_name)) OR (old.jq_msq IS DISTINCT FROM new.jq_msq)) OR (old.jq_runonpfile IS DISTINCT FROM new.jq_runonpfile)) OR (old.jq_key IS DISTINCT FROM new.jq_key)) OR (old.jq_delete IS DISTINCT FROM new.jq_delete)) OR (old.jq_submitter IS DISTINCT FROM new.jq_submitter))) EXECUTE FUNCTION drover.refuse('what job %s asks for never changes: insert another job');

CREATE TRIGGER jobqueue_give_variables BEFORE INSERT ON drover.jobqueue FOR EACH ROW WHEN (((new.jq_type <> ALL (ARRAY['command'::text, 'cleanup'::text, 'notify'::text])) AND (NOT new.jq_msq) AND (COALESCE(jsonb_typeof(new.jq_variables), 'object'::text) = 'object'::text))) EXECUTE FUNCTION drover.give_variables();

ALTER TABLE drover.jobqueue DISABLE TRIGGER jobqueue_give_variables;

CREATE TRIGGER jobqueue_gone AFTER DELETE ON drover.jobqueue FOR EACH ROW WHEN (((old.jq_state = 'queued'::drover.job_state) AND (old.jq_unmet = 0) AND (old.jq_wait_until IS NULL))) EXECUTE FUNCTION drover.gone();

CREATE TRIGGER jobqueue_limit BEFORE INSERT ON drover.jobqueue FOR EACH ROW WHEN (((octet_length(new.jq_args) > 65536) OR (pg_column_size(new.jq_variables) > 65536) OR (octet_length((new.jq_variables)::text) > 65536) OR jsonb_path_exists(new.jq_variables, 'strict $.**{101}'::jsonpath) OR jsonb_path_exists(new.jq_variables, 'strict $.**?(@ >= 1000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000 || @ <= -1000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000)'::jsonpath) OR (octet_length(new.jq_name) > 64) OR (octet_length(new.jq_unique_key) > 2000) OR (octet_length(new.jq_runonpfile) > 2000) OR (octet_length(new.jq_key) > 2000))) EXECUTE FUNCTION drover.limit_job();

CREATE TRIGGER jobqueue_moved AFTER UPDATE OF jq_state, jq_wait_until, jq_queue, jq_host, jq_urgent, jq_priority, jq_queued ON drover.jobqueue FOR EACH ROW WHEN (((new.jq_unique_key IS NOT NULL) OR (new.jq_not_after IS NOT NULL) OR ((new.jq_state = 'done'::drover.job_state) AND (new.jq_done_by IS NULL)) OR (NOT (((old.jq_state = 'queued'::drover.job_state) AND ((new.jq_state = 'done'::drover.job_state) OR (new.jq_state = 'claimed'::drover.job_state) OR (new.jq_state = 'running'::drover.job_state)) AND (new.jq_attempt > old.jq_attempt) AND (new.jq_type <> 'command'::text)) OR ((old.jq_state = 'claimed'::drover.job_state) AND ((new.jq_state = 'done'::drover.job_state) OR (new.jq_state = 'running'::drover.job_state) OR (new.jq_state = 'claimed'::drover.job_state))) OR ((old.jq_state = 'running'::drover.job_state) AND ((new.jq_state = 'done'::drover.job_state) OR (new.jq_state = 'running'::drover.job_state))) OR (old.jq_batch IS DISTINCT FROM new.jq_batch))))) EXECUTE FUNCTION drover.moved();

CREATE TRIGGER jobqueue_need_group AFTER INSERT OR UPDATE OF jq_job_fk ON drover.jobqueue FOR EACH ROW WHEN ((new.jq_job_fk IS NOT NULL)) EXECUTE FUNCTION drover.need_group();

CREATE TRIGGER jobqueue_offer_command AFTER INSERT ON drover.jobqueue FOR EACH ROW WHEN ((new.jq_type = 'command'::text)) EXECUTE FUNCTION drover.offer_command();

CREATE TRIGGER jobqueue_offer_new AFTER INSERT ON drover.jobqueue REFERENCING NEW TABLE AS arrived FOR EACH STATEMENT EXECUTE FUNCTION drover.offer_new();

CREATE TRIGGER jobqueue_prepare BEFORE INSERT ON drover.jobqueue FOR EACH ROW WHEN (((new.jq_type <> 'command'::text) AND ((new.jq_state <> 'queued'::drover.job_state) OR (new.jq_mode = 'manual'::drover.job_mode) OR (new.jq_runonpfile IS NOT NULL) OR (new.jq_queue IS NULL) OR (new.jq_host IS NOT NULL) OR (new.jq_job_fk IS NOT NULL) OR (new.jq_not_before IS NOT NULL) OR (new.jq_not_after IS NOT NULL) OR (new.jq_unique_key IS NOT NULL) OR ((octet_length(new.jq_type) + octet_length(new.jq_queue)) > 2000) OR ((new.jq_queue <> 'default'::text) AND (new.jq_queue ~ '[\x01-\x1f\x7f]'::text))))) EXECUTE FUNCTION drover.prepare_job();

CREATE TRIGGER jobqueue_prepare_cleanup BEFORE INSERT ON drover.jobqueue FOR EACH ROW WHEN (((new.jq_delete IS NOT NULL) OR (new.jq_type = 'cleanup'::text))) EXECUTE FUNCTION drover.prepare_cleanup();

CREATE TRIGGER jobqueue_prepare_command BEFORE INSERT ON drover.jobqueue FOR EACH ROW WHEN ((new.jq_type = 'command'::text)) EXECUTE FUNCTION drover.prepare_command();

CREATE TRIGGER jobqueue_queue_limit AFTER INSERT ON drover.jobqueue REFERENCING NEW TABLE AS arrived FOR EACH STATEMENT EXECUTE FUNCTION drover.limit_queues();

ALTER TABLE drover.jobqueue DISABLE TRIGGER jobqueue_queue_limit;

CREATE TRIGGER jobqueue_route BEFORE INSERT ON drover.jobqueue FOR EACH ROW WHEN (((new.jq_type <> ALL (ARRAY['command'::text, 'cleanup'::text])) AND ((new.jq_queue = 'default'::text) OR (new.jq_host IS NOT NULL)))) EXECUTE FUNCTION drover.route_job();

ALTER TABLE drover.jobqueue DISABLE TRIGGER jobqueue_route;

CREATE TRIGGER jobqueue_start_window AFTER UPDATE OF jq_not_before, jq_not_after ON drover.jobqueue FOR EACH ROW WHEN (((new.jq_type <> 'command'::text) AND ((new.jq_not_before IS DISTINCT FROM old.jq_not_before) OR (new.jq_not_after IS DISTINCT FROM old.jq_not_after)))) EXECUTE FUNCTION drover.move_start_window();

CREATE TRIGGER jobqueue_tenant BEFORE INSERT ON drover.jobqueue FOR EACH ROW WHEN ((new.jq_type <> ALL (ARRAY['command'::text, 'cleanup'::text]))) EXECUTE FUNCTION drover.limit_tenant();

ALTER TABLE drover.jobqueue DISABLE TRIGGER jobqueue_tenant;

CREATE TRIGGER jobqueue_wake_due AFTER INSERT ON drover.jobqueue FOR EACH ROW WHEN (((new.jq_wait_until IS NOT NULL) OR (new.jq_not_after IS NOT NULL))) EXECUTE FUNCTION drover.wake('drover_due');

CREATE TRIGGER notify_can_deliver AFTER UPDATE OF agent_enabled, agent_present ON drover.agent FOR EACH ROW WHEN (((new.agent_type = 'notify'::text) AND new.agent_enabled AND new.agent_present AND (NOT (old.agent_enabled AND old.agent_present)))) EXECUTE FUNCTION drover.wake('drover_delivery');

CREATE TRIGGER placement_wake AFTER INSERT OR DELETE OR UPDATE ON drover.placement FOR EACH STATEMENT EXECUTE FUNCTION drover.wake('drover_change');

CREATE TRIGGER policy_change AFTER UPDATE OF policy_rules ON drover.recovery_policy FOR EACH ROW WHEN ((old.policy_rules IS DISTINCT FROM new.policy_rules)) EXECUTE FUNCTION drover.check_by_new_policy();

CREATE TRIGGER policy_removal AFTER DELETE ON drover.recovery_policy FOR EACH ROW EXECUTE FUNCTION drover.check_by_new_policy();

CREATE TRIGGER queue_rate_change BEFORE UPDATE OF queue_rate ON drover.queue FOR EACH ROW WHEN ((old.queue_rate IS DISTINCT FROM new.queue_rate)) EXECUTE FUNCTION drover.note_rate_change();

CREATE TRIGGER queue_wake AFTER INSERT OR DELETE OR UPDATE ON drover.queue FOR EACH STATEMENT EXECUTE FUNCTION drover.wake('drover_change');

CREATE TRIGGER quota_wake AFTER INSERT OR DELETE OR UPDATE ON drover.quota FOR EACH STATEMENT EXECUTE FUNCTION drover.wake('drover_change');

CREATE TRIGGER recovery_sooner AFTER UPDATE OF recovery_next ON drover.recovery FOR EACH ROW WHEN ((new.recovery_next < old.recovery_next)) EXECUTE FUNCTION drover.wake('drover_recovery');

CREATE TRIGGER schedule_prepare BEFORE INSERT OR UPDATE OF schedule_at, schedule_every, schedule_cron, schedule_zone, schedule_jitter, schedule_enabled, schedule_job ON drover.schedule FOR EACH ROW EXECUTE FUNCTION drover.prepare_schedule();

CREATE TRIGGER schedule_wake AFTER INSERT OR UPDATE OF schedule_at, schedule_every, schedule_cron, schedule_zone, schedule_jitter, schedule_enabled ON drover.schedule FOR EACH STATEMENT EXECUTE FUNCTION drover.wake('drover_change');

CREATE TRIGGER scheduler_group_taken_by_older AFTER UPDATE OF group_owner ON drover.scheduler_group FOR EACH ROW WHEN ((new.group_owner IS DISTINCT FROM old.group_owner)) EXECUTE FUNCTION drover.show_all_in_hand();

CREATE TRIGGER scheduler_group_waits_for_owner BEFORE UPDATE OF group_owner ON drover.scheduler_group FOR EACH ROW WHEN ((new.group_owner IS DISTINCT FROM old.group_owner)) EXECUTE FUNCTION drover.wait_for_owner();

CREATE TRIGGER targets_can_be_sent_to BEFORE INSERT ON drover.subscription FOR EACH ROW EXECUTE FUNCTION drover.check_targets();

CREATE TRIGGER tenant_is_expected AFTER INSERT OR DELETE ON drover.tenant FOR EACH STATEMENT EXECUTE FUNCTION drover.expect_tenants();

CREATE TRIGGER tenant_prepare BEFORE INSERT OR UPDATE ON drover.tenant FOR EACH ROW EXECUTE FUNCTION drover.prepare_tenant();

CREATE TRIGGER tenant_queue_prepare BEFORE INSERT OR UPDATE ON drover.tenant_queue FOR EACH ROW EXECUTE FUNCTION drover.prepare_tenant_queue();

CREATE TRIGGER tenant_queue_route AFTER INSERT OR DELETE OR UPDATE ON drover.tenant_queue FOR EACH STATEMENT EXECUTE FUNCTION drover.route_tenants();

CREATE TRIGGER trial_fails AFTER UPDATE OF agent_trial ON drover.agent FOR EACH ROW WHEN ((((new.agent_trial ->> 'state'::text) = 'HELD_BACK'::text) AND ((new.agent_trial -> 'is_worse'::text))::boolean AND (((old.agent_trial ->> 'state'::text) IS DISTINCT FROM (new.agent_trial ->> 'state'::text)) OR ((old.agent_trial ->> 'new'::text) IS DISTINCT FROM (new.agent_trial ->> 'new'::text))))) EXECUTE FUNCTION drover.trial_failed();

CREATE TRIGGER variable_is_expected AFTER INSERT OR DELETE ON drover.variable FOR EACH STATEMENT EXECUTE FUNCTION drover.expect_variables();

ALTER TABLE ONLY drover.blocked
    ADD CONSTRAINT blocked_blocked_recovery_fkey FOREIGN KEY (blocked_recovery) REFERENCES drover.recovery(recovery_pk);

ALTER TABLE ONLY drover.jobdepends
    ADD CONSTRAINT jobdepends_jdep_jq_depends_fk_fkey FOREIGN KEY (jdep_jq_depends_fk) REFERENCES drover.jobqueue(jq_pk);

ALTER TABLE ONLY drover.jobdepends
    ADD CONSTRAINT jobdepends_jdep_jq_fk_fkey FOREIGN KEY (jdep_jq_fk) REFERENCES drover.jobqueue(jq_pk) ON DELETE CASCADE;

ALTER TABLE ONLY drover.schedule_start
    ADD CONSTRAINT schedule_start_start_schedule_fkey FOREIGN KEY (start_schedule) REFERENCES drover.schedule(schedule_name) ON DELETE CASCADE;

ALTER TABLE ONLY drover.subscription_key
    ADD CONSTRAINT subscription_key_key_sub_fkey FOREIGN KEY (key_sub) REFERENCES drover.subscription(sub_pk) ON DELETE CASCADE;

ALTER TABLE ONLY drover.tenant_queue
    ADD CONSTRAINT tenant_queue_tq_tenant_fkey FOREIGN KEY (tq_tenant) REFERENCES drover.tenant(tenant_name) ON UPDATE CASCADE ON DELETE CASCADE;
