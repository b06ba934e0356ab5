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

create view postroad.task_journey as
select event.task_id, event.pipeline, event.position,
       event.type || coalesce(':' || event.stage, '') as event, event.stage, event.occurred_at,
       attempt.outcome, attempt.attempt, attempt.worker,
       attempt.ended_at - attempt.ran - attempt.waited as ready_at, attempt.ended_at - attempt.ran as started_at,
       attempt.ended_at, attempt.waited, attempt.ran, attempt.ended_at + attempt.delay as next_at,
       event.data ->> 'reason' as reason, attempt.error, event.data ->> 'by' as by,
       substr(coalesce(attempt.traceparent, event.traceparent), 4, 32) as trace_id,
       substr(case when event.type = 'TaskCreated' then event.traceparent else attempt.traceparent end, 37, 16) as span_id,
       event.data
  from postroad.outbox as event
  left join lateral (
       select case event.type when 'StageCompleted' then 'done' when 'StageFailed' then 'failed'
                              when 'StageSnoozed' then 'snoozed' when 'StageHanded' then 'waiting'
                              else 'dead' end as outcome,
              (event.data ->> 'attempt')::integer as attempt,
              event.data ->> 'worker' as worker,
              coalesce((event.data ->> 'started_at')::timestamptz
                       + make_interval(secs => (event.data ->> 'ran_seconds')::float8), event.occurred_at) as ended_at,
              make_interval(secs => (event.data ->> 'waited_seconds')::float8) as waited,
              make_interval(secs => (event.data ->> 'ran_seconds')::float8) as ran,
              make_interval(secs => (event.data ->> 'delay_seconds')::float8) as delay,
              event.data ->> 'error' as error,
              event.data ->> 'traceparent' as traceparent
        where event.type in ('StageCompleted', 'StageFailed', 'StageSnoozed', 'StageHanded', 'StageDead')
       offset 0
       ) as attempt on true;

comment on view postroad.task_journey is
    'What happened to a task, a row for each step; order by position. A step that ends an attempt has an outcome (done, failed,
snoozed, waiting: handed to a service, dead), the number of the attempt (of a snoozed one, which is not counted, that
of the one before), who made it, when it was ready, started and ended, how long it waited and ran, when it is tried again
(next_at), reason and error. It is ready from when it was asked for and due; if Redis had lost it, from when it was asked
for again. started_at is by the clock of the worker. by: the person who stepped in. trace_id and span_id are those of
the step''s own span, if it was recorded, else trace_id is that of the task. Events of 30 days at least; those of an
attempt from before version 0008 have no times. Fast for a task_id, and in a join on it; without one it reads all events.';

create view postroad.stage_latency as
with hour as materialized (
    select coalesce(
               (select pg_snapshot_xmin(snapshot)
                  from postroad.tick
                 where tick <= (extract(epoch from now() - interval '1 hour') * 1000)::bigint
                   and system_identifier = (select system_identifier from pg_control_system())
                 order by tick desc
                 limit 1),
               '0') as first
),
attempt as materialized (
    select pipeline, stage, type,
           (data ->> 'waited_seconds')::float8 as waited, (data ->> 'ran_seconds')::float8 as ran
      from postroad.outbox
     where xid >= (select first from hour)
       and xid < pg_snapshot_xmax(pg_current_snapshot())
       and occurred_at > now() - interval '1 hour'
       and type in ('StageCompleted', 'StageFailed', 'StageDead')
)
select pipeline, stage, attempts, done, failed, dead,
       make_interval(secs => wait[1]) as wait_p50, make_interval(secs => wait[2]) as wait_p95,
       make_interval(secs => wait[3]) as wait_p99,
       make_interval(secs => run[1]) as run_p50, make_interval(secs => run[2]) as run_p95,
       make_interval(secs => run[3]) as run_p99
  from (select pipeline, stage, count(*) as attempts,
               count(*) filter (where type = 'StageCompleted') as done,
               count(*) filter (where type = 'StageFailed') as failed,
               count(*) filter (where type = 'StageDead') as dead,
               percentile_cont('{0.5,0.95,0.99}'::float8[]) within group (order by waited) as wait,
               percentile_cont('{0.5,0.95,0.99}'::float8[]) within group (order by ran) as run
          from attempt
         group by pipeline, stage) as counted;

comment on view postroad.stage_latency is
    'The attempts of the last hour by stage: how many there were, were done, failed (and are tried again) or died; and the
median, the 95th and the 99th percentile of how long they waited, from when they were ready, and ran. Snoozes and what
is handed to a service do not count. Reads the events of the hour, whatever else it is asked for.';

create view postroad.dead_letters as
select letter.dead_letter_id, letter.task_id, letter.pipeline, letter.stage, letter.reason, letter.error,
       letter.fingerprint, letter.attempts, letter.died_at, now() - letter.died_at as age,
       task.labels, task.created_at, task.submitted_by
  from postroad.dead_letter as letter
  join postroad.task using (task_id)
 where letter.resolved_at is null;

comment on view postroad.dead_letters is
    'What will not be retried by itself, until a person requeues or discards it. Those that failed alike have one fingerprint.
Fast for a task_id, and for a pipeline with stage and fingerprint; else it reads all that are unresolved.';

create view postroad.failures as
select pipeline, stage, fingerprint, count(*) as letters, min(died_at) as oldest, max(died_at) as newest,
       (array_agg(reason order by died_at desc))[1] as reason, (array_agg(task_id order by died_at desc))[1] as task_id
  from postroad.dead_letter
 where resolved_at is null
 group by pipeline, stage, fingerprint;

comment on view postroad.failures is
    'The unresolved dead letters by what they failed of; reason and task_id are those of the newest.
Reads all that are unresolved, or those of the pipeline that it is asked for.';

create view postroad.open_work as
select task.task_id, task.pipeline, task.status, task.priority, task.created_at, stage.stage,
       case
           when letter.died_at is not null then 'dead'
           when run.status = 'dead' then 'discarded'
           when running.process is not null then 'running'
           when not stage.after <@ task.stages_done then 'blocked'
           when run.status = 'waiting' and run.answer is null then 'waiting'
           when run.next_retry_at > now() then 'retrying'
           when task.not_before > now() then 'scheduled'
           when stage.paused then 'paused'
           when stage.resting_until > now() then 'resting'
           else 'ready'
       end as state,
       case
           when run.status = 'dead' then run.finished_at
           when running.process is not null then running.since
           when run.status = 'waiting' and run.answer is null or run.next_retry_at > now() then run.started_at
           when not stage.after <@ task.stages_done or task.not_before > now() then task.created_at
           else greatest(task.created_at, task.not_before, run.next_retry_at, before.done_at)
       end as since,
       case
           when run.status = 'dead' or running.process is not null or not stage.after <@ task.stages_done then null
           when run.next_retry_at > now() then run.next_retry_at
           when task.not_before > now() then task.not_before
           when not stage.paused and stage.resting_until > now() then stage.resting_until
       end as until,
       coalesce(running.attempt, run.attempts, 0) as attempts,
       coalesce(running.process, run.worker) as worker,
       coalesce(letter.reason, regexp_replace(btrim(run.error, E' \n'), '^.*\n', '')) as reason,
       array(select unnest(stage.after) except select unnest(task.stages_done) order by 1) as waits_for
  from postroad.task
  join postroad.stage using (pipeline)
  left join postroad.stage_run as run on run.task_id = task.task_id and run.stage = stage.stage
  left join postroad.dead_letter as letter
         on letter.task_id = task.task_id and letter.stage = stage.stage and letter.resolved_at is null
  left join lateral (
       select max(finished_at) as done_at
         from postroad.stage_run as one
        where one.task_id = task.task_id and one.stage = any (stage.after)
       ) as before on true
  left join (
       select process.process, attempt.task_id, attempt.stage, attempt.attempt, attempt.since
         from postroad.process
        cross join jsonb_to_recordset(process.running)
              as attempt (task_id uuid, stage text, attempt integer, since timestamptz)
        where process.stopped_at is null and process.seen_at > now() - interval '15 seconds'
       ) as running
         on running.task_id = task.task_id and running.stage = stage.stage
 where task.status not in ('completed', 'cancelled')
   and stage.stage <> all (task.stages_done);

comment on view postroad.open_work is
    'What is to be done of each task that is neither completed nor cancelled: a row for each stage that is not done, with its
state since when, until when if there is a date, how many attempts there were (with the one that runs), who made the last,
and of what it failed. state: ready (in the outbox, in a stream, or delivered), running (as of the last 5 s), retrying,
scheduled (may not start yet), waiting (for the report of a service), paused, resting (its service is away), blocked (it
waits_for other stages), dead, discarded (a dead letter that nobody requeued). postroad explain says more of a task.
Fast for a task_id, and for a pipeline and the time of creation; else it reads all tasks that are open or have failed.';

create view postroad.operator_actions as
select event.occurred_at as at, event.data ->> 'by' as by, event.data ->> 'on_behalf_of' as on_behalf_of,
       case event.type when 'TaskCancelled' then 'cancel' when 'TaskRetried' then 'retry'
                       when 'StageRequeued' then 'requeue' when 'DeadLetterDiscarded' then 'discard'
                       else 'drop' end as action,
       event.pipeline || coalesce('.' || event.stage, '') as target, event.pipeline, event.task_id,
       event.data ->> 'reason' as reason, event.data -> 'before' as before, event.data -> 'after' as after,
       (event.data ->> 'operation')::bigint as operation_id
  from postroad.outbox as event
 where event.type in ('TaskCancelled', 'TaskRetried', 'StageRequeued', 'StageDropped', 'DeadLetterDiscarded')
union all
select at, by, on_behalf_of, action, target, pipeline, null, reason, before, after, operation_id
  from postroad.operation;

comment on view postroad.operator_actions is
    'Who did what, when, why, to what, and how it was before and after. What was done to a task has its task_id. Dead letters that
were requeued or discarded together have one operation_id, and so has the row of that operation; other operations are
rows of their own. drop: the work at a stage that a deployment removed. Those on tasks are kept for 30 days at least,
the others for good. Fast for a task_id; without one it reads all actions, but no other events: 20,000 of them in 25 ms.';

create view postroad.processes as
select process, role, host, pid, version, stages,
       case when stopped_at is not null then 'stopped' when seen_at > now() - interval '15 seconds' then 'alive'
            else 'silent' end as state,
       is_leading and stopped_at is null and seen_at > now() - interval '15 seconds' as is_leading,
       jsonb_array_length(running) as running, (running -> 0 ->> 'since')::timestamptz as running_since,
       started_at, seen_at, stopped_at
  from postroad.process;

comment on view postroad.processes is
    'The processes of the last day: what each is, whether it lives (silent: not seen for 15 s, so it died, hangs, or is cut off
from Postgres), how many attempts it makes now (100 at most are told), and since when the oldest of them.';
