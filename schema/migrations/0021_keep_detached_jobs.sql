-- Detached jobs: commands that run on under a keeper of their host when their daemon has ended.

-- Where each is kept, from before its start until the host has removed what it kept: by job and attempt, without a
-- foreign key, for a host may be out of reach longer than the job is remembered. The `turn` counts the daemons and
-- connections that have had it: on the host, the smaller turn is not obeyed any more.
create table drover.detached (
  det_jq_fk   bigint  not null,
  det_attempt integer not null,
  det_group   text    not null,
  det_host    text    not null,
  det_spool   text    not null,
  det_turn    integer not null default 0,
  det_since   timestamptz not null default now(),
  primary key (det_jq_fk, det_attempt)
) with (autovacuum_vacuum_scale_factor = 0.05);

-- Tells this database apart from others that have jobs on the same hosts.
create table drover.site (
  site_uuid uuid not null default gen_random_uuid()
);
create unique index site_once on drover.site ((true));
insert into drover.site default values;
