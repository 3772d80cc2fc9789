-- Notify schedulers when settings of hosts or agent types are changed, so that they read them at once and not at the
-- next rescan. Columns that daemons write themselves, such as agent_trial, notify nobody.
create trigger host_wake
  after update of host_group, host_present, host_max, host_urgent, host_enabled, host_types, host_queues,
                  host_priorities on drover.host
  for each statement execute function drover.wake('drover_change');

create trigger agent_wake
  after update of agent_group, agent_present, agent_enabled on drover.agent
  for each statement execute function drover.wake('drover_change');
