alter table postroad.pipeline add column priorities boolean not null default false;

comment on column postroad.pipeline.priorities is
    'Whether each of its stages has a stream for each priority; else there is one for all tasks.';

alter table postroad.task add column priority smallint not null default 1 check (priority between 0 and 2);

comment on column postroad.task.priority is '0 low, 1 normal, 2 high.';

alter table postroad.outbox add column priority smallint not null default 1;

comment on column postroad.outbox.priority is 'That of the task, so that the relay need not look it up.';

alter table postroad.task
    add column not_before   timestamptz,
    add column deadline     timestamptz,
    add column submitted_by text;

comment on column postroad.task.submitted_by is
    'Who submitted it: key:<name> at the HTTP door, role:<name> by the functions in SQL; null: nobody that is known.';

comment on column postroad.task.not_before is 'When its first stages may start; null: at once.';

comment on column postroad.task.deadline is
    'From then on no stage of it is started: one that would be is a dead letter. Null: never, or a person let it go on.';

create function postroad.new_task_id() returns uuid language sql volatile parallel safe
return encode(
           set_bit(set_bit(
               overlay(uuid_send(gen_random_uuid())
                       placing substring(int8send(floor(extract(epoch from clock_timestamp()) * 1000)::bigint) from 3)
                       from 1 for 6),
               52, 1), 53, 1),
           'hex')::uuid;

comment on function postroad.new_task_id() is
    'A UUID of version 7 (RFC 9562): 48 bits of milliseconds, then random bits. Made later, it sorts later.';

create function postroad.new_traceparent() returns text language sql volatile parallel safe
return '00-' || encode(uuid_send(gen_random_uuid()), 'hex') || '-'
       || encode(substring(uuid_send(gen_random_uuid()) from 1 for 8), 'hex') || '-00';

comment on function postroad.new_traceparent() is 'The context of a new trace (W3C Trace Context).';

create function postroad.priority_of(word text) returns smallint language sql immutable parallel safe
return case when word is null then null when word = 'high' then 2 when word = 'normal' then 1 when word = 'low' then 0
            else -1 end::smallint;

comment on function postroad.priority_of(text) is 'The number of a priority; -1 for another word, null for none.';

create function postroad.label_fault(labels jsonb) returns text language sql immutable parallel safe
return case
           when labels = '{}' then null
           when jsonb_typeof(labels) <> 'object' then 'labels: an object of at most 16 strings'
           when (select count(*) from jsonb_object_keys(labels)) > 16 then 'labels: an object of at most 16 strings'
           else (select case
                            when name !~ '^[A-Za-z0-9_.-]{1,63}$' collate "C"
                                then 'labels: a label''s name is 1 to 63 letters, digits, ''_'', ''.'' and ''-'''
                            else 'labels: a label is a string of at most 255 characters'
                        end
                   from jsonb_each(labels) as label (name, value)
                  where name !~ '^[A-Za-z0-9_.-]{1,63}$' collate "C"
                     or jsonb_typeof(value) <> 'string'
                     or length(value #>> '{}') > 255
                  limit 1)
       end;

comment on function postroad.label_fault(jsonb) is 'What is wrong with the labels of a task; null: nothing.';

create function postroad.payload_fault(payload jsonb, content text) returns text language sql immutable parallel safe
return case
           when length(content) - length(replace(replace(content, '[', ''), '{', '')) > 100
                and jsonb_path_exists(payload, 'strict $.**{100 to last}.type() ? (@ == "object" || @ == "array")')
               then 'payload: nested deeper than 100 levels'
           when length(content) > 309 and content ~ '[0-9]{155}[0-9]{154}'
                and jsonb_path_exists(payload, '$.** ? (@.type() == "number" && (@ > 1.8e308 || @ < -1.8e308))')
               then 'payload: a number is too large for a double'
       end;

comment on function postroad.payload_fault(jsonb, text) is
    'What of a payload other parsers of JSON than Postgres'' would not take; null: nothing. content is a text that holds
it: only if that has so many brackets, or digits in a row, is the payload itself walked through.';

create function postroad.accept(
    task_ids uuid[], are_own boolean[], pipelines text[], payloads jsonb[], all_labels jsonb[], keys text[],
    traceparents text[], not_befores timestamptz[], deadlines timestamptz[], priorities smallint[],
    submitters text[] default null, patience text default null
) returns table (
    place bigint, outcome text, task_id uuid, created_at timestamptz, traceparent text, fault text
) language plpgsql security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan as $$
-- The one place where tasks are accepted, each with its idempotency key and the event of its creation.
-- Arrays of one length; those after payloads may be null. A task_id that is null is made here; one that is_own was
-- chosen by the client, and stands for the key if there is none.
-- Locks the new rows. All keys are inserted before any task, and both in order, so that two groups that share some
-- cannot wait for each other; one that somebody else is about to commit is waited for, at most for patience, which
-- then is the lock_timeout of the transaction.
-- Leans on the primary key of task, by a lateral that the planner cannot turn into a join of the whole table. So one plan
-- fits all: to plan for each call takes as long as to accept a task.
-- Returns a row for each place (from 1). outcome is accepted; replayed, key_taken (task_id is the one that the key
-- stands for); task_taken (the client's own); unknown_pipeline; invalid (fault says why, as member and detail).
-- Only for the first two is there such a task, and only for the first was anything written. A task_id that comes twice,
-- or that somebody else is about to commit, each under another key, violates task_pkey.
#variable_conflict use_column
declare
    the_key text;
    the_hash bytea;
    the_id_is_taken boolean;
    it_fits boolean;
    known record;
begin
    if patience is not null then
        perform set_config('lock_timeout', patience, true);
    end if;
    for place, outcome, task_id, created_at, traceparent, fault, the_key, the_hash, the_id_is_taken, it_fits in
        with asked as materialized (
            select s.place, s.pipeline, s.payload, s.not_before, s.deadline,
                   coalesce(s.task_id, postroad.new_task_id()) as task_id,
                   coalesce(s.labels, '{}') as labels,
                   coalesce(s.key, case when s.is_own then s.task_id::text end) as key,
                   case when s.traceparent like '00-________________________________-________________-__'
                             and s.traceparent ~ '^00-[0-9a-f]+-[0-9a-f]+-[0-9a-f]+$' collate "C"
                             and substr(s.traceparent, 4, 32) <> '00000000000000000000000000000000'
                             and substr(s.traceparent, 37, 16) <> '0000000000000000'
                        then s.traceparent else postroad.new_traceparent() end as traceparent,
                   jsonb_build_array(
                       s.pipeline, coalesce(s.labels, '{}'), s.payload, case when s.is_own then s.task_id end,
                       extract(epoch from s.not_before), extract(epoch from s.deadline),
                       nullif(s.priority, 1))::text as content,
                   coalesce(s.priority, 1::smallint) as priority, s.submitted_by
              from unnest(task_ids, are_own, pipelines, payloads, all_labels, keys, traceparents, not_befores,
                          deadlines, priorities, submitters)
                   with ordinality as s (task_id, is_own, pipeline, payload, labels, key, traceparent, not_before,
                                         deadline, priority, submitted_by, place)
        ),
        submission as materialized (
            select asked.*, pipeline.pipeline is not null as is_known, taken.task_id is not null as is_taken,
                   coalesce(asked.deadline <= clock_timestamp(), false) as is_late,
                   asked.priority = 1 or coalesce(pipeline.priorities, false) as is_fit,
                   sha256(convert_to(content, 'UTF8')) as request_hash,
                   case
                       when asked.pipeline is null then 'pipeline: the name of a pipeline is required'
                       when payload is null then 'payload: a payload is required; null, as JSON, is one'
                       when length(key) > 255 or key !~ '^[!-~]([ -~]*[!-~])?$' collate "C"
                           then 'key: 1 to 255 printable ASCII characters, the first and the last no space'
                       when not_before > clock_timestamp() + interval '366 days'
                           then 'not_before: a moment at most a year ahead'
                       when not_before = '-infinity' then 'not_before: a moment; leave it out for at once'
                       when not isfinite(deadline) then 'deadline: a moment; leave it out for none'
                       when deadline <= not_before then 'deadline: a moment after not_before'
                       when asked.priority not between 0 and 2 then 'priority: high, normal or low'
                       when labels <> '{}' and postroad.label_fault(labels) is not null
                           then postroad.label_fault(labels)
                       when length(content) > 200 then postroad.payload_fault(payload, content)
                   end as fault
              from asked
              left join postroad.pipeline on pipeline.pipeline = asked.pipeline
              left join lateral (select task_id from postroad.task where task.task_id = asked.task_id offset 0) as taken
                     on true
        ),
        keyed as (
            insert into postroad.intake_key (pipeline, key, request_hash, task_id)
            select pipeline, key, request_hash, task_id
              from submission
             where fault is null and is_known and not is_taken and not is_late and is_fit and key is not null
             order by pipeline, key, place
                on conflict do nothing
            returning task_id
        ),
        fresh as materialized (
            -- Of those that are one and the same the first; the others will find its key.
            select distinct on (task_id, key) *
              from submission
             where fault is null and is_known and not is_taken and not is_late and is_fit
               and (key is null or task_id in (select task_id from keyed))
             order by task_id, key, place
        ),
        created as (
            insert into postroad.task
                   (task_id, pipeline, payload, labels, trace_id, traceparent, not_before, deadline, priority,
                    submitted_by)
            select task_id, pipeline, payload, labels, substr(traceparent, 4, 32), traceparent, not_before, deadline,
                   priority, submitted_by
              from fresh
             order by task_id
        ),
        event as (
            insert into postroad.outbox (task_id, pipeline, type, traceparent, priority)
            select task_id, pipeline, 'TaskCreated', traceparent, priority from fresh order by place
        )
        -- No join: the planner takes the sets above for single rows, and would compare each with each.
        select place,
               case when fault is not null then 'invalid'
                    when not is_known then 'unknown_pipeline'
                    when place in (select place from fresh) then 'accepted'
               end,
               task_id, now(), traceparent, fault, key, request_hash, is_taken, is_fit
          from submission
         order by place
    loop
        if outcome is null then
            -- As of now: in the statement above what others had committed meanwhile could not be seen. The hash is of a text
            -- that may differ where the content does not (1.0 and 1); so what it does not know is compared as a whole,
            -- for as long as there is the task.
            select key.task_id, key.created_at, task.traceparent,
                   key.request_hash = the_hash
                   or task.payload = payloads[place]
                      and task.labels = coalesce(all_labels[place], '{}')
                      and task.not_before is not distinct from not_befores[place]
                      and task.deadline is not distinct from deadlines[place]
                      and task.priority = coalesce(priorities[place], 1)
                      and (are_own[place] is not true or task.task_id = task_ids[place]) as is_same
              into known
              from postroad.intake_key as key
              left join postroad.task on task.task_id = key.task_id
             where key.pipeline = pipelines[place] and key.key = the_key;
            if found then
                outcome := case when known.is_same then 'replayed' else 'key_taken' end;
                task_id := known.task_id;
                created_at := known.created_at;
                traceparent := coalesce(known.traceparent, traceparent);
            elsif not it_fits then
                outcome := 'invalid';
                fault := 'priority: pipeline ' || quote_literal(pipelines[place]) || ' has no priorities, so none of its'
                         ' tasks is ' || (array['low', 'normal', 'high'])[priorities[place] + 1] || ': leave it out, or'
                         ' declare Pipeline(…, priorities=True) and run postroad deploy';
            elsif the_id_is_taken then
                outcome := 'task_taken';
            elsif deadlines[place] <= clock_timestamp() then
                outcome := 'invalid';
                fault := 'deadline: a moment that is still ahead';
            else
                raise exception 'an idempotency key was removed while it was asked for; try again'
                    using errcode = 'serialization_failure';
            end if;
        end if;
        return next;
    end loop;
end $$;

create function postroad.accept_all(
    task_ids uuid[], are_own boolean[], pipelines text[], payloads jsonb[], all_labels jsonb[], keys text[],
    traceparents text[], not_befores timestamptz[], deadlines timestamptz[], priorities smallint[],
    submitters text[] default null
) returns table (
    place bigint, outcome text, task_id uuid, created_at timestamptz, traceparent text, fault text
) language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
-- As accept, all of them or none: if one is refused what was written is undone, and the last row says which and why.
-- The transaction goes on all the same.
#variable_conflict use_column
begin
    for place, outcome, task_id, created_at, traceparent, fault in
        select *
          from postroad.accept(
                   task_ids, are_own, pipelines, payloads, all_labels, keys, traceparents, not_befores, deadlines,
                   priorities, submitters)
    loop
        return next;
        if outcome not in ('accepted', 'replayed') then
            raise sqlstate 'PR000';
        end if;
    end loop;
exception
    when sqlstate 'PR000' then
        return;
end $$;

create function postroad.refuse(outcome text, task_id uuid, fault text, pipeline text, key text)
returns void language plpgsql as $$
begin
    case outcome
        when 'invalid' then
            raise exception using errcode = 'PR001', message = fault,
                hint = 'Nothing was submitted. The rules are those of the HTTP door: see docs/submit.md.';
        when 'unknown_pipeline' then
            raise exception using errcode = 'PR002', message = 'there is no pipeline ' || quote_literal(pipeline),
                hint = 'Pipelines are made by postroad deploy. There are now: ' || coalesce(
                    (select string_agg(known.pipeline, ', ' order by known.pipeline) from postroad.pipeline as known),
                    'none');
        when 'key_taken' then
            raise exception using errcode = 'PR003',
                message = 'the key ' || quote_literal(key) || ' stands for task ' || task_id
                          || ', which was submitted with other content',
                hint = 'The same key is for the same content again; submit other content under another key.';
        when 'task_taken' then
            raise exception using errcode = 'PR004', message = 'there is another task ' || task_id,
                hint = 'Choose a new UUID, or leave task_id out: then one is made.';
    end case;
end $$;

-- The names and parameters of this function and the two after it are promised to everybody (docs/submit.md). create or
-- replace keeps their grants; a migration that adds a parameter drops them, and must grant again to whom it took them.
create function postroad.submit(
    pipeline text, payload jsonb, key text default null, labels jsonb default '{}', task_id uuid default null,
    traceparent text default null, not_before timestamptz default null, deadline timestamptz default null,
    priority text default null
) returns uuid language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    answer record;
begin
    select * into strict answer
      from postroad.accept(
               array[task_id], array[task_id is not null], array[pipeline], array[payload], array[labels], array[key],
               array[traceparent], array[not_before], array[deadline], array[postroad.priority_of(priority)],
               array['role:' || session_user]);
    if answer.outcome not in ('accepted', 'replayed') then
        perform postroad.refuse(answer.outcome, answer.task_id, answer.fault, pipeline, key);
    end if;
    return answer.task_id;
end $$;

comment on function postroad.submit(text, jsonb, text, jsonb, uuid, text, timestamptz, timestamptz, text) is
    'Submit a task in this transaction: it is in its pipeline if this commits. Returns its id; under a key that was used
before, with the same content, the id of then. See docs/submit.md.';

create function postroad.submit_many(
    pipeline text, payloads jsonb[], keys text[] default null, labels jsonb default '{}', traceparent text default null,
    not_before timestamptz default null, deadline timestamptz default null, priority text default null
) returns table (
    place bigint, task_id uuid, is_replay boolean
) language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    answer record;
    count integer := cardinality(payloads);
begin
    if cardinality(keys) <> count then
        raise exception using errcode = 'PR001',
            message = 'keys: one for each payload; there are ' || cardinality(keys) || ' for ' || count,
            hint = 'A key that is null is none.';
    end if;
    if payloads is null then
        return;
    end if;
    for answer in
        select *
          from postroad.accept(
                   null, null, array_fill(pipeline, array[count]), payloads, array_fill(labels, array[count]), keys,
                   array_fill(traceparent, array[count]), array_fill(not_before, array[count]),
                   array_fill(deadline, array[count]),
                   array_fill(postroad.priority_of(priority), array[count]),
                   array_fill('role:' || session_user, array[count])) as accepted
    loop
        if answer.outcome not in ('accepted', 'replayed') then
            perform postroad.refuse(
                answer.outcome, answer.task_id, answer.fault || ' (in place ' || answer.place || ')', pipeline,
                keys[answer.place]);
        end if;
        place := answer.place;
        task_id := answer.task_id;
        is_replay := answer.outcome = 'replayed';
        return next;
    end loop;
end $$;

comment on function postroad.submit_many(text, jsonb[], text[], jsonb, text, timestamptz, timestamptz, text) is
    'Submit a task for each payload in this transaction, all of them or none. Returns a row for each, in their order.';

create function postroad.task_status(task_id uuid) returns table (
    pipeline text, status text, stage_status text, stages_done text[], retry_count integer, created_at timestamptz,
    updated_at timestamptz, finished_at timestamptz, not_before timestamptz, deadline timestamptz, dead_stage text,
    reason text
) language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select task.pipeline, task.status, task.stage_status, task.stages_done, task.retry_count, task.created_at,
           task.updated_at, task.finished_at, task.not_before, task.deadline, letter.stage, letter.reason
      from postroad.task
      left join lateral (
           select stage, reason
             from postroad.dead_letter
            where dead_letter.task_id = task.task_id and resolved_at is null
            order by dead_letter_id
            limit 1
           ) as letter on true
     where task.task_id = task_status.task_id
$$;

comment on function postroad.task_status(uuid) is
    'Where a task is, in one row; none if there is no such task. dead_stage and reason: of its first dead letter.';

revoke execute on function
    postroad.new_task_id, postroad.new_traceparent, postroad.priority_of, postroad.label_fault, postroad.payload_fault, postroad.accept,
    postroad.accept_all, postroad.refuse, postroad.submit, postroad.submit_many, postroad.task_status
from public;

create table postroad.schedule (
    schedule   text        primary key,
    pipeline   text        not null references postroad.pipeline,
    cron       text        not null,
    timezone   text        not null,
    payload    jsonb       not null,
    labels     jsonb       not null default '{}',
    paused     boolean     not null default false,
    next_at    timestamptz not null,
    last_at    timestamptz,
    last_task  uuid,
    created_at timestamptz not null default now()
);

comment on table postroad.schedule is
    'Tasks that the relay submits by a cron line, one for each tick: next_at is the first that has not been submitted.';

create index schedule_due on postroad.schedule (next_at) where not paused;
