-- Tenants: groups of logins that share one installation. A tenant is a role, and its members are the roles that were
-- granted it: `grant staff to anna`; a member who got it with the admin option commands the jobs of all members.

create table drover.tenant (
  tenant_name  text primary key,
  tenant_queue text not null default 'default'  -- where the jobs of its members go that name no queue
);

-- A queue that only one tenant may use. Queues that are not here are for everybody.
create table drover.tenant_queue (
  tq_queue  text primary key,
  tq_tenant text not null references drover.tenant on delete cascade on update cascade
);

-- What the submitter of a job lets a role, or the members of a role, read: its state, log and output, and nothing else.
create table drover.share (
  share_jq_fk bigint not null,  -- no foreign key: it would cost every insert; drover.remove_jobs deletes these rows
  share_with  name not null,
  primary key (share_jq_fk, share_with)
);

-- ---------------------------------------------------------------- who belongs together

-- Return whether a role is a member of another, by name; a superuser is no member of all others here.
create function drover.is_member(who name, of_role name) returns boolean
language sql stable set search_path = drover, pg_temp as $$
  select exists (
    select from pg_catalog.pg_roles m join pg_catalog.pg_roles r on r.rolname = of_role
     where m.rolname = who and (m.oid = r.oid or not m.rolsuper and pg_has_role(m.oid, r.oid, 'member')))
$$;

-- Return the members of these tenants, and who asks.
create function drover.members_of(who name, tenants text[]) returns name[]
language sql stable set search_path = drover, pg_temp as $$
  select array(
    select who union
    select m.rolname from pg_catalog.pg_roles r
      join pg_catalog.pg_roles m on m.oid = r.oid or not m.rolsuper and pg_has_role(m.oid, r.oid, 'member')
     where r.rolname = any (tenants))
$$;

-- Return the roles whose jobs the role that logged in may see: itself, and the members of its tenants.
create function drover.fellows() returns name[] language sql stable security definer
set search_path = drover, pg_temp as $$
  select drover.members_of(
    session_user, array(select tenant_name from tenant where drover.is_member(session_user, tenant_name::name)))
$$;

-- Return the roles whose jobs a role may command: itself, and the members of tenants that it is, or has with the admin
-- option.
create function drover.wards(who name default session_user) returns name[] language sql stable security definer
set search_path = drover, pg_temp as $$
  select drover.members_of(who, array(
    select tenant_name from tenant
      join pg_catalog.pg_roles t on t.rolname = tenant_name join pg_catalog.pg_roles w on w.rolname = who
     where t.oid = w.oid or not w.rolsuper and pg_has_role(w.oid, t.oid, 'member with admin option')))
$$;

-- Return the tenant of a role, the first by name; null if it has none.
create function drover.tenant_of(who name) returns text language sql stable security definer
set search_path = drover, pg_temp as $$
  select min(tenant_name) from tenant where drover.is_member(who, tenant_name::name)
$$;

-- ---------------------------------------------------------------- what a tenant may use

-- Refuse a tenant that is no role, and a queue of another.
create function drover.prepare_tenant() returns trigger
language plpgsql security definer set search_path = drover, pg_temp as $$
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

create trigger tenant_prepare before insert or update on drover.tenant for each row
  execute function drover.prepare_tenant();

-- Refuse to give a tenant the queue of all, one that is not there, or the usual queue of another tenant.
create function drover.prepare_tenant_queue() returns trigger
language plpgsql security definer set search_path = drover, pg_temp as $$
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

create trigger tenant_queue_prepare before insert or update on drover.tenant_queue for each row
  execute function drover.prepare_tenant_queue();

-- Send a job that names no queue to the usual one of its tenant, and refuse one for the queue of another tenant. Of
-- each row no more is asked than it takes: roles are looked up only if a queue depends on them.
create function drover.limit_tenant() returns trigger
language plpgsql security definer set search_path = drover, pg_temp as $$
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

-- Enabled as long as there is a tenant. Its name comes behind those that choose a queue.
create trigger jobqueue_tenant before insert on drover.jobqueue for each row
  when (new.jq_type not in ('command', 'cleanup')) execute function drover.limit_tenant();
alter table drover.jobqueue disable trigger jobqueue_tenant;

-- Let inserts ask for tenants, or not any more. The first and the end of the last need a lock on jobqueue.
create function drover.expect_tenants() returns trigger
language plpgsql security definer set search_path = drover, pg_temp set lock_timeout = '1500ms' as $$
declare
  is_wanted boolean := exists (select from tenant);
  is_on     boolean;
begin
  perform pg_advisory_xact_lock(hashtextextended('drover.expect_tenants', 0));
  select tgenabled <> 'D' into is_on from pg_catalog.pg_trigger
   where tgrelid = 'drover.jobqueue'::regclass and tgname = 'jobqueue_tenant';
  if is_wanted and not is_on then
    alter table drover.jobqueue enable trigger jobqueue_tenant;
  elsif is_on and not is_wanted then
    alter table drover.jobqueue disable trigger jobqueue_tenant;
  end if;
  return null;
end $$;

create trigger tenant_is_expected after insert or delete on drover.tenant
  for each statement execute function drover.expect_tenants();

-- As before, and the filter of a queue of a tenant is asked for the jobs of its members only.
create or replace function drover.routes() returns text
  language plpgsql stable set search_path = drover, pg_temp as $$
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
end $$;

-- Install the filters anew when a queue has got or lost its tenant.
create function drover.route_tenants() returns trigger
language plpgsql security definer set search_path = drover, pg_temp as $$
begin
  perform drover.install_routes() where drover.is_route_stale();
  return null;
end $$;

create trigger tenant_queue_route after insert or update or delete on drover.tenant_queue
  for each statement execute function drover.route_tenants();

-- ---------------------------------------------------------------- groups

-- Refuse a job of a group that is not there, or of a role that is no fellow. The lock makes a deletion of the group
-- wait for this transaction.
create or replace function drover.need_group() returns trigger
language plpgsql security definer set search_path = drover, pg_temp as $$
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

-- Refuse a group that says to be of a tenant, or any role, that its submitter is no member of: who subscribed to the
-- jobs of that tenant would be told of it.
create function drover.limit_group_tenant() returns trigger
language plpgsql security definer set search_path = drover, pg_temp as $$
begin
  if exists (select from pg_catalog.pg_roles where rolname = new.job_tenant)
     and not (drover.is_member(session_user, new.job_tenant::name) or drover.may_command()
              or drover.is_scheduler()) then
    raise exception '% is no member of tenant %', session_user, quote_literal(new.job_tenant)
      using errcode = 'insufficient_privilege';
  end if;
  return new;
end $$;

create trigger job_tenant_is_own before insert on drover.job for each row
  when (new.job_tenant is not null and octet_length(new.job_tenant) < 64)
  execute function drover.limit_group_tenant();

-- ---------------------------------------------------------------- sharing

-- Share a job of one's own with a role, or share it no more.
create function drover.job_share(pk bigint, role name, shared boolean default true) returns void
language plpgsql security definer set search_path = drover, pg_temp as $$
begin
  if not exists (select from jobqueue where jq_pk = pk and jq_type <> 'command'
                    and (jq_submitter = session_user or drover.may_command())) then
    raise exception 'job % is not yours', coalesce(pk::text, '?') using errcode = 'insufficient_privilege';
  elsif not exists (select from pg_catalog.pg_roles where rolname = role) then
    raise exception 'no role %', quote_nullable(role) using errcode = 'undefined_object';
  elsif shared then
    insert into share values (pk, role) on conflict do nothing;
  else
    delete from share where share_jq_fk = pk and share_with = role;
  end if;
end $$;

-- Return the jobs that were shared with the role that logged in.
create function drover.shared_jobs() returns bigint[] language sql stable security definer
set search_path = drover, pg_temp as $$
  select array(select share_jq_fk from share
                where share_with = any (array(select rolname from pg_catalog.pg_roles
                                               where drover.is_member(session_user, rolname))))
$$;

create index share_by_role on drover.share (share_with);

-- What belonged to jobs goes with them.
create or replace function drover.remove_jobs(jobs bigint[]) returns bigint
language plpgsql set search_path = drover, pg_temp set enable_seqscan = off set enable_hashjoin = off
  set enable_mergejoin = off as $$
declare
  removed bigint;
begin
  delete from jobdepends where jdep_jq_depends_fk = any (jobs);
  delete from attempt_kept where att_jq_fk = any (jobs);
  delete from log where log_jq_fk = any (jobs);
  delete from output where out_jq_fk = any (jobs);
  delete from item_failure where item_jq_fk = any (jobs);
  delete from share where share_jq_fk = any (jobs);
  delete from command_ack where ack_jq_fk = any (jobs);
  delete from jobqueue where jq_pk = any (jobs);
  get diagnostics removed = row_count;
  return removed;
end $$;

-- The jobs of one's tenants and those that are shared with one, to read.
create view drover.our_jobs with (security_barrier) as
select * from drover.jobs
 where jq_submitter = any ((select drover.fellows())::name[])
    or jq_pk = any ((select drover.shared_jobs())::bigint[])
 order by jq_pk desc;

create view drover.our_log with (security_barrier) as
select l.* from drover.log l join drover.our_jobs on jq_pk = log_jq_fk;

create view drover.our_output with (security_barrier) as
select o.* from drover.output o join drover.our_jobs on jq_pk = out_jq_fk;

create view drover.our_why with (security_barrier) as
select w.* from drover.why w join drover.our_jobs j on j.jq_pk = w.jq_pk;

-- ---------------------------------------------------------------- commands, and conditions

-- Who has a tenant with the admin option commands the jobs of its members, as if they were his own.
create or replace function drover.command(words text) returns bigint
  language plpgsql security definer set search_path = drover, pg_temp as $$
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
end $$;

-- A condition is one row for each tenant, so that each has checks of its own; but quotas count for all.
create or replace function drover.enter_recovery(job drover.jobqueue) returns void
  language plpgsql set search_path = drover, pg_temp as $$
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
  perform drover.notify('drover_recovery', '');
end $$;

-- ---------------------------------------------------------------- names

-- Return the number of a job, given by number or name. A role that may not read the names of all jobs finds its own.
create or replace function drover.job_named(name text) returns bigint
  language plpgsql stable security definer set search_path = drover, pg_temp as $$
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
end $$;

-- As before, and for roles that may not read the names of all jobs.
create or replace function drover.job_setup(name text, settings jsonb default '{}', out jq_pk bigint,
                                            out existed boolean)
  language plpgsql set search_path = drover, pg_temp as $$
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
  insert into drover.jobdepends (jdep_jq_fk, jdep_jq_depends_fk)
  select jq_pk, drover.job_named(parent) from unnest(drover.names(settings -> 'depends')) as parent
   union
  select drover.job_named(child), jq_pk from unnest(drover.names(settings -> 'rjm_blocks')) as child;
end $$;
