-- What a daemon asks again and again reads what its group owns, by index, or one piece of a table at a time: rows of
-- other groups, and of no group, cost it nothing.

-- The instants of jobs by queue: a daemon reads the first of each of its queues. Plain jobs are in neither index.
drop index drover.jobqueue_due;
drop index drover.jobqueue_expiring;
create index jobqueue_due on drover.jobqueue (jq_queue, jq_wait_until) where jq_wait_until is not null;
create index jobqueue_expiring on drover.jobqueue (jq_queue, jq_expires_at) where jq_expires_at is not null;

-- The condition is written so that no query of one job's edges takes this index, in a table that looks empty.
create index jobdepends_open on drover.jobdepends (jdep_jq_depends_fk)
 where coalesce(jdep_met_at, '-infinity') = '-infinity';
create index queue_of_group on drover.queue (queue_group);
create index queue_with_filter on drover.queue (queue_priority) where queue_present and queue_route is not null;
create index queue_with_limit on drover.queue (queue_max_length) where queue_max_length is not null;
create index host_of_group on drover.host (host_group);
create index detached_of_group on drover.detached (det_group);
create index subscription_expiring on drover.subscription (sub_expires) where sub_expires is not null;

-- Look at up to `places` places, a type and a queue in which jobs can be claimed, after the one given; null is the end.
-- Enter jobs of our group among the dead letters, as alternates, whose type no scheduler serves or whose queue does not
-- exist, once each, when they are queued for a minute; they stay queued. Of a place the first `most` jobs are looked
-- at, and no place after `most` jobs were. Return how many are new, and the queues that do not exist in which jobs of
-- our types wait, with how many, as far as the first 100 tokens say.
create function drover.find_unserved(
  of_group text, places integer, most integer, inout type text, inout queue text,
  out entered integer, out unknown jsonb)
language plpgsql security definer set search_path = drover, pg_temp
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off as $$
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

-- Remove up to `most` events that are not needed any more, and deliveries of these, after the one given; and the oldest
-- dead letters. Return where to go on, null at the end.
create or replace function drover.forget_events(beyond bigint, most integer) returns bigint
language plpgsql security definer set search_path = drover, pg_temp
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
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

-- Remove those of up to `most` subscriptions after the one given that ended a day ago, or whose job is gone. Return
-- where to go on, null at the end.
create function drover.forget_ended_subscriptions(beyond bigint, most integer) returns bigint
language plpgsql security definer set search_path = drover, pg_temp
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
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

-- As before, but by the index: with a name in it, which has a collation of its own, it could not be used.
create or replace function drover.subscribers(kind text, job bigint, owner name, tenant text)
returns setof drover.subscription language sql stable as $$
  select * from drover.subscription
   where sub_key = any (
           (case when kind in ('alternate', 'dead', 'alert') then array['site:']
                 else array['job:' || job, 'owner:' || owner, 'tenant:' || tenant, 'site:'] end) collate "default")
     and sub_kind in ('all', kind) and sub_enabled and (sub_expires is null or sub_expires > now())
     and drover.may_be_told(sub_owner, sub_scope, sub_of, owner)
$$;
