-- Filters and rate limits of queues that commands set: they stay until the configuration changes them.
alter table drover.queue
  add column queue_zone       text not null default 'UTC',  -- of the times in the filter
  add column queue_route_file jsonb,                        -- queue_route and queue_rate as the configuration had them
  add column queue_rate_file  jsonb;
update drover.queue
   set queue_zone = coalesce(queue_route ->> 'zone', 'UTC'), queue_route_file = nullif(queue_route, 'null'),
       queue_rate_file = queue_rate
 where queue_route is not null or queue_rate is not null;
