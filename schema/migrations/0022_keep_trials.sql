-- New programs of agent types on trial: what the next daemon of the group must know of them.

-- The state, the programs by the digests of their files, what they did with how many items, and all of it in words;
-- null for types without trials.
alter table drover.agent add column agent_trial jsonb;

-- Tell the log, and subscriptions of the site, of a new program that has failed its trial.
create function drover.trial_failed() returns trigger
  language plpgsql security definer set search_path = drover, pg_temp as $$
begin
  perform drover.tell_site('alert', 'agent type ' || new.agent_type || ': ' || (new.agent_trial ->> 'text'));
  return null;
end $$;

create trigger trial_fails after update of agent_trial on drover.agent for each row
  when (new.agent_trial ->> 'state' = 'HELD_BACK' and (new.agent_trial -> 'is_worse')::boolean
        and (old.agent_trial ->> 'state', old.agent_trial ->> 'new')
            is distinct from (new.agent_trial ->> 'state', new.agent_trial ->> 'new'))
  execute function drover.trial_failed();
