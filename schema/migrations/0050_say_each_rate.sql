-- As before; but a limit for each submitter, or for each value of another attribute, is said as one.
create or replace view drover.rate_limited as
  select jq_pk, 'rate limit of queue ' || queue_name || ': '
           || case when (queue_rate ->> 'rate')::integer > 0 then queue_rate ->> 'rate' else queue_rate ->> 'each' end
           || ' starts in ' || (queue_rate ->> 'interval')::double precision || ' s'
           || case when (queue_rate ->> 'rate')::integer > 0 then '' else ' with one ' || (queue_rate ->> 'by') end
           || ', next at ' || date_trunc('second', start_next + interval '00:00:00.999') as says
    from drover.jobqueue
    join drover.queue on queue_name = jq_queue and queue_rate is not null
    join drover.queue_start on start_queue = queue_name and start_value = '' and start_next > now()
   where jq_state = 'queued';
