-- What work waits for: times and conditions; and inserts that cost less.

-- ---------------------------------------------------------------- the group of a job, without a foreign key

-- A foreign key costs every inserted row an event, also where the column is null; these triggers are asked only for
-- rows of a group. They hold what the key held (decision 0036).
alter table drover.jobqueue drop constraint jobqueue_jq_job_fk_fkey;

-- Refuse a job of a group that is not there. The lock makes a deletion of the group wait for this transaction.
create function drover.need_group() returns trigger
language plpgsql security definer set search_path = drover, pg_temp as $$
begin
  perform from job where job_pk = new.jq_job_fk for key share;
  if not found then
    raise exception 'no job group has job_pk %', new.jq_job_fk
      using errcode = 'foreign_key_violation', constraint = 'jobqueue_jq_job_fk_fkey';
  end if;
  return null;
end $$;

create trigger jobqueue_need_group after insert or update of jq_job_fk on drover.jobqueue for each row
  when (new.jq_job_fk is not null) execute function drover.need_group();

-- Refuse the deletion of a group that has jobs. A transaction with one snapshot would not see those committed since.
create function drover.keep_group() returns trigger
language plpgsql security definer set search_path = drover, pg_temp as $$
begin
  if current_setting('transaction_isolation') in ('repeatable read', 'serializable') then
    raise exception 'a job group is deleted in a transaction that is read committed'
      using errcode = 'feature_not_supported';
  elsif exists (select from jobqueue where jq_job_fk = old.job_pk) then
    raise exception 'job group % has jobs: remove them first', old.job_pk
      using errcode = 'foreign_key_violation', constraint = 'jobqueue_jq_job_fk_fkey';
  end if;
  return null;
end $$;

create trigger job_keep_group after delete on drover.job for each row execute function drover.keep_group();
