-- A command about many jobs counts those that it has changed. Jobs in hand are ended by the scheduler, which counts
-- those that had not ended by themselves meanwhile.
do $$
declare
  before constant text := 'done := done + cardinality(step.changed) + told;';
  body   constant text := pg_get_functiondef('drover.change_jobs(bigint, uuid, integer)'::regprocedure);
begin
  if position(before in body) = 0 then
    raise exception 'drover.change_jobs does not count as it was thought to';
  end if;
  execute replace(body, before, 'done := done + cardinality(step.changed);');
end $$;
