-- A function whose argument is a row of a table has its body as a string. The minor releases of PostgreSQL of November
-- 2026 add no column with a default to a table whose row an SQL-standard body (`return`, `begin atomic`) uses, so that
-- no later migration could.

create or replace function drover.is_claimed_by_record(job drover.jobqueue) returns boolean
language sql immutable parallel safe as $$
  select not job.jq_msq and job.jq_rescued = 0 and job.jq_unique_key is null and job.jq_not_after is null
$$;

create or replace function drover.items(job drover.jobqueue) returns text language sql immutable parallel safe as $$
  select to_char(job.jq_itemsprocessed + job.jq_itemsfailed, 'FM999,999,999,999,990') || ' of '
         || to_char(job.jq_itemstotal, 'FM999,999,999,999,990') || ' items'
$$;

create or replace function drover.rests(agent drover.agent) returns text language sql stable parallel safe as $$
  select case when agent.agent_blocked_until > now()
              then 'agent type ' || agent.agent_type
                   || case when starts_with(agent.agent_reason, 'no connection') then ' waits' else ' failed' end
                   || ', next try ' || date_trunc('second', agent.agent_blocked_until)
                   || coalesce(', resting since ' || date_trunc('second', agent.agent_blocked_since), '')
                   || ': ' || coalesce(agent.agent_reason, '?') end
$$;
