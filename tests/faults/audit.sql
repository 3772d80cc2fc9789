-- What the suite writes down by itself, and what must be true of it. Installed into the suite's own database by its
-- owner; the daemons know nothing of it. Each daemon's connections say who they are in the setting `faults.daemon`.

create schema faults;
grant usage on schema faults to public;

create function faults.daemon() returns text language sql as $$ select nullif(current_setting('faults.daemon', true), '') $$;

-- Every insert, every change of state, attempt or owner, every delete of a job.
create table faults.move (
  seq         bigint generated always as identity primary key,
  at          timestamptz not null default clock_timestamp(),
  txid        xid8 not null default pg_current_xact_id(),
  daemon      text default faults.daemon(),                -- null: somebody else
  pk          bigint not null,
  type        text not null,
  was         drover.job_state,                            -- null: inserted
  state       drover.job_state,                            -- null: deleted
  attempt     integer not null,
  was_attempt integer,
  was_owner   uuid,
  owner       uuid,
  group_owner uuid                                         -- of the group of the row's queue, as this transaction sees it
);
create index move_of_job on faults.move (pk, seq);

create table faults.identity (uuid uuid primary key, daemon text default faults.daemon());
create table faults.ownership (at timestamptz not null default clock_timestamp(), owner uuid);

-- What agents wrote down, loaded for a check: `job` and `attempt` are known to commands only.
create table faults.execution (kind text, token text, daemon text, pid integer, job bigint, attempt integer);

create table faults.noted (token text);
grant insert on faults.noted to public;

create function faults.owner_of(name text) returns uuid language sql as $$
  select group_owner from drover.scheduler_group join drover.queue on queue_group = group_name where queue_name = name
$$;

-- Of a job that was claimed by a record its row is written later: with the attempt of the claim, which was written down then.
create function faults.moved() returns trigger language plpgsql security definer set search_path = faults, pg_temp as $$
declare
  claim faults.move;
begin
  if old.jq_state = 'queued' and new.jq_attempt = old.jq_attempt + 1 then
    select * into claim from faults.move where pk = new.jq_pk and attempt = new.jq_attempt and was = 'queued' and state = 'claimed';
  end if;
  if claim.pk is not null and new.jq_state = 'claimed' and new.jq_owner = claim.owner then
    return null;
  end if;
  insert into faults.move (pk, type, was, state, attempt, was_attempt, was_owner, owner, group_owner)
  select coalesce(new.jq_pk, old.jq_pk), coalesce(new.jq_type, old.jq_type), coalesce(claim.state, old.jq_state), new.jq_state,
         coalesce(new.jq_attempt, old.jq_attempt), coalesce(claim.attempt, old.jq_attempt), coalesce(claim.owner, old.jq_owner), new.jq_owner,
         faults.owner_of(coalesce(new.jq_queue, old.jq_queue));
  return null;
end $$;

-- A record names jobs that were just claimed, or such as were claimed before.
create function faults.recorded() returns trigger language plpgsql security definer set search_path = faults, pg_temp as $$
begin
  insert into faults.move (pk, type, was, state, attempt, was_attempt, owner, group_owner)
  select jq_pk, jq_type, 'queued', 'claimed', jq_attempt + 1, jq_attempt, new.hand_owner, faults.owner_of(jq_queue)
    from unnest(new.hand_jobs) as u(pk) join drover.jobqueue j on jq_pk = u.pk
   where drover.is_claimable(j) and not drover.has_token(j)
     and not exists (select from faults.move m where m.pk = jq_pk and m.attempt = jq_attempt + 1 and m.state = 'claimed');
  return null;
end $$;
create trigger faults_recorded after insert on drover.in_hand for each row execute function faults.recorded();
create trigger faults_came after insert or delete on drover.jobqueue for each row execute function faults.moved();
create trigger faults_moved after update on drover.jobqueue for each row
  when (old.jq_state <> new.jq_state or old.jq_attempt <> new.jq_attempt or old.jq_owner is distinct from new.jq_owner)
  execute function faults.moved();

create function faults.registered() returns trigger language plpgsql security definer set search_path = faults, pg_temp as $$
begin
  insert into faults.identity values (new.scheduler_uuid) on conflict do nothing;
  return null;
end $$;
create trigger faults_registered after insert on drover.scheduler for each row execute function faults.registered();

create function faults.owned() returns trigger language plpgsql security definer set search_path = faults, pg_temp as $$
begin
  insert into faults.ownership (owner) values (new.group_owner);
  return null;
end $$;
create trigger faults_owned after insert or update of group_owner on drover.scheduler_group for each row execute function faults.owned();

-- ---------------------------------------------------------------- what must be true

create view faults.claim as
select c.*, coalesce(n.at, 'infinity') as until, n.seq as next_seq, n.daemon as next_daemon
  from faults.move c
  left join lateral (select * from faults.move n where n.pk = c.pk and n.seq > c.seq and (n.owner is distinct from c.owner or n.attempt <> c.attempt)
                      order by n.seq limit 1) n on true
 where c.state = 'claimed' and c.was = 'queued'
    -- the owner of the group adopts a detached job that runs
    or c.type = 'kept' and c.state = 'running' and c.was = 'running' and c.owner = c.group_owner;

-- A (pk, attempt) can begin once: a line agent knows no attempts, but a job cannot be begun more often than it was claimed.
create materialized view faults.begun as
with told as (
  select coalesce(e.job, j.jq_pk) as pk, e.daemon, e.attempt, e.kind
    from faults.execution e
    left join (select jq_pk, split_part(jq_args, ' ', 1) as token from drover.jobqueue where not jq_msq) j
      on e.job is null and j.token = e.token)
select pk, daemon, attempt, kind, count(*) as times from told where pk is not null group by pk, daemon, attempt, kind;
create index begun_of_job on faults.begun (pk);

create view faults.violation as
  select 'I1 a job is gone' as rule, m.pk, m.seq, '' as what
    from faults.move m where m.was is null and m.type <> 'old' and not exists (select from drover.jobqueue j where j.jq_pk = m.pk)
union all
  select 'I1 a job has not ended', jq_pk, null, jq_state || coalesce(': ' || jq_endtext, '')
    from drover.jobqueue where jq_endtime is null
union all
  select 'I1 a job was done and nobody worked on it', jq_pk, null, jq_args
    from drover.jobqueue j
   where jq_state = 'done' and not jq_msq and jq_type in ('line', 'exec', 'free', 'kept', 'sleeper')
     and not exists (select from faults.begun b where b.pk = j.jq_pk)
union all
  select 'I1 a fault has failed a job', jq_pk, null, jq_args || ': ' || jq_endtext
    from drover.jobqueue
   where jq_state = 'failed' and jq_max_interruptions = 1000 and jq_endtext <> 'killed'
     -- but one with which daemons died four times, the last time as it was read alone, fails by contract
     and not (jq_endtext like 'its scheduler died % tried alone' and jq_rescued >= 4)
union all
  select 'I1 one death has failed several jobs', max(pk), max(seq), string_agg(pk::text, ' ')
    from faults.move m join drover.jobqueue j on j.jq_pk = m.pk
   where m.state = 'failed' and j.jq_endtext like 'its scheduler died %' group by was_owner having count(*) > 1
union all
  select 'I1 cannot be: ' || rule, jq_pk, null, what from drover.impossible
union all
  select 'I2 a row of a daemon that is not the owner any more', c.pk, c.seq, c.daemon || ' until ' || c.until
    from (select at, owner, lead(at, 1, 'infinity') over (order by at) as next_at, lag(owner) over (order by at) as before from faults.ownership) o
    join faults.claim c on c.at < o.at and c.until > o.at + interval '5 s' and c.owner <> o.owner
   where o.next_at > o.at + interval '5 s' and o.owner is not null and o.owner is distinct from o.before
union all
  select 'I3 ended more than once', pk, max(seq), count(*) || ' ends'
    from faults.move m where state in ('done', 'failed', 'cancelled', 'skipped', 'ignored') and was <> state group by pk
  having count(*) > 1 + (select count(*) from faults.move r where r.pk = m.pk and r.was = 'failed' and r.state = 'queued')
union all
  select 'I3 left its end', pk, seq, was || ' to ' || state
    from faults.move where was in ('done', 'failed', 'cancelled', 'skipped', 'ignored') and state is not null
     and not (was = 'failed' and state = 'queued' and exists (select from drover.jobqueue where jq_type = 'command' and jq_args = 'retry ' || pk))
union all
  select 'I3 written by who has not claimed it', m.pk, m.seq,
         format('%s claimed by %s, made %s by %s', m.was_attempt, c.daemon, m.state, coalesce(m.daemon, 'nobody'))
    from faults.move m
    join lateral (select * from faults.claim c where c.pk = m.pk and c.seq < m.seq order by c.seq desc limit 1) c on true
   where m.was in ('claimed', 'running') and m.daemon is distinct from c.daemon
     -- but the owner of the group gives back what others had, or ends what has used up its allowance or was cancelled
     and not (m.state in ('queued', 'failed', 'cancelled') and m.group_owner in (select uuid from faults.identity i where i.daemon = m.daemon))
     and not (m.type = 'kept' and m.state = 'running' and m.owner = m.group_owner)
union all
  select 'I3 taken from a daemon by itself', m.pk, m.seq, format('attempt %s, from %s', m.was_attempt, m.was_owner)
    from faults.move m
   where m.was in ('claimed', 'running') and m.owner is not null and m.owner <> m.was_owner
     and not (m.type = 'kept' and m.state = 'running' and m.owner = m.group_owner)
union all
  select 'I4 an attempt does not follow the one before', pk, seq, was_attempt || ' to ' || attempt
    from faults.move where type <> 'command' and attempt <> was_attempt + (was = 'queued' and state = 'claimed')::integer
union all
  select 'I4 claimed by who does not own the group', pk, seq, coalesce(daemon, 'nobody')
    from faults.move where state = 'claimed' and was = 'queued' and owner is distinct from group_owner
union all
  select 'I4 moved by a daemon that does not own the group', m.pk, m.seq, format('%s to %s by %s', m.was, m.state, m.daemon)
    from faults.move m
   where m.was in ('held', 'queued', 'blocked') and m.state <> 'claimed' and m.type <> 'command' and m.daemon is not null
     and not exists (select from faults.identity i where i.uuid = m.group_owner and i.daemon = m.daemon)
union all
  select 'I5 an attempt was begun twice', pk, null, format('attempt %s, %s times', attempt, times)
    from faults.begun where attempt is not null and times > 1
union all
  select 'I5 begun more often than claimed', b.pk, null, format('%s: %s times', b.daemon, b.times)
    from (select pk, daemon, sum(times) as times from faults.begun group by pk, daemon) b
   where b.times > (select count(*) from faults.claim c where c.pk = b.pk and c.daemon = b.daemon and c.was = 'queued')
union all
  select 'C41 a detached job was begun in more than one attempt, and none was interrupted', pk, null, count(distinct attempt) || ' attempts'
    from faults.begun b join drover.jobqueue on jq_pk = pk
   where jq_type = 'kept' and jq_interruptions = 0 and jq_failures = 0 group by pk having count(distinct attempt) > 1;
