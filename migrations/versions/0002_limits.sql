alter table postroad.stage
    add column rate        text,
    add column burst       integer check (burst > 0),
    add column max_running integer check (max_running > 0);

comment on column postroad.stage.rate is
    'How many attempts may begin in a time, as 200/s; "off": as many as there are; null: as the code says.';

comment on column postroad.stage.max_running is
    'How many attempts may run at once, over all processes; null: as the code says.';
