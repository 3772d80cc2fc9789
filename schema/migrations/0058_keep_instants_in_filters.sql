-- A time without a zone in the filter of a command is one of the session that gives the command, not of the scheduler,
-- which may have another TimeZone and DateStyle. A filter that leaves nothing out is refused as an empty one.
do $do$
declare
  body text;
  part record;
begin
  for part in select * from (values
    ('command(text, jsonb, interval)', $$'\1 all'), filter) returning$$,
     $$'\1 all'),
            filter || coalesce((select jsonb_object_agg(key, (value #>> '{}')::timestamptz) from jsonb_each(filter)
                                 where key in ('since', 'until', 'queued_since')), '{}'))
    returning$$),
    ('filter_mistake(jsonb)', $$or filter = '{}' then$$, $$or filter in ('{}', '{"hidden": true}') then$$),
    ('filter_mistake(jsonb)', $$'text') then jsonb_typeof(value) <> 'string'$$,
     $$'text')
              then jsonb_typeof(value) <> 'string' or value = '""'$$),
    ('filter_mistake(jsonb)', $$ when wrong = 'text' then 'a string'$$,
     $$
      when wrong = 'text' then 'a string, not an empty one'$$),
    ('filter_mistake(jsonb)', $$return sqlerrm;$$,
     $$return 'a time or a number in the filter cannot be read: ' || sqlerrm;$$)
  ) as parts (name, old, new) loop
    body := pg_get_functiondef(('drover.' || part.name)::regprocedure);
    if position(part.old in body) = 0 then
      raise exception 'drover.% has another body than was thought: %', part.name, part.old;
    end if;
    execute replace(body, part.old, part.new);
  end loop;
end $do$;
