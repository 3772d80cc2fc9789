-- Deliveries of events take turns by subscriber, and a look at them costs as much as it queues, not as much as waits.
-- Who may subscribe no more is told no more.

-- ---------------------------------------------------------------- who is told

-- Whether a login may be told of a job of another: those that subscribed may have left the tenant since.
create function drover.may_be_told(who name, scope text, what text, submitter name) returns boolean
  language sql stable as $$
  select case scope when 'job'    then who = submitter
                    when 'owner'  then who::text = what
                    when 'tenant' then drover.is_member(who, what::name)
                    else false end or drover.may_command(who)
$$;

-- As before, for those that may be told.
create or replace function drover.subscribers(kind text, job bigint, owner name, tenant text)
  returns setof drover.subscription language sql stable as $$
  select * from drover.subscription
   where sub_key = any (case when kind in ('alternate', 'dead', 'alert') then array['site:']
                             else array['job:' || job, 'owner:' || owner, 'tenant:' || tenant, 'site:'] end)
     and sub_kind in ('all', kind) and sub_enabled and (sub_expires is null or sub_expires > now())
     and drover.may_be_told(sub_owner, sub_scope, sub_of, owner)
$$;

-- As before; refuse what makes no sense with a reason.
create or replace function drover.subscribe(
  kind text default 'all', job bigint default null, owner name default null, tenant text default null,
  is_site boolean default false, targets text[] default '{}', ttl interval default null, most integer default null,
  secret text default null, out subscription bigint, out made_secret text)
language plpgsql security definer set search_path = drover, pg_temp as $$
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
  elsif not is_free and ((select count(*) from drover.subscription where sub_owner = session_user) >= 10000
                         or (select count(*) from drover.subscription
                              where sub_key = scope || ':' || coalesce(job::text, tenant, session_user)
                                and sub_owner = session_user) >= 10) then
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
end $$;

create index subscription_of_owner on drover.subscription (sub_owner);

-- ---------------------------------------------------------------- what waits

-- del_next is when a delivery is looked at: now for a new one; null for one that waits for the one before of its job
-- and target, which a look has seen once. del_owner is the subscriber; del_turn is the order of those that are sent.
alter table drover.delivery add column del_owner name not null default '', add column del_turn bigint;
update drover.delivery set del_owner = sub_owner from drover.subscription where sub_pk = del_sub;
update drover.delivery set del_next = now() where del_state = 'waiting' and del_next is null;

drop index drover.delivery_waiting;
drop index drover.delivery_sent;
create index delivery_waiting on drover.delivery (del_owner, del_sub, del_target, del_next, del_pk)
  where del_state = 'waiting' and del_next is not null;
create index delivery_in_turn on drover.delivery (del_owner, del_turn) where del_state = 'sent';
create index delivery_sent on drover.delivery (del_owner, del_sub, del_target) where del_state = 'sent';

-- The states of a job among its other events, which may be many.
create index event_of_state on drover.event (ev_jq_fk, ev_pk) where ev_kind = 'status';

update drover.subscription set sub_most = 10000 where sub_most > 10000;
alter table drover.subscription drop constraint subscription_sub_most_check,
  add constraint subscription_sub_most_check check (sub_most between 1 and 10000);

-- Enter the deliveries of events. Those that a subscription has no room for are dead at once.
create or replace function drover.deliver(events bigint[]) returns void
  language plpgsql security definer set search_path = drover, pg_temp as $$
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

-- ---------------------------------------------------------------- what is due

-- Let the delivery go on that waits for this one.
create function drover.let_next_go(number bigint) returns void
language sql set search_path = drover, pg_temp as $$
  update delivery set del_next = now()
   where del_state = 'waiting' and del_next is null
     and del_pk = (select w.del_pk from delivery d
                     join delivery w on w.del_sub = d.del_sub and w.del_target = d.del_target
                      and w.del_jq_fk = d.del_jq_fk and w.del_state in ('waiting', 'sent')
                    where d.del_pk = number order by w.del_pk limit 1)
$$;

-- Note what came of the tries that have ended, and let those go on that waited for them. Return the jobs of the tries,
-- and the deliveries that were given up.
create function drover.end_tries(of_group text, most integer, out jobs bigint[], out over bigint[])
language plpgsql set search_path = drover, pg_temp as $$
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

-- Queue a job for a try. Its turn is the next one of its subscriber, and not before those whose turn it is: so each
-- subscriber has as many as any other, however many wait. Return whether there is a job: a delivery that the queue
-- refuses is dead.
create function drover.queue_delivery(of_group text, owner name, number bigint) returns boolean
language plpgsql set search_path = drover, pg_temp as $$
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

-- Queue what is due of one subscriber, `most` at a time, 20 for one target and 100 in all. Its targets are looked at
-- from a random one on, 500 at a time, so that a look is short however many there are. Return how many were queued, and
-- whether more may be due.
create function drover.queue_deliveries_of(of_group text, owner name, most integer, out queued integer,
                                           out has_more boolean)
language plpgsql set search_path = drover, pg_temp as $$
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

-- Look at the tries that have ended, and remove their jobs; give up what its subscription did not live to see; queue
-- jobs for what is due, `most` at a time, 50 of them of one subscriber, whose turns are the priorities of these jobs.
-- Return how many are dead, how many were queued, and the seconds until this is to be done again, if that is known.
-- One session does so at a time.
create or replace function drover.queue_deliveries(of_group text, most integer, out dead integer, out queued integer,
                                                   out seconds float8)
language plpgsql security definer set search_path = drover, pg_temp as $$
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
  elsif not pg_try_advisory_xact_lock(hashtextextended('drover.queue_deliveries', 0)) then
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
  delete from attempt_kept where att_jq_fk = any (gone);
  delete from log where log_jq_fk = any (gone);
  delete from jobqueue where jq_pk = any (gone);
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
