-- One schedule whose next start is no date, or before the first year, stopped all others, or the daemon that read it;
-- and one that runs itself queued commands without end.

update drover.schedule set schedule_enabled = false, schedule_at = '1900-01-01 00:00:00+00'
 where schedule_at < '1900-01-01 00:00:00+00';
update drover.schedule set schedule_next = null, schedule_due = '-infinity'
 where schedule_next < '1900-01-01 00:00:00+00' or schedule_next >= '9000-01-01 00:00:00+00';

alter table drover.schedule
  drop constraint schedule_schedule_at_check,
  add constraint schedule_starts_are_dates check (
    least(schedule_at, schedule_next) >= '1900-01-01 00:00:00+00'
    and greatest(schedule_at, schedule_next) < '9000-01-01 00:00:00+00');

-- As before, and refuse a command that runs a schedule: it may be this one, or run it in turn.
create or replace function drover.schedule_mistake(job jsonb) returns text
language plpgsql security definer set search_path = drover, pg_temp as $$
begin
  if job ->> 'jq_type' = 'command' and drover.word(job ->> 'jq_args', 1) = 'schedule-run' then
    return 'a schedule runs no other one: give it the job of that one, or the same times';
  elsif job - 'jq_args' = '{"jq_type": "command"}'
     and exists (select from verb where verb_name = drover.word(job ->> 'jq_args', 1)) then
    return null;  -- it takes no number of a job to know that
  end if;
  perform drover.queue_scheduled(job, session_user, '{}');
  raise exception using errcode = 'DR000';
exception
  when sqlstate 'DR000' then return null;
  when others then
    if sqlstate ~ '^(22|23|42|P0)' then
      return sqlerrm;
    end if;
    raise;
end $$;

-- Those that were set before do not start any more, and say so.
update drover.schedule
   set schedule_enabled = false,
       schedule_reason = 'a schedule runs no other one: give it the job of that one, or the same times'
 where schedule_job ->> 'jq_type' = 'command' and drover.word(schedule_job ->> 'jq_args', 1) = 'schedule-run';
