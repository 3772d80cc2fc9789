-- Since when a host cannot be reached. A daemon of a version before does not write it; then it is not said.
alter table drover.host add column host_down_since timestamptz;
