-- What the scheduler queues itself is known by its submitter, which no other role can set, not by a word that anybody
-- may choose. And no transaction that a front-end leaves open keeps the scheduler, or those who subscribe, waiting.

-- ---------------------------------------------------------------- what the scheduler queues itself

-- Return whether a submitter is a scheduler, or the owner of the queue where a daemon has no role of its own.
create function drover.is_of_scheduler(submitter name) returns boolean
language sql stable set search_path = drover, pg_temp as $$
  select coalesce(bool_or(pg_has_role(w.oid, r.oid, 'member')), false)
    from pg_catalog.pg_roles w, pg_catalog.pg_roles r
   where w.rolname = submitter
     and (r.rolname = 'drover_scheduler'
          or r.oid = (select relowner from pg_catalog.pg_class where oid = 'drover.jobqueue'::regclass))
$$;

-- ---------------------------------------------------------------- how long a lock is waited for

-- Let the transaction wait for a lock so long at most, if it would wait longer; return what was set before.
create function drover.wait_at_most(most text) returns text
language plpgsql set search_path = drover, pg_temp as $$
declare
  limits text := current_setting('lock_timeout');
begin
  if limits = '0' or limits::interval > most::interval then
    perform set_config('lock_timeout', most, true);
  end if;
  return limits;
end $$;

-- Let one transaction at a time insert into a queue of limited length. Another one waits, but not for one that is left
-- open. The error has a constraint name, so that a caller can tell it from a refusal of the job.
create function drover.enter_queue(name text) returns void
language plpgsql set search_path = drover, pg_temp as $$
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

create or replace function drover.limit_queues() returns trigger
language plpgsql security definer set search_path = drover, pg_temp as $$
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

-- As before, for the testers that a scheduler has queued.
create or replace function drover.moved() returns trigger
  language plpgsql security definer set search_path = drover, pg_temp as $$
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
    update drover.jobqueue
       set jq_expires_at = case when jq_state in ('held', 'queued') and jq_attempt = 0 then jq_not_after end,
           jq_live_key = case when jq_state in ('held', 'queued', 'claimed', 'running', 'blocked')
             then jq_unique_key end
     where jq_pk = new.jq_pk and (jq_not_after is not null or jq_unique_key is not null);
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
  return null;
end $$;

-- ---------------------------------------------------------------- starts of schedules

-- As before. A start that finds a lock held for 200 ms, or fails for another reason that is none of the job's, is
-- looked at again a second later; the reason is returned once. Those that follow in the statement wait for no lock
-- then: a front-end that keeps one may keep those of many schedules.
create or replace function drover.start_schedule(
  name text, was timestamptz, next timestamptz, due timestamptz, reason text, starts timestamptz[],
  out is_moved boolean, out started integer, out said text)
language plpgsql security definer set search_path = drover, pg_temp as $$
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

-- As before, and it waits for no lock longer than 200 ms.
create or replace function drover.run_schedule(name text, out started boolean, out said text)
language plpgsql security definer set search_path = drover, pg_temp as $$
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

-- Return a job of a schedule as it is tried out: its type without attributes, and a jq_unique_key that no other has.
create function drover.as_tried(job jsonb, trial text) returns jsonb
language sql immutable set search_path = drover, pg_temp as $$
  select drover.without_attributes(job)
         || case when job ->> 'jq_unique_key' is null then '{}' else jsonb_build_object(
              'jq_unique_key', trial || md5(job ->> 'jq_unique_key') || substr(job ->> 'jq_unique_key', 69)) end
$$;

-- As before, and what only keeps a job from being queued now is no mistake: a queue that is full, a lock, another job
-- with its jq_unique_key. Else a front-end could keep a daemon from registering its schedules.
create or replace function drover.schedule_mistake(job jsonb) returns text
language plpgsql security definer set search_path = drover, pg_temp as $$
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

-- The scheduler calls it beside the lease and the commands.
alter function drover.install_routes() set lock_timeout = '500ms';

-- ---------------------------------------------------------------- subscriptions

-- Whether there may be a subscription: nobody has to set that, so nobody waits for another who does. The table has no
-- page as long as nobody has subscribed since it was created or truncated.
create or replace function drover.has_subscriptions() returns boolean language sql volatile parallel safe
as 'select pg_catalog.pg_relation_size(''drover.subscription''::pg_catalog.regclass) > 0';

drop trigger subscription_is_expected on drover.subscription;
drop function drover.expect_subscriptions();

create or replace function drover.forget_subscriptions() returns void language plpgsql as $$
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

drop function drover.set_has_subscriptions(boolean);

-- As before, but for a subscription that its owner keeps locked.
create or replace function drover.forget_events(beyond bigint, most integer) returns bigint
language plpgsql security definer set search_path = drover, pg_temp as $$
declare
  until bigint;
begin
  delete from subscription
   where sub_pk = any (array(
     select sub_pk from subscription
      where sub_expires < now() - interval '1 day'
         or sub_scope = 'job' and not exists (select from jobqueue where jq_pk = sub_of::bigint)
            and not exists (select from delivery where del_sub = sub_pk and del_state in ('waiting', 'sent'))
        for update skip locked));
  select max(ev_pk) into until from (select ev_pk from event where ev_pk > beyond order by ev_pk limit most) e
  having count(*) = most;
  delete from event
   where ev_pk > beyond and ev_pk <= coalesce(until, 9223372036854775807)
     and not exists (select from delivery where del_event = ev_pk and del_state in ('waiting', 'sent'))
     and case when ev_jq_fk is null then ev_date < now() - interval '30 days'
              else not exists (select from jobqueue where jq_pk = ev_jq_fk) end;
  delete from delivery
   where del_event > beyond and del_event <= coalesce(until, 9223372036854775807)
     and (not exists (select from event where ev_pk = del_event)
          or del_state = 'waiting' and not exists (select from subscription where sub_pk = del_sub));
  delete from dead_letter where dead_date < now() - interval '30 days';
  perform drover.forget_subscriptions() where drover.has_subscriptions();  -- at the end: it locks out who ends jobs
  return until;
end $$;
