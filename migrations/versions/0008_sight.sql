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

alter table postroad.stage add column switched_at timestamptz;

comment on column postroad.stage.switched_at is 'When the stage was paused or resumed last, by a person or by itself.';

create table postroad.operation (
    operation_id bigint      generated always as identity primary key,
    at           timestamptz not null default now(),
    by           text        not null,
    on_behalf_of text,
    action       text        not null,
    target       text        not null,
    pipeline     text,
    reason       text,
    before       jsonb,
    after        jsonb
);

comment on table postroad.operation is
    'What people did to other things than one task, written in the transaction that did it. Append-only.
What they did to a task is in its journey; the view operator_actions has both.';

comment on column postroad.operation.on_behalf_of is 'For whom whoever asked said that they ask.';

comment on column postroad.operation.target is 'pipeline.stage, the id of a key, the name of a schedule, or: dead letters.';

create index operation_at on postroad.operation (at);

create index outbox_operator on postroad.outbox (occurred_at)
    where type in ('TaskCancelled', 'TaskRetried', 'StageRequeued', 'StageDropped', 'DeadLetterDiscarded');
