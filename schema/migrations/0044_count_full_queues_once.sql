-- Whether a queue is full is asked for each kind of jobs that `drover why --all` explains: the jobs in hand are looked
-- up by one scan of an index, no more of them than the queue takes, and none for a queue without a limit.
do $$
declare
  before constant text := 'WHEN \(q\.queue_concurrency <= \( SELECT count\(DISTINCT pk\.pk\).*?LIMIT 1\) t\)\) THEN';
  body   constant text := pg_get_viewdef('drover.reason'::regclass);
  after  constant text := regexp_replace(body, before, 'when q.queue_concurrency <= (
    select case when q.queue_concurrency is not null then (
      select count(*) from (
        select from drover.jobqueue t
         where t.jq_pk = any (array(select unnest(hand_jobs) from drover.in_hand)) and t.jq_queue = q.queue_name
           and (t.jq_state in (''claimed'', ''running'')
                or t.jq_state = ''queued'' and t.jq_unmet = 0 and t.jq_wait_until is null and t.jq_type <> ''command''
                   and not drover.has_token(t))
         limit q.queue_concurrency) held) end) then');
begin
  if after = body then
    raise exception 'drover.reason does not say when a queue is full as it was thought to';
  end if;
  execute 'create or replace view drover.reason as ' || after;
end $$;
