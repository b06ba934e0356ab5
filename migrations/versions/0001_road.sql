create table postroad.pipeline (
    pipeline    text        primary key,
    definition  jsonb       not null,
    version     integer     not null check (version > 0),
    deployed_at timestamptz not null default now()
);

comment on table postroad.pipeline is
    'The graphs of stages, as last deployed. Written by postroad deploy and by a worker that meets a new pipeline.';

create table postroad.stage (
    pipeline text    not null references postroad.pipeline,
    stage    text    not null,
    after    text[]  not null default '{}' check (stage <> all (after)),
    paused   boolean not null default false,
    primary key (pipeline, stage)
);

comment on column postroad.stage.after is 'The stages that must be done before this one; none for a first stage.';

create table postroad.task (
    task_id      uuid        primary key,
    pipeline     text        not null references postroad.pipeline,
    payload      jsonb       not null,
    labels       jsonb       not null default '{}',
    status       text        not null default 'pending'
                 check (status in ('pending', 'in_progress', 'completed', 'failed', 'cancelled')),
    stage_status text        not null default 'received',
    stages_done  text[]      not null default '{}',
    retry_count  integer     not null default 0 check (retry_count >= 0),
    version      integer     not null default 1 check (version > 0),
    trace_id     text        not null,
    traceparent  text        not null,
    created_at   timestamptz not null default now(),
    updated_at   timestamptz not null default now(),
    finished_at  timestamptz,
    check ((finished_at is not null) = (status in ('completed', 'failed', 'cancelled')))
) with (fillfactor = 70);

comment on table postroad.task is
    'One row for each accepted task. Every write is conditional on version and raises it by one.';

create index task_unfinished on postroad.task (pipeline, created_at) where status not in ('completed', 'cancelled');

create index task_created_at on postroad.task (created_at, task_id);

create table postroad.intake_key (
    pipeline     text        not null,
    key          text        not null check (length(key) between 1 and 255),
    request_hash bytea       not null,
    task_id      uuid        not null,
    created_at   timestamptz not null default now(),
    primary key (pipeline, key)
);

comment on table postroad.intake_key is
    'Which task an idempotency key stands for, and the SHA-256 of the request. Outlives the task.';

create table postroad.stage_run (
    task_id       uuid        not null references postroad.task on delete cascade,
    stage         text        not null,
    status        text        not null check (status in ('done', 'failed', 'snoozed', 'dead')),
    attempts      integer     not null check (attempts >= 0),
    result        jsonb,
    error         text,
    next_retry_at timestamptz,
    worker        text,
    started_at    timestamptz,
    finished_at   timestamptz,
    primary key (task_id, stage),
    check ((finished_at is not null) = (status in ('done', 'dead'))),
    check ((next_retry_at is null) or (status in ('failed', 'snoozed')))
) with (fillfactor = 85);

comment on table postroad.stage_run is
    'What is known of one (task, stage) since its first outcome; at most one success is ever committed for it.';

create table postroad.outbox (
    position    bigint      generated always as identity,
    slot        smallint    not null,
    xid         xid8        not null default pg_current_xact_id(),
    task_id     uuid        not null,
    pipeline    text        not null,
    type        text        not null,
    stage       text,
    data        jsonb       not null default '{}',
    traceparent text,
    occurred_at timestamptz not null default now(),
    primary key (position, slot)
) partition by list (slot);

comment on table postroad.outbox is
    'What happened, appended in the transaction that made it true. Read in windows of ticks; also the audit trail.';

comment on column postroad.outbox.xid is
    'The top-level transaction that appended the row. The system column xmin is wrong inside savepoints.';

create table postroad.outbox_0 partition of postroad.outbox for values in (0);

create table postroad.outbox_1 partition of postroad.outbox for values in (1);

create table postroad.outbox_2 partition of postroad.outbox for values in (2);

create table postroad.outbox_3 partition of postroad.outbox for values in (3);

create table postroad.outbox_4 partition of postroad.outbox for values in (4);

create table postroad.outbox_5 partition of postroad.outbox for values in (5);

create table postroad.outbox_6 partition of postroad.outbox for values in (6);

create table postroad.outbox_7 partition of postroad.outbox for values in (7);

create index outbox_xid on postroad.outbox (xid);

create index outbox_task on postroad.outbox (task_id, position);

create function postroad.outbox_slot() returns smallint language sql stable parallel safe
return mod(extract(epoch from now())::bigint / 432000, 8)::smallint;

comment on function postroad.outbox_slot() is
    'The leaf of the ring for events of this transaction: a new one every 5 days, so that 8 of them hold the 30 days
of retention and leave one to be emptied while another fills.';

alter table postroad.outbox alter column slot set default postroad.outbox_slot();

create table postroad.tick (
    tick              bigint      primary key,
    snapshot          pg_snapshot not null,
    system_identifier bigint      not null,
    made_at           timestamptz not null default clock_timestamp()
);

comment on table postroad.tick is
    'Bounds of the batches of events: what is visible in one tick and was not in the one before. Insert-only.';

insert into postroad.tick (tick, snapshot, system_identifier)
select 0, '3:3:', system_identifier from pg_control_system();

create table postroad.dead_letter (
    dead_letter_id bigint      generated always as identity primary key,
    task_id        uuid        not null references postroad.task on delete cascade,
    pipeline       text        not null,
    stage          text        not null,
    reason         text        not null,
    error          text,
    fingerprint    text        not null,
    attempts       integer     not null,
    died_at        timestamptz not null default now(),
    resolved_at    timestamptz,
    resolution     text check (resolution in ('requeued', 'discarded')),
    resolved_by    text,
    check ((resolved_at is null) = (resolution is null))
);

comment on table postroad.dead_letter is
    'A (task, stage) that will not be retried by itself, until a person has resolved it.';

create unique index dead_letter_unresolved on postroad.dead_letter (task_id, stage) where resolved_at is null;

create index dead_letter_fingerprint on postroad.dead_letter (pipeline, stage, fingerprint) where resolved_at is null;

create function postroad.wake_relay() returns trigger language plpgsql as $$
begin
    -- A relay that sleeps holds this lock alone. If we get it shared, no relay sleeps, and none will before it has
    -- looked once more: until we commit it cannot have the lock.
    if not pg_try_advisory_xact_lock_shared(hashtextextended('postroad.asleep', 0)) then
        perform pg_notify('postroad.outbox', '');
    end if;
    return null;
end $$;

create trigger wake_relay after insert on postroad.outbox
    for each statement execute function postroad.wake_relay();
