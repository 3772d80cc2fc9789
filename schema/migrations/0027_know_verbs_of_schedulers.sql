-- The verbs for every scheduler that each scheduler knows: a command waits only for the schedulers that know its verb.
-- The default is what the versions know that do not write this column.
alter table drover.scheduler add column scheduler_verbs text[] not null
  default array['shutdown', 'reload', 'reopen-log', 'verbose', 'reset', 'poll'];
