-- Events: what happened to jobs, who asked to be told of it, and what is still to be delivered to them.
--
-- An event is recorded in the transaction of the change, and only if a subscription asks for it. drover.announce and
-- the ends of plain jobs in query end_and_claim record the changes of jobs; without a subscription on the site this
-- costs them nothing (drover.has_subscriptions, decision 0044).

-- ---------------------------------------------------------------- tables

-- Kinds: status, a new state of a job; error, why a job failed, before its status; subscription, somebody subscribed or
-- stopped; share, somebody may see a job; user, a text of its owner or of an operator; alternate, a job that nobody
-- takes; dead, a message or job that was given up. The last two are for subscriptions of the site alone.
create table drover.event (
  ev_pk       bigint generated always as identity primary key,
  ev_date     timestamptz not null default now(),
  ev_jq_fk    bigint,               -- no foreign keys: a job may be removed first
  ev_job_fk   bigint,
  ev_kind     text not null
              check (ev_kind in ('status', 'error', 'subscription', 'share', 'user', 'alternate', 'dead')),
  ev_old      text,                 -- the state before
  ev_new      text,
  ev_text     text check (length(ev_text) <= 16384),
  ev_owner    name,                 -- the submitter of the job, who may read it
  ev_tenant   text,
  ev_is_final boolean not null default false  -- nothing follows about this job, unless it is tried again
);
create index event_of_job on drover.event (ev_jq_fk, ev_pk);

-- Who is told of what. Without a target the events are only kept, to be read.
create table drover.subscription (
  sub_pk      bigint generated always as identity primary key,
  sub_owner   name not null default session_user,
  sub_scope   text not null check (sub_scope in ('job', 'owner', 'tenant', 'site')),
  sub_of      text not null check (length(sub_of) <= 2000),  -- job, owner or tenant; '' of the site
  sub_key     text not null generated always as (sub_scope || ':' || sub_of) stored,
  sub_kind    text not null default 'all'
              check (sub_kind in ('all', 'status', 'error', 'subscription', 'share', 'user', 'alternate', 'dead')),
  sub_targets text[] not null default '{}' check (cardinality(sub_targets) <= 10),
  sub_enabled boolean not null default true,
  sub_most    integer check (sub_most > 0),  -- deliveries that may wait; null: no limit
  sub_created timestamptz not null default now(),
  sub_expires timestamptz
);
create index subscription_about on drover.subscription (sub_key);

-- What deliveries of a subscription are signed with: the blocks of HMAC-SHA-256. No role but the owner reads it.
create table drover.subscription_key (
  key_sub   bigint primary key references drover.subscription on delete cascade,
  key_inner bytea not null,
  key_outer bytea not null
);

-- What is to be delivered: an event to one target of a subscription. The next one about the same job waits until this
-- one is done or dead. A try is a job of type notify, which is removed when it has ended.
create table drover.delivery (
  del_pk     bigint generated always as identity primary key,
  del_sub    bigint not null,       -- no foreign keys: the end of a job must not wait for who unsubscribes just now
  del_target integer not null,      -- its place in sub_targets
  del_event  bigint not null,
  del_jq_fk  bigint not null,       -- the job that the event is about; 0: none
  del_state  text not null default 'waiting' check (del_state in ('waiting', 'sent', 'done', 'dead')),
  del_tries  integer not null default 0,
  del_next   timestamptz,           -- not to be tried before
  del_notify bigint,                -- the job of the try
  del_text   text,                  -- what came of the last try
  del_ended  timestamptz,
  constraint delivery_is_sent_by_a_job check ((del_state = 'sent') = (del_notify is not null)),
  constraint delivery_ends_once check ((del_state in ('done', 'dead')) = (del_ended is not null))
);
create index delivery_waiting on drover.delivery (del_sub, del_target, del_pk) where del_state = 'waiting';
create index delivery_in_order on drover.delivery (del_sub, del_target, del_jq_fk, del_pk)
  where del_state in ('waiting', 'sent');
create index delivery_sent on drover.delivery (del_sub, del_target) where del_state = 'sent';
create index delivery_again on drover.delivery (del_next) where del_state = 'waiting' and del_next is not null;
create index delivery_of_event on drover.delivery (del_event);

-- Jobs that nobody takes (alternate), and jobs and deliveries that were given up (dead), of all tenants: for operators.
create table drover.dead_letter (
  dead_pk       bigint generated always as identity primary key,
  dead_date     timestamptz not null default now(),
  dead_kind     text not null check (dead_kind in ('alternate', 'dead')),
  dead_reason   text not null,      -- no consumer, expired, overflow, attempts exhausted, not delivered
  dead_jq_fk    bigint,
  dead_delivery bigint,
  dead_text     text
);
create index dead_letter_of_job on drover.dead_letter (dead_jq_fk);

-- ---------------------------------------------------------------- events

-- Whether there may be a subscription. The planner replaces a call by the constant, and plans again when the function
-- is replaced: so the statements that end plain jobs look into no table for it. Set by the first subscription, in its
-- transaction; set back by drover.forget_events when there is none any more.
create function drover.has_subscriptions() returns boolean language sql stable parallel safe as 'select false';

create function drover.set_has_subscriptions(is_so boolean) returns void language plpgsql as $$
begin
  execute format('create or replace function drover.has_subscriptions() returns boolean language sql stable '
                 'parallel safe as %L', 'select ' || is_so);
end $$;

create function drover.expect_subscriptions() returns trigger
  language plpgsql security definer set search_path = drover, pg_temp as $$
begin
  if not drover.has_subscriptions() then
    perform pg_advisory_xact_lock(hashtextextended('drover.has_subscriptions', 0));  -- two cannot replace it at once
    perform drover.set_has_subscriptions(true);
  end if;
  return null;
end $$;
create trigger subscription_is_expected after insert on drover.subscription
  for each statement execute function drover.expect_subscriptions();

-- A text that is too long is cut, and says so.
create function drover.message(said text) returns text language sql immutable parallel safe
  return case when length(said) > 16384 then left(said, 16300) || ' [cut: ' || length(said) || ' characters]'
              else said end;

-- The subscriptions that ask for an event.
create function drover.subscribers(kind text, job bigint, owner name, tenant text) returns setof drover.subscription
  language sql stable as $$
  select * from drover.subscription
   where sub_key = any (case when kind in ('alternate', 'dead') then array['site:']
                             else array['job:' || job, 'owner:' || owner, 'tenant:' || tenant, 'site:'] end)
     and sub_kind in ('all', kind) and sub_enabled and (sub_expires is null or sub_expires > now())
$$;

-- Enter the deliveries of events. Those that a subscription has no room for are dead at once.
create function drover.deliver(events bigint[]) returns void
  language plpgsql security definer set search_path = drover, pg_temp as $$
declare
  over bigint[];
begin
  with told as (
    select ev_pk, coalesce(ev_jq_fk, 0) as job, sub_pk, target,
           sub_most is not null
             and sub_most < row_number() over (partition by sub_pk order by ev_pk, target)
                 + (select count(*) from delivery
                     where del_sub = sub_pk and del_state in ('waiting', 'sent')) as is_over
      from event cross join drover.subscribers(ev_kind, ev_jq_fk, ev_owner, ev_tenant)
     cross join generate_series(1, cardinality(sub_targets)) as target
     where ev_pk = any (events)),
  entered as (
    insert into delivery (del_sub, del_target, del_event, del_jq_fk, del_state, del_ended, del_text)
    select sub_pk, target, ev_pk, job, case when is_over then 'dead' else 'waiting' end,
           case when is_over then now() end, case when is_over then 'too many wait' end
      from told order by ev_pk, sub_pk, target
    returning del_pk, del_state)
  select coalesce(array_agg(del_pk) filter (where del_state = 'dead'), '{}') into over from entered
  having count(*) > 0;
  if found then
    perform drover.notify('drover_delivery', '');
    perform drover.bury_deliveries(over, 'overflow') where over <> '{}';
  end if;
end $$;

-- Record the new states of jobs for those who subscribed. Jobs that deliver events have none: their end is looked at.
create function drover.record(pks bigint[], states text[]) returns void
  language plpgsql security definer set search_path = drover, pg_temp as $$
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

-- Record the ends that a notification is about.
create function drover.record_ends(told text) returns void language sql as $$
  select drover.record(array_agg(jq_pk order by n), array_agg(state order by n))
    from rows from (json_to_recordset(told::json) as (jq_pk bigint, state text)) with ordinality as e(jq_pk, state, n)
$$;

-- Record one event that is no new state, if it is asked for; return its number.
create function drover.record_one(kind text, job bigint, owner name, tenant text, said text) returns bigint
  language plpgsql security definer set search_path = drover, pg_temp as $$
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

-- Enter jobs among the dead letters that were given up, and tell subscriptions of the site.
create function drover.bury(pks bigint[], states text[]) returns void
  language plpgsql security definer set search_path = drover, pg_temp as $$
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

-- The same for deliveries. What was to tell of a dead letter is not told of again.
create function drover.bury_deliveries(dead bigint[], reason text) returns void
  language plpgsql security definer set search_path = drover, pg_temp as $$
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

-- Log what concerns the site, and tell its subscriptions. The log line has no job: its submitter does not see it.
create function drover.tell_site(kind text, said text) returns void language plpgsql as $$
begin
  insert into drover.log (log_type, log_message) values (upper(kind), drover.message(said));
  perform drover.record_one(kind, null, null, null, said);
end $$;

-- Tell of new states: by notification, as events where somebody subscribed, and those given up as dead letters.
create or replace function drover.announce(pks bigint[], states text[]) returns bigint language plpgsql as $$
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
  return chunks;
end $$;

-- A text of the owner of a job, or of an operator, as an event. Return its number.
create function drover.job_event(job bigint, said text) returns bigint
  language plpgsql security definer set search_path = drover, pg_temp as $$
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

-- A text that the agent of a job posts, as an event. Return its number; null if the job has ended.
create function drover.agent_event(job bigint, said text) returns bigint
  language sql security definer set search_path = drover, pg_temp as $$
  select drover.record_one('user', jq_pk, jq_submitter, job_tenant, said)
    from jobqueue left join drover.job on job_pk = jq_job_fk
   where jq_pk = agent_event.job and jq_endtime is null and said <> ''
$$;

-- Share a job of one's own with a role, or share it no more, and record that if the job has not ended.
create or replace function drover.job_share(pk bigint, role name, shared boolean default true) returns void
language plpgsql security definer set search_path = drover, pg_temp as $$
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

-- ---------------------------------------------------------------- subscriptions

-- One block of HMAC: the key, with each of its 64 bytes combined with `pad`.
create function drover.hmac_block(key bytea, pad integer) returns bytea language plpgsql immutable as $$
declare
  block bytea := decode(repeat('00', 64), 'hex');
begin
  key := case when length(key) > 64 then sha256(key) else key end;
  for i in 0..63 loop
    block := set_byte(block, i, (case when i < length(key) then get_byte(key, i) else 0 end) # pad);
  end loop;
  return block;
end $$;

-- Subscribe to a job, to all jobs of an owner (by default oneself) or of a tenant, or to all of the site. Only
-- operators subscribe to the jobs of others: except to those of a tenant that is a role, which its members may.
-- Deliveries are signed with `secret`, or with one that is made and returned, once.
create function drover.subscribe(
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
  elsif kind in ('alternate', 'dead') and scope <> 'site' then
    raise exception 'events of kind % are of the site', kind using errcode = 'invalid_parameter_value';
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
  select target into wrong from unnest(coalesce(targets, '{}')) as target
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
          kind, coalesce(targets, '{}'), most, now() + ttl)
  returning sub_pk into subscription;
  insert into subscription_key values (subscription, drover.hmac_block(key, 54), drover.hmac_block(key, 92));
  perform drover.record_subscription(subscription, 'subscribed');
end $$;

-- Record that a subscription to a job was made, changed or removed.
create function drover.record_subscription(sub bigint, what text) returns void language plpgsql as $$
begin
  perform drover.record_one('subscription', jq_pk, jq_submitter, job_tenant,
                            session_user || ' ' || what || ': subscription ' || sub_pk || ' to ' || sub_kind)
     from drover.subscription join drover.jobqueue on jq_pk = sub_of::bigint
     left join drover.job on job_pk = jq_job_fk
    where sub_pk = sub and sub_scope = 'job' and jq_endtime is null;
end $$;

-- Remove a subscription; what it had to deliver is not delivered. Return false if it is not there, or another's.
create function drover.unsubscribe(sub bigint) returns boolean
  language plpgsql security definer set search_path = drover, pg_temp as $$
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

-- Switch a subscription on or off: while it is off nothing is recorded for it, and nothing delivered.
create function drover.subscription_enable(sub bigint, is_on boolean) returns boolean
  language plpgsql security definer set search_path = drover, pg_temp as $$
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

-- What a front-end may read: events of its jobs, its subscriptions, and their deliveries.
create view drover.my_event with (security_barrier) as
select * from drover.event where ev_owner = session_user;
create view drover.my_subscription with (security_barrier) as
select * from drover.subscription where sub_owner = session_user;
create view drover.my_delivery with (security_barrier) as
select d.* from drover.delivery d join drover.subscription on sub_pk = del_sub where sub_owner = session_user;

-- ---------------------------------------------------------------- deliveries

-- What the job of a try gets: where to, the text, and headers as standardwebhooks.com has them. The signature is made
-- here, so that no agent and no row of a job has the secret.
create function drover.notification(number bigint) returns text language plpgsql as $$
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

-- Seconds from a try that failed to the next, by the policy of the group: its steps, as those of a condition called
-- notify; null if there is none any more. Without that policy: 20 s twice, then 10 minutes 150 times.
create function drover.delivery_wait(of_group text, tries integer) returns float8 language plpgsql stable as $$
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

-- Look at the tries that have ended, and remove their jobs; give up what its subscription did not live to see; queue
-- jobs for what is due, `most` at a time and 20 for one target. Return how many are dead, how many were queued, and the
-- seconds until this is to be done again, if that is known. One session does so at a time.
create function drover.queue_deliveries(of_group text, most integer, out dead integer, out queued integer,
                                        out seconds float8)
language plpgsql security definer set search_path = drover, pg_temp as $$
declare
  d    record;
  wait float8;
  pk   bigint;
  over bigint[] := '{}';
  gone bigint[] := '{}';
begin
  dead := 0;
  queued := 0;
  if not exists (select from subscription) and not exists (select from delivery where del_state = 'sent') then
    return;
  elsif not pg_try_advisory_xact_lock(hashtextextended('drover.queue_deliveries', 0)) then
    seconds := 1;
    return;
  end if;
  for d in
    select del_pk, del_notify, del_tries, jq_pk, jq_state, jq_endtext
      from delivery left join jobqueue on jq_pk = del_notify
     where del_state = 'sent' and (jq_pk is null or jq_endtime is not null)
     limit most
  loop
    gone := gone || d.jq_pk;
    wait := case when d.jq_state = 'done' then null
                 when starts_with(d.jq_endtext, 'agent said: gone: ') then null
                 else drover.delivery_wait(of_group, d.del_tries + 1) end;
    update delivery
       set del_tries = d.del_tries + 1, del_notify = null, del_text = drover.message(d.jq_endtext),
           del_state = case when d.jq_state = 'done' then 'done' when wait is null then 'dead' else 'waiting' end,
           del_ended = case when wait is null then now() end,
           del_next = now() + make_interval(secs => wait)
     where del_pk = d.del_pk;
    over := over || case when d.jq_state is distinct from 'done' and wait is null then d.del_pk end;
  end loop;
  over := array_remove(over, null);
  perform drover.bury_deliveries(over, 'not delivered') where over <> '{}';
  dead := cardinality(over);
  with late as (
    update delivery set del_state = 'dead', del_ended = now(), del_text = 'expired: its subscription has ended'
     where del_pk in (select del_pk from subscription join delivery on del_sub = sub_pk and del_state = 'waiting'
                       where sub_expires <= now() limit most)
    returning del_pk)
  select coalesce(array_agg(del_pk), '{}') into over from late;
  perform drover.bury_deliveries(over, 'expired') where over <> '{}';
  dead := dead + cardinality(over);
  delete from attempt_kept where att_jq_fk = any (gone);
  delete from log where log_jq_fk = any (gone);
  delete from jobqueue where jq_pk = any (gone);
  if exists (select from agent where agent_group = of_group and agent_type = 'notify' and agent_enabled
                and agent_present) then
    for d in
      with recursive place as (  -- where deliveries wait
        (select del_sub as sub, del_target as target from delivery where del_state = 'waiting'
          order by del_sub, del_target limit 1)
         union all
        select n.* from place cross join lateral (
          select del_sub, del_target from delivery
           where del_state = 'waiting' and (del_sub, del_target) > (sub, target)
           order by del_sub, del_target limit 1) n)
      select due.del_pk
        from place join subscription on sub_pk = sub cross join lateral (
         select 20 - count(*) as room from delivery where del_sub = sub_pk and del_target = target
            and del_state = 'sent') r
       cross join lateral (
         select del_pk from delivery w
          where del_sub = sub_pk and del_target = target and del_state = 'waiting'
            and (del_next is null or del_next <= now())
            and not exists (
              select from delivery e where e.del_sub = w.del_sub and e.del_target = w.del_target
                 and e.del_jq_fk = w.del_jq_fk and e.del_state in ('waiting', 'sent') and e.del_pk < w.del_pk)
          order by del_pk limit greatest(room, 0)) due
       where sub_enabled and (sub_expires is null or sub_expires > now())
       order by due.del_pk limit most
    loop
      insert into jobqueue (jq_type, jq_args, jq_queue, jq_timeout, jq_retries, jq_max_interruptions)
      values ('notify', drover.notification(d.del_pk), of_group, '2 min', -1, 2147483647) returning jq_pk into pk;
      update delivery set del_state = 'sent', del_notify = pk, del_next = null where del_pk = d.del_pk;
      queued := queued + 1;
    end loop;
    seconds := (select extract(epoch from del_next - now()) from delivery
                 where del_state = 'waiting' and del_next > now() order by del_next limit 1);
  end if;
  seconds := case when queued >= most or cardinality(gone) >= most or cardinality(over) >= most then 0 else seconds end;
end $$;

-- Enter jobs of a group that nobody takes among the dead letters, once each, and tell the site: their queue does not
-- exist, or no scheduler serves their type. Looked at are the first tokens of each type and queue, a minute old.
create function drover.find_alternates(of_group text, most integer) returns integer
language plpgsql security definer set search_path = drover, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off as $$
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

-- Set drover.has_subscriptions back if there is none, nor one that is just made.
create function drover.forget_subscriptions() returns void language plpgsql as $$
begin
  if not exists (select from drover.subscription) then
    lock table drover.subscription in share mode nowait;
    perform drover.set_has_subscriptions(false) where not exists (select from drover.subscription);
  end if;
exception when lock_not_available then
  return;  -- the next look is in a minute
end $$;

-- Remove a piece of what nobody needs any more: subscriptions a day after they expired, or whose job is gone; and,
-- beyond an event, events whose job is gone or that are of none and a month old. Return where to go on; null: the end.
create function drover.forget_events(beyond bigint, most integer) returns bigint
language plpgsql security definer set search_path = drover, pg_temp as $$
declare
  until bigint;
begin
  delete from subscription s
   where sub_expires < now() - interval '1 day'
      or sub_scope = 'job' and not exists (select from jobqueue where jq_pk = sub_of::bigint)
         and not exists (select from delivery where del_sub = sub_pk and del_state in ('waiting', 'sent'));
  perform drover.forget_subscriptions() where drover.has_subscriptions();
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
  return until;
end $$;
