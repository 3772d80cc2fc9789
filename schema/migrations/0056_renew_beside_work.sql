-- A daemon renews its lease while its statements run, however long they take: they lock the row of the group
-- `for key share`, which an update of the lease does not wait for. Whoever changes the owner, of any version, waits for
-- them, so that nothing of the former owner commits after it.
create function drover.wait_for_owner() returns trigger
  language plpgsql set search_path = drover, pg_temp as $$
begin
  perform from scheduler_group where group_name = old.group_name for update;
  return new;
end $$;

create trigger scheduler_group_waits_for_owner before update of group_owner on drover.scheduler_group for each row
  when (new.group_owner is distinct from old.group_owner) execute function drover.wait_for_owner();

do $$
declare
  before constant text := 'where group_owner = owner for share;';
  body   constant text := pg_get_functiondef('drover.want_jobs(bigint[], uuid, text)'::regprocedure);
begin
  if position(before in body) = 0 then
    raise exception 'drover.want_jobs does not lock the row of the group as it was thought to';
  end if;
  execute replace(body, before, 'where group_owner = owner for key share;');
end $$;
