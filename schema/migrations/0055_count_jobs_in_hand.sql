-- A command about many jobs counts in its row the jobs in hand whose end it has told to the scheduler, so that one that
-- goes on with it after a crash counts them too. The scheduler takes off those that had ended by themselves.
do $$
declare
  body text := pg_get_functiondef('drover.change_jobs(bigint, uuid, integer)'::regprocedure);
  part record;
begin
  for part in select * from (values
    (E'  hand     bigint[] :=', E'  before   bigint;  -- and those of the batches before\n  hand     bigint[] :='),
    (E'  refused := c.jq_itemsfailed;\n',
     E'  refused := c.jq_itemsfailed;\n  before := coalesce((c.jq_result ->> ''told'')::bigint, 0);\n'),
    ('jq_endtext = done || ''', 'jq_endtext = done + before + told || '''),
    ('''given'', given, ''reasons'', reasons)', '''given'', given, ''reasons'', reasons, ''told'', before + told)')
  ) as parts (old, new) loop
    if position(part.old in body) = 0 then
      raise exception 'drover.change_jobs does not count as it was thought to: %', part.old;
    end if;
    body := replace(body, part.old, part.new);
  end loop;
  execute body;
end $$;
