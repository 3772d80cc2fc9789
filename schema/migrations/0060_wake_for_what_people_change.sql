-- What somebody changes with SQL in the times of a job that waits counts at once: jq_wait_until, of which the scheduler
-- was not told, and jq_not_before and jq_not_after, which counted only when the job was inserted.
do $do$
declare
  body  text := pg_get_functiondef('drover.moved()'::regprocedure);
  place text := $$  end if;
  if was and (not is_so$$;
begin
  if position(place in body) = 0 then
    raise exception 'drover.moved() has another body than was thought';
  end if;
  execute replace(body, place, $new$  elsif new.jq_wait_until is distinct from old.jq_wait_until
        and new.jq_attempt = old.jq_attempt and new.jq_type <> 'command' then
    perform drover.notify('drover_due', '') where new.jq_wait_until is not null;
$new$ || place);
end $do$;

create function drover.move_start_window() returns trigger language plpgsql security definer
  set search_path to 'drover', 'pg_temp' as $$
begin
  update jobqueue j  -- but for a job in hand
     set jq_wait_until = nullif(greatest(jq_not_before, jq_retry_at, now()), now()),
         jq_expires_at = case when jq_attempt = 0 then jq_not_after end
   where jq_pk = new.jq_pk
     and (jq_state = 'held' or jq_state = 'queued' and (jq_unmet > 0 or jq_wait_until is not null or has_token(j)));
  perform notify('drover_due', '');
  return null;
end $$;

create trigger jobqueue_start_window after update of jq_not_before, jq_not_after on drover.jobqueue
  for each row when (new.jq_type <> 'command' and (new.jq_not_before is distinct from old.jq_not_before
                                                   or new.jq_not_after is distinct from old.jq_not_after))
  execute function drover.move_start_window();

-- What daemons themselves write of a type is no change of its settings: with agent_trial, which they write with each
-- status, this woke every daemon once a second.
drop trigger agent_wake on drover.agent;
create trigger agent_wake after update of agent_group, agent_present, agent_enabled on drover.agent
  for each statement execute function drover.wake('drover_change');

-- The scheduler itself moves a check to earlier only when it makes it at once.
create trigger recovery_sooner after update of recovery_next on drover.recovery
  for each row when (new.recovery_next < old.recovery_next) execute function drover.wake('drover_recovery');
