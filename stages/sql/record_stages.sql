-- Make the stages of a pipeline those of its definition. Runs after record_pipeline, in its transaction.
-- Parameters: pipeline text; stage text[] and "after" text[] of one length, the latter as array literals.
with wanted as (
    select stage, after::text[] as after
      from unnest(%(stage)s::text[], %(after)s::text[]) as w (stage, after)
),
removed as (
    delete from postroad.stage
     where pipeline = %(pipeline)s and stage not in (select stage from wanted)
)
insert into postroad.stage as known (pipeline, stage, after)
select %(pipeline)s, stage, after from wanted
    on conflict (pipeline, stage) do update set after = excluded.after where known.after <> excluded.after
