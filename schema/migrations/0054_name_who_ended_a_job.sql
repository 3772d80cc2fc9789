-- A job that somebody ended says who and when. One function writes the text of its end, from the command and the role
-- that gave it; another one shows that text with the time. The row keeps the time in jq_endtime, as before.

-- Return the text of a job that a command ends. The name is quoted as in SQL, to be told from the words behind it.
create function drover.ended_by(command text, who name) returns text language sql immutable parallel safe as $_$
  select case drover.word(command, 1)
    when 'killjob' then 'killed by command of ' || quote_ident(who)
    else 'cancelled by ' || quote_ident(who)
           || coalesce(': ' || nullif(substring(btrim(command, E' \t\n\r') from '^\S+\s+\S+\s+(.*)$'), ''), '') end
$_$;

-- Return the text of a job that was cancelled or killed, with the time behind who did it; null for every other job.
create function drover.end_in_words(state drover.job_state, said text, at timestamptz) returns text
language sql stable parallel safe as $_$
  select case
    when state = 'cancelled' and said ~ '^cancelled($|;| by )'
    then regexp_replace(said, '^(cancelled( by ("([^"]|"")*"|[a-z_][a-z0-9_$]*))?)', '\1' || w.at)
    when state = 'cancelled' then 'cancelled' || w.at || coalesce(': ' || nullif(said, ''), '')
    when state = 'failed' and said ~ '^killed($|;| by command of )'
    then regexp_replace(said, '^(killed( by command of ("([^"]|"")*"|[a-z_][a-z0-9_$]*))?)', '\1' || w.at) end
    from (select to_char(at, case when at::date = current_date then '" at" ' else '" at" YYYY-MM-DD ' end || 'HH24:MI')
                   as at) w
$_$;

-- As before, in two functions: a job that was killed by the command of a role has the code `killed`; and jobs that a
-- command about many jobs ends get the text of ended_by. A row in hand has that in jq_wanted, where a daemon that takes
-- over reads it: without a text, such a row was given back there, and not cancelled.
do $do$
declare
  change record;
  source text;
begin
  for change in
    select * from (values
      ('drover.end_code(drover.job_state, text, integer, text, integer, text)',
       $a$'^killed(; its$a$,
       $b$'^killed( by command of ("([^"]|"")*"|[a-z_][a-z0-9_$]*))?(; its$b$),
      ('drover.change_jobs(bigint, uuid, integer)',
       $a$change_taken(entry.verb_name, words, taken)$a$,
       $b$change_taken(
        entry.verb_name, case entry.verb_name when 'cancel' then ended_by(c.jq_args, c.jq_submitter) else words end,
        taken)$b$),
      ('drover.change_jobs(bigint, uuid, integer)',
       $a$concat_ws(' ', 'cancel', words) end$a$,
       $b$'cancel ' || ended_by(c.jq_args, c.jq_submitter) end$b$)) as c(name, before, after)
  loop
    source := pg_get_functiondef(change.name::regprocedure);
    if strpos(source, change.before) = 0 then
      raise exception '% is not as the migrations made it', change.name;
    end if;
    execute replace(source, change.before, change.after);
  end loop;
end $do$;

-- As before; and the session that has the row of a job locked, the instant until which item_rate lets no item begin,
-- and who cancelled or killed a job, with the time.
create or replace view drover.why as
select r.jq_pk, r.jq_type, r.jq_state,
       case when r.jq_state = 'cancelled' then drover.end_in_words(r.jq_state, r.text, j.jq_endtime)
            else coalesce(d.says, a.says, k.says, l.says,
                          regexp_replace(r.says, '^in hand', 'claimed') || coalesce(n.says, ''))
                   || coalesce(drover.shown_code(j), '')
                   || coalesce(': ' || coalesce(drover.end_in_words(r.jq_state, r.text, j.jq_endtime), r.text), '')
       end as reason
  from drover.reason r
  join drover.jobqueue j on j.jq_pk = r.jq_pk
  left join drover.awaited a on a.jq_pk = r.jq_pk and r.jq_state = 'blocked'
  left join lateral (
    select says from drover.rate_limited where jq_pk = r.jq_pk and r.says like 'waits its turn%' offset 0) l on true
  left join lateral (
    select says from drover.runs_detached where jq_pk = r.jq_pk and r.jq_state = 'running' offset 0) d on true
  left join lateral (
    select case when r.jq_state = 'queued' then '' when r.jq_state = 'claimed' then 'claimed; '
                else r.says || '; ' end
             || w.says as says
      from drover.lockers() w
     where w.locker = j.xmax and r.jq_state in ('queued', 'claimed', 'running')
       and r.says ~ '^(waits its turn|in hand|running)' limit 1) k on true
  left join lateral (
    select ', the next at ' || date_trunc('second', agent_item_next) as says
      from drover.agent join drover.queue on agent_group = queue_group
     where queue_name = j.jq_queue and agent_type = j.jq_type and agent_item_next > now()
       and r.says like '%item_rate%' offset 0) n on true;

create or replace view drover.why_masked as
select r.jq_pk, r.jq_type, r.jq_state,
       case when r.jq_state = 'cancelled' then drover.end_in_words(r.jq_state, null, j.jq_endtime)
            else coalesce(d.says, a.says, k.says, l.says,
                          regexp_replace(r.says, '^in hand', 'claimed') || coalesce(n.says, ''))
                   || coalesce(drover.shown_code(j), '')
       end as reason
  from drover.reason r
  join drover.jobqueue j on j.jq_pk = r.jq_pk
  left join drover.awaited a on a.jq_pk = r.jq_pk and r.jq_state = 'blocked'
  left join lateral (
    select says from drover.rate_limited where jq_pk = r.jq_pk and r.says like 'waits its turn%' offset 0) l on true
  left join lateral (
    select says from drover.runs_detached where jq_pk = r.jq_pk and r.jq_state = 'running' offset 0) d on true
  left join lateral (
    select case when r.jq_state = 'queued' then '' when r.jq_state = 'claimed' then 'claimed; '
                else r.says || '; ' end
             || w.says as says
      from drover.lockers() w
     where w.locker = j.xmax and r.jq_state in ('queued', 'claimed', 'running')
       and r.says ~ '^(waits its turn|in hand|running)' limit 1) k on true
  left join lateral (
    select ', the next at ' || date_trunc('second', agent_item_next) as says
      from drover.agent join drover.queue on agent_group = queue_group
     where queue_name = j.jq_queue and agent_type = j.jq_type and agent_item_next > now()
       and r.says like '%item_rate%' offset 0) n on true;
