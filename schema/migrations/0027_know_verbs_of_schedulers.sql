-- Which verbs for every scheduler each scheduler knows, so that none waits for one of a version before the verb. The
-- default are those of the versions that do not say.
alter table drover.scheduler add column scheduler_verbs text[] not null
  default array['shutdown', 'reload', 'reopen-log', 'verbose', 'reset', 'poll'];
