-- The last line that a program printed on stderr is a part of the reason why it failed. So no code of an end is derived
-- from what stands behind its exit status, and why names the command that lists failed items.
--
-- Both definitions are changed in one place each, whatever else has changed in them.

do $$
declare
  before text := pg_get_functiondef(
    'drover.end_code(drover.job_state, text, integer, text, integer, text)'::regprocedure);
  after  text := replace(before, 'when said ~ ''\(SQLSTATE ',
    'when said !~ ''^(exit status |killed by |agent terminated prematurely)'' and said ~ ''\(SQLSTATE ');
begin
  if after = before then
    raise 'drover.end_code is not the function that this migration changes';
  end if;
  execute after;
end $$;

do $$
declare
  before text := pg_get_viewdef('drover.reason'::regclass);
  after  text := replace(before, '; the reason of each: drover log ', '; the reason of each: drover items ');
begin
  if after = before then
    raise 'drover.reason is not the view that this migration changes';
  end if;
  execute 'create or replace view drover.reason as ' || after;
end $$;
