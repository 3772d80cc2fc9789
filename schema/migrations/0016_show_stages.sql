-- The jobs of the login that asks, in the words of the Jobs service of Tapis; a stage that a job names in its
-- variables is shown while it is worked.
create view drover.my_stages with (security_barrier) as
select jq_pk, jq_job_fk, jq_name, jq_type, jq_state,
       case jq_state
         when 'held'    then 'PAUSED'
         when 'queued'  then case when jq_unmet > 0 or jq_wait_until > now() then 'PENDING' else 'QUEUED' end
         when 'claimed' then 'SUBMITTING_JOB'
         when 'running' then coalesce(nullif(left(jq_variables ->> 'stage', 64), ''), 'RUNNING')
         when 'blocked' then 'BLOCKED'
         when 'done'    then 'FINISHED'
         when 'skipped' then 'FINISHED'
         when 'cancelled' then 'CANCELLED'
         else 'FAILED' end as stage
  from drover.my_jobs;
