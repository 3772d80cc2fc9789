-- The text of a job may say that its process could not be ended; its code is that of the end all the same.
create or replace function drover.end_code(
  state drover.job_state, type text, bits integer, said text, status integer, signal text
) returns text
language sql immutable parallel safe
as $$
  select case state
    when 'done' then case when bits & 4 = 0 then 'normal' else 'nonfatal_errors' end
    when 'cancelled' then 'cancelled'
    when 'skipped' then case when bits & 1 = 1 then 'on_ice' else 'dependency_not_met' end
    when 'ignored' then 'unserved'
    when 'failed' then case
      when type = 'command' then 'command_refused'
      when said ~ '^killed(; its (process \d+|command) runs as .+ and could not be ended: it is left)?$' then 'killed'
      when said ~ '^recovery_(timeout|failure): ' then split_part(said, ':', 1)
      when said ~ '^not started by ' then 'expired'
      when said ~ '^(timeout: ran|item took|the query ran) longer than ' then 'timeout'
      when said ~ '^(no heartbeat for |does not read its line($|; its (process|command) ))' then 'no_heartbeat'
      when said ~ '^(interrupted more than \d+ times|its scheduler died \d+ times)' then 'interrupted'
      when said ~ '^\d+ items failed, \d+ tolerated$' then 'items_failed'
      when said ~ '^no progress: ' then 'no_progress'
      when said ~ '^role .+ may not queue agent type ' then 'not_permitted'
      when said ~ '^the database refuses a ' then 'not_saved'
      when said ~ '\(SQLSTATE [0-9A-Z]{5}(, at character \d+)?\)$' then 'query_failed'
      when said ~ '^its (parameter or variables|variables or its SQL) '
           or said ~ '^the (parameter (is|holds|has)|query gives|key column|command names|rows of the query) '
           or said ~ '^(\d+ rows of the query|key ''|column name|jq_key names|jq_runonpfile names)'
      then 'invalid_definition'
      when said ~ '^agent ''.+'': cannot start ''' or status in (126, 127) then 'launch_failure'
      when signal is not null or said ~ '^(killed by |protocol violation: |agent terminated prematurely, by )'
      then 'agent_died'
      when said ~ '^(exit status |agent terminated prematurely)' then 'exit_status'
      else 'agent_error' end
    end
$$;
