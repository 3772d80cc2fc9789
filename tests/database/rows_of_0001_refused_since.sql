-- What the first migration lets in and a later one does not; see test_migrated_rows.py.

insert into drover.job (job_name, job_queued) values ('ever', 'infinity'), ('never', '-infinity'), ('far', '20000-01-01');
insert into drover.jobqueue (jq_type, jq_args) values ('l', repeat('x', 5000000));
insert into drover.jobqueue (jq_type, jq_variables) values ('l', jsonb_build_object('a', repeat('x', 5000000)));
insert into drover.jobqueue (jq_type, jq_name) values ('l', 'l.' || repeat('x', 2100));
insert into drover.jobqueue (jq_type, jq_timeout) values ('l', '200 years');
insert into drover.jobqueue (jq_type, jq_not_before, jq_not_after) values ('l', '-infinity', 'infinity');
insert into drover.jobqueue (jq_type, jq_name, jq_not_before) values ('l', 'l.never', 'infinity');
insert into drover.jobqueue (jq_type, jq_name, jq_not_after) values ('l', 'l.late', '-infinity');
insert into drover.jobqueue (jq_type, jq_args, jq_runonpfile) values ('l', 'select 1', '');
