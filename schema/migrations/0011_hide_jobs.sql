-- Jobs that drover ls leaves out: somebody hid them. They run and end as before.
create table drover.hidden (
  hidden_jq_fk bigint primary key  -- no foreign key: it would cost every end; drover.remove_jobs deletes these rows
);

-- Hide a job of one's own, or of a tenant that one commands, or show it again. Return false if there is none.
create function drover.hide(job bigint, is_hidden boolean default true) returns boolean
  language plpgsql security definer set search_path = drover, pg_temp as $$
begin
  perform from jobqueue where jq_pk = job and jq_type <> 'command'
    and (jq_submitter = any (drover.wards()) or drover.may_command());
  if not found then
    return false;
  elsif is_hidden then
    insert into hidden values (job) on conflict do nothing;
  else
    delete from hidden where hidden_jq_fk = job;
  end if;
  return true;
end $$;

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
  delete from hidden where hidden_jq_fk = any (jobs);
  delete from command_ack where ack_jq_fk = any (jobs);
  delete from jobqueue where jq_pk = any (jobs);
  get diagnostics removed = row_count;
  return removed;
end $$;
