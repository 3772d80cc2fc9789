-- How far an SQL job is, in one sentence for every command and page: items that have ended of all, failed ones, how
-- many end in a time, and how long the others take.

create function drover.progress(
  processed bigint, failed bigint, total bigint, elapsed interval, expected_end timestamptz
) returns text language sql stable parallel safe as $$
  select concat_ws(', ',
    to_char(processed + failed, 'FM999,999,999,999,990') || ' of ' || to_char(total, 'FM999,999,999,999,990')
      || ' items',
    case when failed > 0 then to_char(failed, 'FM999,999,999,999,990') || ' failed' end,
    case when r.per_s >= 1 then to_char(r.per_s, 'FM999,999,999,990') || '/s'
         when r.per_s > 0 then to_char(r.per_s * 60, 'FM90.0') || ' a minute' end,
    'about ' || drover.about(extract(epoch from expected_end - now())::float8) || ' left')
    from (select (processed + failed) / nullif(extract(epoch from elapsed), 0)::float8 as per_s) r
   where total is not null
$$;

-- As before, now with failed items and the rate; drover.reason adds the time that is left.
create or replace function drover.items(job drover.jobqueue) returns text language sql stable parallel safe as $$
  select drover.progress(job.jq_itemsprocessed, job.jq_itemsfailed, job.jq_itemstotal, job.jq_elapsedtime, null)
$$;
