-- A row of each kind, as the first migration lets it in; see test_migrated_rows.py.

insert into drover.agent (agent_group, agent_type, agent_fair, agent_fair_file)
values ('default', 'a', false, false), ('default', 'f', true, true);
insert into drover.jobqueue (jq_type, jq_args, jq_queued)
values ('command', 'shutdown', now() - interval '2 h'), ('command', 'reload', now() - interval '10 min');
insert into drover.scheduler_group (group_name, group_taken_at) values ('default', now() - interval '1 h'), ('new', null);
insert into drover.scheduler (scheduler_uuid, scheduler_group, scheduler_host, scheduler_pid, scheduler_boot_id, scheduler_pid_space,
                              scheduler_pid_start, scheduler_version, scheduler_started)
values ('00000000-0000-0000-0000-000000000002', 'default', 'here', 7, 'b', 's', 1, '0', now() - interval '1 h');

insert into drover.host (host_name, host_group, host_max, host_enabled, host_queues, host_types)
  values ('here', 'default', 3, false, '{fast}', '^a');
insert into drover.placement (placement_type, placement_from, placement_to, placement_host) values ('a', 'disk1', 'disk9', 'here');
insert into drover.job (job_name, job_data) values ('group', '{"a": 1}');
insert into drover.jobqueue (jq_type, jq_name, jq_job_fk, jq_args)
select 'a', 'a.' || name, 1, name from unnest('{queued,parent,child,skipped,ignored}'::text[] || '{claimed,running,wanted,done,failed,cancelled,blocked,waiting,sliced}') as name;
insert into drover.jobqueue (jq_type, jq_name, jq_mode) values ('a', 'a.manual', 'manual');
insert into drover.jobqueue (jq_type, jq_name, jq_state) values ('a', 'a.held', 'held');
insert into drover.jobqueue (jq_type, jq_name, jq_not_before) values ('a', 'a.later', '9000-01-01');
insert into drover.jobqueue (jq_type, jq_name, jq_unique_key, jq_not_after) values ('a', 'a.keyed', 'key', '9000-01-01');
insert into drover.jobdepends (jdep_jq_fk, jdep_jq_depends_fk)
select c.jq_pk, p.jq_pk from drover.jobqueue c, drover.jobqueue p where c.jq_name = 'a.child' and p.jq_name = 'a.parent';
insert into drover.jobqueue (jq_type, jq_name, jq_msq, jq_args) values ('a', 'a.new_query', true, 'select 1'), ('a', 'a.query', true, 'select 1');
insert into drover.jobqueue (jq_type, jq_args, jq_submitter)
values ('f', 'anna1', 'anna'), ('f', 'anna2', 'anna'), ('f', 'anna3', 'anna'), ('f', 'bert1', 'bert');
insert into drover.jobqueue (jq_type, jq_args, jq_submitter)
values ('command', 'hold 1 anna', 'anna'), ('command', 'hold 2 anna', 'anna'), ('command', 'hold 1 bert', 'bert'), ('command', 'hold 3', session_user);

delete from drover.claimable using drover.jobqueue
 where jq_pk = claim_jq_fk and jq_name = any (select 'a.' || name from unnest('{claimed,running,wanted,done,failed,cancelled,blocked,waiting,sliced}'::text[] || '{query}') as name);
update drover.jobqueue set jq_state = 'claimed', jq_attempt = 1, jq_owner = '00000000-0000-0000-0000-000000000002', jq_starttime = now() - interval '1 h', jq_endtext = 'in progress'
 where jq_name = any (select 'a.' || name from unnest('{claimed,running,wanted,done,failed,cancelled,blocked,waiting,sliced}'::text[] || '{query}') as name);
insert into drover.in_hand select '00000000-0000-0000-0000-000000000002', array_agg(jq_pk) from drover.jobqueue where jq_state = 'claimed';
update drover.jobqueue set jq_state = 'running' where jq_name in ('a.running', 'a.wanted', 'a.sliced');
update drover.jobqueue set jq_wanted = 'kill' where jq_name = 'a.wanted';
update drover.jobqueue
   set jq_state = substr(jq_name, 3)::drover.job_state, jq_owner = null, jq_endtime = now(), jq_endtext = 'so it ended',
       jq_end_bits = case jq_name when 'a.done' then 1 else 2 end
 where jq_name in ('a.done', 'a.failed', 'a.cancelled');
update drover.jobqueue set jq_done_by = '00000000-0000-0000-0000-000000000002', jq_done_host = 'here', jq_done_pid = 7 where jq_name = 'a.done';
update drover.jobqueue set jq_state = 'skipped', jq_starttime = now(), jq_endtime = now(), jq_end_bits = 1 where jq_name = 'a.skipped';
update drover.jobqueue set jq_state = 'held' where jq_name = 'a.ignored';
update drover.jobqueue set jq_state = 'ignored', jq_starttime = now(), jq_endtime = now(), jq_end_bits = 2 where jq_name = 'a.ignored';
update drover.jobqueue
   set jq_state = case jq_name when 'a.blocked' then 'blocked' else 'queued' end::drover.job_state, jq_owner = null, jq_starttime = null,
       jq_wait_until = 'infinity', jq_retry_at = 'infinity', jq_endtext = 'blocked: disk'
 where jq_name in ('a.blocked', 'a.waiting');
update drover.jobqueue
   set jq_state = 'queued', jq_owner = null, jq_starttime = null, jq_elapsedtime = '9 s', jq_processedtime = '5 s', jq_itemsprocessed = 3
 where jq_name in ('a.sliced', 'a.query');
insert into drover.attempt_kept (att_jq_fk, att_attempt, att_start, att_outcome)
select jq_pk, n, now() - interval '9 d' + n * interval '1 d', case when jq_name = 'a.failed' then 'failed' else 'slice' end
  from drover.jobqueue, generate_series(1, 2) n where jq_name in ('a.failed', 'a.query');
insert into drover.log (log_jq_fk, log_type, log_message) values (1, 'a', 'said');
insert into drover.output (out_jq_fk, out_attempt, out_part, out_stream, out_data) values (1, 1, 1, 'out', 'printed');
insert into drover.item_failure (item_jq_fk, item_attempt, item_line, item_reason) values (1, 1, 'x', 'bad');
insert into drover.command_ack values (1, '00000000-0000-0000-0000-000000000002', 'here.7', true, 'ok');
