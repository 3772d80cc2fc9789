-- Variables that operators give to all jobs of commands (exec agents), or to those of one type.
create table drover.variable (
  variable_type  text not null default '',  -- of jobs; '' is all
  variable_name  text not null check (variable_name ~ '^[A-Za-z_][A-Za-z0-9_]{0,63}$'),
  variable_value text not null check (octet_length(variable_value) <= 16384),
  primary key (variable_type, variable_name)
);

-- Give a new job the variables of its type and those of all, behind its own. What is changed later it does not get.
create function drover.give_variables() returns trigger
language plpgsql security definer set search_path = drover, pg_temp as $$
begin
  if exists (select from agent where agent_type = new.jq_type and agent_kind = 'exec') then
    select nullif(coalesce(jsonb_object_agg(variable_name, variable_value order by variable_type), '{}')
                  || coalesce(new.jq_variables, '{}'), '{}')
      into new.jq_variables from variable where variable_type in ('', new.jq_type);
  end if;
  return new;
end $$;

-- Enabled as long as there is a variable. Its name comes before those that look at lengths and choose a queue.
create trigger jobqueue_give_variables before insert on drover.jobqueue for each row
  when (new.jq_type not in ('command', 'cleanup', 'notify') and not new.jq_msq
        and coalesce(jsonb_typeof(new.jq_variables), 'object') = 'object')
  execute function drover.give_variables();
alter table drover.jobqueue disable trigger jobqueue_give_variables;

-- Let inserts ask for variables, or not any more. The first and the end of the last need a lock on jobqueue.
create function drover.expect_variables() returns trigger
language plpgsql security definer set search_path = drover, pg_temp set lock_timeout = '1500ms' as $$
declare
  is_wanted boolean := exists (select from variable);
  is_on     boolean;
begin
  perform pg_advisory_xact_lock(hashtextextended('drover.expect_variables', 0));
  select tgenabled <> 'D' into is_on from pg_catalog.pg_trigger
   where tgrelid = 'drover.jobqueue'::regclass and tgname = 'jobqueue_give_variables';
  if is_wanted and not is_on then
    alter table drover.jobqueue enable trigger jobqueue_give_variables;
  elsif is_on and not is_wanted then
    alter table drover.jobqueue disable trigger jobqueue_give_variables;
  end if;
  return null;
end $$;

create trigger variable_is_expected after insert or delete on drover.variable
  for each statement execute function drover.expect_variables();
