-- Lists of jobs read only the zones of numbers in which such jobs are, those first that may come first.

create view drover.my_zone_parts with (security_barrier) as
select * from drover.zone_parts where submitter = session_user::text;
create view drover.our_zone_parts with (security_barrier) as
select * from drover.zone_parts where submitter = any ((select drover.fellows())::text[]);

-- The jobs that no zone tells of: those in hand, which zones count as queued, and those that are shared with a tenant.
create view drover.beside_zones as
select distinct pk as jq_pk from drover.in_hand cross join lateral unnest(hand_jobs) as pk;

create view drover.my_beside_zones with (security_barrier) as
select b.jq_pk
  from drover.beside_zones b
 cross join lateral (select jq_submitter from drover.jobqueue j where j.jq_pk = b.jq_pk limit 1) j
 where jq_submitter = session_user;
create view drover.our_beside_zones with (security_barrier) as
select b.jq_pk
  from drover.beside_zones b
 cross join lateral (select jq_submitter from drover.jobqueue j where j.jq_pk = b.jq_pk limit 1) j
 where jq_submitter = any ((select drover.fellows())::name[])
 union
select pk from unnest(drover.shared_jobs()) as pk;

-- The zone of the newest job, whoever may see it.
create function drover.newest_zone() returns bigint
language sql stable security definer set search_path = drover, pg_temp as $$
  select zone_of(max(jq_pk)) from jobqueue
$$;
