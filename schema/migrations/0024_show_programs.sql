-- Which program the process of a slot runs, of a type whose new programs are tried first: the digest of its file.
alter table drover.scheduler_status add column status_program text;
