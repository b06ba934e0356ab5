create table postroad.process (
    process    text        primary key,
    role       text        not null check (role in ('intake', 'relay', 'stage')),
    host       text        not null,
    pid        integer     not null,
    version    text        not null,
    stages     text[]      not null default '{}',
    is_leading boolean     not null default false,
    running    jsonb       not null default '[]',
    started_at timestamptz not null,
    seen_at    timestamptz not null,
    stopped_at timestamptz
) with (fillfactor = 50);

comment on table postroad.process is
    'The processes of the deployment. Each writes its row every 5 s; one that was not seen for a day is removed.';

comment on column postroad.process.process is '<host>:<pid>:<8 hex>, new at every start; of a stage process the name of its consumer.';

comment on column postroad.process.stages is 'What a stage process runs, as pipeline.stage.';

comment on column postroad.process.is_leading is 'The relay that works; the others wait for it to end.';

comment on column postroad.process.running is
    'The attempts that a stage process makes now, the oldest 100 of them: task_id, stage, attempt, since (by its own clock).';

comment on column postroad.process.stopped_at is 'When it said that it stops. Null, and not seen for 15 s: it died, hangs, or is cut off from Postgres.';
