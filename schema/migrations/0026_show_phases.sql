-- One word for each job, of the six that the user interface of the original has.
create view drover.phases as
select jq_pk, jq_job_fk, jq_name, jq_type, jq_submitter, jq_state,
       case jq_state
         when 'held'    then 'queued'
         when 'queued'  then case when jq_unmet > 0 or jq_wait_until > now() then 'queued' else 'ready' end
         when 'claimed' then 'running'
         when 'running' then 'running'
         when 'blocked' then 'blocked'
         when 'done'    then 'finished'
         when 'skipped' then 'finished'
         else 'failed' end as phase
  from drover.jobs;

create view drover.my_phases with (security_barrier) as
select * from drover.phases where jq_submitter = session_user order by jq_pk desc;
