alter table postroad.stage
    add column resting_until timestamptz,
    add column rests         integer not null default 0,
    add column trouble       text;

comment on column postroad.stage.resting_until is
    'The service behind the stage does not answer well: until then nothing begins, and then one attempt, to see.';

comment on column postroad.stage.trouble is
    'Why the stage rests, or was paused by itself.';

alter table postroad.stage_run
    drop constraint stage_run_status_check,
    add constraint stage_run_status_check check (status in ('done', 'failed', 'snoozed', 'waiting', 'dead')),
    drop constraint stage_run_check1,
    add constraint stage_run_next_retry_at_check
        check ((next_retry_at is null) or (status in ('failed', 'snoozed', 'waiting'))),
    add column lease  bytea,
    add column answer jsonb;

create unique index stage_run_lease on postroad.stage_run (lease) where lease is not null;

comment on column postroad.stage_run.lease is
    'SHA-256 of the token with which a service reports how the work ended that it has begun.';

comment on column postroad.stage_run.answer is
    'What the service reported: while the status is waiting for a worker to commit it, else to know it when it is repeated.';
