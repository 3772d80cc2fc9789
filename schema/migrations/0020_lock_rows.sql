-- Any login may take any advisory lock, and keep it, and so could hold up what these functions do one at a time. They
-- lock rows of a table that no front-end reads.

-- ---------------------------------------------------------------- rows to lock

create table drover.gate (gate_name text primary key);

-- Let one transaction in at a time; the next one waits until it has ended.
create function drover.enter(name text) returns void
language plpgsql set search_path = drover, pg_temp as $$
begin
  perform from gate where gate_name = name for update;
  if not found then
    insert into gate values (name) on conflict do nothing;
    perform from gate where gate_name = name for update;
  end if;
end $$;

-- Let one transaction in at a time; return false if there is one.
create function drover.try_to_enter(name text) returns boolean
language plpgsql set search_path = drover, pg_temp as $$
begin
  insert into gate select name where not exists (select from gate where gate_name = name) on conflict do nothing;
  perform from gate where gate_name = name for update skip locked;
  return found;
end $$;

-- ---------------------------------------------------------------- as before, but for the locks

create or replace function drover.expect_subscriptions() returns trigger
  language plpgsql security definer set search_path = drover, pg_temp as $$
begin
  if not drover.has_subscriptions() then
    perform drover.enter('has_subscriptions');  -- two cannot replace it at once
    perform drover.set_has_subscriptions(true);
  end if;
  return null;
end $$;

create or replace function drover.expect_tenants() returns trigger
language plpgsql security definer set search_path = drover, pg_temp set lock_timeout = '1500ms' as $$
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

create or replace function drover.expect_variables() returns trigger
language plpgsql security definer set search_path = drover, pg_temp set lock_timeout = '1500ms' as $$
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

create or replace function drover.install_routes() returns text
  language plpgsql security definer set search_path = drover, pg_temp set lock_timeout = '1500ms' as $$
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

create or replace function drover.limit_queues() returns trigger
language plpgsql security definer set search_path = drover, pg_temp as $$
declare
  one     record;
  waiting bigint;
begin
  for one in
    select distinct queue_name as name, queue_max_length as most
      from queue join arrived on jq_queue = queue_name
     where queue_max_length is not null and jq_type not in ('command', 'cleanup', 'notify')
       and coalesce(jq_unique_key not like 'drover.tester.%', true)
     order by queue_name
  loop
    perform drover.enter('queue ' || one.name);
    waiting := drover.waiting_in(one.name, one.most + 1);
    if waiting > one.most then
      raise exception 'queue % is full: at most % jobs may wait in it', one.name, one.most
        using errcode = 'check_violation',
              hint = 'Try again when some have started, or have an operator raise it: drover queue length.';
    end if;
  end loop;
  return null;
end $$;

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
