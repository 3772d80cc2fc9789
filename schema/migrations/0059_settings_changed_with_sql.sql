-- Settings of hosts and types that somebody changes with SQL are read at once, as those of queues are, and not with the
-- next rescan.
create trigger host_wake
  after update of host_group, host_present, host_max, host_urgent, host_enabled, host_types, host_queues,
                  host_priorities on drover.host
  for each statement execute function drover.wake('drover_change');

create trigger agent_wake
  after update of agent_group, agent_present, agent_enabled, agent_trial on drover.agent
  for each statement execute function drover.wake('drover_change');
