-- A job over a rate limit for each value of an attribute waits for an instant. If the limit is changed or removed, the
-- scheduler frees these jobs; a queue has since when that is to be done.

alter table drover.queue add column queue_rate_changed timestamptz;
comment on column drover.queue.queue_rate_changed is
  'since when the scheduler is to free the jobs that another rate limit put off; null: there are none';

create function drover.note_rate_change() returns trigger
language plpgsql set search_path = drover, pg_temp as $$
begin
  new.queue_rate_changed := now();
  return new;
end $$;

create trigger queue_rate_change before update of queue_rate on drover.queue
  for each row when (old.queue_rate is distinct from new.queue_rate) execute function drover.note_rate_change();

-- A condition whose policy has changed is checked at once: the next check was due by the rules of before.
create function drover.check_by_new_policy() returns trigger
language plpgsql set search_path = drover, pg_temp as $$
begin
  update recovery set recovery_next = now()
   where recovery_group = old.policy_group and recovery_policy = old.policy_name and recovery_next > now();
  perform notify('drover_recovery', '');
  return null;
end $$;

create trigger policy_change after update of policy_rules on drover.recovery_policy
  for each row when (old.policy_rules is distinct from new.policy_rules)
  execute function drover.check_by_new_policy();
create trigger policy_removal after delete on drover.recovery_policy
  for each row execute function drover.check_by_new_policy();

-- Return what a queued job waits for that was put off, by its text.
create function drover.why_later(said text) returns text
language sql immutable set search_path = drover, pg_temp as $$
  select case when starts_with(said, 'rate limit of queue ') then 'waits for the ' || split_part(said, ': ', 1)
              when starts_with(said, 'no connection as ') then 'waits for a connection of the scheduler'
              else 'waits for its next try, after a failure' end
$$;
