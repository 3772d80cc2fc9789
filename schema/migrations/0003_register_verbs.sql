-- The verbs of commands, and which roles may give them. `drover init` writes the rows from the registry in
-- scheduler/model/commands.py: a new verb needs no migration.
create table drover.verb (
  verb_name       text primary key,
  verb_number     integer not null,  -- its place in lists
  verb_for_owners boolean not null,  -- the submitter of a job may give it about that job
  verb_job_every  integer not null,  -- every how many words one names a job: 1, all; 0, only the first
  check (verb_job_every >= 0)
);

-- Insert a command. A role that is no operator may give commands about its own jobs only, by number or name, and no
-- signal that stops an agent without ending it: the agent may have lines of other jobs.
create or replace function drover.command(words text) returns bigint
  language plpgsql security definer set search_path = drover, pg_temp as $$
declare
  is_free boolean := drover.may_command();
  given   text := drover.word(words, 1);
  rest    text[] := (regexp_split_to_array(btrim(words, E' \t\n\r'), E'[ \t\n\r]+'))[2:];
  entry   drover.verb;
  wrong   text;
  pk      bigint;
begin
  select * into entry from verb where verb_name = given;
  if not found then
    raise exception 'no such command: %; there are %', coalesce(quote_literal(left(nullif(given, ''), 64)), 'nothing'),
      (select string_agg(verb_name, ', ' order by verb_number) from verb where is_free or verb_for_owners)
      using errcode = 'invalid_parameter_value';
  elsif not is_free and not entry.verb_for_owners then
    raise exception 'only drover_operator may command %', given using errcode = 'insufficient_privilege';
  elsif not is_free and cardinality(rest) = 0 then
    raise exception '% of which job: a number or a jq_name is missing', given using errcode = 'invalid_parameter_value';
  elsif not is_free then
    select w into wrong from unnest(rest) with ordinality as u(w, n)
     where (n = 1 or (n - 1) % nullif(entry.verb_job_every, 0) = 0)
       and not exists (select from jobqueue where jq_submitter = session_user
                          and (jq_pk = case when w ~ '^[0-9]{1,18}$' then w::bigint end or jq_name = w))
     order by n limit 1;
    if found then
      raise exception 'job % is not yours', wrong using errcode = 'insufficient_privilege';
    end if;
    select w into wrong from unnest(rest) with ordinality as u(w, n)
     where given = 'signal' and n % 2 = 0
       and regexp_replace(upper(w), '^SIG', '') <> all ('{INT,TERM,HUP,USR1,USR2,2,15,1,10,12}')
     order by n limit 1;
    if found then
      raise exception 'only drover_operator may send signal %: owners send INT, TERM, HUP, USR1 or USR2',
        left(wrong, 64)
        using errcode = 'insufficient_privilege', hint = 'killjob ends a job with its agents.';
    end if;
  end if;
  insert into jobqueue (jq_type, jq_args) values ('command', words) returning jq_pk into pk;
  return pk;
end $$;
