-- Deliveries that wait for the agent type notify are looked at as soon as it is enabled, not at the next rescan.
create trigger notify_can_deliver after update of agent_enabled, agent_present on drover.agent for each row
  when (new.agent_type = 'notify' and new.agent_enabled and new.agent_present
        and not (old.agent_enabled and old.agent_present))
  execute function drover.wake('drover_delivery');
