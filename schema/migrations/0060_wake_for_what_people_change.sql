-- Notify schedulers when jq_wait_until of a waiting job is changed with SQL. Compute jq_wait_until and jq_expires_at
-- anew when jq_not_before or jq_not_after is changed; these two were looked at only when the job was inserted.
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

-- The scheduler itself moves a check to earlier only when it makes it at once.
create trigger recovery_sooner after update of recovery_next on drover.recovery
  for each row when (new.recovery_next < old.recovery_next) execute function drover.wake('drover_recovery');
