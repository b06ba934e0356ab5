create or replace function postroad.payload_fault(payload jsonb, content text) returns text language sql immutable parallel safe
return case
           when pg_column_size(payload) > 800
                and octet_length(content) - octet_length(replace(replace(content, '[', ''), '{', '')) > 100
                and jsonb_path_exists(payload, 'strict $.**{100 to last}.type() ? (@ == "object" || @ == "array")')
               then 'payload: nested deeper than 100 levels'
           when octet_length(content) > 309 and content ~ '[0-9]{155}[0-9]{154}'
                and jsonb_path_exists(payload, '$.** ? (@.type() == "number" && (@ > 1.8e308 || @ < -1.8e308))')
               then 'payload: a number is too large for a double'
       end;

comment on function postroad.payload_fault(jsonb, text) is
    'What of a payload other parsers of JSON than Postgres'' would not take; null: nothing. content is a text that holds
it: only if that has so many brackets, or digits in a row, is the payload itself walked through. A level of nesting takes
8 bytes of jsonb at least, so what is smaller is not even counted.';

create or replace function postroad.accept(
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
                   concat_ws(
                       E'\n', s.payload, coalesce(s.labels, '{}'), coalesce(case when s.is_own then s.task_id end::text, ''),
                       coalesce(extract(epoch from s.not_before)::text, ''),
                       coalesce(extract(epoch from s.deadline)::text, ''), nullif(s.priority, 1)) as content,
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
                       when octet_length(content) > 200 then postroad.payload_fault(payload, content)
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
