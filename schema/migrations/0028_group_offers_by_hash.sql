-- Jobs of one statement share rows of drover.claimable by 32. To sort them first, in 4 MB of memory, was a tenth of
-- what 100,000 copied rows cost a front-end; the settings of its session must not decide how it is done.
alter function drover.offer_new() set enable_sort = off;
alter function drover.offer_new() set work_mem = '64MB';
